"""Connected streams: two streams, possibly of different types, in one operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic

from aiomailbox.api.adapted import is_keyed
from aiomailbox.api.build import described_key, described_origins
from aiomailbox.api.definition import own_copy
from aiomailbox.api.misnamed import Unfinished
from aiomailbox.errors import WrongTypeError
from aiomailbox.graph.transformation import OperatorFactory, Origin
from aiomailbox.operators.core.user_code import (
    OnError,
    check_function,
    check_on_error,
    fail,
)
from aiomailbox.operators.functions.process import (
    BroadcastProcessFunction,
    BroadcastProcessOperator,
    CoFlatMapOperator,
    CoMapOperator,
    CoProcessFunction,
    CoProcessOperator,
    KeyedBroadcastProcessFunction,
    KeyedBroadcastProcessOperator,
    KeyedCoProcessFunction,
    KeyedCoProcessOperator,
    check_descriptors,
)
from aiomailbox.state.descriptors import MapStateDescriptor
from aiomailbox.typevars import A, B, U

if TYPE_CHECKING:
    from aiomailbox.api.stream import DataStream


class ConnectedStreams(Unfinished, Generic[A, B]):
    """Two streams that one operator reads, each with its own function.

    Made by `DataStream.connect`. If both are keyed, their keys must be of one type, and
    both inputs share the state and timers of a key.

    Concept:
        Flink, ``ConnectedStreams``.
    """

    _called = "connected"
    _left = "map(first, second), flat_map(...) or process(...), which give a stream"

    def __init__(
        self,
        derive: Callable[..., DataStream[Any]],
        others: list[Origin],
        keys: tuple[Callable[[A], Any], Callable[[B], Any]] | None,
    ) -> None:
        self._derive = derive
        self._others = others
        self._keys = keys

    def __repr__(self) -> str:
        keys = " and ".join(described_key(key) for key in self._keys or ())
        by = f" by {keys}" if keys else ""
        return f"<ConnectedStreams with {described_origins(self._others)}{by}>"

    def map(
        self,
        first: Callable[[A], U],
        second: Callable[[B], U],
        *,
        on_error: OnError = fail,
    ) -> DataStream[U]:
        """Replace each record by the result of its stream's function."""
        return self._of_both("co-map", CoMapOperator, first, second, on_error)

    def flat_map(
        self,
        first: Callable[[A], Iterable[U]],
        second: Callable[[B], Iterable[U]],
        *,
        on_error: OnError = fail,
    ) -> DataStream[U]:
        """Replace the records of each stream by the items its function returns."""
        return self._of_both("co-flat-map", CoFlatMapOperator, first, second, on_error)

    def _of_both(
        self,
        name: str,
        kind: type[CoMapOperator],
        first: Callable[..., Any],
        second: Callable[..., Any],
        on_error: OnError,
    ) -> DataStream[Any]:
        check_function(first, "first", arity=1)
        check_function(second, "second", arity=1)
        factory = partial(kind, first, second, on_error=check_on_error(on_error))
        return self._connected(name, factory, (first, second))

    def process(
        self,
        function: CoProcessFunction[A, B, U] | KeyedCoProcessFunction[Any, A, B, U],
        *,
        on_error: OnError = fail,
    ) -> DataStream[U]:
        """Pass the records of both streams to one function object.

        Args:
            function: The object.
            on_error: How to handle a record for which it raises.

        Raises:
            UsageError: If a keyed function is used on a stream without a key.
        """
        if isinstance(
            function, BroadcastProcessFunction | KeyedBroadcastProcessFunction
        ):
            raise WrongTypeError(
                "function",
                f"{type(function).__qualname__} is for rules, and the second stream has "
                "no broadcast state",
                "Write stream.connect(rules.broadcast(descriptor)).",
            )
        keyed = is_keyed(
            function,
            CoProcessFunction,
            KeyedCoProcessFunction,
            has_keys=self._keys is not None,
            needs="keys on both streams: a.key_by(...).connect(b.key_by(...))",
        )
        kind = KeyedCoProcessOperator if keyed else CoProcessOperator
        return self._connected(
            "keyed co-process" if keyed else "co-process",
            partial(
                own_copy,
                kind,
                *((self._keys or ()) if keyed else ()),
                function,
                on_error=check_on_error(on_error),
            ),
            (function.process_element1, function.process_element2),
            is_keyed=keyed,
        )

    def _connected(
        self,
        name: str,
        factory: OperatorFactory,
        functions: tuple[Callable[..., Any], ...],
        *,
        is_keyed: bool = False,
    ) -> DataStream[Any]:
        return self._derive(
            self._others, name, factory, functions=functions, is_keyed=is_keyed
        )


