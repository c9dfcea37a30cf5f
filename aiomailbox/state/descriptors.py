"""State descriptors: the names and types of an operator's state."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from aiomailbox.durations import pipeline_ms
from aiomailbox.errors import InvalidArgumentError, WrongTypeError
from aiomailbox.signatures import Suggesting, accepts
from aiomailbox.state.accumulators import (
    Convert,
    accumulator_schema,
    refuse_shared,
)
from aiomailbox.state.schema import StateSchema, class_schemas, type_options
from aiomailbox.state.serializers import (
    ObjectSerializer,
    StateSerializer,
    give_serializer,
    kept_in_state,
)
from aiomailbox.typevars import AccT, InT, InT_contra, MapKeyT, OutT, OutT_co, ValueT

# The functions of reducing and aggregating state.


ReduceFunction = Callable[[Any, Any], Any]


class AggregateFunction(Protocol[InT_contra, AccT, OutT_co]):
    """Folds values into an accumulator and reads a result from it.

    `add` and `merge` may change and return the accumulator they were given, or return
    another one; only their result is kept.

    Its type variables stand for the values, the accumulator and the result.

    A class may have an ``accumulator_kind``, a str: under it, in place of the name of the
    class, savepoints find its accumulators again. Give it another one when they change.

    Concept:
        Flink, ``AggregateFunction``.

    Example:
        >>> class Mean:
        ...     def create_accumulator(self):
        ...         return (0, 0.0)
        ...
        ...     def add(self, value, accumulator):
        ...         count, total = accumulator
        ...         return (count + 1, total + value)
        ...
        ...     def get_result(self, accumulator):
        ...         count, total = accumulator
        ...         return total / count
        ...
        ...     def merge(self, first, second):
        ...         return (first[0] + second[0], first[1] + second[1])
        >>> mean = Mean()
        >>> mean.get_result(mean.add(4, mean.add(2, mean.create_accumulator())))
        3.0
    """

    def create_accumulator(self) -> AccT:
        """Return a new, empty accumulator."""

    def add(self, value: InT_contra, accumulator: AccT, /) -> AccT:
        """Return the accumulator after adding ``value``."""

    def get_result(self, accumulator: AccT, /) -> OutT_co:
        """Return the result; the accumulator must not change."""

    def merge(self, first: AccT, second: AccT, /) -> AccT:
        """Return one accumulator with the contents of both."""


@kept_in_state("Void")
class Void(Enum):
    """The namespace of state that has none; its only member is `VOID`."""

    VOID = "void"


VOID = Void.VOID


KindT = TypeVar("KindT")


# No type has such a type: a default may have got into its place.
_VALUES: Final = (bool, int, float, bytes, list, tuple, dict, set)


# What the contents of a kind of state consist of, where it is not a value.
_PARTS = {"list": "element", "aggregating": "accumulator"}


class TtlUpdate(Enum):
    """Which accesses refresh state with a time to live."""

    ON_CREATE_AND_WRITE = "on_create_and_write"
    ON_READ_AND_WRITE = "on_read_and_write"


class StateVisibility(Enum):
    """Whether a value that has expired may still be read."""

    NEVER_RETURN_EXPIRED = "never_return_expired"
    RETURN_EXPIRED_IF_NOT_CLEANED_UP = "return_expired_if_not_cleaned_up"


@dataclass(frozen=True)
class StateTtlConfig(metaclass=Suggesting):
    """How long state lives after its last refresh, in processing time.

    Args:
        ttl: A timedelta, more than zero.
        update: Which accesses refresh it.
        visibility: Whether an expired value may be read; if so, it is read once, and
            can be until it has been expired for ``ttl``. Then it is cleaned up.

    Raises:
        InvalidArgumentError: If ``ttl`` is zero or negative.

    Concept:
        Flink, ``StateTtlConfig``.

    Example:
        >>> StateTtlConfig(ttl=timedelta(seconds=60)).ttl_ms
        60000
    """

    _meant: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("new_builder", "builder", "of"), " write am.StateTtlConfig(ttl=am.minutes(5))"
    )

    ttl: timedelta
    update: TtlUpdate = TtlUpdate.ON_CREATE_AND_WRITE
    visibility: StateVisibility = StateVisibility.NEVER_RETURN_EXPIRED
    ttl_ms: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        ttl_ms = pipeline_ms(self.ttl, "ttl")
        if ttl_ms == 0:
            raise InvalidArgumentError(
                "ttl",
                "it is 0, so that state would expire at once",
                "Use a millisecond or more.",
            )
        object.__setattr__(self, "ttl_ms", ttl_ms)


class _Kept(TypedDict, total=False):
    """The arguments that every descriptor takes, by name."""

    ttl: StateTtlConfig | None
    serializer: StateSerializer | None


@dataclass(frozen=True)
class StateDescriptor:
    """The base of all descriptors: a name, and optionally a time to live.

    Attributes:
        name: The state's name, unique within its operator.
        ttl: The time to live, or None when the state never expires.
        serializer: Converts contents to bytes; None for `ObjectSerializer`.
    """

    kind: ClassVar[str]

    name: str
    ttl: StateTtlConfig | None = field(default=None, kw_only=True)
    serializer: StateSerializer | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        name: Any = self.name
        if not isinstance(name, str) or not name:
            raise InvalidArgumentError(
                "name",
                f"state cannot be called {self.name!r}",
                "Give it a non-empty string, unique within its operator.",
            )
        for part in ("type_", "key_type", "value_type"):
            given = getattr(self, part, None)
            if isinstance(given, _VALUES):
                kind = type(given).__name__
                raise WrongTypeError(
                    part,
                    f"{given!r} is a value and not a type",
                    f"Write a type, such as {kind}"
                    f"{'[str]' if isinstance(given, list) else ''}.",
                )
        ttl: Any = self.ttl_config
        if ttl is not None and not isinstance(ttl, StateTtlConfig):
            raise WrongTypeError(
                "ttl",
                f"{ttl!r} is not a StateTtlConfig",
                "Write ttl=am.StateTtlConfig(am.hours(1)).",
            )
        default = getattr(self, "default", None)
        if isinstance(default, type):
            raise WrongTypeError(
                "default",
                f"{default.__name__} is a class and not a value",
                f"Write default={default.__name__}(): each key gets a copy of it.",
            )
        self._give_serializer()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore from a pickle, as if it were made in the process that unpickles it."""
        self.__dict__.update(state)
        self._give_serializer()

    def _give_serializer(self) -> None:
        if self.serializer is not None:
            give_serializer(self.serializer)

    @property
    def ttl_config(self) -> StateTtlConfig | None:
        """The same as ``ttl``, by its name in 0.1."""
        return self.ttl

    @property
    def serializer_id(self) -> str:
        """The id of the serializer, as recorded in snapshots."""
        return (self.serializer or ObjectSerializer).id

    def other_kind(self, kind: str) -> str:
        """Return what to say where a snapshot has state of another kind of this name."""
        return (
            f"state {self.name!r} is {kind} state in the snapshot, and the program uses "
            f"it as {self.kind} state. Use it as it was, or give it another name."
        )

    @property
    def accumulates(self) -> AggregateFunction | None:
        """The aggregate function whose accumulators are kept; None if none are."""
        return None

    def converted(self, content: Any, convert: Convert) -> Any:
        """Return a content with its accumulators converted, None if nothing is left."""
        if self.ttl is None:
            return convert(content)
        accumulator, touched = content
        made = convert(accumulator)
        return None if made is None else (made, touched)

    @property
    def schema(self) -> StateSchema:
        """The types of the contents that the descriptor declares."""
        part = _PARTS.get(self.kind, "value")
        given = {"key": getattr(self, "key_type", None)}
        given[part] = getattr(self, "type_", None) or getattr(self, "value_type", None)
        parts = {part: type_options(kind) for part, kind in given.items()}
        return StateSchema(
            {part: options for part, options in parts.items() if options},
            class_schemas(given.values()),
            None if self.accumulates is None else accumulator_schema(self.accumulates),
        )


