"""Run by test_stream_crashes.py: streams a query's rows to files, and dies where it is told.

Arguments: the place, and the moment: "in_batch", "before_done" or "before_commit". The test
itself goes on to the end.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import aiomailbox as am
from aiomailbox.connectors.spark import streaming
from aiomailbox.connectors.spark.session import local_session
from aiomailbox.connectors.spark.streaming import SparkStreamSource
from aiomailbox.storage.staged_directory import GrowingDirectory

DIED = 77


def die_at(owner: Any, method: str, call: int) -> None:
    """Let the process end, as by a kill, when a method is called so many times."""
    original, calls = getattr(owner, method), []

    def counted(*args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) >= call:
            os._exit(DIED)
        return original(*args, **options)

    setattr(owner, method, counted)


MOMENTS = {
    # Some rows of a batch are emitted and in a checkpoint, others are not.
    "in_batch": lambda: die_at(streaming._StreamReader, "_emit", 12),
    # The checkpoint is complete, and Spark has not heard of it.
    "before_done": lambda: die_at(
        streaming._StreamReader, "notify_checkpoint_complete", 3
    ),
    # The checkpoint is complete, and its files are not to be seen yet.
    "before_commit": lambda: die_at(GrowingDirectory, "commit", 3),
}


async def slowly(row: Any) -> Any:
    """Take a moment, so that checkpoints are taken in mid-batch."""
    await asyncio.sleep(0.002)
    return row


async def stream(spark: Any, place: Path) -> None:
    """Stream all that has arrived."""
    arrivals = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
    source = SparkStreamSource(
        arrivals.parquet(str(place / "arrivals")),
        place / "query",
        trigger={"availableNow": True},
        batch_rows=20,
    )
    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(am.seconds(0.1), directory=place / "job")
    rows = env.from_source(source).uid("rows").map_async(slowly, concurrency=2)
    records = rows.uid("slowly").map(lambda row: {"id": row.id})
    records.sink_to(am.ParquetSink(place / "results")).uid("results")
    await env.execute("stream", restore_from="latest")


def main(place: Path, moment: str) -> None:
    MOMENTS[moment]()
    asyncio.run(stream(local_session("stream"), place))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
