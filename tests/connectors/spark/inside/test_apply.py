"""Pipelines inside Spark's workers: what they give, refuse and explain."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import pytest

import aiomailbox as am
from aiomailbox.errors import (
    InvalidArgumentError,
    NotShippableError,
    SparkJobError,
    UnsupportedColumnError,
    UsageError,
    WrongTypeError,
)
from aiomailbox.runtime.peers.limits import LimitDesk
from aiomailbox.runtime.peers.messages import Used
from tests.connectors.spark.inside.pipelines import (
    Pair,
    enriched,
    joined,
    stateless,
    windowed,
)

pytestmark = pytest.mark.spark

FAILED = am.OutputTag("failed")
LATE = am.OutputTag("late")


def by_id() -> Any:
    strategy = am.WatermarkStrategy.for_bounded_out_of_orderness(am.seconds(1))
    return strategy.with_timestamp_assigner(lambda row: row.id * 10)


def rows_of(frame: Any) -> Counter[Any]:
    return Counter(Pair(*row) for row in frame.collect())


def test_partitions_without_rows_and_a_dataframe_without_any_give_nothing(
    spark: Any,
) -> None:
    sparse = spark.range(0, 3, numPartitions=3).repartition(8, "id")
    assert sum(rows_of(windowed.apply_to(sparse, schema=Pair).result).values()) == 3
    for nothing in (
        sparse.where("id > 100"),
        spark.createDataFrame([], "id long"),
    ):
        assert windowed.apply_to(nothing, schema=Pair).result.collect() == []
        assert stateless.apply_to(nothing, schema=Pair).result.collect() == []


COUNTED = "start long, n long"
LIVE = "emits watermarks as its strategy says"
HELD = "holds its watermarks to the end of each partition"


def counting(assigner: Any, *, moves: bool = False) -> Any:
    """Count the rows of every two seconds, by an event time that hardly waits."""

    @am.pipeline
    def pipeline(rows: Any) -> Any:
        strategy = am.WatermarkStrategy.for_bounded_out_of_orderness(am.millis(1))
        strategy = strategy.with_timestamp_assigner(assigner)
        if moves:
            strategy = strategy.with_watermarks_on_bounded_input()
        return (
            rows.assign_timestamps_and_watermarks(strategy)
            .key_by(lambda row: 0)
            .window(am.TumblingEventTimeWindows.of(am.seconds(2)))
            .aggregate(am.aggregates(start=am.min_("at"), n=am.count()))
            .map(lambda row: {"start": row.start, "n": row.n})
        )

    return pipeline


def out_of_order(spark: Any) -> Any:
    """A row a millisecond, in no order within four partitions of many runs."""
    rows = spark.range(0, OUT_OF_ORDER, numPartitions=4)
    return rows.selectExpr(f"id * 7919 % {OUT_OF_ORDER} as at")


OUT_OF_ORDER = 60_000
ALL_COUNTED = {(start, 2000) for start in range(0, OUT_OF_ORDER, 2000)}


def test_no_row_of_a_bounded_dataframe_is_late_unless_somebody_says_its_order(
    spark: Any, tmp_path: Path
) -> None:
    from pyspark.sql import functions as sf

    df = out_of_order(spark)
    orders: dict[str, tuple[Any, Any]] = {
        "none": (None, HELD),
        "of time": ("at", LIVE),
        "a column": (sf.col("at"), LIVE),
        "ascending": ([sf.col("at").asc(), "other"], LIVE),
        "of something else": ("other", HELD),
        "backwards": (sf.col("at").desc(), HELD),
    }
    for name, (order_by, says) in orders.items():
        applied = counting("at").apply_to(
            df.withColumn("other", sf.hash("at")), schema=COUNTED, order_by=order_by
        )
        assert says in applied.explain(), name
        if name in {"none", "of time", "backwards"}:
            found = {tuple(row) for row in applied.result.collect()}
            assert found == ALL_COUNTED, name
    # What a function reads, only the user knows.
    by_function = counting(lambda row: row.at).apply_to
    assert LIVE in by_function(df, schema=COUNTED, order_by="at").explain()
    assert HELD in by_function(df, schema=COUNTED).explain()


def test_rows_that_a_strategy_drops_are_counted(spark: Any, tmp_path: Path) -> None:
    applied = counting("at", moves=True).apply_to(out_of_order(spark), schema=COUNTED)
    assert LIVE in applied.explain()
    kept = applied.materialize(tmp_path / "kept")
    counted = sum(row.n for row in kept.result.collect())
    assert counted < OUT_OF_ORDER
    metrics = kept.metrics()
    assert metrics.total("num_late_records_dropped") == OUT_OF_ORDER - counted
    held = counting("at").apply_to(out_of_order(spark), schema=COUNTED)
    kept = held.materialize(tmp_path / "held")
    assert sum(row.n for row in kept.result.collect()) == OUT_OF_ORDER
    assert kept.metrics().total("num_late_records_dropped") == 0


def test_event_times_behind_an_exchange_wait_for_the_end(spark: Any) -> None:
    """There rows come one producer's after the other's, however each was sorted."""

    @am.pipeline
    def pipeline(rows: Any) -> Any:
        return counting("at")(rows.rebalance().filter(lambda row: True))

    applied = pipeline.apply_to(out_of_order(spark), schema=COUNTED, order_by="at")
    assert HELD in applied.explain()
    assert {tuple(row) for row in applied.result.collect()} == ALL_COUNTED


def test_rows_without_columns_are_rows(spark: Any) -> None:
    df = spark.range(0, 5, numPartitions=2).select()

    @am.pipeline
    def numbered(rows: Any) -> Any:
        return rows.map(lambda row: Pair(len(row), 1))

    assert rows_of(numbered.apply_to(df, schema=Pair).result) == {Pair(0, 1): 5}

    @am.pipeline
    def sizes(batches: Any) -> Any:
        return batches.map(lambda batch: Pair(batch.num_columns, batch.num_rows))

    applied = sizes.apply_to(df, schema=Pair, records="batch")
    assert {row.id for row in applied.result.collect()} == {0}
    assert sum(row.value for row in applied.result.collect()) == 5


def test_a_join_with_a_dataframe_without_partitions_gives_nothing(spark: Any) -> None:
    left = spark.range(0, 100, numPartitions=2)
    right = spark.createDataFrame(spark.sparkContext.emptyRDD(), "id long")
    applied = joined.apply_to(left=left, right=right, schema=Pair)
    assert applied.result.collect() == []


def test_a_limit_ends_the_pipeline_early(spark: Any, tmp_path: Path) -> None:
    """Spark's workers learn that nobody reads when they write the next 64 KiB."""
    calls = str(tmp_path)

    @am.pipeline
    def slow(rows: Any) -> Any:
        class Service:
            async def __call__(self, row: Any) -> dict[str, Any]:
                await asyncio.sleep(0.01)
                Path(calls, str(row.id)).touch()
                return {"text": 20_000 * "x"}

            def close(self) -> None:
                Path(calls, "closed").touch()

        return rows.map_async(Service(), concurrency=4)

    df = spark.range(0, 100_000, numPartitions=1)
    applied = slow.apply_to(df, schema="text string")
    assert len(applied.result.limit(3).collect()) == 3
    while not Path(calls, "closed").exists():
        threading.Event().wait(0.05)
    assert len(os.listdir(calls)) < 50_000


