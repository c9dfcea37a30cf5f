"""Finds state that is kept for ever, in what users' functions refer to."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType
from typing import Any, Final

from aiomailbox.api.described import SPARK_MAKERS, described_in
from aiomailbox.state.descriptors import StateDescriptor

_KINDS: Final = ("Value", "List", "Map", "Reducing", "Aggregating")
_MAKERS: Final = frozenset(f"{kind}StateDescriptor" for kind in _KINDS) | SPARK_MAKERS


def state_without_ttl(function: Callable[..., Any]) -> tuple[str, ...]:
    """Name the state without a time to live that a function can reach.

    Looked at is what the function, or for a method any method of its object, refers
    to: descriptors in its module, around it, and on the object.

    Args:
        function: A user's function or method.

    Returns:
        A text for each state, in the order of their names. The name of state that is
        described when a method runs is read from its source; where that is not there,
        or the name is not written out, only that there is state.

    Example:
        >>> from aiomailbox.state.descriptors import ValueStateDescriptor
        >>> seen = ValueStateDescriptor("seen", int)
        >>> state_without_ttl(lambda value, context: context.state.get_value(seen))
        ("state 'seen' has no TTL",)
    """
    names: set[str] = set()
    hidden = False
    for item in _reachable(function):
        # Not isinstance(): it asks the object, which is the user's and may fail.
        kind = type(item)
        if issubclass(kind, StateDescriptor):
            if item.ttl_config is None:
                names.add(item.name)
        elif kind is CodeType and not _MAKERS.isdisjoint(item.co_names):
            written, unnamed = described_in(item)
            names |= written
            hidden = hidden or unnamed
    texts = [f"state {name!r} has no TTL" for name in sorted(names)]
    if hidden:
        texts.append("state that is described inside the function may have no TTL")
    return tuple(texts)


def _reachable(function: Callable[..., Any]) -> Iterator[Any]:
    """Yield the code of the functions, and the objects that it refers to."""
    owner = getattr(function, "__self__", None)
    if owner is None or inspect.isclass(owner):
        yield from _referred(function)
        return
    yield from getattr(owner, "__dict__", {}).values()
    for kind in type(owner).__mro__:
        if kind.__module__.partition(".")[0] in ("aiomailbox", "builtins"):
            continue
        for name, member in vars(kind).items():
            yield member
            # What __init__ makes is found on the object.
            if name != "__init__":
                yield from _referred(member)


def _referred(function: Any) -> Iterator[Any]:
    function = inspect.unwrap(getattr(function, "__func__", function))
    if not isinstance(function, FunctionType):
        return
    for cell in function.__closure__ or ():
        # A cell of a name that is bound later is empty.
        if cell != CellType():
            yield cell.cell_contents
    for code in _with_inner(function.__code__):
        yield code
        for name in code.co_names:
            yield function.__globals__.get(name)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
