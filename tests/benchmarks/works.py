"""W1 to W12, X1 to X4, S1, S2, C1 to C3, A1, G1, O1, O2, R1 to R3, NX, NXC: what is measured, what is wanted."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.benchmarks import (
    asking,
    checkpoint_rows,
    collected,
    column_joins,
    column_windows,
    columns,
    event_time,
    exchange_rows,
    hop,
    jobs,
    large_state,
    nexmark_columns,
    observed_rows,
    plain,
    process_rows,
    processes,
    responsive,
    snapshots,
    spark_inside,
    spark_rows,
)
from tests.benchmarks.measure import (
    OURS,
    Report,
    Row,
    System,
    compare,
    percentile,
)
from tests.benchmarks.nexmark import nexmark
from tests.benchmarks.peers import peers_of
from tests.benchmarks.records import RECORDS_PER_MS

_CALLS = 5000
_CONCURRENCY = 100
_HOPS = 20_000
_PUSHED = f"{OURS}, pushed"
# Partitions of a DataFrame.
_MANY = 1000
# An event of Nexmark is some ten times as big as a record, and all are in a list.
_EVENTS_SHARE = 5


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says.

    Attributes:
        records: Records of the works that have a million.
        rounds: How often everything is repeated.
        peers: Whether other libraries run as well.
        pyflink: The interpreter that has PyFlink, if there is one.
    """

    records: int
    rounds: int
    peers: bool
    pyflink: str | None = None


def w1(options: Options) -> list[Report]:
    """map, filter, map, count."""
    report = Report("W1", "map, filter (half pass), map, count")
    systems = [System("plain", plain.w1), System(OURS, jobs.w1)]
    split = f"{OURS}, a task per operator"
    systems.append(System(split, lambda n: jobs.w1(n, chained=False)))
    report.rows = _compared("W1", systems, options)
    report.at_least(0.8, "plain")
    return [report]


def w2(options: Options) -> list[Report]:
    """key_by, running sum per key."""
    report = Report("W2", "key_by, running sum per key, every update emitted")
    reduce = f"{OURS}, reduce function"
    systems = [
        System("plain", plain.w2),
        System(OURS, jobs.w2_aggregate),
        System(reduce, jobs.w2_reduce),
    ]
    report.rows = _compared("W2", systems, options)
    report.at_least(0.5, "plain")
    report.at_least(0.4, "plain", reduce)
    return [report]


def w3(options: Options) -> Iterator[Report]:
    """Windows of event time: ten records in each, and one in each."""
    report = Report("W3", "1 s tumbling windows, count and sum, 10 records per window")
    report.rows = _compared(
        "W3", _windows(RECORDS_PER_MS), options, per_ms=RECORDS_PER_MS
    )
    report.at_least(0.45, "plain")
    yield report
    sparse = Report("W3b", "the same with 1 record per window: as many results")
    sparse.rows = compare(
        "W3b", _windows(1), options.records, options.rounds, computes=True
    )
    yield sparse


def w4(options: Options) -> Iterator[Report]:
    """Concurrent waiting, in order: 5 ms and 50 ms a call."""
    report = Report("W4", "5,000 x 5 ms of async I/O, concurrency 100, ordered")
    report.rows = _waiting("W4", options, 0.005)
    slowdown = 1 / report.ratio()
    report.judge(
        f"{OURS}: {slowdown:.2f} x the time of the bare workers, wanted at most 1.15",
        reached=slowdown <= 1.15,
    )
    yield report
    longer = Report("W4b", "5,000 x 50 ms of async I/O, concurrency 100, ordered")
    longer.rows = _waiting("W4b", options, 0.05)
    ideal = _CALLS * 0.05 / _CONCURRENCY
    ours = longer.row().seconds / ideal
    longer.judge(f"{OURS}: {ours:.2f} x ideal, wanted at most 1.1", reached=ours <= 1.1)
    yield longer
    kept = Report(
        "W4j", "20,000 x 5 ms of async I/O in a job with checkpoints, and a journal"
    )
    plain, journal = (
        System(name, partial(_kept, journal=is_kept), start_records=_CONCURRENCY)
        for name, is_kept in ((f"{OURS}, no journal", False), (OURS, True))
    )
    kept.rows = compare("W4j", [plain, journal], 4 * _CALLS, options.rounds)
    kept.at_least(0.9, "a job without a journal")
    yield kept


