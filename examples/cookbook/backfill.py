"""A backfill through the service's own code, as fast as a limit allows.

A pipeline is a function of a stream, so the service and the backfill share it. The
backfill reads the missed records from files. Both use a limit of the same name, so in
one program they share it.
"""

import asyncio
import tempfile
from pathlib import Path

import aiomailbox as am

LIMIT = am.RateLimit(200, per=1.0, name="scores")


async def score(order: str) -> tuple[str, int]:
    """Ask the scoring service."""
    await asyncio.sleep(0.01)
    return order, len(order)


def scored(orders: am.DataStream[str]) -> am.DataStream[tuple[str, int]]:
    """Return orders with their scores, as the service does."""
    return orders.filter(str.strip).map_async(score, concurrency=50, limit=LIMIT)


async def main(missed: Path) -> None:
    env = am.StreamExecutionEnvironment()
    results: list[tuple[str, int]] = []
    live = env.from_collection(["salt"])
    old = env.from_source(am.FileSource(missed, "text"))
    scored(live.union(old)).sink_to(results.append)
    await env.execute("live and missed")
    print(sorted(results))


if __name__ == "__main__":
    file = Path(tempfile.mkdtemp(), "missed.txt")
    file.write_text("tea\n\nmilk\n")
    asyncio.run(main(file))
