"""The reader of a DataFrame: takes from the pump, emits runs, knows its position."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from aiomailbox.connectors.pump import Pump
from aiomailbox.connectors.spark.fingerprint import wrapped
from aiomailbox.connectors.spark.jobs import (
    JobTag,
    ReadProgress,
)
from aiomailbox.connectors.spark.pumped import PumpedReader, check_after
from aiomailbox.connectors.spark.reading import (
    Beginning,
    Chunk,
    PartEnd,
    ReadItem,
    ReadPlan,
    Skipped,
    read,
)
from aiomailbox.errors import (
    SourceChangedError,
)
from aiomailbox.operators.sources.source import ReaderContext, ReaderOutput
from aiomailbox.records.run import ListRun
from aiomailbox.state.serializers import kept_in_state

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


class SparkReader(PumpedReader[SparkSplit, ReadItem]):
    """Reads the partitions of a DataFrame in the order of their indexes.

    With ``independent`` every partition has an output of its own: all of them hold
    event time back from before the first row, and each until its end marker. Where
    Spark does not tell how many there are, the split itself stands for those not yet
    seen, until the very end.

    Args:
        context: What the task gives.
        plan: What to read and how.
        independent: Whether partitions have event times of their own.
        depth: How many chunks may wait to be taken.
    """

    def __init__(
        self, context: ReaderContext, plan: ReadPlan, *, independent: bool, depth: int
    ) -> None:
        super().__init__(context)
        self._plan = plan
        self._independent = independent
        self._depth = depth
        self._released = False
        # Invariant: every partition before it was seen, or counted, and has an output.
        self._known_parts = 0
        # Of rows that were passed over; None once they were compared.
        self._replayed: int | None = 0
        # Rows that come again and are to be dropped here, not in Spark.
        self._to_drop = 0
        self._progress = ReadProgress()
        self._tell_progress()

    def _new_pump(self, split: SparkSplit) -> Pump[ReadItem]:
        # A job without checkpoints never comes back to a position.
        is_compared = self._context.takes_checkpoints or bool(split.fingerprint)
        plan = replace(self._plan, checks=is_compared)
        part, row = split.part, split.row
        self._known_parts = part
        # Of ranges that are cut anew only the number of rows says where it was.
        if plan.by_count:
            self._to_drop, part, row = split.rows, 0, 0
            self._split = replace(split, part=0, row=0)
            self._known_parts = 0
        # What was staged before is read without Spark.
        tag = None if plan.df is None else JobTag(plan.df)

        def produce() -> Iterator[ReadItem]:
            if tag is None:
                yield from read(plan, part, row, split.fingerprint)
                return
            tag.tag_thread()
            with tag.watching():
                yield from read(plan, part, row, split.fingerprint)

        return Pump(
            produce,
            _nothing_to_cancel if tag is None else tag.cancel_jobs,
            _as_it_is if tag is None else tag.explain,
            self.availability.set_available,
            depth=self._depth,
            name=f"spark-source-{self._context.subtask_index}",
        )

    def _tell_progress(self) -> None:
        progress, clock = self._progress, self._context.clock
        metrics = self._context.metrics
        metrics.gauge("rows_read", lambda: progress.rows)
        metrics.gauge("partitions", lambda: progress.parts)
        metrics.gauge("partitions_done", lambda: progress.parts_done)
        metrics.gauge("eta_s", lambda: progress.eta_s(clock.monotonic()))

    def _end(self, output: ReaderOutput) -> None:
        split, self._split = self._split, None
        self._no_more_splits = True
        assert split is not None
        self._progress.end(self._known_parts)
        if self._independent:
            # The row path has no end markers.
            for part in range(split.part, self._known_parts):
                output.release_split(_part_id(part))
        self._release(output, split)

    def _release(self, output: ReaderOutput, split: SparkSplit) -> None:
        if not self._released:
            self._released = True
            output.release_split(split.split_id)

    def _next_chunk(self, output: ReaderOutput) -> bool:
        if super()._next_chunk(output):
            return True
        if self._pump is not None and self._pump.ended:
            self._to_drop = 0
            self._compare()
        return False

    def _take(self, output: ReaderOutput, item: ReadItem) -> Chunk | None:
        match item:
            case Chunk():
                self._know_parts(output, item.part + 1)
                chunk = self._not_dropped(item)
                if chunk is not None:
                    self._compare()
                return chunk
            case Beginning():
                self._begin(output, item)
            case Skipped():
                self._replay(item.check)
            case PartEnd():
                self._end_part(output, item)
        return None

    def _not_dropped(self, chunk: Chunk) -> Chunk | None:
        """Return what of a chunk was not emitted before the restart."""
        dropped = min(self._to_drop, chunk.rows)
        if not dropped:
            return chunk
        self._to_drop -= dropped
        # By numpy: Python's `sum` over a million checks would hold the loop.
        self._replay(int(np.add.reduce(chunk.checks[:dropped])))
        if dropped == chunk.rows:
            return None
        if len(chunk.run) == chunk.rows:
            run = chunk.run.slice(dropped, chunk.rows)
        else:
            run = ListRun([batch.slice(dropped) for batch in chunk.run.values])
        return replace(
            chunk,
            first=chunk.first + dropped,
            rows=chunk.rows - dropped,
            run=run,
            checks=chunk.checks[dropped:],
        )

    def _begin(self, output: ReaderOutput, beginning: Beginning) -> None:
        split, fingerprint = self._split, beginning.fingerprint
        assert split is not None
        if split.fingerprint not in {"", fingerprint}:
            raise SourceChangedError(
                "the DataFrame is not the one that the position was taken of: its plan, "
                f"its schema or its partitions changed ({split.fingerprint} became "
                f"{fingerprint}). {_REMEDY}"
            )
        self._split = replace(split, fingerprint=fingerprint)
        rows = beginning.rows
        self._progress.begin(
            self._context.clock.monotonic(),
            part=split.part,
            parts=self._plan.parts if beginning.parts is None else beginning.parts,
            # Files are read from the position on.
            skipped=0 if rows is not None else self._to_drop or split.row,
            rows_left=None if rows is None else rows - split.rows,
        )
        if beginning.parts is not None:
            self._know_parts(output, beginning.parts)
            if self._independent:
                self._release(output, split)

    def _replay(self, check: int) -> None:
        if self._replayed is not None:
            self._replayed += check

    def _compare(self) -> None:
        """Compare the rows that were passed over with those that were emitted."""
        if self._to_drop:
            return
        replayed, self._replayed = self._replayed, None
        split = self._split
        if replayed is None or split is None or self._plan.stage is not None:
            return
        if wrapped(replayed) != split.check:
            raise SourceChangedError(
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

    def _end_part(self, output: ReaderOutput, end: PartEnd) -> None:
        split = self._split
        assert split is not None
        if end.part < split.part:
            self._replay(end.check)
            return
        if end.part == split.part and end.rows is not None and end.rows < split.row:
            # Of a partition that became shorter nothing was passed over as a whole.
            self._replayed = (self._replayed or 0) + end.check
        self._compare()
        self._progress.end_part(end.part)
        self._know_parts(output, end.part + 1)
        if self._independent:
            output.release_split(_part_id(end.part))
        self._split = replace(split, part=end.part + 1, row=0)

    def _output_id(self, chunk: Chunk) -> str:
        assert self._split is not None
        return _part_id(chunk.part) if self._independent else self._split.split_id

    def _moved(self, chunk: Chunk, first: int, stop: int) -> SparkSplit:
        split, count = self._split, stop - first
        assert split is not None
        self._progress.rows += count
        return replace(
            split,
            part=chunk.part,
            row=chunk.first + stop,
            check=check_after(split.check, chunk, first, stop),
            rows=split.rows + count,
        )


def _nothing_to_cancel() -> bool:
    """Say that a read of a file ends by itself."""
    return True


def _as_it_is(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else SourceChangedError(repr(error))


def _part_id(part: int) -> str:
    return f"partition-{part}"
