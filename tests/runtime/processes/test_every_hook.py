"""Every hook of the user's raises everything that can be raised, everywhere.

The laws: whoever runs the job gets an answer; it is a failure that names the operator and
the line; every task reaches a terminal state; what was opened is closed exactly once; and
nothing stays behind.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.availability import Availability
from aiomailbox.records.run import ListRun


class Broken(Exception):  # noqa: N818 -- short in the names of cases
    """Cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def group(message: str = "several") -> BaseExceptionGroup[BaseException]:
    return BaseExceptionGroup(message, [KeyboardInterrupt()])


KINDS: dict[str, Any] = {
    "ValueError": ValueError,
    "StopIteration": StopIteration,
    "StopAsyncIteration": StopAsyncIteration,
    "CancelledError": asyncio.CancelledError,
    "GeneratorExit": GeneratorExit,
    "KeyboardInterrupt": KeyboardInterrupt,
    "SystemExit": SystemExit,
    "group": group,
    "Broken": Broken,
}


class Case:
    """Which hook raises what; and a file of what was opened and closed, anywhere."""

    def __init__(self, hook: str, kind: Any, journal: Path, *, ends: bool = True):
        self.hook = hook
        self.kind = kind
        self.journal = journal
        self.ends = ends

    def __call__(self, hook: str) -> Any:
        """Pass a hook, or raise there; ``hook`` of a coroutine ends with a star."""
        if hook == self.hook:
            raise self.kind("from a hook")
        return self._later() if f"{hook}*" == self.hook else None

    async def _later(self) -> None:
        await asyncio.sleep(0.001)
        raise self.kind("from a hook")

    def note(self, what: str, who: str) -> None:
        with self.journal.open("a") as file:
            file.write(f"{what} {who}\n")

    def check_closed_once(self) -> None:
        lines = self.journal.read_text().splitlines() if self.journal.exists() else []
        counts = Counter(tuple(line.split(" ", 1)) for line in lines)
        opened = {who: n for (what, who), n in counts.items() if what == "opened"}
        closed = {who: n for (what, who), n in counts.items() if what == "closed"}
        assert closed == opened


class Split:
    split_id = "all"


class Enumerator:
    def __init__(self, case: Case, context: Any) -> None:
        self.case = case
        self.context = context
        case("create_enumerator")
        case.note("opened", "enumerator")

    def start(self) -> None:
        self.case("start (enumerator)")

    def add_reader(self, subtask_index: int) -> None:
        self.case("add_reader")

    def handle_split_request(self, subtask_index: int) -> None:
        self.case("handle_split_request")
        self.context.assign_splits(subtask_index, [Split()])
        self.context.signal_no_more_splits(subtask_index)

    def close(self) -> None:
        self.case.note("closed", "enumerator")
        self.case("close (enumerator)")


class Reader:
    def __init__(self, case: Case, context: Any) -> None:
        self.case = case
        self.context = context
        self.availability = Availability()
        self.numbers: list[int] = []
        self.no_more = False
        case("create_reader")
        self.who = f"reader {context.subtask_index}"
        case.note("opened", self.who)

    def start(self) -> None:
        self.case("start (reader)")
        self.context.request_split()

    def add_splits(self, splits: list[Any]) -> None:
        self.case("add_splits")
        self.numbers += range(5)
        self.availability.set_available()

    def notify_no_more_splits(self) -> None:
        self.case("notify_no_more_splits")
        self.no_more = True
        self.availability.set_available()

    def poll_next(self, output: Any) -> am.InputStatus:
        self.case("poll_next")
        if self.numbers:
            output.emit_run(ListRun([self.numbers.pop()]))
            return am.InputStatus.MORE_AVAILABLE
        if self.no_more and self.case.ends:
            return am.InputStatus.END_OF_INPUT
        self.availability.reset()
        return am.InputStatus.NOTHING_AVAILABLE

    def snapshot(self) -> list[Any]:
        return []

    def close(self) -> Any:
        self.case.note("closed", self.who)
        return self.case("close (reader)")


class Source:
    boundedness = am.Boundedness.BOUNDED

    def __init__(self, case: Case) -> None:
        self.case = case

    def create_enumerator(self, context: Any, state: Any = None) -> Enumerator:
        return Enumerator(self.case, context)

    def create_reader(self, context: Any) -> Reader:
        return Reader(self.case, context)


class Function(am.ProcessFunction):
    def __init__(self, case: Case) -> None:
        self.case = case

    def open(self, context: Any) -> Any:
        self.who = f"function {context.subtask_index}"
        self.case.note("opened", self.who)
        return self.case("open")

    def process_element(self, value: int, context: Any, out: Any) -> Any:
        out.collect(value)
        return self.case("process_element")

    def finish(self, out: Any) -> Any:
        return self.case("finish")

    def close(self) -> Any:
        self.case.note("closed", self.who)
        return self.case("close")


