"""The contract of keyed state: the questions that an operator may ask any store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any, Final, Generic, NoReturn, Protocol, TypeVar, overload

from aiomailbox.errors import StateError, WrongTypeError
from aiomailbox.state.accumulators import Convert, conversion
from aiomailbox.state.cells import ContentTable
from aiomailbox.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from aiomailbox.state.schema import StateSchema, check_fields, check_parts
from aiomailbox.state.snapshot import Entries, KeyedStateSnapshot, StateMeta
from aiomailbox.typevars import (
    DefaultT,
    InT,
    InT_contra,
    MapKeyT,
    OutT,
    OutT_co,
    ValueT,
)

# What Flink calls the methods of a store of keyed state.
STATE_OF_ELSEWHERE: Final = {
    "get_state": "get_value(descriptor)",
    "get_list_state": "get_list(descriptor)",
    "get_map_state": "get_map(descriptor)",
    "get_reducing_state": "get_reducing(descriptor)",
    "get_aggregating_state": "get_aggregating(descriptor)",
}


# Which states a store has, and whether a descriptor fits the state of its name.


TableT = TypeVar("TableT", bound=ContentTable)


@dataclass(slots=True)
class Registered(Generic[TableT]):
    """One state of a store.

    Attributes:
        meta: Its description.
        table: Where its contents are.
        descriptor: The last descriptor that was found to fit; None if there was none.
        allow_unmatched: Whether accumulators that were restored, and that nothing has
            asked for yet, may be left.
    """

    meta: StateMeta
    table: TableT
    descriptor: StateDescriptor | None = None
    allow_unmatched: bool = False


@dataclass(frozen=True, slots=True)
class Restoring(Generic[TableT]):
    """A state that is being restored.

    Attributes:
        table: Where its contents go.
        descriptor: The descriptor that has asked for it already, if any has.
        convert: Converts accumulators to those of the descriptor, if they are others.
    """

    table: TableT
    descriptor: StateDescriptor | None
    convert: Convert | None

    def load(self, entries: Entries) -> None:
        """Put entries of a snapshot into the table."""
        descriptor, convert = self.descriptor, self.convert
        if descriptor is not None and convert is not None:
            width = len(entries.columns)
            made = (
                (*address, descriptor.converted(content, convert))
                for *address, content in entries
            )
            entries = Entries.of((row for row in made if row[-1] is not None), width)
        self.table.load(entries)


@dataclass(frozen=True, slots=True)
class UnmatchedState:
    """How what a store restored differs from what its operator has asked for.

    Attributes:
        unread: The names of states with contents that nothing has asked for.
        empty: Those of states that were asked for, and not restored.
        is_allowed: Whether contents may be left unread.
    """

    unread: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    is_allowed: bool = False


class StateRegistry(Generic[TableT]):
    """The states of a store, in the order in which they were first used.

    Args:
        make_table: Makes the table of a new state.

    Attributes:
        entries: By name, and whether with namespaces.
        allows_unmatched: Whether what was restored may be left unread.
    """

    def __init__(self, make_table: Callable[[StateMeta], TableT]) -> None:
        self._make_table = make_table
        self.entries: dict[tuple[str, bool], Registered[TableT]] = {}
        self._restored: set[tuple[str, bool]] = set()
        self.allows_unmatched: bool = False

    def table(self, descriptor: StateDescriptor, *, namespaced: bool) -> TableT:
        """Return the table of the state that a descriptor names.

        Raises:
            StateError: If the name is in use for state of another kind or type.
        """
        known = self.entries.get((descriptor.name, namespaced))
        if known is not None and known.descriptor is descriptor:
            return known.table
        meta = state_meta(descriptor, namespaced=namespaced)
        entry = self._add(meta, descriptor)
        convert = conversion(
            descriptor.name,
            entry.meta.schema.accumulator,
            descriptor.accumulates,
            allow_unmatched=entry.allow_unmatched,
        )
        if convert is not None:
            _convert_all(entry.table, descriptor, convert)
        accumulator = meta.schema.accumulator
        schema = replace(entry.meta.schema, accumulator=accumulator)
        entry.meta = replace(entry.meta, schema=schema)
        entry.descriptor, entry.allow_unmatched = descriptor, False
        return entry.table

    def restored(
        self, meta: StateMeta, *, allow_unmatched: bool = False
    ) -> Restoring[TableT]:
        """Return what puts contents of a snapshot into the table of their state.

        Args:
            meta: The snapshot's description of the state.
            allow_unmatched: Whether accumulators may be left, and others begin empty.

        Raises:
            StateError: As `table`, or if it was written in two ways.
        """
        entry = self._add(meta)
        self._restored.add((meta.name, meta.namespaced))
        self.allows_unmatched |= allow_unmatched
        descriptor = entry.descriptor
        if descriptor is not None:
            convert = conversion(
                meta.name,
                meta.schema.accumulator,
                descriptor.accumulates,
                allow_unmatched=allow_unmatched,
            )
            return Restoring(entry.table, descriptor, convert)
        entry.allow_unmatched = allow_unmatched
        if meta.schema.accumulator != entry.meta.schema.accumulator:
            raise StateError(
                f"state {meta.name!r} is in the snapshot twice, by different aggregates: "
                f"[{entry.meta.schema.accumulator}] and [{meta.schema.accumulator}]"
            )
        return Restoring(entry.table, None, None)

    def unmatched(self) -> UnmatchedState:
        """Return restored states that nothing reads, and states that began empty."""
        if not self._restored:
            return UnmatchedState()
        unread = [
            name
            for (name, _), entry in self.entries.items()
            if entry.descriptor is None
            and any(True for _ in islice(entry.table.all_keys(), 1))
        ]
        empty = [
            place[0]
            for place, entry in self.entries.items()
            if entry.descriptor is not None and place not in self._restored
        ]
        return UnmatchedState(tuple(unread), tuple(empty), self.allows_unmatched)

    def _add(
        self, meta: StateMeta, descriptor: StateDescriptor | None = None
    ) -> Registered[TableT]:
        """Add a state: that of a descriptor, or without one of a snapshot."""
        known = self.entries.get((meta.name, meta.namespaced))
        for other in (known, self.entries.get((meta.name, not meta.namespaced))):
            if other is not None:
                _check_kind(other, meta, descriptor)
                _check_fits(other.meta, meta)
        if known is None:
            known = Registered(meta, self._make_table(meta))
            self.entries[meta.name, meta.namespaced] = known
        elif meta.schema.parts:
            # What is in it stays as it was written, until that is converted.
            accumulator = known.meta.schema.accumulator
            known.meta = replace(
                meta, schema=replace(meta.schema, accumulator=accumulator)
            )
        return known


def check_same_state(first: StateDescriptor, second: StateDescriptor) -> None:
    """Raise if two descriptors of one name describe different state.

    Raises:
        StateError: Naming the state, and what differs.

    Example:
        >>> from aiomailbox.state.descriptors import ListStateDescriptor
        >>> from aiomailbox.state.descriptors import ValueStateDescriptor
        >>> check_same_state(ValueStateDescriptor("s"), ListStateDescriptor("s"))
        Traceback (most recent call last):
        ...
        aiomailbox.errors.StateError: state 's' is value state and cannot be used as...
    """
    _check_fits(
        state_meta(first, namespaced=False), state_meta(second, namespaced=False)
    )


def check_kind(descriptor: StateDescriptor, kind: str) -> None:
    """Raise unless a descriptor describes state of a kind.

    Raises:
        WrongTypeError: Saying which method, or which descriptor, is meant.
    """
    described = getattr(descriptor, "kind", None)
    if isinstance(descriptor, StateDescriptor):
        if described == kind:
            return
        remedy = f"Write get_{described}(descriptor)."
        problem = f"{descriptor.name!r} describes {described} state"
    else:
        problem = f"{descriptor!r} is not a descriptor"
        remedy = f"Write am.{kind.capitalize()}StateDescriptor('name')."
    raise WrongTypeError("descriptor", problem, remedy)


def refuse_second(first: StateDescriptor, second: StateDescriptor) -> None:
    """Raise if two descriptors, where each stands for a state of its own, have one name.

    Raises:
        StateError: Unless both are the same object.
    """
    if first is not second:
        raise StateError(
            f"two descriptors are called {second.name!r}: both would stand for one "
            "content. Give the second state a name of its own, or use one descriptor."
        )


def check_max_parallelism(snapshot: KeyedStateSnapshot, max_parallelism: int) -> None:
    """Raise if a snapshot was made with another number of key groups."""
    if snapshot.max_parallelism != max_parallelism:
        raise StateError(
            f"the state was written with max_parallelism {snapshot.max_parallelism} "
            f"and cannot be read with {max_parallelism}: keys would be looked up in "
            f"other key groups. Set max_parallelism to {snapshot.max_parallelism}."
        )


def refuse_ttl(descriptor: StateDescriptor) -> None:
    """Raise if the state has a time to live, which tables of all keys ignore."""
    if descriptor.ttl is not None:
        raise StateError(
            f"state {descriptor.name!r} has a time to live, which a table of all "
            "keys ignores. Use the state object of its kind, e.g. get_value()."
        )


def state_meta(descriptor: StateDescriptor, *, namespaced: bool) -> StateMeta:
    """Return what a snapshot says of the state that a descriptor names."""
    return StateMeta(
        descriptor.name,
        descriptor.kind,
        namespaced,
        descriptor.ttl is not None,
        descriptor.serializer_id,
        descriptor.schema,
    )


def _convert_all(
    table: ContentTable, descriptor: StateDescriptor, convert: Convert
) -> None:
    """Convert all accumulators of a table; it takes a microsecond for each."""
    for key, _ in groupby(table.all_keys()):
        for namespace in table.namespaces_of(key):
            made = descriptor.converted(table.read(key, namespace), convert)
            if made is None:
                table.forget(key, namespace)
            else:
                table.write(key, namespace, made)


def _check_kind(
    known: Registered[Any], asked: StateMeta, descriptor: StateDescriptor | None
) -> None:
    """Raise if a state is of another kind in a snapshot than the program says."""
    in_snapshot = known.meta if descriptor is not None else asked
    # What two parts of a program say of one state is no matter of a snapshot.
    if (descriptor is None) == (known.descriptor is None):
        return
    said = descriptor or known.descriptor
    if said is not None and said.kind != in_snapshot.kind:
        raise StateError(said.other_kind(in_snapshot.kind))


def _check_fits(known: StateMeta, asked: StateMeta) -> None:
    if known.kind != asked.kind:
        raise StateError(
            f"state {asked.name!r} is {known.kind} state and cannot be used as "
            f"{asked.kind} state. Give the second state a name of its own."
        )
    if known.ttl != asked.ttl:
        had, has = ("a", "none") if known.ttl else ("no", "one")
        raise StateError(
            f"state {asked.name!r} had {had} time to live and now has {has}: its "
            f"contents do not fit. Give the state another name."
        )
    check_same_contents(
        asked.name, (known.serializer, known.schema), (asked.serializer, asked.schema)
    )


def check_same_contents(
    state: str, known: tuple[str, StateSchema], asked: tuple[str, StateSchema]
) -> None:
    """Raise if contents, as they are kept, do not fit a newer description.

    Args:
        state: The state's name.
        known: The id of the serializer that wrote them, and their schema.
        asked: Those of the description.

    Raises:
        StateError: Naming the state, and what differs.
    """
    if known[0] != asked[0]:
        raise StateError(
            f"state {state!r} was written by serializer {known[0]!r} and "
            f"is described with {asked[0]!r}. Keep the serializer, or give "
            "the state another name."
        )
    check_parts(state, known[1], asked[1])
    _check_classes(state, known[1], asked[1])


def _check_classes(state: str, known: StateSchema, asked: StateSchema) -> None:
    for reference, now in asked.classes.items():
        written = known.classes.get(reference)
        if written is not None:
            check_fields(state, reference, written, now)


class ValueState(Protocol[ValueT]):
    """One value of the current key.

    Concept:
        Flink, ``ValueState``.
    """

    def value(self) -> ValueT:
        """Return the value, or the descriptor's default."""

    def update(self, value: ValueT | None) -> None:
        """Replace the value; None clears it."""

    def clear(self) -> None:
        """Forget the value."""


