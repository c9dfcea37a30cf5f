"""Whole jobs over columns: what explain says, several subtasks, and keys of fields."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import aiomailbox as am
from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.rows import RowMaker
from aiomailbox.errors import RecordTypeError, WrongTypeError
from aiomailbox.operators.sources.source import InputStatus

TABLE = pa.table(
    {
        "city": [f"city-{i % 7}" for i in range(5000)],
        "day": [i % 3 for i in range(5000)],
        "visits": list(range(5000)),
        "ms": [i * 10 for i in range(5000)],
    }
)


def explained(env: am.StreamExecutionEnvironment) -> str:
    return env.explain()


def described(text: str, name: str) -> str:
    """Return what is said of the form of an operator."""
    line = next(
        line for line in text.splitlines() if line.strip().startswith(f"- {name}")
    )
    return line.partition("; ")[2].rpartition("; ")[2] or line.partition("; ")[2]


async def test_explain_says_columns_or_rows_and_which_function_asked() -> None:
    env = am.StreamExecutionEnvironment()
    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    stream = env.from_arrow(TABLE).assign_timestamps_and_watermarks(
        strategy.with_timestamp_assigner("ms")
    )
    sums = (
        stream.filter(pc.field("visits") > 1)
        .key_by("city")
        .aggregate(am.sum_("visits"))
    )

    def double(value: int) -> int:
        return 2 * value

    sums.map(double).sink_to(lambda value: None)
    text = explained(env)
    for name in ("arrow", "timestamps", "filter", "aggregate"):
        assert described(text, name) == "columns", text
    assert "double" in described(text, "map")
    assert described(text, "map").endswith("asks for them")


async def test_a_key_function_asks_for_rows_and_is_named() -> None:
    env = am.StreamExecutionEnvironment()

    def city_of(record: Any) -> str:
        return str(record.city)

    env.from_arrow(TABLE).key_by(city_of).aggregate(am.count()).sink_to(print)
    said = described(explained(env), "aggregate")
    assert said.startswith("rows: key function")
    assert "city_of" in said


async def test_an_aggregate_that_columns_cannot_do_is_named() -> None:
    env = am.StreamExecutionEnvironment()
    listed = env.from_arrow(TABLE).key_by("city").aggregate(am.collect_list("day"))
    listed.sink_to(print)
    assert "collect_list('day')" in described(explained(env), "aggregate")


@pytest.mark.parametrize("keys", [("city",), ("city", "day"), ("day",)])
async def test_keys_go_to_the_subtasks_that_rows_go_to(keys: tuple[str, ...]) -> None:
    def results(env: am.StreamExecutionEnvironment, stream: Any) -> Any:
        both = am.aggregates(n=am.count(), total=am.sum_("visits"))
        return stream.key_by(*keys).aggregate(both).set_parallelism(3).collect()

    env = am.StreamExecutionEnvironment(max_parallelism=128)
    columns = await results(env, env.from_arrow(TABLE))
    rows = await results(env, env.from_arrow(TABLE).map(lambda record: record))
    assert Counter(columns) == Counter(rows)
    # Within a key records keep their order.
    for key in {record.key for record in rows}:
        assert [r for r in columns if r.key == key] == [r for r in rows if r.key == key]


def test_columns_are_parted_by_flinks_hashes() -> None:
    from random import Random

    from aiomailbox.columnar.forms import NamedTupleForm
    from aiomailbox.exchange.writer import KeyGroupPartitioner
    from aiomailbox.operators.core.fields import field_or_function
    from aiomailbox.records.run import ListRun

    batch = TABLE.to_batches()[0]
    run = ArrowRun(batch, RowMaker(batch.schema, NamedTupleForm()), list(range(5000)))
    for field in ("city", "visits", "day"):
        key = field_or_function(field, "key")
        by_columns = KeyGroupPartitioner(key, 128).fresh(Random(1)).split_run(run, 5)
        rows = ListRun(run.values, run.timestamps)
        by_rows = KeyGroupPartitioner(key, 128).fresh(Random(1)).split_run(rows, 5)
        assert [c for c, _ in by_columns] == [c for c, _ in by_rows]
        for (_, part), (_, expected) in zip(by_columns, by_rows, strict=True):
            assert isinstance(part, ArrowRun)
            assert (part.values, part.timestamps) == (
                expected.values,
                expected.timestamps,
            )


async def test_rebalance_union_and_sample_keep_columns() -> None:
    env = am.StreamExecutionEnvironment(parallelism=2)
    stream = env.from_arrow(TABLE)
    both = stream.rebalance().filter(pc.field("day") == 0).union(stream.rescale())
    kept = both.sample(1.0)
    batches = [batch async for batch in kept.arrow_batches()]
    assert sum(batch.num_rows for batch in batches) == 5000 + 1667
    kept.sink_to(print)
    assert described(explained(env), "sample") == "columns"


def test_a_function_is_no_part_of_a_key_of_fields() -> None:
    env = am.StreamExecutionEnvironment()
    with pytest.raises(WrongTypeError, match="one of several keys"):
        env.from_arrow(TABLE).key_by("city", len)  # type: ignore[arg-type]
    with pytest.raises(am.InvalidArgumentError, match="no field 'country'"):
        env.from_arrow(TABLE).key_by("city", "country")


def test_batches_whose_schemas_can_be_unified_are_one_source() -> None:
    env = am.StreamExecutionEnvironment()
    first = pa.record_batch({"a": [1, 2]})
    wider = pa.record_batch({"a": [1.5], "b": ["x"]})
    values = am.run(env.from_arrow([first, wider]).collect())
    assert [tuple(each) for each in values] == [(1.0, None), (2.0, None), (1.5, "x")]
    other = pa.record_batch({"a": ["text"]})
    with pytest.raises(RecordTypeError, match="batch 1"):
        env.from_arrow([first, other])
    for wrong in ([{"a": 1}], {"a": [1]}, "a.parquet", pa.chunked_array([[1]])):
        with pytest.raises(WrongTypeError, match="neither an Arrow table"):
            env.from_arrow(wrong)


def test_several_tables_are_one_source() -> None:
    env = am.StreamExecutionEnvironment()
    tables = [pa.table({"a": [1]}), pa.record_batch({"a": [2]}), pa.table({"a": [3]})]
    for data in (tables, iter(tables)):
        values = am.run(env.from_arrow(data).collect())
        assert [value.a for value in values] == [1, 2, 3]


async def test_columns_cross_an_exchange_in_large_runs() -> None:
    env = am.StreamExecutionEnvironment()
    seen: list[int] = []
    stream = env.from_arrow(TABLE).filter(pc.field("day") >= 0).disable_chaining()
    async for batch in stream.arrow_batches():
        seen.append(batch.num_rows)
    assert max(seen) > 1024
    assert sum(seen) == 5000


WINDOWS: dict[str, Any] = {
    "tumbling": am.TumblingEventTimeWindows.of(am.seconds(5)),
    "sliding": am.SlidingEventTimeWindows.of(am.seconds(5), am.seconds(1)),
    "sessions": am.EventTimeSessionWindows.with_gap(am.millis(40)),
}


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("kind", WINDOWS)
async def test_windows_of_jobs_give_what_rows_give(
    keyed: bool, parallelism: int, kind: str
) -> None:
    strategy = am.WatermarkStrategy.for_bounded_out_of_orderness(am.seconds(1))

    async def results(as_rows: bool) -> list[Any]:
        env = am.StreamExecutionEnvironment(parallelism=parallelism)
        stream = env.from_arrow(TABLE, strategy.with_timestamp_assigner("ms"))
        if as_rows:
            stream = stream.map(lambda record: record)
        windows = WINDOWS[kind]
        both = am.aggregates(n=am.count(), total=am.sum_("visits"))
        windowed = (
            stream.key_by("city").window(windows)
            if keyed
            else stream.window_all(windows)
        ).aggregate(both)
        windowed.sink_to(print)
        said = described(explained(env), "window aggregate")
        assert said == ("rows: map makes them" if as_rows else "columns")
        return await windowed.collect()

    columns, rows = await results(False), await results(True)
    assert Counter(columns) == Counter(rows)
    if parallelism == 1 and kind != "sessions":
        assert columns == rows


class PausingSource(am.ArrowSource):
    """Gives no more than so many rows, and does not end before."""

    def __init__(self, rows_max: int) -> None:
        super().__init__(TABLE.to_batches(500))
        self._rows_max = rows_max

    def create_reader(self, context: Any) -> Any:
        reader: Any = super().create_reader(context)
        poll = reader.poll_next

        def poll_next(output: Any) -> Any:
            if any(split.position >= self._rows_max for split in reader.snapshot()):
                reader.availability.reset()
                return InputStatus.NOTHING_AVAILABLE
            return poll(output)

        reader.poll_next = poll_next
        return reader


@pytest.mark.parametrize("first_rows", [False, True])
@pytest.mark.parametrize("windows", ["", *WINDOWS])
async def test_a_job_goes_on_from_a_savepoint_in_the_other_form(
    tmp_path: Any, first_rows: bool, windows: str
) -> None:
    found: list[Any] = []
    strategy = am.WatermarkStrategy.for_bounded_out_of_orderness(am.seconds(1))

    def program(as_rows: bool, rows_max: int = 9999) -> am.StreamExecutionEnvironment:
        env = am.StreamExecutionEnvironment(max_parallelism=8)
        env.enable_checkpointing(None)
        timed = strategy.with_timestamp_assigner("ms")
        stream = env.from_source(PausingSource(rows_max), timed).uid("places")
        stream = stream.map(lambda record: record) if as_rows else stream
        both = am.aggregates(n=am.count(), total=am.sum_("visits"))
        keyed: Any = stream.key_by("city")
        if windows:
            keyed = keyed.window(WINDOWS[windows])
        keyed.aggregate(both).uid("sums").sink_to(found.append)
        said = described(explained(env), "window aggregate" if windows else "aggregate")
        assert ("rows" in said) is as_rows
        return env

    await program(first_rows).execute()
    expected = Counter(found)
    found.clear()
    async with program(first_rows, 2500).start() as job:
        await asyncio.sleep(1)
        savepoint = await job.stop_with_savepoint(tmp_path / "savepoint")
    assert 0 < len(found) < expected.total()
    await program(not first_rows).execute(restore_from=savepoint.place)
    assert Counter(found) == expected


@pytest.mark.parametrize("parallelism", [2, 3])
async def test_windows_end_behind_a_new_operator_though_a_part_of_the_source_had_ended(
    tmp_path: Any, parallelism: int
) -> None:
    """It had said so to those that were there, and the new one is told again."""
    found: list[Any] = []
    time = am.WatermarkStrategy.for_monotonous_timestamps()

    def program(subtasks: int, rows_max: int) -> am.StreamExecutionEnvironment:
        env = am.StreamExecutionEnvironment(parallelism=subtasks, max_parallelism=8)
        env.enable_checkpointing(None)
        timed = time.with_timestamp_assigner("ms")
        stream = env.from_source(PausingSource(rows_max), timed).uid("places")
        stream = stream.rebalance()
        if rows_max > 2500:
            stream = stream.filter(pc.field("visits") >= 0)
        windowed = stream.key_by("city").window(WINDOWS["tumbling"])
        counts = windowed.aggregate(am.aggregates(n=am.count())).uid("counts")
        counts.sink_to(found.append)
        return env

    # One of two parts has been read, the other one has not been begun.
    async with program(2, 2500).start() as job:
        await asyncio.sleep(1)
        savepoint = await job.stop_with_savepoint(tmp_path / "savepoint")
    assert not found
    await program(parallelism, 9999).execute(restore_from=savepoint.place)
    assert sum(count.n for count in found) == TABLE.num_rows


@pytest.mark.parametrize("keys", [("city",), ("city", "day")])
async def test_the_first_record_of_each_key_is_passed_on_as_columns(
    keys: tuple[str, ...],
) -> None:
    env = am.StreamExecutionEnvironment()
    columns = env.from_arrow(TABLE).key_by(*keys).deduplicate()
    rows = env.from_arrow(TABLE).map(lambda record: record).key_by(*keys).deduplicate()
    found = await columns.collect()
    assert found == await rows.collect()
    assert len(found) == (7 if len(keys) == 1 else 21)
    columns.sink_to(print)
    assert described(explained(env), "deduplicate") == "columns"


@pytest.mark.parametrize("kind", WINDOWS)
async def test_late_records_stay_columns(kind: str) -> None:
    late = am.OutputTag[Any]("late")
    early_again = pa.concat_tables([TABLE, TABLE.slice(0, 500)])
    strategy = am.WatermarkStrategy.for_monotonous_timestamps()

    async def results(as_rows: bool) -> tuple[list[Any], str]:
        env = am.StreamExecutionEnvironment()
        # A batch of its own: event time advances between two of them.
        stream = env.from_arrow(
            early_again.to_batches(5000), strategy.with_timestamp_assigner("ms")
        )
        if as_rows:
            stream = stream.map(lambda record: record)
        windowed = stream.key_by("city").window(WINDOWS[kind])
        counts = windowed.side_output_late_data(late).aggregate(am.count())
        counts.sink_to(lambda count: None)
        sums = (
            counts.get_side_output(late)
            .filter(pc.field("visits") >= 0)
            .key_by("city")
            .aggregate(am.sum_("visits"))
        )
        sums.sink_to(lambda total: None)
        return await sums.collect(), described(explained(env), "filter")

    columns, said = await results(False)
    rows, _ = await results(True)
    assert said == "columns"
    assert columns == rows
    assert len(columns) > 300


@pytest.mark.parametrize("windows", ["", *WINDOWS])
async def test_explain_says_afterwards_who_went_on_with_rows_and_why(
    windows: str,
) -> None:
    def program(values: list[int]) -> am.StreamExecutionEnvironment:
        env = am.StreamExecutionEnvironment()
        table = pa.table({"city": ["a"] * 3, "n": values, "ms": [1, 2, 3]})
        strategy = am.WatermarkStrategy.for_monotonous_timestamps()
        keyed: Any = env.from_arrow(
            table, strategy.with_timestamp_assigner("ms")
        ).key_by("city")
        if windows:
            keyed = keyed.window(WINDOWS[windows])
        keyed.aggregate(am.sum_("n")).sink_to(found.append)
        return env

    name = "window aggregate" if windows else "aggregate"
    found: list[Any] = []
    large = program([2**62, 2**62, 2**62])
    assert described(explained(large), name) == "columns"
    await large.execute()
    assert found[-1] == 3 * 2**62
    said = "columns, then rows when it ran: a sum exceeds 64 bits"
    assert described(explained(large), name) == said
    small = program([1, 2, 3])
    await small.execute()
    assert described(explained(small), name) == "columns"


async def test_kernels_get_long_runs_and_rows_behind_them_a_thousand_at_a_time() -> (
    None
):
    """A row at the end, or behind windows, does not cut what comes before it."""
    n = 60_000
    table = pa.table({"k": [place % 7 for place in range(n)], "ms": list(range(n))})
    time = am.WatermarkStrategy.for_monotonous_timestamps()
    lengths: list[int] = []
    rows: list[Any] = []

    def see(batch: pa.RecordBatch) -> pa.RecordBatch:
        lengths.append(batch.num_rows)
        return batch

    env = am.StreamExecutionEnvironment()
    stream = env.from_arrow(table, time.with_timestamp_assigner("ms"))
    stream.filter(pc.field("k") < 3).map_batches(see).sink_to(rows.append)
    await env.execute()
    assert [row.ms for row in rows] == [ms for ms in range(n) if ms % 7 < 3]
    assert max(lengths) > 1024


async def test_dead_letters_leave_columns_what_they_are() -> None:
    tags = {
        name: am.OutputTag[Any](name) for name in ("key", "filter", "select", "call")
    }
    failing = {name: am.dead_letter(tag) for name, tag in tags.items()}
    env = am.StreamExecutionEnvironment(parallelism=1)
    table = pa.table({"k": ["a", None, "b", "a"], "n": [1, 2, 0, 3]})
    ratio = pc.scalar(6) / pc.field("n")

    async def inverse(record: Any) -> float:
        return float(6 / record.n)

    stream = env.from_arrow(table)
    keyed = stream.key_by("k", on_error=failing["key"])
    streams = {
        "key": keyed,
        "filter": stream.filter(ratio > 2, on_error=failing["filter"]),
        "select": stream.select("k", x=ratio, on_error=failing["select"]),
        "call": stream.map_async(
            inverse, into="x", columns=["n"], on_error=failing["call"]
        ),
    }
    letters: dict[str, list[Any]] = {name: [] for name in tags}
    for name, each in streams.items():
        each.get_side_output(tags[name]).sink_to(letters[name].append)
    rest: list[Any] = []
    keyed.aggregate(am.aggregates(n=am.sum_("n"))).rename({"n": "m"}).sink_to(
        rest.append
    )
    for name in ("filter", "select", "call"):
        streams[name].drop("k").sink_to(lambda record: None)
    text = explained(env)
    await env.execute()
    for name in ("key", "filter", "select", "map_async", "aggregate", "rename", "drop"):
        assert described(text, name).endswith("columns"), text
    # What failed is a row, whoever reads it.
    assert "; rows: key makes them" in text
    assert [(row.key, row.m) for row in rest] == [("a", 1), ("b", 0), ("a", 4)]
    assert {name: [one.record.n for one in some] for name, some in letters.items()} == {
        "key": [2],
        "filter": [0],
        "select": [0],
        "call": [0],
    }


@pytest.mark.parametrize(
    "keys",
    [
        pa.array(["a", None, "b"]),
        pa.array([1.5, math.nan, -0.0, 0.0]),
        pa.array([2**63, 1], pa.uint64()),
        pa.array([["a"], None]),
        pa.array([None, None], pa.string()),
        pa.array([True, False]),
    ],
    ids=lambda keys: str(keys.type),
)
async def test_keys_that_are_none_are_the_same_in_columns_and_in_rows(
    keys: pa.Array,
) -> None:
    async def good_and_bad(*, as_rows: bool) -> tuple[list[Any], list[Any]]:
        env, failed = am.StreamExecutionEnvironment(1), am.OutputTag[Any]("failed")
        table = pa.table({"k": keys, "n": list(range(len(keys)))})
        stream = env.from_arrow(table)
        if as_rows:
            stream = stream.map(lambda record: record)
        keyed = stream.key_by("k", on_error=am.dead_letter(failed))
        good: list[Any] = []
        bad: list[Any] = []
        keyed.sink_to(lambda record: good.append(record.n))
        keyed.get_side_output(failed).sink_to(
            lambda one: bad.append((one.record.n, one.error_type))
        )
        await env.execute()
        return good, bad

    assert await good_and_bad(as_rows=False) == await good_and_bad(as_rows=True)


async def test_keys_of_one_stream_may_be_narrow_in_some_of_its_columns() -> None:
    env = am.StreamExecutionEnvironment(parallelism=1)
    wide, narrow = (
        env.from_arrow(pa.table({"k": pa.array(keys, kind)}))
        for keys, kind in (([2**40, 1], pa.int64()), ([1, 2], pa.int32()))
    )
    counts = wide.union(narrow).key_by("k").aggregate(am.count())
    assert sorted(await counts.collect()) == [1, 1, 1, 2]


class Doubled(NamedTuple):
    n: int


@pytest.mark.parametrize("has_branch", [False, True])
async def test_rows_are_made_a_thousand_at_a_time_right_behind_a_source(
    monkeypatch: pytest.MonkeyPatch, has_branch: bool
) -> None:
    """Also if operators on columns come later, or beside: the loop waits for them."""
    lengths: list[int] = []
    rows_of = RowMaker.rows

    def rows(maker: RowMaker, batch: pa.RecordBatch) -> list[Any]:
        lengths.append(batch.num_rows)
        return rows_of(maker, batch)

    monkeypatch.setattr(RowMaker, "rows", rows)
    env = am.StreamExecutionEnvironment()
    stream = env.from_arrow(pa.table({"n": range(60_000)}))
    seen: list[int] = []
    if has_branch:
        few = stream.filter(pc.field("n") < 0).map_batches(lambda batch: batch)
        few.sink_to(print)
    doubled = stream.map(lambda row: Doubled(row.n * 2))
    doubled.filter(pc.field("n") >= 0).sink_to(lambda row: seen.append(row.n))
    await env.execute()
    assert seen == list(range(0, 120_000, 2))
    assert max(lengths) <= 1024


async def test_frames_of_polars_are_columns_to_their_end() -> None:
    """Polars stores texts as views, which Arrow's kernels for keys do not take."""
    frame = pl.DataFrame(
        {
            "city": ["Oslo", "Rome", "Oslo"],
            "kind": pl.Series(["x", "y", "x"], dtype=pl.Categorical),
            "ms": [1, 2, 3],
        }
    )
    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    env = am.StreamExecutionEnvironment()
    stream = env.from_arrow(frame, strategy.with_timestamp_assigner("ms"))
    running = stream.key_by("city", "kind").aggregate(am.min_("city"))
    near = (
        stream.key_by("city")
        .interval_join(stream.key_by("city"))
        .between(am.millis(0), am.millis(0))
        .select("city", kind="left.kind")
    )
    found: list[list[Any]] = [[], []]
    for each, into in zip((running, near), found, strict=True):
        each.sink_to(into.append)
    await env.execute()
    assert found[0] == ["Oslo", "Rome", "Oslo"]
    pairs = [("Oslo", "x"), ("Oslo", "x"), ("Rome", "y")]
    assert sorted(map(tuple, found[1])) == pairs
    assert "then rows" not in env.explain()


