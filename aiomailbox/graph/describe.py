"""The job graph: text for a terminal, Mermaid for a page, values for a program."""

from __future__ import annotations

from html import escape
from typing import Any, Final, NamedTuple

from aiomailbox.graph.job_graph import (
    CHAIN_DEPTH_MAX,
    DEFAULT_SLOT_SHARING_GROUP,
    Edge,
    JobGraph,
    JobVertex,
    Node,
    consumers_of,
    vertex_depths,
    why_never_unaligned,
)
from aiomailbox.graph.transformation import Transformation, rows_from
from aiomailbox.ids import VertexId
from aiomailbox.operators.sinks.sink import guarantee_of
from aiomailbox.operators.sources.source import describe_replay, is_replayable
from aiomailbox.records.run import COLUMN_RUN_LENGTH_MAX, RUN_LENGTH_MAX

# Which operators get columns, and which make rows of them.


def describe_form(item: Transformation) -> str:
    """Say what an operator works on, where it could be columns: these, or whose rows."""
    if not item.inputs:
        return _form_of_source(item)
    maker = rows_from([each for united in item.inputs for each in united])
    if maker is None:
        return _own_form(item) if item.takes_columns else f"; rows: {_asking(item)}"
    if item.takes_columns or _has_columns(item):
        return f"; rows: {maker.name} makes them"
    return ""


def _form_of_source(item: Transformation) -> str:
    """Say that a source emits columns, and what makes rows of them for event times."""
    if not getattr(item.source, "gives_columns", False):
        return ""
    asking = item.asks_for_rows
    return f"; columns, and rows: {asking} asks for them" if asking else "; columns"


def _own_form(item: Transformation) -> str:
    """Say that an operator works on columns, or when it did not."""
    reason = "" if item.rows_note is None else item.rows_note.reason
    return f"; columns, then rows when it ran: {reason}" if reason else "; columns"


def _asking(item: Transformation) -> str:
    """Say what in an operator asks for rows."""
    if item.asks_for_rows:
        return f"{item.asks_for_rows} asks for them"
    if item.functions:
        return f"{item.functions[0].text} asks for them"
    return f"{item.name} asks for them"


def _has_columns(item: Transformation) -> bool:
    """Say whether there are columns anywhere before an operator."""
    origins = [each for united in item.inputs for each in united]
    seen: set[int] = set()
    while origins:
        upstream = origins.pop().transformation
        if getattr(upstream.source, "gives_columns", False):
            return True
        if id(upstream) not in seen:
            seen.add(id(upstream))
            origins += [each for united in upstream.inputs for each in united]
    return False


def channel_count(edge: Edge) -> int:
    """Return how many channels an exchange has, over all subtasks."""
    producers, consumers = edge.source.parallelism, edge.target.parallelism
    return sum(
        len(consumers_of(edge.partitioner, index, producers, consumers))
        for index in range(producers)
    )


def describe_text(
    graph: JobGraph,
    *,
    buffers_per_channel: int,
    floating_buffers: int,
    stays_here: bool,
    buffer_size_bytes: int,
    unaligned: bool = False,
    counts: str | None = None,
    checkpoints: str = "",
) -> str:
    """Return the graph, its chains, its bounds, and which functions are async."""
    lines = [f"Job {graph.name!r}: {_count(len(graph.vertices), 'task chain')}"]
    total_buffers = 0
    for vertex in graph.vertices:
        lines.append("")
        lines.append(f"[{vertex.id}] {vertex.name}  (parallelism {vertex.parallelism})")
        for node in vertex.nodes:
            lines += _describe_node(node)
        for edge in vertex.out_edges:
            channels = channel_count(edge)
            partitions = edge.source.parallelism
            floating = 0 if stays_here and not edge.is_blocking else floating_buffers
            buffers = channels * buffers_per_channel + partitions * floating
            total_buffers += buffers
            side = f" side output {edge.tag.id!r}" if edge.tag else ""
            if edge.source.chain_depth == CHAIN_DEPTH_MAX:
                lines.append(f"    (a chain ends after {CHAIN_DEPTH_MAX} operators)")
            lines.append(
                f"    ={edge.partitioner.name}=>{side} "
                f"[{graph.vertex_of(edge.target).id}] {edge.target.name}: "
                f"{_count(channels, 'channel')}, at most "
                f"{buffers_per_channel * RUN_LENGTH_MAX} records in each, "
                f"{_count(buffers, 'buffer')} in all"
            )
            if edge.is_blocking:
                lines.append("        blocking: in files, read when all is written")
            why = why_never_unaligned(edge) if unaligned else ""
            if why:
                lines.append(f"        aligned: barriers never overtake here, {why}")
    kib = total_buffers * buffer_size_bytes // 1024
    lines.append("")
    lines.append(
        f"Exchange memory bound: {total_buffers} buffers of at most "
        f"{RUN_LENGTH_MAX} records or {buffer_size_bytes // 1024} KiB "
        f"(estimated): {kib} KiB, plus what one record may emit beyond."
    )
    if any(
        getattr(node.transformation.source, "gives_columns", False)
        for node in graph.nodes
    ):
        times = COLUMN_RUN_LENGTH_MAX // RUN_LENGTH_MAX
        lines.append(f"    A buffer of columns holds up to {times} times as much.")
    lines.append(f"Key groups: {graph.max_parallelism}")
    lines += [
        f"Side output {tag.id!r} of {item.name!r} is emitted, and no operator reads it."
        for item, tag in graph.unread_side_outputs
    ]
    if checkpoints:
        lines.append(f"Checkpoints: {checkpoints}.")
    lines += _describe_guarantees(graph, counts)
    return "\n".join(lines)


