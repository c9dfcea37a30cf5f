"""Makes rows from record batches of one schema."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from aiomailbox.columnar.decode import SpecialColumns, column_decoder
from aiomailbox.columnar.forms import RecordForm
from aiomailbox.columnar.ipc import can_travel

__all__ = ["RowMaker"]


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
        can_take: Whether single values of all columns can be picked.
        special: What was given for columns whose plain values mean something else.
        has_special: Whether there are such.

    Raises:
        UnsupportedColumnError: If a column does not fit the form; names it.

    Example:
        >>> import pyarrow as pa
        >>> from aiomailbox.columnar import NamedTupleForm
        >>> batch = pa.record_batch({"city": ["Oslo", "Rome"], "visits": [3, None]})
        >>> RowMaker(batch.schema, NamedTupleForm()).rows(batch)
        [Record(city='Oslo', visits=3), Record(city='Rome', visits=None)]
    """

    __slots__ = (
        "_build",
        "_decoders",
        "can_take",
        "form",
        "has_special",
        "schema",
        "special",
    )

    def __init__(
        self,
        schema: pa.Schema,
        form: RecordForm,
        special: SpecialColumns | None = None,
    ) -> None:
        self.schema = schema
        self.form: RecordForm = form
        self.special: SpecialColumns = special or {}
        self.has_special: bool = bool(special)
        self.can_take: bool = all(can_travel(field.type) for field in schema)
        self._build = form.builder(tuple(schema.names))
        self._decoders = [
            column_decoder(field.type, form.nested(field.name), (field.name,), special)
            for field in schema
        ]

    def is_special(self, name: str) -> bool:
        """Say whether plain values in this column mean something else."""
        return any(path[0] == name for path in self.special)

    def rows(self, batch: pa.RecordBatch) -> list[Any]:
        """Return the batch's rows as records, shape ``(n,)``."""
        columns = [
            decode(column)
            for decode, column in zip(self._decoders, batch.columns, strict=True)
        ]
        return self._build(columns, batch.num_rows)
