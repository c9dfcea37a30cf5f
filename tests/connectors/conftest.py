"""Readers driven by hand: a context, an output, and a loop that polls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiomailbox.metrics.instruments import MetricGroup
from aiomailbox.operators.sources.source import InputStatus
from aiomailbox.task.chain import HelperTasks
from aiomailbox.testing import ManualClock
from tests.connectors.databases import (  # noqa: F401 -- fixtures
    database,
    mortal,
    mortal_server,
    postgres,
    postgres_server,
    sqlite,
)
from tests.held import caplog  # noqa: F401 -- a fixture


class Log:
    """Keeps what was logged."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def warning(self, event: str, **_: Any) -> None:
        self.events.append(event)


class FakeReaderContext:
    """What a reader may use, without a task."""

    def __init__(self, subtask_index: int = 0, parallelism: int = 1) -> None:
        self.subtask_index = subtask_index
        self.parallelism = parallelism
        self.clock = ManualClock()
        self.metrics = MetricGroup("reader")
        self.log = Log()
        self.takes_checkpoints = False
        self.cancel_timeout_s = 30.0
        self.requested = 0
        self.helpers = HelperTasks(lambda error: None)
        self.operator_name = "source"
        self.uid = None
        self.mutations = None

    def request_split(self) -> None:
        self.requested += 1

    def spawn(self, work: Any, *, name: str) -> asyncio.Task[None]:
        return self.helpers.spawn(work, name=name)


class FakeSplitOutput:
    def __init__(self, owner: FakeOutput, split_id: str) -> None:
        self._owner = owner
        self._split_id = split_id

    def emit_run(self, run: Any) -> None:
        assert len(run) <= self._owner.records_max
        self._owner.runs.append((self._split_id, run))

    def mark_idle(self) -> None:
        self._owner.log.append(("idle", self._split_id))


class FakeOutput(FakeSplitOutput):
    """Keeps runs by split, and what was said about splits in order."""

    def __init__(self, records_max: int = 1024) -> None:
        super().__init__(self, "")
        self.records_max = records_max
        self.runs: list[tuple[str, Any]] = []
        self.log: list[tuple[str, str]] = []
        self._known: set[str] = set()

    def for_split(self, split_id: str) -> FakeSplitOutput:
        if split_id not in self._known:
            self._known.add(split_id)
            self.log.append(("new", split_id))
        return FakeSplitOutput(self, split_id)

    def release_split(self, split_id: str) -> None:
        self.log.append(("end", split_id))

    @property
    def values(self) -> list[Any]:
        return [value for _, run in self.runs for value in run.values]


class FakeEnumeratorContext:
    """Gives splits to readers at once."""

    def __init__(self, readers: list[Any]) -> None:
        self.parallelism = len(readers)
        self.readers = readers

    def assign_splits(self, subtask_index: int, splits: list[Any]) -> None:
        self.readers[subtask_index].add_splits(splits)

    def signal_no_more_splits(self, subtask_index: int) -> None:
        self.readers[subtask_index].notify_no_more_splits()


class Driven:
    """A source's readers, started, with their splits, polled by hand."""

    def __init__(
        self,
        source: Any,
        *,
        parallelism: int = 1,
        splits: Any = None,
        takes_checkpoints: bool = True,
        **output: Any,
    ) -> None:
        self.output = FakeOutput(**output)
        self.contexts = [
            FakeReaderContext(index, parallelism) for index in range(parallelism)
        ]
        for context in self.contexts:
            context.takes_checkpoints = takes_checkpoints
        self.readers = [source.create_reader(context) for context in self.contexts]
        self.reader = self.readers[0]
        for reader in self.readers:
            reader.start()
        if splits is not None:
            self.reader.add_splits(splits)
            self.reader.notify_no_more_splits()
            return
        enumerator = source.create_enumerator(FakeEnumeratorContext(self.readers))
        enumerator.start()
        for index in range(parallelism):
            enumerator.add_reader(index)
        enumerator.close()

    async def poll(self, reader: Any = None) -> InputStatus:
        """Wait until something is found and return what."""
        reader = reader or self.reader
        while True:
            await reader.availability.wait()
            status = reader.poll_next(self.output)
            if status is not InputStatus.NOTHING_AVAILABLE:
                return status

    async def read(self, runs_max: int | None = None) -> list[Any]:
        """Read to the end, or so many runs, and return all records."""
        for reader in self.readers:
            while runs_max is None or len(self.output.runs) < runs_max:
                if await self.poll(reader) is InputStatus.END_OF_INPUT:
                    break
        return self.output.values

    async def close(self) -> None:
        for reader in self.readers:
            pending = reader.close()
            if pending is not None:
                await pending
        for context in self.contexts:
            await context.helpers.close()


@pytest.fixture
def drive() -> type[Driven]:
    """Give the class that drives a source's readers."""
    return Driven
