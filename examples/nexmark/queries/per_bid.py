"""Queries about one bid at a time: q0, q1, q2, q10, q13, q14, q21 and q22."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, NamedTuple

import aiomailbox as am
from examples.nexmark.model import Bid, Event
from examples.nexmark.streams import bids_of

EUROS_PER_DOLLAR = 0.908
EVERY = 123
SIDE_INPUT_SIZE = 10_000
CHANNEL_IDS = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}
CHANNEL_ID = re.compile(r"(?:&|^)channel_id=([^&]*)")


class BidInEuros(NamedTuple):
    """A bid whose price is in euro cents."""

    auction: int
    bidder: int
    price: float
    date_time: int
    extra: str


class Price(NamedTuple):
    """An offer for the item of an auction."""

    auction: int
    price: int


class LoggedBid(NamedTuple):
    """A bid with the day and the minute of its file."""

    auction: int
    bidder: int
    price: int
    date_time: int
    extra: str
    day: str
    minute: str


class EnrichedBid(NamedTuple):
    """A bid with the value that a table has for its auction."""

    auction: int
    bidder: int
    price: int
    date_time: int
    value: str


class CalculatedBid(NamedTuple):
    """A bid with what functions make of it."""

    auction: int
    bidder: int
    price: float
    time_type: str
    date_time: int
    extra: str
    c_counts: int


class ChannelOfBid(NamedTuple):
    """A bid with the number of its channel."""

    auction: int
    bidder: int
    price: int
    channel: str
    channel_id: str


class FoldersOfBid(NamedTuple):
    """A bid with the folders of its address."""

    auction: int
    bidder: int
    price: int
    channel: str
    dir1: str
    dir2: str
    dir3: str


def q0(events: am.DataStream[Event]) -> am.DataStream[Bid]:
    """Pass through: what do source and sink cost?"""
    return bids_of(events)


def q1(events: am.DataStream[Event]) -> am.DataStream[BidInEuros]:
    """Currency conversion: all bids in euros."""
    return bids_of(events).map(_in_euros)


def _in_euros(bid: Bid) -> BidInEuros:
    price = EUROS_PER_DOLLAR * bid.price
    return BidInEuros(bid.auction, bid.bidder, price, bid.date_time, bid.extra)


def q2(events: am.DataStream[Event]) -> am.DataStream[Price]:
    """Selection: the bids in some auctions."""
    return (
        bids_of(events)
        .filter(lambda bid: bid.auction % EVERY == 0)
        .map(lambda bid: Price(bid.auction, bid.price))
    )


def q10(events: am.DataStream[Event]) -> am.DataStream[LoggedBid]:
    """Log to files: all bids, in a directory for each minute (see `MinuteFiles`)."""
    return bids_of(events).map(_logged)


def _logged(bid: Bid) -> LoggedBid:
    time = datetime.fromtimestamp(bid.date_time // 1000, UTC)
    return LoggedBid(
        bid.auction, bid.bidder, bid.price, bid.date_time, bid.extra,
        f"{time:%Y-%m-%d}", f"{time:%H:%M}",
    )  # fmt: skip


class SideInput:
    """Stands for a table that is looked up; its rows are made when a task opens it."""

    def __init__(self) -> None:
        self._table: dict[int, str] = {}

    def open(self, context: Any) -> None:
        """Fill the table."""
        self._table = side_input()

    async def __call__(self, key: int) -> str | None:
        """Return the value of a key, None if there is none."""
        return self._table.get(key)


def side_input() -> dict[int, str]:
    """Return the rows of the table: two of three keys have a value."""
    return {key: f"value {key}" for key in range(SIDE_INPUT_SIZE) if key % 3}


def q13(events: am.DataStream[Event]) -> am.DataStream[EnrichedBid]:
    """Bounded side input: bids joined with what a table knows about the auction."""
    return bids_of(events).lookup_join(
        SideInput(),
        key=lambda bid: bid.auction % SIDE_INPUT_SIZE,
        join=lambda bid, value: EnrichedBid(
            bid.auction, bid.bidder, bid.price, bid.date_time, value
        ),
        concurrency=256,
    )


def q14(events: am.DataStream[Event]) -> am.DataStream[CalculatedBid]:
    """Calculation: bids of some prices, with results of functions of ours."""
    return bids_of(events).flat_map(_calculated)


def _calculated(bid: Bid) -> list[CalculatedBid]:
    price = EUROS_PER_DOLLAR * bid.price
    if not 1_000_000 < price < 50_000_000:
        return []
    return [
        CalculatedBid(
            bid.auction, bid.bidder, price, _time_type(bid.date_time), bid.date_time,
            bid.extra, bid.extra.count("c"),
        )
    ]  # fmt: skip


def _time_type(date_time: int) -> str:
    hour = date_time // 3_600_000 % 24
    if 8 <= hour <= 18:
        return "dayTime"
    return "nightTime" if hour <= 6 or hour >= 20 else "otherTime"


def q21(events: am.DataStream[Event]) -> am.DataStream[ChannelOfBid]:
    """Add channel id: by the channel's name, or else from the address."""
    return bids_of(events).flat_map(_with_channel_id)


def _with_channel_id(bid: Bid) -> list[ChannelOfBid]:
    identifier = CHANNEL_IDS.get(bid.channel.lower())
    if identifier is None:
        found = CHANNEL_ID.search(bid.url)
        if found is None:
            return []
        identifier = found[1]
    return [ChannelOfBid(bid.auction, bid.bidder, bid.price, bid.channel, identifier)]


def q22(events: am.DataStream[Event]) -> am.DataStream[FoldersOfBid]:
    """Get URL directories: the folders of the address."""
    return bids_of(events).map(_with_folders)


def _with_folders(bid: Bid) -> FoldersOfBid:
    parts = bid.url.split("/")
    return FoldersOfBid(
        bid.auction, bid.bidder, bid.price, bid.channel, parts[3], parts[4], parts[5]
    )
