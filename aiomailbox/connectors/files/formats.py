"""How records are read from a file, from a position on; blocks, so it runs in a thread."""

from __future__ import annotations

import csv
import typing
import zlib
from codecs import BOM_UTF8
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date, datetime, time
from difflib import get_close_matches
from functools import partial
from types import NoneType
from typing import (
    Any,
    BinaryIO,
    Final,
    Protocol,
    cast,
    get_args,
    get_type_hints,
)

import msgspec

from aiomailbox.errors import (
    DamagedFileError,
    InvalidArgumentError,
    InvalidRecordError,
    MissingExtraError,
    SourceChangedError,
)
from aiomailbox.logs import library_log
from aiomailbox.records.record_classes import fields_of_class, record_class
from aiomailbox.records.run import RUN_LENGTH_MAX, ListRun, Run

# How a file is opened: on this machine, or where fsspec reaches.


def open_file(name: str) -> BinaryIO:
    """Open a file for reading bytes; what ends in ``.gz`` is decompressed."""
    if is_url(name):
        opened = fsspec_for(name).open(name, "rb", compression="infer").open()
        return cast("BinaryIO", opened)
    import gzip

    open_local: Any = gzip.open if name.endswith(".gz") else open
    return cast("BinaryIO", open_local(name, "rb"))


@contextmanager
def reading(name: str) -> Iterator[BinaryIO]:
    """Open a file; what cannot be decompressed, or is no such file, is damage.

    Raises:
        DamagedFileError: If so.
    """
    with open_file(name) as file:
        try:
            yield file
        except (EOFError, zlib.error) as error:
            raise DamagedFileError(name, str(error)) from error
        except OSError as error:
            # Python and Arrow say so of their own data; what a system says has a number,
            # and what a remote one says may pass.
            if error.errno is None and not is_url(name):
                raise DamagedFileError(name, str(error)) from error
            raise


def is_url(path: str) -> bool:
    """Say whether a path is for fsspec."""
    return "://" in path


def fsspec_for(url: str) -> Any:
    """Return fsspec, imported where a URL first asks for it.

    Raises:
        MissingExtraError: If it is not installed.
    """
    try:
        import fsspec
    except ImportError as error:
        raise MissingExtraError(f"files at {url}", "storage") from error
    return fsspec


_LINE_BYTES_MAX: Final = 64 << 20
# A run is handed over with these many bytes, however few records it has.
_CHUNK_BYTES: Final = 1 << 20
Decode = Callable[[bytes], Any]


@dataclass(frozen=True, slots=True)
class FileChunk:
    """Consecutive records of a file.

    Attributes:
        run: The records; none, if lines are left out at the end of the file.
        positions: The position behind each record, as many as the run has records.
        skipped: How many lines are left out, because they are no records.
        first: The error of the first of these.
    """

    run: Run
    positions: Sequence[int]
    skipped: int = 0
    first: InvalidRecordError | None = None


class FileFormat(Protocol):
    """Reads files of one kind; what a position is, is the format's."""

    @property
    def record_types(self) -> tuple[type, ...]:
        """The class of the records, if it is the user's."""

    @property
    def gives_batches(self) -> bool:
        """Whether a record is a batch, and a position a row."""

    def read(self, name: str, position: int) -> Iterator[FileChunk]:
        """Yield the records from a position on; 0 is the beginning."""


class TextFormat:
    """Each line is a record, a str without its end; positions are bytes.

    Args:
        encoding: Of the file.
        skips: Whether lines that are no records are left out.
    """

    record_types: tuple[type, ...] = ()
    gives_batches: bool = False

    def __init__(self, encoding: str = "utf-8", *, skips: bool = False) -> None:
        self._encoding = encoding
        self._skips = skips

    def read(self, name: str, position: int) -> Iterator[FileChunk]:
        """Yield the lines from a byte on."""
        encoding = self._encoding
        return _read_lines(
            name,
            position,
            lambda line: line.decode(encoding).rstrip("\r\n"),
            skips=self._skips,
        )


