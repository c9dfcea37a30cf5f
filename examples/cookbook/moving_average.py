"""A moving average: the last minute, every ten seconds.

Sliding windows overlap, and share the work of `am.mean`. A window without records does
not fire.
"""

import asyncio

import aiomailbox as am


async def main() -> None:
    readings = [(second, 20 + second // 10) for second in range(0, 90, 10)]
    time = am.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda reading: reading[0] * 1000
    )
    env = am.StreamExecutionEnvironment()
    means = (
        env.from_collection(readings, time)
        .window_all(am.SlidingEventTimeWindows.of(am.minutes(1), am.seconds(10)))
        .aggregate(am.aggregates(mean=am.mean(lambda reading: reading[1])))
    )
    for row in (await means.collect())[4:8]:
        print(row.window_start.time(), row.mean)


if __name__ == "__main__":
    asyncio.run(main())