class ListState(Protocol[ValueT]):
    """A list of the current key.

    Write changed objects back: if the backend keeps bytes, a change in place of an
    object that you read may be lost.

    Concept:
        Flink, ``ListState``.
    """

    def get(self) -> list[ValueT]:
        """Return the elements as a new list; empty when there are none."""

    def add(self, value: ValueT) -> None:
        """Append an element."""

    def add_all(self, values: Iterable[ValueT]) -> None:
        """Append elements."""

    def update(self, values: Iterable[ValueT]) -> None:
        """Replace all elements."""

    def clear(self) -> None:
        """Forget all elements."""


class MapState(Protocol[MapKeyT, ValueT]):
    """A map of the current key.

    Write changed objects back: if the backend keeps bytes, a change in place of an
    object that you read may be lost. ``items``, ``keys`` and ``values`` return new
    lists, so the map may be changed while they are walked.

    Concept:
        Flink, ``MapState``.
    """

    @overload
    def get(self, map_key: MapKeyT) -> ValueT | None: ...

    @overload
    def get(self, map_key: MapKeyT, default: DefaultT) -> ValueT | DefaultT: ...

    def get(self, map_key: MapKeyT, default: Any = None) -> Any:
        """Return the value of ``map_key``, or ``default``."""

    def put(self, map_key: MapKeyT, value: ValueT) -> None:
        """Set the value of ``map_key``."""

    def put_all(self, entries: Mapping[MapKeyT, ValueT]) -> None:
        """Set several values."""

    def remove(self, map_key: MapKeyT) -> None:
        """Forget ``map_key``; a no-op if it is not there."""

    def contains(self, map_key: MapKeyT) -> bool:
        """Say whether ``map_key`` is there."""

    def items(self) -> list[tuple[MapKeyT, ValueT]]:
        """Return all entries."""

    def keys(self) -> list[MapKeyT]:
        """Return all keys of the map."""

    def values(self) -> list[ValueT]:
        """Return all values of the map."""

    def is_empty(self) -> bool:
        """Say whether the map has no entry; one that has expired counts until it goes."""

    def clear(self) -> None:
        """Forget all entries."""


