"""Record batches as bytes: an Arrow IPC stream of one batch, and the way back.

Theory of operation: what Arrow reads without copying takes no more memory than its
bytes do, with three exceptions, which are refused: content that is compressed, arrays
of a type that takes no bytes (nulls, and structs of nothing), and types whose values
may overlap. The first is looked for in the messages' headers, before Arrow reads them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa

from aiomailbox.errors import CorruptStreamError, WrongTypeError

# A look at the headers of Arrow's messages before Arrow reads them.
#
# Theory of operation: Arrow allocates what compressed content claims to become, so that
# has to be refused before. A header is a flatbuffer: a table, whose vtable says where
# each of its slots is.


_CONTINUATION: Final = 0xFFFF_FFFF


_PREFIX: Final = struct.Struct("<II")


_END: Final = _PREFIX.pack(_CONTINUATION, 0)


_SHORT: Final = struct.Struct("<H")


_INT: Final = struct.Struct("<i")


_LONG: Final = struct.Struct("<q")


# Types of messages, and where their tables keep what is looked at.
_SCHEMA: Final = 1


_DICTIONARY: Final = 2


_BATCH: Final = 3


_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3


_COMPRESSION: Final = 3


_DICTIONARY_ID, _DICTIONARY_DATA, _DICTIONARY_IS_DELTA = 0, 1, 2


def check_messages(written: bytes) -> tuple[int, bool]:
    """Check that there is a schema, dictionaries, and one batch, none compressed.

    Returns:
        Where the schema ends, and whether there are dictionaries.

    Raises:
        CorruptStreamError: If there is anything else.
        struct.error: And `LookupError`, if a header refers to what is beyond it.
    """
    position = head_bytes = 0
    seen: set[int] = set()
    while True:
        mark, size_bytes = _PREFIX.unpack_from(written, position)
        start = position + _PREFIX.size
        if mark != _CONTINUATION or size_bytes > len(written) - start:
            raise CorruptStreamError("there is no Arrow message where one should be")
        header = _Table.root(written[start : start + size_bytes])
        body_bytes = header.long(_BODY_LENGTH)
        position = start + size_bytes + body_bytes
        if body_bytes < 0 or position > len(written):
            raise CorruptStreamError(f"an Arrow message cannot have {body_bytes} bytes")
        kind, content = header.byte(_HEADER_TYPE), header.table(_HEADER)
        if (kind == _SCHEMA) != (not head_bytes):
            raise CorruptStreamError(f"an Arrow message of type {kind} is out of place")
        if kind == _SCHEMA:
            head_bytes = position
            continue
        if kind == _DICTIONARY:
            identity = content.long(_DICTIONARY_ID)
            if identity in seen or content.byte(_DICTIONARY_IS_DELTA):
                raise CorruptStreamError(f"there are two dictionaries {identity}")
            seen.add(identity)
            content = content.table(_DICTIONARY_DATA)
        elif kind != _BATCH:
            raise CorruptStreamError(f"there is no Arrow message of type {kind} here")
        if content.has(_COMPRESSION):
            raise CorruptStreamError("compressed Arrow messages are not read")
        if kind == _BATCH:
            break
    if written[position:] not in {b"", _END}:
        raise CorruptStreamError("more than one record batch was sent")
    return head_bytes, bool(seen)


class _Table:
    """A flatbuffer's table, as far as it has to be looked at."""

    def __init__(self, content: bytes, start: int) -> None:
        self._content = content
        self._start = start
        self._vtable = start - _at(_INT, content, start)
        self._vtable_bytes = _at(_SHORT, content, self._vtable)

    @classmethod
    def root(cls, content: bytes) -> _Table:
        return cls(content, _at(_INT, content, 0))

    def has(self, slot: int) -> bool:
        return self._place(slot) is not None

    def byte(self, slot: int) -> int:
        place = self._place(slot)
        return 0 if place is None else self._content[place]

    def long(self, slot: int) -> int:
        place = self._place(slot)
        return 0 if place is None else _at(_LONG, self._content, place)

    def table(self, slot: int) -> _Table:
        place = self._place(slot)
        if place is None:
            raise CorruptStreamError("an Arrow message has no content")
        return _Table(self._content, place + _at(_INT, self._content, place))

    def _place(self, slot: int) -> int | None:
        entry = _SHORT.size * (2 + slot)
        if entry + _SHORT.size > self._vtable_bytes:
            return None
        offset = _at(_SHORT, self._content, self._vtable + entry)
        return self._start + offset if offset else None


