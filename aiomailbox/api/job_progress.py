"""The progress of a job for people: a line that is updated while the job runs.

Theory of operation: what is shown is a pure function of two snapshots of the job. There
are three ways to update a line: rich in a terminal, HTML in a
notebook, and new plain lines where nothing can be overwritten.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol, TextIO

from aiomailbox.api.job import JobClient, LatestSnapshot
from aiomailbox.api.showing import displayed, is_notebook
from aiomailbox.durations import above_zero, duration_s
from aiomailbox.runtime.job_snapshot import JobSnapshot, OperatorSummary

_PLAIN_S: Final = 5.0
_LIVE_S: Final = 0.25
_BAR: Final = 24


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The numbers that `progress` and the command line show.

    Attributes:
        job: The job's name.
        state: Its current state.
        duration_s: Seconds since it started.
        read: Records that its sources have emitted; rows, where a record is a batch.
        total: How many records there are; None if a source does not know.
        read_per_second: How many of them are read per second.
        written: Records that its sinks have received.
        in_flight: Asynchronous calls in flight.
        dead_letters: Records sent to dead letters.
        skipped: Records skipped after an error.
        restarts: How often the job was restarted.
        eta_s: Estimated seconds until its end at the current rate; None if unknown.
        bottleneck: The operator that limits its speed, and the reason; "" if unknown.
    """

    job: str
    state: str
    duration_s: float
    read: int
    total: int | None
    read_per_second: float
    written: int
    in_flight: int
    dead_letters: int
    skipped: int
    restarts: int
    eta_s: float | None
    bottleneck: str = ""

    @property
    def fraction(self) -> float | None:
        """The fraction of the input that has been read, from 0 to 1; None if unknown."""
        if not self.total:
            return None
        return min(1.0, self.read / self.total)

    def __str__(self) -> str:
        of = "" if self.total is None else f" of {self.total:,}"
        share = "" if self.fraction is None else f" ({self.fraction:.0%})"
        parts = [
            f"{self.job} {self.state}",
            f"{self.read:,}{of} rows read{share}",
            f"{self.read_per_second:,.0f}/s",
            f"{self.written:,} out",
        ]
        if self.in_flight:
            parts.append(f"{self.in_flight:,} calls in flight")
        for count, name in (
            (self.dead_letters, "dead letters"),
            (self.skipped, "skipped"),
            (self.restarts, "restarts"),
        ):
            if count:
                parts.append(f"{count:,} {name}")
        if self.eta_s is not None:
            parts.append(f"{_clock(self.eta_s)} left")
        return ", ".join(parts)


def progress_of(snapshot: JobSnapshot, total: int | None = None) -> JobProgress:
    """Return the progress of a job.

    Args:
        snapshot: A snapshot of the job.
        total: How many records there are to read, if the caller knows better than the
            sources.
    """
    sources = [one for one in snapshot.operators if one.is_source]
    sinks = [one for one in snapshot.operators if one.is_sink]
    read = sum(_rows_read(one) for one in sources)
    rate = sum(
        one.num_records_out_per_second * _rows_per_record(one) for one in sources
    )
    if total is None:
        totals = [one.records_expected for one in sources]
        known = [each for each in totals if each is not None]
        total = sum(known) if known and len(known) == len(totals) else None
    eta_s: float | None = None
    if total is not None:
        # The rate is that of the last seconds; one since the start has its slow begin.
        eta_s = max(0, total - read) / rate if rate > 0 else None
    else:
        ends_in = [
            float(value)
            for one in sources
            if isinstance(value := one.metrics.get("eta_s"), int | float)
        ]
        eta_s = max(ends_in, default=None)
    is_over = snapshot.state in {"finished", "failed", "canceled"}
    return JobProgress(
        snapshot.job,
        snapshot.state,
        snapshot.duration_s,
        read,
        total,
        rate,
        sum(_count(one.metrics, "num_records_in") for one in sinks),
        sum(_count(one.metrics, "in_flight") for one in snapshot.operators),
        sum(_count(one.metrics, "dead_letters") for one in snapshot.operators),
        sum(_count(one.metrics, "skipped") for one in snapshot.operators),
        snapshot.restarts,
        None if is_over else eta_s,
        "" if snapshot.bottleneck is None else snapshot.bottleneck.why,
    )


class _Display(Protocol):
    """Somewhere to show it."""

    interval_s: float

    def show(self, seen: JobProgress, job: JobSnapshot, *, last: bool) -> None: ...


class _Plain:
    """Writes a line now and then."""

    interval_s = _PLAIN_S

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, seen: JobProgress, job: JobSnapshot, *, last: bool) -> None:
        with contextlib.suppress(OSError, ValueError):  # It is no longer read.
            print(seen, file=self._stream, flush=True)


class _Terminal:
    """Keeps a bar and a line in a terminal up to date."""

    interval_s = _LIVE_S

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(
            console=Console(file=stream), auto_refresh=False, transient=False
        )
        self._live.start()

    def show(self, seen: JobProgress, job: JobSnapshot, *, last: bool) -> None:
        from rich.text import Text

        text = Text(overflow="ellipsis", no_wrap=True)
        if seen.fraction is not None:
            done = round(seen.fraction * _BAR)
            text.append("━" * done, style="green")
            text.append("━" * (_BAR - done) + " ", style="bright_black")
            # Before the rest, which a narrow window cuts.
            text.append(f"{seen.fraction:.0%} ")
        text.append(str(seen), style="red" if seen.state == "failed" else "")
        if seen.bottleneck and not last:
            text.append(f"\n  {seen.bottleneck}", style="yellow")
        self._live.update(text, refresh=True)
        if last:
            self._live.stop()


