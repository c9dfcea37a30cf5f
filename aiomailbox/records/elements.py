"""What travels in band: records, watermarks, status, latency markers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, NamedTuple

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.typevars import ValueT

MIN_TIMESTAMP: Final = -(2**63)
MAX_TIMESTAMP: Final = 2**63 - 1


class StreamRecord(NamedTuple):
    """One value and its event time in milliseconds, None when it has none.

    Inside the runtime records travel in runs; this is the form for single ones
    (test harnesses, side outputs of one record).
    """

    value: Any
    timestamp: int | None = None


@dataclass(frozen=True, slots=True)
class Watermark:
    """The promise that no later record has ``timestamp <= timestamp_ms``.

    Concept:
        Flink, ``Watermark``.
    """

    timestamp_ms: int


MAX_WATERMARK: Final = Watermark(MAX_TIMESTAMP)


class WatermarkStatus(Enum):
    """Whether a channel takes part in the advance of event time."""

    ACTIVE = "active"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class LatencyMarker:
    """A stamp that a source sends through the job to measure its latency.

    Attributes:
        marked_ms: Wall-clock time at the source, milliseconds.
        operator: The source's name.
        subtask_index: The source's subtask, from 0.
    """

    marked_ms: int
    operator: str
    subtask_index: int


@dataclass(frozen=True, slots=True)
class RecordAttributes:
    """What the records that follow have in common.

    Attributes:
        is_backlog: They are old, so that throughput counts more than latency.
    """

    is_backlog: bool


@dataclass(frozen=True, slots=True)
class InternalWatermark:
    """A watermark of one of the subpartitions that share a channel."""

    subpartition_index: int
    timestamp_ms: int


# Without slots: Python 3.11 and 3.12 cannot make an ``OutputTag[int]`` with them.
@dataclass(frozen=True)
class OutputTag(Generic[ValueT]):
    """The name of a side output.

    Example:
        >>> OutputTag("late")
        OutputTag(id='late')

        For a type checker, say what it is a side output of:

        >>> OutputTag[int]("late")
        OutputTag(id='late')
    """

    id: str

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:
            raise InvalidArgumentError(
                "id",
                f"an OutputTag cannot be called {self.id!r}",
                "Give it a non-empty string.",
            )
