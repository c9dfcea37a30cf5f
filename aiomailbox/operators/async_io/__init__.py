"""Calls of asynchronous functions, many at a time."""

from __future__ import annotations

from aiomailbox.operators.async_io.function import AsyncFunction
from aiomailbox.operators.async_io.identity import AsyncCall, current_call
from aiomailbox.operators.async_io.operator import AsyncMapOperator
from aiomailbox.operators.async_io.settings import CallSettings

__all__ = [
    "AsyncCall",
    "AsyncFunction",
    "AsyncMapOperator",
    "CallSettings",
    "current_call",
]
