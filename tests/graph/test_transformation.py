"""Laws of the order in which the needed transformations are found."""

from __future__ import annotations

from typing import Any

from hypothesis import given, strategies as st

from aiomailbox.graph.transformation import Origin, Transformation, reachable
from aiomailbox.operators.core.operator import Operator


def test_everything_upstream_comes_before_what_it_feeds(item: Any) -> None:
    source = item("source")
    left, right = item("left", source), item("right", source)
    sink = item("sink", left, right)
    assert reachable([sink]) == [source, left, right, sink]


def test_what_no_sink_needs_is_left_out(item: Any) -> None:
    source = item("source")
    item("unused", source)
    sink = item("sink", source)
    assert reachable([sink]) == [source, sink]


def test_sinks_keep_their_order_and_share_what_is_upstream(item: Any) -> None:
    source = item("source")
    first, second = item("first", source), item("second", source)
    assert reachable([second, first]) == [source, second, first]
    assert reachable([first, first]) == [source, first]


def test_a_chain_far_longer_than_the_stack_is_walked(item: Any) -> None:
    node = item("0")
    for number in range(1, 5000):
        node = item(str(number), node)
    names = [each.name for each in reachable([node])]
    assert names == [str(number) for number in range(5000)]


@given(st.data())
def test_every_order_is_topological_and_complete(data: Any) -> None:
    count = data.draw(st.integers(1, 12))
    items: list[Transformation] = []
    for number in range(count):
        feeders = (
            data.draw(st.lists(st.sampled_from(items), max_size=3)) if items else []
        )
        inputs = [[Origin(each)] for each in feeders]
        items.append(Transformation(str(number), Operator, inputs))
    order = reachable(items)
    assert sorted(order, key=id) == sorted(items, key=id)
    place = {id(each): index for index, each in enumerate(order)}
    for each in items:
        for united in each.inputs:
            assert all(place[id(o.transformation)] < place[id(each)] for o in united)
