"""Joins, broadcast state and input selection as users write them, run as jobs."""

from __future__ import annotations

import asyncio
import itertools
import random
from datetime import timedelta
from typing import Any

import pytest

import aiomailbox as am

LIMITS = am.MapStateDescriptor("limits", str, int)
SEEN = am.ValueStateDescriptor("seen", int, default=0)
LATE = am.OutputTag("late")

Row = tuple[str, int, int]


def by_time(bound: float = 0) -> am.WatermarkStrategy:
    """Return a strategy for rows whose second field is their event time."""
    strategy = am.WatermarkStrategy.for_bounded_out_of_orderness(am.seconds(bound))
    return strategy.with_timestamp_assigner(lambda row: row[1])


def key(row: Row) -> str:
    return row[0]


def rows(seed: int, count: int = 300) -> list[Row]:
    """Return rows ``(key, time, number)``, up to a second out of order."""
    chance = random.Random(seed)
    made = [
        (chance.choice("abc"), chance.randrange(20_000), number)
        for number in range(count)
    ]
    return sorted(made, key=lambda row: row[1] + chance.randrange(1000))


LEFT, RIGHT = rows(1), rows(2)


def ids(left: Row, right: Row) -> tuple[int, int]:
    return left[2], right[2]


def both(env: am.StreamExecutionEnvironment) -> tuple[Any, Any]:
    return (
        env.from_collection(LEFT, by_time(1)),
        env.from_collection(RIGHT, by_time(1)),
    )


@pytest.fixture(params=[1, 2])
def env(request: pytest.FixtureRequest) -> am.StreamExecutionEnvironment:
    return am.StreamExecutionEnvironment(parallelism=request.param)


async def test_a_window_join_gives_the_pairs_of_each_window(
    env: am.StreamExecutionEnvironment,
) -> None:
    left, right = both(env)
    joined = (
        left.join(right)
        .where(key)
        .equal_to(key)
        .window(am.TumblingEventTimeWindows.of(am.seconds(1)))
        .apply(ids)
    )
    expected = [
        ids(a, b)
        for a, b in itertools.product(LEFT, RIGHT)
        if key(a) == key(b) and a[1] // 1000 == b[1] // 1000
    ]
    assert sorted(await joined.collect()) == sorted(expected)


async def test_a_stream_can_be_joined_with_itself() -> None:
    env = am.StreamExecutionEnvironment(parallelism=2)
    stream = env.from_collection(LEFT[:50], by_time(1)).key_by(key)
    windowed = (
        stream.join(stream)
        .where(key)
        .equal_to(key)
        .window(am.TumblingEventTimeWindows.of(am.seconds(1)))
        .apply(ids)
    )
    near = stream.interval_join(stream).between(0, 0).process(ids)
    same_window = [
        ids(a, b)
        for a, b in itertools.product(LEFT[:50], LEFT[:50])
        if key(a) == key(b) and a[1] // 1000 == b[1] // 1000
    ]
    same_time = [
        ids(a, b) for a, b in itertools.product(LEFT[:50], LEFT[:50]) if a[:2] == b[:2]
    ]
    assert sorted(await windowed.collect()) == sorted(same_window)
    assert sorted(await near.collect()) == sorted(same_time)


async def slow(firsts: list[Row], seconds: list[Row]) -> list[tuple[int, int]]:
    await asyncio.sleep(0.1)
    return [(len(firsts), len(seconds))]


async def test_a_co_group_sees_every_record_once(
    env: am.StreamExecutionEnvironment,
) -> None:
    left, right = both(env)
    counts = await (
        left.co_group(right)
        .where(key)
        .equal_to(key)
        .window(am.TumblingEventTimeWindows.of(am.seconds(5)))
        .apply(slow)
        .collect()
    )
    assert len(counts) == 12
    assert [sum(side) for side in zip(*counts, strict=True)] == [300, 300]


@pytest.mark.parametrize(
    ("lower", "upper", "exclusive"),
    [
        (timedelta(seconds=-1), am.seconds(0.5), (False, False)),
        (am.seconds(-1), am.millis(500), (True, True)),
        (0, 0, (False, False)),
    ],
)
async def test_an_interval_join_gives_the_pairs_within_its_bounds(
    env: am.StreamExecutionEnvironment,
    lower: Any,
    upper: Any,
    exclusive: tuple[bool, bool],
) -> None:
    left, right = both(env)
    low_open, high_open = exclusive
    joined = (
        left.key_by(key)
        .interval_join(right.key_by(key))
        .between(lower, upper, lower_exclusive=low_open, upper_exclusive=high_open)
        .process(ids)
    )
    low, high = (0, 0) if lower == 0 else (-1000 + low_open, 500 - high_open)
    expected = [
        ids(a, b)
        for a, b in itertools.product(LEFT, RIGHT)
        if key(a) == key(b) and a[1] + low <= b[1] <= a[1] + high
    ]
    assert sorted(await joined.collect()) == sorted(expected)


