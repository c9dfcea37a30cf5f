"""Which subtask reads whose key groups when the parallelism changes (pure)."""

from __future__ import annotations

from typing import NamedTuple

from aiomailbox.keygroups.assignment import KeyGroupRange, key_group_range

__all__ = ["KeyGroupPiece", "RescaledSubtask", "rescale_key_groups"]


class KeyGroupPiece(NamedTuple):
    """What one new subtask reads from one old one; both ends inclusive."""

    old_subtask: int
    start: int
    end: int


class RescaledSubtask(NamedTuple):
    """One subtask after rescaling: its range, and the pieces that make it up."""

    key_groups: KeyGroupRange
    pieces: tuple[KeyGroupPiece, ...]


def rescale_key_groups(
    max_parallelism: int, old_parallelism: int, new_parallelism: int
) -> list[RescaledSubtask]:
    """Say, for each new subtask, which key groups it takes from which old subtask.

    Returns:
        Shape ``(new_parallelism,)``; the pieces of each partition its range and are
        ordered by old subtask.

    Raises:
        InvalidArgumentError: If a parallelism does not fit ``max_parallelism``.

    Concept:
        Flink, ``StateAssignmentOperation.createKeyGroupPartitions``.

    Example:
        >>> for subtask in rescale_key_groups(128, 2, 3):
        ...     print([tuple(piece) for piece in subtask.pieces])
        [(0, 0, 42)]
        [(0, 43, 63), (1, 64, 85)]
        [(1, 86, 127)]
    """
    old_ranges = [
        key_group_range(max_parallelism, old_parallelism, index)
        for index in range(old_parallelism)
    ]
    return [
        _compose(key_group_range(max_parallelism, new_parallelism, index), old_ranges)
        for index in range(new_parallelism)
    ]


def _compose(
    new_range: KeyGroupRange, old_ranges: list[KeyGroupRange]
) -> RescaledSubtask:
    pieces = []
    for old_subtask, old_range in enumerate(old_ranges):
        shared = new_range.intersection(old_range)
        if shared is not None:
            pieces.append(KeyGroupPiece(old_subtask, shared.start, shared.end))
    return RescaledSubtask(new_range, tuple(pieces))
