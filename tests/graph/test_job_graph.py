"""Laws of what the environment decides: parallelism, key groups, partitioners, uids."""

from __future__ import annotations

from typing import Any

import cloudpickle
import pytest

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.exchange.writer import (
    BroadcastPartitioner,
    ForwardPartitioner,
    KeyGroupPartitioner,
    RebalancePartitioner,
)
from aiomailbox.graph.job_graph import Edge, JobGraph, build_job_graph


def only_edge(graph: JobGraph) -> Edge:
    (edge,) = [edge for vertex in graph.vertices for edge in vertex.out_edges]
    return edge


def test_two_operators_must_not_share_a_uid(item: Any) -> None:
    source = item("source", uid="same")
    sink = item("sink", source, uid="same")
    with pytest.raises(
        InvalidArgumentError, match="uid: 'same' names both 'source' and 'sink'"
    ):
        build_job_graph("job", [sink])


def test_one_operator_that_two_sinks_need_is_no_duplicate(item: Any) -> None:
    source = item("source", uid="source")
    graph = build_job_graph("job", [item("a", source), item("b", source)])
    assert [vertex.name for vertex in graph.vertices] == ["source -> a -> b"]


def test_explicit_forward_between_unequal_parallelisms_is_refused(
    item: Any, via: Any
) -> None:
    source = item("source", parallelism=2)
    sink = item("sink", via(source, ForwardPartitioner()), parallelism=3)
    with pytest.raises(InvalidArgumentError, match="use rebalance"):
        build_job_graph("job", [sink])


def test_an_unsaid_way_is_forward_if_equal_and_rebalance_if_not(item: Any) -> None:
    source = item("source", parallelism=2)
    equal = build_job_graph(
        "job", [item("sink", source, parallelism=2)], chaining=False
    )
    unequal = build_job_graph("job", [item("sink", source, parallelism=3)])
    assert isinstance(only_edge(equal).partitioner, ForwardPartitioner)
    assert isinstance(only_edge(unequal).partitioner, RebalancePartitioner)


def test_a_way_that_was_said_stays(item: Any, via: Any) -> None:
    source = item("source", parallelism=2)
    sink = item("sink", via(source, BroadcastPartitioner()), parallelism=3)
    graph = build_job_graph("job", [sink])
    assert isinstance(only_edge(graph).partitioner, BroadcastPartitioner)


def test_key_groups_are_the_jobs_for_the_partitioner_too(item: Any, via: Any) -> None:
    source = item("source")
    keyed = item("keyed", via(source, KeyGroupPartitioner(str, 128)), is_keyed=True)
    graph = build_job_graph("job", [keyed], max_parallelism=777)
    partitioner = only_edge(graph).partitioner
    assert isinstance(partitioner, KeyGroupPartitioner)
    assert (partitioner.max_parallelism, graph.max_parallelism) == (777, 777)


def test_an_operators_own_key_groups_win(item: Any, via: Any) -> None:
    source = item("source")
    keyed = item(
        "keyed", via(source, KeyGroupPartitioner(str, 128)), max_parallelism=64
    )
    graph = build_job_graph("job", [keyed], max_parallelism=256)
    partitioner = only_edge(graph).partitioner
    assert isinstance(partitioner, KeyGroupPartitioner)
    assert partitioner.max_parallelism == 64
    assert graph.vertices[1].head.max_parallelism == 64


def test_the_users_description_is_not_changed_by_building(item: Any, via: Any) -> None:
    described = KeyGroupPartitioner(str, 128)
    sink = item("sink", via(item("source"), described))
    build_job_graph("job", [sink], max_parallelism=64)
    assert described.max_parallelism == 128
    assert sink.inputs[0][0].partitioner is described


def test_without_a_number_key_groups_follow_the_widest_operator(item: Any) -> None:
    narrow = build_job_graph("job", [item("sink", item("source"))])
    assert narrow.max_parallelism == 128
    wide = build_job_graph("job", [item("sink", item("source"), parallelism=200)])
    assert wide.max_parallelism == 512


def test_parallelism_comes_from_the_operator_else_from_the_environment(
    item: Any,
) -> None:
    source = item("source", parallelism=3)
    graph = build_job_graph("job", [item("sink", source)], parallelism=2)
    assert [vertex.parallelism for vertex in graph.vertices] == [3, 2]


def test_parallelism_max_bounds_what_anybody_asks_for(item: Any) -> None:
    source = item("source", parallelism_max=1)
    asked = item("asked", source, parallelism=4, parallelism_max=2)
    graph = build_job_graph("job", [asked], parallelism=8)
    assert [vertex.parallelism for vertex in graph.vertices] == [1, 2]


def test_more_subtasks_than_key_groups_are_refused(item: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="'sink' has 9 subtasks but only 8"):
        build_job_graph(
            "job", [item("sink", item("source"), parallelism=9)], max_parallelism=8
        )


def test_vertices_come_after_those_that_feed_them(item: Any) -> None:
    source = item("source")
    keyed = item("keyed", source, parallelism=2)
    # Found before the keyed vertex, which feeds it too.
    joined = item("joined", source, keyed, parallelism=3)
    graph = build_job_graph("job", [joined, item("last", joined, parallelism=1)])
    place = {vertex.id: index for index, vertex in enumerate(graph.vertices)}
    for vertex in graph.vertices:
        for edge in vertex.out_edges:
            assert place[vertex.id] < place[graph.vertex_of(edge.target).id]


def test_a_stream_united_with_itself_has_two_edges(item: Any) -> None:
    source = item("source")
    graph = build_job_graph("job", [item("sink", source, source)])
    first, second = graph.vertices[0].out_edges
    assert first is not second
    assert [len(united) for united in graph.vertices[1].in_edges] == [2]


def test_a_graph_travels_by_cloudpickle(item: Any, via: Any) -> None:
    offset = 3
    source = item("source", bound="n")
    keyed = item("keyed", via(source, KeyGroupPartitioner(lambda v: v + offset, 128)))
    graph = build_job_graph("job", [item("sink", keyed)], parallelism=2)
    copy = cloudpickle.loads(cloudpickle.dumps(graph))
    assert [vertex.name for vertex in copy.vertices] == ["source", "keyed -> sink"]
    partitioner = only_edge(copy).partitioner
    assert isinstance(partitioner, KeyGroupPartitioner)
    assert partitioner.key(1) == 4
    assert copy.vertex_of(only_edge(copy).target) is copy.vertices[1]


def test_a_job_without_sinks_has_no_vertices() -> None:
    assert build_job_graph("job", []).vertices == []
