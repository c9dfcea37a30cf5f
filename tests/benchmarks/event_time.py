"""Sliding and session windows and timers, beside what they are compared with."""

from __future__ import annotations

import time
from typing import Any

import aiomailbox as am
from aiomailbox.eventtime.timers import Timer
from aiomailbox.testing import TestRuntimeContext
from tests.benchmarks import plain
from tests.benchmarks.measure import OURS, Report, Row, System, compare
from tests.benchmarks.records import (
    JITTER_MS,
    RECORDS_PER_MS,
    jittered,
    key_of,
    time_of,
    value_of,
)

# The loop that the targets in records per second were written for.
_PLAIN_PER_S = 2_500_000
_SESSIONS_PER_S = 150_000
_TIMERS_S = 3.0


def windows(count: int, assigner: Any) -> int:
    """Sum per key and window; return how many records there were."""
    env = am.StreamExecutionEnvironment()
    strategy = am.WatermarkStrategy.for_bounded_out_of_orderness(
        am.millis(JITTER_MS)
    ).with_timestamp_assigner(time_of)
    stream = env.from_collection(jittered(count), strategy).key_by(key_of)
    am.run(stream.window(assigner).aggregate(am.sum_(value_of)).count())
    return count


def timers(count: int) -> int:
    """Register a timer per record, of a key of its own, and let all of them fire."""
    fired = 0

    class Target:
        def on_event_time(self, timer: Timer) -> None:
            nonlocal fired
            fired += 1

        def on_processing_time(self, timer: Timer) -> None:
            pass

    context = TestRuntimeContext("timers", keyed=True)
    service = context.timer_service(Target())
    register = service.register_event_time_timer
    for number in range(count):
        register(number, None, number * 7919 % count)
    service.advance_watermark(count)
    return fired


def reports(records: int, rounds: int) -> list[Report]:
    """Measure all of them."""
    return [_sliding(records, rounds), _sessions(records, rounds), _timers(records)]


def _sliding(records: int, rounds: int) -> Report:
    report = Report("W9", "sliding windows of 10 s, one per second, beside tumbling")
    sliding = f"{OURS}, sliding 10 s / 1 s"
    systems = [
        System(
            f"{OURS}, tumbling 10 s",
            lambda n: windows(n, am.TumblingEventTimeWindows.of(am.seconds(10))),
        ),
        System(
            sliding,
            lambda n: windows(
                n, am.SlidingEventTimeWindows.of(am.seconds(10), am.seconds(1))
            ),
        ),
    ]
    report.rows = compare("W9", systems, records, rounds, computes=True)
    cost = 1 / report.ratio(sliding)
    report.judge(
        f"{OURS}: {cost:.2f} x tumbling per record, wanted at most 3", reached=cost <= 3
    )
    return report


def _sessions(records: int, rounds: int) -> Report:
    report = Report("W10", "a session window per key, gap of 3 s")
    gap = am.EventTimeSessionWindows.with_gap(am.seconds(3))
    systems = [
        System("plain tumbling loop", lambda n: plain.w3(n, RECORDS_PER_MS) and n),
        System(OURS, lambda n: windows(n, gap)),
    ]
    report.rows = compare("W10", systems, records, rounds, computes=True)
    report.at_least(round(_SESSIONS_PER_S / _PLAIN_PER_S, 3), "plain")
    return report


def _timers(records: int) -> Report:
    report = Report("W11", "event-time timers, registered and fired")
    timers(1000)
    started = time.perf_counter()
    assert timers(records) == records, "all of them fire"
    seconds = time.perf_counter() - started
    started = time.perf_counter()
    plain.w1(records)
    loop = time.perf_counter() - started
    report.rows = [
        Row("W11", "plain loop of W1", records, loop, 1.0),
        Row("W11", OURS, records, seconds, loop / seconds),
    ]
    bound = _TIMERS_S * _PLAIN_PER_S / 1_000_000
    report.judge(
        f"{OURS}: {seconds / loop:.1f} x the plain loop, wanted at most {bound:.1f}",
        reached=seconds / loop <= bound,
    )
    return report
