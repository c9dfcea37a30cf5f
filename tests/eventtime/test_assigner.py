"""Event times of records, and of columns."""

from __future__ import annotations

from aiomailbox.eventtime import TimestampAssigner
from aiomailbox.records import ListRun


def test_a_run_of_columns_is_asked_for_the_column_and_makes_no_rows() -> None:
    class Columns(ListRun):
        __slots__ = ()

        def column_ms(self, name: str) -> list[int]:
            return [len(name)] * len(self)

    run = Columns([{"when": 1}, {"when": 2}])
    assert TimestampAssigner("when").assign(run) == [4, 4]
    assert TimestampAssigner(lambda value: value["when"]).assign(run) == [1, 2]
