"""The contents of windows: an accumulator of their records, or a list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from aiomailbox.errors import StateError
from aiomailbox.operators.aggregates.functions import is_async_aggregate
from aiomailbox.operators.aggregates.undoing import undoable
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.operator import Pending, awaited
from aiomailbox.records.events import StreamRecord
from aiomailbox.state.descriptors import (
    AccumulatorDescriptor,
    ListStateDescriptor,
    StateDescriptor,
)
from aiomailbox.state.serializers import kept_in_state
from aiomailbox.state.snapshot import copy_content
from aiomailbox.state.store import NamespacedTable
from aiomailbox.state.table_store import KeyedStateStore
from aiomailbox.windowing.time_window import Window

# What has to be done to take back what one record has changed.


class UndoLog:
    """Calls that undo the changes of a record, to be made backwards if it fails.

    Each change first adds its undo to the log. When nothing can fail
    any more, the log is cleared.

    Example:
        >>> log, counts = UndoLog(), {"a": 1}
        >>> log.note(counts.__setitem__, "a", counts["a"])
        >>> counts["a"] = 2
        >>> log.undo()
        >>> counts
        {'a': 1}
    """

    def __init__(self) -> None:
        self._calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def note(self, undo: Callable[..., Any], *args: Any) -> None:
        """Undo with ``undo(*args)`` what is done next."""
        self._calls.append((undo, args))

    def undo(self) -> None:
        """Make all that was noted undone, the latest first."""
        while self._calls:
            undo, args = self._calls.pop()
            undo(*args)

    def clear(self) -> None:
        """Let what was done stand."""
        self._calls.clear()


class UndoableTimers:
    """Registers and deletes timers such that it can be undone.

    Args:
        timers: An `InternalTimerService`.
        log: Where it is noted.
    """

    def __init__(self, timers: Any, log: UndoLog) -> None:
        self._timers = timers
        self._log = log

    @property
    def current_watermark(self) -> int:
        """The watermark."""
        return self._timers.current_watermark

    def current_processing_time(self) -> int:
        """Return wall-clock time."""
        return self._timers.current_processing_time()

    def register_event_time_timer(self, *timer: Any) -> None:
        """Register a timer; key, namespace, timestamp."""
        timers = self._timers
        if timers.register_event_time_timer(*timer):
            self._log.note(timers.delete_event_time_timer, *timer)

    def delete_event_time_timer(self, *timer: Any) -> None:
        """Delete a timer."""
        timers = self._timers
        if timers.delete_event_time_timer(*timer):
            self._log.note(timers.register_event_time_timer, *timer)

    def register_processing_time_timer(self, *timer: Any) -> None:
        """Register a timer."""
        timers = self._timers
        if timers.register_processing_time_timer(*timer):
            self._log.note(timers.delete_processing_time_timer, *timer)

    def delete_processing_time_timer(self, *timer: Any) -> None:
        """Delete a timer."""
        timers = self._timers
        if timers.delete_processing_time_timer(*timer):
            self._log.note(timers.register_processing_time_timer, *timer)


class UndoableCell:
    """The state of a trigger for one window, a value or a reduced value.

    Args:
        state: A `ValueState` or a `ReducingState`.
        read: Its method that returns the content.
        write: Its method that sets a content where there is none.
        log: Where changes are noted.
    """

    __slots__ = ("_log", "_read", "_state", "_write")

    def __init__(
        self,
        state: Any,
        read: Callable[[], Any],
        write: Callable[[Any], None],
        log: UndoLog,
    ) -> None:
        self._state = state
        self._read = read
        self._write = write
        self._log = log

    def clear(self) -> None:
        """Forget the content."""
        self.note()
        self._state.clear()

    def note(self) -> None:
        """Note what is there."""
        self._log.note(self._put_back, copy_content(self._read()))

    def _given(self) -> Any:
        """Return what is there, and note it if it may be changed in place."""
        content = self._read()
        kept = copy_content(content)
        if kept is not content:
            self._log.note(self._put_back, kept)
        return content

    # A copy, for what is there may be changed in place next.
    def _put_back(self, content: Any) -> None:
        self._state.clear()
        if content is not None:
            self._write(content)


class UndoableValue(UndoableCell):
    """A `ValueState` of which changes can be undone.

    Args:
        state: The state without a default, which tells nothing from a value.
        default: What there is instead of nothing; each reader gets a copy.
        log: Where changes are noted.
    """

    __slots__ = ("_default",)

    def __init__(self, state: Any, default: Any, log: UndoLog) -> None:
        super().__init__(state, state.value, state.update, log)
        self._default = default

    def value(self) -> Any:
        """Return the value, or the descriptor's default."""
        value = self._given()
        return copy_content(self._default) if value is None else value

    def update(self, value: Any) -> None:
        """Replace the value; None clears it."""
        self.note()
        self._state.update(value)


