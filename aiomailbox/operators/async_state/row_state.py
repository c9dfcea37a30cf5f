"""Keyed state as one row sees it: its own changes over what was there before it.

Theory of operation: what a row reads is a copy of what the store holds for its key,
and what it writes stays here. When the row has ended well its changes are applied to
the store in one go; if it failed, or its attempt was given up, they are discarded.
The key does not depend on the store's current key, which other rows change meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

from aiomailbox.errors import OverdraftCeilingError, StateError
from aiomailbox.operators.core.collector import RESULTS_MAX
from aiomailbox.operators.core.mutations import MutationCheck, structure
from aiomailbox.operators.functions.contexts import TimeDomain
from aiomailbox.records.events import OutputTag
from aiomailbox.state.descriptors import AggregatingStateDescriptor, StateDescriptor
from aiomailbox.state.handles import OfList, OfMap, OfValue, elements_of, refuse_nothing
from aiomailbox.state.lent import (
    ADD_VALUE,
    LENT_LIST,
    LENT_VALUE,
    PUT_VALUE,
    UPDATE_VALUE,
    Lent,
)
from aiomailbox.state.snapshot import copy_content
from aiomailbox.state.table_store import KeyedStateStore

# What a keyed async function is called for: a row, or a timer.


@dataclass(slots=True, eq=False, repr=False)
class KeyedEvent:
    """A row of a key, or a timer of it that is due.

    Attributes:
        value: The row; None for a timer.
        timestamp: The row's event time in milliseconds or None; the timer's time.
        key: The key.
        watermark: The watermark that came before the row, or that fires the timer.
        domain: The timer's domain; None for a row.
    """

    value: Any
    timestamp: int | None
    key: Any
    watermark: int
    domain: TimeDomain | None = None

    @property
    def result_timestamp(self) -> int | None:
        """The event time that results get, or None."""
        if self.domain is TimeDomain.PROCESSING_TIME:
            return None
        return self.timestamp

    def __repr__(self) -> str:
        if self.domain is not None:
            return f"timer {self.timestamp} of key {self.key!r}"
        return f"{self.value!r} of key {self.key!r}"


_GONE: Final = object()


Enter = Callable[[], None]


class StateHandles:
    """The store's own state objects, one per description.

    Args:
        store: The operator's keyed state.
    """

    def __init__(self, store: KeyedStateStore) -> None:
        self.store: KeyedStateStore = store
        self._handles: dict[str, tuple[StateDescriptor, Any]] = {}

    def get(self, descriptor: StateDescriptor) -> Any:
        """Return the store's state object.

        Raises:
            StateError: If the name is in use for another kind of state.
        """
        known = self._handles.get(descriptor.name)
        # Identity first: comparing descriptors compares functions and types.
        if known is not None and (known[0] is descriptor or known[0] == descriptor):
            return known[1]
        handle = self._make(descriptor)
        self._handles[descriptor.name] = (descriptor, handle)
        return handle

    def _make(self, descriptor: StateDescriptor) -> Any:
        if not isinstance(descriptor, AggregatingStateDescriptor):
            return getattr(self.store, f"get_{descriptor.kind}")(descriptor)
        if descriptor.ttl is not None:
            # An accumulator is read and written whole here, past the place where time
            # is kept.
            raise StateError(
                f"aggregating state {descriptor.name!r} has a time to live, which "
                "process_async cannot keep. Hold the accumulator in a value state."
            )
        return self.store.table(descriptor)


class RowState:
    """The base of what rows read and write.

    Args:
        handle: The store's state object.
        descriptor: Describes the state.
        enter: Makes the row's key the store's current one, if the row may still use
            its state.
        key: The row's key.
        lent: Warns of a change that is lost.
    """

    __slots__ = ("_descriptor", "_enter", "_handle", "_key", "_lent")

    def __init__(
        self, handle: Any, descriptor: Any, enter: Enter, key: Any, lent: Lent
    ) -> None:
        self._lent = lent
        self._handle = handle
        self._descriptor = descriptor
        self._enter = enter
        self._key = key

    def apply(self) -> None:
        """Change the store; its current key is the row's."""

    def _look(self, copied: Any, before: Any, remedy: str) -> None:
        """Warn if a copy that was returned, and that nothing was written of, has changed."""
        lent = self._lent
        if copied is before or lent.is_silent or type(copied).__hash__ is not None:
            return
        # Objects of the user's may compare as they like.
        with suppress(Exception):
            if copied == before:
                return
            if structure(copied) != structure(before):
                lent.tell(LENT_VALUE, remedy)
            lent.is_silent = True


