"""Laws of which subtasks talk to each other."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, strategies as st

from aiomailbox.exchange.writer import (
    BroadcastPartitioner,
    ForwardPartitioner,
    GlobalPartitioner,
    KeyGroupPartitioner,
    Partitioner,
    RebalancePartitioner,
    RescalePartitioner,
    ShufflePartitioner,
)
from aiomailbox.graph.job_graph import consumers_of

ALL_TO_ALL: list[Partitioner] = [
    BroadcastPartitioner(),
    GlobalPartitioner(),
    KeyGroupPartitioner(str, 128),
    RebalancePartitioner(),
    ShufflePartitioner(),
]
widths = st.integers(1, 40)


def targets(partitioner: Partitioner, producers: int, consumers: int) -> list[int]:
    return [
        consumer
        for index in range(producers)
        for consumer in consumers_of(partitioner, index, producers, consumers)
    ]


@given(widths)
def test_forward_joins_equal_indexes(width: int) -> None:
    assert targets(ForwardPartitioner(), width, width) == list(range(width))


@given(st.sampled_from(ALL_TO_ALL), widths, widths)
def test_all_to_all_joins_everybody(
    partitioner: Partitioner, producers: int, consumers: int
) -> None:
    for index in range(producers):
        found = consumers_of(partitioner, index, producers, consumers)
        assert found == list(range(consumers))


@given(widths, widths)
def test_rescale_leaves_nobody_out_and_spreads_evenly(
    producers: int, consumers: int
) -> None:
    shares = [
        consumers_of(RescalePartitioner(), index, producers, consumers)
        for index in range(producers)
    ]
    flat = [consumer for share in shares for consumer in share]
    counts = Counter(flat)
    assert set(counts) == set(range(consumers))
    assert flat == sorted(flat), "neighbours talk to neighbours"
    if producers >= consumers:
        assert all(len(share) == 1 for share in shares)
        assert max(counts.values()) - min(counts.values()) <= 1
    else:
        assert set(counts.values()) == {1}
        lengths = [len(share) for share in shares]
        assert max(lengths) - min(lengths) <= 1


def test_rescale_shares_as_flink_does() -> None:
    def shares(producers: int, consumers: int) -> list[list[int]]:
        return [
            consumers_of(RescalePartitioner(), index, producers, consumers)
            for index in range(producers)
        ]

    assert shares(4, 2) == [[0], [0], [1], [1]]
    assert shares(3, 2) == [[0], [0], [1]]
    assert shares(2, 3) == [[0, 1], [2]]
    assert shares(2, 4) == [[0, 1], [2, 3]]
