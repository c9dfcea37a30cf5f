"""What is computed of whole partitions, when the input has ended."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import math
import os
import random
import subprocess
import sys
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

import aiomailbox as am
from aiomailbox.errors import InvalidArgumentError, UsageError, WrongTypeError
from aiomailbox.operators.keyed.sorting import SortOperator
from aiomailbox.records.events import MAX_TIMESTAMP
from aiomailbox.testing import OneInputHarness

Pair = tuple[str, int]
PAIRS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(-5, 5)), max_size=40)


@dataclass(frozen=True)
class Sale:
    shop: str
    price: float


def stream_of(records: list[Any], **settings: Any) -> am.DataStream[Any]:
    return am.StreamExecutionEnvironment(**settings).from_collection(records)


def by_key(records: list[Pair], **settings: Any) -> am.KeyedStream[str, Pair]:
    return stream_of(records, **settings).key_by(lambda pair: pair[0])


async def add(first: Pair, second: Pair) -> Pair:
    await asyncio.sleep(0)
    return first[0], first[1] + second[1]


@settings(max_examples=15)
@given(PAIRS, st.integers(1, 3))
def test_a_key_has_one_result_whatever_the_parallelism(
    records: list[Pair], parallelism: int
) -> None:
    sums = Counter[str]()
    for key, value in records:
        sums[key] += value
    expected = sorted((key, sums[key]) for key in {key for key, _ in records})

    def of(build: Callable[[Any], am.DataStream[Any]]) -> list[Any]:
        keyed = by_key(records, parallelism=parallelism)
        return sorted(am.run(build(keyed.full_window_partition()).collect()))

    plain = lambda a, b: (a[0], a[1] + b[1])  # noqa: E731 -- as a user writes it
    assert of(lambda parts: parts.reduce(plain)) == expected
    assert of(lambda parts: parts.reduce(add)) == expected
    values = {key: [v for k, v in records if k == key] for key in sums}
    for verb, extreme in (("min_by", min), ("max_by", max)):
        found = of(lambda parts, verb=verb: getattr(parts, verb)(lambda pair: pair[1]))
        assert found == sorted((key, extreme(values[key])) for key in values)
    total = am.sum_(lambda pair: pair[1])
    assert of(lambda parts: parts.aggregate(total, include_key=True)) == expected
    named = am.aggregates(total=total)
    assert of(lambda parts: parts.aggregate(named)) == expected
    listed = of(lambda parts: parts.map_partition(lambda found: [tuple(found)]))
    assert sorted(pair for part in listed for pair in part) == sorted(records)
    assert len(listed) == len(expected)


async def test_without_keys_a_partition_is_what_a_subtask_gets() -> None:
    numbers = stream_of(list(range(10)), parallelism=3).rebalance().map(lambda n: n)
    parts = numbers.full_window_partition()
    lists = await parts.map_partition(lambda found: [found]).collect()
    assert len(lists) == 3
    assert sorted(n for part in lists for n in part) == list(range(10))
    numbers = stream_of(list(range(10)), parallelism=3).rebalance().map(lambda n: n)
    counts = await numbers.full_window_partition().aggregate(am.count()).collect()
    assert sorted(counts) == [3, 3, 4]
    total = stream_of([1, 2, 3], parallelism=2).full_window_partition()
    assert await total.reduce(lambda a, b: a + b).set_parallelism(1).collect() == [6]


async def test_a_subtask_without_records_has_an_aggregate_and_nothing_else() -> None:
    nothing = stream_of([]).full_window_partition()
    assert await nothing.aggregate(am.count()).collect() == [0]
    assert await stream_of([]).full_window_partition().aggregate(
        am.aggregates(n=am.count(), largest=am.max_("price"))
    ).collect() == [(0, None)]
    assert await nothing.reduce(max).collect() == []
    assert await nothing.map_partition(lambda found: [len(found)]).collect() == []
    assert await nothing.sort_partition("price").collect() == []
    keyed = stream_of([]).key_by(lambda record: record).full_window_partition()
    assert await keyed.aggregate(am.count()).collect() == []


async def test_totals_of_totals_are_one_result() -> None:
    by_word = stream_of(["a", "b", "a"], parallelism=2).key_by(lambda word: word)
    counts = by_word.full_window_partition().aggregate(am.count())
    parts = counts.full_window_partition().reduce(lambda a, b: a + b)
    total = parts.full_window_partition().reduce(lambda a, b: a + b).set_parallelism(1)
    assert await total.collect() == [3]


class Times(am.ProcessFunction[Any, Any]):
    def process_element(self, value: Any, context: Any, out: Any) -> None:
        out.collect(context.timestamp)


async def test_results_of_keys_have_the_last_timestamp_there_is() -> None:
    parts = by_key([("a", 1), ("b", 2)]).full_window_partition()
    assert await parts.aggregate(am.count()).process(Times()).collect() == [
        MAX_TIMESTAMP,
        MAX_TIMESTAMP,
    ]
    columns = am.StreamExecutionEnvironment().from_arrow(pa.table({"n": [1]}))
    parts = columns.key_by("n").full_window_partition()
    assert await parts.aggregate(am.count()).process(Times()).collect() == [
        MAX_TIMESTAMP
    ]


async def test_event_times_play_no_part() -> None:
    time = am.WatermarkStrategy.for_monotonous_timestamps()
    time = time.with_timestamp_assigner(lambda pair: pair[1])
    records = [("a", 10_000), ("a", 1), ("b", 2)]
    late = am.StreamExecutionEnvironment().from_collection(records, time)
    parts = late.key_by(lambda pair: pair[0]).full_window_partition()
    assert await parts.aggregate(am.count(), include_key=True).collect() == [
        ("a", 2),
        ("b", 1),
    ]


TOTALS = am.aggregates(n=am.count(), total=am.sum_("price"), most=am.max_("price"))


@settings(max_examples=15)
@given(
    PAIRS,
    st.booleans(),
    st.integers(1, 2),
)
def test_columns_give_what_rows_give(
    records: list[Pair], keyed: bool, parallelism: int
) -> None:
    shops, prices = [shop for shop, _ in records], [price for _, price in records]
    table = pa.table(
        {"shop": pa.array(shops, pa.string()), "price": pa.array(prices, pa.int64())}
    )

    def totals(stream: am.DataStream[Any], aggregate: Any, **said: Any) -> Any:
        if keyed:
            stream = stream.key_by("shop")
        return stream.full_window_partition().aggregate(aggregate, **said)

    def both(aggregate: Any, **said: Any) -> list[list[Any]]:
        env = am.StreamExecutionEnvironment(parallelism=parallelism)
        columns = totals(env.from_arrow(table), aggregate, **said)
        if records:
            assert "columns" in columns.explain()
        rows = env.from_arrow(table).map(lambda row: row)
        return [
            sorted(am.run(stream.collect()), key=str)
            for stream in (columns, totals(rows, aggregate, **said))
        ]

    first, second = both(TOTALS)
    assert first == second
    if keyed:
        assert {row.key: row.n for row in first} == Counter(shops)
        first, second = both(am.sum_("price"), include_key=True)
        assert first == second
    else:
        assert sum(row.n for row in first) == len(records)


async def test_a_total_beyond_64_bits_goes_on_with_rows() -> None:
    env = am.StreamExecutionEnvironment()
    large = env.from_arrow(pa.table({"k": [1, 1, 2], "n": [2**62, 2**62, 1]}))
    parts = large.key_by("k").full_window_partition()
    assert await parts.aggregate(am.sum_("n")).collect() == [2**63, 1]


# Sorting.


def sorted_by(
    records: list[Any], by: Any, keyed: bool = False, **said: Any
) -> list[Any]:
    operator = SortOperator((lambda r: r[0]) if keyed else None, by, **said)
    with OneInputHarness(operator, keyed=True) as harness:
        for start in range(0, len(records), 700):
            harness.process_run(records[start : start + 700])
        harness.process_watermark(MAX_TIMESTAMP)
        return harness.values


@given(PAIRS, st.booleans(), st.booleans())
def test_records_are_sorted_and_equal_ones_keep_their_order(
    records: list[Pair], descending: bool, keyed: bool
) -> None:
    numbered = [(*pair, number) for number, pair in enumerate(records)]
    found = sorted_by(numbered, lambda r: r[1], keyed, descending=descending)
    parts: dict[str, list[Any]] = {}
    for record in found:
        parts.setdefault(record[0] if keyed else "", []).append(record)
    # The records of a key come together.
    assert [r for part in parts.values() for r in part] == found
    for part in parts.values():
        assert part == sorted(sorted(part), key=lambda r: r[2]) or part == sorted(
            sorted(part, key=lambda r: r[2]), key=lambda r: r[1], reverse=descending
        )
    assert sorted(found) == sorted(numbered)


@dataclass(frozen=True)
class Item:
    price: int
    name: str = "x" * 100


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("make", [Item, lambda n: {"price": n}, lambda n: (n, [n])])
async def test_more_than_fits_is_sorted_in_files(
    make: Callable[[int], Any], descending: bool
) -> None:
    numbers = list(range(15_000))
    random.Random(7).shuffle(numbers)
    records = [make(number) for number in numbers]
    read = next(
        reader
        for reader in (
            lambda r: r.price,
            lambda r: r["price"],
            lambda r: r[0],
        )
        if _reads(reader, records[0])
    )
    operator = SortOperator(None, read, descending=descending, memory_bytes=100_000)
    with OneInputHarness(operator) as harness:
        for start in range(0, len(records), 1000):
            await harness.run(harness.process_run, records[start : start + 1000])
        assert harness.context.metrics.counter("sorted_files_bytes").value > 0
        harness.process_watermark(MAX_TIMESTAMP)
        assert harness.values == sorted(records, key=read, reverse=descending)


def _reads(reader: Callable[[Any], Any], record: Any) -> bool:
    try:
        reader(record)
    except (TypeError, KeyError, AttributeError):
        return False
    return True


async def test_many_files_become_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiomailbox.operators.keyed.sorting._FILES_MAX", 3)
    numbers = [(n * 7919 % 40_009, n) for n in range(40_009)]
    # What tests before this one have left is theirs.
    gc.collect()
    before = nameless_files()
    operator = SortOperator(None, lambda r: r[0], memory_bytes=1)
    with OneInputHarness(operator) as harness:
        for start in range(0, len(numbers), 1000):
            await harness.run(harness.process_run, numbers[start : start + 1000])
        assert len(operator._files) < 3
        assert nameless_files() == before + len(operator._files)
        harness.process_watermark(MAX_TIMESTAMP)
        assert harness.values == sorted(numbers)
    assert nameless_files() == before


def nameless_files() -> int:
    """Return how many files are open that no directory shows."""
    links = []
    for descriptor in os.listdir("/proc/self/fd"):
        # It may have been closed meanwhile.
        with contextlib.suppress(OSError):
            links.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return sum(link.endswith("(deleted)") for link in links)


def test_nan_is_the_largest_value() -> None:
    values = [("a", 1.0), ("b", math.nan), ("c", -math.inf), ("d", math.inf)]
    assert [r[0] for r in sorted_by(values, lambda r: r[1])] == ["c", "a", "d", "b"]
    found = sorted_by(values, lambda r: r[1], descending=True)
    assert [r[0] for r in found] == ["b", "d", "a", "c"]


async def test_a_value_without_an_order_is_an_error_of_its_record() -> None:
    records = [("a", 2), ("b", None), ("c", "x"), ("d", 1)]
    with pytest.raises(am.JobFailedError, match=r"None of .'b', None. has no order"):
        await (
            stream_of(records)
            .full_window_partition()
            .sort_partition(lambda r: r[1])
            .collect()
        )
    refused = am.OutputTag[Any]("refused")
    kept = (
        stream_of(records)
        .full_window_partition()
        .sort_partition(lambda r: r[1], on_error=am.dead_letter(refused))
    )
    assert await kept.collect() == [("d", 1), ("a", 2)]
    letters = kept.get_side_output(refused).map(lambda letter: letter.record)
    assert await letters.collect() == [("b", None), ("c", "x")]


class Opaque:
    def __init__(self, number: int) -> None:
        self.number = number


async def test_records_that_fit_into_no_file_are_an_error_that_says_so() -> None:
    records = [Opaque(n) for n in range(20_000)]
    found = sorted_by(records, lambda r: -r.number)
    assert [r.number for r in found] == list(range(20_000))[::-1]
    operator = SortOperator(None, lambda r: r.number, memory_bytes=1000)
    with (
        OneInputHarness(operator) as harness,
        pytest.raises(am.RecordTypeError, match="raise memory_bytes"),
    ):
        await harness.run(harness.process_run, records)


@pytest.mark.parametrize("has_keys", [True, False])
async def test_an_aggregate_of_a_partition_keeps_an_accumulator_and_no_record(
    has_keys: bool,
) -> None:
    made: weakref.WeakSet[Sale] = weakref.WeakSet()
    kept: list[int] = []

    async def sales() -> AsyncIterator[Sale]:
        for number in range(20_000):
            sale = Sale(f"shop {number % 3}", float(number))
            made.add(sale)
            yield sale
        del sale
        await asyncio.sleep(1)
        gc.collect()
        kept.append(len(made))

    stream = am.StreamExecutionEnvironment().from_async_iterable(sales)
    parts = stream.key_by("shop") if has_keys else stream
    totals = parts.full_window_partition().aggregate(am.sum_("price"))
    assert sum(await totals.collect()) == sum(range(20_000))
    assert kept[0] < 10


async def test_sorting_takes_no_checkpoints() -> None:
    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(am.seconds(1))
    parts = env.from_collection([2, 1]).full_window_partition()
    with pytest.raises(InvalidArgumentError, match=r"no checkpoint.*sort partition"):
        await parts.sort_partition(lambda n: n).collect()
    with OneInputHarness(SortOperator(None, int), keyed=True) as harness:
        harness.process_run([1])
        with pytest.raises(UsageError, match="in no checkpoint"):
            harness.snapshot()
        harness.process_watermark(MAX_TIMESTAMP)
        harness.snapshot()


MEMORY = """
import sys
import aiomailbox as am

