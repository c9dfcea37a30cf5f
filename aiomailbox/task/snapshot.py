"""What one task resumes from: the snapshots of its operators, and its inputs' times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aiomailbox.eventtime.valve import ValveSnapshot
from aiomailbox.ids import OperatorId
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot

__all__ = ["Prepared", "TaskSnapshot"]

# The number of a checkpoint, and what a sink's writer prepared for it.
Prepared = tuple[int, Any]


@dataclass(frozen=True, slots=True)
class TaskSnapshot:
    """What a subtask's operators resume from, wherever chaining has put them.

    Attributes:
        operators: By the id of the operator. Those that a task does not have are left
            alone; an operator without a snapshot begins anew.
        inputs: For each input of an operator that was the head of its task, how far
            event time had come on its channels.
        committables: Per sink what its writer has prepared and is not committed yet,
            each with the number of the checkpoint that it was prepared for.
        is_finished: Whether the task had nothing more to do but to wait.
        channel_state: The buffers that the barrier of an unaligned checkpoint
            overtook, in order, by the name of their channel.

    Example:
        >>> TaskSnapshot().operators
        {}
    """

    operators: Mapping[OperatorId, OperatorSnapshot] = field(default_factory=dict)
    inputs: Mapping[OperatorId, tuple[ValveSnapshot, ...]] = field(default_factory=dict)
    committables: Mapping[OperatorId, tuple[Prepared, ...]] = field(
        default_factory=dict
    )
    is_finished: bool = False
    channel_state: Mapping[str, tuple[bytes, ...]] = field(default_factory=dict)
