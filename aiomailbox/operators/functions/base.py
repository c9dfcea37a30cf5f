"""The base of all operators that run a function object of the user's."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, Final, Generic, TypeVar

from aiomailbox.errors import StateError, WrongTypeError
from aiomailbox.operators.core.collector import Collector
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.failures import USER_ERRORS, RecordFailures
from aiomailbox.operators.core.operator import (
    Pending,
    RunInterruption,
    go_through,
    then,
)
from aiomailbox.operators.core.resources import FunctionHolder, FunctionLife
from aiomailbox.operators.core.user_code import (
    OnError,
    check_methods,
    check_on_error,
    checkpoint_listener,
    collected,
    describe,
    fail,
    refuse_generator,
    refuse_undefined,
)
from aiomailbox.operators.core.watched import collector_for
from aiomailbox.operators.functions.contexts import ProcessContext
from aiomailbox.records.events import MIN_TIMESTAMP
from aiomailbox.records.run import Run
from aiomailbox.signatures import with_other_names
from aiomailbox.state.descriptors import (
    AggregatingStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from aiomailbox.state.store import check_same_state, refuse_second
from aiomailbox.typevars import OutT

# Calls a method of a function object for each record of a run.


# What the methods of function objects are called with.
_RECORD: Final = ("value", "context", "out")
# What a function that has a collector is to do in place of yielding.
YIELDS: Final = "Write out.collect(value) where it says yield value."


_OTHERS: Final = {
    "on_timer": ("timestamp", "context", "out"),
    "process": ("key", "context", "elements", "out"),
}


_LIFE: Final = {
    "open": ("context",),
    "clear": ("context",),
    "end_input": ("index", "out"),
    "next_selection": (),
    "finish": ("out",),
    "close": (),
}


ProcessCall = Callable[[Any, Any, Collector], Pending]


def check_process_method(owner: object, method: str) -> ProcessCall:
    """Return a method ``(value, context, out)`` of a function object.

    Raises:
        WrongTypeError: If it is not there, or only declared, takes other arguments, or is
            a generator: results go to ``out``.
    """
    call = getattr(owner, method, None)
    if not callable(call):
        raise WrongTypeError(
            "function",
            f"{owner!r} has no method {method}(value, context, out)",
            "Give an instance of a subclass of ProcessFunction.",
        )
    refuse_undefined(call, "function")
    refuse_generator(call, "function", YIELDS, WrongTypeError)
    check_methods(owner, "function", {method: _OTHERS.get(method, _RECORD)})
    return call


def check_function_object(function: object, parameter: str = "function") -> None:
    """Refuse a function object whose life cannot be as it will be: opened, closed.

    Raises:
        WrongTypeError: Naming the method, its line, and how to write it.
    """
    check_methods(function, parameter, _LIFE)


class ElementCalls:
    """Calls a function for each record of a run and emits what it collected.

    Results go out as one run at the end; after a call that had to be awaited, at once.

    Args:
        function: Called with the value, the context and the collector.
        context: Gets the event time of each record.
        collector: Gets the results.
        failures: Gets the records for which the function raises.
        interruption: The operator's, asked between two calls that are awaited.
        enter: Called with the key of each record before the function, if there are keys,
            and with None after it.
    """

    def __init__(
        self,
        function: ProcessCall,
        context: ProcessContext,
        collector: Collector,
        failures: RecordFailures,
        interruption: RunInterruption,
        enter: Callable[[Any], None] | None = None,
    ) -> None:
        self._interruption = interruption
        self._function = function
        self._context = context
        self._collector = collector
        self._failures = failures
        self._enter = enter

    def process_run(self, run: Run, keys: Sequence[Any] = ()) -> Pending:
        """Process all records of a run, in order.

        Args:
            run: The records.
            keys: The key of each, if they have any.
        """
        advance = partial(self._advance, run, keys)
        return go_through(run, advance, self._interruption, self.emit)

    def emit(self) -> Pending:
        """Emit what was collected, and what failed; no key is current meanwhile."""
        return self._emit_by(self._collector.emit)

    def _emit_by(self, emit: Callable[[], Pending]) -> Pending:
        if self._enter is not None:
            self._enter(None)
        if self._failures.waiting:
            return then(self._failures.report(), emit)
        return emit()

    def _advance(
        self, run: Run, keys: Sequence[Any], start: int
    ) -> tuple[Pending, int]:
        """Process records until a call must be awaited; return it and its index."""
        values, timestamps = run.values, run.timestamps
        function, context, collector = self._function, self._context, self._collector
        enter = self._enter
        collector.timestamp = MIN_TIMESTAMP
        context.timestamp = None
        for index in range(start, len(values)):
            if timestamps is not None:
                stamp = timestamps[index]
                collector.timestamp = stamp
                context.timestamp = None if stamp == MIN_TIMESTAMP else stamp
            if enter is not None:
                enter(keys[index])
            collector.passed = 0
            try:
                pending = function(values[index], context, collector)
            except USER_ERRORS as error:
                self._failures.take(values[index], collector.timestamp, error)
                continue
            if pending is not None:
                return self._awaited(values[index], pending), index
        return None, len(values)

    async def _awaited(self, value: Any, pending: Awaitable[Any]) -> None:
        try:
            await self._context.own(collected(self._function, pending))
        except USER_ERRORS as error:
            self._failures.take(value, self._collector.timestamp, error)
        emitted = self._emit_by(self._collector.flush)
        if emitted is not None:
            await emitted


class FunctionOperator(FunctionHolder):
    """Opens a function object, lets it keep its state, and closes it.

    Args:
        function: The function; it is not shared between subtasks.
        on_error: How to handle a record for which it raises. What it had emitted
            and kept for the record until then stays.

    Raises:
        WrongTypeError: If ``function`` has one of two hooks that belong together, or a
            method that cannot be called as it will be.
    """

    def __init__(self, function: Any, on_error: OnError) -> None:
        super().__init__()
        self._life = FunctionLife(function)
        check_function_object(function)
        self.function = function
        self.listener = checkpoint_listener(function)
        self.on_error: OnError = check_on_error(on_error)

    def open(self) -> Pending:
        """Open the function."""
        self._collector = collector_for(self.context, self.output)
        self._failures = RecordFailures(self, self.named_function)
        self._contexts = self.make_contexts()
        for each in self._contexts:
            each.current_watermark = self.watermark_ms
        return self._failures.guard(self._life.open, self.context, *self._contexts)

    @property
    def named_function(self) -> Callable[..., Any]:
        """The function that an error without a line of the user's is ascribed to."""
        raise TypeError(f"{type(self).__name__} names no function")

    def make_contexts(self) -> Sequence[ProcessContext]:
        """Return what the function's methods get as their contexts, and bind them."""
        raise TypeError(f"{type(self).__name__} makes no contexts")

    def on_watermark(self, timestamp_ms: int) -> Pending:
        """Tell the function of the watermark and pass it on."""
        for context in self._contexts:
            context.current_watermark = timestamp_ms
        return super().on_watermark(timestamp_ms)

    def close(self) -> Pending:
        """Forget what could not be passed on, and close the function, if it was opened."""
        if self._life.is_open:
            self._collector.discard()
        return super().close()


