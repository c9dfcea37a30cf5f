"""Fuses adjacent stateless operators of a chain into one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.contract import Operator, Output, Pending
from aiomailbox.operators.stateless.fused_loop import FusedLoop
from aiomailbox.operators.stateless.operators import StatelessOperator
from aiomailbox.records import Run


class FusedOperator(Operator):
    """Adjacent map, filter and flat_map operators as one loop over a run.

    Errors, skipped records and dead letters are those of the part whose function
    raised: each part that was given a ``setup`` of its own uses its own context and
    its own side outputs.

    Args:
        parts: The operators, in order.

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
        self.parts = list(parts)
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

    def process_run(self, run: Run) -> Pending:
        """Apply all functions to each record and emit the results as one run."""
        assert self._loop is not None, "process_run before open"
        return self._loop.process(run)


def fuse(operators: Sequence[Operator]) -> list[Operator]:
    """Replace adjacent synchronous stateless operators by a `FusedOperator` each.

    Args:
        operators: A chain in which the results of each operator go to the next one and
            nowhere else (side outputs apart).

    Returns:
        The chain to run; an operator that has no fusable neighbour is unchanged.

    Example:
        >>> from aiomailbox.operators.stateless.operators import (
        ...     FilterOperator,
        ...     MapOperator,
        ... )
        >>> [type(o).__name__ for o in fuse([MapOperator(abs), FilterOperator(bool)])]
        ['FusedOperator']
    """
    fused: list[Operator] = []
    for is_stateless, group in itertools.groupby(
        operators, key=lambda operator: isinstance(operator, StatelessOperator)
    ):
        parts = list(group)
        stateless = [part for part in parts if isinstance(part, StatelessOperator)]
        if is_stateless and len(stateless) > 1:
            fused.append(FusedOperator(stateless))
        else:
            fused += parts
    return fused
