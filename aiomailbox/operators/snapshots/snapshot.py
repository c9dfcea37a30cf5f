"""What one operator in one subtask resumes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aiomailbox.eventtime.timers import TimerSnapshot
from aiomailbox.records.elements import MIN_TIMESTAMP
from aiomailbox.state.rescale import OperatorStateSnapshot
from aiomailbox.state.snapshot import KeyedStateSnapshot

__all__ = ["OperatorSnapshot"]


@dataclass(frozen=True, slots=True)
class OperatorSnapshot:
    """All that an operator keeps, at one moment: nothing that happens later changes it.

    It is taken between two records, on the loop, and made bytes anywhere: see
    `snapshot_chunks`. What is large, keyed state and timers, is a mapping by key
    group that is asked for one group at a time, so that a store may keep a group as it
    was until it has been asked for.

    Attributes:
        keyed: The keyed state; after a change of parallelism, that of several former
            subtasks, of which a new one takes its key groups.
        operator: The lists and broadcast maps of the user's function, by name.
        timers: The timers, by the name of their service.
        own: What the operator itself keeps, by name: calls in flight, positions.
        watermark: How far event time had come before it, milliseconds.

    Concept:
        Flink, ``OperatorSubtaskState``.

    Example:
        >>> OperatorSnapshot().is_empty
        True
    """

    keyed: tuple[KeyedStateSnapshot, ...] = ()
    operator: OperatorStateSnapshot = field(default_factory=OperatorStateSnapshot)
    timers: Mapping[str, TimerSnapshot] = field(default_factory=dict)
    own: OperatorStateSnapshot = field(default_factory=OperatorStateSnapshot)
    watermark: int = MIN_TIMESTAMP

    @property
    def is_empty(self) -> bool:
        """Whether nothing but event time would be lost without it."""
        return (
            not any(piece.states for piece in self.keyed)
            and not self.operator.states
            and not any(one.event or one.processing for one in self.timers.values())
            and not self.own.states
        )
