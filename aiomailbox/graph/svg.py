"""The job graph as a drawing that needs no program to be drawn (pure)."""

from __future__ import annotations

from html import escape
from typing import Final, NamedTuple

from aiomailbox.graph.job_graph import JobGraph, JobVertex

__all__ = ["describe_svg"]

_WIDTH: Final = 190
_GAP_X: Final = 90
_GAP_Y: Final = 24
_LINE: Final = 17
_TEXT_MAX: Final = 25
# A style inside of a page is one of all the page: a notebook has other drawings.
_CLASS: Final = "aiomailbox-graph"
_RULES: Final = {
    "rect": "fill:#8882;stroke:#888;stroke-width:1.5",
    "text": "font:13px system-ui,sans-serif;fill:currentColor",
    ".soft": "font-size:11px;opacity:.75",
    "path": "fill:none;stroke:#888;stroke-width:1.4",
}
# A file of its own has no page around it, and follows the viewer's color scheme.
_ALONE: Final = (
    f"svg.{_CLASS}:root{{color:#222;background:#fff}}@media(prefers-color-scheme:dark)"
    f"{{svg.{_CLASS}:root{{color:#ddd;background:#15181c}}}}"
)
_STYLE: Final = "".join(
    [
        "<style>",
        *(f".{_CLASS} {name}{{{rule}}}" for name, rule in _RULES.items()),
        _ALONE,
        "</style>",
    ]
)


class _Box(NamedTuple):
    x: int
    y: int
    height: int


def describe_svg(graph: JobGraph) -> str:
    """Return the graph as an SVG: one box per task chain, sources on the left.

    Colours are those of the page around it, so that it is readable on light and dark.
    """
    depths = _depths(graph)
    boxes, lanes, width, height = _placed(graph, depths)
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" class="{_CLASS}" role="img" '
            f'aria-label="{escape(graph.name)}">'
        ),
        _STYLE,
    ]
    for vertex in graph.vertices:
        for edge in vertex.out_edges:
            target = graph.vertex_of(edge.target)
            lane = lanes.get((vertex.id, target.id))
            source_box, target_box = boxes[vertex.id], boxes[target.id]
            parts += _arrow(source_box, target_box, lane, edge.partitioner.name)
    for vertex in graph.vertices:
        parts += _drawn(vertex, boxes[vertex.id])
    return "".join([*parts, "</svg>"])


class _Lane(NamedTuple):
    """Where a line passes below the boxes that are between its ends."""

    left: int
    right: int
    y: int


def _depths(graph: JobGraph) -> dict[int, int]:
    """Return the column of each vertex: behind all that it reads."""
    depths: dict[int, int] = {}
    for vertex in graph.vertices:
        depths.setdefault(vertex.id, 0)
        for edge in vertex.out_edges:
            target = graph.vertex_of(edge.target).id
            depths[target] = max(depths.get(target, 0), depths[vertex.id] + 1)
    return depths


def _placed(
    graph: JobGraph, depths: dict[int, int]
) -> tuple[dict[int, _Box], dict[tuple[int, int], _Lane], int, int]:
    """Return where vertices are drawn, where lines pass them, and the size of all."""
    boxes: dict[int, _Box] = {}
    bottoms = dict.fromkeys(depths.values(), 4)
    for vertex in graph.vertices:
        depth = depths[vertex.id]
        y = bottoms[depth]
        box = _Box(_left(depth), y, _LINE * len(vertex.nodes) + 30)
        boxes[vertex.id] = box
        bottoms[depth] = y + box.height + _GAP_Y
    lanes: dict[tuple[int, int], _Lane] = {}
    for vertex in graph.vertices:
        for edge in vertex.out_edges:
            target = graph.vertex_of(edge.target).id
            between = range(depths[vertex.id] + 1, depths[target])
            if between:
                y = max(bottoms[depth] for depth in between)
                bottoms.update(dict.fromkeys(between, y + _GAP_Y))
                left, right = _left(between[0]), _left(between[-1]) + _WIDTH
                lanes[vertex.id, target] = _Lane(left, right, y)
    width = _left(max(bottoms, default=0)) + _WIDTH + 4
    return boxes, lanes, width, max(bottoms.values(), default=4) - _GAP_Y + 6


def _left(depth: int) -> int:
    return 4 + depth * (_WIDTH + _GAP_X)


def _drawn(vertex: JobVertex, box: _Box) -> list[str]:
    lines = [
        (
            f'<rect x="{box.x}" y="{box.y}" width="{_WIDTH}" '
            f'height="{box.height}" rx="6"><title>{escape(vertex.name)}</title></rect>'
        )
    ]
    for number, node in enumerate(vertex.nodes):
        y = box.y + 20 + number * _LINE
        lines.append(
            f'<text x="{box.x + 10}" y="{y}">{escape(_short(node.name))}</text>'
        )
    subtasks = f"{vertex.parallelism} subtask{'' if vertex.parallelism == 1 else 's'}"
    y = box.y + box.height - 9
    lines.append(f'<text class="soft" x="{box.x + 10}" y="{y}">{subtasks}</text>')
    return lines


def _arrow(source: _Box, target: _Box, lane: _Lane | None, label: str) -> list[str]:
    x1, y1 = source.x + _WIDTH, source.y + source.height // 2
    x2, y2 = target.x, target.y + target.height // 2
    if lane is None:
        line, x, y = _curve(x1, y1, x2 - 4, y2), (x1 + x2) // 2, (y1 + y2) // 2 - 7
    else:
        left, right, y = lane
        line = f"{_curve(x1, y1, left, y)} L{right} {y} {_curve(right, y, x2 - 4, y2)}"
        x, y = (left + right) // 2, y - 5
    return [
        f'<path d="{line} M{x2 - 9} {y2 - 4} L{x2 - 3} {y2} L{x2 - 9} {y2 + 4}"/>',
        (
            f'<text class="soft" x="{x}" y="{y}" text-anchor="middle">'
            f"{escape(label)}</text>"
        ),
    ]


def _curve(x1: int, y1: int, x2: int, y2: int) -> str:
    middle = (x1 + x2) // 2
    return f"M{x1} {y1} C{middle} {y1} {middle} {y2} {x2} {y2}"


def _short(name: str) -> str:
    return name if len(name) <= _TEXT_MAX else f"{name[: _TEXT_MAX - 1]}…"
