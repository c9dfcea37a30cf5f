"""Which variant sold: views joined with the orders that followed.

An interval join pairs records of one user whose event times are near each other: an
order counts for a variant that was shown up to ten minutes before it.
"""

import asyncio

import aiomailbox as am

VIEWS = [("ann", "A", 0), ("bob", "B", 1), ("cem", "B", 2), ("dea", "A", 3)]
ORDERS = [("bob", 30, 4), ("ann", 20, 9), ("cem", 5, 40)]


async def main() -> None:
    time = am.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda event: event[2] * 60_000
    )
    env = am.StreamExecutionEnvironment()
    views = env.from_collection(VIEWS, time).key_by(lambda view: view[0])
    orders = env.from_collection(ORDERS, time).key_by(lambda order: order[0])
    sales = (
        views.interval_join(orders)
        .between(am.minutes(0), am.minutes(10))
        .process(lambda view, order: (view[1], order[1]))
    )
    by_variant = sales.key_by(lambda sale: sale[0]).aggregate(
        am.sum_(lambda sale: sale[1]), include_key=True
    )
    print(sorted(await by_variant.collect()))


if __name__ == "__main__":
    asyncio.run(main())
