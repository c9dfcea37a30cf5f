"""From an operator's results to the channels of a partition: which, and how."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import compress
from random import Random
from types import CoroutineType
from typing import Any, ClassVar, Final

from aiomailbox.availability import Availability
from aiomailbox.errors import IllegalStateError, InvalidArgumentError, KeyTypeError
from aiomailbox.exchange.core.contract import OutputPartition
from aiomailbox.keygroups.assignment import KeyGroupAssigner, KeyTypeAgreement
from aiomailbox.records.events import (
    LatencyMarker,
    RuntimeEvent,
    StopMode,
    Watermark,
    WatermarkStatus,
)
from aiomailbox.records.run import ListRun, Run, SelectableRun, take_records

# Which records go to which channel: pure, whole runs at a time.
#
# Theory of operation: a partitioner in a graph is a description. Each writer takes a
# `fresh` one, which may remember where it was. With one channel the run moves as it is;
# with several it is split into at most one run per channel, in which the order is kept.


# Up to so many channels, one comparison of each record a channel costs less than a step
# of a loop.
_COMPARED_MAX: Final = 4
# For each channel the byte 1 where a number is that channel, and 0 elsewhere.
_CHOSEN: Final = [
    bytes(number == channel for number in range(256))
    for channel in range(_COMPARED_MAX)
]


class Partitioner:
    """Base of partitioners.

    Attributes:
        name: As `explain` prints it.
        is_broadcast: Every record goes to every channel.
        is_pointwise: A producer is connected to some of the consumers only.
        line: The user's call that gave its functions, as ``file:line``; "" if there is
            none.

    Concept:
        Flink, ``StreamPartitioner``.
    """

    name: ClassVar[str]
    is_broadcast: ClassVar[bool] = False
    is_pointwise: ClassVar[bool] = False
    line: str = ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def fresh(self, random: Random) -> Partitioner:
        """Return a partitioner for one writer.

        Args:
            random: Where the writer's chances come from.
        """
        return type(self)()

    def split_run(self, run: Run, channel_count: int) -> list[tuple[int, Run]]:
        """Say which records go where.

        Args:
            run: Not empty; it is not changed.
            channel_count: Number of channels, at least 1.

        Returns:
            Pairs of a channel and a run that is not empty; a channel occurs once.
        """
        if channel_count == 1:
            return [(0, run)]
        return self._split(run, channel_count)

    def _split(self, run: Run, channel_count: int) -> list[tuple[int, Run]]:
        raise TypeError(f"{type(self).__name__} does not define _split")


class ForwardPartitioner(Partitioner):
    """Each producer feeds the one consumer of the same index.

    Example:
        >>> ForwardPartitioner().split_run(ListRun([1, 2]), 1)
        [(0, ListRun([1, 2], None))]
    """

    name = "FORWARD"
    is_pointwise = True

    def _split(self, run: Run, channel_count: int) -> list[tuple[int, Run]]:
        raise IllegalStateError(
            f"a forward edge has one channel per producer, this one has "
            f"{channel_count}; use rebalance() or rescale() between parallelisms"
        )


class GlobalPartitioner(Partitioner):
    """Everything goes to the first consumer.

    Example:
        >>> GlobalPartitioner().split_run(ListRun([1, 2]), 3)
        [(0, ListRun([1, 2], None))]
    """

    name = "GLOBAL"

    def _split(self, run: Run, channel_count: int) -> list[tuple[int, Run]]:
        return [(0, run)]


class BroadcastPartitioner(Partitioner):
    """Everything goes to every consumer; the run itself is shared.

    Example:
        >>> [index for index, _ in BroadcastPartitioner().split_run(ListRun([1]), 3)]
        [0, 1, 2]
    """

    name = "BROADCAST"
    is_broadcast = True

    def _split(self, run: Run, channel_count: int) -> list[tuple[int, Run]]:
        return [(index, run) for index in range(channel_count)]


class RebalancePartitioner(Partitioner):
    """Record by record to the next consumer; each writer starts at random.

    A run that is no list of rows and cannot pick records is dealt in slices instead.

    Args:
        start: A number whose remainder is the channel of the first record.

    Example:
        >>> RebalancePartitioner(start=1).split_run(ListRun([1, 2, 3]), 2)
        [(1, ListRun([1, 3], None)), (0, ListRun([2], None))]
    """

    name = "REBALANCE"

    def __init__(self, start: int = 0) -> None:
        self._next = start

    def fresh(self, random: Random) -> Partitioner:
        """Return a partitioner for one writer, which starts at a random channel."""
        # All writers starting at the first channel would overload its consumer.
        return type(self)(random.randrange(2**16))

    def _split(self, run: Run, channel_count: int) -> list[tuple[int, Run]]:
        first = self._next % channel_count
        count = len(run)
        self._next = (first + count) % channel_count
        deal = _stride if isinstance(run, (ListRun, SelectableRun)) else _slice
        return [
            ((first + offset) % channel_count, deal(run, offset, channel_count))
            # At most one part per record: a run of two never makes five parts.
            for offset in range(min(channel_count, count))
        ]


class RescalePartitioner(RebalancePartitioner):
    """Like rebalance, among the few consumers that a producer is connected to.

    Example:
        >>> RescalePartitioner().split_run(ListRun([1, 2, 3]), 2)
        [(0, ListRun([1, 3], None)), (1, ListRun([2], None))]
    """

    name = "RESCALE"
    is_pointwise = True

    def fresh(self, random: Random) -> Partitioner:
        """Return a partitioner for one writer, which starts at the first channel."""
        return type(self)()


class ShufflePartitioner(Partitioner):
    """Each record goes to a consumer chosen at random.

    Args:
        random: Where the choices come from; None only in a description.
    """

    name = "SHUFFLE"

    def __init__(self, random: Random | None = None) -> None:
        self._random = random

    def fresh(self, random: Random) -> Partitioner:
        """Return a partitioner for one writer."""
        return type(self)(random)

    def _split(self, run: Run, channel_count: int) -> list[tuple[int, Run]]:
        if self._random is None:
            raise IllegalStateError(
                "a shuffle needs chances: split with shuffle.fresh(random)"
            )
        channels = self._random.choices(range(channel_count), k=len(run))
        return _distribute(run, channels, channel_count)


class CustomPartitioner(Partitioner):
    """A user's function says which consumer a key goes to.

    Args:
        function: Called with a key and the number of channels; returns a channel.
        key: Returns the key of a value.
        line: The user's call that gave both.

    Example:
        >>> partitioner = CustomPartitioner(lambda key, count: key % count, abs)
        >>> partitioner.split_run(ListRun([-1, 2, 3]), 2)
        [(0, ListRun([2], None)), (1, ListRun([-1, 3], None))]
    """

    name = "CUSTOM"

    def __init__(
        self,
        function: Callable[[Any, int], int],
        key: Callable[[Any], Any],
        line: str = "",
    ) -> None:
        self.function = function
        self.key = key
        self.line = line

    def fresh(self, random: Random) -> Partitioner:
        """Return a partitioner for one writer."""
        return type(self)(self.function, self.key, self.line)

    def _split(self, run: Run, channel_count: int) -> list[tuple[int, Run]]:
        function, key = self.function, self.key
        channels = [function(key(value), channel_count) for value in run.values]
        _check_channels(channels, channel_count)
        return _distribute(run, channels, channel_count)


class KeyGroupPartitioner(Partitioner):
    """A record goes to the consumer that owns its key's key group.

    Args:
        key: Returns the key of a value.
        max_parallelism: Number of key groups.
        consumer: The keyed operator, as errors name it.
        line: The user's call that gave the key.

    All that are made by `fresh` of one hold their keys to one type.

    Concept:
        Flink, ``KeyGroupStreamPartitioner``.

    Example:
        >>> partitioner = KeyGroupPartitioner(str, max_parallelism=128)
        >>> partitioner.split_run(ListRun(["a", "key1", "a"]), 4)
        [(1, ListRun(['key1'], None)), (2, ListRun(['a', 'a'], None))]
    """

    name = "HASH"

    def __init__(
        self,
        key: Callable[[Any], Any],
        max_parallelism: int,
        consumer: str = "",
        line: str = "",
    ) -> None:
        self.key = key
        self.max_parallelism = max_parallelism
        self.consumer = consumer
        self.line = line
        # Of all writers of a stream: made for the first of them.
        self._agreement: KeyTypeAgreement | None = None
        self._assigner: KeyGroupAssigner | None = None

    def fresh(self, random: Random) -> Partitioner:
        """Return a partitioner for one writer, with a cache of its own."""
        made = type(self)(self.key, self.max_parallelism, self.consumer, self.line)
        self._agreement = made._agreement = self._agreement or KeyTypeAgreement()
        return made

    def __getstate__(self) -> dict[str, Any]:
        # A description travels to other processes; what a writer remembers does not.
        return {**self.__dict__, "_assigner": None, "_agreement": None}

    def _split(self, run: Run, channel_count: int) -> list[tuple[int, Run]]:
        assigner = self._assigner
        if assigner is None or assigner.parallelism != channel_count:
            assigner = KeyGroupAssigner(
                channel_count, self.max_parallelism, agreement=self._agreement
            )
            self._assigner = assigner
        key = self.key
        # A run that can find its keys without rows says so.
        split_by_key = getattr(run, "split_by_key", None)
        if split_by_key is not None:
            try:
                parts: list[tuple[int, Run]] | None = split_by_key(
                    key, assigner.channels
                )
            except KeyTypeError as error:
                raise self._named(error, []) from None
            if parts is not None:
                return parts
        keys = [key(value) for value in run.values]
        try:
            channels = assigner.channels(keys)
        except KeyTypeError as error:
            raise self._named(error, keys) from None
        return _distribute(run, channels, channel_count)

    def _named(self, error: KeyTypeError, keys: list[Any]) -> KeyTypeError:
        """Say at which operator, and that a coroutine is one."""
        where = f"operator {self.consumer!r}" if self.consumer else "key_by"
        coroutines = [key for key in keys if type(key) is CoroutineType]
        # Python would warn of each that was never awaited.
        for coroutine in coroutines:
            coroutine.close()
        reader = _described(self.key)
        if not coroutines:
            problem = str(error).removeprefix("key: ").removesuffix(".")
            named = KeyTypeError(where, f"the key of {reader}: {problem}")
        else:
            named = KeyTypeError(
                where,
                f"{reader} returned a coroutine where a key is expected",
                "A plain function is needed here: do the awaiting in map_async before.",
            )
        # Not that of the operator before it, whose task splits its run here.
        named.operator = self.consumer or None
        return named


def _described(key: Callable[[Any], Any]) -> str:
    """Return the name and line of the function that reads a key."""
    code = getattr(key, "__code__", None)
    if code is None:
        return str(key)
    return f"{code.co_name.strip('<>')} ({code.co_filename}:{code.co_firstlineno})"


def _distribute(
    run: Run, channels: list[int], channel_count: int
) -> list[tuple[int, Run]]:
    """Split a run by the channel of each record."""
    if channel_count <= _COMPARED_MAX and type(run) is ListRun:
        return _distribute_to_few(run, channels, channel_count)
    indices: list[list[int]] = [[] for _ in range(channel_count)]
    for index, channel in enumerate(channels):
        indices[channel].append(index)
    return [
        (channel, run if len(chosen) == len(channels) else take_records(run, chosen))
        for channel, chosen in enumerate(indices)
        if chosen
    ]


def _distribute_to_few(
    run: ListRun, channels: list[int], channel_count: int
) -> list[tuple[int, Run]]:
    """Look at all records once a channel: no step of it is Python's."""
    parts: list[tuple[int, Run]] = []
    timestamps = run.timestamps
    # To compare a byte costs a tenth of what it costs to compare an int.
    numbers = bytes(channels)
    for channel in range(channel_count):
        count = numbers.count(channel)
        if not count:
            continue
        # All to one channel, as runs of one key often are: nothing is copied.
        if count == len(channels):
            parts.append((channel, run))
        else:
            chosen = numbers.translate(_CHOSEN[channel])
            times = None if timestamps is None else list(compress(timestamps, chosen))
            parts.append((channel, ListRun(list(compress(run.values, chosen)), times)))
    return parts


