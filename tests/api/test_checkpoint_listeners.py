"""Functions of all kinds are notified when checkpoints complete or are aborted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.errors import WrongTypeError

Stream = am.DataStream[Any]
TOLD: list[tuple[str, str, int]] = []


class Listens(am.CheckpointListener):
    """Writes down what it is told."""

    async def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        await asyncio.sleep(0)
        TOLD.append((type(self).__name__, "complete", checkpoint_id))

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        TOLD.append((type(self).__name__, "aborted", checkpoint_id))


class Process(Listens, am.ProcessFunction):
    def process_element(self, value: Any, context: Any, out: Any) -> None:
        out.collect(value)


class Keyed(Listens, am.KeyedProcessFunction):
    def process_element(self, value: Any, context: Any, out: Any) -> None:
        out.collect(value)


class KeyedAsync(Listens, am.KeyedAsyncProcessFunction):
    async def process_element(self, value: Any, context: Any, out: Any) -> None:
        out.collect(value)


class Window(Listens, am.ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any, out: Any) -> None:
        out.collect(key)


class Two(Listens, am.CoProcessFunction):
    def process_element1(self, value: Any, context: Any, out: Any) -> None:
        out.collect(value)

    def process_element2(self, value: Any, context: Any, out: Any) -> None:
        out.collect(value)


class Plain(Listens):
    def __call__(self, value: Any) -> Any:
        return value


class Awaited(Listens):
    async def __call__(self, value: Any) -> Any:
        return value


class Items(Listens):
    def __call__(self, value: Any) -> list[Any]:
        return [value]


PLACES: dict[str, Callable[[Stream], Stream]] = {
    "Process": lambda stream: stream.process(Process()),
    "Keyed": lambda stream: stream.key_by(int).process(Keyed()),
    "KeyedAsync": lambda stream: stream.key_by(int).process_async(KeyedAsync()),
    "Window": lambda stream: stream.key_by(int).count_window(1).process(Window()),
    "Two": lambda stream: stream.connect(stream).process(Two()),
    "Plain": lambda stream: stream.map(abs).map(Plain()).filter(bool),
    "Awaited": lambda stream: stream.map_async(Awaited()),
    "Items": lambda stream: stream.flat_map(Items(), run_in="thread"),
}
OTHERS: dict[str, Callable[[Stream], Stream]] = {
    "Plain": lambda stream: stream.filter(Plain()),
    "Awaited": lambda stream: stream.map(Awaited()),
    "Items": lambda stream: stream.flat_map(Items()),
}
CASES = [*PLACES.items(), *OTHERS.items(), ("Awaited", lambda s: s.map_async(Awaited))]


# An inbox cannot give again what it gave.
ONCE_OR_MORE = am.CheckpointingMode.AT_LEAST_ONCE


@pytest.fixture(autouse=True)
def _nothing_told() -> None:
    TOLD.clear()


@pytest.mark.parametrize(("name", "build"), CASES)
async def test_a_function_is_told_that_a_checkpoint_is_complete(
    name: str, build: Callable[[Stream], Stream]
) -> None:
    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(None, mode=ONCE_OR_MORE)
    build(env.from_source(am.Inbox())).sink_to(print)
    async with env.start() as job:
        first = await job.trigger_checkpoint()
        second = await job.trigger_checkpoint()
        await job.cancel()
    del first, second
    assert [(name, "complete", 1), (name, "complete", 2)] == TOLD


async def test_a_function_of_a_sink_is_told_too() -> None:
    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(None, mode=ONCE_OR_MORE)
    env.from_source(am.Inbox()).sink_to(Plain())
    async with env.start() as job:
        await job.trigger_checkpoint()
        await job.cancel()
    assert TOLD == [("Plain", "complete", 1)]


class Declines(am.ProcessFunction, am.CheckpointedFunction):
    def initialize_state(self, context: Any) -> None: ...

    def snapshot_state(self, context: Any) -> None:
        raise ValueError("not now")

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        out.collect(value)


async def test_a_function_is_told_that_a_checkpoint_is_aborted() -> None:
    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(None, tolerable_failures=5, mode=ONCE_OR_MORE)
    env.from_source(am.Inbox()).process(Process()).process(Declines()).sink_to(print)
    async with env.start() as job:
        with pytest.raises(am.CheckpointFailedError):
            await job.trigger_checkpoint()
        while not TOLD:
            await asyncio.sleep(0)
        await job.cancel()
    assert TOLD == [("Process", "aborted", 1)]


class Fails(am.ProcessFunction):
    def process_element(self, value: Any, context: Any, out: Any) -> None:
        out.collect(value)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        raise ValueError("the ledger is closed")


async def test_the_job_fails_with_one_that_raises_and_names_its_line() -> None:
    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(None, mode=ONCE_OR_MORE)
    env.configure(restart=am.restart.none())
    env.from_source(am.Inbox()).process(Fails()).name("ledger").sink_to(print)
    with pytest.raises(am.JobFailedError, match="the ledger is closed") as failed:
        async with env.start() as job:
            await job.trigger_checkpoint()
            await job.result()
    assert failed.value.operator == "ledger"
    assert "test_checkpoint_listeners.py" in (failed.value.location or "")


class Wrong(am.ProcessFunction):
    def process_element(self, value: Any, context: Any, out: Any) -> None: ...

    def notify_checkpoint_complete(self) -> None: ...


def test_a_method_that_takes_no_id_is_refused_where_it_is_written() -> None:
    stream: Stream = am.StreamExecutionEnvironment().from_collection([1])
    with pytest.raises(WrongTypeError, match="notify_checkpoint_complete"):
        stream.process(Wrong())


class Writes(am.ProcessFunction):
    """Leaves a file for each subtask and checkpoint."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def open(self, context: am.RuntimeContext) -> None:
        self.subtask = context.subtask_index

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        out.collect(value)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        (self.directory / f"{self.subtask}-{checkpoint_id}").touch()


@pytest.mark.real_time
async def test_functions_in_worker_processes_are_told(tmp_path: Path) -> None:
    env = am.StreamExecutionEnvironment(parallelism=2)
    env.configure(deployment=am.Processes(2))
    env.enable_checkpointing(
        None, directory=tmp_path / "checkpoints", mode=ONCE_OR_MORE
    )
    inbox = env.from_source(am.Inbox())
    told = tmp_path / "told"
    told.mkdir()
    inbox.rebalance().process(Writes(told)).sink_to(print)
    async with env.start() as job:
        await job.trigger_checkpoint()
        # The next one completes after the notifications of the first were sent.
        await job.trigger_checkpoint()
        while len(list(told.iterdir())) < 4:
            await asyncio.sleep(0.01)
        await job.cancel()
    assert {path.name for path in told.iterdir()} == {"0-1", "1-1", "0-2", "1-2"}
