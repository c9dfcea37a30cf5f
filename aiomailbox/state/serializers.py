"""How the contents of a state become bytes: the default way, and pickle on request."""

from __future__ import annotations

import dataclasses
import io
import pickle  # noqa: TID251 -- the one place of the explicit opt-in
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, lru_cache
from itertools import chain
from typing import Annotated, Any, ClassVar, Final, Protocol, TypeVar

from msgspec.msgpack import Decoder, Encoder

from aiomailbox.errors import (
    CorruptStreamError,
    InvalidArgumentError,
    StateError,
    WrongTypeError,
)
from aiomailbox.records.python_types import PythonTypes
from aiomailbox.records.record_classes import (
    Family,
    RecordClass,
    RecordClasses,
    SavedAs,
    class_name,
    fields_of_class,
    give_name,
    is_ours,
    present_name,
    record_class,
    record_of,
    row_class,
    saved_names,
)
from aiomailbox.records.run import map_all
from aiomailbox.signatures import check_type
from aiomailbox.state.schema import (
    ClassSchema,
    check_fields,
    class_schema,
    is_record_class,
    renamed_fields,
)

# Which classes the objects of kept state may have, and how older ones are read.
#
# Theory of operation: a writer may write any class of records, unless it is said which;
# their names and fields are recorded beside the contents. A reader has to say which
# classes there may be: bytes name classes, and nothing is imported for a name that they
# hold. A class of this library has the same name in every version; one of the user's is
# called what it was when it was written, so a reader may be told of others.


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
        name: Its name in saved state, after ``aiomailbox.``. It stays, wherever the
            class is moved to and whatever it is called there.

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
        parameter: Its name, for messages.

    Raises:
        WrongTypeError: If it is no mapping of texts to classes.
        InvalidArgumentError: If a name is none that a class of the user's can have.
    """
    usage = 'Give classes by their old names, as {"__main__:Acc": Acc}.'
    check_type(names, Mapping, parameter, usage, "a mapping")
    for name, kind in names.items():
        check_type(name, str, parameter, usage, "a name")
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
        name: Its name.

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


class DeclaredClasses(dict[str, type]):
    """Classes by their references, as `declared_classes` returns and takes them."""


def declared_classes(hints: Iterable[Any]) -> DeclaredClasses:
    """Return the classes of records that type hints name, with those of their fields.

    Hints are resolved for that, which takes long: what this has returned it returns at
    once, so that callers may keep it.

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
    if isinstance(hints, DeclaredClasses):
        return hints
    all_hints = list(hints)
    # Of two with one name only one can be meant by it: the first.
    found = RecordClasses.kinds_in(all_hints)
    declared = DeclaredClasses(_OURS)
    declared.update((class_name(kind), kind) for kind in found[::-1])
    for name, kind in saved_names(all_hints).items():
        # What is written from now on could not be told from what was written before.
        if declared.setdefault(name, kind) is not kind:
            raise InvalidArgumentError(
                "state_names",
                f"{name!r} is already the name of another class of the job, besides "
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
        return self._noted(self._put(_as_it_is(kind), reference))

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


# Each snapshot meets its classes anew.
@lru_cache(maxsize=1024)
def _as_it_is(kind: type) -> RecordClass:
    return RecordClass(kind)


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
        names = fields_of_class(kind) or ()
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


# Python objects as bytes: MessagePack, with the extensions of `aiomailbox.records`.


_PLAIN: Final = frozenset({bool, bytes, float, int, str, type(None)})


_encode = Encoder().encode


class ObjectCodec:
    """Encodes and decodes Python objects.

    It knows bool, int, float, complex, str, bytes, None, list, tuple, dict, set,
    frozenset, bytearray, datetime, date, time, timedelta, Decimal, UUID, enums,
    dataclasses, NamedTuples, `msgspec.Struct` and the values that Spark has classes of
    its own for; of all others it says what to do.

    Args:
        classes: Those that objects may have; new ones are noted there.

    Attributes:
        classes: The same.

    Example:
        >>> codec = ObjectCodec()
        >>> codec.decode(codec.encode({("a", 1): [2**80, None]}))
        {('a', 1): [1208925819614629174706176, None]}
    """

    def __init__(self, classes: StateClasses | None = None) -> None:
        self.classes: StateClasses = classes or StateClasses()
        self._types = PythonTypes(self.classes)
        self._prepare = self._types.prepare
        self._encode = _encode

    @cached_property
    def _decode(self) -> Callable[[bytes | memoryview], Any]:
        return Decoder(ext_hook=self._types.decode_extension).decode

    def encode(self, value: Any) -> bytes:
        """Return ``value`` as bytes.

        Raises:
            StateError: If it holds something of an unknown type, or is too deep.
        """
        kind = type(value)
        if kind in _PLAIN or (kind is list and _PLAIN.issuperset(map(type, value))):
            try:
                return self._encode(value)
            except (OverflowError, UnicodeEncodeError):
                # An int beyond 64 bits, or a text that is none: the long way.
                pass
        try:
            return self._encode(self._prepare(value))
        except (WrongTypeError, UnicodeEncodeError) as error:
            raise StateError(
                f"a {kind.__qualname__} cannot be kept: {error}"
            ) from error

    def encode_all(self, values: list[Any]) -> list[bytes]:
        """Return each of the values as bytes.

        Raises:
            StateError: If one holds something of an unknown type, or is too deep.
        """
        kinds = set(map(type, values))
        if kinds == {list}:
            kinds = set(map(type, chain.from_iterable(values)))
        if _PLAIN.issuperset(kinds):
            try:
                return map_all(self._encode, values)
            except (OverflowError, UnicodeEncodeError):
                pass
        return map_all(self.encode, values)

    def decode(self, data: bytes | memoryview) -> Any:
        """Return the value that was encoded.

        Raises:
            CorruptStreamError: If the bytes are none that `encode` has made, or hold a
                class that was not declared.
        """
        try:
            return self._decode(data)
        except CorruptStreamError:
            raise
        except Exception as error:
            # Whatever the parts of values raise that cannot be made of such bytes.
            raise CorruptStreamError(
                f"kept state cannot be read: {type(error).__name__}: {error}"
            ) from error


class StateSerializer(Protocol):
    """Turns contents into bytes and back.

    One of the user's is given to a descriptor where the function is defined, not when
    it opens: state is read back before.

    Attributes:
        id: Named in the metadata of snapshots, with the version of the format.
    """

    id: ClassVar[str]

    def encode(self, content: Any) -> bytes:
        """Return the content as bytes."""

    def decode(self, data: bytes) -> Any:
        """Return the content that was encoded."""


class ObjectSerializer:
    """Keeps builtins, dataclasses, structs, NamedTuples, enums and their like.

    Args:
        classes: The classes that objects may have; None for all that are written.

    Attributes:
        codec: Knows the classes met so far.

    Example:
        >>> serializer = ObjectSerializer()
        >>> serializer.decode(serializer.encode(("a", 1)))
        ('a', 1)
    """

    id: ClassVar[str] = "msgpack/2"

    def __init__(self, classes: StateClasses | None = None) -> None:
        self.codec: ObjectCodec = ObjectCodec(classes)
        self.encode: Callable[[Any], bytes] = self.codec.encode
        self.decode: Callable[[bytes | memoryview], Any] = self.codec.decode


class PickleSerializer:
    """Keeps whatever Python can pickle; code that writes the bytes can run code.

    State has it only where a descriptor says ``serializer=PickleSerializer()``, and
    the metadata of every snapshot names it.

    Example:
        >>> serializer = PickleSerializer()
        >>> serializer.decode(serializer.encode(range(3)))
        range(0, 3)
    """

    id: ClassVar[str] = "pickle/5"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PickleSerializer)

    def __hash__(self) -> int:
        return hash(self.id)

    def encode(self, content: Any) -> bytes:
        """Return the content, pickled.

        Raises:
            StateError: If Python cannot pickle it.
        """
        try:
            return pickle.dumps(content, protocol=5)
        except Exception as error:
            kind = type(content).__qualname__
            raise StateError(
                f"state of type {kind} cannot be pickled: {error}. Keep what it is made "
                "from in state, and make live objects, such as clients, in open()"
            ) from error

    def decode(self, data: bytes) -> Any:
        """Return the content that was pickled.

        Raises:
            StateError: If a class or function that it names is not there any more.
        """
        return _Unpickler(data, {}).load()