@pytest.mark.parametrize(
    ("lower", "upper", "pairs"),
    [
        (-3, -1, [(3, 1), (4, 2)]),
        (-1, 1, [(1, 1), (2, 2), (3, 3), (4, 4)]),
        (1, 3, [(1, 3), (2, 4)]),
    ],
)
async def test_exclusive_bounds_take_a_millisecond_each(
    lower: int, upper: int, pairs: list[tuple[int, int]]
) -> None:
    """SEM-97."""
    env = am.StreamExecutionEnvironment()
    numbers = [("k", time, time) for time in range(1, 5)]
    joined = (
        env.from_collection(numbers, by_time())
        .key_by(key)
        .interval_join(env.from_collection(numbers, by_time()).key_by(key))
        .between(
            am.millis(lower),
            am.millis(upper),
            lower_exclusive=True,
            upper_exclusive=True,
        )
        .process(ids)
    )
    assert sorted(await joined.collect()) == pairs


async def test_late_records_of_an_interval_join_can_be_read_aside() -> None:
    env = am.StreamExecutionEnvironment()
    left = env.from_collection([("k", 9000, 1), ("k", 1000, 2)], by_time())
    joined = (
        left.key_by(key)
        .interval_join(env.from_collection([("k", 9000, 3)], by_time()).key_by(key))
        .between(0, am.seconds(1))
        .process(ids, left_late=LATE)
    )
    # Which of both streams is ahead decides whether the second record is late.
    late = await joined.get_side_output(LATE).collect()
    assert late in ([], [("k", 1000, 2)])


@pytest.mark.parametrize("keep", [False, True])
async def test_an_as_of_join_gives_the_version_of_the_time(
    env: am.StreamExecutionEnvironment, keep: bool
) -> None:
    left, right = both(env)
    joined = left.key_by(key).as_of_join(
        right.key_by(key),
        lambda row, version: (row[2], version and version[1]),
        left=keep,
    )
    expected = []
    for row in LEFT:
        times = [other[1] for other in RIGHT if other[0] == row[0]]
        valid = [time for time in times if time <= row[1]]
        if valid or keep:
            expected.append((row[2], max(valid, default=None)))
    found = await joined.collect()
    assert sorted(found, key=str) == sorted(expected, key=str)


async def test_a_lookup_join_asks_once_for_each_key(
    env: am.StreamExecutionEnvironment,
) -> None:
    asked: list[str] = []

    async def look_up(letter: str) -> str | None:
        asked.append(letter)
        await asyncio.sleep(0.01)
        return None if letter == "c" else letter.upper()

    stream = env.from_collection(LEFT)
    joined = stream.lookup_join(
        look_up, key=key, join=lambda row, found: (row[2], found), cache=am.Cache()
    )
    expected = [(row[2], row[0].upper()) for row in LEFT if row[0] != "c"]
    assert sorted(await joined.collect()) == sorted(expected)
    assert len(asked) <= 3 * 2


class Limit(am.KeyedBroadcastProcessFunction):
    """Counts records per key, once all limits are known, and compares."""

    def open(self, context: Any) -> None:
        self.subtask = context.subtask_index
        self.seen = context.keyed_state.get_value(SEEN)
        self.knows_all = False

    def next_selection(self) -> am.InputSelection:
        return am.InputSelection.ALL if self.knows_all else am.InputSelection.SECOND

    def end_input(self, index: int, out: Any) -> None:
        self.knows_all |= index == 1

    def process_element(self, value: Row, context: Any, out: Any) -> None:
        self.seen.update(self.seen.value() + 1)
        limit = context.get_broadcast_state(LIMITS).get(value[0])
        out.collect((value[0], self.subtask, self.seen.value() <= limit))

    def process_broadcast_element(self, value: Any, context: Any, out: Any) -> None:
        context.get_broadcast_state(LIMITS).put(*value)


async def test_each_subtask_has_its_own_copy_of_broadcast_state() -> None:
    """The limits are read first, however late they come: that is what is selected."""
    env = am.StreamExecutionEnvironment(parallelism=2)

    async def late_limits() -> Any:
        for limit in [("a", 10), ("b", 20), ("c", 30)]:
            await asyncio.sleep(1)
            yield limit

    limits = env.from_async_iterable(late_limits).broadcast(LIMITS)
    stream = env.from_collection(LEFT)
    checked = await stream.key_by(key).connect(limits).process(Limit()).collect()
    assert len(checked) == 300
    assert {subtask for _, subtask, _ in checked} == {0, 1}
    for letter, limit in [("a", 10), ("b", 20), ("c", 30)]:
        assert [ok for name, _, ok in checked if name == letter].count(True) == limit


