"""Event-time windows with incremental aggregation: the fast way."""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import islice
from operator import length_hint
from typing import Any, Final

from aiomailbox.errors import TimestampError, add_note
from aiomailbox.operators.aggregates.functions import Aggregate, warn_of_text
from aiomailbox.operators.aggregates.undoing import undoable
from aiomailbox.operators.core.context import LateRecords
from aiomailbox.operators.core.failures import USER_ERRORS, raise_as
from aiomailbox.operators.core.fields import why_rows
from aiomailbox.operators.core.operator import Pending, then
from aiomailbox.operators.core.slices import Slices, done_after, in_slices
from aiomailbox.operators.core.user_code import OnError, describe
from aiomailbox.operators.core.watched import collector_for
from aiomailbox.operators.keyed.operators import KeyReader, Settled, StatefulOperator
from aiomailbox.records.events import MAX_TIMESTAMP, MIN_TIMESTAMP
from aiomailbox.records.run import RUN_LENGTH_MAX, ListRun, Run
from aiomailbox.state.descriptors import AccumulatorDescriptor
from aiomailbox.state.layers import (
    DictSnapshot,
    Layer,
    Layered,
    LayeredDict,
    frozen_items,
)
from aiomailbox.state.operator_state import OperatorStateSnapshot
from aiomailbox.state.snapshot import (
    KeyedStateSnapshot,
    SnapshotRows,
    copy_content,
)
from aiomailbox.state.store import NamespacedTable
from aiomailbox.windowing.assigners import required_timestamp
from aiomailbox.windowing.contents import UndoLog, check_windows_restored
from aiomailbox.windowing.incremental import watch_reduce, window_result
from aiomailbox.windowing.operator import WindowFailures
from aiomailbox.windowing.spec import WindowSpec, key_function
from aiomailbox.windowing.time_window import (
    TimeWindow,
    Window,
    kept_offsets,
    with_offset,
)

# What is in which window or pane, by its start and then by key.


# ``key -> content`` of one window.
Contents = dict[Any, Any]


_TURNED_MAX: Final = 16_384


class ContentsByStart(Layered):
    """Contents of stretches of time of one length, earliest first.

    Attributes:
        contents: ``start -> {key: content}``; may be empty for a start. It is another
            mapping after `snapshot` and `settle`.

    Invariants:
        The heap holds each start of ``contents`` exactly once.

    Example:
        >>> panes = ContentsByStart()
        >>> panes.of(60_000)["a"] = 7
        >>> panes.first_until(60_000), panes.pop(60_000), panes.first_until(60_000)
        (60000, {'a': 7}, None)
    """

    def __init__(self) -> None:
        super().__init__(LayeredDict(layer_over))
        self._heap: list[int] = []

    def _bind(self) -> None:
        self.contents: Any = self._layers.live

    def peek(self, start: int) -> Contents | None:
        """Return what begins there, to be read and not changed."""
        contents = self.contents
        return contents.peek(start) if self.has_snapshot else contents.get(start)

    def of(self, start: int) -> Contents:
        """Return what begins there, to be changed; it may be new and empty."""
        # For a reader: with a snapshot, `get` would copy what is only looked at.
        contents: Contents | None = self.contents.get(start)
        if contents is None:
            contents = self.contents[start] = {}
            heapq.heappush(self._heap, start)
        return contents

    def first_until(self, limit: int) -> int | None:
        """Return the earliest start if it is not after ``limit``."""
        heap = self._heap
        return heap[0] if heap and heap[0] <= limit else None

    def pop(self, start: int) -> Contents:
        """Take out what begins there, which must be the earliest."""
        first = heapq.heappop(self._heap)
        assert first == start, "contents are taken out earliest first"
        return self.contents.pop(start)

    def forget_until(self, limit: int, count: int) -> bool:
        """Forget at most so many contents of what begins at or before ``limit``.

        Returns:
            Whether all of that is forgotten.
        """
        while (start := self.first_until(limit)) is not None:
            contents = self.contents[start]
            if len(contents) > count:
                for _ in range(count):
                    contents.popitem()
                return False
            count -= len(contents)
            self.pop(start)
        return True


