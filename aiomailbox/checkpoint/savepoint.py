"""Savepoints and checkpoints as data: the state in them, read without a job."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Any, Final
from uuid import UUID

from aiomailbox.checkpoint.layout import CheckpointMetadata, OperatorInfo
from aiomailbox.checkpoint.reader import CheckpointFiles
from aiomailbox.errors import MissingExtraError, NoCheckpointError, StateError
from aiomailbox.ids import OperatorId
from aiomailbox.operators.snapshots.codec import (
    SnapshotDescription,
    StateDescription,
    decode_state,
    describe_snapshot,
)
from aiomailbox.records.record_classes import fields_of_class, present_name
from aiomailbox.state.operator_state import RedistributionMode
from aiomailbox.state.schema import ClassSchema
from aiomailbox.state.serializers import (
    check_state_names,
    declared_classes,
    is_known_class,
    state_name_hints,
)
from aiomailbox.task.messages import SectionKind, TaskHandle

# Values of state as Arrow takes them: objects become dicts of their fields.


def arrow_value(value: Any) -> Any:
    """Return a value as Arrow infers types from.

    Objects become dicts of their fields, sets lists, and dicts whose keys are not all
    texts lists of ``key`` and ``value``; Arrow knows no others.

    Example:
        >>> arrow_value({1: {"a"}})
        [{'key': 1, 'value': ['a']}]
    """
    if isinstance(value, Enum):
        return arrow_value(value.value)
    names = fields_of_class(type(value))
    if names is not None:
        return {name: arrow_value(getattr(value, name)) for name in names}
    # A dict without keys of text cannot be a struct: Arrow's fields have names.
    if isinstance(value, dict):
        if all(type(key) is str for key in value):
            return {key: arrow_value(one) for key, one in value.items()}
        return arrow_entries(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [arrow_value(one) for one in value]
    if isinstance(value, UUID):
        return str(value)
    return bytes(value) if isinstance(value, bytearray) else value


def arrow_entries(value: dict[Any, Any]) -> list[dict[str, Any]]:
    """Return the entries of a dict, as `arrow_value` does where keys are of any type."""
    return [
        {"key": arrow_value(key), "value": arrow_value(one)}
        for key, one in value.items()
    ]


_BATCH_ROWS: Final = 4096
# Of these every subtask has a copy.
_COPIED: Final = frozenset({RedistributionMode.BROADCAST.value})


@dataclass(frozen=True, slots=True)
class SavepointOperator:
    """An operator whose state is in a savepoint.

    Attributes:
        id: By what its state is found: its uid, or what follows from the graph.
        uid: The user's name for it; None if there is none.
        name: Its name, for people.
        parallelism: Its subtasks.
        max_parallelism: The number of key groups.
        states: Its states.
        timers: The names of its timer services that have timers.
    """

    id: str
    uid: str | None
    name: str
    parallelism: int
    max_parallelism: int
    states: tuple[StateDescription, ...]
    timers: tuple[str, ...]


class Savepoint:
    """A savepoint or checkpoint, read from its files; no job is needed. Blocks.

    A file's checksums are compared before anything is read from it.

    Args:
        place: The path or URL of its directory.
        classes: The classes of its objects, or type hints that name them. Objects of
            others come as dataclasses with the same fields, and enums with a
            ``value``.
        allow_pickled_state: Whether state that was pickled may be read: reading it runs code
            that the bytes name.
        state_names: Classes that were saved under other names, by these; see
            `StreamExecutionEnvironment.start`.

    Raises:
        InvalidArgumentError: If a name is none that a class of yours can have.
        WrongTypeError: If a name is given what is no class.
        NoCheckpointError: If there is no complete one.
        DamagedFileError: If its metadata is not what was written.

    Concept:
        Flink, the State Processor API.
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        *,
        classes: Iterable[Any] = (),
        allow_pickled_state: bool = False,
        state_names: Mapping[str, type] | None = None,
    ) -> None:
        names = state_names or {}
        check_state_names(names)
        self._files = CheckpointFiles.at(place)
        self._classes = [*classes, *state_name_hints(names)]
        self._allow_pickled_state = allow_pickled_state
        self._last: tuple[TaskHandle, memoryview] | None = None
        try:
            self._metadata = self._files.metadata()
        except FileNotFoundError as error:
            raise NoCheckpointError(self._files.place, self._files.absence) from error

    def __repr__(self) -> str:
        return f"<Savepoint {self._metadata.checkpoint_id} at {self._files.place!r}>"

    @property
    def metadata(self) -> CheckpointMetadata:
        """Its metadata: its job, its time, the places of its parts."""
        return self._metadata

    def operators(self) -> list[SavepointOperator]:
        """Return the operators with their states; contents are not read.

        Raises:
            DamagedFileError: If a file is not what was written.
        """
        found: list[SavepointOperator] = []
        for vertex in self._metadata.vertices:
            # Of all tasks: a state may be empty in some of them.
            for info in vertex.operators:
                described = [
                    describe_snapshot(data) for data, _ in self._snapshots_of(info.id)
                ]
                states = {
                    (one.name, one.is_own): one
                    for each in described
                    for one in each.states
                }
                timers = dict.fromkeys(
                    name for each in described for name in each.timers
                )
                found.append(
                    SavepointOperator(
                        info.id,
                        info.uid,
                        info.name,
                        vertex.parallelism,
                        vertex.max_parallelism,
                        tuple(states.values()),
                        tuple(timers),
                    )
                )
        return found

    def state(self, uid: str, name: str) -> Iterator[Any]:
        """Yield what a state holds, of all subtasks.

        Of keyed state ``(key, value)``, or ``(key, namespace, value)`` where it belongs
        to windows; the value of list state is a list, of map state a dict. Of broadcast
        state ``(key, value)``, of other lists without keys their elements. Values with
        a time to live are included, expired or not.

        Args:
            uid: The operator's uid, its id, or its name if no other has it.
            name: The state's name.

        Raises:
            StateError: If there is no such operator or state, or it needs pickle, or a
                serializer that no descriptor has given.
            DamagedFileError: If a file is not what was written.
        """
        operator = self._operator(uid)
        states = self._described(operator)
        wanted = states.get(name)
        if wanted is None:
            raise StateError(
                f"operator {uid!r} has no state {name!r} in {self._files.place}; it "
                f"has {sorted(states)}"
            )
        return self._contents(operator.id, wanted)

    def arrow(self, uid: str, name: str, *, rows: int = _BATCH_ROWS) -> Iterator[Any]:
        """Yield what a state holds as Arrow record batches; see `state`.

        Columns are ``key``, ``namespace`` where there is one, and ``value``, or only
        ``value`` for lists without keys. Objects become structs, dicts with keys that
        are not all texts, and map state, become lists of ``key`` and ``value``. The
        first batch decides the types.

        Args:
            uid: The operator's uid, its id, or its name.
            name: The state's name.
            rows: How many rows a batch has.

        Raises:
            MissingExtraError: If pyarrow is not installed.
            RecordTypeError: If values do not fit one type; names the column.
        """
        try:
            # Its import takes long.
            from aiomailbox.columnar.encode import BatchMaker
        except ImportError as error:
            raise MissingExtraError("Savepoint.arrow", "arrow") from error
        from aiomailbox.records.run import ListRun

        state = self._described(self._operator(uid)).get(name)
        contents = self.state(uid, name)
        assert state is not None, "else it would have been refused"
        maker = BatchMaker()
        names = _columns_of(state)
        convert = arrow_entries if state.kind == "map" else arrow_value
        while piece := list(islice(contents, rows)):
            rows_of = [row if len(names) > 1 else (row,) for row in piece]
            records = [
                dict(
                    zip(
                        names, (*map(arrow_value, address), convert(value)), strict=True
                    )
                )
                for *address, value in rows_of
            ]
            yield from maker.batches(ListRun(records))

    def _operator(self, uid: str) -> OperatorInfo:
        infos = [
            info for vertex in self._metadata.vertices for info in vertex.operators
        ]
        for attribute in ("uid", "id", "name"):
            found = [info for info in infos if getattr(info, attribute) == uid]
            if len(found) == 1:
                return found[0]
        known = sorted(info.uid or info.id for info in infos)
        raise StateError(
            f"there is no operator {uid!r} in {self._files.place}; it has {known}"
        )

    def _described(self, operator: OperatorInfo) -> dict[str, StateDescription]:
        """Return an operator's states by name; of two, that of the user's function."""
        found: dict[str, StateDescription] = {}
        for data, _ in self._snapshots_of(operator.id):
            for state in describe_snapshot(data).states:
                if state.name not in found or not state.is_own:
                    found[state.name] = state
        return found

    def _contents(self, operator: OperatorId, state: StateDescription) -> Iterator[Any]:
        for data, handle in self._snapshots_of(operator):
            self._files.check_shared(handle)
            contents = decode_state(
                data,
                state,
                self._declared(describe_snapshot(data)),
                allow_pickled_state=self._allow_pickled_state,
                files=self._files.files_beside(handle).get(operator, ()),
            )
            if state.ttl:
                contents = (
                    (*address, _untouched(content, state.kind))
                    for *address, content in contents
                )
            if state.kind not in _COPIED:
                yield from contents
            elif copy := list(contents):
                # One copy that has something: a subtask that was new may have none yet.
                yield from copy
                return

    def _snapshots_of(
        self, operator: OperatorId
    ) -> Iterator[tuple[memoryview, TaskHandle]]:
        for handle in self._metadata.handles:
            for section in handle.sections:
                if section.kind is SectionKind.OPERATOR and section.name == operator:
                    data = self._bytes_of(handle)
                    yield data[section.start : section.start + section.length], handle

    def _bytes_of(self, handle: TaskHandle) -> memoryview:
        # Several operators are in one file, and each is looked at more than once.
        if self._last is None or self._last[0] is not handle:
            self._last = (handle, self._files.bytes_of(handle))
        return self._last[1]

    def _declared(self, described: SnapshotDescription) -> list[Any]:
        """Return the classes that were given, and others for those that were not."""
        known = declared_classes(self._classes)
        written = dict(described.timer_classes)
        for state in described.states:
            written.update(state.classes)
        return [
            *self._classes,
            *(
                _stand_in(reference, fields)
                for reference, fields in written.items()
                if reference not in known
                and present_name(reference) not in known
                and not is_known_class(reference)
            ),
        ]


def _stand_in(reference: str, fields: ClassSchema) -> type:
    """Return a class for objects of one that is not there: the same name and fields."""
    module, colon, name = reference.partition(":")
    if not colon:
        # One of ours, which has no module there.
        module, _, name = reference.rpartition(".")
    described = [(field, Any) for field in fields]
    made = dataclasses.make_dataclass(name.rpartition(".")[2], described, frozen=True)
    made.__module__, made.__qualname__ = module, name
    return made


def _untouched(content: Any, kind: str) -> Any:
    """Return a content without the times at which it was last touched."""
    if kind == "list":
        return [element for element, _ in content]
    if kind == "map":
        return {key: value for key, (value, _) in content.items()}
    return content[0]


def _columns_of(state: StateDescription) -> tuple[str, ...]:
    if not state.is_keyed:
        return ("key", "value") if state.kind in _COPIED else ("value",)
    return ("key", "namespace", "value") if state.namespaced else ("key", "value")
