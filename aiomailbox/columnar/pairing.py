"""Which fields a joined record gets, by the names of those of its two sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow.compute as pc

from aiomailbox.columnar.evaluator import check_expression, check_reads
from aiomailbox.errors import InvalidArgumentError, RecordTypeError, WrongTypeError

__all__ = ["PairFields", "PairPlan", "Place", "pair_fields"]

_SIDES: Final = ("left", "right")

# A side, 0 for left, and the name of its field.
Place = tuple[int, str]


class PairPlan(NamedTuple):
    """What becomes of pairs whose records have certain fields.

    Attributes:
        outputs: Names in order, each with the field that it is, or the number of an
            expression.
        read: The fields that the expressions may read, by the names that they use.
    """

    outputs: list[tuple[str, Place | int]]
    read: dict[str, Place]


@dataclass(frozen=True)
class PairFields:
    """What was written in ``select`` of a join; made by `pair_fields`.

    A field that only one side has goes by its name, and so does a key that has one name
    on both sides. Any field goes by ``left.name`` or ``right.name``.

    Attributes:
        items: New names in order, each with the name of a field, or an expression.
        keys: The names that keys have on both sides.

    Example:
        >>> fields = pair_fields(("id", "left.price"), {"paid": "right.price"}, {"id"})
        >>> for output in fields.plan(("id", "price"), ("id", "price")).outputs:
        ...     print(output)
        ('id', (0, 'id'))
        ('price', (0, 'price'))
        ('paid', (1, 'price'))
    """

    items: tuple[tuple[str, Any], ...]
    keys: frozenset[str] = field(default_factory=frozenset)

    @property
    def expressions(self) -> list[pc.Expression]:
        """What is computed, in order."""
        return [value for _, value in self.items if not isinstance(value, str)]

    @property
    def names(self) -> tuple[str, ...]:
        """The fields of a joined record."""
        return tuple(name for name, _ in self.items)

    def plan(self, left: Sequence[str], right: Sequence[str]) -> PairPlan:
        """Return what becomes of pairs of records with these fields.

        Raises:
            RecordTypeError: If a name is none of them, or that of two.
        """
        named = self._named(left, right)
        outputs: list[tuple[str, Place | int]] = []
        count = 0
        for name, value in self.items:
            if isinstance(value, str):
                outputs.append((name, self._place(value, named, left, right)))
            else:
                outputs.append((name, count))
                count += 1
        text = "\n".join(map(str, self.expressions))
        for expression in self.expressions:
            check_reads(expression, _told(named, left, right, text))
        return PairPlan(
            outputs, {name: place for name, place in named.items() if name in text}
        )

    def check(self, left: Sequence[str] | None, right: Sequence[str] | None) -> None:
        """Refuse what no pair can have, as far as fields are known; None if not.

        Raises:
            RecordTypeError: Then.
        """
        if left is not None and right is not None:
            self.plan(left, right)
            return
        for side, names in zip(_SIDES, (left, right), strict=True):
            for _, value in self.items:
                if names is None or not isinstance(value, str):
                    continue
                where, _, name = value.partition(".")
                if where == side and name not in names:
                    raise _no_field(value, names)

    def _named(self, left: Sequence[str], right: Sequence[str]) -> dict[str, Place]:
        """Return the fields by all names that each of them has."""
        named: dict[str, Place] = {}
        for side, (own, others) in enumerate(((left, right), (right, left))):
            for name in own:
                if name not in others or name in self.keys:
                    named.setdefault(name, (side, name))
        for side, own in enumerate((left, right)):
            named |= {f"{_SIDES[side]}.{name}": (side, name) for name in own}
        return named

    def _place(
        self,
        name: str,
        named: Mapping[str, Place],
        left: Sequence[str],
        right: Sequence[str],
    ) -> Place:
        place = named.get(name)
        if place is not None:
            return place
        if name in left and name in right:
            raise RecordTypeError(
                "names",
                f"both sides have a field {name!r}",
                f'Write "left.{name}" or "right.{name}".',
            )
        raise _no_field(name, dict.fromkeys((*left, *right)))


def pair_fields(
    names: Sequence[Any], named: Mapping[str, Any], keys: Sequence[str] | set[str]
) -> PairFields:
    """Return what ``select(*names, **named)`` of a join says.

    Args:
        names: Fields, which keep their names; ``left.`` or ``right.`` is left away.
        named: New names, each with a field's name or an expression.
        keys: The names that keys have on both sides.

    Raises:
        InvalidArgumentError: If there is nothing, or a name would be there twice.
        WrongTypeError: If something is neither a name nor an expression.
    """
    items: list[tuple[str, Any]] = []
    for name in names:
        if not isinstance(name, str):
            raise WrongTypeError(
                "names",
                f"{name!r} is no name of a field",
                'Write "price", or give what is computed a name: total=...',
            )
        items.append((_own_name(name), name))
    for name, value in named.items():
        if isinstance(value, str):
            _own_name(value)
        else:
            check_expression(value, name)
        items.append((name, value))
    if not items:
        raise InvalidArgumentError(
            "names",
            "no field is named",
            'Write the fields, for example "price" or "left.price".',
        )
    seen: dict[str, Any] = {}
    for name, value in items:
        if name in seen:
            other = value if isinstance(value, str) else seen[name]
            raise InvalidArgumentError(
                "names",
                f"two fields would be named {name!r}",
                f'Give one another name: other_{name}="{other}".',
            )
        seen[name] = value
    return PairFields(tuple(items), frozenset(keys))


def _told(
    named: Mapping[str, Place], left: Sequence[str], right: Sequence[str], text: str
) -> list[str]:
    """Return the names for messages: a side only where it has to be said."""
    return [
        name
        for name, (side, field) in named.items()
        if name == field or field in (right, left)[side] or name in text
    ]


def _own_name(name: str) -> str:
    """Return what a field is called without its side."""
    side, dot, own = name.partition(".")
    own = own if dot and side in _SIDES else name
    if not own:
        raise InvalidArgumentError(
            "names", f"{name!r} names no field", "Use a field's name."
        )
    return own


def _no_field(name: str, names: Any) -> RecordTypeError:
    return RecordTypeError(
        "names", f"there is no field {name!r}", f"The fields are: {', '.join(names)}."
    )
