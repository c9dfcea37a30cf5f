"""What snapshots of a keyed operator cost it, and when that ends."""

from __future__ import annotations

from typing import Any

import pytest

from aiomailbox.operators.functions.process import (
    KeyedProcessFunction,
    KeyedProcessOperator,
)
from aiomailbox.operators.keyed.operators import KeyedReduceOperator
from aiomailbox.operators.snapshots.codec import decode_snapshot, encode_snapshot
from aiomailbox.state.backends import RocksDBStateBackend
from aiomailbox.state.descriptors import ValueStateDescriptor
from aiomailbox.testing import OneInputHarness

LAST = ValueStateDescriptor("last", default=0)


class Timed(KeyedProcessFunction):
    """Keeps a number per key, and a timer of either kind."""

    def process_element(self, value: int, context: Any, out: Any) -> None:
        context.keyed_state.get_value(LAST).update(value)
        context.timer_service.register_event_time_timer(value + 10**6)
        context.timer_service.register_processing_time_timer(value + 10**6)
        out.collect(value)

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        out.collect(("timer", timestamp))


def timed() -> OneInputHarness:
    return OneInputHarness(
        KeyedProcessOperator(lambda value: value, Timed()), keyed=True
    )


def has_snapshot(harness: OneInputHarness) -> bool:
    operator: Any = harness.operator
    return any(one.has_snapshot for one in operator.layered())


def let_time_pass(harness: OneInputHarness, now: int, steps: int = 400) -> int:
    for _ in range(steps):
        now += 10
        harness.set_processing_time(now)
    return now


def test_a_snapshot_costs_until_it_is_dropped_and_a_moment_longer() -> None:
    with timed() as harness:
        harness.process_run([*range(20_000)])
        assert not has_snapshot(harness)
        snapshot = harness.snapshot()
        assert has_snapshot(harness)
        harness.process_run([*range(10_000, 30_000)])
        now = let_time_pass(harness, 0)
        assert has_snapshot(harness), "somebody may still read it"
        kept = encode_snapshot(snapshot)
        del snapshot
        let_time_pass(harness, now)
        assert not has_snapshot(harness)
    again = timed()
    again.restore(decode_snapshot(kept))
    with again:
        assert again.operator.context.keyed_state.estimated_keys() == 20_000


def test_a_snapshot_that_nobody_takes_costs_a_moment() -> None:
    with timed() as harness:
        harness.process_run([*range(100)])
        for _ in range(50):
            harness.snapshot()
        harness.process_run([*range(200)])
        let_time_pass(harness, 0, steps=10)
        assert not has_snapshot(harness)


def test_nothing_settles_in_the_middle_of_a_run_or_after_the_end() -> None:
    harness = OneInputHarness(
        KeyedReduceOperator(
            lambda pair: pair[0], lambda one, other: (one[0], one[1] + 1)
        ),
        keyed=True,
    )
    with harness:
        harness.process_run([(key, 0) for key in range(1000)])
        harness.snapshot()
        harness.process_run([(key, 0) for key in range(1000)])
        let_time_pass(harness, 0, steps=3)
        harness.process_run([(key, 0) for key in range(1000)])
        assert harness.values[-1] == (999, 2)
        harness.snapshot()
    harness.context.manual_time.set_current_time(10_000)


@pytest.mark.parametrize("backend", [None, RocksDBStateBackend(memory_bytes=1 << 22)])
def test_an_operator_is_restored_in_pieces(backend: Any) -> None:
    with timed() as harness:
        harness.process_run([*range(10_000)])
        kept = decode_snapshot(encode_snapshot(harness.snapshot()))
    settings = {} if backend is None else {"state_backend": backend}
    again = OneInputHarness(
        KeyedProcessOperator(lambda value: value, Timed()), keyed=True, **settings
    )
    pieces = sum(1 for _ in again.operator.restoring(kept))
    assert pieces >= 3 * 10_000 // 1024
    with again:
        again.process_watermark(2 * 10**6)
        assert len(again.values) == 10_000
        again.process_run([9_999])
        again.process_watermark(3 * 10**6)
        assert again.values[-1] == ("timer", 10**6 + 9_999)
