"""The pictures in the documentation are those that the code draws."""

from __future__ import annotations

import importlib.util
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def in_both(*names: str) -> list[str]:
    """Return the pictures for light pages and for dark ones."""
    return [f"{name}-{scheme}" for name in names for scheme in ("light", "dark")]


PAGES = {
    "event_time": (
        "concepts/event-time.md",
        in_both("watermark", "windows", "sessions"),
    ),
    "backpressure": ("concepts/backpressure.md", in_both("channel", "experiment")),
    "architecture": ("concepts/mailbox.md", in_both("architecture")),
    "spark": ("spark.md", in_both("spark-shuffle", "spark-barrier")),
}
PICTURES = [(script, name) for script, (_, names) in PAGES.items() for name in names]


@pytest.fixture(scope="module")
def draw() -> Callable[[str, str], str]:
    """Load the scripts that draw; they import from their own directory."""
    sys.path.insert(0, str(DOCS / "pictures"))
    scripts: dict[str, Any] = {}
    for script in PAGES:
        path = DOCS / "pictures" / f"{script}.py"
        spec = importlib.util.spec_from_file_location(f"{script}_pictures", path)
        assert spec is not None
        assert spec.loader is not None
        scripts[script] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(scripts[script])

    def drawn(script: str, name: str) -> str:
        picture: str = scripts[script].PICTURES[name]()
        return picture

    return drawn


@pytest.mark.parametrize(("script", "name"), PICTURES)
def test_a_picture_is_what_its_code_draws(
    draw: Callable[[str, str], str], script: str, name: str
) -> None:
    kept = (DOCS / "pictures" / f"{name}.svg").read_text(encoding="utf-8")
    assert draw(script, name) == kept


@pytest.mark.parametrize(("script", "name"), PICTURES)
def test_a_picture_has_nothing_outside_of_its_frame(
    draw: Callable[[str, str], str], script: str, name: str
) -> None:
    root = ET.fromstring(draw(script, name))
    *_, width, height = map(float, root.attrib["viewBox"].split())
    for part in root.iter():
        for key, value in part.attrib.items():
            if key == "points":
                for pair in value.split():
                    x, y = map(float, pair.split(","))
                    assert 0 <= x <= width, pair
                    assert 0 <= y <= height, pair
            if key in {"x", "cx", "x1", "x2"}:
                assert 0 <= float(value) <= width, part.attrib
            if key in {"y", "cy", "y1", "y2"}:
                assert 0 <= float(value) <= height, part.attrib


@pytest.mark.parametrize("script", PAGES)
def test_the_page_shows_its_pictures(script: str) -> None:
    page, names = PAGES[script]
    text = (DOCS / page).read_text(encoding="utf-8")
    assert all(f"pictures/{name}.svg" in text for name in names)
