"""Compares systems that do the same work.

The machine is shared and its speed changes from second to second, so a system is never
timed alone: in each round every system runs once, one directly after the other, and
only times of one round are divided by each other. What is reported is the median of
these ratios and the median of the times. The garbage collector stays on, as it is in a
job; garbage of the one before is collected before the clock starts.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

OURS = "aiomailbox"


@dataclass(frozen=True, slots=True)
class System:
    """One that does the work.

    Attributes:
        name: What the table calls it.
        run: Does the work for so many records and returns the number of results.
        share: The part of the records it gets, for those that are slow.
    """

    name: str
    run: Callable[[int], int]
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured of one system.

    Attributes:
        ratio: Its speed relative to the first system of the work, in records per
            second: 1 is as fast, 0.5 takes twice as long.
    """

    work: str
    system: str
    records: int
    seconds: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target, and whether it was reached."""

    text: str
    reached: bool


@dataclass(slots=True)
class Report:
    """What is known of one work after its rounds."""

    work: str
    title: str
    rows: list[Row] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    def row(self, system: str = OURS) -> Row:
        """Return the row of a system."""
        return next(row for row in self.rows if row.system == system)

    def ratio(self, system: str = OURS) -> float:
        """Return the ratio of a system."""
        return self.row(system).ratio

    def at_least(self, bound: float, what: str, system: str = OURS) -> None:
        """Judge the ratio of a system against a lower bound."""
        ratio = self.ratio(system)
        text = f"{system}: {ratio:.2f} x {what}, wanted at least {bound}"
        self.verdicts.append(Verdict(text, ratio >= bound))

    def judge(self, text: str, *, reached: bool) -> None:
        """Add a verdict."""
        self.verdicts.append(Verdict(text, reached))


def timed(work: Callable[[int], int], count: int) -> tuple[float, int]:
    """Return how many seconds ``work(count)`` takes, and what it returns."""
    gc.collect()
    started = time.perf_counter()
    result = work(count)
    return time.perf_counter() - started, result


def compare(
    work: str, systems: Sequence[System], records: int, rounds: int
) -> list[Row]:
    """Time systems against the first one of them.

    Raises:
        AssertionError: If a system returns another number of results than the first
            does for as many records.
    """
    baseline = systems[0]
    times: dict[str, list[float]] = {system.name: [] for system in systems}
    ratios: dict[str, list[float]] = {system.name: [] for system in systems}
    expected = {system.share: 0 for system in systems}
    for share in expected:
        expected[share] = baseline.run(int(records * share))
    for _ in range(rounds):
        reference = 0.0
        for system in systems:
            count = int(records * system.share)
            seconds, results = timed(system.run, count)
            if results != expected[system.share]:
                raise AssertionError(
                    f"{work}: {system.name} had {results} results of {count} records, "
                    f"{baseline.name} {expected[system.share]}"
                )
            speed = count / seconds
            reference = reference or speed
            times[system.name].append(seconds)
            ratios[system.name].append(speed / reference)
    return [
        Row(
            work,
            system.name,
            int(records * system.share),
            statistics.median(times[system.name]),
            statistics.median(ratios[system.name]),
        )
        for system in systems
    ]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
