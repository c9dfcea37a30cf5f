"""Every place that keeps accumulators: how it is made, fed, cut, and gone on with.

Run as a program, ``python -m tests.operators.aggregates.kept FILE``, it writes what each
place keeps of `WRITTEN`, as bytes; ``kept_by_0_1.json`` was written so by release 0.1.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.forms import ClassForm
from aiomailbox.columnar.making import made
from aiomailbox.columnar.rolling import ColumnarAggregateOperator
from aiomailbox.columnar.rows import RowMaker
from aiomailbox.durations import seconds
from aiomailbox.operators.aggregates.functions import aggregates, count, mean, sum_
from aiomailbox.operators.core.fields import field_or_function
from aiomailbox.operators.core.operator import RowsNote
from aiomailbox.operators.functions.process import (
    KeyedProcessFunction,
    KeyedProcessOperator,
)
from aiomailbox.operators.keyed.operators import KeyedAggregateOperator
from aiomailbox.operators.snapshots.codec import decode_snapshot, encode_snapshot
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.state.descriptors import AggregatingStateDescriptor, StateTtlConfig
from aiomailbox.testing import OneInputHarness
from aiomailbox.windowing.assigners import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from aiomailbox.windowing.build import window_operator
from aiomailbox.windowing.triggers import CountTrigger, PurgingTrigger

KEPT_BY_0_1: Final = Path(__file__).parent / "kept_by_0_1.json"


class Row(NamedTuple):
    """What is aggregated."""

    key: str
    v: float


def written() -> Any:
    """Return what release 0.1 has aggregated."""
    return aggregates(n=count(), total=sum_("v"), average=mean("v"))


class Largest:
    """An aggregate function of the user's, which says nothing of its accumulator."""

    def create_accumulator(self) -> list[float]:
        return []

    def add(self, value: Row, accumulator: list[float]) -> list[float]:
        return [max([value.v, *accumulator])]

    def get_result(self, accumulator: list[float]) -> float:
        return accumulator[0]

    def merge(self, first: list[float], second: list[float]) -> list[float]:
        return [max(first + second)]


class InState(KeyedProcessFunction):
    """Keeps an accumulator by itself."""

    def __init__(self, aggregate: Any, ttl: StateTtlConfig | None = None) -> None:
        self.descriptor = AggregatingStateDescriptor("held", aggregate, ttl=ttl)

    def open(self, context: Any) -> None:
        self.held = context.keyed_state.get_aggregating(self.descriptor)

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        self.held.add(value)
        out.collect(self.held.get())


def columnar_windows(*args: Any, **named: Any) -> Any:
    """Return what works on columns, as `window_operator` what works on rows."""
    return made(window_operator, *args, columns=RowsNote(), **named)


def _windows(assigner: Any, make: Any = window_operator, **options: Any) -> Any:
    key: Any = field_or_function("key", "key")
    return lambda aggregate: make(key, assigner, aggregate=aggregate, **options)


_KEY: Final[Any] = field_or_function("key", "key")
_TUMBLING: Final = TumblingEventTimeWindows(100)
_PANED: Final = SlidingEventTimeWindows(120, 40)
_SLIDING: Final = SlidingEventTimeWindows(100, 70)
_SESSIONS: Final = EventTimeSessionWindows(50)
_TRIGGER: Final = PurgingTrigger(CountTrigger(4))

# By name: makes the operator of an aggregate.
ROWS: Final[dict[str, Callable[[Any], Any]]] = {
    "running": lambda one: KeyedAggregateOperator("key", one),
    "in state": lambda one: KeyedProcessOperator("key", InState(one)),
    "in state that expires": lambda one: KeyedProcessOperator(
        "key", InState(one, StateTtlConfig(seconds(3600)))
    ),
    "tumbling": _windows(_TUMBLING),
    "panes": _windows(_PANED),
    "sliding": _windows(_SLIDING),
    "sessions": _windows(_SESSIONS),
    "triggered": _windows(_TUMBLING, trigger=_TRIGGER),
    "triggered sessions": _windows(_SESSIONS, trigger=_TRIGGER),
}
COLUMNS: Final[dict[str, Callable[[Any], Any]]] = {
    "running columns": lambda one: ColumnarAggregateOperator(_KEY, one),
    "tumbling columns": _windows(_TUMBLING, columnar_windows),
    "panes of columns": _windows(_PANED, columnar_windows),
    "sliding columns": _windows(_SLIDING, columnar_windows),
    "sessions of columns": _windows(_SESSIONS, columnar_windows),
}
PLACES: Final = ROWS | COLUMNS

# Before the cut, and after it, in one window of each kind.
BEFORE: Final = [Row("a", 10.5), Row("b", 1.5), Row("a", 2.5), Row("a", 7.0)]
AFTER: Final = [Row("a", 4.0), Row("b", 3.0), Row("b", 0.5), Row("b", 5.0)]


def harness_of(place: str, aggregate: Any, **settings: Any) -> OneInputHarness:
    """Return an operator that is not open yet."""
    return OneInputHarness(PLACES[place](aggregate), keyed=True, **settings)


def feed(harness: OneInputHarness, place: str, rows: list[Row]) -> None:
    """Let it process rows, as columns where it takes them, at one time."""
    stamps = [1_000_020] * len(rows)
    if place in ROWS:
        harness.process_run(rows, stamps)
        return
    batch = pa.RecordBatch.from_pylist([row._asdict() for row in rows])
    run = ArrowRun(batch, RowMaker(batch.schema, ClassForm(Row)), stamps)
    harness.process_run(run)


def cut(place: str, aggregate: Any, **settings: Any) -> bytes:
    """Return what it keeps of `BEFORE`."""
    with harness_of(place, aggregate, **settings) as harness:
        feed(harness, place, BEFORE)
        return encode_snapshot(harness.snapshot())


def went_on(
    place: str,
    data: bytes,
    aggregate: Any,
    *,
    allow_unmatched: bool = False,
    **settings: Any,
) -> list[Any]:
    """Return the results of what was kept and of `AFTER`, those of both keys."""
    snapshot: OperatorSnapshot = decode_snapshot(data, [Row])
    if allow_unmatched:
        keyed = [replace(one, allow_unmatched=True) for one in snapshot.keyed]
        snapshot = replace(snapshot, keyed=tuple(keyed))
    harness = harness_of(place, aggregate, **settings)
    harness.restore(snapshot)
    with harness:
        feed(harness, place, AFTER)
        harness.process_watermark(2_000_000)
        return harness.values


def own_fields(results: list[Any], aggregate: Any) -> set[tuple[Any, ...]]:
    """Return results of several named aggregates without keys and windows."""
    return {
        tuple(getattr(result, name) for name in aggregate.names) for result in results
    }


def write_all() -> dict[str, dict[str, str]]:
    """Return what places keep of `BEFORE`, in base64."""
    cases = {
        "named": {place: cut(place, written()) for place in PLACES},
        "alone": {place: cut(place, sum_("v")) for place in PLACES},
        "own": {place: cut(place, Largest()) for place in ROWS},
    }
    return {
        name: {place: base64.b64encode(data).decode() for place, data in each.items()}
        for name, each in cases.items()
    }


if __name__ == "__main__":
    asyncio.set_event_loop(asyncio.new_event_loop())
    Path(sys.argv[1]).write_text(json.dumps(write_all(), indent=1) + "\n")
