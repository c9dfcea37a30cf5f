"""Results as a directory of JSON lines, CSV or text, which `FileSource` reads."""

from __future__ import annotations

import contextlib
import csv
import io
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

import msgspec

from aiomailbox.connectors.directory import (
    DirectoryTarget,
    GrowingCommitter,
    Segments,
    SegmentWriter,
    WholeCommitter,
    WriteMode,
)
from aiomailbox.connectors.sinks import RowReader, field_names, refuse
from aiomailbox.errors import (
    InvalidArgumentError,
    RecordTypeError,
)
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.failures import USER_ERRORS
from aiomailbox.operators.core.operator import Pending
from aiomailbox.operators.core.user_code import shortened
from aiomailbox.operators.sinks.sink import CommitterContext, Guarantee
from aiomailbox.records.run import Run
from aiomailbox.signatures import check_choice, check_names, check_suffix, explained

Format = Literal["jsonl", "csv", "text"]

_ENDINGS: Final[dict[str, str]] = {"jsonl": ".jsonl", "csv": ".csv", "text": ".txt"}
# Runs that are looked at for numbers that have become null.
_NULLS_MAX: Final = 64
_DEPTH_MAX: Final = 16
# What is collected before a thread writes it.
_BUFFERED_BYTES: Final = 1 << 20


@explained('Write am.FileSink("directory", "jsonl"), "csv" or "text".')
class FileSink:
    """Writes records into a directory of JSON lines, CSV or text files, one per line.

    Guarantee: exactly once, as `ParquetSink`: complete files appear with every checkpoint
    or, without checkpoints, all at once when the job succeeds.

    Args:
        path: The directory. It must not exist yet; missing parents are created.
        format: ``"jsonl"`` for records of any kind (JSON has no NaN and no infinity: both
            become null); ``"csv"`` for records with fields, whose names are each file's
            first line; ``"text"`` for str without line ends.
        columns: For CSV, which fields to write; None for those of the first record.
        mode: As for `ParquetSink`.

    Raises:
        InvalidArgumentError: If an argument has an invalid value.
        WrongTypeError: If ``path`` is not a path.

    Concept:
        Flink, ``FileSink``.

    Example:
        >>> FileSink("out/delays", "jsonl")
        <FileSink of jsonl files in 'out/delays'>
    """

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(
        self,
        path: str | os.PathLike[str],
        format: Format,  # noqa: A002 -- as of FileSource
        *,
        columns: Sequence[str] | None = None,
        mode: WriteMode = "error",
    ) -> None:
        self._target = DirectoryTarget.of(path, mode)
        check_choice(format, "format", *_ENDINGS)
        check_suffix(self._target.path, format)
        self._format: Format = format
        self._columns = None if columns is None else _checked(columns, format)

    @property
    def file_like(self) -> Path:
        """A path like those of the files."""
        return self._target.path / f"part-0{_ENDINGS[self._format]}"

    def create_writer(self, context: RuntimeContext) -> _LineWriter:
        """Create the writer of one subtask."""
        segments = self._target.segments(context, _ENDINGS[self._format])
        if self._format == "csv":
            return _LineWriter(segments, _CsvLines(self._columns))
        lines = _Lines(_ENCODERS[self._format])
        if self._format == "jsonl":
            lines.nulls = _Nulls(context)
        return _LineWriter(segments, lines)

    def create_committer(
        self, context: CommitterContext
    ) -> GrowingCommitter | WholeCommitter:
        """Create the committer."""
        return self._target.create_committer(context)

    def __repr__(self) -> str:
        return f"<FileSink of {self._format} files in {str(self._target.path)!r}>"


class _Lines:
    """Turns records into lines that need no first line."""

    header = b""

    def __init__(self, encode: Callable[[Any], bytes]) -> None:
        self.encode = encode
        self.nulls: _Nulls | None = None


