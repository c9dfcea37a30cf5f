"""Which classes a job declares: those that its state may hold, and be read again with.

Theory of operation: bytes name classes, and none is imported for a name that they
hold. So the classes are collected from the job itself: what its functions, sources and
sinks name in code and type hints, what their state descriptors say, and the classes of
the objects that they hold. Nothing of the user's is called for that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, Final

from aiomailbox.graph.job_graph import JobGraph
from aiomailbox.runtime.peers.record_types import (
    RECORDS_OF_OURS,
    RecordTypes,
    is_foreign,
)
from aiomailbox.state.serializers import (
    StateNames,
    declared_classes,
    state_name_hints,
)

_NO_NAMES: Final[StateNames] = {}
# More objects than that are not looked at; those of the user come first.
_OBJECTS_MAX: Final = 20_000
# Of a longer collection only the classes of its items are looked at beyond that.
_ITEMS_MAX: Final = 1_000
_PLAIN: Final = frozenset({type(None), bool, int, float, complex, str, bytes})
_LISTS: Final = (list, tuple, set, frozenset, deque)


def state_classes(graph: JobGraph, names: StateNames = _NO_NAMES) -> tuple[Any, ...]:
    """Return the classes of records that a job's state may hold, as it declares them.

    Type hints follow that say of classes under which other names they were saved.

    A class that is made out of sight, at run time, has to be named in a type hint or in
    the ``type_`` of a state's descriptor.

    Args:
        graph: The job.
        names: See `JobConfig.state_names`.

    Raises:
        InvalidArgumentError: If one is what another class of the job is called now.
    """
    types = RecordTypes()
    items = [node.transformation for vertex in graph.vertices for node in vertex.nodes]
    for kind in RECORDS_OF_OURS:
        types.look_at(kind)
    for item in items:
        for kind in getattr(item.source, "record_types", ()):
            types.look_at(kind)
    partitioners = [
        edge.partitioner for vertex in graph.vertices for edge in vertex.out_edges
    ]
    # Not their inputs: those are nodes of the graph, too.
    roots = [(item.factory, item.source, item.sink, item.functions) for item in items]
    for one in _reached([*roots, *partitioners]):
        types.look_at(one)
    declared = (*RECORDS_OF_OURS, *types.found, *state_name_hints(names))
    declared_classes(declared)
    return declared


def _reached(roots: Iterable[Any]) -> Iterator[Any]:
    """Yield every object that is reached, and its class; breadth first."""
    waiting = deque(roots)
    seen: dict[int, Any] = {}
    while waiting and len(seen) < _OBJECTS_MAX:
        item = waiting.popleft()
        kind = type(item)
        if kind in _PLAIN or id(item) in seen:
            continue
        # Kept, so that nothing else gets its identity meanwhile.
        seen[id(item)] = item
        yield item
        if issubclass(kind, type | ModuleType):
            continue
        if kind not in _LISTS and kind is not dict:
            yield kind
        waiting.extend(_parts_of(item, kind))


def _parts_of(item: Any, kind: type) -> Iterator[Any]:
    if issubclass(kind, _LISTS):
        # Classes of all items, at the cost of a set; the items themselves up to a
        # bound.
        yield from set(map(type, item))
        yield from _first(item)
    elif issubclass(kind, dict):
        yield from set(map(type, item.values()))
        # `dict.keys`, past what a subclass of the user's may have made of it.
        yield from _first(dict.keys(item))
        yield from _first(dict.values(item))
    elif kind is partial:
        yield from (item.func, item.args, item.keywords)
    elif kind is MethodType:
        yield from (item.__self__, item.__func__)
    elif kind is FunctionType:
        yield from item.__defaults__ or ()
        yield from (item.__kwdefaults__ or {}).values()
        yield from _cells(item)
    elif not is_foreign(kind):
        yield from _attributes(item, kind)


def _first(items: Iterable[Any]) -> Iterator[Any]:
    for number, one in enumerate(items):
        if number == _ITEMS_MAX:
            return
        yield one


def _cells(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue


def _attributes(item: Any, kind: type) -> Iterator[Any]:
    """Yield what an object holds, without asking it."""
    try:
        # Past `__getattr__` and properties, which are the user's code.
        held: Mapping[str, Any] = object.__getattribute__(item, "__dict__")
    except AttributeError:
        held = {}
    yield from held.values()
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            member = base.__dict__.get(name)
            if type(member) is MemberDescriptorType:
                try:
                    yield member.__get__(item, kind)
                except AttributeError:
                    # There is nothing in it.
                    continue
