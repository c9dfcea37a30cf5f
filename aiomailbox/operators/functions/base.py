"""What all operators that run a function object of the user's have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from aiomailbox.operators.core.checkpointed import FunctionHooks
from aiomailbox.operators.core.contract import Operator, Pending, then
from aiomailbox.operators.core.failures import RecordFailures
from aiomailbox.operators.core.on_error import OnError, check_on_error
from aiomailbox.operators.core.resources import FunctionLife
from aiomailbox.operators.core.watched import collector_for
from aiomailbox.operators.functions.calls import (
    ElementCalls,
    check_function_object,
    check_process_method,
)
from aiomailbox.operators.functions.process_context import ProcessContext
from aiomailbox.records.elements import MIN_TIMESTAMP
from aiomailbox.records.run import Run

__all__ = ["ElementOperator", "FunctionOperator"]


class FunctionOperator(Operator):
    """Opens a function object, lets it keep its state, and closes it.

    Args:
        function: The function; it is not shared between subtasks.
        on_error: What to do with a record for which it raises. What it had emitted
            and kept for the record until then stays.

    Raises:
        WrongTypeError: If ``function`` has one of two hooks that belong together, or a
            method that cannot be called as it will be.
    """

    def __init__(self, function: Any, on_error: OnError) -> None:
        super().__init__()
        FunctionHooks(function)
        check_function_object(function)
        self.function = function
        self.on_error: OnError = check_on_error(on_error)
        self._is_open = False

    def open(self) -> Pending:
        """Open the function."""
        context = self.context
        self._collector = collector_for(self.context, self.output)
        self._failures = RecordFailures(
            self.on_error, self.named_function, context, self.output
        )
        self._contexts = self.make_contexts()
        for each in self._contexts:
            each.current_watermark = self.watermark_ms
        self._is_open = True
        self._life = FunctionLife(self.function)
        return self._failures.guard(self._life.open, context, *self._contexts)

    @property
    def named_function(self) -> Callable[..., Any]:
        """What an error without a line of the user's is ascribed to."""
        raise TypeError(f"{type(self).__name__} names no function")

    def make_contexts(self) -> Sequence[ProcessContext]:
        """Return what the function's methods get as their contexts, and bind them."""
        raise TypeError(f"{type(self).__name__} makes no contexts")

    def on_watermark(self, timestamp_ms: int) -> Pending:
        """Tell the function of the watermark and pass it on."""
        for context in self._contexts:
            context.current_watermark = timestamp_ms
        return super().on_watermark(timestamp_ms)

    def fill_state(self) -> None:
        """Let the function put what it holds into its state."""
        if self._is_open:
            self._failures.guard(self._life.snapshot)

    def close(self) -> Pending:
        """Close the function, if it was opened."""
        pending = super().close()
        if not self._is_open:
            return pending
        self._is_open = False
        self._collector.discard()
        return then(pending, self._failures.guard, self._life.close)


class ElementOperator(FunctionOperator):
    """Hands records to a function object, those of each input to a method of their own.

    All methods share one collector, and one way to fail.

    Args:
        function: The function; it is not shared between subtasks.
        on_error: What to do with a record for which it raises.

    Raises:
        WrongTypeError: If ``function`` lacks a method, or one of them is a generator.
    """

    methods: ClassVar[tuple[str, ...]] = ("process_element",)
    """The method of each input's records."""

    def __init__(self, function: Any, on_error: OnError) -> None:
        self._methods = [check_process_method(function, name) for name in self.methods]
        super().__init__(function, on_error)

    def open(self) -> Pending:
        """Open the function."""
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
