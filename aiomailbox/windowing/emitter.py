"""From what a window holds to what it emits."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from aiomailbox.operators import Collector, Pending, is_async_aggregate, then
from aiomailbox.windowing.functions import ProcessWindowContext
from aiomailbox.windowing.incremental import window_result
from aiomailbox.windowing.time_window import Window

Guard = Callable[..., Pending]


class WindowEmitter:
    """Emits the result of a window that fires.

    Args:
        aggregate: How records become one result; None if the function gets them all.
        function: The window function, None to emit the aggregate's result.
        folds: Whether the window holds records, to be aggregated only now.
        keyed: Whether results name their key.

    An ``async def`` aggregate is awaited only here, so its windows hold records.
    """

    def __init__(
        self, aggregate: Any, function: Any, *, folds: bool, keyed: bool
    ) -> None:
        self._aggregate = aggregate
        self._function = function
        self._folds = folds
        self._is_async = aggregate is not None and is_async_aggregate(aggregate)
        self._result = (
            None if aggregate is None else window_result(aggregate, keyed=keyed)
        )
        self._collector: Collector
        self._context: ProcessWindowContext
        self._guard: Guard

    @property
    def user_function(self) -> Callable[..., Any]:
        """The user's function, to be named when it raises."""
        aggregate = self._aggregate
        if aggregate is None:
            function: Callable[..., Any] = self._function.process
            return function
        reduce = getattr(aggregate, "reduce_function", None)
        return reduce or aggregate.add  # type: ignore[no-any-return]

    def bind(
        self, collector: Collector, context: ProcessWindowContext, guard: Guard
    ) -> None:
        """Use these; ``guard`` calls the user's code and explains its errors."""
        self._collector = collector
        self._context = context
        self._guard = guard

    def emit(self, key: Any, window: Window, content: Any) -> Pending:
        """Emit the result of what a window holds."""
        self._collector.timestamp = window.max_timestamp
        self._context.window = window
        return self._guard(
            self._emit_awaited if self._is_async else self._emit, key, window, content
        )

    def clear(self, window: Window) -> Pending:
        """Tell the window function that a window is over."""
        if self._function is None:
            return None
        self._context.window = window
        return self._guard(self._function.clear, self._context)

    def _emit(self, key: Any, window: Window, content: Any) -> Pending:
        aggregate = self._aggregate
        if aggregate is None:
            return self._call(key, list(content))
        if self._folds:
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

    async def _emit_awaited(self, key: Any, window: Window, content: Any) -> None:
        aggregate = self._aggregate
        accumulator = await _awaited(aggregate.create_accumulator())
        for value in content:
            accumulator = await _awaited(aggregate.add(value, accumulator))
        if accumulator is None:
            return
        result = await _awaited(aggregate.get_result(accumulator))
        if self._function is None:
            self._collector.collect(result)
            emitted = self._collector.emit()
        else:
            emitted = self._call(key, [result])
        if emitted is not None:
            await emitted

    def _call(self, key: Any, elements: list[Any]) -> Pending:
        pending = self._function.process(key, self._context, elements, self._collector)
        # What was awaited goes out at once.
        return None if pending is None else then(pending, self._collector.emit)


async def _awaited(result: Any) -> Any:
    awaited: Awaitable[Any] | Any = result
    return await awaited if inspect.isawaitable(awaited) else awaited
