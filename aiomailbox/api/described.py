"""Reads from a function's source which state it describes when it runs."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from types import CodeType
from typing import Any, Final

from aiomailbox.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)

_DESCRIPTORS: Final[tuple[Any, ...]] = (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
# The methods of Spark's StatefulProcessorHandle, with the place of the time to live.
_SPARK: Final = {"getValueState": 2, "getListState": 2, "getMapState": 3}
SPARK_MAKERS: Final = frozenset(_SPARK)
_TTL_PLACES: Final = _SPARK | {
    kind.__name__: [field.name for field in dataclasses.fields(kind)].index("ttl")
    for kind in _DESCRIPTORS
}
_TTL_NAMES: Final = frozenset({"ttl", "ttlDurationMs"})


def described_in(code: CodeType) -> tuple[set[str], bool]:
    """Return the names of the state without a time to live that code describes.

    Args:
        code: Of a function that is known to describe state.

    Returns:
        The names, and whether there may be more whose names cannot be read.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError):
        # Typed into a console, or in the middle of an expression.
        return set(), True
    names: set[str] = set()
    unnamed = False
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        place = _TTL_PLACES.get(_called(node))
        if place is None or _has_ttl(node, place):
            continue
        name = _first(node)
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            names.add(name.value)
        else:
            unnamed = True
    return names, unnamed


def _called(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _first(call: ast.Call) -> ast.expr | None:
    if call.args:
        return call.args[0]
    return next(
        (word.value for word in call.keywords if word.arg in ("name", "stateName")),
        None,
    )


def _has_ttl(call: ast.Call, place: int) -> bool:
    given = [word.value for word in call.keywords if word.arg in _TTL_NAMES]
    given += call.args[place : place + 1]
    return any(
        not (isinstance(value, ast.Constant) and value.value is None) for value in given
    )