class JsonLinesFormat:
    """Each line is a JSON value; positions are bytes, and empty lines are passed over.

    Args:
        records: dict for any JSON value as it is, ``"namedtuple"``, the types of some
            fields by name, or the class of the records.
        skips: As of `TextFormat`.
    """

    def __init__(self, records: Any, *, skips: bool = False) -> None:
        if isinstance(records, str) and records == "infer":
            raise InvalidArgumentError(
                "records", "JSON has types already", "Leave it out: records are dicts."
            )
        self._records = records
        self._skips = skips
        self.record_types: tuple[type, ...] = _record_types(records)
        self.gives_batches: bool = False
        self._has_warned = False

    def read(self, name: str, position: int) -> Iterator[FileChunk]:
        """Yield the values from a byte on."""
        return _read_lines(
            name,
            position,
            self._decoder(),
            skip_empty=True,
            skips=self._skips,
            look_at_first=partial(self._look_at, name),
        )

    def _look_at(self, name: str, line: bytes) -> None:
        """Warn, once, of a file that is one JSON array, or has a field by another name."""
        if self._has_warned:
            return
        if self.record_types:
            first = msgspec.json.decode(line)
            self._has_warned = isinstance(first, dict) and _warn_of_renamed(
                name, self._records, first
            )
        elif line.startswith(b"[{"):
            self._has_warned = True
            library_log().warning(
                "the first line of a file of JSON lines is an array: it is one record",
                file=name,
                remedy="write each object on a line of its own, or take the records "
                "apart with .flat_map(lambda record: record)",
            )

    def _decoder(self) -> Decode:
        decode_any: Decode = msgspec.json.Decoder().decode
        if self._records in (dict, "dict"):
            return decode_any
        if self._records == "namedtuple":
            return lambda line: _as_namedtuple(decode_any(line))
        if isinstance(self._records, Mapping):
            typed = _typed_fields(self._records, strict=True)
            return lambda line: typed(decode_any(line))
        shape, make = _shape_of(self._records)
        decode: Decode = msgspec.json.Decoder(shape).decode
        if make is None:
            return decode
        return lambda line: make(decode(line))


