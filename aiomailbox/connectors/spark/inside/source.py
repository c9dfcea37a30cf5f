"""The DataFrame's rows as a source inside a Spark worker."""

from __future__ import annotations

from typing import Any, Protocol

import pyarrow as pa

from aiomailbox.availability import Availability
from aiomailbox.connectors.spark.frame_source import BatchRuns, FrameSource
from aiomailbox.errors import IllegalStateError
from aiomailbox.operators.core.operator import Pending
from aiomailbox.operators.sources.source import (
    EnumeratorContext,
    InputStatus,
    ReaderContext,
    ReaderOutput,
    StaticEnumerator,
)
from aiomailbox.records.run import RUN_LENGTH_MAX

__all__ = ["BatchFeed", "StageInput"]


class BatchFeed(Protocol):
    """Where the batches come from that Spark gives.

    Attributes:
        availability: True when `take` may find something.
        ended: Whether the end was taken.
    """

    availability: Availability
    ended: bool

    def take(self) -> pa.RecordBatch | None:
        """Return the next batch, or None if none is there yet or the end was reached."""
        ...


class StageInput(FrameSource):
    """A DataFrame as the source of a stage; picklable until it is attached."""

    _feed: BatchFeed | None = None
    _run_length = RUN_LENGTH_MAX

    def attach(self, feed: BatchFeed, run_length: int) -> None:
        """Say where the batches come from, where they do.

        Args:
            feed: Gives them.
            run_length: How many rows of a batch are a run.
        """
        self._feed, self._run_length = feed, run_length

    def create_enumerator(
        self, context: EnumeratorContext[Any], state: list[Any] | None = None
    ) -> StaticEnumerator[Any]:
        """Refuse: Spark says which task reads what.

        Raises:
            IllegalStateError: Always.
        """
        raise IllegalStateError("inside Spark there are no splits to hand out")

    def create_reader(self, context: ReaderContext) -> _StageReader:
        """Create the reader of the stage's task.

        Raises:
            IllegalStateError: If it is not in a Spark worker.
        """
        if self._feed is None:
            raise IllegalStateError(
                "this pipeline reads the rows of a DataFrame: run it with apply_to(df)"
            )
        return _StageReader(self._feed, self.runs(), self._run_length)


class _StageReader:
    """Emits the batches in runs whose lengths depend on nothing but the batches.

    A watermark follows each run: were their lengths those that the task wishes for,
    which depend on time, what is late would depend on time.
    """

    def __init__(self, feed: BatchFeed, runs: BatchRuns, run_length: int) -> None:
        self.availability: Availability = feed.availability
        self._feed = feed
        self._runs = runs
        self._run_length = run_length
        self._batch: pa.RecordBatch | None = None
        self._offset = 0

    def start(self) -> None:
        """The feed runs already."""

    def add_splits(self, splits: list[Any]) -> None:
        """There are none."""

    def notify_no_more_splits(self) -> None:
        """There are none."""

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        """Emit the next run."""
        if self._batch is None:
            self._batch, self._offset = self._feed.take(), 0
        batch = self._batch
        if batch is None:
            if self._feed.ended:
                return InputStatus.END_OF_INPUT
            self.availability.reset()
            return InputStatus.NOTHING_AVAILABLE
        run, self._offset = self._runs.cut(batch, self._offset, self._run_length)
        if self._offset >= batch.num_rows:
            self._batch = None
        output.emit_run(run)
        return InputStatus.MORE_AVAILABLE

    def snapshot(self) -> list[Any]:
        """Return nothing: Spark starts a failed task again."""
        return []

    def close(self) -> Pending:
        """The feed is not this reader's."""
        self._batch = None
        return None
