"""The user's asynchronous function, and its life."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from aiomailbox.errors import WrongTypeError
from aiomailbox.operators.core.callables import (
    CallableKind,
    callable_kind,
    check_function,
    describe,
    refuse_generator,
)
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.contract import Pending, pending_of

__all__ = ["AsyncFunction"]


class AsyncFunction:
    """What is called for each record, or for each list of them.

    Args:
        function: An ``async def`` function; or a function that returns an awaitable; or
            an object with ``async def __call__``, and with ``open(context)`` and
            ``close()``, sync or async, or an asynchronous context manager, for what it
            needs as long as it runs; or a class of such objects, called without
            arguments for one object a subtask.

    Attributes:
        call: What makes a call; ready after `open`.

    Raises:
        WrongTypeError: If ``function`` cannot be called with one argument, or is an
            asynchronous generator.
    """

    __slots__ = ("_exit", "_given", "_instance", "call")

    def __init__(self, function: Any) -> None:
        if inspect.isclass(function):
            kind = callable_kind(_call_of_objects(function))
        else:
            check_function(function, "function", arity=1)
            refuse_generator(function, "function", "Return one value a record.")
            kind = callable_kind(function)
        if kind is CallableKind.ASYNC_GENERATOR:
            raise WrongTypeError(
                "function",
                f"{describe(function)} is an asynchronous generator",
                "Return one value per record, or use flat_map.",
            )
        self._given = function
        self._instance: Any = None
        self._exit: Callable[[], Any] | None = None
        self.call: Callable[[Any], Awaitable[Any]] = function

    @property
    def given(self) -> Callable[..., Any]:
        """The function as the user gave it."""
        function: Callable[..., Any] = self._given
        return function

    def open(self, context: RuntimeContext) -> Pending:
        """Make the object if a class was given, and acquire what it needs."""
        given = self._given
        instance: Any = given() if inspect.isclass(given) else given
        self.call = instance
        if inspect.isfunction(instance) or inspect.ismethod(instance):
            return None
        if hasattr(type(instance), "__aenter__"):
            return self._enter(instance)
        self._exit = getattr(instance, "close", None)
        acquire = getattr(instance, "open", None)
        return None if acquire is None else pending_of(acquire(context))

    def close(self) -> Pending:
        """Release what `open` acquired; once."""
        release, self._exit = self._exit, None
        return None if release is None else pending_of(release())

    async def _enter(self, instance: Any) -> None:
        entered = await instance.__aenter__()
        self._exit = lambda: instance.__aexit__(None, None, None)
        self.call = entered if callable(entered) else instance


def _call_of_objects(given: type) -> Callable[..., Any]:
    for base in given.__mro__:
        if "__call__" in vars(base):
            call: Callable[..., Any] = vars(base)["__call__"]
            return call
    raise WrongTypeError(
        "function",
        f"objects of the class {given.__qualname__} cannot be called",
        "Define async def __call__(self, record).",
    )
