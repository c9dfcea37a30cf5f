from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from aiomailbox.columnar import sessions
from aiomailbox.columnar.sessions import DeadlineIndex

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("due"), st.integers(0, 29), st.integers(0, 40)),
        st.tuples(st.just("later"), st.integers(0, 29), st.integers(1, 20)),
        st.tuples(st.just("advance"), st.integers(0, 40), st.just(0)),
    ),
    max_size=80,
)


@given(STEPS, st.integers(1, 3))
def test_each_place_is_taken_when_it_is_due_and_not_before(
    steps: list[tuple[str, int, int]], near_min: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "_NEAR_MIN", near_min)
        found, real, now = DeadlineIndex(), dict[int, int](), 0
        for step, number, time in steps:
            if step == "due":
                # One that is there ends, and another one begins in its place.
                real[number] = now + 1 + time
                found.note(np.array([number]), np.array([real[number]]))
            elif step == "later" and number in real:
                real[number] += time
            elif step == "advance":
                now += number
                if found.is_beyond(now):
                    places = np.array(sorted(real), np.int64)
                    times = np.array([real[place] for place in sorted(real)], np.int64)
                    found.choose(places, times, now)
                taken = [place for place in found.take(now).tolist() if place in real]
                due = {place for place in taken if real[place] <= now}
                assert due == {place for place in real if real[place] <= now}
                rest = [place for place in taken if place not in due]
                found.note(np.array(rest, int), np.array([real[x] for x in rest], int))
                for place in due:
                    del real[place]


def test_few_of_many_places_are_near() -> None:
    found = DeadlineIndex()
    found.choose(np.arange(100_000), np.arange(100_000)[::-1], 0)
    assert not found.is_beyond(3000)
    assert found.take(3000).tolist() == list(range(96_999, 100_000))
    assert len(found._places) < 1000
    found.note(np.array([7, 8]), np.array([3001, 50_000]))
    assert found.take(3001).tolist() == [7, 96_998]


def test_many_near_places_bring_the_horizon_nearer() -> None:
    found = DeadlineIndex()
    found.choose(np.zeros(0, np.int64), np.zeros(0, np.int64), 10)
    found.note(np.arange(3), np.arange(3))
    # A few do not: else all places were gone through at each watermark.
    assert not found.is_beyond(9)
    found.choose(np.arange(1000), np.arange(1000), 0)
    assert not found.is_beyond(10)
    for _ in range(10):
        found.note(np.arange(1000), np.arange(1000))
    assert found.is_beyond(10)
