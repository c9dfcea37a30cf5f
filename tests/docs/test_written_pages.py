"""The parts of pages that scripts write are what the code says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("script", "page"),
    [("metrics_page", "metrics.md"), ("modules_table", "architecture.md")],
)
def test_a_written_page_is_what_the_code_says(script: str, page: str) -> None:
    spec = importlib.util.spec_from_file_location(script, DOCS / f"{script}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kept = (DOCS / page).read_text(encoding="utf-8")
    assert module.page() == kept, f"run python docs/{script}.py"
