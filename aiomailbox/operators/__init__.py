"""Operators: what they are, what they may use, and the ones without keys."""

from __future__ import annotations

from aiomailbox.operators.async_state.operator import KeyedAsyncProcessOperator
from aiomailbox.operators.functions.process import (
    BroadcastProcessOperator,
    CoFlatMapOperator,
    CoMapOperator,
    CoProcessOperator,
    KeyedBroadcastProcessOperator,
    KeyedCoProcessOperator,
    KeyedProcessOperator,
    ProcessOperator,
)
from aiomailbox.operators.snapshots.codec import decode_snapshot, encode_snapshot
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot

__all__ = [
    "BroadcastProcessOperator",
    "CoFlatMapOperator",
    "CoMapOperator",
    "CoProcessOperator",
    "KeyedAsyncProcessOperator",
    "KeyedBroadcastProcessOperator",
    "KeyedCoProcessOperator",
    "KeyedProcessOperator",
    "OperatorSnapshot",
    "ProcessOperator",
    "decode_snapshot",
    "encode_snapshot",
]
