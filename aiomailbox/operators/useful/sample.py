"""Passes on a random part of the records."""

from __future__ import annotations

from random import Random
from typing import Any

from aiomailbox.operators.core.contract import Operator, Pending
from aiomailbox.policies import check_number
from aiomailbox.records import ListRun, Run
from aiomailbox.state import ListStateDescriptor

__all__ = ["SampleOperator"]

_RANDOM_STATE = ListStateDescriptor("random-state")


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

    def __init__(self, fraction: float) -> None:
        self.fraction = check_number(fraction, "fraction", minimum=0, maximum=1)

    def open(self) -> Pending:
        """Go on where an earlier instance stopped, or begin with the job's seed."""
        self._state = self.context.operator_state.get_list_state(_RANDOM_STATE)
        # A generator of its own: others of the operator's context must not shift it.
        self._random = Random(self.context.random.getrandbits(64))
        kept = self._state.get()
        if kept:
            version, internal, gauss = kept[0]
            self._random.setstate((version, tuple(internal), gauss))
        return None

    def snapshot(self) -> Any:
        """Return the state of the random generator."""
        self._state.update([self._random.getstate()])
        return super().snapshot()

    def process_run(self, run: Run) -> Pending:
        """Pass on the records that are chosen."""
        draw, fraction = self._random.random, self.fraction
        values, stamps = run.values, run.timestamps
        if stamps is None:
            chosen = [value for value in values if draw() < fraction]
            return self.output.emit_run(ListRun(chosen)) if chosen else None
        kept = [index for index in range(len(values)) if draw() < fraction]
        if not kept:
            return None
        return self.output.emit_run(
            ListRun([values[i] for i in kept], [stamps[i] for i in kept])
        )
