"""Arrow runs on their way to other processes, as the rows that they stand for."""

from __future__ import annotations

from typing import Final

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.records import ByteReader, ListRun
from aiomailbox.records.list_run_form import ListRunForm
from aiomailbox.records.values import ValueSerializer

__all__ = ["ArrowRowsForm"]


class ArrowRowsForm:
    """Writes an Arrow run as a list of rows, and reads a list run.

    Args:
        serializer: For the rows.

    Attributes:
        tag: 65.
        kind: `ArrowRun`.

    Example:
        >>> import pyarrow as pa
        >>> from aiomailbox.columnar import ArrowRun, DictForm, RowMaker
        >>> from aiomailbox.records.values import PythonSerializer
        >>> batch = pa.record_batch({"city": ["Oslo", "Rome"]})
        >>> form, output = ArrowRowsForm(PythonSerializer()), bytearray()
        >>> form.write(ArrowRun(batch, RowMaker(batch.schema, DictForm())), output)
        >>> form.read(ByteReader(output)).values
        [{'city': 'Oslo'}, {'city': 'Rome'}]
    """

    tag: Final = 65
    kind: Final = ArrowRun

    def __init__(self, serializer: ValueSerializer) -> None:
        self._rows = ListRunForm(serializer)

    def write(self, run: ArrowRun, output: bytearray) -> None:
        """Append a run, without its tag."""
        self._rows.write(ListRun(run.values, run.timestamps), output)

    def read(self, source: ByteReader) -> ListRun:
        """Read a run whose tag was read already.

        Raises:
            CorruptStreamError: If the bytes are none.
        """
        return self._rows.read(source)
