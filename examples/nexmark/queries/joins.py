"""Queries that bring persons, auctions and bids together: q3, q4, q6, q9 and q20."""

from __future__ import annotations

from typing import NamedTuple

import aiomailbox as am
from examples.nexmark.model import Auction, Bid, Event, Person
from examples.nexmark.streams import auctions_of, bids_of, persons_of

CATEGORY = 10
STATES = ("OR", "ID", "CA")
LAST_AUCTIONS = 10


class LocalItem(NamedTuple):
    """An auction near by."""

    name: str
    city: str
    state: str
    auction: int


class WinningBid(NamedTuple):
    """An auction that is over, with its best bid."""

    auction: int
    item_name: str
    opened: int
    expires: int
    seller: int
    category: int
    bidder: int
    price: int
    date_time: int
    extra: str


class CategoryPrice(NamedTuple):
    """The average price paid in a category; it replaces the one before."""

    category: int
    price: float


class SellerPrice(NamedTuple):
    """The average price of a seller's last auctions, up to one of them."""

    seller: int
    auction: int
    price: float


class BidInCategory(NamedTuple):
    """A bid with facts about its auction."""

    auction: int
    bidder: int
    price: int
    date_time: int
    extra: str
    item_name: str
    expires: int
    seller: int


def q3(events: am.DataStream[Event]) -> am.DataStream[LocalItem]:
    """Local item suggestion: what do people of three states sell in a category?"""
    sellers = persons_of(events).filter(lambda person: person.state in STATES)
    auctions = auctions_of(events).filter(lambda auction: auction.category == CATEGORY)
    return (
        sellers.key_by("id").connect(auctions.key_by("seller")).process(ItemsOfSeller())
    )


class ItemsOfSeller(am.KeyedCoProcessFunction[int, Person, Auction, LocalItem]):
    """Joins a person and the person's auctions, whatever comes first."""

    def open(self, context: am.RuntimeContext) -> None:
        """Get the state of the current person."""
        state = context.keyed_state
        self.seller = state.get_value(am.ValueStateDescriptor("seller", Person))
        self.waiting = state.get_list(am.ListStateDescriptor("waiting", Auction))

    def process_element1(
        self,
        person: Person,
        context: am.KeyedProcessContext[int],
        out: am.Collector[LocalItem],
    ) -> None:
        """Join a person with auctions that came before."""
        self.seller.update(person)
        for auction in self.waiting.get():
            out.collect(_local_item(person, auction))
        self.waiting.clear()

    def process_element2(
        self,
        auction: Auction,
        context: am.KeyedProcessContext[int],
        out: am.Collector[LocalItem],
    ) -> None:
        """Join an auction with its seller, or keep it."""
        seller = self.seller.value()
        if seller is None:
            self.waiting.add(auction)
        else:
            out.collect(_local_item(seller, auction))


def _local_item(person: Person, auction: Auction) -> LocalItem:
    return LocalItem(person.name, person.city, person.state, auction.id)


def q9(events: am.DataStream[Event]) -> am.DataStream[WinningBid]:
    """Winning bids: the best bid of each auction, when it closes."""
    auctions = auctions_of(events).key_by("id")
    bids = bids_of(events).key_by("auction")
    return auctions.connect(bids).process(BestBidAtClose())


class BestBidAtClose(am.KeyedCoProcessFunction[int, Auction, Bid, WinningBid]):
    """Keeps the best bid of an open auction, and emits it when the auction closes."""

    def open(self, context: am.RuntimeContext) -> None:
        """Get the state of the current auction."""
        state = context.keyed_state
        self.auction = state.get_value(am.ValueStateDescriptor("auction", Auction))
        self.best = state.get_value(am.ValueStateDescriptor("best", Bid))
        self.early = state.get_list(am.ListStateDescriptor("early", Bid))

    def process_element1(
        self,
        auction: Auction,
        context: am.KeyedProcessContext[int],
        out: am.Collector[WinningBid],
    ) -> None:
        """Open an auction, and look at bids that came before it."""
        self.auction.update(auction)
        context.timer_service.register_event_time_timer(auction.expires)
        for bid in self.early.get():
            self._take(bid, auction)
        self.early.clear()

    def process_element2(
        self,
        bid: Bid,
        context: am.KeyedProcessContext[int],
        out: am.Collector[WinningBid],
    ) -> None:
        """Take a bid; keep it, until its time is reached, if there is no auction."""
        auction = self.auction.value()
        if auction is not None:
            self._take(bid, auction)
        else:
            self.early.add(bid)
            context.timer_service.register_event_time_timer(bid.date_time)

    def on_timer(
        self,
        timestamp: int,
        context: am.KeyedProcessContext[int],
        out: am.Collector[WinningBid],
    ) -> None:
        """Close the auction, or forget bids without an auction opened in time."""
        auction = self.auction.value()
        if auction is None:
            later = [bid for bid in self.early.get() if bid.date_time > timestamp]
            self.early.update(later)
        elif timestamp >= auction.expires:
            best = self.best.value()
            if best is not None:
                out.collect(_winning_bid(auction, best))
            self.auction.clear()
            self.best.clear()

    def _take(self, bid: Bid, auction: Auction) -> None:
        if not auction.date_time <= bid.date_time <= auction.expires:
            return
        best = self.best.value()
        if best is None or _place(bid) < _place(best):
            self.best.update(bid)