class _PickleReader(PickleSerializer):
    """Reads what was pickled when classes had other names.

    Args:
        declared: Classes by names that they had.
    """

    def __init__(self, declared: Mapping[str, type]) -> None:
        self._declared = declared

    def decode(self, data: bytes) -> Any:
        """Return the content; see `PickleSerializer.decode`."""
        return _Unpickler(data, self._declared).load()


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes | memoryview, declared: Mapping[str, type]) -> None:
        super().__init__(io.BytesIO(data))
        self._declared = declared

    def find_class(self, module: str, name: str) -> Any:
        declared = self._declared.get(f"{module}:{name}")
        if declared is not None:
            return declared
        try:
            return super().find_class(module, name)
        except (AttributeError, ImportError) as error:
            found = moved_in_library(module, name)
            if found is None:
                raise StateError(
                    f"pickled state names {module}:{name}, which is not there any more "
                    f"({error}). If it is a class that is in another module or has "
                    "another name now, say which: "
                    f"state_names={{'{module}:{name}': ...}}, beside restore_from=."
                ) from error
            return found


def encode_all(serializer: StateSerializer, contents: list[Any]) -> list[bytes]:
    """Return many contents as bytes, faster than one by one where that is possible."""
    if isinstance(serializer, ObjectSerializer):
        return serializer.codec.encode_all(contents)
    return [serializer.encode(content) for content in contents]


