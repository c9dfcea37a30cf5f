"""Functions that process the contents of a window at once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Generic

from aiomailbox.errors import (
    BadResultError,
    OverdraftCeilingError,
    StateError,
    WrongTypeError,
)
from aiomailbox.logs import library_log
from aiomailbox.operators.core.collector import Collector
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.failures import Context
from aiomailbox.operators.core.operator import Pending
from aiomailbox.operators.core.user_code import (
    CallableKind,
    callable_kind,
    check_function,
    describe,
    is_one_record,
    looks_like_record,
    taken_apart,
    warn_of_tuple,
)
from aiomailbox.operators.functions.base import (
    check_function_object,
    check_process_method,
    check_state_names,
    without_runtime_context,
)
from aiomailbox.state.descriptors import (
    StateDescriptor,
)
from aiomailbox.state.store import (
    STATE_OF_ELSEWHERE,
    StateGetters,
)
from aiomailbox.state.table_store import KeyedStateStore
from aiomailbox.typevars import InT, KeyT, OutT, WindowT
from aiomailbox.windowing.time_window import Window


class WindowState(StateGetters):
    """Keyed state that belongs to one window.

    Args:
        store: The operator's keyed state, whose current key is the window's.
        window: The window.
    """

    __slots__ = ("_store", "_window")

    def __init__(self, store: KeyedStateStore, window: Window) -> None:
        self._store = store
        self._window = window

    def _state(self, descriptor: StateDescriptor, kind: str) -> Any:
        return getattr(self._store, f"get_{kind}")(descriptor, self._window)


class ProcessWindowContext(Context, Generic[WindowT]):
    """The context of a window function: the window that fires, time and state.

    Attributes:
        window: The window.
        current_watermark: The watermark.
        resource: The value of the context manager that ``open`` returned, or None.

    Concept:
        Flink, ``ProcessWindowFunction.Context``.
    """

    __slots__ = (
        "_collector",
        "_context",
        "_merging",
        "current_watermark",
        "resource",
        "window",
    )

    _meant: ClassVar[Mapping[str, str]] = {
        "state": "global_state",
        "keyed_state": "global_state",
        "timestamp": "window.max_timestamp",
        **{
            name: f"global_state.{method}"
            for name, method in STATE_OF_ELSEWHERE.items()
        },
    }

    def __init__(
        self, context: RuntimeContext, collector: Collector, *, merging: bool
    ) -> None:
        self._context = context
        self._collector = collector
        self._merging = merging
        self.resource: Any = None
        self.window: WindowT
        self.current_watermark: int

    def current_processing_time(self) -> int:
        """Return wall-clock time, milliseconds since the epoch."""
        return self._context.processing_time.current_processing_time()

    def own(self, pending: Awaitable[None]) -> Awaitable[None]:
        """Return what awaits a call, whose tasks alone may use the window's key."""
        return self._context.keyed_state.current.own(pending)

    @property
    def window_state(self) -> WindowState:
        """State of this key and window; clear it in `ProcessWindowFunction.clear`.

        Raises:
            StateError: If windows merge: the state could not be assigned to a window then.
        """
        if self._merging:
            raise StateError(
                f"operator {self._context.operator_name!r} has windows that merge, and "
                "they have no state of their own. Use global_state."
            )
        window: Any = self.window
        return WindowState(self._context.keyed_state, window)

    @property
    def global_state(self) -> KeyedStateStore:
        """State of this key, shared by all its windows."""
        return self._context.keyed_state


@without_runtime_context
class ProcessWindowFunction(Generic[KeyT, InT, OutT, WindowT]):
    """A function of a window's key and elements; subclass it.

    Each method may be ``async def``. For a type checker,
    ``ProcessWindowFunction[Key, In, Out, Window]`` declares the types; the key comes
    first, as in `KeyedProcessFunction`.

    Concept:
        Flink, ``ProcessWindowFunction``.

    Example:
        >>> class Median(ProcessWindowFunction):
        ...     def process(self, key, context, elements, out):
        ...         out.collect((key, sorted(elements)[len(elements) // 2]))
    """

    def open(self, context: RuntimeContext, /) -> Any:
        """Acquire resources, before the first window.

        If it returns a context manager, such as an HTTP client, the operator enters it
        now and leaves it at the end; its value is ``context.resource``.
        """
        return None

    @abstractmethod
    def process(
        self,
        key: KeyT,
        context: ProcessWindowContext[WindowT],
        elements: list[InT],
        out: Collector[OutT],
        /,
    ) -> Pending:
        """Process a window that fires; emit results with ``out.collect(value)``.

        Args:
            key: The window's key.
            context: The window, state, time, side outputs.
            elements: The window's records; after reduce or aggregate just its result.
            out: The collector.
        """
        raise WrongTypeError(
            "window_function", f"{type(self).__qualname__} defines no process"
        )

    def clear(self, context: ProcessWindowContext[WindowT], /) -> Pending:
        """Clear the window's own state; the window has expired."""
        return None

    def close(self) -> Pending:
        """Release resources; also called after a failure."""
        return None


class ApplyFunction(ProcessWindowFunction):
    """A plain function as a window function.

    Args:
        function: ``(key, window, elements)`` → an iterable of results, e.g. a list or
            a generator; may be ``async def``.
        arity: With how many arguments it is called; a subclass does it.
    """

    verb: ClassVar[str] = "apply"
    # What the function is called in errors, and what it gets.
    parameter: ClassVar[str] = "window_function"
    gets: ClassVar[str] = "key, window, records"
    arity: ClassVar[int] = 3
    _has_looked = False

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function: Callable[..., Any] = check_function(
            function, self.parameter, arity=self.arity, gets=self.gets
        )
        self._kind = callable_kind(function)

    def process(
        self, key: Any, context: ProcessWindowContext, elements: list[Any], out: Any, /
    ) -> Pending:
        """Emit what the function returns."""
        return self.emit(self.function(key, context.window, elements), out)

    def emit(self, results: Any, out: Any) -> Pending:
        """Emit the items of what the function returned."""
        if self._kind is CallableKind.ASYNC:
            return self._await(results, out)
        if self._kind is CallableKind.ASYNC_GENERATOR:
            return self._iterate(results, out)
        self._collect(results, out)
        return None

    def _collect(self, results: Any, out: Any) -> None:
        if is_one_record(results):
            raise BadResultError(
                describe(self.function), *taken_apart(results, self.verb)
            )
        if not self._has_looked:
            self._has_looked = True
            if looks_like_record(results):
                warn_of_tuple(library_log(), self.function, results, self.verb)
        if not hasattr(results, "__iter__"):
            raise WrongTypeError(
                "window_function",
                f"{describe(self.function)} returned {results!r}, not an iterable",
                "Return a list of results, or write a generator.",
            )
        out.collect_all(results)

    async def _await(self, results: Any, out: Any) -> None:
        self._collect(await results, out)

    async def _iterate(self, results: Any, out: Any) -> None:
        async for result in results:
            try:
                out.collect(result)
            except OverdraftCeilingError as error:
                await results.athrow(error)
                raise


def check_window_function(function: Any) -> Any:
    """Return the window function in the form of `ProcessWindowFunction`.

    Raises:
        WrongTypeError: If it is neither that nor a function of three arguments.
    """
    if hasattr(function, "process"):
        check_process_method(function, "process")
        check_function_object(function, "window_function")
        check_state_names(function)
        return function
    return ApplyFunction(function)
