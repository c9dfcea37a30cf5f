"""Who holds a job up: the report, and the pure function behind it."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, strategies as st

from aiomailbox.runtime.backpressure import (
    BackpressureLevel,
    TaskPressure,
    find_bottleneck,
    report_backpressure,
)

Edges = list[tuple[int, int]]


def task(
    vertex: int, busy: float, backpressured: float, subtask: int = 0
) -> TaskPressure:
    idle = 1000 - busy - backpressured
    return TaskPressure(
        f"v{vertex} ({subtask + 1})", vertex, subtask, busy, idle, backpressured
    )


@st.composite
def jobs(draw: st.DrawFn) -> tuple[list[TaskPressure], Edges]:
    count = draw(st.integers(1, 6))
    edges = [
        (above, below)
        for below in range(count)
        for above in range(below)
        if draw(st.booleans())
    ]
    tasks = []
    for vertex in range(count):
        for subtask in range(draw(st.integers(1, 3))):
            # Around the thresholds, and often enough what a bottleneck looks like.
            busy, backpressured = draw(
                st.sampled_from(
                    [(900, 0), (501, 100), (500, 100), (501, 101), (0, 700), (300, 0)]
                )
            )
            tasks.append(task(vertex, busy, backpressured, subtask))
    return tasks, edges


def above(vertex: int, edges: Edges) -> set[int]:
    return {source for source, target in edges if target == vertex}


def below(vertex: int, edges: Edges) -> set[int]:
    found = {target for source, target in edges if source == vertex}
    return found.union(*(below(each, edges) for each in found))


@given(jobs())
def test_a_bottleneck_is_busy_does_not_wait_and_what_feeds_it_does(
    job: tuple[list[TaskPressure], Edges],
) -> None:
    tasks, edges = job
    found = find_bottleneck(tasks, edges)

    def qualifies(each: TaskPressure) -> bool:
        return (
            each.busy_ms > 500
            and each.backpressured_ms <= 100
            and any(
                other.backpressured_ms > 100
                for other in tasks
                if other.vertex in above(each.vertex, edges)
            )
        )

    candidates = [each for each in tasks if qualifies(each)]
    if found is None:
        assert not candidates
        return
    assert qualifies(found)
    further_down = below(found.vertex, edges)
    assert not [each for each in candidates if each.vertex in further_down]
    siblings = [each for each in candidates if each.vertex == found.vertex]
    assert found.busy_ms == max(each.busy_ms for each in siblings)


@given(jobs(), st.randoms(use_true_random=False))
def test_the_order_of_the_tasks_and_edges_decides_only_between_equals(
    job: tuple[list[TaskPressure], Edges], random: object
) -> None:
    tasks, edges = job
    found = find_bottleneck(tasks, edges)
    shuffled, shuffled_edges = list(tasks), list(edges)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    random.shuffle(shuffled_edges)  # type: ignore[attr-defined]
    again = find_bottleneck(shuffled, shuffled_edges)
    assert (found is None) == (again is None)
    if found is not None and again is not None:
        assert found.busy_ms == again.busy_ms
        assert again.vertex not in below(found.vertex, edges)
        assert found.vertex not in below(again.vertex, edges)


@given(jobs())
def test_where_nobody_waits_there_is_no_bottleneck(
    job: tuple[list[TaskPressure], Edges],
) -> None:
    tasks, edges = job
    calm = [dataclasses.replace(each, backpressured_ms=100.0) for each in tasks]
    assert find_bottleneck(calm, edges) is None


def test_a_busy_task_behind_the_bottleneck_is_not_it() -> None:
    chain = [task(0, 200, 800), task(1, 1000, 0), task(2, 900, 0)]
    found = find_bottleneck(chain, [(0, 1), (1, 2)])
    assert found is chain[1]


def test_a_task_between_that_waits_itself_passes_the_blame_on() -> None:
    chain = [task(0, 200, 800), task(1, 300, 700), task(2, 1000, 0), task(3, 100, 0)]
    assert find_bottleneck(chain, [(0, 1), (1, 2), (2, 3)]) is chain[2]


def test_of_two_bottlenecks_the_one_downstream_is_named() -> None:
    chain = [task(0, 0, 900), task(1, 950, 0), task(2, 0, 900), task(3, 900, 0)]
    edges = [(2, 3), (1, 2), (0, 1)]
    assert find_bottleneck(chain, edges) is chain[3]


def test_the_busiest_subtask_is_named_when_keys_are_skewed() -> None:
    tasks = [task(0, 400, 600), task(1, 20, 0, 0), task(1, 990, 0, 1)]
    assert find_bottleneck(tasks, [(0, 1)]) is tasks[2]


def test_waiting_for_something_outside_of_the_job_names_nobody() -> None:
    assert find_bottleneck([task(0, 100, 900), task(1, 0, 0)], [(0, 1)]) is None
    assert find_bottleneck([task(0, 100, 900)], []) is None
    assert find_bottleneck([], []) is None


@pytest.mark.parametrize(
    ("backpressured", "level"),
    [(0, "OK"), (100, "OK"), (100.1, "LOW"), (500, "LOW"), (500.1, "HIGH")],
)
def test_levels_are_those_of_flink(backpressured: float, level: str) -> None:
    assert BackpressureLevel.of(backpressured) is BackpressureLevel(level)
    assert task(0, 0, backpressured).level.value == level


class TestReport:
    TASKS = (task(1, 1000, 0, 1), task(0, 300, 700), task(1, 400, 20, 0))

    def test_groups_subtasks_and_takes_the_worst_of_them(self) -> None:
        report = report_backpressure(
            self.TASKS, {0: "read", 1: "write", 2: "x"}, [(0, 1)]
        )
        assert [vertex.name for vertex in report.vertices] == ["read", "write"]
        write = report["write"]
        assert [each.subtask_index for each in write.subtasks] == [0, 1]
        assert (write.busy_ms, write.idle_ms, write.backpressured_ms) == (1000, 0, 20)
        assert report["read"].level is BackpressureLevel.HIGH
        assert write.level is BackpressureLevel.OK
        assert report.bottleneck is self.TASKS[0]
        with pytest.raises(KeyError, match="nothing"):
            report["nothing"]

    def test_is_a_table_with_the_bottleneck_below(self) -> None:
        report = report_backpressure(self.TASKS, {0: "read", 1: "write"}, [(0, 1)])
        assert str(report).splitlines() == [
            "task    level  busy  idle  backpressured",
            "v0 (1)  HIGH    300     0            700",
            "v1 (1)  OK      400   580             20",
            "v1 (2)  OK     1000     0              0",
            "bottleneck: v1 (2)",
        ]
        assert str(report_backpressure([], {}, [])).endswith("bottleneck: none")

    def test_reads_plain_numbers_and_takes_what_is_missing_for_zero(self) -> None:
        metrics = {
            "busy_time_ms_per_second": 250.0,
            "backpressured_time_ms_per_second": 750,
            "idle_time_ms_per_second": None,
        }
        read = TaskPressure.of("a (1/1)", 3, 0, metrics)
        assert read == TaskPressure("a (1/1)", 3, 0, 250.0, 0.0, 750.0)