def _at(form: struct.Struct, content: bytes, place: int) -> int:
    if place < 0:
        raise CorruptStreamError("an Arrow message refers to bytes that are not in it")
    return form.unpack_from(content, place)[0]


_DEPTH_MAX: Final = 50


# A value takes a bit at least, and so many levels may lie above it; beyond that, so many
# may take none, as those of null columns.
_ELEMENTS_PER_BYTE: Final = 64


_FREE_ELEMENTS_MAX: Final = 2**20


_SCHEMAS_MAX: Final = 64


_SCHEMA_BYTES_MAX: Final = 64 * 1024


def can_travel(kind: pa.DataType, depth: int = _DEPTH_MAX) -> bool:
    """Say whether columns of a type can be sent as Arrow.

    Extension types, unions, views and run-end encoded columns cannot.

    Example:
        >>> can_travel(pa.list_(pa.int8())), can_travel(pa.string_view())
        (True, False)
    """
    types = pa.types
    if not depth:
        return False
    if types.is_nested(kind):
        known = (
            types.is_list(kind)
            or types.is_large_list(kind)
            or types.is_fixed_size_list(kind)
            or types.is_struct(kind)
            or types.is_map(kind)
        )
        return known and all(
            can_travel(kind.field(index).type, depth - 1)
            for index in range(kind.num_fields)
        )
    if types.is_dictionary(kind):
        value = kind.value_type
        return can_travel(value) and not (
            types.is_nested(value) or types.is_dictionary(value)
        )
    return bool(
        types.is_primitive(kind)
        or types.is_null(kind)
        or types.is_decimal(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
    )


class BatchWriter:
    """Turns record batches into bytes; knows the last schema again.

    Example:
        >>> batch = pa.record_batch({"city": ["Oslo", "Rome"]})
        >>> written = BatchWriter().write(batch)
        >>> BatchReader().read(written).equals(batch)
        True
    """

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None
        self._head = b""
        self._has_dictionaries = False
        self._has_free_elements = False

    def write(self, batch: pa.RecordBatch) -> bytes:
        """Return a batch as bytes: of a slice, only what is in it.

        Raises:
            WrongTypeError: If a column is of a type that cannot be sent, or values
                that take no bytes are too many.
        """
        schema = batch.schema
        # Kept from the batch before: a schema takes longer to write than a few rows.
        if self._schema is None or not self._schema.equals(schema, check_metadata=True):
            self._begin_schema(schema)
        try:
            # The batch's own serialisation leaves dictionaries out.
            if self._has_dictionaries:
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, schema) as stream:
                    stream.write_batch(batch)
                written: bytes = sink.getvalue().to_pybytes()
            else:
                written = self._head + batch.serialize().to_pybytes()
        except pa.ArrowException as error:
            raise WrongTypeError(
                "batch", f"it cannot be sent as Arrow: {error}"
            ) from error
        if self._has_free_elements:
            # Read at once, so that the sender gets the error: it can do something about it.
            self._check(written)
        return written

    @staticmethod
    def _check(written: bytes) -> None:
        """Check that there are not more values without bytes than are read again."""
        try:
            BatchReader().read(written)
        except CorruptStreamError as error:
            raise WrongTypeError(
                "batch",
                f"it could not be read again: {error}",
                "Drop columns of type null, or make smaller batches.",
            ) from error

    def _begin_schema(self, schema: pa.Schema) -> None:
        for field in schema:
            if not can_travel(field.type):
                raise WrongTypeError(
                    "batch",
                    f"column {field.name!r} of type {field.type} cannot be sent to "
                    "another process",
                    "Cast it to another type before.",
                )
        self._head = schema.serialize().to_pybytes()
        self._has_dictionaries = _any_type(schema, pa.types.is_dictionary)
        self._has_free_elements = not len(schema) or _any_type(schema, _takes_no_bytes)
        self._schema = schema


