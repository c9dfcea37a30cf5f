"""Short runs of a channel to another loop become one frame, and nothing overtakes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from aiomailbox.errors import WrongTypeError
from aiomailbox.exchange.frames import BytesSubpartition, ElementReader
from aiomailbox.exchange.partition import ResultPartition
from aiomailbox.ids import PartitionId, TaskId, VertexId
from aiomailbox.memory.local_pool import NetworkBufferPool
from aiomailbox.records import LONG_SERIALIZER, ElementCodec, ListRun
from aiomailbox.records.events import (
    Alignment,
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    StopMode,
    Watermark,
)

CODEC = ElementCodec(LONG_SERIALIZER)
ALIGNED = CheckpointBarrier(1, 0)
UNALIGNED = CheckpointBarrier(1, 0, Alignment.UNALIGNED)


class Kept:
    """Remembers what barriers have overtaken."""

    def __init__(self) -> None:
        self.data: list[bytes] = []

    def add_output_data(
        self, checkpoint_id: int, subpartition_index: int, data: list[bytes]
    ) -> None:
        self.data += data


class Bench:
    """A partition, and all that its readers have taken: records, controls, events."""

    def __init__(self, channels: int = 1) -> None:
        self.partition = ResultPartition(
            PartitionId(TaskId(VertexId(0), 0, 0), 0),
            NetworkBufferPool(64).create_local_pool(32),
            channels,
            remote_channels=range(channels),
            codec=CODEC,
            name="HASH after read before sum",
        )
        self.taken: list[list[Any]] = [[] for _ in range(channels)]
        self.runs: list[list[int]] = [[] for _ in range(channels)]
        self._readers = [ElementReader(CODEC, "it") for _ in range(channels)]
        for subpartition in self.partition.subpartitions:
            subpartition.attach(self)

    def on_data_available(self) -> None: ...

    def on_priority_event(self, sequence_number: int) -> None: ...

    def emit(self, *values: int, channel: int = 0) -> bool:
        return self.partition.emit_run(ListRun([*values]), channel)

    def grow(self) -> None:
        """Let frames have many records, on all channels, as after some runs."""
        for channel in range(len(self.taken)):
            for _ in range(8):
                self.emit(*range(1000), channel=channel)
        self.partition.flush_all()
        self.take()
        for found in (*self.taken, *self.runs):
            found.clear()

    def take(self, channel: int | None = None) -> None:
        """Take all that can be taken."""
        for index, subpartition in enumerate(self.partition.subpartitions):
            if channel in {None, index}:
                assert isinstance(subpartition, BytesSubpartition)
                self._take(index, subpartition)

    def _take(self, index: int, subpartition: BytesSubpartition) -> None:
        found = self.taken[index]
        while subpartition.is_available() and (polled := subpartition.poll()):
            buffer = self._readers[index].read(polled.buffer)
            polled.buffer.recycle()
            if buffer is None:
                continue
            if buffer.event is not None:
                found.append(buffer.event)
                if buffer.event.blocks_upstream:
                    subpartition.resume_consumption()
            for element in buffer.elements:
                if isinstance(element, ListRun):
                    self.runs[index].append(len(element))
                    stamps = element.timestamps or [None] * len(element)
                    found += zip(element.values, stamps, strict=True)
                else:
                    found.append(element)


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.grow()
    return made


def records(*values: int) -> list[tuple[int, None]]:
    return [(value, None) for value in values]


def test_short_runs_become_one_frame_at_a_flush(bench: Bench) -> None:
    assert [bench.emit(1, 2), bench.emit(3), bench.emit(4, 5)] == [True] * 3
    bench.take()
    assert bench.taken == [[]]
    assert bench.partition.has_unflushed_data
    bench.partition.flush(0)
    assert not bench.partition.has_unflushed_data
    bench.take()
    assert bench.taken == [records(1, 2, 3, 4, 5)]
    assert bench.runs == [[5]]


def test_they_do_not_become_longer_than_a_run_may_be(bench: Bench) -> None:
    for _ in range(5):
        bench.emit(*range(400))
    bench.partition.flush_all()
    bench.take()
    assert bench.runs == [[800, 800, 400]]


def test_records_with_and_without_event_times_stay_apart(bench: Bench) -> None:
    partition = bench.partition
    bench.emit(1)
    partition.emit_run(ListRun([2], [20]), 0)
    partition.emit_run(ListRun([3, 4], [30, 40]), 0)
    bench.emit(5)
    partition.flush_all()
    bench.take()
    assert bench.taken == [[(1, None), (2, 20), (3, 30), (4, 40), (5, None)]]
    assert bench.runs == [[1, 3, 1]]


def test_runs_are_not_changed_for_those_that_share_them(bench: Bench) -> None:
    first, second = ListRun([1], [10]), ListRun([2], [20])
    bench.partition.emit_run(first, 0)
    bench.partition.emit_run(second, 0)
    bench.partition.flush_all()
    assert (first.values, first.timestamps) == ([1], [10])
    assert (second.values, second.timestamps) == ([2], [20])


WAYS: dict[str, tuple[Callable[[ResultPartition], object], list[Any]]] = {
    "control": (lambda to: to.emit_control(Watermark(7), 0), [Watermark(7)]),
    "broadcast control": (
        lambda to: to.broadcast_control(Watermark(7)),
        [Watermark(7)],
    ),
    "broadcast run": (lambda to: to.broadcast_run(ListRun([9])), records(9)),
    "barrier": (lambda to: to.broadcast_event(ALIGNED), [ALIGNED]),
    "end of data": (
        lambda to: to.notify_end_of_data(StopMode.DRAIN),
        [EndOfData(StopMode.DRAIN)],
    ),
    "end": (lambda to: to.finish(), [EndOfPartition()]),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_follows_on_the_channel_comes_behind_them(bench: Bench, way: str) -> None:
    send, expected = WAYS[way]
    bench.emit(1, 2)
    bench.emit(3)
    send(bench.partition)
    bench.partition.flush_all()
    bench.take()
    assert bench.taken == [[*records(1, 2, 3), *expected]]


def test_a_barrier_that_overtakes_them_keeps_them(bench: Bench) -> None:
    kept = Kept()
    bench.partition.keep_in_flight(kept, CODEC)  # type: ignore[arg-type]
    bench.emit(1, 2)
    bench.emit(3)
    bench.partition.broadcast_event(UNALIGNED)
    bench.take()
    bench.partition.flush_all()
    bench.take()
    assert bench.taken == [[UNALIGNED, *records(1, 2, 3)]]
    (data,) = kept.data
    (run,) = [
        CODEC.decode(record)
        for record in ElementReader(CODEC, "kept")._deserializer.records(data)
    ]
    assert isinstance(run, ListRun)
    assert run.values == [1, 2, 3]


def test_what_a_reader_that_has_left_would_get_is_dropped(bench: Bench) -> None:
    bench.emit(1)
    bench.partition.subpartitions[0].release()
    assert not bench.partition.has_unflushed_data
    assert not bench.emit(2)
    bench.partition.flush_all()
    bench.partition.finish()


def test_an_error_names_the_exchange_and_comes_again(bench: Bench) -> None:
    bench.emit(1)
    bench.partition.emit_run(ListRun(["no number"]), 0)
    for send in (
        lambda: bench.partition.flush_all(),
        lambda: bench.partition.broadcast_event(UNALIGNED),
        lambda: bench.partition.broadcast_event(ALIGNED),
    ):
        with pytest.raises(WrongTypeError) as caught:
            send()
        assert caught.value.__notes__ == ["in HASH after read before sum"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["run", "timed", "all", "control", "event", "flush", "take"]
            ),
            st.integers(0, 2),
            st.integers(1, 700),
        ),
        max_size=40,
    )
)
def test_each_reader_gets_all_in_order(steps: list[tuple[str, int, int]]) -> None:
    bench = Bench(3)
    partition = bench.partition
    sent: list[list[Any]] = [[], [], []]
    number = 0
    for kind, channel, count in steps:
        values = list(range(number, number + count))
        number += count
        match kind:
            case "run":
                partition.emit_run(ListRun(values), channel)
                sent[channel] += records(*values)
            case "timed":
                partition.emit_run(ListRun(values, values), channel)
                sent[channel] += zip(values, values, strict=True)
            case "all":
                partition.broadcast_run(ListRun(values))
                for each in sent:
                    each += records(*values)
            case "control":
                partition.broadcast_control(Watermark(number))
                for each in sent:
                    each.append(Watermark(number))
            case "event":
                barrier = CheckpointBarrier(number, 0)
                partition.broadcast_event(barrier)
                for each in sent:
                    each.append(barrier)
            case "flush":
                partition.flush(channel)
            case _:
                bench.take(channel)
    partition.finish()
    bench.take()
    assert bench.taken == [[*each, EndOfPartition()] for each in sent]
