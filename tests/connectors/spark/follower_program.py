"""Run by test_follower.py, which kills it: writes numbers, and goes on where it was.

Arguments: the place, how many numbers there are, and the one before which it makes the
file ``halted`` and waits to be killed; -1 for none.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiomailbox as am


async def main(place: Path, count: int, halts_at: int) -> None:
    """Write the numbers below ``count``."""

    async def numbers(after: Any) -> AsyncIterator[dict[str, int]]:
        for n in range(0 if after is None else after + 1, count):
            if n == halts_at:
                (place / "halted").touch()
                await asyncio.Event().wait()
            # So that there are commits.
            await asyncio.sleep(0.002)
            yield {"n": n}

    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(am.seconds(0.05), directory=place / "job")
    rows = env.from_async_iterable(numbers, offset=lambda row: row["n"]).uid("numbers")
    rows.sink_to(am.ParquetSink(place / "results", follow="delete")).uid("results")
    await env.execute("numbers", restore_from="latest")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), *map(int, sys.argv[2:])))