class CsvFormat:
    """Each row is a record; positions are bytes.

    Args:
        records: dict for texts by column; ``"namedtuple"`` for a tuple of texts; the
            types of some columns by name, or ``"infer"`` for those of the first MiB of
            each file, with which they are dicts; or a class, whose fields' types the
            texts are converted to.
        columns: The names of the columns; None takes them from the first row.
        delimiter: What is between two columns.
        encoding: Of the file.
        skips: As of `TextFormat`.
    """

    def __init__(
        self,
        records: Any,
        columns: tuple[str, ...] | None,
        delimiter: str,
        encoding: str,
        *,
        skips: bool = False,
    ) -> None:
        self._skips = skips
        self._records = records
        self._columns = columns
        self._delimiter = delimiter
        self._encoding = encoding
        self.record_types: tuple[type, ...] = _record_types(records)
        self.gives_batches: bool = False
        self._has_warned = False
        # Of the file that was opened first; to compare others with.
        self._first_columns: tuple[str, ...] = ()

    def read(self, name: str, position: int) -> Iterator[FileChunk]:
        """Yield the rows from a byte on."""
        with reading(name) as file:
            begin = _skip_mark(file)
            if not position:
                self._look_at_first_row(name, file)
            lines = _Lines(name, file, self._encoding, begin)
            # Strict: a quote in the wrong place must not swallow the rest of the file.
            rows = csv.reader(lines, delimiter=self._delimiter, strict=True)
            columns = self._columns
            if columns is None:
                # The first row is read also when going on in the middle: it has the
                # names.
                try:
                    columns = tuple(next(rows, ()))
                except (csv.Error, ValueError) as error:
                    raise _no_record(name, 0, str(error)) from error
                self._look_at(name, columns)
            if position > lines.position:
                go_on(name, file, position)
                lines.position = position
            yield from self._chunks(name, lines, rows, columns)

    def _look_at(self, name: str, columns: tuple[str, ...]) -> None:
        """Warn, once, of a header that is another file's, or has another delimiter.

        Raises:
            DamagedFileError: If a name occurs twice: one of the values would be lost.
        """
        # Nobody misses columns without a name, as behind a delimiter at the end.
        twice = [one for one in columns if one and columns.count(one) > 1]
        if twice:
            problem = f"the header has column {twice[0]!r} twice"
            raise DamagedFileError(f"{name}, line 1,", problem)
        if self._has_warned:
            return
        warn = partial(library_log().warning, file=name)
        found = columns[0] if len(columns) == 1 else ""
        other = next((one for one in ";\t|," if one in found), None)
        if other is not None:
            self._has_warned = True
            warn(
                "a CSV file has a single column, whose name has another delimiter in it",
                column=found,
                delimiter=self._delimiter,
                remedy=f"if that is not one name, write "
                f"am.FileSource(..., delimiter={other!r})",
            )
        elif columns and set(columns) != set(self._first_columns or columns):
            self._has_warned = True
            warn(
                "the CSV files of a source have different columns",
                columns=columns,
                first=self._first_columns,
                remedy="name the files by a pattern, such as 'orders/*.csv', if one of "
                "them does not belong there",
            )
        self._first_columns = self._first_columns or columns

    def _look_at_first_row(self, name: str, file: BinaryIO) -> None:
        """Warn, once, of a header that is read as a record."""
        if self._has_warned or self._columns is None:
            return
        place = file.tell()
        line = file.readline(_CHUNK_BYTES).decode(self._encoding, "replace")
        file.seek(place)
        with suppress(csv.Error):
            row = next(csv.reader([line], delimiter=self._delimiter), [])
            if row and {*self._columns} <= {*row}:
                self._has_warned = True
                library_log().warning(
                    "the first row of a CSV file has the names in columns=, and is read "
                    "as a record",
                    file=name,
                    remedy="leave columns= out, if the file has a header: it says which "
                    "column is which",
                )

    def _chunks(
        self,
        name: str,
        lines: _Lines,
        rows: Iterator[list[str]],
        columns: tuple[str, ...],
    ) -> Iterator[FileChunk]:
        make = self._maker(name, columns)
        if columns:
            self._check_columns(name, columns)
        collected = _Collected(name, skips=self._skips)
        start = lines.position
        row: list[str] | None = None
        while True:
            try:
                row = next(rows, None)
                if row is None:
                    break
                end = lines.position
                # The csv module calls an empty line a row without columns.
                if row:
                    # Strict: a row with too many columns is an error, and not cut.
                    texts = dict(zip(columns, row, strict=True))
                    collected.add(make(texts), end)
            except (csv.Error, ValueError, msgspec.ValidationError) as error:
                collected.refuse(start, _of_row(error, row or [], columns), error)
                if isinstance(error, csv.Error):
                    # A quote that does not end takes the lines after it for its own.
                    lines.skip_line(start)
                end = lines.position
            if collected.is_full(end - start):
                yield collected.take()
            start = end
        if collected:
            yield collected.take()

    def _maker(
        self, name: str, columns: tuple[str, ...]
    ) -> Callable[[dict[str, str]], Any]:
        if self._records in (dict, "dict"):
            return lambda texts: texts
        if self._records == "namedtuple":
            return _as_namedtuple
        if self._records == "infer":
            return self._inferred(name)
        if isinstance(self._records, Mapping):
            return _with_empty(
                self._records, _typed_fields(self._records, strict=False)
            )
        shape, make = _shape_of(self._records)

        def convert(texts: dict[str, str]) -> Any:
            value: Any = msgspec.convert(texts, shape, strict=False)
            return value if make is None else make(value)

        return _with_empty(_hints_of(self._records), convert)

    def _check_columns(self, name: str, columns: tuple[str, ...]) -> None:
        """Refuse a file none of whose rows can be a record: it lacks a field.

        Raises:
            DamagedFileError: If so; also where lines that are no records are left out.
        """
        missing = [each for each in _required(self._records) if each not in columns]
        if not missing:
            if self.record_types and not self._has_warned:
                self._has_warned = _warn_of_renamed(name, self._records, columns)
            return
        wanted = missing[0]
        alike = [one for one in columns if one.strip().lower() == wanted.lower()]
        if alike:
            remedy = (
                f"is {alike[0]!r} meant? Change the header, or leave records= out and "
                "make the records in .map(...)"
            )
        elif self._columns is None:
            remedy = "if its first row is a record, name the columns: columns=[...]"
        else:
            remedy = "columns= names all columns of the file"
        raise DamagedFileError(
            name,
            f"there is no column {wanted!r}; it has {', '.join(columns)}; {remedy}",
        )

    def _inferred(self, name: str) -> Callable[[dict[str, str]], Any]:
        """Return what converts the texts of a file, by types that its beginning has."""
        types, nulls = _types_of_csv(
            name, self._columns, self._delimiter, self._encoding
        )
        typed = _typed_fields(types, strict=False)

        def convert(texts: dict[str, Any]) -> Any:
            for column in types:
                if texts[column] in nulls:
                    texts[column] = None
            try:
                return typed(texts)
            except msgspec.ValidationError as error:
                raise ValueError(
                    f"{error}; the types are those of the file's first MiB. Say them: "
                    "records={'column': type}"
                ) from error

        return convert


# How much of a CSV file is looked at for its types.
_INFERRED_BYTES: Final = 1 << 20


