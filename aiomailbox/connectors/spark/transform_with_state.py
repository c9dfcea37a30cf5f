"""The operator that runs a stateful processor written for Spark."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aiomailbox.connectors.spark.stateful_processor import (
    SparkExpiredTimerInfo,
    SparkProcessorHandle,
    SparkTimerValues,
    check_stateful_processor,
    check_time_mode,
)
from aiomailbox.errors import StateError
from aiomailbox.eventtime.timers import Timer
from aiomailbox.operators.core.failures import RecordFailures, fail, raise_as
from aiomailbox.operators.core.fields import field_or_function
from aiomailbox.operators.core.operator import Pending, then
from aiomailbox.operators.core.watched import collector_for
from aiomailbox.operators.keyed.operators import (
    KeyReader,
    KeySelector,
    StatefulOperator,
)
from aiomailbox.records.events import MIN_TIMESTAMP
from aiomailbox.records.run import Run
from aiomailbox.state.descriptors import VOID


class TransformWithStateOperator(StatefulOperator):
    """Runs a class written for Spark's ``transformWithState``, unchanged.

    The rows of a run are handed to ``handleInputRows`` key by key; the key is a tuple,
    as in Spark. Its results get the latest event time of those rows.

    Args:
        key: A field's name or a function of a record.
        processor: Has the methods of Spark's ``StatefulProcessor``.
        time_mode: Which time its timers are about: ``"None"``, ``"EventTime"`` or
            ``"ProcessingTime"``.

    Concept:
        Spark, ``TransformWithStateInPySparkExec``.

    Example:
        >>> from aiomailbox.testing import OneInputHarness
        >>> class Count:
        ...     def init(self, handle):
        ...         self.count = handle.getValueState("count", "n long")
        ...
        ...     def handleInputRows(self, key, rows, timerValues):
        ...         (count,) = self.count.get() or (0,)
        ...         count += len(list(rows))
        ...         self.count.update((count,))
        ...         yield (*key, count)
        ...
        ...     def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        ...         return iter([])
        ...
        ...     def close(self): ...
        >>> operator = TransformWithStateOperator(str.lower, Count())
        >>> with OneInputHarness(operator, keyed=True) as harness:
        ...     harness.process_run(["a", "b", "A"])
        ...     harness.values
        [('a', 2), ('b', 1)]
    """

    def __init__(
        self, key: KeySelector, processor: Any, *, time_mode: str = "None"
    ) -> None:
        super().__init__()
        self._key = field_or_function(key, "key")
        self.processor: Any = check_stateful_processor(processor)
        self.time_mode: str = check_time_mode(time_mode)
        if self.time_mode == "processing":
            self.live_clock_need = "timers in processing time"
        self._is_open = False

    def open(self) -> Pending:
        """Bind state and timers, and let the processor make its own."""
        context = self.context
        self._keys = KeyReader(self._key, self)
        self._collector = collector_for(self.context, self.output)
        self._timers = self.timer_service("timers", self, self._collector)
        self._failures = RecordFailures(
            fail, self.processor.handleInputRows, context, self.output
        )
        self._handle = SparkProcessorHandle(context, self._register, self._delete)
        self._is_open = True
        return self._failures.guard(self.processor.init, self._handle)

    def process_run(self, run: Run) -> Pending:
        """Hand the rows to the processor, key by key."""
        groups: dict[Any, list[int]] = {}
        for index, key in enumerate(self._keys.read(run.values)):
            groups.setdefault(key, []).append(index)
        values, timestamps = run.values, run.timestamps
        times = self._times()
        for key, indices in groups.items():
            self.context.keyed_state.set_current_key(key)
            self._collector.timestamp = (
                MIN_TIMESTAMP
                if timestamps is None
                else max(timestamps[index] for index in indices)
            )
            rows = iter([values[index] for index in indices])
            self._collect(self.processor.handleInputRows, _as_tuple(key), rows, times)
        return self._collector.emit()

    def emit_collected(self) -> Pending:
        """Pass on what the processor emitted."""
        return self._collector.emit()

    def on_event_time(self, timer: Timer) -> Pending:
        """Call the processor with a timer that the watermark has reached."""
        self._fire(timer, timer.timestamp)
        return None

    def on_processing_time(self, timer: Timer) -> Pending:
        """Call the processor with a timer that wall-clock time has passed."""
        self._fire(timer, MIN_TIMESTAMP)
        return self._collector.emit()

    def close(self) -> Pending:
        """Disarm the timers and close the processor, if it was opened."""
        pending = super().close()
        if not self._is_open:
            return pending
        self._is_open = False
        self._collector.discard()
        return then(pending, self._failures.guard, self.processor.close)

    def _fire(self, timer: Timer, stamp: int) -> None:
        self._collector.timestamp = stamp
        info = SparkExpiredTimerInfo(timer.timestamp)
        handle = self.processor.handleExpiredTimer
        self._collect(handle, _as_tuple(timer.key), self._times(), info)
        # As in Spark the timer is listed until it has been handled, and gone then.
        self._handle.deleteTimer(timer.timestamp)

    def _collect(self, handle: Any, *arguments: Any) -> None:
        try:
            results: Iterable[Any] | None = handle(*arguments)
            self._collector.passed = 0
            self._collector.collect_all(results or ())
        except Exception as error:  # noqa: BLE001 -- raised, named
            raise_as(self.user_error(error), error)

    def _times(self) -> SparkTimerValues:
        if self.time_mode == "none":
            return SparkTimerValues(-1, -1)
        now_ms = self._timers.current_processing_time()
        return SparkTimerValues(now_ms, max(self.watermark_ms, 0))

    def _register(self, timestamp_ms: int) -> None:
        key = self.context.keyed_state.current_key
        if self.time_mode == "event":
            self._timers.register_event_time_timer(key, VOID, timestamp_ms)
        elif self.time_mode == "processing":
            self._timers.register_processing_time_timer(key, VOID, timestamp_ms)
        else:
            raise StateError(
                'a processor with time_mode="None" has no timers. Write '
                'transform_with_state(..., time_mode="EventTime") or "ProcessingTime".'
            )

    def _delete(self, timestamp_ms: int) -> None:
        key = self.context.keyed_state.current_key
        if self.time_mode == "event":
            self._timers.delete_event_time_timer(key, VOID, timestamp_ms)
        elif self.time_mode == "processing":
            self._timers.delete_processing_time_timer(key, VOID, timestamp_ms)


def _as_tuple(key: Any) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)