async def test_explain_says_afterwards_what_was_collected() -> None:
    env = am.StreamExecutionEnvironment()
    large = env.from_arrow(pa.table({"k": ["a"] * 2, "n": [2**62] * 2}))
    sums = large.key_by("k").aggregate(am.sum_("n"))
    assert await sums.collect() == [2**62, 2**63]
    said = "columns, then rows when it ran: a sum exceeds 64 bits"
    assert described(explained(env), "aggregate") == said


SIZE = am.TumblingEventTimeWindows.of(am.millis(5))
SESSIONS = am.EventTimeSessionWindows.with_gap(am.millis(5))
Made = Callable[[Any], Any]


def first(*records: Any) -> Any:
    return records[0]


def firsts(*groups: Any) -> Any:
    return groups[0]


async def looked_up(key: Any) -> Any:
    return key


def by_windows(change: Made) -> Made:
    return lambda s: change(s.key_by("city").window(SIZE)).aggregate(am.count())


def by_join(assigner: Any, change: Made = first) -> Made:
    def joined(stream: Any) -> Any:
        join = stream.join(stream).where("city").equal_to("city")
        return change(join.window(assigner)).select("city")

    return joined


def ms_of(record: Any) -> int:
    return int(record.ms)


BY_FUNCTION = am.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
    ms_of
)

