"""Sliding event-time windows with incremental aggregation: the fast way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aiomailbox.operators.core.on_error import USER_ERRORS
from aiomailbox.windowing.assigners import required_timestamp
from aiomailbox.windowing.open_windows import Contents
from aiomailbox.windowing.time_window import TimeWindow
from aiomailbox.windowing.tumbling import TumblingAggregateOperator
from aiomailbox.windowing.undo_log import UndoLog
from aiomailbox.windowing.window_spec import WindowSpec


class SlidingAggregateOperator(TumblingAggregateOperator):
    """Aggregates sliding event-time windows that fire when they end.

    Made by `window_operator` where it applies. A record is added to each of its
    windows.

    Args:
        spec: Key, windows, lateness and errors; the trigger is the default one.
        aggregate: A plain (not ``async def``) aggregate function.

    Concept:
        Flink, ``WindowOperator`` with ``SlidingEventTimeWindows``.
    """

    def __init__(self, spec: WindowSpec, aggregate: Any) -> None:
        super().__init__(spec, aggregate)
        self._slide: int = spec.assigner.slide_ms

    def _add_all(
        self, keys: Iterator[Any], values: Iterator[Any], stamps: Iterator[int]
    ) -> None:
        """Add record by record until something raises."""
        contents, add = self._open.contents, self._aggregate.add
        size, slide = self._size, self._slide
        offset, ended = self._offset, self._ended
        # Read once per run: the watermark does not move within one.
        if self._log is not None:
            self._add_undoably(self._log, keys, values, stamps)
            return
        for key, value, stamp in zip(keys, values, stamps, strict=True):
            last = stamp - (stamp - offset) % slide
            skipped = True
            for start in range(last, stamp - size, -slide):
                if start <= ended:
                    if self._add_late(key, value, stamp, start):
                        skipped = False
                    continue
                skipped = False
                window = contents.get(start)
                if window is None:
                    window = self._open.of(start)
                accumulator = window.get(key)
                if accumulator is None:
                    self._begin(window, key, value, start)
                else:
                    window[key] = add(value, accumulator)
            if skipped:
                self._skip(value, stamp)

    def _add_undoably(
        self,
        log: UndoLog,
        keys: Iterator[Any],
        values: Iterator[Any],
        stamps: Iterator[int],
    ) -> None:
        """Add records each to all of its windows or, if that raises, to none."""
        size, slide = self._size, self._slide
        offset, ended = self._offset, self._ended
        for key, value, stamp in zip(keys, values, stamps, strict=True):
            last = stamp - (stamp - offset) % slide
            late: list[tuple[TimeWindow, Any]] = []
            skipped = True
            try:
                for start in range(last, stamp - size, -slide):
                    if start > ended:
                        self._revive(log, key, start)
                        self._add_noted(log, self._open.of(start), key, value)
                    else:
                        required_timestamp(stamp)
                        window = TimeWindow(start, start + size)
                        if self._is_over(window):
                            continue
                        fired = self._fired.of(start)
                        late.append((window, self._add_noted(log, fired, key, value)))
                    skipped = False
            except USER_ERRORS:
                log.undo()
                raise
            log.clear()
            for window, accumulator in late:
                self._collect(key, window, accumulator)
            if skipped:
                self._skip(value, stamp)

    def _revive(self, log: UndoLog, key: Any, start: int) -> None:
        """Take over what a window that has not ended had fired before a restore."""
        fired, window = self._fired.contents.get(start, {}), self._open.of(start)
        if key in fired and key not in window:
            log.note(fired.__setitem__, key, fired[key])
            log.note(window.pop, key)
            window[key] = fired.pop(key)

    def _add_noted(self, log: UndoLog, window: Contents, key: Any, value: Any) -> Any:
        """Add a record to what a window holds of its key; return all of that."""
        aggregate, held = self._aggregate, window.get(key)
        if held is None:
            held = aggregate.create_accumulator()
            log.note(window.pop, key, None)
        else:
            log.note(self._reset, window, key, held, aggregate.mark(value, held))
        added = window[key] = aggregate.add(value, held)
        return added

    def _reset(self, window: Contents, key: Any, held: Any, mark: Any) -> None:
        window[key] = self._aggregate.reset(held, mark)
