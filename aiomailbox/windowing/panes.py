"""Sliding event-time windows that share what is added: the fast way for many windows.

Theory of operation: time is divided into panes such that every window is made of whole
ones. A record is added once, to its pane. When a window ends, what its panes hold is
merged (see `aiomailbox.windowing.panes`). A snapshot holds the contents of
windows, as those of the other fast ways do; what was restored stays with its window,
beside the panes, so that it needs no watermark to tell what has fired.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, Protocol

from aiomailbox.operators.aggregates.functions import can_merge, is_commutative
from aiomailbox.operators.core.failures import USER_ERRORS, raise_as
from aiomailbox.operators.core.operator import Pending, then
from aiomailbox.operators.keyed.operators import Settled
from aiomailbox.records.events import MAX_TIMESTAMP, MIN_TIMESTAMP
from aiomailbox.state.layers import DictSnapshot, frozen_items
from aiomailbox.state.snapshot import KeyedStateSnapshot
from aiomailbox.windowing.aggregate import (
    Contents,
    ContentsByStart,
    EndingWindow,
    TumblingAggregateOperator,
    readable,
    window_rows,
)
from aiomailbox.windowing.assigners import SlidingEventTimeWindows, required_timestamp
from aiomailbox.windowing.spec import WindowSpec
from aiomailbox.windowing.time_window import TimeWindow, Window

# The contents of windows that overlap, merged from the panes that they share.
#
# Theory of operation: the panes are looked at in blocks of one window's size, which lie
# at the same places of the time axis whatever is asked for first: so panes are added up
# in the same order always, and sums of floats do not depend on when a window was made.
# A window that begins in a block ends in the next one, so its content is that of the
# rest of the block, from its start on, and that of the next block up to its end. The
# first are made for all windows of a block at once, from the last pane to the first;
# the second is one content per key that grows from window to window. So a pane is
# merged a fixed number of times, in however many windows it is.


# Merges take about a microsecond, and the event loop waits for one step.
STEP_LENGTH: Final = 256


class FailedMerge:
    """The mark of a content that could not be merged, and stays so.

    Attributes:
        error: What merging raised.
        parts: What was to be merged; the first part may have been changed.
    """

    __slots__ = ("error", "parts")

    def __init__(self, error: BaseException, parts: list[Any]) -> None:
        self.error: BaseException = error
        self.parts: list[Any] = parts


class ForgivingMerge:
    """Merges like an aggregate, but a failure concerns only what was to be merged.

    Args:
        aggregate: An aggregate function.
    """

    def __init__(self, aggregate: Any) -> None:
        self._aggregate = aggregate

    def create_accumulator(self) -> None:
        """Return None: the first merge makes the accumulator."""
        return

    def merge(self, first: Any, second: Any) -> Any:
        """Return what both hold, or a `FailedMerge`."""
        if type(second) is FailedMerge:
            if first is None:
                return second
            return FailedMerge(second.error, [first, *second.parts])
        if type(first) is FailedMerge:
            return FailedMerge(first.error, [*first.parts, second])
        aggregate = self._aggregate
        try:
            if first is None:
                first = aggregate.create_accumulator()
            return aggregate.merge(first, second)
        except USER_ERRORS as error:
            return FailedMerge(error, [first, second])


class RunningMerge:
    """Merges panes to windows, which are asked for from the earliest to the latest.

    Args:
        panes: Returns ``{key: accumulator}`` of a pane by its start, which is looked at
            and never changed; None if there is nothing.
        aggregate: Creates and merges accumulators; see `commutative`.
        size: Of a window, a multiple of ``pane``; milliseconds like all that follows.
        slide: Between the starts of two windows, a multiple of ``pane``.
        pane: Length of a pane.
        offset: The start of some window.
        last: The start of the last window that is asked for; others cost nothing.

    Invariants:
        ``_block`` is ``offset`` and a multiple of ``size``, and ``_rests`` has all windows that begin in the
        block, from the one that is taken next up to the last.
        ``_grown`` holds the panes from ``_block + size`` up to ``_grown_to``.

    Cost:
        Per key and pane three merges, and per key and window one copy.

    Concept:
        Two stacks, as in Tangwongsan et al., "General Incremental Sliding-Window
        Aggregation", VLDB 2015.

    Example:
        >>> from aiomailbox.operators.aggregates.functions import sum_
        >>> panes = {0: {"a": [1]}, 5: {"a": [2], "b": [3]}, 10: {"b": [4]}}
        >>> merge = RunningMerge(panes.get, sum_(int), size=10, slide=5, pane=5)
        >>> merge.take(0), merge.take(5)
        ({'a': [3], 'b': [3]}, {'a': [2], 'b': [7]})
    """

    def __init__(
        self,
        panes: Callable[[int], Contents | None],
        aggregate: Any,
        *,
        size: int,
        slide: int,
        pane: int,
        offset: int = 0,
        last: int = MAX_TIMESTAMP,
    ) -> None:
        self._last = last
        self._offset = offset
        self._panes = panes
        self._aggregate = aggregate
        self._size = size
        self._slide = slide
        self._pane = pane
        # Before all windows.
        self._block = MIN_TIMESTAMP - 2 * size
        self._grown_to = self._block + size
        self._rests: dict[int, Contents] = {}
        self._grown: Contents = {}

    def resume(
        self, block: int, grown_to: int, rests: dict[int, Contents], grown: Contents
    ) -> None:
        """Go on where another merge of the same panes has come to.

        Args:
            block: Where its block begins.
            grown_to: Up to where it has merged panes of the next block.
            rests: Of the windows that begin in the block and were not taken.
            grown: The panes of the next block up to ``grown_to``, merged.
        """
        self._block, self._grown_to = block, grown_to
        self._rests, self._grown = rests, grown

    def take(self, start: int) -> Contents:
        """Return what a window holds; nothing else refers to it.

        Args:
            start: Of the window; after that of the one before.
        """
        *_, contents = self.steps(start)
        assert contents is not None, "the last step gives the contents"
        return contents

    def steps(self, start: int) -> Iterator[Contents | None]:
        """Do as `take`, step by step of at most `STEP_LENGTH` merges.

        Yields:
            None after each step but the last, which gives what the window holds. Not
            its return value: a user's ``StopIteration`` must not look like the end.
        """
        if start >= self._block + self._size:
            # Blocks lie at fixed places: sums of floats are the same whatever was asked
            # first.
            block = start - (start - self._offset) % self._size
            yield from self._begin_block(block)
        yield from self._grow(start + self._size)
        contents = self._rests.pop(start, {})
        yield from self._merge_steps(contents, self._grown)
        yield contents

    def add(self, pane: int, key: Any, one: Any) -> None:
        """Be notified that a pane got one more record, after windows were taken.

        Args:
            pane: Its start.
            key: Of the record.
            one: An accumulator that holds the record and nothing else.
        """
        end = self._block + self._size
        if end <= pane < self._grown_to:
            self.merge_into(self._grown, {key: one})
        elif self._block <= pane < end:
            # Of a block's windows only those that begin before the pane hold it.
            for start, contents in self._rests.items():
                if start <= pane:
                    self.merge_into(contents, {key: one})

    def merge_into(self, contents: Contents, others: Contents) -> None:
        """Put others into contents, key by key; the others stay as they are."""
        self._merge_items(contents, frozen_items(others))

    def _merge_items(
        self, contents: Contents, items: Iterable[tuple[Any, Any]]
    ) -> None:
        create, merge = self._aggregate.create_accumulator, self._aggregate.merge
        get = contents.get
        for key, other in items:
            found = get(key)
            contents[key] = merge(create() if found is None else found, other)

    def _merge_steps(self, contents: Contents, others: Contents) -> Iterator[None]:
        items = iter(frozen_items(others))
        for _ in range(len(others) // STEP_LENGTH):
            self._merge_items(contents, islice(items, STEP_LENGTH))
            yield
        self._merge_items(contents, items)

    def _begin_block(self, block: int) -> Iterator[None]:
        self._block, self._grown_to = block, block + self._size
        self._grown = {}
        self._rests = {}
        rest: Contents = {}
        for pane in range(self._grown_to - self._pane, block - 1, -self._pane):
            found = self._panes(pane)
            if found:
                yield from self._merge_steps(rest, found)
            if pane <= self._last and (pane - self._offset) % self._slide == 0:
                # Also where nothing is yet: a record may still come late.
                self._rests[pane] = {}
                yield from self._merge_steps(self._rests[pane], rest)

    def _grow(self, end: int) -> Iterator[None]:
        for pane in range(self._grown_to, end, self._pane):
            found = self._panes(pane)
            if found:
                yield from self._merge_steps(self._grown, found)
        self._grown_to = max(self._grown_to, end)


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
        unshared = functools.cache(lambda: self._unshared(*snapshots, rest))
        if self._failures.may_fail:
            # What cannot be merged is reported, by the operator itself.
            unshared()

        def unfired() -> Iterable[tuple[int, Contents]]:
            return unshared()[0].items()

        def fired() -> Iterable[tuple[int, Contents]]:
            return unshared()[1].items()

        return self._windows_snapshot(window_rows(unfired), window_rows(fired))

    def layered(self) -> list[Settled]:
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

    def _keep_for_late(self, window: Window, contents: Contents) -> None:
        """Keep nothing: what late records need is in the panes."""

    def _forget_over(self, count: int) -> bool:
        over = self.watermark_ms - self._lateness - self._size + 1
        last = self._next_start(over) - 1
        return super()._forget_over(count) and self._panes.forget_until(last, count)

    def _results(self, window: Window, contents: Contents) -> list[Any]:
        if self._failures.may_fail:
            self._report(window, contents)
            if self._told:
                self._told -= {(window.start, key) for key in contents}
            contents = _mergeable(contents)
        return super()._results(window, contents)

    def _report(self, window: Window, contents: Contents) -> None:
        """Report what could not be merged, if that has not been done."""
        for key, content in contents.items():
            one = (window.start, key)
            if type(content) is FailedMerge and one not in self._told:
                self._told.add(one)
                self._failures.take_window(key, window, content.parts, content.error)

    def _add_all(
        self, keys: Iterator[Any], values: Iterator[Any], stamps: Iterator[int]
    ) -> None:
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
