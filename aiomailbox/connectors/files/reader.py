"""Reads one file after the other, in a thread, a bounded way ahead of the task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from aiomailbox.availability import Availability
from aiomailbox.connectors.files.enumerator import FileSplit
from aiomailbox.connectors.files.formats import FileChunk, FileFormat
from aiomailbox.connectors.pump import Pump
from aiomailbox.errors import add_note, safe_repr, safe_str
from aiomailbox.operators.core.contract import Pending
from aiomailbox.operators.sources.source import InputStatus, ReaderContext, ReaderOutput

__all__ = ["FileReader"]


class FileReader:
    """Reads the files it was given in their order, and asks for the next one.

    Args:
        context: What the task gives.
        format: How records are read.
        depth: How many chunks may wait to be taken.
    """

    def __init__(self, context: ReaderContext, format: FileFormat, depth: int) -> None:  # noqa: A002 -- the argument's name in the API
        self.availability: Availability = Availability()
        self._context = context
        self._format = format
        self._depth = depth
        # The first one is being read.
        self._splits: list[FileSplit] = []
        self._no_more_splits = False
        self._pump: Pump[FileChunk] | None = None
        self._chunk: FileChunk | None = None
        self._offset = 0
        self._rows = 0
        if format.gives_batches:
            context.metrics.gauge("rows_read", lambda: self._rows)

    def start(self) -> None:
        """Ask for a file."""
        # One at a time, on request: a fast reader gets more files than a slow one.
        if not self._splits:
            self._context.request_split()

    def add_splits(self, splits: list[FileSplit]) -> None:
        """Take over files, at their positions."""
        self._splits += splits
        self.availability.set_available()

    def notify_no_more_splits(self) -> None:
        """Be notified that no further file comes."""
        self._no_more_splits = True
        self.availability.set_available()

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        """Emit at most one run."""
        if not self._splits:
            if self._no_more_splits:
                return InputStatus.END_OF_INPUT
            return self._nothing()
        pump = self._pump
        if pump is None:
            pump = self._pump = self._open(self._splits[0])
        if self._chunk is None:
            self._chunk, self._offset = pump.take(), 0
        if self._chunk is not None:
            self._emit(output, self._chunk)
            return InputStatus.MORE_AVAILABLE
        if not pump.ended:
            return self._nothing()
        self._end_file(output)
        return InputStatus.MORE_AVAILABLE

    def snapshot(self) -> list[FileSplit]:
        """Return the files that are not read to their end, at their positions."""
        return list(self._splits)

    def describe_split(self, split_id: str) -> str:
        """Return where the records of a split are."""
        return _in_file(split_id)

    def close(self) -> Pending:
        """Stop reading and wait for the thread."""
        pump, self._pump = self._pump, None
        self._chunk = None
        self._splits = []
        return None if pump is None else self._stop(pump)

    async def _stop(self, pump: Pump[FileChunk]) -> None:
        if not await pump.stop():
            self._context.log.warning("the thread that reads a file does not end")

    def _open(self, split: FileSplit) -> Pump[FileChunk]:
        read = self._format.read

        def produce() -> Iterator[FileChunk]:
            return read(split.split_id, split.position)

        pump = Pump(
            produce,
            _nothing_to_cancel,
            partial(_explained, split.split_id),
            self.availability.set_available,
            depth=self._depth,
            name=f"file-source-{self._context.subtask_index}",
        )
        pump.start()
        return pump

    def _emit(self, output: ReaderOutput, chunk: FileChunk) -> None:
        start, length = self._offset, len(chunk.run)
        stop = min(length, start + output.records_max)
        run = chunk.run if stop - start == length else chunk.run.slice(start, stop)
        split = self._splits[0]
        output.for_split(split.split_id).emit_run(run)
        # Behind the last record of the run, not of the chunk: a snapshot may come
        # between.
        self._splits[0] = replace(split, position=chunk.positions[stop - 1])
        self._rows += self._splits[0].position - split.position
        self._offset = stop
        if stop == length:
            self._chunk = None

    def _end_file(self, output: ReaderOutput) -> None:
        output.release_split(self._splits.pop(0).split_id)
        self._pump = None
        # A restored reader may have several left: it asks when it has read them.
        if not self._splits and not self._no_more_splits:
            self._context.request_split()

    def _nothing(self) -> InputStatus:
        self.availability.reset()
        return InputStatus.NOTHING_AVAILABLE


def _nothing_to_cancel() -> bool:
    """Say that a read of a file ends by itself."""
    return True


def _explained(name: str, error: BaseException) -> Exception:
    if not isinstance(error, Exception):
        return RuntimeError(safe_repr(error))
    # Errors of formats name the file, and the place in it.
    if name not in safe_str(error):
        add_note(error, _in_file(name))
    return error


def _in_file(name: str) -> str:
    return f"in the file {name!r}"