@dataclass(frozen=True)
class ValueStateDescriptor(StateDescriptor, Generic[ValueT]):
    """Describes one value per key.

    Args:
        name: The state's name, unique within its operator.
        type_: The value's type, for serializers; None to take it from the values.
        default: The result of `ValueState.value` for a key without a value: a copy,
            which belongs to the key once it is passed to `ValueState.update`.
        ttl: The time to live of a value; None for no limit.
        serializer: Converts contents to bytes; None for `ObjectSerializer`.

    Example:
        >>> ValueStateDescriptor("count", int, default=0).default
        0
    """

    kind: ClassVar[str] = "value"

    type_: Any = None
    default: ValueT | None = None

    # What the value is follows from its type, and None is one without a default.
    if TYPE_CHECKING:

        @overload
        def __init__(
            self, name: str, type_: type[ValueT], default: ValueT, **kept: Unpack[_Kept]
        ) -> None: ...

        @overload
        def __init__(
            self: ValueStateDescriptor[KindT | None],
            name: str,
            type_: type[KindT],
            **kept: Unpack[_Kept],
        ) -> None: ...

        @overload
        def __init__(
            self,
            name: str,
            type_: None = None,
            *,
            default: ValueT,
            **kept: Unpack[_Kept],
        ) -> None: ...

        @overload
        def __init__(
            self,
            name: str,
            type_: Any = None,
            default: Any = None,
            **kept: Unpack[_Kept],
        ) -> None: ...

        def __init__(self, *args: Any, **named: Any) -> None: ...


@dataclass(frozen=True)
class ListStateDescriptor(StateDescriptor, Generic[ValueT]):
    """Describes a list of values per key.

    Args:
        name: The state's name, unique within its operator.
        type_: The elements' type, for serializers.
        ttl: The time to live of each element; None for no limit.
        serializer: Converts contents to bytes; None for `ObjectSerializer`.

    Example:
        >>> ListStateDescriptor("visits", str).name
        'visits'
    """

    kind: ClassVar[str] = "list"

    type_: Any = None

    if TYPE_CHECKING:

        @overload
        def __init__(
            self, name: str, type_: type[ValueT], **kept: Unpack[_Kept]
        ) -> None: ...

        @overload
        def __init__(
            self, name: str, type_: Any = None, **kept: Unpack[_Kept]
        ) -> None: ...

        def __init__(self, *args: Any, **named: Any) -> None: ...


