"""Processes that are stopped, loops that are held, and whose fault it is."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import aiomailbox as am
from tests.runtime.processes.programs import SCRIPT, expect, start, wait_until

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(180)]

# More than a busy machine keeps any process waiting.
LIMIT_S = 8.0


@pytest.fixture
def impatient(env: am.StreamExecutionEnvironment) -> am.StreamExecutionEnvironment:
    """An environment whose workers may be silent for some seconds."""
    made = am.StreamExecutionEnvironment(
        parallelism=2,
        config=am.JobConfig(seed=1, heartbeat_timeout=am.seconds(LIMIT_S)),
    )
    made.configure(deployment=am.Processes(2))
    return made


def endless() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


async def test_a_stopped_worker_fails_the_job_and_is_killed(
    impatient: am.StreamExecutionEnvironment, traces: Any
) -> None:
    stream = impatient.from_collection(endless()).rebalance().map(lambda n: n)
    arrived = asyncio.Event()
    stream.sink_to(lambda n: arrived.set())
    with pytest.raises(am.JobFailedError) as raised:
        async with impatient.start() as job, asyncio.timeout(4 * LIMIT_S + 50):
            await arrived.wait()
            victim = traces.workers()[0]
            os.kill(victim.pid, signal.SIGSTOP)
            stopped_at = time.monotonic()
            with contextlib.suppress(am.JobFailedError):
                await job.result()
            assert time.monotonic() - stopped_at < 5 * LIMIT_S
            assert not psutil.pid_exists(victim.pid)
    cause = raised.value.__cause__
    assert isinstance(cause, am.WorkerDiedError)
    assert (cause.pid, cause.exit_code) == (victim.pid, -signal.SIGKILL)
    assert f"sent no heartbeat for {LIMIT_S:g} s and was killed" in str(cause)
    traces.check_none()


async def test_a_function_that_holds_a_workers_loop_only_warns(
    impatient: am.StreamExecutionEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    def slow(number: int) -> int:
        if number == 3:
            time.sleep(LIMIT_S + 2)
        return number

    line = slow.__code__.co_firstlineno + 2
    stream = impatient.from_collection(range(8)).rebalance().map(slow)
    stream = stream.name("slow").uid("slow-1")
    assert sorted(await stream.collect()) == list(range(8))
    found = [each for each in caplog.records if "loop of a worker" in each.msg]
    # A busy machine may hold the loop of a worker elsewhere, too; and after twice the time
    # it is said again.
    record, *_ = [each for each in found if vars(each)["line"] == f"{__file__}:{line}"]
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith("the loop of a worker is held job='")
    warning = vars(record)
    assert (warning["operator"], warning["uid"]) == ("slow", "slow-1")
    assert warning["worker"] in {"worker 1", "worker 2"}
    assert warning["held_s"] >= 3.0


def test_a_parent_that_is_held_or_stopped_looks_alive_and_accuses_nobody(
    traces: Any, tmp_path: Path
) -> None:
    program = f"""
import time
env = am.StreamExecutionEnvironment(
    parallelism=2, config=am.JobConfig(heartbeat_timeout=am.seconds({LIMIT_S}))
)
env.configure(deployment=am.Processes(2))
seen = []
def show(number):
    if not seen:
        time.sleep({LIMIT_S + 2})
        print("held", flush=True)
    seen.append(number)
env.from_collection(range(300_000)).rebalance().map(lambda n: n).sink_to(show)
am.run(env.execute())
print(len(seen), flush=True)
"""
    with start(tmp_path, SCRIPT + program) as running:
        expect(running, "held")
        running.send_signal(signal.SIGSTOP)
        process = psutil.Process(running.pid)
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED)
        time.sleep(LIMIT_S + 2)
        running.send_signal(signal.SIGCONT)
        out, errors = running.communicate(timeout=100)
    assert out.split() == ["300000"], errors