class ElementOperator(FunctionOperator):
    """Hands records to a function object, those of each input to a method of their own.

    All methods share one collector, and one way to fail.

    Args:
        function: The function; it is not shared between subtasks.
        on_error: How to handle a record for which it raises.

    Raises:
        WrongTypeError: If ``function`` lacks a method, or one of them is a generator.
    """

    methods: ClassVar[tuple[str, ...]] = ("process_element",)
    """The method of each input's records."""

    without_keys: ClassVar[str] = ""
    """What to do with a function that needs keys, for an operator of streams without."""

    def __init__(self, function: Any, on_error: OnError = fail) -> None:
        self._methods = [check_process_method(function, name) for name in self.methods]
        super().__init__(function, on_error)
        if self.without_keys:
            check_without_keys(function, self.without_keys)

    def open(self) -> Pending:
        pending = super().open()
        self._calls = [
            ElementCalls(
                method,
                context,
                self._collector,
                self._failures,
                self.interruption,
                self.enter_of(index),
            )
            for index, (method, context) in enumerate(
                zip(self._methods, self._contexts, strict=True)
            )
        ]
        return pending

    @property
    def named_function(self) -> Callable[..., Any]:
        """The method of the first input's records."""
        return self._methods[0]

    def make_contexts(self) -> Sequence[ProcessContext]:
        """Return what each method gets as its context; one may serve several."""
        context = ProcessContext(self.context, self._collector)
        return [context] * len(self.methods)

    def enter_of(self, index: int) -> Callable[[Any], None] | None:
        """Return what gets the key of each record of an input; None without keys."""
        return None

    def may_leave_rest(self, index: int) -> bool:
        """Whether it may leave the rest of a run: a function may give awaitables."""
        return True

    def process_input(self, index: int, run: Run) -> Pending:
        """Call the method of an input for each record and emit its results."""
        return self._calls[index].process_run(run)

    def process_run(self, run: Run) -> Pending:
        """Call the function for each record and emit its results as one run."""
        return self.process_input(0, run)

    def finish(self) -> Pending:
        """Let the function emit what it holds back."""
        self._collector.timestamp = MIN_TIMESTAMP
        pending = self._failures.guard(self.function.finish, self._collector)
        return then(pending, self._collector.emit)


# The life of a function object, as its user sees it.


# Of PyFlink, where functions fetch what ours are given.
without_runtime_context: Final = with_other_names(
    "context",
    {
        "get_runtime_context": " open(context), and each method that is called for a "
        "record or a window, gets a context: use that, or keep it as self.context"
    },
)


