"""Queries about spans of time: q5, q7, q8, q11 and q12."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

import aiomailbox as am
from examples.nexmark.model import Auction, Bid, Event, Person
from examples.nexmark.streams import auctions_of, bids_of, persons_of

SIZE = am.seconds(10)
SLIDE = am.seconds(2)
SIZE_MS = 10_000


class HotItem(NamedTuple):
    """An auction with the most bids of a window."""

    auction: int
    bids: int
    window_end: int


class HighestBid(NamedTuple):
    """A bid with the highest price of a window."""

    auction: int
    price: int
    bidder: int
    date_time: int
    extra: str


class NewSeller(NamedTuple):
    """A person who sold something soon after registering."""

    id: int
    name: str
    window_start: int


class BidderActivity(NamedTuple):
    """How much a person bid in a while."""

    bidder: int
    bids: int
    start: int
    end: int


def q5(events: am.DataStream[Event]) -> am.DataStream[HotItem]:
    """Hot items: every 2 s, the auctions with the most bids in the last 10 s."""
    return (
        bids_of(events)
        .key_by("auction")
        .window(am.SlidingEventTimeWindows.of(SIZE, SLIDE))
        .aggregate(am.aggregates(bids=am.count()))
        # Counts have the time of their window's end, and each end is in one window.
        .window_all(am.TumblingEventTimeWindows.of(SLIDE))
        .apply(most_bids)
    )


def most_bids(key: None, window: am.TimeWindow, counts: list[Any]) -> list[HotItem]:
    most = max(count.bids for count in counts)
    return [
        HotItem(count.key, count.bids, milliseconds(count.window_end))
        for count in counts
        if count.bids == most
    ]


class HighestBids(am.AggregateFunction):
    """Keeps the bids with the highest price: often one, but there may be more."""

    def create_accumulator(self) -> list[Bid]:
        """Return no bids."""
        return []

    def add(self, bid: Bid, highest: list[Bid]) -> list[Bid]:
        """Return the highest bids with one more."""
        if not highest or bid.price > highest[0].price:
            return [bid]
        if bid.price == highest[0].price:
            highest.append(bid)
        return highest

    def get_result(self, highest: list[Bid]) -> list[HighestBid]:
        """Return them as results."""
        return [
            HighestBid(bid.auction, bid.price, bid.bidder, bid.date_time, bid.extra)
            for bid in highest
        ]

    def merge(self, first: list[Bid], second: list[Bid]) -> list[Bid]:
        """Return the highest bids of both."""
        for bid in second:
            first = self.add(bid, first)
        return first


def q7(events: am.DataStream[Event]) -> am.DataStream[HighestBid]:
    """Highest bid: of every 10 s."""
    return (
        bids_of(events)
        .window_all(am.TumblingEventTimeWindows.of(SIZE))
        .aggregate(HighestBids())
        .flat_map(list)
    )


def q8(events: am.DataStream[Event]) -> am.DataStream[NewSeller]:
    """Monitor new users: who registered and opened auctions in the same 10 s."""
    return (
        persons_of(events)
        .co_group(auctions_of(events))
        .where("id")
        .equal_to("seller")
        .window(am.TumblingEventTimeWindows.of(SIZE))
        .apply(_who_sold)
    )


def _who_sold(persons: list[Person], auctions: list[Auction]) -> list[NewSeller]:
    if not auctions:
        return []
    return [
        NewSeller(person.id, person.name, person.date_time // SIZE_MS * SIZE_MS)
        for person in persons
    ]


def q11(events: am.DataStream[Event]) -> am.DataStream[BidderActivity]:
    """User sessions: how often people bid until they paused for 10 s."""
    return (
        bids_of(events)
        .key_by("bidder")
        .window(am.EventTimeSessionWindows.with_gap(SIZE))
        .aggregate(am.aggregates(bids=am.count()))
        .map(_activity)
    )


def q12(events: am.DataStream[Event]) -> am.DataStream[BidderActivity]:
    """Processing time windows: how often people bid in every 10 s of real time."""
    return (
        bids_of(events)
        .key_by("bidder")
        .window(am.TumblingProcessingTimeWindows.of(SIZE))
        .aggregate(am.aggregates(bids=am.count()))
        .map(_activity)
    )


def _activity(count: Any) -> BidderActivity:
    return BidderActivity(
        count.key,
        count.bids,
        milliseconds(count.window_start),
        milliseconds(count.window_end),
    )


def milliseconds(time: datetime) -> int:
    """Return a window's bound as events have their times."""
    return round(time.timestamp() * 1000)