def _types_of_csv(
    name: str, columns: tuple[str, ...] | None, delimiter: str, encoding: str
) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the types of columns that are no text, and what stands for no value.

    Raises:
        MissingExtraError: If pyarrow is not installed.
        DamagedFileError: If the beginning of the file cannot be parsed.
    """
    try:
        from pyarrow import compute, csv as arrow_csv, lib, string, types
    except ImportError as error:
        raise MissingExtraError("records='infer'", "arrow") from error
    kinds: tuple[tuple[Callable[[Any], bool], Any], ...] = (
        (types.is_integer, int),
        (types.is_floating, float),
        (types.is_boolean, bool),
        (types.is_date, date),
        (types.is_timestamp, datetime),
        (types.is_time, time),
    )
    options = arrow_csv.ConvertOptions()
    read = (
        arrow_csv.ReadOptions(
            block_size=_INFERRED_BYTES,
            column_names=None if columns is None else list(columns),
            encoding=encoding,
        ),
        arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
    )
    try:
        with open_file(name) as file:
            fields = list(arrow_csv.open_csv(file, *read, options).schema)
        whole = [field.name for field in fields if types.is_integer(field.type)]
        texts: Any = {}
        if whole:
            as_text = arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(whole, string()), include_columns=whole
            )
            with open_file(name) as file:
                texts = arrow_csv.open_csv(file, *read, as_text).read_next_batch()
    except lib.ArrowInvalid as error:
        if "Empty CSV" in str(error):
            return {}, frozenset()
        raise DamagedFileError(name, str(error)) from error
    # What begins with a zero is no number, as a code of an area is none.
    codes = {
        column
        for column in whole
        if compute.any(compute.match_substring_regex(texts[column], "^0[0-9]")).as_py()
    }
    found = {
        field.name: kind | None
        for field in fields
        for is_kind, kind in kinds
        if is_kind(field.type) and field.name not in codes
    }
    return found, frozenset(options.null_values)


def _as_namedtuple(fields: dict[str, Any]) -> Any:
    """Return a record whose fields are attributes.

    Raises:
        ValueError: If it is no object, or a field has a name that no attribute can have.
    """
    if not isinstance(fields, dict):
        raise ValueError(f"{fields!r} is not an object, so it has no fields")
    return tuple.__new__(record_class(tuple(fields)), fields.values())


def _typed_fields(
    types: Mapping[str, Any], *, strict: bool
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return what converts some fields of a dict, and keeps the others.

    Raises:
        InvalidArgumentError: If one is no type that values can have.
    """
    # Fields may have names that no attribute can have.
    attributes = [f"field_{number}" for number in range(len(types))]
    renames = dict(zip(attributes, types, strict=True))
    try:
        shape = msgspec.defstruct(
            "Fields",
            list(zip(attributes, types.values(), strict=True)),
            rename=renames,
        )
        msgspec.json.Decoder(shape)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            "records",
            f"{dict(types)!r} are not types by names of fields: {error}",
            'Write e.g. {"price": float, "count": int}.',
        ) from error
    astuple = msgspec.structs.astuple
    names = tuple(types)

    def convert(fields: dict[str, Any]) -> dict[str, Any]:
        values = astuple(msgspec.convert(fields, shape, strict=strict))
        return {**fields, **dict(zip(names, values, strict=True))}

    return convert


def _with_empty(
    hints: Mapping[str, Any], convert: Callable[[dict[str, Any]], Any]
) -> Callable[[dict[str, Any]], Any]:
    """Return a conversion to which a cell without text is None, where a type has None."""
    optional = [
        name
        for name, hint in hints.items()
        if NoneType in get_args(hint) and str not in get_args(hint)
    ]

    def convert_row(texts: dict[str, Any]) -> Any:
        for column in optional:
            if texts.get(column) == "":
                texts[column] = None
        return convert(texts)

    return convert_row if optional else convert


def _hints_of(records: Any) -> dict[str, Any]:
    # Of a class with names that cannot be looked up nothing is known.
    with suppress(Exception):
        return get_type_hints(records)
    return {}


def _required(records: Any) -> Iterable[str]:
    """Return the columns without which no row of a file is a record."""
    if isinstance(records, Mapping):
        return records
    return [name for name, is_required in _fields_of(records).items() if is_required]