ASKING: dict[str, tuple[str, Made]] = {
    "sessions of a join": ("EventTimeSessionWindows", by_join(SESSIONS)),
    "evictor of a join": (
        "evictor CountEvictor",
        by_join(SIZE, lambda w: w.evictor(am.CountEvictor.of(3))),
    ),
    "join by a function": (
        "first (",
        lambda s: s.join(s).where("city").equal_to("city").window(SIZE).apply(first),
    ),
    "co_group": (
        "firsts (",
        lambda s: (
            s.co_group(s).where("city").equal_to("city").window(SIZE).apply(firsts)
        ),
    ),
    "as_of_join": (
        "first (",
        lambda s: s.key_by("city").as_of_join(s.key_by("city"), first),
    ),
    "lookup_join": ("looked_up (", lambda s: s.lookup_join(looked_up, key="city")),
    "interval join by a function": (
        "first (",
        lambda s: (
            s.key_by("city")
            .interval_join(s.key_by("city"))
            .between(am.millis(0), am.millis(1))
            .process(first)
        ),
    ),
    "early results": (
        "trigger ContinuousEventTimeTrigger",
        by_windows(lambda w: w.trigger(am.ContinuousEventTimeTrigger.of(am.millis(2)))),
    ),
    "a window function": (
        "first (",
        lambda s: s.key_by("city").window(SIZE).aggregate(am.count(), first),
    ),
    "rate_limit": ("rate_limit", lambda s: s.rate_limit(am.RateLimit(100))),
    "checked": ("the check of their type", lambda s: s.checked(tuple)),
    "event times by a function": (
        "ms_of (",
        lambda s: s.assign_timestamps_and_watermarks(BY_FUNCTION),
    ),
    "an aggregate without columns": (
        "count_distinct('visits') asks",
        lambda s: s.key_by("city").aggregate(am.count_distinct("visits")),
    ),
}


