"""A pipeline that is too slow: ask it what it waits for, change that, and ask again.

A geocoder answers in 50 ms and allows 200 requests a second. Four calls at once make 80 of
them; the job says that it waits for its calls. With 32 at once it waits for the limit: it
is as fast as it may be.
"""

from __future__ import annotations

import asyncio

import aiomailbox as am

CITIES = [f" city {number} " for number in range(100_000)]


async def geocode(city: str) -> str:
    await asyncio.sleep(0.05)
    return city.title()


async def look_at(concurrency: int, seconds: float) -> None:
    env = am.StreamExecutionEnvironment()
    lines = env.from_collection(CITIES, name="lines").map(str.strip).name("parse")
    limit = am.RateLimit(200, per=1.0, name="geocoder")
    enriched = lines.map_async(geocode, concurrency=concurrency, limit=limit)
    enriched.name("enrich").rebalance().sink_to(lambda city: None)
    async with env.start("enrichment") as job:
        await asyncio.sleep(seconds)
        rate = job.snapshot().operator("enrich").num_records_out_per_second
        print(f"concurrency={concurrency}: {rate:.0f} records a second")
        print(job.bottleneck())
        # Where code of the engine stands is of less use.
        tree = job.await_tree().splitlines()
        print(*(line for line in tree if not _is_frame(line)), sep="\n")


def _is_frame(line: str) -> bool:
    return line.strip().startswith(("in ", "<"))


async def main(seconds: float = 10.0) -> None:
    await look_at(4, seconds)
    await look_at(32, seconds)


if __name__ == "__main__":
    am.run(main())
