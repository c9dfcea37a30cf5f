"""Windows of two sides that are columns, as the state of rows has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from aiomailbox.columnar.window_pairs import Part
from aiomailbox.windowing.time_window import TimeWindow

__all__ = ["FrozenWindow", "JoinedRows", "JoinedTimers"]


class FrozenWindow(NamedTuple):
    """A window as it was.

    Attributes:
        start: Where it begins.
        parts: Its records.
        silent: The keys of which its end emits nothing more; None for all.
        gone: The keys of which it has nothing more.
    """

    start: int
    parts: list[Part]
    silent: np.ndarray | None
    gone: np.ndarray


class JoinedRows:
    """The records of windows as the state of rows has them.

    Args:
        windows: The windows.
        size: How long they are, milliseconds.
        lateness: How much longer they are kept, milliseconds.
        keys: The keys, by their places.
    """

    __slots__ = ("_keys", "_lateness", "_size", "_windows")
    width = 3

    def __init__(
        self,
        windows: list[FrozenWindow],
        size: int,
        lateness: int,
        keys: list[Any],
    ) -> None:
        self._windows = windows
        self._size = size
        self._lateness = lateness
        self._keys = keys

    def entries(self) -> Iterator[tuple[Any, TimeWindow, list[Any]]]:
        """Yield keys, windows and records with their sides."""
        for start, parts, _, gone in self._windows:
            window = TimeWindow(start, start + self._size)
            found: dict[int, list[Any]] = {}
            for part in parts:
                rows = part.run.take(part.places).values
                for slot, row in zip(part.slots.tolist(), rows, strict=True):
                    found.setdefault(slot, []).append((part.side, row))
            for slot in gone.tolist():
                found.pop(slot, None)
            for slot, records in found.items():
                yield self._keys[slot], window, records

    def columns(self, count: int) -> Iterator[tuple[list[Any], ...]]:
        """Yield keys, windows and records, so many at a time."""
        return _by_columns(self.entries(), count)

    def timers(self) -> Iterator[tuple[Any, TimeWindow, int]]:
        """Yield keys, windows, and when they end or are over."""
        for start, parts, silent, gone in self._windows:
            window = TimeWindow(start, start + self._size)
            end = window.max_timestamp
            slots, firsts = np.unique(
                np.concatenate([part.slots for part in parts]), return_index=True
            )
            # In the order in which keys came, which is that of rows.
            slots = slots[np.argsort(firsts)]
            slots = slots[~np.isin(slots, gone)]
            if silent is not None:
                for slot in slots[~np.isin(slots, silent)].tolist():
                    yield self._keys[slot], window, end
            if self._lateness:
                for slot in slots.tolist():
                    yield self._keys[slot], window, end + self._lateness


class JoinedTimers:
    """The timers that the operator of rows would have registered."""

    __slots__ = ("_rows",)
    width = 3

    def __init__(self, rows: JoinedRows) -> None:
        self._rows = rows

    def columns(self, count: int) -> Iterator[tuple[list[Any], ...]]:
        """Yield keys, windows and timestamps, so many at a time."""
        return _by_columns(self._rows.timers(), count)


def _by_columns(
    entries: Iterable[tuple[Any, ...]], count: int
) -> Iterator[tuple[list[Any], ...]]:
    some: list[tuple[Any, ...]] = []
    for entry in entries:
        some.append(entry)
        if len(some) >= count:
            yield tuple(map(list, zip(*some, strict=True)))
            some = []
    if some:
        yield tuple(map(list, zip(*some, strict=True)))