class BatchReader:
    """Turns bytes into record batches; knows the schemas that it has seen again."""

    def __init__(self) -> None:
        self._schemas: dict[bytes, pa.Schema] = {}

    def read(self, written: bytes) -> pa.RecordBatch:
        """Return the batch that the bytes hold, and which it keeps alive.

        Raises:
            CorruptStreamError: If they hold none, or anything else.
        """
        try:
            batch = self._batch(written)
            # Lengths first: the full look takes as long as arrays say that they are.
            batch.validate()
            elements = _elements(batch)
            if elements <= _elements_max(len(written)):
                batch.validate(full=True)
                return batch
        except _ARROW_ERRORS as error:
            raise CorruptStreamError(
                f"a record batch cannot be read: {error}"
            ) from None
        raise CorruptStreamError(
            f"{elements} values cannot be in a record batch of {len(written)} bytes"
        )

    def _batch(self, written: bytes) -> pa.RecordBatch:
        head_bytes, has_dictionaries = check_messages(written)
        if has_dictionaries:
            stream = pa.ipc.open_stream(pa.py_buffer(written))
            _check_schema(stream.schema)
            return stream.read_next_batch()
        head = written[:head_bytes]
        schema = self._schemas.get(head)
        if schema is None:
            schema = pa.ipc.read_schema(pa.py_buffer(head))
            _check_schema(schema)
            # All at once: a sender that changes its schema all the time gains nothing
            # here.
            if len(self._schemas) >= _SCHEMAS_MAX:
                self._schemas.clear()
            # A large one is not worth the memory that it would be kept in.
            if len(head) <= _SCHEMA_BYTES_MAX:
                self._schemas[head] = schema
        return pa.ipc.read_record_batch(pa.py_buffer(written)[head_bytes:], schema)


# What Arrow, and the look at its headers, make of bytes that are not theirs.
_ARROW_ERRORS: Final = (
    pa.ArrowException,
    ArithmeticError,
    LookupError,
    MemoryError,
    OSError,
    RecursionError,
    StopIteration,
    TypeError,
    ValueError,
    struct.error,
)


def types_in(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Give a type and those inside of it; of a map, its keys' and its items'."""
    # No recursion: the depth is decided by the sender.
    waiting = [kind]
    while waiting:
        kind = waiting.pop()
        yield kind
        if pa.types.is_map(kind):
            waiting += [kind.key_type, kind.item_type]
        else:
            waiting += [kind.field(index).type for index in range(kind.num_fields)]


def _any_type(schema: pa.Schema, test: Callable[[pa.DataType], bool]) -> bool:
    return any(test(each) for field in schema for each in types_in(field.type))


def _takes_no_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_null(kind)
        or (types.is_struct(kind) and not kind.num_fields)
        or types.is_fixed_size_list(kind)
        or (types.is_fixed_size_binary(kind) and not kind.byte_width)
    )


def _check_schema(schema: pa.Schema) -> None:
    for field in schema:
        if not can_travel(field.type):
            raise CorruptStreamError(f"a column of type {field.type} cannot be read")
        # Texts that are none show when they are looked at.
        str(field)


def _elements_max(size_bytes: int) -> int:
    return _ELEMENTS_PER_BYTE * size_bytes + _FREE_ELEMENTS_MAX


def _elements(batch: pa.RecordBatch) -> int:
    """Return how many values there are, those inside of others included."""
    waiting = list(batch.columns)
    total: int = batch.num_rows
    while waiting:
        array = waiting.pop()
        kind = array.type
        total += len(array)
        if pa.types.is_struct(kind):
            waiting += [array.field(index) for index in range(kind.num_fields)]
        elif pa.types.is_map(kind):
            waiting += [array.keys, array.items]
        elif pa.types.is_nested(kind):
            waiting.append(array.values)
        elif pa.types.is_dictionary(kind):
            waiting.append(array.dictionary)
    return total