# By their ids, those of users that a descriptor has been made with.
_GIVEN: Final[dict[str, StateSerializer]] = {}


def give_serializer(serializer: StateSerializer) -> None:
    """Let state that a serializer of the user's wrote be read: a descriptor names it.

    Of two with one id the last counts.

    Raises:
        WrongTypeError: If it is no serializer, or has the id of one of ours.
    """
    given: Any = serializer
    identifier = getattr(given, "id", None)
    if isinstance(given, PickleSerializer | ObjectSerializer):
        return
    if not isinstance(identifier, str) or not identifier:
        raise WrongTypeError(
            "serializer",
            f"{given!r} has no id, which snapshots name it by",
            'Give its class an id with a version, such as id = "proto/1".',
        )
    if identifier in {ObjectSerializer.id, PickleSerializer.id}:
        raise WrongTypeError(
            "serializer",
            f"{identifier!r} is the id of another serializer",
            "Give it an id of its own.",
        )
    for method in ("encode", "decode"):
        if not callable(getattr(given, method, None)):
            raise WrongTypeError(
                "serializer",
                f"{given!r} has no method {method}",
                "See StateSerializer for the two it needs.",
            )
    _GIVEN[identifier] = serializer


def check_serializer(state: str, identifier: str) -> None:
    """Raise if nothing here can read what a serializer wrote.

    Raises:
        StateError: Naming the state.
    """
    ours = {ObjectSerializer.id, PickleSerializer.id}
    if identifier not in ours and identifier not in _GIVEN:
        raise StateError(
            f"state {state!r} was written by serializer {identifier!r}, and no "
            "descriptor here gives it. Name it in the state's descriptor where the "
            "function is defined, such as a class attribute: a descriptor that is "
            "created in open() comes too late."
        )


def serializer_of(identifier: str, objects: ObjectSerializer) -> StateSerializer:
    """Return the serializer that metadata names.

    Args:
        identifier: Its id, which is known here; see `check_serializer`.
        objects: The one to return for its own id; it remembers classes.
    """
    if identifier == ObjectSerializer.id:
        return objects
    if identifier == PickleSerializer.id:
        declared = objects.codec.classes.declared
        return _PickleReader(declared) if declared else PickleSerializer()
    return _GIVEN[identifier]
