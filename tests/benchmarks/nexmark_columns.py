"""Nexmark q1, q2, q5, q7 and q8 over events as Arrow batches, beside Bytewax.

Ours are the queries of ``examples/nexmark/queries/columns.py``. Events are one stream, as
from one topic, with a column that says their kind. Bytewax has no columns: it gets the same
events as tuples that are there already, which spares it making them, and does with them what
it does in `nexmark`. For queries without windows there is also what is left of Bytewax where
each of its items is a whole batch, and pyarrow does the work.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import aiomailbox as am
from examples.nexmark.arrow_events import BID, arrow_stream, event_batches
from examples.nexmark.generator import GeneratorConfig
from examples.nexmark.model import Event
from examples.nexmark.queries import columns
from examples.nexmark.queries.per_bid import EUROS_PER_DOLLAR, EVERY
from tests.benchmarks import nexmark
from tests.benchmarks.measure import OURS, Report, System, compare
from tests.benchmarks.peers import bytewax_run, is_installed

_CONFIG = GeneratorConfig()
_BY_BATCH = "bytewax, whole batches to pyarrow"
# The part of the events that Bytewax gets: some of its windows take seconds for these.
_SHARE = 0.2
_FLOOR, _WISHED = 10, 30


def reports(records: int, rounds: int, *, peers: bool) -> Iterator[Report]:
    """Measure each query.

    Args:
        records: How many events there are.
        rounds: How often everything is repeated.
        peers: Whether Bytewax runs as well.
    """
    events, _ = made(records), batches(records)
    few = events[: max(1000, records // 50)]
    gc.collect()
    gc.freeze()
    try:
        for name, case in nexmark.CASES.items():
            by_rows = Counter(nexmark.ours_rows(name, few))
            assert Counter(rows(name, few)) == by_rows, (
                f"{name} differs from that of rows"
            )
            report = Report(f"NX{name[1:]}c", f"Nexmark {name}, {case.title}: columns")
            systems = [System(OURS, lambda n, name=name: ours(name, n))]
            if peers and is_installed("bytewax"):
                systems += _bytewax(name)
            report.rows = compare(report.work, systems, records, rounds, computes=True)
            _judge(report)
            yield report
    finally:
        gc.unfreeze()


def _judge(report: Report) -> None:
    for row in report.rows:
        if row.system == nexmark.BYTEWAX:
            times, by_cpu = 1 / row.ratio, 1 / row.cpu_ratio
            report.judge(
                f"{OURS}: {times:.1f} x {row.system} ({by_cpu:.1f} by processor time), "
                f"wanted at least {_FLOOR}, wished {_WISHED}",
                reached=times >= _FLOOR,
            )


def _bytewax(name: str) -> list[System]:
    systems = [
        System(nexmark.BYTEWAX, lambda n: nexmark.bytewax(name, made(n)), share=_SHARE)
    ]
    if name in _WHOLE:
        build = _WHOLE[name]
        systems.append(System(_BY_BATCH, lambda n: _by_batch(build, n)))
    return systems


@cache
def made(count: int) -> list[Event]:
    """Return so many events."""
    return nexmark.make_events(count)


@cache
def batches(count: int) -> list[pa.RecordBatch]:
    """Return the same events as Arrow batches."""
    return event_batches(made(count))


def stream(name: str, given: list[pa.RecordBatch]) -> am.DataStream[Any]:
    """Return the results of a query."""
    env = am.StreamExecutionEnvironment()
    events = arrow_stream(env, _CONFIG, given, timed=nexmark.CASES[name].timed)
    return events.through(getattr(columns, name))


def ours(name: str, count: int) -> int:
    """Run a query as a job that hands its results over as batches, and count them."""

    async def work() -> int:
        results = stream(name, batches(count)).arrow_batches()
        return sum([batch.num_rows async for batch in results])

    return am.run(work())


def rows(name: str, events: list[Event]) -> list[tuple[Any, ...]]:
    """Run a query, and return its results as the query of rows does."""
    found = am.run(stream(name, event_batches(events)).collect())
    if name == "q8":
        found = [
            row._replace(window_start=round(row.window_start.timestamp() * 1000))
            for row in found
        ]
    return [tuple(row) for row in found]


def _by_batch(build: Callable[[pa.RecordBatch], pa.RecordBatch], count: int) -> int:
    kept: list[pa.RecordBatch] = []
    bytewax_run(
        batches(count), lambda op, items: op.map("batch", items, build), kept, batch=1
    )
    return sum(batch.num_rows for batch in kept)


def _q1(batch: pa.RecordBatch) -> pa.RecordBatch:
    bids = batch.select(["kind", *columns.BID_FIELDS]).filter(
        pc.equal(batch["kind"], BID)
    )
    prices = pc.multiply(bids["price"].cast(pa.float64()), EUROS_PER_DOLLAR)
    place = bids.schema.get_field_index("price")
    return bids.set_column(place, "price", prices)


def _q2(batch: pa.RecordBatch) -> pa.RecordBatch:
    auction = batch["auction"]
    rest = pc.subtract(auction, pc.multiply(pc.divide(auction, EVERY), EVERY))
    mask = pc.and_(pc.equal(batch["kind"], BID), pc.equal(rest, 0))
    return batch.select(["auction", "price"]).filter(mask)


_WHOLE = {"q1": _q1, "q2": _q2}
