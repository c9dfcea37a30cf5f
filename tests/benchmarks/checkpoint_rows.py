"""C1 to C3: what checkpoints cost a job, and how long they take where records queue up."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from typing import Any

import aiomailbox as am
from tests.benchmarks.measure import OURS, Report, Row, timed
from tests.benchmarks.records import KEYS, Record, key_of, value_of

_INTERVAL_S = 1.0
# In all, with checkpoints, and at least so many pairs.
_SECONDS, _PAIRS = 30.0, 7
_CONSUMER_S = 0.001
_UNALIGNED_S = 2.0
_WARM_UP_S = 1.0
_IDLE_JOBS, _IDLE_S, _IDLE_MAX = 50, 10.0, 0.05


def record_of(number: int) -> Record:
    """Return one record; a range of numbers can be read again from anywhere."""
    return (number, KEYS[number * 7919 % 1000], number * 0.5, number)


def running_sums(count: int, interval_s: float | None) -> int:
    """Sum up per key, with a checkpoint now and then, or without."""
    with tempfile.TemporaryDirectory() as directory:
        env = am.StreamExecutionEnvironment()
        if interval_s is not None:
            env.enable_checkpointing(am.seconds(interval_s), directory=directory)
        keyed = env.from_collection(range(count)).map(record_of).key_by(key_of)
        return am.run(keyed.aggregate(am.sum_(value_of)).count())


def overhead(records: int) -> Report:
    """Compare runs with a checkpoint every second and without, in alternating pairs.

    It is a second of this process: on a busy machine more of them by the clock.
    """
    report = Report("C1", "W2 with a checkpoint every second, beside none")
    count = records
    times: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    seconds, cpu, _ = timed(lambda n: running_sums(n, None), records)
    turns = 0
    while turns < _PAIRS or sum(seconds for seconds, _ in times[True]) < _SECONDS:
        every_s = _INTERVAL_S * max(1.0, seconds / cpu)
        # Who goes first takes turns, too.
        for has in (True, False) if turns % 2 else (False, True):
            interval_s = every_s if has else None
            seconds, cpu, found = timed(
                lambda n, i=interval_s: running_sums(n, i), count
            )
            assert found == count, f"{found} results of {count} records"
            times[has].append((seconds, cpu))
        turns += 1
    pairs = list(zip(times[False], times[True], strict=True))
    by_clock = statistics.median(none[0] / some[0] for none, some in pairs)
    by_cpu = statistics.median(none[1] / some[1] for none, some in pairs)
    for name, has, ratio, cpu in (
        ("no checkpoint", False, 1.0, 1.0),
        ("one every second", True, by_clock, by_cpu),
    ):
        seconds = statistics.median(one for one, _ in times[has])
        report.rows.append(Row("C1", f"{OURS}, {name}", count, seconds, ratio, cpu))
    report.judge(
        f"{OURS}: {by_cpu:.3f} x the speed without by processor time ({by_clock:.3f} by "
        f"the clock), {turns} pairs, wanted at least 0.9",
        reached=by_cpu >= 0.9,
    )
    return report


class _Slow(am.KeyedProcessFunction):
    """Takes a millisecond a record, and lets the loop go meanwhile."""

    # Of all copies.
    seen = 0

    async def process_element(self, value: Any, context: Any, out: Any) -> None:
        await asyncio.sleep(_CONSUMER_S)
        _Slow.seen += 1


async def _under_backpressure(*, unaligned: bool) -> tuple[float, float, int]:
    """Return how long a checkpoint takes, the consumer's pace, and the bytes in flight."""
    with tempfile.TemporaryDirectory() as directory:
        env = am.StreamExecutionEnvironment(parallelism=1)
        env.enable_checkpointing(None, directory=directory, unaligned=unaligned)
        numbers = env.from_collection(range(10**9)).map(record_of)
        # A task of its own: what comes over a channel waits there.
        kept = numbers.key_by(key_of).process(_Slow()).set_parallelism(2)
        kept.sink_to(lambda _: None)
        async with env.start("backpressure") as job:
            await asyncio.sleep(_WARM_UP_S)
            before, started = _Slow.seen, time.perf_counter()
            completed = await job.trigger_checkpoint()
            seconds = time.perf_counter() - started
            pace = (_Slow.seen - before) / seconds
            await job.cancel()
    return seconds, pace, completed.size_bytes


def backpressure() -> Report:
    """Take checkpoints where the consumer has a fraction of the producer's pace."""
    report = Report("C2", "a checkpoint while the consumer is far behind the producer")
    aligned, pace, _ = am.run(_under_backpressure(unaligned=False))
    report.rows.append(Row("C2", f"{OURS}, aligned", 1, aligned, 1.0))
    found, _, size = am.run(_under_backpressure(unaligned=True))
    report.rows.append(Row("C2", f"{OURS}, unaligned", 1, found, aligned / found))
    report.notes.append(
        f"the consumer takes {pace:,.0f} records/s, and some {aligned * pace:,.0f} wait; "
        f"the unaligned checkpoint has {size / 1024:,.0f} KiB"
    )
    report.judge(
        f"unaligned: {found:.2f} s, wanted at most {_UNALIGNED_S}; aligned {aligned:.2f} s",
        reached=found <= _UNALIGNED_S,
    )
    return report


async def _waits() -> AsyncIterator[int]:
    yield 1
    await asyncio.Event().wait()


def _is_quiet(job: am.JobClient) -> bool:
    return bool(job.metrics().checkpoints["number_of_unchanged_checkpoints"])


async def _idle_jobs(interval_s: float | None) -> float:
    """Return what share of a core fifty jobs take in which nothing happens."""
    async with contextlib.AsyncExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory())
        jobs: list[am.JobClient] = []
        for number in range(_IDLE_JOBS):
            config = am.JobConfig(job_id=f"idle-{number}")
            env = am.StreamExecutionEnvironment(config=config)
            if interval_s is not None:
                # Its iterable cannot be read again, which is all one here.
                env.enable_checkpointing(
                    am.seconds(interval_s),
                    directory=place,
                    mode=am.CheckpointingMode.AT_LEAST_ONCE,
                )
            keyed = env.from_async_iterable(_waits).key_by(int)
            keyed.aggregate(am.sum_(int)).map(str).sink_to(lambda _: None)
            job = await stack.enter_async_context(env.start(f"idle {number}"))
            stack.push_async_callback(job.cancel)
            jobs.append(job)
        await asyncio.sleep(3 * _INTERVAL_S)
        # Until each has had its first checkpoints, which are written.
        while interval_s is not None and not all(map(_is_quiet, jobs)):
            await asyncio.sleep(_INTERVAL_S)
        started, cpu_started = time.perf_counter(), time.process_time()
        await asyncio.sleep(_IDLE_S)
        used_s = time.process_time() - cpu_started
        return used_s / (time.perf_counter() - started)


def idle() -> Report:
    """Let fifty idle jobs take a checkpoint each second."""
    report = Report(
        "C3", f"{_IDLE_JOBS} idle jobs, seconds of processor time per second"
    )
    none, some = am.run(_idle_jobs(None)), am.run(_idle_jobs(_INTERVAL_S))
    report.rows = [
        Row("C3", f"{OURS}, no checkpoint", _IDLE_JOBS, none, 1.0),
        Row("C3", f"{OURS}, one every second", _IDLE_JOBS, some, none / some),
    ]
    report.judge(
        f"{some:.1%} of a core with a checkpoint each second, {none:.1%} without, "
        f"wanted at most {_IDLE_MAX:.0%}",
        reached=some <= _IDLE_MAX,
    )
    return report
