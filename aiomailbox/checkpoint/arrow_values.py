"""Values of state as Arrow takes them: objects become dicts of their fields."""

from __future__ import annotations

import dataclasses
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec

__all__ = ["arrow_entries", "arrow_value"]


def arrow_value(value: Any) -> Any:
    """Return a value as Arrow infers types from.

    Objects become dicts of their fields, sets lists, and dicts whose keys are not all
    texts lists of ``key`` and ``value``; Arrow knows no others.

    Example:
        >>> arrow_value({1: {"a"}})
        [{'key': 1, 'value': ['a']}]
    """
    if isinstance(value, Enum):
        return arrow_value(value.value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, map(arrow_value, value), strict=True))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [one.name for one in dataclasses.fields(value)]
        return {name: arrow_value(getattr(value, name)) for name in names}
    if isinstance(value, msgspec.Struct):
        names = list(value.__struct_fields__)
        return {name: arrow_value(getattr(value, name)) for name in names}
    # A dict without keys of text cannot be a struct: Arrow's fields have names.
    if isinstance(value, dict):
        if all(type(key) is str for key in value):
            return {key: arrow_value(one) for key, one in value.items()}
        return arrow_entries(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [arrow_value(one) for one in value]
    if isinstance(value, UUID):
        return str(value)
    return bytes(value) if isinstance(value, bytearray) else value


def arrow_entries(value: dict[Any, Any]) -> list[dict[str, Any]]:
    """Return the entries of a dict, as `arrow_value` does where keys are of any type."""
    return [
        {"key": arrow_value(key), "value": arrow_value(one)}
        for key, one in value.items()
    ]