def unreplayable_sources(graph: JobGraph) -> list[str]:
    """Return the names of the sources that cannot give again what they gave."""
    return [
        node.name
        for node in graph.nodes
        if node.transformation.source is not None
        and not is_replayable(node.transformation.source)
    ]


def _describe_guarantees(graph: JobGraph, counts: str | None) -> list[str]:
    """Say what a failure costs."""
    if counts is None:
        return [
            "Failures: no checkpoints; a failure loses all results that are not committed."
        ]
    lines = [f"Failures: each record counts {counts} in state."]
    for node in graph.nodes:
        source = node.transformation.source
        if source is not None:
            lines.append(f"    source {node.name!r} {describe_replay(source)}")
    for node in graph.nodes:
        sink = node.transformation.sink
        if sink is not None:
            promised = guarantee_of(sink).value.replace("_", " ")
            lines.append(f"    sink {node.name!r}: {promised}")
    return lines


def _describe_node(node: Node) -> list[str]:
    item = node.transformation
    lines = []
    uid = f" uid={item.uid!r}" if item.uid else ""
    keyed = " keyed" if item.is_keyed else ""
    if node.slot_sharing_group != DEFAULT_SLOT_SHARING_GROUP:
        uid += f" slot_sharing_group={node.slot_sharing_group!r}"
    bound = f"; holds at most {item.bound}" if item.bound else ""
    lines.append(f"    - {item.name}{uid}{keyed}{bound}{describe_form(item)}")
    lines += [f"        unbounded: {text}" for text in _unbounded(item)]
    lines += [f"        {text}" for text in _settings(item)]
    for function in item.functions:
        way = "async" if function.is_async else "sync"
        note = f": {function.note}" if function.note else ""
        lines.append(f"        {way} {function.text}{note}")
    return lines


def _settings(item: Transformation) -> list[str]:
    return [*item.settings, *([] if item.limit is None else [str(item.limit)])]


def _unbounded(item: Transformation) -> list[str]:
    texts = [item.unbounded] if item.unbounded else []
    if item.is_keyed:
        texts += [text for function in item.functions for text in function.unbounded]
    return list(dict.fromkeys(texts))


def describe_mermaid(graph: JobGraph) -> str:
    """Return the graph as a Mermaid flowchart."""
    lines = ["flowchart LR"]
    lines += [
        f'    v{vertex.id}["{_escape(vertex)} x {vertex.parallelism}"]'
        for vertex in graph.vertices
    ]
    lines += [
        f"    v{vertex.id} -->|{edge.partitioner.name}"
        f"{', blocking' if edge.is_blocking else ''}| "
        f"v{graph.vertex_of(edge.target).id}"
        for vertex in graph.vertices
        for edge in vertex.out_edges
    ]
    return "\n".join(lines)


def describe_plan(graph: JobGraph) -> dict[str, Any]:
    """Return the graph as values for JSON: what the text says, for programs.

    Concept:
        Flink, ``StreamExecutionEnvironment.getExecutionPlan``.
    """
    return {
        "job": graph.name,
        "max_parallelism": graph.max_parallelism,
        "vertices": [
            {
                "id": vertex.id,
                "name": vertex.name,
                "parallelism": vertex.parallelism,
                "operators": [_plan_of(node) for node in vertex.nodes],
            }
            for vertex in graph.vertices
        ],
        "edges": [
            {
                "source": vertex.id,
                "target": graph.vertex_of(edge.target).id,
                "from": edge.source.name,
                "to": edge.target.name,
                "partitioner": edge.partitioner.name,
                "channels": channel_count(edge),
                "side_output": edge.tag.id if edge.tag else None,
                "is_blocking": edge.is_blocking,
            }
            for vertex in graph.vertices
            for edge in vertex.out_edges
        ],
    }


def _plan_of(node: Node) -> dict[str, Any]:
    item = node.transformation
    return {
        "name": node.name,
        "uid": item.uid,
        "operator_id": str(node.operator_id),
        "is_source": item.source is not None,
        "is_sink": item.sink is not None,
        "is_keyed": item.is_keyed,
        "holds_at_most": item.bound or None,
        "unbounded": _unbounded(item),
        "settings": _settings(item),
        "functions": [
            {"function": function.text, "is_async": function.is_async}
            for function in item.functions
        ],
    }


def _escape(vertex: JobVertex) -> str:
    return vertex.name.replace('"', "'").replace("->", "→")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


# The job graph as a drawing that needs no program to be drawn (pure).


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
    depths = vertex_depths(graph.vertices)
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


def _placed(
    graph: JobGraph, depths: dict[VertexId, int]
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
    subtasks = _count(vertex.parallelism, "subtask")
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
