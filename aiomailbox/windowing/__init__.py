"""Windows over keyed streams: assigners, triggers, evictors, and the operators."""

from __future__ import annotations

from aiomailbox.windowing.time_window import merge_windows

__all__ = [
    "merge_windows",
]
