"""Interval joins: which records meet, how long they are kept, which come too late."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from aiomailbox.errors import (
    InvalidArgumentError,
    KeyTypeError,
    TimestampError,
    UserFunctionError,
    WrongTypeError,
)
from aiomailbox.operators.core.user_code import skip
from aiomailbox.operators.joins.interval import IntervalJoinOperator
from aiomailbox.operators.joins.keyed import ProcessJoinFunction
from aiomailbox.records.events import OutputTag, StreamRecord, Watermark
from aiomailbox.testing import TwoInputHarness, redistributed

Pairs = list[tuple[int, int]]
LEFT_LATE, RIGHT_LATE = OutputTag("left late"), OutputTag("right late")


class Times(ProcessJoinFunction):
    """Emits the event times of both records."""

    def process_element(self, left: Any, right: Any, context: Any, out: Any) -> None:
        assert left == ("k", context.left_timestamp)
        assert right == ("k", context.right_timestamp)
        assert context.timestamp == max(left[1], right[1])
        out.collect((left[1], right[1]))


def first(record: Any) -> Any:
    return record[0]


class Joined:
    """Feeds records of one key, and restarts the operator after each step if asked."""

    def __init__(
        self, lower: int, upper: int, *, restarts: bool = False, **options: Any
    ) -> None:
        self._make = lambda: IntervalJoinOperator(
            first, first, lower, upper, Times(), **options
        )
        self._restarts = restarts
        self._watermark: int | None = None
        self.pairs: Pairs = []
        self.harness = self._open(None)

    def _open(self, state: Any) -> TwoInputHarness:
        harness = TwoInputHarness(self._make, keyed=True)
        if state is not None:
            harness.restore(state)
        harness.open()
        return harness

    def restart(self) -> None:
        state = self.harness.snapshot()
        self.harness.close()
        self.harness = self._open(state)
        if self._watermark is not None:
            self.watermark(self._watermark)

    def _done(self) -> None:
        for element in self.harness.take_output():
            if isinstance(element, StreamRecord):
                assert element.timestamp == max(element.value)
                self.pairs.append(element.value)
        if self._restarts:
            self._restarts = False
            self.restart()
            self._restarts = True

    def left(self, *stamps: int) -> None:
        for stamp in stamps:
            self.harness.first.process_element(("k", stamp), stamp)
            self._done()

    def right(self, *stamps: int) -> None:
        for stamp in stamps:
            self.harness.second.process_element(("k", stamp), stamp)
            self._done()

    def watermark(self, timestamp: int) -> None:
        self._watermark = timestamp
        self.harness.first.process_watermark(timestamp)
        self.harness.second.process_watermark(timestamp)
        self._done()

    def kept(self) -> tuple[list[int], list[int]]:
        """Return the event times of the records that are kept: left and right."""
        store = self.harness.context.keyed_state
        store.set_current_key("k")
        operator: Any = self.harness.operator
        left, right = operator._left.buffer, operator._right.buffer
        return sorted(left.keys()), sorted(right.keys())

    def late(self, tag: OutputTag) -> list[tuple[int, int | None]]:
        return [
            (record.value[1], record.timestamp)
            for record in self.harness.side_output(tag)
        ]


def expected(
    lower: int, upper: int, lefts: Iterable[int], rights: Iterable[int]
) -> Pairs:
    """Return what the definition says."""
    rights = list(rights)
    return [
        (left, right)
        for left in lefts
        for right in rights
        if left + lower <= right <= left + upper
    ]


def feed_alternately(joined: Joined, last: int) -> None:
    for stamp in range(1, last + 1):
        joined.left(stamp)
        joined.right(stamp)


def feed_left_first(joined: Joined, last: int) -> None:
    joined.left(*range(1, last + 1))
    joined.right(*range(1, last + 1))


def feed_right_first(joined: Joined, last: int) -> None:
    joined.right(*range(1, last + 1))
    joined.left(*range(1, last + 1))


FEEDS = [feed_alternately, feed_left_first, feed_right_first]
Feed = Callable[[Joined, int], None]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize(
    ("lower", "upper", "pairs"),
    [
        (-2, -1, [(2, 1), (3, 1), (3, 2), (4, 2), (4, 3)]),
        (
            -1,
            1,
            [
                *[(1, 1), (1, 2), (2, 1), (2, 2), (2, 3)],
                *[(3, 2), (3, 3), (3, 4), (4, 3), (4, 4)],
            ],
        ),
        (1, 2, [(1, 2), (1, 3), (2, 3), (2, 4), (3, 4)]),
    ],
)
def test_records_meet_whose_times_are_within_the_bounds(
    lower: int, upper: int, pairs: Pairs, feed: Feed, restarts: bool
) -> None:
    """SEM-94, SEM-95, SEM-96: whichever side is ahead."""
    joined = Joined(lower, upper, restarts=restarts)
    feed(joined, 4)
    assert sorted(joined.pairs) == pairs


@pytest.mark.parametrize(
    ("lower", "upper", "watermark", "left", "right"),
    [
        (-1, 0, 1, [2, 3, 4, 5], [1, 2, 3, 4, 5]),
        (-1, 0, 4, [5], [4, 5]),
        (-1, 0, 6, [], []),
        (0, 1, 1, [1, 2, 3, 4, 5], [2, 3, 4, 5]),
        (0, 1, 4, [4, 5], [5]),
        (0, 1, 6, [], []),
        (1, 2, 3, [2, 3, 4, 5], [4, 5]),
        (1, 2, 5, [4, 5], []),
    ],
)
@pytest.mark.parametrize("restarts", [False, True])
def test_records_are_kept_just_as_long_as_a_partner_may_come(
    lower: int,
    upper: int,
    watermark: int,
    left: list[int],
    right: list[int],
    restarts: bool,
) -> None:
    """SEM-98, SEM-99, SEM-100."""
    joined = Joined(lower, upper, restarts=restarts)
    feed_alternately(joined, 5)
    joined.watermark(watermark)
    assert joined.kept() == (left, right)


def test_a_new_operator_goes_on_from_a_snapshot() -> None:
    """SEM-101."""
    joined = Joined(-1, 1)
    feed_alternately(joined, 3)
    joined.restart()
    joined.pairs.clear()
    joined.left(4)
    joined.right(4)
    assert sorted(joined.pairs) == [(3, 4), (4, 3), (4, 4)]


def test_a_snapshot_does_not_change_when_its_operator_goes_on() -> None:
    joined = Joined(-1, 1)
    joined.left(1)
    state = joined.harness.snapshot()
    joined.left(1, 2)
    joined.watermark(10)
    joined.harness = joined._open(state)
    joined.right(1)
    assert joined.pairs == [(1, 1)]


@pytest.mark.parametrize("restarts", [False, True])
def test_late_records_lead_to_nothing_and_others_go_on(restarts: bool) -> None:
    """SEM-102."""
    joined = Joined(-1, 1, restarts=restarts)
    feed_alternately(joined, 3)
    joined.watermark(3)
    joined.pairs.clear()
    joined.left(1)
    assert joined.pairs == []
    for stamp in (4, 5):
        joined.left(stamp)
        joined.right(stamp)
    assert sorted(joined.pairs) == [(3, 4), (4, 3), (4, 4), (4, 5), (5, 4), (5, 5)]


def test_late_records_go_to_the_side_output_of_their_side() -> None:
    """SEM-103."""
    joined = Joined(-1, 1, left_late=LEFT_LATE, right_late=RIGHT_LATE)
    joined.left(3)
    joined.right(3)
    joined.watermark(3)
    joined.left(4)
    joined.right(4)
    joined.left(1)
    joined.right(2)
    joined.left(5)
    joined.right(5)
    assert sorted(joined.pairs) == [
        *[(3, 3), (3, 4), (4, 3), (4, 4), (4, 5), (5, 4), (5, 5)]
    ]
    assert joined.late(LEFT_LATE) == [(1, 1)]
    assert joined.late(RIGHT_LATE) == [(2, 2)]


def test_late_records_without_a_side_output_are_counted() -> None:
    joined = Joined(-1, 1)
    joined.watermark(3)
    joined.left(1)
    joined.right(2)
    dropped = joined.harness.context.metrics.counter("num_late_records_dropped")
    assert dropped.value == 2


@pytest.mark.parametrize("side", ["first", "second"])
def test_a_record_without_event_time_is_refused_with_its_side(side: str) -> None:
    """SEM-104."""
    with TwoInputHarness(
        IntervalJoinOperator(first, first, 0, 1, Times()), keyed=True
    ) as harness:
        name = {"first": "left", "second": "right"}[side]
        with pytest.raises(TimestampError, match=f"the {name} record"):
            getattr(harness, side).process_element(("k", 1))


def test_a_record_as_old_as_the_watermark_is_not_late() -> None:
    """SEM-105."""
    joined = Joined(-1, 1, left_late=LEFT_LATE)
    joined.right(3)
    joined.watermark(3)
    joined.left(3)
    assert joined.pairs == [(3, 3)]
    assert joined.late(LEFT_LATE) == []
    joined.watermark(10)
    assert joined.kept() == ([], [])


@given(
    st.integers(-12, 12),
    st.integers(0, 24),
    st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=25),
)
def test_pairs_are_those_of_the_definition_in_any_order_of_arrival(
    lower: int, width: int, arrivals: list[tuple[bool, int]]
) -> None:
    joined = Joined(lower, lower + width)
    for is_left, stamp in arrivals:
        (joined.left if is_left else joined.right)(stamp)
    lefts = [stamp for is_left, stamp in arrivals if is_left]
    rights = [stamp for is_left, stamp in arrivals if not is_left]
    assert sorted(joined.pairs) == sorted(expected(lower, lower + width, lefts, rights))


@settings(max_examples=40)
@given(
    st.integers(-5, 5),
    st.integers(0, 5),
    st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=30),
)
def test_forgetting_records_loses_no_pair(
    lower: int, width: int, steps: list[tuple[bool, int]]
) -> None:
    """Times only grow here, and each watermark is as far as it may be."""
    joined = Joined(lower, lower + width, restarts=True)
    lefts, rights, now = [], [], 0
    for is_left, step in steps:
        now += step
        joined.watermark(now - 1)
        (joined.left if is_left else joined.right)(now)
        (lefts if is_left else rights).append(now)
    assert sorted(joined.pairs) == sorted(expected(lower, lower + width, lefts, rights))
    joined.watermark(now + 100)
    snapshot = joined.harness.snapshot()
    assert not snapshot.keyed[0].key_groups
    assert not any(timers.event for timers in snapshot.timers.values())


def test_keys_do_not_meet() -> None:
    with TwoInputHarness(
        IntervalJoinOperator(first, first, 0, 0, lambda left, right: (left, right)),
        keyed=True,
    ) as harness:
        harness.first.process_run([("a", 1), ("b", 2), ("a", None)], [5, 5, 5])
        harness.second.process_run([("b", 3), ("c", 4), ("a", 5)], [5, 5, 5])
        assert harness.values == [
            *[(("b", 2), ("b", 3)), (("a", 1), ("a", 5)), (("a", None), ("a", 5))]
        ]


def test_keys_of_both_sides_are_of_one_type() -> None:
    with TwoInputHarness(
        IntervalJoinOperator(first, first, 0, 0, Times()), keyed=True
    ) as harness:
        harness.first.process_element((1, "left"), 1)
        with pytest.raises(KeyTypeError):
            harness.second.process_element(("1", "right"), 1)


def test_state_follows_its_keys_when_the_parallelism_changes() -> None:
    def make(state: Any, **place: int) -> TwoInputHarness:
        operator = IntervalJoinOperator(first, first, -1, 1, lambda a, b: a[0])
        harness = TwoInputHarness(operator, keyed=True, **place)
        harness.restore(state)
        harness.open()
        return harness

    keys = "abcdefgh"
    whole = make(None)
    whole.first.process_run([(key, 0) for key in keys], [1] * len(keys))
    halves = [
        make(whole.snapshot(), parallelism=2, subtask_index=index) for index in (0, 1)
    ]
    kept = [half.snapshot() for half in halves]
    assert all(each.keyed[0].key_groups for each in kept)
    joined = make(redistributed(kept, 1)[0])
    joined.second.process_run([(key, 1) for key in keys], [2] * len(keys))
    assert joined.values == [*keys]
    joined.first.process_watermark(10)
    joined.second.process_watermark(10)
    assert not joined.snapshot().keyed[0].key_groups


def test_event_time_is_the_minimum_of_both_sides() -> None:
    with TwoInputHarness(
        IntervalJoinOperator(first, first, 0, 0, Times()), keyed=True
    ) as harness:
        harness.first.process_watermark(5)
        assert harness.output == []
        harness.second.process_watermark(3)
        assert harness.output == [Watermark(3)]


class Slow(ProcessJoinFunction):
    """Emits pairs after a wait, the first ones of a run after a longer one."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def open(self, context: Any) -> None:
        self.calls.append("open")

    async def process_element(
        self, left: Any, right: Any, context: Any, out: Any
    ) -> None:
        await asyncio.sleep(10 - left[1])
        if left[1] == 7:
            raise ValueError(7)
        out.collect((left[1], right[1]))

    async def close(self) -> None:
        self.calls.append("close")


