"""Keyed state as bytes, and back: as the snapshot of an operator that keeps nothing else."""

from __future__ import annotations

from typing import Any

from aiomailbox.operators.snapshots.codec import decode_snapshot, encode_snapshot
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.state.snapshot import KeyedStateSnapshot


def kept(snapshot: KeyedStateSnapshot, classes: Any = None) -> bytes:
    """Return a snapshot of keyed state as bytes."""
    return encode_snapshot(OperatorSnapshot(keyed=(snapshot,)), classes)


def found(data: bytes, classes: Any = (), **options: Any) -> KeyedStateSnapshot:
    """Return the snapshot of keyed state that was made bytes."""
    return decode_snapshot(data, classes, **options).keyed[0]
