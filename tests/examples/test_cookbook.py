"""Every recipe is on the page, and prints what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECIPES = sorted(
    path.stem
    for path in (ROOT / "examples" / "cookbook").glob("*.py")
    if path.stem != "__init__"
)
SHOWN = re.compile(
    r"\.\./examples/cookbook/(\w+)\.py\n```\n\n```text\n(.*?)\n```", re.DOTALL
)
ON_THE_PAGE = dict(
    SHOWN.findall((ROOT / "docs" / "cookbook.md").read_text(encoding="utf-8"))
)


def test_the_page_has_every_recipe_and_no_other() -> None:
    assert sorted(ON_THE_PAGE) == RECIPES
    assert len(RECIPES) >= 20


@pytest.mark.real_time
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_prints_what_the_page_says(recipe: str) -> None:
    command = [sys.executable, "-W", "error", "-m", f"examples.cookbook.{recipe}"]
    run = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )
    assert run.stderr == ""
    assert run.returncode == 0
    assert run.stdout.rstrip() == ON_THE_PAGE[recipe]
