"""Where the windows of a subtask begin, as a part of its snapshot."""

from __future__ import annotations

from typing import Final

from aiomailbox.state.rescale import OperatorStateSnapshot, RedistributionMode

__all__ = ["kept_offsets", "with_offset"]

# The name is in snapshots.
_OFFSET: Final = "window-offset"


def with_offset(
    own: OperatorStateSnapshot, offset_ms: int | None
) -> OperatorStateSnapshot:
    """Return what an operator keeps, with the offset of its windows, if it has one."""
    offsets = [] if offset_ms is None else [offset_ms]
    return own.with_list(_OFFSET, offsets, RedistributionMode.MERGE)


def kept_offsets(own: OperatorStateSnapshot) -> list[int]:
    """Return the offsets that earlier subtasks had."""
    return own.elements(_OFFSET)
