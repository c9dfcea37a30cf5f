"""Fuses adjacent stateless operators of a chain into one."""

from __future__ import annotations

from collections.abc import Sequence

from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.operator import (
    Operator,
    Output,
    Pending,
    in_turn,
)
from aiomailbox.operators.stateless.fused import FusedLoop, is_compilable
from aiomailbox.operators.stateless.operators import StatelessOperator
from aiomailbox.records.events import LatencyMarker
from aiomailbox.records.run import Run


class FusedOperator(Operator):
    """Adjacent map, filter and flat_map operators as one loop over a run.

    Errors, skipped records and dead letters are those of the part whose function
    raised: each part that was given a ``setup`` of its own uses its own context and
    its own side outputs.

    Args:
        parts: The operators, in order; no more than `is_compilable` allows.

    Example:
        >>> from aiomailbox.operators.stateless.operators import (
        ...     FilterOperator,
        ...     MapOperator,
        ... )
        >>> from aiomailbox.testing import OneInputHarness
        >>> fused = FusedOperator([MapOperator(str.upper), FilterOperator(str.isalpha)])
        >>> with OneInputHarness(fused) as harness:
        ...     harness.process_run(["a", "1"])
        ...     harness.values
        ['A']
    """

    def __init__(self, parts: Sequence[StatelessOperator]) -> None:
        self.parts: list[StatelessOperator] = list(parts)
        self._loop: FusedLoop | None = None

    def setup(self, context: RuntimeContext, output: Output) -> None:
        """Take what the task provides, also for parts that have nothing yet."""
        super().setup(context, output)
        for part in self.parts:
            if not hasattr(part, "context"):
                part.setup(context, output)

    def open(self) -> Pending:
        """Prepare the loop; it is compiled when the first run shows its form."""
        self._loop = FusedLoop(self.parts, self.output)
        return None

    def record_latency(self, marker: LatencyMarker) -> None:
        """Observe how long ago a source has sent a marker, for each of the operators."""
        for part in self.parts:
            part.record_latency(marker)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> Pending:
        """Notify each of the operators."""
        told = [(part, checkpoint_id) for part in self.parts if part.listener]
        return in_turn(StatelessOperator.notify_checkpoint_complete, told)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> Pending:
        """Notify each of the operators."""
        told = [(part, checkpoint_id) for part in self.parts if part.listener]
        return in_turn(StatelessOperator.notify_checkpoint_aborted, told)

    def process_run(self, run: Run) -> Pending:
        """Apply all functions to each record and emit the results as one run."""
        assert self._loop is not None, "process_run before open"
        return self._loop.process(run)


def fused(first: Operator, following: Operator) -> FusedOperator | None:
    """Return both as one operator; None if they cannot be.

    Args:
        first: An operator whose results go to ``following`` and nowhere else (side
            outputs apart).
        following: The next one, which may be fused itself.

    Example:
        >>> from aiomailbox.operators.stateless.operators import MapOperator
        >>> [
        ...     type(part).__name__
        ...     for part in fused(MapOperator(abs), MapOperator(str)).parts
        ... ]
        ['MapOperator', 'MapOperator']
        >>> fused(MapOperator(abs), Operator())
    """
    if not isinstance(first, StatelessOperator):
        return None
    # Chains are built from their end, so what follows may be fused already.
    if isinstance(following, FusedOperator):
        parts = [first, *following.parts]
    elif isinstance(following, StatelessOperator):
        parts = [first, following]
    else:
        return None
    return (
        FusedOperator(parts) if is_compilable([part.kind for part in parts]) else None
    )
