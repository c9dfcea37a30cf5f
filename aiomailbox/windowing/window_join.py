"""Windows of two streams that come on an input each: joins of fields run on them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from aiomailbox.durations import pipeline_ms
from aiomailbox.operators.core.fields import why_rows
from aiomailbox.operators.core.operator import Pending, TwoInputOperator
from aiomailbox.operators.joins.keyed import pair
from aiomailbox.records.run import ListRun, Run
from aiomailbox.windowing.assigners import EventTimeSessionWindows, WindowAssigner
from aiomailbox.windowing.co_group import (
    JoinFunction,
    SidedKey,
)
from aiomailbox.windowing.contents import ListedContents
from aiomailbox.windowing.operator import WindowEmitter, WindowOperator
from aiomailbox.windowing.spec import WindowSpec


class WindowJoinOperator(WindowOperator, TwoInputOperator):
    """Emits the pairs of records that have one key in one window.

    It holds records as a window operator holds those of one stream that are marked with
    their side, and has the same snapshots.

    Args:
        key: The keys of both sides.
        assigner: In which windows records meet.
        allowed_lateness: How long after its end a window takes late records.
        settings: What else a `WindowSpec` says.

    Concept:
        Flink, ``JoinedStreams.WithWindow``.

    Example:
        >>> from aiomailbox.testing import TwoInputHarness
        >>> from aiomailbox.windowing.assigners import TumblingEventTimeWindows
        >>> windows = TumblingEventTimeWindows.of(timedelta(seconds=5))
        >>> operator = WindowJoinOperator(SidedKey(str.lower, str.lower), windows)
        >>> with TwoInputHarness(operator, keyed=True) as harness:
        ...     harness.first.process_run(["a", "b"], [1, 2])
        ...     harness.second.process_run(["A"], [3])
        ...     harness.first.process_watermark(4999)
        ...     harness.second.process_watermark(4999)
        ...     harness.values
        [('a', 'A')]
    """

    def __init__(
        self,
        key: SidedKey,
        assigner: WindowAssigner,
        *,
        allowed_lateness: timedelta = timedelta(),
        **settings: Any,
    ) -> None:
        function = JoinFunction(pair)
        lateness = pipeline_ms(allowed_lateness, "allowed_lateness")
        spec = WindowSpec(
            key=key, assigner=assigner, allowed_lateness_ms=lateness, **settings
        )
        has_evictor = spec.evictor is not None
        super().__init__(
            spec,
            ListedContents(with_timestamps=has_evictor),
            WindowEmitter(None, function, folds=has_evictor, keyed=True),
            function,
        )

    def rows_reason(self) -> str:
        """Return the windows, or the key function, that ask for rows."""
        spec = self._spec
        if type(spec.assigner) is EventTimeSessionWindows or not spec.is_plain:
            return spec.peculiarity
        return why_rows(self.key_of_input(0)) or why_rows(self.key_of_input(1))

    def key_of_input(self, index: int) -> Callable[[Any], Any] | None:
        key: SidedKey = self._spec.key
        return key.of_side(index)

    def may_leave_rest(self, index: int) -> bool:
        """Whether it may leave the rest of a run: nothing in it is awaited."""
        return False

    def process_input(self, index: int, run: Run) -> Pending:
        """Add each record of a stream, marked with its side, to its windows."""
        marked = [(index, value) for value in run.values]
        return self.process_run(ListRun(marked, run.timestamps))
