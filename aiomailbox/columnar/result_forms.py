"""What results of aggregates are as records: of their own class, values, or tuples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiomailbox.columnar.forms import NamedTupleForm, RecordForm, StructBuilder
from aiomailbox.operators.aggregates.result_record import result_type

__all__ = ["ResultForm", "TupleForm", "ValueForm"]


class ResultForm:
    """Records of the class that results have.

    Attributes:
        has_tuples: Whether the field ``key`` is a tuple of several fields.
    """

    def __init__(self, names: tuple[str, ...], has_tuples: bool) -> None:
        self.record_type: type = result_type(names)
        self.has_tuples: bool = has_tuples

    def builder(self, names: tuple[str, ...], where: str = "") -> StructBuilder:
        """Return the function that makes results."""
        kind, new = self.record_type, tuple.__new__

        def build(columns: Sequence[Sequence[Any]], count: int) -> list[Any]:
            return [new(kind, values) for values in zip(*columns, strict=True)]

        return build

    def nested(self, name: str) -> RecordForm:
        """Return the form of a key of several fields, or of NamedTuples."""
        return TupleForm() if self.has_tuples and name == "key" else NamedTupleForm()


class ValueForm:
    """Records that are single values."""

    def builder(self, names: tuple[str, ...], where: str = "") -> StructBuilder:
        """Return the function that takes the values of the one column."""

        def build(columns: Sequence[Sequence[Any]], count: int) -> list[Any]:
            return list(columns[0])

        return build

    def nested(self, name: str) -> RecordForm:
        """Return the form of NamedTuples."""
        return NamedTupleForm()


class TupleForm(ValueForm):
    """Keys of several fields, or results with their keys: tuples without names.

    Args:
        has_tuples: Whether the field ``key`` is a tuple, too.
    """

    def __init__(self, *, has_tuples: bool = False) -> None:
        self._has_tuples = has_tuples

    def nested(self, name: str) -> RecordForm:
        """Return the form of a key of several fields, or of NamedTuples."""
        return TupleForm() if self._has_tuples and name == "key" else NamedTupleForm()

    def builder(self, names: tuple[str, ...], where: str = "") -> StructBuilder:
        """Return the function that makes tuples."""

        def build(columns: Sequence[Sequence[Any]], count: int) -> list[Any]:
            return list(zip(*columns, strict=True))

        return build
