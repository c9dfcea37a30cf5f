"""Which columns come out of select, with_columns, drop and rename."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from aiomailbox.columnar.forms import RecordForm, changed_form
from aiomailbox.errors import RecordTypeError

__all__ = ["Drop", "Plan", "Projection", "Rename", "Select", "WithColumns", "form_for"]

# New names in order, each with the field that it is, or the number of an expression.
Plan = list[tuple[str, str | int]]


@dataclass(frozen=True)
class Projection:
    """Makes records of other fields from those of a stream.

    Attributes:
        expressions: What is computed.
    """

    expressions: dict[str, pc.Expression] = field(default_factory=dict)

    def plan(self, names: Sequence[str]) -> Plan:
        """Return what records with fields of these names become.

        Raises:
            RecordTypeError: If there is no field that is named.
        """
        raise TypeError(f"{type(self).__name__} defines no plan")

    def computed(self) -> Plan:
        """Return the fields that are computed."""
        return [(name, index) for index, name in enumerate(self.expressions)]


@dataclass(frozen=True)
class Select(Projection):
    """Keeps some fields, and renames or computes others.

    Attributes:
        names: The fields to keep.
        named: New names in order, each with the name of a field, or None for the next of
            what is computed; None for all that is computed.
        parameter: Where the fields to keep were named, for errors.
    """

    names: tuple[str, ...] = ()
    named: Mapping[str, str | None] | None = None
    parameter: str = "names"

    def plan(self, names: Sequence[str]) -> Plan:
        """Return the fields that are named, then those that are renamed or computed."""
        named = dict.fromkeys(self.expressions) if self.named is None else self.named
        renamed = [old for old in named.values() if old is not None]
        _check_names([*self.names, *renamed], names, self.parameter)
        numbers = dict(self.computed())
        kept: Plan = [(name, name) for name in self.names]
        return kept + [(name, old or numbers[name]) for name, old in named.items()]


@dataclass(frozen=True)
class WithColumns(Projection):
    """Keeps all fields, and computes some, which stand where they stood before."""

    def plan(self, names: Sequence[str]) -> Plan:
        """Return all fields, and behind them those that are new."""
        numbers = dict(self.computed())
        kept: Plan = [(name, numbers.pop(name, name)) for name in names]
        return kept + list(numbers.items())


@dataclass(frozen=True)
class Drop(Projection):
    """Keeps all fields but some."""

    names: tuple[str, ...] = ()

    def plan(self, names: Sequence[str]) -> Plan:
        """Return the other fields."""
        _check_names(self.names, names)
        left: Plan = [(name, name) for name in names if name not in self.names]
        if not left:
            raise RecordTypeError("names", "no field is left", "Keep at least one.")
        return left


@dataclass(frozen=True)
class Rename(Projection):
    """Gives fields other names."""

    names: Mapping[str, str] = field(default_factory=dict)

    def plan(self, names: Sequence[str]) -> Plan:
        """Return all fields, in their order."""
        _check_names(list(self.names), names)
        renamed = [self.names.get(name, name) for name in names]
        twice = next((name for name in renamed if renamed.count(name) > 1), None)
        if twice is not None:
            raise RecordTypeError(
                "names",
                f"there would be two fields {twice!r}",
                "Rename the other one, too, or drop it before.",
            )
        return list(zip(renamed, names, strict=True))


def form_for(
    form: RecordForm,
    plan: Plan,
    schema: pa.Schema,
    computed: RecordForm | None = None,
) -> RecordForm:
    """Return what records become: dicts stay dicts, all others are NamedTuples.

    Args:
        form: What they were.
        plan: The fields that they get.
        schema: The columns of these fields.
        computed: What structs inside of those become that are computed; None for what
            records become.
    """
    inner = {}
    for name, origin in plan:
        if pa.types.is_nested(schema.field(name).type):
            nested = form.nested(origin) if isinstance(origin, str) else computed
            if nested is not None:
                inner[name] = nested
    return changed_form(form, inner)


def _check_names(
    asked: Sequence[str], names: Sequence[str], parameter: str = "names"
) -> None:
    for name in asked:
        if name not in names:
            raise RecordTypeError(
                parameter,
                f"there is no field {name!r}",
                f"The fields are: {', '.join(names)}.",
            )