def test_workers_are_used_again(spark: Any) -> None:
    @am.pipeline
    def workers(rows: Any) -> Any:
        return rows.map(lambda row: Pair(row.id, os.getpid()))

    df = spark.range(0, 4, numPartitions=2)
    seen = [
        {row.value for row in workers.apply_to(df, schema=Pair).result.collect()}
        for _ in range(3)
    ]
    assert seen[1] & seen[2]


def test_calls_in_flight_go_on_while_spark_is_busy(spark: Any, tmp_path: Path) -> None:
    """Spark takes a batch, and no other one before calls behind it have ended."""
    ended = str(tmp_path)

    @am.pipeline
    def calls(rows: Any) -> Any:
        async def call(row: Any) -> Pair:
            await asyncio.sleep(0.1)
            Path(ended, str(row.id)).touch()
            return Pair(row.id, 0)

        return rows.map_async(call, concurrency=50)

    def dawdle(batches: Any) -> Any:
        import os
        import time

        taken = 0
        for batch in batches:
            taken += batch.num_rows
            while len(os.listdir(ended)) < min(400, taken + 50):
                time.sleep(0.01)
            yield batch

    df = spark.range(0, 400, numPartitions=1)
    result = calls.apply_to(df, schema=Pair).result
    assert len(result.mapInArrow(dawdle, result.schema).collect()) == 400