async def test_an_async_function_is_called_pair_by_pair_in_order() -> None:
    function = Slow()
    operator = IntervalJoinOperator(first, first, -1, 1, function)
    async with TwoInputHarness(operator, keyed=True) as harness:
        run = harness.run
        await run(harness.second.process_run, [("k", 1), ("j", 2)], [1, 2])
        lefts = [("k", 1), ("k", 2), ("j", 3)]
        await run(harness.first.process_run, lefts, [1, 2, 3])
        assert harness.output == [
            StreamRecord((1, 1), 1),
            StreamRecord((2, 1), 2),
            StreamRecord((3, 2), 3),
        ]
    assert function.calls == ["open", "close"]


async def test_on_error_applies_to_the_pair() -> None:
    operator = IntervalJoinOperator(first, first, 0, 0, Slow(), on_error=skip)
    async with TwoInputHarness(operator, keyed=True) as harness:
        run = harness.run
        await run(harness.second.process_run, [("k", 7), ("k", 8)], [7, 8])
        await run(harness.first.process_run, [("k", 7), ("k", 8)], [7, 8])
        assert harness.values == [(8, 8)]
        assert harness.context.metrics.counter("skipped").value == 1


def test_what_a_pair_had_emitted_before_it_failed_stays() -> None:
    class EmitsAndFails(ProcessJoinFunction):
        def process_element(
            self, left: Any, right: Any, context: Any, out: Any
        ) -> None:
            out.collect("emitted")
            raise ValueError(left)

    operator = IntervalJoinOperator(first, first, 0, 0, EmitsAndFails(), on_error=skip)
    with TwoInputHarness(operator, keyed=True) as harness:
        harness.first.process_element(("k", 1), 1)
        harness.second.process_element(("k", 1), 1)
        assert harness.values == ["emitted"]
        assert harness.context.metrics.counter("skipped").value == 1


