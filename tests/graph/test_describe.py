"""Laws of a job graph shown to people."""

from __future__ import annotations

from typing import Any

from aiomailbox.exchange.writer import KeyGroupPartitioner, RescalePartitioner
from aiomailbox.graph.describe import channel_count, describe_mermaid, describe_text
from aiomailbox.graph.job_graph import JobGraph, build_job_graph
from aiomailbox.graph.transformation import FunctionInfo
from aiomailbox.records.events import OutputTag


def text_of(graph: JobGraph) -> str:
    return describe_text(
        graph,
        buffers_per_channel=2,
        floating_buffers=8,
        stays_here=False,
        buffer_size_bytes=32 * 1024,
    )


def two_vertices(item: Any, via: Any) -> JobGraph:
    look_up = FunctionInfo("look_up", is_async=True, note="4 at once")
    source = item("orders", parallelism=1, uid="in")
    keyed = item(
        "sum",
        via(source, KeyGroupPartitioner(str, 128)),
        is_keyed=True,
        functions=(look_up, FunctionInfo("add", is_async=False)),
        bound="one value per key",
    )
    return build_job_graph("shop", [item("print", keyed)], parallelism=3)


def test_text_names_chains_functions_and_bounds(item: Any, via: Any) -> None:
    text = text_of(two_vertices(item, via))
    assert text.splitlines() == [
        "Job 'shop': 2 task chains",
        "",
        "[0] orders  (parallelism 1)",
        "    - orders uid='in'",
        (
            "    =HASH=> [1] sum: 3 channels, at most 2048 records in each, "
            "14 buffers in all"
        ),
        "",
        "[1] sum -> print  (parallelism 3)",
        "    - sum keyed; holds at most one value per key",
        "        async look_up: 4 at once",
        "        sync add",
        "    - print",
        "",
        (
            "Exchange memory bound: 14 buffers of at most 1024 records or 32 KiB "
            "(estimated): 448 KiB, plus what one record may emit beyond."
        ),
        "Key groups: 128",
        "Failures: no checkpoints; a failure loses all results that are not committed.",
    ]


def test_text_names_side_outputs(item: Any, via: Any) -> None:
    source = item("source")
    late = item("late", via(source, RescalePartitioner(), OutputTag("too late")))
    text = text_of(build_job_graph("job", [late]))
    assert "=RESCALE=> side output 'too late' [1] late: 1 channel," in text


def test_one_is_written_without_an_s(item: Any) -> None:
    assert "Job 'job': 1 task chain\n" in text_of(build_job_graph("job", [item("a")]))


def test_channels_are_counted_over_all_subtasks(item: Any, via: Any) -> None:
    source = item("source", parallelism=2)
    few = item("few", via(source, RescalePartitioner()), parallelism=4)
    graph = build_job_graph("job", [few])
    assert channel_count(graph.vertices[0].out_edges[0]) == 4


def test_mermaid_draws_vertices_and_edges(item: Any, via: Any) -> None:
    assert describe_mermaid(two_vertices(item, via)).splitlines() == [
        "flowchart LR",
        '    v0["orders x 1"]',
        '    v1["sum → print x 3"]',
        "    v0 -->|HASH| v1",
    ]


def test_mermaid_is_not_broken_by_names(item: Any) -> None:
    graph = build_job_graph("job", [item('say "hi"')])
    assert "v0[\"say 'hi' x 1\"]" in describe_mermaid(graph)


def test_the_end_of_a_long_chain_is_explained(item: Any) -> None:
    last = item("0")
    for number in range(1, 40):
        last = item(str(number), last)
    text = text_of(build_job_graph("job", [last]))
    assert text.count("(a chain ends after 32 operators)") == 1
    assert "=FORWARD=> [1] 32:" in text
