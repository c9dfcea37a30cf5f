"""The top two articles of every hour.

The first windows count the clicks of each article per hour. The second ones take the
largest of these counts per hour. The event time of a window's result is the window's
last millisecond, so the second windows get the counts of the same hour.
"""

import asyncio

import aiomailbox as am

CLICKS = [
    ("tea", 5),
    ("milk", 10),
    ("tea", 20),
    ("salt", 30),
    ("milk", 40),
    ("tea", 50),
    ("salt", 61),
    ("salt", 70),
    ("milk", 80),
]


async def main() -> None:
    time = am.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda click: click[1] * 60_000
    )
    hour = am.TumblingEventTimeWindows.of(am.hours(1))
    env = am.StreamExecutionEnvironment()
    best = (
        env.from_collection(CLICKS, time)
        .key_by(lambda click: click[0])
        .window(hour)
        .aggregate(am.aggregates(clicks=am.count()))
        .window_all(hour)
        .aggregate(am.aggregates(best=am.top_n(2, by="clicks")))
    )
    for row in await best.collect():
        print(row.window_start.time(), [(one.key, one.clicks) for one in row.best])


if __name__ == "__main__":
    asyncio.run(main())
