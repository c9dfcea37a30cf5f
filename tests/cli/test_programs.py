"""The command line runs, explains and draws pipelines, and shows running jobs."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

import aiomailbox as am
from aiomailbox.cli import main
from aiomailbox.cli.exit_codes import ExitCode
from aiomailbox.cli.programs import _live_table
from aiomailbox.observe.dashboard import serving_dashboard
from aiomailbox.runtime.job_snapshot import JobSnapshot, OperatorSummary

MODULE = """
import aiomailbox as am

def numbers():
    env = am.StreamExecutionEnvironment()
    env.from_collection([1, 2, 3], name="numbers").map(abs).rebalance().sink_to(print)
    return env

def given(env):
    env.from_collection([1, 0]).map(lambda n: 1 / n).name("divide").sink_to(print)

def streams(env):
    return env.from_collection([1]).map(abs).sink_to(print)

def forgets():
    numbers()

def raises(env):
    raise LookupError("no configuration")

async def runs():
    await numbers().execute()

ready = numbers()
wrong = 7
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "shop_pipelines.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("shop_pipelines", None)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Return the exit code and what was printed."""
    code = main(list(arguments))
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_a_pipeline_is_run_and_its_progress_told(
    program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "run", "shop_pipelines:numbers", "--name", "shop")
    assert (code, out.split()) == (ExitCode.FINE, ["1", "2", "3"])
    assert "shop finished, 3 of 3 rows read (100%)" in err
    # A function that gets the environment may return anything.
    assert run(capsys, "run", "shop_pipelines:streams")[:2] == (ExitCode.FINE, "1\n")
    code, out, _ = run(capsys, "run", "shop_pipelines:ready", "--json")
    result = msgspec.json.decode(out.partition("3\n")[2])
    assert (code, result["state"], result["error"]) == (ExitCode.FINE, "finished", None)


RESUMED = """
import aiomailbox as am

def totals(env):
    env.enable_checkpointing(None, directory="kept")
    numbers = env.from_collection([1, 2, 3], name="numbers").uid("numbers")
    numbers.sink_to(print).uid("print")
"""


