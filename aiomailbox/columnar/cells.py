"""Accumulators of ready-made aggregates, as arrays: a cell each.

Theory of operation: the pieces of an aggregate (`Piece`) do the arithmetic, or say that
only rows give the right result: the caller goes on with rows then, to which every cell can
be given back. What was frozen for a snapshot keeps its own copy of a cell that changes.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Final

import numpy as np
import pyarrow as pa

from aiomailbox.columnar.accumulators import (
    PIECES,
    Added,
    Piece,
    Values,
    copies_of,
    reshaped,
    resized,
    selectors_of,
)
from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.keys import Groups, distinct
from aiomailbox.columnar.types import RowsNeededError
from aiomailbox.operators.aggregates.functions import Aggregate
from aiomailbox.operators.core.fields import ExpressionSelector, FieldSelector

_CELLS_MIN: Final = 64
_FREED_BYTES: Final = 16 << 20
_READABLE: Final = frozenset({FieldSelector, ExpressionSelector})


def needs_rows(aggregate: Any) -> str:
    """Return which part of an aggregate needs rows; "" if columns will do.

    Example:
        >>> from aiomailbox.operators.aggregates.functions import collect_list
        >>> from aiomailbox.operators.aggregates.functions import sum_
        >>> needs_rows(sum_("price")), needs_rows(collect_list("price"))
        ('', "collect_list('price')")
    """
    if not isinstance(aggregate, Aggregate):
        return repr(aggregate)
    for kind, selector in aggregate.pieces:
        fields = kind in PIECES and all(
            type(each) in _READABLE for each in selectors_of(selector)
        )
        if not fields:
            return repr(Aggregate(((kind, selector),)))
    return ""


class Cells:
    """The accumulators of one aggregate.

    Args:
        aggregate: One for which `needs_rows` returns nothing.

    Attributes:
        size: How many cells there are; a cell without a record is empty.
    """

    def __init__(self, aggregate: Aggregate[Any, Any]) -> None:
        self.size: int = 0
        _keep_freed_memory()
        self._added = Added(np.zeros(0, np.int64))
        self._pieces = [
            PIECES[kind](selector, self._added) for kind, selector in aggregate.pieces
        ]
        self._counts_all = any(piece.counts_all for piece in self._pieces)
        self._frozen: list[weakref.ref[FrozenCells]] = []

    def grow(self, size: int) -> None:
        """Have at least so many cells; what is new is empty."""
        if size <= self.size:
            return
        # Doubled, so that growing costs no more than the cells themselves.
        self.size = max(size, 2 * self.size, _CELLS_MIN)
        self._release()
        self._added.counts = resized(self._added.counts, self.size, 0)
        for piece in self._pieces:
            piece.resize(self.size)

    def reshape(self, chosen: np.ndarray, size: int) -> None:
        """Have so many cells, each with what another one had.

        Args:
            chosen: For each new cell which old one; negative for an empty cell. What is
                beyond is empty, too.
            size: How many cells there are then.
        """
        self.size = size
        self._release()
        self._added.counts = reshaped(self._added.counts, chosen, size, 0)
        for piece in self._pieces:
            piece.reshape(chosen, size)

    def read(self, run: ArrowRun) -> list[Values]:
        """Return what each piece reads of a run.

        Raises:
            RowsNeededError: If a column has no numbers, or there is no such column.
        """
        return [piece.read(run) for piece in self._pieces]

    def check_records(self, values: list[Values], cells: np.ndarray) -> None:
        """Raise if only rows give the right result of adding records.

        Args:
            values: What is to be added.
            cells: The cell of each record.

        Raises:
            RowsNeededError: If they do.
        """
        if not len(cells):
            return
        try:
            # As if all went into each cell: that takes no count.
            self.check(values, cells, len(cells))
        except RowsNeededError:
            _, counts = np.unique(cells, return_counts=True)
            self.check(values, cells, int(counts.max()))

    def check(self, values: list[Values], cells: np.ndarray, most: int) -> None:
        """Raise if only rows give the right result, before anything is changed.

        Args:
            values: What is to be added.
            cells: The cells that it is added to; any order, each once or more.
            most: The most records that any of them gets.

        Raises:
            RowsNeededError: If they do.
        """
        for piece, given in zip(self._pieces, values, strict=True):
            piece.check(given, cells, most)

    def add(
        self, values: list[Values], cells: np.ndarray, among: int | None = None
    ) -> None:
        """Add records to their cells, in their order, after `check_records`.

        Args:
            values: What is to be added.
            cells: The cell of each record.
            among: If they are among few first cells, how many these are.
        """
        self.will_change(cells)
        with np.errstate(all="ignore"):
            for piece, given in zip(self._pieces, values, strict=True):
                piece.add(given, cells)
        added = self._added.counts
        # Sums and extremes only ask whether there was something.
        if self._counts_all or among is None or not added[:among].all():
            # `add.at`, as a cell may come several times in one run.
            np.add.at(added, cells, 1)

    def roll(
        self, values: list[Values], groups: Groups, cells: np.ndarray
    ) -> list[pa.Array]:
        """Add records to their cells, after `check`, and return every result on the way.

        Args:
            values: What is to be added.
            groups: Which records go into one cell.
            cells: The cell of each group.

        Returns:
            Per piece a column of shape ``(n,)``.
        """
        self.will_change(cells)
        with np.errstate(all="ignore"):
            made = [
                piece.roll(given, groups, cells)
                for piece, given in zip(self._pieces, values, strict=True)
            ]
        self._added.counts[cells] += groups.lengths
        return made

    def results(self, cells: np.ndarray) -> list[pa.Array]:
        """Return per piece a column of the results of these cells."""
        with np.errstate(all="ignore"):
            return [piece.results(cells) for piece in self._pieces]

    def check_merged(self, times: int) -> None:
        """Raise if so many cells, whichever, may not be merged.

        Raises:
            RowsNeededError: If they may not.
        """
        for piece in self._pieces:
            piece.check_merged(times)

    def merge(self, into: np.ndarray, other: Cells, cells: np.ndarray) -> None:
        """Put what cells have into others, after `check_merged`.

        Args:
            into: The cells that get it, each once.
            other: What the cells are of, maybe this; it stays as it is.
            cells: For each of ``into`` what it gets.
        """
        self.will_change(into)
        with np.errstate(all="ignore"):
            for piece, source in zip(self._pieces, other._pieces, strict=True):
                piece.merge(into, source, cells)
        self._added.counts[into] += other._added.counts[cells]

    def accumulators(self, cells: np.ndarray) -> list[list[Any]]:
        """Return the accumulators of these cells as `Aggregate` has them."""
        columns = [each for piece in self._pieces for each in piece.slots(cells)]
        return list(map(list, zip(*columns, strict=True)))

    def load(self, cells: np.ndarray, accumulators: list[list[Any]]) -> None:
        """Fill cells with accumulators.

        Raises:
            RowsNeededError: If one does not fit; the cells are empty then.
        """
        self.will_change(cells)
        columns = list(zip(*accumulators, strict=True))
        first, counts = 0, []
        try:
            for piece in self._pieces:
                counts.append(piece.load(cells, columns[first : first + piece.width]))
                first += piece.width
        except RowsNeededError:
            # Half-filled cells would be taken for what was kept.
            self.clear(cells)
            raise
        added = self._added.counts
        # Of sums and extremes only whether there is one is known.
        added[cells] = np.max([np.ones(len(cells), np.int64), *counts], axis=0)
        for piece, mine in zip(self._pieces, counts, strict=True):
            piece.keep_counts(cells, mine)

    def clear(self, cells: np.ndarray | slice) -> None:
        """Let cells be empty."""
        if self._frozen:
            is_part = isinstance(cells, slice)
            self.will_change(np.arange(cells.start, cells.stop) if is_part else cells)
        self._added.counts[cells] = 0
        for piece in self._pieces:
            piece.clear(cells)

    def copied(self, cells: np.ndarray | slice) -> Cells:
        """Return these cells, in this order, as others of their own."""
        made = object.__new__(Cells)
        made._pieces, made._frozen = copies_of(self._pieces, cells), []
        made._counts_all = self._counts_all
        made._added = made._pieces[0].added
        made.size = len(made._added.counts)
        return made

    def frozen(self, count: int, *marks: np.ndarray) -> FrozenCells:
        """Return the first cells as they are now, for a thread to read; copies nothing.

        Args:
            count: How many.
            marks: What else is known of each cell; shape ``(count,)``. The caller calls
                `will_change` before it changes one; methods here do it themselves.
        """
        added = Added(self._added.counts)
        pieces = [piece.shared(added) for piece in self._pieces]
        made = FrozenCells(pieces, count, marks)
        self._frozen.append(weakref.ref(made))
        return made

    def _release(self) -> None:
        """Leave the arrays to the frozen cells that share them: these cells get others."""
        self._frozen = []

    def will_change(self, cells: np.ndarray) -> None:
        """Let those that hold on to cells as they were have these."""
        if not self._frozen:
            return
        held = [frozen for each in self._frozen if (frozen := each()) is not None]
        for frozen in held:
            frozen.keep(cells)
        self._frozen = [each for each in self._frozen if each() is not None]


class FrozenCells:
    """Cells as they were at one time, while others go on with them.

    Theory of operation: arrays are shared. Before a cell changes for the first time,
    what it had is put aside, and is read instead. Larger arrays replace others
    and leave these as they are.

    Args:
        pieces: Share their arrays with those that change.
        count: How many cells there are.
        marks: What else is known of each cell.

    Invariants:
        A cell that is not marked as kept has not changed; the lock is held while cells
        are marked and while they are read.
    """

    def __init__(
        self, pieces: list[Piece], count: int, marks: tuple[np.ndarray, ...] = ()
    ) -> None:
        self._pieces = pieces
        self._marks = marks
        self._is_kept: np.ndarray = np.zeros(count, np.bool_)
        # Which cells, ascending, and what they had.
        self._kept: list[tuple[np.ndarray, list[Piece], list[np.ndarray]]] = []
        self._lock = threading.Lock()

    def keep(self, cells: np.ndarray) -> None:
        """Put aside what cells have that are about to change; called before they do."""
        mine = cells[cells < len(self._is_kept)]
        mine = distinct(mine[~self._is_kept[mine]])
        if len(mine):
            with self._lock:
                pieces = copies_of(self._pieces, mine)
                marks = [one[mine] for one in self._marks]
                self._kept.append((mine, pieces, marks))
                self._is_kept[mine] = True

    def accumulators(self, cells: np.ndarray) -> list[list[Any]]:
        """Return the accumulators of these cells, in any thread."""
        with self._lock:
            found = copies_of(self._pieces, cells)
            kept = self._kept[:]
        for known, pieces, _ in kept:
            mine, places = _common(cells, known)
            for piece, old in zip(found, pieces, strict=True):
                piece.put_back(mine, old, places)
        every = np.arange(len(cells))
        columns = [each for piece in found for each in piece.slots(every)]
        return list(map(list, zip(*columns, strict=True)))

    def marks(self, first: int, last: int) -> list[np.ndarray]:
        """Return the marks of cells ``first`` to ``last - 1``, in any thread."""
        with self._lock:
            found = [one[first:last].copy() for one in self._marks]
            kept = self._kept[:]
        for known, _, marks in kept:
            start, stop = np.searchsorted(known, (first, last))
            for one, old in zip(found, marks, strict=True):
                one[known[start:stop] - first] = old[start:stop]
        return found


def _common(cells: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of what both have: in the first, in the other that ascends."""
    places = np.minimum(np.searchsorted(known, cells), len(known) - 1)
    mine = np.flatnonzero(known[places] == cells)
    return mine, places[mine]


def _keep_freed_memory() -> None:
    """Let the allocator keep what arrays of a run need, from one run to the next.

    Glibc gives blocks of 128 KiB back to the system, and pages of new ones must be
    cleared: that was two thirds of a fold's time. It raises its limits, the one for
    trimming to twice as much, when a larger block is freed. Other allocators ignore it.
    """
    np.empty(_FREED_BYTES, np.uint8)