def _fields_of(records: Any) -> dict[str, bool]:
    """Return the fields of a class of records by name, and whether each is required."""
    if isinstance(records, type) and records is not dict:
        # What a class has whose types cannot be looked up shows with its first row.
        with suppress(Exception):
            shape: Any = msgspec.inspect.type_info(_shape_of(records)[0])
            return {each.encode_name: each.required for each in shape.fields}
    return {}


def _warn_of_renamed(file: str, records: Any, found: Collection[str]) -> bool:
    """Warn of a field that has its default, as a file has it by nearly the same name.

    Args:
        file: Its name.
        records: The class of the records.
        found: The names in the file's first record.

    Returns:
        Whether it has warned.
    """
    fields = _fields_of(records)
    # The class may leave out what it does not need.
    others = {one.lower(): one for one in found if one not in fields}
    for name in fields.keys() - set(found):
        close = get_close_matches(name.lower(), others, n=1, cutoff=0.75)
        if close:
            library_log().warning(
                "a field of a class is not in a file, which has one of nearly that name: "
                "the field gets its default",
                file=file,
                field=name,
                meant=others[close[0]],
                records=records.__qualname__,
                remedy="give the field the name that it has in the file",
            )
            return True
    return False


class _Collected:
    """Records of a file on their way into a chunk."""

    def __init__(self, name: str, *, skips: bool) -> None:
        self._name = name
        self._skips = skips
        self._has_skipped = False
        self._clear()

    def _clear(self) -> None:
        self._values: list[Any] = []
        self._positions: list[int] = []
        self._bytes = 0
        self._skipped = 0
        self._first: InvalidRecordError | None = None

    def __bool__(self) -> bool:
        return bool(self._values or self._skipped)

    def refuse(self, position: int, problem: str, error: Exception) -> None:
        """Take a line that is no record.

        Raises:
            InvalidRecordError: If such lines are not left out.
        """
        if not self._skips:
            raise _no_record(self._name, position, problem) from error
        if not self._has_skipped:
            # The line's number costs a second look at the file: one is enough.
            self._has_skipped = True
            self._first = _no_record(self._name, position, problem)
        self._skipped += 1

    def add(self, value: Any, position: int) -> None:
        self._values.append(value)
        self._positions.append(position)

    def is_full(self, size_bytes: int) -> bool:
        """Count what was read; say whether it is enough for a chunk."""
        self._bytes += size_bytes
        if not self._values:
            # Of empty lines only there is nothing to hand over, however many they are.
            return False
        return len(self._values) >= RUN_LENGTH_MAX or self._bytes >= _CHUNK_BYTES

    def take(self) -> FileChunk:
        chunk = FileChunk(
            ListRun(self._values), self._positions, self._skipped, self._first
        )
        self._clear()
        return chunk


class _Lines:
    """Decoded lines, one after the other, with the byte behind the last one."""

    def __init__(self, name: str, file: BinaryIO, encoding: str, position: int) -> None:
        self.position = position
        self._name = name
        self._file = file
        self._encoding = encoding

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = read_line(self._name, self._file, self.position)
        if not line:
            raise StopIteration
        self.position += len(line)
        return line.decode(self._encoding)

    def skip_line(self, position: int) -> None:
        """Go on behind the line that begins at a byte."""
        self._file.seek(position)
        self.position = position + len(read_line(self._name, self._file, position))


def read_line(name: str, file: BinaryIO, position: int) -> bytes:
    """Return the next line with its end, empty at the end of the file.

    Raises:
        InvalidRecordError: If it has more than 64 MiB.
    """
    # One byte more than allowed tells a line that is too long from one that just fits.
    line = file.readline(_LINE_BYTES_MAX + 1)
    if len(line) > _LINE_BYTES_MAX:
        raise _no_record(name, position, f"it has more than {_LINE_BYTES_MAX} bytes")
    return line


def _read_lines(
    name: str,
    position: int,
    decode: Decode,
    *,
    skip_empty: bool = False,
    skips: bool = False,
    look_at_first: Callable[[bytes], None] | None = None,
) -> Iterator[FileChunk]:
    collected = _Collected(name, skips=skips)
    with reading(name) as file:
        if position:
            go_on(name, file, position)
            look_at_first = None
        else:
            position = _skip_mark(file)
        while line := read_line(name, file, position):
            end = position + len(line)
            if not skip_empty or not line.isspace():
                try:
                    collected.add(decode(line), end)
                except (ValueError, msgspec.MsgspecError) as error:
                    collected.refuse(position, _of_line(error), error)
                else:
                    if look_at_first is not None:
                        look_at_first(line)
                look_at_first = None
            if collected.is_full(len(line)):
                yield collected.take()
            position = end
    if collected:
        yield collected.take()


