"""Joins, connected and broadcast streams. Checked, and never run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

import pyarrow.compute as pc

import aiomailbox as am
from tests.typing.idioms.streams import Order

RULES = am.MapStateDescriptor("rules", str, float)


@dataclass(frozen=True)
class Rate:
    currency: str
    rate: float


async def country_of(city: str) -> str | None:
    return {"Oslo": "Norway"}.get(city)


async def known_country_of(city: str) -> str:
    return {"Oslo": "Norway"}[city]


async def countries_of(cities: list[str]) -> list[str | None]:
    return [await country_of(city) for city in cities]


async def converted(order: Order, rate: Rate) -> float:
    return order.price * rate.rate


def both(order: Order, rate: Rate) -> tuple[str, float]:
    return order.user, rate.rate


def unpaid(orders: list[Order], rates: list[Rate]) -> list[Order]:
    return [] if rates else orders


class Delay(am.ProcessJoinFunction[Order, Rate, int]):
    def process_element(
        self,
        left: Order,
        right: Rate,
        context: am.ProcessJoinContext,
        out: am.Collector[int],
    ) -> None:
        out.collect(left.at - context.left_timestamp)


def joins(orders: am.DataStream[Order], rates: am.DataStream[Rate]) -> None:
    keys = orders.join(rates).where("user").equal_to(lambda rate: rate.currency)
    joined = keys.window(am.TumblingEventTimeWindows.of(am.seconds(5)))
    assert_type(joined, am.JoinedWindows[Order, Rate])
    assert_type(joined.apply(both), am.DataStream[tuple[str, float]])
    assert_type(joined.apply(converted), am.DataStream[float])
    assert_type(joined.apply(lambda a, b: a.price * b.rate), am.DataStream[float])
    assert_type(joined.select("user", "rate"), am.DataStream[Any])
    grouped = (
        orders.co_group(rates)
        .where(lambda order: order.user)
        .equal_to("currency")
        .window(am.TumblingEventTimeWindows.of(am.seconds(5)))
        .allowed_lateness(am.seconds(1))
    )
    assert_type(grouped, am.CoGroupedWindows[Order, Rate])
    assert_type(grouped.apply(unpaid), am.DataStream[Order])


def joins_by_key(
    orders: am.KeyedStream[str, Order], rates: am.KeyedStream[str, Rate]
) -> None:
    near = orders.interval_join(rates).between(am.seconds(0), am.seconds(10))
    assert_type(near, am.IntervalJoined[Order, Rate])
    assert_type(near.process(both), am.DataStream[tuple[str, float]])
    assert_type(near.process(converted), am.DataStream[float])
    assert_type(near.process(Delay()), am.DataStream[int])
    value = pc.field("price") * pc.field("rate")
    assert_type(near.select("user", at="left.at", value=value), am.DataStream[Any])
    assert_type(orders.as_of_join(rates), am.DataStream[tuple[Order, Rate]])
    left = orders.as_of_join(rates, left=True)
    assert_type(left, am.DataStream[tuple[Order, Rate | None]])
    assert_type(orders.as_of_join(rates, both), am.DataStream[tuple[str, float]])
    assert_type(orders.as_of_join(rates, converted), am.DataStream[float])
    assert_type(orders.as_of_join(rates, Delay()), am.DataStream[int])


def lookups(cities: am.DataStream[str]) -> None:
    found = cities.lookup_join(country_of, key=str.title)
    assert_type(found, am.DataStream[tuple[str, str]])
    left = cities.lookup_join(country_of, key=str.title, left=True)
    assert_type(left, am.DataStream[tuple[str, str | None]])
    joined = cities.lookup_join(country_of, key=str.title, join=lambda a, b: (b, a))
    assert_type(joined, am.DataStream[tuple[Any, str]])
    # What a result is given to is known before the function is looked at.
    said: am.DataStream[tuple[str, str | None]]
    said = cities.lookup_join(country_of, key=str.title, left=True)
    said = cities.lookup_join(known_country_of, key=str.title, left=True)
    assert_type(said, am.DataStream[tuple[str, str | None]])


def lookups_of_lists(cities: am.DataStream[str], *, left: bool) -> None:
    some = am.Batch(20)
    found = cities.lookup_join(countries_of, key=str.title, batch=some)
    assert_type(found, am.DataStream[tuple[str, str]])
    all_of_them = cities.lookup_join(countries_of, key=str.title, batch=some, left=left)
    assert_type(all_of_them, am.DataStream[tuple[str, str | None]])
    said: am.DataStream[tuple[str, str | None]]
    said = cities.lookup_join(countries_of, key=str.title, batch=some, left=True)
    assert_type(said, am.DataStream[tuple[str, str | None]])


def latest(orders: am.DataStream[Order], rates: am.DataStream[Rate]) -> None:
    pairs = orders.with_latest_from(rates)
    assert_type(pairs, am.DataStream[tuple[Order, Rate]])
    assert_type(orders.with_latest_from(rates, converted), am.DataStream[float])
    assert_type(orders.with_latest_from(rates, both), am.DataStream[tuple[str, float]])


class Convert(am.CoProcessFunction[Order, Rate, float]):
    rate = 1.0

    def process_element1(
        self, value: Order, context: am.ProcessContext, out: am.Collector[float]
    ) -> None:
        out.collect(value.price * self.rate)

    def process_element2(
        self, value: Rate, context: am.ProcessContext, out: am.Collector[float]
    ) -> None:
        self.rate = value.rate


class ConvertByKey(am.KeyedCoProcessFunction[str, Order, Rate, float]):
    async def process_element1(
        self,
        value: Order,
        context: am.KeyedProcessContext[str],
        out: am.Collector[float],
    ) -> None:
        out.collect(value.price)


class Check(am.BroadcastProcessFunction[Order, Rate, bool]):
    def process_element(
        self, value: Order, context: am.ReadOnlyContext, out: am.Collector[bool]
    ) -> None:
        limit = context.get_broadcast_state(RULES).get(value.user, 10.0)
        assert_type(limit, float)
        out.collect(value.price < limit)

    def process_broadcast_element(
        self, value: Rate, context: am.BroadcastContext, out: am.Collector[bool]
    ) -> None:
        context.get_broadcast_state(RULES).put(value.currency, value.rate)


class CheckByKey(am.KeyedBroadcastProcessFunction[str, Order, Rate, str]):
    def process_element(
        self,
        value: Order,
        context: am.KeyedReadOnlyContext[str],
        out: am.Collector[str],
    ) -> None:
        out.collect(context.current_key)

    def process_broadcast_element(
        self, value: Rate, context: am.KeyedBroadcastContext, out: am.Collector[str]
    ) -> None: ...


def connected(orders: am.DataStream[Order], rates: am.DataStream[Rate]) -> None:
    two = orders.connect(rates)
    assert_type(two, am.ConnectedStreams[Order, Rate])
    mapped = two.map(lambda order: order.price, lambda rate: rate.rate)
    assert_type(mapped, am.DataStream[float])
    words = two.flat_map(lambda order: [order.user], lambda rate: [rate.currency])
    assert_type(words, am.DataStream[str])
    assert_type(two.process(Convert()), am.DataStream[float])
    by_key = orders.key_by("user").connect(rates.key_by("currency"))
    assert_type(by_key.process(ConvertByKey()), am.DataStream[float])
    rules = rates.broadcast(RULES)
    assert_type(rules, am.BroadcastStream[Rate])
    checked = orders.connect(rules)
    assert_type(checked, am.BroadcastConnectedStream[Order, Rate])
    assert_type(checked.process(Check()), am.DataStream[bool])
    keyed = orders.key_by(lambda order: order.user).connect(rules)
    assert_type(keyed.process(CheckByKey()), am.DataStream[str])
