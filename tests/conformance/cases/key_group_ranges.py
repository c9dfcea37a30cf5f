"""Ranges of key groups per subtask, and the owner of each key group."""

from __future__ import annotations

from typing import Any

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.keygroups.assignment import key_group_range, operator_index

FILE = "key_group_ranges"


def run_case(case: dict[str, Any]) -> None:
    """Compare the ranges and owners, or one range of unusual arguments."""
    if "args" in case:
        _run_unusual(case["args"], case["compute_range_result"])
        return
    max_parallelism, parallelism = case["max_parallelism"], case["parallelism"]
    for index, expected in zip(case["operator_indices"], case["ranges"], strict=True):
        assert list(key_group_range(max_parallelism, parallelism, index)) == expected
    for group, owner in case["key_group_to_operator"]:
        assert operator_index(group, parallelism, max_parallelism) == owner


def _run_unusual(args: list[int], expected: Any) -> None:
    try:
        result: Any = list(key_group_range(*args))
    except InvalidArgumentError:
        result = None
    assert result == (None if isinstance(expected, dict) else expected)