def w5(options: Options) -> list[Report]:
    """One record at a time over a channel."""
    report = Report("W5", "one record through a channel hop (p50)")
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
    return [report]


def w6(options: Options) -> Iterator[Report]:
    """A Spark DataFrame into this process."""
    from aiomailbox.connectors.spark.session import local_session

    # What a bare toLocalIterator has returned stays in the JVM until the session ends:
    # the default heap of 1 GiB is too small for all rounds.
    spark = local_session("benchmarks", **{"spark.driver.memory": "3g"})
    spark.sparkContext.setLogLevel("OFF")
    try:
        df = spark_rows.make_df(spark, options.records)
        yield _spark_rows(df, options)
        yield _spark_batches(df, options)
        yield _spark_staged(df, options)
        yield _spark_partitions(spark, options)
        yield _spark_first(spark, options)
        yield _latency(df, options)
    finally:
        spark.stop()
    yield _spark_memory()


def w7(options: Options) -> list[Report]:
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
    return [report]


def w8(options: Options) -> list[Report]:
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
    ours = found[OURS].seconds
    report.judge(f"{OURS}: {ours:.3f} s, wanted at most 0.25", reached=ours <= 0.25)
    brought = {name for result in found.values() for name in result.optional}
    report.judge(f"optional packages imported: {len(brought)}", reached=not brought)
    return [report]


def nx(options: Options) -> Iterator[Report]:
    """Queries of Nexmark beside other engines."""
    records = options.records // _EVENTS_SHARE
    return nexmark(
        records, options.rounds, peers=options.peers, pyflink=options.pyflink
    )


def _compared(
    work: str, systems: list[System], options: Options, **peer_options: int
) -> list[Row]:
    peers = peers_of(work, **peer_options) if options.peers else []
    return compare(
        work, systems + peers, options.records, options.rounds, computes=True
    )


def _windows(per_ms: int) -> list[System]:
    return [
        System("plain", lambda n: plain.w3(n, per_ms)),
        System(OURS, lambda n: jobs.w3(n, per_ms)),
    ]


def _kept(count: int, *, journal: bool) -> int:
    return jobs.w4_kept(count, 0.005, _CONCURRENCY, journal=journal)


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


def _spark_rows(df: Any, options: Options) -> Report:
    report = Report("W6", "a Spark DataFrame of 5 columns, as NamedTuples")
    systems = [
        System("bare Arrow to NamedTuples", lambda _: spark_rows.by_named_tuples(df)),
        System(OURS, lambda _: spark_rows.job_named_tuples(df)),
        System("toLocalIterator", lambda _: spark_rows.by_local_iterator(df)),
    ]
    report.rows = compare("W6", systems, options.records, options.rounds)
    report.at_least(0.8, "the bare loop")
    gain = report.ratio() / report.ratio("toLocalIterator")
    report.judge(
        f"{OURS}: {gain:.2f} x toLocalIterator, wanted at least 2.5",
        reached=gain >= 2.5,
    )
    return report


def _spark_batches(df: Any, options: Options) -> Report:
    report = Report("W6b", "a Spark DataFrame of 5 columns, as Arrow batches")
    systems = [
        System("bare Arrow batches", lambda _: spark_rows.by_batches(df)),
        System(OURS, lambda _: spark_rows.job_batches(df)),
        System(_PUSHED, lambda _: spark_rows.job_batches(df, "push")),
    ]
    report.rows = compare("W6b", systems, options.records, options.rounds)
    report.at_least(0.9, "the bare loop")
    report.at_least(1.0, "the bare loop", _PUSHED)
    gain = report.ratio(_PUSHED) / report.ratio()
    report.judge(
        f"{_PUSHED}: {gain:.2f} x iterate, wanted at least 1.5", reached=gain >= 1.5
    )
    return report


def _spark_staged(df: Any, options: Options) -> Report:
    report = Report("W6d", "a Spark DataFrame of 5 columns, staged before, as batches")
    with tempfile.TemporaryDirectory() as stage:
        spark_rows.stage(df, stage)
        systems = [
            System("toLocalIterator", lambda _: spark_rows.by_local_iterator(df)),
            System(OURS, lambda _: spark_rows.job_staged(stage)),
        ]
        report.rows = compare("W6d", systems, options.records, options.rounds)
    report.at_least(30, "toLocalIterator")
    return report


