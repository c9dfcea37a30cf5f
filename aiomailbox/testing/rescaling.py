"""Snapshots of an operator's subtasks, spread over another number of them."""

from __future__ import annotations

from collections.abc import Sequence

from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot, redistribute


def redistributed(
    snapshots: Sequence[OperatorSnapshot], parallelism: int
) -> list[OperatorSnapshot]:
    """Return what each of ``parallelism`` new subtasks is restored from.

    Lists are split, union lists and broadcast maps handed round, as when a job is
    restored with another parallelism; of keyed state and timers each takes its own.

    Args:
        snapshots: What `OperatorHarness.snapshot` returned, one a subtask, in order.
        parallelism: How many new subtasks.

    Returns:
        For each new subtask what `OperatorHarness.restore` takes.

    Example:
        >>> from aiomailbox.operators.functions.process import ProcessFunction
        >>> from aiomailbox.operators.functions.process import ProcessOperator
        >>> from aiomailbox.state.descriptors import ListStateDescriptor
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
        >>> for subtask, snapshot in enumerate(redistributed([cut], 2)):
        ...     harness = OneInputHarness(
        ...         ProcessOperator(keep := Keep()),
        ...         parallelism=2,
        ...         subtask_index=subtask,
        ...     )
        ...     harness.restore(snapshot)
        ...     with harness:
        ...         print(keep.kept.get())
        ['a', 'b']
        ['c']
    """
    return redistribute(snapshots, parallelism)
