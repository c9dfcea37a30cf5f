"""Snapshots of operators as bytes: a stream of blocks, described at its end.

Theory of operation: blocks are small, and are made one at a time as the caller asks for
them, so that writing a large snapshot can take turns with other work, or be done in a
thread. Reading checks the description at once, and keyed state and timers when their
key groups are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from operator import itemgetter
from typing import Any, Final

import msgspec

from aiomailbox.errors import CorruptStreamError
from aiomailbox.eventtime.timers import TimerSnapshot
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.records.events import MIN_TIMESTAMP, Watermark, WatermarkStatus
from aiomailbox.state.operator_state import (
    OperatorStateEntry,
    OperatorStateSnapshot,
    RedistributionMode,
)
from aiomailbox.state.schema import ClassSchema, DeclaredTypes, Misfit, StateSchema
from aiomailbox.state.serializers import (
    ObjectSerializer,
    StateClasses,
    declared_classes,
    serializer_of,
)
from aiomailbox.state.snapshot import FetchFile, LazyTimers
from aiomailbox.state.snapshot_codec import (
    BLOCK_BYTES,
    BLOCK_ROWS,
    BlockReader,
    BlockWriter,
    Contents,
    KeyedPart,
    KeyGroupBlocks,
    OnMisfit,
    Place,
    contents_of,
    decode_block,
    decode_metadata,
    key_groups_in,
    read_keyed,
    reader_of,
    write_keyed,
)

# What a snapshot of an operator consists of, without its contents.


@dataclass(frozen=True, slots=True)
class StateDescription:
    """One state of an operator, as it was written.

    Attributes:
        name: Its name.
        kind: Of keyed state ``value``, ``list``, ``map``, ``reducing`` or
            ``aggregating``; of state without keys ``split``, ``union``, ``broadcast``
            or ``merge``.
        is_keyed: Whether it belongs to keys.
        is_own: Whether the operator keeps it for itself, and not for a function.
        namespaced: Whether contents belong to a key and a namespace.
        ttl: Whether contents carry the time they were last touched.
        serializer: The id of the serializer.
        types: Per part (``value``, ``element``, ``key``) its type, as far as known; of an
            ``accumulator`` its aggregates with their kinds.
        classes: The fields of the classes that occur, ``module:name``.
    """

    name: str
    kind: str
    is_keyed: bool
    is_own: bool
    namespaced: bool
    ttl: bool
    serializer: str
    types: dict[str, str]
    classes: dict[str, ClassSchema]


@dataclass(frozen=True, slots=True)
class SnapshotDescription:
    """The state that one subtask of an operator has kept.

    Attributes:
        states: Its states.
        timers: The number of key groups with timers, by the name of their service.
        timer_classes: The classes of the timers' keys and namespaces.
        watermark: How far event time had come, milliseconds.
    """

    states: tuple[StateDescription, ...]
    timers: dict[str, int]
    timer_classes: dict[str, ClassSchema]
    watermark: int


_MAGIC: Final = b"AMOS"


_VERSION: Final = 1


_WHAT: Final = "snapshot of an operator"


_TIMER_FIELDS: Final = 3


Declared = Mapping[str, type] | None


_Rows = list[tuple[int, Any, Any]]


class _List(msgspec.Struct):
    name: str
    mode: str
    contents: Contents
    blocks: list[Place]


class _Timers(msgspec.Struct):
    name: str
    max_parallelism: int
    contents: Contents
    event: list[KeyGroupBlocks]
    processing: list[KeyGroupBlocks]


class _Description(msgspec.Struct):
    watermark: int
    keyed: list[KeyedPart]
    operator: list[_List]
    own: list[_List]
    timers: list[_Timers]


def snapshot_chunks(
    snapshot: OperatorSnapshot,
    classes: Iterable[Any] | None = None,
    *,
    with_files: bool = False,
    on_misfit: OnMisfit | None = None,
) -> Iterator[bytes]:
    """Yield a snapshot as bytes, a piece at a time; each takes about a millisecond.

    It may be asked for in a thread. A single content of any size is one piece.

    Args:
        snapshot: The snapshot.
        classes: The classes of records that it may hold, or type hints that name them;
            None for all that occur.
        with_files: Whether keyed state that is in files is left out, for its files are
            kept beside.
        on_misfit: Called with what is of another type than was declared.

    Raises:
        StateError: If it holds something that cannot be made bytes, or of a class that
            was not declared.
    """
    if not (
        snapshot.keyed
        or snapshot.timers
        or snapshot.operator.states
        or snapshot.own.states
    ):
        yield _empty(snapshot.watermark)
        return
    declared = None if classes is None else declared_classes(classes)
    writer = BlockWriter(_MAGIC, _VERSION)
    yield writer.head()
    keyed = []
    for piece in snapshot.keyed:
        part = yield from write_keyed(
            piece, writer, declared, with_files=with_files, on_misfit=on_misfit
        )
        keyed.append(part)
    if on_misfit is not None:
        for misfit in _misfits_in_lists(snapshot.operator):
            on_misfit(misfit)
    operator = yield from _write_lists(snapshot.operator, writer, declared)
    own = yield from _write_lists(snapshot.own, writer, declared)
    timers = []
    for name, service in snapshot.timers.items():
        described = yield from _write_timers(name, service, writer, declared)
        timers.append(described)
    whole = _Description(snapshot.watermark, keyed, operator, own, timers)
    yield writer.tail(msgspec.json.encode(whole))


# Most operators keep nothing, and their checkpoints say so again and again.
@lru_cache(maxsize=256)
def _empty(watermark_ms: int) -> bytes:
    writer = BlockWriter(_MAGIC, _VERSION)
    nothing = _Description(watermark_ms, [], [], [], [])
    return writer.head() + writer.tail(msgspec.json.encode(nothing))


def encode_snapshot(
    snapshot: OperatorSnapshot, classes: Iterable[Any] | None = None
) -> bytes:
    """Return a snapshot as bytes in one piece; see `snapshot_chunks`.

    Example:
        >>> own = OperatorStateSnapshot().with_list("splits", [("a", 7)])
        >>> data = encode_snapshot(OperatorSnapshot(own=own, watermark=5))
        >>> decode_snapshot(data) == OperatorSnapshot(own=own, watermark=5)
        True
    """
    return b"".join(snapshot_chunks(snapshot, classes))


def decode_snapshot(
    data: bytes | memoryview,
    classes: Iterable[Any] = (),
    *,
    allow_pickled_state: bool = False,
    files: Sequence[Mapping[str, FetchFile]] = (),
) -> OperatorSnapshot:
    """Return the snapshot that was encoded.

    Keyed state and timers are read when their key groups are asked for; that raises as
    this does.

    Args:
        data: The bytes; a mapped file will do.
        classes: The classes of records that it may hold, or type hints that name them;
            those of their fields are among them.
        allow_pickled_state: Whether state that was pickled may be read: reading it runs code
            that the bytes name.
        files: For each piece of keyed state the files that were kept beside it, by
            their names.

    Raises:
        CorruptStreamError: If the bytes are damaged, or of another format.
        StateError: If a class in it was not declared or no longer fits, or pickle is
            needed and not allowed.
    """
    reader = BlockReader(data, _MAGIC, _VERSION, _WHAT)
    described: _Description = decode_metadata(reader, _Description)
    declared = declared_classes(classes)
    options: Any = {"declared": declared, "allow_pickled_state": allow_pickled_state}
    return OperatorSnapshot(
        tuple(
            read_keyed(
                part,
                reader,
                declared,
                allow_pickled_state=allow_pickled_state,
                files=beside,
            )
            for part, beside in zip_longest(
                described.keyed, files[: len(described.keyed)]
            )
        ),
        _read_lists(described.operator, reader, **options),
        {one.name: _read_timers(one, reader, declared) for one in described.timers},
        _read_lists(described.own, reader, **options),
        described.watermark,
    )


def describe_snapshot(data: bytes | memoryview) -> SnapshotDescription:
    """Return what a snapshot consists of; its contents are not read.

    Args:
        data: The bytes of `encode_snapshot`; a mapped file will do.

    Raises:
        CorruptStreamError: If the bytes are damaged, or of another format.
    """
    reader = BlockReader(data, _MAGIC, _VERSION, _WHAT)
    described: _Description = decode_metadata(reader, _Description)
    states = {
        (one.name, one.namespaced): _described(
            one.name,
            one.kind,
            one.contents,
            is_keyed=True,
            namespaced=one.namespaced,
            ttl=one.ttl,
        )
        for part in described.keyed
        for one in part.states
    }
    lists = [
        _described(one.name, one.mode, one.contents, is_own=is_own)
        for is_own, listed in ((False, described.operator), (True, described.own))
        for one in listed
    ]
    return SnapshotDescription(
        (*states.values(), *lists),
        {
            one.name: len({group for group, _ in (*one.event, *one.processing)})
            for one in described.timers
        },
        {
            name: one.contents.classes.get(name, {})
            for one in described.timers
            for name in one.contents.met
        },
        described.watermark,
    )


def decode_state(
    data: bytes | memoryview,
    state: StateDescription,
    classes: Iterable[Any] = (),
    *,
    allow_pickled_state: bool = False,
    files: Sequence[Mapping[str, FetchFile]] = (),
) -> Iterator[Any]:
    """Yield what one state holds; the others are not read, and may be unreadable.

    Args:
        data: The bytes of `encode_snapshot`; a mapped file will do.
        state: One of those that `describe_snapshot` returns.
        classes: As for `decode_snapshot`.
        allow_pickled_state: As for `decode_snapshot`.
        files: As for `decode_snapshot`.

    Returns:
        Of keyed state its entries, else its elements.

    Raises:
        CorruptStreamError: If the bytes are damaged, or of another format.
        StateError: As `decode_snapshot`, for this state.
    """
    reader = BlockReader(data, _MAGIC, _VERSION, _WHAT)
    described: _Description = decode_metadata(reader, _Description)
    declared = declared_classes(classes)
    if not state.is_keyed:
        listed = described.own if state.is_own else described.operator
        wanted = [one for one in listed if one.name == state.name]
        options: Any = {
            "declared": declared,
            "allow_pickled_state": allow_pickled_state,
        }
        yield from _read_lists(wanted, reader, **options).elements(state.name)
        return
    pieces = zip_longest(described.keyed, files[: len(described.keyed)])
    for part, beside in pieces:
        for position, one in enumerate(part.states):
            if (one.name, one.namespaced) == (state.name, state.namespaced):
                keyed = read_keyed(
                    part,
                    reader,
                    declared,
                    allow_pickled_state=allow_pickled_state,
                    only=position,
                    files=beside,
                )
                for group in keyed.key_groups:
                    yield from keyed.key_groups[group].get(position, ())


def _described(
    name: str, kind: str, contents: Contents, **known: bool
) -> StateDescription:
    flags = {"is_keyed": False, "is_own": False, "namespaced": False, "ttl": False}
    types = {part: " | ".join(options) for part, options in contents.parts.items()}
    if contents.accumulator is not None:
        types.setdefault("accumulator", str(contents.accumulator))
    return StateDescription(
        name,
        kind,
        **{**flags, **known},
        serializer=contents.serializer,
        types=types,
        classes={one: contents.classes.get(one, {}) for one in contents.met},
    )


def _write_lists(
    lists: OperatorStateSnapshot, writer: BlockWriter, declared: Declared
) -> Generator[bytes, None, list[_List]]:
    described = []
    for name, entry in lists.states.items():
        objects = ObjectSerializer(StateClasses(declared))
        encode = serializer_of(entry.serializer, objects).encode
        places: list[Place] = []
        for block in _packed(entry.elements, encode):
            yield writer.add(block)
            places.append(writer.blocks[-1])
        contents = contents_of(entry.serializer, entry.schema, objects)
        described.append(_List(name, entry.mode.value, contents, places))
    return described


def _misfits_in_lists(lists: OperatorStateSnapshot) -> Iterator[Misfit]:
    for name, entry in lists.states.items():
        declared = DeclaredTypes(name, entry.schema)
        for part in declared.parts:
            found: Iterable[Any] = entry.elements
            if entry.mode is RedistributionMode.BROADCAST:
                found = map(itemgetter(part == "value"), found)
            yield from declared.misfits(part, found)


def _packed(elements: Iterable[Any], encode: Callable[[Any], bytes]) -> Iterator[bytes]:
    waiting: list[bytes] = []
    size = 0
    for element in elements:
        waiting.append(encode(element))
        size += len(waiting[-1])
        if size >= BLOCK_BYTES or len(waiting) == BLOCK_ROWS:
            yield msgspec.msgpack.encode(waiting)
            waiting, size = [], 0
    if waiting:
        yield msgspec.msgpack.encode(waiting)


def _read_lists(
    lists: list[_List],
    reader: BlockReader,
    *,
    declared: Mapping[str, type],
    allow_pickled_state: bool,
) -> OperatorStateSnapshot:
    states: dict[str, OperatorStateEntry] = {}
    for one in lists:
        contents = one.contents
        objects = reader_of(
            one.name, contents, declared, allow_pickled_state=allow_pickled_state
        )
        decode = serializer_of(contents.serializer, objects).decode
        elements: list[Any] = []
        for place in one.blocks:
            written: list[bytes] = decode_block(reader.block(place), list[bytes])
            elements += [decode(one) for one in written]
        try:
            mode = RedistributionMode(one.mode)
        except ValueError as error:
            raise CorruptStreamError(f"state {one.name!r}: {error}") from error
        if mode is RedistributionMode.BROADCAST:
            _check_pairs(one.name, elements)
        states[one.name] = OperatorStateEntry(
            mode, elements, contents.serializer, contents.schema(declared)
        )
    return OperatorStateSnapshot(states)


def _check_pairs(name: str, elements: list[Any]) -> None:
    try:
        dict(elements)
    except (TypeError, ValueError) as error:
        raise CorruptStreamError(f"state {name!r} is not a map: {error}") from error


def _write_timers(
    name: str, timers: TimerSnapshot, writer: BlockWriter, declared: Declared
) -> Generator[bytes, None, _Timers]:
    objects = ObjectSerializer(StateClasses(declared))
    written: list[list[KeyGroupBlocks]] = [[], []]
    for groups, described in zip(
        (timers.event, timers.processing), written, strict=True
    ):
        for group in groups:
            places: list[Place] = []
            rows = groups[group]
            for start in range(0, len(rows), BLOCK_ROWS):
                flat = [
                    part for row in rows[start : start + BLOCK_ROWS] for part in row
                ]
                yield writer.add(objects.encode(flat))
                places.append(writer.blocks[-1])
            described.append((group, places))
    contents = contents_of(ObjectSerializer.id, StateSchema(), objects)
    return _Timers(name, timers.max_parallelism, contents, *written)


def _read_timers(
    timers: _Timers, reader: BlockReader, declared: Mapping[str, type]
) -> TimerSnapshot:
    objects = reader_of(
        timers.name, timers.contents, declared, allow_pickled_state=False
    )
    event, processing = (
        _TimerGroups(
            dict(key_groups_in(found, timers.max_parallelism)), reader, objects
        )
        for found in (timers.event, timers.processing)
    )
    return TimerSnapshot(timers.max_parallelism, event, processing)


class _TimerGroups(LazyTimers):
    """Timers by key group, read when they are asked for."""

    def __init__(
        self,
        groups: dict[int, list[Place]],
        reader: BlockReader,
        objects: ObjectSerializer,
    ) -> None:
        self._groups = groups
        self._reader = reader
        self._objects = objects

    def pieces(self, group: int) -> Iterator[_Rows]:
        """Yield the timers of a key group, a block at a time."""
        for place in self._groups[group]:
            flat = self._objects.decode(self._reader.block(place))
            if type(flat) is not list or len(flat) % _TIMER_FIELDS:
                raise CorruptStreamError("a block does not hold timers")
            parts = iter(flat)
            yield [*map(_timer, parts, parts, parts)]

    def __iter__(self) -> Iterator[int]:
        return iter(self._groups)


def _timer(timestamp: Any, key: Any, namespace: Any) -> tuple[int, Any, Any]:
    try:
        hash((key, namespace))
    except TypeError as error:
        raise CorruptStreamError(f"a timer has no such key: {error}") from error
    if type(timestamp) is not int:
        raise CorruptStreamError(f"a timer is due at no {timestamp!r}")
    return timestamp, key, namespace


# Records that an operator holds back, with the watermarks and statuses among them.


# A value and its event time, None or `MIN_TIMESTAMP` for none.
HeldRecord = tuple[Any, int | None]


HeldElement = HeldRecord | Watermark | WatermarkStatus


_NAME: Final = "held"


_RECORDS: Final = "-records"


_CONTROLS: Final = "-controls"


def with_held_elements(
    own: OperatorStateSnapshot,
    elements: Iterable[HeldElement],
    *,
    follow_keys: bool = False,
    name: str = _NAME,
) -> OperatorStateSnapshot:
    """Return what an operator keeps, with what it holds back, in order.

    Args:
        own: What it keeps besides.
        elements: What it holds back.
        follow_keys: Whether each subtask is to get all records when the parallelism
            changes, because it knows which are its own; if not, they are split.
        name: Under which they are kept.
    """
    records: list[HeldRecord] = []
    controls: list[tuple[int, int | str]] = []
    for element in elements:
        if isinstance(element, Watermark):
            controls.append((len(records), element.timestamp_ms))
        elif isinstance(element, WatermarkStatus):
            controls.append((len(records), element.value))
        else:
            records.append(element)
    mode = RedistributionMode.MERGE if follow_keys else RedistributionMode.SPLIT
    own = own.with_list(name + _RECORDS, records, mode)
    if not controls:
        return own
    places = (len(records), tuple(controls))
    return own.with_list(name + _CONTROLS, [places], RedistributionMode.MERGE)


def held_elements(
    own: OperatorStateSnapshot, watermark_ms: int, name: str = _NAME
) -> list[HeldElement]:
    """Return what was held back, in order.

    Where the records were spread anew, they come first and then the operator's
    watermark: none that was held back is later.

    Args:
        own: What the operator kept.
        watermark_ms: How far event time had come before the operator.
        name: Under which it was kept.
    """
    records: list[HeldRecord] = own.elements(name + _RECORDS)
    places = own.elements(name + _CONTROLS)
    if not places:
        return [*records]
    count, controls = places[0]
    if len(places) > 1 or count != len(records):
        last = Watermark(watermark_ms)
        return [*records] if watermark_ms == MIN_TIMESTAMP else [*records, last]
    elements: list[HeldElement] = []
    taken = 0
    for place, control in controls:
        elements += records[taken:place]
        taken = place
        elements.append(
            Watermark(control) if isinstance(control, int) else WatermarkStatus(control)
        )
    return [*elements, *records[taken:]]
