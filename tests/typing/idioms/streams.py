"""Streams of typed records: what each verb makes of them. Checked, and never run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard, assert_type

from typing_extensions import TypeIs

import aiomailbox as am


@dataclass(frozen=True)
class Order:
    user: str
    price: float
    count: int
    at: int


@dataclass(frozen=True)
class Refund(Order):
    reason: str = ""


def orders(env: am.StreamExecutionEnvironment) -> am.DataStream[Order]:
    return env.from_collection([Order("ann", 3.0, 2, 1000)])


def total(order: Order) -> float:
    return order.price * order.count


async def fetch(order: Order) -> bytes:
    await asyncio.sleep(0.01)
    return order.user.encode()


async def fetch_all(batch: list[Order]) -> list[bytes]:
    return [await fetch(order) for order in batch]


async def fetch_some(batch: list[Order]) -> list[bytes | Exception]:
    return [ValueError(order.user) for order in batch]


def is_refund(order: Order) -> TypeIs[Refund]:
    return isinstance(order, Refund)


def looks_like_a_refund(order: Order) -> TypeGuard[Refund]:
    return isinstance(order, Refund)


def letters(order: Order) -> Iterator[str]:
    yield from order.user


async def letters_soon(order: Order) -> list[str]:
    return list(order.user)


async def letters_one_by_one(order: Order) -> AsyncIterator[str]:
    for letter in order.user:
        yield letter


async def ticks() -> AsyncIterator[int]:
    yield 1


class Client:
    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *error: object) -> None: ...

    async def __call__(self, order: Order) -> int:
        return order.count


def where_streams_begin(env: am.StreamExecutionEnvironment) -> None:
    assert_type(env.from_collection([1, 2, 3]), am.DataStream[int])
    assert_type(env.from_collection(range(3)), am.DataStream[int])
    assert_type(env.from_async_iterable(ticks), am.DataStream[int])
    assert_type(env.from_async_iterable(ticks()), am.DataStream[int])
    assert_type(env.from_source(am.CollectionSource([1])), am.DataStream[Any])
    declared = env.from_source(am.CollectionSource([1]), output_type=int)
    assert_type(declared, am.DataStream[int])


def one_record_at_a_time(stream: am.DataStream[Order]) -> None:
    assert_type(stream.map(total), am.DataStream[float])
    assert_type(stream.map(fetch), am.DataStream[bytes])
    assert_type(stream.map(lambda order: order.count), am.DataStream[int])
    pairs = stream.map(lambda order: (order.user, order.count))
    assert_type(pairs, am.DataStream[tuple[str, int]])
    assert_type(stream.map(str), am.DataStream[str])
    assert_type(stream.map(total, output_type=float), am.DataStream[float])
    assert_type(stream.map(total, on_error=am.skip), am.DataStream[float])
    assert_type(stream.filter(lambda order: order.price > 1), am.DataStream[Order])
    assert_type(stream.filter(is_refund), am.DataStream[Refund])
    assert_type(stream.filter(looks_like_a_refund), am.DataStream[Refund])
    assert_type(stream.flat_map(letters), am.DataStream[str])
    assert_type(stream.flat_map(letters_soon), am.DataStream[str])
    assert_type(stream.flat_map(letters_one_by_one), am.DataStream[str])
    assert_type(stream.flat_map(lambda order: [order.count]), am.DataStream[int])


def calls(stream: am.DataStream[Order]) -> None:
    assert_type(stream.map_async(fetch), am.DataStream[bytes])
    called = stream.map_async(
        fetch,
        concurrency=64,
        ordered="key",
        key="user",
        timeout=am.seconds(2),
        retry=am.Retry(attempts=3),
        limit=am.RateLimit(100),
        weight=lambda order: order.price,
        cache=am.Cache(ttl=60),
        on_error=am.skip,
    )
    assert_type(called, am.DataStream[bytes])
    batched = stream.map_async(fetch_all, batch=am.Batch(16))
    # An exception in the list is the failure of its record, and no record.
    some = stream.map_async(fetch_some, batch=am.Batch(16))
    assert_type(some, am.DataStream[bytes])
    assert_type(batched, am.DataStream[bytes])
    assert_type(stream.map_async(Client()), am.DataStream[int])
    assert_type(
        stream.map_async(fetch, into="page", columns=["user"]), am.DataStream[Any]
    )


def key_of(order: Order) -> int:
    return len(repr(order))


def little_helpers(stream: am.DataStream[Order]) -> None:
    assert_type(stream.batch(2, within=am.seconds(1)), am.DataStream[list[Order]])
    assert_type(stream.buffer(10), am.DataStream[Order])
    assert_type(stream.sample(0.1), am.DataStream[Order])
    assert_type(stream.rate_limit(am.RateLimit(5)), am.DataStream[Order])
    assert_type(stream.rebalance(), am.DataStream[Order])
    assert_type(stream.blocking(), am.DataStream[Order])
    assert_type(stream.key_by(key_of).blocking(), am.KeyedStream[int, Order])
    assert_type(stream.broadcast(), am.DataStream[Order])
    assert_type(stream.union(stream, stream), am.DataStream[Order])
    assert_type(stream.name("orders").uid("orders"), am.DataStream[Order])
    timed = stream.assign_timestamps_and_watermarks(
        am.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    )
    assert_type(timed, am.DataStream[Order])


@am.pipeline
def totals(stream: am.DataStream[Order]) -> am.DataStream[float]:
    return stream.map(total)


def pipelines(stream: am.DataStream[Order]) -> None:
    assert_type(totals, am.Pipeline[Order, float])
    assert_type(stream.through(totals), am.DataStream[float])


def failures(stream: am.DataStream[Order]) -> None:
    failed = am.OutputTag[am.DeadLetter]("failed")
    mapped = stream.map(total, on_error=am.dead_letter(failed))
    assert_type(mapped.get_side_output(failed), am.DataStream[am.DeadLetter])
    # A tag that says nothing means anything.
    assert_type(mapped.get_side_output(am.OutputTag("failed")), am.DataStream[Any])


async def results(
    env: am.StreamExecutionEnvironment, stream: am.DataStream[Order]
) -> None:
    assert_type(await stream.collect(), list[Order])
    assert_type(await stream.take(3), list[Order])
    assert_type(await stream.count(), int)
    async for order in stream:
        assert_type(order, Order)
    assert_type(am.run(stream.collect()), list[Order])
    seen: list[Order] = []
    assert_type(stream.sink_to(seen.append), am.DataStream[Order])
    assert_type(await env.execute("orders"), am.JobResult)
    async with env.start("orders") as job:
        assert_type(job, am.JobClient)
        assert_type(job.metrics().total("num_records_in"), int | float)
        assert_type(job.backpressure(), am.BackpressureReport)
        assert_type(await job.stop(), am.JobResult)


def timed(env: am.StreamExecutionEnvironment, orders: list[Order]) -> None:
    # Of any records, or of some: what reads the time then has its type.
    plain = am.WatermarkStrategy.for_monotonous_timestamps()
    assert_type(env.from_collection(orders, plain), am.DataStream[Order])
    by_name = plain.with_timestamp_assigner("at")
    assert_type(env.from_collection(orders, by_name), am.DataStream[Order])
    by_lambda = plain.with_timestamp_assigner(lambda order: order.at)
    assert_type(env.from_collection(orders, by_lambda), am.DataStream[Order])
    typed = am.WatermarkStrategy[Order].for_bounded_out_of_orderness(am.seconds(1))
    read = typed.with_timestamp_assigner(lambda order: order.at).with_idleness(
        am.minutes(1)
    )
    assert_type(read, am.WatermarkStrategy[Order])
    stream = env.from_collection(orders, read)
    assert_type(stream.assign_timestamps_and_watermarks(read), am.DataStream[Order])
