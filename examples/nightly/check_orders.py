"""The test of the job: an hour of waiting takes no time."""

from __future__ import annotations

import asyncio

import orders
import pytest

import aiomailbox as am
from aiomailbox.testing import virtual_time_loop_factory


def described() -> am.StreamExecutionEnvironment:
    """Return the job for ``aiomailbox explain``."""
    return orders.job("orders.csv", "out/totals")


def test_each_customer_has_a_running_total(monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(order: orders.Order) -> orders.Order:
        await asyncio.sleep(3600)
        return order

    monkeypatch.setattr(orders, "rate", slow)

    async def results() -> list[tuple[str, float]]:
        env = am.StreamExecutionEnvironment()
        given = [orders.Order("ann", 2.0), orders.Order("bob", 1.0)]
        given.append(orders.Order("ann", 3.0))
        return await env.from_collection(given).through(orders.totals).collect()

    with asyncio.Runner(loop_factory=virtual_time_loop_factory()) as runner:
        found = runner.run(results())
    assert found == [("ann", 2.0), ("bob", 1.0), ("ann", 5.0)]
