"""A stream that is broadcast to every subtask, with state that every subtask copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from aiomailbox.api.build import described_key, function_info, own_copy
from aiomailbox.api.misnamed import Unfinished
from aiomailbox.errors import UsageError, WrongTypeError
from aiomailbox.graph.transformation import OperatorFactory
from aiomailbox.operators.core.failures import OnError, fail
from aiomailbox.operators.functions.broadcast import (
    BroadcastProcessFunction,
    BroadcastProcessOperator,
    KeyedBroadcastProcessFunction,
    KeyedBroadcastProcessOperator,
    check_descriptors,
)
from aiomailbox.state.descriptors import MapStateDescriptor

if TYPE_CHECKING:
    # A stream leads to this class, and this class to a stream: only in their types.
    from aiomailbox.api.stream import DataStream

A = TypeVar("A")
B = TypeVar("B")
U = TypeVar("U")


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
            on_error: What to do with a record for which it raises.

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
        keyed = isinstance(function, KeyedBroadcastProcessFunction)
        if not keyed and not isinstance(function, BroadcastProcessFunction):
            raise WrongTypeError(
                "function",
                f"{function!r} is not a BroadcastProcessFunction",
                "Derive a class from am.BroadcastProcessFunction or "
                "am.KeyedBroadcastProcessFunction.",
            )
        factory = (self._keyed_factory if keyed else self._factory)(function, on_error)
        factory()
        return self._derive(
            self._other._stream._origins,
            "keyed broadcast process" if keyed else "broadcast process",
            factory,
            functions=(
                function_info(function.process_element),
                function_info(function.process_broadcast_element),
            ),
            is_keyed=keyed,
        )

    def _factory(self, function: Any, on_error: OnError) -> OperatorFactory:
        return partial(
            own_copy,
            BroadcastProcessOperator,
            function,
            self._other._descriptors,
            on_error=on_error,
        )

    def _keyed_factory(self, function: Any, on_error: OnError) -> OperatorFactory:
        if self._key is None:
            message = (
                "a KeyedBroadcastProcessFunction needs a key: "
                "stream.key_by(...).connect(rules)"
            )
            raise UsageError(message)
        return partial(
            own_copy,
            KeyedBroadcastProcessOperator,
            self._key,
            function,
            self._other._descriptors,
            on_error=on_error,
        )
