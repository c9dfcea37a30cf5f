"""A DataFrame that was staged, and one that is read live and changed meanwhile."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import aiomailbox as am
from aiomailbox.connectors.spark import reading
from aiomailbox.connectors.spark.pushing import Push
from aiomailbox.connectors.spark.source import SparkSource
from aiomailbox.errors import (
    DamagedFileError,
    InvalidArgumentError,
    SourceChangedError,
    SparkJobError,
    UnsupportedColumnError,
)

pytestmark = pytest.mark.spark


@pytest.fixture
def read(drive: Any) -> Callable[..., Any]:
    async def read(source: SparkSource, **options: Any) -> tuple[list[Any], list[Any]]:
        """Return the records of so many runs, and the position then."""
        runs = options.pop("runs", None)
        driven = drive(source, **options)
        try:
            values = list(await driven.read(runs_max=runs))
            return values, driven.reader.snapshot()
        finally:
            await driven.close()

    return read


def ids(values: list[Any]) -> list[int]:
    return [value.id for value in values]


class Unreached(Push):
    """Listens, and executors know a port where nobody does."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._nobody = socket.socket()
        self._nobody.bind(("127.0.0.1", 0))
        self.door = self.door._replace(port=self._nobody.getsockname()[1])

    def close(self) -> None:
        self._nobody.close()
        super().close()


class TestPushedElseStaged:
    @pytest.mark.parametrize("order", [None, "id"])
    async def test_rows_are_staged_only_where_executors_do_not_reach_this_program(
        self,
        spark: Any,
        read: Any,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        order: str | None,
    ) -> None:
        df = spark.range(0, 90, 1, 3)
        source = SparkSource(
            df, order_by=order, read="push", stage=tmp_path / "stage", batch_rows=8
        )
        everything, _ = await read(source)
        assert ids(everything) == list(range(90))
        _, pushed = await read(source, runs=4)
        assert source.record_count is None
        assert list(tmp_path.iterdir()) == []
        with monkeypatch.context() as patched:
            patched.setattr(reading, "Push", Unreached)
            with pytest.raises(SparkJobError, match=r"were pushed.*Connection refused"):
                await read(source, splits=pushed)
            assert (await read(source))[0] == everything
            head, staged = await read(source, runs=4, records_max=7)
            assert head + (await read(source, splits=staged))[0] == everything
        # The position stays one of the stage, also where tasks could push again.
        assert head + (await read(source, splits=staged))[0] == everything
        assert len(list(tmp_path.glob("stage/rows-*"))) == 1
        # And one of pushed rows stays one of these.
        assert (await read(source, splits=pushed))[0] == everything[pushed[0].rows :]


