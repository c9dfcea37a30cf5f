"""Classes of the user's that may travel: a table that is filled at the start of a job.

Theory of operation: a record is its class's name and its fields, and the name is looked
up in this table and nowhere else. So bytes from a peer can only make objects of classes
that both sides have entered, and no function of the user's runs when they are read,
but for an enum's lookup and the ``__post_init__`` of a ``msgspec.Struct``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import partial
from operator import attrgetter
from typing import Any, Final

import msgspec

from aiomailbox.errors import InvalidArgumentError, WrongTypeError

__all__ = ["NO_RECORD_CLASSES", "Family", "RecordClass", "RecordClasses"]

Family = Callable[[tuple[str, ...]], type]
_MADE_MAX: Final = 1_000
_FIELDS_MAX: Final = 10_000


class RecordClass:
    """How the objects of one class are taken apart and put together.

    Attributes:
        kind: The class.
        name: Its module and qualified name.
        fields: Names of its fields; one, ``value``, for an enum.
        split: Returns an object's fields as a tuple.
        build: Returns an object, given its fields in order.
        names_fields: Whether each object has fields of its own: then its two fields
            here are their names and their values.
    """

    __slots__ = ("build", "fields", "kind", "name", "names_fields", "split")

    def __init__(self, kind: type) -> None:
        self.kind: type = kind
        self.names_fields: bool = False
        self.name: str = f"{kind.__module__}.{kind.__qualname__}"
        self.fields: tuple[str, ...] = _fields_of(kind)
        self.split: Callable[[Any], tuple[Any, ...]] = _splitter(kind, self.fields)
        self.build: Callable[[Any], Any] = _builder(kind, self.fields)

    @classmethod
    def taken_apart(
        cls,
        kind: type,
        fields: tuple[str, ...],
        split: Callable[[Any], tuple[Any, ...]],
        build: Callable[[Any], Any],
        *,
        names_fields: bool = False,
    ) -> RecordClass:
        """Return how objects of a class that is no record are taken apart.

        ``build`` gets what a peer has sent: it checks it, and runs none of it.
        """
        made = cls.__new__(cls)
        made.kind = kind
        made.name = f"{kind.__module__}.{kind.__qualname__}"
        made.fields = fields
        made.split = split
        made.build = build
        made.names_fields = names_fields
        return made


class RecordClasses:
    """Classes by name; the same in every process of a job.

    A family is a function that makes NamedTuple classes, always the same for the same
    field names. Its classes need not be entered: what travels is the family's name and
    the fields. Of each job's families at most 1,000 classes are made.

    Args:
        kinds: NamedTuples, dataclasses, ``msgspec.Struct`` classes and enums; of
            others, how their objects are taken apart.
        families: By the module and qualified name that all classes of a family have.

    Raises:
        WrongTypeError: If a class is none of these.
        InvalidArgumentError: If two classes have one name.

    Example:
        >>> from typing import NamedTuple
        >>> class Trade(NamedTuple):
        ...     symbol: str
        ...     price: float
        >>> classes = RecordClasses.found_in([list[Trade], int])
        >>> len(classes)
        1
        >>> classes.of(Trade).fields
        ('symbol', 'price')
    """

    __slots__ = ("_by_kind", "_by_name", "_declared", "_families", "_made")

    def __init__(
        self,
        kinds: Iterable[type | RecordClass] = (),
        families: Mapping[str, Family] | None = None,
    ) -> None:
        self._by_kind: dict[type, RecordClass] = {}
        self._by_name: dict[str, RecordClass] = {}
        self._families = dict(families or {})
        self._made = 0
        for kind in kinds:
            if isinstance(kind, RecordClass):
                self._enter(kind)
            elif kind not in self._by_kind:
                self._enter(RecordClass(kind))
        # Those of families come later, and at each end others.
        self._declared = list(self._by_kind.values())

    @classmethod
    def found_in(cls, hints: Iterable[Any]) -> RecordClasses:
        """Return the classes that type hints name, those of their fields included.

        Hints that name no such class, or cannot be resolved, are passed over.
        """
        return cls(cls.kinds_in(hints))

    @staticmethod
    def kinds_in(hints: Iterable[Any]) -> list[type]:
        """Return the same classes without a table: several may have one name."""
        found: dict[type, None] = {}
        seen: set[int] = set()
        # Hints are kept, so that no other one gets the identity of one that was seen.
        waiting = list(hints)
        for hint in waiting:
            if id(hint) in seen:
                continue
            seen.add(id(hint))
            waiting.extend(typing.get_args(hint))
            if isinstance(hint, type) and _is_record(hint) and hint not in found:
                found[hint] = None
                waiting.extend(_hints_of(hint))
        return list(found)

    def __len__(self) -> int:
        return len(self._declared) + len(self._families)

    def kinds(self) -> list[type]:
        """Return the classes that were entered, in order, without families."""
        return [entry.kind for entry in self._declared]

    def of(self, kind: type) -> RecordClass | None:
        """Return how a class is taken apart, or None if it was not entered."""
        entry = self._by_kind.get(kind)
        if entry is None and self._families:
            return self._member(kind)
        return entry

    def named(self, name: object) -> RecordClass | None:
        """Return the class of a name, or None if none was entered."""
        if not isinstance(name, str):
            return None
        entry = self._by_name.get(name)
        if entry is None and self._families:
            return self._made_as(name)
        return entry

    def fingerprint(self) -> str:
        """Return a text that is equal where the same classes have the same fields."""
        declared = sorted((one.name, one.fields) for one in self._declared)
        described = repr((declared, sorted(self._families)))
        return hashlib.blake2b(described.encode(), digest_size=8).hexdigest()

    def _member(self, kind: type) -> RecordClass | None:
        """Return how a class of a family is taken apart, or None if it is of none."""
        family = f"{kind.__module__}.{kind.__qualname__}"
        fields = getattr(kind, "_fields", None)
        if family not in self._families or fields is None:
            return None
        entry = self._made_as(f"{family}({','.join(fields)})")
        return entry if entry is not None and entry.kind is kind else None

    def _made_as(self, name: str) -> RecordClass | None:
        """Return the class of a family that a name describes, if it can be."""
        family, parenthesis, rest = name.partition("(")
        make = self._families.get(family)
        if make is None or not parenthesis or self._made >= _MADE_MAX:
            return None
        fields = tuple(rest[:-1].split(",")) if rest != ")" else ()
        if len(fields) > _FIELDS_MAX or not rest.endswith(")"):
            return None
        try:
            entry = RecordClass(make(fields))
        except ValueError:
            # Not the names of fields.
            return None
        self._made += 1
        entry.name = name
        self._by_kind[entry.kind] = self._by_name[name] = entry
        return entry

    def _enter(self, entry: RecordClass) -> None:
        if entry.name in self._by_name:
            raise InvalidArgumentError("kinds", f"two classes are called {entry.name}")
        self._by_kind[entry.kind] = self._by_name[entry.name] = entry


NO_RECORD_CLASSES: Final = RecordClasses()


def _is_record(kind: type) -> bool:
    if issubclass(kind, Enum):
        return bool(kind.__members__)
    return (
        (issubclass(kind, tuple) and hasattr(kind, "_fields"))
        or dataclasses.is_dataclass(kind)
        or (issubclass(kind, msgspec.Struct) and kind is not msgspec.Struct)
    )


def _hints_of(kind: type) -> list[Any]:
    try:
        return list(typing.get_type_hints(kind).values())
    except Exception:  # noqa: BLE001 -- a hint is whatever the user wrote
        return []


def _fields_of(kind: type) -> tuple[str, ...]:
    if not isinstance(kind, type) or not _is_record(kind):
        raise WrongTypeError(
            "kinds",
            f"{kind!r} is not a NamedTuple, dataclass, msgspec.Struct or enum",
            "Make it one of these, or send its contents as a tuple or a dict.",
        )
    described: Any = kind
    if issubclass(kind, Enum):
        return ("value",)
    if issubclass(kind, tuple):
        return tuple(described._fields)
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    return tuple(field.name for field in dataclasses.fields(described))


def _splitter(kind: type, fields: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if issubclass(kind, tuple) and not issubclass(kind, Enum):
        return tuple
    if len(fields) == 1:
        get = attrgetter(fields[0])
        return lambda record: (get(record),)
    return attrgetter(*fields) if fields else lambda record: ()


def _builder(kind: Any, fields: tuple[str, ...]) -> Callable[[Any], Any]:
    if issubclass(kind, Enum):
        return lambda row: kind(row[0])
    if issubclass(kind, tuple):
        return partial(tuple.__new__, kind)
    if issubclass(kind, msgspec.Struct):
        if _is_positional(kind, fields):
            return lambda row: kind(*row)
        return lambda row: kind(**dict(zip(fields, row, strict=True)))
    # Neither __init__ nor __post_init__: the record was made once already.
    put = object.__setattr__

    def build(row: Any) -> Any:
        record = object.__new__(kind)
        for name, value in zip(fields, row, strict=True):
            put(record, name, value)
        return record

    return build


def _is_positional(kind: Any, fields: tuple[str, ...]) -> bool:
    """Say whether a class can be called with its fields in order."""
    parameters = inspect.signature(kind).parameters
    return tuple(parameters) == fields and all(
        parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        for parameter in parameters.values()
    )
