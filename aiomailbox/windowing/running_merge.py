"""The contents of windows that overlap, merged from the panes that they share.

Theory of operation: the panes are looked at in blocks of one window's size, which lie
at the same places of the time axis whatever is asked for first: so panes are added up in
the same order always, and sums of floats do not depend on when a window was made. A window
that begins in a block ends in the next one, so its content is that of the rest of the
block, from its start on, and that of the next block up to its end. The first are made
for all windows of a block at once, from the last pane to the first; the second is one
content per key that grows from window to window. So a pane is merged a fixed number of
times, in however many windows it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

from aiomailbox.operators.core.on_error import USER_ERRORS
from aiomailbox.records.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from aiomailbox.state.layers import frozen_items
from aiomailbox.windowing.open_windows import Contents

# Merges take about a microsecond, and the event loop waits for one step.
STEP_LENGTH: Final = 256


class FailedMerge:
    """What stands for a content that could not be merged, and stays so.

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

    __slots__ = ("_aggregate",)

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

    __slots__ = (
        "_aggregate",
        "_block",
        "_grown",
        "_grown_to",
        "_last",
        "_offset",
        "_pane",
        "_panes",
        "_rests",
        "_size",
        "_slide",
    )

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
