"""Laws of which operators share a task."""

from __future__ import annotations

from typing import Any

import pytest

from aiomailbox.exchange.writer import (
    BroadcastPartitioner,
    ForwardPartitioner,
    RebalancePartitioner,
    RescalePartitioner,
)
from aiomailbox.graph.job_graph import (
    CHAIN_DEPTH_MAX,
    build_job_graph,
    is_chainable,
    resolve_nodes,
)
from aiomailbox.graph.transformation import ChainingStrategy, Origin, Transformation
from aiomailbox.operators.core.operator import Operator
from aiomailbox.records.events import OutputTag


def chains(*sinks: Transformation, **settings: Any) -> list[str]:
    graph = build_job_graph("job", list(sinks), **settings)
    return [vertex.name for vertex in graph.vertices]


def test_neighbours_of_equal_parallelism_share_a_task(item: Any) -> None:
    """SEM-254."""
    assert chains(item("c", item("b", item("a"))), parallelism=2) == ["a -> b -> c"]


def test_explicit_forward_chains(item: Any, via: Any) -> None:
    assert chains(item("b", via(item("a"), ForwardPartitioner()))) == ["a -> b"]


@pytest.mark.parametrize(
    "partitioner",
    [RebalancePartitioner(), RescalePartitioner(), BroadcastPartitioner()],
)
def test_any_other_way_breaks_the_chain(item: Any, via: Any, partitioner: Any) -> None:
    """SEM-255."""
    assert chains(item("b", via(item("a"), partitioner))) == ["a", "b"]


def test_unequal_parallelism_breaks_the_chain(item: Any) -> None:
    """SEM-256."""
    assert chains(item("b", item("a"), parallelism=2)) == ["a", "b"]


def test_unequal_key_groups_break_the_chain(item: Any) -> None:
    assert chains(item("b", item("a"), max_parallelism=64)) == ["a", "b"]


def test_united_inputs_break_the_chain(item: Any) -> None:
    """SEM-257."""
    assert chains(item("c", item("a"), item("b"))) == ["a", "b", "c"]


def test_no_edge_of_a_united_input_is_chainable(item: Any) -> None:
    graph = build_job_graph("job", [item("c", item("a"), item("b"))])
    edges = [edge for vertex in graph.vertices for edge in vertex.out_edges]
    assert [is_chainable(edge) for edge in edges] == [False, False]


def test_two_inputs_break_the_chain(item: Any) -> None:
    first, second = item("a"), item("b")
    both = Transformation("both", Operator, [[Origin(first)], [Origin(second)]])
    assert chains(both) == ["a", "b", "both"]


@pytest.mark.parametrize(
    ("upstream", "downstream", "chained"),
    [
        (ChainingStrategy.ALWAYS, ChainingStrategy.ALWAYS, True),
        (ChainingStrategy.HEAD, ChainingStrategy.ALWAYS, True),
        (ChainingStrategy.NEVER, ChainingStrategy.ALWAYS, False),
        (ChainingStrategy.ALWAYS, ChainingStrategy.HEAD, False),
        (ChainingStrategy.ALWAYS, ChainingStrategy.NEVER, False),
        (ChainingStrategy.HEAD, ChainingStrategy.HEAD, False),
    ],
)
def test_both_strategies_must_allow_it(
    item: Any, upstream: Any, downstream: Any, chained: bool
) -> None:
    """SEM-258."""
    found = chains(item("b", item("a", chaining=upstream), chaining=downstream))
    assert found == (["a -> b"] if chained else ["a", "b"])


def test_chaining_can_be_switched_off_altogether(item: Any) -> None:
    assert chains(item("b", item("a")), chaining=False) == ["a", "b"]


def test_a_chain_is_a_tree(item: Any) -> None:
    source = item("source")
    left = item("left", source)
    sinks = [item("x", left), item("y", left), item("z", source)]
    graph = build_job_graph("job", sinks)
    (vertex,) = graph.vertices
    assert vertex.head.name == "source"
    order = [node.name for node in vertex.nodes]
    for node in vertex.nodes[1:]:
        feeder = node.in_edges[0][0].source
        assert order.index(feeder.name) < order.index(node.name)
    assert vertex.out_edges == []


def test_a_branch_leaves_the_chain_alone(item: Any, via: Any) -> None:
    source = item("source")
    chained = item("chained", source)
    remote = item("remote", via(source, RebalancePartitioner()))
    graph = build_job_graph("job", [chained, remote])
    first, second = graph.vertices
    assert (first.name, second.name) == ("source -> chained", "remote")
    assert [edge.target.name for edge in first.out_edges] == ["remote"]


def test_a_side_output_is_chained_as_the_main_output_is(item: Any, via: Any) -> None:
    tag = OutputTag("late")
    source = item("source")
    sinks = [item("main", source), item("late", via(source, None, tag))]
    graph = build_job_graph("job", sinks)
    (vertex,) = graph.vertices
    assert [edge.tag for edge in vertex.nodes[0].out_edges] == [None, tag]


def test_a_chain_does_not_go_on_behind_an_exchange(item: Any, via: Any) -> None:
    source = item("source")
    far = item("far", via(source, RebalancePartitioner()))
    assert chains(item("end", far)) == ["source", "far -> end"]


def test_other_slot_sharing_groups_break_the_chain(item: Any) -> None:
    """SEM-259."""
    first = item("a")
    second = item("b", first, slot_sharing_group="gpu")
    third = item("c", second)
    assert chains(item("d", third, slot_sharing_group="default")) == [
        "a",
        "b -> c",
        "d",
    ]


def test_inputs_of_several_groups_lead_back_to_the_default_one(item: Any) -> None:
    slow = item("slow", slot_sharing_group="gpu")
    both = item("both", item("a"), slow)
    groups = {
        node.name: node.slot_sharing_group for node in resolve_nodes([both], 1, None)
    }
    assert groups == {"a": "default", "slow": "gpu", "both": "default"}


def line(item: Any, length: int) -> Any:
    """Return the last of so many operators in a row."""
    last = item("0")
    for number in range(1, length):
        last = item(str(number), last)
    return last


def test_a_chain_ends_where_its_operators_would_call_each_other_too_deep(
    item: Any,
) -> None:
    """Each is called by the one before it, and Python's stack has an end."""
    graph = build_job_graph("job", [line(item, 2 * CHAIN_DEPTH_MAX + 3)])
    lengths = [len(vertex.nodes) for vertex in graph.vertices]
    assert lengths == [CHAIN_DEPTH_MAX, CHAIN_DEPTH_MAX, 3]
    exchanges = [edge for vertex in graph.vertices for edge in vertex.out_edges]
    assert [type(edge.partitioner) for edge in exchanges] == [ForwardPartitioner] * 2


def test_a_chain_may_have_any_number_of_branches(item: Any) -> None:
    source = item("source")
    sinks = [item(f"sink {n}", source) for n in range(3 * CHAIN_DEPTH_MAX)]
    (vertex,) = build_job_graph("job", sinks).vertices
    assert {node.chain_depth for node in vertex.nodes} == {1, 2}
