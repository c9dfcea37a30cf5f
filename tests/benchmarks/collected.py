"""G1: what `tune_collector` costs, and saves, over an hour of work."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import time

import aiomailbox as am
from tests.benchmarks.measure import OURS, Report, Row
from tests.benchmarks.processes import peak_kib_here

# A service gets so many records in a second, each with a call, for so many seconds.
_RATE = 1_000
_HOUR_S = 3_600
_KEYS = 50_000
_CALLS = 100
# One call in so many fails at first: an exception and its frames are a circle.
_FAILS = 500
_MEMORY_MAX = 1.25
_PAUSE_MAX_S = 0.02


class _Passes:
    """The passes of the collector: how long they took in all, and the longest of each kind."""

    def __init__(self) -> None:
        self.total_s = 0.0
        self.longest_s = [0.0, 0.0, 0.0]
        self.counts = [0, 0, 0]
        self._since_s = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        now_s = time.thread_time()
        if phase == "start":
            self._since_s = now_s
            return
        took_s, generation = now_s - self._since_s, info["generation"]
        self.total_s += took_s
        self.counts[generation] += 1
        self.longest_s[generation] = max(self.longest_s[generation], took_s)


def _work(seconds: int) -> am.DataStream[int]:
    failed: set[int] = set()

    async def call(number: int) -> dict[str, int]:
        await asyncio.sleep(0)
        if number % _FAILS == 0 and number not in failed:
            failed.add(number)
            raise ConnectionError("try again")
        return {"key": number % _KEYS, "value": number}

    times = am.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda number: number * 1000 // _RATE
    )
    env = am.StreamExecutionEnvironment()
    numbers = env.from_collection(range(_RATE * seconds))
    timed = numbers.assign_timestamps_and_watermarks(times)
    retry = am.Retry(3, initial=am.millis(1))
    called = timed.map_async(call, concurrency=_CALLS, retry=retry)
    windows = am.TumblingEventTimeWindows.of(am.minutes(1))
    return called.key_by("key").window(windows).aggregate(am.sum_("value"))


def _measure(seconds: int, *, tuned: bool) -> dict[str, float]:
    """Return what an hour's records cost in this process."""
    if tuned:
        am.tune_collector()
    gc.callbacks.append(passes := _Passes())
    started_s = time.process_time()
    results = am.run(_work(seconds).count())
    cpu_s = time.process_time() - started_s
    gc.callbacks.clear()
    return {
        "results": results,
        "cpu_s": cpu_s,
        "collecting_s": passes.total_s,
        "full": passes.counts[2],
        "longest_s": max(passes.longest_s),
        "peak_mib": peak_kib_here() / 1024,
        "left": gc.collect(),
    }


def hour(seconds: int = _HOUR_S) -> Report:
    """Let two processes do the same work, one after the other."""
    report = Report(
        "G1", f"{_RATE * seconds:,} records with a call each: an hour of work"
    )
    found = {}
    for name in ("as Python sets it", "tuned"):
        command = [sys.executable, "-m", "tests.benchmarks.collected", name, seconds]
        done = subprocess.run(
            [str(part) for part in command], stdout=subprocess.PIPE, check=True
        )
        found[name] = one = json.loads(done.stdout)
        first = next(iter(found.values()))
        ratio = first["cpu_s"] / one["cpu_s"]
        report.rows.append(
            Row("G1", f"{OURS}, {name}", _RATE * seconds, one["cpu_s"], ratio, ratio)
        )
        report.notes.append(
            f"{name}: {one['cpu_s']:.1f} s of the processor, of which {one['collecting_s']:.2f} s "
            f"collected; {one['full']:.0f} full passes, the longest {1000 * one['longest_s']:.1f} "
            f"ms; at most {one['peak_mib']:.0f} MiB; {one['left']:,.0f} objects left to collect"
        )
    before, tuned = found.values()
    more = tuned["peak_mib"] / before["peak_mib"]
    report.judge(
        f"tuned: {more:.2f} x the memory, wanted at most {_MEMORY_MAX}; the longest pass "
        f"{1000 * tuned['longest_s']:.1f} ms, wanted at most {1000 * _PAUSE_MAX_S:.0f}",
        reached=more <= _MEMORY_MAX and tuned["longest_s"] <= _PAUSE_MAX_S,
    )
    return report


if __name__ == "__main__":
    print(json.dumps(_measure(int(sys.argv[2]), tuned=sys.argv[1] == "tuned")))
