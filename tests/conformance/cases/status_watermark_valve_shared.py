"""Replays the valve's recorded inputs on channels with several subpartitions."""

from __future__ import annotations

from typing import Any

from aiomailbox.eventtime.valve import StatusWatermarkValve

FILE = "status_watermark_valve_shared"
MODULE = "aiomailbox.eventtime"


def run_case(case: dict[str, Any]) -> None:
    ranges = case["channel_subpartition_ranges"]
    valve = StatusWatermarkValve.shared(
        [range(first, last + 1) for first, last in ranges]
    )
    for number, step in enumerate(case["steps"]):
        outputs = valve.input_watermark(
            step["watermark"], step["channel"], step["subpartition"]
        )
        recorded = [["watermark", output.timestamp_ms] for output in outputs]
        assert recorded == step["outputs"], f"step {number}"
