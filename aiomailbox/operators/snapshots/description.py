"""What a snapshot of an operator consists of, without its contents."""

from __future__ import annotations

from dataclasses import dataclass

from aiomailbox.state.schema import ClassSchema

__all__ = ["SnapshotDescription", "StateDescription"]


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
    """What one subtask of an operator has kept.

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
