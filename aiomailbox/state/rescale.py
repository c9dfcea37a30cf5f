"""Which subtask gets which state when their number changes: pure.

Keyed state goes by key group (`HeapStateStore.restore`). State without keys goes by
the mode of each state, and records in flight by the partitioner they were sent with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from aiomailbox.errors import InvalidArgumentError, StateError
from aiomailbox.keygroups.assignment import UPPER_BOUND_MAX_PARALLELISM, key_group_range
from aiomailbox.state.schema import StateSchema
from aiomailbox.state.serializers import ObjectSerializer
from aiomailbox.state.snapshot import copy_contents


class RedistributionMode(Enum):
    """How a state without keys is spread over other subtasks.

    Attributes:
        SPLIT: The elements of all subtasks in a row, in even shares.
        UNION: All elements to every subtask.
        BROADCAST: One subtask's copy to each, for all copies are the same.
        MERGE: What is about a subtask as a whole, such as how far it is: it stays where
            it is while the parallelism does, else every subtask gets all and merges
            it. For operators of ours, not for functions of users.
    """

    SPLIT = "split"
    UNION = "union"
    BROADCAST = "broadcast"
    MERGE = "merge"


@dataclass(frozen=True, slots=True)
class OperatorStateEntry:
    """One state without keys of one subtask.

    Attributes:
        mode: How it is spread over other subtasks.
        elements: Its elements; of broadcast state its ``(key, value)`` pairs, which may
            be read from a snapshot each time that they are asked for.
        serializer: The id of the serializer that makes them bytes.
        schema: Their types, as far as they are known.
    """

    mode: RedistributionMode
    elements: Sequence[Any]
    serializer: str = field(default=ObjectSerializer.id, compare=False)
    schema: StateSchema = field(default_factory=StateSchema, compare=False)


@dataclass(frozen=True, slots=True)
class OperatorStateSnapshot:
    """A snapshot of one subtask's state without keys: an entry per state name.

    Example:
        >>> kept = OperatorStateSnapshot().with_list("splits", ["a", "b"])
        >>> kept.elements("splits"), kept.elements("progress")
        (['a', 'b'], [])
    """

    states: dict[str, OperatorStateEntry] = field(default_factory=dict)

    def elements(self, name: str) -> list[Any]:
        """Return the elements of a state, none if there is no such state."""
        entry = self.states.get(name)
        return [] if entry is None else list(entry.elements)

    def with_list(
        self,
        name: str,
        elements: Iterable[Any],
        mode: RedistributionMode = RedistributionMode.SPLIT,
    ) -> OperatorStateSnapshot:
        """Return the same with one more list, copied; without it if it is empty."""
        copied = copy_contents(elements)
        if not copied:
            return self
        return OperatorStateSnapshot(
            {**self.states, name: OperatorStateEntry(mode, copied)}
        )


# Per new subtask what it gets, each part with the old subtask it comes from.
_Parts = list[tuple[int, str, OperatorStateEntry]]
_Old = Sequence[OperatorStateSnapshot | None]


def redistribute_operator_state(old: _Old, new_parallelism: int) -> list[_Parts]:
    """Spread the state of old subtasks over new ones.

    With unchanged parallelism split, merge and broadcast state stay where they are,
    however uneven; union state still goes to all, and a broadcast state that some
    subtask lacks (it had finished) is handed round.

    Args:
        old: Per old subtask its snapshot, or None if it had no state.
        new_parallelism: How many new subtasks.

    Returns:
        Per new subtask the parts it gets, as ``(old subtask, state name, entry)``.

    Concept:
        Flink, ``RoundRobinOperatorStateRepartitioner``.

    Example:
        >>> entry = OperatorStateEntry(RedistributionMode.SPLIT, [1, 2, 3])
        >>> redistributed = redistribute_operator_state(
        ...     [OperatorStateSnapshot({"s": entry})], 2
        ... )
        >>> [[part.elements for _, _, part in parts] for parts in redistributed]
        [[[1, 2]], [[3]]]
    """
    if new_parallelism < 1:
        raise InvalidArgumentError(
            "new_parallelism", f"{new_parallelism} is not positive", "Use 1 or more."
        )
    new: list[_Parts] = [[] for _ in range(new_parallelism)]
    unchanged = len(old) == new_parallelism
    start = 0
    for name, mode in sorted(_modes(old).items()):
        held = [
            (index, snapshot.states[name])
            for index, snapshot in enumerate(old)
            if snapshot is not None and name in snapshot.states
        ]
        if mode is RedistributionMode.UNION or (
            mode is RedistributionMode.MERGE and not unchanged
        ):
            for parts in new:
                parts += [(index, name, entry) for index, entry in held]
            continue
        if unchanged:
            for index, entry in held:
                new[index].append((index, name, entry))
        if mode is RedistributionMode.BROADCAST:
            if not unchanged or len(held) < len(old):
                _hand_round(new, name, held)
        elif mode is RedistributionMode.SPLIT and not unchanged:
            start = _split(new, name, held, start)
    return new


def _modes(old: _Old) -> dict[str, RedistributionMode]:
    modes: dict[str, RedistributionMode] = {}
    for snapshot in old:
        for name, entry in (snapshot.states if snapshot is not None else {}).items():
            if modes.setdefault(name, entry.mode) is not entry.mode:
                raise StateError(
                    f"operator state {name!r} is {modes[name].value} state in one "
                    f"subtask and {entry.mode.value} state in another"
                )
    return modes


def _hand_round(
    new: list[_Parts], name: str, held: list[tuple[int, OperatorStateEntry]]
) -> None:
    for subtask, parts in enumerate(new):
        index, entry = held[subtask % len(held)]
        if (index, name, entry) not in parts:
            parts.append((index, name, entry))


def _split(
    new: list[_Parts],
    name: str,
    held: list[tuple[int, OperatorStateEntry]],
    start: int,
) -> int:
    """Give even shares; return the first subtask that got no extra element."""
    base, extra = divmod(sum(len(entry.elements) for _, entry in held), len(new))
    rest = list(reversed(held))
    for step in range(len(new)):
        share = base + (1 if step < extra else 0)
        for index, elements in _take(rest, share):
            entry = replace(held[0][1], elements=elements)
            new[(start + step) % len(new)].append((index, name, entry))
    return (start + extra) % len(new)


def _take(
    rest: list[tuple[int, OperatorStateEntry]], share: int
) -> Iterator[tuple[int, Sequence[Any]]]:
    """Take ``share`` elements from the end of ``rest``, where the first ones are.

    Empty lists met on the way are handed out too: they say that there is such a state.
    """
    while share:
        index, entry = rest.pop()
        taken, left = entry.elements[:share], entry.elements[share:]
        share -= len(taken)
        if left:
            rest.append((index, replace(entry, elements=left)))
        yield index, taken


class SubtaskStateMapper(Enum):
    """Which old subtasks' records in flight a new subtask reads.

    Attributes:
        ARBITRARY: Any subtask may read them; as `ROUND_ROBIN`.
        FIRST: The first new subtask reads all.
        FULL: Every new subtask reads all, and drops what is not its own.
        RANGE: The new ones that share key groups with the old one, dropping likewise.
        ROUND_ROBIN: Old subtask i goes to new subtask ``i % parallelism``.
        UNSUPPORTED: No subtask can: the records were bound to the old one.

    Concept:
        Flink, ``SubtaskStateMapper``.
    """

    ARBITRARY = "arbitrary"
    FIRST = "first"
    FULL = "full"
    RANGE = "range"
    ROUND_ROBIN = "round_robin"
    UNSUPPORTED = "unsupported"

    @property
    def is_ambiguous(self) -> bool:
        """Whether a record is read by several subtasks, which then have to filter."""
        return self in {SubtaskStateMapper.FULL, SubtaskStateMapper.RANGE}

    def old_subtasks(
        self, new_subtask: int, old_parallelism: int, new_parallelism: int
    ) -> list[int]:
        """Return the old subtasks whose records in flight a new one reads.

        Raises:
            StateError: If they cannot be redistributed.
        """
        match self:
            case SubtaskStateMapper.FULL:
                return list(range(old_parallelism))
            case SubtaskStateMapper.FIRST:
                return [] if new_subtask else list(range(old_parallelism))
            case SubtaskStateMapper.RANGE:
                return _sharing_keys(new_subtask, old_parallelism, new_parallelism)
            case SubtaskStateMapper.ARBITRARY | SubtaskStateMapper.ROUND_ROBIN:
                return list(range(new_subtask, old_parallelism, new_parallelism))
            case SubtaskStateMapper.UNSUPPORTED:
                raise StateError(
                    "records in flight between two subtasks that are bound to each "
                    "other cannot be redistributed. Keep the parallelism, or stop "
                    "with a savepoint and use rebalance() instead of forward."
                )


def _sharing_keys(
    new_subtask: int, old_parallelism: int, new_parallelism: int
) -> list[int]:
    groups = UPPER_BOUND_MAX_PARALLELISM
    mine = key_group_range(groups, new_parallelism, new_subtask)
    return [
        old
        for old in range(old_parallelism)
        if key_group_range(groups, old_parallelism, old).intersection(mine) is not None
    ]
