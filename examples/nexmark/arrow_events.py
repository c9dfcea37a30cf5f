"""The events as Arrow batches: one stream, with a column that says which kind each is.

That is how a topic or a table of events comes. A record has the fields of all kinds, and
null in those that its kind has not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

import aiomailbox as am
from examples.nexmark.generator import GeneratorConfig
from examples.nexmark.model import Auction, Bid, Event, Person
from examples.nexmark.streams import strategy

PERSON, AUCTION, BID = range(3)
BATCH_ROWS = 16_384
_NUMBERS = {
    "id", "date_time", "initial_bid", "reserve", "expires", "seller", "category",
    "auction", "bidder", "price",
}  # fmt: skip


def event_batches(events: Iterable[Event]) -> list[pa.RecordBatch]:
    """Return events as record batches, in their order."""
    kinds: dict[Any, int] = {Person: PERSON, Auction: AUCTION, Bid: BID}
    fields = dict.fromkeys(name for kind in kinds for name in kind._fields)
    schema = pa.schema(
        [("kind", pa.int8())]
        + [(name, pa.int64() if name in _NUMBERS else pa.string()) for name in fields]
    )
    of_kind: dict[Any, list[Event]] = {kind: [] for kind in kinds}
    places: dict[Any, list[int]] = {kind: [] for kind in kinds}
    for place, event in enumerate(events):
        of_kind[type(event)].append(event)
        places[type(event)].append(place)
    tables: list[pa.Table] = []
    for kind, mine in of_kind.items():
        columns = dict(zip(kind._fields, zip(*mine, strict=True), strict=False))
        there: dict[str, Any] = {"kind": [kinds[kind]] * len(mine), **columns}
        nulls = [None] * len(mine)
        arrays = [
            pa.array(there.get(name, nulls), type_)
            for name, type_ in zip(schema.names, schema.types, strict=True)
        ]
        tables.append(pa.table(arrays, schema=schema))
    placed = [place for mine in places.values() for place in mine]
    order = sorted(range(len(placed)), key=placed.__getitem__)
    table = pa.concat_tables(tables).take(pa.array(order, pa.int64()))
    return table.combine_chunks().to_batches(BATCH_ROWS)


def arrow_stream(
    env: am.StreamExecutionEnvironment,
    config: GeneratorConfig,
    batches: list[pa.RecordBatch],
    *,
    timed: bool = True,
) -> am.DataStream[Any]:
    """Begin a stream of such batches, with event times or without."""
    time = strategy(config) if timed else None
    return env.from_arrow(batches, time, name="events")
