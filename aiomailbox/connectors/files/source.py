"""Files as a source: JSON lines, CSV, text and Parquet."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fnmatch
import os
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Literal, get_args, overload
from urllib.parse import unquote

from aiomailbox.connectors.files.formats import (
    CsvFormat,
    FileChunk,
    FileFormat,
    JsonLinesFormat,
    TextFormat,
    fsspec_for,
    is_url,
)
from aiomailbox.connectors.pump import Pump
from aiomailbox.durations import duration_s
from aiomailbox.errors import (
    InvalidArgumentError,
    MissingExtraError,
    WrongTypeError,
    add_note,
    safe_repr,
    safe_str,
)
from aiomailbox.logs import library_log
from aiomailbox.operators.core.fields import RecordFields
from aiomailbox.operators.core.operator import Pending
from aiomailbox.operators.core.user_code import (
    ErrorAction,
    OnError,
    caller_location,
    check_on_error,
    fail,
)
from aiomailbox.operators.sources.source import (
    Boundedness,
    EnumeratorContext,
    InputStatus,
    ReaderContext,
    ReaderOutput,
    SplitReader,
)
from aiomailbox.signatures import (
    check_choice,
    check_count,
    check_names,
    check_suffix,
    check_type,
    refuse_home,
)
from aiomailbox.state.serializers import kept_in_state
from aiomailbox.supervision import begin_in_thread
from aiomailbox.typevars import OutT

# Which files there are: on this machine, or where fsspec reaches.


_MAGIC: Final = "*?["


def find_files(
    paths: tuple[str, ...], *, missing_ok: bool = False, empty_ok: bool = False
) -> list[str]:
    """Return the files that paths name, sorted within each path; blocks.

    Names that begin with a dot or an underscore belong to writers: a directory means all
    files below it but those, and what is below those. A pattern finds none of them
    unless it has that character at that place.

    Raises:
        FileNotFoundError: If a path names nothing.
        OSError: If a directory cannot be listed.
    """
    found: dict[str, None] = {}
    for path in paths:
        names = _find_remote(path) if is_url(path) else _find_local(path)
        if not names and not missing_ok:
            _check_there(path, empty_ok=empty_ok)
        found |= dict.fromkeys(sorted(names))
    return list(found)


def is_among(path: str, file: Path) -> bool:
    """Say whether `find_files` would find a file by a path of this machine.

    Example:
        >>> is_among("in", Path("in/out/part-0.csv"))
        True
        >>> is_among("in/*.csv", Path("in/out/part-0.csv"))
        False
    """
    wanted, given = Path(path).absolute().parts, file.absolute().parts
    if not _is_pattern(path):
        below = given[len(wanted) :]
        return given[: len(wanted)] == wanted and all(map(_is_visible, below))
    if "**" in wanted:
        return _is_meant(wanted, given) and fnmatch.fnmatchcase(
            "/".join(given), "/".join(wanted).replace("**/", "*")
        )
    return len(wanted) == len(given) and all(
        _matches(part, pattern) for part, pattern in zip(given, wanted, strict=True)
    )


def columns_in_name(name: str, paths: Iterable[str]) -> list[str]:
    """Return the columns that writers put into names of directories.

    Example:
        >>> columns_in_name("out/day=2026-05-01/age=36/part-0.parquet", ["out/day=*"])
        ['day', 'age']
        >>> columns_in_name("out/age=36/part-0.parquet", ["out/age=36"])
        []
    """
    known = {part for path in paths for part in path.replace(os.sep, "/").split("/")}
    *directories, _ = name.replace(os.sep, "/").split("/")
    found = [part for part in directories if "=" in part[1:] and part not in known]
    return [unquote(part.partition("=")[0]) for part in found]


def _check_there(path: str, *, empty_ok: bool) -> None:
    """Check that a path in which there are no files may have none."""
    if _is_pattern(path):
        if not empty_ok:
            raise FileNotFoundError(
                f"no file matches {path!r}; if there may be none, say missing_ok=True"
            )
    elif not _is_directory(path):
        raise FileNotFoundError(
            f"there is no file or directory {path!r}; if it may be missing, say "
            "missing_ok=True"
        )


def _find_local(path: str) -> list[str]:
    mode = _mode(path)
    if stat.S_ISDIR(mode):
        names = []
        for parent, directories, files in os.walk(path, onerror=_raise_if_there):
            directories[:] = [name for name in directories if _is_visible(name)]
            names += [os.path.join(parent, name) for name in files if _is_visible(name)]
        return names
    if mode:
        return [path]
    if _is_pattern(path):
        drive, rest = os.path.splitdrive(path)
        parts = tuple(part for part in rest.split(os.sep) if part)
        root = drive + os.sep if rest.startswith(os.sep) else drive
        return [name for name in _matching(root, parts) if stat.S_ISREG(_mode(name))]
    return []


def _matching(directory: str, parts: tuple[str, ...]) -> Iterator[str]:
    """Expand a pattern as `glob` does, which takes what cannot be listed for empty."""
    if not parts:
        yield directory
        return
    first, rest = parts[0], parts[1:]
    if first == "**":
        # At the end it means all files below.
        yield from _matching(directory, rest or ("*",))
        for name in _names(directory, "*"):
            below = os.path.join(directory, name)
            if stat.S_ISDIR(_mode(below)):
                yield from _matching(below, parts)
    elif _is_pattern(first):
        for name in _names(directory, first):
            yield from _matching(os.path.join(directory, name), rest)
    else:
        yield from _matching(os.path.join(directory, first), rest)


def _names(directory: str, pattern: str) -> list[str]:
    try:
        names = os.listdir(directory or os.curdir)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [name for name in names if _matches(name, pattern)]


def _matches(name: str, pattern: str) -> bool:
    is_meant = _is_visible(name) or pattern[:1] == name[:1]
    return is_meant and fnmatch.fnmatchcase(
        os.path.normcase(name), os.path.normcase(pattern)
    )


def _is_meant(wanted: Sequence[str], given: Sequence[str]) -> bool:
    """Say whether a pattern of a whole path has what begins its hidden names."""
    return all(
        _is_visible(part)
        or any(
            part == one or (_is_pattern(one) and part[0] == one[0]) for one in wanted
        )
        for part in given
        if part
    )


def _mode(path: str) -> int:
    """Return what a path is, as `stat` has it; 0 for nothing."""
    # Not `os.path.exists`, for which everything is gone that cannot be asked for.
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except OSError as error:
        # A link to itself names nothing.
        if error.errno == errno.ELOOP:
            return 0
        raise


def _find_remote(path: str) -> list[str]:
    files, root = fsspec_for(path).core.url_to_fs(path)
    files.invalidate_cache()
    if _is_pattern(path):
        found = files.glob(root, detail=True, **_how_to_walk(files))
        names = [
            name
            for name, about in found.items()
            if about["type"] != "directory"
            and _is_meant(root.split("/"), name.split("/"))
        ]
    elif files.isfile(root):
        names = [root]
    else:
        start = len(root.rstrip("/")) + 1
        names = [
            name
            for name in files.find(root, **_how_to_walk(files))
            if all(_is_visible(part) for part in name[start:].split("/"))
        ]
    return [str(files.unstrip_protocol(name)) for name in names]


def _how_to_walk(files: Any) -> dict[str, Any]:
    """Return what makes fsspec raise what its walk passes over.

    File systems that list in a way of their own, as those of object stores do, raise.
    """
    import fsspec
    from fsspec.asyn import AsyncFileSystem

    kind = type(files)
    if issubclass(kind, AsyncFileSystem):
        walks = kind._find is AsyncFileSystem._find
    else:
        walks = kind.find is fsspec.AbstractFileSystem.find
    return {"on_error": _raise_if_there} if walks else {}


def _raise_if_there(error: OSError) -> None:
    # A walk would pass over it, and files that seem gone are read again as new ones.
    if not isinstance(error, FileNotFoundError):
        raise error


def _is_pattern(path: str) -> bool:
    return any(character in path for character in _MAGIC)


def _is_directory(path: str) -> bool:
    if not is_url(path):
        return os.path.isdir(path)
    files, root = fsspec_for(path).core.url_to_fs(path)
    return bool(files.isdir(root))


def _is_visible(name: str) -> bool:
    return not name.startswith((".", "_"))


# How many rows files have, where they say it themselves.


# Each is opened for it.
_FILES_MAX: Final = 1_000


class RowCount:
    """Adds up the rows of files in a thread, beside their reading.

    Args:
        rows_of: Returns how many rows a file has; blocks.

    Attributes:
        value: The sum; None before it is known, and where it will not be.
    """

    def __init__(self, rows_of: Callable[[str], int]) -> None:
        self.value: int | None = None
        self._rows_of = rows_of
        self._is_over = False

    def begin(self, names: Sequence[str]) -> asyncio.Future[None] | None:
        """Begin to count, unless it is known, on the running loop.

        Returns:
            Is done when they are counted; None if they need not or will not be.
        """
        self._is_over = False
        if self.value is not None or len(names) > _FILES_MAX:
            return None
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(None, self._count, list(names))

    def close(self) -> None:
        """Count no further."""
        self._is_over = True

    def _count(self, names: list[str]) -> None:
        # What is wrong with a file, its reader says.
        with contextlib.suppress(Exception):
            rows = 0
            for name in names:
                if self._is_over:
                    return
                rows += self._rows_of(name)
            self.value = rows


# Finds files, and deals them out to readers that ask.


@kept_in_state("FileSplit")
@dataclass(frozen=True, slots=True)
class FileSplit:
    """A file, from a position on.

    Attributes:
        split_id: The file's name.
        position: Where to go on; a byte or a row, as the format says.
    """

    split_id: str
    position: int = 0


@kept_in_state("FilesSeen")
@dataclass(frozen=True, slots=True)
class FilesSeen:
    """The state from which an enumerator resumes.

    Attributes:
        splits: The files that no reader has yet.
        seen: All files that the last listing found that found any.
    """

    splits: list[FileSplit]
    seen: list[str]


class FileEnumerator:
    """Deals files out in their order; with an interval it goes on looking for new ones.

    A listing that fails once the job runs is logged, the first one in a row, and made
    again after the interval: the directory may be there again.

    Args:
        context: The job.
        find: Returns the names of all files; blocks, and is called in a thread when it
            is called again.
        name: What the files are called in the log.
        interval_s: How often to look, in seconds; None to look once.
        state: What `snapshot` of an earlier one returned, or None.
        row_count: Counts the rows of all files, where they say it.

    Raises:
        OSError: If there is nothing to read.
    """

    def __init__(
        self,
        context: EnumeratorContext[FileSplit],
        find: Callable[[], list[str]],
        name: str,
        interval_s: float | None,
        state: list[FilesSeen] | None,
        row_count: RowCount | None = None,
    ) -> None:
        self._context = context
        self._find = find
        self._name = name
        self._interval_s = interval_s
        self._row_count = row_count
        self._counting: asyncio.Future[None] | None = None
        self._unassigned: deque[FileSplit] = deque()
        self._seen: set[str] = set()
        self._waiting: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._search: asyncio.Future[list[str]] | None = None
        self._failures = 0
        for one in state or ():
            self._unassigned += one.splits
            self._seen |= set(one.seen)
        # A watched directory may have got files since; a bounded source keeps to its
        # snapshot.
        if state is None or interval_s is not None:
            self._add(find())

    @property
    def has_files(self) -> bool:
        """Whether any file was found."""
        return bool(self._seen)

    def start(self) -> None:
        """Begin to look for new files, or to count rows, if that is wanted."""
        if self._row_count is not None:
            self._counting = self._row_count.begin(sorted(self._seen))
        if self._interval_s is not None:
            self._arm(self._interval_s)

    def add_reader(self, subtask_index: int) -> None:
        """Nothing: readers ask."""

    def handle_split_request(self, subtask_index: int) -> None:
        """Give a reader the next file, now or when there is one."""
        if self._unassigned:
            self._context.assign_splits(subtask_index, [self._unassigned.popleft()])
        elif self._interval_s is None:
            self._context.signal_no_more_splits(subtask_index)
        elif subtask_index not in self._waiting:
            # One that asked again, after it was restored, waits only once.
            self._waiting.append(subtask_index)

    def add_splits_back(self, splits: list[FileSplit], subtask_index: int) -> None:
        """Take back files that a failed reader had; they come next."""
        self._unassigned.extendleft(reversed(splits))
        self._serve()

    def snapshot(self) -> list[FilesSeen]:
        """Return the files that no reader has yet, and all that were seen."""
        return [FilesSeen(list(self._unassigned), sorted(self._seen))]

    def close(self) -> None:
        """Stop looking, and counting."""
        if self._row_count is not None:
            self._row_count.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._search is not None:
            self._search.cancel()
        # Tells a search that is under way in a thread that its result is not wanted.
        self._interval_s = None

    def _arm(self, interval_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(interval_s, self._look)

    def _look(self) -> None:
        # A listing of a large or remote directory would hold up the loop.
        self._search = begin_in_thread(self._find)
        self._search.add_done_callback(self._on_found)

    def _on_found(self, search: asyncio.Future[list[str]]) -> None:
        if search.cancelled() or self._interval_s is None:
            return
        error = search.exception()
        if error is None:
            self._note_success()
            self._add(search.result())
            self._serve()
        else:
            self._note_failure(error)
        self._arm(self._interval_s)

    def _note_failure(self, error: BaseException) -> None:
        # Once in a row: the interval may be 10 ms, and the disk away for a day.
        if self._failures == 0:
            library_log().warning(
                "files cannot be listed; the source looks again",
                source=self._name,
                interval_s=self._interval_s,
                error=safe_repr(error),
            )
        self._failures += 1

    def _note_success(self) -> None:
        if self._failures:
            library_log().info(
                "files can be listed again",
                source=self._name,
                failed=self._failures,
            )
        self._failures = 0

    def _add(self, names: list[str]) -> None:
        self._unassigned += [
            FileSplit(name) for name in names if name not in self._seen
        ]
        # Those that were deleted need not be remembered. If all are gone, a disk may be: it
        # comes back with files that were read.
        if names:
            self._seen = set(names)

    def _serve(self) -> None:
        waiting, self._waiting = self._waiting, []
        for subtask_index in waiting:
            self.handle_split_request(subtask_index)


# Reads one file after the other, in a thread, a bounded way ahead of the task.


class FileReader(SplitReader[FileSplit]):
    """Reads the files it was given in their order, and asks for the next one.

    Args:
        context: What the task gives.
        format: How records are read.
        depth: How many chunks may wait to be taken.
    """

    def __init__(self, context: ReaderContext, format: FileFormat, depth: int) -> None:  # noqa: A002 -- the argument's name in the API
        super().__init__()
        self._context = context
        self._format = format
        self._depth = depth
        self._pump: Pump[FileChunk] | None = None
        self._chunk: FileChunk | None = None
        self._offset = 0
        self._rows = 0
        self._has_warned = False
        if format.gives_batches:
            context.metrics.gauge("rows_read", lambda: self._rows)

    def start(self) -> None:
        """Ask for a file."""
        # One at a time, on request: a fast reader gets more files than a slow one.
        if not self._splits:
            self._context.request_split()

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        """Emit at most one run."""
        if not self._splits:
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
        return self._end_file(output)

    def describe_split(self, split_id: str) -> str:
        """Return where the records of a split are."""
        return _in_file(split_id)

    def close(self) -> Pending:
        """Stop reading and wait for the thread."""
        pump, self._pump = self._pump, None
        self._chunk = None
        super().close()
        return None if pump is None else self._stop(pump)

    async def _stop(self, pump: Pump[FileChunk]) -> None:
        if not await pump.stop():
            self._context.log.warning("the thread that reads a file does not end")

    def _open(self, split: FileSplit) -> Pump[FileChunk]:
        # Nothing is to be cancelled: a read of a file ends by itself.
        pump = Pump(
            partial(self._format.read, split.split_id, split.position),
            self.availability.set_available,
            depth=self._depth,
            name=f"file-source-{self._context.subtask_index}",
            explain=partial(_explained, split.split_id),
        )
        pump.start()
        return pump

    def _emit(self, output: ReaderOutput, chunk: FileChunk) -> None:
        if chunk.skipped and not self._offset:
            self._note_skipped(chunk)
        start, length = self._offset, len(chunk.run)
        if not length:
            self._chunk = None
            return
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

    def _note_skipped(self, chunk: FileChunk) -> None:
        self._context.metrics.counter("skipped").add(chunk.skipped)
        if not self._has_warned:
            # Once: the counter says how many there are.
            self._has_warned = True
            self._context.log.warning(
                "lines that are not valid records are skipped",
                source=self._context.operator_name,
                first="" if chunk.first is None else chunk.first.told,
            )

    def _end_file(self, output: ReaderOutput) -> InputStatus:
        status = self._finish_split(output)
        self._pump = None
        # A restored reader may have several left: it asks when it has read them.
        if not self._splits and not self._no_more_splits:
            self._context.request_split()
        return status


def _explained(name: str, error: BaseException) -> Exception:
    if not isinstance(error, Exception):
        return RuntimeError(safe_repr(error))
    # Errors of formats name the file, and the place in it.
    if name not in safe_str(error):
        add_note(error, _in_file(name))
    return error


def _in_file(name: str) -> str:
    return f"in the file {name!r}"


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

    Files are assigned in order to readers that request one; each file has its own
    watermark and holds event time back until it has been read. Reading happens in a
    thread, a bounded amount ahead of the pipeline. A snapshot records which files are
    still to be read, and the byte (for Parquet, the row) to resume at, so the source
    resumes exactly where a snapshot was taken, as long as files do not change. A file
    must be complete when it appears: write it to another place and then move it.

    Args:
        path: A file, a directory, a pattern with ``*``, a URL that fsspec knows (extra
            ``storage``), or several of these. Names that begin with a dot or an
            underscore are skipped, unless the path has that character at that place.
            Columns that writers put into the names of directories (``day=2026-05-01``)
            are not read, and a warning names them.
        format: ``"jsonl"``, ``"csv"``, ``"text"`` (each line is a str) or
            ``"parquet"`` (needs pyarrow); None to infer it from the path's suffix, before
            ``.gz``.
        records: The form of a record: dict, ``"namedtuple"``, or a dataclass,
            `msgspec.Struct` or NamedTuple class. CSV and JSON also take the types of
            some fields by name, ``{"price": float}``, which makes dicts. CSV also takes
            ``"infer"``, which makes dicts with the types of each file's first MiB
            (needs pyarrow). Parquet also takes ``"batch"``: each Arrow batch is one
            record. None for dict, for Parquet ``"namedtuple"``. The values of a CSV
            file are text if no types are given; an empty cell is None where the given
            type has None and is no text, as ``float | None``.
        columns: For CSV, the names of the columns, if the first row does not have them;
            for Parquet, which columns to read.
        watch: How often to look for new files: a timedelta or seconds. It then never
            ends, and a pattern may match nothing yet. None to read only the existing
            files.
        missing_ok: Whether a path may name nothing, or a pattern match nothing, which
            fails the job otherwise. A directory may be empty in any case, with a warning
            unless this is True or ``watch`` is given.
        delimiter: For CSV, the separator of columns.
        encoding: For CSV and text, the files' encoding, in which no byte of a line may be
            the byte of its end.
        batch_rows: For Parquet, the maximum number of rows per batch.
        on_error: How to handle a line that is not a valid record: ``am.skip`` leaves it
            out and counts it as ``skipped``. By default, the job ends.

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

    position_types: ClassVar[tuple[type[Any], ...]] = (FileSplit, FilesSeen)

    @overload
    def __init__(
        self: FileSource[dict[str, Any]],
        path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        format: Format | None = None,
        *,
        records: type[dict[str, Any]] | Mapping[str, Any] | Literal["dict", "infer"],
        columns: Sequence[str] | None = None,
        watch: timedelta | float | None = None,
        missing_ok: bool = False,
        delimiter: str = ",",
        encoding: str = "utf-8",
        batch_rows: int = 10_000,
        on_error: OnError = fail,
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
        on_error: OnError = fail,
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
        on_error: OnError = fail,
    ) -> None:
        self._line = caller_location()
        self._paths = _paths(path)
        self._format = _format(format, self._paths)
        self._missing_ok = missing_ok
        self._interval_s = None if watch is None else duration_s(watch, "watch")
        if self._interval_s is not None and self._interval_s < 0.01:
            raise InvalidArgumentError(
                "watch", f"{watch} is too short", "Use at least 10 ms."
            )
        self._has_warned = False
        check_count(batch_rows, "batch_rows")
        names = None if columns is None else _columns(columns, self._format)
        self._reading = _reading(
            self._format, records, names, delimiter, encoding, batch_rows, on_error
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

    def may_read(self, file: Path) -> bool:
        """Say whether a file would be among those that are read, if it were there."""
        return any(is_among(path, file) for path in self._paths if not is_url(path))

    def create_enumerator(
        self, context: EnumeratorContext[FileSplit], state: list[Any] | None = None
    ) -> FileEnumerator:
        """Create the enumerator.

        Raises:
            FileNotFoundError: If a path names nothing.
            OSError: If files cannot be listed.
        """
        enumerator = FileEnumerator(
            context, self._find, repr(self), self._interval_s, state, self._row_count
        )
        is_allowed = self._missing_ok or self._interval_s is not None
        if state is None and not is_allowed and not enumerator.has_files:
            library_log().warning(
                "a source has no files, and ends without a record",
                source=repr(self),
                line=self._line,
                remedy="check the path: names that begin with a dot or an underscore "
                "do not count; watch= waits for files, missing_ok=True allows none",
            )
        return enumerator

    def _find(self) -> list[str]:
        names = find_files(
            self._paths,
            missing_ok=self._missing_ok,
            empty_ok=self._interval_s is not None,
        )
        if not self._has_warned:
            for name in names:
                columns = columns_in_name(name, self._paths)
                if columns:
                    self._has_warned = True
                    self._warn_of_columns(name, columns)
                    break
        return names

    def _warn_of_columns(self, name: str, columns: Sequence[str]) -> None:
        # pyarrow reads no lines of text.
        kind = {"jsonl": "json", "text": ""}.get(self._format, self._format)
        whole = (
            "read all with pyarrow: env.from_arrow(pyarrow.dataset.dataset(path, "
            f'format="{kind}", partitioning="hive").to_table()); or '
        )
        library_log().warning(
            "columns in the names of directories are not read into the records",
            source=repr(self),
            columns=", ".join(columns),
            first=name,
            line=self._line,
            remedy=f"{whole if kind else ''}give each directory a source of its own, "
            "and add them with map",
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
        check_type(one, str | os.PathLike, "path", "Give a str or a Path.", "a path")
        paths.append(refuse_home(one, "path"))
    if not paths or not all(paths):
        raise InvalidArgumentError("path", "it is empty", "Give at least one path.")
    return tuple(paths)


def _format(chosen: Any, paths: tuple[str, ...]) -> Format:
    if chosen is not None:
        check_choice(chosen, "format", *get_args(Format))
        for path in paths if chosen != "text" else ():
            check_suffix(path, chosen)
        return chosen
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
    names = check_names(columns, "columns")
    if format_ not in {"csv", "parquet"}:
        raise InvalidArgumentError(
            "columns", f"{format_} files have no columns", "Leave it out."
        )
    return names


def _reading(
    format_: Format,
    records: Any,
    columns: tuple[str, ...] | None,
    delimiter: str,
    encoding: str,
    batch_rows: int,
    on_error: OnError,
) -> FileFormat:
    skips = _skips(on_error, format_)
    match format_:
        case "parquet":
            try:
                from aiomailbox.connectors.files.parquet import ParquetFormat
            except ImportError as error:
                raise MissingExtraError("FileSource of Parquet", "arrow") from error
            return ParquetFormat(records or "namedtuple", columns, batch_rows)
        case "text":
            if records is not None:
                raise InvalidArgumentError(
                    "records", "records of text files are str", "Leave it out."
                )
            return TextFormat(encoding, skips=skips)
        case "csv":
            records = dict if records is None else records
            return CsvFormat(records, columns, delimiter, encoding, skips=skips)
        case "jsonl":
            records = dict if records is None else records
            return JsonLinesFormat(records, skips=skips)


def _skips(on_error: OnError, format_: Format) -> bool:
    action = check_on_error(on_error).action
    if action is ErrorAction.DEAD_LETTER:
        raise InvalidArgumentError(
            "on_error",
            "a source has no side outputs",
            'Read lines with format="text", and write '
            ".map(parse, on_error=am.dead_letter(tag)).",
        )
    if action is ErrorAction.SKIP and format_ == "parquet":
        raise InvalidArgumentError(
            "on_error", "a Parquet file has no lines to skip", "Leave it out."
        )
    return action is ErrorAction.SKIP
