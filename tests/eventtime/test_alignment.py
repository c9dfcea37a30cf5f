"""Laws of keeping sources together."""

from __future__ import annotations

import pytest

from aiomailbox.eventtime.alignment import AlignedReader, AlignmentGroup
from aiomailbox.eventtime.generators import RelativeClock
from aiomailbox.records.events import MAX_TIMESTAMP
from aiomailbox.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def reader(clock: ManualClock) -> AlignedReader:
    return AlignedReader(RelativeClock(clock))


def test_a_reader_beyond_the_limit_waits_until_the_limit_moves(
    reader: AlignedReader,
) -> None:
    """SEM-34."""
    reader.on_watermark(1000)
    assert reader.report() == 1000
    reader.on_limit(999)
    assert not reader.availability.available
    reader.on_limit(1001)
    assert reader.availability.available
    reader.on_watermark(2000)
    assert (reader.availability.available, reader.report()) == (False, 2000)


def test_a_reader_at_the_limit_goes_on(reader: AlignedReader) -> None:
    reader.on_limit(1000)
    reader.on_watermark(1000)
    assert reader.availability.available


def test_an_idle_reader_holds_nobody_back(reader: AlignedReader) -> None:
    """SEM-35."""
    reader.on_watermark(1)
    reader.mark_idle()
    assert reader.report() == MAX_TIMESTAMP
    reader.mark_active()
    reader.on_limit(101)
    assert (reader.report(), reader.availability.available) == (1, True)


def test_a_reader_without_a_watermark_reports_nothing(reader: AlignedReader) -> None:
    """SEM-36."""
    assert reader.report() is None
    reader.on_watermark(10)
    assert reader.report() == 10


async def test_stopping_wakes_a_reader_that_waits(reader: AlignedReader) -> None:
    """SEM-37."""
    reader.on_watermark(1000)
    reader.on_limit(1)
    waiter = reader.availability.waiter()
    reader.end()
    await waiter
    reader.on_limit(0)
    assert (reader.availability.available, reader.report()) == (True, MAX_TIMESTAMP)


def test_a_reported_watermark_does_not_go_back(reader: AlignedReader) -> None:
    """SEM-38."""
    reader.on_watermark(2000)
    reader.on_watermark(1000)
    assert reader.report() == 2000


def test_waiting_is_not_quiet_time(clock: ManualClock) -> None:
    relative = RelativeClock(clock)
    reader = AlignedReader(relative)
    start = relative.now_s()
    reader.on_watermark(10)
    reader.on_limit(5)
    clock.advance(60)
    reader.on_limit(20)
    clock.advance(1)
    assert relative.now_s() - start == pytest.approx(1)


def test_the_limit_is_the_slowest_plus_the_drift() -> None:
    group = AlignmentGroup(100)
    assert group.limit() == MAX_TIMESTAMP
    group.report("a", 1000)
    group.report("b", 500)
    group.report("c", None)
    assert group.limit() == 600
    group.report("b", MAX_TIMESTAMP)
    assert group.limit() == 1100
    group.forget("a")
    assert group.limit() == MAX_TIMESTAMP
