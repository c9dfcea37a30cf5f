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
# It keeps what it finds out apart from what `nox -s types`, which may run beside it, does.
KEPT = ("--cache-dir", "build/mypy-of-tests")
MYPY = ("mypy", "--strict", "--explicit-package-bases", *KEPT)
PYRIGHT = ("basedpyright", "--pythonpath", sys.executable)
MISTAKES = "tests/typing/mistakes.py"


def checked(checker: tuple[str, ...], *paths: str) -> subprocess.CompletedProcess[str]:
    command, *options = checker
    return subprocess.run(
        [SCRIPTS / command, *options, *paths], capture_output=True, cwd=ROOT, text=True
    )


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a directory of code: that of the page about types, and that of all pages."""
    place = tmp_path_factory.mktemp("pages")
    page = (ROOT / "docs" / "concepts" / "typing.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(blocks) > 4
    # Whoever has not looked at it does not find this.
    mistake = 'about_types: int = "wrong"\n'
    (place / "about_types.py").write_text("\n\n".join([*blocks, mistake]), "utf-8")
    for name, with_code in WITH_CODE.items():
        lines = [""] * (max(b.line + len(b.text.splitlines()) for b in with_code))
        for block in (one for one in with_code if one.is_python):
            for number, line in enumerate(block.text.splitlines(), block.line - 1):
                lines[number] = line
        file = place / f"{re.sub(r'[^a-zA-Z0-9]', '_', name)}.py"
        file.write_text("\n".join(lines) + "\n", "utf-8")
    return place


@pytest.fixture(scope="module")
def of_mypy(pages: Path) -> str:
    """Give what it says of mistakes and pages, at one start."""
    done = checked(MYPY, MISTAKES, *map(str, pages.glob("*.py")))
    assert "found" in done.stdout.lower(), done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def of_pyright(pages: Path) -> str:
    """Give what it says of mistakes, and of the page about types, at one start."""
    return checked(PYRIGHT, MISTAKES, str(pages / "about_types.py")).stdout


@pytest.fixture(params=["of_mypy", "of_pyright"])
def said(request: pytest.FixtureRequest) -> str:
    """Give what one of the checkers says."""
    text: str = request.getfixturevalue(request.param)
    return text


def test_a_mistake_is_found(said: str) -> None:
    """Types that say Any would let everything pass."""
    for line, text in enumerate((ROOT / MISTAKES).read_text("utf-8").splitlines(), 1):
        found = f"mistakes.py:{line}:" in said
        is_mistake = text.lstrip().startswith(("not_", "wrong_"))
        assert found == is_mistake, said


def test_the_page_about_types_says_what_the_checkers_say(
    said: str, pages: Path
) -> None:
    of_page = [line for line in said.splitlines() if "about_types.py:" in line]
    last = len((pages / "about_types.py").read_text("utf-8").splitlines())
    assert {f"about_types.py:{last}:" in line for line in of_page} == {True}, said


def test_what_users_write_passes_without_an_ignore() -> None:
    """The checkers themselves are run over idioms and examples by ``nox -s types``."""
    sessions = (ROOT / "noxfile.py").read_text("utf-8")
    assert sessions.count(f'"{IDIOMS}", "examples"') == 2
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


def test_the_code_on_the_pages_calls_what_there_is(of_mypy: str, pages: Path) -> None:
    """Their functions have no type hints, and blocks of a page await: no more is asked."""
    wrong = re.findall(
        rf"^.*{pages.name}.*\[(?:call-arg|call-overload|attr-defined)\]$",
        of_mypy,
        re.MULTILINE,
    )
    assert wrong == []
