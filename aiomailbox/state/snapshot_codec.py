"""Snapshots of keyed state as bytes, with what is needed to read them years later.

Theory of operation: a snapshot is written as a stream of blocks, none of which takes
long to make, and its description comes last: per state its serializer, its schema and
the fields of every class that was met, and which blocks each key group has. So a
snapshot that is larger than memory can be written, a reader takes the key groups that
are its own when it needs them, and says by name what it cannot read before it tries.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import (
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from itertools import chain
from operator import itemgetter
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from aiomailbox.errors import CorruptStreamError, StateError
from aiomailbox.keygroups.assignment import UPPER_BOUND_MAX_PARALLELISM
from aiomailbox.state.accumulators import AccumulatorSchema
from aiomailbox.state.schema import (
    ClassSchema,
    DeclaredTypes,
    Misfit,
    Options,
    StateSchema,
)
from aiomailbox.state.serializers import (
    ObjectSerializer,
    PickleSerializer,
    StateClasses,
    StateSerializer,
    check_declared,
    check_serializer,
    serializer_of,
)
from aiomailbox.state.snapshot import (
    Entries,
    FetchFile,
    KeyedStateSnapshot,
    LazyEntries,
    StateFile,
    StateMeta,
)

# Blocks of bytes in a row, and behind them what they are: written as a stream.
#
# Layout: ``magic | version | blocks … | metadata | length of metadata | checksum of
# head and metadata | magic``. The metadata holds where each block is and its checksum,
# so that blocks are written as they are made and read in any order, one at a time.
# Every length is compared with what is there before anything is made of it.


# What is put into one block at most: making one takes some milliseconds.
BLOCK_BYTES: Final = 64 * 1024


BLOCK_ROWS: Final = 1024


_HEAD: Final = struct.Struct(">4sH")


_TAIL: Final = struct.Struct(">II4s")


class Block(NamedTuple):
    """Where a block is: its first byte, its length, its CRC-32."""

    start: int
    length: int
    checksum: int


class BlockWriter:
    """Keeps the place of each block that is written.

    Args:
        magic: Four bytes that say what this is.
        version: Of the format.

    Attributes:
        blocks: Those so far.

    Example:
        >>> writer = BlockWriter(b"TEST", 1)
        >>> data = writer.head() + writer.add(b"abc") + writer.tail(b"{}")
        >>> reader = BlockReader(data, b"TEST", 1, "a test")
        >>> bytes(reader.metadata), bytes(reader.block(writer.blocks[0]))
        (b'{}', b'abc')
    """

    def __init__(self, magic: bytes, version: int) -> None:
        self._head = _HEAD.pack(magic, version)
        self._position = len(self._head)
        self.blocks: list[Block] = []

    def head(self) -> bytes:
        """Return what comes first."""
        return self._head

    def add(self, data: bytes) -> bytes:
        """Keep the description of the next block, and return it."""
        self.blocks.append(Block(self._position, len(data), zlib.crc32(data)))
        self._position += len(data)
        return data

    def tail(self, metadata: bytes) -> bytes:
        """Return what comes last."""
        checksum = zlib.crc32(metadata, zlib.crc32(self._head))
        return metadata + _TAIL.pack(len(metadata), checksum, self._head[:4])


class BlockReader:
    """Finds the metadata, and reads blocks when they are asked for.

    Args:
        data: Everything; a mapped file will do.
        magic: The bytes that it should begin with.
        version: Of the format.
        what: The thing that it should be, for messages.

    Attributes:
        metadata: The description behind the blocks.

    Raises:
        CorruptStreamError: If it is something else, of another version, or damaged.
    """

    def __init__(
        self, data: bytes | memoryview, magic: bytes, version: int, what: str
    ) -> None:
        self._data = memoryview(data)
        self._what = what
        shortest = _HEAD.size + _TAIL.size
        if len(self._data) < shortest or bytes(self._data[:4]) != magic:
            raise CorruptStreamError(f"these bytes are not a {what}")
        head = self._data[: _HEAD.size]
        _, found = _HEAD.unpack(head)
        if found != version:
            raise CorruptStreamError(
                f"the {what} is of version {found}; known is {version}"
            )
        length, checksum, last = _TAIL.unpack(self._data[-_TAIL.size :])
        if last != magic or length > len(self._data) - shortest:
            raise CorruptStreamError(f"the {what} is truncated")
        self._end = len(self._data) - _TAIL.size - length
        self.metadata: memoryview[int] = self._data[self._end : -_TAIL.size]
        if zlib.crc32(self.metadata, zlib.crc32(head)) != checksum:
            raise CorruptStreamError(
                f"the {what} is damaged: its checksum does not match"
            )

    def block(self, place: Sequence[int]) -> memoryview:
        """Return the bytes of a block.

        Raises:
            CorruptStreamError: If they are damaged.
        """
        start, length, checksum = place
        if start < _HEAD.size or length < 0 or start + length > self._end:
            raise CorruptStreamError(f"a block of the {self._what} lies outside of it")
        data = self._data[start : start + length]
        if zlib.crc32(data) != checksum:
            raise CorruptStreamError(
                f"a block of the {self._what} is damaged: its checksum does not match"
            )
        return data


# As a block's place is written: its first byte, its length, its checksum.
Place = tuple[int, int, int]


# A key group, and its blocks.
KeyGroupBlocks = tuple[
    Annotated[int, msgspec.Meta(ge=0, lt=UPPER_BOUND_MAX_PARALLELISM)], list[Place]
]


# Entries of one state: its position, all keys and all namespaces if there are any, and
# all contents, or each of them.
_Rows = tuple[int, list[bytes], bytes | list[bytes]]


# Is called with what is of another type than was declared; in the thread that writes.
OnMisfit = Callable[[Misfit], None]


_KINDS: Final[dict[str, type]] = {"list": list, "map": dict}


_SIZED: Final = frozenset({bytes, str})


_NUMBERS: Final = frozenset({bool, float, int, type(None)})


_FLAT: Final = _NUMBERS | _SIZED


_ROWS: Final = frozenset({list, tuple})


# Numbers in the contents that are encoded by one call.
_PARTS_MAX: Final = 16 * BLOCK_ROWS


_encode = msgspec.msgpack.encode


class Contents(msgspec.Struct):
    """How the contents of one state were written.

    Attributes:
        serializer: The serializer's id.
        fingerprint: Of the schema; see `StateSchema.fingerprint`.
        parts: The types of the parts.
        classes: The fields of classes.
        met: Which of the classes occur.
        accumulator: The parts of accumulators in them, if they are known.
    """

    serializer: str
    fingerprint: str
    parts: dict[str, Options]
    classes: dict[str, ClassSchema]
    met: list[str]
    accumulator: AccumulatorSchema | None = None

    def schema(self, declared: Mapping[str, type]) -> StateSchema:
        """Return the types of the contents, by the names that classes have now.

        Args:
            declared: As for `StateClasses`.
        """
        written = StateSchema(self.parts, self.classes, self.accumulator)
        return written.renamed(StateClasses(declared).name_now)


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
        key_groups: Per key group that has state its blocks; none if there are files.
        files: The names of the files that hold the entries.
    """

    max_parallelism: int
    states: list[_State]
    key_groups: list[KeyGroupBlocks]
    files: list[str] = []


