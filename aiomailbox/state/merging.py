"""Joining the contents of several namespaces into one, as merging windows need."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial, reduce
from typing import Any

from aiomailbox.errors import StateError
from aiomailbox.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
)
from aiomailbox.state.handles import Expiry
from aiomailbox.state.store import NamespacedTable

__all__ = ["joined", "merge_contents", "merge_expiring"]


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
    _check_mergeable(descriptor)
    merged = table.get(key, target)
    for source in sources:
        content = table.get(key, source)
        if content is None or source == target:
            continue
        merged = content if merged is None else joined(descriptor, merged, content)
        table.remove(key, source)
    if merged is not None:
        table.put(key, target, merged)


def merge_expiring(
    table: NamespacedTable,
    descriptor: StateDescriptor,
    key: Any,
    target: Any,
    sources: Iterable[Any],
    expiry: Expiry,
) -> None:
    """Merge as `merge_contents` does, leaving out what has expired.

    Elements of lists keep their age; a merged value is as young as the merge.

    Raises:
        StateError: If state of this kind cannot be merged.
    """
    _check_mergeable(descriptor)
    now_ms = expiry.now_ms()
    live = []
    for namespace in dict.fromkeys([target, *sources]):
        content = table.get(key, namespace)
        if content is not None and (kept := expiry.live(content, now_ms)) is not None:
            live.append(kept)
        table.remove(key, namespace)
    if not live:
        return
    if isinstance(descriptor, ListStateDescriptor):
        table.put(key, target, [pair for pairs in live for pair in pairs])
        return
    merged = reduce(partial(joined, descriptor), (content for content, _ in live))
    table.put(key, target, (merged, now_ms))


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
