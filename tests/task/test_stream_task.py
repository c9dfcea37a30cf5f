"""The life of a task: restore, open, the end of data, finish, close."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiomailbox.errors import StopTask, UserFunctionError
from aiomailbox.mailbox.mail import MailOptions
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.records.events import (
    MAX_TIMESTAMP,
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    OutputTag,
    StopMode,
    Watermark,
)
from aiomailbox.records.run import ListRun
from aiomailbox.state.operator_state import OperatorStateSnapshot
from aiomailbox.task.environment import TaskCheckpointing
from aiomailbox.task.in_flight import TaskSnapshot
from aiomailbox.task.messages import CheckpointComplete
from aiomailbox.task.stream_task import TaskState
from tests.task.conftest import LogOperator


async def test_a_task_lives_from_restore_to_close(bench: Any) -> None:
    """SEM-260, MB-68."""
    (producer,) = bench.input()
    for name in "abc":
        bench.logged(name)
    consumer = bench.output()
    kept = {
        name: OperatorSnapshot(own=OperatorStateSnapshot().with_list("name", [text]))
        for name, text in {"a": "A", "c": "C", "gone": "X"}.items()
    }
    task = bench.start(TaskSnapshot(kept))
    producer.send(1, 2)
    producer.watermark(MAX_TIMESTAMP)
    producer.end()
    assert await bench.end() is None
    assert bench.log == [
        *("a.restore A", "c.restore C"),
        *("c.open", "b.open", "a.open"),
        *("a.end_input", "a.finish"),
        *("b.end_input", "b.finish"),
        *("c.end_input", "c.finish"),
        *("c.close", "b.close", "a.close"),
    ]
    assert consumer.read() == [
        1,
        2,
        Watermark(MAX_TIMESTAMP),
        EndOfData(StopMode.DRAIN),
        EndOfPartition(),
    ]
    assert task.lifecycle.state is TaskState.FINISHED


async def test_without_drain_nothing_ends_its_input_or_finishes(bench: Any) -> None:
    (producer,) = bench.input()
    bench.logged("a")
    bench.logged("b")
    consumer = bench.output()
    task = bench.start()
    producer.send(1)
    producer.end(StopMode.NO_DRAIN)
    assert await bench.end() is None
    assert bench.log == ["b.open", "a.open", "b.close", "a.close"]
    assert consumer.read() == [1, EndOfData(StopMode.NO_DRAIN), EndOfPartition()]
    assert task.lifecycle.state is TaskState.FINISHED


async def test_a_snapshot_names_operators_by_their_ids(bench: Any) -> None:
    bench.input()
    bench.add(lambda: LogOperator([], "a", {}), "a", uid="mine")
    bench.logged("b")
    task = bench.start()
    await bench.settle()
    future = task.processor.main_executor.submit(task.snapshot)
    operators = (await future).operators
    found = {name: one.own.elements("name") for name, one in operators.items()}
    assert found == {"mine": ["a"], "b": ["b"]}
    task.cancel()
    await bench.end()


async def test_an_operator_may_emit_while_it_opens(bench: Any) -> None:
    (producer,) = bench.input()
    bench.logged("a", open=lambda self: self.output.emit_run(ListRun(["early"])))
    bench.logged("b")
    consumer = bench.output()
    bench.start()
    producer.end()
    await bench.end()
    assert consumer.read()[0] == "early"


async def test_operators_finish_one_by_one_each_with_its_mail(bench: Any) -> None:
    """SEM-220, MB-83: a due timer, finish, the mail of finish; far and new timers never."""
    (producer,) = bench.input()

    def on_open(self: Any) -> None:
        time = self.context.processing_time
        time.register_timer(10**15, lambda _: self.log.append(f"{self.name} far"))

    def on_end(self: Any) -> None:
        self.context.mailbox.execute(self.log.append, f"{self.name} due timer")

    def on_finish(self: Any) -> None:
        time = self.context.processing_time
        time.register_timer(0, lambda _: self.log.append(f"{self.name} new timer"))
        self.context.mailbox.execute(self.log.append, f"{self.name} mail of finish")

    for name in "abc":
        bench.logged(name, open=on_open, end_input=on_end, finish=on_finish)
    bench.start()
    producer.end()
    assert await bench.end() is None
    assert bench.log[3:-3] == [
        line
        for name in "abc"
        for line in (
            f"{name}.end_input",
            f"{name} due timer",
            f"{name}.finish",
            f"{name} mail of finish",
        )
    ]


async def test_what_finish_awaits_is_awaited_before_the_next_operator(
    bench: Any,
) -> None:
    (producer,) = bench.input()

    async def slowly(self: Any) -> None:
        await asyncio.sleep(5)
        self.log.append(f"{self.name} finished")

    bench.logged("a", finish=slowly, end_input=slowly, open=slowly, close=slowly)
    bench.logged("b", finish=slowly, end_input=slowly, open=slowly, close=slowly)
    bench.start()
    producer.end()
    assert await bench.end() is None
    assert bench.log == [
        line
        for name, what in [
            ("b", "open"),
            ("a", "open"),
            ("a", "end_input"),
            ("a", "finish"),
            ("b", "end_input"),
            ("b", "finish"),
            ("b", "close"),
            ("a", "close"),
        ]
        for line in (f"{name}.{what}", f"{name} finished")
    ]


@pytest.mark.parametrize("mode", list(StopMode))
async def test_finishing_runs_deferrable_mail_too(bench: Any, mode: StopMode) -> None:
    """MB-84."""
    (producer,) = bench.input()

    def defer(self: Any, run: Any) -> Any:
        self.context.mailbox.execute(
            self.log.append, "deferred", options=MailOptions.DEFERRABLE
        )
        return self.output.emit_run(run)

    bench.logged("a", run=defer)
    consumer = bench.output()
    bench.start()
    producer.send(1)
    producer.end(mode)
    assert await bench.end() is None
    assert "deferred" in bench.log
    assert consumer.read() == [1, EndOfData(mode), EndOfPartition()]


async def test_a_failing_finish_ends_the_task_and_what_is_downstream_never_finishes(
    bench: Any,
) -> None:
    """SEM-221, MB-85."""
    (producer,) = bench.input()

    def fail(self: Any) -> None:
        raise ValueError("finish")

    bench.logged("a", finish=fail)
    bench.logged("b")
    task = bench.start()
    producer.end()
    error = await bench.end()
    assert repr(error.__cause__) == "ValueError('finish')"
    assert bench.log[2:] == ["a.end_input", "a.finish", "b.close", "a.close"]
    assert task.lifecycle.state is TaskState.FAILED


@pytest.mark.parametrize("phase", ["open", "run", "end_input", "finish", "close"])
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_failure_names_the_operator_and_the_phase(
    bench: Any, phase: str, is_async: bool
) -> None:
    (producer,) = bench.input()

    def fail(self: Any, *_: Any) -> Any:
        if not is_async:
            raise ValueError(phase)

        async def later() -> None:
            await asyncio.sleep(1)
            raise ValueError(phase)

        return later()

    bench.logged("first")
    bench.logged("second", **{phase: fail})
    task = bench.start()
    producer.send(1)
    producer.end()
    error = await bench.end()
    raised = error if phase == "run" else error.__cause__
    assert repr(raised) == f"ValueError('{phase}')"
    assert task.lifecycle.state is TaskState.FAILED
    assert bench.log[-2:] == ["second.close", "first.close"]
    if phase != "run":
        assert isinstance(error, UserFunctionError)
        assert (error.operator, error.uid) == ("second", None)
        assert __file__ in error.location
        assert f"in {phase}() of operator 'second'" in error.__notes__


async def test_all_operators_are_closed_and_the_first_error_wins(bench: Any) -> None:
    (producer,) = bench.input()

    def fail(self: Any) -> None:
        raise ValueError(self.name)

    for name in "abc":
        bench.logged(name, close=fail)
    bench.start()
    producer.end()
    error = await bench.end()
    assert bench.log[-3:] == ["c.close", "b.close", "a.close"]
    assert repr(error.__cause__) == "ValueError('c')"
    notes = "\n".join(error.__notes__)
    assert "ValueError: b" in notes
    assert "ValueError: a" in notes


async def test_an_error_while_closing_is_a_note_of_the_error_that_closed(
    bench: Any,
) -> None:
    """MB-44."""
    (producer,) = bench.input()

    def fail(self: Any, *_: Any) -> None:
        raise ValueError("close" if "a.close" in self.log else "process")

    bench.logged("a", run=fail, close=fail)
    bench.start()
    producer.send(1)
    error = await bench.end()
    assert repr(error) == "ValueError('process')"
    assert any("ValueError: close" in note for note in error.__notes__)


async def test_a_failing_factory_fails_the_task(bench: Any) -> None:
    bench.input()

    def factory() -> Any:
        raise ValueError("factory")

    bench.add(factory)
    bench.output()
    task = bench.start()
    assert repr(await bench.end()) == "ValueError('factory')"
    assert task.lifecycle.state is TaskState.FAILED


async def test_operators_that_have_not_been_opened_are_closed_all_the_same(
    bench: Any,
) -> None:
    bench.input()

    def fail(self: Any) -> None:
        raise ValueError("open")

    bench.logged("a")
    bench.logged("b", open=fail)
    bench.start()
    assert repr((await bench.end()).__cause__) == "ValueError('open')"
    assert bench.log == ["b.open", "b.close", "a.close"]


async def test_a_chain_may_branch_and_have_side_outputs(bench: Any) -> None:
    (producer,) = bench.input()
    tag = OutputTag("odd")

    def split(self: Any, run: Any) -> Any:
        self.output.emit_side(tag, ListRun([v for v in run.values if v % 2]))
        self.output.emit_side(OutputTag("nobody"), run)
        return self.output.emit_run(ListRun([v for v in run.values if not v % 2]))

    head = bench.logged("head", run=split)
    bench.logged("left", head)
    left = bench.output()
    bench.logged("right", head)
    right = bench.output()
    side = bench.output(head, tag)
    direct = bench.output(head)
    bench.start()
    producer.send(1, 2, 3, 4)
    producer.watermark(5)
    producer.end()
    assert await bench.end() is None
    end = [Watermark(5), EndOfData(), EndOfPartition()]
    assert left.read() == right.read() == direct.read() == [2, 4, *end]
    assert side.read() == [1, 3, *end]


async def test_a_task_that_ended_takes_no_mail_and_leaves_no_asyncio_task(
    bench: Any,
) -> None:
    (producer,) = bench.input()

    def spawn(self: Any) -> None:
        self.context.spawn(asyncio.Event().wait(), name="helper")
        self.context.processing_time.schedule_at_fixed_rate(lambda _: None, 1, 1)

    bench.logged("a", open=spawn)
    task = bench.start()
    await bench.settle()
    # This one, the helper, the one that runs the task and the one that waits for it.
    assert len(asyncio.all_tasks()) == 4
    producer.end()
    assert await bench.end() is None
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert not task.processor.mailbox.is_open


async def test_deferrable_mail_runs_before_its_operator_finishes(bench: Any) -> None:
    (producer,) = bench.input()

    def defer(self: Any) -> None:
        self.context.mailbox.execute(
            self.log.append,
            f"{self.name} deferred",
            options=MailOptions.DEFERRABLE,
        )

    bench.logged("a", end_input=defer)
    bench.logged("b", end_input=defer)
    bench.start()
    producer.end()
    assert await bench.end() is None
    assert bench.log[2:-2] == [
        line
        for name in "ab"
        for line in (f"{name}.end_input", f"{name} deferred", f"{name}.finish")
    ]


async def test_what_reads_a_failed_task_stops_and_hears_why(bench: Any) -> None:
    (producer,) = bench.input()

    def fail(self: Any, run: Any) -> None:
        raise ValueError("upstream")

    bench.logged("a", run=fail)
    consumer = bench.output()
    bench.start()
    producer.send(1)
    error = await bench.end()
    with pytest.raises(StopTask) as caught:
        consumer.read()
    assert caught.value.__cause__ is error


async def test_a_task_is_as_it_was_at_a_checkpoint_until_it_has_something_to_do(
    bench: Any,
) -> None:
    class File(str):
        __slots__ = ()
        size = 1

    async def write(*_: Any) -> File:
        return File()

    bench.checkpointing = TaskCheckpointing(
        write=write, write_little=lambda checkpoint_id, snapshot: None
    )
    (producer,) = bench.input()
    bench.logged("a")
    task = bench.start()
    producer.send(1)
    producer.writer.broadcast_event(CheckpointBarrier(7, 0))
    await bench.settle()
    assert task.unchanged_id == -1
    task.tell(CheckpointComplete(7))
    await bench.settle()
    assert task.unchanged_id == 7
    # What mail will do is not known before it runs.
    task.processor.main_executor.execute(lambda: None)
    assert task.unchanged_id == -1
