"""Takes what comes from Spark, whoever feeds it: emits runs, knows its position.

Theory of operation: a feeder's thread gives chunks of partitions, a bounded way ahead; see
`reading`. The position is behind the last row that was emitted. Rows before it come again
after a restart, are passed over, and their checks are compared with those of the rows that
were emitted then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, Never, Protocol, TypeVar

import numpy as np

from aiomailbox.connectors.pump import Pump
from aiomailbox.connectors.spark.frame_checks import wrapped
from aiomailbox.connectors.spark.frame_source import BatchRuns
from aiomailbox.connectors.spark.jobs import ReadProgress
from aiomailbox.connectors.spark.reading import (
    Beginning,
    Chunk,
    PartEnd,
    ReadItem,
    ReadPlan,
    Skipped,
    new_feeder,
)
from aiomailbox.errors import SourceChangedError
from aiomailbox.operators.core.operator import Pending
from aiomailbox.operators.sources.source import (
    InputStatus,
    ReaderContext,
    ReaderOutput,
    SplitReader,
)
from aiomailbox.state.serializers import kept_in_state

# A position in partitions: it has the fields part, row and check.
SplitT = TypeVar("SplitT", bound=Any)
ItemT = TypeVar("ItemT")
ItemT_co = TypeVar("ItemT_co", covariant=True)

_STUCK: Final = "the thread that reads from Spark does not end"


class Inflow(Protocol[ItemT_co]):
    """The chunks from Spark, on the loop: a `Pump`, or one input's part of one."""

    @property
    def ended(self) -> bool:
        """Whether the end has been taken."""

    def start(self) -> None:
        """Begin."""

    def take(self) -> ItemT_co | None:
        """Return what is there next; None if nothing is."""

    async def stop(self) -> bool:
        """End it; say whether it has."""


