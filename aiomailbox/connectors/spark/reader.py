"""The reader of a DataFrame: takes from the pump, emits runs, knows its position."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from aiomailbox.availability import Availability
from aiomailbox.connectors.pump import Pump
from aiomailbox.connectors.spark.jobs import JobTag
from aiomailbox.connectors.spark.reading import (
    Chunk,
    PartCount,
    PartEnd,
    ReadItem,
    ReadPlan,
    read,
)
from aiomailbox.operators import InputStatus, Pending, ReaderContext, ReaderOutput
from aiomailbox.state import kept_in_state

__all__ = ["SparkReader", "SparkSplit"]


@kept_in_state
@dataclass(frozen=True, slots=True)
class SparkSplit:
    """All partitions of a DataFrame, one after the other, from a position on.

    Attributes:
        split_id: Its name.
        part: The partition to go on with.
        row: The row in it to go on with.
    """

    split_id: str = "all"
    part: int = 0
    row: int = 0


class SparkReader:
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
        self.availability: Availability = Availability()
        self._context = context
        self._plan = plan
        self._independent = independent
        self._depth = depth
        self._started = False
        self._no_more_splits = False
        self._released = False
        self._split: SparkSplit | None = None
        self._pump: Pump[ReadItem] | None = None
        self._chunk: Chunk | None = None
        self._offset = 0
        # Invariant: every partition before it was seen, or counted, and has an output.
        self._known_parts = 0

    def start(self) -> None:
        """Begin to read, if there is a split already."""
        self._started = True
        self._start_pump()

    def add_splits(self, splits: list[SparkSplit]) -> None:
        """Take the split over, at its position."""
        for split in splits:
            self._split = split
            self._known_parts = split.part
        self._start_pump()

    def notify_no_more_splits(self) -> None:
        """Be notified that a reader without the split has nothing to do."""
        self._no_more_splits = True
        self.availability.set_available()

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        """Emit at most one run."""
        split = self._split
        if split is None:
            if self._no_more_splits:
                return InputStatus.END_OF_INPUT
            return self._nothing()
        if self._chunk is None and not self._next_chunk(output, split):
            if self._pump is None or not self._pump.ended:
                return self._nothing()
            return self._end(output, split)
        self._emit(output)
        return InputStatus.MORE_AVAILABLE

    def snapshot(self) -> list[SparkSplit]:
        """Return the split at the position after the last emitted run."""
        return [] if self._split is None else [self._split]

    def close(self) -> Pending:
        """Cancel our Spark jobs and wait for the thread."""
        pump, self._pump = self._pump, None
        self._chunk = None
        if pump is None:
            return None
        return self._stop(pump)

    async def _stop(self, pump: Pump[ReadItem]) -> None:
        if not await pump.stop():
            self._context.log.warning("the thread that reads from Spark does not end")

    def _start_pump(self) -> None:
        split, plan = self._split, self._plan
        if not self._started or split is None or self._pump is not None:
            return
        tag = JobTag(plan.df)

        def produce() -> Iterator[ReadItem]:
            tag.tag_thread()
            return read(plan, split.part, split.row)

        self._pump = Pump(
            produce,
            tag.cancel_jobs,
            tag.explain,
            self.availability.set_available,
            depth=self._depth,
            name=f"spark-source-{self._context.subtask_index}",
        )
        self._pump.start()

    def _nothing(self) -> InputStatus:
        self.availability.reset()
        return InputStatus.NOTHING_AVAILABLE

    def _end(self, output: ReaderOutput, split: SparkSplit) -> InputStatus:
        if self._independent:
            # The row path has no end markers.
            for part in range(split.part, self._known_parts):
                output.release_split(_part_id(part))
        self._release(output, split)
        self._split = None
        self._no_more_splits = True
        return InputStatus.END_OF_INPUT

    def _release(self, output: ReaderOutput, split: SparkSplit) -> None:
        if not self._released:
            self._released = True
            output.release_split(split.split_id)

    def _next_chunk(self, output: ReaderOutput, split: SparkSplit) -> bool:
        """Take from the pump up to the next chunk; say whether there is one."""
        if self._pump is None:
            return False
        while (item := self._pump.take()) is not None:
            if isinstance(item, Chunk):
                self._know_parts(output, item.part + 1)
                self._chunk, self._offset = item, 0
                return True
            if isinstance(item, PartCount):
                self._know_parts(output, item.count)
                if self._independent:
                    self._release(output, split)
            else:
                self._end_part(output, item)
        return False

    def _know_parts(self, output: ReaderOutput, count: int) -> None:
        if self._independent:
            for part in range(self._known_parts, count):
                output.for_split(_part_id(part))
        self._known_parts = max(self._known_parts, count)

    def _end_part(self, output: ReaderOutput, end: PartEnd) -> None:
        split = self._split
        assert split is not None
        if end.part < split.part:
            return
        self._know_parts(output, end.part + 1)
        if self._independent:
            output.release_split(_part_id(end.part))
        self._split = replace(split, part=end.part + 1, row=0)

    def _emit(self, output: ReaderOutput) -> None:
        chunk, split = self._chunk, self._split
        assert chunk is not None
        assert split is not None
        start, length = self._offset, len(chunk.run)
        stop = min(length, start + output.records_max)
        whole = stop - start == length
        run = chunk.run if whole else chunk.run.slice(start, stop)
        to = output.for_split(
            _part_id(chunk.part) if self._independent else split.split_id
        )
        to.emit_run(run)
        read_rows = chunk.rows if stop == length else stop
        self._split = replace(split, part=chunk.part, row=chunk.first + read_rows)
        self._offset = stop
        if stop == length:
            self._chunk = None


def _part_id(part: int) -> str:
    return f"partition-{part}"
