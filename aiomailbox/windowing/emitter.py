"""From what a window holds to what it emits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiomailbox.operators.aggregates.functions import is_async_aggregate
from aiomailbox.operators.aggregates.undoing import undoable
from aiomailbox.operators.core.callables import collected
from aiomailbox.operators.core.collector import Collector
from aiomailbox.operators.core.contract import Pending, awaited
from aiomailbox.operators.core.mutations import MutationCheck
from aiomailbox.operators.core.on_error import USER_ERRORS, is_closing
from aiomailbox.records.elements import StreamRecord
from aiomailbox.windowing.functions import ProcessWindowContext
from aiomailbox.windowing.incremental import window_result
from aiomailbox.windowing.time_window import Window

# Records that cannot be added, each with what adding it raised.
Failing = list[tuple[StreamRecord, BaseException]]


class WindowEmitter:
    """Puts the result of a window that fires into the collector.

    Args:
        aggregate: How records become one result; None if the function gets them all.
        function: The window function, None to emit the aggregate's result.
        folds: Whether the window holds records, to be aggregated only now.
        keyed: Whether results of several aggregates name their key.
        include_key: Whether others are ``(key, result)``.

    Attributes:
        aggregate: As given.
        folds: As given.
        is_async: Whether the aggregate has ``async def`` methods.
    """

    def __init__(
        self,
        aggregate: Any,
        function: Any,
        *,
        folds: bool,
        keyed: bool,
        include_key: bool = False,
    ) -> None:
        self.aggregate = aggregate
        self._function = function
        self._include_key = include_key
        self.folds: bool = folds and aggregate is not None
        self.is_async: bool = aggregate is not None and is_async_aggregate(aggregate)
        self._result = (
            None
            if aggregate is None
            else window_result(aggregate, keyed=keyed, include_key=include_key)
        )
        self._check: MutationCheck | None = None
        self._collector: Collector
        self._context: ProcessWindowContext

    @property
    def user_function(self) -> Callable[..., Any]:
        """The user's function, to be named when it raises."""
        aggregate = self.aggregate
        if aggregate is None:
            function: Callable[..., Any] = getattr(
                self._function, "function", self._function.process
            )
            return function
        reduce = getattr(aggregate, "reduce_function", None)
        return reduce or aggregate.add  # type: ignore[no-any-return]

    def bind(
        self,
        collector: Collector,
        context: ProcessWindowContext,
        check: MutationCheck | None = None,
    ) -> None:
        """Use these."""
        self._check = check
        self._collector = collector
        self._context = context

    def emit(self, key: Any, window: Window, content: Any) -> Pending:
        """Collect the result of what a window holds."""
        self._collector.timestamp = window.max_timestamp
        self._collector.passed = 0
        self._context.window = window
        if self.is_async:
            return self._emit_awaited(key, window, content)
        aggregate = self.aggregate
        if aggregate is None:
            # A copy: the function may keep it, or sort it.
            return self._call(key, list(content))
        if self.folds:
            accumulator = aggregate.create_accumulator()
            for value in content:
                accumulator = aggregate.add(value, accumulator)
            content = accumulator
        if content is None:
            return None
        if self._function is None:
            assert self._result is not None, "an aggregate has a result"
            self._collector.collect(self._result(key, window, content))
            return None
        return self._call(key, [aggregate.get_result(content)])

    def clear(self, window: Window) -> Pending:
        """Tell the window function that a window is over."""
        if self._function is None:
            return None
        self._context.window = window
        pending: Pending = self._function.clear(self._context)
        return pending

    def failing(self, records: list[StreamRecord]) -> Failing:
        """Return the records that the aggregate, which is not async, cannot add."""
        aggregate, failing = undoable(self.aggregate), Failing()
        # On accumulators of its own: this only finds out which records fail.
        accumulator = aggregate.create_accumulator()
        for record in records:
            try:
                accumulator = aggregate.add(record.value, accumulator)
            except USER_ERRORS as error:
                failing.append((record, error))
        return failing

    async def failing_awaited(self, records: list[StreamRecord]) -> Failing:
        """Return the records that the aggregate cannot add."""
        aggregate, failing = undoable(self.aggregate), Failing()
        accumulator = await awaited(aggregate.create_accumulator())
        for record in records:
            try:
                accumulator = await awaited(aggregate.add(record.value, accumulator))
            except USER_ERRORS as error:
                if is_closing(error):
                    raise
                failing.append((record, error))
        return failing

    async def _emit_awaited(self, key: Any, window: Window, content: Any) -> None:
        aggregate = self.aggregate
        accumulator = content
        if self.folds:
            accumulator = await awaited(aggregate.create_accumulator())
            for value in content:
                accumulator = await awaited(aggregate.add(value, accumulator))
        if accumulator is None:
            return
        result = await awaited(aggregate.get_result(accumulator))
        if self._function is None:
            self._collector.collect((key, result) if self._include_key else result)
            return
        pending = self._call(key, [result])
        if pending is not None:
            await pending

    def _call(self, key: Any, elements: list[Any]) -> Pending:
        arguments = key, self._context, elements, self._collector
        pending: Pending
        if self._check is None:
            pending = self._function.process(*arguments)
        else:
            # The list is the function's own, its elements are not.
            records = elements.copy()
            pending = self._check.calling(records, self._function.process, *arguments)
        return None if pending is None else collected(self._function.process, pending)
