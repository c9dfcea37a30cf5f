"""State objects of the heap store: the current key's content, by kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from aiomailbox.errors import StateError
from aiomailbox.state.functions import AggregateFunction, ReduceFunction
from aiomailbox.state.snapshot import IMMUTABLE_TYPES, copy_content

__all__ = [
    "NO_KEY",
    "Cell",
    "ContentCell",
    "ContentTable",
    "CurrentKey",
    "HeapAggregatingState",
    "HeapListState",
    "HeapMapState",
    "HeapReducingState",
    "HeapValueState",
]

NO_KEY: Any = object()


class CurrentKey:
    """The key of a store that state objects refer to."""

    __slots__ = ("key",)

    def __init__(self) -> None:
        self.key: Any = NO_KEY

    def required(self) -> Any:
        """Return the key.

        Raises:
            StateError: If there is none.
        """
        if self.key is NO_KEY:
            raise StateError(
                "keyed state was used while no key is current. It can be used while a "
                "record or a timer of a keyed stream is processed, not in open() or "
                "close()."
            )
        return self.key


class ContentTable(Protocol):
    """Where the contents of one state are."""

    def read(self, key: Any, namespace: Any) -> Any:
        """Return the content of ``key`` in ``namespace``, or None."""
        ...

    def write(self, key: Any, namespace: Any, content: Any) -> None:
        """Set the content of ``key`` in ``namespace``."""
        ...

    def forget(self, key: Any, namespace: Any) -> None:
        """Forget the content of ``key`` in ``namespace``."""
        ...

    def keys_to_sweep(self) -> Iterable[Any]:
        """Return most of the keys; the state may be changed while they are walked."""
        ...

    def namespaces_of(self, key: Any) -> Sequence[Any]:
        """Return the namespaces of ``key``; of state without them, one."""
        ...


class ContentCell(Protocol):
    """The place of one content, whichever key is current."""

    def read(self) -> Any:
        """Return the content, or None."""
        ...

    def write(self, content: Any) -> None:
        """Set the content."""
        ...

    def forget(self) -> None:
        """Remove the content."""
        ...


class Cell:
    """The place of one state's content: current key and a fixed namespace."""

    __slots__ = ("_current", "_forget", "_namespace", "_read", "_write")

    def __init__(
        self,
        current: CurrentKey,
        table: ContentTable,
        namespace: Any,
    ) -> None:
        self._current = current
        self._namespace = namespace
        self._read = table.read
        self._write = table.write
        self._forget = table.forget

    def read(self) -> Any:
        """Return the content, or None."""
        key = self._current.key
        # Asked here and not by a call: each record comes this way.
        if key is NO_KEY:
            key = self._current.required()
        return self._read(key, self._namespace)

    def write(self, content: Any) -> None:
        """Set the content."""
        key = self._current.key
        if key is NO_KEY:
            key = self._current.required()
        self._write(key, self._namespace, content)

    def forget(self) -> None:
        """Remove the content."""
        self._forget(self._current.required(), self._namespace)


class HeapValueState:
    """One value of the current key.

    Args:
        cell: Where it is.
        default: What keys without a value have; each gets a copy of its own.
    """

    __slots__ = ("_cell", "_default", "_shares_default")

    def __init__(self, cell: ContentCell, default: Any) -> None:
        self._cell = cell
        self._default = default
        self._shares_default = type(default) in IMMUTABLE_TYPES

    def value(self) -> Any:
        """Return the value, or a copy of the descriptor's default."""
        value = self._cell.read()
        if value is not None:
            return value
        # A copy of a mutable default: changed in place it would change for all keys.
        return self._default if self._shares_default else copy_content(self._default)

    def update(self, value: Any) -> None:
        """Replace the value; None clears it."""
        if value is None:
            self._cell.forget()
        else:
            self._cell.write(value)

    def clear(self) -> None:
        """Forget the value."""
        self._cell.forget()


