"""A sink that no job runs is named, with its line, when nothing can run it any more."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.api.definition import warn_of_unrun

HEAD = """
import asyncio
import sys
import aiomailbox as am

def pipeline():
    env = am.StreamExecutionEnvironment()
    env.from_collection([1]).sink_to(print)
    return env
"""
SINK_LINE = 8
WARNING = "the program ends, and an environment with sinks was never executed"


@pytest.mark.real_time
def test_the_end_of_the_program_names_the_sink_of_an_environment_that_never_ran(
    run_program: Callable[..., Any], tmp_path: Path
) -> None:
    # One is gone by then, the other is not.
    told = run_program(HEAD + "pipeline()\nenv = pipeline()\n").log
    assert told.startswith(f"WARNING aiomailbox: {WARNING} sink='FunctionSink'")
    assert f"line='{tmp_path / 'program.py'}:{SINK_LINE}' environments=2" in told
    assert "await env.execute()" in told
    assert told.count("\n") == 1


@pytest.mark.real_time
@pytest.mark.parametrize(
    "end",
    [
        "am.run(pipeline().execute())",
        "pipeline().explain()",
        "env = pipeline()\nsys.ps1 = '>>> '  # as a prompt and a notebook have it",
        "env = pipeline()\nraise ValueError('before it could run')",
    ],
    ids=["executed", "explained", "prompt", "failed"],
)
def test_an_environment_that_ran_or_could_not_run_is_not_named(
    end: str, run_program: Callable[..., Any]
) -> None:
    assert WARNING not in run_program(HEAD + end).log


@pytest.mark.real_time
def test_a_module_may_offer_environments_that_its_importers_do_not_run(
    run_program: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "offers.py").write_text(
        HEAD.replace("def pipeline():", "if True:").replace("    return env\n", "")
    )
    assert run_program(HEAD + "import offers\n").log == ""


async def test_a_sink_that_comes_after_the_start_is_named_when_the_end_is_awaited(
    caplog: pytest.LogCaptureFixture,
) -> None:
    env = am.StreamExecutionEnvironment()
    numbers = env.from_collection([1, 2])
    first: list[int] = []
    late: list[int] = []
    numbers.sink_to(first.append)
    async with env.start("numbers") as job:
        numbers.map(lambda number: 10 * number).sink_to(late.append)
        await job.result()
        await job.result()
    assert (first, late) == ([1, 2], [])
    [record] = [one for one in caplog.records if "a sink" in one.getMessage()]
    fields: dict[str, Any] = vars(record)
    assert record.getMessage().startswith(
        "the job does not run a sink: it was added after the start job='numbers'"
    )
    assert fields["line"].startswith(f"{__file__}:")
    # It can still be run, as a job of its own.
    await env.execute()
    assert late == [10, 20]


async def test_what_is_written_for_the_next_job_is_not_missed_in_this_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    env = am.StreamExecutionEnvironment()
    env.from_collection([1]).sink_to(lambda number: None)
    first = await env.execute_async("first")
    env.from_collection([2]).sink_to(lambda number: None)
    second = await env.execute_async("second")
    await asyncio.gather(first.result(), second.result())
    assert "a sink" not in caplog.text


def test_results_that_are_pulled_are_no_execution_of_the_sinks(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(sys, "last_value", raising=False)
    monkeypatch.setattr("aiomailbox.api.definition._UNRUN", {})
    env = am.StreamExecutionEnvironment()
    numbers = env.from_collection([1])
    numbers.sink_to(lambda number: None)
    assert am.run(numbers.collect()) == [1]
    warn_of_unrun()
    assert caplog.text.count(WARNING) == 1
