"""Passes on a random part of the records."""

from __future__ import annotations

from random import Random

from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.operator import Operator, Output, Pending
from aiomailbox.policies.arguments import check_number
from aiomailbox.records.run import Run, take_records
from aiomailbox.state.rescale import OperatorStateSnapshot, RedistributionMode

__all__ = ["SampleOperator"]


class SampleOperator(Operator):
    """Passes on each record with the same probability, independently of the others.

    The choice follows from the job's seed, the operator and the subtask: the same input
    in the same order gives the same sample, also across a restored snapshot. With
    another parallelism it is another sample.

    Args:
        fraction: The probability, from 0 to 1.

    Raises:
        InvalidArgumentError: If it is not from 0 to 1.
        WrongTypeError: If it is not a number.

    Example:
        >>> from aiomailbox.testing import OneInputHarness
        >>> with OneInputHarness(SampleOperator(0.5)) as harness:
        ...     harness.process_run(range(1000))
        ...     450 < len(harness.values) < 550
        True
    """

    takes_columns = True

    def __init__(self, fraction: float) -> None:
        self.fraction: float = check_number(fraction, "fraction", minimum=0, maximum=1)

    def setup(self, context: RuntimeContext, output: Output) -> None:
        """Take what the task provides, and begin with the job's seed."""
        super().setup(context, output)
        # A generator of its own: others of the operator's context must not shift it.
        self._random = Random(context.random.getrandbits(64))

    def snapshot_own(self) -> OperatorStateSnapshot:
        """Return the state of the random generator."""
        state, mode = self._random.getstate(), RedistributionMode.MERGE
        return super().snapshot_own().with_list("random-state", [state], mode)

    def restore_own(self, own: OperatorStateSnapshot) -> None:
        """Go on where the earlier instance stopped, if there was only one."""
        kept = own.elements("random-state")
        if len(kept) == 1:
            self._random.setstate(kept[0])

    def process_run(self, run: Run) -> Pending:
        """Pass on the records that are chosen."""
        draw, fraction = self._random.random, self.fraction
        kept = [index for index in range(len(run)) if draw() < fraction]
        return self.output.emit_run(take_records(run, kept)) if kept else None
