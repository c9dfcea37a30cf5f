"""Replays the valve's recorded inputs."""

from __future__ import annotations

from typing import Any

from aiomailbox.eventtime.valve import StatusWatermarkValve
from aiomailbox.records.events import Watermark, WatermarkStatus

FILE = "status_watermark_valve"
MODULE = "aiomailbox.eventtime"


def as_recorded(outputs: Any) -> list[list[Any]]:
    return [
        ["watermark", output.timestamp_ms]
        if isinstance(output, Watermark)
        else ["status", output.value]
        for output in outputs
    ]


def run_case(case: dict[str, Any]) -> None:
    valve = StatusWatermarkValve(case["channels"])
    for number, (channel, kind, timestamp, expected) in enumerate(case["steps"]):
        if kind == "watermark":
            outputs = valve.input_watermark(timestamp, channel)
        else:
            outputs = valve.input_status(WatermarkStatus(kind), channel)
        assert as_recorded(outputs) == expected, f"step {number}"