def _place(bid: Bid) -> tuple[int, int, int, str]:
    """Return what is smaller for a better bid: the highest price, then the earliest."""
    return -bid.price, bid.date_time, bid.bidder, bid.extra


def _winning_bid(auction: Auction, bid: Bid) -> WinningBid:
    return WinningBid(
        auction.id, auction.item_name, auction.date_time, auction.expires,
        auction.seller, auction.category, bid.bidder, bid.price, bid.date_time,
        bid.extra,
    )  # fmt: skip


def q4(events: am.DataStream[Event]) -> am.DataStream[CategoryPrice]:
    """Average price for a category: a new one with each auction that closes."""
    return (
        q9(events)
        .key_by("category")
        .aggregate(am.aggregates(category=am.max_("category"), price=am.mean("price")))
        .map(lambda average: CategoryPrice(average.category, average.price))
    )


def q6(events: am.DataStream[Event]) -> am.DataStream[SellerPrice]:
    """Average selling price by seller: over the last 10 auctions that closed."""
    return q9(events).key_by("seller").process(AverageOfLast(LAST_AUCTIONS))


class AverageOfLast(am.KeyedProcessFunction[int, WinningBid, SellerPrice]):
    """Averages the last prices of a seller, in the order in which auctions closed.

    Args:
        number: How many.
    """

    def __init__(self, number: int) -> None:
        self.number = number

    def open(self, context: am.RuntimeContext) -> None:
        """Get the state of the current seller."""
        state = context.keyed_state
        self.closing = state.get_list(am.ListStateDescriptor("closing", WinningBid))
        self.prices = state.get_list(am.ListStateDescriptor("prices", int))

    def process_element(
        self,
        closed: WinningBid,
        context: am.KeyedProcessContext[int],
        out: am.Collector[SellerPrice],
    ) -> None:
        """Wait until no auction of an earlier time can follow."""
        self.closing.add(closed)
        context.timer_service.register_event_time_timer(closed.expires)

    def on_timer(
        self,
        timestamp: int,
        context: am.KeyedProcessContext[int],
        out: am.Collector[SellerPrice],
    ) -> None:
        """Take the auctions up to now, in order."""
        closing = sorted(self.closing.get(), key=lambda bid: (bid.expires, bid.auction))
        prices = self.prices.get()
        for bid in closing:
            if bid.expires <= timestamp:
                prices = [*prices, bid.price][-self.number :]
                average = sum(prices) / len(prices)
                out.collect(SellerPrice(bid.seller, bid.auction, average))
        self.prices.update(prices)
        self.closing.update(bid for bid in closing if bid.expires > timestamp)


def q20(events: am.DataStream[Event]) -> am.DataStream[BidInCategory]:
    """Expand bid with auction: the bids in the auctions of a category."""
    auctions = auctions_of(events).key_by("id")
    bids = bids_of(events).key_by("auction")
    return auctions.connect(bids).process(BidsOfAuction(CATEGORY))


class BidsOfAuction(am.KeyedCoProcessFunction[int, Auction, Bid, BidInCategory]):
    """Joins bids and their auction, whatever comes first, if it is of a category.

    It sees the auctions of all categories: so bids in others need not wait for ever.

    Args:
        category: The category.
    """

    def __init__(self, category: int) -> None:
        self.category = category

    def open(self, context: am.RuntimeContext) -> None:
        """Get the state of the current auction."""
        state = context.keyed_state
        self.auction = state.get_value(am.ValueStateDescriptor("auction", Auction))
        self.waiting = state.get_list(am.ListStateDescriptor("waiting", Bid))

    def process_element1(
        self,
        auction: Auction,
        context: am.KeyedProcessContext[int],
        out: am.Collector[BidInCategory],
    ) -> None:
        """Join an auction with bids that came before it."""
        self.auction.update(auction)
        for bid in self.waiting.get():
            self._join(auction, bid, out)
        self.waiting.clear()

    def process_element2(
        self,
        bid: Bid,
        context: am.KeyedProcessContext[int],
        out: am.Collector[BidInCategory],
    ) -> None:
        """Join a bid with its auction, or keep it."""
        auction = self.auction.value()
        if auction is None:
            self.waiting.add(bid)
        else:
            self._join(auction, bid, out)

    def _join(
        self, auction: Auction, bid: Bid, out: am.Collector[BidInCategory]
    ) -> None:
        if auction.category == self.category:
            out.collect(
                BidInCategory(
                    bid.auction, bid.bidder, bid.price, bid.date_time, bid.extra,
                    auction.item_name, auction.expires, auction.seller,
                )
            )  # fmt: skip
