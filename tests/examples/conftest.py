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
from tests.forks import ROOT, Forks


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


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Forks]:
    with Forks("tests.examples.elsewhere") as forks:
        yield forks


@pytest.fixture
def run_elsewhere(tmp_path: Path, elsewhere: Forks) -> Callable[..., object]:
    """Run a pickled stream in another process; return its results' texts, sorted."""

    async def run(stream: am.DataStream[object], *modules: ModuleType) -> list[str]:
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            payload = cloudpickle.dumps(stream)
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)
        (tmp_path / "stream").write_bytes(payload)
        done = await asyncio.to_thread(elsewhere.run, tmp_path, str(tmp_path))
        assert done.code == 0, done.log
        return done.printed.splitlines()

    return run
