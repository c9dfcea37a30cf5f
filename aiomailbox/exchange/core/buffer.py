"""What crosses a channel inside one loop: a few runs at a time, or one event.

Theory of operation: records do not cross channels, buffers do. A buffer of data holds
one permit of its producer's pool from the moment it is opened until its consumer
it recycles it: that is what bounds a channel. The producer appends until the buffer is
sealed; the consumer may seal it earlier by taking it, and gets the very lists.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Final

from aiomailbox.errors import BufferRecycledError
from aiomailbox.memory.buffer import MemorySegment
from aiomailbox.memory.local_pool import LocalBufferPool
from aiomailbox.records import Control, Element
from aiomailbox.records.events import (
    LatencyMarker,
    RuntimeEvent,
    Watermark,
    WatermarkStatus,
)
from aiomailbox.records.run import RUN_LENGTH_MAX, ListRun, Run

# A full run of rows of average size fills one buffer.
BUFFER_SIZE_BYTES: Final = RUN_LENGTH_MAX * ListRun.RECORD_BYTES_ESTIMATE

# A watermark and its place in a list; only the bound in bytes depends on it.
CONTROL_BYTES_ESTIMATE: Final = 64

# Below this, copying two runs into one is cheaper than processing two.
_MERGE_LENGTH_MAX: Final = 256

CONTROL: Final = (Watermark, WatermarkStatus, LatencyMarker)


class ObjectBuffer:
    """Runs and control elements in order, or one event.

    Made by a `ResultPartition`; `for_event` and `of_elements` make forms without a
    permit.

    Attributes:
        elements: Runs and control elements, in order; empty in an event's buffer.
            Not changed once the buffer was taken.
        event: The event, or None in a buffer of data.
        is_sealed: No records are appended any more; one control element may be, until
            the buffer is taken.
        record_count: Records in all runs together.
        size_bytes: Estimate of the memory that the elements keep alive.

    Invariants:
        A permit is returned exactly once, by `recycle`.

    Concept:
        Flink, ``NetworkBuffer``, ``BufferBuilder`` and ``BufferConsumer`` in one: in
        one loop they need not be distinguished.

    Example:
        >>> from aiomailbox.records import EndOfPartition
        >>> with ObjectBuffer.for_event(EndOfPartition()) as buffer:
        ...     buffer.event
        EndOfPartition()
        >>> buffer.is_recycled
        True
    """

    __slots__ = (
        "_channel",
        "_owns_last_run",
        "_pool",
        "_segment",
        "elements",
        "event",
        "is_recycled",
        "is_sealed",
        "record_count",
        "size_bytes",
    )

    def __init__(
        self,
        pool: LocalBufferPool | None,
        segment: MemorySegment | None,
        channel: int | None,
    ) -> None:
        self.elements: list[Element] = []
        self.event: RuntimeEvent | None = None
        self.is_sealed: bool = False
        self.is_recycled: bool = False
        self.record_count: int = 0
        self.size_bytes: int = 0
        self._pool = pool
        self._segment = segment
        self._channel = channel
        # The last element's lists are this buffer's own, so they may be extended.
        self._owns_last_run = False

    @classmethod
    def of_elements(cls, elements: Iterable[Element]) -> ObjectBuffer:
        """Return a sealed buffer of data that holds no permit: for decoded elements."""
        buffer = cls(None, None, None)
        for element in elements:
            if isinstance(element, CONTROL):
                buffer.append_control(element)
            else:
                buffer.append_run(element, len(element), element.size_bytes())
        buffer.is_sealed = True
        return buffer

    @classmethod
    def for_event(cls, event: RuntimeEvent) -> ObjectBuffer:
        """Return a sealed buffer that carries an event and holds no permit."""
        buffer = cls(None, None, None)
        buffer.event = event
        buffer.is_sealed = True
        buffer.size_bytes = CONTROL_BYTES_ESTIMATE
        return buffer

    def __repr__(self) -> str:
        if self.event is not None:
            return f"ObjectBuffer({self.event!r})"
        state = "sealed" if self.is_sealed else "unfinished"
        return (
            f"<ObjectBuffer {state}: {self.record_count} records, "
            f"{len(self.elements)} elements>"
        )

    @property
    def has_content(self) -> bool:
        """Whether it carries anything."""
        return bool(self.elements) or self.event is not None

    @property
    def ends_in_run(self) -> bool:
        """Whether records are the last that it holds."""
        elements = self.elements
        return bool(elements) and not isinstance(elements[-1], CONTROL)

    def append_run(self, run: Run, record_count: int, size_bytes: int) -> None:
        """Append a run; runs that are short become one.

        Args:
            run: The run; it is not changed.
            record_count: Its length.
            size_bytes: Its estimated size.
        """
        elements = self.elements
        self.record_count += record_count
        self.size_bytes += size_bytes
        # Only short ones: copying a long run costs more than one call more downstream.
        if elements and record_count <= _MERGE_LENGTH_MAX and self._merge(run):
            return
        elements.append(run)
        self._owns_last_run = False

    def append_control(self, element: Control) -> None:
        """Append a watermark, a status or a latency marker."""
        self.elements.append(element)
        self.size_bytes += CONTROL_BYTES_ESTIMATE

    def seal(self) -> None:
        """Allow no more appending. Idempotent."""
        self.is_sealed = True

    def recycle(self) -> None:
        """Return the permit; a waiter for one goes on.

        Raises:
            BufferRecycledError: If it was returned before.
        """
        if self.is_recycled:
            raise BufferRecycledError(
                f"{self!r} was recycled twice; recycle where it was consumed, once"
            )
        self.is_recycled = True
        pool, segment = self._pool, self._segment
        # An event and decoded elements hold no permit.
        if pool is not None and segment is not None:
            self._pool = self._segment = None
            pool.recycle(segment, self._channel)

    def __enter__(self) -> ObjectBuffer:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.recycle()

    def _merge(self, run: Run) -> bool:
        """Extend the last run if both are lists with (or both without) times."""
        last = self.elements[-1]
        if type(run) is not ListRun or type(last) is not ListRun:
            return False
        if (run.timestamps is None) is not (last.timestamps is None):
            return False
        # The first merge copies, once: until then the lists belong to the operator that
        # emitted them, or to several channels of a broadcast.
        if not self._owns_last_run:
            if len(last.values) > _MERGE_LENGTH_MAX:
                return False
            last = self._own(last)
        last.values.extend(run.values)
        if run.timestamps is not None and last.timestamps is not None:
            last.timestamps.extend(run.timestamps)
        return True

    def _own(self, last: ListRun) -> ListRun:
        timestamps = last.timestamps
        own = ListRun(
            last.values.copy(), None if timestamps is None else timestamps.copy()
        )
        self.elements[-1] = own
        self._owns_last_run = True
        return own
