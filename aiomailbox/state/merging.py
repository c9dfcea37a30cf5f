"""Joining the contents of several namespaces into one, as merging windows need."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aiomailbox.errors import StateError
from aiomailbox.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
)
from aiomailbox.state.store import NamespacedTable

__all__ = ["joined", "merge_contents"]


def merge_contents(
    table: NamespacedTable,
    descriptor: StateDescriptor,
    key: Any,
    target: Any,
    sources: Iterable[Any],
) -> None:
    """Move the contents of ``key`` in ``sources`` into the namespace ``target``.

    Raises:
        StateError: If state of this kind cannot be merged.
    """
    merged = table.get(key, target)
    for source in sources:
        content = table.get(key, source)
        if content is None or source == target:
            continue
        merged = content if merged is None else joined(descriptor, merged, content)
        table.remove(key, source)
    if merged is not None:
        table.put(key, target, merged)


def joined(descriptor: StateDescriptor, first: Any, second: Any) -> Any:
    """Return the contents of two namespaces as one; ``first`` may be changed for it.

    Raises:
        StateError: If state of this kind cannot be merged.
    """
    if isinstance(descriptor, ListStateDescriptor):
        return [*first, *second]
    if isinstance(descriptor, ReducingStateDescriptor):
        return descriptor.reduce_function(first, second)
    if isinstance(descriptor, AggregatingStateDescriptor):
        return descriptor.aggregate_function.merge(first, second)
    raise StateError(
        f"{descriptor.kind} state {descriptor.name!r} cannot be merged. "
        "Use list, reducing or aggregating state with windows that merge."
    )
