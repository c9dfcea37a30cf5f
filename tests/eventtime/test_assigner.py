"""Event times of records, and of columns."""

from __future__ import annotations

import pytest

from aiomailbox.errors import TimestampError
from aiomailbox.eventtime.strategy import TimestampAssigner
from aiomailbox.records.run import ListRun


def test_a_run_of_columns_is_asked_for_the_column_and_makes_no_rows() -> None:
    class Columns(ListRun):
        __slots__ = ()

        def timed_by(self, name: str) -> ListRun:
            return self.with_timestamps([len(name)] * len(self))

    run = Columns([{"when": 1}, {"when": 2}])
    assert TimestampAssigner("when").timed(run).timestamps == [4, 4]
    assert TimestampAssigner(lambda value: value["when"]).assign(run) == [1, 2]


def test_a_coroutine_is_no_event_time_and_is_said_to_be_one() -> None:
    async def look_up(value: int) -> int:
        return value

    assigner = TimestampAssigner(lambda value: look_up(value))
    with pytest.raises(TimestampError, match="returned a coroutine"):
        assigner.assign(ListRun([1, 2]))
