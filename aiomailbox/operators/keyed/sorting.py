"""Sorts all records of a partition when the input has ended, also more than fit in memory."""

from __future__ import annotations

import heapq
import struct
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import IO, Any, Final

from aiomailbox.errors import RecordTypeError, UsageError, WrongTypeError
from aiomailbox.operators.core.failures import USER_ERRORS, RecordFailures
from aiomailbox.operators.core.fields import field_or_function
from aiomailbox.operators.core.operator import Pending, then
from aiomailbox.operators.core.slices import Slices, done_after
from aiomailbox.operators.core.user_code import (
    OnError,
    check_on_error,
    check_sync_function,
    fail,
    shortened,
)
from aiomailbox.operators.keyed.operators import (
    KeyReader,
    KeySelector,
    StatefulOperator,
)
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.records.byte_reader import ByteReader
from aiomailbox.records.events import MAX_TIMESTAMP
from aiomailbox.records.record_classes import RecordClasses
from aiomailbox.records.run import RUN_LENGTH_MAX, ListRun, Run
from aiomailbox.records.run_columns import ListRunForm, PythonSerializer
from aiomailbox.signatures import check_count, check_type
from aiomailbox.supervision import run_in_thread

# Of Flink: ``execution.sort-partition.memory``.
MEMORY_BYTES: Final = 128 * 1024**2
# Sorted at once: so many take a millisecond or two, and others wait for that.
_CHUNK: Final = 4096
# One record of so many is measured.
_MEASURED: Final = 32
# More files are merged into one: each takes a descriptor and a block in memory.
_FILES_MAX: Final = 64
_LENGTH: Final = struct.Struct(">I")


class SortOperator(StatefulOperator):
    """Emits the records of each partition in order, when the input has ended.

    Theory of operation: records are sorted in chunks as they come. When all chunks
    together are larger than the memory that was given, they are merged into a sorted
    file, in a thread. At the end, files and chunks are merged. Files have no name, so
    they go with the process, however it ends.

    Args:
        key: What reads a record's key: the records of a key are emitted together. None
            for one partition a subtask.
        by: What records are sorted by: a field's name or a function of a record.
        descending: Whether the largest is first.
        memory_bytes: How much memory the records of a subtask may take, estimated.
        on_error: How to handle a record whose value is None or cannot be compared.

    Concept:
        Flink, ``SortPartitionOperator`` and ``KeyedSortPartitionOperator``.

    Example:
        >>> from aiomailbox.testing import OneInputHarness
        >>> operator = SortOperator(len, str.lower, descending=True)
        >>> with OneInputHarness(operator, keyed=True) as harness:
        ...     harness.process_run(["a", "bb", "C"])
        ...     harness.process_watermark(2**63 - 1)
        ...     harness.values
        ['bb', 'C', 'a']
    """

    def __init__(
        self,
        key: KeySelector | None,
        by: str | Callable[[Any], Any],
        *,
        descending: bool = False,
        memory_bytes: int = MEMORY_BYTES,
        on_error: OnError = fail,
    ) -> None:
        super().__init__()
        self._key = None if key is None else field_or_function(key, "key")
        self.by: Callable[[Any], Any] = field_or_function(by, "by")
        if callable(by):
            check_sync_function(by, "by", arity=1)
        check_type(descending, bool, "descending", "Write descending=True.")
        self.descending = descending
        self.memory_bytes: int = check_count(memory_bytes, "memory_bytes")
        self.on_error: OnError = check_on_error(on_error)
        self._values: list[Any] = []
        self._chunks: list[list[Any]] = []
        self._held_bytes = 0
        self._files: list[SortedFile] = []
        # A value that all others must be comparable with.
        self._like: Any = None
        self._types: set[type] = set()
        self._merged: Iterator[Any] | None = None

    def open(self) -> Pending:
        """Prepare for records that cannot be sorted."""
        context = self.context
        self._keys = None if self._key is None else KeyReader(self._key, self)
        self._failures = RecordFailures(self, self.by)
        self._slices = Slices(context, self.output, self._failures.report)
        self._spilled = context.metrics.counter("sorted_files_bytes", unit="bytes")
        return None

    def capture(self) -> OperatorSnapshot:
        """Refuse while there are records: those in files would be in no snapshot."""
        if not (self._values or self._chunks or self._files):
            return super().capture()
        raise UsageError(f"{self.place} sorts, and its records are in no checkpoint")

    def process_run(self, run: Run) -> Pending:
        """Keep the records."""
        values = run.values
        if not values:
            return None
        if self._keys is not None:
            self._keys.read(values)
        self._values += self._comparable(values, run.timestamps)
        pending = self._failures.report() if self._failures.waiting else None
        if len(self._values) < _CHUNK:
            return pending
        self._seal()
        if self._held_bytes <= self.memory_bytes:
            return pending
        return then(pending, self._spill)

    def pass_watermark(self, timestamp_ms: int) -> Pending:
        """Emit all records before event time ends."""
        if timestamp_ms < MAX_TIMESTAMP:
            return self.output.emit_watermark(timestamp_ms)
        return then(self.end_input(), self.output.emit_watermark, timestamp_ms)

    def end_input(self) -> Pending:
        """Emit all records."""
        if self._values:
            self._seal()
        chunks, self._chunks, self._held_bytes = self._chunks, [], 0
        if not chunks and not self._files:
            return None
        self._merged = self._merge([*self._files, *chunks])
        return then(self._slices.run(self._emit_some), self._forget_files)

    def close(self) -> Pending:
        """Remove the files."""
        self._forget_files()
        return super().close()

    def _order(self, record: Any) -> Any:
        value = self.by(record)
        # Only NaN is not equal to itself; it is the largest, as in Flink and in Spark.
        ordered = value if value == value else _LARGEST
        return ordered if self._key is None else (self._key(record), ordered)

    def _comparable(self, values: list[Any], stamps: list[int] | None) -> list[Any]:
        """Return the records that can be sorted; others go where `on_error` says."""
        kept: list[Any] = []
        by, types = self.by, self._types
        for index, record in enumerate(values):
            try:
                value = by(record)
                if type(value) not in types:
                    self._check(value, record)
            except USER_ERRORS as error:
                self._failures.take(record, stamps[index] if stamps else None, error)
                continue
            kept.append(record)
        return kept

    def _check(self, value: Any, record: Any) -> None:
        """Raise if a value cannot be compared with the first one."""
        like = value if self._like is None else self._like
        try:
            _ = value < like
        except TypeError as error:
            raise RecordTypeError(
                "by", f"{shortened(value)} of {shortened(record)} has no order: {error}"
            ) from error
        self._like = like
        # What is in a tuple may differ from record to record.
        if type(value) is not tuple:
            self._types.add(type(value))

    def _seal(self) -> None:
        """Sort what has come since the last chunk."""
        chunk, self._values = self._values, []
        chunk.sort(key=self._order, reverse=self.descending)
        self._chunks.append(chunk)
        measured = chunk[::_MEASURED]
        size = sum(memory_of(record) for record in measured)
        self._held_bytes += size * len(chunk) // len(measured)

    async def _spill(self) -> None:
        """Move all chunks into a file."""
        chunks, self._chunks, self._held_bytes = self._chunks, [], 0
        await run_in_thread(self._write, chunks)
        self._spilled.value = sum(file.size_bytes for file in self._files)

    def _write(self, chunks: list[list[Any]]) -> None:
        # Kept at once, to be closed also if nobody waits any more.
        self._files.append(SortedFile.written(self._merge(chunks)))
        if len(self._files) >= _FILES_MAX:
            merged = SortedFile.written(self._merge(self._files))
            files, self._files = self._files, [merged]
            for file in files:
                file.close()

    def _merge(self, parts: Sequence[Iterable[Any]]) -> Iterator[Any]:
        return heapq.merge(*parts, key=self._order, reverse=self.descending)

    def _emit_some(self, count: int) -> bool | Awaitable[bool]:
        assert self._merged is not None, "emitted once the input has ended"
        some = list(islice(self._merged, count))
        if not some:
            return True
        return done_after(self.output.emit_run(ListRun(some)), done=False)

    def _forget_files(self) -> None:
        files, self._files, self._merged = self._files, [], None
        for file in files:
            file.close()


