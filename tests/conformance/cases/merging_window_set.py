"""What merging does to the windows of a key.

Which state window survives a merge follows in Flink from the order of a hash set. So
a window may have any of the state windows that were merged into it.
"""

from __future__ import annotations

from typing import Any

from aiomailbox.windowing.assigners import EventTimeSessionWindows
from aiomailbox.windowing.merging import MergingWindowSet
from aiomailbox.windowing.time_window import TimeWindow

FILE = "merging_window_set"


class Replay:
    def __init__(self, gap: int) -> None:
        self.assigner = EventTimeSessionWindows(gap)
        self.windows = MergingWindowSet(self.assigner, {})
        self.legal: dict[TimeWindow, set[TimeWindow]] = {}
        self.calls: list[dict[str, Any]] = []

    def on_merge(
        self,
        result: TimeWindow,
        merged: list[TimeWindow],
        state: TimeWindow,
        states: list[TimeWindow],
    ) -> None:
        legal = {window for each in merged for window in self.legal.pop(each)}
        assert {state, *states} <= legal
        assert len({state, *states}) == len(merged)
        self.legal[result] = legal
        self.calls.append(
            {
                "merge_result": list(result),
                "merged_windows": [list(window) for window in sorted(merged)],
            }
        )

    def add(self, op: dict[str, Any]) -> None:
        self.calls.clear()
        window = TimeWindow(*op["window"])
        result = self.windows.add(window, self.on_merge)
        self.legal.setdefault(result, {result})
        assert list(result) == op["result"]
        assert self.windows.mapping.get(result) in self.legal[result]
        assert TimeWindow(*op["state_window"]) in self.legal[result]
        assert self.calls == [
            {name: call[name] for name in ("merge_result", "merged_windows")}
            for call in op["merge_calls"]
        ]

    def perform(self, op: dict[str, Any]) -> None:
        match op["op"]:
            case "add":
                self.add(op)
            case "retire":
                window = TimeWindow(*op["window"])
                self.windows.retire(window)
                del self.legal[window]
            case "persist_and_reload":
                mapping = dict(self.windows.mapping)
                kept = [list(window) for window, _ in op["mapping"]]
                assert [list(window) for window in sorted(mapping)] == kept
                self.windows = MergingWindowSet(self.assigner, mapping)


def run_case(case: dict[str, Any]) -> None:
    replay = Replay(case["gap"])
    for op in case["ops"]:
        replay.perform(op)
