"""The top two articles of every hour.

First each article's clicks per hour, then, over the results of that, the largest of
each hour. A result of a window has the last millisecond of the window as its event
time, so windows of the same size put together what was counted in one hour.
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
