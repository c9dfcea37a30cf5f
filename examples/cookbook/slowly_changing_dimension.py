"""The price that was valid then: a slowly changing dimension.

An as-of join gives each order the last version of the price at or before its event
time. The version may arrive after the order, because an order waits until the watermark
has reached it.
"""

import asyncio
from typing import NamedTuple

import aiomailbox as am


class Price(NamedTuple):
    article: str
    at: int
    price: float


class Order(NamedTuple):
    article: str
    at: int
    pieces: int


async def main() -> None:
    time = am.WatermarkStrategy.for_bounded_out_of_orderness(am.seconds(10))
    time = time.with_timestamp_assigner("at")
    env = am.StreamExecutionEnvironment()
    prices = env.from_collection(
        [Price("tea", 0, 3.0), Price("tea", 60_000, 3.5), Price("milk", 0, 1.0)], time
    )
    orders = env.from_collection(
        [Order("tea", 30_000, 2), Order("milk", 61_000, 1), Order("tea", 60_000, 2)],
        time,
    )
    totals = orders.key_by("article").as_of_join(
        prices.key_by("article"),
        lambda order, price: (order.article, order.pieces * price.price),
    )
    print(sorted(await totals.collect()))


if __name__ == "__main__":
    asyncio.run(main())
