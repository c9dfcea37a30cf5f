"""Facts from the code of a job: the classes of its state, the variables it changes.

Theory of operation: bytes name classes, and none is imported for a name that they
hold. So the classes are collected from the job itself: what its functions, sources and
sinks name in code and type hints, what their state descriptors say, and the classes of
the objects that they hold. Nothing of the user's is called for that. The same walk
finds its functions, and their code says what they assign.
"""

from __future__ import annotations

import asyncio
import dis
import io
import queue
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from types import (
    CodeType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, Final, NamedTuple

from aiomailbox.graph.job_graph import JobGraph
from aiomailbox.logs import library_log
from aiomailbox.operators.core.user_code import describe, is_users
from aiomailbox.runtime.peers.record_types import (
    RECORDS_OF_OURS,
    RecordTypes,
    is_foreign,
    names_in,
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
# What a function coordinates with others by, where they have the same object.
_APPENDING: Final = frozenset({"append", "appendleft", "extend"})
_COORDINATING: Final = (
    asyncio.Barrier,
    asyncio.Condition,
    asyncio.Event,
    asyncio.Lock,
    asyncio.Queue,
    asyncio.Semaphore,
    io.IOBase,
    queue.Queue,
    queue.SimpleQueue,
    threading.Barrier,
    threading.Condition,
    threading.Event,
    threading.Semaphore,
    type(threading.Lock()),
    type(threading.RLock()),
)
_LISTS: Final = (list, tuple, set, frozenset, deque)


def state_classes(graph: JobGraph, names: StateNames = _NO_NAMES) -> tuple[Any, ...]:
    """Return the classes of records that a job's state may hold, as it declares them.

    Type hints follow that say of classes under which other names they were saved.

    A class that is made out of sight, at run time, has to be named in a type hint or in
    the ``type_`` of a state's descriptor.

    Raises:
        InvalidArgumentError: If one is what another class of the job is called now.
    """
    types = RecordTypes()
    items = [node.transformation for node in graph.nodes]
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
        yield from islice(item, _ITEMS_MAX)
    elif issubclass(kind, dict):
        yield from set(map(type, item.values()))
        # `dict.keys`, past what a subclass of the user's may have made of it.
        yield from islice(dict.keys(item), _ITEMS_MAX)
        yield from islice(dict.values(item), _ITEMS_MAX)
    elif kind is partial:
        yield from (item.func, item.args, item.keywords)
    elif kind is MethodType:
        yield from (item.__self__, item.__func__)
    elif kind is FunctionType:
        yield from item.__defaults__ or ()
        yield from (item.__kwdefaults__ or {}).values()
        yield from (value for _, value in _held_by(item))
    elif not is_foreign(kind):
        yield from _attributes(item, kind)


def _held_by(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the variables of functions around one, by name; not those without a value."""
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or (), strict=True):
        with suppress(ValueError):
            yield name, cell.cell_contents


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


# What functions change outside of themselves: where they run in several processes, each
# process has its own.


class ChangedVariable(NamedTuple):
    """A variable outside of a function that the function assigns.

    Attributes:
        operator: The name of the operator.
        uid: Its uid, or None.
        variable: The name of the variable, with ``global`` or ``nonlocal`` before it.
        function: The function, and where it is written.
    """

    operator: str
    uid: str | None
    variable: str
    function: str


def changed_variables(graph: JobGraph) -> list[ChangedVariable]:
    """Return what functions change outside of themselves, of those that leave the parent.

    That is what they assign, lists that they append to, and what they count up in an
    object or a dict. A dict that is filled may be a cache, which each process may have.
    """
    return list(
        dict.fromkeys(
            ChangedVariable(item.name, item.uid, variable, describe(function))
            for vertex in graph.vertices
            if not vertex.stays_in_parent
            for item in (node.transformation for node in vertex.nodes)
            for function in _users_functions((item.factory, item.source, item.sink))
            for variable in (*_assigned(function), *_changed_in_place(function))
        )
    )


class OwnObject(NamedTuple):
    """An object that a function shares with others, where they are in one process.

    Attributes:
        operator: The name of the operator.
        uid: Its uid, or None.
        variable: What holds it.
        kind: Its class.
        function: The function that uses it, or the class of its holder, and where that
            is written.
    """

    operator: str
    uid: str | None
    variable: str
    kind: str
    function: str


def own_objects(graph: JobGraph) -> list[OwnObject]:
    """Return the locks, queues and open files of functions that leave the parent.

    Those of an object count if it holds them itself.
    """
    return list(
        dict.fromkeys(
            OwnObject(
                item.name,
                item.uid,
                variable,
                f"{type(value).__module__.partition('.')[0]}.{type(value).__name__}",
                describe(holder),
            )
            for vertex in graph.vertices
            if not vertex.stays_in_parent
            for item in (node.transformation for node in vertex.nodes)
            for holder, variable, value in _held((item.factory, item.source, item.sink))
            if isinstance(value, _COORDINATING)
        )
    )


def warn_of_copies(graph: JobGraph) -> None:
    """Say what of its functions each worker process has on its own."""
    for changed in changed_variables(graph):
        library_log(job=graph.name).warning(
            "a function changes a variable outside of itself: each worker process has "
            "its own",
            **changed._asdict(),
            remedy="keep it in state, or emit it as a record",
        )
    for own in own_objects(graph):
        library_log(job=graph.name).warning(
            "a function uses an object that each worker process has its own of: it "
            "waits for no other process, and is not seen by one",
            **own._asdict(),
            remedy="for calls at a time or per second give limit=am.RateLimit(...), "
            "which counts for the job; for values use state, or records; make one per "
            "process in open()",
        )


def _held(roots: Iterable[Any]) -> Iterator[tuple[Any, str, Any]]:
    """Yield what the user's functions and objects hold, with the holder and the name."""
    roots = list(roots)
    for item in _reached(roots):
        kind = type(item)
        if _is_users_class(kind):
            # Past `__getattr__` and properties.
            for name, value in getattr(item, "__dict__", {}).items():
                yield kind, f"attribute {name}", value
    for function in _users_functions(roots):
        code = function.__code__
        for name, value in _held_by(function):
            yield function, f"nonlocal {name}", value
        for name in names_in(code):
            yield function, f"global {name}", function.__globals__.get(name)


def _is_users_class(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    return not is_foreign(kind) and (file is None or is_users(file))


def _users_functions(roots: Iterable[Any]) -> Iterator[FunctionType]:
    """Yield the user's functions and methods, and those of their modules they call."""
    waiting: deque[Any] = deque(_reached(roots))
    seen: set[int] = set()
    while waiting:
        item = waiting.popleft()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, type) and not is_foreign(item):
            waiting.extend(item.__bases__)
            waiting.extend(getattr(one, "__func__", one) for one in vars(item).values())
        elif type(item) is FunctionType and is_users(item.__code__.co_filename):
            yield item
            named = (item.__globals__.get(name) for name in item.__code__.co_names)
            waiting.extend(
                one
                for one in named
                if type(one) is FunctionType and one.__module__ == item.__module__
            )


def _assigned(function: FunctionType) -> Iterator[str]:
    outside = function.__code__.co_freevars
    for code in _codes(function.__code__):
        for step in dis.get_instructions(code):
            if step.opname == "STORE_GLOBAL":
                yield f"global {step.argval}"
            elif step.opname == "STORE_DEREF" and step.argval in outside:
                yield f"nonlocal {step.argval}"


def _changed_in_place(function: FunctionType) -> Iterator[str]:
    """Yield what a function appends to, and whose parts it counts up with ``+=``."""
    outside = dict.fromkeys(function.__code__.co_freevars) | dict(_held_by(function))
    for code in _codes(function.__code__):
        steps = list(dis.get_instructions(code))
        for place, step in enumerate(steps[:-4]):
            if step.opname == "LOAD_GLOBAL":
                held, value = "global", function.__globals__.get(step.argval)
            elif step.opname == "LOAD_DEREF" and step.argval in outside:
                held, value = "nonlocal", outside[step.argval]
            else:
                continue
            second, third, fourth = steps[place + 1 : place + 4]
            appends = (
                isinstance(value, list | deque)
                and second.opname in {"LOAD_METHOD", "LOAD_ATTR"}
                and second.argval in _APPENDING
            )
            # An object is copied on the stack for `+=` alone: first it, or it and a key.
            counts = second.opname == "COPY" and third.opname == "LOAD_ATTR"
            counts_by_key = third.opname == fourth.opname == "COPY"
            if appends or counts or counts_by_key:
                yield f"{held} {step.argval}"


def _codes(code: CodeType) -> Iterator[CodeType]:
    waiting = [code]
    while waiting:
        found = waiting.pop()
        yield found
        waiting.extend(one for one in found.co_consts if isinstance(one, CodeType))
