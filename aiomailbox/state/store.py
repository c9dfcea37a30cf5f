"""The contract of keyed state: what an operator may ask of any store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, overload

from aiomailbox.state.descriptors import (
    VOID,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from aiomailbox.state.registry import UnmatchedState
from aiomailbox.state.snapshot import KeyedStateSnapshot
from aiomailbox.typevars import (
    DefaultT,
    InT,
    InT_contra,
    MapKeyT,
    OutT,
    OutT_co,
    ValueT,
)

__all__ = [
    "AggregatingState",
    "KeyedStateStore",
    "ListState",
    "MapState",
    "NamespacedTable",
    "ReducingState",
    "StateTable",
    "ValueState",
]


class ValueState(Protocol[ValueT]):
    """One value of the current key.

    Concept:
        Flink, ``ValueState``.
    """

    def value(self) -> ValueT:
        """Return the value, or the descriptor's default."""
        ...

    def update(self, value: ValueT | None) -> None:
        """Replace the value; None clears it."""
        ...

    def clear(self) -> None:
        """Forget the value."""
        ...


class ListState(Protocol[ValueT]):
    """A list of the current key.

    Put back what you change: where state is kept as bytes, a change in place of what
    was read may be lost.

    Concept:
        Flink, ``ListState``.
    """

    def get(self) -> list[ValueT]:
        """Return the elements as a new list; empty when there are none."""
        ...

    def add(self, value: ValueT) -> None:
        """Append an element."""
        ...

    def add_all(self, values: Iterable[ValueT]) -> None:
        """Append elements."""
        ...

    def update(self, values: Iterable[ValueT]) -> None:
        """Replace all elements."""
        ...

    def clear(self) -> None:
        """Forget all elements."""
        ...


class MapState(Protocol[MapKeyT, ValueT]):
    """A map of the current key.

    Put back what you change: where state is kept as bytes, a change in place of what
    was read may be lost.
    ``items``, ``keys`` and ``values`` return new lists, so the map may be changed
    while they are walked.

    Concept:
        Flink, ``MapState``.
    """

    @overload
    def get(self, map_key: MapKeyT) -> ValueT | None: ...

    @overload
    def get(self, map_key: MapKeyT, default: DefaultT) -> ValueT | DefaultT: ...

    def get(self, map_key: MapKeyT, default: Any = None) -> Any:
        """Return the value of ``map_key``, or ``default``."""
        ...

    def put(self, map_key: MapKeyT, value: ValueT) -> None:
        """Set the value of ``map_key``."""
        ...

    def put_all(self, entries: Mapping[MapKeyT, ValueT]) -> None:
        """Set several values."""
        ...

    def remove(self, map_key: MapKeyT) -> None:
        """Forget ``map_key``; a no-op if it is not there."""
        ...

    def contains(self, map_key: MapKeyT) -> bool:
        """Say whether ``map_key`` is there."""
        ...

    def items(self) -> list[tuple[MapKeyT, ValueT]]:
        """Return all entries."""
        ...

    def keys(self) -> list[MapKeyT]:
        """Return all keys of the map."""
        ...

    def values(self) -> list[ValueT]:
        """Return all values of the map."""
        ...

    def is_empty(self) -> bool:
        """Say whether the map has no entry; one that has expired counts until it goes."""
        ...

    def clear(self) -> None:
        """Forget all entries."""
        ...


class ReducingState(Protocol[ValueT]):
    """One value of the current key that others are folded into.

    Concept:
        Flink, ``ReducingState``.
    """

    def get(self) -> ValueT | None:
        """Return the value, or None when nothing was added."""
        ...

    def add(self, value: ValueT) -> None:
        """Fold ``value`` in."""
        ...

    def clear(self) -> None:
        """Forget the value."""
        ...


class AggregatingState(Protocol[InT_contra, OutT_co]):
    """One accumulator of the current key.

    Concept:
        Flink, ``AggregatingState``.
    """

    def get(self) -> OutT_co | None:
        """Return the accumulator's result, or None when nothing was added."""
        ...

    def add(self, value: InT_contra) -> None:
        """Add ``value`` to the accumulator."""
        ...

    def clear(self) -> None:
        """Forget the accumulator."""
        ...


class RunContents(Protocol):
    """The contents of the keys of a run; None, or nothing, for keys without."""

    def get(self, key: Any, /) -> Any:
        """Return the content of a key."""
        ...

    def __setitem__(self, key: Any, content: Any, /) -> None: ...


class StateTable(Protocol):
    """One state of all keys, for operators that work on whole runs.

    The caller names the key; the store's current key plays no part. What is kept is
    the raw content: the value, the list, the dict, the accumulator.

    Attributes:
        get: ``get(key, default=None)`` returns the content.
        put: ``put(key, content)`` sets it.
    """

    get: Callable[..., Any]
    put: Callable[[Any, Any], None]

    def prefetch(self, keys: Iterable[Any]) -> None:
        """Be notified that these keys are asked for next; a run's keys, for example."""
        ...

    def for_run(self, keys: list[Any]) -> RunContents:
        """Return the contents of these keys, to be read, set and changed in place.

        They are good until anything else of the table is used. The keys count as
        written: what is changed in place need not be set again.
        """
        ...

    def remove(self, key: Any) -> None:
        """Forget the content of ``key``; a no-op if there is none."""
        ...

    def drain(self, count: int) -> list[tuple[Any, Any]]:
        """Take out about so many keys with their contents; none once there are none."""
        ...

    def items(self) -> Iterable[tuple[Any, Any]]:
        """Return all keys with their contents, live: change nothing meanwhile."""
        ...

    def __len__(self) -> int: ...


