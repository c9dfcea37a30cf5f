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
# A file of its own has no page around it, and follows the scheme of who shows it.
_ALONE: Final = (
    f"svg.{_CLASS}:root{{color:#222}}@media(prefers-color-scheme:dark)"
    f"{{svg.{_CLASS}:root{{color:#ddd}}}}"
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
    boxes, width, height = _placed(graph)
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
            parts += _arrow(boxes[vertex.id], boxes[target.id], edge.partitioner.name)
    for vertex in graph.vertices:
        parts += _drawn(vertex, boxes[vertex.id])
    return "".join([*parts, "</svg>"])


def _placed(graph: JobGraph) -> tuple[dict[int, _Box], int, int]:
    """Return where each vertex is drawn, and the size of all of it."""
    depths: dict[int, int] = {}
    for vertex in graph.vertices:
        depths.setdefault(vertex.id, 0)
        for edge in vertex.out_edges:
            target = graph.vertex_of(edge.target).id
            depths[target] = max(depths.get(target, 0), depths[vertex.id] + 1)
    boxes: dict[int, _Box] = {}
    bottoms: dict[int, int] = {}
    for vertex in graph.vertices:
        depth = depths[vertex.id]
        y = bottoms.get(depth, 4)
        box = _Box(4 + depth * (_WIDTH + _GAP_X), y, _LINE * len(vertex.nodes) + 30)
        boxes[vertex.id] = box
        bottoms[depth] = y + box.height + _GAP_Y
    width = 8 + (max(depths.values(), default=0) + 1) * (_WIDTH + _GAP_X) - _GAP_X
    return boxes, width, max(bottoms.values(), default=4 + _GAP_Y) - _GAP_Y + 4


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


def _arrow(source: _Box, target: _Box, label: str) -> list[str]:
    x1, y1 = source.x + _WIDTH, source.y + source.height // 2
    x2, y2 = target.x, target.y + target.height // 2
    middle = (x1 + x2) // 2
    return [
        (
            f'<path d="M{x1} {y1} C{middle} {y1} {middle} {y2} {x2 - 4} {y2} '
            f'M{x2 - 9} {y2 - 4} L{x2 - 3} {y2} L{x2 - 9} {y2 + 4}"/>'
        ),
        (
            f'<text class="soft" x="{middle}" y="{(y1 + y2) // 2 - 7}" '
            f'text-anchor="middle">{escape(label)}</text>'
        ),
    ]


def _short(name: str) -> str:
    return name if len(name) <= _TEXT_MAX else f"{name[: _TEXT_MAX - 1]}…"
