"""Process functions: full control over what a record leads to."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Generic

from aiomailbox.errors import WrongTypeError
from aiomailbox.operators.core.collector import Collector
from aiomailbox.operators.core.contract import Pending
from aiomailbox.operators.core.on_error import (
    OnError,
    fail,
)
from aiomailbox.operators.functions.base import ElementOperator
from aiomailbox.operators.functions.function_state import check_without_keys
from aiomailbox.operators.functions.process_context import ProcessContext
from aiomailbox.operators.functions.rich import RichFunction
from aiomailbox.typevars import ContextT, InT, OutT


class ElementFunction(RichFunction[OutT], Generic[InT, ContextT, OutT]):
    """A function of records and of what it may ask meanwhile, the context."""

    @abstractmethod
    def process_element(
        self, value: InT, context: ContextT, out: Collector[OutT], /
    ) -> Pending:
        """Process one record; what it leads to goes to ``out.collect(value)``."""
        raise WrongTypeError(
            "function", f"{type(self).__qualname__} defines no process_element"
        )


class ProcessFunction(ElementFunction[InT, ProcessContext, OutT], Generic[InT, OutT]):
    """A function with a life, side outputs and access to time; subclass it.

    Each method may be ``async def``. For a type checker, ``ProcessFunction[In, Out]``
    says what comes in and what goes out.

    Concept:
        Flink, ``ProcessFunction``.

    Example:
        >>> from aiomailbox.testing import OneInputHarness
        >>> class Split(ProcessFunction):
        ...     def process_element(self, value, context, out):
        ...         for word in value.split():
        ...             out.collect(word)
        >>> with OneInputHarness(ProcessOperator(Split())) as harness:
        ...     harness.process_element("to be")
        ...     harness.values
        ['to', 'be']
    """


class ProcessOperator(ElementOperator):
    """Runs a `ProcessFunction` on a stream without keys.

    Args:
        function: The function; it is not shared between subtasks.
        on_error: What to do with a record for which it raises. What it had emitted
            for the record until then stays emitted.

    Raises:
        WrongTypeError: If ``function`` has no usable ``process_element``, or needs a
            key: it has ``on_timer``, or describes state of a key.

    Concept:
        Flink, ``ProcessOperator``.

    Example:
        >>> from aiomailbox.testing import OneInputHarness
        >>> class Late(ProcessFunction):
        ...     def process_element(self, value, context, out):
        ...         out.collect((value, context.timestamp))
        >>> with OneInputHarness(ProcessOperator(Late())) as harness:
        ...     harness.process_element("a", 5)
        ...     harness.values
        [('a', 5)]
    """

    def __init__(self, function: Any, *, on_error: OnError = fail) -> None:
        super().__init__(function, on_error)
        check_without_keys(
            function,
            "Derive from KeyedProcessFunction and write key_by(...).process(...).",
        )