class TestStaged:
    async def test_rows_are_written_once_in_their_order_and_read_without_spark(
        self, spark: Any, read: Any, tmp_path: Path
    ) -> None:
        df = spark.range(0, 1000, 1, 3).selectExpr("999 - id as id", "'t' || id as t")
        source = SparkSource(df, order_by="id", partitions=4, stage=tmp_path)
        assert source.record_count is None
        values, _ = await read(source)
        assert ids(values) == list(range(1000))
        assert source.record_count == 1000
        [rows] = tmp_path.glob("rows-*")
        assert len(list(rows.glob("part-*.parquet"))) == 4
        staged = SparkSource.from_stage(tmp_path)
        assert staged.record_count == 1000
        again, _ = await read(staged)
        assert again == values
        assert list(tmp_path.glob("rows-*")) == [rows]

    async def test_variants_that_spark_shreds_are_refused_and_others_read(
        self, spark: Any, read: Any, tmp_path: Path
    ) -> None:
        name = "spark.sql.variant.writeShredding.enabled"
        df = spark.range(2, numPartitions=1).selectExpr("id", "parse_json('1') AS v")
        spark.conf.set(name, "true")
        try:
            with pytest.raises(UnsupportedColumnError, match="'v' of type variant"):
                await read(SparkSource(df, stage=tmp_path))
            spark.conf.set(name, "false")
            values, _ = await read(SparkSource(df, stage=tmp_path))
        finally:
            spark.conf.unset(name)
        assert [value.v.toPython() for value in values] == [1, 1]

    @pytest.mark.parametrize("splits", ["ordered", "independent"])
    async def test_a_new_reader_goes_on_with_file_and_row(
        self, spark: Any, read: Any, tmp_path: Path, splits: Any
    ) -> None:
        df = spark.range(0, 90, 1, 3)
        source = SparkSource(
            df, splits, order_by=["id"], partitions=3, stage=tmp_path, batch_rows=8
        )
        everything, _ = await read(source)
        assert sorted(ids(everything)) == list(range(90))
        for runs in (1, 4, 5, 9):
            head, state = await read(source, runs=runs, records_max=7)
            alone = SparkSource.from_stage(tmp_path, splits, batch_rows=8)
            tail, _ = await read(alone, splits=state)
            assert head + tail == everything, state

    async def test_a_position_of_other_rows_is_refused(
        self, spark: Any, read: Any, tmp_path: Path
    ) -> None:
        df = spark.range(0, 90, 1, 3)
        _, state = await read(SparkSource(df, stage=tmp_path / "a"), runs=1)
        other = SparkSource(df, stage=tmp_path / "b")
        await read(other)
        with pytest.raises(SourceChangedError, match="in another DataFrame"):
            await read(other, splits=state)

    async def test_the_stage_of_another_dataframe_is_refused(
        self, spark: Any, read: Any, tmp_path: Path
    ) -> None:
        await read(SparkSource(spark.range(10), stage=tmp_path))
        with pytest.raises(SourceChangedError, match="another DataFrame"):
            await read(SparkSource(spark.range(11), stage=tmp_path))

    async def test_other_rows_of_the_same_plan_and_schema_are_refused(
        self, spark: Any, read: Any, tmp_path: Path
    ) -> None:
        """Neither paths, nor local rows, nor the 40th column are in a plan's text."""
        days = [str(tmp_path / day) for day in ("monday", "tuesday")]
        for number, day in enumerate(days):
            spark.range(number, number + 3, 1, 1).write.parquet(day)
        columns = [f"id as c{number}" for number in range(39)]
        ways: dict[str, list[Any]] = {
            "files": [spark.read.parquet(day) for day in days],
            "local rows": [spark.createDataFrame([(n,)], "n long") for n in (1, 2)],
            "columns": [
                spark.range(1).selectExpr(*columns, f"{n} as last") for n in (1, 2)
            ],
        }
        for way, (monday, tuesday) in ways.items():
            stage = tmp_path / "stage" / way
            before, _ = await read(SparkSource(monday, stage=stage))
            with pytest.raises(SourceChangedError, match="staged before"):
                await read(SparkSource(tuesday, stage=stage))
            # Who asks for what is there gets it.
            assert (await read(SparkSource.from_stage(stage)))[0] == before

    async def test_a_source_reads_again_what_it_has_staged_itself(
        self, spark: Any, read: Any, tmp_path: Path
    ) -> None:
        """As after a failure before the first checkpoint."""
        source = SparkSource(spark.range(10), stage=tmp_path)
        first, _ = await read(source)
        written = list(tmp_path.glob("rows-*"))
        assert (await read(source))[0] == first
        assert list(tmp_path.glob("rows-*")) == written

    async def test_a_position_asks_for_the_rows_that_it_was_taken_of(
        self, spark: Any, read: Any, tmp_path: Path
    ) -> None:
        def source() -> SparkSource:
            return SparkSource(spark.range(0, 90, 1, 1), stage=tmp_path, batch_rows=8)

        head, state = await read(source(), runs=3, records_max=7)
        tail, _ = await read(source(), splits=state)
        assert ids(head + tail) == list(range(90))
        shutil.rmtree(tmp_path)
        with pytest.raises(SourceChangedError, match="nothing is staged"):
            await read(source(), splits=state)
        # Nobody pays for rows that would be refused.
        assert not tmp_path.exists()

    async def test_a_stage_of_an_earlier_version_resumes_a_position(
        self, spark: Any, read: Any, tmp_path: Path
    ) -> None:
        source = SparkSource(spark.range(0, 90, 1, 1), stage=tmp_path, batch_rows=8)
        head, state = await read(source, runs=3, records_max=7)
        manifest = tmp_path / "_aiomailbox.json"
        content = msgspec.json.decode(manifest.read_bytes())
        # Its rows could have names.
        content["name"] = "monday"
        manifest.write_bytes(msgspec.json.encode(content))
        again = SparkSource(spark.range(0, 90, 1, 1), stage=tmp_path)
        tail, _ = await read(again, splits=state)
        assert ids(head + tail) == list(range(90))

    async def test_what_a_crash_left_half_written_is_written_again(
        self, spark: Any, read: Any, tmp_path: Path
    ) -> None:
        left = tmp_path / "rows-0000"
        left.mkdir()
        (left / "part-00000.parquet").write_bytes(b"half")
        values, _ = await read(SparkSource(spark.range(10), stage=tmp_path))
        assert ids(values) == list(range(10))
        assert not left.exists()

    async def test_a_damaged_stage_says_so(
        self, spark: Any, read: Any, tmp_path: Path
    ) -> None:
        source = SparkSource(spark.range(10), stage=tmp_path)
        await read(source)
        for file in tmp_path.glob("rows-*/*.parquet"):
            file.write_bytes(b"PAR1 no more")
        with pytest.raises(DamagedFileError, match="parquet"):
            await read(source)
        (tmp_path / "_aiomailbox.json").write_text("{")
        with pytest.raises(DamagedFileError, match="_aiomailbox"):
            await read(source)

    async def test_a_dataframe_without_rows_is_staged_too(
        self, spark: Any, read: Any, tmp_path: Path
    ) -> None:
        source = SparkSource(spark.range(0), stage=tmp_path)
        assert (await read(source))[0] == []

    @pytest.mark.usefixtures("no_job")
    def test_what_cannot_be_staged_is_said_when_it_is_written(
        self, spark: Any, tmp_path: Path
    ) -> None:
        with pytest.raises(UnsupportedColumnError, match="'n'"):
            SparkSource(spark.range(1).selectExpr("null n"), stage=tmp_path)
        with pytest.raises(UnsupportedColumnError, match=r"'t\.element'"):
            times = spark.range(1).selectExpr("array(time'01:02:03') t")
            SparkSource(times, stage=tmp_path)
        with pytest.raises(UnsupportedColumnError, match="without columns"):
            SparkSource(spark.range(1).select(), stage=tmp_path)
        with pytest.raises(UnsupportedColumnError, match=r"'s\.none'"):
            none = "cast(null as struct<none: struct<>>) s"
            SparkSource(spark.range(1).selectExpr(none), stage=tmp_path)
        with pytest.raises(InvalidArgumentError, match="nothing is staged"):
            SparkSource.from_stage(tmp_path / "empty")
        with pytest.raises(InvalidArgumentError, match="no column 'x'"):
            SparkSource(spark.range(1), order_by="x")

    def test_a_staged_dataframe_goes_through_a_job(
        self, spark: Any, tmp_path: Path
    ) -> None:
        env = am.StreamExecutionEnvironment()
        source = SparkSource(spark.range(0, 100, 1, 2), stage=tmp_path)
        total = env.from_source(source).map(lambda row: row.id)
        assert sum(am.run(total.collect())) == 4950


