"""What can be seen of a function's state and timers without running it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Final, TypeVar

from aiomailbox.errors import StateError, WrongTypeError
from aiomailbox.operators.core.callables import describe
from aiomailbox.state.descriptors import (
    AggregatingStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from aiomailbox.state.registry import check_same_state

# Lists and maps may also be state without keys; these may not.
_KEYED_ONLY: Final = (
    ValueStateDescriptor,
    ReducingStateDescriptor,
    AggregatingStateDescriptor,
)
# The attribute of on_timer methods of base classes, which do nothing.
_INHERITED: Final = "is_inherited_on_timer"

MethodT = TypeVar("MethodT")


def described_state(function: object) -> list[StateDescriptor]:
    """Return the descriptors that are attributes of a function object or its class.

    Also those in lists, tuples and dicts of these. What a method makes when it runs is
    not seen.

    Example:
        >>> from types import SimpleNamespace
        >>> function = SimpleNamespace(seen=ValueStateDescriptor("seen", int))
        >>> [one.name for one in described_state(function)]
        ['seen']
    """
    return [
        item
        for value in _attributes(function)
        for item in _items(value)
        if isinstance(item, StateDescriptor)
    ]


def check_state_names(function: object) -> None:
    """Refuse a function that describes one state in two ways.

    Raises:
        StateError: Naming the function, the state, and what differs.
    """
    known: dict[str, StateDescriptor] = {}
    for descriptor in described_state(function):
        first = known.setdefault(descriptor.name, descriptor)
        try:
            check_same_state(first, descriptor)
        except StateError as error:
            message = f"function {_name(function)} describes one state twice: {error}"
            raise StateError(message) from None


def check_without_keys(function: object, remedy: str) -> None:
    """Refuse a function that needs a key, for a stream that has none.

    Args:
        function: The user's function object.
        remedy: What to write instead.

    Raises:
        WrongTypeError: If it has ``on_timer``, or attributes that describe state of a
            key.
    """
    if callable(getattr(function, "on_timer", None)):
        raise WrongTypeError(
            "function",
            f"{_name(function)} has on_timer, and the stream has no keys: timers "
            "belong to a key",
            remedy,
        )
    for descriptor in described_state(function):
        if isinstance(descriptor, _KEYED_ONLY):
            raise WrongTypeError(
                "function",
                f"{_name(function)} describes {descriptor.kind} state "
                f"{descriptor.name!r}, and the stream has no keys: such state belongs "
                "to a key",
                remedy,
            )


def inherited_on_timer(method: MethodT) -> MethodT:
    """Mark an ``on_timer`` that is there only to be overridden.

    Concept:
        A decorator for the base classes of functions with timers.
    """
    setattr(method, _INHERITED, True)
    return method


def has_on_timer(function: object) -> bool:
    """Say whether the user wrote ``on_timer``, rather than inheriting ours.

    Example:
        >>> from aiomailbox.operators.functions.keyed import KeyedProcessFunction
        >>> has_on_timer(KeyedProcessFunction())
        False
    """
    method: Any = getattr(function, "on_timer", None)
    if method is None:
        return False
    return not hasattr(method, _INHERITED)


def _attributes(function: object) -> Iterator[Any]:
    """Yield the values of attributes, without those that others hide."""
    kind = function if inspect.isclass(function) else type(function)
    found: dict[str, Any] = dict(getattr(function, "__dict__", {}))
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] not in ("aiomailbox", "builtins"):
            for name, value in vars(base).items():
                found.setdefault(name, value)
    yield from found.values()


def _items(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        yield from value
    elif isinstance(value, dict):
        yield from value.values()
    else:
        yield value


def _name(function: Any) -> str:
    method = getattr(type(function), "process_element", None) or getattr(
        type(function), "process_element1", None
    )
    place = "" if method is None else describe(method).partition(" ")[2]
    name = type(function).__qualname__.rpartition("<locals>.")[2]
    return f"{name} {place}".strip()