class Resource:
    """What a function's `open` gives to be entered and left."""

    def __init__(self, case: Case) -> None:
        self.case = case

    async def __aenter__(self) -> None:
        self.case("__aenter__")
        self.case.note("opened", "resource")

    async def __aexit__(self, *_: object) -> None:
        self.case.note("closed", "resource")
        self.case("__aexit__")


class Holder(am.ProcessFunction):
    def __init__(self, case: Case) -> None:
        self.case = case

    def open(self, context: Any) -> Any:
        # One of two: the file does not say which.
        return Resource(self.case)

    def process_element(self, value: int, context: Any, out: Any) -> None:
        out.collect(value)


class Writer:
    def __init__(self, case: Case, context: Any) -> None:
        self.case = case
        self.who = f"writer {context.subtask_index}"
        case("create_writer")
        case.note("opened", self.who)

    def write_run(self, run: Any) -> Any:
        return self.case("write_run")

    def flush(self, *, end_of_input: bool) -> Any:
        return self.case("flush")

    def prepare_commit(self) -> list[Any]:
        self.case("prepare_commit")
        return [1]

    def snapshot(self) -> Any:
        return None

    def close(self) -> Any:
        self.case.note("closed", self.who)
        return self.case("close (writer)")


class Committer:
    def __init__(self, case: Case) -> None:
        self.case = case
        case("create_committer")

    def begin(self, *, restored: bool) -> Any:
        self.case.note("opened", "committer")
        return self.case("begin")

    def commit(self, committables: list[Any], **facts: Any) -> Any:
        return self.case("commit")

    def end(self, *, succeeded: bool) -> Any:
        self.case.note("closed", "committer")
        assert not (succeeded and self.case.hook.startswith("commit"))
        return self.case("end")


class Sink:
    def __init__(self, case: Case) -> None:
        self.case = case

    def create_writer(self, context: Any) -> Writer:
        return Writer(self.case, context)

    def create_committer(self, context: Any = None) -> Committer:
        return Committer(self.case)


def build(env: am.StreamExecutionEnvironment, case: Case) -> None:
    """A pipeline of all hooks."""

    def check(value: int) -> int:
        case("map")
        return value

    async def check_later(value: int) -> int:
        pending = case("async map")
        if pending is not None:
            await pending
        return value

    def key(value: int) -> int:
        case("key_by")
        return value % 2

    stream = env.from_source(Source(case), name="src").uid("src-1")
    stream = stream.map(check).name("map").uid("map-1")
    stream = stream.map(check_later).name("later").uid("later-1")
    stream = stream.map_async(check_later, concurrency=2).name("calls").uid("calls-1")
    stream = stream.process(Function(case)).name("fun").uid("fun-1")
    stream = stream.process(Holder(case)).name("holder").uid("holder-1")
    keyed = stream.key_by(key).reduce(lambda a, b: a + b).name("sum").uid("sum-1")
    keyed.sink_to(Sink(case)).name("out").uid("out-1")


# Whose hook it is, and whether it may be a coroutine.
OF_MASTER = {
    "create_enumerator": "src",
    "start (enumerator)": "src",
    "add_reader": "src",
    "handle_split_request": "src",
    "close (enumerator)": "src",
    "create_committer": "out",
    "begin": "out",
    "begin*": "out",
    "commit": "out",
    "commit*": "out",
    "end": "out",
    "end*": "out",
}
OF_TASK = {
    "create_reader": "src",
    "start (reader)": "src",
    "add_splits": "src",
    "notify_no_more_splits": "src",
    "poll_next": "src",
    "close (reader)": "src",
    "close (reader)*": "src",
    "map": "map",
    "async map": "later",
    "async map*": "later",
    "key_by": "sum",
    "open": "fun",
    "open*": "fun",
    "process_element": "fun",
    "process_element*": "fun",
    "finish": "fun",
    "finish*": "fun",
    "close": "fun",
    "close*": "fun",
    "__aenter__": "holder",
    "__aexit__": "holder",
    "create_writer": "out",
    "write_run": "out",
    "write_run*": "out",
    "flush": "out",
    "flush*": "out",
    "prepare_commit": "out",
    "close (writer)": "out",
    "close (writer)*": "out",
}
HOOKS = {**OF_MASTER, **OF_TASK}
CLOSING = [hook for hook in HOOKS if "close" in hook or hook in {"__aexit__", "end"}]
LOCAL = list(itertools.product(HOOKS, KINDS))


