"""The rows of one partition as a source that can resume from a position.

Theory of operation: a partition holds the same rows in the same order whenever Spark
makes it (see `exchange_frame`), so a position is how many rows were emitted. Each row has
a check, and the sum of those that are passed over is compared with that of those that
were emitted: a DataFrame that gives other rows is refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Final, Never

import pyarrow as pa
import pyarrow.compute as pc

from aiomailbox.connectors.pump import Pump
from aiomailbox.connectors.spark.frame_checks import CHECK, row_check, wrapped
from aiomailbox.connectors.spark.frame_source import BatchRuns, FrameSource
from aiomailbox.connectors.spark.reader import Receiver
from aiomailbox.connectors.spark.reading import Chunk, ReadItem
from aiomailbox.errors import (
    IllegalStateError,
    InvalidArgumentError,
    SourceChangedError,
)
from aiomailbox.operators.sources.source import (
    EnumeratorContext,
    ReaderContext,
    ReaderOutput,
    StaticEnumerator,
)
from aiomailbox.state.serializers import kept_in_state

# Batches that Spark gave and an input has not yet taken.
_READ_AHEAD: Final = 2
# The column that says of which input a row is, where there are several.
INPUT: Final = "__aiomailbox_input"


@kept_in_state("PartitionPosition")
@dataclass(frozen=True, slots=True)
class PartitionPosition:
    """A partition, from a row on.

    Attributes:
        partition: Its index.
        rows: How many rows are before the position.
        check: Sum of their checks, modulo 2**64.
    """

    partition: int
    rows: int = 0
    check: int = 0

    @property
    def split_id(self) -> str:
        """Its name."""
        return f"partition-{self.partition}"


@dataclass(frozen=True, slots=True)
class Wrapping:
    """How the rows of the inputs come in one DataFrame.

    Attributes:
        columns: For each input its column, a struct of the DataFrame's own columns; None
            if there is one input, whose columns come as they are.
        data_columns: How many columns are the input's own, where there is one.
        check: The column of checks.
    """

    columns: list[str] | None
    data_columns: int
    check: str

    @property
    def inputs(self) -> int:
        """How many there are."""
        return 1 if self.columns is None else len(self.columns)


class BarrierInput(FrameSource):
    """One DataFrame as a source; picklable until it is attached."""

    def __init__(self, number: int, schema: Any, records: Any, order: str) -> None:
        super().__init__(schema, records, order)
        self.number = number
        self._feed: PartitionFeed | None = None

    def attach(self, feed: PartitionFeed) -> None:
        """Say where the batches come from, in the worker that has them."""
        self._feed = feed

    def create_enumerator(
        self,
        context: EnumeratorContext[PartitionPosition],
        state: list[PartitionPosition] | None = None,
    ) -> StaticEnumerator[PartitionPosition]:
        """Give each reader the partition of its number."""
        if state is None:
            state = [PartitionPosition(index) for index in range(context.parallelism)]
        return StaticEnumerator(context, state)

    def create_reader(self, context: ReaderContext) -> _PartitionReader:
        """Create the reader of a worker's partition."""
        if self._feed is None:
            raise IllegalStateError(
                "this pipeline reads the rows of a DataFrame: run it with run_on(df)"
            )
        return _PartitionReader(context, self.runs(), self._feed)