# A stream that is broadcast to every subtask, with state that every subtask copies.


class BroadcastStream(Unfinished, Generic[B]):
    """A stream that is broadcast to every subtask, to be connected with another one.

    Made by `DataStream.broadcast` with descriptors of broadcast state.

    Concept:
        Flink, ``BroadcastStream``.
    """

    _called = "stream"
    _left = "connect(broadcast).process(function), with the other stream"

    def __init__(
        self, stream: DataStream[B], descriptors: Sequence[MapStateDescriptor]
    ) -> None:
        self._stream = stream
        self._descriptors: Sequence[MapStateDescriptor] = check_descriptors(descriptors)

    def __repr__(self) -> str:
        states = ", ".join(repr(one.name) for one in self._descriptors)
        return f"<BroadcastStream of {self._stream!r} into {states}>"


class BroadcastConnectedStream(Unfinished, Generic[A, B]):
    """A stream and a broadcast one, to be processed together.

    Made by `DataStream.connect` with a `BroadcastStream`.

    Concept:
        Flink, ``BroadcastConnectedStream``.
    """

    _called = "connected"
    _left = "process(function), which gives a stream"

    def __init__(
        self,
        derive: Callable[..., DataStream[Any]],
        other: BroadcastStream[B],
        key: Callable[[Any], Any] | None,
    ) -> None:
        self._derive = derive
        self._other = other
        self._key = key

    def __repr__(self) -> str:
        key = "" if self._key is None else f" by {described_key(self._key)}"
        return f"<BroadcastConnectedStream with {self._other!r}{key}>"

    def process(
        self,
        function: BroadcastProcessFunction[A, B, U]
        | KeyedBroadcastProcessFunction[Any, A, B, U],
        *,
        on_error: OnError = fail,
    ) -> DataStream[U]:
        """Pass the records of both streams to one function object.

        Args:
            function: A `KeyedBroadcastProcessFunction` on a keyed stream, else a
                `BroadcastProcessFunction`.
            on_error: How to handle a record for which it raises.

        Raises:
            UsageError: If a keyed function is used on a stream without a key.
            WrongTypeError: If ``function`` is neither of these.

        Example:
            >>> import aiomailbox as am
            >>> limits = am.MapStateDescriptor("limits", str, int)
            >>> class Check(am.BroadcastProcessFunction):
            ...     def process_element(self, value, context, out):
            ...         limit = context.get_broadcast_state(limits).get("all", 10)
            ...         out.collect((value, value <= limit))
            ...
            ...     def process_broadcast_element(self, value, context, out):
            ...         context.get_broadcast_state(limits).put("all", value)
            >>> env = am.StreamExecutionEnvironment()
            >>> rules = env.from_collection([]).broadcast(limits)
            >>> checked = env.from_collection([5, 15]).connect(rules).process(Check())
            >>> am.run(checked.collect())
            [(5, True), (15, False)]
        """
        keyed = is_keyed(
            function,
            BroadcastProcessFunction,
            KeyedBroadcastProcessFunction,
            has_keys=self._key is not None,
            needs="a key: stream.key_by(...).connect(rules)",
        )
        factory = partial(
            own_copy,
            KeyedBroadcastProcessOperator if keyed else BroadcastProcessOperator,
            *((self._key,) if keyed else ()),
            function,
            self._other._descriptors,
            on_error=on_error,
        )
        return self._derive(
            self._other._stream._origins,
            "keyed broadcast process" if keyed else "broadcast process",
            factory,
            functions=(
                function.process_element,
                function.process_broadcast_element,
            ),
            is_keyed=keyed,
        )
