"""What operators on columns have in common: restored state, and the way back to rows."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.keys import KEYS_OF_ROWS, KeySlots
from aiomailbox.columnar.rows_needed import RowsNeededError
from aiomailbox.operators.core.contract import Pending, then
from aiomailbox.operators.core.pieces import in_pieces
from aiomailbox.operators.core.rows_note import RowsNote
from aiomailbox.operators.keyed.stateful import StatefulOperator
from aiomailbox.records.run import Run
from aiomailbox.state.heap import HeapStateStore

__all__ = ["ColumnarOperator"]

# Beyond it, the arithmetic of times might leave 64 bits.
_TIME_MAX: Final = 2**61


class ColumnarOperator(StatefulOperator):
    """Lets an operator of rows work on columns as long as it gets any.

    With the first run of rows, or the first value for which only Python has the right
    result, all becomes rows, for good: to go back and forth would cost more than either.
    It stands before the operator of rows among the bases of a class.

    Attributes:
        rows_note: Why it works on rows since it was opened last.
    """

    takes_columns = True

    # The keys that have a place in its arrays.
    _slots: KeySlots

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.rows_note: RowsNote = RowsNote()

    def open(self) -> Pending:
        """Bind the state, and take over what a restore has put into rows."""
        return then(super().open(), self._open_columns)

    def _open_columns(self) -> Pending:
        # What another backend keeps is there because it does not fit into memory.
        self._is_columnar = isinstance(self.context.keyed_state, HeapStateStore)
        self.context.metrics.gauge("columnar", lambda: int(self._is_columnar))
        if not self._is_columnar:
            self.rows_note.reason = "its state is not kept on the heap"
            return None
        self.rows_note.reason = ""
        self._begin_load()
        return then(in_pieces(self._load_some), self._loaded)

    def _begin_load(self) -> None:
        """Note what a restore has put into rows."""

    def _load_next(self, count: int) -> int:
        """Take about so much out of the state of rows; return how much it was.

        Raises:
            RowsNeededError: If it has to stay rows.
        """
        raise TypeError(f"{type(self).__name__} defines no _load_next")

    def _loaded(self) -> None:
        """Be notified that all that a restore had put into rows is in columns, or rows."""

    def _give_back(self) -> int:
        """Give all that is kept to the state of rows; return how much it was."""
        raise TypeError(f"{type(self).__name__} defines no _give_back")

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

    @staticmethod
    def _timed(run: Run) -> tuple[ArrowRun, np.ndarray]:
        """Return a run of columns, and its event times.

        Raises:
            RowsNeededError: If it is none, or has no event times that fit.
        """
        times = run.event_times if type(run) is ArrowRun else None
        if times is None or type(run) is not ArrowRun:
            raise RowsNeededError("records came as rows, or without event times")
        lowest, highest = run.span_ms()
        if lowest < -_TIME_MAX or highest > _TIME_MAX:
            raise RowsNeededError("an event time is at the limits of 64 bits")
        return run, times

    def _slots_by(self, selector: Any, run: ArrowRun) -> np.ndarray:
        """Return the places of the keys of a run, int64 of shape ``(n,)``.

        Args:
            selector: Reads the keys; a selector of fields.
            run: The records.

        Raises:
            RowsNeededError: If only rows say which keys these are.
        """
        slots = self._slots.of_batch(
            run, run.row_maker, selector.fields, selector.is_alone
        )
        if slots is None:
            raise RowsNeededError(KEYS_OF_ROWS)
        return slots
