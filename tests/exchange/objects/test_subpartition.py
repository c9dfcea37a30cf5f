"""The notification tables of a subpartition; buffers are sealed where Flink's finish."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aiomailbox.errors import IllegalStateError
from aiomailbox.exchange.core.contract import ObjectBuffer, decode_in_flight
from aiomailbox.exchange.core.subpartition import Producer, SubpartitionView
from aiomailbox.exchange.partition import PipelinedSubpartition
from aiomailbox.ids import PartitionId, TaskId, VertexId
from aiomailbox.memory.local_pool import LocalBufferPool
from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.records.events import (
    NO_ALIGNED_TIMEOUT,
    Alignment,
    CancelCheckpoint,
    CheckpointBarrier,
    SnapshotType,
)
from aiomailbox.records.run import ListRun
from aiomailbox.records.run_columns import PythonSerializer

Data = Callable[..., ObjectBuffer]


EVENT = CancelCheckpoint(1)
CODEC = ElementCodec(PythonSerializer())


def barrier(
    alignment: Alignment = Alignment.ALIGNED, checkpoint_id: int = 1
) -> CheckpointBarrier:
    may_wait = alignment is Alignment.ALIGNED
    timeout_ms = 100 if may_wait else NO_ALIGNED_TIMEOUT
    return CheckpointBarrier(checkpoint_id, 0, alignment, aligned_timeout_ms=timeout_ms)


class Kept:
    """Remembers what was kept, per call."""

    def __init__(self) -> None:
        self.log: list[Any] = []

    def add_output_data(self, checkpoint_id: int, index: int, data: Any) -> None:
        self.log.append(("add", checkpoint_id, lengths(data)))

    def expect_output_data(self, checkpoint_id: int, index: int) -> None:
        self.log.append(("expect", checkpoint_id))

    def complete_output_data(self, checkpoint_id: int, index: int, data: Any) -> None:
        self.log.append(("done", checkpoint_id, lengths(data)))

    def fail_output_data(
        self, checkpoint_id: int, index: int, error: BaseException
    ) -> None:
        self.log.append(("fail", checkpoint_id, type(error)))


def lengths(data: list[bytes]) -> list[int]:
    """The lengths of the runs that were kept."""
    runs = decode_in_flight(CODEC, data)
    return [len(run) for run in runs if isinstance(run, ListRun)]


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def unread(pool: LocalBufferPool, kept: Kept) -> PipelinedSubpartition:
    """A subpartition without a reader."""
    partition_id = PartitionId(TaskId(VertexId(0), 0, 0), 0)
    subpartition = PipelinedSubpartition(0, Producer(partition_id, pool))
    subpartition.keep_in_flight(kept, CODEC)
    return subpartition


@pytest.fixture
def subpartition(unread: PipelinedSubpartition, listener: Any) -> PipelinedSubpartition:
    unread.attach(listener)
    return unread


def view_of(
    subpartition: PipelinedSubpartition,
    listener: Any,
    let_go: Callable[[], None] = lambda: None,
) -> SubpartitionView[Any]:
    return SubpartitionView(
        subpartition, listener, on_acknowledged=lambda: None, on_released=let_go
    )


def time_out(subpartition: PipelinedSubpartition, checkpoint_id: int) -> bool:
    """Let a barrier overtake, and say whether it could."""
    overtaken = subpartition.before_barrier(checkpoint_id)
    if overtaken is None:
        return False
    subpartition.time_out_barrier(checkpoint_id, overtaken)
    return True


def poll_count(subpartition: PipelinedSubpartition) -> int | None:
    polled = subpartition.poll()
    return None if polled is None else polled.buffer.record_count


def test_net_91_an_empty_unfinished_buffer_tells_nobody_and_gives_nothing(
    subpartition: PipelinedSubpartition, listener: Any, data: Data
) -> None:
    subpartition.add(data(0, sealed=False))
    assert subpartition.poll() is None
    assert listener.data == 0


def test_net_92_empty_buffers_are_dropped_and_told_about_once(
    subpartition: PipelinedSubpartition,
    listener: Any,
    data: Data,
    pool: LocalBufferPool,
) -> None:
    subpartition.add(data(0, sealed=False))
    subpartition.seal_last()
    subpartition.add(data(0, sealed=False))
    assert (listener.data, subpartition.backlog) == (1, 1)
    assert subpartition.poll() is None
    assert (subpartition.backlog, pool.outstanding) == (0, 1)


def test_net_93_an_unfinished_buffer_is_no_backlog_yet_can_be_polled(
    subpartition: PipelinedSubpartition, listener: Any, data: Data
) -> None:
    subpartition.add(data(4, sealed=False))
    assert (subpartition.backlog, listener.data) == (0, 0)
    polled = subpartition.poll()
    assert polled is not None
    assert (polled.buffer.record_count, polled.more_available) == (4, False)
    assert polled.buffer.is_sealed


def test_net_94_a_finished_buffer_is_told_and_the_unfinished_one_behind_it_is_not_more(
    subpartition: PipelinedSubpartition, listener: Any, data: Data
) -> None:
    subpartition.add(data(5))
    subpartition.add(data(4, sealed=False))
    assert (subpartition.backlog, listener.data) == (1, 1)
    polled = subpartition.poll()
    assert polled is not None
    assert (polled.buffer.record_count, polled.more_available) == (5, False)
    assert poll_count(subpartition) == 4


def test_net_95_a_flush_behind_a_finished_buffer_makes_more_without_telling_again(
    subpartition: PipelinedSubpartition, listener: Any, data: Data
) -> None:
    subpartition.add(data(5))
    subpartition.add(data(4, sealed=False))
    subpartition.flush()
    assert (subpartition.backlog, listener.data) == (2, 1)
    polled = subpartition.poll()
    assert polled is not None
    assert (polled.more_available, subpartition.backlog) == (True, 1)


def test_net_96_flushing_twice_tells_once(
    subpartition: PipelinedSubpartition, listener: Any, data: Data
) -> None:
    subpartition.add(data(4, sealed=False))
    subpartition.flush()
    subpartition.flush()
    assert (listener.data, subpartition.backlog) == (1, 1)


def test_net_97_polling_skips_empty_finished_buffers(
    subpartition: PipelinedSubpartition, listener: Any, data: Data
) -> None:
    for _ in range(3):
        subpartition.add(data(0))
    subpartition.add(data(4, sealed=False))
    assert listener.data == 1
    assert poll_count(subpartition) == 4


def test_net_98_flushing_an_empty_queue_does_nothing(
    subpartition: PipelinedSubpartition, listener: Any, data: Data
) -> None:
    subpartition.flush()
    subpartition.add(data(4, sealed=False))
    assert (listener.data, subpartition.backlog) == (0, 0)


def test_a_flush_that_found_nothing_is_forgotten_once_polled(
    subpartition: PipelinedSubpartition, listener: Any, data: Data
) -> None:
    subpartition.add(data(0))
    unfinished = data(0, sealed=False)
    subpartition.add(unfinished)
    subpartition.flush()
    assert subpartition.poll() is None
    assert not subpartition.is_available()
    unfinished.append_run(ListRun([1]), 1, 1)
    assert (subpartition.is_available(), subpartition.has_unflushed_data) == (
        False,
        True,
    )
    told = listener.data
    subpartition.flush()
    assert listener.data == told + 1
    assert not subpartition.has_unflushed_data


def test_flushing_an_empty_unfinished_buffer_asks_for_nothing(
    subpartition: PipelinedSubpartition, listener: Any, data: Data
) -> None:
    subpartition.add(data(0, sealed=False))
    subpartition.flush()
    assert (listener.data, subpartition.is_available()) == (0, False)


def test_net_99_an_event_can_be_taken_without_credit_and_totals_grow_by_polling(
    subpartition: PipelinedSubpartition, data: Data
) -> None:
    subpartition.add(data(2))
    subpartition.add_event(EVENT)
    subpartition.add(data(3, sealed=False))
    assert subpartition.bytes_total == 0
    polled = subpartition.poll()
    assert polled is not None
    assert subpartition.backlog == 0
    assert subpartition.is_available(has_credit=False)
    assert subpartition.records_total == 2
    assert subpartition.bytes_total == polled.buffer.size_bytes > 0


def test_net_100_an_unaligned_barrier_overtakes_and_finds_what_is_in_flight(
    subpartition: PipelinedSubpartition, listener: Any, data: Data, kept: Kept
) -> None:
    subpartition.add(data(1))
    subpartition.add(data(2))
    subpartition.add_event(EVENT)
    subpartition.add(data(4))
    in_flight = subpartition.in_flight()
    assert lengths(in_flight) == [1, 2, 4]
    subpartition.add_event(barrier(Alignment.UNALIGNED), overtaken=in_flight)
    assert listener.priority == [0]
    assert kept.log == [("add", 1, [1, 2, 4])]
    first = subpartition.poll()
    assert first is not None
    assert isinstance(first.buffer.event, CheckpointBarrier)
    assert not subpartition.is_blocked
    assert [poll_count(subpartition) for _ in range(5)] == [1, 2, 0, 4, None]


def test_net_101_a_barrier_then_data_are_told_separately(
    subpartition: PipelinedSubpartition, listener: Any, data: Data
) -> None:
    subpartition.add_event(barrier(Alignment.UNALIGNED))
    assert (listener.data, listener.priority) == (0, [0])
    subpartition.poll()
    subpartition.add(data(1))
    assert (listener.data, listener.priority) == (1, [0])


def test_a_second_priority_event_is_not_told_while_the_first_one_waits(
    subpartition: PipelinedSubpartition, listener: Any
) -> None:
    subpartition.add_event(barrier(Alignment.UNALIGNED, 1))
    subpartition.add_event(barrier(Alignment.UNALIGNED, 2))
    assert listener.priority == [0]
    polled = subpartition.poll()
    assert polled is not None
    assert (polled.more_available, polled.next_is_priority) == (True, True)


@pytest.mark.parametrize(
    ("sealed", "flushed", "finished", "backlog"),
    [
        (False, False, False, 2),
        (True, False, False, 3),
        (False, True, False, 3),
        (False, False, True, 3),
    ],
)
def test_net_102_the_backlog_is_what_can_be_polled(
    subpartition: PipelinedSubpartition,
    data: Data,
    sealed: bool,
    flushed: bool,
    finished: bool,
    backlog: int,
) -> None:
    subpartition.add(data(1))
    subpartition.add(data(1))
    subpartition.add(data(1, sealed=sealed))
    if flushed:
        subpartition.flush()
    if finished:
        subpartition.finish()
    assert subpartition.backlog == backlog


@pytest.mark.parametrize("what", ["event", "flushed", "two", "nothing"])
def test_net_103_a_blocked_queue_tells_nobody_and_resuming_finds_what_came(
    subpartition: PipelinedSubpartition, listener: Any, data: Data, what: str
) -> None:
    subpartition.add_event(barrier())
    polled = subpartition.poll()
    assert polled is not None
    assert (subpartition.backlog, polled.more_available) == (0, False)
    told = listener.data
    if what == "event":
        subpartition.add_event(EVENT)
    elif what == "flushed":
        subpartition.add(data(1, sealed=False))
        subpartition.flush()
    elif what == "two":
        subpartition.add(data(1))
        subpartition.add(data(1, sealed=False))
    assert listener.data == told
    assert subpartition.poll() is None
    assert (subpartition.backlog, subpartition.is_available()) == (0, False)
    assert not subpartition.is_available(has_credit=False)
    subpartition.resume_consumption()
    assert subpartition.is_available() is (what != "nothing")
    assert subpartition.is_available(has_credit=False) is (what == "event")


def test_resuming_what_is_not_blocked_is_refused(
    subpartition: PipelinedSubpartition,
) -> None:
    with pytest.raises(IllegalStateError, match="not blocked"):
        subpartition.resume_consumption()


def test_net_104_a_release_recycles_what_is_queued_and_ends_the_view(
    unread: PipelinedSubpartition, listener: Any, data: Data, pool: LocalBufferPool
) -> None:
    subpartition, view = unread, view_of(unread, listener)
    subpartition.add(data(1))
    subpartition.add(data(1, sealed=False))
    subpartition.release()
    subpartition.release()
    assert (pool.outstanding, subpartition.queued_buffers) == (0, 0)
    assert (subpartition.statistics().queued_bytes, view.is_released) == (0, True)
    assert subpartition.poll() is None


@pytest.mark.parametrize("ending", ["finish", "release"])
def test_net_105_a_buffer_added_after_the_end_is_recycled(
    subpartition: PipelinedSubpartition,
    data: Data,
    pool: LocalBufferPool,
    ending: str,
) -> None:
    if ending == "finish":
        subpartition.finish()
    else:
        subpartition.release()
    assert not subpartition.add(data(1))
    assert pool.outstanding == 0


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_net_107_a_barrier_that_was_polled_in_time_cannot_time_out_any_more(
    subpartition: PipelinedSubpartition, data: Data, kept: Kept, ahead: int
) -> None:
    for _ in range(ahead):
        subpartition.add(data(1))
    subpartition.add_event(barrier())
    for _ in range(ahead + 1):
        subpartition.poll()
    assert not time_out(subpartition, 1)
    assert subpartition.is_blocked
    assert kept.log == [("expect", 1), ("done", 1, [])]


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_net_108_a_barrier_that_times_out_overtakes_and_does_not_block(
    subpartition: PipelinedSubpartition,
    listener: Any,
    data: Data,
    kept: Kept,
    ahead: int,
) -> None:
    for _ in range(ahead):
        subpartition.add(data(1))
    subpartition.add_event(barrier())
    subpartition.add(data(7))
    assert time_out(subpartition, 1)
    assert listener.priority == [0]
    assert kept.log == [("expect", 1), ("done", 1, [1] * ahead)]
    polled = subpartition.poll()
    assert polled is not None
    assert polled.buffer.event == CheckpointBarrier(1, 0, Alignment.UNALIGNED)
    rest = [poll_count(subpartition) for _ in range(ahead + 1)]
    assert rest == [1] * ahead + [7]


def test_net_110_only_the_barrier_of_that_checkpoint_times_out(
    subpartition: PipelinedSubpartition,
) -> None:
    subpartition.add_event(barrier(checkpoint_id=2))
    assert not time_out(subpartition, 1)
    assert time_out(subpartition, 2)
    assert not time_out(subpartition, 2)


def test_a_barrier_that_times_out_keeps_its_type_and_its_place(
    subpartition: PipelinedSubpartition,
) -> None:
    full = CheckpointBarrier(
        3,
        17,
        snapshot_type=SnapshotType.FULL_CHECKPOINT,
        aligned_timeout_ms=100,
        location=b"there",
    )
    subpartition.add_event(full)
    assert time_out(subpartition, 3)
    polled = subpartition.poll()
    assert polled is not None
    assert polled.buffer.event == full.as_unaligned()
    assert not subpartition.is_blocked


@pytest.mark.parametrize(
    "waits",
    [
        CheckpointBarrier(1, 0, Alignment.ALIGNED, SnapshotType.SAVEPOINT_NATIVE, 100),
        CheckpointBarrier(1, 0, Alignment.FORCED_ALIGNED, aligned_timeout_ms=100),
        CheckpointBarrier(1, 0, Alignment.AT_LEAST_ONCE),
    ],
)
def test_a_barrier_that_must_not_overtake_stays_where_it_is(
    subpartition: PipelinedSubpartition, data: Data, waits: CheckpointBarrier
) -> None:
    subpartition.add(data(1))
    subpartition.add_event(waits)
    assert not time_out(subpartition, 1)
    assert poll_count(subpartition) == 1


def test_a_barrier_of_at_least_once_stops_nobody(
    subpartition: PipelinedSubpartition, data: Data
) -> None:
    subpartition.add_event(barrier(Alignment.AT_LEAST_ONCE))
    subpartition.add(data(2))
    assert poll_count(subpartition) == 0
    assert not subpartition.is_blocked
    assert poll_count(subpartition) == 2


def test_net_111_a_second_view_is_refused(
    subpartition: PipelinedSubpartition, listener: Any
) -> None:
    with pytest.raises(IllegalStateError, match="view already"):
        view_of(subpartition, listener)
    subpartition.release()
    with pytest.raises(IllegalStateError, match="released"):
        view_of(subpartition, listener)


def test_net_113_sealing_the_last_buffer_tells_the_consumer(
    subpartition: PipelinedSubpartition, listener: Any, data: Data
) -> None:
    buffer = data(1, sealed=False)
    subpartition.add(buffer)
    assert listener.data == 0
    subpartition.seal_last()
    subpartition.seal_last()
    assert (listener.data, buffer.is_sealed) == (1, True)


def test_finishing_always_tells_the_consumer(
    subpartition: PipelinedSubpartition, listener: Any, data: Data
) -> None:
    subpartition.add(data(1))
    subpartition.finish()
    subpartition.finish()
    assert (listener.data, subpartition.queued_buffers) == (2, 2)


def test_adding_behind_an_unfinished_buffer_is_refused(
    subpartition: PipelinedSubpartition, data: Data
) -> None:
    subpartition.add(data(1, sealed=False))
    with pytest.raises(IllegalStateError, match="unfinished"):
        subpartition.add(data(1))


def test_a_taken_unfinished_buffer_hands_over_its_very_list(
    subpartition: PipelinedSubpartition, data: Data
) -> None:
    buffer = data(3, sealed=False)
    elements = buffer.elements
    subpartition.add(buffer)
    subpartition.flush()
    polled = subpartition.poll()
    assert polled is not None
    assert polled.buffer.elements is elements
    assert polled.buffer.elements[0].values == ListRun([0, 1, 2]).values


def test_sequence_numbers_count_every_polled_buffer_and_wrap(
    subpartition: PipelinedSubpartition, data: Data
) -> None:
    subpartition._sequence_number = 2**32 - 1
    subpartition.add(data(1))
    subpartition.add_event(EVENT)
    numbers = [subpartition.poll(), subpartition.poll()]
    assert [polled and polled.sequence_number for polled in numbers] == [2**32 - 1, 0]


def test_a_view_lets_go_once_and_is_told_nothing_more(
    unread: PipelinedSubpartition, data: Data, pool: LocalBufferPool, listener: Any
) -> None:
    let_go: list[None] = []
    subpartition = unread
    view = view_of(unread, listener, lambda: let_go.append(None))
    subpartition.add(data(1))
    told = listener.data
    view.release()
    view.release()
    assert (len(let_go), listener.data, pool.outstanding) == (1, told, 0)
    assert not subpartition.add(data(1))
    assert pool.outstanding == 0


def test_the_channel_state_hears_once_how_a_barrier_ends(
    subpartition: PipelinedSubpartition, kept: Kept
) -> None:
    subpartition.add_event(barrier())
    subpartition.add_event(barrier(checkpoint_id=2))
    assert kept.log[1:] == [("fail", 1, IllegalStateError), ("expect", 2)]
    subpartition.poll()
    subpartition.resume_consumption()
    subpartition.poll()
    subpartition.resume_consumption()
    assert kept.log[3:] == [("done", 2, [])]
    for number, ends in (
        (3, lambda: subpartition.abort_checkpoint(3, RuntimeError("aborted"))),
        (4, lambda: subpartition.release(RuntimeError("released"))),
    ):
        kept.log.clear()
        subpartition.add_event(barrier(checkpoint_id=number))
        ends()
        ends()
        assert kept.log == [("expect", number), ("fail", number, RuntimeError)]
