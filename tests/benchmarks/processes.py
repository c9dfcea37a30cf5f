"""W7 and W8: what can only be seen from outside a process: memory and start-up."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OPTIONAL = ("pyspark", "pyarrow", "uvloop", "pandas", "numpy")

_IMPORT = """
import json, sys, time
started = time.perf_counter()
import {module}
seconds = time.perf_counter() - started
print(json.dumps([seconds, sorted(set(m.split(".")[0] for m in sys.modules))]))
"""

_API = """
import json, sys, time
started = time.perf_counter()
import aiomailbox as am
for name in am.__all__:
    getattr(am, name)
env = am.StreamExecutionEnvironment()
assert am.run(env.from_collection([1]).map(str).collect()) == ["1"]
seconds = time.perf_counter() - started
print(json.dumps([seconds, sorted(set(m.split(".")[0] for m in sys.modules))]))
"""

# The job is W2: a generator, keys, a channel between two tasks, results.
_STREAM = """
import json
from tests.benchmarks import jobs
from tests.benchmarks.processes import peak_kib_here
results = jobs.w2_aggregate({records})
print(json.dumps([results, peak_kib_here()]))
"""


@dataclass(frozen=True, slots=True)
class Import:
    """How long an import took, and which optional packages came with it."""

    seconds: float
    optional: list[str]


def _python(code: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def _import(code: str, times: int) -> Import:
    found = [_python(code) for _ in range(times)]
    modules = {name for _, names in found for name in names}
    # Whatever else the machine does makes an import slower, never faster.
    seconds = min(seconds for seconds, _ in found)
    return Import(seconds, [name for name in OPTIONAL if name in modules])


def import_of(modules: str, times: int = 10) -> Import:
    """Import modules (comma-separated) in fresh interpreters."""
    return _import(_IMPORT.format(module=modules), times)


def first_result(times: int = 10) -> Import:
    """Import all public names and run a job of one record, in fresh interpreters."""
    return _import(_API, times)


def peak_kib(records: int) -> int:
    """Return the most resident memory of a process that streams so many records."""
    results, peak = _python(_STREAM.format(records=records))
    assert results == records, f"{results} results of {records} records"
    return int(peak)


def peak_kib_here() -> int:
    """Return the most resident memory that this process has had.

    The kernel's peak of a new process is not used where there is a better one: on Linux
    it begins with that of the process it was forked from.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lines = status.read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def run_module(name: str, *arguments: str, interpreter: str = sys.executable) -> str:
    """Run ``python -m name`` in a fresh interpreter; return the last line it prints."""
    done = subprocess.run(
        [interpreter, "-m", name, *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout.splitlines()[-1]