def _of_line(error: Exception) -> str:
    text = str(error)
    if isinstance(error, msgspec.DecodeError) and "truncated" in text:
        # An array, or an object, over several lines.
        return f"{text}: each record has to be on one line, without a list around them"
    return text


def _no_record(name: str, position: int, problem: str) -> InvalidRecordError:
    """Return the error of a place in a file where no record begins."""
    with reading(name) as file:
        if "codec can't decode" in problem:
            problem += _of_other_bytes(file.read(len(_GZIP)))
            file.seek(0)
        line, left = 1, position
        while left and (part := file.read(min(left, _CHUNK_BYTES))):
            line += part.count(b"\n")
            left -= len(part)
    return InvalidRecordError(name, line, position, problem)


_GZIP: Final = b"\x1f\x8b"


def _of_other_bytes(head: bytes) -> str:
    """Say what a file with other bytes than those of its encoding may be."""
    if head == _GZIP:
        return "; it is compressed, and its name must end in .gz"
    return '; if it has another encoding, write am.FileSource(..., encoding="latin-1")'


def go_on(name: str, file: BinaryIO, position: int) -> None:
    """Go to a byte behind which an earlier reader has stopped.

    Raises:
        SourceChangedError: If the file does not reach so far any more.
    """
    file.seek(position - 1)
    if not file.read(1):
        raise changed(name, f"ends before byte {position}")


def changed(name: str, how: str) -> SourceChangedError:
    """Return the error of a file in which a recorded position means nothing any more."""
    return SourceChangedError(
        f"{name} {how}, to which it had been read when the snapshot was taken: it was "
        "replaced or cut. Put the file back; or give the source another uid, so that it "
        "begins anew, and pass allow_unmatched_state=True"
    )


def _skip_mark(file: BinaryIO) -> int:
    """Pass over the byte order mark that some programs begin UTF-8 with."""
    if file.read(len(BOM_UTF8)) == BOM_UTF8:
        return len(BOM_UTF8)
    file.seek(0)
    return 0


def _of_row(error: Exception, row: list[str], columns: tuple[str, ...]) -> str:
    text = str(error)
    # Python's own words would say nothing about rows.
    if text.startswith("zip()"):
        return (
            "the row has another number of columns than the first row: "
            f"{len(row)}, and not {len(columns)}"
        )
    if "got `str`" in text:
        # As msgspec says where.
        cell = dict(zip(columns, row, strict=False)).get(text.rpartition("$.")[2][:-1])
        if cell:
            return f"{text}: the cell is {cell[:80]!r}"
        return f"{text} (a cell may be empty if its type has None, as float | None)"
    return text


def _record_types(records: Any) -> tuple[type, ...]:
    """Return the class of the records, unless they are of no class of the user's.

    Raises:
        InvalidArgumentError: If it is no class of records, and no other word for them.
    """
    if isinstance(records, Mapping):
        _typed_fields(records, strict=False)
        return ()
    if records is dict or records in ("dict", "namedtuple", "infer"):
        return ()
    if isinstance(records, str) and records == "batch":
        raise InvalidArgumentError(
            "records",
            '"batch" is for sources of columns: Parquet, Arrow and Spark',
            'Use stream.batch(100), or dict, "namedtuple" or a class.',
        )
    _shape_of(records)
    return (records,)


def _shape_of(kind: type) -> tuple[type, Callable[[Any], Any] | None]:
    """Return the type to decode objects as, and what makes the record of it.

    msgspec takes a NamedTuple for an array, and files have objects.
    """
    fields = fields_of_class(kind) if isinstance(kind, type) else None
    if fields is None:
        raise InvalidArgumentError(
            "records",
            f"{kind!r} is not a kind of record",
            'Use dict, "namedtuple", {"field": type}, a dataclass, a msgspec.Struct or a '
            "NamedTuple class.",
        )
    if not issubclass(kind, tuple):
        return kind, None
    types = typing.get_type_hints(kind)
    defaults: dict[str, Any] = getattr(kind, "_field_defaults", {})
    shape = msgspec.defstruct(
        kind.__name__,
        [
            (name, types.get(name, Any), defaults[name])
            if name in defaults
            else (name, types.get(name, Any))
            for name in fields
        ],
    )
    astuple = msgspec.structs.astuple
    # Past the class's own `__new__`, which is a Python call for each record.
    new = tuple.__new__
    return shape, lambda value: new(kind, astuple(value))
