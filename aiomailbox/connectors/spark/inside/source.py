"""The DataFrame's rows as a source inside a Spark worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa

from aiomailbox.availability import Availability
from aiomailbox.columnar import ArrowRun, RecordForm, RowMaker, SpecialColumns
from aiomailbox.errors import IllegalStateError
from aiomailbox.operators import (
    Boundedness,
    EnumeratorContext,
    InputStatus,
    Pending,
    ReaderContext,
    ReaderOutput,
    SourceOperator,
    StaticEnumerator,
)
from aiomailbox.records import RUN_LENGTH_MAX, ListRun

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


class StageInput:
    """Makes the source operator of a stage; picklable until it is attached.

    Args:
        form: What a record is; None if the batch itself is.
        special: What to make of columns that Arrow carries as structs of their parts.
    """

    boundedness = Boundedness.BOUNDED

    def __init__(
        self, form: RecordForm | None, special: Callable[[], SpecialColumns]
    ) -> None:
        self._form = form
        self._special = special
        self._feed: BatchFeed | None = None

    @property
    def record_types(self) -> tuple[type, ...]:
        """The class of the records, if the form names one."""
        kind = getattr(self._form, "record_type", None)
        return () if kind is None else (kind,)

    def __call__(self) -> SourceOperator:
        """Make the operator."""
        return SourceOperator(self)

    def attach(self, feed: BatchFeed) -> None:
        """Say where the batches come from, where they do."""
        self._feed = feed

    def create_enumerator(
        self, context: EnumeratorContext[Any], state: list[Any] | None = None
    ) -> StaticEnumerator[Any]:
        """Refuse: Spark says who reads what.

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
            raise IllegalStateError("the rows of this pipeline are Spark's: apply it")
        return _StageReader(self._feed, self._form, self._special)


class _StageReader:
    """Emits the batches in runs whose lengths depend on nothing but the batches.

    A watermark follows each run: were their lengths those that the task wishes for,
    which depend on time, what is late would depend on time.
    """

    def __init__(
        self,
        feed: BatchFeed,
        form: RecordForm | None,
        special: Callable[[], SpecialColumns],
    ) -> None:
        self.availability: Availability = feed.availability
        self._feed = feed
        self._form = form
        self._special = special
        self._maker: RowMaker | None = None
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
        if self._form is None:
            self._batch = None
            output.emit_run(ListRun([batch]))
            return InputStatus.MORE_AVAILABLE
        if self._maker is None:
            self._maker = RowMaker(batch.schema, self._form, self._special())
        start = self._offset
        self._offset = min(start + RUN_LENGTH_MAX, batch.num_rows)
        piece = batch.slice(start, self._offset - start)
        if self._offset >= batch.num_rows:
            self._batch = None
        output.emit_run(ArrowRun(piece, self._maker))
        return InputStatus.MORE_AVAILABLE

    def snapshot(self) -> list[Any]:
        """Return nothing: Spark starts a failed task again."""
        return []

    def close(self) -> Pending:
        """The feed is not this reader's."""
        self._batch = None
        return None
