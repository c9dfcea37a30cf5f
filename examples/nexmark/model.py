"""The three kinds of events of an online auction house."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias, TypeGuard


class Person(NamedTuple):
    """A person who registers, to sell or to bid; times are milliseconds (UTC)."""

    id: int
    name: str
    email_address: str
    credit_card: str
    city: str
    state: str
    date_time: int
    extra: str


class Auction(NamedTuple):
    """An item that a person offers until ``expires``."""

    id: int
    item_name: str
    description: str
    initial_bid: int
    reserve: int
    date_time: int
    expires: int
    seller: int
    category: int
    extra: str


class Bid(NamedTuple):
    """A price in cents that a person offers in an auction."""

    auction: int
    bidder: int
    price: int
    channel: str
    url: str
    date_time: int
    extra: str


Event: TypeAlias = Person | Auction | Bid


def is_person(event: Event) -> TypeGuard[Person]:
    """Return whether the event is a person's registration."""
    return type(event) is Person


def is_auction(event: Event) -> TypeGuard[Auction]:
    """Return whether the event opens an auction."""
    return type(event) is Auction


def is_bid(event: Event) -> TypeGuard[Bid]:
    """Return whether the event is a bid."""
    return type(event) is Bid
