"""Classes of the user's that may travel: a table that is filled at the start of a job.

Saved bytes outlive the present modules of this library. So the name of a class of ours,
in saved state and in data in flight, says nothing of its module.

Theory of operation: a record is its class's name and its fields, and the name is looked
up in this table and nowhere else. So bytes from a peer can only make objects of classes
that both sides have entered, and no function of the user's runs when they are read,
but for an enum's lookup and the ``__post_init__`` of a ``msgspec.Struct``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import keyword
import typing
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache, partial
from operator import attrgetter
from typing import Annotated, Any, Final

import msgspec

from aiomailbox.errors import CorruptStreamError, InvalidArgumentError, WrongTypeError

Family = Callable[[tuple[str, ...]], type]


_MADE_MAX: Final = 1_000


_FIELDS_MAX: Final = 10_000


_OURS: Final = __name__.partition(".")[0]


# Of classes of ours by what they are called where they are defined.
_GIVEN: Final[dict[str, str]] = {}


@dataclass(frozen=True, slots=True)
class SavedAs:
    """Says of a class in a type hint under which other name it was saved.

    Attributes:
        name: ``module:name``, as it was.

    Example:
        >>> class Point:
        ...     x: int
        >>> saved_names([Annotated[Point, SavedAs("__main__:Point")]])
        {'__main__:Point': <class '...Point'>}
    """

    name: str


def saved_names(hints: Iterable[Any]) -> dict[str, type]:
    """Return the classes that were saved under other names, by these."""
    return {
        mark.name: hint.__origin__
        for hint in hints
        if typing.get_origin(hint) is Annotated
        for mark in hint.__metadata__
        if isinstance(mark, SavedAs)
    }


def fields_of_class(kind: Any) -> tuple[str, ...] | None:
    """Return the fields of a NamedTuple, dataclass or struct; None of another class.

    Example:
        >>> fields_of_class(SavedAs), fields_of_class(dict)
        (('name',), None)
    """
    names: tuple[str, ...] | None = None
    if issubclass(kind, tuple):
        names = getattr(kind, "_fields", None)
    elif issubclass(kind, msgspec.Struct):
        names = kind.__struct_fields__
    elif dataclasses.is_dataclass(kind):
        names = tuple(field.name for field in dataclasses.fields(kind))
    return names


def fields_of(record: Any) -> tuple[str, ...] | None:
    """Return the fields of a record that is no dict, also of a Row of Spark, or None."""
    names = fields_of_class(type(record))
    if names is None and isinstance(record, tuple):
        names = getattr(record, "__fields__", None)
    return None if names is None else tuple(names)


def is_ours(name: str | None) -> bool:
    """Say whether a module, or the class of a name, belongs to this library."""
    return name is not None and (name == _OURS or name.startswith(f"{_OURS}."))


def class_name(kind: type) -> str:
    """Return the name by which objects of a class are found again.

    It is ``module:name``, and of a class of this library ``aiomailbox.name``, in
    whichever module of it the class is.

    Example:
        >>> from fractions import Fraction
        >>> class_name(Fraction), class_name(RecordClass)
        ('fractions:Fraction', 'aiomailbox.RecordClass')
    """
    name = f"{kind.__module__}:{kind.__qualname__}"
    if not is_ours(kind.__module__):
        return name
    return _GIVEN.get(name) or f"{_OURS}.{kind.__qualname__}"


def give_name(kind: type, name: str) -> str:
    """Give a class of this library the name that it keeps, and return all of that."""
    whole = f"{_OURS}.{name}"
    _GIVEN[f"{kind.__module__}:{kind.__qualname__}"] = whole
    return whole


def present_name(name: str) -> str:
    """Return the name that a class has now, given any that it was ever saved under.

    Versions up to 0.1 wrote where the class was: ``module:name`` into state, and
    ``module.name`` into data in flight. All others come as they are.

    Example:
        >>> present_name("aiomailbox.windowing.time_window:TimeWindow")
        'aiomailbox.TimeWindow'
        >>> present_name("aiomailbox.TimeWindow"), present_name("shop:Order")
        ('aiomailbox.TimeWindow', 'shop:Order')
    """
    if not is_ours(name):
        return name
    # The fields of a class of a family follow in parentheses.
    place, parenthesis, fields = name.partition("(")
    _, _, last = place.replace(":", ".").rpartition(".")
    return f"{_OURS}.{last}{parenthesis}{fields}"


class RecordClass:
    """How the objects of one class are taken apart and put together.

    Attributes:
        kind: The class.
        name: Its module and qualified name, with dots; see `class_name`.
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
        self.name: str = _sent_name(kind)
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
        made.name = _sent_name(kind)
        made.fields = fields
        made.split = split
        made.build = build
        made.names_fields = names_fields
        return made


