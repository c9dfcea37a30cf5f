"""Which states a store has, and whether a descriptor fits the state of its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from aiomailbox.errors import StateError
from aiomailbox.state.descriptors import StateDescriptor
from aiomailbox.state.schema import StateSchema, check_fields, check_parts
from aiomailbox.state.snapshot import KeyedStateSnapshot, StateMeta

__all__ = [
    "Registered",
    "StateRegistry",
    "check_max_parallelism",
    "check_same_contents",
    "check_same_state",
    "refuse_ttl",
    "state_meta",
]

TableT = TypeVar("TableT")


@dataclass(slots=True)
class Registered(Generic[TableT]):
    """One state of a store.

    Attributes:
        meta: What is known of it.
        table: Where its contents are.
        descriptor: The last descriptor that was found to fit, None after a restore.
    """

    meta: StateMeta
    table: TableT
    descriptor: StateDescriptor | None = None


class StateRegistry(Generic[TableT]):
    """The states of a store, in the order in which they were first used.

    Args:
        make_table: Makes the table of a new state.

    Attributes:
        entries: By name, and whether with namespaces.
    """

    __slots__ = ("_make_table", "entries")

    def __init__(self, make_table: Callable[[StateMeta], TableT]) -> None:
        self._make_table = make_table
        self.entries: dict[tuple[str, bool], Registered[TableT]] = {}

    def table(self, descriptor: StateDescriptor, *, namespaced: bool) -> TableT:
        """Return the table of the state that a descriptor names.

        Raises:
            StateError: If the name is in use for state of another kind or type.
        """
        known = self.entries.get((descriptor.name, namespaced))
        if known is not None and known.descriptor is descriptor:
            return known.table
        entry = self._add(state_meta(descriptor, namespaced=namespaced))
        entry.descriptor = descriptor
        return entry.table

    def restored(self, meta: StateMeta) -> TableT:
        """Return the table of a state that a snapshot holds; raises as `table` does."""
        return self._add(meta).table

    def _add(self, meta: StateMeta) -> Registered[TableT]:
        known = self.entries.get((meta.name, meta.namespaced))
        for other in (known, self.entries.get((meta.name, not meta.namespaced))):
            if other is not None:
                _check_fits(other.meta, meta)
        if known is None:
            known = Registered(meta, self._make_table(meta))
            self.entries[meta.name, meta.namespaced] = known
        elif meta.schema.parts:
            known.meta = meta
        return known


def check_same_state(first: StateDescriptor, second: StateDescriptor) -> None:
    """Raise if two descriptors of one name describe different state.

    Raises:
        StateError: Naming the state, and what differs.

    Example:
        >>> from aiomailbox.state import ListStateDescriptor, ValueStateDescriptor
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
