"""Which windows of a key have become one, and where their common state is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiomailbox.errors import IllegalStateError
from aiomailbox.windowing.assigners import MergingWindowAssigner
from aiomailbox.windowing.time_window import TimeWindow

# ``(result, merged windows, result's state window, merged state windows)``.
OnMerge = Callable[[TimeWindow, list[TimeWindow], TimeWindow, list[TimeWindow]], None]


class MergingWindowSet:
    """The windows of one key that are in use, none of which touch.

    State does not move when windows merge: it stays with one of the windows that it
    was first written for, and the mapping tells with which.

    Args:
        assigner: Says which windows become one.
        mapping: Window → state window; changed in place, and all there is to keep.

    Concept:
        Flink, ``MergingWindowSet``.

    Example:
        >>> from aiomailbox.windowing.assigners import EventTimeSessionWindows
        >>> windows = MergingWindowSet(EventTimeSessionWindows(5), {})
        >>> nothing = lambda *merge: None
        >>> windows.add(TimeWindow(0, 5), nothing)
        TimeWindow(start=0, end=5)
        >>> windows.add(TimeWindow(3, 8), nothing)
        TimeWindow(start=0, end=8)
        >>> windows.mapping[TimeWindow(0, 8)]
        TimeWindow(start=0, end=5)
    """

    __slots__ = ("_assigner", "mapping")

    def __init__(
        self,
        assigner: MergingWindowAssigner,
        mapping: dict[TimeWindow, TimeWindow],
    ) -> None:
        self._assigner = assigner
        self.mapping: dict[TimeWindow, TimeWindow] = mapping

    def retire(self, window: TimeWindow) -> None:
        """Forget a window that is in use.

        Raises:
            IllegalStateError: If it is not.
        """
        if self.mapping.pop(window, None) is None:
            raise IllegalStateError(f"{window} is not in use")

    def add(self, window: TimeWindow, on_merge: OnMerge) -> TimeWindow:
        """Add a window and return the one that it is part of from now on.

        Args:
            window: The window of one record.
            on_merge: Called when windows in use become another one, after the mapping
                was changed.
        """
        result = window
        merges = self._assigner.merge([*self.mapping, window])
        for merged_result, group in merges:
            merged = list(group)
            # The new window has no state of its own, unless an equal one is in use.
            if window in merged:
                result = merged_result
                if window not in self.mapping:
                    merged.remove(window)
            # Also merges that the new window is not in: an assigner of the user's may
            # find some.
            self._merge(merged_result, merged, on_merge)
        if result == window:
            # Without a merge its state is where it is itself.
            self.mapping.setdefault(window, window)
        return result

    def _merge(
        self, result: TimeWindow, merged: list[TimeWindow], on_merge: OnMerge
    ) -> None:
        states = [self.mapping.pop(window) for window in merged]
        self.mapping[result] = states[0]
        # A window that only swallowed itself has not grown: nothing is merged.
        if merged != [result]:
            on_merge(result, merged, states[0], states[1:])


def mapping_of(table: Any, key: Any) -> dict[TimeWindow, TimeWindow]:
    """Return the mapping that is kept for a key, or an empty one."""
    return table.get(key) or {}