def test_a_run_may_have_processes_and_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "shop_totals.py").write_text(RESUMED)
    script = Path(sys.executable).with_name("aiomailbox")

    def ran(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [script, "run", "shop_totals:totals", *options],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    first = ran("--processes", "1")
    assert first.returncode == ExitCode.FINE, first.stderr
    assert sorted(first.stdout.split()) == ["1", "2", "3"]
    refused = ran("--restore", "savepoints/none")
    assert refused.returncode != ExitCode.FINE
    assert "savepoints/none" in refused.stderr
    assert ran("--restore", "latest").returncode == ExitCode.FINE
    assert "'--processes'" in ran("--processes", "0").stderr


def test_a_shell_completes_the_commands() -> None:
    script = Path(sys.executable).with_name("aiomailbox")
    completed = subprocess.run(
        [script],
        env={
            **os.environ,
            "_AIOMAILBOX_COMPLETE": "complete_bash",
            "COMP_WORDS": "aiomailbox ",
            "COMP_CWORD": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert {"run", "explain", "graph", "top", "checkpoints"} <= {
        *completed.stdout.split()
    }


def test_a_job_that_fails_has_a_code_of_its_own(
    program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "run", "shop_pipelines:given")
    assert code == ExitCode.JOB_FAILED
    assert "operator 'divide'" in err
    code, out, _ = run(capsys, "run", "shop_pipelines:given", "--json")
    assert code == ExitCode.JOB_FAILED
    assert '"state": "failed"' in out


def test_a_pipeline_is_explained_and_drawn(
    program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, _ = run(capsys, "explain", "shop_pipelines:numbers")
    assert (code, text.startswith("Job 'job': ")) == (ExitCode.FINE, True)
    code, again, _ = run(capsys, "graph", "shop_pipelines:numbers")
    assert (code, again) == (ExitCode.FINE, text)
    code, mermaid, _ = run(
        capsys, "graph", "shop_pipelines:numbers", "--format", "mermaid"
    )
    assert mermaid.startswith("flowchart LR")
    code, svg, _ = run(capsys, "graph", "shop_pipelines:numbers", "--format", "svg")
    drawing = ET.fromstring(svg)
    texts = [one.text for one in drawing.iter() if one.text]
    assert {"numbers", "map", "FunctionSink", "REBALANCE"} <= set(texts)
    code, out, _ = run(capsys, "explain", "shop_pipelines:numbers", "--json")
    plan = msgspec.json.decode(out)
    source, sink = plan["vertices"]
    assert [one["name"] for one in source["operators"]] == ["numbers", "map"]
    assert source["operators"][1]["functions"] == [
        {"function": "abs", "is_async": False}
    ]
    assert sink["operators"][0]["is_sink"]
    [edge] = plan["edges"]
    assert (edge["source"], edge["target"]) == (source["id"], sink["id"])
    assert (edge["partitioner"], edge["channels"]) == ("REBALANCE", 1)
    code, out, _ = run(capsys, "graph", "shop_pipelines:numbers", "--json")
    assert msgspec.json.decode(out)["graph"] == text.removesuffix("\n")


@pytest.mark.parametrize(
    ("target", "code", "text"),
    [
        ("shop_pipelines", ExitCode.USAGE, "module:name"),
        ("shop_pipelines:wrong", ExitCode.USAGE, "is int"),
        ("shop_pipelines:forgets", ExitCode.USAGE, "returned NoneType: let it return"),
        ("shop_pipelines:nothing", ExitCode.NOTHING, "has no 'nothing'"),
        ("shop_pipelines:nothing", ExitCode.NOTHING, "; its environments: ready"),
        ("shop_pipelines:runs", ExitCode.USAGE, "is an async function"),
        ("shop_pipelines.py:ready", ExitCode.USAGE, "as in shop_pipelines:ready"),
        ("./shop/lines.py:ready", ExitCode.USAGE, "as in shop.lines:ready"),
        ("no_such_module:x", ExitCode.NOTHING, "no module"),
    ],
)
def test_what_names_no_pipeline_is_refused(
    program: Path,
    capsys: pytest.CaptureFixture[str],
    target: str,
    code: ExitCode,
    text: str,
) -> None:
    for command in ("run", "explain", "graph"):
        found, _, err = run(capsys, command, target)
        assert found == code
        assert text in err


def test_what_the_program_itself_raises_is_shown_from_its_line(
    program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (program / "shop_broken.py").write_text("import no_such_dependency\n")
    for target, text in (
        ("shop_pipelines:raises", "LookupError: no configuration"),
        ("shop_broken:orders", "No module named 'no_such_dependency'"),
    ):
        code, out, err = run(capsys, "run", target)
        assert (code, out) == (ExitCode.PROGRAM, "")
        first, place, *_, last = err.splitlines()
        assert first.startswith("Traceback")
        assert str(program) in place
        assert text in last


def test_each_exit_code_is_told_by_help(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[2] / "docs" / "observability.md"
    shown = " ".join(run(capsys, "--help")[1].split())
    told = " ".join(page.read_text("utf-8").split())
    for code in [*ExitCode, 130, 143]:
        assert f" {int(code)} " in shown.partition("Exit codes:")[2]
        assert f" {int(code)} " in told.partition("Exit codes:")[2]


def test_a_live_table_fits_into_a_narrow_window() -> None:
    operators = [
        OperatorSummary(
            name=name, operator_id=name, uid=None, vertex=0, parallelism=1,
            is_source=False, is_sink=False,
            metrics={"num_records_in": 1_234_567, "num_records_out": 1_234_567},
            blocked_by=f"{name} waits for limiter [openai], 71 % of the last minute",
        )
        for name in ("parse", "ask the model")
    ]  # fmt: skip
    snapshot = JobSnapshot(
        job="calls", job_id="calls", state="running", taken_at_ms=0, duration_s=7.0,
        restarts=0, vertices=[], operators=operators, edges=[],
    )  # fmt: skip
    for width in (120, 60, 44):
        out = io.StringIO()
        Console(file=out, width=width).print(_live_table(snapshot, width))
        lines = out.getvalue().splitlines()
        assert all(len(line) <= width for line in lines)
        # A line for each operator, not a column of syllables.
        assert len(lines) <= 7
        assert "limiter [op" in lines[-2]
        assert "ask the model" in lines[-2]
    assert "1,234,567" not in out.getvalue()


async def ticks() -> Any:
    for number in range(1_000_000):
        yield number
        await asyncio.sleep(0.01)


@pytest.mark.real_time
@pytest.mark.timeout(180)
async def test_a_running_job_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def top(*arguments: str) -> tuple[int, str, str]:
        return await asyncio.to_thread(run, capsys, "top", *arguments)

    # Whoever is behind a proxy still reaches this machine.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    env = am.StreamExecutionEnvironment()
    env.from_async_iterable(ticks, name="ticks").sink_to(lambda number: None)
    async with serving_dashboard(0) as address, env.start("shop") as job:
        while job.state is not am.JobState.RUNNING:
            await asyncio.sleep(0.01)
        code, out, _ = await top(address)
        title, head, *rows = out.splitlines()
        assert (code, title.split(",")[0]) == (ExitCode.FINE, "shop running")
        assert head.split("\t")[0] == "OPERATOR"
        assert [row.split("\t")[0] for row in rows] == ["ticks", "FunctionSink"]
        code, out, _ = await top(address, "--json")
        assert msgspec.json.decode(out)["job"] == "shop"
    code, _, err = await top(address)
    assert code == ExitCode.NOTHING
    assert "there is no job at" in err
    code, _, err = await top("file:///etc")
    assert code == ExitCode.NOTHING


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_a_run_that_is_interrupted_says_so_by_its_code(
    program: Path, number: signal.Signals, code: int
) -> None:
    text = "import asyncio\nimport aiomailbox as am\n\n" + ENDLESS
    (program / "shop_endless.py").write_text(text)
    with subprocess.Popen(
        [sys.executable, "-m", "aiomailbox", "run", "shop_endless:service", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as command:  # fmt: skip
        assert command.stdout is not None
        assert command.stdout.readline() == "begun\n"
        os.kill(command.pid, number)
        rest, said = command.communicate(timeout=100)
    assert (command.returncode, rest) == (code, "ended\n")
    assert "Traceback" not in said


ENDLESS = """
async def ticks():
    print("begun", flush=True)
    try:
        await asyncio.Event().wait()
        yield 1
    finally:
        print("ended")

def service(env):
    env.from_async_iterable(ticks).sink_to(print)
"""


async def test_a_stream_is_explained_without_a_sink_and_drawn() -> None:
    env = am.StreamExecutionEnvironment()
    assert env._repr_html_().startswith("<code>")
    stream = env.from_collection([1], name="<one>").map(abs).rebalance().filter(bool)
    assert "filter" in stream.explain()
    drawing = stream._repr_html_()
    assert "&lt;one&gt;" in drawing
    ET.fromstring(drawing)
    stream.sink_to(lambda one: None)
    ET.fromstring(env._repr_html_())
    # Its style changes nothing else of the page that it is in.
    [style] = [
        one.text or "" for one in ET.fromstring(drawing).iter() if "style" in one.tag
    ]
    for rule in style.replace("@media(prefers-color-scheme:dark){", "").split("}"):
        assert not rule or rule.lstrip("svg").startswith(".aiomailbox-graph")
    with pytest.raises(am.InvalidArgumentError, match="format"):
        env.explain(format="png")  # type: ignore[arg-type]
    async with env.start("<drawn>") as job:
        assert "&lt;drawn&gt;" in job._repr_html_()
        await job.result()
