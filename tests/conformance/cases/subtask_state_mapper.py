"""Finds the old subtasks whose records in flight each new one reads."""

from __future__ import annotations

from typing import Any

import pytest

from aiomailbox.errors import StateError
from aiomailbox.state.operator_state import SubtaskStateMapper

FILE = "subtask_state_mapper"
MODULE = "aiomailbox.state"


def run_case(case: dict[str, Any]) -> None:
    mapper = SubtaskStateMapper[case["mapper"]]
    old, new = case["old_parallelism"], case["new_parallelism"]
    assert mapper.is_ambiguous is case["is_ambiguous"]
    if "exception" in case:
        with pytest.raises(StateError):
            mapper.old_subtasks(0, old, new)
        return
    found = [mapper.old_subtasks(subtask, old, new) for subtask in range(new)]
    assert found == case["old_subtasks_of_new"]
