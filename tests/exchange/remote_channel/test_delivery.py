"""The law of delivery: all of it, once, in order per channel, in steps of any order."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from aiomailbox.records.events import (
    CancelCheckpoint,
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    StopMode,
    Watermark,
)
from aiomailbox.records.run import ListRun

_SIZES = st.one_of(st.integers(0, 200), st.sampled_from([5_000, 200 * 1024]))
_EMISSION = st.one_of(
    st.tuples(st.just("run"), st.lists(_SIZES, min_size=1, max_size=5)),
    st.tuples(st.just("control"), st.integers(-5, 5)),
    st.tuples(st.just("event"), st.integers(0, 5)),
    st.tuples(st.just("barrier"), st.integers(0, 5)),
    st.tuples(st.just("flush"), st.none()),
)


def _emit(partition: Any, channel: int, kind: str, what: Any, taken: list[Any]) -> None:
    if kind == "run":
        values = [bytes([size % 251]) * size for size in what]
        partition.emit_run(ListRun(values), channel)
        taken += values
    elif kind == "control":
        partition.emit_control(Watermark(what), channel)
        taken.append(Watermark(what))
    elif kind == "flush":
        partition.flush(channel)
    else:
        event = (
            CancelCheckpoint(what) if kind == "event" else CheckpointBarrier(what, 0)
        )
        partition.broadcast_event(event)
        taken.append(event)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    emissions=st.lists(_EMISSION, max_size=25),
    seed=st.integers(0, 2**16),
    exclusive=st.integers(0, 3),
    floating=st.integers(1, 4),
    segment=st.sampled_from([256, 1000, 32 * 1024]),
)
def test_everything_arrives_once_and_in_order(
    new_job: Any,
    content_of: Any,
    emissions: list[tuple[str, Any]],
    seed: int,
    exclusive: int,
    floating: int,
    segment: int,
) -> None:
    random = Random(seed)
    job = new_job(
        segment_size_bytes=segment, exclusive=exclusive, floating=floating, segments=16
    )
    job.gate.request_partitions()
    sent: list[Any] = []
    read: list[Any] = []

    def progress() -> bool:
        moved = job.step(random)
        if exclusive:
            job.assert_credit()
        if random.random() < 0.3 or not moved:
            polled = job.gate.poll_next()
            if polled is not None:
                read.extend(content_of(polled[1]))
                if isinstance(read[-1], CheckpointBarrier):
                    job.gate.resume_consumption(0)
                return True
            # A poll of half a record gives nothing, but its credit goes back.
            moved = moved or job.step(random)
        return moved

    for kind, what in emissions:
        while not job.partition.availability.available:
            job.partition.flush_all()
            assert progress(), "nothing moves although the producer waits"
        _emit(job.partition, 1, kind, what, sent)
        for _ in range(random.randrange(4)):
            progress()
    job.partition.notify_end_of_data(StopMode.DRAIN)
    job.partition.finish()
    while not job.gate.is_finished:
        assert progress(), f"nothing moves any more after {len(read)} elements"
    assert read == [*sent, EndOfData(StopMode.DRAIN), EndOfPartition()]
    job.partition.release()
    job.assert_all_returned()


@pytest.mark.parametrize("seed", range(20))
def test_a_failure_at_any_moment_leaves_nothing_behind(new_job: Any, seed: int) -> None:
    random = Random(seed)
    job = new_job(2, (0, 1))
    job.gate.request_partitions()
    for number in range(random.randrange(1, 30)):
        job.emit(number, "x" * random.randrange(300), producer=number % 2)
        for _ in range(random.randrange(6)):
            job.step(random)
            job.assert_credit()
        if random.random() < 0.3:
            polled = job.gate.poll_next()
            if polled is not None:
                polled[1].recycle()
    ends = [
        lambda: job.partitions[0].release(ValueError("operator")),
        lambda: job.partitions[1].release(ValueError("operator")),
        lambda: job.gate.close(),
    ]
    random.shuffle(ends)
    for end in ends:
        end()
        for _ in range(random.randrange(6)):
            job.step(random)
    job.assert_all_returned()
