"""Which classes the objects of kept state may have, and how older ones are read.

Theory of operation: a writer may write any class of records, unless it is said
which; their names and fields are recorded beside the contents. A reader has
to say which classes there may be: bytes name classes, and nothing is imported for a
name that they hold. A class of this library has the same name in every version; one of
the user's is called what it was when it was written, so a reader may be told of others.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final, TypeVar

import msgspec

from aiomailbox.errors import InvalidArgumentError, StateError, WrongTypeError
from aiomailbox.records.named_tuples import record_class, record_of
from aiomailbox.records.record_classes import (
    Family,
    RecordClass,
    RecordClasses,
    SavedAs,
    class_name,
    give_name,
    is_ours,
    present_name,
    saved_names,
)
from aiomailbox.records.spark_rows import row_class
from aiomailbox.state.schema import (
    ClassSchema,
    check_fields,
    class_schema,
    is_record_class,
    renamed_fields,
)

__all__ = [
    "StateClasses",
    "StateNames",
    "check_declared",
    "check_state_names",
    "declared_classes",
    "family_kept_in_state",
    "is_known_class",
    "kept_in_state",
    "kept_taken_apart",
    "moved_in_library",
    "state_name_hints",
]

KindT = TypeVar("KindT", bound=type)
StateNames = Mapping[str, type]

# What operators and sources of ours keep, by name.
_OURS: Final[dict[str, type]] = {}
# Classes of NamedTuples that are made from the names of their fields.
_FAMILIES: Final[dict[str, Family]] = {}
# By their names the functions that pickled objects of ours are made with.
_UNPICKLING: Final[dict[str, Callable[..., Any]]] = {}
# Classes that are no records, and what takes their objects apart.
_TAKEN_APART: Final[dict[str, Callable[[], RecordClass]]] = {}


def kept_in_state(name: str) -> Callable[[KindT], KindT]:
    """Declare a class that an operator or a source keeps in its own state, for all jobs.

    Args:
        name: What it is called in saved state, after ``aiomailbox.``. It stays, wherever
            the class is moved to and whatever it is called there.

    Concept:
        A decorator; for classes of this library. Users' classes are found in the type
        hints of their jobs.
    """

    def declare(kind: KindT) -> KindT:
        whole = give_name(kind, name)
        before = _OURS.get(whole, kind)
        # A module that is loaded again has made the same class once more.
        assert before.__qualname__ == kind.__qualname__, f"{whole} is {before}, too"
        _OURS[whole] = kind
        return kind

    return declare


def family_kept_in_state(name: str, make: Family, unpickle: Callable[..., Any]) -> None:
    """Declare NamedTuple classes that are made from field names, for all jobs.

    Args:
        name: As for `kept_in_state`; the fields follow it in parentheses.
        make: Makes one; the same one for the same names.
        unpickle: The function by which their pickled objects are made again.
    """
    _FAMILIES[give_name(make(()), name)] = make
    _UNPICKLING[unpickle.__name__] = unpickle


def kept_taken_apart(reference: str, make: Callable[[], RecordClass]) -> None:
    """Declare a class that is no record, for all jobs.

    Args:
        reference: Its name, ``module:name``: it is of another library.
        make: Called once it is met: returns how its objects are taken apart.
    """
    _TAKEN_APART[reference] = make


def is_known_class(reference: str) -> bool:
    """Say whether objects of a class can be read, whatever a job declares."""
    name = present_name(reference)
    return name in _OURS or name in _TAKEN_APART or _member(name) is not None


def check_state_names(names: Any, parameter: str = "state_names") -> None:
    """Raise if what classes were called in saved state is not said as it should be.

    Args:
        names: The classes by the names that they were saved under.
        parameter: What it is called, for messages.

    Raises:
        WrongTypeError: If it is no mapping of texts to classes.
        InvalidArgumentError: If a name is none that a class of the user's can have.
    """
    usage = 'Give classes by their old names, as {"__main__:Acc": Acc}.'
    if not isinstance(names, Mapping):
        raise WrongTypeError(parameter, f"{names!r} is not a mapping", usage)
    for name, kind in names.items():
        if not isinstance(name, str):
            raise WrongTypeError(parameter, f"{name!r} is not a name", usage)
        if is_ours(name):
            raise InvalidArgumentError(
                parameter,
                f"{name!r} is a class of this library, which is found by itself",
                "Leave it out.",
            )
        module, colon, rest = name.partition(":")
        if not (module and colon and rest):
            raise InvalidArgumentError(
                parameter,
                f"{name!r} is no name of a class in saved state",
                "Write the module, a colon and the class, as the error of the restore "
                'did: "__main__:Acc".',
            )
        if not isinstance(kind, type):
            raise WrongTypeError(
                parameter, f"{name!r} is given {kind!r}, which is not a class", usage
            )


def state_name_hints(names: StateNames) -> tuple[Any, ...]:
    """Return type hints that say of classes under which names they were saved."""
    hints: list[Any] = [Annotated[kind, SavedAs(name)] for name, kind in names.items()]
    return tuple(hints)


def moved_in_library(module: str, name: str) -> Any:
    """Return what pickled state means that names a class or function of this library.

    Args:
        module: Where it was, and may be no longer.
        name: What it is called.

    Returns:
        None if it is of no module of ours, or nothing that is kept in state.
    """
    if not is_ours(module):
        return None
    found = _OURS.get(present_name(f"{module}:{name}")) or _UNPICKLING.get(name)
    return found or getattr(sys.modules[module.partition(".")[0]], name, None)


def _spark_row() -> RecordClass:
    # A program with such rows has imported it; a name alone is no reason to do so.
    module = sys.modules.get("pyspark.sql.types")
    if module is None:
        raise StateError(
            "there are Rows of Spark in the state: import pyspark.sql before it is read"
        )
    return row_class(module.Row)


family_kept_in_state("Record", record_class, record_of)
kept_taken_apart("pyspark.sql.types:Row", _spark_row)


def declared_classes(hints: Iterable[Any]) -> dict[str, type]:
    """Return the classes of records that type hints name, with those of their fields.

    Those that operators and sources of this library keep are among them. One that was
    saved under another name is there by that name, too; see `SavedAs`.

    Raises:
        InvalidArgumentError: If another class of the job has the name that one was saved
            under.

    Example:
        >>> from typing import NamedTuple
        >>> class Point(NamedTuple):
        ...     x: int
        >>> Point.__module__ = "geometry"
        >>> "geometry:Point" in declared_classes([dict[str, Point]])
        True
    """
    all_hints = list(hints)
    # Of two with one name only one can be meant by it: the first.
    found = RecordClasses.kinds_in(all_hints)
    declared = {**_OURS, **{class_name(kind): kind for kind in found[::-1]}}
    for name, kind in saved_names(all_hints).items():
        # What is written from now on could not be told from what was written before.
        if declared.setdefault(name, kind) is not kind:
            raise InvalidArgumentError(
                "state_names",
                f"{name!r} is what another class of the job is called now, besides "
                f"{class_name(kind)}",
                "Give that one another name.",
            )
    return declared


def check_declared(
    references: Iterable[str], declared: Mapping[str, type] | None
) -> None:
    """Raise if state holds objects of classes that could not be read again.

    Args:
        references: The classes.
        declared: Those that the job declares, by their references; None for all.

    Raises:
        StateError: Naming the first.
    """
    for reference in references:
        if declared is None or reference in declared or is_known_class(reference):
            continue
        raise StateError(
            f"objects of {reference} cannot be written to a snapshot, for they "
            "could not be read again: the job does not declare the class. Name it "
            "in a type hint or in the type_ of the state's descriptor."
        )


class StateClasses:
    """The classes of one state's contents, for `PythonTypes`.

    Args:
        declared: By their names those that there may be; None for all that are written
            here.

    Attributes:
        met: The classes that were written, by their names.
    """

    __slots__ = ("_by_kind", "_by_name", "declared", "met")

    def __init__(self, declared: Mapping[str, type] | None = None) -> None:
        self.declared: Mapping[str, type] | None = declared
        self._by_kind: dict[type, RecordClass] = {}
        self._by_name: dict[str, RecordClass] = {}
        self.met: dict[str, RecordClass] = {}

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

        Fields that are new get their defaults.

        Args:
            state: The state's name.
            written: By the classes' references, the fields that objects were written
                with, in order.

        Raises:
            StateError: If a class was not declared, or does not fit any more.
        """
        for reference, fields in written.items():
            made = _TAKEN_APART.get(reference)
            if made is not None:
                self._put(made(), reference)
                continue
            kind = self._named_now(reference)
            if kind is None:
                raise StateError(
                    f"state {state!r} holds objects of {reference}, a class that "
                    "the job does not declare. Name the class in a type hint or in "
                    "the type_ of the state's descriptor; if it is in another module "
                    "or has another name now, say which class it is: "
                    f"state_names={{{reference!r}: ...}}, beside restore_from=."
                )
            if not is_record_class(kind):
                raise StateError(
                    f"state {state!r} holds objects of {reference}, and "
                    f"{class_name(kind)}, which state_names= gives for it, is no "
                    "dataclass, NamedTuple, msgspec.Struct or enum."
                )
            written_as = renamed_fields(fields, self.name_now)
            check_fields(state, reference, written_as, class_schema(kind))
            self._enter(kind, reference, tuple(fields))

    def name_now(self, reference: str) -> str:
        """Return the name that a class has now, given that which it was written with."""
        kind = (self.declared or {}).get(reference)
        return present_name(reference) if kind is None else class_name(kind)

    def _named_now(self, reference: str) -> type | None:
        declared = self.declared or {}
        if reference in declared:
            return declared[reference]
        name = present_name(reference)
        return declared.get(name) or _member(name)

    def schemas(self) -> dict[str, ClassSchema]:
        """Return the fields of the classes that were written, by their references."""
        return {
            reference: dict.fromkeys(entry.fields, ((), True))
            if reference in _TAKEN_APART
            else class_schema(entry.kind)
            # A thread may ask while others are met.
            for reference, entry in self.met.copy().items()
        }

    def _meet(self, kind: type) -> RecordClass:
        reference = class_name(kind)
        made = _TAKEN_APART.get(reference)
        if made is not None:
            return self._noted(self._put(made(), reference))
        if reference in _FAMILIES:
            described: Any = kind
            member = f"{reference}({','.join(described._fields)})"
            if _member(member) is kind:
                return self._noted(self._enter(kind, member, described._fields))
        if reference in self._by_name:
            raise StateError(f"two classes are called {reference}: rename one")
        if not is_record_class(kind):
            raise StateError(
                f"objects of {kind.__qualname__} cannot be written to a snapshot. Make "
                "it a dataclass, a NamedTuple or a msgspec.Struct, or give the state's "
                "descriptor serializer=PickleSerializer()."
            )
        if self.declared is not None and self.declared.get(reference) is not kind:
            raise StateError(
                f"objects of {kind.__qualname__} cannot be written to a snapshot, for "
                f"they could not be read again: the job does not declare {reference}. "
                "Name the class in a type hint or in the type_ of the state's descriptor."
            )
        return self._noted(self._enter(kind, reference, RecordClass(kind).fields))

    def _noted(self, entry: RecordClass) -> RecordClass:
        self.met[entry.name] = entry
        return entry

    def _enter(
        self, kind: type, reference: str, fields: tuple[str, ...]
    ) -> RecordClass:
        entry = RecordClass(kind)
        if fields and fields != entry.fields:
            entry = RecordClass.taken_apart(
                kind, fields, entry.split, _older(kind, fields)
            )
        return self._put(entry, reference)

    def _put(self, entry: RecordClass, reference: str) -> RecordClass:
        entry.name = reference
        self._by_kind[entry.kind] = self._by_name[reference] = entry
        return entry


def _member(reference: str) -> type | None:
    """Return the class of a family that a reference is of, if it is of one."""
    family, _, rest = reference.partition("(")
    make = _FAMILIES.get(family)
    if make is None or not rest.endswith(")"):
        return None
    fields = tuple(rest[:-1].split(",")) if rest != ")" else ()
    try:
        return make(fields)
    except ValueError:
        # Not the names of fields.
        return None


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
