"""Which intervals of a key touch each other, found for all keys at once."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from aiomailbox.columnar.groups import distinct, stable_order
from aiomailbox.columnar.rows_needed import RowsNeededError

__all__ = ["Touching", "find_touching"]

_INT64_MAX: Final = 2**63 - 1


class Touching(NamedTuple):
    """Stretches of time that intervals of a key cover without a hole.

    Attributes:
        slots: The place of each stretch's key.
        starts: Where it begins.
        ends: Where it ends.
        simple: Whether it has at most one of the other intervals, and each record, when
            it comes, touches what has come before.
        of_records: The stretch of each record.
        of_others: The stretch of each of the other intervals.
    """

    slots: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    simple: np.ndarray
    of_records: np.ndarray
    of_others: np.ndarray


def find_touching(
    slots: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    other_slots: np.ndarray,
    other_starts: np.ndarray,
    other_ends: np.ndarray,
) -> Touching:
    """Find the stretches that intervals of records, all of a length, make with others.

    Args:
        slots: The places of the records' keys; of shape ``(n,)``, ``n >= 1``.
        starts: Where their intervals begin, in the order in which they come.
        ends: Where they end; intervals that have a point in common touch, also an end.
        other_slots: The places of the other intervals' keys.
        other_starts: Where these begin.
        other_ends: Where they end. They do not touch each other.

    Raises:
        RowsNeededError: If the times are too far apart for the arithmetic.

    Example:
        >>> a = np.array
        >>> found = find_touching(
        ...     a([0, 1, 0]), a([5, 5, 40]), a([15, 15, 50]), a([0]), a([12]), a([20])
        ... )
        >>> found.starts.tolist(), found.ends.tolist(), found.of_records.tolist()
        ([5, 40, 5], [20, 50, 15], [0, 2, 1])
    """
    count = len(starts)
    all_slots = np.concatenate([slots, other_slots])
    all_starts = np.concatenate([starts, other_starts])
    all_ends = np.concatenate([ends, other_ends])
    base = int(all_starts.min())
    # Times of a key are beyond those of the keys before it.
    beyond = int(all_ends.max()) - base + 1
    keys = int(all_slots.max()) + 1
    if max(keys, len(all_starts)) * beyond * 2 > _INT64_MAX:
        raise RowsNeededError("event times of a run are too far apart")
    shift = all_slots * beyond - base
    lows, highs = all_starts + shift, all_ends + shift
    order = _sorted_places(lows, keys * beyond)
    lows, highs = lows[order], highs[order]
    reached = np.maximum.accumulate(highs)
    begins: np.ndarray = np.ones(len(order), np.bool_)
    begins[1:] = lows[1:] > reached[:-1]
    firsts = np.flatnonzero(begins)
    stretches: np.ndarray = np.empty(len(order), np.int64)
    stretches[order] = np.cumsum(begins) - 1
    of_records, of_others = stretches[:count], stretches[count:]
    shift = shift[order][firsts]
    found_ends = reached[np.append(firsts[1:], len(order)) - 1] - shift
    others = np.bincount(of_others, minlength=len(firsts))
    simple = others <= 1
    low = np.full(len(firsts), 2 * beyond)
    high = np.full(len(firsts), -beyond)
    low[of_others], high[of_others] = other_starts - base, other_ends - base
    simple[_strays(of_records, starts - base, ends - base, low, high, beyond)] = False
    return Touching(
        all_slots[order][firsts],
        lows[firsts] - shift,
        found_ends,
        simple,
        of_records,
        of_others,
    )


def _strays(
    stretches: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    beyond: int,
) -> np.ndarray:
    """Return stretches of which a record touches nothing that has come before.

    Args:
        stretches: Of the records, in the order in which they come.
        starts: Where their intervals begin, from 0.
        ends: Where these end, less than ``beyond``.
        low: Where what is there of each stretch before begins; twice ``beyond`` for
            nothing.
        high: Where that ends.
        beyond: No time is so late.
    """
    order = stable_order(stretches, len(low))
    mine, starts, ends = stretches[order], starts[order], ends[order]
    first: np.ndarray = np.ones(len(mine), np.bool_)
    first[1:] = mine[1:] != mine[:-1]
    shift = mine * beyond
    # What a stretch covers up to each record: between its least start and latest end.
    up, down = ends + shift, beyond - starts + shift
    firsts = np.flatnonzero(first)
    before = mine[firsts]
    up[firsts] = np.maximum(up[firsts], high[before] + shift[firsts])
    down[firsts] = np.maximum(down[firsts], beyond - low[before] + shift[firsts])
    highest = np.maximum.accumulate(up) - shift
    lowest = beyond + shift - np.maximum.accumulate(down)
    strays = first.copy()
    strays[1:] = ~first[1:] & ((starts[1:] > highest[:-1]) | (ends[1:] < lowest[:-1]))
    strays[firsts] = (low[before] < 2 * beyond) & (
        (starts[firsts] > high[before]) | (ends[firsts] < low[before])
    )
    found: np.ndarray = distinct(mine[strays])
    return found


def _sorted_places(numbers: np.ndarray, limit: int) -> np.ndarray:
    """Return the places of numbers from 0 to a limit, in their order."""
    count = len(numbers)
    places: np.ndarray
    if limit * count > _INT64_MAX:
        places = np.argsort(numbers, kind="stable")
        return places
    # To sort numbers takes a fraction of what it takes to sort places.
    packed = numbers * count + np.arange(count)
    packed.sort()
    places = packed % count
    return places