@without_runtime_context
class RichFunction(Generic[OutT]):
    """The base of functions that are opened, may hold something back, and are closed.

    Each method may be ``async def``.

    Concept:
        Flink, ``RichFunction``.
    """

    def open(self, context: RuntimeContext, /) -> Any:
        """Acquire resources, before the first record.

        If it returns a context manager, such as an HTTP client, the operator enters it
        now and leaves it at the end; its value is ``context.resource`` of the other
        methods.
        """
        return None

    def finish(self, out: Collector[OutT], /) -> Pending:
        """Emit what is still held back; no record follows."""
        return None

    def close(self) -> Pending:
        """Release resources; called also after a failure."""
        return None


# What can be seen of a function's state and timers without running it.


# Lists and maps may also be state without keys; these may not.
_KEYED_ONLY: Final = (
    ValueStateDescriptor,
    ReducingStateDescriptor,
    AggregatingStateDescriptor,
)


# The attribute of on_timer methods of base classes, which do nothing.
_INHERITED: Final = "is_inherited_on_timer"


MethodT = TypeVar("MethodT")


def described_state(function: object) -> list[StateDescriptor]:
    """Return the descriptors that are attributes of a function object or its class.

    Also those in lists, tuples and dicts of these. What a method makes when it runs is
    not seen.

    Example:
        >>> from types import SimpleNamespace
        >>> function = SimpleNamespace(seen=ValueStateDescriptor("seen", int))
        >>> [one.name for one in described_state(function)]
        ['seen']
    """
    return [
        item
        for value in _attributes(function)
        for item in _items(value)
        if isinstance(item, StateDescriptor)
    ]


def check_state_names(function: object) -> None:
    """Refuse a function that describes one state in two ways, or by two descriptors.

    Raises:
        StateError: Naming the function, the state, and what differs.
    """
    known: dict[str, StateDescriptor] = {}
    for descriptor in described_state(function):
        first = known.setdefault(descriptor.name, descriptor)
        try:
            check_same_state(first, descriptor)
            refuse_second(first, descriptor)
        except StateError as error:
            message = f"function {_name(function)} describes one state twice: {error}"
            raise StateError(message) from None


def check_without_keys(function: object, remedy: str) -> None:
    """Refuse a function that needs a key, for a stream that has none.

    Args:
        function: The user's function object.
        remedy: What to write instead.

    Raises:
        WrongTypeError: If it has ``on_timer``, or attributes that describe state of a
            key.
    """
    if callable(getattr(function, "on_timer", None)):
        raise WrongTypeError(
            "function",
            f"{_name(function)} has on_timer, and the stream has no keys: timers "
            "belong to a key",
            remedy,
        )
    for descriptor in described_state(function):
        if isinstance(descriptor, _KEYED_ONLY):
            raise WrongTypeError(
                "function",
                f"{_name(function)} describes {descriptor.kind} state "
                f"{descriptor.name!r}, and the stream has no keys: such state belongs "
                "to a key",
                remedy,
            )


def inherited_on_timer(method: MethodT) -> MethodT:
    """Mark an ``on_timer`` that is there only to be overridden.

    Concept:
        A decorator for the base classes of functions with timers.
    """
    setattr(method, _INHERITED, True)
    return method


def held_back(function: object) -> str:
    """Return what a process function emits only when event time ends; "" for nothing."""
    held = ["event-time timers"] if has_on_timer(function) else []
    if getattr(type(function), "finish", None) is not RichFunction.finish:
        held.append("what its finish() emits")
    return ", ".join(held)


def has_on_timer(function: object) -> bool:
    """Say whether the user wrote ``on_timer``, rather than inheriting ours.

    Example:
        >>> from aiomailbox.operators.functions.process import KeyedProcessFunction
        >>> has_on_timer(KeyedProcessFunction())
        False
    """
    method: Any = getattr(function, "on_timer", None)
    if method is None:
        return False
    return not hasattr(method, _INHERITED)


def _attributes(function: object) -> Iterator[Any]:
    """Yield the values of attributes, without those that others hide."""
    kind = function if inspect.isclass(function) else type(function)
    found: dict[str, Any] = dict(getattr(function, "__dict__", {}))
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] not in ("aiomailbox", "builtins"):
            for name, value in vars(base).items():
                found.setdefault(name, value)
    yield from found.values()


def _items(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        yield from value
    elif isinstance(value, dict):
        yield from value.values()
    else:
        yield value


def _name(function: Any) -> str:
    method = getattr(type(function), "process_element", None) or getattr(
        type(function), "process_element1", None
    )
    place = "" if method is None else describe(method).partition(" ")[2]
    name = type(function).__qualname__.rpartition("<locals>.")[2]
    return f"{name} {place}".strip()
