"""Keyed streams: keys, state, timers, aggregates, windows. Checked, and never run."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, assert_type

import aiomailbox as am
from tests.typing.idioms.streams import Order

SEEN = am.ValueStateDescriptor("seen", int, default=0)
LAST = am.ValueStateDescriptor("last", Order)
VISITS = am.ListStateDescriptor("visits", str)
PRICES = am.MapStateDescriptor("prices", str, float)
HIGHEST = am.ReducingStateDescriptor("highest", max, float)
ANYTHING = am.ValueStateDescriptor("anything")
LATE = am.OutputTag[Order]("late")


def keys(stream: am.DataStream[Order]) -> None:
    assert_type(stream.key_by("user"), am.KeyedStream[Any, Order])
    assert_type(stream.key_by(lambda order: order.user), am.KeyedStream[str, Order])
    pairs = stream.key_by(lambda order: (order.user, order.count))
    assert_type(pairs, am.KeyedStream[tuple[str, int], Order])
    # What is keyed can do all that a stream can.
    assert_type(pairs.map(lambda order: order.count), am.DataStream[int])


def rolling(stream: am.KeyedStream[str, Order]) -> None:
    assert_type(stream.reduce(lambda a, b: max(a, b, key=at)), am.DataStream[Order])
    assert_type(stream.reduce(later), am.DataStream[Order])
    assert_type(stream.aggregate(am.count()), am.DataStream[int])
    assert_type(stream.aggregate(am.sum_(price)), am.DataStream[float])
    assert_type(stream.aggregate(am.sum_("price")), am.DataStream[Any])
    assert_type(stream.aggregate(am.mean(price)), am.DataStream[float])
    assert_type(stream.aggregate(am.mean("price")), am.DataStream[float])
    assert_type(stream.aggregate(am.last(price, by=at)), am.DataStream[float])
    assert_type(stream.aggregate(am.first(by=at)), am.DataStream[Order])
    assert_type(stream.aggregate(am.max_(at)), am.DataStream[int])
    assert_type(stream.aggregate(am.min_("at")), am.DataStream[Any])
    assert_type(stream.aggregate(am.collect_list(price)), am.DataStream[list[float]])
    assert_type(
        stream.aggregate(am.quantile(0.9, "price")), am.DataStream[float | None]
    )
    assert_type(stream.aggregate(am.count_distinct("user")), am.DataStream[int])
    named = stream.aggregate(am.sum_(price), include_key=True)
    assert_type(named, am.DataStream[tuple[str, float]])
    both = am.aggregates(n=am.count(), spent=am.sum_("price"))
    assert_type(stream.aggregate(both), am.DataStream[Any])
    assert_type(stream.aggregate(Mean()), am.DataStream[float])


def collected(stream: am.KeyedStream[str, Order]) -> am.DataStream[list[Order]]:
    # To mypy it is a list of anything.
    return stream.aggregate(am.collect_list())


def largest(stream: am.KeyedStream[str, Order]) -> am.DataStream[list[Order]]:
    return stream.aggregate(am.top_n(3, by="price"))


def at(order: Order) -> int:
    return order.at


def price(order: Order) -> float:
    return order.price


async def later(first: Order, second: Order) -> Order:
    return max(first, second, key=at)


class Mean:
    """An aggregate function of a user's, who calls parameters what they like."""

    def create_accumulator(self) -> tuple[int, float]:
        return 0, 0.0

    def add(self, order: Order, so_far: tuple[int, float]) -> tuple[int, float]:
        return so_far[0] + 1, so_far[1] + order.price

    def get_result(self, held: tuple[int, float]) -> float:
        return held[1] / held[0]

    def merge(
        self, one: tuple[int, float], other: tuple[int, float]
    ) -> tuple[int, float]:
        return one[0] + other[0], one[1] + other[1]


class Words(am.ProcessFunction[Order, str]):
    def open(self, context: am.RuntimeContext) -> None:
        assert_type(context.subtask_index, int)

    def process_element(
        self, order: Order, ctx: am.ProcessContext, out: am.Collector[str]
    ) -> None:
        assert_type(ctx.timestamp, int | None)
        ctx.output(LATE, order)
        out.collect(order.user)


class Untyped(am.ProcessFunction):
    def process_element(self, value: Any, context: Any, out: Any) -> None:
        out.collect(value)


class Count(am.KeyedProcessFunction[str, Order, tuple[str, int]]):
    def open(self, context: am.RuntimeContext) -> None:
        self.seen = context.keyed_state.get_value(SEEN)

    def process_element(
        self,
        value: Order,
        context: am.KeyedProcessContext[str],
        out: am.Collector[tuple[str, int]],
    ) -> None:
        assert_type(self.seen, am.ValueState[int])
        self.seen.update(self.seen.value() + 1)
        assert_type(context.current_key, str)
        assert_type(context.keyed_state.get_value(LAST).value(), Order | None)
        assert_type(context.keyed_state.get_value(ANYTHING).value(), Any)
        assert_type(context.keyed_state.get_list(VISITS).get(), list[str])
        assert_type(context.keyed_state.get_map(PRICES).get("tea"), float | None)
        assert_type(context.keyed_state.get_map(PRICES).get("tea", 0.0), float)
        assert_type(
            context.keyed_state.get_map(PRICES).items(), list[tuple[str, float]]
        )
        assert_type(context.keyed_state.get_reducing(HIGHEST).get(), float | None)
        context.timer_service.register_event_time_timer(value.at + 1000)
        out.collect((context.current_key, self.seen.value()))

    def on_timer(
        self,
        timestamp: int,
        context: am.KeyedProcessContext[str],
        out: am.Collector[tuple[str, int]],
    ) -> None:
        out.collect((context.current_key, 0))


