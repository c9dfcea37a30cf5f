"""Snapshots of an operator's subtasks, spread over another number of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from aiomailbox.errors import WrongTypeError
from aiomailbox.operators import OperatorSnapshot, StatefulSnapshot
from aiomailbox.state import (
    OperatorStateEntry,
    OperatorStateSnapshot,
    redistribute_operator_state,
)


def redistributed(snapshots: Sequence[object], parallelism: int) -> list[list[Any]]:
    """Return what each of ``parallelism`` new subtasks is restored from.

    Lists are split, union lists and broadcast maps handed round, as when a job is
    restored with another parallelism; of keyed state and timers each takes its own.

    Args:
        snapshots: What `OperatorHarness.snapshot` returned, one a subtask, in order.
        parallelism: How many new subtasks.

    Returns:
        For each new subtask what `OperatorHarness.restore` takes.

    Raises:
        WrongTypeError: If one is no snapshot of state that can be spread.

    Example:
        >>> from aiomailbox.operators import ProcessFunction, ProcessOperator
        >>> from aiomailbox.state import ListStateDescriptor
        >>> from aiomailbox.testing import OneInputHarness
        >>> class Keep(ProcessFunction):
        ...     def open(self, context):
        ...         kept = ListStateDescriptor("kept")
        ...         self.kept = context.operator_state.get_list_state(kept)
        ...
        ...     def process_element(self, value, context, out):
        ...         self.kept.add(value)
        >>> with OneInputHarness(ProcessOperator(Keep())) as harness:
        ...     harness.process_run(["a", "b", "c"])
        ...     cut = harness.snapshot()
        >>> for subtask, pieces in enumerate(redistributed([cut], 2)):
        ...     harness = OneInputHarness(
        ...         ProcessOperator(keep := Keep()),
        ...         parallelism=2,
        ...         subtask_index=subtask,
        ...     )
        ...     harness.restore(pieces)
        ...     with harness:
        ...         print(keep.kept.get())
        ['a', 'b']
        ['c']
    """
    pieces: list[Any] = list(snapshots)
    for piece in pieces:
        if not isinstance(piece, OperatorSnapshot | StatefulSnapshot):
            raise WrongTypeError(
                "snapshots",
                f"{piece!r} is no snapshot of an operator with state",
                "Give what harness.snapshot() returned.",
            )
    spread = redistribute_operator_state(
        [piece.without_keys for piece in pieces], parallelism
    )
    empty = OperatorStateSnapshot()
    keyed = [
        replace(piece, without_keys=empty)
        for piece in pieces
        if isinstance(piece, StatefulSnapshot)
    ]
    return [_pieces(parts, keyed) for parts in spread]


def _pieces(
    parts: list[tuple[int, str, OperatorStateEntry]], keyed: list[StatefulSnapshot]
) -> list[Any]:
    states: dict[str, OperatorStateEntry] = {}
    for _, name, entry in parts:
        before = states[name].elements if name in states else []
        states[name] = OperatorStateEntry(entry.mode, [*before, *entry.elements])
    mine = OperatorStateSnapshot(states)
    if not keyed:
        return [OperatorSnapshot(mine)]
    first, *others = keyed
    return [replace(first, without_keys=mine), *others]
