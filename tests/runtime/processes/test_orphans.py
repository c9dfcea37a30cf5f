"""Workers go with their parent, whatever they do and whoever else has its descriptors."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.runtime.processes.programs import (
    ENDLESS,
    SCRIPT,
    expect,
    is_alive,
    start,
    wait_until,
    workers_of,
)

# A busy machine takes seconds to start an interpreter.
pytestmark = [pytest.mark.real_time, pytest.mark.timeout(180)]

SLEEPING = """
import time
def work(number):
    print("running", flush=True)
    time.sleep(1000)
"""
# Keeps Python's global lock, for ages: no other thread of the worker can run.
MATCHING = """
import re
def work(number):
    print("running", flush=True)
    return re.match("(a+)+$", "a" * 60 + "b")
"""
RUN = """
env.from_collection(range(2)).map(work).sink_to(print)
am.run(env.execute())
"""
FORKING = """
import os, time
def fork():
    if not os.fork():
        time.sleep(1000)
    print("running", flush=True)
"""
FORKING_PARENT = """
forked = []
def show(value):
    if not forked:
        forked.append(fork())
env.from_collection(endless()).rebalance().map(square).sink_to(show)
am.run(env.execute())
"""


@pytest.mark.parametrize(
    "program",
    [SCRIPT + ENDLESS, SCRIPT + MATCHING + RUN],
    ids=["streaming", "matching"],
)
def test_workers_vanish_with_a_killed_parent(
    temporary: Any, tmp_path: Path, program: str
) -> None:
    with start(tmp_path, program) as running:
        expect(running, "running")
        workers = workers_of(running)
        assert len(workers) == 2
        running.kill()
        try:
            wait_until(lambda: not any(map(is_alive, workers)))
        finally:
            for worker in filter(is_alive, workers):
                worker.kill()
        running.communicate(timeout=80)


def test_workers_vanish_with_a_killed_parent_that_has_forked(
    temporary: Any, tmp_path: Path
) -> None:
    with start(tmp_path, SCRIPT + FORKING + FORKING_PARENT) as running:
        expect(running, "running")
        workers = workers_of(running)
        family = psutil.Process(running.pid).children()
        (forked,) = [child for child in family if child not in workers]
        assert len(workers) == 2
        running.kill()
        try:
            wait_until(lambda: not any(map(is_alive, workers)))
            assert is_alive(forked)
        finally:
            forked.kill()
        running.communicate(timeout=80)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_a_function_forks_has_no_socket_of_its_worker(
    temporary: Any, tmp_path: Path
) -> None:
    program = """
import os, time
def sockets(number):
    ends = os.pipe()
    child = os.fork()
    if not child:
        names = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        links = [os.readlink(name) for name in names if os.path.islink(name)]
        # The loop wakes itself with a pair of sockets that are not ours.
        os.write(ends[1], bytes([sum(link.startswith("socket:") for link in links)]))
        os._exit(0)
    os.waitpid(child, 0)
    return os.read(ends[0], 1)[0]
async def nothing(number):
    return number
numbers = env.from_collection(range(2)).rebalance().map(nothing).map(sockets)
print(set(am.run(numbers.collect())))
"""
    running = start(tmp_path, SCRIPT + program)
    out, errors = running.communicate(timeout=150)
    assert out.split("\n")[1] == "{2}", errors


def test_a_worker_that_is_started_by_somebody_else_ends_at_once(
    tmp_path: Path,
) -> None:
    """The parent may die between the start of a worker and the worker's request."""
    program = """
from aiomailbox.runtime.processes.worker_main import die_with_parent
die_with_parent(1 << 22)
print("lives")
"""
    if sys.platform != "linux":
        pytest.skip("there is no such signal here")
    running = start(tmp_path, program)
    out, _ = running.communicate(timeout=60)
    assert (running.returncode, out) == (70, "")


def test_a_lifeline_ends_a_worker_where_there_is_no_signal(
    temporary: Any, tmp_path: Path
) -> None:
    """The lifeline alone, as on systems without the signal: it is switched off here."""
    # Imported by every interpreter that starts with this path.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys; sys.modules['ctypes'] = None\n"
    )
    program = f"import os; os.environ['PYTHONPATH'] = {str(tmp_path)!r}\n"
    program += f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    with start(tmp_path, program + SCRIPT + SLEEPING + RUN) as running:
        expect(running, "running")
        workers = workers_of(running)
        assert len(workers) == 2
        running.send_signal(signal.SIGKILL)
        try:
            wait_until(lambda: not any(map(is_alive, workers)))
        finally:
            for worker in filter(is_alive, workers):
                worker.kill()
        running.communicate(timeout=80)
    assert os.listdir(temporary) != []