class _Single(RowState):
    """A content that is read and written as a whole."""

    __slots__ = ("_before", "_changed", "_content", "_copied")
    # What to write after a change; "" where a change is another mistake.
    _remedy: ClassVar[str] = ""

    def __init__(self, *facts: Any) -> None:
        super().__init__(*facts)
        self._content: Any = _GONE
        self._changed = False
        # The copy that was returned, and what it is a copy of.
        self._copied: Any = None
        self._before: Any = None

    def clear(self) -> None:
        """Forget the content."""
        self._set(None)

    def _get(self) -> Any:
        self._enter()
        if self._content is _GONE:
            # A copy: a row that fails must not have changed what is in the store.
            self._before = self._read()
            self._copied = self._content = copy_content(self._before)
        return self._content

    def _set(self, content: Any) -> None:
        self._enter()
        self._content = content
        self._changed = True

    def _read(self) -> Any:
        return self._handle.get()

    def apply(self) -> None:
        """Replace the content in the store, if it was changed."""
        if self._changed:
            self._write(self._content)
        elif self._remedy:
            self._look(self._copied, self._before, self._remedy)

    def _write(self, content: Any) -> None:
        self._handle.clear()
        if content is not None:
            self._handle.add(content)


class RowValueState(OfValue, _Single):
    """One value of the row's key; only `update` changes it."""

    __slots__ = ()
    _remedy = UPDATE_VALUE

    def value(self) -> Any:
        """Return the value, or the descriptor's default."""
        content = self._get()
        if content is None:
            self._before = self._descriptor.default
            self._copied = copy_content(self._before)
            return self._copied
        # A copy: a function that changes it in place must not change the default.
        return content

    def update(self, value: Any) -> None:
        """Replace the value; None clears it."""
        self._set(value)

    def _read(self) -> Any:
        return self._handle.value()

    def _write(self, content: Any) -> None:
        self._handle.update(content)


class RowReducingState(_Single):
    """One value of the row's key that others are folded into."""

    __slots__ = ()
    _remedy = "write state.add(value): it folds a value in"

    def get(self) -> Any:
        """Return the value, or None when nothing was added."""
        return self._get()

    def add(self, value: Any) -> None:
        """Fold ``value`` in."""
        old = self._get()
        if old is not None:
            value = self._descriptor.reduce_function(old, value)
            if value is None:
                refuse_nothing(self._descriptor.reduce_function)
        self._set(value)


class RowAggregatingState(_Single):
    """One accumulator of the row's key."""

    __slots__ = ()

    def get(self) -> Any:
        """Return the accumulator's result, or None when nothing was added."""
        accumulator = self._get()
        if accumulator is None:
            return None
        return self._descriptor.aggregate_function.get_result(accumulator)

    def add(self, value: Any) -> None:
        """Add ``value`` to the accumulator."""
        function = self._descriptor.aggregate_function
        accumulator = self._get()
        if accumulator is None:
            accumulator = function.create_accumulator()
        accumulator = function.add(value, accumulator)
        if accumulator is None:
            refuse_nothing(function.add)
        self._set(accumulator)

    def _read(self) -> Any:
        return self._handle.get(self._key)

    def _write(self, content: Any) -> None:
        if content is None:
            self._handle.remove(self._key)
        else:
            self._handle.put(self._key, content)


class RowListState(OfList, RowState):
    """A list of the row's key."""

    __slots__ = ("_added", "_length", "_listed", "_replaced")

    def __init__(self, *facts: Any) -> None:
        super().__init__(*facts)
        # The list that was returned last, if nothing was written after it.
        self._listed: list[Any] = []
        self._length = 0
        self._added: list[Any] = []
        self._replaced = False

    def get(self) -> list[Any]:
        """Return the elements as a new list; empty when there are none."""
        self._enter()
        # What was replaced is this row's own; only what the store holds is copied.
        if self._replaced:
            listed = list(self._added)
        else:
            listed = [*map(copy_content, self._handle.get()), *self._added]
        self._listed, self._length = listed, len(listed)
        return listed

    def add(self, value: Any) -> None:
        """Append an element."""
        self._write().append(value)

    def add_all(self, values: Iterable[Any]) -> None:
        """Append elements."""
        self._write().extend(elements_of(values))

    def _write(self) -> list[Any]:
        """Return the list of elements to be added."""
        self._enter()
        self._length = len(self._listed)
        return self._added

    def update(self, values: Iterable[Any]) -> None:
        """Replace all elements."""
        self._write()
        self._added = elements_of(values)
        self._replaced = True

    def clear(self) -> None:
        """Forget all elements."""
        self.update(())

    def apply(self) -> None:
        """Append to the list in the store, or replace it."""
        if len(self._listed) != self._length:
            self._lent.tell(LENT_LIST, ADD_VALUE)
        if self._replaced:
            self._handle.update(self._added)
        elif self._added:
            self._handle.add_all(self._added)