def write_keyed(
    snapshot: KeyedStateSnapshot,
    writer: BlockWriter,
    declared: Mapping[str, type] | None,
    *,
    with_files: bool = False,
    on_misfit: OnMisfit | None = None,
) -> Generator[bytes, None, KeyedPart]:
    """Yield the blocks of a snapshot, and return its description; raises StateError.

    Args:
        snapshot: The snapshot.
        writer: Counts the blocks.
        declared: The classes that contents may have; None for all that occur.
        with_files: Whether files of the snapshot, if it has any, are kept beside it.
        on_misfit: Called with what is of another type than was declared, unless it is
            in such files: they are not read here.
    """
    files = snapshot.files if with_files else ()
    # The files hold all entries: there is nothing to encode.
    if files:
        return _described_files(snapshot, files, declared)
    objects = [ObjectSerializer(StateClasses(declared)) for _ in snapshot.states]
    codecs = [
        _StateCodec(meta, own, serializer_of(meta.serializer, own), on_misfit)
        for meta, own in zip(snapshot.states, objects, strict=True)
    ]
    key_groups: list[KeyGroupBlocks] = []
    for group in snapshot.key_groups:
        places: list[Place] = []
        for block in _blocks_of(snapshot.pieces(group), codecs):
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


def _described_files(
    snapshot: KeyedStateSnapshot,
    files: Iterable[StateFile],
    declared: Mapping[str, type] | None,
) -> KeyedPart:
    states = []
    met = snapshot.classes_in_files()
    for meta in snapshot.states:
        schema = meta.schema.with_classes(met)
        check_declared(schema.classes, declared)
        contents = contents_of(meta.serializer, schema, ObjectSerializer())
        contents.met = list(contents.classes)
        states.append(_State(meta.name, meta.kind, meta.namespaced, meta.ttl, contents))
    names = [file.name for file in files]
    return KeyedPart(snapshot.max_parallelism, states, [], names)


