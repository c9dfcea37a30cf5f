"""Makes the events: the same ones for the same seed.

As Nexmark describes it: of 50 events one is a person, three are auctions, 46 are bids.
Events are spaced evenly in event time. Most bids go to a hot auction, come from a hot
bidder, and most auctions from a hot seller; the hot ones change as time goes on. The
others are spread over the auctions in flight and the people active. Some refer to a
person or an auction that only comes a little later.
"""

from __future__ import annotations

import math
import random
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import TypeVar

from examples.nexmark.model import Auction, Bid, Event, Person

T = TypeVar("T")

FIRST_ID = 1000
FIRST_CATEGORY = 10
CATEGORIES = 5
# A new one of so many is hot.
HOT_STEP = 100
# So many ids ahead of the newest one are referred to as well.
LEAD = 10
CHANNELS = 10_000
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
EXTRAS = 1_024
PRICE_MIN = 100
PRICE_MAX = 100_000_000

# A named tuple's own constructor takes twice as long.
new_tuple = vars(tuple)["__new__"]
exp = math.exp

FIRST_NAMES = (
    "Ada", "Blaise", "Carl", "Dana", "Edsger", "Frances", "Grace", "Haskell", "Ida",
    "John", "Kay", "Leslie",
)  # fmt: skip
LAST_NAMES = ("Abel", "Bell", "Cole", "Dahl", "Eich", "Ford", "Gray", "Hahn", "Iqbal")
CITIES = (
    ("Phoenix", "AZ"), ("Los Angeles", "CA"), ("San Francisco", "CA"), ("Boise", "ID"),
    ("Portland", "OR"), ("Bend", "OR"), ("Redmond", "WA"), ("Seattle", "WA"),
    ("Kent", "WA"), ("Cheyenne", "WY"),
)  # fmt: skip


@dataclass(frozen=True)
class GeneratorConfig:
    """How many events of which kind the generator makes.

    Args:
        seed: The same seed gives the same events.
        rate: Events per second of event time.
        person_proportion: Persons among so many events as the three add up to.
        auction_proportion: Auctions among them.
        bid_proportion: Bids among them.
        hot_auction_ratio: One of so many bids goes to an auction that is not hot.
        hot_bidder_ratio: One of so many bids is from a person who is not hot.
        hot_seller_ratio: One of so many auctions is by a person who is not hot.
        in_flight_auctions: Auctions open at a time, about.
        active_people: The newest so many persons bid and sell.
        out_of_order_group_size: So many events in a row are shuffled; 1 leaves them
            in order.
        base_time_ms: The event time of the first event. By default a minute before
            midnight: there are queries by day.
        extra_length: Length of the text that makes events as big as real ones.
    """

    seed: int = 1
    rate: float = 10_000
    person_proportion: int = 1
    auction_proportion: int = 3
    bid_proportion: int = 46
    hot_auction_ratio: int = 2
    hot_bidder_ratio: int = 4
    hot_seller_ratio: int = 4
    in_flight_auctions: int = 100
    active_people: int = 1_000
    out_of_order_group_size: int = 50
    base_time_ms: int = 1_437_004_740_000
    extra_length: int = 60

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise ValueError(f"rate {self.rate} gives no time; use more than 0")
        for name in (
            "person_proportion", "auction_proportion", "bid_proportion",
            "hot_auction_ratio", "hot_bidder_ratio", "hot_seller_ratio",
            "in_flight_auctions", "active_people", "out_of_order_group_size",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)} is less than 1")

    @property
    def cycle(self) -> int:
        """After so many events kinds repeat: 50 by default."""
        return self.person_proportion + self.auction_proportion + self.bid_proportion

    @property
    def out_of_orderness_ms(self) -> int:
        """The most by which an event is late."""
        return math.ceil((self.out_of_order_group_size - 1) * 1000 / self.rate)


def generate(config: GeneratorConfig, events: int | None = None) -> Iterator[Event]:
    """Return an iterator of events, endless if no number is given."""
    numbers = count() if events is None else iter(range(events))
    made = _Maker(config).make(numbers)
    if config.out_of_order_group_size == 1:
        return made
    return _shuffled(made, config.out_of_order_group_size, config.seed)


def _shuffled(events: Iterator[Event], group: int, seed: int) -> Iterator[Event]:
    rng = random.Random(~seed)
    while together := list(islice(events, group)):
        rng.shuffle(together)
        yield from together


