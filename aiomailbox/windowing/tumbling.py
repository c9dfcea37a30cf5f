"""Tumbling event-time windows with incremental aggregation: the fast way.

Theory of operation: state is ``key -> {window start: accumulator}``, and an index of
window starts takes the place of timers, since all a timer could say follows from the
state: a window with content has not fired. What has fired but may still get late
records is moved to a second table. `aiomailbox.windowing.operator` gives the same
results for all windows; this one gives them in one loop over a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import length_hint
from typing import Any

from aiomailbox.errors import TimestampError
from aiomailbox.operators import (
    Collector,
    KeyReader,
    Pending,
    RecordFailures,
    StatefulOperator,
    then,
)
from aiomailbox.records import MIN_TIMESTAMP, ListRun, Run
from aiomailbox.state import ValueStateDescriptor
from aiomailbox.windowing.assigners import required_timestamp
from aiomailbox.windowing.incremental import window_result
from aiomailbox.windowing.time_window import TimeWindow
from aiomailbox.windowing.window_index import WindowIndex
from aiomailbox.windowing.window_spec import WindowSpec, key_function


class TumblingAggregateOperator(StatefulOperator):
    """Aggregates tumbling event-time windows that fire when they end.

    Made by `window_operator` where it applies.

    Args:
        spec: Key, windows, lateness and errors; the trigger is the default one.
        aggregate: A plain (not ``async def``) aggregate function.

    Concept:
        Flink, ``WindowOperator``, for its most frequent use.
    """

    def __init__(self, spec: WindowSpec, aggregate: Any) -> None:
        super().__init__()
        self._spec = spec
        self._aggregate = aggregate
        self._size: int = spec.assigner.size_ms
        self._lateness = spec.allowed_lateness_ms
        self._result = window_result(aggregate, keyed=spec.key is not None)
        self._watermark = MIN_TIMESTAMP

    def open(self) -> Pending:
        """Bind the state and look which windows it has."""
        context = self.context
        self._keys = KeyReader(key_function(self._spec.key), self)
        # The names are in snapshots.
        store = context.keyed_state
        self._open = store.table(ValueStateDescriptor("open-windows"))
        self._fired = store.table(ValueStateDescriptor("fired-windows"))
        self._offset: int = self._spec.assigner.for_subtask(context.random).offset_ms
        self._open_index, self._fired_index = WindowIndex(), WindowIndex()
        for table, index in (
            (self._open, self._open_index),
            (self._fired, self._fired_index),
        ):
            for key, row in table.items():
                for start in row:
                    index.add(start, key)
        self._collector = Collector(self.output)
        self._failures = RecordFailures(
            self._spec.on_error, self._aggregate.add, context, self.output
        )
        self._dropped = context.metrics.counter("late_records_dropped")
        return None

    def process_run(self, run: Run) -> Pending:
        """Add each record to its window."""
        values = run.values
        if not values:
            return None
        stamps = run.timestamps
        if stamps is None:
            required_timestamp(None)
            return None
        keys = iter(self._keys.read(values))
        remaining, times = iter(values), iter(stamps)
        while True:
            try:
                self._add_all(keys, remaining, times)
                break
            except TimestampError as error:
                error.add_note(f"in operator {self.context.operator_name!r}")
                raise
            except Exception as error:  # noqa: BLE001 -- on_error decides
                index = len(values) - length_hint(remaining) - 1
                self._failures.take(values[index], stamps[index], error)
        pending = self._failures.report() if self._failures.waiting else None
        return then(pending, self._collector.emit)

    def process_watermark(self, timestamp_ms: int) -> Pending:
        """Emit the windows that end, forget those that are over, pass it on."""
        self._watermark = timestamp_ms
        pending = self._fire(timestamp_ms)
        if self._lateness:
            self._expire(timestamp_ms)
        return then(pending, self.output.emit_watermark, timestamp_ms)

    def _add_all(
        self, keys: Iterator[Any], values: Iterator[Any], stamps: Iterator[int]
    ) -> None:
        aggregate = self._aggregate
        create, add = aggregate.create_accumulator, aggregate.add
        get, put = self._open.get, self._open.put
        size, offset = self._size, self._offset
        # Windows that start here or before have ended; MIN_TIMESTAMP is always among
        # them, so that a record without event time is seen without looking for it.
        ended = max(self._watermark - size + 1, MIN_TIMESTAMP)
        for key, value, stamp in zip(keys, values, stamps, strict=True):
            start = stamp - (stamp - offset) % size
            if start <= ended:
                self._add_late(key, value, stamp, start)
                continue
            row = get(key)
            if row is not None:
                accumulator = row.get(start)
                if accumulator is not None:
                    row[start] = add(value, accumulator)
                    put(key, row)
                    continue
            accumulator = self._reopened(key, start)
            if accumulator is None:
                accumulator = create()
            accumulator = add(value, accumulator)
            if row is None:
                put(key, {start: accumulator})
            else:
                row[start] = accumulator
                put(key, row)
            self._open_index.add(start, key)

    def _reopened(self, key: Any, start: int) -> Any:
        """Take the content of a window that had fired before a restore."""
        return _pop(self._fired, key, start) if len(self._fired) else None

    def _add_late(self, key: Any, value: Any, stamp: int, start: int) -> None:
        """Add a record whose window has ended, if it may still be added."""
        required_timestamp(stamp)
        end = start + self._size
        self._collector.timestamp = stamp
        if end - 1 + self._lateness <= self._watermark:
            if self._spec.late_tag is None:
                self._dropped.add(1)
            else:
                self._collector.collect_side(self._spec.late_tag, value)
            return
        aggregate = self._aggregate
        row = self._fired.get(key) or {}
        known = row.get(start)
        accumulator = aggregate.create_accumulator() if known is None else known
        row[start] = accumulator = aggregate.add(value, accumulator)
        self._fired.put(key, row)
        if known is None:
            self._fired_index.add(start, key)
        self._collector.timestamp = end - 1
        window = TimeWindow(start, end)
        self._collector.collect(self._result(key, window, accumulator))

    def _fire(self, watermark: int) -> Pending:
        size, result = self._size, self._result
        results: list[Any] = []
        stamps: list[int] = []
        for start, keys in self._open_index.pop_until(watermark - size + 1):
            window = TimeWindow(start, start + size)
            before = len(results)
            keeps = window.max_timestamp + self._lateness > watermark
            for key in keys:
                accumulator = _pop(self._open, key, start)
                if accumulator is None:
                    continue
                results.append(self._checked(result, key, window, accumulator))
                if keeps:
                    self._keep(key, start, accumulator)
            stamps += [window.max_timestamp] * (len(results) - before)
        return self.output.emit_run(ListRun(results, stamps)) if results else None

    def _checked(self, result: Any, *args: Any) -> Any:
        try:
            return result(*args)
        except Exception as error:
            raise self.user_error(error) from error

    def _keep(self, key: Any, start: int, accumulator: Any) -> None:
        row = self._fired.get(key) or {}
        row[start] = accumulator
        self._fired.put(key, row)
        self._fired_index.add(start, key)

    def _expire(self, watermark: int) -> None:
        limit = watermark - self._lateness - self._size + 1
        for start, keys in self._fired_index.pop_until(limit):
            for key in keys:
                _pop(self._fired, key, start)


def _pop(table: Any, key: Any, start: int) -> Any:
    """Take the content of a window out of the table; None if there is none."""
    row = table.get(key)
    if row is None:
        return None
    accumulator = row.pop(start, None)
    if row:
        table.put(key, row)
    else:
        table.remove(key)
    return accumulator
