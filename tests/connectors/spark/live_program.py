"""Run by test_restart.py, which kills it: jobs read rows, and stop behind a checkpoint.

Arguments: the place, and a way for each job: "iterate", "push" or "staged". The test itself
goes on with them.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import Any

import aiomailbox as am
from aiomailbox.connectors.spark.session import local_session

ROWS = 300
# The row at which a checkpoint is asked for.
CHECKPOINTED = 200
# A checkpoint passes between two runs: so each row is one.
BATCH_ROWS = 1
# Rows behind it come slowly until it has completed: all of them in 40 s.
_PACE_S = 0.4


class Paced:
    """Counts rows, and lets few of them follow until a checkpoint has completed.

    Attributes:
        seen: How many rows there were.
        reached: That the row is there at which a checkpoint is to be taken.
        completed: That it has completed.
    """

    def __init__(self) -> None:
        self.seen = 0
        self.reached, self.completed = asyncio.Event(), asyncio.Event()

    async def __call__(self, row: Any) -> Any:
        self.seen += 1
        if row.id >= CHECKPOINTED and not self.completed.is_set():
            self.reached.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.completed.wait(), _PACE_S)
        return {"id": row.id}

    async def checkpoint(self, job: Any) -> None:
        """Take the checkpoint, and let rows go on."""
        await self.reached.wait()
        await job.trigger_checkpoint()
        self.completed.set()


class Stops(Paced):
    """Waits for ever at the first row behind the checkpoint; where all do, a file says so."""

    def __init__(self, place: Path, jobs: asyncio.Barrier) -> None:
        super().__init__()
        self._place, self._jobs = place, jobs

    async def __call__(self, row: Any) -> Any:
        record = await super().__call__(row)
        if self.completed.is_set():
            await self._jobs.wait()
            (self._place / "reached").touch()
            await asyncio.Event().wait()
        return record


def build(
    source: am.SparkSource[Any], place: Path, function: Any
) -> am.StreamExecutionEnvironment:
    """Return the job, whose checkpoints are taken when it is told."""
    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(None, directory=place / "checkpoints")
    rows = env.from_source(source).uid("rows")
    records = rows.map_async(function, concurrency=1).uid("paced")
    records.sink_to(am.ParquetSink(place / "out")).uid("out")
    return env


async def read(place: Path, way: Any, function: Stops) -> None:
    """Take a checkpoint on the way, and wait behind it to be killed."""
    if way == "staged":
        source = am.SparkSource.from_stage(place / "stage", batch_rows=BATCH_ROWS)
    else:
        # The tasks of a job that waits hold their cores.
        df = local_session("live", cores=4).range(0, ROWS, 1, 3)
        source = am.SparkSource(df, read=way, batch_rows=BATCH_ROWS)
    async with build(source, place, function).start(way) as job:
        await function.checkpoint(job)
        await job.result()


async def main(place: Path, ways: list[str]) -> None:
    jobs = asyncio.Barrier(len(ways))
    async with asyncio.TaskGroup() as group:
        for way in ways:
            group.create_task(read(place / way, way, Stops(place, jobs)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2:]))
