"""Sliding event-time windows with incremental aggregation: the fast way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aiomailbox.windowing.tumbling import TumblingAggregateOperator
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
