"""Which windows a record belongs to, and what assigners refuse."""

from __future__ import annotations

from typing import Any

import pytest

from aiomailbox.errors import InvalidArgumentError, TimestampError
from aiomailbox.windowing.assigners import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WindowAssigner,
)

FILE = "window_assign"


def assigner_of(case: dict[str, Any]) -> WindowAssigner:
    match case["assigner"]:
        case "tumbling":
            return TumblingEventTimeWindows(case["size"], case["offset"])
        case "sliding":
            return SlidingEventTimeWindows(case["size"], case["slide"], case["offset"])
    return EventTimeSessionWindows(case["gap"])


def assigned(case: dict[str, Any]) -> list[list[int]]:
    windows = assigner_of(case).assign(None, case["timestamp"], 0)
    return [[window.start, window.end] for window in windows]


def run_case(case: dict[str, Any]) -> None:
    if "exception" not in case:
        assert assigned(case) == case["windows"]
        return
    refused = case["exception"] == "java.lang.IllegalArgumentException"
    with pytest.raises(InvalidArgumentError if refused else TimestampError):
        assigned(case)
