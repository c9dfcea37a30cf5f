"""Connected streams: two streams, possibly of different types, in one operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from aiomailbox.api.build import (
    described_key,
    described_origins,
    function_info,
    own_copy,
)
from aiomailbox.api.misnamed import Unfinished
from aiomailbox.errors import UsageError, WrongTypeError
from aiomailbox.graph.transformation import OperatorFactory, Origin
from aiomailbox.operators.core.failures import OnError, check_on_error, fail
from aiomailbox.operators.core.user_code import check_function
from aiomailbox.operators.functions.process import (
    CoFlatMapOperator,
    CoMapOperator,
    CoProcessFunction,
    CoProcessOperator,
    KeyedCoProcessFunction,
    KeyedCoProcessOperator,
)

if TYPE_CHECKING:
    # A stream leads to this class, and this class to a stream: only in their types.
    from aiomailbox.api.stream import DataStream

A = TypeVar("A")
B = TypeVar("B")
U = TypeVar("U")


class ConnectedStreams(Unfinished, Generic[A, B]):
    """Two streams that one operator reads, each with a function of its own.

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
        """Replace the records of each stream by what its function returns."""
        check_function(first, "first", arity=1)
        check_function(second, "second", arity=1)
        factory = partial(
            CoMapOperator, first, second, on_error=check_on_error(on_error)
        )
        return self._connected("co-map", factory, (first, second))

    def flat_map(
        self,
        first: Callable[[A], Iterable[U]],
        second: Callable[[B], Iterable[U]],
        *,
        on_error: OnError = fail,
    ) -> DataStream[U]:
        """Replace the records of each stream by the items its function returns."""
        check_function(first, "first", arity=1)
        check_function(second, "second", arity=1)
        factory = partial(
            CoFlatMapOperator, first, second, on_error=check_on_error(on_error)
        )
        return self._connected("co-flat-map", factory, (first, second))

    def process(
        self,
        function: CoProcessFunction[A, B, U] | KeyedCoProcessFunction[Any, A, B, U],
        *,
        on_error: OnError = fail,
    ) -> DataStream[U]:
        """Pass the records of both streams to one function object.

        Args:
            function: The object.
            on_error: What to do with a record for which it raises.

        Raises:
            UsageError: If a keyed function is used on a stream without a key.
        """
        on_error = check_on_error(on_error)
        if isinstance(function, KeyedCoProcessFunction):
            return self._keyed_process(function, on_error)
        if not isinstance(function, CoProcessFunction):
            raise WrongTypeError(
                "function",
                f"{function!r} is not a CoProcessFunction",
                "Derive a class from am.CoProcessFunction or am.KeyedCoProcessFunction.",
            )
        return self._connected(
            "co-process",
            partial(own_copy, CoProcessOperator, function, on_error=on_error),
            (function.process_element1, function.process_element2),
        )

    def _keyed_process(
        self, function: KeyedCoProcessFunction, on_error: OnError
    ) -> DataStream[Any]:
        if self._keys is None:
            message = (
                "a KeyedCoProcessFunction needs keys on both streams: "
                "a.key_by(...).connect(b.key_by(...))"
            )
            raise UsageError(message)
        return self._connected(
            "keyed co-process",
            partial(
                own_copy,
                KeyedCoProcessOperator,
                *self._keys,
                function,
                on_error=on_error,
            ),
            (function.process_element1, function.process_element2),
            is_keyed=True,
        )

    def _connected(
        self,
        name: str,
        factory: OperatorFactory,
        functions: tuple[Callable[..., Any], ...],
        *,
        is_keyed: bool = False,
    ) -> DataStream[Any]:
        factory()
        infos = tuple(function_info(function) for function in functions)
        return self._derive(
            self._others, name, factory, functions=infos, is_keyed=is_keyed
        )
