"""Users' functions in the shape that an operator calls, or in place of an object."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from aiomailbox.errors import UsageError, WrongTypeError
from aiomailbox.operators.core.user_code import (
    check_function,
    is_async_callable,
    refuse_called,
    shortened,
)
from aiomailbox.operators.functions.process import (
    KeyedProcessFunction,
    ProcessFunction,
)
from aiomailbox.typevars import T
from aiomailbox.windowing.functions import ProcessWindowFunction

ObjectT = TypeVar("ObjectT")


class OnlyProcess(ProcessFunction):
    """A function of a record as a process function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        # The user's own: errors name it, and it is called without a detour.
        self.process_element = function  # type: ignore[method-assign]


class OnlyKeyedProcess(KeyedProcessFunction):
    """A function of a record with a key as a process function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.process_element = function  # type: ignore[method-assign]


class OnlyProcessWindow(ProcessWindowFunction):
    """A function of the elements of a window as a window function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.process = function  # type: ignore[method-assign]


def as_object(
    kind: Callable[[Callable[..., Any]], ObjectT],
    function: Any,
    arguments: str,
    arity: int,
) -> ObjectT:
    """Return the function object of which a user gave the only method.

    Raises:
        WrongTypeError: If it is not a function of so many arguments, or has a life.
    """
    bases = [base.__name__ for base in getattr(kind, "__mro__", ())]
    remedy = f"Give a function {arguments}, or an instance of a class derived from "
    remedy += f"am.{bases[1]}."
    refuse_called(function, "function")
    if isinstance(function, type):
        raise WrongTypeError(
            "function",
            f"{function.__qualname__} is a class",
            f"Give an instance of it: {function.__qualname__}(...).",
        )
    has_life = any(hasattr(function, name) for name in ("open", "close", "finish"))
    if not callable(function) or has_life:
        raise WrongTypeError(
            "function",
            f"{shortened(function)} is not an instance of {bases[1]}",
            remedy,
        )
    return kind(
        check_function(function, "function", arity=arity, gets=arguments.strip("()"))
    )


def is_keyed(
    function: object, plain: type, keyed: type, *, has_keys: bool, needs: str
) -> bool:
    """Say whether a function of two streams is of the class with keys, or of the other.

    Raises:
        WrongTypeError: If it is of neither.
        UsageError: If it is, and there are no keys.
    """
    if isinstance(function, keyed):
        if not has_keys:
            raise UsageError(f"a {keyed.__name__} needs {needs}")
        return True
    if not isinstance(function, plain):
        raise WrongTypeError(
            "function",
            f"{function!r} is not a {plain.__name__}",
            f"Derive a class from am.{plain.__name__} or am.{keyed.__name__}.",
        )
    return False


async def itself(value: T) -> T:
    """Return what it is given."""
    return value


def of_pair(function: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """Return a function of two records as one of a pair, async if it is."""
    return (_AsyncOfPair if is_async_callable(function) else _OfPair)(function)


class _OfPair:
    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self.function = function

    def __call__(self, pair: Any) -> Any:
        return self.function(*pair)


class _AsyncOfPair:
    def __init__(self, function: Callable[[Any, Any], Awaitable[Any]]) -> None:
        self.function = function

    async def __call__(self, pair: Any) -> Any:
        return await self.function(*pair)
