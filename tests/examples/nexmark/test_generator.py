from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest

from examples.nexmark.generator import (
    CATEGORIES,
    FIRST_CATEGORY,
    FIRST_ID,
    HOT_STEP,
    LEAD,
    PRICE_MAX,
    PRICE_MIN,
    GeneratorConfig,
    generate,
)
from examples.nexmark.model import Auction, Bid, Event, Person, is_auction, is_bid

CONFIG = GeneratorConfig()
IN_ORDER = replace(CONFIG, out_of_order_group_size=1)


def kinds(events: list[Event]) -> tuple[int, int, int]:
    counts = Counter(map(type, events))
    return counts[Person], counts[Auction], counts[Bid]


def test_the_same_seed_gives_the_same_events() -> None:
    assert list(generate(CONFIG, 500)) == list(generate(CONFIG, 500))


def test_another_seed_gives_other_events() -> None:
    ours = set(generate(CONFIG, 500))
    assert not ours & set(generate(replace(CONFIG, seed=2), 500))


def test_fewer_events_are_the_first_ones() -> None:
    assert list(generate(CONFIG, 150)) == list(generate(CONFIG, 500))[:150]
    assert list(islice(generate(CONFIG), 150)) == list(generate(CONFIG, 150))


def test_of_50_events_one_is_a_person_and_three_are_auctions() -> None:
    assert kinds(list(generate(CONFIG, 5_000))) == (100, 300, 4_600)
    assert kinds(list(generate(CONFIG, 50))) == (1, 3, 46)


def test_proportions_can_be_others() -> None:
    config = GeneratorConfig(
        person_proportion=2, auction_proportion=5, bid_proportion=3
    )
    assert kinds(list(generate(config, 100))) == (20, 50, 30)


@pytest.mark.parametrize("rate", [10, 3_000, 10_000])
def test_events_are_spaced_evenly_in_event_time(rate: float) -> None:
    times = [event.date_time for event in generate(replace(IN_ORDER, rate=rate), 1_000)]
    assert times[0] == IN_ORDER.base_time_ms
    for number, time in enumerate(times):
        assert abs(time - times[0] - number * 1000 / rate) < 1


@pytest.mark.parametrize("group", [1, 2, 50, 333])
@pytest.mark.parametrize("rate", [10, 3_000])
def test_no_event_is_later_than_is_said(group: int, rate: float) -> None:
    config = GeneratorConfig(rate=rate, out_of_order_group_size=group)
    newest = worst = 0
    for event in generate(config, 3_000):
        newest = max(newest, event.date_time)
        worst = max(worst, newest - event.date_time)
    assert worst <= config.out_of_orderness_ms
    assert worst >= config.out_of_orderness_ms / 2


def test_the_order_does_not_change_the_events() -> None:
    assert sorted(generate(CONFIG, 1_000), key=repr) == sorted(
        generate(IN_ORDER, 1_000), key=repr
    )


def test_most_bids_go_to_a_hot_auction_and_come_from_a_hot_bidder() -> None:
    bids = [event for event in generate(CONFIG, 50_000) if is_bid(event)]
    hot = sum((bid.auction - FIRST_ID) % HOT_STEP == 0 for bid in bids)
    assert hot / len(bids) == pytest.approx(1 / 2, abs=0.03)
    hot = sum((bid.bidder - FIRST_ID) % HOT_STEP == 1 for bid in bids)
    assert hot / len(bids) == pytest.approx(3 / 4, abs=0.03)


def test_most_auctions_are_by_a_hot_seller() -> None:
    auctions = [event for event in generate(CONFIG, 50_000) if is_auction(event)]
    hot = sum((auction.seller - FIRST_ID) % HOT_STEP == 0 for auction in auctions)
    assert hot / len(auctions) == pytest.approx(3 / 4, abs=0.05)


def test_what_is_referred_to_is_there_or_comes_soon() -> None:
    persons = auctions = 0
    for event in generate(IN_ORDER, 20_000):
        if isinstance(event, Person):
            assert event.id == FIRST_ID + persons
            persons += 1
        elif isinstance(event, Auction):
            assert event.id == FIRST_ID + auctions
            auctions += 1
            assert FIRST_ID <= event.seller < FIRST_ID + persons + LEAD
        else:
            assert FIRST_ID <= event.bidder < FIRST_ID + persons + LEAD
            assert FIRST_ID <= event.auction < FIRST_ID + auctions + LEAD


def test_about_as_many_auctions_are_open_as_is_wanted() -> None:
    auctions = [event for event in generate(CONFIG, 50_000) if is_auction(event)]
    for moment in (auctions[1_000].date_time, auctions[2_500].date_time):
        is_open = [each.date_time <= moment < each.expires for each in auctions]
        assert 70 <= sum(is_open) <= 130


def test_values_are_in_their_ranges() -> None:
    for event in generate(CONFIG, 5_000):
        if isinstance(event, Bid):
            assert PRICE_MIN <= event.price <= PRICE_MAX
            assert len(event.extra) == CONFIG.extra_length
        elif isinstance(event, Auction):
            assert event.expires > event.date_time
            assert event.reserve > event.initial_bid
            assert 0 <= event.category - FIRST_CATEGORY < CATEGORIES


def test_events_and_settings_can_be_pickled() -> None:
    events = list(generate(CONFIG, 100))
    assert pickle.loads(pickle.dumps((CONFIG, events))) == (CONFIG, events)


@pytest.mark.parametrize(
    "setting", ["rate", "bid_proportion", "hot_auction_ratio", "active_people"]
)
def test_a_setting_that_cannot_work_is_refused_by_name(setting: str) -> None:
    with pytest.raises(ValueError, match=setting):
        GeneratorConfig(**{setting: 0})
