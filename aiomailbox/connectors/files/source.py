"""Files as a source: JSON lines, CSV, text and Parquet."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, Generic, Literal, overload

from aiomailbox.connectors.files.enumerator import (
    FileEnumerator,
    FileSplit,
    FilesSeen,
)
from aiomailbox.connectors.files.formats import (
    CsvFormat,
    FileFormat,
    JsonLinesFormat,
    TextFormat,
)
from aiomailbox.connectors.files.places import find_files
from aiomailbox.connectors.files.reader import FileReader
from aiomailbox.connectors.files.row_count import RowCount
from aiomailbox.durations import duration_s
from aiomailbox.errors import InvalidArgumentError, MissingExtraError, WrongTypeError
from aiomailbox.operators.core.record_fields import RecordFields
from aiomailbox.operators.sources.source import (
    Boundedness,
    EnumeratorContext,
    ReaderContext,
)
from aiomailbox.policies.arguments import check_count
from aiomailbox.typevars import OutT

__all__ = ["FileSource"]

Format = Literal["jsonl", "csv", "text", "parquet"]

_BY_ENDING: Final[dict[str, Format]] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".txt": "text",
    ".log": "text",
    ".parquet": "parquet",
}


class FileSource(Generic[OutT]):
    """Reads the records of files; each reader reads one file after another.

    Files are assigned in order to readers that request one; each file has a watermark of
    its own and holds event time back until it has been read. Reading happens in a
    thread, a bounded amount ahead of the pipeline. A snapshot records which files are still
    to be read, and the byte (for Parquet, the row) to resume at, so the source resumes
    exactly where a snapshot was taken, as long as files do not change. A file must be
    complete when it appears: write it to another place and then move it.

    Args:
        path: A file, a directory, a pattern with ``*``, a URL that fsspec knows (extra
            ``storage``), or several of these. In a directory, names that begin with a
            dot or an underscore are skipped.
        format: ``"jsonl"``, ``"csv"``, ``"text"`` (each line is a str) or
            ``"parquet"`` (needs pyarrow); None to infer it from the path's suffix, before
            ``.gz``.
        records: The form of a record: dict, a dataclass, a `msgspec.Struct` or a NamedTuple
            class; for Parquet also ``"namedtuple"`` and ``"batch"`` (each Arrow batch
            is one record). None for dict, for Parquet ``"namedtuple"``.
        columns: For CSV, the names of the columns, if the first row does not have them;
            for Parquet, which columns to read.
        watch: How often to look for new files: a timedelta or seconds. It then never
            ends, and a pattern may match nothing yet. None to read only the existing
            files.
        missing_ok: Whether a path may name nothing, or a pattern match nothing, which
            fails the job otherwise. A directory may be empty in any case.
        delimiter: For CSV, the separator of columns.
        encoding: For CSV and text, the files' encoding, in which no byte of a line may be
            the byte of its end.
        batch_rows: For Parquet, the maximum number of rows per batch.

    Raises:
        InvalidArgumentError: If an argument has an invalid value.
        WrongTypeError: If ``path`` is not a path.
        MissingExtraError: If Parquet is read and pyarrow is not installed.

    Concept:
        Flink, ``FileSource``.

    Example:
        >>> import tempfile, pathlib
        >>> file = pathlib.Path(tempfile.mkdtemp(), "orders.jsonl")
        >>> _ = file.write_text('{"user": "ann", "price": 3}')
        >>> FileSource(file)
        <FileSource of jsonl files in ...orders.jsonl>
    """

    position_types = (FileSplit, FilesSeen)

    @overload
    def __init__(
        self: FileSource[dict[str, Any]],
        path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        format: Format | None = None,
        *,
        records: type[dict[str, Any]],
        columns: Sequence[str] | None = None,
        watch: timedelta | float | None = None,
        missing_ok: bool = False,
        delimiter: str = ",",
        encoding: str = "utf-8",
        batch_rows: int = 10_000,
    ) -> None: ...

    @overload
    def __init__(
        self,
        path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        format: Format | None = None,
        *,
        records: type[OutT] | Literal["namedtuple", "batch"] | None = None,
        columns: Sequence[str] | None = None,
        watch: timedelta | float | None = None,
        missing_ok: bool = False,
        delimiter: str = ",",
        encoding: str = "utf-8",
        batch_rows: int = 10_000,
    ) -> None: ...

    def __init__(
        self,
        path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        format: Format | None = None,  # noqa: A002 -- the word that users know
        *,
        records: Any = None,
        columns: Sequence[str] | None = None,
        watch: timedelta | float | None = None,
        missing_ok: bool = False,
        delimiter: str = ",",
        encoding: str = "utf-8",
        batch_rows: int = 10_000,
    ) -> None:
        self._paths = _paths(path)
        self._format = _format(format, self._paths)
        self._missing_ok = missing_ok
        self._interval_s = None if watch is None else duration_s(watch, "watch")
        if self._interval_s is not None and self._interval_s < 0.01:
            raise InvalidArgumentError(
                "watch", f"{watch} is too short", "Use at least 10 ms."
            )
        check_count(batch_rows, "batch_rows")
        names = None if columns is None else _columns(columns, self._format)
        self._reading = _reading(
            self._format, records, names, delimiter, encoding, batch_rows
        )
        # What other files have is known when they have been read.
        rows_of = getattr(self._reading, "row_count", None)
        self._row_count: RowCount | None = None
        if rows_of is not None and self._interval_s is None:
            self._row_count = RowCount(rows_of)
        # Whether its runs have columns.
        self.gives_columns: bool = self._format == "parquet" and not (
            isinstance(records, str) and records == "batch"
        )

    @property
    def record_count(self) -> int | None:
        """How many rows Parquet files have; None before they were counted, and of others."""
        return None if self._row_count is None else self._row_count.value

    @property
    def boundedness(self) -> Boundedness:
        """Unbounded if it goes on looking for files."""
        return (
            Boundedness.BOUNDED if self._interval_s is None else Boundedness.UNBOUNDED
        )

    @property
    def record_types(self) -> tuple[type, ...]:
        """The class of the records, if it is the user's."""
        return self._reading.record_types

    @property
    def record_fields(self) -> RecordFields | None:
        """The fields of the records, if their class is known."""
        types = self.record_types
        return RecordFields.of_type(types[0]) if types else None

    def create_enumerator(
        self, context: EnumeratorContext[FileSplit], state: list[Any] | None = None
    ) -> FileEnumerator:
        """Create the enumerator.

        Raises:
            FileNotFoundError: If a path names nothing.
            OSError: If files cannot be listed.
        """
        find = partial(
            find_files,
            self._paths,
            missing_ok=self._missing_ok,
            empty_ok=self._interval_s is not None,
        )
        return FileEnumerator(
            context, find, repr(self), self._interval_s, state, self._row_count
        )

    def create_reader(self, context: ReaderContext) -> FileReader:
        """Create a reader."""
        # Two: one chunk is emitted while the thread reads the next.
        return FileReader(context, self._reading, depth=2)

    def __repr__(self) -> str:
        return f"<FileSource of {self._format} files in {', '.join(self._paths)}>"