class ReducingState(Protocol[ValueT]):
    """One value of the current key that others are folded into.

    Concept:
        Flink, ``ReducingState``.
    """

    def get(self) -> ValueT | None:
        """Return the value, or None when nothing was added."""

    def add(self, value: ValueT) -> None:
        """Fold ``value`` in."""

    def clear(self) -> None:
        """Forget the value."""


class AggregatingState(Protocol[InT_contra, OutT_co]):
    """One accumulator of the current key.

    Concept:
        Flink, ``AggregatingState``.
    """

    def get(self) -> OutT_co | None:
        """Return the accumulator's result, or None when nothing was added."""

    def add(self, value: InT_contra) -> None:
        """Add ``value`` to the accumulator."""

    def clear(self) -> None:
        """Forget the accumulator."""


class StateGetters(ABC):
    """The base of what returns a state object for a descriptor of each kind."""

    __slots__ = ()

    @abstractmethod
    def _state(self, descriptor: StateDescriptor, kind: str) -> Any: ...

    def get_value(self, descriptor: ValueStateDescriptor[ValueT]) -> ValueState[ValueT]:
        """Return a value state."""
        return self._state(descriptor, "value")

    def get_list(self, descriptor: ListStateDescriptor[ValueT]) -> ListState[ValueT]:
        """Return a list state."""
        return self._state(descriptor, "list")

    def get_map(
        self, descriptor: MapStateDescriptor[MapKeyT, ValueT]
    ) -> MapState[MapKeyT, ValueT]:
        """Return a map state."""
        return self._state(descriptor, "map")

    def get_reducing(
        self, descriptor: ReducingStateDescriptor[ValueT]
    ) -> ReducingState[ValueT]:
        """Return a reducing state."""
        return self._state(descriptor, "reducing")

    def get_aggregating(
        self, descriptor: AggregatingStateDescriptor[InT, OutT]
    ) -> AggregatingState[InT, OutT]:
        """Return an aggregating state."""
        return self._state(descriptor, "aggregating")


