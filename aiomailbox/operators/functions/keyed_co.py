"""Process functions on two keyed streams that share state and timers."""

from __future__ import annotations

from typing import Any, Generic

from aiomailbox.operators.core.collector import Collector
from aiomailbox.operators.core.contract import Pending
from aiomailbox.operators.core.on_error import OnError, fail
from aiomailbox.operators.functions.co import TwoInputFunction
from aiomailbox.operators.functions.co_inputs import CoFunctionOperator
from aiomailbox.operators.functions.function_state import inherited_on_timer
from aiomailbox.operators.functions.keyed import KeyedFunctionOperator
from aiomailbox.operators.functions.keyed_context import KeyedProcessContext
from aiomailbox.operators.keyed.operators import KeySelector
from aiomailbox.typevars import FirstT, KeyT, OutT, SecondT


class KeyedCoProcessFunction(
    TwoInputFunction[FirstT, SecondT, KeyedProcessContext[KeyT], OutT],
    Generic[KeyT, FirstT, SecondT, OutT],
):
    """A process function of two streams with the same keys; subclass it.

    Each method may be ``async def``.

    Concept:
        Flink, ``KeyedCoProcessFunction``.
    """

    @inherited_on_timer
    def on_timer(
        self,
        timestamp: int,
        context: KeyedProcessContext[KeyT],
        out: Collector[OutT],
        /,
    ) -> Pending:
        """React to a timer that is due; see `KeyedProcessFunction.on_timer`."""
        return None


class KeyedCoProcessOperator(KeyedFunctionOperator, CoFunctionOperator):
    """Runs a `KeyedCoProcessFunction`.

    Args:
        key1: The key of the first stream's records: a field's name or a function.
        key2: The key of the second stream's; keys of both are of one type.
        function: The function; it is not shared between subtasks.
        on_error: What to do with a record for which it raises. What it had emitted
            and kept for the record until then stays.

    Raises:
        WrongTypeError: If ``function`` lacks a method, or one of them is a generator.

    Concept:
        Flink, ``KeyedCoProcessOperator``.

    Example:
        >>> from aiomailbox.state.descriptors import ValueStateDescriptor
        >>> from aiomailbox.testing import TwoInputHarness
        >>> class Latest(KeyedCoProcessFunction):
        ...     def open(self, context):
        ...         self.rate = context.keyed_state.get_value(
        ...             ValueStateDescriptor("rate")
        ...         )
        ...
        ...     def process_element1(self, value, context, out):
        ...         out.collect((value[0], self.rate.value()))
        ...
        ...     def process_element2(self, value, context, out):
        ...         self.rate.update(value[1])
        >>> by_first = lambda record: record[0]
        >>> operator = KeyedCoProcessOperator(by_first, by_first, Latest())
        >>> with TwoInputHarness(operator, keyed=True) as harness:
        ...     harness.second.process_element(("EUR", 1.1))
        ...     harness.first.process_run([("EUR",), ("USD",)])
        ...     harness.values
        [('EUR', 1.1), ('USD', None)]
    """

    def __init__(
        self,
        key1: KeySelector,
        key2: KeySelector,
        function: Any,
        *,
        on_error: OnError = fail,
    ) -> None:
        super().__init__(function, on_error, key1=key1, key2=key2)
