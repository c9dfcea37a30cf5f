"""The keyed state of an operator that has no keys: every access says so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

from aiomailbox.errors import StateError
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

__all__ = ["NoKeysStateStore"]


class NoKeysStateStore:
    """A `KeyedStateStore` of an operator on a stream without keys.

    Args:
        operator: The operator's name, for the message.

    Example:
        >>> NoKeysStateStore("enrich").current_key
        Traceback (most recent call last):
        ...
        aiomailbox.errors.StateError: operator 'enrich' has no keyed state: ...
    """

    __slots__ = ("_operator",)

    def __init__(self, operator: str) -> None:
        self._operator = operator

    @property
    def current_key(self) -> Any:
        """Raise `StateError`."""
        self._refuse()

    @property
    def restored_key(self) -> None:
        """None."""
        return None

    def set_current_key(self, key: Any) -> None:
        """Raise `StateError`."""
        self._refuse()

    def get_value(
        self, descriptor: ValueStateDescriptor, namespace: Any = VOID
    ) -> NoReturn:
        """Raise `StateError`."""
        self._refuse()

    def get_list(
        self, descriptor: ListStateDescriptor, namespace: Any = VOID
    ) -> NoReturn:
        """Raise `StateError`."""
        self._refuse()

    def get_map(
        self, descriptor: MapStateDescriptor, namespace: Any = VOID
    ) -> NoReturn:
        """Raise `StateError`."""
        self._refuse()

    def get_reducing(
        self, descriptor: ReducingStateDescriptor, namespace: Any = VOID
    ) -> NoReturn:
        """Raise `StateError`."""
        self._refuse()

    def get_aggregating(
        self, descriptor: AggregatingStateDescriptor, namespace: Any = VOID
    ) -> NoReturn:
        """Raise `StateError`."""
        self._refuse()

    def merge_namespaces(
        self, descriptor: StateDescriptor, target: Any, sources: Iterable[Any]
    ) -> None:
        """Raise `StateError`."""
        self._refuse()

    def table(self, descriptor: StateDescriptor) -> NoReturn:
        """Raise `StateError`."""
        self._refuse()

    def namespaced(self, descriptor: StateDescriptor) -> NoReturn:
        """Raise `StateError`."""
        self._refuse()

    def keys(self, descriptor: StateDescriptor) -> list[Any]:
        """Raise `StateError`."""
        self._refuse()

    def key_count(self) -> int:
        """Raise `StateError`."""
        self._refuse()

    def estimated_keys(self) -> int:
        """Raise `StateError`."""
        self._refuse()

    def size_bytes(self) -> int:
        """Raise `StateError`."""
        self._refuse()

    def prefetch(self, keys: Iterable[Any]) -> None:
        """Raise `StateError`."""
        self._refuse()

    def snapshot(self) -> KeyedStateSnapshot:
        """Raise `StateError`."""
        self._refuse()

    def unmatched(self) -> UnmatchedState:
        """Nothing was restored."""
        return UnmatchedState()

    def restore(self, snapshots: Sequence[KeyedStateSnapshot]) -> None:
        """Raise `StateError`."""
        self._refuse()

    @property
    def has_snapshot(self) -> bool:
        """Raise `StateError`."""
        self._refuse()

    def settle(self, count: int) -> int:
        """Raise `StateError`."""
        self._refuse()

    def restoring(self, snapshots: Sequence[KeyedStateSnapshot]) -> Iterator[None]:
        """Raise `StateError`."""
        self._refuse()

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _refuse(self) -> NoReturn:
        raise StateError(
            f"operator {self._operator!r} has no keyed state: its stream has no keys. "
            "Call key_by(...) before it."
        )