def test_the_users_line_is_named_when_the_function_raises() -> None:
    def divide(left: Any, right: Any) -> float:
        return left[1] / 0  # type: ignore[no-any-return]

    operator = IntervalJoinOperator(first, first, 0, 0, divide)
    with TwoInputHarness(operator, keyed=True) as harness:
        harness.first.process_element(("k", 1), 1)
        with pytest.raises(UserFunctionError, match="test_interval_join"):
            harness.second.process_element(("k", 1), 1)


async def double(left: Any, right: Any) -> Any:
    await asyncio.sleep(1)
    return left, right


async def test_a_plain_async_function_gives_one_result() -> None:
    operator = IntervalJoinOperator(first, first, 0, 0, double)
    async with TwoInputHarness(operator, keyed=True) as harness:
        await harness.run(harness.first.process_element, ("k", 1), 1)
        await harness.run(harness.second.process_element, ("k", 2), 1)
        assert harness.values == [(("k", 1), ("k", 2))]


def test_operators_can_be_pickled() -> None:
    operator = IntervalJoinOperator("city", first, 0, 0, Times(), left_late=LEFT_LATE)
    copied = pickle.loads(pickle.dumps(operator))
    assert copied.lower_ms == 0


def test_wrong_arguments_are_refused_by_name() -> None:
    with pytest.raises(InvalidArgumentError, match="lower"):
        IntervalJoinOperator(first, first, 2, 1, Times())
    with pytest.raises(WrongTypeError, match="left_late"):
        IntervalJoinOperator(first, first, 0, 1, Times(), left_late="late")  # type: ignore[arg-type]
    with pytest.raises(WrongTypeError, match="2 positional"):
        IntervalJoinOperator(first, first, 0, 1, len)

    def generate(left: Any, right: Any) -> Any:
        yield left

    with pytest.raises(WrongTypeError, match="generator"):
        IntervalJoinOperator(first, first, 0, 1, generate)
    with pytest.raises(WrongTypeError, match="key1"):
        IntervalJoinOperator(5, first, 0, 1, Times())  # type: ignore[arg-type]


async def test_any_number_of_pairs_of_a_record_may_have_to_be_awaited() -> None:
    """They are awaited one after the other, and not inside each other."""

    async def pair(left: Any, right: Any) -> Any:
        await asyncio.sleep(0)
        return right[1]

    operator = IntervalJoinOperator(first, first, -5, 5, pair)
    async with TwoInputHarness(operator, keyed=True) as harness:
        rights = [("k", number) for number in range(2_000)]
        await harness.run(harness.second.process_run, rights, [1] * 2_000)
        await harness.run(harness.first.process_run, [("k", 0)], [1])
        assert harness.values == list(range(2_000))
