"""The pictures in the documentation are those that the code draws."""

from __future__ import annotations

import importlib.util
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
NAMES = ["watermark", "windows", "sessions"]


@pytest.fixture(scope="module")
def drawing() -> Any:
    """Load the script that draws."""
    path = DOCS / "pictures" / "event_time.py"
    spec = importlib.util.spec_from_file_location("event_time_pictures", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_what_its_code_draws(drawing: Any, name: str) -> None:
    kept = (DOCS / "pictures" / f"{name}.svg").read_text(encoding="utf-8")
    assert drawing.PICTURES[name]() == kept


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_has_nothing_outside_of_its_frame(drawing: Any, name: str) -> None:
    root = ET.fromstring(drawing.PICTURES[name]())
    *_, width, height = map(float, root.attrib["viewBox"].split())
    for part in root.iter():
        for key, value in part.attrib.items():
            if key in {"x", "cx", "x1", "x2"}:
                assert 0 <= float(value) <= width, part.attrib
            if key in {"y", "cy", "y1", "y2"}:
                assert 0 <= float(value) <= height, part.attrib


def test_the_page_on_event_time_shows_them() -> None:
    page = (DOCS / "concepts" / "event-time.md").read_text(encoding="utf-8")
    assert all(f"../pictures/{name}.svg" in page for name in NAMES)