class SortedFile:
    """Records in a file without a name, in the order in which they were written.

    Args:
        file: The file, empty.

    Attributes:
        size_bytes: How long it is.

    Example:
        >>> records = SortedFile.written(iter([("a", 1), ("b", 2)]))
        >>> list(records)
        [('a', 1), ('b', 2)]
        >>> records.close()
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        # How to read each block: the classes of its records are those of its writing.
        self._blocks: list[ListRunForm] = []
        self.size_bytes: int = 0

    @classmethod
    def written(cls, records: Iterator[Any]) -> SortedFile:
        """Return a new file with these records.

        Raises:
            RecordTypeError: If a record cannot be written.
            OSError: If there is no room.
        """
        made = cls(tempfile.TemporaryFile())  # noqa: SIM115 -- it outlives this call
        try:
            while block := list(islice(records, RUN_LENGTH_MAX)):
                made._append(block)
        except BaseException:
            made.close()
            raise
        return made

    def __iter__(self) -> Iterator[Any]:
        file = self._file
        file.seek(0)
        for form in self._blocks:
            (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
            yield from form.read(ByteReader(file.read(length))).values

    def close(self) -> None:
        """Remove the file. Idempotent."""
        self._file.close()

    def _append(self, block: list[Any]) -> None:
        form = self._form_for(block)
        output = bytearray(_LENGTH.size)
        try:
            form.write(ListRun(block), output)
        except WrongTypeError as error:
            raise RecordTypeError(
                "memory_bytes",
                "more records are to be sorted than this memory holds, and they cannot "
                f"be written to a file: {error}",
                "Use plain values, NamedTuples, dataclasses or msgspec Structs as "
                "records, or raise memory_bytes.",
            ) from error
        _LENGTH.pack_into(output, 0, len(output) - _LENGTH.size)
        self._file.write(output)
        self._blocks.append(form)
        self.size_bytes += len(output)

    def _form_for(self, block: list[Any]) -> ListRunForm:
        kinds = set(map(type, block))
        last = self._blocks[-1] if self._blocks else None
        if last is not None and kinds <= self._kinds:
            return last
        self._kinds: set[type] = kinds
        return ListRunForm(PythonSerializer(RecordClasses.found_in(kinds)))


class _Largest:
    """Larger than any value."""

    def __lt__(self, other: object) -> bool:
        return False

    def __gt__(self, other: object) -> bool:
        return other is not self


_LARGEST: Final = _Largest()


def memory_of(record: Any, depth: int = 4) -> int:
    """Return an estimate of the memory that a record takes, with what is in it.

    Example:
        >>> memory_of(("a" * 1000, [1, 2])) > 1000
        True
    """
    size = sys.getsizeof(record)
    if not depth or isinstance(record, str | bytes | int | float | bool):
        return size
    if isinstance(record, dict):
        # Keys are mostly shared by all records.
        parts: Iterable[Any] = record.values()
    elif isinstance(record, list | tuple | set | frozenset):
        parts = record
    else:
        held: Any = getattr(record, "__dict__", ())
        fields = held or getattr(type(record), "__slots__", ())
        parts = [getattr(record, name, None) for name in fields]
    return size + sum(memory_of(part, depth - 1) for part in parts if part is not None)
