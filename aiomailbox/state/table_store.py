"""The part that keyed stores share: state objects over tables.

Theory of operation: a store has a table per state, and a state object is a view of the
current key's entry in it. Stores differ in the tables they make, and in how they cut
and restore them.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import partial, reduce
from typing import Any, Generic

from aiomailbox.clock import Clock
from aiomailbox.errors import StateError
from aiomailbox.keygroups.assignment import KeyGroupRange
from aiomailbox.signatures import with_other_names
from aiomailbox.state.cells import NO_KEY, Cell, ContentCell, ContentTable, CurrentKey
from aiomailbox.state.descriptors import (
    VOID,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from aiomailbox.state.handles import (
    AggregatingHandle,
    Expiry,
    LentValueHandle,
    ListHandle,
    MapHandle,
    ReducingHandle,
    Sweep,
    TtlCell,
    TtlListHandle,
    TtlMapHandle,
    ValueHandle,
)
from aiomailbox.state.lent import Lent
from aiomailbox.state.snapshot import IMMUTABLE_TYPES, KeyedStateSnapshot, StateMeta
from aiomailbox.state.store import (
    STATE_OF_ELSEWHERE,
    AggregatingState,
    ListState,
    MapState,
    NamespacedTable,
    ReducingState,
    StateRegistry,
    StateTable,
    UnmatchedState,
    ValueState,
    check_kind,
    check_max_parallelism,
    refuse_second,
    refuse_ttl,
)
from aiomailbox.typevars import InT, MapKeyT, OutT, ValueT

if sys.version_info >= (3, 13):
    from typing import TypeVar
else:
    from typing_extensions import TypeVar

TableT = TypeVar("TableT", bound=ContentTable, default=Any)

# Joining the contents of several namespaces into one, as merging windows need.


def merge_contents(
    table: NamespacedTable,
    descriptor: StateDescriptor,
    key: Any,
    target: Any,
    sources: Iterable[Any],
    expiry: Expiry | None,
) -> None:
    """Move the contents of ``key`` in ``sources`` into the namespace ``target``.

    What has expired is left out. Elements of lists keep their age; a merged value is as
    young as the merge.

    Raises:
        StateError: If state of this kind cannot be merged.
    """
    _check_mergeable(descriptor)
    now_ms = 0 if expiry is None else expiry.now_ms()
    namespaces = dict.fromkeys([target, *sources])
    live = []
    for namespace in namespaces:
        content = table.get(key, namespace)
        if content is not None and expiry is not None:
            content = expiry.live(content, now_ms)
        if content is not None:
            live.append(content)
    # First what may raise, as functions of the user's do: then nothing has moved.
    merged: Any = None
    if live and (expiry is None or isinstance(descriptor, ListStateDescriptor)):
        merged = reduce(partial(joined, descriptor), live)
    elif live:
        values = (content for content, _ in live)
        merged = (reduce(partial(joined, descriptor), values), now_ms)
    for namespace in namespaces:
        if namespace != target or not live:
            table.remove(key, namespace)
    if live:
        table.put(key, target, merged)


def joined(descriptor: StateDescriptor, first: Any, second: Any) -> Any:
    """Return the contents of two namespaces as one; ``first`` may be changed for it."""
    if isinstance(descriptor, ReducingStateDescriptor):
        return descriptor.reduce_function(first, second)
    if isinstance(descriptor, AggregatingStateDescriptor):
        return descriptor.aggregate_function.merge(first, second)
    return [*first, *second]


def _check_mergeable(descriptor: StateDescriptor) -> None:
    mergeable = (
        ListStateDescriptor,
        ReducingStateDescriptor,
        AggregatingStateDescriptor,
    )
    if not isinstance(descriptor, mergeable):
        raise StateError(
            f"{descriptor.kind} state {descriptor.name!r} cannot be merged. "
            "Use list, reducing or aggregating state with windows that merge."
        )


@with_other_names("context.keyed_state", STATE_OF_ELSEWHERE)
class KeyedStateStore(ABC, Generic[TableT]):
    """The keyed state of one operator in one subtask.

    State objects are cheap and read the store's current key on each access, so they
    are made once and kept.

    A descriptor may be used with and without namespaces; the two do not mix.

    Args:
        max_parallelism: Number of key groups of the job.
        key_group_range: The key groups of this subtask.
        clock: Read only for state with a time to live.

    Attributes:
        current: The key that state objects refer to, and who may use it.
        restored_key: One of the keys that were restored, None if there was none.

    Concept:
        Flink, ``KeyedStateBackend`` and ``KeyedStateStore``.
    """

    def __init__(
        self, max_parallelism: int, key_group_range: KeyGroupRange, clock: Clock
    ) -> None:
        self._max_parallelism = max_parallelism
        self._key_group_range = key_group_range
        self._clock = clock
        self.current: CurrentKey = CurrentKey()
        self._sweeps: dict[int, Sweep] = {}
        self._lent: dict[str, Lent] = {}
        self._registry: StateRegistry[TableT] = StateRegistry(self._new_table)
        self.restored_key: Any = None

    @property
    def current_key(self) -> Any:
        """The key that state objects refer to.

        Raises:
            StateError: If no key is set.
        """
        return self.current.required()

    def used_by(self, place: str) -> None:
        """Let errors name the operator whose state this is."""
        self.current.place = place

    def set_current_key(self, key: Any) -> None:
        """Make ``key`` the key that state objects refer to; None for no key."""
        self.current.key = NO_KEY if key is None else key

    def leave(self) -> None:
        """Let no key be current, and let go of lists that were returned."""
        self.current.key = NO_KEY
        for lent in self._lent.values():
            lent.look()

    def get_value(
        self, descriptor: ValueStateDescriptor[ValueT], namespace: Any = VOID
    ) -> ValueState[ValueT]:
        """Return the value state that ``descriptor`` names.

        Raises:
            StateError: If the name is in use for another kind of state.
        """
        cell = self._expiring_cell(descriptor, namespace, "value")
        default = descriptor.default
        if type(default) in IMMUTABLE_TYPES:
            return ValueHandle(cell, default)
        return LentValueHandle(cell, default, self.lent(descriptor))

    def get_list(
        self, descriptor: ListStateDescriptor[ValueT], namespace: Any = VOID
    ) -> ListState[ValueT]:
        """Return a list state; raises as `get_value` does."""
        cell = self._cell(descriptor, namespace, "list")
        expiry = self._expiry(descriptor, namespace)
        lent = self.lent(descriptor)
        if expiry is None:
            return ListHandle(cell, lent, descriptor.type_)
        return TtlListHandle(cell, *expiry, lent)

    def get_map(
        self, descriptor: MapStateDescriptor[MapKeyT, ValueT], namespace: Any = VOID
    ) -> MapState[MapKeyT, ValueT]:
        """Return a map state; raises as `get_value` does."""
        cell = self._cell(descriptor, namespace, "map")
        expiry = self._expiry(descriptor, namespace)
        lent = self.lent(descriptor)
        if expiry is None:
            return MapHandle(cell, lent, descriptor.key_type)
        return TtlMapHandle(cell, *expiry, lent)

    def get_reducing(
        self, descriptor: ReducingStateDescriptor[ValueT], namespace: Any = VOID
    ) -> ReducingState[ValueT]:
        """Return a reducing state; raises as `get_value` does."""
        cell = self._expiring_cell(descriptor, namespace, "reducing")
        return ReducingHandle(cell, descriptor.reduce_function)

    def get_aggregating(
        self, descriptor: AggregatingStateDescriptor[InT, OutT], namespace: Any = VOID
    ) -> AggregatingState[InT, OutT]:
        """Return an aggregating state; raises as `get_value` does."""
        cell = self._expiring_cell(descriptor, namespace, "aggregating")
        return AggregatingHandle(cell, descriptor.aggregate_function)

    def merge_namespaces(
        self, descriptor: StateDescriptor, target: Any, sources: Iterable[Any]
    ) -> None:
        """Move the current key's contents of ``sources`` into ``target``.

        Lists are joined, reducing and aggregating state is merged.

        Raises:
            StateError: If the state is of a kind that cannot be merged.
        """
        key = self.current.required()
        table = self._namespaced(descriptor)
        expiry = self._expiry(descriptor, target)
        when = None if expiry is None else expiry[0]
        merge_contents(table, descriptor, key, target, sources, when)

    def table(self, descriptor: StateDescriptor) -> StateTable:
        """Return the state of all keys, without namespaces.

        Raises:
            StateError: If the state has a time to live: a table does not look at it.
        """
        refuse_ttl(descriptor)
        table: Any = self._table(descriptor, namespaced=False)
        return table

    def namespaced(self, descriptor: StateDescriptor) -> NamespacedTable:
        """Return the state of all keys and namespaces; raises as `table` does."""
        refuse_ttl(descriptor)
        return self._namespaced(descriptor)

    def keys(self, descriptor: StateDescriptor) -> list[Any]:
        """Return the keys that have content in any namespace, as a new list."""
        found: dict[Any, None] = {}
        for namespaced in (False, True):
            entry = self._registry.entries.get((descriptor.name, namespaced))
            if entry is not None:
                found.update(dict.fromkeys(entry.table.all_keys()))
        return list(found)

    def key_count(self) -> int:
        """Return how many keys have state; costs a walk over all keys."""
        keys: set[Any] = set()
        for entry in self._registry.entries.values():
            keys.update(entry.table.all_keys())
        return len(keys)

    def unmatched(self) -> UnmatchedState:
        """Return restored states that nothing reads, and states that began empty."""
        return self._registry.unmatched()

    def restore(self, snapshots: Sequence[KeyedStateSnapshot]) -> None:
        """Replace all state by what the snapshots hold for this store's key groups.

        Raises:
            StateError: If a snapshot was made with another number of key groups, or
                two of them describe a state in two ways.
        """
        for _ in self.restoring(snapshots):
            pass

    def restoring(self, snapshots: Sequence[KeyedStateSnapshot]) -> Iterator[None]:
        """Do as `restore`, in pieces; raises as that does."""
        self._clear()
        for snapshot in snapshots:
            check_max_parallelism(snapshot, self._max_parallelism)
            states = [
                self._registry.restored(meta, allow_unmatched=snapshot.allow_unmatched)
                for meta in snapshot.states
            ]
            for position, entries in snapshot.entries_of(self._key_group_range):
                states[position].load(entries)
                if entries:
                    self.restored_key = entries.columns[0][0]
                self._keep_loaded(states[position].table)
                yield

    @abstractmethod
    def estimated_keys(self) -> int:
        """Return about how many keys have state, without a walk over them."""

    @abstractmethod
    def size_bytes(self) -> int:
        """Return about how many bytes the state takes."""

    @abstractmethod
    def prefetch(self, keys: Iterable[Any]) -> None:
        """Be notified that state of these keys, without namespaces, is used next."""

    @abstractmethod
    def snapshot(self) -> KeyedStateSnapshot:
        """Return a snapshot of all state that later changes do not touch."""

    @abstractmethod
    def settle(self, count: int) -> int:
        """Undo what snapshots that are no longer held still cost.

        Args:
            count: How many steps to do at most, of about a microsecond.

        Returns:
            How many were not needed, or could not be done while there is a snapshot.
        """

    @property
    @abstractmethod
    def has_snapshot(self) -> bool:
        """Whether a snapshot makes every access cost more: there is more to settle."""

    @abstractmethod
    def close(self) -> None:
        """Release what the store holds outside of memory. Idempotent."""

    @abstractmethod
    def _new_table(self, meta: StateMeta) -> TableT:
        """Return the table of a new state."""

    def _clear(self) -> None:
        """Forget the contents of all states."""
        for entry in self._registry.entries.values():
            entry.table.clear()

    def _keep_loaded(self, table: TableT) -> None:
        """Be notified that contents of a snapshot were put into a table."""

    def _cell(self, descriptor: StateDescriptor, namespace: Any, kind: str) -> Cell:
        check_kind(descriptor, kind)
        place = descriptor.name, namespace is not VOID
        known = self._registry.entries.get(place)
        first = None if known is None else known.descriptor
        table = self._table(descriptor, namespaced=place[1])
        # In open(): a function may describe its state anew with each record.
        if first is not None and self.current.is_none:
            refuse_second(first, descriptor)
        return Cell(self.current, table, namespace)

    def lent(self, descriptor: StateDescriptor) -> Lent:
        """Return what knows the object that a state has returned last."""
        name = descriptor.name
        lent = self._lent.get(name)
        if lent is None:
            lent = self._lent[name] = Lent(name, self.current)
        return lent

    def _expiring_cell(
        self, descriptor: StateDescriptor, namespace: Any, kind: str
    ) -> ContentCell:
        cell = self._cell(descriptor, namespace, kind)
        expiry = self._expiry(descriptor, namespace)
        return cell if expiry is None else TtlCell(cell, *expiry)

    def _expiry(
        self, descriptor: StateDescriptor, namespace: Any
    ) -> tuple[Expiry, Sweep] | None:
        """Return when the state's contents expire; one sweep serves all its objects."""
        config = descriptor.ttl
        if config is None:
            return None
        table = self._table(descriptor, namespaced=namespace is not VOID)
        expiry = Expiry(config, descriptor.kind, self._clock)
        sweep = self._sweeps.setdefault(id(table), Sweep(table, expiry))
        return expiry, sweep

    def _namespaced(self, descriptor: StateDescriptor) -> NamespacedTable:
        table: Any = self._table(descriptor, namespaced=True)
        return table

    def _table(self, descriptor: StateDescriptor, *, namespaced: bool) -> TableT:
        return self._registry.table(descriptor, namespaced=namespaced)