def records():
    for n in range(600_000):
        yield {"price": n * 7919 % 600_011, "name": "n" * 40}

env = am.StreamExecutionEnvironment()
parts = env.from_collection(records()).full_window_partition()
ordered = parts.sort_partition("price", memory_bytes=20 * 1024**2)
last, count = -1, 0
async def main():
    global last, count
    async for record in ordered:
        assert record["price"] >= last
        last, count = record["price"], count + 1
am.run(main())
with open("/proc/self/status") as status:
    (peak,) = [line.split()[1] for line in status if line.startswith("VmHWM")]
print(count, int(peak) // 1024)
"""


@pytest.mark.suite("system")
@pytest.mark.real_time
def test_sorting_more_than_its_memory_takes_no_more_than_that() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True
    )
    count, megabytes = map(int, done.stdout.split())
    assert count == 600_000
    # All records at once are 240 MB; what the interpreter takes is 60.
    assert megabytes < 170


# Life of the operators in a job.


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize(
    "build",
    [
        lambda parts: parts.aggregate(am.count()),
        lambda parts: parts.reduce(lambda a, b: a + b),
        lambda parts: parts.map_partition(lambda found: [len(found)]),
    ],
    ids=["aggregate", "reduce", "map"],
)
async def test_partitions_go_on_after_a_savepoint(
    tmp_path: Path, build: Any, keyed: bool
) -> None:
    seen = asyncio.Event()

    def look(number: int) -> int:
        if number == 3:
            seen.set()
        return number

    def job_of(inbox: am.Inbox[int]) -> tuple[Any, list[int]]:
        env, found = am.StreamExecutionEnvironment(), list[int]()
        mode = am.CheckpointingMode.AT_LEAST_ONCE
        env.enable_checkpointing(None, directory=tmp_path, mode=mode)
        stream: Any = env.from_source(inbox).uid("in").map(look)
        if keyed:
            stream = stream.key_by(lambda n: 0)
        build(stream.full_window_partition()).uid("parts").sink_to(found.append)
        return env, found

    inbox = am.Inbox[int]()
    env, found = job_of(inbox)
    async with env.start() as job:
        for number in (1, 2, 3):
            await inbox.put(number)
        await seen.wait()
        saved = await job.stop_with_savepoint(tmp_path / "savepoint")
    assert found == []
    again = am.Inbox[int]()
    env, found = job_of(again)
    async with env.start(restore_from=saved.place) as job:
        await again.put(4)
        again.close()
        await job.result()
    assert found in ([4], [10])


async def test_what_an_inbox_gave_is_emitted_when_the_job_is_drained() -> None:
    env = am.StreamExecutionEnvironment()
    inbox = am.Inbox[int]()
    found: list[int] = []
    parts = env.from_source(inbox).full_window_partition()
    parts.aggregate(am.count()).sink_to(found.append)
    async with env.start() as job:
        await inbox.put(1)
        await job.stop(drain=True)
    assert found == [1]


async def forever() -> AsyncIterator[int]:
    while True:
        await asyncio.sleep(1)
        yield 1


@pytest.mark.parametrize(
    "endless",
    [
        lambda env: env.from_source(am.Inbox()),
        lambda env: env.from_async_iterable(forever, bounded=False),
    ],
)
async def test_a_source_that_never_ends_is_said(
    endless: Any, caplog: pytest.LogCaptureFixture
) -> None:
    env = am.StreamExecutionEnvironment()
    parts = endless(env).full_window_partition()
    parts.aggregate(am.count()).name("totals").sink_to(print)
    async with env.start():
        pass
    assert "emits when its input has ended, and a source never ends" in caplog.text
    assert "operator='totals'" in caplog.text


async def test_a_million_records_in_a_list_are_said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiomailbox.windowing.partition._MANY", 1000)
    parts = stream_of(list(range(3000))).full_window_partition()
    assert await parts.map_partition(lambda found: [len(found)]).collect() == [3000]
    assert caplog.text.count("a million records are held") == 1


async def test_a_partition_whose_function_fails_is_left_out() -> None:
    parts = by_key([("a", 1), ("b", 0), ("b", 2)]).full_window_partition()
    ratios = parts.map_partition(
        lambda found: [10 // pair[1] for pair in found], on_error=am.skip
    )
    assert await ratios.collect() == [10]


@pytest.mark.suite("system")
@pytest.mark.real_time
async def test_partitions_in_worker_processes() -> None:
    env = am.StreamExecutionEnvironment(parallelism=2)
    env.configure(deployment=am.Processes(2))
    words = ["tea", "jam", "tea", "ale", "jam", "tea"]
    by_word = env.from_collection(words).key_by(lambda word: word)
    parts = by_word.full_window_partition()
    counts: list[Any] = []
    parts.aggregate(am.count(), include_key=True).sink_to(counts.append)
    longest: list[str] = []
    parts.map_partition(lambda found: [found[0] * len(found)]).sink_to(longest.append)
    ordered = env.from_collection(words).full_window_partition()
    found: list[str] = []
    ordered.sort_partition(lambda word: word).sink_to(found.append)
    await env.execute()
    assert sorted(counts) == [("ale", 1), ("jam", 2), ("tea", 3)]
    assert sorted(longest) == ["ale", "jamjam", "teateatea"]
    assert sorted(found) == sorted(words)


def test_wrong_arguments_fail_where_they_are_written() -> None:
    env = am.StreamExecutionEnvironment()
    sales = env.from_collection([Sale("north", 2.0)], output_type=Sale)
    parts = sales.full_window_partition()
    with pytest.raises(InvalidArgumentError, match="cost"):
        parts.sort_partition("cost")
    with pytest.raises(InvalidArgumentError, match="memory_bytes"):
        parts.sort_partition("price", memory_bytes=0)
    with pytest.raises(WrongTypeError, match="descending"):
        parts.sort_partition("price", descending="yes")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="include_key"):
        parts.aggregate(am.count(), include_key=True)
    with pytest.raises(WrongTypeError, match="aggregate"):
        parts.aggregate(3)  # type: ignore[arg-type]
    with pytest.raises(WrongTypeError, match="function"):
        parts.map_partition(lambda a, b: [])  # type: ignore[arg-type, misc]
    with pytest.raises(AttributeError, match="sort_partition"):
        parts.order_by("price")  # type: ignore[attr-defined]
    assert repr(sales.key_by("shop").full_window_partition()) == (
        "<PartitionWindowedStream by 'shop'>"
    )
    assert dataclasses.is_dataclass(Sale)
