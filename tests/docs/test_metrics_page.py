"""The page of all metrics is what their declarations say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_what_the_declarations_say() -> None:
    spec = importlib.util.spec_from_file_location("metrics", DOCS / "metrics_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kept = (DOCS / "metrics.md").read_text(encoding="utf-8")
    assert module.page() == kept, "run python docs/metrics_page.py"
