"""Structured Streaming in: the micro-batches of a query, through foreachBatch.

Theory of operation: Spark calls a function of ours with each micro-batch, in a thread of its
own, and takes the batch for done when the function returns. It returns when the pipeline
has taken all rows and, in a job with checkpoints, one holds them; so the query goes at the
pipeline's pace. A batch that was not done comes again after a restart, with its number and
rows: what of it was emitted is passed over, and that these are the same rows is checked.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final, NoReturn

from aiomailbox.connectors.spark.frame_checks import checked_stream, reads, wrapped
from aiomailbox.connectors.spark.frame_source import BatchRuns, RowsAsRecords
from aiomailbox.connectors.spark.jobs import explained, watching_driver
from aiomailbox.connectors.spark.reader import Inflow, Receiver
from aiomailbox.connectors.spark.reading import (
    Beginning,
    Iterated,
    ReadItem,
    ReadPlan,
)
from aiomailbox.errors import (
    InvalidArgumentError,
    SourceChangedError,
    SparkJobError,
    UsageError,
)
from aiomailbox.operators.sources.source import (
    Boundedness,
    EnumeratorContext,
    ReaderContext,
    ReaderOutput,
    StaticEnumerator,
)
from aiomailbox.signatures import check_count, explained as explains, refuse_home
from aiomailbox.state.serializers import kept_in_state

_LOOK_S: Final = 0.2
_TRIGGERS: Final = {"processingTime", "once", "availableNow"}
# For messages.
_DOES: Final = "reads the streaming DataFrame"


@kept_in_state("StreamSplit")
@dataclass(frozen=True, slots=True)
class StreamSplit:
    """A query's micro-batches, from a position on.

    Attributes:
        split_id: Its name.
        query_id: The query's, as Spark keeps it in its checkpoint directory; empty before
            the first batch.
        batch: The batch to go on with.
        part: The partition in it to go on with.
        row: The row in that to go on with.
        check: Sum of the checks of the batch's rows before the position.
    """

    split_id: str = "stream"
    query_id: str = ""
    batch: int = 0
    part: int = 0
    row: int = 0
    check: int = 0


@explains('Write SparkStreamSource(df, "checkpoint"), with a directory for Spark.')
class SparkStreamSource(RowsAsRecords):
    """Streams the micro-batches of a streaming DataFrame in.

    Spark considers a batch done when the pipeline has taken its rows and, in a job with
    checkpoints, a complete checkpoint includes them. So the query runs at the
    pipeline's pace, one batch per checkpoint. A restart resumes exactly where the last
    checkpoint was taken, by the query's id, the batch's number and the row in it; a
    batch whose rows come otherwise than before is refused. The query starts and ends
    with the job. Spark's checkpoint and the job's belong together: a job keeps its own
    in the directory of its checkpoints until it has finished, and one that begins
    without gets what Spark has not taken for done yet.

    Needs a classic session: on Spark Connect foreachBatch runs at the server.

    Args:
        df: The streaming DataFrame.
        checkpoint: Spark's own checkpoint directory of the query (``checkpointLocation``),
            by which it finds its offsets again. Not the job's.
        trigger: Spark's trigger, such as ``{"processingTime": "1 second"}`` or
            ``{"availableNow": True}``, which ends with the data that is there; None for
            a batch as soon as the one before is done.
        records: The form of a record; see `SparkSource`.
        batch_rows: The most rows of an Arrow batch.
        handover_batches: How many of these may wait for the pipeline.

    Raises:
        InvalidArgumentError: If the DataFrame is no streaming one, or its session ended,
            or the trigger is unknown.
        WrongTypeError: If ``df`` is no DataFrame, or ``checkpoint`` no path.
        UsageError: If it belongs to Spark Connect.
        UnsupportedColumnError: If a column cannot be carried; names it.

    Concept:
        Spark, ``DataStreamWriter.foreachBatch``.

    Example:
        >>> from aiomailbox.connectors.spark import SparkStreamSource
        >>> rates = spark.readStream.format("rate").load()  # doctest: +SKIP
        >>> source = SparkStreamSource(rates, "checkpoints/rates")  # doctest: +SKIP
    """

    parallelism_max = 1
    position_types: ClassVar[tuple[type[Any], ...]] = (StreamSplit,)
    stays_in_parent = True

    def __init__(
        self,
        df: Any,
        checkpoint: Any,
        *,
        trigger: Mapping[str, Any] | None = None,
        records: Any = "namedtuple",
        batch_rows: int = 10_000,
        handover_batches: int = 2,
    ) -> None:
        super().__init__(checked_stream(df), records)
        given: Any = trigger
        if given and not (
            isinstance(given, Mapping) and len(given) == 1 and _TRIGGERS & {*given}
        ):
            raise InvalidArgumentError(
                "trigger",
                f"{trigger!r} is unknown",
                'Use {"processingTime": "1 second"} or {"availableNow": True}.',
            )
        check_count(batch_rows, "batch_rows")
        check_count(handover_batches, "handover_batches")
        self._trigger = dict(trigger or {})
        self._checkpoint = refuse_home(checkpoint, "checkpoint")
        self._depth = handover_batches
        self._plan = ReadPlan(df, batch_rows)

    @property
    def boundedness(self) -> Boundedness:
        """Bounded if the trigger ends with the data that is there."""
        ends = self._trigger.get("availableNow") or self._trigger.get("once")
        return Boundedness.BOUNDED if ends else Boundedness.UNBOUNDED

    def may_read(self, file: Path) -> bool:
        """Say whether a file would be among those that are read, if it were there."""
        return reads(self._plan.df, file)

    def create_enumerator(
        self, context: EnumeratorContext[StreamSplit], state: list[Any] | None = None
    ) -> StaticEnumerator[StreamSplit]:
        """Create the enumerator: one split."""
        return StaticEnumerator(context, [StreamSplit()] if state is None else state)

    def create_reader(self, context: ReaderContext) -> _StreamReader:
        """Create a reader; it starts the query when it gets the split."""
        writer = self._plan.df.writeStream.option(
            "checkpointLocation", self._checkpoint
        )
        if self._trigger:
            writer = writer.trigger(**self._trigger)
        return _StreamReader(context, self._plan, writer, self.runs(), self._depth)

    def __repr__(self) -> str:
        return f"<SparkStreamSource of {', '.join(self._names)}>"

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a SparkStreamSource cannot be pickled: its query lives in this process. "
            "Pickle the pipeline (am.pipeline) and attach the source where it runs."
        )


@dataclass(frozen=True, slots=True)
class _BatchBegin:
    query_id: str
    batch: int


@dataclass(frozen=True, slots=True, eq=False)
class _BatchEnd:
    batch: int
    done: threading.Event


_Item = _BatchBegin | _BatchEnd | ReadItem


class _Query:
    """The query, as an iterator in a thread; Spark's own threads fill it."""

    def __init__(
        self, plan: ReadPlan, writer: Any, start: StreamSplit, depth: int
    ) -> None:
        self._plan = plan
        self._writer = writer
        self._start = start
        # Bounded: Spark's thread waits for room, and so the query goes at the
        # pipeline's pace.
        self._items: queue.Queue[_Item] = queue.Queue(depth)
        self._stopped = threading.Event()
        self._query: Any = None
        self._refusal: BaseException | None = None

    def items(self) -> Iterator[_Item]:
        """Start the query, and give what its batches bring until it ends."""
        self._query = self._writer.foreachBatch(self._on_batch).start()
        session = self._plan.df.sparkSession
        try:
            with watching_driver(session, _DOES, self._on_death):
                yield from self._taken(self._query)
        finally:
            self.cancel()
        if self._refusal is not None:
            raise self._refusal
        error = self._query.exception()
        if error is not None:
            raise error

    def cancel(self) -> bool:
        """End the query; say whether it has ended."""
        self._stopped.set()
        if self._query is None:
            return True
        self._query.stop()
        return not self._query.isActive

    def explain(self, error: BaseException) -> Exception:
        """Return an error that says what went wrong; in the thread that got it."""
        return explained(error, self._plan.df.sparkSession, _DOES)

    def _taken(self, query: Any) -> Iterator[_Item]:
        while True:
            try:
                # With a timeout: a query that ends puts nothing.
                yield self._items.get(timeout=_LOOK_S)
            except queue.Empty:
                # In this order: what it had put before it ended is still taken.
                if not query.isActive and self._items.empty():
                    return

    def _on_death(self, death: SparkJobError) -> None:
        self._refusal = death
        self.cancel()

    def _on_batch(self, df: Any, batch: int) -> None:
        """Take a micro-batch; in a thread of Spark's, which waits for it."""
        try:
            self._take(df, batch)
        except Exception:
            # Of what was cancelled there is a long text, and Spark looks for errors of its
            # own in it with a pattern that overflows the stack.
            self._check()
            raise

    def _take(self, df: Any, batch: int) -> None:
        start, query_id = self._start, str(self._query_id(df))
        if start.query_id not in {"", query_id}:
            self._refusal = SourceChangedError(
                f"the position is of query {start.query_id}, and Spark's checkpoint "
                f"directory is that of query {query_id}: give the same directory again"
            )
            raise self._refusal
        # It was done before the restart; Spark learns that only at the end of this
        # call.
        if batch < start.batch:
            return
        is_first = batch == start.batch
        part, row = (start.part, start.row) if is_first else (0, 0)
        self._put(_BatchBegin(query_id, batch))
        for item in Iterated(replace(self._plan, df=df), part, row).read():
            if not isinstance(item, Beginning):
                self._put(item)
        done = threading.Event()
        self._put(_BatchEnd(batch, done))
        # In looks: a job that ends must not leave Spark's thread waiting for ever.
        while not done.wait(_LOOK_S):
            self._check()

    def _query_id(self, df: Any) -> Any:
        context = df.sparkSession.sparkContext
        return context.getLocalProperty("sql.streaming.queryId")

    def _put(self, item: _Item) -> None:
        while True:
            self._check()
            try:
                self._items.put(item, timeout=_LOOK_S)
            except queue.Full:
                continue
            return

    def _check(self) -> None:
        if self._stopped.is_set():
            # Spark must not take the batch for done.
            raise RuntimeError("the job that reads the query has ended") from None


