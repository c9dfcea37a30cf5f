"""Jobs over DataFrames that fail go on where their last checkpoint was taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import aiomailbox as am
from aiomailbox.connectors.spark.source import SparkSource
from aiomailbox.errors import SourceChangedError
from tests.connectors.spark.killing import run_until_killed
from tests.connectors.spark.live_program import (
    BATCH_ROWS,
    CHECKPOINTED,
    ROWS,
    Paced,
    build,
)

pytestmark = pytest.mark.spark


class FailsOnce:
    """Passes records on, and fails once, when a checkpoint has completed."""

    def __init__(self, paced: Paced) -> None:
        self.failed_after: int | None = None
        self.seen = 0
        self._paced = paced

    def __call__(self, row: Any) -> Any:
        self.seen += 1
        if self._paced.completed.is_set() and self.failed_after is None:
            self.failed_after = self.seen
            raise ValueError("the first time")
        return row


def shown(place: Path) -> list[int]:
    parts = [pq.read_table(part) for part in (place / "out").glob("*.parquet")]
    return sorted(n for part in parts for n in part.column("id").to_pylist())


@pytest.mark.parametrize("way", ["live", "push", "independent", "staged"])
async def test_each_row_counts_once_after_a_failure(
    spark: Any, tmp_path: Path, way: str
) -> None:
    df = spark.range(0, ROWS, 1, 3)
    options: dict[str, Any] = {
        "live": {"order_by": "id", "partitions": 3},
        "push": {"read": "push"},
        "independent": {"splits": "independent"},
        "staged": {"order_by": "id", "stage": tmp_path / "stage"},
    }[way]
    source = SparkSource(df, batch_rows=BATCH_ROWS, **options)
    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(None, directory=tmp_path / "checkpoints")
    env.configure(restart=am.restart.fixed_delay(3, 0.01))
    paced = Paced()
    fails = FailsOnce(paced)
    stream = env.from_source(source).map_async(paced, concurrency=1).map(fails)
    stream.sink_to(am.ParquetSink(tmp_path / "out"))
    async with env.start() as job:
        await paced.checkpoint(job)
        await job.result()
    assert fails.failed_after is not None
    # It went on behind what the checkpoint held, and did not begin anew.
    assert fails.seen - fails.failed_after <= ROWS - CHECKPOINTED
    replays = env.explain().partition(" replays ")[2]
    assert replays.startswith("from (file, row) of its stage") == (way == "staged")
    assert ("if the DataFrame gives the same rows" in replays) == (way != "staged")
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row.id for row in rows) == list(range(ROWS))


def shown_behind_a_checkpoint(place: Path) -> list[int]:
    """Return what a job has shown that was killed behind its checkpoint."""
    held = shown(place)
    # What the checkpoint held, and nothing of what came behind it.
    assert CHECKPOINTED <= len(held) < ROWS
    assert held == list(range(len(held)))
    return held


async def go_on(place: Path, source: SparkSource[Any], way: str) -> Paced:
    """Let a job go on from its checkpoint to its end, and return what it called."""
    function = Paced()
    function.completed.set()
    await build(source, place, function).execute(way, restore_from="latest")
    return function


async def test_a_program_that_was_killed_goes_on_from_its_stage_without_spark(
    spark: Any, tmp_path: Path
) -> None:
    env = am.StreamExecutionEnvironment()
    df = spark.range(0, ROWS, 1, 3)
    place = tmp_path / "staged"
    staged = SparkSource(df, stage=place / "stage", order_by="id")
    assert len(await env.from_source(staged).collect()) == ROWS
    await run_until_killed("live_program.py", tmp_path, "staged")
    held = shown_behind_a_checkpoint(place)
    source = SparkSource.from_stage(place / "stage", batch_rows=BATCH_ROWS)
    function = await go_on(place, source, "staged")
    assert shown(place) == list(range(ROWS))
    assert function.seen <= ROWS - len(held)


async def test_a_program_that_was_killed_goes_on_with_the_same_dataframe(
    spark: Any, tmp_path: Path
) -> None:
    """Python and Java die in mid-partition; another Spark computes the rows again."""
    ways: list[Any] = ["iterate", "push"]
    await run_until_killed("live_program.py", tmp_path, *ways)
    for way in ways:
        place = tmp_path / way
        held = shown_behind_a_checkpoint(place)
        other = SparkSource(spark.range(0, ROWS + 1, 1, 3), batch_rows=BATCH_ROWS)
        with pytest.raises(am.JobFailedError) as failure:
            await go_on(place, other, way)
        assert isinstance(failure.value.__cause__, SourceChangedError), way
        assert shown(place) == held, way
        same = SparkSource(spark.range(0, ROWS, 1, 3), read=way, batch_rows=BATCH_ROWS)
        function = await go_on(place, same, way)
        assert shown(place) == list(range(ROWS)), way
        assert function.seen <= ROWS - len(held), way