class RowMapState(OfMap, RowState):
    """A map of the row's key."""

    __slots__ = ("_changes", "_cleared", "_copied")

    def __init__(self, *facts: Any) -> None:
        super().__init__(*facts)
        # The last value that was returned: its key, a copy, and what that is one of.
        self._copied: tuple[Any, Any, Any] | None = None
        self._changes: dict[Any, Any] = {}
        self._cleared = False

    def get(self, map_key: Any, default: Any = None) -> Any:
        """Return the value of ``map_key``, or ``default``."""
        self._enter()
        if map_key in self._changes:
            found = self._changes[map_key]
        elif self._cleared:
            found = _GONE
        else:
            found = self._handle.get(map_key, _GONE)
            # A copy, and not kept: only `put` changes an entry.
            if found is _GONE:
                return default
            copied = copy_content(found)
            self._copied = (map_key, copied, found)
            return copied
        return default if found is _GONE else found

    def put(self, map_key: Any, value: Any) -> None:
        """Set the value of ``map_key``."""
        self._enter()
        self._changes[map_key] = value

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        """Set several values."""
        self._enter()
        self._changes.update(entries)

    def remove(self, map_key: Any) -> None:
        """Forget ``map_key``; a no-op if it is not there."""
        self._enter()
        self._changes[map_key] = _GONE

    def contains(self, map_key: Any) -> bool:
        """Say whether ``map_key`` is there."""
        self._enter()
        if map_key in self._changes:
            return self._changes[map_key] is not _GONE
        return not self._cleared and bool(self._handle.contains(map_key))

    def items(self) -> list[tuple[Any, Any]]:
        """Return all entries."""
        self._enter()
        before = () if self._cleared else self._handle.items()
        entries = {key: copy_content(value) for key, value in before}
        entries.update(self._changes)
        return [item for item in entries.items() if item[1] is not _GONE]

    def keys(self) -> list[Any]:
        """Return all keys of the map."""
        return [key for key, _ in self.items()]

    def values(self) -> list[Any]:
        """Return all values of the map."""
        return [value for _, value in self.items()]

    def is_empty(self) -> bool:
        """Say whether the map has no entry."""
        self._enter()
        changed = self._changes.values()
        if self._cleared or any(value is not _GONE for value in changed):
            return all(value is _GONE for value in changed)
        # What the store holds is asked for one by one only if some of it is gone.
        return not self.items() if self._changes else self._handle.is_empty()

    def clear(self) -> None:
        """Forget all entries."""
        self._enter()
        self._changes.clear()
        self._cleared = True

    def apply(self) -> None:
        """Change the entries in the store that were changed here."""
        if self._copied is not None and not self._cleared:
            map_key, copied, before = self._copied
            if map_key not in self._changes:
                self._look(copied, before, PUT_VALUE)
        if self._cleared:
            self._handle.clear()
        put = {}
        for map_key, value in self._changes.items():
            if value is _GONE:
                self._handle.remove(map_key)
            else:
                put[map_key] = value
        if put:
            self._handle.put_all(put)


_CLASSES: Final[dict[str, type[RowState]]] = {
    "value": RowValueState,
    "list": RowListState,
    "map": RowMapState,
    "reducing": RowReducingState,
    "aggregating": RowAggregatingState,
}


def row_state(
    handles: StateHandles, descriptor: StateDescriptor, enter: Enter, key: Any
) -> RowState:
    """Return the state that ``descriptor`` names, as a row sees it."""
    handle, lent = handles.get(descriptor), handles.store.lent(descriptor)
    return _CLASSES[descriptor.kind](handle, descriptor, enter, key, lent)


# What one attempt at a row has changed, planned and emitted so far.
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
        "_handles",
        "_states",
        "ended",
        "event",
        "sides",
        "timers",
        "values",
    )

    def __init__(self, event: KeyedEvent, handles: StateHandles) -> None:
        self.event: KeyedEvent = event
        self._handles = handles
        self._states: dict[str, tuple[StateDescriptor, RowState]] = {}
        self.values: list[Any] = []
        self.sides: list[tuple[OutputTag, Any]] = []
        self.timers: list[TimerChange] = []
        self.ended: bool = False

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
        made = row_state(self._handles, descriptor, self._enter, self.event.key)
        self._states[descriptor.name] = (descriptor, made)
        return made

    def apply_state(self) -> None:
        """Make the changes of state visible to later rows."""
        if not self._states:
            return
        # Others have set their keys since this row began.
        self._handles.store.set_current_key(self.event.key)
        for _, state in self._states.values():
            state.apply()

    def check_open(self) -> None:
        """Refuse changes after the end.

        Raises:
            StateError: If the attempt is over.
        """
        if self.ended:
            raise StateError(
                f"the context of a row of key {self.event.key!r} was used after the "
                "row had ended. Await everything that the function starts."
            )

    def _check_room(self, results: list[Any]) -> None:
        if len(results) >= RESULTS_MAX:
            raise OverdraftCeilingError(
                f"a row of key {self.event.key!r} has emitted {len(results)} "
                "results, which is the limit: they are kept until the row has "
                "ended. Emit less for each record."
            )

    def _enter(self) -> None:
        # At each access: between two of them other rows have run.
        self.check_open()
        self._handles.store.set_current_key(self.event.key)


class WatchedRowChanges(RowChanges):
    """The changes and results of an attempt, with each result as it was when collected.

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
