"""What once passed in silence is told, and what is right is not told.

Each mistake itself happens in `tests/docs/test_never_silent.py`. Here are the other verbs in
which it can be made, and programs that look like it.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.errors import UsageError

Env = am.StreamExecutionEnvironment
MONOTONOUS = am.WatermarkStrategy.for_monotonous_timestamps()


def stream_of(*values: Any) -> Any:
    return Env().from_collection(list(values))


def keyed_of(*values: Any) -> Any:
    return stream_of(*values).key_by(lambda _: "all")


def is_tea(word: str) -> bool:
    return word == "tea"


async def uncalled(word: str) -> Any:
    return word.upper


async def undecided(word: str) -> Any:
    return is_tea


async def started(word: str) -> Any:
    return asyncio.ensure_future(asyncio.sleep(0, word))


def pairs(word: Any) -> Any:
    return zip(word, word, strict=True)


# What a function returns in the place of a value.

UNMADE: list[tuple[Callable[[Any], Any], str]] = [
    (lambda s: s.map(uncalled), "the method upper"),
    (lambda s: s.map(lambda w: w.upper, run_in="thread"), "the method upper"),
    (lambda s: s.map_async(uncalled), "the method upper"),
    (lambda s: s.filter(lambda w: w.isdigit), "the method isdigit"),
    (lambda s: s.filter(lambda w: (c for c in w)), "a generator"),
    (lambda s: s.filter(undecided), "the function is_tea"),
    (lambda s: s.filter(lambda w: is_tea, run_in="thread"), "the function is_tea"),
    (lambda s: s.map(pairs), "a zip"),
    (lambda s: s.map(started), "a Task, which is to be awaited"),
    (lambda s: s.map_async(started), "Await it inside the function"),
    (lambda s: s.flat_map(lambda w: [w.upper]), "the method upper"),
    (lambda s: s.key_by(len).reduce(lambda a, b: a.upper), "the method upper"),
    (
        lambda s: s.key_by(len).count_window(2).reduce(lambda a, b: a.upper),
        "the method upper",
    ),
]


@pytest.mark.parametrize(("build", "told"), UNMADE)
async def test_what_stands_for_a_value_is_refused_in_each_verb(
    build: Callable[[Any], Any], told: str
) -> None:
    with pytest.raises(am.JobFailedError, match="where a value is expected") as failed:
        await build(stream_of("tea", "jam")).collect()
    assert told in str(failed.value)


async def test_a_sink_that_calls_nothing_is_refused() -> None:
    written: list[str] = []
    env = Env()
    env.from_collection(["tea"]).sink_to(lambda word: written.append)
    with pytest.raises(am.JobFailedError, match="the method append"):
        await env.execute()


async def test_a_sink_may_start_what_goes_on_by_itself() -> None:
    written: list[str] = []
    with ThreadPoolExecutor(1) as threads:
        env = Env()
        env.from_collection(["tea"]).sink_to(
            lambda w: threads.submit(written.append, w)
        )
        await env.execute()
    assert written == ["tea"]


async def test_functions_are_records_and_methods_in_tuples_are() -> None:
    made = stream_of("tea").map(lambda word: lambda: word)
    assert await made.map(lambda make: make()).collect() == ["tea"]
    kept = stream_of("tea").map(lambda word: (word.upper,))
    assert await kept.map(lambda one: one[0]()).collect() == ["TEA"]


def nothing(word: str) -> None: ...


@pytest.mark.parametrize("function", [lambda word: None, print, is_tea])
async def test_a_function_that_is_not_known_to_return_nothing_gets_no_warning(
    function: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await stream_of("tea").map(function).collect()
    assert "never returns a value" not in caplog.text


async def test_the_warning_of_a_missing_return_names_function_and_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream_of("tea").map(nothing)
    assert "the function of map never returns a value" in caplog.text
    assert f"{__file__}:{nothing.__code__.co_firstlineno}" in caplog.text


async def test_a_batch_may_hold_exceptions_and_only_the_last_result_is_unwanted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = 0

    async def call(numbers: list[int]) -> list[Any]:
        return [ValueError(number) if number else number for number in numbers]

    async def better(number: int) -> int | None:
        nonlocal calls
        calls += 1
        return None if calls == 1 else number

    batched = stream_of(0, 1).map_async(call, batch=am.Batch(2), on_error=am.skip)
    assert await batched.collect() == [0]
    retry = am.Retry(3, initial=0.01, retry_if=lambda result: result is None)
    assert await stream_of(5).map_async(better, retry=retry).collect() == [5]
    assert "returned an exception" not in caplog.text
    assert "wants again" not in caplog.text


# Reduce functions.


@pytest.mark.parametrize(
    ("records", "function"),
    [
        ([1, 2], lambda one, other: one / other),
        (["a1", "b2"], lambda one, other: one + other),
        ([{"n": "9"}, {"n": "7"}], lambda one, other: max(one, other, key=str)),
        ([("a", 1), ("a", 2)], lambda one, other: (one[0], one[1] + other[1])),
    ],
)
async def test_a_reduce_function_that_returns_a_record_gets_no_warning(
    records: list[Any], function: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await keyed_of(*records).reduce(function).collect()
    await keyed_of(*records).full_window_partition().reduce(function).collect()
    assert not caplog.records


async def test_only_the_first_call_of_a_reduce_function_is_looked_at(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls: list[Any] = []

    def add(one: Any, other: Any) -> Any:
        calls.append(other)
        return {"n": one["n"] + other["n"]} if len(calls) < 3 else one["n"]

    results = await keyed_of(*({"n": n} for n in range(4))).reduce(add).collect()
    assert results[-1] == 3
    assert calls == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert "something else than a record" not in caplog.text


# NaN.

MEASURES = [3.0, math.nan, 1.0, None, 2.0]
OF_NUMBERS = [1.0, 2.0, 3.0]
AGGREGATES: list[tuple[Callable[[], Any], Any]] = [
    (lambda: am.max_("x"), 3.0),
    (lambda: am.min_("x"), 1.0),
    (lambda: am.first("x", by="x"), 1.0),
    (lambda: am.last("x", by="x"), 3.0),
    (lambda: am.top_n(2, by="x"), [{"x": 3.0}, {"x": 2.0}]),
]


@pytest.mark.parametrize(("make", "expected"), AGGREGATES)
def test_nan_is_no_value_wherever_it_stands(
    make: Callable[[], Any], expected: Any
) -> None:
    for order in itertools.permutations(MEASURES):
        aggregate = make()
        held = aggregate.create_accumulator()
        for measure in order:
            held = aggregate.add({"x": measure}, held)
        assert aggregate.get_result(held) == expected, order


def test_nan_is_no_value_of_a_quantile() -> None:
    median = am.quantile(0.5, "x")
    held = median.create_accumulator()
    for measure in (math.nan, math.nan, 5.0):
        held = median.add({"x": measure}, held)
    assert median.get_result(held) == pytest.approx(5.0, rel=0.01)


@pytest.mark.parametrize("order", [*itertools.permutations([3.0, math.nan, 1.0])])
async def test_nan_never_wins_in_max_by_and_min_by(order: tuple[float, ...]) -> None:
    measures = keyed_of(*({"x": x} for x in order)).full_window_partition()
    assert await measures.max_by("x").collect() == [{"x": 3.0}]
    assert await measures.min_by("x").collect() == [{"x": 1.0}]


async def test_text_that_is_not_written_like_a_number_is_ranked_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    words = keyed_of({"day": "2024-01-02"}, {"day": "2024-01-01"})
    for aggregate in (am.top_n(1, by="day"), am.first(by="day")):
        await words.aggregate(aggregate).collect()
    await words.max_by("day").collect()
    assert not caplog.records


def test_what_has_been_told_is_in_no_pickle() -> None:
    best = am.top_n(1, by="x")
    best.warn = lambda *told, **facts: None
    again = pickle.loads(pickle.dumps(best))
    assert again.warn is None
    assert repr(again) == repr(best)


# Timers.


class AtATime(am.KeyedProcessFunction[str, Any, Any]):
    """Registers the timers that come, of processing time."""

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        context.timer_service.register_processing_time_timer(**value)

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        out.collect(timestamp)


@pytest.mark.parametrize(
    "timer", [{"at": 0}, {"at": 1_700_000_000_000}, {"after": am.seconds(5)}]
)
async def test_a_timer_that_is_meant_so_gets_no_warning(
    timer: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    await keyed_of(timer).process(AtATime()).collect()
    assert "a timer looks like" not in caplog.text
    assert "a timer is set" not in caplog.text


async def test_a_timer_of_event_time_in_seconds_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Later(am.KeyedProcessFunction[str, int, int]):
        def process_element(self, value: int, context: Any, out: Any) -> None:
            at = value // 1000 + 3600
            context.timer_service.register_event_time_timer(at)

        def on_timer(self, timestamp: int, context: Any, out: Any) -> None: ...

    times = range(1_700_000_000_000, 1_700_000_000_009)
    timed = MONOTONOUS.with_timestamp_assigner(lambda time: time)
    keyed = Env().from_collection(times, timed).key_by(lambda _: "all")
    await keyed.process(Later()).collect()
    assert caplog.text.count("a timer looks like seconds since the epoch") == 1


# Functions that keep something.


async def test_a_function_that_keeps_its_counts_itself_gets_no_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Count(am.KeyedProcessFunction[str, str, int]):
        count = 0

        def initialize_state(self, context: Any) -> None:
            count = am.ListStateDescriptor("count")
            self.kept = context.operator_state.get_list_state(count)

        def snapshot_state(self, context: Any) -> None:
            self.kept.update([self.count])

        def process_element(self, value: str, context: Any, out: Any) -> None:
            self.count += 1

    class Last(am.KeyedProcessFunction[str, str, int]):
        def process_element(self, value: str, context: Any, out: Any) -> None:
            self.last = value
            context.count = 1 + len(self.last)

    keyed_of("a").process(Count())
    keyed_of("a").process(Last())
    assert "counts on itself" not in caplog.text


# Settings.


def test_checkpoints_that_are_configured_again_alike_get_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    env = Env()
    for directory in ("one", "one", "other"):
        env.enable_checkpointing(am.seconds(1), directory=tmp_path / directory)
    assert not caplog.records
    env.configure(checkpoints=am.CheckpointConfig(am.seconds(1)))
    assert "checkpoints are configured twice" in caplog.text
    assert f"{__file__}:" in caplog.text


def test_a_setting_behind_key_by_is_taken_if_there_was_none() -> None:
    words = stream_of("tea").map(str)
    assert "texts" in words.key_by(len).uid("texts").map(len).explain()
    again = stream_of("tea").map(str).uid("texts").key_by(len).uid("texts")
    assert again.map(len).explain()
    wide = stream_of("tea").map(str).set_parallelism(3).key_by(len)
    with pytest.raises(
        UsageError, match=r"parallelism=3 of operator 'map'.*test_silent"
    ):
        wide.set_parallelism(2)


async def test_the_first_start_of_a_job_gets_no_warning_of_other_jobs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def start(name: str) -> None:
        env = Env().enable_checkpointing(None, directory=tmp_path)
        env.from_source(am.CollectionSource([1])).sink_to(lambda number: None)
        inbox: am.Inbox[int] = am.Inbox()
        env.configure(restore_from="latest")
        env.enable_checkpointing(
            None, directory=tmp_path, mode=am.CheckpointingMode.AT_LEAST_ONCE
        )
        env.from_source(inbox).sink_to(lambda number: None)
        async with env.start(name) as job:
            await job.trigger_checkpoint()
            await job.cancel()

    await start("one")
    await start("one")
    assert "of other jobs only" not in caplog.text
    await start("other")
    assert caplog.text.count("of other jobs only") == 1
    await start("other")
    assert caplog.text.count("of other jobs only") == 1


@pytest.mark.parametrize(
    ("timeout", "deadline"), [(1, 1), (1, None), (None, 1), (am.millis(1), 1)]
)
def test_a_deadline_may_be_as_long_as_a_timeout(timeout: Any, deadline: Any) -> None:
    stream_of(1).map_async(asyncio.sleep, timeout=timeout, deadline=deadline)


def test_strategies_that_are_used_get_no_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    base = MONOTONOUS.with_timestamp_assigner(lambda number: number)
    silent = base.with_idleness(am.seconds(1))
    for strategy in (base, silent, base.with_idleness(am.seconds(2)), base):
        Env().from_collection([1], strategy)
    assert not caplog.records
    assert silent == base.with_idleness(am.seconds(1))


def test_a_strategy_is_pickled_as_it_is_equal() -> None:
    strategy = MONOTONOUS.with_timestamp_assigner("at").with_idleness(am.seconds(1))
    again = pickle.loads(pickle.dumps(strategy))
    assert again.idleness_ms == 1000
    assert again.assigner == "at"
