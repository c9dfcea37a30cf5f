"""Every query runs, whatever the order and the number of subtasks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am
import examples.nexmark
from aiomailbox.operators.functions.process import KeyedCoProcessOperator
from aiomailbox.testing import TwoInputHarness
from examples.nexmark.__main__ import main
from examples.nexmark.catalogue import QUERIES
from examples.nexmark.compare import read_files, run_query
from examples.nexmark.generator import GeneratorConfig
from examples.nexmark.minute_files import MinuteFiles
from examples.nexmark.model import Auction, Bid, Event, Person
from examples.nexmark.queries.joins import BestBidAtClose, q3, q6, q9, q20
from examples.nexmark.queries.per_bid import q10, q21
from examples.nexmark.queries.statistics import q18, q19
from examples.nexmark.queries.windows import q5, q7, q8
from examples.nexmark.streams import event_stream, strategy

CONFIG = GeneratorConfig(rate=50, out_of_order_group_size=20)
EVENTS = 3_000
NOT_BY_PROCESSING_TIME = [name for name in QUERIES if name != "q12"]


def person(number: int, time: int, state: str = "OR") -> Person:
    return Person(number, f"person {number}", "", "", "Bend", state, time, "")


def auction(
    number: int, time: int, expires: int, seller: int = 1, category: int = 10
) -> Auction:
    name = f"item {number}"
    return Auction(number, name, "", 1, 2, time, expires, seller, category, "")


def bid(number: int, time: int, price: int, bidder: int = 1, **more: str) -> Bid:
    texts = {"channel": "", "url": "", "extra": ""} | more
    return Bid(number, bidder, price, texts["channel"], texts["url"], time, "")


async def ask(query: Any, events: list[Event], late: float = 0) -> list[Any]:
    env = am.StreamExecutionEnvironment()
    time = am.WatermarkStrategy.for_bounded_out_of_orderness(am.seconds(late))
    stream = env.from_collection(events, time.with_timestamp_assigner("date_time"))
    return await stream.through(query).collect()


def test_there_are_all_queries() -> None:
    assert list(QUERIES) == [f"q{number}" for number in range(23)]


def test_a_query_can_be_compared_or_says_why_not() -> None:
    for query in QUERIES.values():
        assert (query.sql is None) == bool(query.why_not)


@pytest.mark.parametrize("name", NOT_BY_PROCESSING_TIME)
async def test_results_depend_neither_on_order_nor_on_parallelism(name: str) -> None:
    query = QUERIES[name]
    results = Counter(await run_query(query, CONFIG, EVENTS))
    assert results
    in_order = replace(CONFIG, out_of_order_group_size=1)
    assert Counter(await run_query(query, in_order, EVENTS)) == results
    assert Counter(await run_query(query, CONFIG, EVENTS, parallelism=2)) == results


async def test_windows_of_processing_time_count_bids_as_they_come() -> None:
    env = am.StreamExecutionEnvironment()
    stream = event_stream(env, CONFIG, EVENTS, paced=True)
    activities = await stream.through(QUERIES["q12"].build).collect()
    # The last window is still open when the events end, after 60 s.
    bids = EVENTS * 46 // 50
    assert bids * 4 / 6 < sum(each.bids for each in activities) <= bids
    assert {each.end - each.start for each in activities} == {10_000}


@pytest.mark.real_time
async def test_the_graphs_of_all_queries_run_elsewhere(run_elsewhere: Any) -> None:
    env = am.StreamExecutionEnvironment()
    events = event_stream(env, CONFIG, 500)
    streams = [events.through(QUERIES[name].build) for name in NOT_BY_PROCESSING_TIME]
    together = streams[0].union(*streams[1:])
    there = await run_elsewhere(together, examples.nexmark)
    assert len(there) > 2_000
    assert there == sorted(map(repr, await together.collect()))
    # It travels too; which windows of processing time end, only the clock knows.
    await run_elsewhere(events.through(QUERIES["q12"].build), examples.nexmark)


async def test_a_person_may_come_after_the_auctions() -> None:
    events = [
        auction(1, 0, 9, seller=7),
        person(7, 1),
        person(8, 2, state="WA"),
        auction(2, 3, 9, seller=7),
        auction(3, 3, 9, seller=8),
        auction(4, 3, 9, seller=7, category=11),
    ]
    results = await ask(q3, events)
    assert [result.auction for result in results] == [1, 2]


async def test_only_bids_of_an_open_auction_can_win() -> None:
    events = [
        bid(1, 99, 500),
        bid(1, 100, 30),
        auction(1, 100, 200),
        bid(1, 200, 40, bidder=5),
        bid(1, 150, 40, bidder=6),
        bid(1, 201, 900),
        auction(2, 150, 300),
    ]
    (winner,) = await ask(q9, events, late=1.0)
    assert (winner.auction, winner.price, winner.bidder) == (1, 40, 6)


async def test_a_bid_in_the_last_moment_can_win() -> None:
    events = [auction(1, 100, 200), bid(1, 200, 7), bid(1, 201, 8)]
    assert [winner.price for winner in await ask(q9, events)] == [7]


def test_early_bids_are_kept_until_event_time_reaches_them() -> None:
    operator = KeyedCoProcessOperator("id", "auction", BestBidAtClose())
    with TwoInputHarness(operator, keyed=True) as harness:
        harness.second.process_run([bid(1, 10, 5), bid(1, 100, 7)], [10, 100])
        for side in (harness.first, harness.second):
            side.process_watermark(50)
        harness.first.process_run([auction(1, 90, 200)], [90])
        for side in (harness.first, harness.second):
            side.process_watermark(200)
        assert [winner.price for winner in harness.values] == [7]


def test_an_open_auction_outlives_a_restart() -> None:
    def operator() -> KeyedCoProcessOperator:
        return KeyedCoProcessOperator("id", "auction", BestBidAtClose())

    with TwoInputHarness(operator(), keyed=True) as harness:
        harness.second.process_run([bid(1, 100, 7), bid(2, 100, 8)], [100, 100])
        harness.first.process_run([auction(1, 90, 200)], [90])
        state = harness.snapshot()
    harness = TwoInputHarness(operator(), keyed=True)
    harness.restore(state)
    with harness:
        harness.first.process_run([auction(2, 95, 200)], [95])
        harness.second.process_run([bid(1, 110, 6)], [110])
        for side in (harness.first, harness.second):
            side.process_watermark(200)
        assert sorted(winner.price for winner in harness.values) == [7, 8]


async def test_the_last_ten_prices_count() -> None:
    events: list[Event] = []
    for number in range(12):
        events += [
            auction(number, 10 * number, 10 * number + 5),
            bid(number, 10 * number, 100 * number),
        ]
    prices = [result.price for result in await ask(q6, events)]
    assert prices == [*(50.0 * n for n in range(10)), 550.0, 650.0]


async def test_all_auctions_with_the_most_bids_are_hot() -> None:
    events = [bid(number, time, 1) for time, number in enumerate([1, 2, 3, 2, 1])]
    results = await ask(q5, events)
    assert [(each.auction, each.bids) for each in results] == [(1, 2), (2, 2)] * 5
    assert [each.window_end for each in results[::2]] == [2000, 4000, 6000, 8000, 10000]


async def test_all_bids_of_the_highest_price_are_the_highest() -> None:
    events = [
        bid(1, 0, 5),
        bid(2, 1, 7),
        bid(3, 2, 7),
        bid(4, 9_999, 6),
        bid(5, 10_000, 1),
    ]
    assert [result.auction for result in await ask(q7, events)] == [2, 3, 5]


async def test_a_new_seller_is_told_once_a_window() -> None:
    events = [
        auction(1, 10_000, 9, seller=1),
        person(1, 12_000),
        auction(2, 19_999, 9, seller=1),
        person(2, 19_999),
        auction(3, 20_000, 9, seller=2),
    ]
    results = await ask(q8, events, late=5)
    assert results == [(1, "person 1", 10_000)]


async def test_a_later_bid_replaces_the_one_before() -> None:
    events = [bid(1, 10, 5), bid(1, 5, 9), bid(1, 20, 1), bid(2, 0, 3)]
    results = await ask(q18, events, late=1)
    assert [result.price for result in results] == [5, 5, 1, 3]
    assert [each.price for each in QUERIES["q18"].final(results)] == [1, 3]


async def test_places_that_change_are_told() -> None:
    events = [bid(1, time, price) for time, price in enumerate([5, 9, *range(10, 19)])]
    results = await ask(q19, events)
    assert [(each.place, each.price) for each in results[:3]] == [
        (1, 5),
        (1, 9),
        (2, 5),
    ]
    final = sorted(QUERIES["q19"].final(results), key=lambda each: each.place)
    assert [each.price for each in final] == [*range(18, 8, -1)]
    assert len(await ask(q19, [*events, bid(1, 99, 4)])) == len(results)


async def test_bids_wait_for_their_auction() -> None:
    events = [
        bid(1, 0, 5),
        bid(2, 0, 6),
        auction(1, 1, 9),
        auction(2, 1, 9, category=11),
        bid(1, 2, 7),
    ]
    assert [result.price for result in await ask(q20, events)] == [5, 7]


async def test_a_channel_is_known_by_name_or_by_address() -> None:
    events = [
        bid(1, 0, 1, channel="Baidu", url="https://a/b?x=1&channel_id=9"),
        bid(1, 0, 2, channel="channel-5", url="https://a/b?x=1&channel_id=9&y=2"),
        bid(1, 0, 3, channel="channel-5", url="https://a/b?old_channel_id=9"),
    ]
    results = await ask(q21, events)
    assert [(each.price, each.channel_id) for each in results] == [(1, "3"), (2, "9")]


async def test_files_appear_when_the_job_succeeds(tmp_path: Path) -> None:
    env = am.StreamExecutionEnvironment()
    logged = event_stream(env, replace(CONFIG, rate=10), 2_000).through(q10)
    logged.sink_to(MinuteFiles(tmp_path / "log"))
    await env.execute()
    assert len(list(tmp_path.glob("log/day=*/minute=*"))) == 4
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.name for path in files} == {"part-00000.csv"}
    assert len(list(read_files(tmp_path / "log"))) == 1_840
    logged.sink_to(MinuteFiles(tmp_path / "log"))
    with pytest.raises(am.JobFailedError):
        await env.execute()


async def test_a_job_that_fails_leaves_no_files(tmp_path: Path) -> None:
    env = am.StreamExecutionEnvironment()
    logged = event_stream(env, CONFIG, 500).through(q10)
    logged.map(lambda bid: bid._replace(minute=1 / (bid.price % 50))).sink_to(print)
    logged.sink_to(MinuteFiles(tmp_path / "log"))
    with pytest.raises(am.JobFailedError):
        await env.execute()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_query_runs_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["q2", "--events", "5000", "--show", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("Price(auction=1")
    assert "Selection" in lines[2]
    assert "5,000 events in" in lines[2]
    assert main(["q10", "--events", "500", "--out", str(tmp_path / "log")]) == 0
    assert len(list(read_files(tmp_path / "log"))) == 460


def test_all_queries_run_from_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["all", "--events", "200", "--parallelism", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(QUERIES)


@pytest.mark.parametrize("option", ["--events", "--rate", "--disorder"])
def test_a_number_below_one_is_refused_by_the_command_line(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["q0", option, "0"])
    assert f"argument {option}: 0 is less than 1" in capsys.readouterr().err


def test_the_watermark_allows_for_the_disorder() -> None:
    config = GeneratorConfig(rate=10, out_of_order_group_size=11)
    assert config.out_of_orderness_ms == 1_000
    generator: Any = strategy(config).generator_factory()
    assert generator._behind == 1_001
