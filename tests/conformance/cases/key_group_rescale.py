"""Which old subtasks a new one reads its key groups from."""

from __future__ import annotations

from typing import Any

from aiomailbox.keygroups.assignment import key_group_range

FILE = "key_group_rescale"


def run_case(case: dict[str, Any]) -> None:
    """Compare the old ranges, the new ranges and what they share."""
    max_parallelism = case["max_parallelism"]
    old, new = (
        [key_group_range(max_parallelism, count, index) for index in range(count)]
        for count in (case["old_parallelism"], case["new_parallelism"])
    )
    assert [list(each) for each in old] == case["old_ranges"]
    for mine, expected in zip(new, case["new_subtasks"], strict=True):
        assert list(mine) == expected["range"]
        shared = [(index, mine.intersection(each)) for index, each in enumerate(old)]
        assert [[index, *part] for index, part in shared if part] == expected["from"]