class Receiver(SplitReader[SplitT], ABC, Generic[SplitT, ItemT]):
    """Emits the chunks that a thread reads, a run at a time, for one split."""

    def __init__(self, context: ReaderContext, runs: BatchRuns, depth: int) -> None:
        super().__init__()
        self._context = context
        self._runs = runs
        self._depth = depth
        self._started = False
        self._inflow: Inflow[ReadItem | ItemT] | None = None
        self._chunk: Chunk | None = None
        # Of the chunk, how many rows were emitted, or are not to be.
        self._offset = 0
        # Sum of the checks of rows that were passed over; None once it was compared.
        self._replayed: int | None = 0
        # Rows that come again and are to be dropped here, not in Spark.
        self._to_drop = 0

    def start(self) -> None:
        """Begin to read, if there is a split already."""
        self._started = True
        self._start()

    def add_splits(self, splits: list[SplitT]) -> None:
        """Take the split over, at its position."""
        super().add_splits(splits)
        self._start()

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        """Emit at most one run."""
        if not self._splits:
            return self._nothing()
        if self._chunk is None and not self._next_chunk(output):
            if self._inflow is None or not self._inflow.ended:
                return self._nothing()
            # Where rows are to be dropped, there are none left.
            self._to_drop = 0
            self._compare()
            self._on_end(output, self._splits[0])
            return InputStatus.END_OF_INPUT
        self._emit(output)
        return InputStatus.MORE_AVAILABLE

    def close(self) -> Pending:
        """End what runs in Spark, and wait for the thread."""
        inflow, self._inflow = self._inflow, None
        self._chunk = None
        return None if inflow is None else self._stop(inflow)

    @abstractmethod
    def _open(self, split: SplitT) -> Inflow[ReadItem | ItemT]:
        """Return what comes from the split's position on."""

    @abstractmethod
    def _on_item(self, output: ReaderOutput, item: ReadItem | ItemT) -> None:
        """Take what is neither rows nor an end of them."""

    @abstractmethod
    def _on_end(self, output: ReaderOutput, split: SplitT) -> None:
        """Release what event time is held for: all is read."""

    @abstractmethod
    def _moved(self, part: int, row: int, rows: int, check: int) -> SplitT:
        """Return the split at a position, so many rows and their checks further."""

    @abstractmethod
    def _changed(self, split: SplitT) -> str:
        """Say that the rows before a position are not those that were emitted."""

    def _output_id(self, split: SplitT, part: int) -> str:
        """Return whose event time the rows of a partition have."""
        split_id: str = split.split_id
        return split_id

    def _on_part(self, output: ReaderOutput, part: int, *, ended: bool) -> None:
        """Be told of a partition behind the position that rows came of, or its end."""

    def _next_chunk(self, output: ReaderOutput) -> bool:
        """Take from the pump up to the next chunk; say whether there is one."""
        if self._inflow is None:
            return False
        while (item := self._inflow.take()) is not None:
            match item:
                case Chunk():
                    self._on_part(output, item.part, ended=False)
                    if self._has_new_rows(item):
                        return True
                case Skipped(check):
                    self._replay(check)
                case PartEnd():
                    self._end_part(output, item)
                case _:
                    self._on_item(output, item)
        return False

    def _has_new_rows(self, chunk: Chunk) -> bool:
        """Begin with a chunk, behind what of it is to be dropped."""
        rows = chunk.batch.num_rows
        dropped = min(self._to_drop, rows)
        if dropped:
            self._to_drop -= dropped
            self._replay(_sum(chunk, 0, dropped))
            if dropped == rows:
                return False
        self._compare()
        self._chunk, self._offset = chunk, dropped
        return True

    def _end_part(self, output: ReaderOutput, end: PartEnd) -> None:
        split = self._splits[0]
        if end.part < split.part:
            self._replay(end.check)
            return
        if end.part == split.part and end.rows is not None and end.rows < split.row:
            # Of a partition that became shorter nothing was passed over as a whole.
            self._replay(end.check)
        self._compare()
        self._on_part(output, end.part, ended=True)
        self._splits = [self._moved(end.part + 1, 0, 0, 0)]

    def _replay(self, check: int) -> None:
        if self._replayed is not None:
            self._replayed += check

    def _compare(self) -> None:
        """Compare the rows that were passed over with those that were emitted, once."""
        if self._to_drop:
            return
        replayed, self._replayed = self._replayed, None
        split = self._splits[0]
        if replayed is not None and wrapped(replayed) != split.check:
            raise SourceChangedError(self._changed(split))

    def _emit(self, output: ReaderOutput) -> None:
        chunk, split = self._chunk, self._splits[0]
        assert chunk is not None
        start = self._offset
        run, stop = self._runs.cut(chunk.batch, chunk.first, start, output.records_max)
        output.for_split(self._output_id(split, chunk.part)).emit_run(run)
        check = _sum(chunk, start, stop)
        row = chunk.first + stop
        self._splits = [self._moved(chunk.part, row, stop - start, check)]
        self._offset = stop
        if stop == chunk.batch.num_rows:
            self._chunk = None

    def _start(self) -> None:
        if self._started and self._splits and self._inflow is None:
            self._inflow = self._open(self._splits[0])
            self._inflow.start()

    def _pumped(
        self,
        items: Callable[[], Iterator[ReadItem | ItemT]],
        cancel: Callable[[], bool],
        explain: Callable[[BaseException], Exception],
    ) -> Pump[ReadItem | ItemT]:
        """Return what comes from an iterator, in a thread of its own; see `Pump`."""
        return Pump(
            items,
            self.availability.set_available,
            depth=self._depth,
            name=f"spark-source-{self._context.subtask_index}",
            cancel=cancel,
            explain=explain,
        )

    async def _stop(self, inflow: Inflow[ReadItem | ItemT]) -> None:
        if not await inflow.stop():
            self._context.log.warning(_STUCK)


# The partitions of a DataFrame.


_REMEDY: Final = (
    "Start anew, or let Spark write the rows once: SparkSource(df, stage=directory)."
)


@kept_in_state("SparkSplit")
@dataclass(frozen=True, slots=True)
class SparkSplit:
    """All partitions of a DataFrame, one after the other, from a position on.

    Attributes:
        split_id: Its name.
        part: The partition, or the staged file, to resume at.
        row: The row in it to go on with.
        fingerprint: What identifies the DataFrame; empty before the first row.
        check: Sum of the checks of all rows before the position, modulo 2**64.
        rows: How many rows are before the position.
    """

    split_id: str = "all"
    part: int = 0
    row: int = 0
    fingerprint: str = ""
    check: int = 0
    rows: int = 0