@pytest.mark.suite("tests")
def test_an_error_names_operator_line_and_record(spark: Any, tmp_path: Path) -> None:
    @am.pipeline
    def failing(rows: Any) -> Any:
        def divide(row: Any) -> Pair:
            return Pair(row.id, 1 // (row.id - 77))

        return rows.map(divide).uid("division")

    df = spark.range(0, 100, numPartitions=2)
    applied = failing.apply_to(df, schema=Pair)
    for run in (
        applied.result.collect,
        lambda: applied.materialize(str(tmp_path / "never")),
    ):
        with pytest.raises(Exception) as failure:
            run()
        text = str(failure.value)
        assert "'map' (uid 'division')" in text
        assert re.search(r"test_apply\.py:\d+", text)
        assert "id=77" in text
    assert isinstance(failure.value, SparkJobError)


def test_nobody_is_warned_of_a_side_output_that_was_asked_for(
    spark: Any, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    aside = am.pipeline(lambda rows: rows.process(Logged(log)))
    df = spark.range(0, 4, numPartitions=1)
    applied = aside.apply_to(df, schema="id long")
    read_before = applied.result
    assert read_before.count() == 4
    assert "side output" in log.read_text()
    applied.side(LATE, schema="id long")
    assert applied.result is read_before, "what was cached is not computed again"
    applied = aside.apply_to(df, schema="id long")
    asked_for = applied.side(LATE, schema="id long")
    log.write_text("")
    assert applied.result.count() == asked_for.count() == 4
    assert "side output" not in log.read_text()


def test_a_variable_that_workers_have_of_their_own_is_told_of_once(
    spark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    seen = []

    def note(row: Any) -> Any:
        seen.append(row.id)
        return row

    noting = am.pipeline(lambda rows: rows.map(note))
    applied = noting.apply_to(spark.range(0, 4), schema="id long")
    applied.side(LATE, schema="id long")
    assert applied.result is applied.result
    told = [one for one in caplog.messages if "a function changes a variable" in one]
    assert len(told) == 1


def test_outputs_are_dataframes_and_a_materialized_pipeline_has_run_once(
    spark: Any, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    calls.mkdir()
    kept = str(calls)

    @am.pipeline
    def three_ways(rows: Any) -> Any:
        def check(row: Any) -> Any:
            Path(kept, f"{row.id}-{os.urandom(4).hex()}").touch()
            if row.id % 10 == 0:
                raise ValueError(f"no {row.id}")
            return row

        return (
            rows.map(check, on_error=am.dead_letter(FAILED))
            .uid("check")
            .assign_timestamps_and_watermarks(by_id())
            .key_by(lambda row: 0)
            .process(Sides())
        )

    df = spark.range(0, 50, numPartitions=2)
    applied = three_ways.apply_to(df, schema=Pair, order_by="id")
    assert applied.side(LATE, schema="id long, value long").columns == ["id", "value"]
    assert list(calls.iterdir()) == []
    kept_outputs = applied.materialize(tmp_path / "out")
    assert len(list(calls.iterdir())) == 50
    results = rows_of(kept_outputs.result)
    letters = kept_outputs.dead_letters.collect()
    sides = rows_of(kept_outputs.side(LATE))
    assert len(list(calls.iterdir())) == 50
    assert sorted(row.id for row in results) == [n for n in range(50) if n % 10]
    assert {row.value for row in sides} == {-1}
    assert sorted(row.id for row in sides) == [n for n in range(50) if n % 10 == 5]
    assert sorted(letter.record for letter in letters)[:2] == ['{"id":0}', '{"id":10}']
    assert {letter.uid for letter in letters} == {"check"}
    assert {letter.error_type for letter in letters} == {"ValueError"}
    assert rows_of(applied.side(LATE)) == sides
    counted = kept_outputs.metrics()
    assert len([name for name in counted.tasks if name.startswith("df -> map")]) == 2
    assert counted.operators["df"]["num_records_out"] == 50
    snapshot = kept_outputs.snapshot()
    # The same value as that of a job of this program, for whatever shows one.
    assert am.JobSnapshot.from_json(snapshot.to_json()) == snapshot
    assert (snapshot.job, snapshot.state) == (three_ways.name, "finished")
    assert snapshot.operator("df").is_source
    assert {(edge.source, edge.target) for edge in snapshot.edges} >= {("df", "map")}
    assert snapshot.duration_s > 0


class Logged(am.ProcessFunction[Any, Any]):
    """Passes rows on and aside, and writes what its process logs to a file."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def open(self, context: Any) -> None:
        logging.getLogger("aiomailbox").addHandler(logging.FileHandler(self.log))

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        out.collect(value)
        context.output(LATE, value)


class Sides(am.KeyedProcessFunction):
    """Returns each row, and some to a side output too."""

    def process_element(self, row: Any, context: Any, out: Any) -> None:
        if row.id % 10 == 5:
            context.output(LATE, Pair(row.id, -1))
        out.collect(Pair(row.id, row.id))


@pytest.mark.usefixtures("no_job")
def test_what_cannot_run_over_a_shuffle_is_refused_before_a_job(spark: Any) -> None:
    df = spark.range(0, 10)
    before = spark.sparkContext.statusTracker().getJobIdsForGroup(None)

    def processing_time(rows: Any) -> Any:
        assigner = am.TumblingProcessingTimeWindows.of(am.seconds(1))
        windows = rows.key_by("id").window(assigner)
        return windows.reduce(lambda one, other: one)

    def idle(rows: Any) -> Any:
        return rows.assign_timestamps_and_watermarks(
            by_id().with_idleness(am.seconds(1.0))
        )

    def sink(rows: Any) -> Any:
        rows.sink_to(print)
        return rows

    def source(rows: Any) -> Any:
        env = am.StreamExecutionEnvironment()
        return rows.union(env.from_collection([1]))

    def unshippable(rows: Any) -> Any:
        return rows.map(lambda row: spark.range(row.id))

    for build, kind, words in (
        (processing_time, UsageError, "no live clock"),
        (idle, UsageError, "no live clock"),
        (sink, UsageError, "sink inside the pipeline"),
        (source, UsageError, "environment"),
        (unshippable, NotShippableError, "'map'"),
    ):
        with pytest.raises(kind, match=words):
            am.pipeline(build).apply_to(df, schema="id long")
    with pytest.raises(
        InvalidArgumentError, match="the columns of the records are unknown"
    ):
        am.pipeline(lambda rows: rows.map(lambda row: row)).apply_to(df)
    declared = am.pipeline(
        lambda rows: rows.map(lambda row: Pair(row.id, 0), output_type=Pair)
    )
    with pytest.raises(InvalidArgumentError, match=r"\['id'\].*Pair.*'value'"):
        declared.apply_to(df, schema="id long")
    with pytest.raises(UnsupportedColumnError, match="exists twice"):
        twice = df.selectExpr("id", "id + 1 as id")
        stateless.apply_to(twice, schema=Pair)
    with pytest.raises(WrongTypeError, match="not a Spark DataFrame"):
        stateless.apply_to([1, 2], schema="id long")
    assert spark.sparkContext.statusTracker().getJobIdsForGroup(None) == before


def test_a_timer_that_needs_a_live_clock_fails_with_the_reason(spark: Any) -> None:
    class Waiting(am.KeyedProcessFunction):
        def process_element(self, row: Any, context: Any, out: Any) -> None:
            context.timer_service.register_processing_time_timer(
                datetime.fromisoformat("2100-01-01T00:00:00+00:00")
            )

        def on_timer(self, timestamp: Any, context: Any, out: Any) -> None:
            raise AssertionError("nothing fires")

    @am.pipeline
    def waiting(rows: Any) -> Any:
        return rows.key_by("id").process(Waiting())

    df = spark.range(0, 10)
    with pytest.raises(Exception, match="no live clock"):
        waiting.apply_to(df, schema="id long").result.collect()


@pytest.mark.suite("tests")
def test_columns_stay_columns_in_every_stage(spark: Any) -> None:
    @am.pipeline
    def summed_by_columns(rows: Any) -> Any:
        strategy = am.WatermarkStrategy.for_monotonous_timestamps()
        timed = rows.assign_timestamps_and_watermarks(
            strategy.with_timestamp_assigner("id")
        )
        return (
            timed.key_by("key")
            .window(am.TumblingEventTimeWindows.of(am.seconds(1)))
            .aggregate(am.aggregates(rows=am.count(), total=am.sum_("id")))
            .select("key", "rows", "total")
        )

    df = spark.range(0, 30_000, numPartitions=2).selectExpr("id", "id % 5 as key")
    schema = "key long, rows long, total long"
    applied = summed_by_columns.apply_to(df, schema=schema, order_by="id")
    text = applied.explain()
    assert "- df; columns" in text
    assert "- window aggregate; columns" in text
    assert "- select; columns" in text
    assert "- result; columns" in text
    assert "makes them" not in text
    kept = sorted(tuple(row) for row in applied.result.collect())
    env = am.StreamExecutionEnvironment()
    rows = env.from_arrow(df.toArrow())
    assert kept == sorted(am.run(summed_by_columns(rows).collect()))
    assert len(kept) == 150


def test_a_field_that_no_row_has_is_refused_when_the_pipeline_is_written(
    spark: Any,
) -> None:
    @am.pipeline
    def misspelt(rows: Any) -> Any:
        return rows.key_by("idd").reduce(lambda one, other: one)

    with pytest.raises(InvalidArgumentError, match="idd"):
        misspelt.apply_to(spark.range(3), schema="id long")


def test_explain_says_how_calls_are_divided_over_tasks_and_what_limits_them(
    spark: Any,
) -> None:
    @am.pipeline
    def limited(rows: Any) -> Any:
        async def call(row: Any) -> Pair:
            return Pair(row.id, 0)

        mine = am.RateLimit(5, per=1.0, per_task=True)
        ours = am.RateLimit(10, per=1.0, name="service")
        first = rows.map_async(call, concurrency=7, limit=ours).name("first")
        second = first.key_by("id").map_async(call, concurrency=1, limit=mine)
        return second.name("second").map_async(call, concurrency=6).name("third")

    text = limited.apply_to(spark.range(10), schema=Pair).explain()
    assert (
        "'first' has up to 3 or 4 calls in flight in each task: concurrency=7 is "
        "divided over 2 subtasks." in text
    )
    assert "'first' has a limit for all tasks together: RateLimit(count=10" in text
    assert "'second' has up to 1 calls in flight in each task: concurrency=1" in text
    assert "'second' has a limit for each task: RateLimit(count=5" in text
    assert "'third' has up to 3 calls in flight in each task" in text
    assert "'third' has a limit" not in text


def test_explain_says_what_runs_where_and_what_is_not_certain(spark: Any) -> None:
    df = spark.range(0, 10)
    text = windowed.apply_to(df, schema=Pair).explain()
    assert "stage 2: 2 partitions" in text
    assert "no order within a partition" in text
    assert "no order" not in windowed.apply_to(df, schema=Pair, order_by="id").explain()
    text = enriched.apply_to(df, schema=Pair).explain()
    assert "calls again" in text
    assert "order in which calls end" not in text

    @am.pipeline
    def keys_at_once(rows: Any) -> Any:
        async def look_up(row: Any, context: Any, out: Any) -> None:
            out.collect(Pair(row.id, 0))

        return rows.key_by("id").process_async(look_up)

    text = keys_at_once.apply_to(df, schema=Pair).explain()
    assert "order in which calls end" in text


def paying(place: Path) -> Any:
    """Return a pipeline whose calls leave a file each, and one of which fails a task."""
    calls = str(place / "calls")
    Path(calls).mkdir(exist_ok=True)

    @am.pipeline
    def pipeline(rows: Any) -> Any:
        async def pay(row: Any) -> Pair:
            Path(calls, f"{row.id}-{os.urandom(4).hex()}").touch()
            return Pair(row.id, 2 * row.id)

        def refuse_once(paid: Any) -> Any:
            if paid.id == 399 and not Path(calls, "refused").exists():
                Path(calls, "refused").touch()
                raise ConnectionError("try again")
            return paid

        paid = rows.map_async(pay, concurrency=8, journal=True, id=lambda row: row.id)
        return paid.uid("pay").map(refuse_once)

    return pipeline


def calls_made(place: Path) -> list[int]:
    names = [name for name in os.listdir(place / "calls") if name != "refused"]
    return sorted(int(name.partition("-")[0]) for name in names)


def test_calls_in_a_journal_are_made_once_in_all_actions_and_programs(
    spark: Any, tmp_path: Path
) -> None:
    df = spark.range(0, 400, numPartitions=2)
    journal = tmp_path / "journal"
    applied = paying(tmp_path).apply_to(df, schema=Pair, journal=journal)
    with pytest.raises(Exception, match="try again"):
        applied.result.collect()
    assert len(calls_made(tmp_path)) > 150
    expected = {Pair(n, 2 * n): 1 for n in range(400)}
    assert rows_of(applied.result) == expected
    assert rows_of(applied.result.repartition(3)) == expected
    again = paying(tmp_path).apply_to(df.repartition(5), schema=Pair, journal=journal)
    assert rows_of(again.result) == expected
    assert calls_made(tmp_path) == [*range(400)]
    config = am.JobConfig(job_id="another run")
    other = paying(tmp_path).apply_to(df, schema=Pair, journal=journal, config=config)
    assert rows_of(other.result) == expected
    assert len(calls_made(tmp_path)) == 800


def test_a_journal_without_a_place_and_a_place_without_a_journal_are_refused(
    spark: Any, tmp_path: Path
) -> None:
    df = spark.range(0, 4)
    with pytest.raises(UsageError, match="journal=PATH"):
        paying(tmp_path).apply_to(df, schema=Pair)
    with pytest.raises(InvalidArgumentError, match="journal=True"):
        enriched.apply_to(df, schema=Pair, journal=tmp_path)
    with pytest.raises(InvalidArgumentError, match="is a URL"):
        paying(tmp_path).apply_to(df, schema=Pair, journal="s3://bucket/journal")
    text = paying(tmp_path).apply_to(df, schema=Pair, journal=tmp_path).explain()
    assert "calls again" not in text


def test_an_output_has_the_schema_of_its_declared_class(spark: Any) -> None:
    @am.pipeline
    def declared(rows: Any) -> Any:
        return rows.map(lambda row: Pair(row.id, 0), output_type=Pair)

    applied = declared.apply_to(spark.range(3))
    assert applied.result.dtypes == [("id", "bigint"), ("value", "bigint")]
    assert applied.result.count() == 3


def test_a_rate_limit_holds_over_all_workers(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_s: list[float] = []
    used: Counter[Any] = Counter()
    on_lease, on_used = LimitDesk.on_lease, LimitDesk.on_used

    def asked(desk: LimitDesk, message: Any, worker: Any, fail: Any) -> None:
        asked_s.append(time.monotonic())
        on_lease(desk, message, worker, fail)

    def noted(desk: LimitDesk, message: Used, worker: Any) -> None:
        used[worker] += message.weight
        on_used(desk, message, worker)

    monkeypatch.setattr(LimitDesk, "on_lease", asked)
    monkeypatch.setattr(LimitDesk, "on_used", noted)
    limit = am.RateLimit(10, per=1.0)

    @am.pipeline
    def limited(rows: Any) -> Any:
        async def call(row: Any) -> Pair:
            return Pair(row.id, os.getpid())

        return rows.map_async(call, concurrency=50, limit=limit)

    df = spark.range(0, 60, numPartitions=2)
    rows = limited.apply_to(df, schema=Pair).result.collect()
    # Five windows have passed since the first call asked, and perhaps more: a worker may be
    # held up at any moment.
    assert time.monotonic() - asked_s[0] > 5
    assert len(rows) == 60
    # Both workers have used what this process has granted, and nothing else.
    assert len(used) == 2
    assert used.total() == 60


def test_a_limit_per_task_asks_nobody(spark: Any) -> None:
    @am.pipeline
    def limited(rows: Any) -> Any:
        async def call(row: Any) -> Pair:
            return Pair(row.id, 0)

        limit = am.RateLimit(1000, per=1.0, per_task=True)
        return rows.map_async(call, limit=limit)

    df = spark.range(0, 60, numPartitions=2)
    assert limited.apply_to(df, schema=Pair).result.count() == 60


class Decade(TypedDict):
    """A record of results."""

    decade: int


class Named(NamedTuple):
    """Another one."""

    name: str
    score: float | None


def test_the_class_that_the_last_function_returns_is_the_schema(spark: Any) -> None:
    def decade(row: Any) -> Decade:
        return {"decade": row.id // 10}

    async def named(row: Any) -> Named:
        return Named(f"n{row.id}", None)

    async def all_named(rows: list[Any]) -> list[Named]:
        return [Named(f"n{row.id}", 0.5) for row in rows]

    def unsaid(row: Any) -> dict[str, int]:
        return {"n": row.id}

    df = spark.range(12, 13)

    def applied(build: Any) -> Any:
        return am.pipeline(build).apply_to(df).result

    mapped = applied(lambda rows: rows.map(decade))
    assert mapped.dtypes == [("decade", "bigint")]
    assert mapped.collect() == [(1,)]
    called = applied(lambda rows: rows.map_async(named))
    assert called.dtypes == [("name", "string"), ("score", "double")]
    assert called.collect() == [("n12", None)]
    many = applied(lambda rows: rows.map_async(all_named, batch=am.Batch(size=2)))
    assert many.collect() == [("n12", 0.5)]
    for unknown in (
        lambda rows: rows.map(unsaid),
        lambda rows: rows.map(decade).filter(bool),
        lambda rows: rows.map(decade).union(rows.map_async(named)),
    ):
        with pytest.raises(InvalidArgumentError, match="annotated to return it"):
            applied(unknown)
    # It is a hint: a schema that is given counts.
    given = am.pipeline(lambda rows: rows.map(decade)).apply_to(df, schema="decade int")
    assert given.result.dtypes == [("decade", "int")]
