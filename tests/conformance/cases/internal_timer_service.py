"""Replays the recorded steps of a timer service."""

from __future__ import annotations

from typing import Any

from aiomailbox.eventtime.manual_time import ManualProcessingTimeService
from aiomailbox.eventtime.timers import InternalTimerService, Timer

FILE = "internal_timer_service"
MODULE = "aiomailbox.eventtime"


class Reacting:
    """The target of the recording: see the header of the file."""

    def __init__(self) -> None:
        self.key: str | None = None
        self.fired: list[list[Any]] = []
        self.time = ManualProcessingTimeService()
        self.timers = InternalTimerService(self, self, self.time, 128)

    def set_current_key(self, key: str) -> None:
        self.key = key

    def on_event_time(self, timer: Timer) -> None:
        timers = self.timers
        self.react(
            "event",
            timer,
            timers.register_event_time_timer,
            timers.delete_event_time_timer,
        )

    def on_processing_time(self, timer: Timer) -> None:
        timers = self.timers
        self.react(
            "processing",
            timer,
            timers.register_processing_time_timer,
            timers.delete_processing_time_timer,
        )

    def react(self, kind: str, timer: Timer, register: Any, delete: Any) -> None:
        timestamp, key, namespace = timer
        self.fired.append([kind, timestamp, key, namespace, self.key == key])
        if namespace == "re" and timestamp < 200:
            register(key, namespace, timestamp + 7)
        if namespace == "del":
            delete(key, "n1", timestamp + 1)

    def perform(self, step: dict[str, Any]) -> None:
        match step["op"].split("_"):
            case ["advance", "watermark"]:
                assert self.timers.advance_watermark(step["watermark"]) is None
            case ["set", "processing", "time"]:
                self.time.set_current_time(step["time"])
            case [verb, kind]:
                method = getattr(self.timers, f"{verb}_{kind}_time_timer")
                method(step["key"], step["namespace"], step["timestamp"])


def run_case(case: dict[str, Any]) -> None:
    replay = Reacting()
    for number, step in enumerate(case["steps"]):
        replay.fired.clear()
        replay.perform(step)
        fired, expected = replay.fired, step["fired"]
        if case["has_ties"]:
            fired, expected = sorted(fired), sorted(expected)
        timers = replay.timers
        counts = [timers.event_time_timer_count, timers.processing_time_timer_count]
        assert fired == expected, f"step {number}"
        assert counts == step["counts"], f"step {number}"
        assert timers.current_watermark == step["current_watermark"], f"step {number}"
