"""Stateful stream processing that you can await: Flink's mailbox task on asyncio."""

from __future__ import annotations

__version__ = "0.1.0"