class RecordClasses:
    """Classes by name; the same in every process of a job.

    A family is a function that makes NamedTuple classes, always the same for the same
    field names. Its classes need not be entered: the family's name and the fields
    travel. Of each job's families at most 1,000 classes are made.

    Args:
        kinds: NamedTuples, dataclasses, ``msgspec.Struct`` classes and enums; of
            others, how their objects are taken apart.
        families: By the name that all classes of a family have; see `class_name`.
        formerly: Classes that were sent under other names, in data in flight that was
            saved, by these: ``module:name``.

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

    def __init__(
        self,
        kinds: Iterable[type | RecordClass] = (),
        families: Mapping[str, Family] | None = None,
        formerly: Mapping[str, type] | None = None,
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
        for name, kind in (formerly or {}).items():
            # What is no record was not sent.
            if kind in self._by_kind:
                sent = name.replace(":", ".")
                self._by_name.setdefault(sent, self._by_kind[kind])

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
            if isinstance(hint, type) and is_record(hint) and hint not in found:
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
        if entry is None:
            name = present_name(name)
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
        family = _sent_name(kind)
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


def _sent_name(kind: type) -> str:
    return class_name(kind).replace(":", ".")


def is_record(kind: type) -> bool:
    """Say whether a class is one of records, or an enum with members."""
    if issubclass(kind, Enum):
        return bool(kind.__members__)
    return kind is not msgspec.Struct and fields_of_class(kind) is not None


def _hints_of(kind: type) -> list[Any]:
    try:
        return list(typing.get_type_hints(kind).values())
    except Exception:  # noqa: BLE001 -- a hint is whatever the user wrote
        return []


def _fields_of(kind: type) -> tuple[str, ...]:
    if not isinstance(kind, type) or not is_record(kind):
        raise WrongTypeError(
            "kinds",
            f"{kind!r} is not a NamedTuple, dataclass, msgspec.Struct or enum",
            "Make it one of these, or send its contents as a tuple or a dict.",
        )
    return ("value",) if issubclass(kind, Enum) else fields_of_class(kind) or ()


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


# NamedTuple classes that are made from field names, and survive pickling.


def is_field_name(name: str) -> bool:
    """Say whether a NamedTuple can have a field of this name: a public identifier.

    Example:
        >>> [name for name in ("price", "a b", "class", "_x") if is_field_name(name)]
        ['price']
    """
    return (
        name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("_")
    )


@lru_cache(maxsize=1024)
def record_class(names: tuple[str, ...]) -> type[tuple[Any, ...]]:
    """Return the NamedTuple class with these fields: the same one for the same names.

    Its instances pickle as their names and values, so that another process, which
    has made no such class, can read them.

    Args:
        names: The fields, each a public identifier.

    Example:
        >>> Point = record_class(("x", "y"))
        >>> Point(1, 2).x, record_class(("x", "y")) is Point
        (1, True)
    """
    # Called through a name that type checkers do not follow: the fields are a value.
    make: Any = namedtuple  # noqa: PYI024 -- the fields are known only now
    base = make("Record", names)
    members = {"__module__": __name__, "__reduce__": _reduce, "__slots__": ()}
    return type("Record", (base,), members)


def record_of(names: tuple[str, ...], values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the record with these fields and values; what a pickled one calls."""
    return tuple.__new__(record_class(names), values)


def _reduce(record: Any) -> tuple[Any, ...]:
    return record_of, (record._fields, tuple(record))


# Where Spark's Row is, and its other classes of values.
SPARK_TYPES: Final = "pyspark.sql.types"


# Spark's Row as a record: a tuple whose objects each know the names of their fields.


def is_spark_row(kind: object) -> bool:
    """Say whether a class is `pyspark.sql.Row`; imports nothing.

    Example:
        >>> is_spark_row(tuple)
        False
    """
    return (
        isinstance(kind, type)
        and issubclass(kind, tuple)
        and (kind.__module__, kind.__qualname__) == (SPARK_TYPES, "Row")
    )


def row_class(kind: type) -> RecordClass:
    """Return how Rows are taken apart: the names, None without any, and the values."""

    def split(row: Any) -> tuple[Any, ...]:
        names = getattr(row, "__fields__", None)
        return None if names is None else tuple(names), tuple(row)

    def build(parts: Any) -> Any:
        names, values = parts
        if not isinstance(values, tuple) or not isinstance(names, tuple | None):
            raise CorruptStreamError("a Row is made of names and values")
        row: Any = tuple.__new__(kind, values)
        if names is not None:
            if not all(isinstance(name, str) for name in names):
                raise CorruptStreamError("the names of a Row are texts")
            row.__fields__ = list(names)
        return row

    return RecordClass.taken_apart(
        kind, ("names", "values"), split, build, names_fields=True
    )
