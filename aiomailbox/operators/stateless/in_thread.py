"""A synchronous function that is run in a thread, so that the event loop goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.operators.core.callables import (
    check_sync_function,
    describe,
    is_async_callable,
    refuse_generator,
)
from aiomailbox.operators.stateless.fused_source import StageKind
from aiomailbox.threads import ThreadTurns

__all__ = ["InThread", "placed"]


class InThread:
    """A function as one that is awaited: it runs in a thread of its own turn.

    Calls of one operator follow each other, so that the function needs no lock. Whoever
    is cancelled outlasts the thread: nothing is used twice at a time.

    Args:
        function: Called with each value, in a thread.
        kind: What is done with its result; the items of a flat_map are collected there.
    """

    def __init__(self, function: Callable[[Any], Any], kind: StageKind) -> None:
        self.function = function
        self._collects = kind is StageKind.FLAT_MAP
        self._turns = ThreadTurns()
        # Errors name the user's function.
        self.__wrapped__ = function
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    async def __call__(self, value: Any) -> Any:
        """Call the function in a thread."""
        return await self._turns.run(self._run, value)

    def _run(self, value: Any) -> Any:
        result = self.function(value)
        return list(result) if self._collects else result


def placed(
    function: Callable[[Any], Any], kind: StageKind, run_in: object
) -> Callable[[Any], Any]:
    """Return a function as it is to be called, given where it is to run.

    Args:
        function: The user's.
        kind: What is done with its result.
        run_in: ``"loop"``, or ``"thread"``.

    Raises:
        InvalidArgumentError: If ``run_in`` is something else, or the function is
            asynchronous and yet to run in a thread.
        WrongTypeError: If it cannot be called with one argument.
    """
    if run_in == "loop":
        return function
    if run_in != "thread":
        raise InvalidArgumentError(
            "run_in", f"{run_in!r} is not known", 'Use "loop" or "thread".'
        )
    if is_async_callable(function):
        raise InvalidArgumentError(
            "run_in",
            f"{describe(function)} is asynchronous, and runs in the event loop",
            "Leave run_in= out, or give a function that blocks.",
        )
    check_sync_function(function, "function", arity=1)
    if kind is not StageKind.FLAT_MAP:
        refuse_generator(function, "function", "Use it with flat_map.")
    return InThread(function, kind)
