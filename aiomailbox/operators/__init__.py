"""Operators: what they are, what they may use, and the ones without keys."""

from __future__ import annotations

from aiomailbox.operators.functions.process import KeyedProcessOperator
from aiomailbox.operators.snapshots.codec import decode_snapshot, encode_snapshot
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot

__all__ = [
    "KeyedProcessOperator",
    "OperatorSnapshot",
    "decode_snapshot",
    "encode_snapshot",
]