def told(error: BaseException | None) -> str:
    """All that a person sees of an error."""
    parts: list[str] = []
    while error is not None:
        parts.append(type(error).__name__)
        if not isinstance(error, Broken):
            parts.append(str(error))
        parts += getattr(error, "__notes__", [])
        error = error.__cause__
    return "\n".join(parts)


def check_told(error: BaseException, hook: str, kind: Any, *, embedded: bool) -> None:
    text = told(error)
    # A key that parts a stream is taken where it is sent from.
    owner = HOOKS[hook]
    assert f"operator '{owner}" in text or f" before {owner}'" in text, text
    assert Path(__file__).name in text, text
    if not embedded or kind is not KeyboardInterrupt:
        assert isinstance(error, am.JobFailedError), text


@pytest.mark.parametrize(("hook", "kind"), LOCAL)
async def test_embedded(tmp_path: Path, hook: str, kind: str) -> None:
    case = Case(hook, KINDS[kind], tmp_path / "journal")
    env = am.StreamExecutionEnvironment(parallelism=1)
    build(env, case)
    error, job = await raised_by(env)
    check_told(error, hook, case.kind, embedded=True)
    assert job.state is am.JobState.FAILED
    check_nothing_left(case, job)


@pytest.mark.parametrize("cancels", [1, 2, 3])
@pytest.mark.parametrize(("hook", "kind"), list(itertools.product(CLOSING, KINDS)))
async def test_embedded_while_cancelled(
    tmp_path: Path, hook: str, kind: str, cancels: int
) -> None:
    """The second and third cancel arrive in the middle of clean-up."""
    case = Case(hook, KINDS[kind], tmp_path / "journal", ends=False)
    env = am.StreamExecutionEnvironment(parallelism=1)
    build(env, case)
    error, job = await raised_by(env, cancels)
    assert isinstance(error, asyncio.CancelledError)
    assert job.state is am.JobState.FAILED
    check_nothing_left(case, job)


# Threads that other tests have left idle, such as executors', are not this one's.
OLDER_THREADS: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def older_threads() -> None:
    OLDER_THREADS.clear()
    OLDER_THREADS.update(threading.enumerate())


async def raised_by(
    env: am.StreamExecutionEnvironment, cancels: int = 0
) -> tuple[BaseException, Any]:
    """Return what running a job raised, and its master."""
    raised: list[BaseException] = []
    jobs: list[Any] = []

    async def run() -> None:
        try:
            async with env.start() as job:
                jobs.append(job._job)
                await job.result()
        except BaseException as error:
            raised.append(error)

    task = asyncio.ensure_future(run())
    for number in range(cancels):
        await asyncio.sleep(0 if number else 1)
        task.cancel()
    await asyncio.wait_for(asyncio.wait([task]), 1000)
    return raised[0], jobs[0]


def check_nothing_left(case: Case, job: Any) -> None:
    case.check_closed_once()
    assert job.lifecycle.is_terminal
    assert all(task.lifecycle.is_terminal for task in job.tasks)
    job.services.pool.check_leaks()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not others, others
    # The loop's executor has as many as it wants, and ends them with the loop.
    executor: Any = vars(asyncio.get_running_loop())["_default_executor"]
    of_loop = set() if executor is None else executor._threads
    assert set(threading.enumerate()) - OLDER_THREADS - of_loop == set()


# A process takes a second to start: each hook with some, each kind somewhere.
PAIRS = [
    ("create_reader", "StopIteration"),
    ("poll_next", "CancelledError"),
    ("poll_next", "SystemExit"),
    ("map", "GeneratorExit"),
    ("async map*", "CancelledError"),
    ("key_by", "StopIteration"),
    ("open*", "Broken"),
    ("process_element", "KeyboardInterrupt"),
    ("process_element*", "group"),
    ("finish*", "ValueError"),
    ("close*", "SystemExit"),
    ("close*", "CancelledError"),
    ("__aexit__", "SystemExit"),
    ("__aexit__", "StopAsyncIteration"),
    ("handle_split_request", "StopIteration"),
    ("write_run", "StopIteration"),
    ("close (writer)*", "GeneratorExit"),
    ("commit*", "CancelledError"),
    ("end*", "Broken"),
]


