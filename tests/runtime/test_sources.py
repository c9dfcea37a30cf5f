"""Enumerators and readers: splits on request, splits dealt out, failures."""

from __future__ import annotations

from typing import Any

import pytest

from aiomailbox.availability import Availability
from aiomailbox.errors import JobFailedError
from aiomailbox.operators.sources.source import (
    Boundedness,
    InputStatus,
    StaticEnumerator,
)
from aiomailbox.records.run import ListRun
from aiomailbox.testing.scripted_source import ScriptSplit


class AskingReader:
    """Reads one split, one record, and asks for the next."""

    def __init__(self, source: Any, context: Any) -> None:
        self.availability = Availability()
        self.source = source
        self.context = context
        self.splits: list[ScriptSplit] = []
        self.no_more = False

    def start(self) -> None:
        self.context.request_split()

    def add_splits(self, splits: list[ScriptSplit]) -> None:
        self.splits += splits
        self.availability.set_available()

    def notify_no_more_splits(self) -> None:
        self.no_more = True
        self.availability.set_available()

    def poll_next(self, output: Any) -> InputStatus:
        if self.splits:
            split = self.splits.pop()
            # A record takes longer than a slice, so that the others have their turn.
            self.context.clock.advance(0.002)
            self.source.read.append((self.context.subtask_index, split.split_id))
            output.emit_run(ListRun([split.split_id]))
            self.context.request_split()
        if self.no_more:
            return InputStatus.END_OF_INPUT
        if not self.splits:
            self.availability.reset()
        return InputStatus.NOTHING_AVAILABLE

    def snapshot(self) -> list[ScriptSplit]:
        return self.splits

    def close(self) -> None:
        self.source.closed.append(self.context.subtask_index)


class AskedEnumerator(StaticEnumerator[ScriptSplit]):
    """Hands out on request; writes down its end, and fails if told to."""

    def __init__(self, source: Any, context: Any) -> None:
        splits = [ScriptSplit(str(number)) for number in range(source.count)]
        super().__init__(context, splits, on_request=True)
        self.source = source

    def start(self) -> None:
        if "start" in self.source.failing:
            raise ValueError("start")

    def handle_split_request(self, subtask_index: int) -> None:
        if "request" in self.source.failing:
            raise ValueError("request")
        super().handle_split_request(subtask_index)

    def close(self) -> None:
        self.source.closed.append("enumerator")
        if "close" in self.source.failing:
            raise ValueError("close")


class AskingSource:
    """A source whose readers ask."""

    boundedness = Boundedness.BOUNDED

    def __init__(self, count: int, *failing: str) -> None:
        self.count = count
        self.failing = failing
        self.read: list[tuple[int, str]] = []
        self.closed: list[Any] = []

    def create_enumerator(self, context: Any, state: Any = None) -> AskedEnumerator:
        return AskedEnumerator(self, context)

    def create_reader(self, context: Any) -> AskingReader:
        if "reader" in self.failing:
            raise ValueError("reader")
        return AskingReader(self, context)


async def test_each_split_goes_to_one_reader_that_asked(bench: Any) -> None:
    source = AskingSource(20)
    upstream = bench.source(source=source, parallelism=3)
    await bench.deploy(bench.operator(upstream)).wait()
    assert sorted(int(value) for _, value in bench.log) == list(range(20))
    assert {subtask for subtask, _ in source.read} == {0, 1, 2}
    assert sorted(source.closed, key=str) == [0, 1, 2, "enumerator"]


async def test_more_readers_than_splits_all_end(bench: Any) -> None:
    upstream = bench.source(source=AskingSource(1), parallelism=4)
    await bench.deploy(bench.operator(upstream)).wait()
    assert len(bench.log) == 1


@pytest.mark.parametrize("where", ["start", "request", "reader", "close"])
async def test_a_failing_source_fails_the_job_and_is_closed(
    bench: Any, where: str
) -> None:
    source = AskingSource(3, where)
    job = bench.deploy(bench.operator(bench.source(source=source, parallelism=2)))
    with pytest.raises(JobFailedError, match=where):
        await job.wait()
    assert "enumerator" in source.closed
    # Whoever pulls hears of the end.
    assert await bench.handover.take() is None


async def test_two_sources_do_not_share_an_enumerator(bench: Any) -> None:
    sources = [AskingSource(5), AskingSource(7)]
    sinks = [bench.operator(bench.source(source=each)) for each in sources]
    await bench.deploy(*sinks).wait()
    assert [len(each.read) for each in sources] == [5, 7]
