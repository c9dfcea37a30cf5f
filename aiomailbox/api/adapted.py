"""Users' functions in the shape that an operator calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from aiomailbox.operators.core.user_code import is_async_callable

T = TypeVar("T")


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
