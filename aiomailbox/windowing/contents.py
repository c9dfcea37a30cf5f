"""What a window holds of its records: an accumulator, or a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiomailbox.errors import StateError
from aiomailbox.operators.aggregates.functions import is_async_aggregate
from aiomailbox.operators.aggregates.undoing import undoable
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.contract import Pending, awaited
from aiomailbox.records.elements import StreamRecord
from aiomailbox.state.descriptors import (
    AccumulatorDescriptor,
    ListStateDescriptor,
    StateDescriptor,
)
from aiomailbox.state.state_classes import kept_in_state
from aiomailbox.state.store import KeyedStateStore, NamespacedTable
from aiomailbox.windowing.time_window import Window
from aiomailbox.windowing.undo_log import UndoLog

# The name is in snapshots.
_NAME = "window-contents"

# In which states the operators keep windows, each its own way: in snapshots, too.
_WINDOWS = frozenset(
    {"open-windows", "fired-windows", "open-sessions", _NAME, "merging-windows"}
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
        f"in {names}, and the program keeps them in {others}: a trigger, an evictor, "
        "another function or on_error= was added to the windows, or taken away. Write "
        "them as they were until all open windows have ended, or give them another "
        "uid to begin without; with allow_unmatched_state=True, beside restore_from=, "
        "they begin empty under this uid."
    )


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
        self._table: NamespacedTable
        self._log: UndoLog | None = None

    def bind(self, store: KeyedStateStore, log: UndoLog | None = None) -> None:
        """Use the state of this store; note changes in ``log``, if they may be undone.

        What `put` and `clear` change is not noted.
        """
        self._table = store.namespaced(self._descriptor)
        self._log = log

    def expect(self, store: KeyedStateStore) -> None:
        """Ask for the state, before it is restored."""
        store.namespaced(self._descriptor)

    def add(
        self, key: Any, window: Window, value: Any, timestamp: int | None
    ) -> Pending:
        """Add a record."""
        raise TypeError(f"{type(self).__name__} does not define add")

    def get(self, key: Any, window: Window) -> Any:
        """Return what is held, or None."""
        return self._table.get(key, window)

    def elements(self, content: Any) -> list[Any]:
        """Return what is held as a new list: the records, or the accumulator."""
        raise TypeError(f"{type(self).__name__} does not define elements")

    def put(self, key: Any, window: Window, content: Any) -> None:
        """Replace what is held."""
        self._table.put(key, window, content)

    def clear(self, key: Any, window: Window) -> None:
        """Forget what is held."""
        self._table.remove(key, window)

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
            content = self._table.get(key, window)
            if self._log is not None:
                self._log.note(self._put_back, key, window, content)
            if content is not None:
                held.append(content)
                if window != target:
                    self._table.remove(key, window)
        return held

    def _put_back(self, key: Any, window: Window, content: Any) -> None:
        if content is None:
            self._table.remove(key, window)
        else:
            self._table.put(key, window, content)


class AccumulatedContents(WindowContents):
    """An accumulator per window.

    Args:
        aggregate: An aggregate function; its methods may be ``async def``.
    """

    def __init__(self, aggregate: Any) -> None:
        super().__init__(AccumulatorDescriptor(_NAME, aggregate))
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
        held = self._table.get(key, window)
        # Noted before it changes: what has to be undone must be known before it can
        # fail.
        if self._log is not None:
            self._note(self._log, key, window, value, held)
        accumulator = self._aggregate.create_accumulator() if held is None else held
        self._table.put(key, window, self._aggregate.add(value, accumulator))
        return None

    def elements(self, content: Any) -> list[Any]:
        """Return the accumulator in a list."""
        return [content]

    def merge(self, key: Any, target: Window, sources: Sequence[Window]) -> Pending:
        """Move what other windows hold into one."""
        held = self._take_out(key, target, sources)
        if self.is_async:
            return self._merge_awaited(key, target, held)
        if held:
            merged = held[0]
            for other in held[1:]:
                merged = self._aggregate.merge(merged, other)
            self._table.put(key, target, merged)
        return None

    async def _add_awaited(self, key: Any, window: Window, value: Any) -> None:
        held = accumulator = self._table.get(key, window)
        if self._log is not None:
            self._note(self._log, key, window, value, held)
        if held is None:
            accumulator = await awaited(self._aggregate.create_accumulator())
        added = await awaited(self._aggregate.add(value, accumulator))
        self._table.put(key, window, added)

    async def _merge_awaited(self, key: Any, target: Window, held: list[Any]) -> None:
        if held:
            merged = held[0]
            for other in held[1:]:
                merged = await awaited(self._aggregate.merge(merged, other))
            self._table.put(key, target, merged)

    def _note(
        self, log: UndoLog, key: Any, window: Window, value: Any, held: Any
    ) -> None:
        if held is None:
            log.note(self._table.remove, key, window)
        else:
            mark = self._aggregate.mark(value, held)
            log.note(self._reset, key, window, held, mark)

    def _reset(self, key: Any, window: Window, held: Any, mark: Any) -> None:
        self._table.put(key, window, self._aggregate.reset(held, mark))


class ListedContents(WindowContents):
    """All records of a window.

    Args:
        with_timestamps: Whether they are kept as `StreamRecord`.
    """

    def __init__(self, *, with_timestamps: bool) -> None:
        super().__init__(ListStateDescriptor(_NAME))
        self._with_timestamps = with_timestamps

    def add(
        self, key: Any, window: Window, value: Any, timestamp: int | None
    ) -> Pending:
        """Append a record."""
        record = StreamRecord(value, timestamp) if self._with_timestamps else value
        records = self._table.get(key, window)
        if self._log is not None:
            self._log.note(self._remove_last, key, window)
        if records is None:
            self._table.put(key, window, [record])
        else:
            records.append(record)
            self._table.put(key, window, records)
        return None

    def elements(self, content: Any) -> list[Any]:
        """Return the records as a new list."""
        if self._with_timestamps:
            return [record.value for record in content]
        return list(content)

    def merge(self, key: Any, target: Window, sources: Sequence[Window]) -> Pending:
        """Move what other windows hold into one."""
        held = self._take_out(key, target, sources)
        if held:
            merged = [record for records in held for record in records]
            self._table.put(key, target, merged)
        return None

    def _remove_last(self, key: Any, window: Window) -> None:
        records = self._table.get(key, window)
        records.pop()
        self._put_back(key, window, records or None)
