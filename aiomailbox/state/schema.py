"""The types of state, as text, and whether newer ones can read older ones.

Theory of operation: a schema names the type of each part of a state (its value, or a
map's key and value) and the fields of every class that its contents hold. A type is a
set of alternatives, so that ``int | None`` reads what was written as ``int``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from aiomailbox.errors import StateError
from aiomailbox.records.record_classes import class_name, fields_of_class
from aiomailbox.state.accumulators import AccumulatorSchema

Options = tuple[str, ...]


# Per field its alternatives, and whether it must be given.
ClassSchema = dict[str, tuple[Options, bool]]


# A name of a class in the text of a type; that of one in a function has ``<locals>``.
_NAME: Final = re.compile(r"[^\s\[\],|]+:[^\s\[\],|]+")


# What a wider type reads without loss.
_WIDER = {"int": "float"}


@dataclass(frozen=True, slots=True)
class StateSchema:
    """The types of one state.

    Attributes:
        parts: Per part (``value``, ``element``, ``key``) the alternatives of its type;
            a part whose type is not known is left out.
        classes: Per class that occurs, by its name, its fields.
        accumulator: The parts of accumulators in it; None if it holds none, or they are
            not known.

    Example:
        >>> StateSchema({"value": type_options(int | None)}).parts
        {'value': ('None', 'int')}
    """

    parts: dict[str, Options] = field(default_factory=dict)
    classes: dict[str, ClassSchema] = field(default_factory=dict)
    accumulator: AccumulatorSchema | None = None

    def with_classes(self, classes: dict[str, ClassSchema]) -> StateSchema:
        """Return the same with more classes that occur."""
        if not classes:
            return self
        return replace(self, classes={**self.classes, **classes})

    def renamed(self, now: Callable[[str], str]) -> StateSchema:
        """Return the same with other names of classes.

        Args:
            now: Returns the name that a class has now, given that which it had.
        """
        return replace(
            self,
            parts={part: renamed(options, now) for part, options in self.parts.items()},
            classes={
                now(name): renamed_fields(fields, now)
                for name, fields in self.classes.items()
            },
        )

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that two schemas share if they are equal."""
        return _digest(msgspec.json.encode([self.parts, self.classes], order="sorted"))


# Each snapshot asks for those of the same few schemas.
@lru_cache(maxsize=1024)
def _digest(canonical: bytes) -> str:
    return hashlib.sha256(canonical).hexdigest()[:16]


def type_options(annotation: Any) -> Options:
    """Return the alternatives of a type as sorted text; empty when it is not known.

    Example:
        >>> type_options(list[int]), type_options(typing.Optional[str])
        (('list[int]',), ('None', 'str'))
    """
    if annotation is None or annotation is Any:
        return ()
    if typing.get_origin(annotation) in {typing.Union, types.UnionType}:
        parts = [type_options(arg) or ("None",) for arg in typing.get_args(annotation)]
        return tuple(sorted({text for options in parts for text in options}))
    return (_text(annotation),)


def _text(annotation: Any) -> str:
    if annotation is type(None):
        return "None"
    if isinstance(annotation, str):
        return annotation
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is None:
        if not isinstance(annotation, type):
            return str(annotation)
        if annotation.__module__ == "builtins":
            return annotation.__qualname__
        return class_name(annotation)
    inner = ", ".join(
        "..." if argument is ... else " | ".join(type_options(argument)) or "Any"
        for argument in arguments
    )
    return f"{_text(origin)}[{inner}]"


def renamed(options: Iterable[str], now: Callable[[str], str]) -> Options:
    """Return the alternatives of a type with other names of classes; see `type_options`.

    Example:
        >>> renamed(["list[shop:Cart | None]"], {"shop:Cart": "cart:Cart"}.__getitem__)
        ('list[cart:Cart | None]',)
    """
    return tuple(
        sorted(_NAME.sub(lambda found: now(found[0]), text) for text in options)
    )


def renamed_fields(fields: ClassSchema, now: Callable[[str], str]) -> ClassSchema:
    """Return the fields of a class with other names of classes in their types."""
    return {
        name: (renamed(options, now), required)
        for name, (options, required) in fields.items()
    }


# Hints are resolved for them, which takes long, and each snapshot asks.
_SCHEMAS: Final[WeakKeyDictionary[type, ClassSchema]] = WeakKeyDictionary()


def class_schema(kind: type) -> ClassSchema:
    """Return the fields of a dataclass, struct or NamedTuple; of an enum its value."""
    if issubclass(kind, Enum):
        return {"value": ((), True)}
    known = _SCHEMAS.get(kind)
    if known is not None:
        return known
    is_resolved = True
    try:
        hints = typing.get_type_hints(kind)
    except (NameError, TypeError):
        # Annotations that only a type checker can resolve stay as they are written.
        hints = dict(getattr(kind, "__annotations__", {}))
        is_resolved = False
    found = {
        name: (type_options(hints.get(name)), required)
        for name, required in _fields(kind)
    }
    if is_resolved:
        _SCHEMAS[kind] = found
    return found