class TestLive:
    @pytest.mark.parametrize("way", ["iterate", "push"])
    async def test_data_that_changed_since_is_refused(
        self, spark: Any, read: Any, tmp_path: Path, way: Any
    ) -> None:
        place = str(tmp_path / "rows")
        spark.range(0, 60, 1, 1).write.parquet(place)

        def source() -> SparkSource:
            df = spark.read.schema("id long").parquet(place)
            return SparkSource(df, read=way, batch_rows=8)

        head, state = await read(source(), runs=3, records_max=7)
        tail, _ = await read(source(), splits=state)
        assert ids(head + tail) == list(range(60))
        shutil.rmtree(place)
        spark.range(1, 61, 1, 1).write.parquet(place)
        with pytest.raises(SourceChangedError, match="not the ones that were emitted"):
            await read(source(), splits=state)
        shutil.rmtree(place)
        spark.range(0, 5, 1, 1).write.parquet(place)
        with pytest.raises(SourceChangedError, match="not the ones that were emitted"):
            await read(source(), splits=state)

    @pytest.mark.parametrize("way", ["iterate", "push"])
    async def test_a_partition_before_the_position_counts_too(
        self, spark: Any, read: Any, way: Any
    ) -> None:
        def source(shift: int) -> SparkSource:
            rows = [(n + (shift if n == 3 else 0),) for n in range(40)]
            df = spark.createDataFrame(rows, "id long").repartition(4)
            return SparkSource(df.sortWithinPartitions("id"), read=way)

        _, state = await read(source(0), runs=8, records_max=4)
        assert state[0].part >= 2
        with pytest.raises(SourceChangedError):
            await read(source(1000), splits=state)

    @pytest.mark.parametrize("way", ["iterate", "push"])
    @pytest.mark.parametrize("records", ["namedtuple", "batch"])
    async def test_rows_in_one_order_go_on_wherever_spark_cuts_them(
        self, spark: Any, read: Any, records: Any, way: Any
    ) -> None:
        """Spark draws by lot where ranges are cut, in each run anew."""

        def numbers(values: list[Any]) -> list[int]:
            if records == "namedtuple":
                return ids(values)
            return [n for batch in values for n in batch.column("id").to_pylist()]

        df = spark.range(0, 3000, 1, 4).selectExpr("2999 - id as id")
        source = SparkSource(
            df, order_by="id", partitions=3, records=records, read=way, batch_rows=400
        )
        for runs in (1, 6):
            head, state = await read(source, runs=runs, records_max=300)
            tail, _ = await read(source, splits=state, records_max=300)
            assert numbers(head + tail) == list(range(3000)), state

    async def test_a_position_of_one_way_is_gone_on_with_by_the_other(
        self, spark: Any, read: Any
    ) -> None:
        df = spark.range(0, 90, 1, 3)
        # Behind a whole batch, and within one of the next partition.
        for runs in (2, 8):
            for one, other in (("iterate", "push"), ("push", "iterate")):
                source = SparkSource(df, read=one, batch_rows=8)
                head, state = await read(source, runs=runs, records_max=7)
                tail, _ = await read(SparkSource(df, read=other), splits=state)
                assert ids(head + tail) == list(range(90))

    async def test_a_plan_or_schema_that_changed_since_is_refused(
        self, spark: Any, read: Any
    ) -> None:
        _, state = await read(SparkSource(spark.range(0, 60, 1, 2)), runs=1)
        for df in (
            spark.range(0, 61, 1, 2),
            spark.range(0, 60, 1, 3),
            spark.range(0, 60, 1, 2).selectExpr("cast(id as int) id"),
        ):
            with pytest.raises(SourceChangedError, match="the plan, the schema"):
                await read(SparkSource(df), splits=state)

    def test_explain_says_which_guarantee_holds(
        self, spark: Any, tmp_path: Path
    ) -> None:
        df = spark.range(10)
        assert "would be refused" in SparkSource(df).explain()
        assert "would be refused" not in SparkSource(df, order_by="id").explain()
        staged = SparkSource(df, stage=tmp_path).explain()
        assert "staged in" in staged
        assert "(file, row)" in staged
        pushed = SparkSource(df, read="push", stage=tmp_path).explain()
        assert (
            f"staged instead if Spark's executors do not reach this program, in {str(tmp_path)!r}"
            in pushed
        )
        assert "a position is (partition, row)" in pushed
