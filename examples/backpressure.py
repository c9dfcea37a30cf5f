"""A producer slows down with its consumer, and speeds up with it: python backpressure.py

The producer runs at 60 % of what it could do, because no more records arrive. Then the
consumer is throttled to 30 %, and then all throttles are released. Nothing tells the
producer but the bounded channel between the two. The experiment is the one that Flink
shows its backpressure with.

It takes 30 seconds of virtual time, which is about a second of yours, or 30 real seconds
with ``--real``; it prints a table and writes ``backpressure.png``.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import aiomailbox as am
from aiomailbox.testing import VirtualTimeLoop

FULL_RATE = 200.0  # records per second: what the producer can do
HEADROOM = 1.2  # what the consumer can do, as a share of that
SAMPLE_S = 0.5
PRODUCER = "arrive -> produce (1/1)"


@dataclass(frozen=True)
class Phase:
    """A stretch of the experiment; throttles are shares of the full rate."""

    name: str
    seconds: float
    arrivals: float | None = None
    consumer: float | None = None


PHASES = [
    Phase("producer at 60 %", 10, arrivals=0.6),
    Phase("consumer throttled to 30 %", 10, arrivals=0.6, consumer=0.3),
    Phase("released", 10),
]


@dataclass(frozen=True)
class Sample:
    """The figures of half a second; rates are shares of the full rate."""

    time_s: float
    phase: Phase
    produced: float
    consumed: float
    pool_usage: float
    producer: am.TaskPressure
    consumer: am.TaskPressure
    bottleneck: str | None


@dataclass(frozen=True)
class Count:
    """How many records had left each task, and when."""

    time_s: float
    produced: int
    consumed: int


class Worker:
    """Takes its time over each record, as a function that asks a service would."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._late_s = 0.0

    async def work(self, record: int) -> int:
        """Return the record when it is done; make up for the delay of a timer."""
        now = asyncio.get_running_loop().time
        end = now() + 1 / self.rate - self._late_s
        await asyncio.sleep(max(0.0, end - now()))
        self._late_s = now() - end
        return record


class Experiment:
    """The job, its throttles, and what was seen of it."""

    def __init__(self) -> None:
        self.arrivals: float | None = None
        self.producer = Worker(FULL_RATE)
        self.consumer = Worker(FULL_RATE * HEADROOM)
        self.samples: list[Sample] = []

    async def arrive(self) -> AsyncIterator[int]:
        """Yield records at the rate that arrivals are throttled to, if they are."""
        loop = asyncio.get_running_loop()
        due, number = loop.time(), 0
        while True:
            if self.arrivals is not None:
                due = max(due, loop.time() - 0.1) + 1 / (self.arrivals * FULL_RATE)
                await asyncio.sleep(max(0.0, due - loop.time()))
            yield number
            number += 1

    def build(self) -> am.StreamExecutionEnvironment:
        """Return the job: two tasks, and a channel of ten small buffers."""
        # A real job has larger buffers; here there are 200 records a second to fill them.
        config = am.JobConfig(buffers_per_channel=10, buffer_size_bytes=640)
        env = am.StreamExecutionEnvironment(config=config)
        (
            env.from_async_iterable(self.arrive, name="arrive")
            .map(self.producer.work)
            .name("produce")
            .map(self.consumer.work)
            .name("consume")
            .start_new_chain()
            .sink_to(lambda record: None)
            .name("write")
        )
        return env

    async def run(self) -> list[Sample]:
        """Run the job through all phases, and look at it twice a second."""
        loop = asyncio.get_running_loop()
        async with self.build().start("backpressure") as job:
            start = loop.time()
            before = Count(0.0, 0, 0)
            for phase in PHASES:
                self.arrivals = phase.arrivals
                self.consumer.rate = FULL_RATE * (phase.consumer or HEADROOM)
                for _ in range(round(phase.seconds / SAMPLE_S)):
                    await asyncio.sleep(SAMPLE_S)
                    before = self._look(job, phase, loop.time() - start, before)
        return self.samples

    def _look(
        self, job: am.JobClient, phase: Phase, time_s: float, before: Count
    ) -> Count:
        metrics, report = job.metrics(), job.backpressure()
        operators = metrics.operators
        now = Count(
            time_s,
            int(operators["produce"]["num_records_out"] or 0),
            int(operators["consume"]["num_records_out"] or 0),
        )
        possible = FULL_RATE * (now.time_s - before.time_s)
        self.samples.append(
            Sample(
                time_s,
                phase,
                (now.produced - before.produced) / possible,
                (now.consumed - before.consumed) / possible,
                float(metrics.tasks[PRODUCER]["out_pool_usage"] or 0),
                report["arrive -> produce"].subtasks[0],
                report["consume -> write"].subtasks[0],
                report.bottleneck.task if report.bottleneck else None,
            )
        )
        return now


