"""Functions with state that are written for somewhere else, or that wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any, Generic, TypeVar

from aiomailbox.api.build import GROWS_WITH_KEYS, check_count, function_info
from aiomailbox.graph import FunctionInfo, OperatorFactory
from aiomailbox.operators import (
    KeyedAggregateOperator,
    KeyedAsyncProcessFunction,
    KeyedAsyncProcessOperator,
    OnError,
    check_on_error,
    fail,
)
from aiomailbox.policies import RateLimit, Retry
from aiomailbox.state import AggregateFunction

StreamT = TypeVar("StreamT")


class KeyedFunctions(Generic[StreamT]):
    """Methods of keyed streams that run a function with state and timers."""

    key: Callable[..., Any]

    def _keyed(
        self,
        name: str,
        factory: OperatorFactory,
        functions: tuple[FunctionInfo, ...] = (),
        **facts: Any,
    ) -> StreamT:
        raise TypeError(f"{type(self).__name__} does not define _keyed")

    def aggregate(
        self, aggregate: AggregateFunction, *, on_error: OnError = fail
    ) -> StreamT:
        """Aggregate the records of each key, and emit the result after every record.

        Args:
            aggregate: ``am.count()``, ``am.aggregates(...)`` or your own.
            on_error: What to do with a record for which it raises.
        """
        factory = partial(
            KeyedAggregateOperator,
            self.key,
            aggregate,
            on_error=check_on_error(on_error),
        )
        factory()
        return self._keyed("aggregate", factory, unbounded=GROWS_WITH_KEYS)

    def transform_with_state(
        self, processor: Any, *, time_mode: str = "None"
    ) -> StreamT:
        """Run a class that was written for Spark's ``transformWithState``.

        It is used as it is, whether it derives from pyspark's ``StatefulProcessor`` or
        only looks like it. Rows are the records of the stream, keys are tuples, state
        holds tuples; results are what the processor yields. Schemas and output modes
        are not needed; ``handleInitialState`` is not called.

        Args:
            processor: An instance with ``init``, ``handleInputRows``,
                ``handleExpiredTimer`` and ``close``.
            time_mode: Which time its timers are about: ``"None"``, ``"EventTime"`` or
                ``"ProcessingTime"``.
        """
        # What only users of Spark need is imported when they use it.
        from aiomailbox.connectors.spark.transform_with_state import (
            TransformWithStateOperator,
        )

        factory = partial(
            TransformWithStateOperator, self.key, processor, time_mode=time_mode
        )
        factory()
        return self._keyed(
            "transform_with_state",
            factory,
            (function_info(processor.handleInputRows),),
        )

    def process_async(
        self,
        function: KeyedAsyncProcessFunction | Callable[..., Awaitable[None]],
        *,
        concurrency: int = 16,
        timeout: timedelta | float | None = None,
        deadline: timedelta | float | None = None,
        retry: Retry | None = None,
        limit: RateLimit | None = None,
        on_error: OnError = fail,
        buffer: int | None = None,
        key_buffer: int | None = None,
    ) -> StreamT:
        """Hand each record to an async function with state and timers of its key.

        Records of a key are processed one at a time and in their order, those of
        different keys at once. What a call emits and changes takes effect when it has
        returned, all at once, or not at all if it raises; a snapshot never sees half
        of it. Watermarks and timers keep their places between the records of a key.

        Args:
            function: A `KeyedAsyncProcessFunction`, or an ``async def`` function
                ``(value, context, out)``.
            concurrency: Calls under way at a time in the whole job.
            timeout: Limit of one attempt, a timedelta or seconds.
            deadline: Limit of all attempts of a record with their waits.
            retry: How often, and after which waits, a failed call is repeated; each
                attempt begins with the state that the key had before the record.
            limit: A rate that all who name it keep together.
            on_error: What to do with a record after the last attempt. A timer that
                fails always fails the job.
            buffer: Records held in the whole job, 4 times ``concurrency`` by default.
            key_buffer: Records that may wait for their key, beside ``buffer``.

        Example:
            >>> import asyncio
            >>> import aiomailbox as am
            >>> seen = am.ValueStateDescriptor("seen", int, default=0)
            >>> async def number(word, context, out):
            ...     await asyncio.sleep(0.001)
            ...     count = context.state.get_value(seen)
            ...     count.update(count.value() + 1)
            ...     out.collect(f"{word}{count.value()}")
            >>> env = am.StreamExecutionEnvironment()
            >>> words = env.from_collection(["a", "b", "a"]).key_by(lambda word: word)
            >>> sorted(am.run(words.process_async(number).collect()))
            ['a1', 'a2', 'b1']
        """
        factory = partial(
            KeyedAsyncProcessOperator,
            self.key,
            function,
            concurrency=check_count(concurrency, "concurrency"),
            timeout=timeout,
            deadline=deadline,
            retry=retry,
            limit=limit,
            on_error=check_on_error(on_error),
            buffer=buffer,
            key_buffer=key_buffer,
        )
        # Wrong arguments fail here, where they are written.
        sample = factory()
        process: Any = getattr(function, "process_element", function)
        return self._keyed(
            "process_async",
            factory,
            (function_info(process, serial=False),),
            bound=f"{sample.buffer} records",
        )
