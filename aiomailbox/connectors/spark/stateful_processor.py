"""Runs a class written for Spark's transformWithState: the names it calls, mirrored.

Theory of operation: Spark hands the rows of a micro-batch to a processor key by key;
here the rows of a run are handed over key by key. State is keyed state of the operator,
timers are its timers. Spark can list a key's timers, so their times are kept as state
of the key, too. Nothing here imports pyspark: a processor is known by its methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any, Final

from aiomailbox.errors import InvalidArgumentError, StateError, WrongTypeError
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from aiomailbox.state.snapshot import KeyedStateSnapshot
from aiomailbox.state.store import KeyedStateStore, ListState, MapState, ValueState

TIMERS: Final = "spark timers"

_METHODS: Final = ("init", "handleInputRows", "handleExpiredTimer", "close")
_TIME_MODES: Final = {
    "none": "none",
    "eventtime": "event",
    "event_time": "event",
    "processingtime": "processing",
    "processing_time": "processing",
}


def check_stateful_processor(processor: Any) -> Any:
    """Return ``processor`` if it has the methods of Spark's ``StatefulProcessor``.

    Raises:
        WrongTypeError: If it is a class, or lacks one of them.
    """
    missing = [
        name for name in _METHODS if not callable(getattr(processor, name, None))
    ]
    if isinstance(processor, type) or missing:
        raise WrongTypeError(
            "processor",
            f"{processor!r} is a class"
            if isinstance(processor, type)
            else f"{processor!r} has no method {missing[0]}",
            "Give an instance of a subclass of pyspark's StatefulProcessor.",
        )
    return processor


def check_time_mode(time_mode: object) -> str:
    """Return ``none``, ``event`` or ``processing``, from Spark's names or ours.

    Raises:
        InvalidArgumentError: If it is another name.

    Example:
        >>> check_time_mode("EventTime"), check_time_mode("processing_time")
        ('event', 'processing')
    """
    mode = _TIME_MODES.get(str(time_mode).lower())
    if mode is None:
        raise InvalidArgumentError(
            "time_mode",
            f"{time_mode!r} is not known",
            'Use "None", "EventTime" or "ProcessingTime".',
        )
    return mode


class SparkValueState:
    """One value of the key: a tuple, or None.

    Concept:
        Spark, ``ValueState``.
    """

    def __init__(self, state: ValueState) -> None:
        self._state = state

    def exists(self) -> bool:
        """Say whether there is a value."""
        return self._state.value() is not None

    def get(self) -> tuple[Any, ...] | None:
        """Return the value, or None."""
        value: tuple[Any, ...] | None = self._state.value()
        return value

    def update(self, newValue: Iterable[Any]) -> None:  # noqa: N803 -- Spark's name
        """Replace the value."""
        self._state.update(_fields(newValue, "newValue"))

    def clear(self) -> None:
        """Forget the value."""
        self._state.clear()


class SparkListState:
    """A list of tuples of the key.

    Concept:
        Spark, ``ListState``.
    """

    def __init__(self, state: ListState) -> None:
        self._state = state

    def exists(self) -> bool:
        """Say whether there is an element."""
        return bool(self._state.get())

    def get(self) -> Iterator[tuple[Any, ...]]:
        """Iterate over the elements as they are now."""
        return iter(self._state.get())

    def put(self, newState: Iterable[Any]) -> None:  # noqa: N803 -- Spark's name
        """Replace all elements."""
        self._state.update([_fields(value, "newState") for value in newState])

    def appendValue(self, newState: Iterable[Any]) -> None:  # noqa: N802, N803 -- as above
        """Append an element."""
        self._state.add(_fields(newState, "newState"))

    def appendList(self, newState: Iterable[Any]) -> None:  # noqa: N802, N803 -- as above
        """Append elements."""
        self._state.add_all([_fields(value, "newState") for value in newState])

    def clear(self) -> None:
        """Forget all elements."""
        self._state.clear()


class SparkMapState:
    """A map of the key, from tuples to tuples.

    Concept:
        Spark, ``MapState``.
    """

    def __init__(self, state: MapState) -> None:
        self._state = state

    def exists(self) -> bool:
        """Say whether there is an entry that has not expired."""
        return bool(self._state.keys())

    def getValue(self, key: Iterable[Any]) -> tuple[Any, ...] | None:  # noqa: N802
        """Return the value of a map key, or None."""
        value: tuple[Any, ...] | None = self._state.get(_fields(key, "key"))
        return value

    def containsKey(self, key: Iterable[Any]) -> bool:  # noqa: N802
        """Say whether a map key is there."""
        return self._state.contains(_fields(key, "key"))

    def updateValue(self, key: Iterable[Any], value: Iterable[Any]) -> None:  # noqa: N802
        """Set the value of a map key."""
        self._state.put(_fields(key, "key"), _fields(value, "value"))

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """Iterate over the entries as they are now."""
        return iter(self._state.items())

    def keys(self) -> Iterator[tuple[Any, ...]]:
        """Iterate over the map's keys."""
        return iter(self._state.keys())

    def values(self) -> Iterator[tuple[Any, ...]]:
        """Iterate over the map's values."""
        return iter(self._state.values())

    def removeKey(self, key: Iterable[Any]) -> None:  # noqa: N802
        """Forget a map key."""
        self._state.remove(_fields(key, "key"))

    def clear(self) -> None:
        """Forget all entries."""
        self._state.clear()