class PartitionFeed:
    """The batches of one input in one partition, on the loop: an `Inflow`.

    Attributes:
        partition: Which partition.
        ended: Whether the end was reached.
    """

    def __init__(self, partition: int, deal: Callable[[], None]) -> None:
        self.partition = partition
        self.ended: bool = False
        self._deal = deal
        self._chunks: deque[Chunk] = deque()
        self._error: Exception | None = None
        self._discards = False
        self._on_ready: Callable[[], None] | None = None

    def open(self, on_ready: Callable[[], None]) -> None:
        """Call this when `take` may find something, from now on."""
        self._on_ready = on_ready

    def start(self) -> None:
        """Take what has come already; all inputs have one thread."""
        self._notify()

    @property
    def has_room(self) -> bool:
        """Whether another batch is taken now."""
        return self._discards or len(self._chunks) < _READ_AHEAD

    def put(self, chunk: Chunk) -> None:
        """Take rows."""
        if not self._discards:
            self._chunks.append(chunk)
            self._notify()

    def end(self, error: Exception | None = None) -> None:
        """Be notified that nothing follows, or why."""
        self.ended, self._error = True, error
        self._notify()

    def take(self) -> Chunk | None:
        """Return the next rows; None if there are none."""
        self._deal()
        if self._chunks:
            return self._chunks.popleft()
        if self._error is not None:
            raise self._error
        return None

    def discard(self) -> None:
        """Drop all that comes, so that the other inputs of the partition do not wait."""
        self._discards = True
        self._chunks.clear()
        self._deal()

    async def stop(self) -> bool:
        """Take nothing any more; the thread is not this input's."""
        self.discard()
        return True

    def _notify(self) -> None:
        if self._on_ready is not None:
            self._on_ready()


class PartitionFeeds:
    """Reads a partition in a thread, and deals its batches to the inputs.

    Invariants:
        At most two batches wait for an input; while they do, and the next one is for the
        same input, the thread reads no further than two more.
    """

    def __init__(
        self,
        batches: Iterator[pa.RecordBatch],
        partition: int,
        wrapping: Wrapping,
    ) -> None:
        self._feeds = [
            PartitionFeed(partition, self._deal) for _ in range(wrapping.inputs)
        ]
        self._held: tuple[int, Chunk] | None = None
        self._pump: Pump[tuple[int, Chunk]] = Pump(
            lambda: _parted(batches, partition, wrapping),
            self._deal,
            depth=_READ_AHEAD,
            name=f"aiomailbox-input-{partition}",
        )

    def __getitem__(self, number: int) -> PartitionFeed:
        return self._feeds[number]

    def start(self) -> None:
        """Begin to read; on the loop that takes."""
        self._pump.start()

    def abandon(self) -> None:
        """Read no more."""
        self._pump.abandon()

    def _deal(self) -> None:
        """Give to inputs what there is, as far as they have room."""
        try:
            while True:
                item = self._held or self._pump.take()
                if item is None:
                    break
                number, chunk = item
                if not self._feeds[number].has_room:
                    self._held = item
                    return
                self._held = None
                self._feeds[number].put(chunk)
        except Exception as error:  # noqa: BLE001 -- the tasks trip over it
            self._end(error)
            return
        if self._pump.ended:
            self._end(None)

    def _end(self, error: Exception | None) -> None:
        for feed in self._feeds:
            if not feed.ended:
                feed.end(error)


class _PartitionReader(Receiver[PartitionPosition, Never]):
    """Emits the rows of a partition, from a position on."""

    def __init__(
        self, context: ReaderContext, runs: BatchRuns, feed: PartitionFeed
    ) -> None:
        super().__init__(context, runs, _READ_AHEAD)
        self._feed = feed

    def add_splits(self, splits: list[PartitionPosition]) -> None:
        """Take over the partition, at its position."""
        for position in splits:
            if position.partition != self._feed.partition:
                raise SourceChangedError(
                    f"the position is in partition {position.partition}, and Spark "
                    f"gives this task partition {self._feed.partition}: resume with "
                    "the parallelism that the job began with"
                )
            self._to_drop = position.rows
        super().add_splits(splits)

    def notify_no_more_splits(self) -> None:
        """Be notified that there is no other partition."""
        if not self._splits:
            # It was read to its end before the restart.
            self._feed.discard()
        super().notify_no_more_splits()

    def _open(self, split: PartitionPosition) -> PartitionFeed:
        self._feed.open(self.availability.set_available)
        return self._feed

    def _on_item(self, output: ReaderOutput, item: ReadItem) -> None:
        """There are rows only."""

    def _on_end(self, output: ReaderOutput, split: PartitionPosition) -> None:
        self._finish_split(output)
        self._no_more_splits = True

    def _moved(self, part: int, row: int, rows: int, check: int) -> PartitionPosition:
        split = self._splits[0]
        return replace(
            split, rows=split.rows + rows, check=wrapped(split.check + check)
        )

    def _changed(self, split: PartitionPosition) -> str:
        return (
            f"the first {split.rows} rows of partition {split.partition} are not the "
            "ones that were emitted: the DataFrame has other rows, or another order, "
            "when it is computed again. Write it to files first, and run on these"
        )