@dataclass(frozen=True)
class MapStateDescriptor(StateDescriptor, Generic[MapKeyT, ValueT]):
    """Describes a map per key.

    Args:
        name: The state's name, unique within its operator.
        key_type: The map's keys' type, for serializers.
        value_type: The map's values' type, for serializers.
        ttl: The time to live of each entry; None for no limit.
        serializer: Converts contents to bytes; None for `ObjectSerializer`.

    Example:
        >>> MapStateDescriptor("prices", str, float).value_type
        <class 'float'>
    """

    kind: ClassVar[str] = "map"

    key_type: Any = None
    value_type: Any = None

    if TYPE_CHECKING:

        @overload
        def __init__(
            self,
            name: str,
            key_type: type[MapKeyT],
            value_type: type[ValueT],
            **kept: Unpack[_Kept],
        ) -> None: ...

        @overload
        def __init__(
            self,
            name: str,
            key_type: Any = None,
            value_type: Any = None,
            **kept: Unpack[_Kept],
        ) -> None: ...

        def __init__(self, *args: Any, **named: Any) -> None: ...


@dataclass(frozen=True)
class ReducingStateDescriptor(StateDescriptor, Generic[ValueT]):
    """Describes one value per key into which every added value is reduced.

    Args:
        name: The state's name, unique within its operator.
        reduce_function: ``(old, added) -> new``; must be associative.
        type_: The value's type, for serializers.
        ttl: The time to live of the value; None for no limit.
        serializer: Converts contents to bytes; None for `ObjectSerializer`.

    Example:
        >>> ReducingStateDescriptor("highest", max).reduce_function(3, 5)
        5
    """

    kind: ClassVar[str] = "reducing"

    reduce_function: Callable[[ValueT, ValueT], ValueT]
    type_: Any = None

    if TYPE_CHECKING:

        @overload
        def __init__(
            self,
            name: str,
            reduce_function: Callable[[ValueT, ValueT], ValueT],
            type_: type[ValueT],
            **kept: Unpack[_Kept],
        ) -> None: ...

        @overload
        def __init__(
            self,
            name: str,
            reduce_function: Callable[[ValueT, ValueT], ValueT],
            type_: Any = None,
            **kept: Unpack[_Kept],
        ) -> None: ...

        def __init__(self, *args: Any, **named: Any) -> None: ...

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.reduce_function):
            raise WrongTypeError(
                "reduce_function",
                f"{self.reduce_function!r} cannot be called",
                "Give it a function (old, added) -> new.",
            )
        if not accepts(self.reduce_function, 2):
            raise WrongTypeError(
                "reduce_function",
                f"{self.reduce_function!r} cannot be called with two values",
                f"Its signature is {inspect.signature(self.reduce_function)}.",
            )


@dataclass(frozen=True)
class AggregatingStateDescriptor(StateDescriptor, Generic[InT, OutT]):
    """Describes one accumulator per key.

    Args:
        name: The state's name, unique within its operator.
        aggregate_function: Creates, updates, reads and merges accumulators.
        type_: The accumulator's type, for serializers.
        ttl: The time to live of the accumulator; None for no limit.
        serializer: Converts contents to bytes; None for `ObjectSerializer`.

    Raises:
        WrongTypeError: If ``aggregate_function`` lacks a method, or gives one accumulator
            to all keys.
    """

    kind: ClassVar[str] = "aggregating"

    aggregate_function: AggregateFunction[InT, Any, OutT]
    type_: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for method in ("create_accumulator", "add", "get_result", "merge"):
            if not callable(getattr(self.aggregate_function, method, None)):
                raise WrongTypeError(
                    "aggregate_function",
                    f"{self.aggregate_function!r} has no method {method}",
                    "See AggregateFunction for the four it needs.",
                )
        refuse_shared(self.aggregate_function, "aggregate_function")

    @property
    def accumulates(self) -> AggregateFunction:
        return self.aggregate_function


@dataclass(frozen=True)
class AccumulatorDescriptor(StateDescriptor):
    """Describes accumulators that an operator of ours keeps as values.

    Args:
        name: The state's name, unique within its operator.
        aggregate: The aggregate function.
        convert_content: Converts the accumulators in a content, as `converted`; None if
            a content is one.
    """

    kind: ClassVar[str] = "value"

    aggregate: Any
    convert_content: Callable[[Any, Convert], Any] | None = None

    @property
    def accumulates(self) -> AggregateFunction:
        return self.aggregate

    def converted(self, content: Any, convert: Convert) -> Any:
        if self.convert_content is None:
            return convert(content)
        return self.convert_content(content, convert)
