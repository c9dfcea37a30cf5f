"""``run``, ``explain``, ``graph`` and ``top``: pipelines of modules, and running jobs."""

from __future__ import annotations

import importlib
import inspect
import sys
import threading
import traceback
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from types import TracebackType
from typing import Annotated, Any, Literal

import msgspec
import typer
from rich.markup import escape

from aiomailbox.api.environment import StreamExecutionEnvironment
from aiomailbox.api.job_progress import operator_rows
from aiomailbox.cli.exit_codes import ExitCode
from aiomailbox.cli.output import end, show_json, show_table
from aiomailbox.collector import tune_collector
from aiomailbox.errors import (
    AioMailboxError,
    CorruptStreamError,
    JobCancelledError,
    JobFailedError,
)
from aiomailbox.observe.running import run as run_work
from aiomailbox.runtime.job_snapshot import JobSnapshot
from aiomailbox.runtime.processes.starter import Processes

_Target = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:NAME",
        help="An environment with a pipeline, or a function that returns one; a function "
        "of one argument is given a new one.",
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_LOOK_S = 1.0


class GraphFormat(Enum):
    """The output format of a graph."""

    TEXT = "text"
    MERMAID = "mermaid"
    SVG = "svg"


def add_programs(app: typer.Typer) -> None:
    """Add the commands about programs and running jobs."""
    app.command("run")(run)
    app.command("explain")(explain)
    app.command("graph")(graph)
    app.command("top")(top)