class _Nulls:
    """Warns, once, of numbers that JSON does not have.

    Args:
        context: The sink's.
    """

    def __init__(self, context: RuntimeContext) -> None:
        self._context = context
        # Runs with a null: most of them come from None, and walking each would be felt.
        self._left = _NULLS_MAX
        self.is_over: bool = False

    def look(self, values: Iterable[Any]) -> None:
        """Look for a number that has become null."""
        self._left -= 1
        self.is_over = self._left <= 0
        for record in values:
            place = _not_finite(record, "", _DEPTH_MAX)
            if place:
                self.is_over = True
                self._context.log.warning(
                    "JSON has no NaN and no infinity: such numbers are written as null",
                    field=place,
                    record=shortened(record),
                    remedy="map them to None or to a text, if null must not stand for "
                    'them; "csv" and am.ParquetSink have them',
                )
                return


def _not_finite(value: Any, place: str, depth: int) -> str:
    """Return the place of a number that is NaN or infinite, "" if there is none near."""
    if isinstance(value, float):
        return "" if math.isfinite(value) else place or "the record"
    parts: Iterable[tuple[Any, Any]] = ()
    if not depth:
        return ""
    if isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        parts = enumerate(value)
    elif not isinstance(value, str | bytes | int | None):
        parts = [(name, getattr(value, name, None)) for name in _names_of(value)]
    for name, part in parts:
        found = _not_finite(part, f"{place}.{name}" if place else str(name), depth - 1)
        if found:
            return found
    return ""


class _CsvLines:
    """Turns records into rows; the first one says what the columns are."""

    def __init__(self, columns: tuple[str, ...] | None) -> None:
        self.header: bytes = b""
        self.nulls: _Nulls | None = None
        self._buffer = io.StringIO()
        self._rows = csv.writer(self._buffer, lineterminator="\n")
        self._reader: RowReader | None = None
        if columns is not None:
            self._begin(columns, is_exact=False)

    def encode(self, record: Any) -> bytes:
        """Return a record's row.

        Raises:
            RecordTypeError: If it has no fields, or others than the first one.
        """
        if self._reader is None:
            self._begin(field_names(record), is_exact=True)
        assert self._reader is not None, "the columns are known"
        row = self._reader.row(record)
        try:
            return self._row([_text(value) for value in row])
        except TypeError:
            for name, value in zip(self._reader.columns, row, strict=True):
                try:
                    _text(value)
                except TypeError as error:
                    raise _no_text(name, value, error) from error
            raise

    def _begin(self, columns: tuple[str, ...], *, is_exact: bool) -> None:
        # First: names that cannot be written must not become the columns.
        self.header = self._row(list(columns))
        self._reader = RowReader(columns, is_exact=is_exact)

    def _row(self, texts: list[str]) -> bytes:
        self._rows.writerow(texts)
        row = self._buffer.getvalue()
        # Before it is encoded: a row that cannot be would come again with the next.
        self._buffer.seek(0)
        self._buffer.truncate()
        return row.encode()