def _parted(
    batches: Iterator[pa.RecordBatch], partition: int, wrapping: Wrapping
) -> Iterator[tuple[int, Chunk]]:
    """Yield the rows of each input, with its number."""
    # The number of the next row of each input.
    firsts = [0] * wrapping.inputs

    def chunk(number: int, batch: pa.RecordBatch, checks: Any) -> tuple[int, Chunk]:
        first = firsts[number]
        firsts[number] += batch.num_rows
        return number, Chunk(partition, first, batch, checks)

    for batch in batches:
        checks = batch.column(wrapping.check).to_numpy(zero_copy_only=False)
        if wrapping.columns is None:
            yield chunk(0, batch.select(range(wrapping.data_columns)), checks)
            continue
        inputs = batch.column(INPUT).to_numpy(zero_copy_only=False)
        for number, name in enumerate(wrapping.columns):
            mine = inputs == number
            if mine.any():
                rows = pc.filter(batch.column(name), pa.array(mine))
                own = pa.RecordBatch.from_struct_array(rows)
                yield chunk(number, own, checks[mine])


# What a barrier stage reads: partitions that Spark makes alike each time.


def exchange_frame(
    frames: list[Any], orders: list[list[Any]], width: int
) -> tuple[Any, Wrapping]:
    """Return the rows of DataFrames in so many partitions, and how they come.

    Which partition a row is in, and where in it, follows from the rows alone: a hash of
    its values says where it goes and comes behind the order that is wished for. Rows of
    several DataFrames are sorted together, so that none waits for the end of another.
    """
    from pyspark.sql import functions as sf

    if len(frames) == 1:
        [df], [order] = frames, orders
        checked = df.withColumn(CHECK, row_check(df))
        moved = checked.repartition(width, sf.col(CHECK))
        return moved.sortWithinPartitions(*order, CHECK), Wrapping(
            None, len(df.columns), CHECK
        )
    names = [f"__aiomailbox_rows_{number}" for number in range(len(frames))]
    keys = _keys(frames, orders)
    wrapped = [
        df.select(
            sf.lit(number).alias(INPUT),
            row_check(df).alias(CHECK),
            *(column.alias(key) for key, column in zip(keys, order, strict=False)),
            sf.struct("*").alias(names[number]),
        )
        for number, (df, order) in enumerate(
            zip(frames, map(_columns, orders), strict=True)
        )
    ]
    united = reduce(
        lambda one, other: one.unionByName(other, allowMissingColumns=True), wrapped
    )
    moved = united.repartition(width, CHECK)
    return moved.sortWithinPartitions(*keys, INPUT, CHECK), Wrapping(names, 0, CHECK)


def _columns(order: list[Any]) -> list[Any]:
    from pyspark.sql import functions as sf

    return [sf.col(each) if isinstance(each, str) else each for each in order]


def _keys(frames: list[Any], orders: list[list[Any]]) -> list[str]:
    """Return the names of the columns that all are sorted by."""
    given = [
        [
            field.dataType.simpleString()
            for field in df.select(*_columns(order)).schema.fields
        ]
        for df, order in zip(frames, orders, strict=True)
        if order
    ]
    if any(types != given[0] for types in given):
        raise InvalidArgumentError(
            "order_by",
            "the DataFrames are sorted together, and their columns have the types "
            f"{given}",
            "Sort each by the same number of columns, of the same types.",
        )
    return (
        [f"__aiomailbox_order_{index}" for index in range(len(given[0]))]
        if given
        else []
    )
