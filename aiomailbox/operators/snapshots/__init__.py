"""What operators resume from: snapshots, and how they are spread over subtasks."""

from __future__ import annotations

from aiomailbox.operators.snapshots.codec import (
    decode_snapshot,
    decode_state,
    describe_snapshot,
    encode_snapshot,
    snapshot_chunks,
)
from aiomailbox.operators.snapshots.description import (
    SnapshotDescription,
    StateDescription,
)
from aiomailbox.operators.snapshots.in_flight import (
    HeldElement,
    HeldRecord,
    held_elements,
    with_held_elements,
)
from aiomailbox.operators.snapshots.redistribution import redistribute
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot

__all__ = [
    "HeldElement",
    "HeldRecord",
    "OperatorSnapshot",
    "SnapshotDescription",
    "StateDescription",
    "decode_snapshot",
    "decode_state",
    "describe_snapshot",
    "encode_snapshot",
    "held_elements",
    "redistribute",
    "snapshot_chunks",
    "with_held_elements",
]
