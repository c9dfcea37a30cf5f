"""Which tasks start again together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.exchange.writer import (
    ForwardPartitioner,
    Partitioner,
    RebalancePartitioner,
    RescalePartitioner,
)
from aiomailbox.graph.job_graph import JobGraph, build_job_graph
from aiomailbox.graph.regions import FailoverRegions, check_blocking
from aiomailbox.graph.transformation import ChainingStrategy, Transformation
from aiomailbox.ids import SubtaskId, VertexId

Chain = Callable[..., JobGraph]


@pytest.fixture
def chain(item: Callable[..., Transformation], via: Callable[..., Any]) -> Chain:
    """Make a job of vertices in a row, with the given ways between them."""

    def make(*ways: Partitioner, parallelism: list[int]) -> JobGraph:
        stage = item("0", parallelism=parallelism[0])
        for number, (way, count) in enumerate(zip(ways, parallelism[1:], strict=True)):
            stage = item(
                str(number + 1),
                via(stage, way),
                parallelism=count,
                chaining=ChainingStrategy.NEVER,
            )
        return build_job_graph("job", [stage])

    return make


def ids(*pairs: tuple[int, int]) -> frozenset[SubtaskId]:
    return frozenset(SubtaskId(VertexId(vertex), index) for vertex, index in pairs)


def block(graph: JobGraph, *targets: str) -> JobGraph:
    """Let the exchanges to some vertices keep their records; without any, all."""
    for vertex in graph.vertices:
        for edge in vertex.out_edges:
            edge.is_blocking = not targets or edge.target.name in targets
    return graph


def test_pipelines_that_share_no_data_are_regions_of_their_own(chain: Chain) -> None:
    """SEM-253."""
    graph = chain(ForwardPartitioner(), parallelism=[3, 3])
    regions = FailoverRegions(graph)
    assert regions.regions == [ids((0, i), (1, i)) for i in range(3)]
    failed = SubtaskId(VertexId(1), 1)
    assert regions.to_restart(failed) == ids((0, 1), (1, 1))


def test_an_exchange_between_all_makes_one_region(chain: Chain) -> None:
    """SEM-253."""
    graph = chain(ForwardPartitioner(), RebalancePartitioner(), parallelism=[2, 2, 2])
    regions = FailoverRegions(graph)
    assert len(regions.regions) == 1
    everything = ids(*[(vertex, index) for vertex in range(3) for index in range(2)])
    assert regions.to_restart(SubtaskId(VertexId(2), 0)) == everything


def test_rescaling_joins_each_producer_to_its_own_consumers(chain: Chain) -> None:
    graph = chain(RescalePartitioner(), parallelism=[2, 4])
    assert FailoverRegions(graph).regions == [
        ids((0, 0), (1, 0), (1, 1)),
        ids((0, 1), (1, 2), (1, 3)),
    ]


def test_two_inputs_of_one_task_are_of_its_region(
    item: Callable[..., Transformation], via: Callable[..., Any]
) -> None:
    left, right = item("left"), item("right")
    both = item("both", via(left, RebalancePartitioner()), via(right))
    graph = build_job_graph("job", [both])
    assert len(FailoverRegions(graph).regions) == 1


def test_a_region_ends_where_records_are_kept(chain: Chain) -> None:
    graph = chain(RebalancePartitioner(), RebalancePartitioner(), parallelism=[1, 2, 2])
    regions = FailoverRegions(block(graph, "1"))
    upper, lower = ids((0, 0)), ids((1, 0), (1, 1), (2, 0), (2, 1))
    assert regions.regions == [upper, lower]
    failed = SubtaskId(VertexId(2), 1)
    # What it reads is still there: those above need not run again.
    assert regions.to_restart(failed) == lower
    # If it is lost, they must.
    assert regions.to_restart(failed, lambda producer: False) == upper | lower
    # What comes again may come otherwise, so that whoever read it starts again.
    assert regions.to_restart(SubtaskId(VertexId(0), 0)) == upper | lower


def test_consumers_of_consumers_start_again_too(chain: Chain) -> None:
    graph = chain(*[RebalancePartitioner()] * 3, parallelism=[1, 1, 1, 1])
    regions = FailoverRegions(block(graph))
    below = regions.to_restart(SubtaskId(VertexId(1), 0))
    assert below == ids((1, 0), (2, 0), (3, 0))


def test_a_region_begins_when_those_that_it_reads_have_finished(chain: Chain) -> None:
    graph = block(chain(ForwardPartitioner(), parallelism=[2, 2]))
    regions = FailoverRegions(graph)
    assert regions.can_begin(()) == ids((0, 0), (0, 1))
    assert regions.can_begin(ids((0, 1))) == ids((0, 0), (0, 1), (1, 1))
    assert regions.has_readers(SubtaskId(VertexId(0), 1), ids((0, 1)))
    assert not regions.has_readers(SubtaskId(VertexId(0), 1), ids((0, 1), (1, 1)))
    check_blocking(graph)


def test_what_waits_for_itself_is_refused(
    item: Callable[..., Transformation], via: Callable[..., Any]
) -> None:
    start = item("start")
    other = item("other", via(start, RebalancePartitioner()))
    both = item("both", via(other), via(start, RebalancePartitioner()))
    graph = block(build_job_graph("job", [both], parallelism=2), "other")
    with pytest.raises(InvalidArgumentError, match="both would wait forever"):
        check_blocking(graph)
    check_blocking(block(graph, "other", "both"))


def test_each_task_is_of_one_region(chain: Chain) -> None:
    graph = chain(
        RescalePartitioner(),
        ForwardPartitioner(),
        RescalePartitioner(),
        parallelism=[2, 6, 6, 3],
    )
    regions = FailoverRegions(graph)
    tasks = [task for region in regions.regions for task in region]
    assert sorted(tasks) == sorted(set(tasks))
    assert len(tasks) == 17
    assert all(task in regions.to_restart(task) for task in tasks)
