"""Makes rows from record batches of one schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from aiomailbox.columnar.decode import SpecialColumns, column_decoder, decoded
from aiomailbox.columnar.forms import RecordForm
from aiomailbox.columnar.ipc import can_travel


class RowMaker:
    """Turns record batches into lists of records; one per schema.

    Args:
        schema: The batches' schema.
        form: What a record is, see `record_form`.
        special: Functions for columns whose plain values mean something else, by path,
            see `column_decoder`.

    Attributes:
        schema: The batches' schema.
        form: What a record is.
        can_take: Whether single values of all columns can be picked, and give records:
            of no columns Arrow makes a batch without rows.
        special: What was given for columns whose plain values mean something else.

    Raises:
        UnsupportedColumnError: If a column does not fit the form; names it.

    Example:
        >>> import pyarrow as pa
        >>> from aiomailbox.columnar.forms import NamedTupleForm
        >>> batch = pa.record_batch({"city": ["Oslo", "Rome"], "visits": [3, None]})
        >>> RowMaker(batch.schema, NamedTupleForm()).rows(batch)
        [Record(city='Oslo', visits=3), Record(city='Rome', visits=None)]
    """

    def __init__(
        self,
        schema: pa.Schema,
        form: RecordForm,
        special: SpecialColumns | None = None,
    ) -> None:
        self.schema = schema
        self.form: RecordForm = form
        self.special: SpecialColumns = special or {}
        self.can_take: bool = bool(len(schema)) and all(
            can_travel(field.type) for field in schema
        )
        kinds = [field.type for field in schema]
        self._texts = [place for place, kind in enumerate(kinds) if _is_text(kind)]
        # What a row takes in the other columns; None if that depends on the row.
        self._fixed_bytes: float | None = None
        if all(_is_text(kind) or _is_fixed(kind) for kind in kinds):
            bits = [kind.bit_width for kind in kinds if not _is_text(kind)]
            self._fixed_bytes = sum(bits) / 8 + 4 * len(self._texts)
        self._build = form.builder(tuple(schema.names))
        self._decoders = [
            column_decoder(field.type, form.nested(field.name), (field.name,), special)
            for field in schema
        ]

    def is_special(self, name: str) -> bool:
        """Say whether plain values in this column mean something else."""
        return any(path[0] == name for path in self.special)

    def special_of(self, field: str, name: str) -> SpecialColumns:
        """Return the functions for a column, for the same one under another name."""
        return {
            (name, *path[1:]): convert
            for path, convert in self.special.items()
            if path[0] == field
        }

    def size_bytes(self, batch: pa.RecordBatch) -> int:
        """Return the bytes of a batch's columns, without where values are null.

        The batch has an exact figure, which takes it as long as adding up a column.
        """
        if self._fixed_bytes is None:
            return int(batch.nbytes)
        size_bytes = int(self._fixed_bytes * batch.num_rows)
        for place in self._texts if batch.num_rows else ():
            column = batch.column(place)
            ends = np.frombuffer(column.buffers()[1], np.int32)
            first, last = column.offset, column.offset + len(column)
            size_bytes += int(ends[last]) - int(ends[first])
        return size_bytes

    def rows(self, batch: pa.RecordBatch) -> list[Any]:
        """Return the batch's rows as records, shape ``(n,)``.

        Raises:
            UnsupportedColumnError: If Python cannot express a value; names the column.
        """
        names = self.schema.names
        columns = [
            decoded(*each)
            for each in zip(self._decoders, batch.columns, names, strict=True)
        ]
        return self._build(columns, batch.num_rows)


def maker_of_fields(
    schema: pa.Schema,
    origins: Mapping[str, tuple[RowMaker, str]],
    form: Callable[[dict[str, RecordForm]], RecordForm],
) -> RowMaker:
    """Return what makes rows of fields that come from other columns.

    Args:
        schema: The columns of the new rows.
        origins: Of those that come from other columns by name: what made rows of
            these, and the name there.
        form: Returns the form of the rows, given those of structs inside of fields.
    """
    special: dict[tuple[str, ...], Any] = {}
    inner: dict[str, RecordForm] = {}
    for name, (maker, origin) in origins.items():
        special |= maker.special_of(origin, name)
        if pa.types.is_nested(schema.field(name).type):
            inner[name] = maker.form.nested(origin)
    return RowMaker(schema, form(inner), special)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _is_fixed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind))
