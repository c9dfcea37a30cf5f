"""What stands before an operator: its order, its bound, and what becomes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aiomailbox.keygroups.assignment import KeyGroupAssigner
from aiomailbox.operators.keyed.operators import KeyedReduceOperator
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.records.events import MIN_TIMESTAMP, Watermark, WatermarkStatus
from aiomailbox.records.run import ListRun
from aiomailbox.task.backlog import Backlog, has_backlog
from aiomailbox.testing import OneInputHarness, redistributed


async def _add(first: Any, second: Any) -> Any:
    return first[0], first[1] + second[1]


def _key(pair: Any) -> Any:
    return pair[0]


def _operator(**subtask: int) -> tuple[Any, Backlog]:
    operator = KeyedReduceOperator(_key, _add)
    harness = OneInputHarness(operator, keyed=True, **subtask)
    return harness, Backlog(operator, harness.context.mailbox, harness.context.clock)


async def _work_off(harness: Any, backlog: Backlog) -> list[Any]:
    backlog.resume()
    await harness.context.run_mail.run_all()
    assert backlog.availability.available
    return [
        getattr(element, "value", element)
        for element in harness.output
        if not isinstance(element, WatermarkStatus)
    ]


async def test_what_comes_stands_behind_the_rest() -> None:
    harness, backlog = _operator()
    async with harness:
        (entry,) = backlog.inputs
        entry.process_watermark(5)
        backlog.put_back(entry, ListRun([("a", 1), ("b", 1)], [10, MIN_TIMESTAMP]))
        assert not backlog.availability.available
        assert entry.process_run(ListRun([("a", 2)], [11])) is None
        assert entry.process_watermark(11) is None
        assert entry.process_status(WatermarkStatus.IDLE) is None
        assert backlog.records == 3
        assert harness.values == []
        await _work_off(harness, backlog)
        assert harness.output[0] == Watermark(5)
        assert harness.values == [("a", 1), ("b", 1), ("a", 3)]
        assert harness.output[-2:] == [Watermark(11), WatermarkStatus.IDLE]
        assert backlog.records == 0


async def test_what_stands_before_an_operator_goes_with_its_snapshot() -> None:
    harness, backlog = _operator()
    async with harness:
        assert not has_backlog(_snapshot(harness, backlog))
        (entry,) = backlog.inputs
        backlog.put_back(entry, ListRun([("a", 1), ("b", 1)]))
        entry.process_watermark(11)
        entry.process_run(ListRun([("b", 2)]))
        snapshot = _snapshot(harness, backlog)
        expected = await _work_off(harness, backlog)
    assert has_backlog(snapshot)
    other, restored = _operator()
    other.restore(snapshot)
    restored.restore(snapshot)
    async with other:
        assert restored.records == 3
        assert await _work_off(other, restored) == expected
        assert expected[2] == Watermark(11)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 3)])
async def test_records_go_to_the_subtask_that_has_their_keys(
    before: int, after: int
) -> None:
    pairs = [(f"key {number % 7}", number) for number in range(70)]
    snapshots = []
    for index in range(before):
        harness, backlog = _operator(parallelism=before, subtask_index=index)
        groups = harness.context.key_group_range.key_groups
        async with harness:
            mine = [pair for pair in pairs if _group(pair) in groups]
            backlog.put_back(backlog.inputs[0], ListRun(mine))
            snapshots.append(_snapshot(harness, backlog))
    found: dict[str, int] = {}
    for index, snapshot in enumerate(redistributed(snapshots, after)):
        harness, backlog = _operator(parallelism=after, subtask_index=index)
        harness.restore(snapshot)
        backlog.restore(snapshot)
        async with harness:
            emitted = await _work_off(harness, backlog)
        found.update(emitted)
    assert found == {f"key {key}": sum(range(key, 70, 7)) for key in range(7)}


async def test_who_emits_waits_where_too_much_stands_before_an_operator() -> None:
    harness, backlog = _operator()
    async with harness:
        (entry,) = backlog.inputs
        run = ListRun([("a", 1)] * 1024)
        backlog.put_back(entry, run)
        waiting = [entry.process_run(run) for _ in range(4)]
        assert [each is not None for each in waiting] == [False] * 3 + [True]
        await waiting[-1]
        assert backlog.records == 0
        assert len(harness.values) == 5 * 1024


def _group(pair: Any) -> int:
    return KeyGroupAssigner(1, 128).key_group_of(_key(pair))


def _snapshot(harness: Any, backlog: Backlog) -> OperatorSnapshot:
    taken = harness.snapshot()
    return replace(taken, own=backlog.snapshot(taken))