class EndingWindow:
    """A window that is being emitted: what is left of it.

    Args:
        start: Where it begins.
        contents: What is to be emitted; it is used up.

    Attributes:
        start: Where it begins.
        contents: What has not been emitted yet.

    Example:
        >>> window = EndingWindow(60_000, dict(a=1, b=2, c=3, d=4, e=5))
        >>> window.take(2), window.take(2), window.contents
        ({'a': 1, 'b': 2}, {'c': 3, 'd': 4, 'e': 5}, {})
    """

    def __init__(self, start: int, contents: Contents) -> None:
        self.start: int = start
        self._layers: LayeredDict[Any, Any] = LayeredDict(copy_content, contents)
        self._is_turned = False

    @property
    def contents(self) -> Any:
        """The contents that have not been emitted yet."""
        return self._layers.live

    def snapshot(self) -> DictSnapshot:
        """Return what has not been emitted yet, for a thread to read."""
        return self._layers.snapshot()

    def take(self, count: int) -> Contents:
        """Take out about so many contents; all of them if there are not twice as many.

        They come in the order in which they were put in, but for windows of very many
        keys, which come the other way round.
        """
        contents = self.contents
        # Not worth another round: the rest goes with it.
        if len(contents) <= 2 * count:
            self._layers.live = {}
            if type(contents) is not dict:
                return dict(contents)
            return dict(reversed(contents.items())) if self._is_turned else contents
        if type(contents) is dict and not self._is_turned:
            self._is_turned = True
            # The only cheap end of a dict is its end. Turning it around takes 60 ns
            # per key, and that in one piece.
            if len(contents) <= _TURNED_MAX:
                self._layers.live = contents = dict(reversed(contents.items()))
        popitem = contents.popitem
        return dict([popitem() for _ in range(count)])


class OpenWindows(ContentsByStart):
    """The contents of windows, in the order of the windows.

    They are laid out by window, because all contents of one are emitted and forgotten
    at once.

    Args:
        table: Where a restore has put them, by key and window start.

    Example:
        >>> from aiomailbox.state.backends import HeapNamespacedTable
        >>> table = HeapNamespacedTable()
        >>> table.put("a", 60_000, 7)
        >>> windows = OpenWindows(table)
        >>> windows.take_over(100), windows.contents, table.get("a", 60_000)
        (False, {60000: {'a': 7}}, None)
    """

    def __init__(self, table: NamespacedTable) -> None:
        super().__init__()
        self._table = table

    def take_over(self, count: int) -> bool:
        """Take about so many contents out of the table; say whether none are left."""
        entries = self._table.drain(count)
        for key, start, content in entries:
            self.of(start)[key] = content
        return not entries


def window_rows(
    windows: Callable[[], Iterable[tuple[int, Contents]]],
) -> SnapshotRows:
    """Return windows as a snapshot has them: key, window start, content.

    Args:
        windows: Yields ``(start, {key: content})``, when they are read.
    """

    def columns(count: int) -> Iterator[tuple[list[Any], ...]]:
        for start, contents in windows():
            items = iter(frozen_items(contents))
            while some := list(islice(items, count)):
                keys, found = zip(*some, strict=True)
                yield list(keys), [start] * len(keys), list(found)

    return SnapshotRows(3, columns)


def layer_over(contents: Contents) -> Any:
    """Return what may be changed, while the contents of a window must stay."""
    return Layer(contents, copy_content)


def readable(windows: Iterable[tuple[int, Contents]]) -> dict[int, Contents]:
    """Return the contents of a snapshot's windows as dicts, which must not be changed."""
    return {
        start: contents if type(contents) is dict else dict(frozen_items(contents))
        for start, contents in windows
    }


# Tumbling event-time windows with incremental aggregation: the fast way.
#
# Theory of operation: accumulators are kept by window and then by key, so that a window
# is emitted as a whole, and no timers are needed, since all a timer could say follows
# from them: a window with content has not fired. What has fired but may still get late
# records is kept apart. `aiomailbox.windowing.operator` gives the same results for all
# windows; this one gives them in one loop over a run.


