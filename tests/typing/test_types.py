"""A user's type checker knows what comes out of each idiom of the docs."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
from itertools import accumulate
from pathlib import Path

import pytest

from tests.docs.test_code_blocks import WITH_CODE

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(sys.executable).parent
IDIOMS = "tests/typing/idioms"
MYPY = ("mypy", "--strict", "--explicit-package-bases")
PYRIGHT = ("basedpyright", "--pythonpath", sys.executable)
MISTAKES = ROOT / "tests" / "typing" / "mistakes.py"


def checked(checker: tuple[str, ...], *paths: str) -> subprocess.CompletedProcess[str]:
    command, *options = checker
    return subprocess.run(
        [SCRIPTS / command, *options, *paths], capture_output=True, cwd=ROOT, text=True
    )


@pytest.mark.parametrize("checker", [MYPY, PYRIGHT], ids=["mypy", "pyright"])
def test_each_idiom_has_the_type_it_should_have(checker: tuple[str, ...]) -> None:
    done = checked(checker, IDIOMS)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("checker", [MYPY, PYRIGHT], ids=["mypy", "pyright"])
def test_a_mistake_is_found(checker: tuple[str, ...]) -> None:
    """Types that say Any would let everything pass."""
    done = checked(checker, str(MISTAKES.relative_to(ROOT)))
    for line, text in enumerate(MISTAKES.read_text("utf-8").splitlines(), 1):
        found = f"mistakes.py:{line}:" in done.stdout
        is_mistake = text.lstrip().startswith(("not_", "wrong_"))
        assert found == is_mistake, done.stdout


@pytest.mark.parametrize("checker", [MYPY, PYRIGHT], ids=["mypy", "pyright"])
def test_the_page_about_types_says_what_the_checkers_say(
    checker: tuple[str, ...], tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "concepts" / "typing.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(blocks) > 4
    code = tmp_path / "page.py"
    code.write_text("\n\n".join(blocks), "utf-8")
    done = checked(checker, str(code))
    assert done.returncode == 0, done.stdout


def test_what_users_write_passes_without_an_ignore() -> None:
    """The checkers themselves are run over the examples by ``nox -s types``."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    checker = settings["tool"]["basedpyright"]
    assert checker["typeCheckingMode"] == "strict"
    assert {"examples", IDIOMS} <= set(checker["include"])
    assert not [name for name in checker if name.startswith("report")]
    files = [*ROOT.glob("examples/**/*.py"), *ROOT.glob(f"{IDIOMS}/*.py")]
    assert len(files) > 50
    for file in files:
        text = file.read_text("utf-8")
        assert not re.search(r"#\s*(type|pyright):", text), file


# Their types are those of pyspark, which has some without.
OF_OTHERS = {"aiomailbox.connectors.spark.session.local_session"}
PUBLIC = ["errors", "exchange", "mailbox", "memory", "records", "connectors", "testing"]


def public_names() -> set[str]:
    """Return where the public names of the documented packages are defined."""
    names: set[str] = set()
    for path in ("aiomailbox", *(f"aiomailbox.{name}" for name in PUBLIC)):
        module = importlib.import_module(path)
        for name in module.__all__:
            item = getattr(module, name)
            home = getattr(item, "__module__", path)
            names.add(f"{home}.{getattr(item, '__qualname__', name)}")
    return names - OF_OTHERS


def test_all_that_is_public_has_a_type() -> None:
    """The names that the documented packages declare, their members and parameters."""
    command = [SCRIPTS / PYRIGHT[0], "--outputjson", "--verifytypes", "aiomailbox"]
    # It looks for the package in the interpreter that the shell would start.
    path = f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, "PATH": path, "VIRTUAL_ENV": sys.prefix},
        text=True,
    )
    symbols = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    names = public_names()
    found = [
        symbol
        for symbol in symbols
        if not names.isdisjoint(accumulate(symbol["name"].split("."), "{}.{}".format))
    ]
    assert len(found) > 1000
    missing = [
        f"{symbol['name']}: {message['message']}"
        for symbol in found
        if not symbol["isTypeKnown"] or symbol["isTypeAmbiguous"]
        for message in symbol["diagnostics"]
    ]
    assert missing == []


def test_the_code_on_the_pages_calls_what_there_is(tmp_path: Path) -> None:
    """Their functions have no type hints, and blocks of a page await: no more is asked."""
    for name, blocks in WITH_CODE.items():
        lines = [""] * (max(b.line + len(b.text.splitlines()) for b in blocks))
        for block in (one for one in blocks if one.is_python):
            for number, line in enumerate(block.text.splitlines(), block.line - 1):
                lines[number] = line
        page = tmp_path / f"{re.sub(r'[^a-zA-Z0-9]', '_', name)}.py"
        page.write_text("\n".join(lines) + "\n", "utf-8")
    done = checked(("mypy",), *map(str, tmp_path.glob("*.py")))
    assert "found" in done.stdout.lower(), done.stderr
    wrong = re.findall(
        rf"^.*{tmp_path.name}.*\[(?:call-arg|call-overload|attr-defined)\]$",
        done.stdout,
        re.MULTILINE,
    )
    assert wrong == []
