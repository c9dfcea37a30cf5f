"""A pipeline without state over a streaming DataFrame, and what is refused there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.errors import InvalidArgumentError, UsageError

pytestmark = pytest.mark.spark

FAILED = am.OutputTag("failed")


@am.pipeline
def halved(rows: Any) -> Any:
    """Calls a service; some calls fail for good."""

    async def halve(row: Any) -> dict[str, int]:
        await asyncio.sleep(0.001)
        if row.id % 10 == 3:
            raise ValueError("odd")
        return {"id": row.id, "half": row.id // 2}

    return rows.map_async(halve, concurrency=8, on_error=am.dead_letter(FAILED)).filter(
        lambda row: row["id"] % 2 == 0
    )


def ended(df: Any, place: Path, checkpoint: str) -> Any:
    """Run a query over what is there, into files."""
    writer = df.writeStream.format("parquet").option("path", str(place))
    writer = writer.option("checkpointLocation", str(place.parent / checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def test_each_file_that_comes_is_processed_once(spark: Any, tmp_path: Path) -> None:
    files, out = tmp_path / "in", tmp_path / "out"
    spark.range(0, 40, 1, 2).write.parquet(str(files))
    arriving = spark.readStream.schema("id long").parquet(str(files))
    applied = halved.apply_to(arriving, schema="id long, half long")
    assert applied.result.isStreaming
    assert "each micro-batch as one of its own" in applied.explain()
    ended(applied.result, out, "results")
    # The query goes on where it was: only the new file's rows come.
    spark.range(40, 60, 1, 1).write.mode("append").parquet(str(files))
    ended(applied.result, out, "results")
    found = spark.read.parquet(str(out)).orderBy("id").collect()
    assert [tuple(row) for row in found] == [(n, n // 2) for n in range(0, 60, 2)]
    ended(applied.dead_letters, tmp_path / "letters", "letters checkpoint")
    letters = spark.read.parquet(str(tmp_path / "letters"))
    assert letters.count() == 6
    assert letters.first().error_type.endswith("ValueError")


def test_columns_that_no_step_changes_need_no_schema(
    spark: Any, tmp_path: Path
) -> None:
    files = tmp_path / "in"
    spark.range(9).selectExpr("cast(id AS tinyint) AS id").write.parquet(str(files))
    arriving = spark.readStream.schema("id tinyint").parquet(str(files))

    @am.pipeline
    def even(rows: Any) -> Any:
        return rows.filter(lambda row: row.id % 2 == 0)

    applied = even.apply_to(arriving)
    assert applied.result.dtypes == [("id", "tinyint")]
    ended(applied.result, tmp_path / "out", "checkpoint")
    assert spark.read.parquet(str(tmp_path / "out")).count() == 5


@am.pipeline
def keyed(rows: Any) -> Any:
    """Has state."""
    return rows.key_by("value").reduce(lambda one, other: other)


@am.pipeline
def dealt(rows: Any) -> Any:
    """Has an exchange."""
    return rows.rebalance().map(lambda row: {"value": row.value})


@pytest.mark.parametrize(
    ("pipeline", "problem"),
    [(keyed, "keeps state by key"), (dealt, "is behind an exchange")],
)
def test_what_outlives_a_micro_batch_is_refused_and_told_where_it_goes(
    spark: Any, no_job: None, pipeline: Any, problem: str
) -> None:
    arriving = spark.readStream.format("rate").load()
    with pytest.raises(UsageError, match=rf"{problem}.*SparkStreamSource"):
        pipeline.apply_to(arriving, schema="value long")


def test_a_streaming_frame_is_neither_sorted_nor_kept(
    spark: Any, no_job: None, tmp_path: Path
) -> None:
    arriving = spark.readStream.format("rate").load()
    with pytest.raises(InvalidArgumentError, match="streaming DataFrame"):
        halved.apply_to(arriving, schema="id long, half long", order_by="value")
    applied = halved.apply_to(arriving, schema="id long, half long")
    with pytest.raises(UsageError, match="writeStream"):
        applied.materialize(tmp_path / "kept")