def _paths(path: Any) -> tuple[str, ...]:
    if isinstance(path, str | os.PathLike):
        path = [path]
    elif not isinstance(path, Iterable):
        raise WrongTypeError("path", f"{path!r} is not a path", "Give a str or a Path.")
    paths = []
    for one in path:
        if not isinstance(one, str | os.PathLike):
            raise WrongTypeError(
                "path", f"{one!r} is not a path", "Give a str or a Path."
            )
        paths.append(os.fspath(one))
    if not paths or not all(paths):
        raise InvalidArgumentError("path", "it is empty", "Give at least one path.")
    return tuple(paths)


def _format(chosen: Any, paths: tuple[str, ...]) -> Format:
    if chosen is not None:
        if chosen not in _BY_ENDING.values():
            raise InvalidArgumentError(
                "format",
                f"{chosen!r} is unknown",
                'Use "jsonl", "csv", "text" or "parquet".',
            )
        known: Format = chosen
        return known
    # The ending below `.gz`: compression says nothing about the format.
    endings = {os.path.splitext(path.removesuffix(".gz"))[1].lower() for path in paths}
    found = {_BY_ENDING.get(ending) for ending in endings}
    format_ = found.pop() if len(found) == 1 else None
    if format_ is None:
        raise InvalidArgumentError(
            "format",
            f"it cannot be inferred from {', '.join(paths)}",
            'Say "jsonl", "csv", "text" or "parquet".',
        )
    return format_


def _columns(columns: Sequence[str], format_: Format) -> tuple[str, ...]:
    if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
        raise WrongTypeError(
            "columns",
            f"{columns!r} are not names",
            'Give a list, as ["user", "price"].',
        )
    if format_ not in {"csv", "parquet"}:
        raise InvalidArgumentError(
            "columns", f"{format_} files have no columns", "Leave it out."
        )
    if len(set(columns)) < len(columns):
        raise InvalidArgumentError("columns", "it has duplicates", "Rename one.")
    return tuple(columns)


def _reading(
    format_: Format,
    records: Any,
    columns: tuple[str, ...] | None,
    delimiter: str,
    encoding: str,
    batch_rows: int,
) -> FileFormat:
    match format_:
        case "parquet":
            try:
                from aiomailbox.connectors.files.parquet import ParquetFormat
            except ImportError as error:
                raise MissingExtraError("FileSource of Parquet", "spark") from error
            return ParquetFormat(records or "namedtuple", columns, batch_rows)
        case "text":
            if records is not None:
                raise InvalidArgumentError(
                    "records", "records of text files are str", "Leave it out."
                )
            return TextFormat(encoding)
        case "csv":
            return CsvFormat(records or dict, columns, delimiter, encoding)
        case "jsonl":
            return JsonLinesFormat(records or dict)
