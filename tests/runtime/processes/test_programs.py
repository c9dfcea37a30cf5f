"""Programs as users run them: scripts, signals, modules that nobody can import."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.runtime.processes.programs import (
    ENDLESS,
    ROOT,
    SCRIPT,
    expect,
    is_alive,
    start,
    wait_until,
)

# A busy machine takes seconds to start an interpreter.
pytestmark = [pytest.mark.real_time, pytest.mark.timeout(180)]

BOUNDED = """
import msgspec

class Wrapped(msgspec.Struct):
    pair: Pair
    seen: list["Wrapped"] = []

squares = env.from_collection(range(50)).map(square).map(Wrapped).rebalance()
pairs = squares.map(lambda wrapped: wrapped.pair.value)
print(sum(am.run(pairs.collect())))
"""


def test_a_script_without_a_main_guard_runs_once(traces: Any, tmp_path: Path) -> None:
    program = start(tmp_path, SCRIPT + BOUNDED, "-W", "error")
    out, errors = program.communicate(timeout=150)
    assert errors == ""
    assert out.split() == ["loaded", str(sum(n * n for n in range(50)))]


def test_an_interrupt_ends_everything(traces: Any, tmp_path: Path) -> None:
    with start(tmp_path, SCRIPT + ENDLESS) as program:
        expect(program, "running")
        workers = psutil.Process(program.pid).children(recursive=True)
        assert len(workers) == 2
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=80)
    # A shell shows 130.
    assert program.returncode in {130, -signal.SIGINT}
    assert errors.strip().endswith("KeyboardInterrupt")
    wait_until(lambda: not any(map(is_alive, workers)))
    traces.check_none()


def test_a_terminals_interrupt_does_not_reach_the_workers(
    traces: Any, tmp_path: Path
) -> None:
    with start(tmp_path, SCRIPT + ENDLESS) as program:
        expect(program, "running")
        workers = psutil.Process(program.pid).children(recursive=True)
        group = os.getpgid(program.pid)
        assert group not in {os.getpgid(worker.pid) for worker in workers}
        for worker in workers:
            worker.send_signal(signal.SIGINT)
        time.sleep(0.2)
        assert all(map(is_alive, workers))
        program.send_signal(signal.SIGINT)
        program.communicate(timeout=80)


SERVICE = """
import os, signal, time
def say(text):
    os.write(1, f"{text}\\n".encode())
class Function(am.ProcessFunction):
    def open(self, context):
        child = os.fork()
        if not child:
            time.sleep(1000)
        os.kill(child, signal.SIGTERM)
        say(f"opened, the child was ended by {os.waitpid(child, 0)[1]}")
    def process_element(self, value, context, out):
        if value < 2:
            say("running")
        out.collect(value)
    async def close(self):
        say("closed")
env.from_collection(endless()).rebalance().process(Function()).sink_to(lambda n: None)
am.run(env.execute())
"""


@pytest.mark.parametrize("who", ["all", "a worker"])
def test_sigterm_to_the_workers_too_ends_everything_in_order(
    traces: Any, tmp_path: Path, who: str
) -> None:
    """As service managers do, which know all processes of a service."""
    with start(tmp_path, SCRIPT + SERVICE) as program:
        for _ in range(2):
            expect(program, "running")
        parent = psutil.Process(program.pid)
        told = parent.children(recursive=True)
        if who == "all":
            # At one moment, whatever comes between these lines.
            parent.suspend()
            for process in (*told, parent):
                process.terminate()
            parent.resume()
        else:
            told[0].terminate()
        out, errors = program.communicate(timeout=80)
    assert out.split() == ["closed", "closed"]
    if who == "all":
        assert program.returncode == 143
        # A worker may be told before the program is: then that is said first.
        told_to_end = "was told to end by signal SIGTERM"
        assert not [one for one in errors.splitlines() if told_to_end not in one]
    else:
        assert "was told to end by signal SIGTERM" in errors.splitlines()[-1]
    traces.check_none()


@pytest.mark.parametrize("mode", ["importlib", "prepend"])
def test_a_test_module_of_pytest(traces: Any, tmp_path: Path, mode: str) -> None:
    (tmp_path / "deep" / "tests").mkdir(parents=True)
    (tmp_path / "deep" / "tests" / "test_jobs.py").write_text(
        "import aiomailbox as am\n"
        "OFFSET = 10\n"
        "def shift(number):\n"
        "    return number + OFFSET\n"
        "def test_it():\n"
        "    env = am.StreamExecutionEnvironment(parallelism=2)\n"
        "    env.configure(deployment=am.Processes(2))\n"
        "    values = am.run(env.from_collection(range(3)).map(shift).collect())\n"
        "    assert sorted(values) == [10, 11, 12]\n"
    )
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", f"--import-mode={mode}"),
            *("-p", "no:cacheprovider", "-p", "no:randomly", str(tmp_path / "deep")),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_cells_of_a_notebook(traces: Any, tmp_path: Path) -> None:
    cells = """
import asyncio
import aiomailbox as am
shared = {"__name__": "__main__", "am": am}
exec("def triple(number): return 3 * number", shared)
exec('''
async def cell():
    env = am.StreamExecutionEnvironment(parallelism=2)
    env.configure(deployment=am.Processes(2))
    return sorted(await env.from_collection(range(4)).map(triple).collect())
''', shared)
print(asyncio.run(shared["cell"]()))
"""
    program = start(tmp_path, cells)
    out, errors = program.communicate(timeout=150)
    assert out.strip() == "[0, 3, 6, 9]", errors
