"""Run by test_local_cluster.py: two executors, of which workers and one itself are killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pyspark

import aiomailbox as am
from aiomailbox.connectors.spark.session import local_session


class Seen(NamedTuple):
    id: int
    twice: int


def windowed(place: Path) -> Any:
    """Return a pipeline of two stages, each of which loses its worker once.

    In the second one the executor is lost, too, with all that it has written.
    """
    kept = str(place)

    def die_once(stage: str, *, with_executor: bool = False) -> None:
        try:
            Path(kept, stage).touch(exist_ok=False)
        except FileExistsError:
            return
        dying = os.getpid()
        if with_executor:
            # The daemon that has forked this worker is a child of the executor.
            daemon = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2]
            dying = int(daemon.split()[1])
            assert "java" in Path(f"/proc/{dying}/comm").read_text()
        os.kill(dying, signal.SIGKILL)

    def first(row: Any) -> Any:
        if row.id == 777:
            die_once("first")
        return row

    async def second(row: Any) -> Seen:
        await asyncio.sleep(0.001)
        if row.id >= 800:
            die_once("second")
        if row.id >= 900:
            die_once("third", with_executor=True)
        return Seen(row.id, 2 * row.id)

    @am.pipeline
    def pipeline(rows: Any) -> Any:
        strategy = am.WatermarkStrategy.for_monotonous_timestamps()
        timed = rows.map(first).assign_timestamps_and_watermarks(
            strategy.with_timestamp_assigner(lambda row: row.id * 10)
        )
        return (
            timed.key_by(lambda row: row.id % 3)
            .window(am.TumblingEventTimeWindows.of(am.seconds(1)))
            .reduce(lambda one, other: one if one.id > other.id else other)
            .map_async(second)
        )

    return pipeline


def in_barrier(place: Path, df: Any) -> list[Any]:
    """Return what the same gives in a barrier stage, which each death begins again."""
    place.mkdir()
    run = windowed(place).run_on(
        df,
        place / "out",
        schema=Seen,
        order_by="id",
        config=am.JobConfig(checkpoints=am.CheckpointConfig(am.seconds(0.1))),
    )
    found = am.run(run)
    left = sorted(path.name for path in place.iterdir())
    assert left == ["first", "out", "second", "third"]
    return sorted(tuple(row) for row in found.collect())


def main(place: Path) -> None:
    os.environ["SPARK_HOME"] = os.path.dirname(pyspark.__file__)
    spark = local_session(
        "aiomailbox local cluster",
        **{
            "spark.master": "local-cluster[2,1,1024]",
            "spark.worker.dir": str(place / "work"),
            "spark.executorEnv.JAVA_HOME": os.environ.get("JAVA_HOME", ""),
        },
    )
    spark.sparkContext.setLogLevel("OFF")
    try:
        assert spark.sparkContext.master.startswith("local-cluster")
        df = spark.range(0, 1000, 1, 2)
        applied = windowed(place).apply_to(df, schema=Seen, order_by="id")
        found = sorted(tuple(row) for row in applied.result.collect())
        assert sorted(path.name for path in place.iterdir() if path.is_file()) == [
            "first",
            "second",
            "third",
        ]
        env = am.StreamExecutionEnvironment()
        rows = env.from_collection([Seen(n, 0) for n in range(1000)])
        expected = am.run(windowed(place)(rows).collect())
        assert found == sorted(tuple(row) for row in expected), (found, expected)
        assert in_barrier(place / "barrier", df) == found
        print("ok")
    finally:
        spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
