"""The job that nox runs each night: totals per customer of a file of orders."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass

import aiomailbox as am


@dataclass
class Order:
    customer: str
    amount: float


async def rate(order: Order) -> Order:
    """Convert an amount: here a service somewhere would be asked."""
    await asyncio.sleep(0.01)
    return Order(order.customer, round(order.amount * 1.1, 2))


@am.pipeline
def totals(orders: am.DataStream[Order]) -> am.DataStream[tuple[str, float]]:
    """Return the running total of each customer."""
    rated = orders.map_async(rate, concurrency=32, retry=am.Retry(attempts=3))
    return (
        rated.uid("rated")
        .key_by(lambda order: order.customer)
        .aggregate(am.sum_("amount"), include_key=True)
        .uid("totals")
    )


def job(orders: str, target: str) -> am.StreamExecutionEnvironment:
    """Return the whole job, from a file to a directory."""
    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(am.seconds(10), directory=f"{target}.state")
    # Nobody looks at it in the night: it gives up, and the exit code says so.
    env.configure(restart=am.restart.fixed_delay(2, 1))
    source = am.FileSource(orders, records=Order)
    rows = env.from_source(source, name="orders").uid("orders").through(totals)
    named = rows.map(lambda row: {"customer": row[0], "total": row[1]})
    named.sink_to(am.FileSink(target, "jsonl", mode="overwrite"))
    return env


async def main(orders: str, target: str) -> None:
    """Run the job, or go on with it where the last run was interrupted."""
    await job(orders, target).execute("nightly", restore_from="latest")
    print(f"the totals are in {target}")


if __name__ == "__main__":
    am.run(main(*sys.argv[1:]))
