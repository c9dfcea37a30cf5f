"""Records without a key or an event time can be skipped, or become dead letters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import aiomailbox as am

Env = am.StreamExecutionEnvironment

FAILED = am.OutputTag("failed")
IN_ORDER = am.WatermarkStrategy.for_monotonous_timestamps()

RECORDS = [
    {"user": "a", "at": 1_000},
    {"at": 2_000},
    {"user": None, "at": 3_000},
    {"user": ["a"], "at": 4_000},
    {"user": "b"},
    {"user": "a", "at": "soon"},
    {"user": "a", "at": 7_000},
]


class OutOfOrder(am.KeyedProcessFunction):
    """Emits numbers that come after a larger one of their key."""

    last = am.ValueStateDescriptor("last", int, default=-1)

    def open(self, context: Any) -> None:
        self.seen = context.keyed_state.get_value(self.last)

    def process_element(self, value: int, context: Any, out: Any) -> None:
        if value < self.seen.value():
            out.collect(value)
        self.seen.update(value)


def user(record: dict[str, Any]) -> Any:
    return record["user"]


@pytest.mark.parametrize("key", [user, "user"], ids=["function", "field"])
@pytest.mark.parametrize("parallelism", [1, 2])
async def test_a_record_without_a_key_is_skipped(
    key: str | Callable[[Any], Any], parallelism: int
) -> None:
    keyed = Env(parallelism).from_collection(RECORDS).key_by(key, on_error=am.skip)
    counts = await keyed.aggregate(am.count()).collect()
    assert sorted(counts) == [1, 1, 2, 3]


@pytest.mark.parametrize(
    "records",
    [
        [1.5, float("nan"), 1.5],
        [(1.5, "a"), (float("nan"), "a"), (1.5, "a")],
        ["a", 1, "a"],
        [1, 2**63, 1],
    ],
    ids=["NaN", "NaN in a tuple", "another type than the first", "too large"],
)
async def test_a_record_whose_key_has_no_place_is_skipped(records: list[Any]) -> None:
    keyed = Env().from_collection(records).key_by(lambda one: one, on_error=am.skip)
    assert await keyed.aggregate(am.count()).collect() == [1, 2]


async def test_each_job_of_a_description_fixes_its_type_of_keys_anew() -> None:
    kinds: list[Callable[[int], Any]] = [int]
    stream = Env().from_collection([1, 1])
    keyed = stream.key_by(lambda one: kinds[0](one), on_error=am.skip)
    counts = keyed.aggregate(am.count())
    assert await counts.collect() == [1, 2]
    kinds[0] = str
    assert await counts.collect() == [1, 2]


@pytest.mark.parametrize("sources", [1, 2])
async def test_records_of_a_key_stay_in_order_where_some_have_none(
    sources: int,
) -> None:
    """The source has one subtask, and what comes after it has three."""

    async def numbers(begin: int) -> AsyncIterator[int]:
        for number in range(begin, begin + 20_000):
            yield number

    env = Env(3)
    streams = [env.from_async_iterable(numbers(at * 10**6)) for at in range(sources)]
    if sources > 1:
        streams.append(env.from_collection([5 * 10**6]).set_parallelism(2))
    united = streams[0].union(*streams[1:])

    def source_and_last_digit(number: int) -> tuple[int, int]:
        return number // 10**6, number % 10

    keyed = united.key_by(source_and_last_digit, on_error=am.skip)
    assert await keyed.process(OutOfOrder()).collect() == []


async def test_a_record_without_a_key_becomes_a_dead_letter() -> None:
    env = Env()
    keyed = env.from_collection(RECORDS).key_by(user, on_error=am.dead_letter(FAILED))
    letters: list[am.DeadLetter] = []
    keyed.get_side_output(FAILED).sink_to(letters.append)
    keyed.aggregate(am.count()).sink_to(print)
    await env.execute()
    assert [letter.record for letter in letters] == RECORDS[1:4]
    assert {letter.error_type for letter in letters} == {"KeyError", "KeyTypeError"}
    assert {letter.operator for letter in letters} == {"key"}


async def test_by_default_a_record_without_a_key_fails_the_job() -> None:
    keyed = Env().from_collection(RECORDS).key_by(user)
    with pytest.raises(am.JobFailedError, match="'user'"):
        await keyed.aggregate(am.count()).collect()


@pytest.mark.parametrize("at", ["at", lambda record: record["at"]])
async def test_a_record_without_an_event_time_is_skipped(at: Any) -> None:
    timed = (
        Env()
        .from_collection(RECORDS)
        .assign_timestamps_and_watermarks(
            IN_ORDER.with_timestamp_assigner(at), on_error=am.skip
        )
    )
    windows = timed.window_all(am.TumblingEventTimeWindows.of(am.seconds(5)))
    assert await windows.aggregate(am.collect_list("at")).map(
        lambda found: list(found)
    ).collect() == [[1_000, 2_000, 3_000, 4_000], [7_000]]


async def test_a_record_behind_the_end_of_time_is_skipped() -> None:
    strategy = IN_ORDER.with_timestamp_assigner(lambda at: at)
    timed = (
        Env()
        .from_collection([1, 2**63 - 1, 2**80, 2])
        .assign_timestamps_and_watermarks(strategy, on_error=am.skip)
    )
    assert await timed.collect() == [1, 2]


async def test_a_record_without_an_event_time_becomes_a_dead_letter() -> None:
    env = Env()
    timed = env.from_collection(RECORDS).assign_timestamps_and_watermarks(
        IN_ORDER.with_timestamp_assigner("at"), on_error=am.dead_letter(FAILED)
    )
    letters: list[am.DeadLetter] = []
    timed.get_side_output(FAILED).sink_to(letters.append)
    kept: list[Any] = []
    timed.sink_to(kept.append)
    await env.execute()
    assert [letter.record for letter in letters] == RECORDS[4:6]
    assert kept == RECORDS[:4] + RECORDS[6:]


async def test_by_default_a_record_without_an_event_time_fails_the_job() -> None:
    timed = (
        Env()
        .from_collection(RECORDS)
        .assign_timestamps_and_watermarks(IN_ORDER.with_timestamp_assigner("at"))
    )
    with pytest.raises(am.JobFailedError, match="'at'"):
        await timed.collect()


def test_what_is_no_policy_is_refused() -> None:
    records = Env().from_collection(RECORDS)
    with pytest.raises(am.UsageError, match="on_error"):
        records.key_by("user", on_error="skip")  # type: ignore[arg-type]
    with pytest.raises(am.UsageError, match="on_error"):
        records.assign_timestamps_and_watermarks(
            IN_ORDER,
            on_error="skip",  # type: ignore[arg-type]
        )


async def test_a_timestamp_assigner_is_called_once_for_each_record() -> None:
    """Also if it fails for another one: it may count, or read from somewhere."""
    times = iter([1_000, "soon", 3_000, 4_000])
    strategy = IN_ORDER.with_timestamp_assigner(lambda record: next(times))
    stream = Env().from_collection(["a", "b", "c", "d", "e"])
    timed = stream.assign_timestamps_and_watermarks(strategy, on_error=am.skip)
    assert await timed.collect() == ["a", "c", "d"]
    assert list(times) == []