@pytest.mark.real_time
@pytest.mark.timeout(180)
@pytest.mark.parametrize(("hook", "kind"), PAIRS)
async def test_processes(
    env: am.StreamExecutionEnvironment, tmp_path: Path, hook: str, kind: str
) -> None:
    """The fixture checks that no process and no file stays."""
    case = Case(hook, KINDS[kind], tmp_path / "journal")
    env.configure(deployment=am.Processes(1))
    build(env, case)
    with pytest.raises(am.JobFailedError) as caught:
        await asyncio.wait_for(env.execute(), 150)
    check_told(caught.value, hook, case.kind, embedded=False)
    case.check_closed_once()


@pytest.mark.real_time
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("hook", "kind"), [("close*", "SystemExit"), ("close (reader)", "CancelledError")]
)
async def test_processes_while_cancelled_again(
    env: am.StreamExecutionEnvironment, tmp_path: Path, hook: str, kind: str
) -> None:
    case = Case(hook, KINDS[kind], tmp_path / "journal", ends=False)
    env.configure(deployment=am.Processes(1))
    build(env, case)
    task = asyncio.ensure_future(env.execute())
    async with asyncio.timeout(120):
        while not case.journal.exists() or "opened writer" not in (
            case.journal.read_text()
        ):
            await asyncio.sleep(0.02)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asyncio.shield(task), 150)
    case.check_closed_once()


PROGRAM = """
import asyncio, os, sys
import aiomailbox as am

where, place, sent = sys.argv[1:]

def say(*words):
    # At once: two processes write here.
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

async def numbers():
    number = 0
    while where != "commit" or number < 3:
        yield number
        number += 1
        await asyncio.sleep(0.01)

async def linger(name):
    if where == name:
        say("there")
        while not os.path.exists(sent):
            await asyncio.sleep(0.01)
        # Whatever the signals do, they have done it by then.
        await asyncio.sleep(0.05)
        say("through")

class Function(am.ProcessFunction):
    def process_element(self, value, context, out):
        out.collect(value)
    async def close(self):
        await linger("close")
        say("closed")

class Writer:
    def __init__(self): self.values = []
    def write_run(self, run):
        # Whatever runs elsewhere has begun by then.
        if not self.values and where == "close":
            say("running")
        self.values += run.values
    def flush(self, *, end_of_input): pass
    def prepare_commit(self): return [len(self.values)]
    def snapshot(self): return None
    def close(self): say("writer closed")

class Committer:
    def begin(self, *, restored): pass
    async def commit(self, committables, *, checkpoint_id, is_final):
        await linger("commit")
        say("committed")
    def end(self, *, succeeded): say("end", succeeded)

class Sink:
    stays_in_parent = True
    def create_writer(self, context): return Writer()
    def create_committer(self, context=None): return Committer()

# It has to say nothing, and on a busy machine anything may hold a loop.
env = am.StreamExecutionEnvironment().configure(stall_threshold=None)
if place == "processes":
    env.configure(deployment=am.Processes(1))
env.from_async_iterable(numbers).process(Function()).sink_to(Sink())
try:
    am.run(env.execute())
except BaseException as error:
    say(type(error).__name__, getattr(error, "code", ""))
"""


@pytest.mark.real_time
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("number", "signals", "place"),
    [
        (signal.SIGINT, 1, "here"),
        (signal.SIGINT, 3, "here"),
        (signal.SIGTERM, 1, "here"),
        (signal.SIGTERM, 2, "here"),
        (signal.SIGINT, 3, "processes"),
    ],
)
@pytest.mark.parametrize("where", ["close", "commit"])
def test_a_signal(
    tmp_path: Path, where: str, number: signal.Signals, signals: int, place: str
) -> None:
    """Signals in the middle of close or commit: both go on to their end."""
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    sent = tmp_path / "sent"
    process = subprocess.Popen(
        [sys.executable, str(program), where, place, str(sent)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert process.stdout is not None
    lines: list[str] = []

    def until(line: str) -> None:
        assert process.stdout is not None
        while not lines or lines[-1] != line:
            got = process.stdout.readline()
            assert got, lines
            lines.append(got.strip())

    with process:
        try:
            if where == "close":
                until("running")
                process.send_signal(number)
                signals -= 1
            until("there")
            for _ in range(signals):
                process.send_signal(number)
            sent.touch()
            # Not communicate(): it does not know what was read ahead.
            lines += process.stdout.read().split("\n")
            assert process.stderr is not None
            err = process.stderr.read()
        finally:
            process.kill()
    assert err == ""
    assert lines.count("through") == lines.count("closed") == 1
    assert lines.count("writer closed") == 1
    assert lines.count("committed") == (where == "commit")
    assert f"end {where == 'commit'}" in lines
    if number is signal.SIGTERM:
        assert "SystemExit 143" in lines
    else:
        assert "KeyboardInterrupt " in lines or "KeyboardInterrupt" in lines
