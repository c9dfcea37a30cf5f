"""Run by test_restart.py, which kills it: reads a DataFrame live, and stops at a row.

Arguments: the place, and the row. The test itself goes on with the same job.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import aiomailbox as am
from aiomailbox.connectors.spark import local_session

ROWS = 6000


class Paced:
    """Gives checkpoints time to come between the rows, and counts these."""

    def __init__(self, place: Path, stops_at: int) -> None:
        self.seen = 0
        self._place = place
        self._stops_at = stops_at

    async def __call__(self, row: Any) -> Any:
        self.seen += 1
        if row.id % 250 == 0:
            await asyncio.sleep(0.05)
        if row.id == self._stops_at:
            (self._place / "reached").touch()
            await asyncio.Event().wait()
        return {"id": row.id}


def build(df: Any, place: Path, function: Paced) -> am.StreamExecutionEnvironment:
    """Return the job."""
    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(0.1, directory=place / "checkpoints")
    rows = env.from_source(am.SparkSource(df, batch_rows=500)).uid("rows")
    paced = rows.map_async(function, concurrency=1).uid("paced")
    paced.sink_to(am.ParquetSink(place / "out")).uid("out")
    return env


async def main(place: Path, stops_at: int) -> None:
    """Read up to a row."""
    df = local_session("live").range(0, ROWS, 1, 3)
    env = build(df, place, Paced(place, stops_at))
    await env.execute("live", restore_from="latest")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
