"""Sessions of users: clicks with at most half an hour between them.

`sessionise` gives whole sessions, with their records. If you need only figures, use a
session window with aggregates: it keeps no records.
"""

import asyncio

import aiomailbox as am

CLICKS = [("ann", 0), ("bob", 5), ("ann", 10), ("ann", 70), ("bob", 20), ("ann", 75)]


async def main() -> None:
    time = am.WatermarkStrategy.for_bounded_out_of_orderness(
        am.hours(1)
    ).with_timestamp_assigner(lambda click: click[1] * 60_000)
    env = am.StreamExecutionEnvironment()
    users = env.from_collection(CLICKS, time).key_by(lambda click: click[0])
    for one in await users.sessionise(am.minutes(30)).collect():
        print(
            one.key, one.start.time(), one.end - one.start, len(one.records), "clicks"
        )

    figures = users.window(
        am.EventTimeSessionWindows.with_gap(am.minutes(30))
    ).aggregate(am.aggregates(clicks=am.count()))
    print(sorted((row.key, row.clicks) for row in await figures.collect()))


if __name__ == "__main__":
    asyncio.run(main())
