"""The events as streams: all of them, or one kind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial

import aiomailbox as am
from examples.nexmark.generator import GeneratorConfig, generate
from examples.nexmark.model import (
    Auction,
    Bid,
    Event,
    Person,
    is_auction,
    is_bid,
    is_person,
)


@dataclass(frozen=True)
class GeneratedEvents:
    """So many events, made while they are read; can be read more than once."""

    config: GeneratorConfig
    number: int

    def __iter__(self) -> Iterator[Event]:
        return generate(self.config, self.number)


def strategy(config: GeneratorConfig) -> am.WatermarkStrategy:
    """Return the event time, and how late events may be."""
    late = am.millis(config.out_of_orderness_ms)
    return am.WatermarkStrategy.for_bounded_out_of_orderness(
        late
    ).with_timestamp_assigner("date_time")


def event_stream(
    env: am.StreamExecutionEnvironment,
    config: GeneratorConfig,
    events: int,
    *,
    paced: bool = False,
) -> am.DataStream[Event]:
    """Begin a stream of generated events.

    Args:
        env: Where it begins.
        config: The events to generate.
        events: How many.
        paced: Whether they come at their rate in real time, or as fast as they can.
    """
    time = strategy(config)
    if paced:
        return env.from_async_iterable(
            partial(in_real_time, config, events), time, name="events"
        )
    return env.from_collection(GeneratedEvents(config, events), time, name="events")


async def in_real_time(config: GeneratorConfig, events: int) -> AsyncIterator[Event]:
    """Yield events at their rate, counted from the first."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    for number, event in enumerate(generate(config, events)):
        wait = begin + number / config.rate - loop.time()
        if wait > 0:
            await asyncio.sleep(wait)
        yield event


def persons_of(events: am.DataStream[Event]) -> am.DataStream[Person]:
    """Return the persons among the events."""
    return events.filter(is_person).name("persons")


def auctions_of(events: am.DataStream[Event]) -> am.DataStream[Auction]:
    """Return the auctions among the events."""
    return events.filter(is_auction).name("auctions")


def bids_of(events: am.DataStream[Event]) -> am.DataStream[Bid]:
    """Return the bids among the events."""
    return events.filter(is_bid).name("bids")