class SparkReader(Receiver[SparkSplit, Never]):
    """Reads the partitions of a DataFrame in the order of their indexes.

    With ``independent`` every partition has an output of its own: all of them hold
    event time back from before the first row, and each until its end marker. Where
    Spark does not tell how many there are, the split itself stands for those not yet
    seen, until the very end.
    """

    def __init__(
        self,
        context: ReaderContext,
        plan: ReadPlan,
        runs: BatchRuns,
        *,
        independent: bool,
        depth: int,
    ) -> None:
        super().__init__(context, runs, depth)
        self._plan = plan
        self._independent = independent
        self._released = False
        # Invariant: every partition before it was seen, or counted, and has an output.
        self._known_parts = 0
        self._progress = ReadProgress()
        self._tell_progress()

    def close(self) -> Pending:
        """End what runs in Spark, and expect no more of it."""
        self._progress.close()
        return super().close()

    def _open(self, split: SparkSplit) -> Inflow[ReadItem]:
        # A job without checkpoints never comes back to a position.
        is_compared = self._context.takes_checkpoints or bool(split.fingerprint)
        plan = replace(self._plan, checks=is_compared)
        part, row = split.part, split.row
        self._known_parts = part
        # Of ranges that are cut anew only the number of rows says where it was.
        if plan.by_count:
            self._to_drop, part, row = split.rows, 0, 0
            self._splits = [replace(split, part=0, row=0)]
            self._known_parts = 0
        feeder = new_feeder(plan, part, row, split.fingerprint, self._warn)
        return self._pumped(feeder.items, feeder.cancel, feeder.explain)

    def _warn(self, what: str, why: str) -> None:
        # From a thread.
        self._context.log.warning(what, why=why)

    def _tell_progress(self) -> None:
        progress, clock = self._progress, self._context.clock
        metrics = self._context.metrics
        metrics.gauge("rows_read", lambda: progress.rows)
        metrics.gauge("partitions", lambda: progress.parts)
        metrics.gauge("partitions_done", lambda: progress.parts_done)
        metrics.gauge("eta_s", lambda: progress.eta_s(clock.monotonic()))

    def _on_end(self, output: ReaderOutput, split: SparkSplit) -> None:
        self._splits.clear()
        self._no_more_splits = True
        self._progress.end(self._known_parts)
        self._release(output, split)

    def _release(self, output: ReaderOutput, split: SparkSplit) -> None:
        if not self._released:
            self._released = True
            output.release_split(split.split_id)

    def _on_item(self, output: ReaderOutput, item: ReadItem) -> None:
        split = self._splits[0]
        assert isinstance(item, Beginning)
        fingerprint = item.fingerprint
        if split.fingerprint not in {"", fingerprint}:
            raise SourceChangedError(
                "the position to resume from is one in another DataFrame: the plan, the "
                f"schema or the partitions have changed ({split.fingerprint} became "
                f"{fingerprint}). {_REMEDY}"
            )
        self._splits = [replace(split, fingerprint=fingerprint)]
        rows = item.rows
        self._progress.begin(
            self._context.clock.monotonic(),
            part=split.part,
            parts=self._plan.parts if item.parts is None else item.parts,
            # Files are read from the position on.
            skipped=self._to_drop or (split.row if rows is None else 0),
            rows_left=None if rows is None else rows - split.rows,
        )
        if item.parts is not None:
            self._know_parts(output, item.parts)
            if self._independent:
                self._release(output, split)

    def _changed(self, split: SparkSplit) -> str:
        return (
            f"the rows before partition {split.part}, row {split.row}, are not the "
            f"ones that were emitted: the DataFrame's data changed, or comes in "
            f"another order each time. {_REMEDY}"
        )

    def _know_parts(self, output: ReaderOutput, count: int) -> None:
        if self._independent:
            # At once: a partition that has not begun must hold event time back.
            for part in range(self._known_parts, count):
                output.for_split(_part_id(part))
        self._known_parts = max(self._known_parts, count)

    def _on_part(self, output: ReaderOutput, part: int, *, ended: bool) -> None:
        self._know_parts(output, part + 1)
        if ended:
            self._progress.end_part(part)
            if self._independent:
                output.release_split(_part_id(part))

    def _output_id(self, split: SparkSplit, part: int) -> str:
        return _part_id(part) if self._independent else split.split_id

    def _moved(self, part: int, row: int, rows: int, check: int) -> SparkSplit:
        split = self._splits[0]
        self._progress.rows += rows
        return replace(
            split,
            part=part,
            row=row,
            check=wrapped(split.check + check),
            rows=split.rows + rows,
        )


def _part_id(part: int) -> str:
    return f"partition-{part}"


def _sum(chunk: Chunk, start: int, stop: int) -> int:
    """Return the sum of the checks of rows; 0 where rows cannot change."""
    if chunk.checks is None:
        return 0
    # By numpy: Python's `sum` over a million checks would hold the loop.
    return int(np.add.reduce(chunk.checks[start:stop]))
