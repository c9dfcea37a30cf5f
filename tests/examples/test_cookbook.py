"""Every recipe is on the page, and prints what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.held import without_held

ROOT = Path(__file__).parents[2]
RECIPES = sorted(
    path.stem
    for path in (ROOT / "examples" / "cookbook").glob("*.py")
    if path.stem != "__init__"
)
PAGE = ROOT / "docs" / "cookbook.md"
SHOWN = re.compile(
    r"`examples/cookbook/(\w+)\.py`:\n\n```py\n(.*?)```\n\n```text\n(.*?)\n```",
    re.DOTALL,
)
FOUND = SHOWN.findall(PAGE.read_text(encoding="utf-8"))
CODE = {recipe: code for recipe, code, _ in FOUND}
ON_THE_PAGE = {recipe: output for recipe, _, output in FOUND}


def code_of(recipe: str) -> str:
    path = ROOT / "examples" / "cookbook" / f"{recipe}.py"
    return path.read_text(encoding="utf-8")


def test_the_page_has_every_recipe_and_no_other() -> None:
    assert sorted(ON_THE_PAGE) == RECIPES
    assert len(RECIPES) >= 20


@pytest.mark.suite("tests")
@pytest.mark.parametrize("recipe", RECIPES)
def test_the_page_shows_the_program(recipe: str) -> None:
    # `python -m tests.examples.test_cookbook` copies the programs into the page.
    assert CODE[recipe] == code_of(recipe)


@pytest.mark.real_time
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_prints_what_the_page_says(recipe: str) -> None:
    command = [sys.executable, "-W", "error", "-m", f"examples.cookbook.{recipe}"]
    run = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )
    # On a busy machine an import may take as long as is worth a warning.
    assert without_held(run.stderr) == ""
    assert run.returncode == 0
    assert run.stdout.rstrip() == ON_THE_PAGE[recipe]


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    for shown_recipe, shown_code, _ in FOUND:
        text = text.replace(
            f"py`:\n\n```py\n{shown_code}```",
            f"py`:\n\n```py\n{code_of(shown_recipe)}```",
        )
    PAGE.write_text(text, encoding="utf-8")