class _Notebook:
    """Keeps a bar and a line below a cell up to date."""

    interval_s = _LIVE_S

    def __init__(self, job: JobSnapshot | None) -> None:
        # Now: what is below a cell is where the program was when it began to show it.
        seen = None if job is None else progress_of(job)
        shown = "" if seen is None or job is None else html_of(seen, job)
        self._handle: Any = displayed(shown, str(seen or ""))

    def show(self, seen: JobProgress, job: JobSnapshot, *, last: bool) -> None:
        shown = {"text/html": html_of(seen, job), "text/plain": str(seen)}
        self._handle.update(shown, raw=True)


def operator_rows(job: JobSnapshot) -> list[dict[str, str]]:
    """Return a row for each operator, as texts by column name."""
    return [
        {
            "operator": one.name,
            "in": "" if one.is_source else f"{_count(one.metrics, 'num_records_in'):,}",
            "in/s": "" if one.is_source else f"{one.num_records_in_per_second:,.0f}",
            "out": "" if one.is_sink else f"{_count(one.metrics, 'num_records_out'):,}",
            "out/s": "" if one.is_sink else f"{one.num_records_out_per_second:,.0f}",
            "in flight": f"{one.calls.count:,}" if one.calls else "",
            "waits for": one.blocked_by.removeprefix(f"{one.name} waits for "),
        }
        for one in job.operators
    ]


def html_of(seen: JobProgress, job: JobSnapshot) -> str:
    """Return the progress as HTML without any script: a bar, and a row per operator."""
    bar = ""
    if seen.fraction is not None:
        bar = f'<progress max="1" value="{seen.fraction:.4f}"></progress> '
    why = (
        f"<br><small>{html.escape(seen.bottleneck)}</small>" if seen.bottleneck else ""
    )
    rows = operator_rows(job)
    heads = "".join(f"<th>{name}</th>" for name in rows[0])
    body = "".join(
        f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row.values())}</tr>"
        for row in rows
    )
    return (
        f"<div>{bar}<code>{html.escape(str(seen))}</code>{why}"
        f'<table class="dataframe"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _display(job: JobClient | LatestSnapshot, stream: TextIO | None) -> _Display:
    if stream is None and is_notebook():
        return _Notebook(job.snapshot())
    stream = sys.stderr if stream is None else stream
    if stream.isatty():
        with contextlib.suppress(ImportError):
            return _Terminal(stream)
    return _Plain(stream)


@asynccontextmanager
async def progress(
    job: JobClient | LatestSnapshot,
    *,
    total: int | None = None,
    interval: float | None = None,
    stream: TextIO | None = None,
    quiet: bool = False,
) -> AsyncIterator[None]:
    """Show the progress of a job while the block runs, and once at its end.

    A terminal shows a line with a bar (if rich is installed), a notebook shows
    HTML below the cell; any other stream gets a line every five seconds. The block gets no
    object: read numbers from ``job.snapshot()``.

    Args:
        job: The job.
        total: How many records there are to read; None to ask the sources.
        interval: Seconds between updates; None for a default that suits the output.
        stream: Where progress is written; None for standard error, or the notebook.
        quiet: Whether to show nothing.

    Raises:
        InvalidArgumentError: If the interval is 0.

    Example:
        >>> import sys
        >>> import aiomailbox as am
        >>> async def main() -> None:
        ...     env = am.StreamExecutionEnvironment()
        ...     env.from_collection(range(1000), name="n").sink_to(lambda n: None)
        ...     async with env.start("numbers") as job:
        ...         async with am.progress(job, stream=sys.stdout):
        ...             await job.result()
        >>> am.run(main())
        numbers finished, 1,000 of 1,000 rows read (100%), .../s, 1,000 out
    """
    above_zero(
        None if interval is None else duration_s(interval, "interval"), "interval"
    )
    if quiet:
        yield
        return
    display = _display(job, stream)
    wait_s = interval or display.interval_s

    def show(*, last: bool) -> None:
        seen = job.snapshot()
        if seen is not None:
            display.show(progress_of(seen, total), seen, last=last)

    async def keep_showing() -> None:
        while True:
            await asyncio.sleep(wait_s)
            show(last=False)

    showing = asyncio.get_running_loop().create_task(
        keep_showing(), name="progress of a job"
    )
    try:
        yield
    finally:
        showing.cancel()
        await asyncio.wait([showing])
        show(last=True)


def _rows_read(source: OperatorSummary) -> int:
    """Return how many rows a source has read: its records, unless these are batches."""
    return max(source.num_records_out, _count(source.metrics, "rows_read"))


def _rows_per_record(source: OperatorSummary) -> float:
    return _rows_read(source) / source.num_records_out if source.num_records_out else 1


def _count(metrics: dict[str, Any], name: str) -> int:
    value = metrics.get(name)
    return value if isinstance(value, int) else 0


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