class HeapListState:
    """A list of the current key."""

    __slots__ = ("_cell",)

    def __init__(self, cell: ContentCell) -> None:
        self._cell = cell

    def get(self) -> list[Any]:
        """Return the elements as a new list; empty when there are none."""
        # A new list: changing it must not change the state.
        return list(self._cell.read() or ())

    def add(self, value: Any) -> None:
        """Append an element."""
        elements = self._cell.read()
        if elements is None:
            self._cell.write([value])
        else:
            # Changed in place; a store that keeps bytes writes whatever may have been
            # changed.
            elements.append(value)

    def add_all(self, values: Iterable[Any]) -> None:
        """Append elements."""
        added = list(values)
        elements = self._cell.read()
        if elements is not None:
            elements.extend(added)
        elif added:
            self._cell.write(added)

    def update(self, values: Iterable[Any]) -> None:
        """Replace all elements."""
        elements = list(values)
        if elements:
            self._cell.write(elements)
        else:
            self._cell.forget()

    def clear(self) -> None:
        """Forget all elements."""
        self._cell.forget()


class HeapMapState:
    """A map of the current key."""

    __slots__ = ("_cell",)

    def __init__(self, cell: ContentCell) -> None:
        self._cell = cell

    def get(self, map_key: Any, default: Any = None) -> Any:
        """Return the value of ``map_key``, or ``default``."""
        entries = self._cell.read()
        return default if entries is None else entries.get(map_key, default)

    def put(self, map_key: Any, value: Any) -> None:
        """Set the value of ``map_key``."""
        entries = self._cell.read()
        if entries is None:
            self._cell.write({map_key: value})
        else:
            entries[map_key] = value

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        """Set several values."""
        for map_key, value in entries.items():
            self.put(map_key, value)

    def remove(self, map_key: Any) -> None:
        """Forget ``map_key``; a no-op if it is not there."""
        entries = self._cell.read()
        if entries is not None:
            entries.pop(map_key, None)
            # An empty map is no content, so that the key can be forgotten.
            if not entries:
                self._cell.forget()

    def contains(self, map_key: Any) -> bool:
        """Say whether ``map_key`` is there."""
        return map_key in (self._cell.read() or ())

    def items(self) -> list[tuple[Any, Any]]:
        """Return all entries."""
        return list((self._cell.read() or {}).items())

    def keys(self) -> list[Any]:
        """Return all keys of the map."""
        return list(self._cell.read() or ())

    def values(self) -> list[Any]:
        """Return all values of the map."""
        return list((self._cell.read() or {}).values())

    def is_empty(self) -> bool:
        """Say whether the map has no entry."""
        return not self._cell.read()

    def clear(self) -> None:
        """Forget all entries."""
        self._cell.forget()


class HeapReducingState:
    """One value of the current key that others are folded into."""

    __slots__ = ("_cell", "_reduce")

    def __init__(self, cell: ContentCell, reduce: ReduceFunction) -> None:
        self._cell = cell
        self._reduce = reduce

    def get(self) -> Any:
        """Return the value, or None when nothing was added."""
        return self._cell.read()

    def add(self, value: Any) -> None:
        """Fold ``value`` in."""
        old = self._cell.read()
        self._cell.write(value if old is None else self._reduce(old, value))

    def clear(self) -> None:
        """Forget the value."""
        self._cell.forget()


class HeapAggregatingState:
    """One accumulator of the current key."""

    __slots__ = ("_cell", "_function")

    def __init__(self, cell: ContentCell, function: AggregateFunction) -> None:
        self._cell = cell
        self._function = function

    def get(self) -> Any:
        """Return the accumulator's result, or None when nothing was added."""
        accumulator = self._cell.read()
        return None if accumulator is None else self._function.get_result(accumulator)

    def add(self, value: Any) -> None:
        """Add ``value`` to the accumulator."""
        accumulator = self._cell.read()
        if accumulator is None:
            accumulator = self._function.create_accumulator()
        self._cell.write(self._function.add(value, accumulator))

    def clear(self) -> None:
        """Forget the accumulator."""
        self._cell.forget()
