"""What readers have in common whose rows come from a thread: a split, a pump, a chunk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, Generic, TypeVar

import numpy as np

from aiomailbox.availability import Availability
from aiomailbox.connectors.pump import Pump
from aiomailbox.connectors.spark.fingerprint import wrapped
from aiomailbox.connectors.spark.reading import Chunk
from aiomailbox.operators.core.operator import Pending
from aiomailbox.operators.sources.source import InputStatus, ReaderContext, ReaderOutput

SplitT = TypeVar("SplitT")
ItemT = TypeVar("ItemT")

_STUCK: Final = "the thread that reads from Spark does not end"


class PumpedReader(ABC, Generic[SplitT, ItemT]):
    """Emits the chunks that a thread reads, a run at a time, for one split.

    A derived class starts the pump, takes items from it up to the next chunk, and knows
    the position behind each run.

    Args:
        context: What the task gives.
    """

    def __init__(self, context: ReaderContext) -> None:
        self.availability: Availability = Availability()
        self._context = context
        self._started = False
        self._no_more_splits = False
        self._split: SplitT | None = None
        self._pump: Pump[ItemT] | None = None
        self._chunk: Chunk | None = None
        # Of the chunk, how many records were emitted.
        self._offset = 0

    def start(self) -> None:
        """Begin to read, if there is a split already."""
        self._started = True
        self._start()

    def add_splits(self, splits: list[SplitT]) -> None:
        """Take the split over, at its position."""
        for split in splits:
            self._split = split
        self._start()

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
        if self._chunk is None and not self._next_chunk(output):
            if self._pump is None or not self._pump.ended:
                return self._nothing()
            self._end(output)
            return InputStatus.END_OF_INPUT
        self._emit(output)
        return InputStatus.MORE_AVAILABLE

    def snapshot(self) -> list[SplitT]:
        """Return the split at the position after the last emitted run."""
        return [] if self._split is None else [self._split]

    def close(self) -> Pending:
        """End what runs in Spark, and wait for the thread."""
        pump, self._pump = self._pump, None
        self._chunk = None
        return None if pump is None else self._stop(pump)

    @abstractmethod
    def _new_pump(self, split: SplitT) -> Pump[ItemT]:
        """Return what reads from the split's position on."""

    @abstractmethod
    def _take(self, output: ReaderOutput, item: ItemT) -> Chunk | None:
        """Take what the thread has read; return what of it is to be emitted."""

    @abstractmethod
    def _output_id(self, chunk: Chunk) -> str:
        """Return whose event time the rows of a chunk have."""

    @abstractmethod
    def _moved(self, chunk: Chunk, first: int, stop: int) -> SplitT:
        """Return the split at the position behind rows ``first`` to ``stop``."""

    @abstractmethod
    def _end(self, output: ReaderOutput) -> None:
        """Release what event time is held for: all is read."""

    def _next_chunk(self, output: ReaderOutput) -> bool:
        """Take from the pump up to the next chunk; say whether there is one."""
        if self._pump is None:
            return False
        while (item := self._pump.take()) is not None:
            chunk = self._take(output, item)
            if chunk is not None:
                self._chunk, self._offset = chunk, 0
                return True
        return False

    def _emit(self, output: ReaderOutput) -> None:
        chunk = self._chunk
        assert chunk is not None
        start, length = self._offset, len(chunk.run)
        stop = min(length, start + output.records_max)
        whole = stop - start == length
        run = chunk.run if whole else chunk.run.slice(start, stop)
        output.for_split(self._output_id(chunk)).emit_run(run)
        # The batch itself may be the record: one for all rows.
        first = start if length == chunk.rows else 0
        self._split = self._moved(chunk, first, chunk.rows if stop == length else stop)
        self._offset = stop
        if stop == length:
            self._chunk = None

    def _start(self) -> None:
        if self._started and self._split is not None and self._pump is None:
            self._pump = self._new_pump(self._split)
            self._pump.start()

    def _nothing(self) -> InputStatus:
        self.availability.reset()
        return InputStatus.NOTHING_AVAILABLE

    async def _stop(self, pump: Pump[ItemT]) -> None:
        if not await pump.stop():
            self._context.log.warning(_STUCK)


def check_after(check: int, chunk: Chunk, first: int, stop: int) -> int:
    """Return the sum of checks behind rows of a chunk; 0 where rows cannot change.

    Args:
        check: The sum before them.
        chunk: The chunk.
        first: The first row.
        stop: Behind the last row.
    """
    if chunk.checks is None:
        return 0
    return wrapped(check + int(np.add.reduce(chunk.checks[first:stop])))