class RunContents(Protocol):
    """The contents of the keys of a run; None, or nothing, for keys without."""

    def get(self, key: Any, /) -> Any:
        """Return the content of a key."""

    def __setitem__(self, key: Any, content: Any, /) -> None: ...


class StateTable(Protocol):
    """One state of all keys, for operators that work on whole runs.

    The caller names the key; the store's current key plays no part. The table keeps the
    raw content: the value, the list, the dict, the accumulator.

    Attributes:
        get: ``get(key, default=None)`` returns the content.
        put: ``put(key, content)`` sets it.
    """

    get: Callable[..., Any]
    put: Callable[[Any, Any], None]

    def prefetch(self, keys: Iterable[Any]) -> None:
        """Be notified that these keys are asked for next; a run's keys, for example."""

    def for_run(self, keys: list[Any]) -> RunContents:
        """Return the contents of these keys, to be read, set and changed in place.

        They are good until anything else of the table is used. The keys count as
        written: what is changed in place need not be set again.
        """

    def remove(self, key: Any) -> None:
        """Forget the content of ``key``; a no-op if there is none."""

    def drain(self, count: int) -> list[tuple[Any, Any]]:
        """Take out about so many keys with their contents; none once there are none."""

    def items(self) -> Iterable[tuple[Any, Any]]:
        """Return all keys with their contents, live: change nothing meanwhile."""

    def __len__(self) -> int: ...