@pytest.mark.parametrize("name", ASKING)
def test_explain_names_what_asks_for_rows(name: str) -> None:
    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    env = am.StreamExecutionEnvironment()
    stream = env.from_arrow(TABLE, strategy.with_timestamp_assigner("ms"))
    asking, program = ASKING[name]
    program(stream).sink_to(am.FunctionSink(print))
    assert f"; rows: {asking}" in env.explain()


def test_explain_names_the_function_for_which_a_source_makes_rows() -> None:
    env = am.StreamExecutionEnvironment()
    env.from_arrow(TABLE, BY_FUNCTION).sink_to(am.FunctionSink(print))
    assert "- arrow; columns, and rows: ms_of (" in env.explain()


@pytest.mark.parametrize(
    "program",
    [
        by_windows(lambda w: w.trigger(am.EventTimeTrigger())),
        by_join(SIZE, lambda w: w.trigger(am.EventTimeTrigger())),
    ],
    ids=["windows", "join"],
)
async def test_the_trigger_that_is_the_default_one_leaves_columns(
    program: Made,
) -> None:
    async def results(as_rows: bool) -> list[Any]:
        strategy = am.WatermarkStrategy.for_monotonous_timestamps()
        env = am.StreamExecutionEnvironment(parallelism=1)
        table = TABLE.slice(0, 100)
        stream = env.from_arrow(table, strategy.with_timestamp_assigner("ms"))
        if as_rows:
            stream = stream.map(lambda record: record)
        found: list[Any] = []
        program(stream).sink_to(found.append)
        name = "window aggregate" if "aggregate" in env.explain() else "window join"
        if not as_rows:
            assert described(explained(env), name) == "columns"
        await env.execute()
        return found

    assert await results(False) == await results(True)


