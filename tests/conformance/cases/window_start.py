"""Where windows begin."""

from __future__ import annotations

from typing import Any

from aiomailbox.windowing.time_window import window_start

FILE = "window_start"


def run_case(case: dict[str, Any]) -> None:
    start = window_start(case["timestamp"], case["offset"], case["size"])
    assert start == case["start"]