def _blocks_of(
    pieces: Iterable[tuple[int, Entries]], codecs: Sequence[_StateCodec]
) -> Iterator[bytes]:
    for position, entries in pieces:
        codec = codecs[position]
        for start in range(0, len(entries), BLOCK_ROWS):
            yield from codec.blocks(position, entries.part(start, start + BLOCK_ROWS))


class _StateCodec:
    """Encodes entries of one state.

    Args:
        meta: The state.
        objects: Encodes keys and namespaces.
        contents: Encodes contents.
        on_misfit: Called with what is of another type than was declared.
    """

    def __init__(
        self,
        meta: StateMeta,
        objects: ObjectSerializer,
        contents: StateSerializer,
        on_misfit: OnMisfit | None,
    ) -> None:
        self._meta = meta
        self._objects = objects
        self._contents = contents
        self._declared = DeclaredTypes(meta.name, meta.schema)
        self._on_misfit = on_misfit

    def blocks(self, position: int, entries: Entries) -> Iterator[bytes]:
        """Yield entries as one block, or as several if they are large."""
        *address, contents = entries.columns
        encode = self._objects.encode
        if self._on_misfit is not None:
            for part in self._declared.parts:
                found = _of_part(self._meta, part, contents)
                for misfit in self._declared.misfits(part, found):
                    self._on_misfit(misfit)
        # One call for whole columns, where they are known to be small.
        if self._contents is self._objects and _are_small(contents):
            yield _encode(
                (position, [encode(column) for column in address], encode(contents))
            )
            return
        start, size, encoded = 0, 0, []
        for index, content in enumerate(contents, 1):
            encoded.append(self._contents.encode(content))
            size += len(encoded[-1])
            if size >= BLOCK_BYTES or index == len(contents):
                some = [encode(column[start:index]) for column in address]
                yield _encode((position, some, encoded))
                start, size, encoded = index, 0, []


def _of_part(meta: StateMeta, part: str, contents: list[Any]) -> Iterable[Any]:
    """Return the values, the elements, the keys or the accumulators in contents."""
    if part == "key":
        return chain.from_iterable(contents)
    found: Iterable[Any] = contents
    if meta.kind == "list":
        found = chain.from_iterable(contents)
    elif meta.kind == "map":
        found = chain.from_iterable(content.values() for content in contents)
    # With a time to live, each is with the time at which it was touched.
    return map(itemgetter(0), found) if meta.ttl else found


def _are_small(contents: list[Any]) -> bool:
    """Say whether contents are small and simple: they are encoded by one call then."""
    kinds = set(map(type, contents))
    if kinds <= _FLAT:
        sized = kinds & _SIZED and [one for one in contents if type(one) in _SIZED]
        return not sized or sum(map(len, sized)) <= BLOCK_BYTES
    if not kinds <= _ROWS or sum(map(len, contents)) > _PARTS_MAX:
        return False
    return set(map(type, chain.from_iterable(contents))) <= _NUMBERS


def contents_of(
    serializer: str, known: StateSchema, objects: ObjectSerializer
) -> Contents:
    """Return how contents were written, once they have been."""
    met = objects.codec.classes.schemas()
    schema = known.with_classes(met)
    return Contents(
        serializer,
        schema.fingerprint,
        schema.parts,
        schema.classes,
        list(met),
        schema.accumulator,
    )


def read_keyed(
    part: KeyedPart,
    reader: BlockReader,
    declared: Mapping[str, type],
    *,
    allow_pickled_state: bool,
    only: int | None = None,
    files: Mapping[str, FetchFile] | None = None,
) -> KeyedStateSnapshot:
    """Return the snapshot of a description; raises as `decode_keyed_snapshot`.

    Args:
        part: The description.
        reader: Has the blocks.
        declared: The classes that contents may have, by their names.
        allow_pickled_state: Whether state that was pickled may be read.
        only: The position of the one state whose entries are wanted; None for all.
        files: Those that hold the entries, if files do.
    """
    readers = [
        reader_of(
            state.name,
            state.contents,
            declared,
            allow_pickled_state=allow_pickled_state,
        )
        if only in {None, position}
        else None
        for position, state in enumerate(part.states)
    ]
    metas = [
        StateMeta(
            state.name,
            state.kind,
            state.namespaced,
            state.ttl,
            state.contents.serializer,
            state.contents.schema(declared),
        )
        for state in part.states
    ]
    if part.files:
        return KeyedStateSnapshot(
            part.max_parallelism,
            metas,
            _key_groups_in_files(part, files or {}, metas, readers),
        )
    groups = dict(key_groups_in(part.key_groups, part.max_parallelism))
    return KeyedStateSnapshot(
        part.max_parallelism, metas, _KeyGroups(groups, reader, metas, readers)
    )


