"""Asynchronous functions on keyed streams, with state and timers."""

from __future__ import annotations

from aiomailbox.operators.async_state.context import (
    AsyncKeyedState,
    AsyncTimerService,
    KeyedAsyncContext,
)
from aiomailbox.operators.async_state.function import KeyedAsyncProcessFunction
from aiomailbox.operators.async_state.operator import KeyedAsyncProcessOperator

__all__ = [
    "AsyncKeyedState",
    "AsyncTimerService",
    "KeyedAsyncContext",
    "KeyedAsyncProcessFunction",
    "KeyedAsyncProcessOperator",
]
