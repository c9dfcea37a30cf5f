"""The user's keyed async function: its form, and how it is called."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Generic

from aiomailbox.errors import WrongTypeError
from aiomailbox.operators.async_state.changes import (
    CURRENT_ROW,
    RowChanges,
    WatchedRowChanges,
)
from aiomailbox.operators.async_state.context import (
    AsyncOpenContext,
    KeyedAsyncContext,
)
from aiomailbox.operators.async_state.event import KeyedEvent
from aiomailbox.operators.async_state.row_state import StateHandles
from aiomailbox.operators.core.callables import (
    CallableKind,
    callable_kind,
    check_function,
    collected,
    describe,
)
from aiomailbox.operators.core.collector import Collector
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.contract import Pending
from aiomailbox.operators.core.resources import FunctionLife
from aiomailbox.operators.functions.calls import (
    check_function_object,
    check_process_method,
)
from aiomailbox.operators.functions.function_state import (
    check_state_names,
    has_on_timer,
    inherited_on_timer,
)
from aiomailbox.typevars import InT, KeyT, OutT

__all__ = ["KeyedAsyncFunction", "KeyedAsyncProcessFunction"]


class KeyedAsyncProcessFunction(Generic[KeyT, InT, OutT]):
    """An asynchronous function with state and timers per key; subclass it.

    While a row of a key is being processed no other row and no timer of that key is;
    rows of other keys are. What the function emits, keeps and plans takes effect
    when it has returned, all at once, or not at all if it raises.

    State objects may be made in `open`, from ``context.keyed_state``, and kept.

    Concept:
        Flink, ``KeyedProcessFunction`` on asynchronous state.

    Example:
        >>> import asyncio
        >>> import aiomailbox as am
        >>> class Count(am.KeyedAsyncProcessFunction):
        ...     def open(self, context):
        ...         self.seen = context.keyed_state.get_value(
        ...             am.ValueStateDescriptor("seen", int, default=0)
        ...         )
        ...
        ...     async def process_element(self, value, context, out):
        ...         seen = self.seen.value() + 1
        ...         await asyncio.sleep(0.001)  # ask a server
        ...         self.seen.update(seen)
        ...         out.collect((value, seen))
        >>> env = am.StreamExecutionEnvironment()
        >>> words = env.from_collection(["a", "b", "a"])
        >>> counts = words.key_by(lambda word: word).process_async(Count())
        >>> sorted(am.run(counts.collect()))
        [('a', 1), ('a', 2), ('b', 1)]
    """

    def open(self, context: RuntimeContext, /) -> Any:
        """Acquire what the function needs, once a subtask; may be ``async def``.

        Args:
            context: The operator's context.

        Returns:
            None, or a context manager, e.g. an HTTP client: it is entered now and left
            at the end, and what it gives is ``context.resource`` of every call.
        """
        return None

    @abstractmethod
    async def process_element(
        self, value: InT, context: KeyedAsyncContext[KeyT], out: Collector[OutT], /
    ) -> None:
        """Process one record; what it leads to goes to ``out.collect(value)``."""
        raise WrongTypeError(
            "function", f"{type(self).__qualname__} defines no process_element"
        )

    @inherited_on_timer
    async def on_timer(
        self,
        timestamp: int,
        context: KeyedAsyncContext[KeyT],
        out: Collector[OutT],
        /,
    ) -> None:
        """React to a timer of the key that is due; by default nothing happens."""

    def close(self) -> Pending:
        """Release resources; called also after a failure."""
        return None


class KeyedAsyncFunction:
    """Calls a function object, or a plain function, with rows and timers.

    Args:
        function: An instance with ``process_element`` and maybe ``on_timer``; or an
            ``async def`` function ``(value, context, out)``.

    Raises:
        WrongTypeError: If it is something else.
    """

    def __init__(self, function: Any) -> None:
        self.given = function
        check_state_names(function)
        self.life: FunctionLife = FunctionLife(function)
        self._on_timer: Callable[..., Any] | None = None
        self.refusal: str = ""
        if inspect.isclass(function):
            raise WrongTypeError(
                "function",
                f"{function.__qualname__} is a class",
                f"Give an instance: {function.__qualname__}().",
            )
        if hasattr(function, "process_element"):
            self._process = check_process_method(function, "process_element")
            check_function_object(function)
            if has_on_timer(function):
                self._on_timer = check_process_method(function, "on_timer")
        else:
            self._process = _check_plain(function)
        if self._on_timer is None:
            self.refusal = (
                f"{describe(self._process)} has no on_timer. "
                "Derive a class from am.KeyedAsyncProcessFunction and define it."
            )

    def open(self, context: RuntimeContext, handles: StateHandles) -> Pending:
        """Open the function.

        Args:
            context: The operator's context.
            handles: The operator's state.
        """
        self._context = context
        self._handles = handles
        return self.life.open(AsyncOpenContext(context, handles))

    async def call(self, event: KeyedEvent) -> RowChanges:
        """Process a row or a timer; return what came of it, to be applied."""
        check = self._context.mutations
        changes = (
            RowChanges(event, self._handles)
            if check is None
            else WatchedRowChanges(event, self._handles, check)
        )
        context = KeyedAsyncContext(
            event, changes, self._context, self.life.resource, self.refusal
        )
        CURRENT_ROW.set(changes)
        try:
            call = self._process if event.domain is None else self._on_timer
            if call is not None:
                # A timer without a handler has no call.
                given = event.value if event.domain is None else event.timestamp
                pending: Any = call(given, context, changes)  # type: ignore[arg-type]
                if pending is not None:
                    await collected(call, pending)
        finally:
            changes.ended = True
        if isinstance(changes, WatchedRowChanges):
            changes.compare()
        return changes


def _check_plain(function: Any) -> Callable[..., Any]:
    checked = check_function(function, "function", arity=3)
    kind = callable_kind(checked)
    if kind is CallableKind.ASYNC:
        return checked
    if kind is CallableKind.ASYNC_GENERATOR:
        raise WrongTypeError(
            "function",
            f"{describe(checked)} is an asynchronous generator, which is never "
            "iterated",
            "Write out.collect(value) where it says yield value.",
        )
    raise WrongTypeError(
        "function",
        f"{describe(checked)} is not asynchronous",
        "Write async def, or use process() with a KeyedProcessFunction.",
    )
