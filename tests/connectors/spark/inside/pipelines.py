"""Pipelines whose results do not depend on how their inputs are interleaved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow.compute as pc

import aiomailbox as am


class Pair(NamedTuple):
    """What all of them return."""

    id: int
    value: int


def as_pair(row: Any) -> Pair:
    return Pair(row.id, row.id)


def timed(rows: Any) -> Any:
    """Give rows event times, each ten milliseconds after the one before."""
    strategy = am.WatermarkStrategy.for_bounded_out_of_orderness(am.seconds(1))
    return rows.assign_timestamps_and_watermarks(
        strategy.with_timestamp_assigner(lambda row: row.id * 10)
    )


@am.pipeline
def stateless(rows: Any) -> Any:
    return rows.filter(lambda row: row.id % 3).map(lambda row: Pair(row.id, 2 * row.id))


@am.pipeline
def enriched(rows: Any) -> Any:
    async def look_up(row: Any) -> Pair:
        await asyncio.sleep(0.001)
        return Pair(row.id, row.id + 1)

    return rows.map_async(look_up, concurrency=64)


@am.pipeline
def counted(rows: Any) -> Any:
    """A running count per key: 1, 2, 3 whatever the order."""
    ones = rows.map(lambda row: Pair(row.id % 7, 1)).key_by("id")
    return ones.reduce(lambda one, other: Pair(one.id, one.value + other.value))


@am.pipeline
def windowed(rows: Any) -> Any:
    return (
        timed(rows)
        .key_by(lambda row: row.id % 7)
        .window(am.TumblingEventTimeWindows.of(am.seconds(2)))
        .reduce(lambda one, other: one if one.id > other.id else other)
        .map(as_pair)
    )


@am.pipeline
def joined(left: Any, right: Any) -> Any:
    third = right.filter(lambda row: row.id % 3 == 0)
    return (
        timed(left)
        .key_by(lambda row: row.id % 5)
        .interval_join(timed(third).key_by(lambda row: row.id % 5))
        .between(am.millis(-20), am.millis(60))
        .process(lambda one, other: Pair(one.id, other.id))
    )


# Each with the number of its inputs.
FIVE: dict[str, tuple[Any, int]] = {
    "stateless": (stateless, 1),
    "async enrichment": (enriched, 1),
    "keyed reduce": (counted, 1),
    "event-time windows": (windowed, 1),
    "interval join": (joined, 2),
}


@am.pipeline
def full_windows(rows: Any) -> Any:
    """How many rows are in windows of five, every second one of a key."""
    windows = rows.key_by(lambda row: row.id % 7).count_window(5, 2)
    return windows.aggregate(am.count()).map(lambda n: Pair(n, 0))


@am.pipeline
def totals(rows: Any) -> Any:
    """One result a key, from columns where rows come as columns."""
    sevens = rows.with_columns(seven=pc.bit_wise_and(pc.field("id"), 7)).key_by("seven")
    found = sevens.full_window_partition().aggregate(
        am.aggregates(n=am.count(), most=am.max_("id"))
    )
    return found.map(lambda row: Pair(row.key, 10_000 * row.n + row.most))


@am.pipeline
def in_order(rows: Any) -> Any:
    """Neighbours in the order of each key, sorted in less memory than they take."""
    parts = rows.key_by(lambda row: row.id % 7).full_window_partition()
    falling = parts.sort_partition("id", descending=True, memory_bytes=1000)
    parts = falling.key_by(lambda row: row.id % 7).full_window_partition()
    return parts.map_partition(
        lambda found: [Pair(one.id, two.id) for one, two in pairwise(found)]
    )


@am.pipeline
def largest(rows: Any) -> Any:
    """The largest row of all, by those of each subtask."""
    some = rows.full_window_partition().reduce(lambda one, two: max(one, two))
    one = (
        some.rebalance().full_window_partition().reduce(lambda one, two: max(one, two))
    )
    return one.set_parallelism(1).map(as_pair)


# What comes when the input has ended, or so many records have come.
AT_END: dict[str, tuple[Any, int]] = {
    "count windows": (full_windows, 1),
    "totals": (totals, 1),
    "sorted partitions": (in_order, 1),
    "reduced subtasks": (largest, 1),
}

LATE = am.OutputTag("late")
# A row a millisecond. Three seconds behind, a window has fired and goes on; ten seconds
# behind, it is over: wherever runs end, which have a thousand rows at most.
OUT_OF_ORDER = [
    *range(12_000),
    *range(9_000, 9_500, 50),
    *range(0, 1_000, 50),
    *range(12_000, 13_000),
]


@am.pipeline
def lateness(rows: Any) -> Any:
    """Windows with lateness, and what is too late with a negative id."""
    strategy = am.WatermarkStrategy.for_bounded_out_of_orderness(am.millis(100))
    windows = (
        rows.assign_timestamps_and_watermarks(
            strategy.with_timestamp_assigner(
                lambda row: row.id
            ).with_watermarks_on_bounded_input()
        )
        # Two would wait for each other.
        .set_parallelism(1)
        .key_by(lambda row: row.id % 3)
        .window(am.TumblingEventTimeWindows.of(am.seconds(1)))
        .allowed_lateness(am.seconds(5))
        .side_output_late_data(LATE)
        .reduce(lambda one, other: one if one.id > other.id else other)
    )
    late = windows.get_side_output(LATE).map(lambda row: Pair(-1 - row.id, 0))
    return windows.map(as_pair).union(late)


def _windowed(rows: Any) -> Any:
    return (
        rows.key_by(lambda row: row.id % 7)
        .window(am.TumblingEventTimeWindows.of(am.seconds(2)))
        .reduce(lambda one, other: max(one, other))
        .map(lambda row: Pair(*row))
    )


def _joined(rows: Any) -> Any:
    some = rows.filter(lambda row: row.id % 50 == 0).key_by(lambda row: row.id % 5)
    return (
        some.interval_join(some)
        .between(am.millis(-500), am.millis(500))
        .process(lambda one, other: Pair(one.id, other.id))
    )


def _keyed_count(rows: Any) -> Any:
    return (
        rows.key_by(lambda row: row.id % 11)
        .reduce(lambda one, other: Pair(one.id % 11, 0))
        .map(lambda row: Pair(row.id % 11, 0))
    )


STEPS: dict[str, Callable[[Any], Any]] = {
    "map": lambda rows: rows.map(lambda row: Pair(row.id, row.value + 1)),
    "filter": lambda rows: rows.filter(lambda row: row.id % 4),
    "flat_map": lambda rows: rows.flat_map(lambda row: [row] * (row.id % 3)),
    "rebalance": lambda rows: rows.rebalance().map(lambda row: row),
    "narrow": lambda rows: rows.map(lambda row: row).set_parallelism(1),
    "broadcast": lambda rows: rows.broadcast().map(lambda row: row),
    "count by key": _keyed_count,
    "windows": _windowed,
    "join": _joined,
    "union": lambda rows: rows.filter(lambda row: row.id % 2).union(rows),
}