def table(samples: list[Sample]) -> str:
    """Return what each phase came to: its last five seconds, on average."""
    shares = "producer busy/idle/backpressured"
    head = f"{'':28}{'produced':>9}{'consumed':>9}{'pool':>6}{shares:>35}  bottleneck"
    lines = [head]
    for phase in PHASES:
        settled = [each for each in samples if each.phase is phase][-10:]
        last = settled[-1]
        one = last.producer
        shares = f"{one.busy_ms:.0f} /{one.idle_ms:4.0f} /{one.backpressured_ms:4.0f}"
        lines.append(
            f"{phase.name:28}"
            f"{fmean(each.produced for each in settled):9.0%}"
            f"{fmean(each.consumed for each in settled):9.0%}"
            f"{fmean(each.pool_usage for each in settled):6.0%}"
            f"{shares + ' ms/s':>35}  {last.bottleneck or 'none'}"
        )
    return "\n".join(lines)


def draw(samples: list[Sample], picture: Path) -> None:
    """Write the picture: rates, how full the channel is, the producer's time."""
    times = [each.time_s for each in samples]
    figure, (rates, pool, shares) = panels(
        3, figsize=(10, 8), height_ratios=[3, 1.6, 2.4]
    )
    rates.plot(times, [100 * each.produced for each in samples], "o-", ms=3, lw=2)
    rates.plot(times, [100 * each.consumed for each in samples], "s--", ms=3, lw=1.5)
    rates.set_ylabel("% of the full rate")
    rates.set_ylim(0, 135)
    rates.set_yticks([0, 30, 60, 100])
    pool.plot(times, [100 * each.pool_usage for each in samples], "C2", lw=2)
    pool.set_ylabel("% of permits")
    pool.set_ylim(0, 115)
    pool.set_yticks([0, 50, 100])
    shares.stackplot(
        times,
        [each.producer.busy_ms for each in samples],
        [each.producer.backpressured_ms for each in samples],
        [each.producer.idle_ms for each in samples],
        colors=["#4c9f70", "#d1495b", "#d9dee4"],
    )
    shares.set_ylabel("ms per second")
    shares.set_ylim(0, 1000)
    shares.set_yticks([0, 300, 600, 1000])
    shares.set_xlabel("seconds")
    shares.set_xlim(0, times[-1])
    named = [
        (rates, "records", ["producer", "consumer"]),
        (pool, "the producer's buffers", ["in use"]),
        (shares, "the producer's time,\nlast 5 s", ["busy", "backpressured", "idle"]),
    ]
    for axes, title, labels in named:
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        handles = [*axes.lines, *axes.collections][: len(labels)]
        axes.legend(
            handles,
            labels,
            title=title,
            loc="upper left",
            bbox_to_anchor=(1.01, 1),
            frameon=False,
            alignment="left",
        )
    _mark_phases(rates, pool, shares)
    figure.align_ylabels()
    figure.suptitle("The consumer is throttled, and the producer slows down with it")
    figure.tight_layout()
    figure.savefig(picture, dpi=110)


def panels(rows: int, **options: Any) -> tuple[Any, Any]:
    """Return a figure that needs no screen, and its axes from top to bottom."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    return plt.subplots(rows, 1, sharex=True, **options)


def _mark_phases(rates: Any, pool: Any, shares: Any) -> None:
    start = 0.0
    for phase in PHASES:
        end = start + phase.seconds
        if phase.consumer is not None:
            for axes in (rates, pool):
                axes.axvspan(start, end, color="#f4e3c1", alpha=0.6, lw=0, zorder=0)
            for moment in (start, end):
                shares.axvline(moment, color="black", lw=0.8, ls=":")
            rates.annotate(
                "the queue drains", (end + 1.1, 119), (end + 2.2, 113), va="center"
            )
        rates.text((start + end) / 2, 128, phase.name, ha="center", va="center")
        start = end


def main(arguments: list[str] | None = None) -> None:
    """Run the experiment, print the table, write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", action="store_true", help="wait for the wall clock")
    parser.add_argument("--picture", type=Path, default=Path("backpressure.png"))
    options = parser.parse_args(arguments)
    loop_factory = None if options.real else VirtualTimeLoop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        samples = runner.run(Experiment().run())
    print(table(samples))
    draw(samples, options.picture)
    print(f"wrote {options.picture}")


if __name__ == "__main__":
    main()
