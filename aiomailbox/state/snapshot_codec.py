"""Snapshots of keyed state as bytes, with what is needed to read them years later.

Theory of operation: a snapshot is written as a stream of blocks, none of which takes
long to make, and its description comes last: per state its serializer, its schema and
the fields of every class that was met, and which blocks each key group has. So a
snapshot that is larger than memory can be written, a reader takes the key groups that
are its own when it needs them, and says by name what it cannot read before it tries.
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Container,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Annotated, Any, Final

import msgspec

from aiomailbox.errors import CorruptStreamError, StateError
from aiomailbox.keygroups import UPPER_BOUND_MAX_PARALLELISM
from aiomailbox.state.blocks import BLOCK_BYTES, BLOCK_ROWS, BlockReader, BlockWriter
from aiomailbox.state.schema import ClassSchema, Options, StateSchema
from aiomailbox.state.serializers import (
    ObjectSerializer,
    PickleSerializer,
    check_serializer,
    serializer_of,
)
from aiomailbox.state.snapshot import KeyedStateSnapshot, StateMeta
from aiomailbox.state.state_classes import StateClasses, declared_classes

__all__ = [
    "Contents",
    "KeyGroupBlocks",
    "KeyedPart",
    "Place",
    "contents_of",
    "decode_block",
    "decode_keyed_snapshot",
    "decode_metadata",
    "encode_keyed_snapshot",
    "key_groups_in",
    "read_keyed",
    "reader_of",
    "write_keyed",
]

_MAGIC: Final = b"AMKS"
_VERSION: Final = 2
_WHAT: Final = "snapshot of keyed state"

# As a block's place is written: its first byte, its length, its checksum.
Place = tuple[int, int, int]
# A key group, and its blocks.
KeyGroupBlocks = tuple[
    Annotated[int, msgspec.Meta(ge=0, lt=UPPER_BOUND_MAX_PARALLELISM)], list[Place]
]
# Entries of one state: its position, and per entry the address and the content.
_Rows = tuple[int, list[tuple[bytes, bytes]]]
_KINDS: Final[dict[str, type]] = {"list": list, "map": dict}


class Contents(msgspec.Struct):
    """How the contents of one state were written.

    Attributes:
        serializer: The serializer's id.
        fingerprint: Of the schema; see `StateSchema.fingerprint`.
        parts: The types of the parts.
        classes: The fields of classes.
        met: Which of the classes occur.
    """

    serializer: str
    fingerprint: str
    parts: dict[str, Options]
    classes: dict[str, ClassSchema]
    met: list[str]

    @property
    def schema(self) -> StateSchema:
        """The types of the contents."""
        return StateSchema(self.parts, self.classes)


class _State(msgspec.Struct):
    name: str
    kind: str
    namespaced: bool
    ttl: bool
    contents: Contents


class KeyedPart(msgspec.Struct):
    """The description of keyed state.

    Attributes:
        max_parallelism: The number of key groups.
        states: The states.
        key_groups: Per key group that has state its blocks.
    """

    max_parallelism: int
    states: list[_State]
    key_groups: list[KeyGroupBlocks]


def encode_keyed_snapshot(
    snapshot: KeyedStateSnapshot, classes: Iterable[Any] | None = None
) -> bytes:
    """Return a snapshot as bytes; a block of it at a time is in memory as objects.

    Args:
        snapshot: The snapshot.
        classes: The classes that contents may have; None for all that occur.

    Raises:
        StateError: If a content is of a type that its serializer does not know, or of a
            class that was not declared.

    Example:
        >>> cut = KeyedStateSnapshot(128, [], {})
        >>> decode_keyed_snapshot(encode_keyed_snapshot(cut)) == cut
        True
    """
    declared = None if classes is None else declared_classes(classes)
    return b"".join(_chunks(snapshot, declared))


def decode_keyed_snapshot(
    data: bytes | memoryview,
    key_groups: Container[int] | None = None,
    *,
    classes: Iterable[Any] = (),
    allow_pickle: bool = False,
) -> KeyedStateSnapshot:
    """Return the snapshot that was encoded, or some key groups of it.

    A key group is read when it is asked for; that raises as this does.

    Args:
        data: The bytes; a mapped file will do.
        key_groups: The key groups that are wanted; None for all.
        classes: The classes of records that contents may have, or type hints that
            name them; those of their fields are among them.
        allow_pickle: Whether state that was pickled may be read: reading it runs code
            that the bytes name.

    Raises:
        CorruptStreamError: If the bytes are damaged, or of another format.
        StateError: If a class in it was not declared or no longer fits, or pickle is
            needed and not allowed.
    """
    reader = BlockReader(data, _MAGIC, _VERSION, _WHAT)
    part = decode_metadata(reader, KeyedPart)
    if key_groups is not None:
        part.key_groups = [one for one in part.key_groups if one[0] in key_groups]
    declared = declared_classes(classes)
    return read_keyed(part, reader, declared, allow_pickle=allow_pickle)


def _chunks(
    snapshot: KeyedStateSnapshot, declared: Mapping[str, type] | None
) -> Iterator[bytes]:
    writer = BlockWriter(_MAGIC, _VERSION)
    yield writer.head()
    part = yield from write_keyed(snapshot, writer, declared)
    yield writer.tail(msgspec.json.encode(part))


def write_keyed(
    snapshot: KeyedStateSnapshot,
    writer: BlockWriter,
    declared: Mapping[str, type] | None,
) -> Generator[bytes, None, KeyedPart]:
    """Yield the blocks of a snapshot, and return its description; raises StateError."""
    objects = [ObjectSerializer(StateClasses(declared)) for _ in snapshot.states]
    encoders = [
        (own.encode, serializer_of(meta.serializer, own).encode)
        for meta, own in zip(snapshot.states, objects, strict=True)
    ]
    key_groups: list[KeyGroupBlocks] = []
    for group in snapshot.key_groups:
        places: list[Place] = []
        for block in _blocks_of(snapshot.key_groups[group], encoders):
            yield writer.add(block)
            places.append(writer.blocks[-1])
        key_groups.append((group, places))
    states = [
        _State(
            meta.name,
            meta.kind,
            meta.namespaced,
            meta.ttl,
            contents_of(meta.serializer, meta.schema, own),
        )
        for meta, own in zip(snapshot.states, objects, strict=True)
    ]
    return KeyedPart(snapshot.max_parallelism, states, key_groups)


def _blocks_of(
    states: dict[int, list[tuple[Any, ...]]],
    encoders: Sequence[tuple[Callable[[Any], bytes], Callable[[Any], bytes]]],
) -> Iterator[bytes]:
    encode = msgspec.msgpack.encode
    for position, entries in states.items():
        encode_address, encode_content = encoders[position]
        rows: list[tuple[bytes, bytes]] = []
        size = 0
        for entry in entries:
            row = encode_address([*entry[:-1]]), encode_content(entry[-1])
            rows.append(row)
            size += len(row[0]) + len(row[1])
            if size >= BLOCK_BYTES or len(rows) == BLOCK_ROWS:
                yield encode((position, rows))
                rows, size = [], 0
        if rows:
            yield encode((position, rows))


def contents_of(
    serializer: str, known: StateSchema, objects: ObjectSerializer
) -> Contents:
    """Return how contents were written, once they have been."""
    met = objects.codec.classes.schemas()
    schema = StateSchema(known.parts, {**known.classes, **met})
    return Contents(
        serializer, schema.fingerprint, schema.parts, schema.classes, list(met)
    )


def read_keyed(
    part: KeyedPart,
    reader: BlockReader,
    declared: Mapping[str, type],
    *,
    allow_pickle: bool,
) -> KeyedStateSnapshot:
    """Return the snapshot of a description; raises as `decode_keyed_snapshot`."""
    readers = [
        reader_of(state.name, state.contents, declared, allow_pickle=allow_pickle)
        for state in part.states
    ]
    metas = [
        StateMeta(
            state.name,
            state.kind,
            state.namespaced,
            state.ttl,
            state.contents.serializer,
            state.contents.schema,
        )
        for state in part.states
    ]
    groups = dict(key_groups_in(part.key_groups, part.max_parallelism))
    return KeyedStateSnapshot(
        part.max_parallelism, metas, _KeyGroups(groups, reader, metas, readers)
    )


def key_groups_in(
    found: list[KeyGroupBlocks], max_parallelism: int
) -> list[KeyGroupBlocks]:
    """Return key groups with their blocks, checked."""
    groups = [group for group, _ in found]
    if len(set(groups)) < len(groups) or max(groups, default=0) >= max_parallelism:
        raise CorruptStreamError(
            f"a snapshot names key groups twice, or beyond the {max_parallelism} it has"
        )
    return found


def reader_of(
    state: str, contents: Contents, declared: Mapping[str, type], *, allow_pickle: bool
) -> ObjectSerializer:
    """Return what reads the contents of a state, if everything in them can be read.

    Raises:
        StateError: If a class was not declared or does not fit, or pickle is needed and
            not allowed.
    """
    if contents.serializer == PickleSerializer.id and not allow_pickle:
        raise StateError(
            f"state {state!r} was pickled, and reading it would run what its bytes "
            "say. Allow it if you trust whoever could write them."
        )
    check_serializer(state, contents.serializer)
    classes = StateClasses(declared)
    met = {name: contents.classes.get(name, {}) for name in contents.met}
    classes.expect(state, met)
    return ObjectSerializer(classes)


def decode_metadata(reader: BlockReader, kind: type[Any]) -> Any:
    """Return the description of a snapshot.

    Raises:
        CorruptStreamError: If it is none.
    """
    try:
        return msgspec.json.decode(reader.metadata, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptStreamError(f"a snapshot is not described: {error}") from error


def decode_block(data: memoryview, kind: Any) -> Any:
    """Return what a block holds.

    Raises:
        CorruptStreamError: If it holds something else.
    """
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptStreamError(f"a block holds something else: {error}") from error


class _KeyGroups(Mapping[int, dict[int, list[tuple[Any, ...]]]]):
    """The entries of a snapshot by key group, read when they are asked for."""

    __slots__ = ("_contents", "_groups", "_metas", "_objects", "_reader")

    def __init__(
        self,
        groups: dict[int, list[Place]],
        reader: BlockReader,
        metas: list[StateMeta],
        objects: list[ObjectSerializer],
    ) -> None:
        self._groups = groups
        self._reader = reader
        self._metas = metas
        self._objects = objects
        self._contents = [
            serializer_of(meta.serializer, own)
            for meta, own in zip(metas, objects, strict=True)
        ]

    def __getitem__(self, group: int) -> dict[int, list[tuple[Any, ...]]]:
        found: dict[int, list[tuple[Any, ...]]] = {}
        for place in self._groups[group]:
            position, rows = decode_block(self._reader.block(place), _Rows)
            if not 0 <= position < len(self._metas):
                raise CorruptStreamError(
                    f"a block is of state {position}: there is none"
                )
            found.setdefault(position, []).extend(self._entries(position, rows))
        return found

    def __iter__(self) -> Iterator[int]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)

    def __reduce__(self) -> tuple[Any, ...]:
        # What travels are the contents, to a subtask that reads them anyway.
        return dict, (dict(self),)

    def _entries(
        self, position: int, rows: list[tuple[bytes, bytes]]
    ) -> Iterator[tuple[Any, ...]]:
        meta = self._metas[position]
        width = 2 if meta.namespaced else 1
        decode, decode_content = self._objects[position].decode, self._decoder(position)
        for written, data in rows:
            address, content = decode(written), decode_content(data)
            if type(address) is not list or len(address) != width:
                raise CorruptStreamError(f"state {meta.name!r}: this is no key")
            if not isinstance(content, _KINDS.get(meta.kind, object)):
                raise CorruptStreamError(
                    f"state {meta.name!r} is {meta.kind} state, and a "
                    f"{type(content).__qualname__} is none"
                )
            entry = (*address, content)
            _check_hashable(entry[:-1])
            yield entry

    def _decoder(self, position: int) -> Callable[[bytes], Any]:
        return self._contents[position].decode


def _check_hashable(address: tuple[Any, ...]) -> None:
    try:
        hash(address)
    except TypeError as error:
        raise CorruptStreamError(f"this is no key: {error}") from error
