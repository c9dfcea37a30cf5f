"""All records of a key, or of a subtask, as one window that ends with its input."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import Any, Final

from aiomailbox.keygroups.assignment import KeyGroupAssigner
from aiomailbox.operators.aggregates.functions import is_async_aggregate
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.operator import Pending, then
from aiomailbox.operators.core.user_code import OnError, fail
from aiomailbox.operators.keyed.operators import KeySelector, StatefulOperator
from aiomailbox.records.events import MAX_TIMESTAMP
from aiomailbox.records.run import Run
from aiomailbox.windowing.aggregate import TumblingAggregateOperator
from aiomailbox.windowing.assigners import GlobalWindows, TumblingEventTimeWindows
from aiomailbox.windowing.build import folding_of
from aiomailbox.windowing.contents import (
    AccumulatedContents,
    ListedContents,
)
from aiomailbox.windowing.functions import ApplyFunction
from aiomailbox.windowing.incremental import window_result
from aiomailbox.windowing.operator import WindowEmitter, WindowOperator
from aiomailbox.windowing.spec import WindowSpec
from aiomailbox.windowing.time_window import GLOBAL_WINDOW, Window

# One window from the epoch to the end of time, which takes all records as if they
# were of the epoch.
_WHOLE: Final = TumblingEventTimeWindows(MAX_TIMESTAMP)
_AT_END: Final = GlobalWindows.create_with_end_of_stream_trigger()
_MANY: Final = 1_000_000


def partition_operator(
    key: KeySelector | None,
    *,
    aggregate: Any = None,
    reduce: Any = None,
    function: Callable[[list[Any]], Any] | None = None,
    include_key: bool = False,
    on_error: OnError = fail,
) -> StatefulOperator:
    """Return the operator that works on whole partitions, when the input has ended.

    Args:
        key: What reads a record's key: a partition is all records of a key. None for a
            partition of all records of a subtask.
        aggregate: What is computed; several named ones give records that also have
            ``key``, if there are keys.
        reduce: ``(reduced, record) -> reduced``.
        function: ``records -> results``.
        include_key: Whether the result of a single aggregate is ``(key, result)``.
        on_error: How to handle a record, or a partition, for which a function raises.

    Concept:
        Flink, ``KeyedPartitionWindowedStream`` and ``NonKeyedPartitionWindowedStream``.

    Example:
        >>> from aiomailbox.operators.aggregates.functions import count
        >>> from aiomailbox.testing import OneInputHarness
        >>> operator = partition_operator(len, aggregate=count(), include_key=True)
        >>> with OneInputHarness(operator, keyed=True) as harness:
        ...     harness.process_run(["a", "bc", "d"])
        ...     harness.process_watermark(2**63 - 1)
        ...     harness.values
        [(1, 2), (2, 1)]
    """
    said = partial(WindowSpec, key, on_error=on_error, include_key=include_key)
    if function is not None:
        windows = said(assigner=_AT_END)
        every = ListedContents(with_timestamps=False)
        applied = _OfRecords(function)
        emitter = WindowEmitter(None, applied, folds=False, keyed=key is not None)
        return PartitionWindowOperator(windows, every, emitter, applied)
    folding = folding_of(reduce, aggregate, merging=False)
    if not is_async_aggregate(folding):
        return PartitionAggregateOperator(said(assigner=_WHOLE), folding)
    emitter = WindowEmitter(
        folding, None, folds=False, keyed=key is not None, include_key=include_key
    )
    contents = AccumulatedContents(folding)
    return PartitionWindowOperator(said(assigner=_AT_END), contents, emitter, None)


def subtask_key(context: RuntimeContext) -> int:
    """Return the key under which a subtask keeps what is of no key: one of its own.

    So what it keeps is restored by one subtask, whatever their number is then.
    """
    groups = KeyGroupAssigner(1, context.max_parallelism)
    key = 0
    while groups.key_group_of(key) not in context.key_group_range:
        key += 1
    return key


class PartitionAggregateOperator(TumblingAggregateOperator):
    """Aggregates the records of each partition as they come, and emits at the end.

    Args:
        spec: Key, errors; the windows are `_WHOLE`.
        aggregate: A plain (not ``async def``) aggregate function.

    Concept:
        Flink, ``PartitionAggregateOperator`` and ``PartitionReduceOperator``.
    """

    def __init__(self, spec: WindowSpec, aggregate: Any) -> None:
        super().__init__(spec, aggregate)
        keyed = spec.key is not None
        self._result = window_result(
            aggregate, keyed=keyed, include_key=spec.include_key, has_bounds=False
        )
        # Of a partition without key, in this subtask.
        self._only_key = 0

    def open(self) -> Pending:
        """Bind the state; a subtask without records has a result, too."""
        if self._spec.key is not None:
            return super().open()
        self._only_key = own = subtask_key(self.context)
        self._spec = replace(self._spec, key=lambda _: own)
        return then(super().open(), self._begin_partition)

    def _begin_partition(self) -> None:
        accumulator = self._given.create_accumulator()
        # None: a reduced record, of which there is none yet.
        if accumulator is not None:
            self._open.of(0).setdefault(self._only_key, accumulator)

    def _times(self, stamps: list[int]) -> Iterator[int]:
        return repeat(0, len(stamps))

    def _start_of(self, stamp: str) -> str:
        return "0"

    def _window(self, start: int) -> Window:
        return GLOBAL_WINDOW


class PartitionWindowOperator(WindowOperator):
    """Keeps all records of each partition, or awaits their aggregate.

    Concept:
        Flink, ``MapPartitionOperator``.
    """

    def open(self) -> Pending:
        """Bind state and timers."""
        self._held = 0
        if self._spec.key is None:
            own = subtask_key(self.context)
            self._spec = replace(self._spec, key=lambda _: own)
        return super().open()

    def process_run(self, run: Run) -> Pending:
        """Keep the records."""
        before, self._held = self._held, self._held + len(run)
        is_list = isinstance(self._contents, ListedContents)
        if is_list and before < _MANY <= self._held:
            self.context.log.warning(
                "a million records are held in memory until the input ends, and more "
                "come",
                records=self._held,
                remedy="use aggregate(...) or reduce(...), which hold one value for "
                "each partition, or sort_partition(...), which uses files",
            )
        return super().process_run(run)


class _OfRecords(ApplyFunction):
    """A function of the records of a partition."""

    verb = "map_partition"
    parameter = "function"
    gets = ""
    arity = 1

    def process(
        self, key: Any, context: Any, elements: list[Any], out: Any, /
    ) -> Pending:
        """Emit what the function returns."""
        return self.emit(self.function(elements), out)
