"""What one attempt at a row has changed, planned and emitted so far."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final, NamedTuple

from aiomailbox.errors import OverdraftCeilingError, StateError
from aiomailbox.operators.async_state.event import KeyedEvent
from aiomailbox.operators.async_state.row_state import RowState, StateHandles, row_state
from aiomailbox.operators.core.collector import RESULTS_MAX
from aiomailbox.operators.core.mutations import MutationCheck, structure
from aiomailbox.operators.functions.keyed_context import TimeDomain
from aiomailbox.records.elements import OutputTag
from aiomailbox.state.descriptors import StateDescriptor

__all__ = ["CURRENT_ROW", "RowChanges", "TimerChange", "WatchedRowChanges"]


class TimerChange(NamedTuple):
    """A timer that a row registers, or deletes."""

    domain: TimeDomain
    timestamp: int
    registers: bool


class RowChanges:
    """Everything that comes of one attempt, until it is applied or thrown away.

    Also the collector of results that the function gets as ``out``.

    Args:
        event: The row or timer.
        handles: The operator's state.

    Attributes:
        values: The results.
        sides: The results for side outputs, in order.
        timers: The timers registered and deleted, in order.
        ended: Whether the attempt is over, so that nothing may be added.
    """

    __slots__ = (
        "_event",
        "_handles",
        "_states",
        "ended",
        "sides",
        "timers",
        "values",
    )

    def __init__(self, event: KeyedEvent, handles: StateHandles) -> None:
        self._event = event
        self._handles = handles
        self._states: dict[str, tuple[StateDescriptor, RowState]] = {}
        self.values: list[Any] = []
        self.sides: list[tuple[OutputTag, Any]] = []
        self.timers: list[TimerChange] = []
        self.ended: bool = False

    @property
    def result_timestamp(self) -> int | None:
        """The event time that results get, or None."""
        return self._event.result_timestamp

    def collect(self, value: Any) -> None:
        """Take a result.

        Raises:
            OverdraftCeilingError: If there are more than may be kept for one record.
        """
        self.check_open()
        self._check_room(self.values)
        self.values.append(value)

    def collect_side(self, tag: OutputTag, value: Any) -> None:
        """Take a result for a side output; raises as `collect`."""
        self.check_open()
        self._check_room(self.sides)
        self.sides.append((tag, value))

    def change_timer(self, change: TimerChange) -> None:
        """Keep what is to be done with a timer."""
        self.check_open()
        self.timers.append(change)

    def state(self, descriptor: StateDescriptor) -> RowState:
        """Return the state that ``descriptor`` names, of the row's key.

        Raises:
            StateError: If the name is in use for state of another kind or type.
        """
        known = self._states.get(descriptor.name)
        # Known by name; the store refuses another description of the same state.
        if known is not None:
            if known[0] is not descriptor and known[0] != descriptor:
                self._handles.get(descriptor)
            return known[1]
        made = row_state(self._handles, descriptor, self._enter, self._event.key)
        self._states[descriptor.name] = (descriptor, made)
        return made

    def apply_state(self) -> None:
        """Make the changes of state visible to later rows."""
        if not self._states:
            return
        # Others have set their keys since this row began.
        self._handles.store.set_current_key(self._event.key)
        for _, state in self._states.values():
            state.apply()

    def check_open(self) -> None:
        """Refuse changes after the end.

        Raises:
            StateError: If the attempt is over.
        """
        if self.ended:
            raise StateError(
                f"the context of a row of key {self._event.key!r} was used after the "
                "row had ended. Await everything that the function starts."
            )

    def _check_room(self, results: list[Any]) -> None:
        if len(results) >= RESULTS_MAX:
            raise OverdraftCeilingError(
                f"a row of key {self._event.key!r} has emitted {len(results)} "
                "results, which is the limit: they are kept until the row has "
                "ended. Emit less for each record."
            )

    def _enter(self) -> None:
        # At each access: between two of them other rows have run.
        self.check_open()
        self._handles.store.set_current_key(self._event.key)


class WatchedRowChanges(RowChanges):
    """What comes of an attempt, with how each result was when it was collected.

    Args:
        event: The row or timer.
        handles: The operator's state.
        check: The operator's.
    """

    __slots__ = ("_check", "_noted")

    def __init__(
        self, event: KeyedEvent, handles: StateHandles, check: MutationCheck
    ) -> None:
        super().__init__(event, handles)
        self._check = check
        self._noted: list[tuple[Any, Any]] = []

    def collect(self, value: Any) -> None:
        """Take a result and note how it is."""
        super().collect(value)
        self._noted.append((value, structure(value)))

    def collect_side(self, tag: OutputTag, value: Any) -> None:
        """Take a result for a side output and note how it is."""
        super().collect_side(tag, value)
        self._noted.append((value, structure(value)))

    def compare(self) -> None:
        """Compare the results with how they were, when the function has returned."""
        self._check.compare_all(self._noted)


CURRENT_ROW: Final[ContextVar[RowChanges]] = ContextVar("aiomailbox row")
"""The row that a coroutine works for; its child tasks inherit it."""
