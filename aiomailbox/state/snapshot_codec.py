"""Cuts of keyed state as bytes, with what is needed to read them years later.

Layout: ``magic | version | length of metadata | metadata | one block per key group |
CRC-32 of all that``. The metadata is JSON: per state its serializer, its schema and the
fields of every class in it, and where each key group's block is. So a reader takes the
key groups that are its own, and says by name what it cannot read before it tries.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Container
from typing import Any, Final

import msgspec

from aiomailbox.errors import CorruptStreamError, StateError
from aiomailbox.state.schema import (
    ClassSchema,
    Options,
    StateSchema,
    check_fields,
    class_schema,
)
from aiomailbox.state.serializers import (
    ObjectSerializer,
    PickleSerializer,
    serializer_of,
)
from aiomailbox.state.snapshot import KeyedStateSnapshot, StateMeta

__all__ = ["decode_keyed_snapshot", "encode_keyed_snapshot"]

_HEAD: Final = struct.Struct(">4sHI")
_CHECKSUM: Final = struct.Struct(">I")
_MAGIC: Final = b"AMKS"
_VERSION: Final = 1

# Per state: its position, and per entry the address and the content.
_Block = list[tuple[int, list[tuple[bytes, bytes]]]]


class _State(msgspec.Struct):
    name: str
    kind: str
    namespaced: bool
    ttl: bool
    serializer: str
    fingerprint: str
    parts: dict[str, Options]
    classes: dict[str, ClassSchema]


class _Metadata(msgspec.Struct):
    max_parallelism: int
    states: list[_State]
    # Key group, where its block begins, how long it is.
    key_groups: list[tuple[int, int, int]]


def encode_keyed_snapshot(snapshot: KeyedStateSnapshot) -> bytes:
    """Return a cut as bytes; a key group of it at a time is in memory as objects.

    Raises:
        StateError: If a content is of a type that its serializer does not know.

    Example:
        >>> cut = KeyedStateSnapshot(128, [], {})
        >>> decode_keyed_snapshot(encode_keyed_snapshot(cut)) == cut
        True
    """
    objects = [ObjectSerializer() for _ in snapshot.states]
    blocks = bytearray()
    places = []
    for group in snapshot.key_groups:
        block: _Block = []
        for position, entries in snapshot.key_groups[group].items():
            meta, own = snapshot.states[position], objects[position]
            encode = serializer_of(meta.serializer, own).encode
            rows = [(own.encode(entry[:-1]), encode(entry[-1])) for entry in entries]
            block.append((position, rows))
        encoded = msgspec.msgpack.encode(block)
        places.append((group, len(blocks), len(encoded)))
        blocks += encoded
    states = [
        _described(meta, own)
        for meta, own in zip(snapshot.states, objects, strict=True)
    ]
    described = _Metadata(snapshot.max_parallelism, states, places)
    metadata = msgspec.json.encode(described)
    data = _HEAD.pack(_MAGIC, _VERSION, len(metadata)) + metadata + blocks
    return data + _CHECKSUM.pack(zlib.crc32(data))


def decode_keyed_snapshot(
    data: bytes,
    key_groups: Container[int] | None = None,
    *,
    allow_pickle: bool = False,
) -> KeyedStateSnapshot:
    """Return the cut that was encoded, or some key groups of it.

    Args:
        data: The bytes.
        key_groups: The key groups that are wanted; None for all.
        allow_pickle: Whether state that was pickled may be read: reading it runs code
            that the bytes name.

    Raises:
        CorruptStreamError: If the bytes are damaged, or of another format.
        StateError: If a class in it no longer fits, or pickle is needed and not allowed.
    """
    metadata, begin = _metadata(data)
    objects = [_reader(state, allow_pickle=allow_pickle) for state in metadata.states]
    decoders = [
        serializer_of(state.serializer, own).decode
        for state, own in zip(metadata.states, objects, strict=True)
    ]
    found: dict[int, dict[int, list[tuple[Any, ...]]]] = {}
    for group, offset, length in metadata.key_groups:
        if key_groups is not None and group not in key_groups:
            continue
        start = begin + offset
        block = msgspec.msgpack.decode(data[start : start + length], type=_Block)
        found[group] = {
            position: [
                (*objects[position].decode(address), decoders[position](content))
                for address, content in rows
            ]
            for position, rows in block
        }
    metas = [
        StateMeta(
            state.name,
            state.kind,
            state.namespaced,
            state.ttl,
            state.serializer,
            StateSchema(state.parts, state.classes),
        )
        for state in metadata.states
    ]
    return KeyedStateSnapshot(metadata.max_parallelism, metas, found)


def _described(meta: StateMeta, objects: ObjectSerializer) -> _State:
    met = {name: class_schema(kind) for name, kind in objects.codec.classes.items()}
    schema = StateSchema(meta.schema.parts, {**meta.schema.classes, **met})
    return _State(
        meta.name,
        meta.kind,
        meta.namespaced,
        meta.ttl,
        meta.serializer,
        schema.fingerprint,
        schema.parts,
        schema.classes,
    )


def _metadata(data: bytes) -> tuple[_Metadata, int]:
    """Return the metadata, and where the blocks begin."""
    if len(data) < _HEAD.size + _CHECKSUM.size or data[:4] != _MAGIC:
        raise CorruptStreamError("these bytes are no cut of keyed state")
    _, version, length = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise CorruptStreamError(
            f"the cut of keyed state is of version {version}; known is {_VERSION}"
        )
    body = memoryview(data)[: -_CHECKSUM.size]
    if _CHECKSUM.unpack(data[-_CHECKSUM.size :])[0] != zlib.crc32(body):
        raise CorruptStreamError(
            "the cut of keyed state is damaged: its checksum fails"
        )
    begin = _HEAD.size + length
    return msgspec.json.decode(body[_HEAD.size : begin], type=_Metadata), begin


def _reader(state: _State, *, allow_pickle: bool) -> ObjectSerializer:
    """Return what reads a state, if everything in it can be read."""
    if state.serializer == PickleSerializer.id and not allow_pickle:
        raise StateError(
            f"state {state.name!r} was pickled, and reading it would run what its bytes "
            "say. Allow it if you trust whoever could write them."
        )
    objects = ObjectSerializer()
    for reference, written in state.classes.items():
        now = class_schema(objects.codec.resolve(reference))
        check_fields(state.name, reference, written, now)
    return objects
