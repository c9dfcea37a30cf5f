"""Streams whose records are collected, wait, or are left out on their way."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Generic

from aiomailbox.graph.transformation import ChainingStrategy, OperatorFactory
from aiomailbox.operators.useful.operators import (
    BatchOperator,
    BufferOperator,
    BufferPolicy,
    SampleOperator,
)
from aiomailbox.typevars import T

if TYPE_CHECKING:
    # A stream leads to this class, and this class to a stream: only in their types.
    from aiomailbox.api.stream import DataStream


class Paced(Generic[T]):
    """The verbs of a stream about how many records go on, and when; see `DataStream`."""

    if TYPE_CHECKING:

        def _derive(
            self, name: str, factory: OperatorFactory, **facts: Any
        ) -> DataStream[Any]: ...

    def batch(
        self, size: int, within: timedelta | float | None = None
    ) -> DataStream[list[T]]:
        """Group records into lists, in their order.

        A list is emitted when it is full, when its first record has waited for
        ``within``, when the stream becomes idle, and at the end. Its event time is the
        latest one of its records; watermarks are held back until the open list is emitted.

        Args:
            size: The maximum number of records in a list.
            within: How long the first record waits for others, in processing time: a
                timedelta or seconds; None for no time limit.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> lists = env.from_collection([1, 2, 3]).batch(2, within=am.seconds(1))
            >>> am.run(lists.collect())
            [[1, 2], [3]]
        """
        factory = partial(BatchOperator, size, within)
        return self._derive(
            "batch", factory, bound=f"{size} records", held="the open list"
        )

    def buffer(self, size: int, policy: BufferPolicy = "drop_oldest") -> DataStream[T]:
        """Accept records as fast as they arrive, and drop some when the consumer is slow.

        For a source that cannot be paused, in front of a consumer that falls behind at
        times. More records wait in the buffers between this operator and the consumer: as
        many as `JobConfig` allows, thousands of small ones by default. Watermarks keep
        their places between records. The metric ``records_dropped`` counts what is dropped.

        Args:
            size: The maximum number of records that wait.
            policy: The behaviour when one more arrives: ``"drop_oldest"`` drops the one
                that has waited longest; ``"latest"`` drops all that wait and keeps the
                new one; ``"error"`` fails the job with `BufferFullError`.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> am.run(env.from_collection([1, 2]).buffer(10).collect())
            [1, 2]
        """
        factory = partial(BufferOperator, size, policy=policy)
        return self._derive(
            "buffer", factory, chaining=ChainingStrategy.NEVER, bound=f"{size} records"
        )

    def sample(self, fraction: float) -> DataStream[T]:
        """Pass on a random part of the records, each with the same probability.

        With ``JobConfig(seed=...)``, running the job again on the same input selects the
        same records.

        Args:
            fraction: The probability, from 0 to 1.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> part = am.run(env.from_collection(range(1000)).sample(0.1).collect())
            >>> 60 < len(part) < 140
            True
        """
        return self._derive("sample", partial(SampleOperator, fraction))
