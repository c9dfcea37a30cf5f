"""Results of any size as a DataFrame."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import aiomailbox as am
from aiomailbox.connectors.spark.result import dataframe_from_runs
from aiomailbox.errors import InvalidArgumentError, TargetExistsError
from aiomailbox.records.run import ListRun

pytestmark = pytest.mark.spark


class Visit(NamedTuple):
    city: str | None
    visits: int


def stream(count: int) -> Any:
    env = am.StreamExecutionEnvironment()
    return env.from_collection(range(count)).map(lambda n: Visit(None, n))


async def runs(count: int) -> Any:
    for start in range(0, count, 1000):
        yield ListRun([Visit(None, n) for n in range(start, start + 1000)])
    yield ListRun([Visit("Oslo", count)])


async def test_few_results_stay_in_memory(spark: Any) -> None:
    df = await stream(100).to_spark(spark, schema="city string, visits int")
    assert df.dtypes == [("city", "string"), ("visits", "int")]
    assert df.selectExpr("sum(visits)").collect() == [(4950,)]
    assert df.inputFiles() == []


async def test_columns_of_types_that_spark_has_not_are_those_of_rows(
    spark: Any,
) -> None:
    table = pa.table(
        {
            "whole": pa.array([255, None], pa.uint8()),
            "more": pa.array([2**32 - 1, 0], pa.uint32()),
            "large": pa.array([2**63 - 1, 0], pa.uint64()),
            "half": pa.array([0.5, None], pa.float16()),
            "day": pa.array([-86_400_000, None], pa.date64()),
            "code": pa.array([b"ab", None], pa.binary(2)),
            "word": pa.array(["a", None]).dictionary_encode(),
            "list": pa.array([[1, None], None], pa.list_(pa.uint16())),
            "time": pa.array([1, None], pa.timestamp("s", "Europe/Rome")),
            "vector": pa.array([[0.5, 2.0], None], pa.list_(pa.float64(), 2)),
            "view": pa.array([["a", None], None], pa.list_view(pa.string())),
            "runs": pa.RunEndEncodedArray.from_arrays([2], ["a"]),
            "sum": pa.array([Decimal("1.50"), None], pa.decimal256(40, 2)),
        }
    )
    frames = []
    for as_rows in (False, True):
        columns: Any = am.StreamExecutionEnvironment().from_arrow(table)
        if as_rows:
            columns = columns.map(lambda record: record)
        frames.append(await columns.to_spark(spark))
    assert frames[0].dtypes == frames[1].dtypes
    assert frames[0].collect() == frames[1].collect()


async def test_many_results_become_files_with_a_segment_a_row_group(spark: Any) -> None:
    df = await dataframe_from_runs(spark, runs(10_000), segment_bytes=40_000)
    files = [pq.ParquetFile(urlparse(file).path) for file in df.inputFiles()]
    assert len(files) == 1
    assert files[0].num_row_groups >= 3
    assert df.selectExpr("count(*)", "max(city)", "max(visits)").collect() == [
        (10_001, "Oslo", 10_000)
    ]


async def test_a_column_that_gets_its_type_late_is_in_files_of_its_own(
    spark: Any,
) -> None:
    async def untyped() -> Any:
        for start in range(0, 3000, 1000):
            values = [{"city": None, "n": n} for n in range(start, start + 1000)]
            yield ListRun(values)
        yield ListRun([{"city": "Oslo", "n": 3000}])

    df = await dataframe_from_runs(spark, untyped(), segment_bytes=8_000)
    assert len(df.inputFiles()) == 2
    assert df.dtypes == [("city", "string"), ("n", "bigint")]
    assert df.selectExpr("count(*)", "max(city)").collect() == [(3001, "Oslo")]


async def test_a_directory_appears_when_all_results_are_there(
    spark: Any, tmp_path: Path
) -> None:
    place = tmp_path / "be low" / "visits"

    async def watched() -> Any:
        async for run in runs(2000):
            assert not place.exists()
            yield run

    df = await dataframe_from_runs(spark, watched(), path=place, segment_bytes=8_000)
    assert df.count() == 2001
    assert spark.read.parquet(str(place)).count() == 2001
    assert [path.name for path in place.parent.iterdir()] == ["visits"]
    with pytest.raises(TargetExistsError, match="visits"):
        await stream(3).to_spark(spark, path=place)


async def test_what_a_failed_run_has_written_is_no_part_of_the_next_ones_results(
    spark: Any, tmp_path: Path
) -> None:
    place = tmp_path / "visits"

    async def failing() -> Any:
        async for run in runs(10_000):
            yield run
        raise ConnectionError("lost")

    with pytest.raises(ConnectionError, match="lost"):
        await dataframe_from_runs(spark, failing(), path=place, segment_bytes=8_000)
    df = await dataframe_from_runs(spark, runs(1000), path=place)
    assert df.count() == 1001


async def test_no_results_need_a_schema(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="schema"):
        await stream(0).to_spark(spark)
    df = await stream(0).to_spark(spark, schema="city string, visits long")
    assert df.count() == 0
    place = tmp_path / "none"
    df = await stream(0).to_spark(spark, schema="city string", path=place)
    assert df.count() == 0