class AggregateWindowsOperator(StatefulOperator):
    """The base of operators that aggregate windows in one loop over a run.

    Args:
        spec: Key, windows, lateness and errors; the trigger is the default one.
        aggregate: A plain (not ``async def``) aggregate function.
    """

    _failures: WindowFailures

    def __init__(self, spec: WindowSpec, aggregate: Any) -> None:
        super().__init__()
        self._spec = spec
        self._given = aggregate
        self._lateness = spec.allowed_lateness_ms
        self.late_tags = spec.late_tags
        self.on_error: OnError = spec.on_error
        # Whether contents outlive their emission.
        self._forgets = False
        self._result = window_result(
            aggregate, keyed=spec.key is not None, include_key=spec.include_key
        )

    def rows_reason(self) -> str:
        """Return the reduce function, or the key function, that asks for rows."""
        reduce = getattr(self._given, "reduce_function", None)
        if reduce is not None:
            return describe(reduce)
        return "" if self._spec.key is None else why_rows(self._spec.key)

    def check_restored(self) -> None:
        """Refuse windows that were kept in another way."""
        check_windows_restored(self.context)

    def open(self) -> Pending:
        """Make what is needed besides the state."""
        context = self.context
        # Windows are kept beside the store, whose size says nothing of them.
        for name in ("state_keys", "state_bytes"):
            context.metrics.gauge(name, lambda: None)
        self._keys = KeyReader(key_function(self._spec.key), self)
        self._collector = collector_for(self.context, self.output)
        self._failures = WindowFailures(self, self._given.add)
        watch_reduce(self._given, context.mutations, context.log)
        warn_of_text(self._given, context.log)
        self._aggregate: Any = self._given
        self._log: UndoLog | None = None
        if self._failures.may_fail:
            self._aggregate, self._log = undoable(self._given), UndoLog()
        self._dropped = LateRecords(context.metrics, context.repeated)
        self._slices = Slices(context, self.output, self.emit_collected)
        self._results_taken: list[Any] = []
        self._stamps_taken: list[int] = []
        return None

    def process_run(self, run: Run) -> Pending:
        """Add each record to its window."""
        values = run.values
        if not values:
            return None
        self.begin_run(run)
        stamps = run.timestamps
        if stamps is None:
            stamps = [MIN_TIMESTAMP] * len(values)
        keys = iter(self._keys.read(values))
        # Iterators that stand where the failure was: the loop goes on behind it.
        remaining, times = iter(values), self._times(stamps)
        while True:
            try:
                self._add_all(keys, remaining, times)
                break
            except TimestampError as error:
                add_note(error, f"in {self.place}")
                raise
            except USER_ERRORS as error:
                index = len(values) - length_hint(remaining) - 1
                self._failures.take(values[index], stamps[index], error)
        pending = self._failures.report() if self._failures.waiting else None
        return then(pending, self._collector.emit)

    def fire(self, timestamp_ms: int) -> Pending:
        """Emit what ends, and forget what is over, in pieces."""
        pending = then(self._slices.run(self._emit_ended), self.emit_collected)
        if not self._forgets:
            return pending
        return then(pending, self._slices.run, self._forget_over)

    def emit_collected(self) -> Pending:
        """Pass on what was taken of windows that ended, and what failed."""
        results, stamps = self._results_taken, self._stamps_taken
        pending: Pending = None
        if results:
            self._results_taken, self._stamps_taken = [], []
            pending = self.output.emit_run(ListRun(results, stamps))
        if self._failures.waiting:
            pending = then(pending, self._failures.report)
        return pending

    def _emit_ended(self, count: int) -> bool | Awaitable[bool]:
        results = self._results_taken
        done = self._take_ended(count, results, self._stamps_taken)
        if len(results) < RUN_LENGTH_MAX and not self._failures.waiting:
            return done
        pending = self.emit_collected()
        return done_after(pending, done=done)

    def _times(self, stamps: list[int]) -> Iterator[int]:
        """Return the times by which records are put into windows."""
        return iter(stamps)

    def _add_all(
        self, keys: Iterator[Any], values: Iterator[Any], stamps: Iterator[int]
    ) -> None:
        """Add record by record until something raises, which leaves no trace."""
        raise TypeError(f"{type(self).__name__} defines no _add_all")

    def _take_ended(self, count: int, results: list[Any], stamps: list[int]) -> bool:
        """Take about so many results of what the watermark has ended.

        Args:
            count: How many.
            results: Where they are added.
            stamps: Where their event times are added.

        Returns:
            Whether these were the last.
        """
        raise TypeError(f"{type(self).__name__} defines no _take_ended")

    def _forget_over(self, count: int) -> bool:
        """Forget about so many contents that nothing can come to any more."""
        return True

    def _collect(self, key: Any, window: TimeWindow, accumulator: Any) -> None:
        """Emit what a window has that ended before the record came."""
        self._collector.timestamp = window.max_timestamp
        for result in self._results(window, {key: accumulator}):
            self._collector.collect(result)

    def _results(self, window: Window, contents: Contents) -> list[Any]:
        """Return what a window emits for its keys, but for those that fail."""
        if not self._failures.may_fail:
            try:
                return self._result.of_all(window, contents)
            except USER_ERRORS as error:
                raise_as(self.user_error(error), error)
        results: list[Any] = []
        for key, accumulator in contents.items():
            try:
                results.append(self._result.of_one(key, window, accumulator))
            except USER_ERRORS as error:
                self._failures.take_window(key, window, [accumulator], error)
        return results

    def _skip(self, value: Any, stamp: int) -> None:
        """Drop a record that no window took; it may have come too late."""
        required_timestamp(stamp)
        if stamp + self._lateness > self.watermark_ms:
            return
        if self._spec.late_tag is None:
            self._dropped.drop(stamp, self.watermark_ms)
            return
        self._collector.timestamp = stamp
        self._collector.collect_side(self._spec.late_tag, value)


