"""Which windows become one."""

from __future__ import annotations

from typing import Any

from aiomailbox.windowing.time_window import TimeWindow, merge_windows

FILE = "window_merge"


def run_case(case: dict[str, Any]) -> None:
    merges = merge_windows(TimeWindow(*window) for window in case["windows"])
    found = [
        {"result": list(result), "merged": [list(window) for window in merged]}
        for result, merged in merges
    ]
    assert found == case["merges"]
    for pair in case["pair"]:
        first, second = TimeWindow(*pair["a"]), TimeWindow(*pair["b"])
        assert first.intersects(second) == pair["intersects"]
        assert list(first.cover(second)) == pair["cover"]
        assert first.max_timestamp == pair["a_max_timestamp"]
