"""Record types whose fields are known only when the job is built."""

from __future__ import annotations

import functools
from collections import namedtuple
from typing import Any, Final

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.records.named_tuples import is_field_name
from aiomailbox.state.state_classes import family_kept_in_state

# Type checkers want to know the fields.
_namedtuple: Final[Any] = namedtuple  # noqa: PYI024 -- the fields are data


@functools.cache
def result_type(fields: tuple[str, ...]) -> type[Any]:
    """Return the NamedTuple type with these fields; the same one for the same fields.

    Its records pickle by their fields, so that another process makes its own type.

    Example:
        >>> result_type(("flights", "delay"))(2, 7.5)
        Result(flights=2, delay=7.5)
    """
    made: Any = _namedtuple("Result", fields)
    made.__module__ = __name__
    made.__reduce__ = _reduce
    result: type[Any] = made
    return result


def check_result_fields(names: tuple[str, ...], reserved: frozenset[str]) -> None:
    """Raise if these names cannot be the fields of a result.

    Raises:
        InvalidArgumentError: If one is no identifier, is taken, or begins with ``_``.
    """
    for name in names:
        if not is_field_name(name):
            raise InvalidArgumentError(
                "named",
                f"{name!r} cannot be the name of a field",
                "Use a Python name that does not begin with an underscore.",
            )
        if name in reserved:
            raise InvalidArgumentError(
                "named",
                f"{name!r} is a field that every window's result has",
                "Give the aggregate another name.",
            )


def _reduce(record: Any) -> tuple[Any, ...]:
    return _restored, (record._fields, tuple(record))


def _restored(fields: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return result_type(fields)(*values)


family_kept_in_state("Result", result_type, _restored)
