"""Arrow runs on their way to other processes: as columns wherever that can be.

Theory of operation: a run is its event times, how its rows are made, and a record batch
(see `ipc`). What cannot go this way goes as the rows that it stands for: columns of
types that stay at home, and records of a form that the other side could not know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.forms import (
    ClassForm,
    DictForm,
    NamedTupleForm,
    RecordForm,
    TupleForm,
    ValueForm,
    record_form,
)
from aiomailbox.columnar.ipc import BatchReader, BatchWriter, types_in
from aiomailbox.columnar.rows import RowMaker
from aiomailbox.errors import AioMailboxError, CorruptStreamError
from aiomailbox.records.byte_reader import ByteReader
from aiomailbox.records.record_classes import RecordClass, RecordClasses
from aiomailbox.records.run import ListRun, Run
from aiomailbox.records.run_columns import ListRunForm, PythonSerializer, append_longs
from aiomailbox.records.serializers import INT_SERIALIZER

_ROWS, _NAMED_TUPLES, _DICTS, _OBJECTS, _VALUES, _KEYED = range(6)
_LONG_BYTES: Final = 8
_MAKERS_MAX: Final = 64


class ArrowForm:
    """Writes and reads Arrow runs.

    Layout: ``rows:0 | list run``, or ``form:1..5 [name] | count:int32 |
    timestamps:bool [longs] | size:int32 | Arrow IPC stream``.

    Args:
        serializer: For rows, where columns cannot be sent.
        classes: The classes that records may have, the same at both ends.

    Attributes:
        tag: 65.
        kind: `ArrowRun`.

    Example:
        >>> from aiomailbox.records.run_columns import PythonSerializer
        >>> from aiomailbox.records.record_classes import NO_RECORD_CLASSES
        >>> batch = pa.record_batch({"city": ["Oslo", "Rome"]})
        >>> form = ArrowForm(PythonSerializer(), NO_RECORD_CLASSES)
        >>> output = bytearray()
        >>> form.write(ArrowRun(batch, RowMaker(batch.schema, DictForm())), output)
        >>> form.read(ByteReader(output))
        <ArrowRun of 2 records: city>
    """

    tag: Final = 65
    kind: Final = ArrowRun

    def __init__(self, serializer: PythonSerializer, classes: RecordClasses) -> None:
        self._rows = ListRunForm(serializer)
        self._classes = classes
        self._writer = BatchWriter()
        self._reader = BatchReader()
        # The last run's, since most have the same; and what makes rows of those read.
        self._maker: RowMaker | None = None
        self._head: bytes | None = None
        self._makers: dict[tuple[int, str], RowMaker] = {}

    def write(self, run: ArrowRun, output: bytearray) -> None:
        """Append a run, without its tag.

        Raises:
            WrongTypeError: If it has to be sent as rows, and one cannot be serialized.
        """
        maker = run.row_maker
        if maker is not self._maker:
            self._maker, self._head = maker, self._head_of(maker)
        head = self._head
        if head is None or not run.batch.schema.equals(maker.schema):
            output.append(_ROWS)
            self._rows.write(ListRun(run.values, run.timestamps), output)
            return
        written = self._writer.write(_compact(run.batch))
        output += head
        INT_SERIALIZER.write(len(run), output)
        timestamps = run.timestamps
        output.append(timestamps is not None)
        if timestamps is not None:
            append_longs(timestamps, output)
        INT_SERIALIZER.write(len(written), output)
        output += written

    def read(self, source: ByteReader) -> Run:
        """Read a run whose tag was read already; it shares no memory with the bytes.

        Raises:
            CorruptStreamError: If the bytes are none.
        """
        form = source.read_byte()
        if form == _ROWS:
            return self._rows.read(source)
        if form not in {_NAMED_TUPLES, _DICTS, _OBJECTS, _VALUES, _KEYED}:
            raise CorruptStreamError(f"there is no form {form} of Arrow runs")
        name = _read_name(source) if form in {_OBJECTS, _KEYED} else ""
        count = source.read_int()
        timestamps: list[int] | None = None
        if source.read_bool():
            content = source.take(count * _LONG_BYTES)
            timestamps = np.frombuffer(content, ">i8").tolist()
        size_bytes = source.read_count("bytes of a record batch")
        batch = self._reader.read(bytes(source.take(size_bytes)))
        if batch.num_rows != count:
            raise CorruptStreamError(
                f"{count} records are announced, and {batch.num_rows} found"
            )
        return ArrowRun(batch, self._maker_for(form, name, batch.schema), timestamps)

    def _head_of(self, maker: RowMaker) -> bytes | None:
        """Return how rows are made, as bytes, or None if that is unknown."""
        if maker.special:
            return None
        if not maker.can_take:
            # The types whose values can be picked are those that can travel.
            return None
        kinds = [field.type for field in maker.schema]
        inner = [each for kind in kinds for each in types_in(kind) if each != kind]
        if any(map(pa.types.is_dictionary, inner)):
            # Whose pieces would all carry the whole of it.
            return None
        form = maker.form
        if isinstance(form, NamedTupleForm | DictForm):
            # What its structs are cannot be said.
            if form.inner:
                return None
            return bytes([_DICTS if isinstance(form, DictForm) else _NAMED_TUPLES])
        if type(form) is ValueForm:
            return bytes([_VALUES])
        kind = getattr(form, "record_type", None)
        entry = self._classes.of(kind) if isinstance(kind, type) else None
        if entry is None:
            return None
        has_structs = any(map(pa.types.is_struct, [*kinds, *inner]))
        code = _OBJECTS
        if getattr(form, "has_tuples", False):
            # Its one struct is the key, which is a plain tuple.
            code = _KEYED
        elif type(form) is ClassForm and has_structs:
            # The class of a struct is in an annotation, which not every process can
            # look up.
            return None
        name = entry.name.encode()
        return bytes([code]) + len(name).to_bytes(4, "big") + name

    def _maker_for(self, form: int, name: str, schema: pa.Schema) -> RowMaker:
        key = (form, name)
        maker = self._makers.get(key)
        if maker is not None and maker.schema.equals(schema):
            return maker
        try:
            maker = RowMaker(schema, self._form(form, name))
        except (AioMailboxError, LookupError, TypeError, ValueError) as error:
            raise CorruptStreamError(f"records cannot be built: {error}") from error
        if len(self._makers) >= _MAKERS_MAX:
            self._makers.clear()
        self._makers[key] = maker
        return maker

    def _form(self, form: int, name: str) -> RecordForm:
        if form == _NAMED_TUPLES:
            return NamedTupleForm()
        if form == _DICTS:
            return DictForm()
        if form == _VALUES:
            return ValueForm()
        entry = self._classes.named(name)
        if entry is None:
            raise CorruptStreamError(f"no class {name!r} was declared for this job")
        made = _NamedRowForm(entry) if entry.names_fields else record_form(entry.kind)
        return _KeyedRowForm(made, entry.kind) if form == _KEYED else made


class _NamedRowForm:
    """Records of a class whose objects each know the names of their fields."""

    def __init__(self, entry: RecordClass) -> None:
        self.record_type = entry.kind
        self._build = entry.build

    def builder(
        self, names: tuple[str, ...], where: str = ""
    ) -> Callable[[Sequence[Sequence[Any]], int], list[Any]]:
        make = self._build

        def build(columns: Sequence[Sequence[Any]], count: int) -> list[Any]:
            if not columns:
                return [make(((), ())) for _ in range(count)]
            return [make((names, values)) for values in zip(*columns, strict=True)]

        return build

    def nested(self, name: str) -> RecordForm:
        return self


class _KeyedRowForm:
    """Results whose key is a tuple."""

    has_tuples = True

    def __init__(self, form: RecordForm, record_type: type) -> None:
        self._form = form
        self.record_type = record_type

    def builder(
        self, names: tuple[str, ...], where: str = ""
    ) -> Callable[[Sequence[Sequence[Any]], int], list[Any]]:
        return self._form.builder(names, where)

    def nested(self, name: str) -> RecordForm:
        return TupleForm() if name == "key" else NamedTupleForm()


def _read_name(source: ByteReader) -> str:
    try:
        return bytes(source.take(source.read_count("bytes of a name"))).decode()
    except UnicodeDecodeError as error:
        raise CorruptStreamError(f"a name cannot be read: {error}") from error


def _compact(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose dictionaries hold no more than its rows refer to."""
    columns = None
    for index, field in enumerate(batch.schema):
        if not pa.types.is_dictionary(field.type):
            continue
        column = batch.column(index)
        if len(column.dictionary) <= len(column):
            continue
        used = pc.drop_null(pc.unique(column.indices))
        indices = pc.index_in(column.indices, used, skip_nulls=True)
        columns = columns or list(batch.columns)
        columns[index] = pa.DictionaryArray.from_arrays(
            indices.cast(field.type.index_type),
            column.dictionary.take(used),
            ordered=field.type.ordered,
        )
    if columns is None:
        return batch
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
