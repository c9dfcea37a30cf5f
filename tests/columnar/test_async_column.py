"""Calls for some columns whose results are a new one: equal to rows, and columns still."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, time
from decimal import Decimal
from typing import Any, NamedTuple, NotRequired, TypedDict
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import aiomailbox as am
from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.async_column import AsyncColumnOperator
from aiomailbox.columnar.encode import ResultColumn
from aiomailbox.columnar.forms import NamedTupleForm
from aiomailbox.columnar.rows import RowMaker
from aiomailbox.testing import OneInputHarness

TABLE = pa.table(
    {
        "n": list(range(300)),
        "city": [("Oslo", "Rome", "Bern")[i % 3] for i in range(300)],
        "ms": [i * 10 for i in range(300)],
        "deep": [[i, None] for i in range(300)],
    }
)
TIMES = am.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("ms")


class Place(NamedTuple):
    n: int
    city: str


@dataclass
class Guess:
    city: str
    far: bool = False


async def half(record: Any) -> float:
    n = record["n"] if isinstance(record, dict) else record.n
    await asyncio.sleep((n * 7 % 10 + 1) / 1000)
    return float(n) / 2


def source(records: Any = "namedtuple", *, as_rows: bool = False) -> Any:
    env = am.StreamExecutionEnvironment()
    stream: Any = env.from_arrow(TABLE.to_batches(100), TIMES, records=records)
    return stream.map(lambda record: record) if as_rows else stream


def failure(caught: Any) -> str:
    error = caught.value.__cause__ or caught.value
    return f"{caught.value}{error}{''.join(getattr(error, '__notes__', []))}"


@pytest.mark.parametrize("records", ["namedtuple", dict])
@pytest.mark.parametrize("ordered", [True, False])
async def test_columns_and_rows_get_the_same_field(records: Any, ordered: bool) -> None:
    async def found(*, as_rows: bool) -> list[Any]:
        stream = source(records, as_rows=as_rows)
        called = stream.map_async(half, into="half", columns=["n"], ordered=ordered)
        return list(await called.collect())

    columns, rows = await found(as_rows=False), await found(as_rows=True)
    if not ordered:
        assert columns != sorted(columns, key=str)
        columns, rows = sorted(columns, key=str), sorted(rows, key=str)
    assert columns == rows
    assert len(columns) == 300
    assert [type(each) for each in columns[:1]] == [type(each) for each in rows[:1]]


async def test_the_function_gets_the_named_fields_and_no_other() -> None:
    seen: list[Any] = []

    async def look(record: Any) -> None:
        seen.append(record)

    for as_rows in (False, True):
        stream = source(as_rows=as_rows)
        await stream.map_async(look, into="x", columns=["city", "n"]).count()
    assert seen[:300] == seen[300:]
    assert seen[1]._fields == ("city", "n")
    assert seen[1] == ("Rome", 1)


class Where(TypedDict):
    city: str
    far: NotRequired[bool]


@pytest.mark.parametrize("as_rows", [False, True])
async def test_a_typed_dict_names_the_fields_and_the_function_gets_a_dict(
    as_rows: bool,
) -> None:
    seen: list[Any] = []

    async def measure(where: Where) -> int:
        seen.append(where)
        return len(where["city"])

    stream = source(as_rows=as_rows).map_async(measure, into="length")
    assert {type(record).__name__ for record in await stream.collect()} == {"Record"}
    assert {tuple(each) for each in seen} == {("city",)}
    with pytest.raises(am.UsageError, match="Where, which need 'city'"):
        source().map_async(measure, into="length", columns=["far"])


async def test_a_declared_class_names_the_fields_and_is_what_the_function_gets() -> (
    None
):
    seen: set[type] = set()

    async def of_place(place: Place) -> int:
        seen.add(type(place))
        return place.n * len(place.city)

    async def of_guess(guess: Guess) -> bool:
        seen.add(type(guess))
        return guess.far

    for as_rows in (False, True):
        stream = source(as_rows=as_rows).map_async(of_place, into="a")
        stream = stream.map_async(of_guess, into="b")
        assert [(r.a, r.b) for r in await stream.collect()][:2] == [
            (0, False),
            (4, False),
        ]
    assert seen == {Place, Guess}
    with pytest.raises(
        am.InvalidArgumentError, match="Place, which have no field 'ms'"
    ):
        source().map_async(of_place, into="a", columns=["ms"])
    with pytest.raises(am.InvalidArgumentError, match="Place, which need 'n'"):
        source().map_async(of_place, into="a", columns=["city"])


async def test_a_function_of_lists_may_have_type_hints_that_are_no_lists() -> None:
    async def halves(places: list[Any] | None) -> tuple[float, ...] | list[float]:
        return [place.n / 2 for place in places or ()]

    stream = source().map_async(halves, into="half", columns=["n"], batch=am.Batch(8))
    assert [record.half for record in await stream.collect()][:3] == [0.0, 0.5, 1.0]


async def test_what_follows_works_on_columns() -> None:
    stream = source().map_async(half, into="half", columns=["n"], concurrency=50)
    kept = stream.filter(pc.field("half") >= 1.0)
    batches = [batch async for batch in kept.arrow_batches()]
    assert batches[0].schema.field("half").type == pa.float64()
    assert sum(batch.num_rows for batch in batches) == 298
    assert len(batches) < 150
    env = am.StreamExecutionEnvironment()
    called = env.from_arrow(TABLE).map_async(half, into="half", columns=["n"])
    called.key_by("city").aggregate(am.sum_("half")).sink_to(print)
    lines = env.explain().splitlines()
    for name in ("map_async", "aggregate"):
        (line,) = [line for line in lines if line.strip().startswith(f"- {name}")]
        assert line.endswith("; columns")


async def test_windows_behind_calls_get_each_record_in_time() -> None:
    async def results(*, as_rows: bool, ordered: bool) -> list[Any]:
        called = source(as_rows=as_rows).map_async(
            half, into="half", columns=["n"], ordered=ordered
        )
        windows = called.key_by("city").window(
            am.TumblingEventTimeWindows.of(am.seconds(1))
        )
        both = am.aggregates(n=am.count(), total=am.sum_("half"))
        return list(await windows.aggregate(both).collect())

    expected = await results(as_rows=True, ordered=True)
    assert sum(each.n for each in expected) == 300
    assert await results(as_rows=False, ordered=True) == expected
    found = await results(as_rows=False, ordered=False)
    assert Counter(found) == Counter(expected)


ROME = ZoneInfo("Europe/Rome")
RESULTS: list[tuple[str, list[Any], bool]] = [
    ("nothing", [None, None], True),
    ("integers", [1, None, -(2**63)], True),
    ("long integers", [1, 2**63], False),
    ("fractions", [1.5, float("inf"), -0.0], True),
    ("integers and fractions", [1, 2.5], False),
    ("truth and integers", [True, 1], False),
    ("texts", ["a", "", None], True),
    ("surrogates", ["\ud800"], False),
    ("bytes", [b"a", b""], True),
    ("moments", [datetime(1960, 1, 1, tzinfo=UTC), None], True),
    (
        "moments with and without a zone",
        [datetime(1960, 1, 1, tzinfo=UTC), datetime(1960, 1, 1)],
        False,
    ),
    ("moments of another zone", [datetime(1960, 1, 1, tzinfo=ROME)], False),
    ("moments of UTC by name", [datetime(1960, 1, 1, tzinfo=ZoneInfo("UTC"))], True),
    ("the later of two hours", [datetime(2024, 10, 27, 2, fold=1)], False),
    ("times", [time(2, 30), None], True),
    ("times with a zone", [time(2, 30, tzinfo=UTC)], False),
    ("times of the later hour", [time(2, 30, fold=1)], False),
    ("zeros with a sign", [Decimal("-0.0"), Decimal("1.5")], False),
    ("decimals", [Decimal("1.20"), Decimal("-3.40")], True),
    ("decimals of several scales", [Decimal("1.2"), Decimal("3.40")], False),
    ("decimals that are no numbers", [Decimal("NaN")], False),
    ("records", [Place(1, "Oslo"), None], False),
    ("lists", [[1], [2, None], [], None], True),
    ("lists of nothing", [[], [None]], True),
    ("lists of several types", [[1], ["a"]], False),
    ("lists of long integers", [[2**63]], False),
    ("tuples", [(1, 2)], False),
    ("dicts", [{"a": 1, "b": "x"}, {"a": None, "b": "y"}, None], True),
    ("dicts of dicts and lists", [{"a": {"b": [{"c": 1.5}]}}], True),
    ("dicts with other keys", [{"a": 1}, {"a": 1, "b": 2}], False),
    ("dicts with keys in another order", [{"a": 1, "b": 2}, {"b": 2, "a": 1}], False),
    ("dicts of several types", [{"a": 1}, {"a": 1.5}], False),
    ("dicts with any keys", [{"a b": 1, "class": 2, "": 3}], True),
    ("empty dicts", [{}], False),
    ("dicts with other keys than texts", [{1: 2}], False),
    ("dicts with surrogates as keys", [{"\ud800": 2}], False),
    ("dicts of times with a zone", [{"a": time(2, 30, tzinfo=UTC)}], False),
]


@pytest.mark.parametrize(
    ("values", "fits"), [r[1:] for r in RESULTS], ids=[r[0] for r in RESULTS]
)
async def test_results_become_a_column_only_where_that_says_exactly_what_they_are(
    values: list[Any], fits: bool
) -> None:
    column = ResultColumn(Any).of(values)
    assert (column is not None) is fits
    if column is not None:
        assert list(map(repr, column.to_pylist())) == list(map(repr, values)) or [
            each and each.timestamp() for each in column.to_pylist()
        ] == [each and each.timestamp() for each in values]

    async def answer(record: Any) -> Any:
        return values[record.n % len(values)]

    columns = await source().map_async(answer, into="x", columns=["n"]).collect()
    rows = source(as_rows=True).map_async(answer, into="x", columns=["n"])
    texts = [list(map(repr, each)) for each in (columns, await rows.collect())]
    # Whoever says UTC means the same.
    name = "zoneinfo.ZoneInfo(key='UTC')"
    assert texts[0] == [
        text.replace(name, "datetime.timezone.utc") for text in texts[1]
    ]


async def test_dicts_and_lists_leave_the_other_columns_what_they_are() -> None:
    rows = pa.table(
        {
            "n": pa.array(range(6), pa.int32()),
            "tags": pa.array(
                [[(f"k{n}", n)] for n in range(6)], pa.map_(pa.string(), pa.int64())
            ),
        }
    )

    async def answer(record: Any) -> Any:
        return {"the score": record.n, "of": ["a"]} if record.n else None

    env = am.StreamExecutionEnvironment()
    called = env.from_arrow(rows).map_async(answer, into="x", columns=["n"])
    batches = [batch async for batch in called.arrow_batches()]
    schema = pa.Table.from_batches(batches).schema
    assert schema.field("n").type == pa.int32()
    assert schema.field("tags").type == rows.schema.field("tags").type
    assert pa.types.is_struct(schema.field("x").type)
    scores = called.with_columns(score=pc.field("x", "the score")).select("score", "x")
    found = await scores.map(lambda record: (record.score, record.x)).collect()
    assert found[0] == (None, None)
    assert found[5] == (5, {"the score": 5, "of": ["a"]})


async def test_a_function_that_says_float_may_return_whole_numbers() -> None:
    async def answer(place: Place) -> float | None:
        return place.n if place.n % 2 else place.n / 4

    stream = source().map_async(answer, into="x")
    batches = [batch async for batch in stream.arrow_batches()]
    assert {batch.schema.field("x").type for batch in batches} == {pa.float64()}


async def test_dead_letters_have_the_whole_record() -> None:
    async def refuse(record: Any) -> int:
        if record.n % 100 == 7:
            raise ValueError("no")
        return int(record.n)

    for as_rows in (False, True):
        failed = am.OutputTag("failed")
        stream = source(as_rows=as_rows).map_async(
            refuse, into="x", columns=["n"], on_error=am.dead_letter(failed)
        )
        letters = await stream.get_side_output(failed).collect()
        assert [letter.record for letter in letters] == [
            (n, ("Oslo", "Rome", "Bern")[n % 3], n * 10, [n, None])
            for n in (7, 107, 207)
        ]
        assert letters[0].record._fields == ("n", "city", "ms", "deep")
        assert letters[0].timestamp == 70


@pytest.mark.parametrize("ordered", [True, "key"])
async def test_a_record_without_the_fields_of_a_call_fails_alone_in_its_place(
    ordered: Any,
) -> None:
    async def answer(record: Any) -> int:
        return int(record["n"])

    failed = am.OutputTag("failed")
    records = [{"k": 1, "n": 1}, {"k": 1}, {"k": 1, "n": 3}]
    env = am.StreamExecutionEnvironment()
    called = env.from_collection(records).map_async(
        answer,
        into="x",
        columns=["n"],
        ordered=ordered,
        key="n" if ordered == "key" else None,
        on_error=am.dead_letter(failed),
    )
    found: list[Any] = []
    letters: list[Any] = []
    called.sink_to(found.append)
    called.get_side_output(failed).sink_to(letters.append)
    await env.execute()
    assert [record["x"] for record in found] == [1, 3]
    assert [(one.record, one.attempts) for one in letters] == [({"k": 1}, 1)]


async def test_calls_are_retried_in_batches_and_cached_as_for_rows() -> None:
    tried: Counter[str] = Counter()

    async def once(records: list[Any]) -> list[Any]:
        for record in records:
            assert record._fields == ("city",)
            tried[record.city] += 1
        return [
            ValueError("later") if tried[record.city] == 1 else record.city.upper()
            for record in records
        ]

    stream = source().map_async(
        once,
        into="name",
        columns=["city"],
        batch=am.Batch(2, within=0.01),
        cache=am.Cache("city", size=10),
        retry=am.Retry(attempts=3),
    )
    found = await stream.collect()
    assert Counter(each.name for each in found) == {
        "OSLO": 100,
        "ROME": 100,
        "BERN": 100,
    }
    assert tried == {"Oslo": 2, "Rome": 2, "Bern": 2}


async def test_what_reads_other_fields_gets_whole_records_and_the_function_does_not() -> (
    None
):
    seen: set[Any] = set()

    async def look(record: Any) -> str:
        seen.add(record._fields)
        return am.current_call().idempotency_key

    found = await source().map_async(look, into="x", columns=["n"], id="ms").collect()
    again = source(as_rows=True).map_async(look, into="x", columns=["n"], id="ms")
    assert [r.n for r in found] == list(range(300))
    assert len({record.x for record in found}) == 300
    assert [r.n for r in await again.collect()] == list(range(300))
    keyed = (
        source()
        .key_by("city")
        .map_async(half, into="half", columns=["n"], ordered="key")
    )
    by_key = await keyed.collect()
    for city in ("Oslo", "Rome", "Bern"):
        mine = [r.n for r in by_key if r.city == city]
        assert mine == sorted(mine)
    assert seen == {("n",)}


@pytest.mark.parametrize("ordered", [True, False])
async def test_calls_in_flight_are_in_a_savepoint_and_lead_to_columns_again(
    tmp_path: Any, ordered: bool
) -> None:
    found: list[Any] = []

    def program(*, is_slow: bool) -> am.StreamExecutionEnvironment:
        async def slow(record: Any) -> float:
            if is_slow and record.n >= 120:
                await asyncio.sleep(3)
            return float(await half(record))

        env = am.StreamExecutionEnvironment(max_parallelism=8)
        env.enable_checkpointing(None)
        stream = env.from_arrow(TABLE.to_batches(100), TIMES).uid("places")
        called = stream.map_async(
            slow, into="half", columns=["n"], concurrency=20, ordered=ordered
        ).uid("half")
        sums = called.filter(pc.field("half") >= 0).key_by("city")
        both = am.aggregates(n=am.count(), total=am.sum_("half"))
        sums.aggregate(both).uid("sums").sink_to(found.append)
        return env

    await program(is_slow=False).execute()
    expected = Counter((r.key, r.n) for r in found), max(r.total for r in found)
    found.clear()
    async with program(is_slow=True).start() as job:
        await asyncio.sleep(5)
        place = await job.trigger_savepoint(tmp_path / "savepoint")
        await job.cancel()
    assert 0 < len(found) < 300
    async with program(is_slow=False).start(restore_from=place.place) as job:
        await job.result()
        sums = job.metrics().operators["aggregate"]
    assert (
        Counter((r.key, r.n) for r in found),
        max(r.total for r in found),
    ) == expected
    # Also those that were in flight came back as columns.
    assert sums["columnar"] == 1


async def test_records_in_flight_come_back_with_the_types_that_they_had() -> None:
    waits = asyncio.Event()

    async def slow(record: Any) -> int:
        await waits.wait()
        return int(record.n)

    def operator() -> Any:
        return AsyncColumnOperator(slow, into="y", columns=["n"], concurrency=10)

    async with OneInputHarness(operator()) as harness:
        for values in ([1, 2], [0.5, 3.0]):
            batch = pa.record_batch({"n": [1, 2], "x": values})
            run = ArrowRun(batch, RowMaker(batch.schema, NamedTupleForm()))
            await harness.run(harness.operator.process_run, run)
        snapshot = harness.snapshot()
        waits.set()
        await harness.run(harness.end_input)
        expected = list(map(repr, harness.values))
    second = OneInputHarness(operator())
    second.restore(snapshot)
    async with second as harness:
        await harness.run(harness.end_input)
        assert list(map(repr, harness.values)) == expected
    assert len(expected) == 4


async def test_a_finished_call_is_found_in_the_journal(tmp_path: Any) -> None:
    calls: Counter[int] = Counter()
    failures = [100]

    async def ask(record: Any) -> float:
        calls[record.n] += 1
        return float(await half(record))

    def stumble(record: Any) -> Any:
        if record.n in failures:
            failures.clear()
            raise RuntimeError("stumbled")
        return record

    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(am.seconds(0.05), directory=tmp_path)
    env.configure(restart=am.restart.fixed_delay(3, 0.01))
    found: list[Any] = []
    stream = env.from_arrow(TABLE.to_batches(100), TIMES)
    called = stream.map_async(
        ask, into="half", columns=["n"], id="n", journal=True, concurrency=8
    )
    called.uid("ask").disable_chaining().map(stumble).sink_to(found.append)
    await env.execute()
    assert {record.n: record.half for record in found} == {n: n / 2 for n in range(300)}
    assert calls.total() <= 308


async def test_a_field_that_is_there_already_is_refused_where_it_is_written() -> None:
    with pytest.raises(am.RecordTypeError, match="there is a field 'city' already"):
        source().map_async(half, into="city", columns=["n"])
    for hidden in (source().map_batches(lambda batch: batch), source(as_rows=True)):
        with pytest.raises(am.JobFailedError) as caught:
            await hidden.map_async(half, into="city").collect()
        text = failure(caught)
        assert "there is a field 'city' already" in text
        assert "operator 'map_async'" in text


async def test_a_field_that_no_column_has_is_refused_where_it_is_written() -> None:
    with pytest.raises(am.RecordTypeError, match=r"^columns: .*no field 'country'"):
        source().map_async(half, into="x", columns=["country"])
    for hidden in (source().map_batches(lambda batch: batch), source(as_rows=True)):
        with pytest.raises(am.JobFailedError) as caught:
            await hidden.map_async(half, into="x", columns=["country"]).collect()
        text = failure(caught)
        assert "no field 'country'" in text
        assert "n, city, ms, deep" in text
        assert "'map_async'" in text


class Nation(NamedTuple):
    country: str


def test_a_class_of_records_that_the_stream_does_not_have_is_named() -> None:
    async def measure(nation: Nation) -> int:
        return 1

    with pytest.raises(
        am.RecordTypeError,
        match=r"^function: .*records of Nation, .*no field 'country'",
    ):
        source().map_async(measure, into="x")


def test_wrong_arguments_are_refused_where_they_are_written() -> None:
    stream = source()
    with pytest.raises(am.InvalidArgumentError, match="without into="):
        stream.map_async(half, columns=["n"])
    with pytest.raises(am.WrongTypeError, match="not a list of names"):
        stream.map_async(half, into="x", columns="n")
    for columns in ([], ["n", "n"]):
        with pytest.raises(
            am.InvalidArgumentError, match=r"it is empty|it has duplicates"
        ):
            stream.map_async(half, into="x", columns=columns)
    with pytest.raises(am.WrongTypeError, match="not a string"):
        stream.map_async(half, into=7)


@pytest.mark.parametrize("as_rows", [False, True])
async def test_whole_numbers_of_a_function_that_says_float_are_floats(
    as_rows: bool,
) -> None:
    """Also where all of them are whole, and in rows: borders of runs mean nothing."""

    async def half(record: Any) -> float | None:
        n = record.n
        return None if n == 3 else n // 2 if n % 2 == 0 else n / 2

    env = am.StreamExecutionEnvironment()
    stream = env.from_arrow(pa.table({"n": [2, 4, 5, 3, 6]}).to_batches(2))
    if as_rows:
        stream = stream.map(lambda record: record)
    found = await stream.map_async(half, into="h", columns=["n"]).collect()
    assert [repr(each.h) for each in found] == ["1.0", "2.0", "2.5", "None", "3.0"]