def run(
    target: _Target,
    name: Annotated[str, typer.Option(help="The name of the job.")] = "job",
    dashboard: Annotated[
        int | None, typer.Option(help="The local port of the job's dashboard.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(help="How many worker processes run it.", min=1)
    ] = None,
    restore: Annotated[
        str | None,
        typer.Option(help='Where to go on from: "latest", a savepoint, a checkpoint.'),
    ] = None,
    as_json: _Json = False,
) -> None:
    """Run a pipeline to its end; progress is written to standard error."""
    env = _environment(target)
    tune_collector()
    error: str | None = None
    code, state, duration_s = ExitCode.FINE, "finished", None
    try:
        if processes is not None:
            env.configure(deployment=Processes(processes))
        if restore is not None:
            env.configure(restore_from=restore)
        job = env.execute(name, progress=not as_json)
        result = run_work(job, dashboard=dashboard)
        duration_s = result.duration_s
    except JobFailedError as failure:
        code, state, error = ExitCode.JOB_FAILED, "failed", str(failure)
    except JobCancelledError as failure:
        code, state, error = ExitCode.JOB_FAILED, "canceled", str(failure)
    except AioMailboxError as refusal:
        end(ExitCode.USAGE, str(refusal))
    if as_json:
        show_json(
            {"job": name, "state": state, "duration_s": duration_s, "error": error}
        )
        end(code)
    end(code, error or "")


def explain(target: _Target, as_json: _Json = False) -> None:
    """Show the tasks of a pipeline, its channels, its bounds and its guarantees."""
    form: Literal["json", "text"] = "json" if as_json else "text"
    text = _asked(target, lambda env: env.explain(format=form))
    if as_json:
        show_json(msgspec.json.decode(text))
    else:
        sys.stdout.write(f"{text}\n")


def graph(
    target: _Target,
    form: Annotated[
        GraphFormat, typer.Option("--format", help="The output format.")
    ] = GraphFormat.TEXT,
    as_json: _Json = False,
) -> None:
    """Write the graph of a pipeline: as text, Mermaid or SVG."""
    text = _asked(target, lambda env: env.explain(format=form.value))
    if as_json:
        show_json({"format": form.value, "graph": text})
    else:
        sys.stdout.write(f"{text}\n")


def top(
    url: Annotated[
        str, typer.Argument(help="The dashboard of a running program.")
    ] = "http://127.0.0.1:8081/",
    once: Annotated[bool, typer.Option("--once", help="Print it once.")] = False,
    as_json: _Json = False,
) -> None:
    """Show a running job: live in a terminal, otherwise once."""
    snapshot = _snapshot(url)
    if as_json:
        show_json(snapshot)
    elif once or not sys.stdout.isatty():
        sys.stdout.write(f"{_title(snapshot)}\n")
        rows = operator_rows(snapshot)
        show_table(
            [name.upper() for name in rows[0]], [list(row.values()) for row in rows]
        )
    else:
        snapshot = _live(url, snapshot)
    end(ExitCode.JOB_FAILED if snapshot.state == "failed" else ExitCode.FINE)


# The columns that a narrow window omits, in this order.
_SPARE = ("out", "in", "in flight", "out/s")
_WAITS_MIN = 18


def _title(snapshot: JobSnapshot) -> str:
    why = "" if snapshot.bottleneck is None else f": {snapshot.bottleneck.why}"
    return f"{snapshot.job} {snapshot.state}, {snapshot.duration_s:.0f} s{why}"


def _live_table(snapshot: JobSnapshot, width: int) -> Any:
    """Return the job as a table of rich that fits into a window."""
    from rich import box
    from rich.table import Table

    rows = operator_rows(snapshot)
    heads = list(rows[0])
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in heads}
    for spare in _SPARE:
        if sum(widths[name] + 2 for name in heads[:-1]) + _WAITS_MIN > width:
            heads.remove(spare)
    table = Table(
        title=_title(snapshot),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for name in heads:
        is_text = name in {"operator", "waits for"}
        table.add_column(
            name,
            justify="left" if is_text else "right",
            no_wrap=True,
            overflow="ellipsis",
            min_width=None if name == "waits for" else widths[name],
        )
    for row in rows:
        table.add_row(*(escape(row[name]) for name in heads))
    return table


def _live(url: str, snapshot: JobSnapshot) -> JobSnapshot:
    """Show a job until it has ended, its program is gone, or the user interrupts."""
    from rich.live import Live

    pause = threading.Event()
    with Live(auto_refresh=False) as live:
        while True:
            live.update(_live_table(snapshot, live.console.width), refresh=True)
            if snapshot.state in {"finished", "failed", "canceled"}:
                return snapshot
            try:
                pause.wait(_LOOK_S)
                snapshot = _read(url)
            except (KeyboardInterrupt, OSError, CorruptStreamError):
                return snapshot


def _snapshot(url: str) -> JobSnapshot:
    try:
        return _read(url)
    except (OSError, ValueError, CorruptStreamError) as error:
        end(ExitCode.NOTHING, f"there is no job at {url}: {error}")


def _read(url: str) -> JobSnapshot:
    if not url.startswith(("http://", "https://")):
        raise ValueError("it is not the address of a dashboard")
    # Through a proxy, 127.0.0.1 would be the proxy's own machine.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(f"{url.rstrip('/')}/snapshot", timeout=10) as answer:
        return JobSnapshot.from_json(answer.read())


def _asked(target: str, ask: Any) -> str:
    env = _environment(target)
    try:
        text: str = ask(env)
    except AioMailboxError as error:
        end(ExitCode.USAGE, str(error))
    return text


def _environment(target: str) -> StreamExecutionEnvironment:
    """Return the environment that a command line names."""
    module_name, _, name = target.partition(":")
    if not name:
        end(ExitCode.USAGE, f"{target!r} names no pipeline: write module:name")
    if module_name.endswith(".py") or "/" in module_name:
        dotted = module_name.removesuffix(".py").strip("./").replace("/", ".")
        end(
            ExitCode.USAGE,
            f"{module_name!r} is a file: name its module, as in {dotted}:{name}",
        )
    # As ``python -m`` does.
    sys.path.insert(0, "")
    try:
        with _errors_of_the_program(unless_missing=module_name):
            module = importlib.import_module(module_name)
    except ModuleNotFoundError:
        end(ExitCode.NOTHING, f"there is no module {module_name!r}")
    finally:
        sys.path.remove("")
    found = getattr(module, name, None)
    if found is None:
        there = [
            each
            for each, value in vars(module).items()
            if isinstance(value, StreamExecutionEnvironment)
        ]
        known = f"; its environments: {', '.join(there)}" if there else ""
        end(ExitCode.NOTHING, f"module {module_name!r} has no {name!r}{known}")
    if inspect.iscoroutinefunction(found):
        end(
            ExitCode.USAGE,
            f"{target} is an async function, which runs a job of its own: start it with "
            "Python, or name an environment, or a function that describes a pipeline",
        )
    if callable(found):
        with _errors_of_the_program():
            if inspect.signature(found).parameters:
                # Whatever it returns, such as its last stream: it was given the environment.
                found(env := StreamExecutionEnvironment())
                return env
            found = found()
        if not isinstance(found, StreamExecutionEnvironment):
            end(
                ExitCode.USAGE,
                f"{target} returned {type(found).__name__}: let it return its "
                "environment, or take one as its argument",
            )
    if not isinstance(found, StreamExecutionEnvironment):
        end(
            ExitCode.USAGE,
            f"{target} is {type(found).__name__}, not an environment with a pipeline",
        )
    return found


@contextmanager
def _errors_of_the_program(unless_missing: str = "") -> Iterator[None]:
    """End the command with the error that the user's own code raises, and its line.

    Raises:
        ModuleNotFoundError: If that module, or a package in its name, does not exist.
    """
    try:
        yield
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{unless_missing}.".startswith(f"{missing}."):
            raise
        trace = error.__traceback__
        # It begins with the user's line.
        while trace is not None and trace.tb_next is not None and _is_ours(trace):
            trace = trace.tb_next
        lines = traceback.format_exception(type(error), error, trace)
        end(ExitCode.PROGRAM, "".join(lines).rstrip("\n"))


def _is_ours(trace: TracebackType) -> bool:
    name = trace.tb_frame.f_code.co_filename
    return name == __file__ or "importlib" in name