class UndoableReducing(UndoableCell):
    """A `ReducingState` of which changes can be undone."""

    __slots__ = ()

    def __init__(self, state: Any, log: UndoLog) -> None:
        super().__init__(state, state.get, state.add, log)

    def get(self) -> Any:
        """Return the value, or None when nothing was added."""
        return self._given()

    def add(self, value: Any) -> None:
        """Fold ``value`` in."""
        self.note()
        self._state.add(value)


# The name is in snapshots.
_NAME = "window-contents"


# In which states the operators keep windows, each its own way: in snapshots, too.
_WINDOWS = frozenset(
    {"open-windows", "fired-windows", "open-sessions", _NAME, "merging-windows"}
)


_WITH_MORE: Final = (
    "apply(...) or process(...), or one with a trigger, an evictor or on_error="
)


kept_in_state("StreamRecord")(StreamRecord)


def check_windows_restored(context: RuntimeContext) -> None:
    """Refuse open windows that were restored, and that an operator cannot read.

    Raises:
        StateError: Unless state may be left unread; then a warning says it.
    """
    found = context.keyed_state.unmatched()
    unread = sorted(_WINDOWS.intersection(found.unread))
    if not unread:
        return
    kept = sorted(_WINDOWS.intersection(found.empty))
    names = " and ".join(map(repr, unread))
    others = " and ".join(map(repr, kept)) or "another state"
    was, now = (
        "aggregate(...) or reduce(...) alone" if _NAME not in one else _WITH_MORE
        for one in (unread, kept)
    )
    if found.is_allowed:
        context.log.warning(
            "open windows were restored that are not read, as windows are kept in "
            "another way: their contents are lost",
            unread=unread,
            empty=kept,
        )
        return
    raise StateError(
        f"the snapshot holds the open windows of operator {context.operator_name!r} "
        f"(uid {context.uid!r}) in {names}, and the program keeps them in {others}: the "
        f"function of the windows was {was}, and is {now} now. Write "
        "them as they were until all open windows have ended, or give them another "
        "uid to begin without; with allow_unmatched_state=True, beside restore_from=, "
        "they begin empty under this uid."
    )


_FUNCTIONS: Final = {
    "value": "an aggregate: aggregate(...) or reduce(...)",
    "list": "a function of all records: apply(...) or process(...)",
}


def _other_function(had: str, has: str) -> str:
    return (
        f"the function of the windows was {_FUNCTIONS[had]}; now it is "
        f"{_FUNCTIONS[has]}. What open windows hold does not fit. Write the function as "
        "it was until all open windows have ended, or give the windows another uid and "
        "restore with allow_unmatched_state=True: they begin empty then"
    )


class _OfRecords(ListStateDescriptor[Any]):
    def other_kind(self, kind: str) -> str:
        return _other_function(kind, self.kind)


class _OfAccumulators(AccumulatorDescriptor):
    def other_kind(self, kind: str) -> str:
        return _other_function(kind, self.kind)


class WindowContents:
    """The contents of all windows; the base of the kinds.

    Args:
        descriptor: Describes the state that holds them.

    Attributes:
        is_async: Whether `add` and `merge` return an awaitable.
    """

    is_async = False

    def __init__(self, descriptor: StateDescriptor) -> None:
        self._descriptor = descriptor
        self.table: NamespacedTable
        self._log: UndoLog | None = None

    def bind(self, store: KeyedStateStore, log: UndoLog | None = None) -> None:
        """Use the state of this store; note changes in ``log``, if they may be undone.

        What `put` and `clear` change is not noted.
        """
        self.table = store.namespaced(self._descriptor)
        self._log = log

    def expect(self, store: KeyedStateStore) -> None:
        """Ask for the state, before it is restored."""
        store.namespaced(self._descriptor)

    def add(
        self, key: Any, window: Window, value: Any, timestamp: int | None
    ) -> Pending:
        """Add a record."""
        raise TypeError(f"{type(self).__name__} does not define add")

    def elements(self, content: Any) -> list[Any]:
        """Return what is held as a new list: the records, or the accumulator."""
        raise TypeError(f"{type(self).__name__} does not define elements")

    def merge(self, key: Any, target: Window, sources: Sequence[Window]) -> Pending:
        """Move what other windows hold into one."""
        raise TypeError(f"{type(self).__name__} does not define merge")

    def _take_out(
        self, key: Any, target: Window, sources: Sequence[Window]
    ) -> list[Any]:
        """Return what windows hold, that of the target first; forget the sources."""
        held: list[Any] = []
        # The target first: of what merging cannot reorder, the oldest comes first.
        for window in (target, *sources):
            content = self.table.get(key, window)
            if self._log is not None:
                self._log.note(self._put_back, key, window, content)
            if content is not None:
                held.append(content)
                if window != target:
                    self.table.remove(key, window)
        return held

    def _put_back(self, key: Any, window: Window, content: Any) -> None:
        if content is None:
            self.table.remove(key, window)
        else:
            self.table.put(key, window, content)


