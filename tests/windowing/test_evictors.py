"""What evictors remove, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st

import aiomailbox as am
from aiomailbox.records.events import StreamRecord
from aiomailbox.windowing.evictors import (
    CountEvictor,
    DeltaEvictor,
    Evictor,
    TimeEvictor,
)
from aiomailbox.windowing.time_window import TimeWindow

WINDOW = TimeWindow(0, 10)
Records = list[StreamRecord]


def of(*pairs: tuple[int, int | None]) -> Records:
    return [StreamRecord(value, stamp) for value, stamp in pairs]


def newer(records: Records) -> Records:
    stamps = [one.timestamp for one in records]
    if None in stamps[:1]:
        return records
    known = [stamp for stamp in stamps if stamp is not None]
    return [
        one
        for one in records
        if one.timestamp is None or max(known) - one.timestamp < 3
    ]


KINDS: list[tuple[Callable[..., Evictor], Callable[[Records], Records]]] = [
    (lambda after: CountEvictor.of(0, after=after), lambda records: []),
    (lambda after: CountEvictor.of(2, after=after), lambda records: records[-2:]),
    (lambda after: TimeEvictor.of(am.millis(3), after=after), newer),
    (
        lambda after: DeltaEvictor.of(2, lambda one, last: last - one, after=after),
        lambda records: [r for r in records if records[-1].value - r.value < 2],
    ),
]


@given(
    kind=st.sampled_from(KINDS),
    after=st.booleans(),
    pairs=st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 6))),
)
def test_an_evictor_keeps_what_it_says_before_or_after_the_function(
    kind: Any, after: bool, pairs: list[tuple[int, int | None]]
) -> None:
    make, keeps = kind
    evictor, records = make(after=after), of(*pairs)
    kept = keeps(records)
    assert evictor.evict_before(records, WINDOW) == (records if after else kept)
    assert evictor.evict_after(records, WINDOW) == (kept if after else records)


class Oldest(Evictor):
    """Removes one record each time that it is asked."""

    def evict(self, records: Records, window: Any) -> Records:
        return records[1:]


@pytest.mark.parametrize(
    ("after", "seen"),
    [(True, ["ab", "bcd", "cdef"]), (False, ["b", "cd", "def"])],
)
async def test_an_evictor_is_asked_once_a_firing_and_what_it_removes_is_gone(
    after: bool, seen: list[str]
) -> None:
    env = am.StreamExecutionEnvironment()
    letters = env.from_collection(list("abcdef")).key_by(lambda letter: 0)
    windows = letters.window(am.GlobalWindows.create())
    windows = windows.trigger(am.CountTrigger.of(2)).evictor(Oldest(after=after))
    joined = windows.apply(lambda key, window, values: ["".join(values)])
    assert await joined.collect() == seen
