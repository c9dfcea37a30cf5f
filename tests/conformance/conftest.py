"""Runs recorded cases of Apache Flink against adapters in ``cases/``.

An adapter is ``cases/NAME.py`` with

* ``FILE``: the name of the vector file, without ``.json``;
* ``run_case(case)``: raises if our code differs; may be ``async def``, then it runs on
  a virtual-time loop of its own;
* ``MODULE`` (optional): the module of aiomailbox that it needs. While that does not
  exist, the file counts as pending;
* ``DELIBERATE`` (optional): case number ``i`` → why we differ, naming the decision
  record in ``docs/decisions``. At most 1 % of a file; a case that does not differ any
  more fails.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import json
import re
import sys
import types
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from aiomailbox.testing import VirtualTimeLoop

HERE = Path(__file__).parent
DECISIONS = HERE.parents[1] / "docs" / "decisions"
ADAPTERS = "conformance_cases"
RESULTS = pytest.StashKey["dict[str, Counter[str]]"]()

# Where the code that a file checks is to live. Once the module is there, a file
# without an adapter is no longer pending, it is a failure.
MODULES = {
    "basic_serializers": "aiomailbox.records",
    "buffer_pool_redistribution": "aiomailbox.memory",
    "default_max_parallelism": "aiomailbox.keygroups",
    "events": "aiomailbox.exchange",
    "internal_timer_service": "aiomailbox.eventtime",
    "key_group_ranges": "aiomailbox.keygroups",
    "key_group_rescale": "aiomailbox.keygroups",
    "key_groups": "aiomailbox.keygroups",
    "local_buffer_pool": "aiomailbox.memory",
    "mathutils_hash": "aiomailbox.keygroups",
    "netty_messages": "aiomailbox.exchange.remote",
    "pipelined_subpartition": "aiomailbox.exchange.partition",
    "record_framing": "aiomailbox.exchange.partition",
    "status_watermark_valve": "aiomailbox.eventtime",
    "status_watermark_valve_shared": "aiomailbox.eventtime",
    "stream_elements": "aiomailbox.records",
    "string_value": "aiomailbox.records",
    "task_mailbox": "aiomailbox.mailbox",
    "window_start": "aiomailbox.windowing",
}

# A package named `conformance_cases` stands for the folder, so that adapters get
# pytest's rewritten asserts and stay out of the import path.
pytest.register_assert_rewrite(ADAPTERS)
_package = types.ModuleType(ADAPTERS)
_package.__path__ = [str(HERE / "cases")]
sys.modules[ADAPTERS] = _package

collect_ignore_glob = ["cases/*"]


@dataclass
class VectorFile:
    """One recorded file and what runs it."""

    name: str
    cases: list[dict[str, Any]]
    adapter: types.ModuleType | None = None
    problems: list[str] = field(default_factory=list)
    pending: str = ""

    @property
    def deliberate(self) -> dict[int, str]:
        present = {case["i"] for case in self.cases}
        reasons: dict[int, str] = getattr(self.adapter, "DELIBERATE", {})
        return {i: reason for i, reason in reasons.items() if i in present}


@dataclass
class VectorCase:
    """One case of a file, bound to its adapter."""

    file: VectorFile
    case: dict[str, Any]

    @property
    def reason(self) -> str | None:
        return self.file.deliberate.get(self.case["i"])

    def run(self) -> None:
        assert self.file.adapter is not None
        result = self.file.adapter.run_case(self.case)
        if inspect.iscoroutine(result):
            with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
                runner.run(result)


def _module_exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _attach_adapter(file: VectorFile) -> None:
    path = HERE / "cases" / f"{file.name}.py"
    needed = MODULES.get(file.name)
    if not path.exists():
        file.pending = f"no adapter {path.name}"
        if needed is not None and _module_exists(needed):
            file.problems.append(f"{needed} exists, but cases/{path.name} does not")
        return
    try:
        adapter = importlib.import_module(f"{ADAPTERS}.{file.name}")
    except BaseException as error:
        needed = _declared_module(path) or needed
        if needed is not None and not _module_exists(needed):
            file.pending = f"{needed} is still to come"
        else:
            file.problems.append(f"cases/{path.name} cannot be imported: {error!r}")
        return
    file.adapter = adapter
    file.problems += _contract_problems(file, adapter)


def _declared_module(path: Path) -> str | None:
    found = re.search(
        r"^MODULE\b[^=]*=\s*[\"']([\w.]+)[\"']", path.read_text(), re.MULTILINE
    )
    return found.group(1) if found else None


def _contract_problems(file: VectorFile, adapter: types.ModuleType) -> Iterator[str]:
    if getattr(adapter, "FILE", None) != file.name:
        yield f"FILE is {getattr(adapter, 'FILE', None)!r}, not {file.name!r}"
    if not callable(getattr(adapter, "run_case", None)):
        yield "there is no function run_case(case)"
    if len(file.deliberate) * 100 > len(file.cases):
        yield f"DELIBERATE holds more than 1 % of {len(file.cases)} cases"
    for i, reason in file.deliberate.items():
        record = re.search(r"\b(\d{4})\b", reason)
        if record is None or not list(DECISIONS.glob(f"{record.group(1)}-*.md")):
            yield f"DELIBERATE[{i}] names no record of docs/decisions: {reason!r}"


def _load(path: Path) -> VectorFile:
    try:
        cases = json.loads(path.read_text(encoding="utf-8"))["cases"]
    except (ValueError, KeyError, TypeError) as error:
        return VectorFile(path.stem, [], problems=[f"not a vector file: {error!r}"])
    file = VectorFile(path.stem, cases)
    _attach_adapter(file)
    return file


@pytest.fixture(scope="session")
def vector_results(pytestconfig: pytest.Config) -> dict[str, Counter[str]]:
    return pytestconfig.stash[RESULTS]


FILES = pytest.StashKey[list[VectorFile]]()


def _files(config: pytest.Config) -> list[VectorFile]:
    if FILES not in config.stash:
        folder = Path(config.getoption("--vectors") or HERE / "vectors")
        paths = sorted(folder.glob("*.json"))
        if not paths:
            raise pytest.UsageError(f"--vectors: there is no *.json in {folder}")
        config.stash[FILES] = [_load(path) for path in paths]
        config.stash[RESULTS] = {file.name: Counter() for file in config.stash[FILES]}
    return config.stash[FILES]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "vector_file" in metafunc.fixturenames:
        files = _files(metafunc.config)
        metafunc.parametrize("vector_file", files, ids=[file.name for file in files])
    if "vector_case" in metafunc.fixturenames:
        cases = [
            VectorCase(file, case)
            for file in _files(metafunc.config)
            if file.adapter is not None and not file.problems
            for case in file.cases
        ]
        ids = [f"{item.file.name}-{item.case['i']}" for item in cases]
        metafunc.parametrize("vector_case", cases, ids=ids)


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    rows = {file.name: _row(file, config) for file in config.stash.get(FILES, [])}
    output = getattr(config, "workeroutput", None)
    if output is None:
        config.pluginmanager.get_plugin("conformance table").add(rows)
    else:
        output["conformance"] = rows


def _row(file: VectorFile, config: pytest.Config) -> dict[str, Any]:
    """Return what a worker found of one file, in plain values."""
    return {
        "counts": dict(config.stash[RESULTS][file.name]),
        "pending": len(file.cases) if file.adapter is None else 0,
        "note": "; ".join(file.problems) or file.pending,
        "deliberate": sorted(file.deliberate.items()),
    }
