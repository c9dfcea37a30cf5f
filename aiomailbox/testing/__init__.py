"""What tests of streaming code need: time that is an argument, and small fakes."""

from __future__ import annotations

from aiomailbox.testing.clock import ManualClock
from aiomailbox.testing.virtual_time import (
    DeadlockError,
    VirtualTimeLoop,
    virtual_time_loop_factory,
)

__all__ = [
    "DeadlockError",
    "ManualClock",
    "VirtualTimeLoop",
    "virtual_time_loop_factory",
]
