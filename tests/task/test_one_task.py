"""Everything that an operator does is done in one asyncio task, one thing at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiomailbox.operators.core.operator import Operator
from aiomailbox.state.backends import HeapStateBackend


async def test_an_operator_is_called_in_the_asyncio_task_of_its_task_only(
    bench: Any,
) -> None:
    """MB-62."""
    (producer,) = bench.input()
    seen: dict[str, object] = {}

    def note(what: str) -> Any:
        return lambda *_: seen.setdefault(what, asyncio.current_task()) and None

    def on_open(self: Any) -> None:
        note("open")()
        self.context.mailbox.execute(note("mail"))
        time = self.context.processing_time
        time.register_timer(time.current_processing_time() + 10, note("timer"))

    hooks = {what: note(what) for what in ("run", "end_input", "finish", "close")}
    bench.logged("a", open=on_open, **hooks)
    task = bench.start()
    producer.send(1)
    await asyncio.sleep(1)
    runner = task.runner
    producer.end()
    assert await bench.end() is None
    assert seen == dict.fromkeys(
        ["open", "mail", "run", "timer", "end_input", "finish", "close"], runner
    )


class Careful(Operator):
    """Must not be snapshotted within a record, nor within a snapshot."""

    def __init__(self) -> None:
        self.inside = ""
        self.log: list[str] = []

    async def process_run(self, run: Any) -> None:
        self.inside = "a record"
        await asyncio.sleep(1)
        self.inside = ""
        self.log.append("record")

    def fill_state(self) -> None:
        assert not self.inside, f"a snapshot within {self.inside}"
        self.log.append("snapshot")


async def test_snapshots_that_many_ask_for_overlap_no_record(bench: Any) -> None:
    """MB-117, of a task with an input."""
    (producer,) = bench.input()
    operator = Careful()
    bench.add(lambda: operator)
    task = bench.start()
    producer.send(1)
    await asyncio.sleep(0.5)
    # In the middle of the record.
    snapshots = [task.processor.main_executor.submit(task.snapshot) for _ in range(3)]
    assert operator.log == []
    for snapshot in snapshots:
        assert list((await snapshot).operators) == ["operator"]
    producer.end()
    assert await bench.end() is None
    assert operator.log == ["record"] + ["snapshot"] * 3


class CountingBackend:
    """Counts how often each of its stores is closed."""

    def __init__(self) -> None:
        self.closed: list[int] = []

    def create_store(self, *arguments: Any) -> Any:
        store = HeapStateBackend().create_store(*arguments)
        number = len(self.closed)
        self.closed.append(0)
        close = store.close

        def count() -> None:
            self.closed[number] += 1
            close()

        store.close = count
        return store


@pytest.mark.parametrize("fails", [False, True])
async def test_state_is_given_back_once_whether_the_task_finishes_or_fails(
    bench: Any, fails: bool
) -> None:
    """MB-48, MB-49."""
    (producer,) = bench.input()

    def run(self: Any, run: Any) -> Any:
        if fails:
            raise ValueError("run")

    for name in "ab":
        bench.logged(name, run=run)
    for plan in bench.plans:
        plan.is_keyed = True
    backend = CountingBackend()
    bench.build().environment.job.state_backend = backend
    bench.runner = asyncio.get_running_loop().create_task(bench.task.run())
    producer.send(1)
    producer.end()
    error = await bench.end()
    assert repr(error) == ("ValueError('run')" if fails else "None")
    assert backend.closed == [1, 1]
