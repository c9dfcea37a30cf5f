"""The three verbs: await a result, iterate over results, run a service."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import aiomailbox as am


class Reading(NamedTuple):
    room: str
    degrees: float


READINGS = [Reading("attic", 21.5), Reading("cellar", 11.0), Reading("attic", 23.0)]


async def in_fahrenheit(reading: Reading) -> Reading:
    await asyncio.sleep(0.001)  # Something slow, somewhere else.
    return reading._replace(degrees=reading.degrees * 9 / 5 + 32)


@am.pipeline
def warmest(readings: am.DataStream[Reading]) -> am.DataStream[Reading]:
    converted = readings.map_async(in_fahrenheit, concurrency=8)
    return converted.key_by("room").reduce(max)


async def main() -> None:
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection(READINGS).through(warmest)
    print("all:", await stream.collect())
    async for reading in stream:
        print(f"{reading.room}: {reading.degrees:.1f} °F")
    stream.sink_to(lambda reading: print("to the sink:", reading))
    async with env.start("rooms") as job:
        await job.result()
    print("rows written:", job.metrics().operators["FunctionSink"]["num_records_in"])


if __name__ == "__main__":
    asyncio.run(main())
