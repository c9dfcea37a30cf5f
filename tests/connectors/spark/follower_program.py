"""Run by test_follower.py, which kills it: writes numbers, and goes on where it was."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import aiomailbox as am


async def slowly(row: Any) -> Any:
    """Take a moment for each row, so that there is time to die."""
    await asyncio.sleep(0.003)
    return row


async def main(place: Path, count: int) -> None:
    """Write the numbers below ``count``."""
    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(0.05, directory=place / "job")
    rows = env.from_collection([{"n": n} for n in range(count)]).uid("numbers")
    slow = rows.map_async(slowly, concurrency=2).uid("slowly")
    slow.sink_to(am.ParquetSink(place / "results", follow="delete")).uid("results")
    await env.execute("numbers", restore_from="latest")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