class TumblingAggregateOperator(AggregateWindowsOperator):
    """Aggregates tumbling event-time windows that fire when they end.

    Made by `window_operator` where it applies.

    Args:
        spec: Key, windows, lateness and errors; the trigger is the default one.
        aggregate: A plain (not ``async def``) aggregate function.

    Concept:
        Flink, ``WindowOperator``, for its most frequent use.
    """

    def __init__(self, spec: WindowSpec, aggregate: Any) -> None:
        super().__init__(spec, aggregate)
        self._size: int = spec.assigner.size_ms
        # Of windows that have not fired, and that have; the names are in snapshots.
        self._states = [
            AccumulatorDescriptor(name, aggregate)
            for name in ("open-windows", "fired-windows")
        ]
        self._ending: EndingWindow | None = None
        self._forgets = self._lateness > 0
        self._offsets: list[int] = []
        self._pour: Callable[..., None] | None = None

    def open(self) -> Pending:
        context = self.context
        store = context.keyed_state
        self._open, self._fired = [
            OpenWindows(store.namespaced(state)) for state in self._states
        ]
        self._assigner = self._spec.assigner.for_subtask(context.random, self._offsets)
        self._offset: int = self._assigner.offset_ms
        pending = in_slices(self._open.take_over)
        pending = then(pending, in_slices, self._fired.take_over)
        return then(then(pending, self._forget_restored), super().open)

    def expect_accumulators(self) -> None:
        for state in self._states:
            self.context.keyed_state.namespaced(state)

    def _forget_restored(self) -> None:
        # Kept for late records of an earlier run, also if there are none any more.
        self._forgets = self._forgets or bool(self._fired.contents)

    def snapshot_own(self) -> OperatorStateSnapshot:
        """Return also where the windows begin, if they differ from subtask to subtask."""
        return with_offset(super().snapshot_own(), self._assigner.kept_offset())

    def restore_own(self, own: OperatorStateSnapshot) -> None:
        """Let windows begin where they did."""
        super().restore_own(own)
        self._offsets = kept_offsets(own)

    def snapshot_apart(self) -> Iterable[KeyedStateSnapshot]:
        """Capture the contents of all windows."""
        ending = self._ending
        snapshots = self._open.snapshot(), self._fired.snapshot()
        rest = None if ending is None else (ending.start, ending.snapshot())

        def unfired() -> Iterator[tuple[int, Any]]:
            yield from snapshots[0].items()
            if rest is not None:
                yield rest[0], dict(rest[1].items())

        return [
            self._windows_snapshot(
                window_rows(unfired), window_rows(snapshots[1].items)
            )
        ]

    def layered(self) -> list[Settled]:
        return [*super().layered(), self._open, self._fired]

    def _windows_snapshot(
        self, unfired: SnapshotRows, fired: SnapshotRows
    ) -> KeyedStateSnapshot:
        rows = zip(self._states, (unfired, fired), strict=True)
        return self.snapshot_of(rows, namespaced=True)

    @property
    def _ended(self) -> int:
        """Windows that start here or before have ended.

        `MIN_TIMESTAMP` is always among them, so that a record without event time is
        seen without looking for it.
        """
        # From the watermark alone: a window that ends at it has fired.
        return max(self.watermark_ms - self._size + 1, MIN_TIMESTAMP)

    def _add_all(
        self, keys: Iterator[Any], values: Iterator[Any], stamps: Iterator[int]
    ) -> None:
        # So a window that is there takes records, and nothing more is looked for.
        assert self._open.first_until(self._ended) is None, "what ends is taken out"
        pour = self._pour
        if pour is None and isinstance(self._aggregate, Aggregate):
            pour = self._pour = self._aggregate.pour(self._start_of("stamp"))
        if pour is None:
            pour = self._pour_each
        pour(keys, values, stamps, self._open.contents.get, self._add_first)

    def _start_of(self, stamp: str) -> str:
        """Return the expression of the start of the window with an event time."""
        since = f"({stamp} - {self._offset})" if self._offset else stamp
        return f"{stamp} - {since} % {self._size}"

    def _pour_each(
        self,
        keys: Iterator[Any],
        values: Iterator[Any],
        stamps: Iterator[int],
        window_at: Callable[[int], Contents | None],
        add_first: Callable[[Any, Any, int], None],
    ) -> None:
        """Do what `Aggregate.pour` does with any aggregate function."""
        add, size, offset = self._aggregate.add, self._size, self._offset
        for key, value, stamp in zip(keys, values, stamps, strict=True):
            window = window_at(stamp - (stamp - offset) % size)
            accumulator = None if window is None else window.get(key)
            if window is None or accumulator is None:
                add_first(key, value, stamp)
            else:
                window[key] = add(value, accumulator)

    def _add_first(self, key: Any, value: Any, stamp: int) -> None:
        """Add the first record of a key in a window, or one that came late."""
        start = stamp - (stamp - self._offset) % self._size
        window = self._open.contents.get(start)
        if window is None:
            if start <= self._ended:
                if not self._add_late(key, value, stamp, start):
                    self._skip(value, stamp)
                return
            window = self._open.of(start)
        self._begin(window, key, value, start)

    def _begin(self, window: dict[Any, Any], key: Any, value: Any, start: int) -> None:
        """Add the first record of a key in a window that has not ended."""
        # What is there has fired before a restore.
        fired = self._fired.contents.get(start)
        accumulator = fired.get(key) if fired else None
        if accumulator is None:
            accumulator = self._aggregate.create_accumulator()
        window[key] = self._aggregate.add(value, accumulator)
        if fired:
            fired.pop(key, None)

    def _add_late(self, key: Any, value: Any, stamp: int, start: int) -> bool:
        """Add a record to a window that has ended, and emit; say whether it could be."""
        required_timestamp(stamp)
        window = TimeWindow(start, start + self._size)
        if self._is_over(window):
            return False
        fired = self._fired.of(start)
        accumulator = fired.get(key)
        if accumulator is None:
            accumulator = self._aggregate.create_accumulator()
        fired[key] = accumulator = self._aggregate.add(value, accumulator)
        self._collect(key, window, accumulator)
        return True

    def _is_over(self, window: Window) -> bool:
        cleanup = window.max_timestamp + self._lateness
        return min(cleanup, MAX_TIMESTAMP) <= self.watermark_ms

    def _take_ended(self, count: int, results: list[Any], stamps: list[int]) -> bool:
        """Take the windows that end, each of them maybe in several pieces."""
        left = count
        while left > 0:
            ending = self._ending
            if ending is None:
                start = self._open.first_until(self.watermark_ms - self._size + 1)
                if start is None:
                    return True
                left -= self._begin_to_end(start, left)
                continue
            window = self._window(ending.start)
            contents = ending.take(left)
            if not ending.contents:
                self._ending = None
            left -= len(contents)
            found = self._results(window, contents)
            results += found
            stamps += [window.max_timestamp] * len(found)
            self._keep_for_late(window, contents)
        return False

    def _window(self, start: int) -> Window:
        """Return the window that begins there."""
        return TimeWindow(start, start + self._size)

    def _begin_to_end(self, start: int, count: int) -> int:
        """Begin to emit a window; return how much of ``count`` that took."""
        contents = self._open.pop(start)
        if contents:
            self._ending = EndingWindow(start, contents)
        return 0

    def _keep_for_late(self, window: Window, contents: Contents) -> None:
        """Keep what has fired as long as a late record may come."""
        if self._lateness and not self._is_over(window):
            self._fired.of(window.start).update(contents)

    def _forget_over(self, count: int) -> bool:
        over = self.watermark_ms - self._lateness - self._size + 1
        return self._fired.forget_until(over, count)


# Sliding event-time windows with incremental aggregation: the fast way.


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
