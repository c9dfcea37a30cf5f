"""Checks of arguments, where they were given, and small parts of transformations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiomailbox.errors import InvalidArgumentError, WrongTypeError
from aiomailbox.graph import FunctionInfo
from aiomailbox.operators import describe, is_async_callable


def check_count(value: object, parameter: str) -> int:
    """Return ``value`` if it is a positive int, else raise naming the parameter."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise WrongTypeError(parameter, f"{value!r} is not an int", "Use 1 or more.")
    if value < 1:
        raise InvalidArgumentError(parameter, f"{value} is too small", "Use 1 or more.")
    return value


def check_name(value: object, parameter: str) -> str:
    """Return ``value`` if it is a non-empty string, else raise naming the parameter."""
    if not isinstance(value, str):
        raise WrongTypeError(
            parameter, f"{value!r} is not a string", "Use a non-empty string."
        )
    if not value:
        raise InvalidArgumentError(
            parameter, "the empty string names nothing", "Use a non-empty string."
        )
    return value


def function_info(function: Callable[..., Any], *, serial: bool = True) -> FunctionInfo:
    """Describe a user's function for `explain`.

    Args:
        function: The function.
        serial: Whether an async function is run one record at a time here.
    """
    is_async = is_async_callable(function)
    note = ""
    if is_async and serial:
        note = "one record at a time; map_async runs many concurrently"
    return FunctionInfo(describe(function), is_async, note)
