"""Which classes the objects of kept state may have, and how older ones are read.

Theory of operation: whoever writes may write any class of records, unless it is said
which; their names and fields are noted and kept beside the contents. Whoever reads has
to say which classes there may be: bytes name classes, and nothing is imported for a
name that they hold.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from aiomailbox.errors import StateError
from aiomailbox.records import RecordClass, RecordClasses
from aiomailbox.state.schema import (
    ClassSchema,
    check_fields,
    class_reference,
    class_schema,
    is_record_class,
)

__all__ = ["StateClasses", "declared_classes", "kept_in_state"]

KindT = TypeVar("KindT", bound=type)

# What operators and sources of ours keep, by reference.
_OURS: Final[dict[str, type]] = {}


def kept_in_state(kind: KindT) -> KindT:
    """Declare a class that an operator or a source keeps in its own state, for all jobs.

    Concept:
        A decorator; for classes of this library. Users' classes are found in the type
        hints of their jobs.
    """
    _OURS[class_reference(kind)] = kind
    return kind


def declared_classes(hints: Iterable[Any]) -> dict[str, type]:
    """Return the classes of records that type hints name, with those of their fields.

    Those that operators and sources of this library keep are among them.

    Example:
        >>> from typing import NamedTuple
        >>> class Point(NamedTuple):
        ...     x: int
        >>> Point.__module__ = "geometry"
        >>> "geometry:Point" in declared_classes([dict[str, Point]])
        True
    """
    found = RecordClasses.found_in(hints).kinds()
    return {**_OURS, **{class_reference(kind): kind for kind in found}}


class StateClasses:
    """The classes of one state's contents, for `PythonTypes`.

    Args:
        declared: By their references those that there may be; None for all that are
            written here.

    Attributes:
        met: The classes that were written, by their references.
    """

    __slots__ = ("_by_kind", "_by_name", "_declared", "met")

    def __init__(self, declared: Mapping[str, type] | None = None) -> None:
        self._declared = declared
        self._by_kind: dict[type, RecordClass] = {}
        self._by_name: dict[str, RecordClass] = {}
        self.met: dict[str, type] = {}

    def of(self, kind: type) -> RecordClass:
        """Return how a class is taken apart.

        Raises:
            StateError: If its objects cannot be kept, or it was not declared.
        """
        return self._by_kind.get(kind) or self._meet(kind)

    def named(self, name: object) -> RecordClass | None:
        """Return the class of a name that was read, None if there may be none such."""
        return self._by_name.get(name) if isinstance(name, str) else None

    def expect(self, state: str, written: Mapping[str, ClassSchema]) -> None:
        """Be notified of the classes that are about to be read, as they were written.

        Fields that are gone are dropped; fields that are new get their defaults.

        Args:
            state: The state's name.
            written: By the classes' references, the fields that objects were written
                with, in order.

        Raises:
            StateError: If a class was not declared, or does not fit any more.
        """
        for reference, fields in written.items():
            kind = (self._declared or {}).get(reference)
            if kind is None:
                raise StateError(
                    f"state {state!r} holds objects of {reference}, which is not among "
                    "the classes that the job declares. Name the class in a type hint "
                    "or in the type_ of the state's descriptor; if it has another name "
                    "now, give it its old one back."
                )
            check_fields(state, reference, fields, class_schema(kind))
            self._enter(kind, reference, tuple(fields))

    def _meet(self, kind: type) -> RecordClass:
        reference = class_reference(kind)
        if reference in self._by_name:
            raise StateError(f"two classes are called {reference}: rename one")
        if not is_record_class(kind):
            raise StateError(
                f"a {kind.__qualname__} cannot be kept as bytes. Make it a dataclass, "
                "a NamedTuple or a msgspec.Struct, or give the state's descriptor "
                "serializer=PickleSerializer()."
            )
        if self._declared is not None and self._declared.get(reference) is not kind:
            raise StateError(
                f"a {kind.__qualname__} cannot be kept, for nobody could read it: "
                f"{reference} is not among the classes that the job declares. Name it "
                "in a type hint or in the type_ of the state's descriptor."
            )
        self.met[reference] = kind
        return self._enter(kind, reference, RecordClass(kind).fields)

    def _enter(
        self, kind: type, reference: str, fields: tuple[str, ...]
    ) -> RecordClass:
        entry = RecordClass(kind)
        if fields and fields != entry.fields:
            entry = RecordClass.taken_apart(
                kind, fields, entry.split, _older(kind, fields)
            )
        entry.name = reference
        self._by_kind[kind] = self._by_name[reference] = entry
        return entry


def _older(kind: Any, fields: tuple[str, ...]) -> Callable[[Any], Any]:
    """Return what makes an object of the fields that an older class had."""

    def build(row: Any) -> Any:
        return _make(kind, dict(zip(fields, row, strict=True)))

    return build


def _make(kind: Any, fields: dict[str, Any]) -> Any:
    if not dataclasses.is_dataclass(kind):
        is_struct = issubclass(kind, msgspec.Struct)
        names = kind.__struct_fields__ if is_struct else kind._fields
        return kind(**{name: fields[name] for name in names if name in fields})
    described: Any = kind
    made = object.__new__(described)
    for one in dataclasses.fields(described):
        if one.name in fields:
            value = fields[one.name]
        elif one.default is not dataclasses.MISSING:
            value = one.default
        else:
            # What has neither was refused by `check_fields`.
            assert one.default_factory is not dataclasses.MISSING
            value = one.default_factory()
        object.__setattr__(made, one.name, value)
    return made
