"""Sliding event-time windows that share what is added: the fast way for many windows.

Theory of operation: time is divided into panes such that every window is made of whole
ones. A record is added once, to its pane. When a window ends, what its panes hold is
merged (see `aiomailbox.windowing.running_merge`). A snapshot holds the contents of
windows, as those of the other fast ways do; what was restored stays with its window,
beside the panes, so that it needs no watermark to tell what has fired.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol

from aiomailbox.operators.aggregates.commutative import is_commutative
from aiomailbox.operators.aggregates.functions import can_merge
from aiomailbox.operators.core.contract import Pending, then
from aiomailbox.operators.core.on_error import USER_ERRORS, raise_as
from aiomailbox.operators.keyed.stateful import Layered
from aiomailbox.records.elements import MAX_TIMESTAMP
from aiomailbox.state.layers import DictSnapshot, frozen_items
from aiomailbox.state.snapshot import KeyedStateSnapshot
from aiomailbox.windowing.assigners import SlidingEventTimeWindows, required_timestamp
from aiomailbox.windowing.open_windows import (
    Contents,
    ContentsByStart,
    EndingWindow,
    WindowRows,
    readable,
)
from aiomailbox.windowing.running_merge import (
    STEP_LENGTH,
    FailedMerge,
    ForgivingMerge,
    RunningMerge,
)
from aiomailbox.windowing.time_window import TimeWindow
from aiomailbox.windowing.tumbling import TumblingAggregateOperator
from aiomailbox.windowing.window_spec import WindowSpec

# Contents of windows that have not fired, and that have.
_Both = tuple[dict[int, Contents], dict[int, Contents]]

# Of windows that overlap less, only some records are in two.
_WINDOWS_MIN: Final = 2
# Panes per slide: with many, a pane holds few records, and there are more panes than
# there would be windows.
_PANES_MAX: Final = 4


def may_share_panes(assigner: SlidingEventTimeWindows, aggregate: Any) -> bool:
    """Return whether panes give the same results, and sooner.

    Args:
        assigner: The windows.
        aggregate: Their plain aggregate function, maybe of a reduce function.
    """
    size, slide = assigner.size_ms, assigner.slide_ms
    return (
        is_commutative(aggregate)
        and can_merge(aggregate)
        and size >= _WINDOWS_MIN * slide
        and slide <= _PANES_MAX * math.gcd(size, slide)
    )


class FrozenPanes(Protocol):
    """The contents of panes as they were, for a thread to read."""

    def items(self) -> Iterable[tuple[int, Contents]]:
        """Return the start of each pane with what it holds."""
        ...


class PanedAggregateOperator(TumblingAggregateOperator):
    """Aggregates sliding event-time windows that fire when they end, by panes.

    Made by `window_operator` where it applies.

    Args:
        spec: Key, windows, lateness and errors; the trigger is the default one.
        aggregate: A plain (not ``async def``) aggregate function for which
            `may_share_panes`.

    Invariants:
        ``_open`` has every window that has a pane or restored contents and has not
        ended; ``_fired`` those that ended and still take late records. Both hold only
        restored contents.

    Concept:
        Flink, ``WindowOperator`` with ``SlidingEventTimeWindows``; panes are those of
        Li et al., "No pane, no gain", SIGMOD Record 2005.
    """

    def __init__(self, spec: WindowSpec, aggregate: Any) -> None:
        super().__init__(spec, aggregate)
        self._slide: int = spec.assigner.slide_ms
        # The longest stretch that both beginnings and ends of windows fall on.
        self._pane = math.gcd(self._size, self._slide)
        self._forgets = True

    def open(self) -> Pending:
        """Bind the state."""
        return then(super().open(), self._open_panes)

    def _open_panes(self) -> None:
        self._panes = ContentsByStart()
        # What is merged while a window fires concerns no record any more.
        self._merging = (
            ForgivingMerge(self._given) if self._failures.may_fail else self._given
        )
        self._merge = self._merge_of(self._panes.peek)
        # Starts of windows with the keys whose failed merges a snapshot has reported.
        self._told: set[tuple[int, Any]] = set()
        self._merge_steps: Iterator[Contents | None] | None = None

    def snapshot_apart(self) -> Iterable[KeyedStateSnapshot]:
        """Capture the panes; what windows hold is merged when the snapshot is read."""
        return [self._snapshot_with(self._panes.snapshot())]

    def _snapshot_with(self, panes: FrozenPanes) -> KeyedStateSnapshot:
        """Capture all that is not in panes."""
        ending = self._ending
        rest = None if ending is None else (ending.start, ending.snapshot())
        snapshots = self._open.snapshot(), self._fired.snapshot(), panes
        unshared = _once(lambda: self._unshared(*snapshots, rest))
        if self._failures.may_fail:
            # What cannot be merged is reported, by the operator itself.
            unshared()

        def unfired() -> Iterable[tuple[int, Contents]]:
            return unshared()[0].items()

        def fired() -> Iterable[tuple[int, Contents]]:
            return unshared()[1].items()

        return self._windows_snapshot(WindowRows(unfired), WindowRows(fired))

    def layered(self) -> list[Layered]:
        """Return all that a snapshot is taken of."""
        return [*super().layered(), self._panes]

    def _begin_to_end(self, start: int, count: int) -> int:
        if self._merge_steps is None:
            self._merge_steps = self._merge.steps(start)
        spent = 0
        while spent < count:
            try:
                found = next(self._merge_steps)
            except USER_ERRORS as error:
                raise_as(self.user_error(error), error)
            if found is not None:
                self._merge_steps = None
                self._end(start, found)
                return spent
            spent += STEP_LENGTH
        return spent

    def _end(self, start: int, found: Contents) -> None:
        """Begin to emit a window, given what its panes hold."""
        restored = self._open.pop(start)
        try:
            fired = self._fired.peek(start)
            contents = self._joined({**restored, **_revived(fired, found)}, found)
        except USER_ERRORS as error:
            raise_as(self.user_error(error), error)
        if contents:
            self._ending = EndingWindow(start, contents)
        if not self._is_over(TimeWindow(start, start + self._size)):
            self._fired.of(start).update(restored)

    def _keep_for_late(self, window: TimeWindow, contents: Contents) -> None:
        """Keep nothing: what late records need is in the panes."""

    def _forget_over(self, count: int) -> bool:
        over = self.watermark_ms - self._lateness - self._size + 1
        last = self._next_start(over) - 1
        return super()._forget_over(count) and self._panes.forget_until(last, count)

    def _results(self, window: TimeWindow, contents: Contents) -> list[Any]:
        if self._failures.may_fail:
            self._report(window, contents)
            if self._told:
                self._told -= {(window.start, key) for key in contents}
            contents = _mergeable(contents)
        return super()._results(window, contents)

    def _report(self, window: TimeWindow, contents: Contents) -> None:
        """Report what could not be merged, if that has not been done."""
        for key, content in contents.items():
            one = (window.start, key)
            if type(content) is FailedMerge and one not in self._told:
                self._told.add(one)
                self._failures.take_window(key, window, content.parts, content.error)

    def _add_all(
        self, keys: Iterator[Any], values: Iterator[Any], stamps: Iterator[int]
    ) -> None:
        """Add record by record until something raises."""
        panes = self._panes.contents
        create, add = self._aggregate.create_accumulator, self._aggregate.add
        width, offset = self._pane, self._offset
        # From here on no pane is in a window that has ended.
        fresh = self._next_start(self._ended) - self._slide + self._size
        # Records of panes before it go the long way: a window with them may have ended.
        for key, value, stamp in zip(keys, values, stamps, strict=True):
            start = stamp - (stamp - offset) % width
            if start < fresh:
                if not self._add_late(key, value, stamp, start):
                    self._skip(value, stamp)
                continue
            pane = panes.get(start)
            if pane is None:
                pane = self._begin_pane(start)
            accumulator = pane.get(key)
            pane[key] = add(value, create() if accumulator is None else accumulator)

    def _begin_pane(self, pane: int) -> Contents:
        for start in self._windows_of(pane):
            if start > self._ended:
                self._open.of(start)
        return self._panes.of(pane)

    def _add_late(self, key: Any, value: Any, stamp: int, start: int) -> bool:
        """Add a record to a pane of windows that have ended, and emit these.

        Args:
            key: Of the record.
            value: The record.
            stamp: Its event time.
            start: Of its pane.

        Returns:
            Whether there is a window that is not over.
        """
        required_timestamp(stamp)
        windows = [TimeWindow(at, at + self._size) for at in self._windows_of(start)]
        windows = [window for window in windows if not self._is_over(window)]
        if not windows:
            return False
        aggregate = self._aggregate
        # Added to an accumulator of its own as well: what has been merged of the pane
        # gets just this record.
        one = aggregate.add(value, aggregate.create_accumulator())
        accumulator = self._panes.contents.get(start, {}).get(key)
        if accumulator is None:
            accumulator = aggregate.create_accumulator()
        accumulator = aggregate.add(value, accumulator)
        self._begin_pane(start)[key] = accumulator
        self._merge.add(start, key, one)
        ended = [window for window in windows if window.start <= self._ended]
        for window, content in zip(ended, self._contents_of(key, ended), strict=True):
            self._collect(key, window, content)
        return True

    def _windows_of(self, pane: int) -> range:
        """Return the starts of the windows that a pane is in, latest first."""
        last = self._next_start(pane) - self._slide
        return range(last, pane + self._pane - self._size - 1, -self._slide)

    def _next_start(self, at: int) -> int:
        """Return the start of the first window that begins after ``at``."""
        slide = self._slide
        return at - (at - self._offset) % slide + slide

    def _contents_of(self, key: Any, ended: list[TimeWindow]) -> list[Any]:
        """Return what windows that have ended, latest first, hold of a key."""
        if not ended:
            return []
        panes = self._panes.contents
        mine = {
            start: {key: panes[start][key]}
            for start in range(ended[-1].start, ended[0].end, self._pane)
            if key in panes.get(start, ())
        }
        merge = self._merge_of(mine.get, last=ended[0].start)
        contents: list[Any] = []
        for start, _ in reversed(ended):
            restored = self._fired.of(start)
            before = {key: restored[key]} if key in restored else {}
            contents.append(self._joined(before, merge.take(start))[key])
        return contents[::-1]

    def _joined(self, restored: Contents, found: Contents) -> Contents:
        """Return both, the first unchanged."""
        if not restored:
            return found
        contents: Contents = {}
        self._merge.merge_into(contents, restored)
        self._merge.merge_into(contents, found)
        return contents

    def _unshared(
        self,
        waiting_snapshot: DictSnapshot,
        fired_snapshot: DictSnapshot,
        panes: FrozenPanes,
        rest: tuple[int, DictSnapshot] | None,
    ) -> _Both:
        """Return the contents of the windows that have not fired, and that have."""
        waiting = readable(waiting_snapshot.items())
        fired = readable(fired_snapshot.items())
        merge = self._merge_of(readable(panes.items()).get)
        both: _Both = ({}, {})
        for start in sorted(waiting.keys() | fired.keys()):
            found, before = merge.take(start), fired.get(start, {})
            if start not in waiting:
                both[1][start] = self._joined(before, found)
                continue
            revived = _revived(before, found)
            both[0][start] = self._joined({**waiting[start], **revived}, found)
            both[1][start] = {k: v for k, v in before.items() if k not in revived}
        if rest is not None:
            _leave_ending(both, rest[0], dict(rest[1].items()))
        if self._failures.may_fail:
            self._leave_failed(both)
        return both

    def _leave_failed(self, both: _Both) -> None:
        """Leave out what cannot be merged: it cannot be emitted either.

        It is reported now, unless it was when the window ended, and not again then.
        """
        for start, contents in both[0].items():
            self._report(TimeWindow(start, start + self._size), contents)
        for windows in both:
            for start, contents in windows.items():
                windows[start] = _mergeable(contents)

    def _merge_of(
        self, panes: Callable[[int], Contents | None], last: int = MAX_TIMESTAMP
    ) -> RunningMerge:
        return RunningMerge(
            panes,
            self._merging,
            size=self._size,
            slide=self._slide,
            pane=self._pane,
            offset=self._offset,
            last=last,
        )


def _once(function: Callable[[], _Both]) -> Callable[[], _Both]:
    """Return a function that calls another one when it is first called."""
    found: list[_Both] = []

    def call() -> _Both:
        if not found:
            found.append(function())
        return found[0]

    return call


def _revived(fired: Contents | None, found: Contents) -> Contents:
    """Return what fired before a restore, of keys that got records after it."""
    if not fired:
        return {}
    return {key: content for key, content in frozen_items(fired) if key in found}


def _leave_ending(both: _Both, start: int, left: Contents) -> None:
    """Let what is left of the window that is being emitted be unfired."""
    unfired, fired = both
    unfired[start] = left
    if start in fired:
        fired[start] = {k: v for k, v in fired[start].items() if k not in left}


def _mergeable(contents: Contents) -> Contents:
    """Return the contents but for those that could not be merged."""
    if FailedMerge not in map(type, contents.values()):
        return contents
    return {k: v for k, v in contents.items() if type(v) is not FailedMerge}
