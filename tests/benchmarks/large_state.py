"""W12: a running sum over more keys than one wants in memory, kept in RocksDB.

The job runs in a process of its own, so that its peak of memory is its own. Of six
records five have a key that is new and one has a key that came long ago and has left the
cache, so the job reads as well as it writes.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator

import aiomailbox as am
from tests.benchmarks import plain
from tests.benchmarks.measure import OURS, Report, Row, timed
from tests.benchmarks.processes import peak_kib_here, run_module

# After so many new keys comes an old one.
NEW_KEYS = 5
MEMORY_MIB_MAX = 512
# What is wanted where the plain loop of W2 does so many records a second.
WANTED_PER_S, PLAIN_PER_S = 60_000, 2_500_000
# A prime: no number of keys that one would ask for is a multiple, so all keys come.
_STRIDE = 7_919_003

Pair = tuple[str, int]


def pairs(keys: int) -> Iterator[Pair]:
    """Yield ``(key, value)``: each key once, in no order, and each fifth once more."""
    for i in range(keys):
        yield f"key-{i * _STRIDE % keys}", i
        if i % NEW_KEYS == NEW_KEYS - 1:
            yield f"key-{i // 2 * _STRIDE % keys}", 1


def _key_of(pair: Pair) -> str:
    return pair[0]


def _value_of(pair: Pair) -> int:
    return pair[1]


def sums_on_disk(keys: int) -> int:
    """Sum up per key in RocksDB; return the number of results."""
    env = am.StreamExecutionEnvironment()
    env.configure(state_backend=am.RocksDBStateBackend())
    keyed = env.from_collection(pairs(keys)).key_by(_key_of)
    return am.run(keyed.aggregate(am.sum_(_value_of)).count())


def report_of(records: int) -> Report:
    """Measure it.

    Args:
        records: As for the other works; there are five keys for each.
    """
    keys = NEW_KEYS * records
    count = keys + keys // NEW_KEYS
    report = Report("W12", f"running sum of {keys:,} keys in RocksDB")
    before = _plain_per_s(records)
    results, seconds, cpu, peak_kib = json.loads(run_module(__name__, str(keys)))
    assert results == count, f"{results} results of {count} records"
    after = _plain_per_s(records)
    loop, by_cpu = (statistics.mean(pair) for pair in zip(before, after, strict=True))
    speed = count / seconds
    report.rows = [
        Row("W12", "plain loop of W2, in memory", records, records / loop, 1.0),
        Row("W12", OURS, count, seconds, speed / loop, count / cpu / by_cpu),
    ]
    wanted = WANTED_PER_S * loop / PLAIN_PER_S
    report.judge(
        f"{OURS}: {speed:,.0f} records/s, wanted at least {wanted:,.0f}, which is "
        f"{WANTED_PER_S:,} where the plain loop does {PLAIN_PER_S:,} "
        f"({count / cpu:,.0f} of {WANTED_PER_S * by_cpu / PLAIN_PER_S:,.0f} by "
        "processor time, RocksDB's threads included)",
        reached=speed >= wanted,
    )
    peak = peak_kib / 1024
    report.judge(
        f"{OURS}: at most {peak:.0f} MiB of memory, wanted at most {MEMORY_MIB_MAX}",
        reached=peak <= MEMORY_MIB_MAX,
    )
    return report


def _plain_per_s(records: int) -> tuple[float, float]:
    """Return how many records a second the plain loop does: by clock, by processor."""
    times = [timed(plain.w2, records) for _ in range(3)]
    seconds = statistics.median(took for took, _, _ in times)
    return records / seconds, records / statistics.median(cpu for _, cpu, _ in times)


def main(argv: list[str]) -> None:
    """Do the work; print results, seconds twice, and the peak of memory in KiB."""
    seconds, cpu_seconds, results = timed(sums_on_disk, int(argv[0]))
    print(json.dumps([results, seconds, cpu_seconds, peak_kib_here()]))


if __name__ == "__main__":
    main(sys.argv[1:])