class NamespacedTable(Protocol):
    """One state of all keys and namespaces (windows), like `StateTable` otherwise."""

    def get(self, key: Any, namespace: Any, default: Any = None) -> Any:
        """Return the content of ``key`` in ``namespace``."""

    def put(self, key: Any, namespace: Any, content: Any) -> None:
        """Set the content of ``key`` in ``namespace``."""

    def remove(self, key: Any, namespace: Any) -> None:
        """Forget the content of ``key`` in ``namespace``; a no-op if there is none."""

    def namespaces(self, key: Any) -> list[Any]:
        """Return the namespaces in which ``key`` has content, as a new list."""

    def drain(self, count: int) -> list[tuple[Any, Any, Any]]:
        """Take out about so many entries; none once there are none."""

    def items(self) -> Iterable[tuple[Any, Any, Any]]:
        """Return all ``(key, namespace, content)``, live: change nothing meanwhile."""

    def __len__(self) -> int: ...


# The keyed state of an operator that has no keys: every access says so.


class NoKeysStateStore:
    """Stands for the `KeyedStateStore` of an operator on a stream without keys.

    Args:
        operator: The operator's name, for the message.
        remedy: The remedy in it.

    Example:
        >>> NoKeysStateStore("enrich").current_key
        Traceback (most recent call last):
        ...
        aiomailbox.errors.StateError: operator 'enrich' has no keyed state: ...
    """

    restored_key: Any = None

    def __init__(
        self, operator: str, remedy: str = "Call key_by(...) before it."
    ) -> None:
        self._operator = operator
        self._remedy = remedy

    def unmatched(self) -> UnmatchedState:
        """Nothing was restored."""
        return UnmatchedState()

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise StateError(
            f"operator {self._operator!r} has no keyed state: its stream has no keys. "
            f"{self._remedy}"
        )
