"""Pairs each record with the latest one of another stream."""

from __future__ import annotations

from typing import Any

from aiomailbox.operators.core.operator import Pending, TwoInputOperator
from aiomailbox.records.run import ListRun, Run
from aiomailbox.state.descriptors import MapStateDescriptor

__all__ = ["WithLatestOperator"]

_LATEST = MapStateDescriptor("latest")


class WithLatestOperator(TwoInputOperator):
    """Replaces each record of the first input by a pair with the second's latest one.

    "Latest" is the one that arrived last; event time plays no part (see
    `AsOfJoinOperator` for that). Records that come before the second input's first one
    are dropped and counted. Every subtask has to get the whole second input.

    Concept:
        ReactiveX, ``withLatestFrom``.

    Example:
        >>> from aiomailbox.testing import TwoInputHarness
        >>> with TwoInputHarness(WithLatestOperator()) as harness:
        ...     harness.first.process_element("early")
        ...     harness.second.process_run([1, 2])
        ...     harness.first.process_element("a")
        ...     harness.values
        [('a', 2)]
    """

    def open(self) -> Pending:
        """Bind the state."""
        self._latest = self.context.operator_state.get_broadcast_state(_LATEST)
        self._dropped = self.context.metrics.counter("records_without_latest")
        return None

    def process_run1(self, run: Run) -> Pending:
        """Pair the records."""
        if not len(run):
            return None
        kept: Any = self._latest.get("latest")
        if kept is None:
            self._dropped.value += len(run)
            return None
        pairs = [(value, kept[0]) for value in run.values]
        return self.output.emit_run(ListRun(pairs, run.timestamps))

    def process_run2(self, run: Run) -> Pending:
        """Keep the last record."""
        if len(run):
            # In a tuple, for the record may be None.
            self._latest.put("latest", (run.values[-1],))
        return None
