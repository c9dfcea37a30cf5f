"""Late data that corrects a result, and data that is too late even for that.

A window fires when the watermark has passed its end, and again for each record that
comes within the allowed lateness. Records that come even later go to a side output: use
it to correct yesterday's numbers by hand.
"""

import asyncio
from collections.abc import AsyncIterator

import aiomailbox as am

LATE = am.OutputTag("late")


async def clicks() -> AsyncIterator[tuple[str, int]]:
    """Yield the clicks of a network that holds some of them back."""
    for click in [("a", 10), ("b", 70), ("c", 20), ("d", 200), ("e", 30)]:
        yield click
        await asyncio.sleep(0.01)


async def main() -> None:
    time = am.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda click: click[1] * 1000
    )
    env = am.StreamExecutionEnvironment()
    minutes = (
        env.from_async_iterable(clicks, time)
        .window_all(am.TumblingEventTimeWindows.of(am.minutes(1)))
        .allowed_lateness(am.minutes(1))
        .side_output_late_data(LATE)
        .aggregate(am.aggregates(clicks=am.count()))
    )
    rows: list[str] = []
    minutes.map(lambda row: f"{row.window_start.time()} {row.clicks}").sink_to(
        rows.append
    )
    minutes.get_side_output(LATE).map(lambda click: f"late: {click}").sink_to(
        rows.append
    )
    await env.execute("clicks a minute")
    print("\n".join(rows))


if __name__ == "__main__":
    asyncio.run(main())
