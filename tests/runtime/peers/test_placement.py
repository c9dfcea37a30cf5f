"""Which process runs which subtask: laws of a pure function."""

from __future__ import annotations

from typing import Any

from hypothesis import given, strategies as st

from aiomailbox.graph.job_graph import build_job_graph
from aiomailbox.graph.transformation import Origin, Transformation
from aiomailbox.operators.core.operator import Operator
from aiomailbox.runtime.builder import producer_targets
from aiomailbox.runtime.peers.network import producers_of
from aiomailbox.runtime.peers.placement import PARENT, place, worker_of_slot


class StayingSource:
    stays_in_parent = True


class MovingSource:
    pass


@st.composite
def graphs(draw: Any) -> Any:
    """Jobs of a source and some operators, in the parent or not, of any width."""
    source: Any = draw(st.sampled_from([StayingSource(), MovingSource()]))
    last = Transformation(
        "source", Operator, source=source, parallelism=draw(st.integers(1, 8))
    )
    for number in range(draw(st.integers(0, 5))):
        last = Transformation(
            f"operator {number}",
            Operator,
            [[Origin(last)]],
            parallelism=draw(st.integers(1, 8)),
            slot_sharing_group=draw(st.sampled_from([None, "a", "b"])),
        )
    return build_job_graph("job", [last], parent_apart=True)


@given(st.integers(1, 200), st.integers(1, 200))
def test_slots_are_dealt_out_in_order_evenly_and_to_all(
    slots: int, workers: int
) -> None:
    workers = min(workers, slots)
    dealt = [worker_of_slot(slot, slots, workers) for slot in range(slots)]
    assert dealt == sorted(dealt)
    assert set(dealt) == set(range(1, workers + 1))
    shares = [dealt.count(worker) for worker in range(1, workers + 1)]
    assert max(shares) - min(shares) <= 1


@given(graphs(), st.integers(1, 10))
def test_every_subtask_has_one_place_and_every_worker_work(
    graph: Any, processes: int
) -> None:
    placement = place(graph, processes)
    assert placement.workers <= processes
    used = set()
    for vertex in graph.vertices:
        peers = placement.peers[vertex.id]
        assert len(peers) == vertex.parallelism
        if vertex.stays_in_parent:
            assert set(peers) == {PARENT}
        else:
            assert PARENT not in peers
            used |= set(peers)
    assert used == set(range(1, placement.workers + 1))
    everywhere = range(placement.workers + 1)
    for vertex in graph.vertices:
        for index in range(vertex.parallelism):
            assert sum(placement.is_at(p, vertex.id, index) for p in everywhere) == 1


@given(graphs(), st.integers(1, 10))
def test_subtasks_of_one_number_and_group_share_a_worker(
    graph: Any, processes: int
) -> None:
    placement = place(graph, processes)
    homes: dict[tuple[str, int], int] = {}
    for vertex in graph.vertices:
        if vertex.stays_in_parent:
            continue
        for index, peer in enumerate(placement.peers[vertex.id]):
            slot = (vertex.head.slot_sharing_group, index)
            assert homes.setdefault(slot, peer) == peer


@given(graphs())
def test_what_stays_shares_no_task_with_what_moves(graph: Any) -> None:
    for vertex in graph.vertices:
        assert len({node.stays_in_parent for node in vertex.nodes}) == 1


def test_an_embedded_job_keeps_its_chains() -> None:
    source: Any = StayingSource()
    first = Transformation("source", Operator, source=source)
    last = Transformation("map", Operator, [[Origin(first)]])
    assert len(build_job_graph("job", [last]).vertices) == 1
    assert len(build_job_graph("job", [last], parent_apart=True).vertices) == 2


def test_subtasks_that_there_are_not_are_nowhere() -> None:
    graph = build_job_graph("job", [Transformation("map", Operator, parallelism=2)])
    placement = place(graph, 2)
    (vertex,) = graph.vertices
    assert placement.is_at(1, vertex.id, 0)
    assert placement.is_at(2, vertex.id, 1)
    assert not any(
        placement.is_at(peer, number, index)
        for peer in (0, 1, 2)
        for number, index in ((vertex.id, -1), (vertex.id, 2), (99, 0))
    )


@given(graphs(), st.integers(1, 10))
def test_peers_connect_with_those_that_send_to_them_and_with_nobody_else(
    graph: Any, processes: int
) -> None:
    placement = place(graph, processes)
    senders: dict[int, set[int]] = {}
    for vertex in graph.vertices:
        for edge in vertex.out_edges:
            consumer = graph.vertex_of(edge.target)
            for producer, targets in zip(
                placement.peers[vertex.id], producer_targets(edge), strict=True
            ):
                for target in targets:
                    reader = placement.peers[consumer.id][target]
                    senders.setdefault(reader, set()).add(producer)
    for peer in range(placement.workers + 1):
        expected = senders.get(peer, set()) - {peer}
        assert producers_of(graph, placement, peer) == sorted(expected)