def _spark_partitions(spark: Any, options: Options) -> Report:
    report = Report("W6e", "a Spark DataFrame of 1,000 partitions, as Arrow batches")
    df = spark_rows.make_df(spark, options.records).repartition(_MANY).persist()
    df.count()
    systems = [
        System("mapInArrow, nothing sent", lambda _: spark_rows.by_map_in_arrow(df)),
        System(_PUSHED, lambda _: spark_rows.job_batches(df, "push")),
    ]
    report.rows = compare("W6e", systems, options.records, options.rounds)
    df.unpersist()
    times = 1 / report.ratio(_PUSHED)
    report.judge(
        f"{_PUSHED}: {times:.2f} x the time of mapInArrow, wanted at most 1.3",
        reached=times <= 1.3,
    )
    return report


def _spark_first(spark: Any, options: Options) -> Report:
    report = Report("W6f", "the first batch of a partition that takes 10 s")
    df = spark_rows.make_slow_df(spark, 10)
    iterated = spark_rows.first_batch(df, "iterate")
    pushed = statistics.median(
        spark_rows.first_batch(df, "push") for _ in range(options.rounds)
    )
    report.rows = [
        Row("W6f", OURS, 1, iterated, 1),
        Row("W6f", _PUSHED, 1, pushed, iterated / pushed),
    ]
    report.judge(f"{_PUSHED}: {pushed:.1f} s, wanted at most 3", reached=pushed <= 3)
    return report


def _spark_memory() -> Report:
    report = Report("W6g", "what this process grows by, with a driver of 1 GB")
    # Rows and partitions, of which the last one has 500 MB.
    for rows, partitions in ((20_000_000, 40), (10_000_000, 1)):
        seconds, grown_mib = spark_rows.growth(rows, partitions)
        name = f"{_PUSHED}, {partitions} partitions, Spark's start included"
        report.rows.append(Row("W6g", name, rows, seconds, 1))
        report.judge(
            f"{rows:,} rows in {partitions} partitions: {grown_mib} MiB more, wanted at "
            "most 100",
            reached=grown_mib <= 100,
        )
    return report


def _latency(df: Any, options: Options) -> Report:
    report = Report(
        "W6c", "how late the event loop is while a DataFrame streams in (p99)"
    )
    found: dict[str, list[float]] = {name: [] for name in spark_rows.OCCUPATIONS}
    for _ in range(options.rounds):
        for name, times in found.items():
            times.append(spark_rows.loop_latency(name, df))
    late = {name: statistics.median(times) for name, times in found.items()}
    idle, busy = late["idle loop"], late[OURS]
    report.rows = [Row("W6c", name, 1, p99, idle / p99) for name, p99 in late.items()]
    bound = 3 * idle + 0.005
    report.judge(
        f"{OURS}: p99 {busy * 1e3:.1f} ms, wanted at most 3 x idle + 5 ms = "
        f"{bound * 1e3:.1f} ms",
        reached=busy <= bound,
    )
    return report


WORKS: dict[str, Callable[[Options], Iterable[Report]]] = {
    "W1": w1,
    "W2": w2,
    "W3": w3,
    "W4": w4,
    "W5": w5,
    "W6": w6,
    "W7": w7,
    "W8": w8,
    "W9": lambda options: event_time.reports(options.records, options.rounds),
    "C": lambda options: columns.reports(
        options.records, options.rounds, peers=options.peers
    ),
    "CW": lambda options: column_windows.reports(options.records, options.rounds),
    "CJ": lambda options: column_joins.reports(options.records, options.rounds),
    "W12": lambda options: [large_state.report_of(options.records)],
    "X1": lambda options: exchange_rows.reports(options.records, options.rounds),
    "X2": lambda options: process_rows.reports(options.records, options.rounds),
    "SI": lambda options: spark_inside.reports(options.records, options.rounds),
    "S1": lambda options: snapshots.reports(options.records),
    "C1": lambda options: [checkpoint_rows.overhead(options.records)],
    "C2": lambda options: [checkpoint_rows.backpressure()],
    "C3": lambda options: [checkpoint_rows.idle()],
    "O1": lambda options: observed_rows.reports(options.records),
    "A1": lambda options: asking.reports(options.rounds),
    "G1": lambda options: [collected.hour()],
    "R1": lambda options: [responsive.ticker()],
    "R2": lambda options: responsive.application(),
    "R3": lambda options: responsive.service(),
    "NX": nx,
    "NXC": lambda options: nexmark_columns.reports(
        options.records, options.rounds, peers=options.peers
    ),
}
