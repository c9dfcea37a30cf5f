"""Queries over events that come as columns: q1, q2, q5, q7 and q8, by field names.

The largest count of a window is no aggregate here, because several auctions may have it.
So a function of whole batches keeps the candidates of each batch, and only these few
become rows.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import aiomailbox as am
from examples.nexmark.arrow_events import AUCTION, BID, PERSON
from examples.nexmark.queries.per_bid import EUROS_PER_DOLLAR, EVERY
from examples.nexmark.queries.windows import (
    SIZE,
    SIZE_MS,
    SLIDE,
    HighestBids,
    most_bids,
)

Events = am.DataStream[Any]
Results = am.DataStream[Any]

KIND = pc.field("kind")
BID_FIELDS = ("auction", "bidder", "price", "date_time", "extra")


def q1(events: Events) -> Results:
    """Currency conversion: bids with prices in euro cents."""
    bids = events.filter(KIND == BID).select(*BID_FIELDS)
    return bids.with_columns(price=pc.field("price") * EUROS_PER_DOLLAR)


def q2(events: Events) -> Results:
    """Selection: bids for some auctions."""
    auction = pc.field("auction")
    is_chosen = auction - auction / EVERY * EVERY == 0
    return events.filter((KIND == BID) & is_chosen).select("auction", "price")


def q5(events: Events) -> Results:
    """Hot items: every 2 s, the auctions with the most bids in the last 10 s."""
    return (
        events.filter(KIND == BID)
        .key_by("auction")
        .window(am.SlidingEventTimeWindows.of(SIZE, SLIDE))
        .aggregate(am.aggregates(bids=am.count()))
        .map_batches(
            partial(highest_in_batch, by="bids", time="window_end", size_ms=1),
            timestamps="window_end",
        )
        .window_all(am.TumblingEventTimeWindows.of(SLIDE))
        .apply(most_bids)
    )


def q7(events: Events) -> Results:
    """Highest bid: of every 10 s."""
    return (
        events.filter(KIND == BID)
        .select(*BID_FIELDS)
        .map_batches(
            partial(highest_in_batch, by="price", time="date_time", size_ms=SIZE_MS),
            timestamps="date_time",
        )
        .window_all(am.TumblingEventTimeWindows.of(SIZE))
        .aggregate(HighestBids())
        .flat_map(list)
    )


def q8(events: Events) -> Results:
    """Monitor new users: who registered and opened auctions in the same 10 s."""
    is_person = KIND == PERSON
    who = pc.if_else(is_person, pc.field("id"), pc.field("seller"))
    return (
        events.filter(KIND != BID)
        .select("kind", "name", who=who)
        .key_by("who")
        .window(am.TumblingEventTimeWindows.of(SIZE))
        .aggregate(
            am.aggregates(
                name=am.max_("name"),
                persons=am.count(where=is_person),
                auctions=am.count(where=KIND == AUCTION),
            )
        )
        .filter((pc.field("persons") > 0) & (pc.field("auctions") > 0))
        .rename({"key": "id"})
        .select("id", "name", "window_start")
    )


def highest_in_batch(
    batch: pa.RecordBatch, *, by: str, time: str, size_ms: int
) -> pa.RecordBatch:
    """Return the records that have the most of the batch in a window of their time."""
    numbers = batch.column(by).to_numpy()
    windows = batch.column(time).cast(pa.int64()).to_numpy() // size_ms
    kept = np.zeros(len(numbers), np.bool_)
    for window in np.unique(windows):
        mine = windows == window
        kept |= mine & (numbers == numbers[mine].max())
    return batch.filter(pa.array(kept))
