"""What joins over columns have in common: their keys and sides."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.columnar_operator import ColumnarOperator
from aiomailbox.columnar.join_side import JoinSide
from aiomailbox.columnar.keys import KEYS_OF_ROWS, KeySlots
from aiomailbox.columnar.rows import RowMaker
from aiomailbox.columnar.rows_needed import RowsNeededError
from aiomailbox.operators.core.contract import Pending
from aiomailbox.operators.core.two_input import TwoInputOperator
from aiomailbox.records.run import Run

__all__ = ["PAIRS_MAX", "ColumnarJoin"]

# Pairs of a run that is emitted.
PAIRS_MAX: Final = 16_384
# Whether all keys are still in use is looked up when there are so many.
_KEYS_MIN: Final = 4096


class ColumnarJoin(ColumnarOperator, TwoInputOperator):
    """Lets a join of two inputs work on columns; see `ColumnarOperator`.

    Its pairs are `PairRun`.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._sides = JoinSide(self.key_of_input(0)), JoinSide(self.key_of_input(1))
        self._slots = KeySlots(self._check_keys)
        self._look_at = _KEYS_MIN

    def process_run1(self, run: Run) -> Pending:
        """Join the records of the left stream."""
        return self._join_run(0, run)

    def process_run2(self, run: Run) -> Pending:
        """Join the records of the right stream."""
        return self._join_run(1, run)

    def _join_run(self, side: int, run: Run) -> Pending:
        if self._is_columnar and len(run):
            try:
                taken, times, slots = self._taken(side, run)
            except RowsNeededError as reason:
                self._go_to_rows(str(reason))
            else:
                return self._join(side, taken, times, slots)
        return super().process_run2(run) if side else super().process_run1(run)

    def _join(
        self, side: int, run: ArrowRun, times: np.ndarray, slots: np.ndarray
    ) -> Pending:
        """Keep and join the records of a run.

        Args:
            side: 0 for left, 1 for right.
            run: The records.
            times: Their event times, milliseconds.
            slots: The places of their keys.
        """
        raise TypeError(f"{type(self).__name__} defines no _join")

    def _check_keys(self, keys: list[Any]) -> None:
        """Hold keys to the type that all have."""
        raise TypeError(f"{type(self).__name__} defines no _check_keys")

    def _conform(self, side: int, maker: RowMaker) -> None:
        """Give what is kept of a side other columns.

        Raises:
            RowsNeededError: If rows would be others then; nothing has been changed.
        """
        raise TypeError(f"{type(self).__name__} defines no _conform")

    def _used_slots(self) -> np.ndarray:
        """Return the places of keys that there are records of, ascending."""
        raise TypeError(f"{type(self).__name__} defines no _used_slots")

    def _renumber(self, numbers: np.ndarray) -> None:
        """Give keys other places."""
        raise TypeError(f"{type(self).__name__} defines no _renumber")

    def _taken(self, side: int, run: Run) -> tuple[ArrowRun, np.ndarray, np.ndarray]:
        """Return a run as it is kept, its event times, and the places of its keys.

        Raises:
            RowsNeededError: If the rows have to be asked; nothing has been changed.
        """
        columns, times = self._timed(run)
        mine, schema = self._sides[side], columns.schema
        kinds = [
            schema.field(name).type
            for name in mine.selector.fields
            if name in schema.names
        ]
        if kinds != mine.key_type:
            first = columns.slice(0, 1).key_codes(mine.selector)
            if first is None:
                raise RowsNeededError(KEYS_OF_ROWS)
            self._check_keys(first.distinct)
            mine.key_type = kinds
        slots = self._slots_by(mine.selector, columns)
        return mine.fit(columns, partial(self._conform, side)), times, slots

    def _forget_keys(self) -> None:
        """Forget keys that there is nothing of, when there may be many."""
        if not self._is_columnar or len(self._slots.places) < self._look_at:
            return
        used, keys = self._used_slots(), self._slots.keys
        if 2 * len(used) < len(keys):
            numbers: np.ndarray = np.zeros(len(keys), np.int64)
            numbers[used] = np.arange(len(used))
            self._renumber(numbers)
            self._slots.clear()
            self._slots.place([keys[slot] for slot in used.tolist()])
        self._look_at = max(_KEYS_MIN, 2 * len(self._slots.places))
