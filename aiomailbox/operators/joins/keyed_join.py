"""What joins of two keyed streams have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aiomailbox.errors import TimestampError
from aiomailbox.eventtime.timer_queue import Timer
from aiomailbox.operators.core.contract import Pending, then
from aiomailbox.operators.core.on_error import OnError
from aiomailbox.operators.core.repeated import LateRecords
from aiomailbox.operators.core.selectors import field_or_function
from aiomailbox.operators.core.two_input import TwoInputOperator
from aiomailbox.operators.functions.base import FunctionOperator
from aiomailbox.operators.functions.process_context import ProcessContext
from aiomailbox.operators.joins.function import (
    PairCalls,
    ProcessJoinContext,
    check_join_function,
)
from aiomailbox.operators.keyed.key_reader import KeyReader
from aiomailbox.operators.keyed.operators import KeySelector
from aiomailbox.operators.keyed.stateful import StatefulOperator
from aiomailbox.records.elements import MIN_TIMESTAMP, OutputTag
from aiomailbox.records.run import Run
from aiomailbox.state.descriptors import MapStateDescriptor
from aiomailbox.state.store import MapState

_NO_TIME = MIN_TIMESTAMP


@dataclass(slots=True)
class JoinSide:
    """One of the two streams, as the operator keeps it.

    Attributes:
        name: ``left`` or ``right``; also names its timers.
        keys: Reads the keys of its records.
        buffer: Its records of the current key, by event time.
    """

    name: str
    keys: KeyReader
    buffer: MapState


class KeyedJoinOperator(FunctionOperator, StatefulOperator, TwoInputOperator):
    """The base of joins in event time that keep records of both sides per key.

    Args:
        key1: The key of the left stream's records: a field's name or a function.
        key2: The key of the right stream's; keys of both are of one type.
        function: A `ProcessJoinFunction`, or a function ``(left, right)`` → result.
        on_error: What to do with a pair for which the function raises.
    """

    def __init__(
        self, key1: KeySelector, key2: KeySelector, function: Any, on_error: OnError
    ) -> None:
        self._key1 = field_or_function(key1, "key1")
        self._key2 = field_or_function(key2, "key2")
        super().__init__(check_join_function(function), on_error)

    def open(self) -> Pending:
        """Bind state and timers, and open the function."""
        store = self.context.keyed_state
        left_keys = KeyReader(self._key1, self)
        right_keys = KeyReader(self._key2, self, like=left_keys)
        # The names are in snapshots.
        self._left = JoinSide(
            "left", left_keys, store.get_map(MapStateDescriptor("left-buffer"))
        )
        self._right = JoinSide(
            "right", right_keys, store.get_map(MapStateDescriptor("right-buffer"))
        )
        self._dropped = LateRecords(self.context.metrics, self.context.repeated)
        return super().open()

    def make_contexts(self) -> Sequence[ProcessContext]:
        """Return the context of pairs, with what it needs bound."""
        context = ProcessJoinContext(self.context, self._collector)
        self._calls = PairCalls(
            self.function,
            context,
            self._collector,
            self._failures,
            self.context.mutations,
        )
        self._timers = self.timer_service("join-timers", self, self._collector)
        return [context]

    @property
    def named_function(self) -> Callable[..., Any]:
        """The function of two records, or the method of pairs."""
        function: Callable[..., Any] = getattr(
            self.function, "function", self.function.process_element
        )
        return function

    def key_of_input(self, index: int) -> Callable[[Any], Any] | None:
        """Return what reads the key of a side's records."""
        return self._key2 if index else self._key1

    def process_run1(self, run: Run) -> Pending:
        """Join each record of the left stream."""
        return self._process_side(self._left, run)

    def process_run2(self, run: Run) -> Pending:
        """Join each record of the right stream."""
        return self._process_side(self._right, run)

    def emit_collected(self) -> Pending:
        """Pass on results, late records, and pairs that failed."""
        pending = self._failures.report() if self._failures.waiting else None
        return then(pending, self._collector.emit)

    def take(self, side: JoinSide, key: Any, value: Any, stamp: int) -> Pending:
        """Take a record; the state's current key is its key."""
        raise TypeError(f"{type(self).__name__} does not define take")

    def on_event_time(self, timer: Timer) -> Pending:
        """React to a timer that event time has reached."""
        raise TypeError(f"{type(self).__name__} does not define on_event_time")

    def on_processing_time(self, timer: Timer) -> Pending:
        """Do nothing: joins have no timers in processing time."""
        return None

    def drop_late(self, value: Any, stamp: int, tag: OutputTag | None) -> None:
        """Send a record that came too late to a side output, or drop it."""
        if tag is None:
            self._dropped.drop(stamp, self.current_watermark)
            return
        self._collector.timestamp = stamp
        self._collector.collect_side(tag, value)

    def _process_side(self, side: JoinSide, run: Run) -> Pending:
        if not len(run):
            return None
        keys = side.keys.read(run.values)
        pending, index = self._advance(side, run, keys, 0)
        if pending is None:
            return self.emit_collected()
        return self._process_rest(pending, side, run, keys, index)

    def _advance(
        self, side: JoinSide, run: Run, keys: list[Any], start: int
    ) -> tuple[Pending, int]:
        """Take records until one must be awaited; return that and its index."""
        values, stamps = run.values, run.timestamps
        store = self.context.keyed_state
        for index in range(start, len(values)):
            value, key = values[index], keys[index]
            stamp = _NO_TIME if stamps is None else stamps[index]
            if stamp == _NO_TIME:
                raise self._no_time(side, value)
            store.set_current_key(key)
            pending = self.take(side, key, value, stamp)
            if pending is not None:
                return pending, index
        return None, len(values)

    async def _process_rest(
        self,
        pending: Awaitable[None] | None,
        side: JoinSide,
        run: Run,
        keys: list[Any],
        index: int,
    ) -> None:
        interruption = self.interruption
        watch = interruption.start()
        while pending is not None:
            await pending
            if watch.has_waited:
                # What was collected goes out before mail sees the operator's state.
                emitted = self.emit_collected()
                if emitted is not None:
                    await emitted
                if await interruption.look_around(run, index + 1):
                    return
            pending, index = self._advance(side, run, keys, index + 1)
        emitted = self.emit_collected()
        if emitted is not None:
            await emitted

    def _no_time(self, side: JoinSide, value: Any) -> TimestampError:
        return TimestampError(
            f"the {side.name} record {value!r} of operator "
            f"{self.context.operator_name!r} has no event time, by which it is to be "
            "joined. Give the source a watermark strategy with a timestamp assigner, "
            "or use assign_timestamps_and_watermarks before."
        )