def _key_groups_in_files(
    part: KeyedPart,
    files: Mapping[str, FetchFile],
    metas: list[StateMeta],
    readers: list[ObjectSerializer | None],
) -> Mapping[int, dict[int, Entries]]:
    missing = sorted(set(part.files) - set(files))
    if missing:
        raise CorruptStreamError(f"a snapshot lacks its files {missing}")
    # Snapshots without such state need no database.
    from aiomailbox.state.rocksdb.store import FilesKeyGroups

    named = {name: files[name] for name in part.files}
    return FilesKeyGroups(named, part.max_parallelism, metas, readers)


def key_groups_in(
    found: list[KeyGroupBlocks], max_parallelism: int
) -> list[KeyGroupBlocks]:
    """Return key groups with their blocks, checked."""
    groups = [group for group, _ in found]
    # The bytes are not trusted: numbers are checked before they are used.
    if len(set(groups)) < len(groups) or max(groups, default=0) >= max_parallelism:
        raise CorruptStreamError(
            f"a snapshot names key groups twice, or beyond the {max_parallelism} it has"
        )
    return found


def reader_of(
    state: str,
    contents: Contents,
    declared: Mapping[str, type],
    *,
    allow_pickled_state: bool,
) -> ObjectSerializer:
    """Return what reads the contents of a state, if everything in them can be read.

    Raises:
        StateError: If a class was not declared or does not fit, or pickle is needed and
            not allowed.
    """
    if contents.serializer == PickleSerializer.id and not allow_pickled_state:
        raise StateError(
            f"state {state!r} was pickled, and reading it would run the code in "
            "it. If you trust everybody who could write it, set "
            "allow_pickled_state=True."
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


class _KeyGroups(LazyEntries):
    """The entries of a snapshot by key group, read when they are asked for."""

    def __init__(
        self,
        groups: dict[int, list[Place]],
        reader: BlockReader,
        metas: list[StateMeta],
        objects: list[ObjectSerializer | None],
    ) -> None:
        self._groups = groups
        self._reader = reader
        self._metas = metas
        self._objects = objects
        # None for a state whose entries are not wanted.
        self._contents = [
            None if own is None else serializer_of(meta.serializer, own)
            for meta, own in zip(metas, objects, strict=True)
        ]

    def pieces(self, group: int) -> Iterator[tuple[int, Entries]]:
        """Yield the positions and entries of the blocks of a key group."""
        for place in self._groups[group]:
            data = self._reader.block(place)
            position, addresses, contents = decode_block(data, _Rows)
            if not 0 <= position < len(self._metas):
                raise CorruptStreamError(
                    f"a block is of state {position}: there is none"
                )
            objects, serializer = self._objects[position], self._contents[position]
            if objects is not None and serializer is not None:
                entries = self._entries(
                    self._metas[position], addresses, contents, (objects, serializer)
                )
                yield position, entries

    def __iter__(self) -> Iterator[int]:
        return iter(self._groups)

    def _entries(
        self,
        meta: StateMeta,
        addresses: list[bytes],
        contents: bytes | list[bytes],
        readers: tuple[ObjectSerializer, StateSerializer],
    ) -> Entries:
        objects, serializer = readers
        columns = [objects.decode(one) for one in addresses]
        if isinstance(contents, bytes):
            columns.append(objects.decode(contents))
        else:
            # Not a map: what a serializer of the user's raises must not end it.
            columns.append([serializer.decode(one) for one in contents])
        if (
            len(columns) != meta.width
            or set(map(type, columns)) != {list}
            or len({*map(len, columns)}) > 1
        ):
            raise CorruptStreamError(f"state {meta.name!r}: this is not a key")
        expected = _KINDS.get(meta.kind, object)
        # By their types: a thousand rows have only a few.
        for kind in set(map(type, columns[-1])):
            if not issubclass(kind, expected):
                raise CorruptStreamError(
                    f"state {meta.name!r} is {meta.kind} state, and a "
                    f"{kind.__qualname__} is none"
                )
        # Otherwise a list as a key would fail much later, in the middle of a dict.
        for column in columns[:-1]:
            _check_hashable(column)
        return Entries(*columns)


def _check_hashable(column: list[Any]) -> None:
    try:
        set(column)
    except TypeError as error:
        raise CorruptStreamError(f"this is not a key: {error}") from error
