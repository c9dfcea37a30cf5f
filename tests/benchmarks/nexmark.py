"""Nexmark q1, q2, q5, q7 and q8 over a list of events, beside Bytewax and PyFlink.

Ours are the queries of ``examples/nexmark``, unchanged. Bytewax does the same with its
own operators, reading batches of 1,000; before anything is timed, its results must be
equal to ours, row by row. Where Bytewax has a choice, it gets the faster one: windows
take values in the order in which they come. PyFlink gets a part of the events, after
the same comparison; see `pyflink_program`.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import aiomailbox as am
from examples.nexmark.catalogue import QUERIES
from examples.nexmark.generator import GeneratorConfig, generate
from examples.nexmark.model import Event, is_auction, is_bid, is_person
from examples.nexmark.queries.per_bid import (
    EUROS_PER_DOLLAR,
    EVERY,
    BidInEuros,
    Price,
)
from examples.nexmark.queries.windows import SIZE_MS, HighestBid, HotItem, NewSeller
from examples.nexmark.streams import strategy
from tests.benchmarks import pyflink_peer
from tests.benchmarks.measure import OURS, Report, Row, System, compare
from tests.benchmarks.peers import bytewax_run, is_installed

SLIDE_MS = 2000
BYTEWAX = "bytewax, source batches of 1,000"
_CONFIG = GeneratorConfig()
_PYFLINK_SHARE = 5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Bytewax's watermarks also advance as real time does: with 5 ms, which is all that the
# events need, it loses results, and it is no faster.
_WAIT = timedelta(minutes=1)

Rows = list[tuple[Any, ...]]
Rowed = Counter[tuple[Any, ...]]
Build = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A query.

    Attributes:
        title: What it does.
        bytewax: Makes Bytewax's stream of results of its operators and the events.
        timed: Whether it asks for event time. Nobody reads the times of those that do
            not.
    """

    title: str
    bytewax: Build
    timed: bool = True


def make_events(count: int) -> list[Event]:
    """Return the events that every system gets."""
    return list(generate(_CONFIG, count))


def nexmark(
    records: int, rounds: int, *, peers: bool, pyflink: str | None = None
) -> Iterator[Report]:
    """Measure each query.

    Args:
        records: How many events there are.
        rounds: How often everything is repeated.
        peers: Whether other libraries run as well.
        pyflink: The interpreter that has PyFlink, if there is one.
    """
    events = make_events(records)
    # The list stands for a source, and no source keeps so much: the collector's full
    # passes, which may or may not fall into a run, are not to look at each event in it.
    gc.collect()
    gc.freeze()
    try:
        for name in CASES:
            report = _report(name, events, rounds, peers)
            if peers and pyflink is None:
                report.notes.append(f"{pyflink_peer.NAME}: not installed")
            elif peers and pyflink is not None:
                _beside_pyflink(report, name, events, rounds, pyflink)
            yield report
    finally:
        gc.unfreeze()


