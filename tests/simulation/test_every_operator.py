"""No operator is left out of the pipelines that crash and are restored."""

from __future__ import annotations

from collections.abc import Iterator

import aiomailbox as am
from aiomailbox.operators.core.operator import Operator
from aiomailbox.testing import Faults
from aiomailbox.testing.simulation.world import Life, SimulatedSink, World
from tests.simulation.pipelines import PIPELINES

NOT_SIMULATED = {
    "FusedOperator": "is made of others, when they are chained",
    "SortOperator": "keeps records in files, so jobs with checkpoints refuse it",
    "SampleOperator": "chooses by the seed of each life",
    "WithLatestOperator": "what it emits depends on arrival",
}


def kinds_below(kind: type[Operator]) -> Iterator[type[Operator]]:
    for one in kind.__subclasses__():
        yield one
        yield from kinds_below(one)


def simulated() -> set[type[Operator]]:
    found: set[type[Operator]] = set()
    for pipeline in PIPELINES.values():
        env = am.StreamExecutionEnvironment(2, 128)
        pipeline(env, SimulatedSink(Life(World(0, Faults.none()), 0, 2)))
        graph = env._definition.job_graph("job", env._definition.sinks)
        found |= {
            type(node.transformation.factory())
            for vertex in graph.vertices
            for node in vertex.nodes
        }
    return found


def test_every_operator_crashes_in_some_simulated_pipeline() -> None:
    leaves = {
        kind
        for kind in kinds_below(Operator)
        if kind.__module__.startswith(("aiomailbox.operators", "aiomailbox.windowing"))
        and not kind.__subclasses__()
    }
    left_out = {kind.__name__ for kind in leaves - simulated()}
    assert left_out == set(NOT_SIMULATED)
