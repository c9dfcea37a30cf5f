"""What goes wrong in a worker: whose fault, which line, and nothing left."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

import aiomailbox as am
from aiomailbox.errors import NotShippableError
from tests.runtime.processes.programs import is_alive

PACKAGE = str(Path(am.__file__).parent)

# A busy machine takes seconds to start an interpreter.
pytestmark = [pytest.mark.real_time, pytest.mark.timeout(180)]


async def running(job: am.JobClient) -> None:
    """Wait until every task of a job runs."""
    async with asyncio.timeout(120):
        while True:
            tasks = job.metrics().tasks.values()
            if tasks and all(task["state"] == "running" for task in tasks):
                return
            assert job.state in {am.JobState.CREATED, am.JobState.RUNNING}
            await asyncio.sleep(0.02)


def endless() -> Any:
    number = 0
    while True:
        yield number
        number += 1


def never_ending(env: am.StreamExecutionEnvironment, function: Any) -> None:
    """A job whose records come from the parent and meet the function in two workers."""
    stream = env.from_collection(endless()).rebalance().map(function)
    stream.key_by(lambda n: n % 16).map(lambda n: n).sink_to(lambda n: None)


async def test_a_line_that_is_no_record_ends_the_job_from_a_worker(
    env: am.StreamExecutionEnvironment, tmp_path: Path
) -> None:
    """Whatever the strategy: another attempt would read it again."""
    path = tmp_path / "orders.jsonl"
    path.write_text('{"n": 1}\n{"n": \n', "utf-8")
    env.configure(restart=am.restart.fixed_delay(1_000_000, am.millis(1)))
    orders = env.from_source(am.FileSource(path)).key_by("n").aggregate(am.count())
    with pytest.raises(am.JobFailedError, match=r"orders\.jsonl, line 2, ") as raised:
        async with asyncio.timeout(120):
            await orders.collect()
    cause = raised.value.__cause__
    assert isinstance(cause, am.RemoteTaskError)
    assert (cause.kind, cause.fault) == ("InvalidRecordError", "lasting")


async def test_an_error_names_the_operator_its_uid_and_the_users_line(
    env: am.StreamExecutionEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    def check(number: int) -> int:
        if number == 7:
            raise KeyError("no such airport")
        return number

    line = check.__code__.co_firstlineno + 2
    stream = env.from_collection(range(100)).map(check).name("checker").uid("check-1")
    with pytest.raises(am.JobFailedError) as raised:
        await stream.key_by(lambda n: n % 5).map(lambda n: n).collect()
    cause = raised.value.__cause__
    assert isinstance(cause, am.RemoteTaskError)
    assert (cause.kind, cause.worker) == ("UserFunctionError", "worker 1")
    for text in ("'checker'", "'check-1'", f"{__file__}:{line}", "KeyError"):
        assert text in str(raised.value)
    assert "in check" in cause.remote_traceback
    # The user's frames, and hardly one of the engine; all of them are kept.
    shown = "".join(traceback.format_exception(raised.value))
    assert "in check" in shown
    assert shown.count(f'File "{PACKAGE}') <= 3
    assert raised.value.engine_traceback.count(f'File "{PACKAGE}') > 10
    assert any("in task 'collection -> checker (1/2)'" in n for n in cause.__notes__)
    # Another library may say something, too, when its garbage is collected.
    (logged,) = [
        vars(each)
        for each in caplog.records
        if each.levelname == "ERROR" and each.name.startswith("aiomailbox")
    ]
    assert (logged["operator"], logged["uid"]) == ("checker", "check-1")
    assert (logged["line"], logged["record"]) == (f"{__file__}:{line}", "7")


async def test_a_function_that_cannot_be_sent_is_refused_before_any_process(
    env: am.StreamExecutionEnvironment, monkeypatch: Any
) -> None:
    lock = threading.Lock()

    def locked(number: int) -> int:
        with lock:
            return number

    async def no_process(self: Any, *args: Any, **kwargs: Any) -> None:
        pytest.fail("a process was started")

    monkeypatch.setattr(asyncio.SelectorEventLoop, "subprocess_exec", no_process)
    stream = env.from_collection(range(9)).map(locked).name("locked").uid("l")
    with pytest.raises(NotShippableError) as raised:
        await stream.collect()
    assert (raised.value.operator, raised.value.uid) == ("locked", "l")
    assert "variable 'lock' of" in str(raised.value)
    with pytest.raises(NotShippableError, match="'by lock'"):
        await (
            env.from_collection(range(9))
            .key_by(locked)
            .map(lambda n: n)
            .name("by lock")
            .collect()
        )


async def test_records_that_cannot_be_sent_name_their_source(
    env: am.StreamExecutionEnvironment,
) -> None:
    with pytest.raises(NotShippableError, match="'locks'"):
        await env.from_collection([threading.Lock()], name="locks").collect()


@pytest.mark.parametrize("victim", [0, 1])
async def test_a_killed_worker_fails_the_job_with_its_name(
    env: am.StreamExecutionEnvironment, traces: Any, victim: int
) -> None:
    never_ending(env, lambda n: n)
    with pytest.raises(am.JobFailedError) as raised:
        async with env.start() as job:
            await running(job)
            pids = sorted(worker.pid for worker in traces.workers())
            os.kill(pids[victim], signal.SIGKILL)
            killed_at = time.monotonic()
            with pytest.raises(am.JobFailedError):
                await job.result()
            # Four times what it may take on an idle machine.
            assert time.monotonic() - killed_at < 20
            seen = job.snapshot()
    # Not what its tasks did in their last moment.
    assert "running" not in {task.state for task in seen.tasks}
    cause = raised.value.__cause__
    assert isinstance(cause, am.WorkerDiedError)
    assert cause.pid == pids[victim]
    assert cause.worker in {"worker 1", "worker 2"}
    assert cause.exit_code == -signal.SIGKILL
    assert "was ended by signal SIGKILL" in str(raised.value)
    traces.check_none()


async def test_a_worker_that_exits_fails_the_job_with_its_exit_code(
    env: am.StreamExecutionEnvironment,
) -> None:
    def leave(number: int) -> int:
        if number == 1000:
            os._exit(3)
        return number

    never_ending(env, leave)
    with pytest.raises(am.JobFailedError, match="ended with exit code 3") as raised:
        await env.execute()
    cause = raised.value.__cause__
    assert isinstance(cause, am.WorkerDiedError)
    assert cause.exit_code == 3


async def test_a_worker_that_hangs_is_killed_when_its_time_is_up(
    env: am.StreamExecutionEnvironment, tmp_path: Path, traces: Any
) -> None:
    started = tmp_path / "started"

    def hang(number: int) -> int:
        started.touch()
        time.sleep(1000)
        return number

    env.configure(cancel_timeout=am.seconds(2.0))
    env.from_collection(range(2)).map(hang).sink_to(lambda n: None)
    with pytest.raises(am.JobFailedError, match=r"did not end within 2\.0 s"):
        async with env.start() as job:
            async with asyncio.timeout(120):
                while not started.exists():
                    await asyncio.sleep(0.02)
            cancelled_at = time.monotonic()
            await job.cancel()
            assert time.monotonic() - cancelled_at < 20
    traces.check_none()


async def test_a_function_that_swallows_its_cancellation_is_named_and_its_worker_ends(
    env: am.StreamExecutionEnvironment, tmp_path: Path, traces: Any, monkeypatch: Any
) -> None:
    started = tmp_path / "started"
    # A worker that gets no processor for a while still says it by itself.
    monkeypatch.setattr("aiomailbox.runtime.peers.host._GRACE_S", 60.0)

    async def swallow(number: int) -> int:
        started.touch()
        while True:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                continue

    line = swallow.__code__.co_firstlineno + 4
    stream = env.from_collection(range(2)).map(swallow).name("stubborn").uid("s-1")
    stream.sink_to(lambda n: None)
    env.configure(cancel_timeout=am.seconds(2.0))
    with pytest.raises(am.JobFailedError, match=r"took longer than 2\.0 s") as raised:
        async with env.start() as job:
            async with asyncio.timeout(120):
                while not started.exists():
                    await asyncio.sleep(0.02)
            cancelled_at = time.monotonic()
            await job.cancel()
            assert time.monotonic() - cancelled_at < 20
    assert f"'stubborn' (uid 's-1') at {__file__}:{line}" in str(raised.value)
    traces.check_none()


async def test_a_job_in_processes_is_stopped_and_commits(
    env: am.StreamExecutionEnvironment, tmp_path: Path
) -> None:
    seen: list[int] = []
    counting = env.from_collection(endless()).rebalance()
    rows = counting.map(lambda n: {"number": n})
    rows.sink_to(am.ParquetSink(tmp_path / "rows"))
    rows.map(lambda row: row["number"]).sink_to(seen.append)
    async with env.start() as job:
        await running(job)
        while not seen:
            await asyncio.sleep(0.02)
        await job.stop()
        assert job.state is am.JobState.FINISHED
    written = pq.read_table(tmp_path / "rows").column("number").to_pylist()
    assert sorted(written) == sorted(seen) == list(range(len(seen)))


@pytest.mark.parametrize("where", ["commit", "end"])
async def test_a_worker_that_dies_when_its_tasks_have_ended_spoils_no_commit(
    env: am.StreamExecutionEnvironment, traces: Any, where: str
) -> None:
    told: list[Any] = []

    async def kill_workers(here: str) -> None:
        if here == where:
            killed = traces.workers()
            assert killed
            for worker in killed:
                worker.kill()
            # The parent has heard of it when it has taken their exit codes.
            while any(worker.is_running() for worker in killed):
                await asyncio.sleep(0.02)

    class Writer:
        count = 0

        def write_run(self, run: Any) -> None:
            self.count += len(run)

        def flush(self, *, end_of_input: bool) -> None: ...

        def prepare_commit(self) -> list[Any]:
            return [self.count]

        def snapshot(self) -> list[Any]:
            return []

        def close(self) -> None: ...

    class Committer:
        def begin(self, *, restored: bool) -> None: ...

        async def commit(
            self, committables: list[Any], *, checkpoint_id: int, is_final: bool
        ) -> None:
            await kill_workers("commit")
            told.append(sum(committables))

        async def end(self, *, succeeded: bool) -> None:
            await kill_workers("end")
            told.append(succeeded)

    class Sink:
        def create_writer(self, context: Any) -> Writer:
            return Writer()

        def create_committer(self, context: Any) -> Committer:
            return committer

    committer = Committer()
    env.from_collection(range(10)).rebalance().sink_to(Sink())
    async with env.start() as job:
        await job.result()
        assert job.state is am.JobState.FINISHED
    assert told == [10, True]


@dataclass
class Part:
    name: str
    count: int


class NoRecord:
    pass


class Preparing:
    """A sink whose writer prepares what a function returns; keeps what it commits."""

    stays_in_parent = False

    def __init__(self, prepare: Any, committed: list[Any]) -> None:
        self.prepare = prepare
        self.committed = committed

    def __reduce__(self) -> Any:
        return Preparing, (self.prepare, [])

    def create_writer(self, context: Any) -> Any:
        prepare = self.prepare

        class Writer:
            def write_run(self, run: Any) -> None: ...

            def flush(self, *, end_of_input: bool) -> None: ...

            def prepare_commit(self) -> Any:
                return prepare()

            def snapshot(self) -> list[Any]:
                return []

            def close(self) -> None: ...

        return Writer()

    def create_committer(self, context: Any) -> Any:
        committed = self.committed

        class Committer:
            def begin(self, **_: Any) -> None: ...

            def commit(self, committables: list[Any], **_: Any) -> None:
                committed.extend(committables)

            def end(self, **_: Any) -> None: ...

        return Committer()


async def test_committables_may_be_records_of_the_users_classes(
    env: am.StreamExecutionEnvironment,
) -> None:
    committed: list[Any] = []
    sink = Preparing(lambda: [Part("a", 1), {"b": 2}], committed)
    env.from_collection([1]).rebalance().sink_to(sink)
    await env.execute()
    assert committed == 2 * [Part("a", 1), {"b": 2}]


@pytest.mark.parametrize(
    ("prepare", "problem"),
    [
        (lambda: [NoRecord()], "of the types NoRecord"),
        (lambda: [bytes(64 << 20)], "committables: .* 67,108,"),
    ],
    ids=["type", "size"],
)
async def test_committables_that_cannot_be_sent_name_their_sink(
    env: am.StreamExecutionEnvironment, prepare: Any, problem: str
) -> None:
    stream = env.from_collection([1]).rebalance().sink_to(Preparing(prepare, []))
    stream.name("keeper").uid("k-1")
    with pytest.raises(am.JobFailedError, match=problem) as raised:
        await env.execute()
    cause = raised.value.__cause__
    assert cause is not None
    notes = getattr(cause, "__notes__", [])
    assert "in prepare_commit() of operator 'keeper' (uid 'k-1')" in "\n".join(notes)


async def test_a_module_that_ends_a_worker_while_it_loads_the_job(
    env: am.StreamExecutionEnvironment, tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / "leaving.py").write_text(
        "import os, sys\n"
        "if any('worker' in argument for argument in sys.orig_argv):\n"
        "    os._exit(5)\n"
        "def same(value):\n"
        "    return value\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import leaving  # type: ignore[import-not-found]

    with pytest.raises(am.JobFailedError, match="ended with exit code 5"):
        await env.from_collection(range(3)).map(leaving.same).collect()


async def test_a_module_that_fails_to_load_in_a_worker_is_told(
    env: am.StreamExecutionEnvironment, tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / "failing.py").write_text(
        "import sys\n"
        "if any('worker' in argument for argument in sys.orig_argv):\n"
        "    raise LookupError('no licence')\n"
        "def same(value):\n"
        "    return value\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import failing  # type: ignore[import-not-found]

    with pytest.raises(am.JobFailedError, match="LookupError: no licence"):
        await env.from_collection(range(3)).map(failing.same).collect()


async def test_cancelling_the_caller_ends_all_workers(
    env: am.StreamExecutionEnvironment, traces: Any
) -> None:
    never_ending(env, lambda n: n)
    work = asyncio.get_running_loop().create_task(env.execute())
    async with asyncio.timeout(120):
        while len(traces.workers()) < 2:
            await asyncio.sleep(0.02)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    traces.check_none()


async def test_the_end_of_the_block_ends_a_job_that_runs(
    env: am.StreamExecutionEnvironment, traces: Any
) -> None:
    never_ending(env, lambda n: n)
    async with env.start() as job:
        await running(job)
        assert {psutil.Process(w.pid).status() for w in traces.workers()}
    assert job.state is am.JobState.CANCELED
    traces.check_none()


async def test_a_function_that_stops_its_task_cancels_the_job(
    env: am.StreamExecutionEnvironment,
) -> None:
    from aiomailbox.errors import StopTask

    def stop(number: int) -> int:
        raise StopTask("enough")

    env.from_collection(range(10)).map(stop).sink_to(lambda n: None)
    with pytest.raises(am.JobCancelledError):
        await env.execute()


async def test_a_clock_of_its_own_is_refused() -> None:
    from aiomailbox.testing import ManualClock

    env = am.StreamExecutionEnvironment(clock=ManualClock())
    env.configure(deployment=am.Processes(2))
    with pytest.raises(am.UsageError, match="ticks in this process only"):
        await env.from_collection([1]).collect()


@pytest.mark.parametrize("count", [0, -1, True, 1.5, "2"])
def test_a_number_of_processes_that_cannot_be(count: Any) -> None:
    with pytest.raises(am.UsageError, match="count"):
        am.Processes(count)


def test_a_transport_that_there_is_not() -> None:
    with pytest.raises(am.UsageError, match='"unix" or "tcp"'):
        am.Processes(1, transport="udp")  # type: ignore[arg-type]


def test_what_to_install_is_named(monkeypatch: Any) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install .*\[processes\]'"):
        am.Processes(2)


def test_what_is_no_deployment_is_refused() -> None:
    env = am.StreamExecutionEnvironment()
    with pytest.raises(am.UsageError, match=r"am\.Processes\(4\)"):
        env.configure(deployment=4)  # type: ignore[arg-type]


async def test_what_a_worker_said_before_it_died_is_heard(
    env: am.StreamExecutionEnvironment,
) -> None:
    """The first error is the function's, not that the process ended right after it."""

    class Fails(am.ProcessFunction[int, int]):
        def process_element(self, value: int, context: Any, out: Any) -> None:
            from aiomailbox.runtime.peers import control, messages

            encode = control.encode

            def encode_and_leave(message: Any, attempt: int) -> bytes:
                if isinstance(message, messages.TaskEnded):
                    # As soon as it is sent.
                    asyncio.get_running_loop().call_soon(os._exit, 4)
                return encode(message, attempt)

            control.encode = encode_and_leave  # type: ignore[arg-type]
            raise ValueError("x" * 10_000)

    env.from_collection(range(2)).process(Fails()).sink_to(lambda n: None)
    with pytest.raises(am.JobFailedError, match="ValueError: xxx"):
        await env.execute()


async def test_a_grandchild_that_holds_the_channel_does_not_hide_a_death(
    env: am.StreamExecutionEnvironment, tmp_path: Path
) -> None:
    written = tmp_path / "pid"

    def fork_and_leave(number: int) -> int:
        child = os.fork()
        if not child:
            time.sleep(1000)
            os._exit(0)
        written.write_text(str(child))
        os._exit(9)

    env.from_collection([1]).map(fork_and_leave).sink_to(lambda n: None)
    try:
        with pytest.raises(am.JobFailedError, match="ended with exit code 9"):
            await env.execute()
        assert is_alive(psutil.Process(int(written.read_text())))
    finally:
        os.kill(int(written.read_text()), signal.SIGKILL)