def class_schemas(annotations: Iterable[Any]) -> dict[str, ClassSchema]:
    """Return the schemas of all classes of records that the annotations mention."""
    found: dict[str, ClassSchema] = {}
    for annotation in annotations:
        if isinstance(annotation, type) and is_record_class(annotation):
            found[class_name(annotation)] = class_schema(annotation)
        found.update(class_schemas(typing.get_args(annotation)))
    return found


def is_record_class(kind: Any) -> bool:
    """Say whether it is a dataclass, a struct, a NamedTuple or an enum."""
    is_enum = issubclass(kind, Enum) and not issubclass(kind, tuple)
    return is_enum or fields_of_class(kind) is not None


def _fields(kind: Any) -> list[tuple[str, bool]]:
    if dataclasses.is_dataclass(kind):
        return [
            (one.name, one.default is one.default_factory is dataclasses.MISSING)
            for one in dataclasses.fields(kind)
        ]
    if issubclass(kind, msgspec.Struct):
        return [(one.name, one.required) for one in msgspec.structs.fields(kind)]
    defaults: dict[str, Any] = kind._field_defaults
    return [(name, name not in defaults) for name in kind._fields]


def check_parts(state: str, old: StateSchema, new: StateSchema) -> None:
    """Raise if a state's parts were written as types that the new ones do not read.

    Raises:
        StateError: Naming the state, the part, and both types.
    """
    for part, now in new.parts.items():
        written = old.parts.get(part, ())
        if not _reads(now, written):
            raise StateError(
                f"state {state!r}: its {part} was written as {_or(written)} and cannot "
                f"be read as {_or(now)}. Give the new state another name."
            )


def check_fields(
    state: str, reference: str, written: ClassSchema, now: ClassSchema
) -> None:
    """Raise if objects of a class, as they were written, cannot be made any more.

    Fields that are new need a default; none may be gone, or of another type.

    Raises:
        StateError: Naming the state, the field, and both types.
    """
    for name in written:
        if name not in now:
            raise StateError(
                f"state {state!r}: field {name!r} of {reference} was written and is "
                "missing now, so its values would be lost. Add it again; it may "
                "have a default."
            )
    for name, (options, required) in now.items():
        if name not in written:
            if required:
                raise StateError(
                    f"state {state!r}: field {name!r} of {reference} is new and has no "
                    "default, so older objects cannot be read. Give it a default."
                )
            continue
        old, _ = written[name]
        if not _reads(options, old):
            raise StateError(
                f"state {state!r}: field {name!r} of {reference} was written as "
                f"{_or(old)} and cannot be read as {_or(options)}. Keep the type, or "
                "add a field of another name."
            )


# What fits a declared type that is none of records.
_FITTING: Final[dict[str, tuple[type, ...]]] = {
    **{kind.__name__: (kind,) for kind in (bool, bytes, complex, int, str)},
    **{kind.__name__: (kind,) for kind in (dict, frozenset, list, set, tuple)},
    "None": (type(None),),
    "float": (float, int),
}


class Misfit(NamedTuple):
    """Contents of a state that are of another type than was declared.

    Attributes:
        state: The name of the state.
        part: Which part of its contents: value, element, key or accumulator.
        declared: The type that was declared.
        found: The type that is there.
    """

    state: str
    part: str
    declared: str
    found: str


class DeclaredTypes:
    """Compares the types of a state's contents with those that were declared.

    None fits every declaration: it is how many a program keeps that there is nothing.
    Types of which it cannot be said what fits them, as protocols, fit everything.

    Args:
        state: The name of the state.
        schema: The declared type.

    Example:
        >>> declared = DeclaredTypes("n", StateSchema({"value": ("int",)}))
        >>> list(declared.misfits("value", [1, None, "x", "y"]))
        [Misfit(state='n', part='value', declared='int', found='str')]
    """

    def __init__(self, state: str, schema: StateSchema) -> None:
        self._state = state
        self._parts: dict[str, tuple[Options, set[type]]] = {}
        for part, options in schema.parts.items():
            heads = tuple(text.partition("[")[0] for text in options)
            if all(head in _FITTING or head in schema.classes for head in heads):
                self._parts[part] = (options, {type(None)})

    @property
    def parts(self) -> Iterable[str]:
        """The parts that are compared."""
        return self._parts.keys()

    def misfits(self, part: str, contents: Iterable[Any]) -> Iterator[Misfit]:
        """Yield what does not fit; of each type once."""
        options, seen = self._parts[part]
        # A loop in C; there are few types.
        for kind in set(map(type, contents)) - seen:
            seen.add(kind)
            if not any(_fits(kind, text.partition("[")[0]) for text in options):
                yield Misfit(self._state, part, _or(options), _text(kind))


def _fits(kind: type, head: str) -> bool:
    if head in _FITTING:
        return issubclass(kind, _FITTING[head])
    return any(class_name(base) == head for base in kind.__mro__)


def _reads(now: Options, written: Options) -> bool:
    if not now or not written:
        return True
    return all(text in now or _WIDER.get(text) in now for text in written)


def _or(options: Options) -> str:
    return " | ".join(options)
