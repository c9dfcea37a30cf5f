"""Checkpoints of a job: when they begin, which tasks take part, what becomes of them.

`CheckpointPlanner` takes every decision and does nothing; `CheckpointConfig` says how
often, and how many of them are kept. `CheckpointWriter` writes what tasks resume from,
and `CheckpointStore` makes it count, and reads it again.
"""

from __future__ import annotations

from aiomailbox.checkpoint.writer import CheckpointWriter

__all__ = [
    "CheckpointWriter",
]
