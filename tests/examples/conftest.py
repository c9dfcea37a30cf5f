from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import cloudpickle
import pytest

import aiomailbox as am

ROOT = Path(__file__).parents[2]

# What runs the graph elsewhere: it knows the package and the bytes, nothing else.
RUN_STREAM = """
import pickle, sys
import aiomailbox as am
stream = pickle.loads(sys.stdin.buffer.read())
for line in sorted(map(repr, am.run(stream.collect()))):
    print(line)
"""


@pytest.fixture
def load_example() -> Iterator[Callable[[str], ModuleType]]:
    """Import files of examples/ afresh, as modules that nobody else can import."""
    loaded: list[str] = []

    def load(name: str) -> ModuleType:
        path = ROOT / "examples" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # Annotations and dataclasses look their module up.
        sys.modules[name] = module
        loaded.append(name)
        spec.loader.exec_module(module)
        return module

    yield load
    for name in loaded:
        del sys.modules[name]


@pytest.fixture
def run_elsewhere(tmp_path: Path) -> Callable[..., object]:
    """Run a pickled stream in a new interpreter; return its results' texts, sorted."""

    async def run(stream: am.DataStream[object], *modules: ModuleType) -> list[str]:
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            payload = cloudpickle.dumps(stream)
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            RUN_STREAM,
            cwd=tmp_path,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate(payload)
        assert process.returncode == 0, err.decode()
        return out.decode().splitlines()

    return run