class _Maker:
    """Makes events by their number, out of one sequence of random numbers."""

    def __init__(self, config: GeneratorConfig) -> None:
        self.config = config
        rng = random.Random(config.seed)
        self._random = rng.random
        self._extras = [
            "".join(rng.choices(string.ascii_lowercase, k=config.extra_length))
            for _ in range(EXTRAS)
        ]
        self._places = [_place(rng, number) for number in range(CHANNELS)]
        self._hot_places = [
            (channel, _url(rng)) for channel in HOT_CHANNELS for _ in range(8)
        ]
        in_flight_events = (
            config.in_flight_auctions * config.cycle / config.auction_proportion
        )
        # Auctions last so long that about the wanted number is open on average.
        self._longest_ms = max(1, int(2 * in_flight_events * 1000 / config.rate))
        self._price_log = math.log(PRICE_MAX / PRICE_MIN)

    def make(self, numbers: Iterator[int]) -> Iterator[Event]:
        """Yield the events of these numbers, in the order of event time."""
        config, bid = self.config, self._bid
        persons_each, auctions_each = (
            config.person_proportion,
            config.auction_proportion,
        )
        no_bid = persons_each + auctions_each
        cycle, base, spacing = config.cycle, config.base_time_ms, 1000 / config.rate
        for number in numbers:
            round_, place = divmod(number, cycle)
            now = base + int(number * spacing)
            persons, auctions = round_ * persons_each, round_ * auctions_each
            if place >= no_bid:
                yield bid(now, persons + persons_each, auctions + auctions_each)
            elif place < persons_each:
                yield self._person(now, FIRST_ID + persons + place)
            else:
                identifier = FIRST_ID + auctions + place - persons_each
                yield self._auction(now, persons + persons_each, identifier)

    def _person(self, now: int, identifier: int) -> Person:
        first, last = self._one_of(FIRST_NAMES), self._one_of(LAST_NAMES)
        city, state = self._one_of(CITIES)
        card = f"{int(self._random() * 10**16):016}"
        return Person(
            id=identifier,
            name=f"{first} {last}",
            email_address=f"{first}.{last}@example.org".lower(),
            credit_card=" ".join(card[at : at + 4] for at in range(0, 16, 4)),
            city=city,
            state=state,
            date_time=now,
            extra=self._one_of(self._extras),
        )

    def _auction(self, now: int, persons: int, identifier: int) -> Auction:
        is_hot = self._random() * self.config.hot_seller_ratio >= 1
        initial = self._price()
        return Auction(
            id=identifier,
            item_name=f"item {identifier}",
            description=self._one_of(self._extras)[:20],
            initial_bid=initial,
            reserve=initial + self._price(),
            date_time=now,
            expires=now + 1 + int(self._random() * self._longest_ms),
            seller=_hot(persons) if is_hot else self._any_person(persons),
            category=FIRST_CATEGORY + int(self._random() * CATEGORIES),
            extra=self._one_of(self._extras),
        )

    def _bid(self, now: int, persons: int, auctions: int) -> Bid:
        # Most events are bids: one random number serves two choices where it can.
        random_, config = self._random, self.config
        choice = random_() * config.hot_auction_ratio
        if choice >= 1:
            auction = FIRST_ID + (auctions - 1) // HOT_STEP * HOT_STEP
        else:
            newest = min(config.in_flight_auctions, auctions)
            auction = FIRST_ID + auctions - newest + int(choice * (newest + LEAD))
        choice = random_() * config.hot_bidder_ratio
        if choice >= 1:
            # Not the hot seller, who is the first of the same hundred.
            bidder = _hot(persons, 1)
        else:
            newest = min(config.active_people, persons)
            bidder = FIRST_ID + persons - newest + int(choice * (newest + LEAD))
        choice = 2 * random_()
        places = self._hot_places if choice >= 1 else self._places
        channel, url = places[int(choice % 1 * len(places))]
        price = int(PRICE_MIN * exp(random_() * self._price_log))
        extra = self._extras[int(random_() * EXTRAS)]
        return new_tuple(Bid, (auction, bidder, price, channel, url, now, extra))

    def _any_person(self, persons: int) -> int:
        return self._recent(persons, self.config.active_people)

    def _recent(self, existing: int, newest: int) -> int:
        """Return one of the newest ids, or one that comes soon."""
        newest = min(newest, existing)
        return FIRST_ID + existing - newest + int(self._random() * (newest + LEAD))

    def _price(self) -> int:
        return int(PRICE_MIN * exp(self._random() * self._price_log))

    def _one_of(self, values: Sequence[T]) -> T:
        return values[int(self._random() * len(values))]


def _hot(existing: int, which: int = 0) -> int:
    newest = existing - 1
    return FIRST_ID + min(newest, newest // HOT_STEP * HOT_STEP + which)


def _url(rng: random.Random) -> str:
    folders = "/".join(
        "".join(rng.choices(string.ascii_lowercase, k=5)) for _ in range(3)
    )
    return f"https://www.example.org/{folders}/item.htm?query=1"


def _place(rng: random.Random, number: int) -> tuple[str, str]:
    """Return a channel with its address; nine of ten tell the channel's number."""
    told = f"&channel_id={rng.getrandbits(30)}" if rng.random() < 0.9 else ""
    return f"channel-{number}", _url(rng) + told