class Alternate(am.CoProcessFunction):
    """Reads two records of the first stream, then one of the second, and so on."""

    def __init__(self) -> None:
        self.read = 0
        self.ended: set[int] = set()

    def next_selection(self) -> am.InputSelection:
        if self.ended:
            return am.InputSelection.ALL
        wanted = am.InputSelection.SECOND, am.InputSelection.FIRST
        return wanted[self.read % 3 < 2]

    def process_element1(self, value: Any, context: Any, out: Any) -> None:
        self.read += 1
        out.collect(value)

    process_element2 = process_element1

    async def end_input(self, index: int, out: Any) -> None:
        await asyncio.sleep(0.1)
        self.ended.add(index)


async def test_a_function_may_choose_the_input_record_by_record() -> None:
    """MB-120, in a job; nothing is lost and nothing waits for ever."""
    env = am.StreamExecutionEnvironment()
    first = env.from_collection([*range(8)])
    second = env.from_collection([*range(100, 103)])
    result = await first.connect(second).process(Alternate()).collect()
    assert result[:9] == [0, 1, 100, 2, 3, 101, 4, 5, 102]
    assert sorted(result) == [*range(8), 100, 101, 102]


async def test_a_function_that_selects_only_what_has_ended_fails_with_the_reason() -> (
    None
):
    """MB-121, in a job."""

    class Stubborn(am.CoProcessFunction):
        def next_selection(self) -> am.InputSelection:
            return am.InputSelection.FIRST

    env = am.StreamExecutionEnvironment()
    stream = env.from_collection([1]).connect(env.from_collection([2]))
    with pytest.raises(am.JobFailedError, match="only inputs that have ended"):
        await stream.process(Stubborn()).collect()
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection([1]).connect(env.from_collection([2]))
    function = Stubborn()
    function.next_selection = lambda: "first"  # type: ignore[assignment, return-value]
    with pytest.raises(am.JobFailedError, match="not an InputSelection"):
        await stream.process(function).collect()


def test_wrong_joins_are_refused_where_they_are_written() -> None:
    env = am.StreamExecutionEnvironment()
    stream, other = env.from_collection([1]), env.from_collection([2])
    keyed = stream.key_by(abs)
    with pytest.raises(am.UsageError, match="keys on both streams"):
        keyed.interval_join(other)
    with pytest.raises(am.UsageError, match="keys on both streams"):
        keyed.as_of_join(other)
    with pytest.raises(am.UsageError, match="another environment"):
        stream.join(am.StreamExecutionEnvironment().from_collection([1]))
    with pytest.raises(am.UsageError, match="not a stream"):
        stream.co_group([1])
    interval = keyed.interval_join(other.key_by(abs))
    with pytest.raises(am.UsageError, match="lower"):
        interval.between(am.seconds(2), am.seconds(1))
    with pytest.raises(am.UsageError, match="lower"):
        interval.between(0, 0, lower_exclusive=True)
    with pytest.raises(am.UsageError, match="not a duration"):
        interval.between("1 s", am.seconds(2))  # type: ignore[arg-type]
    with pytest.raises(am.UsageError, match="positional"):
        interval.between(0, am.seconds(1)).process(len)
    with pytest.raises(am.UsageError, match="where"):
        stream.join(other).where(5)  # type: ignore[arg-type]
    with pytest.raises(am.UsageError, match="not a MapStateDescriptor"):
        other.broadcast(SEEN)  # type: ignore[call-overload]
    rules = other.broadcast(LIMITS)
    with pytest.raises(am.UsageError, match="needs a key"):
        stream.connect(rules).process(Limit())
    with pytest.raises(am.UsageError, match="not a BroadcastProcessFunction"):
        stream.connect(rules).process(Alternate())  # type: ignore[arg-type]


def test_explain_names_the_functions_of_joins() -> None:
    env = am.StreamExecutionEnvironment()
    left, right = both(env)
    windowed = left.join(right).where(key).equal_to(key)
    windowed.window(am.GlobalWindows.create()).trigger(am.CountTrigger(2)).apply(
        ids
    ).sink_to(print)
    left.key_by(key).interval_join(right.key_by(key)).between(0, am.seconds(1)).process(
        ids
    ).sink_to(print)
    left.key_by(key).as_of_join(right.key_by(key)).sink_to(print)
    text = str(env.explain())
    # The last version of each key is kept for ever.
    assert "unbounded: state grows with the number of keys" in text
    assert "window join" in text
    assert "interval join" in text
    assert text.count("ids") >= 2
