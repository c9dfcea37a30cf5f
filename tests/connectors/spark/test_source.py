"""Streaming a DataFrame in: what becomes of it, and what is left behind."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

import aiomailbox as am
from aiomailbox.connectors.spark import jobs, packing, pushing
from aiomailbox.connectors.spark.result import SparkTableSink
from aiomailbox.connectors.spark.session import register_format
from aiomailbox.connectors.spark.source import SparkSource
from aiomailbox.connectors.spark.streaming import SparkStreamSource
from aiomailbox.errors import (
    InvalidArgumentError,
    SparkJobError,
    UnsupportedColumnError,
    UsageError,
    WrongTypeError,
)
from aiomailbox.operators.sources.source import InputStatus
from tests.connectors.conftest import FakeReaderContext

pytestmark = pytest.mark.spark

WAYS: list[Any] = ["iterate", "push"]


def reading_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("spark-source")]


def running_jobs(spark: Any) -> list[int]:
    return list(spark.sparkContext.statusTracker().getActiveJobsIds())


def wait_for_slots(spark: Any) -> None:
    """Return when both slots are free: a cancelled task holds its own for a while."""
    rdd = spark.sparkContext.parallelize(range(2), 2)
    assert rdd.barrier().mapPartitions(lambda rows: rows).count() == 2


async def until_no_job_runs(spark: Any) -> None:
    """Wait until Spark has told of the end of its jobs, which it does some time later."""
    while running_jobs(spark):
        await asyncio.sleep(0.01)


@pytest.fixture
def in_new_york(spark: Any) -> Any:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", before)


@pytest.fixture
def read(drive: Any) -> Callable[..., Any]:
    async def read(source: SparkSource, **options: Any) -> list[Any]:
        driven = drive(source, **options)
        try:
            values: list[Any] = await driven.read()
            return values
        finally:
            await driven.close()

    return read


class TestRecords:
    @pytest.mark.parametrize("way", WAYS)
    async def test_rows_are_named_tuples_in_the_order_of_partitions(
        self, spark: Any, read: Any, way: Any
    ) -> None:
        df = spark.range(0, 5000, 1, 3).selectExpr("id", "cast(id as string) text")
        values = await read(SparkSource(df, read=way))
        assert [value.id for value in values] == list(range(5000))
        assert values[7] == (7, "7")
        assert pickle.loads(pickle.dumps(values[7])) == values[7]

    @pytest.mark.parametrize("way", WAYS)
    async def test_records_are_of_the_users_kind(
        self, spark: Any, read: Any, way: Any
    ) -> None:
        from pyspark.sql import Row

        @dataclass
        class Visit:
            city: str
            count: int
            note: str = "-"

        class Struct(msgspec.Struct, kw_only=True):
            city: str
            count: int

        df = spark.createDataFrame([(3, "Oslo")], "count int, city string")
        expected = {
            dict: {"count": 3, "city": "Oslo"},
            Visit: Visit("Oslo", 3),
            Struct: Struct(city="Oslo", count=3),
            Row: Row(count=3, city="Oslo"),
        }
        for records, value in expected.items():
            assert await read(SparkSource(df, records=records, read=way)) == [value]

    @pytest.mark.parametrize("way", WAYS)
    async def test_a_null_where_the_class_leaves_no_room_is_refused(
        self, spark: Any, way: Any
    ) -> None:
        @dataclass
        class Visit:
            user: str
            page: str | None

        df = spark.sql("SELECT * FROM VALUES ('a', NULL), (NULL, 'p') AS t(user, page)")
        env = am.StreamExecutionEnvironment()
        stream = env.from_source(
            SparkSource(df.coalesce(1), records=Visit, read=way, batch_rows=1)
        )
        with pytest.raises(
            am.JobFailedError,
            match=r"'user' is NULL in row 1 of its partition, and .*Visit.user is "
            r"annotated as str.*\| None",
        ):
            await stream.collect()

    async def test_a_batch_can_be_the_record(self, spark: Any, read: Any) -> None:
        df = spark.range(0, 3000, 1, 2)
        batches = await read(SparkSource(df, records="batch", batch_rows=1000))
        assert [batch.num_rows for batch in batches] == [1000, 500, 1000, 500]

    async def test_nothing_is_read_from_a_dataframe_without_rows(
        self, spark: Any, read: Any
    ) -> None:
        df = spark.range(0)
        for way in WAYS:
            assert await read(SparkSource(df, read=way)) == []

    @pytest.mark.parametrize("takes_checkpoints", [True, False])
    async def test_rows_without_columns_are_rows(
        self, spark: Any, drive: Any, takes_checkpoints: bool
    ) -> None:
        df = spark.range(0, 5, 1, 2).select()
        for options in (
            {},
            {"read": "push"},
            {"records": dict},
            {"records": "batch"},
            {"records": "batch", "read": "push"},
        ):
            source = SparkSource(df, **options)
            driven = drive(source, takes_checkpoints=takes_checkpoints)
            values = await driven.read()
            await driven.close()
            batches = options.get("records") == "batch"
            counts = [value.num_rows if batches else 1 for value in values]
            assert sum(counts) == 5, options
            assert all(batches or len(value) == 0 for value in values)


FOLD = [datetime(2013, 11, 3, hour, 30, tzinfo=UTC) for hour in (5, 6)]

# An SQL expression, and its value by every way.
TYPES: dict[str, Any] = {
    "null": None,
    "true": True,
    "cast(1 as tinyint)": 1,
    "cast(1 as smallint)": 1,
    "1": 1,
    "1L": 1,
    "cast(1.5 as float)": 1.5,
    "1.5D": 1.5,
    "cast(1.25 as decimal(20, 6))": Decimal("1.250000"),
    "cast(null as decimal(20, 6))": None,
    "'text'": "text",
    "'text' collate UTF8_LCASE": "text",
    "cast('a' as char(3))": "a",
    "cast('a' as varchar(3))": "a",
    "X'0102'": b"\x01\x02",
    "date'1066-10-14'": date(1066, 10, 14),
    "date'9999-12-31'": date(9999, 12, 31),
    "time'12:34:56.123456'": time(12, 34, 56, 123456),
    "timestamp'2013-11-03 05:30:00Z'": FOLD[0],
    "timestamp'2013-11-03 06:30:00Z'": FOLD[1],
    "timestamp'0001-01-02 00:00:00.000001Z'": datetime(1, 1, 2, 0, 0, 0, 1, UTC),
    "cast(null as timestamp)": None,
    "timestamp_ntz'2013-11-03 01:30:00'": datetime(2013, 11, 3, 1, 30),
    "cast(null as timestamp_ntz)": None,
    "interval '1 02:03:04.5' day to second": timedelta(1, 7384, 500000),
    "array(1, null)": [1, None],
    "array()": [],
    "cast(null as array<date>)": None,
    "array(timestamp'2013-11-03 06:30:00Z', null)": [FOLD[1], None],
    "array(array(date'2020-01-02'), null)": [[date(2020, 1, 2)], None],
    "map('a', 1)": {"a": 1},
    "map('a', timestamp'2013-11-03 05:30:00Z', 'b', null)": {"a": FOLD[0], "b": None},
    "map(timestamp'2013-11-03 05:30:00Z', 'a')": {FOLD[0]: "a"},
    "array(map('k', array(timestamp'2013-11-03 05:30:00Z')))": [{"k": [FOLD[0]]}],
    "named_struct('a', 1, 't', timestamp'2013-11-03 05:30:00Z')": (1, FOLD[0]),
    "cast(null as struct<a: int, t: timestamp>)": None,
    "array(named_struct('d', date'2020-01-02'), null)": [(date(2020, 1, 2),), None],
}


@dataclass
class Inner:
    a: int


@dataclass
class Outer:
    s: Inner | None


class TestTypes:
    @pytest.mark.parametrize("way", WAYS)
    async def test_every_type_has_one_value_by_every_way(
        self, in_new_york: Any, read: Any, way: Any
    ) -> None:
        columns = [f"{sql} as c{number}" for number, sql in enumerate(TYPES)]
        df = in_new_york.range(1).selectExpr(*columns)
        [record] = await read(SparkSource(df, read=way))
        for value, (sql, expected) in zip(record, TYPES.items(), strict=True):
            assert value == expected, sql
            assert type(value) is type(expected) or isinstance(value, tuple), sql
            if isinstance(value, datetime) and value.tzinfo is not None:
                assert value.utcoffset() == timedelta(), sql

    @pytest.mark.parametrize("way", WAYS)
    async def test_nulls_among_values_keep_their_places(
        self, in_new_york: Any, read: Any, way: Any
    ) -> None:
        moment = "timestamp_millis(id)"
        df = in_new_york.range(0, 40, 1, 2).selectExpr(
            "id",
            f"if(id % 3 = 0, null, {moment}) t",
            f"if(id % 4 = 0, null, array({moment}, null)) a",
            f"if(id % 5 = 0, null, named_struct('t', {moment}, 'n', id)) s",
            f"if(id % 5 = 1, null, map(id, {moment})) m",
            "if(id % 2 = 0, null, date_from_unix_date(cast(id as int))) d",
        )
        records = await read(SparkSource(df, read=way, batch_rows=7), records_max=3)
        for number, (index, t, a, s, m, d) in enumerate(records):
            at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=number)
            assert index == number
            assert t == (None if number % 3 == 0 else at)
            assert a == (None if number % 4 == 0 else [at, None])
            assert s == (None if number % 5 == 0 else (at, number))
            assert m == (None if number % 5 == 1 else {number: at})
            day = date(1970, 1, 1) + timedelta(number)
            assert d == (None if number % 2 == 0 else day)

    @pytest.mark.parametrize("way", WAYS)
    async def test_the_two_hours_of_an_autumn_night_stay_apart(
        self, in_new_york: Any, read: Any, way: Any
    ) -> None:
        df = in_new_york.createDataFrame([(FOLD[0],), (FOLD[1],)], "t timestamp")
        values = await read(SparkSource(df.coalesce(1), read=way))
        assert [value.t for value in values] == FOLD

    @pytest.mark.parametrize("way", WAYS)
    async def test_variants_and_geometries_are_what_collect_gives(
        self, spark: Any, read: Any, way: Any
    ) -> None:
        point = "X'0101000000000000000000F03F0000000000000040'"
        df = spark.range(1).selectExpr(
            "parse_json('{\"a\": 1}') v",
            "array(parse_json('1')) vs",
            f"st_geomfromwkb({point}) g",
        )
        [record] = await read(SparkSource(df, read=way))
        [row] = df.collect()
        assert record.v.toPython() == {"a": 1}
        assert record.vs[0].toPython() == 1
        assert record.g == row.g

    async def test_a_struct_is_a_record_of_the_same_kind(
        self, spark: Any, read: Any
    ) -> None:
        from pyspark.sql import Row

        df = spark.range(1).selectExpr("named_struct('a', 1) s")
        for way in WAYS:
            for records, expected in {
                dict: {"s": {"a": 1}},
                Outer: Outer(Inner(1)),
                Row: Row(s=Row(a=1)),
            }.items():
                source = SparkSource(df, read=way, records=records)
                assert await read(source) == [expected]

    @pytest.mark.parametrize("way", WAYS)
    async def test_user_defined_types_are_what_collect_gives(
        self, spark: Any, read: Any, way: Any
    ) -> None:
        from pyspark.ml.linalg import Vectors
        from pyspark.testing.objects import ExamplePoint

        point, vector = ExamplePoint(1.0, 2.0), Vectors.sparse(5, [1, 3], [0.5, 2.0])
        rows = [(point, vector, [point, None], {"a": vector}), (None, None, None, None)]
        df = spark.createDataFrame(rows[:1], ["p", "v", "ps", "vs"]).coalesce(1)
        df = df.union(spark.createDataFrame(rows[1:], df.schema)).coalesce(1)
        assert await read(SparkSource(df, read=way)) == rows

    @pytest.mark.usefixtures("no_job")
    def test_a_column_that_cannot_be_carried_is_named(self, spark: Any) -> None:
        months = "interval '1-2' year to month"
        for sql, name in {
            f"{months} ym": "ym",
            f"named_struct('x', array({months})) s": "s.x.element",
        }.items():
            df = spark.range(1).selectExpr(sql)
            with pytest.raises(UnsupportedColumnError, match=f"'{name}'"):
                SparkSource(df)

    async def test_a_moment_that_python_cannot_express_names_its_column(
        self, spark: Any, read: Any
    ) -> None:
        df = spark.range(1).selectExpr("timestamp_seconds(300000000000) far")
        for way in WAYS:
            with pytest.raises(UnsupportedColumnError, match="far"):
                await read(SparkSource(df, read=way))


class TestSplits:
    async def test_ordered_partitions_share_one_split(
        self, spark: Any, drive: Any
    ) -> None:
        driven = drive(SparkSource(spark.range(0, 10, 1, 3)))
        await driven.read()
        await driven.close()
        assert driven.output.log == [("new", "all"), ("end", "all")]

    @pytest.mark.parametrize("way", WAYS)
    async def test_independent_partitions_all_hold_back_from_before_the_first_row(
        self, spark: Any, drive: Any, way: Any
    ) -> None:
        # Partition 1 is empty.
        df = spark.range(0, 9, 1, 3).filter("id < 3 or id >= 6")
        driven = drive(SparkSource(df, "independent", read=way))
        await driven.read(runs_max=1)
        assert driven.output.log == [
            *[("new", f"partition-{part}") for part in range(3)],
            ("end", "all"),
        ]
        await driven.read()
        await driven.close()
        assert driven.output.log[4:] == [
            ("end", f"partition-{part}") for part in range(3)
        ]
        assert [split for split, _ in driven.output.runs] == [
            "partition-0",
            "partition-2",
        ]

    async def test_the_partitions_counted_are_the_ones_read_after_adaptive_planning(
        self, spark: Any, drive: Any
    ) -> None:
        df = spark.range(0, 1000, 1, 4).repartition("id")
        driven = drive(SparkSource(df, "independent"))
        values = await driven.read()
        await driven.close()
        new = {split for event, split in driven.output.log if event == "new"}
        ended = {split for event, split in driven.output.log if event == "end"}
        assert new == ended - {"all"}
        assert sorted(value.id for value in values) == list(range(1000))

    async def test_only_one_reader_reads(self, spark: Any, drive: Any) -> None:
        driven = drive(SparkSource(spark.range(10)), parallelism=3)
        assert await driven.poll(driven.readers[2]) is InputStatus.END_OF_INPUT
        assert len(await driven.read()) == 10
        await driven.close()


class TestPositions:
    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("splits", ["ordered", "independent"])
    async def test_a_new_reader_goes_on_behind_the_last_emitted_row(
        self, spark: Any, drive: Any, way: Any, splits: Any
    ) -> None:
        df = spark.range(0, 90, 1, 3)
        # Within a batch, behind a whole one, and in the next partition.
        for runs in (1, 6, 9):
            source = SparkSource(df, splits, read=way, batch_rows=8)
            first = drive(source, records_max=7)
            head = list(await first.read(runs_max=runs))
            state = first.reader.snapshot()
            await first.close()
            second = drive(source, records_max=7, splits=state)
            tail = await second.read()
            await second.close()
            assert [value.id for value in head + tail] == list(range(90)), state

    async def test_a_position_names_partition_and_row(
        self, spark: Any, drive: Any
    ) -> None:
        driven = drive(SparkSource(spark.range(0, 20, 1, 2)), records_max=4)
        await driven.read(runs_max=4)
        [split] = driven.reader.snapshot()
        assert (split.split_id, split.part, split.row) == ("all", 1, 4)
        await driven.read()
        assert driven.reader.snapshot() == []
        await driven.close()

    def test_a_source_says_why_it_cannot_be_pickled(self, spark: Any) -> None:
        with pytest.raises(UsageError, match="DataFrame"):
            pickle.dumps(SparkSource(spark.range(1)))


def slow(spark: Any, rows: int = 200) -> Any:
    """A DataFrame whose first partition takes for ever."""

    def wait(batches: Any) -> Any:
        import time

        for batch in batches:
            time.sleep(3600)
            yield batch

    return spark.range(0, rows, 1, 2).mapInArrow(wait, "id long")


class TestEnds:
    @pytest.mark.parametrize("way", WAYS)
    async def test_an_early_end_leaves_no_job_and_no_thread(
        self, spark: Any, drive: Any, way: Any
    ) -> None:
        for prefetch in (False, True):
            df = spark.range(0, 100_000, 1, 4)
            source = SparkSource(df, read=way, prefetch=prefetch, batch_rows=100)
            driven = drive(source)
            await driven.read(runs_max=1)
            await driven.close()
            assert reading_threads() == []
            await until_no_job_runs(spark)

    @pytest.mark.parametrize("way", WAYS)
    async def test_a_job_that_runs_is_cancelled(
        self, spark: Any, drive: Any, way: Any
    ) -> None:
        driven = drive(SparkSource(slow(spark), read=way))
        while not running_jobs(spark):
            await asyncio.sleep(0.05)
        await driven.close()
        assert reading_threads() == []
        await until_no_job_runs(spark)

    async def test_closing_is_not_cut_short_by_cancelling_it(
        self, spark: Any, drive: Any
    ) -> None:
        driven = drive(SparkSource(slow(spark)))
        while not running_jobs(spark):
            await asyncio.sleep(0.05)
        closing = asyncio.create_task(driven.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert reading_threads() == []
        await until_no_job_runs(spark)

    async def test_jobs_of_others_go_on(self, spark: Any, drive: Any) -> None:
        other = asyncio.create_task(asyncio.to_thread(spark.range(50).collect))
        driven = drive(SparkSource(spark.range(0, 1000, 1, 4)))
        await driven.read(runs_max=1)
        await driven.close()
        assert len(await other) == 50

    @pytest.mark.parametrize("way", WAYS)
    async def test_a_failure_on_an_executor_tells_its_cause(
        self, spark: Any, drive: Any, way: Any
    ) -> None:
        from pyspark.sql.functions import udf

        @udf("long")
        def fail(number):
            raise ValueError(f"number {number} is cursed")

        driven = drive(
            SparkSource(spark.range(5).select(fail("id").alias("f")), read=way)
        )
        with pytest.raises(SparkJobError, match=r"number \d is cursed") as caught:
            await driven.read()
        assert "Traceback" in str(caught.value)
        with pytest.raises(SparkJobError):
            driven.reader.poll_next(driven.output)
        await driven.close()
        assert reading_threads() == []

    async def test_rows_are_pushed_before_their_partition_has_ended(
        self, spark: Any, drive: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        # Spark's accumulator says that the task has succeeded: a second function would
        # need a second Python worker.
        monkeypatch.delattr(packing, "new_confirmer")
        path = str(tmp_path / "taken")

        def work(batches: Any) -> Any:
            import os
            import time

            import numpy as np
            import pyarrow as pa

            for number in range(10):
                # What is small, Spark keeps between two functions.
                yield pa.record_batch({"id": np.arange(100_000)})
                while number == 8 and not os.path.exists(path):
                    time.sleep(0.01)

        df = spark.range(1, numPartitions=1).mapInArrow(work, "id long")
        driven = drive(SparkSource(df, read="push", records="batch"))
        await driven.read(runs_max=1)
        Path(path).touch()
        batches = await driven.read()
        assert sum(batch.num_rows for batch in batches) == 1_000_000
        await driven.close()

    async def test_a_partition_whose_task_gave_its_slot_back_comes_by_another_job(
        self, spark: Any, drive: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        left: list[int] = []
        gate = str(tmp_path / "gate")

        def first_ends_late(batches: Any) -> Any:
            # Else it might be over before the second one's task has begun.
            import os
            import time

            number = 0
            for batch in batches:
                number = batch.column(0)[0].as_py()
                yield batch
            while number < 2000 and not os.path.exists(gate):
                time.sleep(0.01)

        def to_leave(self: Any, now_s: float, patience_s: float) -> Any:
            """Let the last one leave once, as if the partition in turn had no slot."""
            waiting = [index for index in self._open if index > self.turn]
            if left or not waiting:
                return None
            last = self._parts[max(waiting)].attempts[-1]
            left.append(last.part)
            last.tell(packing.LEAVE, 0)
            last.has_left = True
            self.on_lost(last)
            Path(gate).touch()
            return last

        monkeypatch.setattr(pushing.Arrivals, "to_leave", to_leave)
        wait_for_slots(spark)
        scheduler = spark.sparkContext._jsc.sc().dagScheduler()
        before = scheduler.numTotalJobs()
        # More than may come ahead: the second one waits in the middle.
        df = spark.range(0, 4000, 1, 2).selectExpr("id", "repeat('x', 20000) AS text")
        df = df.mapInArrow(first_ends_late, df.schema)
        driven = drive(SparkSource(df, read="push", batch_rows=100))
        rows = await driven.read()
        await driven.close()
        assert [row.id for row in rows] == list(range(4000))
        assert left == [1]
        assert scheduler.numTotalJobs() - before == 2

    async def test_jobs_that_get_no_slot_while_rows_are_pushed_are_told_of(
        self, spark: Any, drive: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(jobs, "_LOOK_S", 0.2)
        wait_for_slots(spark)
        # Else that one might be told of, until Spark has told of its end.
        await until_no_job_runs(spark)
        # More than a window, and than what may come ahead: both tasks wait.
        rows = spark.range(0, 4000, 1, 2).selectExpr("repeat('x', 20000) AS text")
        driven = drive(SparkSource(rows, read="push"))
        await driven.read(runs_max=1)
        said = driven.contexts[0].log.events
        assert said == []
        other = asyncio.create_task(asyncio.to_thread(spark.range(5).count))
        while not said:
            await asyncio.sleep(0.05)
        assert said[0].startswith("Spark jobs get no slot of an executor")
        await driven.close()
        assert await other == 5

    async def test_closing_without_a_start_is_nothing(self, spark: Any) -> None:
        source = SparkSource(spark.range(1))
        assert source.create_reader(FakeReaderContext()).close() is None


class TestBounds:
    @pytest.mark.parametrize("way", WAYS)
    async def test_the_thread_runs_at_most_so_many_batches_ahead(
        self, spark: Any, drive: Any, way: Any
    ) -> None:
        df = spark.range(0, 10_000, 1, 1)
        driven = drive(SparkSource(df, read=way, batch_rows=100, handover_batches=3))
        while len(driven.reader._inflow._items) < 3:
            await asyncio.sleep(0.01)
        # Time to run ahead: Spark answers something else meanwhile.
        await asyncio.to_thread(spark.range(100).count)
        assert len(driven.reader._inflow._items) == 3
        assert len(await driven.read()) == 10_000
        await driven.close()


@pytest.mark.usefixtures("no_job")
class TestBadInput:
    def test_wrong_arguments_are_named(self, spark: Any) -> None:
        df = spark.range(1)
        with pytest.raises(WrongTypeError, match="df"):
            SparkSource([1])
        for arguments in (
            {"splits": "both"},
            {"read": "csv"},
            {"listen": "127.0.0.1"},
            {"records": list},
            {"batch_rows": 0},
            {"handover_batches": 0},
        ):
            with pytest.raises(InvalidArgumentError, match=next(iter(arguments))):
                SparkSource(df, **arguments)

    async def test_what_belongs_to_a_stopped_session_is_refused_before_anything_runs(
        self, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        df = spark.range(3)
        stream = spark.readStream.schema("id long").parquet(str(tmp_path))
        # What stop() leaves; the suite's session goes on.
        monkeypatch.setattr(spark.sparkContext, "_jsc", None)
        env = am.StreamExecutionEnvironment()
        started: list[int] = []
        results = env.from_collection([1]).map(started.append)
        for refused in (
            lambda: SparkSource(df),
            lambda: SparkStreamSource(stream, tmp_path),
            lambda: SparkTableSink(spark, "t", stage=tmp_path),
            lambda: register_format(spark),
            lambda: am.pipeline(lambda rows: rows).apply_to(df, schema="id long"),
        ):
            with pytest.raises(InvalidArgumentError, match="stopped"):
                refused()
        with pytest.raises(InvalidArgumentError, match="stopped"):
            await results.to_spark(spark)
        with pytest.raises(InvalidArgumentError, match="stopped"):
            same = am.pipeline(lambda rows: rows)
            await same.run_on(df, tmp_path / "out", schema="id long")
        with pytest.raises(WrongTypeError, match="not a Spark session"):
            await results.to_spark(df)
        assert started == []

    def test_a_streaming_dataframe_is_refused_where_a_bounded_one_is_needed(
        self, spark: Any
    ) -> None:
        with pytest.raises(InvalidArgumentError, match="SparkStreamSource"):
            SparkSource(spark.readStream.format("rate").load())

    def test_names_that_do_not_fit_are_refused(self, spark: Any) -> None:
        twice = spark.range(1).selectExpr("id", "id")
        for records in ("namedtuple", dict, "row", "batch"):
            with pytest.raises(UnsupportedColumnError, match="'id'"):
                SparkSource(twice, records=records)
        odd = spark.range(1).selectExpr("count(1)")
        with pytest.raises(UnsupportedColumnError, match="records=dict"):
            SparkSource(odd)
        assert SparkSource(odd, records=dict)
        nested = spark.range(1).selectExpr("named_struct('a b', 1) s")
        with pytest.raises(UnsupportedColumnError, match=r"s\.a b"):
            SparkSource(nested)

    def test_a_class_that_does_not_fit_the_columns_is_refused(self, spark: Any) -> None:
        @dataclass
        class Other:
            id: int
            name: str

        with pytest.raises(UnsupportedColumnError, match="'name'"):
            SparkSource(spark.range(1), records=Other)
        with pytest.raises(UnsupportedColumnError, match="'extra'"):
            df = spark.range(1).selectExpr("id", "'n' name", "1 extra")
            SparkSource(df, records=Other)