class NamespacedTable(Protocol):
    """One state of all keys and namespaces (windows), like `StateTable` otherwise."""

    def get(self, key: Any, namespace: Any, default: Any = None) -> Any:
        """Return the content of ``key`` in ``namespace``."""
        ...

    def put(self, key: Any, namespace: Any, content: Any) -> None:
        """Set the content of ``key`` in ``namespace``."""
        ...

    def remove(self, key: Any, namespace: Any) -> None:
        """Forget the content of ``key`` in ``namespace``; a no-op if there is none."""
        ...

    def namespaces(self, key: Any) -> list[Any]:
        """Return the namespaces in which ``key`` has content, as a new list."""
        ...

    def drain(self, count: int) -> list[tuple[Any, Any, Any]]:
        """Take out about so many entries; none once there are none."""
        ...

    def items(self) -> Iterable[tuple[Any, Any, Any]]:
        """Return all ``(key, namespace, content)``, live: change nothing meanwhile."""
        ...

    def __len__(self) -> int: ...


class KeyedStateStore(Protocol):
    """The keyed state of one operator in one subtask.

    State objects are cheap and read the store's current key on each access, so they
    are made once and kept.

    Concept:
        Flink, ``KeyedStateBackend`` and ``KeyedStateStore``.
    """

    @property
    def restored_key(self) -> Any:
        """One of the keys that were restored, None if there was none."""
        ...

    @property
    def current_key(self) -> Any:
        """The key that state objects refer to.

        Raises:
            StateError: If no key is set.
        """
        ...

    def set_current_key(self, key: Any) -> None:
        """Make ``key`` the key that state objects refer to; None for no key."""
        ...

    def get_value(
        self, descriptor: ValueStateDescriptor[ValueT], namespace: Any = VOID
    ) -> ValueState[ValueT]:
        """Return the value state that ``descriptor`` names.

        Raises:
            StateError: If the name is in use for another kind of state.
        """
        ...

    def get_list(
        self, descriptor: ListStateDescriptor[ValueT], namespace: Any = VOID
    ) -> ListState[ValueT]:
        """Return a list state; raises as `get_value` does."""
        ...

    def get_map(
        self, descriptor: MapStateDescriptor[MapKeyT, ValueT], namespace: Any = VOID
    ) -> MapState[MapKeyT, ValueT]:
        """Return a map state; raises as `get_value` does."""
        ...

    def get_reducing(
        self, descriptor: ReducingStateDescriptor[ValueT], namespace: Any = VOID
    ) -> ReducingState[ValueT]:
        """Return a reducing state; raises as `get_value` does."""
        ...

    def get_aggregating(
        self, descriptor: AggregatingStateDescriptor[InT, OutT], namespace: Any = VOID
    ) -> AggregatingState[InT, OutT]:
        """Return an aggregating state; raises as `get_value` does."""
        ...

    def merge_namespaces(
        self, descriptor: StateDescriptor, target: Any, sources: Iterable[Any]
    ) -> None:
        """Move the current key's contents of ``sources`` into ``target``.

        Lists are joined, reducing and aggregating state is merged.

        Raises:
            StateError: If the state is of a kind that cannot be merged.
        """
        ...

    def table(self, descriptor: StateDescriptor) -> StateTable:
        """Return the state of all keys, without namespaces."""
        ...

    def namespaced(self, descriptor: StateDescriptor) -> NamespacedTable:
        """Return the state of all keys and namespaces."""
        ...

    def keys(self, descriptor: StateDescriptor) -> list[Any]:
        """Return the keys that have content in any namespace, as a new list."""
        ...

    def key_count(self) -> int:
        """Return how many keys have state; costs a walk over all keys."""
        ...

    def estimated_keys(self) -> int:
        """Return about how many keys have state, without a walk over them."""
        ...

    def size_bytes(self) -> int:
        """Return about how many bytes the state takes."""
        ...

    def prefetch(self, keys: Iterable[Any]) -> None:
        """Be notified that state of these keys, without namespaces, is used next."""
        ...

    def snapshot(self) -> KeyedStateSnapshot:
        """Return a snapshot of all state that later changes do not touch."""
        ...

    def settle(self, count: int) -> int:
        """Undo what snapshots that are no longer held still cost.

        Args:
            count: How many steps to do at most, of about a microsecond.

        Returns:
            How many were not needed, or could not be done while there is a snapshot.
        """
        ...

    @property
    def has_snapshot(self) -> bool:
        """Whether a snapshot makes every access cost more: there is more to settle."""
        ...

    def unmatched(self) -> UnmatchedState:
        """Return what was restored and not asked for so far, and what began empty."""
        ...

    def restore(self, snapshots: Sequence[KeyedStateSnapshot]) -> None:
        """Replace all state by what the snapshots hold for this store's key groups.

        Raises:
            StateError: If a snapshot was made with another number of key groups.
        """
        ...

    def restoring(self, snapshots: Sequence[KeyedStateSnapshot]) -> Iterator[None]:
        """Do as `restore`, a piece of about a millisecond at a time."""
        ...

    def close(self) -> None:
        """Release what the store holds outside of memory. Idempotent."""
        ...
