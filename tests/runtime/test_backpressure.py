"""Who holds a job up: the report, and the pure function behind it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from aiomailbox.operators.core.operator import BlockCause
from aiomailbox.runtime.bottleneck import (
    BackpressureLevel,
    OperatorPlace,
    TaskPressure,
    find_operator,
    report_backpressure,
)
from aiomailbox.runtime.loop_watch import BlockShare
from aiomailbox.runtime.views import OperatorView, TaskView

CAUSES = (BlockCause.FUNCTION, BlockCause.AWAIT, BlockCause.CALLS, BlockCause.SOURCE)


def task(
    vertex: int, busy: float, backpressured: float, subtask: int = 0
) -> TaskPressure:
    idle = 1000 - busy - backpressured
    return TaskPressure(
        f"v{vertex} ({subtask + 1})", vertex, subtask, busy, idle, backpressured
    )


def view(
    vertex: int, cause: BlockCause, share: float, subtask: int = 0, process: int = 1
) -> TaskView:
    """Return a task whose one operator does something for a share of its time."""
    name = "" if cause is BlockCause.OUTPUT else f"o{vertex}"
    return TaskView(
        f"t{vertex} ({subtask + 1})", vertex, subtask, "running", {},
        [OperatorView(f"o{vertex}", {"num_records_in": 100})], [], [],
        blocked=[
            BlockShare(name, cause, "", share, 5.0),
            BlockShare("", BlockCause.INPUT, "", 1 - share, 5.0),
        ],
        process_id=process,
    )  # fmt: skip


def places(count: int) -> list[OperatorPlace]:
    return [OperatorPlace(f"o{at}", f"o{at}", None, at) for at in range(count)]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.sampled_from(CAUSES),
            st.floats(0, 1),
            st.integers(1, 2),
        )
    ),
    st.randoms(use_true_random=False),
)
def test_who_works_most_is_named_in_whichever_order_tasks_come(
    tasks: list[tuple[int, BlockCause, float, int]], random: Any
) -> None:
    views = [
        view(vertex, cause, share, at, process)
        for at, (vertex, cause, share, process) in enumerate(tasks)
    ]
    found = find_operator(places(4), views)
    shares = [(one.blocked[0].cause, one.blocked[0].share) for one in views]
    most = max((share for _, share in shares), default=0.0)
    if found is None:
        assert most < 0.3
    else:
        assert found.share >= 0.3
        # Unless a source waits, and nobody is at work all of the time.
        assert found.share >= most or (found.cause is BlockCause.SOURCE and most < 0.9)
        assert found.task in {one.name for one in views}
    random.shuffle(views)
    again = find_operator(places(4), views)
    assert (found is None) == (again is None)
    if found is not None and again is not None:
        assert found.share == pytest.approx(again.share)


def test_functions_of_subtasks_add_up_where_they_share_a_loop() -> None:
    def quarters(processes: Iterable[int]) -> list[TaskView]:
        return [
            view(1, BlockCause.FUNCTION, 0.24, at, process)
            for at, process in enumerate(processes)
        ]

    together = find_operator(places(2), quarters([1, 1, 1, 1]))
    assert together is not None
    assert (together.operator, together.share) == ("o1", pytest.approx(0.96))
    # Each has a processor of its own, and time left.
    assert find_operator(places(2), quarters([1, 2, 3, 4])) is None
    # What is awaited takes nothing of the loop.
    waits = [view(1, BlockCause.AWAIT, 0.24, at) for at in range(4)]
    assert find_operator(places(2), waits) is None


def test_a_source_is_named_where_the_job_keeps_up_with_it() -> None:
    source, works = view(0, BlockCause.SOURCE, 0.4), view(1, BlockCause.AWAIT, 0.6)
    found = find_operator(places(2), [source, works])
    assert found is not None
    assert found.operator == "o0"
    # It does not: somebody waits for room, or works all of the time.
    waits = view(2, BlockCause.OUTPUT, 0.2)
    held = find_operator(places(3), [source, works, waits])
    assert held is not None
    assert held.operator == "o1"
    full = find_operator(places(2), [source, view(1, BlockCause.AWAIT, 0.95)])
    assert full is not None
    assert full.operator == "o1"


def test_of_equals_the_last_one_is_named() -> None:
    tasks = [view(0, BlockCause.FUNCTION, 0.5), view(1, BlockCause.FUNCTION, 0.5)]
    found = find_operator(places(2), tasks)
    assert found is not None
    assert found.operator == "o1"


def test_a_share_is_never_above_one() -> None:
    # As rounding leaves them.
    parts = zip(CAUSES, (0.5, 0.5 + 2**-52), strict=False)
    blocked = [BlockShare("o0", cause, "", share, 5.0) for cause, share in parts]
    assert sum(one.share for one in blocked) > 1
    works = replace(view(0, BlockCause.AWAIT, 1), blocked=blocked)
    found = find_operator(places(1), [works])
    assert found is not None
    assert found.share == 1


def test_a_subtask_that_is_slower_than_its_siblings_is_named() -> None:
    tasks = [
        view(0, BlockCause.AWAIT, share, at) for at, share in enumerate((0.1, 0.9, 0.2))
    ]
    found = find_operator(places(1), tasks)
    assert found is not None
    assert (found.task, found.subtask_index) == ("t0 (2)", 1)
    assert found.why.endswith(
        "; subtask 2 of 3 alone: the others do so 20% of their time at most"
    )


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
        names = {0: "read", 1: "write", 2: "x"}
        report = report_backpressure(self.TASKS, names, "v1 (2)")
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
        report = report_backpressure(self.TASKS, {0: "read", 1: "write"}, "v1 (2)")
        assert str(report).splitlines() == [
            "task    level  busy  idle  backpressured",
            "v0 (1)  HIGH    300     0            700",
            "v1 (1)  OK      400   580             20",
            "v1 (2)  OK     1000     0              0",
            "bottleneck: v1 (2)",
        ]
        assert str(report_backpressure([], {}, None)).endswith("bottleneck: none")

    def test_reads_plain_numbers_and_takes_what_is_missing_for_zero(self) -> None:
        metrics = {
            "busy_time_ms_per_second": 250.0,
            "backpressured_time_ms_per_second": 750,
            "idle_time_ms_per_second": None,
        }
        read = TaskPressure.of("a (1/1)", 3, 0, metrics)
        assert read == TaskPressure("a (1/1)", 3, 0, 250.0, 0.0, 750.0)