def _stride(run: Run, offset: int, step: int) -> Run:
    if type(run) is not ListRun and isinstance(run, SelectableRun):
        return run.take(list(range(offset, len(run), step)))
    timestamps = run.timestamps
    return ListRun(
        run.values[offset::step],
        None if timestamps is None else timestamps[offset::step],
    )


def _slice(run: Run, offset: int, step: int) -> Run:
    """Return a contiguous part as long as the stride of the same offset would be."""
    length, longer = divmod(len(run), step)
    start = offset * length + min(offset, longer)
    return run.slice(start, start + length + (offset < longer))


def _check_channels(channels: list[Any], channel_count: int) -> None:
    if set(map(type, channels)) == {int} and (
        0 <= min(channels) <= max(channels) < channel_count
    ):
        return
    for channel in channels:
        if not isinstance(channel, int) or not 0 <= channel < channel_count:
            raise InvalidArgumentError(
                "function",
                f"the partitioning function returned {channel!r}",
                f"Return an int from 0 to {channel_count - 1}.",
            )


# Flink's default buffer timeout.
DEFAULT_FLUSH_INTERVAL_MS: Final = 100


class RecordWriter:
    """Writes runs, control elements and events to a partition. Synchronous.

    The writer flushes unfinished buffers: at once if the interval is 0; never by time
    if it is None or -1; else by a timer that is armed only while something waits for
    it. A task also calls `flush_all` before it suspends. If the timer's flush fails,
    the next call here raises its error.

    Args:
        partition: Where to; the writer does not own it.
        partitioner: A description; the writer takes a fresh one.
        flush_interval_ms: See above.
        random: For the start of a rebalance, a shuffle, and latency markers.

    Attributes:
        availability: True while another buffer fits. The results of one record always
            fit; check it between buffers.
        partition: The partition.
        partitioner: The writer's own partitioner.

    Concept:
        Flink, ``RecordWriter``, ``ChannelSelectorRecordWriter``.
    """

    def __init__(
        self,
        partition: OutputPartition,
        partitioner: Partitioner,
        *,
        flush_interval_ms: int | None = DEFAULT_FLUSH_INTERVAL_MS,
        random: Random | None = None,
    ) -> None:
        if flush_interval_ms is not None and flush_interval_ms < -1:
            raise InvalidArgumentError(
                "flush_interval_ms",
                f"{flush_interval_ms} is negative",
                "Use None to flush never by time.",
            )
        self.partition: OutputPartition = partition
        self._random = random or Random()
        self.partitioner: Partitioner = partitioner.fresh(self._random)
        self.availability: Availability = partition.availability
        self._split = self.partitioner.split_run
        self._broadcasts = self.partitioner.is_broadcast
        self._channel_count = partition.subpartition_count
        self._flushes_always = flush_interval_ms == 0
        self._flush_interval_s = (
            flush_interval_ms / 1000
            if flush_interval_ms is not None and flush_interval_ms > 0
            else None
        )
        self._timer: asyncio.TimerHandle | None = None
        self._failure: BaseException | None = None

    def __repr__(self) -> str:
        return f"<RecordWriter {self.partitioner.name} to {self.partition!r}>"

    def emit_run(self, run: Run) -> None:
        """Send records where the partitioner says; an empty run is ignored.

        Raises:
            OverdraftCeilingError: If the pool's ceiling is reached.
            BaseException: The error of a user's key or partitioning function, or of the
                timer's flush.
        """
        if self._failure is not None:
            raise self._failure
        if not len(run):
            return
        if self._broadcasts:
            if self.partition.broadcast_run(run):
                self._on_all_unfinished()
            return
        # Bound once per run, not looked up per channel.
        emit = self.partition.emit_run
        for channel, part in self._split(run, self._channel_count):
            if emit(part, channel):
                self._on_unfinished(channel)

    def emit_control(self, element: Watermark | WatermarkStatus) -> None:
        """Send a watermark or a status to every channel, in order with the records."""
        if self._failure is not None:
            raise self._failure
        if self.partition.broadcast_control(element):
            self._on_all_unfinished()

    def emit_latency_marker(self, marker: LatencyMarker) -> None:
        """Send a latency marker to one channel, chosen at random."""
        if self._failure is not None:
            raise self._failure
        # To one channel only: as Flink's, a marker measures one way through the job.
        channel = self._random.randrange(self._channel_count)
        if self.partition.emit_control(marker, channel):
            self._on_unfinished(channel)

    def broadcast_event(self, event: RuntimeEvent) -> None:
        """Send an event to every channel; a priority event overtakes."""
        if self._failure is not None:
            raise self._failure
        self.partition.broadcast_event(event)

    def notify_end_of_data(self, mode: StopMode) -> None:
        """Tell every consumer that no more records follow. Idempotent."""
        self.partition.notify_end_of_data(mode)

    def finish(self) -> None:
        """Tell every consumer that nothing at all follows. Idempotent."""
        self.partition.finish()

    async def settle(self) -> None:
        """Suspend until what was emitted outlives its task, if that is its nature."""
        await self.partition.settle()

    def flush_all(self) -> None:
        """Let every consumer take what is queued."""
        if self._failure is not None:
            raise self._failure
        self.partition.flush_all()

    def close(self) -> None:
        """Disarm the timer; the partition stays. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._flush_interval_s = None

    def _on_unfinished(self, channel: int) -> None:
        if self._flushes_always:
            self.partition.flush(channel)
        else:
            self._arm_timer()

    def _on_all_unfinished(self) -> None:
        if self._flushes_always:
            self.partition.flush_all()
        else:
            self._arm_timer()

    def _arm_timer(self) -> None:
        # Armed by the first one that waits: nothing ticks in a job that is idle or
        # busy.
        if self._timer is None and self._flush_interval_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._flush_interval_s, self._flush_on_time)

    def _flush_on_time(self) -> None:
        self._timer = None
        # An exception in a timer would vanish into the loop's handler.
        try:
            self.partition.flush_all()
        except Exception as error:  # noqa: BLE001 -- the task trips over it
            self._failure = error