class _LineWriter(SegmentWriter):
    """Collects lines and writes them a mebibyte at a time, in a thread."""

    def __init__(self, segments: Segments, lines: _Lines | _CsvLines) -> None:
        super().__init__(segments)
        self._lines = lines
        self._buffer = bytearray()
        self._file: BinaryIO | None = None
        self._path = Path()

    def write_run(self, run: Run) -> Pending:
        """Collect lines; write when there are enough.

        Raises:
            RecordsRefusedError: If some records have no line; the others are taken.
        """
        refused: dict[int, BaseException] = {}
        encode, buffer = self._lines.encode, self._buffer
        start = len(buffer)
        for index, value in enumerate(run.values):
            try:
                buffer += encode(value)
            except USER_ERRORS as error:
                refused[index] = error
        nulls = self._lines.nulls
        if nulls is not None and buffer.find(b"null", start) >= 0:
            # Others may go on for ever, as a list that is in itself.
            nulls.look(each for n, each in enumerate(run.values) if n not in refused)
            if nulls.is_over:
                self._lines.nulls = None
        pending = None
        if len(buffer) >= _BUFFERED_BYTES:
            pending = self._in_thread(self._write)
        if not refused:
            return pending
        # What was collected is written all the same: only the refused ones are not.
        return refuse(refused, len(run), pending)

    def flush(self, *, end_of_input: bool) -> Pending:
        """Write what is collected and finish the file."""
        if self._file is None and not self._buffer:
            return None
        return self._in_thread(self._finish)

    def _write(self) -> None:
        if self._file is None:
            self._compare(self._lines.header)
            self._path = self._segments.begin()
            self._file = open(self._path, "wb")  # noqa: SIM115 -- closed by others
            self._file.write(self._lines.header)
        self._file.write(self._buffer)
        self._buffer.clear()

    def _compare(self, header: bytes) -> None:
        """Warn, before the first file, if those that it is added to have other columns."""
        joined = self._segments.take_joined() if header else None
        if joined is None:
            return
        with open(joined, "rb") as file:
            there = file.readline(_BUFFERED_BYTES)
        if there.rstrip(b"\r\n") != header.rstrip(b"\n"):
            texts = [one.decode(errors="replace").strip() for one in (header, there)]
            told = f"the first line is {texts[0]!r}, and was {texts[1]!r}"
            self._segments.warn_of_columns(joined, [told])

    def _finish(self) -> None:
        self._write()
        file, self._file = self._file, None
        assert file is not None, "something was written"
        file.close()
        self._segments.finish(self._path)

    def _abandon(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            # What a full disk did not take is not needed.
            with contextlib.suppress(OSError):
                file.close()


def _json_line(record: Any) -> bytes:
    as_dict = getattr(record, "_asdict", None)
    # msgspec takes a NamedTuple for a list, and files have objects.
    plain = record if as_dict is None else as_dict()
    try:
        return msgspec.json.encode(plain) + b"\n"
    except TypeError as error:
        raise _no_json(plain, error) from error


def _no_json(record: Any, error: TypeError) -> RecordTypeError:
    """Return an error that names the first field whose value JSON does not have."""
    for name in _names_of(record):
        value = (
            record.get(name) if isinstance(record, Mapping) else getattr(record, name)
        )
        try:
            msgspec.json.encode(value)
        except TypeError as of_field:
            return _no_text(name, value, of_field)
    return RecordTypeError("record", str(error), "Map it to Python's own types.")


def _names_of(record: Any) -> tuple[str, ...]:
    try:
        return field_names(record)
    except RecordTypeError:
        return ()


def _no_text(name: str, value: Any, error: Exception) -> RecordTypeError:
    return RecordTypeError(
        f"field {name!r}",
        f"{shortened(value)} of type {type(value).__name__} cannot be written: {error}",
        "Map it to a number, a text or another of Python's own types.",
    )


def _text_line(record: Any) -> bytes:
    if not isinstance(record, str):
        raise RecordTypeError(
            "record",
            f"{record!r} is not a str",
            'Map it to one, or use format="jsonl".',
        )
    if "\n" in record or "\r" in record:
        raise RecordTypeError(
            "record", "it has more than one line", 'Split it, or use format="jsonl".'
        )
    return record.encode() + b"\n"


_ENCODERS: Final[dict[str, Callable[[Any], bytes]]] = {
    "jsonl": _json_line,
    "text": _text_line,
}


def _text(value: Any) -> str:
    """Return what `FileSource` makes the value of again."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    plain = msgspec.to_builtins(value)
    if isinstance(plain, str):
        return plain
    if isinstance(plain, float) and not math.isfinite(plain):
        # As Python reads them; JSON has none.
        return repr(plain)
    return msgspec.json.encode(plain).decode()


def _checked(columns: Any, format_: str) -> tuple[str, ...]:
    if format_ != "csv":
        raise InvalidArgumentError(
            "columns", f"{format_} files have no columns", "Leave it out."
        )
    names = check_names(columns, "columns")
    if not names:
        raise InvalidArgumentError(
            "columns", "it is empty", "Name one, or leave it out."
        )
    return names
