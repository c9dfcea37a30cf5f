"""The source obeys its own rules."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SYSTEM

HEAVY = {"pandas", "pyarrow", "pyspark", "uvloop"}
MAY_IMPORT_HEAVY = ("aiomailbox/columnar/", "aiomailbox/connectors/")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX)\b|raise NotImplementedError")
FURNITURE = re.compile(r"^_?Abstract|(Impl|Helper|Manager|Utils?)$")
BANNER = re.compile(r"^\s*#\s*[-=#*]{4,}", re.MULTILINE)
BARE_SUPPRESSION = re.compile(r"#\s*(noqa|type:\s*ignore)(?![\[:])")


def module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported_roots(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]


def test_every_name_in_an_all_exists(trees: dict[str, ast.Module]) -> None:
    missing = []
    for path in trees:
        module = importlib.import_module(module_name(path))
        names = getattr(module, "__all__", [])
        missing += [f"{path}: {name}" for name in names if not hasattr(module, name)]
        assert len(names) == len(set(names)), f"{path}: a name is in __all__ twice"
    assert missing == []


def test_every_package_says_what_is_public(trees: dict[str, ast.Module]) -> None:
    without = [
        path
        for path, tree in trees.items()
        if path.endswith("/__init__.py") and len(tree.body) > 1 and not _has_all(tree)
    ]
    assert without == []


def _has_all(tree: ast.Module) -> bool:
    return any(
        isinstance(target, ast.Name) and target.id == "__all__"
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
    )


def test_a_public_method_says_what_it_does_or_inherits_it(
    trees: dict[str, ast.Module],
) -> None:
    silent = [
        f"{path}: {kind.__qualname__}.{name}"
        for path in trees
        for kind in vars(importlib.import_module(module_name(path))).values()
        if inspect.isclass(kind) and kind.__module__ == module_name(path)
        for name in vars(kind)
        if not kind.__name__.startswith("_") and not _says(kind, name)
    ]
    assert silent == []


def _says(kind: type, name: str) -> bool:
    own = vars(kind)[name]
    function = own.fget if isinstance(own, property) else own
    function = getattr(function, "__func__", function)
    if name.startswith("_") or not inspect.isfunction(function):
        return True
    # What a decorator has made, as of a dataclass, has no place in the class.
    if not function.__qualname__.startswith(kind.__qualname__):
        return True
    return any(getattr(vars(base).get(name), "__doc__", "") for base in kind.__mro__)


def test_only_connectors_and_columns_know_spark_and_arrow(
    trees: dict[str, ast.Module],
) -> None:
    leaks = {
        path: sorted(HEAVY & set(imported_roots(tree)))
        for path, tree in trees.items()
        if not path.startswith(MAY_IMPORT_HEAVY) and HEAVY & set(imported_roots(tree))
    }
    assert leaks == {}


def test_aiostream_is_imported_by_its_adapter_only(
    trees: dict[str, ast.Module],
) -> None:
    users = [
        path for path, tree in trees.items() if "aiostream" in imported_roots(tree)
    ]
    assert all(path.startswith("aiomailbox/connectors/aiostream") for path in users)


def test_whoever_hands_something_to_a_thread_outlasts_it(
    trees: dict[str, ast.Module],
) -> None:
    """An awaited call in a thread goes on when its waiter is cancelled.

    Those that are named await nothing: a callback says that the thread is done.
    """
    found = {
        path
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in {"run_in_executor", "to_thread", "run_sync"}
    }
    begun = {
        path
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id == "begin_in_thread"
    }
    assert begun == {
        "aiomailbox/connectors/files/source.py",
        "aiomailbox/exchange/blocking/partition.py",
    }
    assert found == {
        "aiomailbox/connectors/files/source.py",
        "aiomailbox/exchange/blocking/partition.py",
        "aiomailbox/supervision.py",
        "aiomailbox/testing/virtual_time.py",
    }


def test_every_module_postpones_its_annotations(trees: dict[str, ast.Module]) -> None:
    without = [
        path
        for path, tree in trees.items()
        if _defines_anything(tree) and "__future__" not in imported_roots(tree)
    ]
    assert without == []


def _defines_anything(tree: ast.Module) -> bool:
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return any(isinstance(node, definitions) for node in tree.body)


def test_classes_carry_no_java_furniture(trees: dict[str, ast.Module]) -> None:
    named = [
        f"{path}: {node.name}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and FURNITURE.search(node.name)
    ]
    assert named == []


def test_nothing_unfinished_is_shipped(package: Path) -> None:
    found = []
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for pattern in (UNFINISHED, BANNER, BARE_SUPPRESSION):
            found += [
                f"{path.name}: {match.group()}" for match in pattern.finditer(text)
            ]
    assert found == []


def test_importing_a_package_touches_no_event_loop(
    trees: dict[str, ast.Module],
) -> None:
    names = [module_name(path) for path in trees if "/connectors/" not in path]
    script = f"""
import asyncio, importlib, sys
def refuse(*args):
    raise AssertionError("an event loop was made or asked for at import time")
asyncio.new_event_loop = asyncio.get_event_loop = refuse
asyncio.BaseEventLoop.__init__ = refuse
for name in {names!r}:
    importlib.import_module(name)
print(*sys.modules)
"""
    done: Any = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        cwd=Path(__file__).parents[2],
        text=True,
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    if "aiomailbox.columnar" not in loaded:
        assert loaded & HEAVY == set()


@pytest.mark.parametrize("place", SYSTEM)
def test_what_the_system_suite_names_exists(place: str, package: Path) -> None:
    # Else a file that is renamed would change its suite without a word.
    assert (package.parent / place).exists()


def test_the_index_of_the_tests_says_in_which_suites_each_folder_is(
    package: Path,
) -> None:
    tests = package.parent / "tests"
    index = (tests / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]+) \|[^|]+\| ([^|]+) \|$", index, re.MULTILINE)
    said = {
        name: set(re.findall(r"\b(?:tests|system)\b", suites))
        for names, suites in rows
        for name in re.findall(r"`([^`]+)`", names)
    }
    found: dict[str, set[str]] = {name: set() for name in said}
    for path in tests.rglob("test_*.py"):
        place = path.relative_to(tests).as_posix()
        row = "test_*.py"
        if "/" in place:
            # The most precise one; without any, the folder has to get one.
            row = max((name for name in said if place.startswith(f"{name}/")), key=len)
        is_system = f"tests/{place}".startswith(SYSTEM)
        marks = re.findall(r'suite\("(\w+)"\)', path.read_text(encoding="utf-8"))
        found[row] |= {"system" if is_system else "tests", *marks}
    assert found == said
