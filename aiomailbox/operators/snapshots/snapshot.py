"""The snapshot from which one operator in one subtask resumes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from aiomailbox.eventtime.timers import TimerSnapshot
from aiomailbox.keygroups.assignment import key_group_range
from aiomailbox.records.events import MIN_TIMESTAMP
from aiomailbox.state.operator_state import (
    OperatorStateEntry,
    OperatorStateSnapshot,
    redistribute_operator_state,
)
from aiomailbox.state.snapshot import KeyedStateSnapshot, LazyTimers


@dataclass(frozen=True, slots=True)
class OperatorSnapshot:
    """All that an operator keeps, at one moment: nothing that happens later changes it.

    It is taken between two records, on the loop, and made bytes anywhere: see
    `snapshot_chunks`. Keyed state and timers, which are large, are mappings by key
    group. A reader asks for one group at a time, so a store needs to keep a group
    unchanged only until then.

    Attributes:
        keyed: The keyed state; after a change of parallelism, that of several former
            subtasks, of which a new one takes its key groups.
        operator: The lists and broadcast maps of the user's function, by name.
        timers: The timers, by the name of their service.
        own: The operator's own state, by name: calls in flight, positions.
        watermark: How far event time had come before it, milliseconds.

    Concept:
        Flink, ``OperatorSubtaskState``.

    Example:
        >>> OperatorSnapshot().is_empty
        True
    """

    keyed: tuple[KeyedStateSnapshot, ...] = ()
    operator: OperatorStateSnapshot = field(default_factory=OperatorStateSnapshot)
    timers: Mapping[str, TimerSnapshot] = field(default_factory=dict)
    own: OperatorStateSnapshot = field(default_factory=OperatorStateSnapshot)
    watermark: int = MIN_TIMESTAMP

    @property
    def is_empty(self) -> bool:
        """Whether nothing but event time would be lost without it."""
        return (
            not any(piece.states for piece in self.keyed)
            and not self.operator.states
            and not any(one.event or one.processing for one in self.timers.values())
            and not self.own.states
        )


# Which subtask resumes from what when their number changes: pure.


_Row = tuple[int, Any, Any]


def redistribute(
    snapshots: Sequence[OperatorSnapshot | None], parallelism: int
) -> list[OperatorSnapshot]:
    """Return what each of ``parallelism`` new subtasks of an operator is restored from.

    Keyed state and timers go by key group. Lists are split, union lists and broadcast
    maps handed round; see `RedistributionMode`. Event time resumes from the subtask
    that was behind, unless each subtask resumes from its own.

    Args:
        snapshots: One per former subtask, in order; None for one that had nothing.
        parallelism: How many new subtasks.

    Raises:
        InvalidArgumentError: If ``parallelism`` is not positive.
        StateError: If former subtasks describe a state in two ways.

    Concept:
        Flink, ``StateAssignmentOperation``.

    Example:
        >>> own = OperatorStateSnapshot().with_list("splits", ["a", "b", "c"])
        >>> spread = redistribute([OperatorSnapshot(own=own)], 2)
        >>> [snapshot.own.elements("splits") for snapshot in spread]
        [['a', 'b'], ['c']]
    """
    known = [one or OperatorSnapshot() for one in snapshots]
    operator = redistribute_operator_state([one.operator for one in known], parallelism)
    own = redistribute_operator_state([one.own for one in known], parallelism)
    # Then no subtask reads another's state, and files can be taken over as they are.
    unchanged = len(known) == parallelism
    keyed = tuple(piece for one in known for piece in one.keyed)
    # One that had nothing had ended, and holds no other back.
    watermarks = [one.watermark for one in snapshots if one is not None]
    behind = min(watermarks, default=MIN_TIMESTAMP)
    return [
        OperatorSnapshot(
            # All pieces for all: each subtask reads of them what its key groups are.
            known[index].keyed if unchanged else keyed,
            _joined(operator[index]),
            known[index].timers if unchanged else _timers(known, index, parallelism),
            _joined(own[index]),
            known[index].watermark if unchanged else behind,
        )
        for index in range(parallelism)
    ]


def _joined(
    parts: Iterable[tuple[int, str, OperatorStateEntry]],
) -> OperatorStateSnapshot:
    states: dict[str, OperatorStateEntry] = {}
    for _, name, entry in parts:
        before = states[name].elements if name in states else []
        states[name] = replace(entry, elements=[*before, *entry.elements])
    return OperatorStateSnapshot(states)


def _timers(
    known: list[OperatorSnapshot], index: int, parallelism: int
) -> dict[str, TimerSnapshot]:
    """Return the timers of one new subtask's key groups, by their service."""
    parts: dict[str, list[TimerSnapshot]] = {}
    for one in known:
        for name, timers in one.timers.items():
            parts.setdefault(name, []).append(timers)
    found: dict[str, TimerSnapshot] = {}
    for name, pieces in parts.items():
        groups = pieces[0].max_parallelism
        mine = key_group_range(groups, parallelism, index).key_groups
        found[name] = TimerSnapshot(
            groups,
            _OfGroups([one.event for one in pieces], mine),
            _OfGroups([one.processing for one in pieces], mine),
        )
    return found


class _OfGroups(LazyTimers):
    """The timers of some key groups, read when they are asked for.

    Args:
        parts: Of former subtasks, which have no key group in common.
        mine: The key groups.
    """

    def __init__(self, parts: Iterable[Mapping[int, list[_Row]]], mine: range) -> None:
        self._parts = {group: part for part in parts for group in part if group in mine}

    def pieces(self, group: int) -> Iterator[list[_Row]]:
        """Yield the timers of a key group, some at a time."""
        part = self._parts[group]
        read: Any = getattr(part, "pieces", None)
        yield from [part[group]] if read is None else read(group)

    def __iter__(self) -> Iterator[int]:
        return iter(self._parts)