class _StreamReader(Receiver[StreamSplit, _BatchBegin | _BatchEnd]):
    """Emits the rows of micro-batches, and lets each be done in its time."""

    def __init__(
        self,
        context: ReaderContext,
        plan: ReadPlan,
        writer: Any,
        runs: BatchRuns,
        depth: int,
    ) -> None:
        super().__init__(context, runs, depth)
        self._plan = plan
        self._writer = writer
        # Batches that are taken, by the checkpoint that will hold them; 0 for the next.
        self._taken: dict[int, list[threading.Event]] = {}

    def prepare_snapshot(self, checkpoint_id: int) -> None:
        """Note which batches a checkpoint holds."""
        # To the checkpoint being taken: what is taken later is not in it.
        taken = self._taken.pop(0, [])
        if taken:
            self._taken.setdefault(checkpoint_id, []).extend(taken)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Let the batches be done that the checkpoint, or one before it, holds."""
        for held in sorted(self._taken):
            if 0 < held <= checkpoint_id:
                for done in self._taken.pop(held):
                    done.set()

    def _open(self, split: StreamSplit) -> Inflow[_Item]:
        query = _Query(self._plan, self._writer, split, self._depth)
        return self._pumped(query.items, query.cancel, query.explain)

    def _on_item(self, output: ReaderOutput, item: _Item) -> None:
        if isinstance(item, _BatchBegin):
            self._begin(self._splits[0], item)
        elif isinstance(item, _BatchEnd):
            self._end_batch(self._splits[0], item)

    def _on_end(self, output: ReaderOutput, split: StreamSplit) -> None:
        output.release_split(split.split_id)

    def _moved(self, part: int, row: int, rows: int, check: int) -> StreamSplit:
        split = self._splits[0]
        return replace(split, part=part, row=row, check=wrapped(split.check + check))

    def _changed(self, split: StreamSplit) -> str:
        return (
            f"batch {split.batch} of the query has other rows, or another "
            "order, than before the restart. Give a streaming DataFrame whose "
            "batches are in order: df.sortWithinPartitions is not for streams, "
            "so keep shuffles out of it."
        )

    def _begin(self, split: StreamSplit, item: _BatchBegin) -> None:
        # Spark keeps its own position, and resumes from there whatever this job knows.
        if not split.query_id and item.batch:
            self._context.log.warning(
                "the query resumes after its first batch, and this job has started "
                "without state: earlier batches are missing from it",
                batch=item.batch,
            )
        if item.batch != split.batch:
            split = StreamSplit(batch=item.batch)
            # Another batch: there is nothing that it could be compared with.
            self._replayed = None
        self._splits = [replace(split, query_id=item.query_id)]

    def _end_batch(self, split: StreamSplit, item: _BatchEnd) -> None:
        self._compare()
        self._splits = [StreamSplit(query_id=split.query_id, batch=item.batch + 1)]
        if self._context.takes_checkpoints:
            self._taken.setdefault(0, []).append(item.done)
        else:
            item.done.set()
