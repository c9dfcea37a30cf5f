"""Compares systems that do the same work.

The machine is shared and its speed changes from second to second, so a system is never
timed alone: in each round every system runs once, one directly after the other, and
only times of one round are divided by each other. What is reported is the median of
these ratios and the median of the times. Beside it stands the same ratio of the time
that the processor spent on this process: where several programs share few cores it is
the steadier of the two, and where they differ much the machine was too busy. The garbage
collector stays on, as it is in a job; garbage of the one before is collected before the
clock starts. What only computes is warmed up, each system for the same time: the
interpreter makes a function fast once it has been called eight times. The body of a
loop soon has been; what starts a job has not in the first rounds.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

OURS = "aiomailbox"
# Enough for a dozen runs of the shortest work.
_WARM_UP_S = 0.25


@dataclass(frozen=True, slots=True)
class System:
    """One that does the work.

    Attributes:
        name: What the table calls it.
        run: Does the work for so many records and returns the number of results.
        share: The part of the records it gets, for those that are slow.
        start_records: If not 0, the time of a run with so few records is subtracted:
            that of starting processes, which moves nothing.
    """

    name: str
    run: Callable[[int], int]
    share: float = 1.0
    start_records: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured of one system.

    Attributes:
        ratio: Its speed relative to the first system of the work, in records per
            second: 1 is as fast, 0.5 takes twice as long.
        cpu_ratio: The same by processor time of this process; 0 if that says nothing,
            because the work is waiting, or is done by other processes.
    """

    work: str
    system: str
    records: int
    seconds: float
    ratio: float
    cpu_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target, and whether it was reached."""

    text: str
    reached: bool


@dataclass(slots=True)
class Report:
    """What is known of one work after its rounds.

    Attributes:
        notes: What else the table says, for example who is missing in it.
    """

    work: str
    title: str
    rows: list[Row] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def row(self, system: str = OURS) -> Row:
        """Return the row of a system."""
        return next(row for row in self.rows if row.system == system)

    def ratio(self, system: str = OURS) -> float:
        """Return the ratio of a system."""
        return self.row(system).ratio

    def at_least(self, bound: float, what: str, system: str = OURS) -> None:
        """Judge the ratio of a system against a lower bound."""
        row = self.row(system)
        ratio = row.ratio
        by_cpu = f" ({row.cpu_ratio:.2f} by processor time)" if row.cpu_ratio else ""
        text = f"{system}: {ratio:.2f} x {what}{by_cpu}, wanted at least {bound}"
        self.verdicts.append(Verdict(text, ratio >= bound))

    def judge(self, text: str, *, reached: bool) -> None:
        """Add a verdict."""
        self.verdicts.append(Verdict(text, reached))


def timed(work: Callable[[int], int], count: int) -> tuple[float, float, int]:
    """Return how many seconds ``work(count)`` takes, and what it returns.

    Returns:
        Seconds on the clock, seconds of the processor, and the result.
    """
    gc.collect()
    started, cpu_started = time.perf_counter(), time.process_time()
    result = work(count)
    return time.perf_counter() - started, time.process_time() - cpu_started, result


def _warm_up(system: System, records: int) -> None:
    """Run a system without counting, until it is as fast as it gets."""
    until = time.perf_counter() + _WARM_UP_S
    while time.perf_counter() < until:
        system.run(int(records * system.share))


def compare(
    work: str,
    systems: Sequence[System],
    records: int,
    rounds: int,
    *,
    computes: bool = False,
) -> list[Row]:
    """Time systems against the first one of them.

    Args:
        work: The work's name.
        systems: At least one.
        records: How many records a system with a share of 1 gets.
        rounds: How often each system runs.
        computes: Whether the work is nothing but computing in this process; then each
            system is warmed up.

    Raises:
        AssertionError: If a system returns another number of results than the first
            does for as many records.
    """
    baseline = systems[0]
    names = [system.name for system in systems]
    times: dict[str, list[float]] = {name: [] for name in names}
    ratios: dict[str, list[float]] = {name: [] for name in names}
    cpu_ratios: dict[str, list[float]] = {name: [] for name in names}
    expected = {system.share: 0 for system in systems}
    for share in expected:
        expected[share] = baseline.run(int(records * share))
    for system in systems if computes else ():
        _warm_up(system, records)
    for _ in range(rounds):
        reference = cpu_reference = 0.0
        for system in systems:
            count = int(records * system.share)
            start = 0.0
            if system.start_records:
                start, _, _ = timed(system.run, system.start_records)
            seconds, cpu_seconds, results = timed(system.run, count)
            if seconds <= start:
                raise AssertionError(
                    f"{work}: {count} records of {system.name} took no longer than its "
                    "start; measure more of them"
                )
            seconds -= start
            if results != expected[system.share]:
                raise AssertionError(
                    f"{work}: {system.name} had {results} results of {count} records, "
                    f"{baseline.name} {expected[system.share]}"
                )
            reference = reference or count / seconds
            cpu_reference = cpu_reference or count / cpu_seconds
            times[system.name].append(seconds)
            ratios[system.name].append(count / seconds / reference)
            cpu_ratios[system.name].append(count / cpu_seconds / cpu_reference)
    return [
        Row(
            work,
            system.name,
            int(records * system.share),
            statistics.median(times[system.name]),
            statistics.median(ratios[system.name]),
            statistics.median(cpu_ratios[system.name]) if computes else 0.0,
        )
        for system in systems
    ]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