class SparkTimerValues:
    """What time it is for a call.

    Concept:
        Spark, ``TimerValues``.
    """

    def __init__(self, processing_ms: int, watermark_ms: int) -> None:
        self._processing_ms = processing_ms
        self._watermark_ms = watermark_ms

    def getCurrentProcessingTimeInMs(self) -> int:  # noqa: N802 -- Spark's name
        """Return wall-clock time, -1 without timers."""
        return self._processing_ms

    def getCurrentWatermarkInMs(self) -> int:  # noqa: N802 -- Spark's name
        """Return the watermark, 0 before the first, -1 without timers."""
        return self._watermark_ms


class SparkExpiredTimerInfo:
    """Which timer is due.

    Concept:
        Spark, ``ExpiredTimerInfo``.
    """

    def __init__(self, expiry_ms: int) -> None:
        self._expiry_ms = expiry_ms

    def getExpiryTimeInMs(self) -> int:  # noqa: N802 -- Spark's name
        """Return the timer's time."""
        return self._expiry_ms


class SparkProcessorHandle:
    """State and timers by Spark's names, for a processor's ``init``.

    Schemas are not looked at: state holds the tuples that it is given.

    Args:
        context: The operator's context.
        register: Registers a timer of the current key, in the processor's time mode.
        delete: Deletes one.

    Concept:
        Spark, ``StatefulProcessorHandle``.
    """

    def __init__(
        self,
        context: RuntimeContext,
        register: Callable[[int], None],
        delete: Callable[[int], None],
    ) -> None:
        self._store: KeyedStateStore = context.keyed_state
        self._register = register
        self._delete = delete
        self._timers = self._store.get_map(MapStateDescriptor(TIMERS))

    def getValueState(  # noqa: N802 -- Spark's name
        self,
        stateName: str,  # noqa: N803 -- Spark's name
        schema: Any = None,
        ttlDurationMs: int | None = None,  # noqa: N803 -- Spark's name
    ) -> SparkValueState:
        """Return the value state of a name."""
        descriptor = ValueStateDescriptor(stateName, ttl=_ttl(ttlDurationMs))
        return SparkValueState(self._store.get_value(descriptor))

    def getListState(  # noqa: N802 -- Spark's name
        self,
        stateName: str,  # noqa: N803 -- Spark's name
        schema: Any = None,
        ttlDurationMs: int | None = None,  # noqa: N803 -- Spark's name
    ) -> SparkListState:
        """Return the list state of a name."""
        descriptor = ListStateDescriptor(stateName, ttl=_ttl(ttlDurationMs))
        return SparkListState(self._store.get_list(descriptor))

    def getMapState(  # noqa: N802 -- Spark's name
        self,
        stateName: str,  # noqa: N803 -- Spark's name
        userKeySchema: Any = None,  # noqa: N803 -- Spark's name
        valueSchema: Any = None,  # noqa: N803 -- Spark's name
        ttlDurationMs: int | None = None,  # noqa: N803 -- Spark's name
    ) -> SparkMapState:
        """Return the map state of a name."""
        descriptor = MapStateDescriptor(stateName, ttl=_ttl(ttlDurationMs))
        return SparkMapState(self._store.get_map(descriptor))

    def registerTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802, N803 -- as above
        """Call ``handleExpiredTimer`` when time has reached ``expiryTimestampMs``."""
        self._register(expiryTimestampMs)
        # In state as well, as a timer service lists nothing.
        self._timers.put(expiryTimestampMs, True)

    def deleteTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802, N803 -- as above
        """Forget that timer; a no-op if there is none."""
        self._delete(expiryTimestampMs)
        self._timers.remove(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:  # noqa: N802 -- Spark's name
        """Iterate over the times of the key's timers, earliest first."""
        return iter(sorted(self._timers.keys()))

    def deleteIfExists(self, stateName: str) -> None:  # noqa: N802, N803 -- as above
        """Forget what all keys have in a state; only in ``init``."""
        snapshot = self._store.snapshot()
        dropped = {
            position
            for position, meta in enumerate(snapshot.states)
            if meta.name == stateName
        }
        if dropped:
            # Restored without it: there is no way to drop one state of all keys.
            self._store.restore([_without(snapshot, dropped)])


def _without(snapshot: KeyedStateSnapshot, dropped: set[int]) -> KeyedStateSnapshot:
    return KeyedStateSnapshot(
        snapshot.max_parallelism,
        snapshot.states,
        {
            group: {
                position: entries
                for position, entries in states.items()
                if position not in dropped
            }
            for group, states in snapshot.key_groups.items()
        },
    )


def _fields(value: Any, parameter: str) -> tuple[Any, ...]:
    if isinstance(value, str | bytes) or not hasattr(value, "__iter__"):
        raise StateError(
            f"{parameter} is {value!r}, but state of a StatefulProcessor holds tuples, "
            f"one field after the other. Write ({value!r},)."
        )
    return tuple(value)


def _ttl(duration_ms: int | None) -> StateTtlConfig | None:
    if duration_ms is None:
        return None
    return StateTtlConfig(timedelta(milliseconds=duration_ms))