class AccumulatedContents(WindowContents):
    """An accumulator per window.

    Args:
        aggregate: An aggregate function; its methods may be ``async def``.
    """

    def __init__(self, aggregate: Any) -> None:
        super().__init__(_OfAccumulators(_NAME, aggregate))
        self._aggregate = aggregate
        self.is_async: bool = is_async_aggregate(aggregate)

    def bind(self, store: KeyedStateStore, log: UndoLog | None = None) -> None:
        """Use the state of this store; note changes in ``log``."""
        super().bind(store, log)
        if log is not None:
            self._aggregate = undoable(self._aggregate)

    def add(
        self, key: Any, window: Window, value: Any, timestamp: int | None
    ) -> Pending:
        """Add a record to the accumulator."""
        if self.is_async:
            return self._add_awaited(key, window, value)
        held = self.table.get(key, window)
        # Noted before it changes: what has to be undone must be known before it can
        # fail.
        if self._log is not None:
            self._note(self._log, key, window, value, held)
        accumulator = self._aggregate.create_accumulator() if held is None else held
        self.table.put(key, window, self._aggregate.add(value, accumulator))
        return None

    def elements(self, content: Any) -> list[Any]:
        """Return the accumulator in a list."""
        return [content]

    def merge(self, key: Any, target: Window, sources: Sequence[Window]) -> Pending:
        held = self._take_out(key, target, sources)
        if self.is_async:
            return self._merge_awaited(key, target, held)
        if held:
            merged = held[0]
            for other in held[1:]:
                merged = self._aggregate.merge(merged, other)
            self.table.put(key, target, merged)
        return None

    async def _add_awaited(self, key: Any, window: Window, value: Any) -> None:
        held = accumulator = self.table.get(key, window)
        if self._log is not None:
            self._note(self._log, key, window, value, held)
        if held is None:
            accumulator = await awaited(self._aggregate.create_accumulator())
        added = await awaited(self._aggregate.add(value, accumulator))
        self.table.put(key, window, added)

    async def _merge_awaited(self, key: Any, target: Window, held: list[Any]) -> None:
        if held:
            merged = held[0]
            for other in held[1:]:
                merged = await awaited(self._aggregate.merge(merged, other))
            self.table.put(key, target, merged)

    def _note(
        self, log: UndoLog, key: Any, window: Window, value: Any, held: Any
    ) -> None:
        if held is None:
            log.note(self.table.remove, key, window)
        else:
            mark = self._aggregate.mark(value, held)
            log.note(self._reset, key, window, held, mark)

    def _reset(self, key: Any, window: Window, held: Any, mark: Any) -> None:
        self.table.put(key, window, self._aggregate.reset(held, mark))


class ListedContents(WindowContents):
    """All records of a window.

    Args:
        with_timestamps: Whether they are kept as `StreamRecord`.
    """

    def __init__(self, *, with_timestamps: bool) -> None:
        super().__init__(_OfRecords(_NAME))
        self._with_timestamps = with_timestamps

    def add(
        self, key: Any, window: Window, value: Any, timestamp: int | None
    ) -> Pending:
        """Append a record."""
        record = StreamRecord(value, timestamp) if self._with_timestamps else value
        records = self.table.get(key, window)
        if self._log is not None:
            self._log.note(self._remove_last, key, window)
        if records is None:
            self.table.put(key, window, [record])
        else:
            records.append(record)
            self.table.put(key, window, records)
        return None

    def elements(self, content: Any) -> list[Any]:
        """Return the records as a new list."""
        if self._with_timestamps:
            return [record.value for record in content]
        return list(content)

    def merge(self, key: Any, target: Window, sources: Sequence[Window]) -> Pending:
        held = self._take_out(key, target, sources)
        if held:
            merged = [record for records in held for record in records]
            self.table.put(key, target, merged)
        return None

    def _remove_last(self, key: Any, window: Window) -> None:
        records = self.table.get(key, window)
        records.pop()
        self._put_back(key, window, records or None)
