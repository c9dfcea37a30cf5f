"""How many buffers the exchanges of a job may have."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.exchange.writer import RebalancePartitioner, RescalePartitioner
from aiomailbox.graph.job_graph import build_job_graph
from aiomailbox.runtime.builder import pool_size, producer_targets, total_segments
from aiomailbox.runtime.config import JobConfig


@given(st.integers(1, 100), st.integers(1, 10), st.integers(0, 20))
def test_a_pool_has_room_for_one_more_than_its_channels(
    subpartitions: int, own: int, floating: int
) -> None:
    config = JobConfig(buffers_per_channel=own, floating_buffers=floating)
    size = pool_size(subpartitions, config)
    assert size.required == subpartitions + 1
    assert size.maximum == max(size.required, subpartitions * own + floating)


def test_the_total_lets_every_partition_have_its_maximum(bench: Any) -> None:
    source = bench.source([1], parallelism=2)
    all_to_all = bench.operator(source, way=RebalancePartitioner(), parallelism=3)
    few = bench.operator(all_to_all, way=RescalePartitioner(), parallelism=6)
    graph = build_job_graph("job", [few])
    config = JobConfig(buffers_per_channel=2, floating_buffers=8, overdraft_buffers=5)
    assert producer_targets(graph.vertices[1].out_edges[0]) == [[0, 1], [2, 3], [4, 5]]
    assert total_segments(graph, config) == 2 * (6 + 8 + 5) + 3 * (4 + 8 + 5)


def test_a_job_without_exchanges_still_has_a_pool(bench: Any) -> None:
    graph = build_job_graph("job", [bench.source([1])])
    assert total_segments(graph, JobConfig()) == 1


def test_a_target_of_no_time_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="buffer_debloat_target"):
        JobConfig(buffer_debloat_target=0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("buffers_per_channel", 0),
        ("floating_buffers", -1),
        ("overdraft_buffers", -1),
        ("buffer_size_bytes", 0),
        ("cancel_timeout", 0),
        ("cancel_timeout", timedelta()),
        ("cancel_timeout", timedelta(seconds=-1)),
        ("cancel_timeout", 30),
        ("stuck_after", 0.5),
    ],
)
def test_settings_that_no_job_can_run_with_are_refused(name: str, value: Any) -> None:
    is_negative = isinstance(value, timedelta) and value < timedelta()
    shown = f"-{-value} is negative" if is_negative else str(value)
    with pytest.raises(InvalidArgumentError, match=f"^{name}: {shown}"):
        JobConfig(**{name: value})  # type: ignore[arg-type]