PAIRED_ENDS: dict[str, Any] = {
    "rolling": lambda keyed: keyed,
    "tumbling": lambda keyed: keyed.window(
        am.TumblingEventTimeWindows.of(am.millis(10))
    ),
    "sessions": lambda keyed: keyed.window(
        am.EventTimeSessionWindows.with_gap(am.millis(5))
    ),
}


@pytest.mark.parametrize("end", PAIRED_ENDS)
async def test_pairs_have_their_names_also_where_an_operator_goes_to_rows(
    end: str,
) -> None:
    """A mean of integers beyond 2**53 makes rows of all that comes after it."""
    env = am.StreamExecutionEnvironment(parallelism=1)
    time = am.WatermarkStrategy.for_monotonous_timestamps()
    batches = [
        pa.record_batch({"k": ["a", "b"], "n": [n, 2], "at": [at, at]})
        for n, at in ((1, 0), (2**60, 20), (4, 40))
    ]
    stream = env.from_arrow(batches, time.with_timestamp_assigner("at")).key_by("k")
    pairs = PAIRED_ENDS[end](stream).aggregate(am.mean("n"), include_key=True)
    found: list[Any] = []
    pairs.filter(pc.field("value") > 2).sink_to(found.append)
    await env.execute()
    assert "columns, then rows when it ran" in env.explain()
    assert [key for key, _ in found] == ["a", "a"]


WITH_KEYS: dict[str, Any] = {
    "pairs": lambda keyed: keyed("city").aggregate(am.max_("told"), include_key=True),
    "keys of two fields": lambda keyed: keyed("city", "day").aggregate(
        am.aggregates(most=am.max_("told"))
    ),
}


@pytest.mark.parametrize("kind", WITH_KEYS)
async def test_results_that_no_column_can_hold_stay_rows(kind: str) -> None:
    """Texts with surrogates; a call gives them, and they go on as rows."""

    async def told(record: Any) -> str:
        return f"\ud800{record.visits}"

    env = am.StreamExecutionEnvironment(parallelism=1)
    stream = env.from_arrow(TABLE.slice(0, 3)).map_async(
        told, into="told", columns=["visits"]
    )
    found = await WITH_KEYS[kind](stream.key_by).collect()
    assert [result[1] for result in found] == ["\ud8000", "\ud8001", "\ud8002"]
