"""What is left to be seen of tasks whose process is gone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aiomailbox.metrics.catalogue import Merge, Metric, MetricKind
from aiomailbox.operators.core.operator import OpenCalls
from aiomailbox.runtime.views import ChannelView, OperatorView, TaskView, view_of_lost

QUEUED = Metric(
    "queued", MetricKind.GAUGE, "records", Merge.SUM, "Those of a function."
)
CALLS = OperatorView(
    "calls",
    {
        "num_records_in": 7,
        "units_used": 12.5,
        "rows_read": 3,
        "in_flight": 3,
        "waiting_for_slot": 4,
        "queued": 2,
    },
    OpenCalls(3, [], 4, ""),
    [QUEUED],
)
TASK = TaskView(
    "calls (1/1)",
    0,
    0,
    "running",
    {"state": "running", "mails": 5, "mailbox_queue_size": 1, "idle_ms": 9.0},
    [CALLS],
    ["in f (a.py:1)"],
    ["waits 1.0 s for input or mail"],
    [ChannelView(0, 1, 20, 300, 70, 900, credit=2, backlog=1)],
    unchanged_id=3,
)


def test_what_a_lost_task_has_counted_stays_and_what_it_held_does_not() -> None:
    lost = view_of_lost(TASK)
    assert lost.state == "failed"
    assert lost.metrics == {"state": "failed", "mails": 5, "idle_ms": 9.0}
    assert lost.operators == [
        OperatorView(
            "calls",
            {"num_records_in": 7, "units_used": 12.5, "rows_read": 3},
            None,
            [QUEUED],
        )
    ]
    assert lost.channels == [ChannelView(0, 0, 0, 0, 70, 900)]
    assert (lost.stack, lost.waits, lost.blocked) == ([], [], [])
    assert lost.unchanged_id == -1


@pytest.mark.parametrize("state", ["finished", "canceled", "failed"])
def test_a_task_that_had_ended_before_its_process_is_shown_as_it_was(
    state: str,
) -> None:
    ended = replace(TASK, state=state)
    assert view_of_lost(ended) == ended
