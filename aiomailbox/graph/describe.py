"""The job graph: text for a terminal, Mermaid for a page, values for a program."""

from __future__ import annotations

from typing import Any

from aiomailbox.graph.channels import why_never_unaligned
from aiomailbox.graph.columns import describe_form
from aiomailbox.graph.job_graph import (
    CHAIN_DEPTH_MAX,
    DEFAULT_SLOT_SHARING_GROUP,
    Edge,
    JobGraph,
    JobVertex,
    Node,
)
from aiomailbox.graph.side_outputs import describe_side_outputs
from aiomailbox.graph.transformation import Transformation
from aiomailbox.graph.wiring import consumers_of
from aiomailbox.operators.sinks.sink import guarantee_of
from aiomailbox.operators.sources.source import describe_replay, is_replayable
from aiomailbox.records.run import COLUMN_RUN_LENGTH_MAX, RUN_LENGTH_MAX


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
    records_per_buffer: int,
    buffer_size_bytes: int,
    unaligned: bool = False,
    counts: str | None = None,
) -> str:
    """Return the graph, its chains, its bounds, and which functions are async.

    Args:
        graph: The job.
        buffers_per_channel: Buffers that each channel may fill.
        floating_buffers: Buffers that the channels of a partition share, if some of them
            lead to other processes, or to files.
        stays_here: Whether the job runs in one process.
        records_per_buffer: Records that a buffer holds at most.
        buffer_size_bytes: Estimated bytes that a buffer holds at most.
        unaligned: Whether barriers may overtake data where they can.
        counts: How often a record counts in state when a job goes on from a checkpoint,
            as people say it; None for a job that takes none.
    """
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
                f"{buffers_per_channel * records_per_buffer} records in each, "
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
        f"{records_per_buffer} records or {buffer_size_bytes // 1024} KiB "
        f"(estimated): {kib} KiB, plus what one record may emit beyond."
    )
    if any(
        getattr(node.transformation.source, "gives_columns", False)
        for vertex in graph.vertices
        for node in vertex.nodes
    ):
        times = COLUMN_RUN_LENGTH_MAX // RUN_LENGTH_MAX
        lines.append(f"    A buffer of columns holds up to {times} times as much.")
    lines.append(f"Key groups: {graph.max_parallelism}")
    lines += describe_side_outputs(graph)
    lines += _describe_guarantees(graph, counts)
    return "\n".join(lines)


def unreplayable_sources(graph: JobGraph) -> list[str]:
    """Return the names of the sources that cannot give again what they gave."""
    return [
        node.name
        for vertex in graph.vertices
        for node in vertex.nodes
        if node.transformation.source is not None
        and not is_replayable(node.transformation.source)
    ]


def _describe_guarantees(graph: JobGraph, counts: str | None) -> list[str]:
    """Say what a failure costs."""
    if counts is None:
        return ["Failures: no checkpoints; what the job has not committed is lost."]
    lines = [f"Failures: each record counts {counts} in state."]
    nodes = [node for vertex in graph.vertices for node in vertex.nodes]
    for node in nodes:
        source = node.transformation.source
        if source is not None:
            lines.append(f"    source {node.name!r} {describe_replay(source)}")
    for node in nodes:
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
    for function in item.functions:
        way = "async" if function.is_async else "sync"
        note = f": {function.note}" if function.note else ""
        lines.append(f"        {way} {function.text}{note}")
    return lines


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
        "functions": [
            {"function": function.text, "is_async": function.is_async}
            for function in item.functions
        ],
    }


def _escape(vertex: JobVertex) -> str:
    return vertex.name.replace('"', "'").replace("->", "→")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
