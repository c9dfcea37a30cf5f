"""How far a job is: in a terminal, a notebook, and where only lines can be written."""

from __future__ import annotations

import asyncio
import io
import re
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.api.job_progress import _Notebook, html_of, progress_of


class Terminal(io.StringIO):
    """A stream that says that it is one."""

    def isatty(self) -> bool:
        return True


async def call(number: int) -> int:
    await asyncio.sleep(1)
    if number % 10 == 0:
        raise ValueError(number)
    return number


def slow(env: am.StreamExecutionEnvironment, rows: Any = range(200)) -> None:
    stream = env.from_collection(rows, name="rows")
    stream.map_async(call, concurrency=5, on_error=am.skip).sink_to(lambda row: None)


async def test_lines_where_nothing_can_be_written_twice() -> None:
    out = io.StringIO()
    env = am.StreamExecutionEnvironment()
    slow(env)
    async with env.start("calls") as job, am.progress(job, stream=out):
        await job.result()
    lines = out.getvalue().splitlines()
    # 200 calls of a second, five at a time, a line every five seconds, and the end.
    assert len(lines) == 9
    assert lines[0].startswith("calls running, ")
    assert "5 calls in flight" in lines[0]
    assert " left" in lines[0]
    assert lines[-1].startswith("calls finished, 200 of 200 rows read (100%), ")
    assert lines[-1].endswith(", 180 out, 20 skipped")


async def test_a_terminal_shows_a_bar_that_is_cut_where_it_is_narrow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    env = am.StreamExecutionEnvironment()
    slow(env)
    async with env.start("calls") as job, am.progress(job, stream=out):
        await job.result()
    shown = out.getvalue()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert "━" in shown
    assert "…" in shown
    assert "━ 100% calls" in plain
    assert "\x1b[" in shown


async def test_a_source_that_does_not_know_its_size_has_no_end_in_sight() -> None:
    async def rows() -> AsyncIterator[int]:
        for number in range(30):
            yield number
            await asyncio.sleep(1)

    env = am.StreamExecutionEnvironment()
    env.from_async_iterable(rows, name="rows").sink_to(lambda row: None)
    async with env.start() as job:
        await asyncio.sleep(10.5)
        seen = progress_of(job.snapshot())
        known = progress_of(job.snapshot(), total=30)
    assert (seen.total, seen.fraction, seen.eta_s) == (None, None, None)
    assert "of" not in str(seen).split(" rows")[0]
    assert seen.read_per_second == pytest.approx(1, rel=0.2)
    assert known.eta_s == pytest.approx(19, rel=0.3)


async def test_the_time_left_is_by_the_last_seconds_and_not_by_a_slow_begin() -> None:
    async def rows() -> AsyncIterator[int]:
        await asyncio.sleep(100)
        for number in range(60):
            yield number
            await asyncio.sleep(1)

    env = am.StreamExecutionEnvironment()
    env.from_async_iterable(rows, name="rows").sink_to(lambda row: None)
    async with env.start() as job:
        for _ in range(120):
            await asyncio.sleep(1)
            seen = progress_of(job.snapshot(), total=60)
    assert seen.eta_s == pytest.approx(40, rel=0.1)


async def test_a_job_that_has_ended_is_told_of_once() -> None:
    env = am.StreamExecutionEnvironment()
    slow(env, range(5))
    async with env.start("calls") as job:
        await job.result()
    out = io.StringIO()
    async with am.progress(job, stream=out):
        pass
    [line] = out.getvalue().splitlines()
    assert line.startswith("calls finished, 5 of 5 rows read (100%), ")


async def test_dead_letters_are_told_of() -> None:
    env = am.StreamExecutionEnvironment()
    failed = am.OutputTag("failed")
    called = env.from_collection(range(20), name="rows").map_async(
        call, concurrency=5, on_error=am.dead_letter(failed)
    )
    called.get_side_output(failed).sink_to(lambda row: None)
    called.sink_to(lambda row: None)
    out = io.StringIO()
    async with env.start("calls") as job, am.progress(job, stream=out):
        await job.result()
    assert out.getvalue().rstrip().endswith("20 out, 2 dead letters")


async def test_execute_shows_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    env = am.StreamExecutionEnvironment()
    slow(env, range(5))
    await env.execute("calls", progress=True)
    assert "calls finished, 5 of 5 rows read" in capsys.readouterr().err


async def test_a_job_that_fails_says_so_at_the_end() -> None:
    out = io.StringIO()
    env = am.StreamExecutionEnvironment()
    env.from_collection([1, 0]).map(lambda one: 1 / one).sink_to(lambda one: None)
    with pytest.raises(am.JobFailedError):
        async with env.start("divide") as job, am.progress(job, stream=out):
            await job.result()
    assert out.getvalue().startswith("divide failed, ")


async def test_quiet_shows_nothing_and_a_wrong_interval_is_refused() -> None:
    out = io.StringIO()
    env = am.StreamExecutionEnvironment()
    slow(env, range(5))
    async with env.start() as job:
        async with am.progress(job, stream=out, quiet=True):
            await job.result()
        with pytest.raises(am.InvalidArgumentError, match="interval"):
            async with am.progress(job, interval=0):
                pass
    assert out.getvalue() == ""


async def test_what_nobody_reads_any_more_does_not_fail_the_job() -> None:
    out = io.StringIO()
    env = am.StreamExecutionEnvironment()
    slow(env, range(5))
    async with env.start() as job, am.progress(job, stream=out):
        out.close()
        await job.result()


async def test_a_notebook_gets_html_that_is_updated_in_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, shown_now: Any, *, raw: bool) -> None:
            assert shown_now["text/plain"].startswith("<calls> ")
            shown.append(shown_now["text/html"])

    monkeypatch.setattr("IPython.display.display", lambda *_, **__: Handle())
    monkeypatch.setattr("aiomailbox.api.job_progress.is_notebook", lambda: True)
    env = am.StreamExecutionEnvironment()
    slow(env)
    async with env.start("<calls>") as job, am.progress(job, interval=1):
        await job.result()
    assert len(shown) > 10
    assert shown[-1].startswith('<div><progress max="1" value="1.0000">')
    assert "&lt;calls&gt; finished" in shown[-1]
    assert _Notebook.interval_s < 1
    assert "ipywidgets" not in sys.modules
    assert html_of(progress_of(job.snapshot()), job.snapshot()) == shown[-1]
    # And what each operator has done.
    assert "<td>map_async</td><td>200</td>" in shown[-1]
