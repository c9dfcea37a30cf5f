"""Pairs of records of two sides, as columns that are put together when asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.rows import RowMaker

__all__ = ["PairRun", "Picked"]


class Picked:
    """Records that were picked from several runs of one schema, in any order.

    Args:
        runs: The runs, at least one.
        which: The run of each record; None if there is only one.
        places: Its place there; int64, shape ``(n,)``.

    Example:
        >>> from aiomailbox.columnar.forms import NamedTupleForm
        >>> batch = pa.record_batch({"n": [1, 2, 3]})
        >>> run = ArrowRun(batch, RowMaker(batch.schema, NamedTupleForm()))
        >>> picked = Picked([run, run], np.array([0, 1, 0]), np.array([2, 0, 1]))
        >>> picked.column("n").to_pylist()
        [3, 1, 2]
    """

    __slots__ = ("_parts", "_places", "_runs", "_which")

    def __init__(
        self, runs: list[ArrowRun], which: np.ndarray | None, places: np.ndarray
    ) -> None:
        self._runs = runs
        self._which = which if len(runs) > 1 else None
        self._places = places
        self._parts: tuple[list[ArrowRun], np.ndarray | None] | None = None

    def __len__(self) -> int:
        return len(self._places)

    @property
    def row_maker(self) -> RowMaker:
        """What makes rows of them."""
        return self._runs[0].row_maker

    @property
    def schema(self) -> pa.Schema:
        """Their columns' names and types."""
        return self._runs[0].schema

    def column(self, name: str) -> pa.Array:
        """Return one of their columns."""
        parts, back = self._taken()
        columns = [part.column(name) for part in parts]
        if back is None:
            return columns[0]
        return pa.concat_arrays(columns).take(pa.array(back))

    def values(self) -> list[Any]:
        """Return them as rows."""
        parts, back = self._taken()
        rows = [row for part in parts for row in part.values]
        return rows if back is None else [rows[place] for place in back.tolist()]

    def slice(self, start: int, stop: int) -> Picked:
        """Return records ``start`` to ``stop - 1``."""
        which = None if self._which is None else self._which[start:stop]
        return Picked(self._runs, which, self._places[start:stop])

    def _taken(self) -> tuple[list[ArrowRun], np.ndarray | None]:
        """Return what each run has of them, and where each record is in all of that."""
        if self._parts is None:
            which = self._which
            if which is None:
                self._parts = [_picked(self._runs[0], self._places)], None
            else:
                mine = [np.flatnonzero(which == one) for one in range(len(self._runs))]
                parts = [
                    _picked(run, self._places[places])
                    for run, places in zip(self._runs, mine, strict=True)
                ]
                back: np.ndarray = np.empty(len(which), np.int64)
                back[np.concatenate(mine)] = np.arange(len(which))
                self._parts = parts, back
        return self._parts


class PairRun:
    """Pairs with their event times, as a run of ``(left, right)``.

    Args:
        left: The left records.
        right: The right ones, as many.
        times: Event times in milliseconds, int64.
    """

    __slots__ = ("left", "right", "times")

    def __init__(self, left: Picked, right: Picked, times: np.ndarray) -> None:
        self.left: Picked = left
        self.right: Picked = right
        self.times: np.ndarray = times

    def __len__(self) -> int:
        return len(self.times)

    @property
    def values(self) -> list[Any]:
        """The pairs, as rows."""
        return list(zip(self.left.values(), self.right.values(), strict=True))

    @property
    def timestamps(self) -> list[int]:
        """The event times, milliseconds."""
        times: list[int] = self.times.tolist()
        return times

    def slice(self, start: int, stop: int) -> PairRun:
        """Return pairs ``start`` to ``stop - 1``."""
        return PairRun(
            self.left.slice(start, stop),
            self.right.slice(start, stop),
            self.times[start:stop],
        )


def _picked(run: ArrowRun, places: np.ndarray) -> ArrowRun:
    taken = run.take(places)
    assert type(taken) is ArrowRun, "only columns whose values can be picked are kept"
    return taken
