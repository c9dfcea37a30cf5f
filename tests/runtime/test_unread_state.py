"""State that was restored, and that the program does not read any more, is named."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.errors import JobFailedError, StateError


class Counting(am.KeyedProcessFunction[int, int, int]):
    """Counts in a state of a name, and in one that it asks for with a record."""

    def __init__(self, name: str) -> None:
        self._name = name

    def open(self, context: am.KeyedRuntimeContext) -> None:
        self._state = context.keyed_state
        self._count = context.keyed_state.get_value(
            am.ValueStateDescriptor(self._name, int, default=0)
        )

    def process_element(self, value: int, context: Any, out: Any) -> None:
        self._count.update(self._count.value() + 1)
        self._state.get_value(am.ValueStateDescriptor("late", int)).update(1)


def keyed(env: am.StreamExecutionEnvironment, read: asyncio.Event) -> Any:
    async def numbers(last: int | None) -> AsyncIterator[int]:
        for number in range(0 if last is None else last + 1, 5):
            yield number
        # A savepoint comes behind them.
        read.set()
        await asyncio.Event().wait()

    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    source = env.from_async_iterable(numbers, offset=lambda number: number)
    stream = source.uid("numbers").assign_timestamps_and_watermarks(
        strategy.with_timestamp_assigner(lambda number, _: number)
    )
    return stream.uid("times").key_by(lambda number: number % 2)


def counting(name: str) -> Any:
    return lambda stream: stream.process(Counting(name)).uid("counts")


def windows(*, trigger: Any = None) -> Any:
    def build(stream: Any) -> Any:
        made = stream.window(am.TumblingEventTimeWindows.of(am.seconds(100)))
        if trigger is not None:
            made = made.trigger(trigger)
        return made.aggregate(am.count()).uid("windows")

    return build


def squared(stream: Any) -> Any:
    return counting("n")(stream).map(lambda number: number * number)


async def run(
    build: Any, directory: Path, *, restored: Path | None = None, **options: Any
) -> Path:
    """Run a job, from a savepoint maybe, until it has read all; return its savepoint."""
    read = asyncio.Event()
    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(None)
    build(keyed(env, read)).sink_to(print)
    async with env.start("job", restore_from=restored, **options) as job:
        reading = asyncio.create_task(read.wait())
        ending = asyncio.create_task(job.result())
        ending.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.wait([reading, ending], return_when=asyncio.FIRST_COMPLETED)
        reading.cancel()
        if ending.done():
            await ending
        await job.trigger_savepoint(directory)
        await job.cancel()
        await asyncio.wait([ending])
    return directory


def warnings_of_state(caplog: pytest.LogCaptureFixture) -> list[tuple[Any, Any]]:
    return [
        (record.__dict__["unread"], record.__dict__["empty"])
        for record in caplog.records
        if hasattr(record, "unread")
    ]


async def test_a_state_whose_name_has_changed_is_named_with_the_new_one(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    saved = await run(counting("seen"), tmp_path / "saved")
    await run(counting("count"), tmp_path / "again", restored=saved)
    [(unread, empty)] = warnings_of_state(caplog)
    assert "seen" in unread
    assert empty == ["count"]


async def test_state_that_no_operator_reads_stays_in_each_later_snapshot(
    tmp_path: Path,
) -> None:
    first = await run(counting("old"), tmp_path / "1")
    second = await run(counting("new"), tmp_path / "2", restored=first)
    third = await run(counting("new"), tmp_path / "3", restored=second)
    for saved in (first, third):
        assert dict(am.Savepoint(saved).state("counts", "old")) == {0: 3, 1: 2}


async def test_a_state_that_is_asked_for_with_a_record_is_no_warning(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    saved = await run(counting("seen"), tmp_path / "saved")
    await run(counting("seen"), tmp_path / "again", restored=saved)
    assert not warnings_of_state(caplog)


BOTH_WAYS = [
    (None, am.CountTrigger.of(3), "'open-windows'", "'window-contents'"),
    (am.CountTrigger.of(3), None, "'window-contents'", "'open-windows'"),
]


@pytest.mark.parametrize(("before", "after", "had", "has"), BOTH_WAYS)
async def test_windows_that_are_kept_in_another_way_are_refused(
    before: Any, after: Any, had: str, has: str, tmp_path: Path
) -> None:
    saved = await run(windows(trigger=before), tmp_path / "saved")
    with pytest.raises(JobFailedError) as caught:
        await run(windows(trigger=after), tmp_path / "again", restored=saved)
    error = caught.value.__cause__
    while error is not None and not isinstance(error, StateError):
        error = error.__cause__
    assert had in str(error)
    assert has in str(error)


async def test_windows_begin_empty_where_state_may_be_unmatched(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    saved = await run(windows(), tmp_path / "saved")
    await run(
        windows(trigger=am.CountTrigger.of(3)),
        tmp_path / "again",
        restored=saved,
        allow_unmatched_state=True,
    )
    [(unread, empty)] = warnings_of_state(caplog)
    assert unread == ["open-windows"]
    assert "window-contents" in empty


async def test_an_operator_may_come_before_a_function_that_is_a_sink(
    tmp_path: Path,
) -> None:
    """The sink has no uid, and keeps nothing: neither its id nor its state matters."""
    await run(counting("n"), tmp_path / "first")
    await run(squared, tmp_path / "second", restored=tmp_path / "first")
    counts = dict(am.Savepoint(tmp_path / "second").state("counts", "n"))
    assert counts == {0: 3, 1: 2}
