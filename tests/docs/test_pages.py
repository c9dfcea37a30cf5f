"""The docs are whole: a page for each example, a place in the reference for each name."""

from __future__ import annotations

import importlib
import re
import runpy
import tomllib
from pathlib import Path

import pytest

import aiomailbox

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))
PACKAGES = sorted(
    path.parent.name for path in (ROOT / "examples").glob("*/__main__.py")
)
PROSE_LENGTH_MIN = 200


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_has_a_page_that_shows_it_and_says_something(name: str) -> None:
    page = DOCS / "examples" / f"{name}.md"
    assert page.exists(), f"write docs/examples/{name}.md"
    text = page.read_text("utf-8")
    shown = f"```{{literalinclude}} ../../examples/{name}.py\n```\n"
    assert shown in text
    assert len(text.replace(shown, "")) >= PROSE_LENGTH_MIN


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_of_examples_has_a_page_that_shows_some_of_it(name: str) -> None:
    text = (DOCS / "examples" / f"{name}.md").read_text("utf-8")
    include = rf"```{{literalinclude}} \.\./\.\./examples/({name}/\S+\.py)\n```\n"
    shown = re.findall(include, text)
    assert shown
    assert all((ROOT / "examples" / path).exists() for path in shown)
    assert len(re.sub(include, "", text)) >= PROSE_LENGTH_MIN
    assert f"python -m examples.{name}" in text


@pytest.mark.parametrize("name", sorted({*aiomailbox.__all__} - {"__version__"}))
def test_a_public_name_is_in_the_reference(name: str) -> None:
    pages = sorted((DOCS / "api").glob("*.md"))
    reference = "\n".join(page.read_text("utf-8") for page in pages)
    if re.search(rf"^\.\. auto\w+:: {name}(\(\))?$", reference, re.MULTILINE):
        return
    modules = re.findall(r"^\.\. automodule:: (\S+)$", reference, re.MULTILINE)
    found = [getattr(importlib.import_module(module), name, None) for module in modules]
    assert any(each is getattr(aiomailbox, name) for each in found), name


@pytest.mark.parametrize("package", ["aiomailbox.operators", "aiomailbox.testing"])
def test_a_name_that_tests_need_is_in_the_reference(package: str) -> None:
    """What a package gives when it is asked for, Sphinx does not find by itself."""
    page = (DOCS / "api" / "testing.md").read_text("utf-8")
    shown = {*re.findall(r"^\.\. auto\w+:: (\w+)(?:\(\))?$", page, re.MULTILINE)}
    by_sphinx = {"DeadlockError", "ManualClock", "VirtualTimeLoop"}
    by_sphinx.add("virtual_time_loop_factory")
    names = {*importlib.import_module(package).__all__}
    assert names - by_sphinx - shown == set()


def test_a_page_about_an_example_that_is_not_there_is_left_out() -> None:
    """A missing file would break the build, and the prose may come first."""
    excluded = runpy.run_path(str(DOCS / "conf.py"))["exclude_patterns"]
    pages = {page.stem for page in (DOCS / "examples").glob("*.md")} - {"index"}
    assert set(excluded) - {"_build"} == {
        f"examples/{name}.md" for name in pages - {*EXAMPLES, *PACKAGES}
    }


def test_decisions_are_numbered_without_gaps_or_doubles() -> None:
    pages = sorted(DOCS.glob("decisions/[0-9]*.md"))
    assert [page.name[:4] for page in pages] == [
        f"{number:04}" for number in range(1, len(pages) + 1)
    ]


def test_a_decision_says_context_decision_and_consequences() -> None:
    for page in DOCS.glob("decisions/[0-9]*.md"):
        headings = re.findall(r"^## (.+)$", page.read_text("utf-8"), re.MULTILINE)
        assert headings == ["Context", "Decision", "Consequences"], page.name


@pytest.mark.parametrize("session", ["demo", "tests"])
def test_one_line_of_the_readme_sets_up_and_runs(session: str) -> None:
    """A new user copies it, and so does what checks each change."""
    readme = (ROOT / "README.md").read_text("utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    ending = [line for line in lines if line.endswith(f"nox -s {session}")]
    assert len(ending) == 1
    assert ending[0].startswith("python3 -m venv ")


def test_each_extra_is_on_its_page() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    page = (DOCS / "extras.md").read_text("utf-8")
    shown = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert sorted(shown) == sorted(project["optional-dependencies"])


def test_install_lines_work_where_the_system_has_a_python_of_its_own() -> None:
    """On Debian pip refuses to install into the system, and `.venv` has no pip."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]
    lines = {
        line
        for page in pages
        if "_build" not in page.parts
        for block in re.findall(
            r"^```sh\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
        )
        for line in block.splitlines()
        if "pip" in line and "apt" not in line
    }
    assert len(lines) > 3
    into_an_environment = (
        r"python3 -m pip --python \.venv |.*--without-pip|\.venv/bin/uv "
    )
    assert [line for line in lines if not re.match(into_an_environment, line)] == []


def test_the_readme_says_what_the_demo_leaves() -> None:
    demo = (ROOT / "examples" / "flight_delays.py").read_text("utf-8")
    readme = (ROOT / "README.md").read_text("utf-8")
    assert 'default=pathlib.Path("out")' in demo
    assert 'arguments.out / "flight_delays"' in demo
    assert 'target.with_suffix(".png")' in demo
    assert "`out/flight_delays`" in readme
    assert "`out/flight_delays.png`" in readme
    assert 'print(f"check: equal to Spark SQL' in demo
