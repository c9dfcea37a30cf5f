"""W1 to W8: what is measured, against what, and what must be reached."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from tests.benchmarks import hop, jobs, plain, processes
from tests.benchmarks.measure import (
    OURS,
    Report,
    Row,
    System,
    compare,
    percentile,
)
from tests.benchmarks.peers import peers_of
from tests.benchmarks.records import RECORDS_PER_MS

_CALLS = 5000
_CONCURRENCY = 100
_HOPS = 20_000


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says.

    Attributes:
        records: Records of the works that have a million.
        rounds: How often everything is repeated.
        peers: Whether other libraries run as well.
    """

    records: int
    rounds: int
    peers: bool


def w1(options: Options) -> Report:
    """map, filter, map, count."""
    report = Report("W1", "map, filter (half pass), map, count")
    systems = [System("plain", plain.w1), System(OURS, jobs.w1)]
    split = f"{OURS}, a task per operator"
    systems.append(System(split, lambda n: jobs.w1(n, chained=False)))
    report.rows = _compared("W1", systems, options)
    report.at_least(0.8, "plain")
    return report


def w2(options: Options) -> Report:
    """key_by, running sum per key."""
    report = Report("W2", "key_by, running sum per key, every update emitted")
    reduce = f"{OURS}, reduce function"
    systems = [
        System("plain", plain.w2),
        System(OURS, jobs.w2_aggregate),
        System(reduce, jobs.w2_reduce),
    ]
    report.rows = _compared("W2", systems, options)
    report.at_least(0.4, "plain")
    report.at_least(0.4, "plain", reduce)
    return report


def w3(options: Options) -> Report:
    """Windows of event time."""
    report = Report("W3", "1 s tumbling windows, count and sum, 10 records per window")
    per_ms = RECORDS_PER_MS
    systems = [
        System("plain", lambda n: plain.w3(n, per_ms)),
        System(OURS, lambda n: jobs.w3(n, per_ms)),
    ]
    report.rows = _compared("W3", systems, options, per_ms=per_ms)
    report.at_least(0.3, "plain")
    return report


def w3_sparse(options: Options) -> Report:
    """Windows of event time that hold one record each."""
    report = Report("W3b", "the same with 1 record per window: as many results")
    systems = [
        System("plain", lambda n: plain.w3(n, 1)),
        System(OURS, lambda n: jobs.w3(n, 1)),
    ]
    report.rows = compare("W3b", systems, options.records, options.rounds)
    return report


def w4(options: Options) -> Report:
    """Concurrent waiting, in order."""
    report = Report("W4", "5,000 x 5 ms of async I/O, concurrency 100, ordered")
    report.rows = _waiting("W4", options, 0.005)
    slowdown = 1 / report.ratio()
    report.judge(
        f"{OURS}: {slowdown:.2f} x the time of the bare workers, wanted at most 1.15",
        reached=slowdown <= 1.15,
    )
    return report


def w4_long(options: Options) -> Report:
    """Concurrent waiting, in order, with longer calls."""
    report = Report("W4b", "5,000 x 50 ms of async I/O, concurrency 100, ordered")
    report.rows = _waiting("W4b", options, 0.05)
    ideal = _CALLS * 0.05 / _CONCURRENCY
    ours = next(row.seconds for row in report.rows if row.system == OURS) / ideal
    report.judge(f"{OURS}: {ours:.2f} x ideal, wanted at most 1.1", reached=ours <= 1.1)
    return report


def w5(options: Options) -> Report:
    """One record at a time over a channel."""
    report = Report("W5", "one record through a channel hop (p50; seconds per hop)")
    hops = {"bare deque and future": hop.bare, OURS: hop.channel}
    if options.peers:
        hops["asyncio.Queue"] = hop.queue
    found: dict[str, list[int]] = {name: [] for name in hops}
    for _ in range(options.rounds):
        for name, work in hops.items():
            found[name] += hop.latencies(work, _HOPS // options.rounds)
    medians = {name: percentile(times, 0.5) / 1e9 for name, times in found.items()}
    bare = medians["bare deque and future"]
    report.rows = [
        Row("W5", name, 1, median, bare / median) for name, median in medians.items()
    ]
    times = medians[OURS] / bare
    p99 = percentile(found[OURS], 0.99) / 1000
    report.judge(
        f"{OURS}: {times:.1f} x the bare hop, wanted at most 10 (p99 {p99:.0f} us)",
        reached=times <= 10,
    )
    return report


def w7(options: Options) -> Report:
    """Memory does not grow with the data."""
    report = Report("W7", "peak memory of a process that streams (W2)")
    counts = (options.records, 10 * options.records)
    few, many = (processes.peak_kib(count) for count in counts)
    growth = many / few
    report.judge(
        f"{few / 1024:.1f} MiB for {counts[0]:,} records, {many / 1024:.1f} MiB for "
        f"{counts[1]:,}: x {growth:.3f}, wanted within 10 %",
        reached=abs(growth - 1) <= 0.1,
    )
    return report


def w8(options: Options) -> Report:
    """Import and start-up."""
    report = Report("W8", "import in a fresh interpreter")
    found = {
        "anyio, msgspec, structlog": processes.import_of("anyio, msgspec, structlog"),
        OURS: processes.import_of("aiomailbox"),
        f"{OURS}, all names and a first job": processes.first_result(),
    }
    base = found["anyio, msgspec, structlog"].seconds
    report.rows = [
        Row("W8", name, 1, result.seconds, base / result.seconds)
        for name, result in found.items()
    ]
    for name, result in found.items():
        if name.startswith(OURS):
            brought = ", ".join(result.optional) or "no optional package"
            report.judge(
                f"{name}: {result.seconds:.3f} s, wanted at most 0.25; {brought}",
                reached=result.seconds <= 0.25 and not result.optional,
            )
    return report


def _compared(
    work: str, systems: list[System], options: Options, **peer_options: int
) -> list[Row]:
    peers = peers_of(work, **peer_options) if options.peers else []
    return compare(work, systems + peers, options.records, options.rounds)


def _waiting(work: str, options: Options, seconds: float) -> list[Row]:
    systems = [
        System(
            "100 bare workers",
            lambda n: asyncio.run(plain.w4(n, seconds, _CONCURRENCY)),
        ),
        System(OURS, lambda n: jobs.w4(n, seconds, _CONCURRENCY)),
    ]
    if options.peers:
        systems += peers_of(work, seconds=seconds, concurrency=_CONCURRENCY)
    return compare(work, systems, _CALLS, options.rounds)


WORKS: dict[str, list[Callable[[Options], Report]]] = {
    "W1": [w1],
    "W2": [w2],
    "W3": [w3, w3_sparse],
    "W4": [w4, w4_long],
    "W5": [w5],
    "W7": [w7],
    "W8": [w8],
}
