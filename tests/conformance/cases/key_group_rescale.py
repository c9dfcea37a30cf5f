"""Which old subtasks a new one reads its key groups from."""

from __future__ import annotations

from typing import Any

from aiomailbox.keygroups.assignment import key_group_range, rescale_key_groups

FILE = "key_group_rescale"


def run_case(case: dict[str, Any]) -> None:
    """Compare the old ranges, the new ranges and the pieces."""
    max_parallelism, old = case["max_parallelism"], case["old_parallelism"]
    old_ranges = [list(key_group_range(max_parallelism, old, i)) for i in range(old)]
    assert old_ranges == case["old_ranges"]
    new_subtasks = rescale_key_groups(max_parallelism, old, case["new_parallelism"])
    for subtask, expected in zip(new_subtasks, case["new_subtasks"], strict=True):
        assert list(subtask.key_groups) == expected["range"]
        assert [list(piece) for piece in subtask.pieces] == expected["from"]
