"""Queries that count and rank: q15 to q19."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import aiomailbox as am
from examples.nexmark.model import Bid, Event
from examples.nexmark.streams import bids_of

RANK1_MAX = 10_000
RANK2_MAX = 1_000_000
TOP = 10
DAY = am.days(1)


class RankedBid(NamedTuple):
    """A bid and its place in its auction; replaces who had the place before."""

    auction: int
    place: int
    bidder: int
    price: int
    date_time: int
    extra: str


def is_rank1(bid: Bid) -> bool:
    """Return whether it is a low bid."""
    return bid.price < RANK1_MAX


def is_rank2(bid: Bid) -> bool:
    """Return whether it is a middle bid."""
    return RANK1_MAX <= bid.price < RANK2_MAX


def is_rank3(bid: Bid) -> bool:
    """Return whether it is a high bid."""
    return bid.price >= RANK2_MAX


RANKS = {"rank1": is_rank1, "rank2": is_rank2, "rank3": is_rank3}


class CountDistinct(am.AggregateFunction):
    """Counts the values of a field.

    Args:
        field: The field.
        where: Which bids count; None for all.
    """

    def __init__(self, field: str, where: Callable[[Bid], bool] | None = None) -> None:
        self.field = field
        self.where = where

    def create_accumulator(self) -> set[Any]:
        """Return no values."""
        return set()

    def add(self, bid: Bid, seen: set[Any]) -> set[Any]:
        """Return the values with one more."""
        if self.where is None or self.where(bid):
            seen.add(getattr(bid, self.field))
        return seen

    def get_result(self, seen: set[Any]) -> int:
        """Return how many there are."""
        return len(seen)

    def merge(self, first: set[Any], second: set[Any]) -> set[Any]:
        """Return the values of both."""
        return first | second


def _bid_counts() -> dict[str, Any]:
    ranks = {f"{name}_bids": am.count(where=rank) for name, rank in RANKS.items()}
    return {"total_bids": am.count(), **ranks}


def _distinct_counts() -> dict[str, Any]:
    counts: dict[str, Any] = {}
    for name, field in [("bidders", "bidder"), ("auctions", "auction")]:
        counts[f"total_{name}"] = CountDistinct(field)
        for rank, where in RANKS.items():
            counts[f"{rank}_{name}"] = CountDistinct(field, where)
    return counts


def q15(events: am.DataStream[Event]) -> am.DataStream[tuple[Any, ...]]:
    """Bidding statistics: per day, bids, bidders and auctions by height of price."""
    return (
        bids_of(events)
        .window_all(am.TumblingEventTimeWindows.of(DAY))
        .aggregate(am.aggregates(**_bid_counts(), **_distinct_counts()))
        .map(lambda day: (f"{day.window_start:%Y-%m-%d}", *day[2:]))
    )


def q16(events: am.DataStream[Event]) -> am.DataStream[tuple[Any, ...]]:
    """Channel statistics: the same per channel and day, with the last minute."""
    return (
        bids_of(events)
        .key_by("channel")
        .window(am.TumblingEventTimeWindows.of(DAY))
        .aggregate(
            am.aggregates(
                last=am.max_("date_time"), **_bid_counts(), **_distinct_counts()
            )
        )
        .map(
            lambda day: (
                day.key,
                f"{day.window_start:%Y-%m-%d}",
                f"{datetime.fromtimestamp(day.last // 1000, UTC):%H:%M}",
                *day[4:],
            )
        )
    )


def q17(events: am.DataStream[Event]) -> am.DataStream[tuple[Any, ...]]:
    """Auction statistics: per auction and day, bids by height, and their prices."""
    return (
        bids_of(events)
        .key_by("auction")
        .window(am.TumblingEventTimeWindows.of(DAY))
        .aggregate(
            am.aggregates(
                **_bid_counts(),
                min_price=am.min_("price"),
                max_price=am.max_("price"),
                avg_price=am.mean("price"),
                sum_price=am.sum_("price"),
            )
        )
        .map(lambda day: (day.key, f"{day.window_start:%Y-%m-%d}", *day[3:]))
    )


def q18(events: am.DataStream[Event]) -> am.DataStream[Bid]:
    """Find last bid: of each person in each auction; a later one replaces it."""
    return (
        bids_of(events)
        .key_by(lambda bid: (bid.bidder, bid.auction))
        .reduce(lambda last, bid: max(last, bid, key=_age))
    )


def _age(bid: Bid) -> tuple[int, int, str, str, str]:
    # All that bids differ in: of two at the same time it does not matter which came last.
    return bid.date_time, bid.price, bid.channel, bid.url, bid.extra


def q19(events: am.DataStream[Event]) -> am.DataStream[RankedBid]:
    """Auction top 10: the highest bids of each auction, as they change."""
    return bids_of(events).key_by("auction").process(HighestPlaces(TOP))


class HighestPlaces(am.KeyedProcessFunction[int, Bid, RankedBid]):
    """Keeps the highest bids of an auction, and emits the places that change.

    Args:
        number: How many places there are.
    """

    def __init__(self, number: int) -> None:
        self.number = number

    def open(self, context: am.RuntimeContext) -> None:
        """Get the state of the current auction."""
        self.highest = context.keyed_state.get_list(
            am.ListStateDescriptor("highest", Bid)
        )

    def process_element(
        self,
        bid: Bid,
        context: am.KeyedProcessContext[int],
        out: am.Collector[RankedBid],
    ) -> None:
        """Find the bid's place, and move those behind it."""
        before = self.highest.get()
        after = sorted([*before, bid], key=_height)[: self.number]
        first = next((at for at, each in enumerate(after) if each is bid), None)
        if first is None:
            return
        self.highest.update(after)
        for place, each in enumerate(after[first:], first + 1):
            out.collect(
                RankedBid(
                    each.auction, place, each.bidder, each.price, each.date_time,
                    each.extra,
                )
            )  # fmt: skip


def _height(bid: Bid) -> tuple[int, int, int, str]:
    return -bid.price, bid.date_time, bid.bidder, bid.extra
