"""Calls of asynchronous functions, many at a time."""

from __future__ import annotations

from aiomailbox.operators.async_io.function import AsyncFunction
from aiomailbox.operators.async_io.operator import AsyncMapOperator
from aiomailbox.operators.async_io.settings import CallSettings

__all__ = ["AsyncFunction", "AsyncMapOperator", "CallSettings"]
