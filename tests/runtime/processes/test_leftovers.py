"""Files of jobs that were killed, or that found the disk full: none stay for long."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am
from tests.runtime.processes.programs import (
    SCRIPT,
    expect,
    is_alive,
    start,
    wait_until,
)
from tests.runtime.processes.test_failures import endless, running

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(180)]

# Keyed state in files, in workers and in the process that starts them.
STATE = """
import sys
place = {place!r}
env.configure(state_backend=am.RocksDBStateBackend(place, memory_bytes=1 << 20))
def show(value):
    if value == 500:
        print("running", flush=True)
numbers = env.from_collection(endless()).rebalance()
numbers.key_by(lambda n: n % 64).reduce(max).sink_to(show)
am.run(env.execute())
"""


def next_job(env: am.StreamExecutionEnvironment) -> None:
    """Run another job that keeps state in files."""
    stream = env.from_collection(range(8)).key_by(lambda n: n % 2).reduce(max)
    assert max(am.run(stream.collect())) == 7


@pytest.mark.parametrize("has_path", [True, False])
async def test_a_killed_worker_leaves_no_state_behind(
    env: am.StreamExecutionEnvironment, traces: Any, tmp_path: Path, has_path: bool
) -> None:
    path = tmp_path / "state" if has_path else None
    env.configure(state_backend=am.RocksDBStateBackend(path, memory_bytes=1 << 20))
    stream = env.from_collection(endless()).rebalance().key_by(lambda n: n % 16)
    stream.reduce(max).sink_to(lambda n: None)
    with pytest.raises(am.JobFailedError):
        async with env.start() as job:
            await running(job)
            # A database that is open has a file of this name.
            place = path or traces.directory
            async with asyncio.timeout(80):
                while not [*place.rglob("CURRENT")]:
                    await asyncio.sleep(0.02)
            os.kill(traces.workers()[0].pid, signal.SIGKILL)
            with contextlib.suppress(am.JobFailedError):
                await job.result()
    traces.check_none()
    assert path is None or [*path.iterdir()] == []


@pytest.mark.parametrize("deployment", ["am.Processes(2)", "None"])
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_the_next_start_sweeps_after_a_program_that_was_killed(
    traces: Any, tmp_path: Path, deployment: str, sent: int
) -> None:
    place = tmp_path / "state"
    text = SCRIPT + STATE.format(place=str(place))
    if deployment == "None":
        text = text.replace("env.configure(deployment=am.Processes(2))\n", "")
    with start(tmp_path, text) as program:
        expect(program, "running")
        workers = traces.workers()
        if sent == signal.SIGKILL:
            # A worker that sees its parent's sockets closed before the system kills it
            # cleans up, and there is nothing to sweep.
            for worker in workers:
                worker.suspend()
        # Python acts on no signal here: it is as if there were no handler.
        program.send_signal(sent)
        program.communicate(timeout=80)
    # Until then they may have their files open, which nobody sweeps.
    wait_until(lambda: not any(map(is_alive, workers)))
    if sent == signal.SIGKILL:
        assert [*place.rglob("CURRENT")]
    env = am.StreamExecutionEnvironment()
    if deployment != "None":
        env.configure(deployment=am.Processes(1))
    env.configure(state_backend=am.RocksDBStateBackend(place))
    next_job(env)
    assert [*place.iterdir()] == []
    traces.check_none()


FULL = """
import os, resource
env.configure(state_backend=am.RocksDBStateBackend({place!r}, memory_bytes=1 << 20))
def limit(number):
    if number == 2000:
        # No file of this process can grow beyond it: what a full disk is like.
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    return number, os.urandom(4_000)
async def main():
    keyed = env.from_collection(range(20_000)).map(limit).key_by(lambda pair: pair[0])
    stream = keyed.reduce(max).map(lambda pair: pair[0])
    try:
        await stream.collect()
    except am.JobFailedError as error:
        print("failed", repr(str(error)))
    print("open", sum({place!r} in os.readlink(f"/proc/self/fd/{{fd}}")
        for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{{fd}}")))
import asyncio
asyncio.run(main())
"""


@pytest.mark.parametrize("deployment", ["am.Processes(2)", "None"])
def test_a_job_that_finds_the_disk_full_fails_and_leaves_nothing(
    traces: Any, tmp_path: Path, deployment: str
) -> None:
    place = tmp_path / "state"
    text = SCRIPT + FULL.format(place=str(place))
    if deployment == "None":
        text = text.replace("env.configure(deployment=am.Processes(2))\n", "")
    program = start(tmp_path, text)
    out, errors = program.communicate(timeout=150)
    assert "failed" in out, errors
    # Who meets the limit first: a file that is read, or what RocksDB writes beside.
    assert "File too large" in out or "cannot write its buffers" in out
    assert "open 0" in out
    assert [*place.iterdir()] == []