def _report(name: str, events: list[Event], rounds: int, peers: bool) -> Report:
    report = Report(f"NX{name[1:]}", f"Nexmark {name}, {CASES[name].title}")
    systems = [System(OURS, lambda _: ours(name, events))]
    if peers and is_installed("bytewax"):
        _check(name, events[: max(1000, len(events) // 10)])
        systems.append(System(BYTEWAX, lambda _: bytewax(name, events)))
    report.rows = compare(report.work, systems, len(events), rounds, computes=True)
    for system in systems[1:]:
        times = 1 / report.ratio(system.name)
        report.judge(
            f"{OURS}: {times:.2f} x {system.name}, wanted more than 1",
            reached=times > 1,
        )
    return report


def _beside_pyflink(
    report: Report, name: str, events: list[Event], rounds: int, interpreter: str
) -> None:
    some = events[: max(1000, len(events) // _PYFLINK_SHARE)]
    late_ms = _CONFIG.out_of_orderness_ms
    expected = Counter(ours_rows(name, some))
    found = Counter(pyflink_peer.rows(interpreter, name, some, late_ms))
    _compare_rows(name, "PyFlink", expected, found)
    took, results = pyflink_peer.seconds(interpreter, name, some, rounds, late_ms)
    if results != expected.total():
        raise AssertionError(f"{name}: PyFlink had {results} results")
    row = report.row()
    times = row.records / row.seconds * took / len(some)
    report.rows.append(Row(report.work, pyflink_peer.NAME, len(some), took, 1 / times))
    report.judge(
        f"{OURS}: {times:.1f} x {pyflink_peer.NAME}, wanted more than 1",
        reached=times > 1,
    )


def _check(name: str, events: list[Event]) -> None:
    expected = Counter(ours_rows(name, events))
    found = Counter(bytewax_rows(name, events))
    _compare_rows(name, "Bytewax", expected, found)


def _compare_rows(name: str, other: str, expected: Rowed, found: Rowed) -> None:
    if expected != found:
        raise AssertionError(
            f"{name}: of {expected.total()} results {other} lacks "
            f"{(expected - found).total()} and has {(found - expected).total()} others"
        )


def _stream(name: str, events: list[Event]) -> am.DataStream[Any]:
    env = am.StreamExecutionEnvironment()
    time = strategy(_CONFIG) if CASES[name].timed else None
    stream = env.from_collection(events, time)
    return stream.through(QUERIES[name].build)


def ours(name: str, events: list[Event]) -> int:
    """Run a query as a job, and count its results."""
    return am.run(_stream(name, events).count())


def ours_rows(name: str, events: list[Event]) -> Rows:
    """Run a query as a job, and return its results."""

    async def work() -> Rows:
        return [tuple(row) for row in await _stream(name, events).collect()]

    return am.run(work())


def bytewax(name: str, events: list[Event]) -> int:
    """Run a query in Bytewax, and count its results."""
    return bytewax_run(events, CASES[name].bytewax)


def bytewax_rows(name: str, events: list[Event]) -> Rows:
    """Run a query in Bytewax, and return its results."""
    rows: Rows = []
    bytewax_run(events, CASES[name].bytewax, rows)
    return rows


def _clock() -> Any:
    from bytewax.operators.windowing import EventClock

    return EventClock(
        ts_getter=lambda event: datetime.fromtimestamp(event.date_time / 1000, UTC),
        wait_for_system_duration=_WAIT,
    )


def _tumbling() -> Any:
    from bytewax.operators.windowing import TumblingWindower

    return TumblingWindower(length=timedelta(milliseconds=SIZE_MS), align_to=_EPOCH)


def _q1(op: Any, events: Any) -> Any:
    def in_euros(bid: Any) -> BidInEuros:
        price = EUROS_PER_DOLLAR * bid.price
        return BidInEuros(bid.auction, bid.bidder, price, bid.date_time, bid.extra)

    return op.map("euros", op.filter("bids", events, is_bid), in_euros)


def _q2(op: Any, events: Any) -> Any:
    bids = op.filter("bids", events, is_bid)
    chosen = op.filter("chosen", bids, lambda bid: bid.auction % EVERY == 0)
    return op.map("price", chosen, lambda bid: Price(bid.auction, bid.price))


def _q5(op: Any, events: Any) -> Any:
    from bytewax.operators import windowing as win

    windower = win.SlidingWindower(
        length=timedelta(milliseconds=SIZE_MS),
        offset=timedelta(milliseconds=SLIDE_MS),
        align_to=_EPOCH,
    )
    keyed = op.key_on(
        "auction", op.filter("bids", events, is_bid), lambda bid: str(bid.auction)
    )
    counts = win.fold_window(
        "count", keyed, _clock(), windower, int, lambda n, _: n + 1, int.__add__,
        ordered=False,
    )  # fmt: skip

    def by_window(count: Any) -> tuple[str, tuple[int, int]]:
        auction, (window, bids) = count
        return str(window), (int(auction), bids)

    def most(best: Rows, count: tuple[int, int]) -> Rows:
        if not best or count[1] > best[0][1]:
            return [count]
        if count[1] == best[0][1]:
            best.append(count)
        return best

    def hot_items(found: Any) -> Rows:
        window, best = found
        end = int(window) * SLIDE_MS + SIZE_MS
        return [HotItem(auction, bids, end) for auction, bids in best]

    # A key has a watermark of its own: that all counts of a window have come is only
    # known at the end.
    windows = op.map("window", counts.down, by_window)
    return op.flat_map("items", op.fold_final("most", windows, list, most), hot_items)


def _q7(op: Any, events: Any) -> Any:
    from bytewax.operators import windowing as win

    def add(best: list[Any], bid: Any) -> list[Any]:
        if not best or bid.price > best[0].price:
            return [bid]
        if bid.price == best[0].price:
            best.append(bid)
        return best

    def rows(found: Any) -> Rows:
        return [
            HighestBid(bid.auction, bid.price, bid.bidder, bid.date_time, bid.extra)
            for bid in found[1][1]
        ]

    keyed = op.key_on("all", op.filter("bids", events, is_bid), lambda _: "all")
    highest = win.fold_window(
        "highest", keyed, _clock(), _tumbling(), list, add, list.__add__,
        ordered=False,
    )  # fmt: skip
    return op.flat_map("rows", highest.down, rows)


def _q8(op: Any, events: Any) -> Any:
    from bytewax.operators import windowing as win

    def add(found: list[Any], event: Any) -> list[Any]:
        found[is_auction(event)].append(event)
        return found

    def merge(first: list[Any], second: list[Any]) -> list[Any]:
        return [first[0] + second[0], first[1] + second[1]]

    def rows(found: Any) -> Rows:
        _, (window, (persons, auctions)) = found
        if not auctions:
            return []
        start = window * SIZE_MS
        return [NewSeller(person.id, person.name, start) for person in persons]

    persons = op.filter("persons", events, is_person)
    auctions = op.filter("auctions", events, is_auction)
    both = op.merge(
        "both",
        op.key_on("id", persons, lambda person: str(person.id)),
        op.key_on("seller", auctions, lambda auction: str(auction.seller)),
    )
    grouped = win.fold_window(
        "group", both, _clock(), _tumbling(), lambda: [[], []], add, merge,
        ordered=False,
    )  # fmt: skip
    return op.flat_map("rows", grouped.down, rows)


CASES = {
    "q1": Case("currency conversion", _q1, timed=False),
    "q2": Case("selection", _q2, timed=False),
    "q5": Case("hot items: sliding windows of 10 s / 2 s", _q5),
    "q7": Case("highest bid: windows of 10 s, not keyed", _q7),
    "q8": Case("new sellers: two streams in windows of 10 s", _q8),
}
