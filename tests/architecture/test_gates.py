"""The gates bite: each planted mistake is found by the gate that is there for it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(sys.executable).parent


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "aiomailbox", tmp_path / "aiomailbox", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPTS / "lint-imports", "--no-logo", "--no-cache"],
        capture_output=True,
        cwd=folder,
        text=True,
    )


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")


def test_the_tree_as_it_is_keeps_the_layers(copy: Path) -> None:
    done = lint_imports(copy)
    assert done.returncode == 0, done.stdout


UPWARD = "from aiomailbox.testing import ManualClock\n"


@pytest.mark.parametrize(
    "planted",
    [
        pytest.param(UPWARD, id="plain"),
        pytest.param(
            f"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {UPWARD}",
            id="for types only",
        ),
        pytest.param(f"def later():\n    {UPWARD}", id="inside a function"),
    ],
)
def test_an_upward_import_is_found(copy: Path, planted: str) -> None:
    append(copy / "aiomailbox" / "clock.py", planted)
    done = lint_imports(copy)
    assert done.returncode == 1
    assert "aiomailbox.clock is not allowed to import aiomailbox.testing" in done.stdout


def test_an_import_of_a_sibling_is_found(copy: Path) -> None:
    append(copy / "aiomailbox" / "ids.py", "import aiomailbox.errors\n")
    done = lint_imports(copy)
    assert done.returncode == 1
    assert "aiomailbox.ids is not allowed to import aiomailbox.errors" in done.stdout


def test_a_package_without_a_place_is_found(copy: Path) -> None:
    (copy / "aiomailbox" / "helpers.py").write_text("")
    done = lint_imports(copy)
    assert done.returncode == 1
    assert "helpers" in done.stdout + done.stderr


def test_a_cycle_inside_a_package_is_found(copy: Path) -> None:
    testing = copy / "aiomailbox" / "testing"
    (testing / "one.py").write_text("import aiomailbox.testing.other\n")
    (testing / "other.py").write_text("import aiomailbox.testing.one\n")
    done = lint_imports(copy)
    assert done.returncode == 1
    assert ".other -> .one" in done.stdout
