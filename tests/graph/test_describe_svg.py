"""The graph as a drawing: what it may not do to its page, and where its lines go."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

import aiomailbox as am


def drawn(env: am.StreamExecutionEnvironment) -> Any:
    return ET.fromstring(env.explain(format="svg"))


def numbers_of(path: str) -> list[tuple[int, int]]:
    numbers = [int(number) for number in re.findall(r"-?\d+", path)]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def test_a_line_over_several_columns_passes_below_the_boxes_between() -> None:
    env = am.StreamExecutionEnvironment()
    far = env.from_collection([1], name="far")
    near = env.from_collection([1], name="near")
    for step in ("one", "two"):
        near = near.rebalance().map(abs).name(step)
        # Something below the first row of the column.
        near.rebalance().map(str).sink_to(print)
    near.rebalance().map(abs).name("end").union(far.rebalance()).map(abs).sink_to(print)
    drawing = drawn(env)
    boxes = [
        tuple(int(part.attrib[name]) for name in ("x", "y", "width", "height"))
        for part in drawing.iter()
        if part.tag.endswith("rect")
    ]
    lines = [part.attrib["d"] for part in drawing.iter() if part.tag.endswith("path")]
    [lane] = [line for line in lines if "L" in line.partition("M")[2].split(" M")[0]]
    passing = numbers_of(lane)[3:5]
    assert passing[0][1] == passing[1][1], "it is level below them"
    left, right, level = passing[0][0], passing[1][0], passing[0][1]
    below = [box for box in boxes if left <= box[0] <= right]
    assert len(below) > 2
    assert all(y + height < level for _, y, _, height in below)
    *_, width, height = map(int, drawing.attrib["viewBox"].split())
    for line in lines:
        assert all(0 <= x <= width and 0 <= y <= height for x, y in numbers_of(line))


def test_a_file_of_its_own_has_colours_for_light_and_dark() -> None:
    env = am.StreamExecutionEnvironment()
    env.from_collection([1]).sink_to(print)
    [style] = [part.text for part in drawn(env).iter() if part.tag.endswith("style")]
    assert "svg.aiomailbox-graph:root{color:#222;background:#fff}" in style
    assert "(prefers-color-scheme:dark)" in style
    # In a page it takes those of the text around it.
    assert "fill:currentColor" in style
