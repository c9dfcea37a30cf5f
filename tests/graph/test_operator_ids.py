"""Laws of ids: what changes them, and what does not."""

from __future__ import annotations

from typing import Any

import aiomailbox as am
from aiomailbox.graph.job_graph import JobGraph, build_job_graph, operator_ids
from aiomailbox.graph.transformation import Origin, Transformation, reachable
from aiomailbox.operators.core.operator import Operator
from aiomailbox.records.events import OutputTag


def ids(graph: JobGraph) -> dict[str, str]:
    return {
        node.name: node.operator_id
        for vertex in graph.vertices
        for node in vertex.nodes
    }


def pipeline(env: am.StreamExecutionEnvironment, *, extra: bool = False) -> Any:
    numbers = env.from_collection(range(10))
    if extra:
        numbers.filter(bool).name("elsewhere").sink_to(print)
    keyed = numbers.map(str).key_by(len)
    return keyed.reduce(lambda a, b: a + b).map(len).name("length")


def build(env: am.StreamExecutionEnvironment, **options: Any) -> JobGraph:
    stream = pipeline(env, extra=options.pop("extra", False))
    return build_job_graph("job", [stream._origins[0].transformation], **options)


def test_neither_chaining_nor_parallelism_changes_an_id() -> None:
    env = am.StreamExecutionEnvironment()
    before = ids(build(env))
    for options in ({"chaining": False}, {"parallelism": 3}, {"max_parallelism": 512}):
        assert ids(build(env, **options)) == before


def test_what_is_added_elsewhere_changes_no_id() -> None:
    env = am.StreamExecutionEnvironment()
    assert ids(build(env, extra=True)) == ids(build(env))


def test_all_ids_differ_also_those_of_twins(item: Any) -> None:
    source = item("source")
    twins = [item("map", source) for _ in range(3)]
    both = item("sink", twins[0], twins[1])
    found = operator_ids(reachable([both, twins[2]]))
    assert len(set(found)) == len(found) == 5
    again = [item("map", other := item("source")), item("map", other)]
    assert operator_ids(reachable(again)) == found[:3]


def test_a_uid_is_the_id_and_ends_what_follows_from_upstream(item: Any) -> None:
    for first in ("source", "other source"):
        named = item("map", item(first), uid="prices")
        found = operator_ids(reachable([item("sink", named)]))
        assert found[1:] == ["prices", "sink@43934ad6b3c04773"]


def test_a_side_output_and_another_input_are_other_places(item: Any, via: Any) -> None:
    source = item("source", uid="s")
    places = [
        item("map", source),
        item("map", via(source, tag=OutputTag("late"))),
        item("map", source, source),
        Transformation("map", Operator, [[Origin(source)], [Origin(source)]]),
    ]
    found = [operator_ids(reachable([place]))[-1] for place in places]
    assert len(set(found)) == 4


def test_an_id_that_a_user_chose_is_not_derived_again(item: Any) -> None:
    (derived,) = operator_ids([item("map")])
    found = operator_ids([item("map"), item("other", uid=derived)])
    assert found[0] != derived
    assert found[1] == derived
