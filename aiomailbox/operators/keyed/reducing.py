"""Looks at the first call of a reduce function: its changes, and its result."""

from __future__ import annotations

import functools
from collections.abc import Callable
from numbers import Number
from typing import Any

from aiomailbox.operators.aggregates.functions import (
    is_number_text,
)
from aiomailbox.operators.core.mutations import difference, structure
from aiomailbox.operators.core.user_code import (
    describe,
    shortened,
)


def first_reduced(
    function: Callable[[Any, Any], Any], log: Any, done: Callable[[], None]
) -> Callable[[Any, Any], Any]:
    """Return a reduce function whose first call is looked at, and the others not.

    Args:
        function: The user's ``(reduced, record) -> reduced``.
        log: Where warnings go.
        done: Called with the first call: the function itself may take its place.
    """
    is_new = True

    @functools.wraps(function)
    def reduce(reduced: Any, record: Any) -> Any:
        nonlocal is_new
        if not is_new:
            # The run began with this one.
            return function(reduced, record)
        is_new = False
        done()
        # Copies cost too much for every record.
        before = structure(reduced)
        result = function(reduced, record)
        if (after := structure(reduced)) != before:
            log.warning(
                "a reduce function changed a record that had been emitted: who still has "
                "it sees the change",
                function=describe(function),
                change=difference(before, after),
                remedy="return a new record, e.g. {**reduced, 'n': 1}; "
                "JobConfig(check_mutations=True) finds each such function",
            )
        elif not _is_alike(record, result):
            log.warning(
                "a reduce function returns something else than a record: it gets it again, "
                "with the next record of the key",
                function=describe(function),
                record=shortened(record),
                returned=shortened(result),
                remedy="return a record like those that it gets, or use aggregate(...), "
                "e.g. with am.sum_('price')",
            )
        elif joined := _joined(reduced, record, result):
            log.warning(
                "a reduce function joins texts that are written like numbers",
                function=describe(function),
                joined=joined,
                remedy="convert them before, with float(...), or declare their type "
                "where they are read, am.FileSource(..., records=a class)",
            )
        look: Any = getattr(function, "look", None)
        if look is not None:
            look(log.warning, record)
        return result

    return reduce


def _is_alike(record: Any, result: Any) -> bool:
    """Say whether a reduce function may get its result in the place of a record."""
    kinds = type(record), type(result)
    return (
        result is None
        or isinstance(result, kinds[0])
        or isinstance(record, kinds[1])
        or all(issubclass(kind, Number) for kind in kinds)
    )


def _joined(reduced: Any, record: Any, result: Any) -> str:
    """Return which texts of two records, written like numbers, were joined; "" if none."""
    before, added, after = map(_parts, (reduced, record, result))
    for name, text in after.items():
        texts = before.get(name), added.get(name)
        if all(map(is_number_text, texts)) and text == "".join(map(str, texts)):
            return f"{texts[0]!r} + {texts[1]!r} = {text!r}"
    return ""


def _parts(record: Any) -> dict[Any, Any]:
    if isinstance(record, dict):
        return record
    if isinstance(record, tuple):
        return dict(enumerate(record))
    return getattr(record, "__dict__", None) or {"": record}