class CountSoon(am.KeyedAsyncProcessFunction[str, Order, int]):
    async def process_element(
        self, value: Order, context: am.KeyedAsyncContext[str], out: am.Collector[int]
    ) -> None:
        seen = context.keyed_state.get_value(SEEN)
        assert_type(seen.value(), int)
        out.collect(seen.value())


async def number(
    value: Order, context: am.KeyedAsyncContext[str], out: am.Collector[int]
) -> None:
    out.collect(value.count)


def functions(stream: am.DataStream[Order], keyed: am.KeyedStream[str, Order]) -> None:
    words = stream.process(Words())
    assert_type(words, am.DataStream[str])
    assert_type(words.get_side_output(LATE), am.DataStream[Order])
    assert_type(stream.process(Untyped()), am.DataStream[Any])
    assert_type(keyed.process(Count()), am.DataStream[tuple[str, int]])
    assert_type(keyed.process_async(CountSoon()), am.DataStream[int])
    assert_type(keyed.process_async(number, concurrency=8), am.DataStream[int])
    assert_type(keyed.deduplicate(ttl=am.hours(1)), am.DataStream[Order])
    sessions = keyed.sessionise(am.minutes(30))
    assert_type(sessions, am.DataStream[am.Session[str, Order]])
    large = am.pattern("large", where=lambda order: order.price > 500)
    assert_type(keyed.match(large), am.DataStream[am.Match])


class Median(am.ProcessWindowFunction[str, Order, float, am.TimeWindow]):
    def process(
        self,
        key: str,
        context: am.ProcessWindowContext[am.TimeWindow],
        elements: list[Order],
        out: am.Collector[float],
    ) -> None:
        assert_type(context.window, am.TimeWindow)
        assert_type(context.window_state.get_value(SEEN).value(), int)
        out.collect(sorted(map(price, elements))[len(elements) // 2])


def spent(key: str, window: am.TimeWindow, elements: list[Order]) -> list[float]:
    return [sum(map(price, elements))]


def with_key(
    key: str, window: am.TimeWindow, counts: list[int]
) -> list[tuple[str, int]]:
    return [(key, count) for count in counts]


def windows(stream: am.DataStream[Order], keyed: am.KeyedStream[str, Order]) -> None:
    windowed = keyed.window(am.TumblingEventTimeWindows.of(am.minutes(5)))
    assert_type(windowed, am.WindowedStream[str, Order, am.TimeWindow])
    assert_type(windowed.aggregate(am.count()), am.DataStream[int])
    assert_type(windowed.aggregate(am.sum_(price)), am.DataStream[float])
    assert_type(windowed.aggregate(am.sum_("price")), am.DataStream[Any])
    paired = windowed.aggregate(am.count(), include_key=True)
    assert_type(paired, am.DataStream[tuple[str, int]])
    named = windowed.aggregate(am.aggregates(n=am.count()))
    assert_type(named, am.DataStream[Any])
    counted = windowed.aggregate(am.count(), with_key)
    assert_type(counted, am.DataStream[tuple[str, int]])
    assert_type(windowed.reduce(later), am.DataStream[Order])
    assert_type(windowed.process(Median()), am.DataStream[float])
    assert_type(windowed.apply(spent), am.DataStream[float])
    mapped = windowed.apply(lambda key, window, records: [(key, window.start)])
    assert_type(mapped, am.DataStream[tuple[str, int]])
    late = (
        windowed.allowed_lateness(am.minutes(1))
        .side_output_late_data(LATE)
        .trigger(am.CountTrigger.of(3))
        .aggregate(am.count(), on_error=am.skip)
    )
    assert_type(late.get_side_output(LATE), am.DataStream[Order])
    hourly = stream.window_all(
        am.SlidingEventTimeWindows.of(am.hours(1), am.minutes(5))
    )
    assert_type(hourly.aggregate(am.count()), am.DataStream[int])
    sessions = keyed.window(am.EventTimeSessionWindows.with_gap(am.minutes(5)))
    assert_type(sessions.apply(spent), am.DataStream[float])
    everything = keyed.window(am.GlobalWindows.create())
    assert_type(everything, am.WindowedStream[str, Order, am.GlobalWindow])


class EveryOther(am.Trigger):
    def on_element(
        self,
        value: Any,
        timestamp: int | None,
        window: am.TimeWindow | am.GlobalWindow,
        context: am.TriggerContext,
    ) -> am.TriggerResult:
        return am.TriggerResult.FIRE


def slow_reduce(first: Order, second: Order) -> Awaitable[Order]:
    return later(first, second)


def reduced_later(keyed: am.KeyedStream[str, Order]) -> None:
    assert_type(keyed.reduce(slow_reduce), am.DataStream[Order])


def numbered(
    order: Order, context: am.KeyedProcessContext[str], out: am.Collector[int]
) -> None:
    out.collect(context.timer_service.register_event_time_timer(after=am.minutes(5)))


def cheapest(
    key: str,
    context: am.ProcessWindowContext[am.TimeWindow],
    orders: list[Order],
    out: am.Collector[float],
) -> None:
    out.collect(min(order.price for order in orders))


def plain_functions(
    stream: am.KeyedStream[str, Order],
    windowed: am.WindowedStream[str, Order, am.TimeWindow],
) -> None:
    assert_type(stream.process(numbered), am.DataStream[int])
    assert_type(windowed.process(cheapest), am.DataStream[float])
