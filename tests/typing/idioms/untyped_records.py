"""Dicts, as the README's first example has them. Checked, and never run."""

from __future__ import annotations

import asyncio
import json
from typing import Any, assert_type

import aiomailbox as am

Row = dict[str, Any]


async def enrich(order: Row) -> Row:
    await asyncio.sleep(0.005)
    return {**order, "total": order["price"] * order["count"]}


async def main() -> None:
    env = am.StreamExecutionEnvironment()
    orders: list[Row] = [{"user": "ann", "price": 3.0, "count": 2}]
    stream = env.from_collection(orders)
    assert_type(stream, am.DataStream[Row])
    enriched = stream.map_async(enrich, concurrency=64, retry=am.Retry(attempts=3))
    assert_type(enriched, am.DataStream[Row])
    keyed = enriched.key_by("user")
    assert_type(keyed, am.KeyedStream[Any, Row])
    spent = keyed.aggregate(am.sum_("total"), include_key=True)
    assert_type(spent, am.DataStream[tuple[Any, Any]])
    print(await spent.collect())
    lines = env.from_collection(['{"user": "ann"}'])
    # What a function returns that says Any is Any.
    assert_type(lines.map(json.loads), am.DataStream[Any])
    rows: am.DataStream[Row] = lines.map(json.loads, output_type=dict)
    assert_type(rows, am.DataStream[Row])
    per_hour = keyed.window(am.TumblingEventTimeWindows.of(am.hours(1)))
    assert_type(per_hour.aggregate(am.sum_("total")), am.DataStream[Any])


asyncio.run(main())
