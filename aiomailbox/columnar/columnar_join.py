"""What joins over columns have in common: keys, sides, and the way back to rows."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.join_side import JoinSide
from aiomailbox.columnar.keys import KEYS_OF_ROWS, KeySlots
from aiomailbox.columnar.rows import RowMaker
from aiomailbox.columnar.rows_needed import NOT_ON_THE_HEAP, RowsNeededError
from aiomailbox.operators import (
    Pending,
    RowsNote,
    StatefulOperator,
    TwoInputOperator,
    in_pieces,
    then,
)
from aiomailbox.records import Run
from aiomailbox.state import HeapStateStore

__all__ = ["PAIRS_MAX", "ColumnarJoin"]

# Pairs of a run that is emitted.
PAIRS_MAX: Final = 16_384
# Beyond it, the arithmetic of times might leave 64 bits.
_TIME_MAX: Final = 2**61
# Whether all keys are still in use is looked up when there are so many.
_KEYS_MIN: Final = 4096


class ColumnarJoin(StatefulOperator, TwoInputOperator):
    """Lets a join of two inputs work on columns as long as both get them.

    With the first run of rows, or the first value for which only Python has the right
    result, all becomes rows, for good. It stands before the operator of rows among the
    bases of a class, whose pairs are `PairRun` then.
    """

    takes_columns = True

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._sides = JoinSide(self.key_of_input(0)), JoinSide(self.key_of_input(1))
        self._slots = KeySlots(self._check_keys)
        self._look_at = _KEYS_MIN
        self.rows_note: RowsNote = RowsNote()

    def open(self) -> Pending:
        """Bind the state, and take over what a restore has put into rows."""
        return then(super().open(), self._open_columns)

    def _open_columns(self) -> Pending:
        # What another backend keeps is there because it does not fit into memory.
        self._is_columnar = isinstance(self.context.keyed_state, HeapStateStore)
        self.context.metrics.gauge("columnar", lambda: int(self._is_columnar))
        self.rows_note.reason = "" if self._is_columnar else NOT_ON_THE_HEAP
        if not self._is_columnar:
            return None
        return then(in_pieces(self._load_some), self._loaded)

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

    def _load_next(self, count: int) -> int:
        """Take about so much out of the state of rows; return how much it was.

        Raises:
            RowsNeededError: If it has to stay rows.
        """
        raise TypeError(f"{type(self).__name__} defines no _load_next")

    def _loaded(self) -> None:
        """Be notified that all that a restore had put into rows is in columns."""

    def _give_back(self) -> int:
        """Give all that is kept to the state of rows; return how much it was."""
        raise TypeError(f"{type(self).__name__} defines no _give_back")

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
        times = run.event_times if type(run) is ArrowRun else None
        if times is None or type(run) is not ArrowRun:
            raise RowsNeededError("records came as rows, or without event times")
        if int(times.min()) < -_TIME_MAX or int(times.max()) > _TIME_MAX:
            raise RowsNeededError("an event time is at the limits of 64 bits")
        mine = self._sides[side]
        fields, alone = mine.selector.fields, mine.selector.is_alone
        kinds = [run.schema.field(n).type for n in fields if n in run.schema.names]
        if kinds != mine.key_type:
            first = run.slice(0, 1).key_codes(mine.selector)
            if first is None:
                raise RowsNeededError(KEYS_OF_ROWS)
            self._check_keys(first.distinct)
            mine.key_type = kinds
        slots = self._slots.of_batch(run, run.row_maker, fields, alone)
        if slots is None:
            raise RowsNeededError(KEYS_OF_ROWS)
        fit = mine.fit(run, partial(self._conform, side))
        return fit, times, slots

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

    def _load_some(self, count: int) -> bool:
        while count > 0:
            try:
                loaded = self._load_next(count)
            except RowsNeededError as reason:
                self._go_to_rows(str(reason))
                return True
            if not loaded:
                return True
            count -= loaded
        return False

    def _go_to_rows(self, reason: str) -> None:
        """Give all to the state of rows, and leave columns alone from now on."""
        self._is_columnar = False
        self.rows_note.take(reason)
        had = self._give_back()
        self._slots.clear()
        if had:
            self.context.log.info("works on rows from now on", reason=reason)
