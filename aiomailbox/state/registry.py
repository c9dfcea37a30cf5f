"""Which states a store has, and whether a descriptor fits the state of its name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any, Generic, Protocol, TypeVar

from aiomailbox.errors import StateError
from aiomailbox.state.accumulators import Convert, conversion
from aiomailbox.state.descriptors import StateDescriptor
from aiomailbox.state.entries import Entries
from aiomailbox.state.heap_state import ContentTable
from aiomailbox.state.schema import StateSchema, check_fields, check_parts
from aiomailbox.state.snapshot import KeyedStateSnapshot, StateMeta

__all__ = [
    "KeyedTable",
    "Registered",
    "Restoring",
    "StateRegistry",
    "UnmatchedState",
    "check_max_parallelism",
    "check_same_contents",
    "check_same_state",
    "refuse_ttl",
    "state_meta",
]


class KeyedTable(ContentTable, Protocol):
    """What a store asks of its own tables, of whichever shape."""

    def all_keys(self) -> Iterable[Any]:
        """Return the keys, perhaps some of them twice, but then next to each other."""
        ...

    def load(self, entries: Entries) -> None:
        """Set contents to those of entries."""
        ...

    def __len__(self) -> int: ...


TableT = TypeVar("TableT", bound=KeyedTable)


@dataclass(slots=True)
class Registered(Generic[TableT]):
    """One state of a store.

    Attributes:
        meta: What is known of it.
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
        descriptor: What has asked for it already, if anything has.
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

    __slots__ = ("_make_table", "_restored", "allows_unmatched", "entries")

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
        entry = self._add(meta)
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
            meta: What the snapshot says of the state.
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
        """Return what was restored and not asked for so far, and what began empty."""
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

    def _add(self, meta: StateMeta) -> Registered[TableT]:
        known = self.entries.get((meta.name, meta.namespaced))
        for other in (known, self.entries.get((meta.name, not meta.namespaced))):
            if other is not None:
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
    if descriptor.ttl_config is not None:
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
        descriptor.ttl_config is not None,
        descriptor.serializer_id,
        descriptor.schema,
    )


def _convert_all(
    table: KeyedTable, descriptor: StateDescriptor, convert: Convert
) -> None:
    """Convert all accumulators of a table; it takes a microsecond for each."""
    for key, _ in groupby(table.all_keys()):
        for namespace in table.namespaces_of(key):
            made = descriptor.converted(table.read(key, namespace), convert)
            if made is None:
                table.forget(key, namespace)
            else:
                table.write(key, namespace, made)


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
