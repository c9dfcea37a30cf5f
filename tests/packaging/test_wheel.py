from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from aiomailbox.errors import install_command

ROOT = Path(__file__).parents[2]

# Imports every public module, and from each every name in its __all__, except what
# lives behind an extra.
IMPORT_EVERYTHING = """
import importlib, pkgutil, sys
import aiomailbox

BEHIND_AN_EXTRA = (
    "aiomailbox.cli",
    "aiomailbox.columnar",
    "aiomailbox.connectors",
    "aiomailbox.testing.simulation.files",
)

def modules(package):
    yield package.__name__
    for found in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if found.name.startswith(BEHIND_AN_EXTRA):
            continue
        module = importlib.import_module(found.name)
        if found.ispkg:
            yield from modules(module)
        else:
            yield found.name

count = 0
for name in modules(aiomailbox):
    for public in getattr(sys.modules[name], "__all__", ()):
        getattr(sys.modules[name], public)
        count += 1
exec("from aiomailbox import *", {})
print(aiomailbox.__file__)
print(count)
"""

ASK_FOR_SPARK = """
import aiomailbox
try:
    aiomailbox.SparkSource
except aiomailbox.UsageError as error:
    print(error)
"""

HEAVY = ["fsspec", "matplotlib", "numpy", "pandas", "pyarrow", "pyspark", "uvloop"]


def run(*command: object, **options: object) -> str:
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        env=environ,
        stdin=subprocess.DEVNULL,
        text=True,
        **options,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return str(done.stdout)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "-t",
        "wheel",
        "-d",
        folder,
        cwd=ROOT,
    )
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def bare_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the interpreter of an empty environment with the wheel and no extra."""
    environment = tmp_path_factory.mktemp("bare") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    python = environment / "bin" / "python"
    run(sys.executable, "-m", "uv", "pip", "install", "-q", "--python", python, wheel)
    return python


def test_the_wheel_holds_the_package_and_nothing_beside_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "aiomailbox/py.typed" in names
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"aiomailbox"}


@pytest.mark.timeout(180)
def test_every_public_name_is_there_without_any_extra(
    bare_python: Path, tmp_path: Path
) -> None:
    shown = run(bare_python, "-c", IMPORT_EVERYTHING, cwd=tmp_path).split()
    assert Path(shown[0]).is_relative_to(bare_python.parents[1])
    assert int(shown[1]) > 50


@pytest.mark.timeout(180)
def test_a_name_behind_an_extra_says_how_to_install_it(
    bare_python: Path, tmp_path: Path
) -> None:
    shown = run(bare_python, "-c", ASK_FOR_SPARK, cwd=tmp_path)
    assert "SparkSource needs" in shown
    assert "aiomailbox[spark]" in shown


ASK_FOR_PROCESSES = """
import aiomailbox
try:
    aiomailbox.Processes(2)
except aiomailbox.UsageError as error:
    print(str(error).partition(": ")[2])
"""


@pytest.mark.timeout(180)
def test_the_command_that_an_error_names_installs_what_is_missing(
    bare_python: Path, tmp_path: Path
) -> None:
    # It names the wheel that was installed: the library is on no index.
    command = run(bare_python, "-c", ASK_FOR_PROCESSES, cwd=tmp_path).strip()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    run("bash", "-c", f'PATH="{path}" {command} -q', cwd=tmp_path)
    assert not run(bare_python, "-c", ASK_FOR_PROCESSES, cwd=tmp_path).strip()


@pytest.mark.parametrize(
    ("origin", "wanted"),
    [
        (None, "'aiomailbox[rocksdb]'"),
        (
            {"url": "file:///a%20b/aiomailbox", "dir_info": {"editable": True}},
            "-e '/a b/aiomailbox[rocksdb]'",
        ),
        (
            {"url": "file:///a/aiomailbox", "dir_info": {}},
            "'/a/aiomailbox[rocksdb]'",
        ),
        (
            {"url": "file:///a/b.whl", "archive_info": {}},
            "'aiomailbox[rocksdb] @ file:///a/b.whl'",
        ),
        (
            {
                "url": "https://example.org/a.git",
                "vcs_info": {"vcs": "git", "commit_id": "c0ffee"},
            },
            "'aiomailbox[rocksdb] @ git+https://example.org/a.git@c0ffee'",
        ),
    ],
)
def test_the_command_names_where_the_library_came_from(
    origin: dict[str, object] | None, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Installed:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return None if origin is None else json.dumps(origin)

    monkeypatch.setattr("importlib.metadata.distribution", lambda name: Installed())
    command = install_command("rocksdb")
    assert " install " in command
    assert command.endswith(f" {wanted}")


def test_importing_the_package_imports_nothing_heavy() -> None:
    script = "import sys, aiomailbox; print(*sys.modules)"
    loaded = run(sys.executable, "-c", script, cwd=ROOT).split()
    assert "aiomailbox" in loaded
    assert [name for name in HEAVY if name in loaded] == []
