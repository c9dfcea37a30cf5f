"""Stream elements as bytes: a tag, then what belongs to it.

Theory of operation: tags 0 to 6 are Flink's, one record or control element each. Runs
are ours, since a record at a time is what makes Python slow: a run has a tag of its
own, 64 for lists of rows and any other up to 127 for a form that is registered with
the codec, and holds many records behind one tag.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable
from typing import Any, Final

from aiomailbox.errors import CorruptStreamError, InvalidArgumentError, WrongTypeError
from aiomailbox.records.byte_reader import ByteReader
from aiomailbox.records.events import (
    InternalWatermark,
    LatencyMarker,
    RecordAttributes,
    StreamRecord,
    Watermark,
    WatermarkStatus,
)
from aiomailbox.records.run import Run, RunForm
from aiomailbox.records.run_columns import ListRunForm
from aiomailbox.records.serializers import TypeSerializer

StreamElement = (
    StreamRecord
    | Run
    | Watermark
    | WatermarkStatus
    | LatencyMarker
    | RecordAttributes
    | InternalWatermark
)

_RECORD_WITH_TIMESTAMP: Final = 0
_RECORD: Final = 1
_WATERMARK: Final = 2
_LATENCY_MARKER: Final = 3
_WATERMARK_STATUS: Final = 4
_RECORD_ATTRIBUTES: Final = 5
_INTERNAL_WATERMARK: Final = 6
_FORM_TAGS: Final = range(64, 128)

_TAGGED_LONG: Final = struct.Struct(">bq")
_TAGGED_INT: Final = struct.Struct(">bi")
_TAGGED_INT_LONG: Final = struct.Struct(">biq")
_STATUSES: Final = {WatermarkStatus.ACTIVE: 0, WatermarkStatus.IDLE: -1}
_STATUS_BY_NUMBER: Final = {number: status for status, number in _STATUSES.items()}
_OPERATOR_ID_BYTES: Final = 16


def operator_id(operator: str) -> bytes:
    """Return the 128 bits that stand for an operator's name in latency markers.

    A name of 32 hexadecimal digits stands for itself.

    Example:
        >>> operator_id("0123456789abcdef" * 2)[:2].hex()
        '0123'
    """
    if len(operator) == 2 * _OPERATOR_ID_BYTES and operator.isascii():
        try:
            return bytes.fromhex(operator)
        except ValueError:
            pass
    digest = hashlib.blake2b(operator.encode(), digest_size=_OPERATOR_ID_BYTES)
    return digest.digest()


class ElementCodec:
    """Writes and reads the elements of one edge.

    Args:
        serializer: For the records' values.
        operators: Names of the operators whose latency markers come by; the name of
            another one is read as 32 hexadecimal digits.
        forms: Further forms of runs, each with a tag of its own.

    Raises:
        InvalidArgumentError: If two forms have one tag or one class, or a tag is not
            within 64 .. 127.

    Concept:
        Flink, ``StreamElementSerializer``.

    Example:
        >>> from aiomailbox.records.serializers import LONG_SERIALIZER
        >>> codec = ElementCodec(LONG_SERIALIZER)
        >>> codec.encode(Watermark(5)).hex()
        '020000000000000005'
        >>> codec.decode(codec.encode(StreamRecord(7, 1000)))
        StreamRecord(value=7, timestamp=1000)
    """

    __slots__ = ("_forms", "_names", "_readers", "_serializer", "_writers")

    def __init__(
        self,
        serializer: TypeSerializer[Any],
        *,
        operators: Iterable[str] = (),
        forms: Iterable[RunForm[Any]] = (),
    ) -> None:
        self._serializer = serializer
        self._names = {operator_id(name): name for name in operators}
        self._writers: dict[type, Callable[[Any, bytearray], None]] = {
            StreamRecord: self._write_record,
            Watermark: _write_watermark,
            LatencyMarker: _write_latency_marker,
            WatermarkStatus: _write_status,
            RecordAttributes: _write_attributes,
            InternalWatermark: _write_internal_watermark,
        }
        self._readers: dict[int, Callable[[ByteReader], StreamElement]] = {
            _RECORD_WITH_TIMESTAMP: self._read_record_with_timestamp,
            _RECORD: self._read_record,
            _WATERMARK: _read_watermark,
            _LATENCY_MARKER: self._read_latency_marker,
            _WATERMARK_STATUS: _read_status,
            _RECORD_ATTRIBUTES: _read_attributes,
            _INTERNAL_WATERMARK: _read_internal_watermark,
        }
        self._register(ListRunForm(serializer))
        for form in forms:
            self._register(form)

    def encode(self, element: StreamElement) -> bytes:
        """Return an element as bytes.

        Raises:
            WrongTypeError: If it is no stream element, or a run of an unknown form.
        """
        output = bytearray()
        self.write(element, output)
        return bytes(output)

    def write(self, element: StreamElement, output: bytearray) -> None:
        """Append an element; see `encode`."""
        write = self._writers.get(type(element))
        if write is None:
            raise WrongTypeError(
                "element",
                f"{type(element).__name__} is not a stream element that this edge "
                "carries",
                "Register the form of a run with the codec.",
            )
        write(element, output)

    def decode(self, data: bytes | bytearray | memoryview) -> StreamElement:
        """Return the one element that the bytes hold.

        Raises:
            CorruptStreamError: If they hold none, or more.
        """
        source = ByteReader(data)
        element = self.read(source)
        source.expect_end(type(element).__name__)
        return element

    def read(self, source: ByteReader) -> StreamElement:
        """Read one element.

        Raises:
            CorruptStreamError: If the bytes are none.
        """
        tag = source.read_byte()
        read = self._readers.get(tag)
        if read is None:
            raise CorruptStreamError(f"corrupt stream: no element has tag {tag}")
        return read(source)

    def _register(self, form: RunForm[Any]) -> None:
        if form.tag not in _FORM_TAGS:
            raise InvalidArgumentError("forms", f"tag {form.tag} is not in 64 .. 127")
        if form.tag in self._readers or form.kind in self._writers:
            raise InvalidArgumentError(
                "forms", f"tag {form.tag} or {form.kind.__name__} is registered twice"
            )

        def write(run: Any, output: bytearray) -> None:
            output.append(form.tag)
            form.write(run, output)

        self._writers[form.kind] = write
        self._readers[form.tag] = form.read

    def _write_record(self, record: StreamRecord, output: bytearray) -> None:
        value, timestamp = record
        if timestamp is None:
            output.append(_RECORD)
        else:
            output += _TAGGED_LONG.pack(_RECORD_WITH_TIMESTAMP, timestamp)
        self._serializer.write(value, output)

    def _read_record_with_timestamp(self, source: ByteReader) -> StreamRecord:
        timestamp = source.read_long()
        return StreamRecord(self._serializer.read(source), timestamp)

    def _read_record(self, source: ByteReader) -> StreamRecord:
        return StreamRecord(self._serializer.read(source))

    def _read_latency_marker(self, source: ByteReader) -> LatencyMarker:
        marked_ms = source.read_long()
        identity = bytes(source.take(_OPERATOR_ID_BYTES))
        name = self._names.get(identity) or identity.hex()
        return LatencyMarker(marked_ms, name, source.read_int())


def _write_watermark(element: Watermark, output: bytearray) -> None:
    output += _TAGGED_LONG.pack(_WATERMARK, element.timestamp_ms)


def _read_watermark(source: ByteReader) -> Watermark:
    return Watermark(source.read_long())


def _write_latency_marker(element: LatencyMarker, output: bytearray) -> None:
    output += _TAGGED_LONG.pack(_LATENCY_MARKER, element.marked_ms)
    output += operator_id(element.operator)
    output += element.subtask_index.to_bytes(4, "big", signed=True)


def _write_status(element: WatermarkStatus, output: bytearray) -> None:
    output += _TAGGED_INT.pack(_WATERMARK_STATUS, _STATUSES[element])


def _read_status(source: ByteReader) -> WatermarkStatus:
    number = source.read_int()
    status = _STATUS_BY_NUMBER.get(number)
    if status is None:
        raise CorruptStreamError(f"there is no watermark status {number}")
    return status


def _write_attributes(element: RecordAttributes, output: bytearray) -> None:
    output.append(_RECORD_ATTRIBUTES)
    output.append(element.is_backlog)


def _read_attributes(source: ByteReader) -> RecordAttributes:
    return RecordAttributes(source.read_bool())


def _write_internal_watermark(element: InternalWatermark, output: bytearray) -> None:
    output += _TAGGED_INT_LONG.pack(
        _INTERNAL_WATERMARK, element.subpartition_index, element.timestamp_ms
    )


def _read_internal_watermark(source: ByteReader) -> InternalWatermark:
    return InternalWatermark(source.read_int(), source.read_long())
