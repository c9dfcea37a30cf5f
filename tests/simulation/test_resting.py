"""Sources that rest: a checkpoint without barriers holds what a snapshot would hold.

A restart from such a checkpoint loses nothing in any case, since it resumes from an
earlier one. So what was committed says nothing here: the state of all tasks is compared
with what a restore would give them, whenever no task was asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.checkpoint.layout import checkpoint_directory
from aiomailbox.checkpoint.reader import CheckpointFiles
from aiomailbox.checkpoint.writer import decode_task
from aiomailbox.connectors import collection
from aiomailbox.ids import SubtaskId
from aiomailbox.keygroups.assignment import KeyGroupRange
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.operators.sources.source import InputStatus
from aiomailbox.runtime.coordinator import CheckpointCoordinator
from aiomailbox.storage.local import LocalStorage
from aiomailbox.task.in_flight import TaskSnapshot
from aiomailbox.task.stream_task import StreamTask
from aiomailbox.testing import Faults, simulate
from aiomailbox.testing.simulation import files, world
from tests.simulation.pipelines import PIPELINES

# Several checkpoints fit in a rest: the interval is a tenth of a run without faults.
REST_S = 20.0
RECORDS_BETWEEN = 60
BACKENDS = [am.HeapStateBackend(), am.RocksDBStateBackend(memory_bytes=1 << 20)]
# Each kind of state, timers and calls in flight; of some tasks always act at checkpoints.
RESTING = [
    "unchained",
    "keyed_aggregate",
    "timers",
    "tumbling",
    "sliding",
    "window_functions",
    "sessions",
    "interval_join",
    "as_of_join",
    "map_async_unordered",
    "map_async_by_key",
    "map_async_batched",
    "process_async",
    "patterns",
    "deduplicate",
    "batched",
    "buffered",
    "connected",
    "large_state",
]


@pytest.fixture(autouse=True)
def resting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sources that read a list rest now and then; and sinks know that they may."""
    read_on = collection._RangeReader.poll_next
    rested: dict[int, tuple[str, int]] = {}

    def poll_next(self: Any, output: Any) -> InputStatus:
        if self._splits:
            split = self._splits[0]
            place = split.split_id, split.position // RECORDS_BETWEEN
            if split.position and rested.get(id(self)) != place:
                rested[id(self)] = place
                self.availability.reset()
                loop = asyncio.get_running_loop()
                loop.call_later(REST_S, self.availability.set_available)
                return InputStatus.NOTHING_AVAILABLE
        return read_on(self, output)

    monkeypatch.setattr(collection._RangeReader, "poll_next", poll_next)
    monkeypatch.setattr(world._Writer, "acts_on_records_only", True, raising=False)


class Comparisons:
    """What was found whenever a checkpoint was complete without a task being asked."""

    def __init__(self) -> None:
        self.made = 0
        self.differences: list[str] = []

    def compare(self, coordinator: CheckpointCoordinator) -> None:
        (life,) = files._MOUNTED.values()
        newest = coordinator._newest
        assert newest is not None
        if not life.is_alive:
            return
        self.made += 1
        classes = coordinator._services.state_classes
        tasks: Any = coordinator._tasks
        with stored(life.world.files, newest.checkpoint_id, classes) as restored:
            running: list[StreamTask] = [
                task for task in tasks.tasks if task.subtask in coordinator._running
            ]
            assert {task.subtask for task in running} == restored.keys()
            for task in running:
                self._compare(task, restored[task.subtask])

    def _compare(self, task: StreamTask, restored: TaskSnapshot) -> None:
        assert task.chain is not None
        one, other = contents(task.snapshot()), contents(restored)
        task.chain.settle_snapshots()
        self.differences += [
            f"{task.name}: {what}: {one.get(what)} is restored as {other.get(what)}"
            for what in {*one, *other}
            if one.get(what) != other.get(what)
        ]


@contextlib.contextmanager
def stored(
    kept: dict[str, bytes], checkpoint_id: int, classes: Iterable[Any]
) -> Iterator[dict[SubtaskId, TaskSnapshot]]:
    """Return what each task would be restored from; keyed state is read when needed."""
    name = checkpoint_directory(checkpoint_id)
    (directory,) = {
        one.rpartition("/")[0] for one in kept if one.endswith(f"/{name}/_metadata")
    }
    # Not by the simulated files, which may fail.
    with tempfile.TemporaryDirectory() as place:
        for one, data in kept.items():
            path = Path(place, one)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        found = CheckpointFiles(LocalStorage(place), directory)
        yield {
            handle.task: decode_task(
                handle, data, classes, files=found.files_beside(handle)
            )
            for handle, data in found.tasks(found.metadata())
        }


def contents(task: TaskSnapshot) -> dict[str, Any]:
    """Return what a task keeps, as text that can be compared."""
    found: dict[str, Any] = {"in flight": dict(task.channel_state)}
    for name, snapshot in task.operators.items():
        found |= {f"{name} {what}": content for what, content in contents_of(snapshot)}
    found |= {f"{name} inputs": repr(times) for name, times in task.inputs.items()}
    return {what: content for what, content in found.items() if content}


def contents_of(snapshot: OperatorSnapshot) -> Iterator[tuple[str, Any]]:
    yield "watermark", snapshot.watermark
    for kind, lists in (("lists", snapshot.operator), ("own", snapshot.own)):
        for name, entry in lists.states.items():
            yield f"{kind} {name}", list(map(repr, entry.elements))
    for piece in snapshot.keyed:
        rows: dict[str, list[str]] = {}
        everything = KeyGroupRange(0, piece.max_parallelism - 1)
        for position, entries in piece.entries_of(everything):
            rows.setdefault(piece.states[position].name, []).extend(map(repr, entries))
        for name, texts in rows.items():
            yield f"keyed {name}", sorted(texts)
    for name, service in snapshot.timers.items():
        for kind, groups in (("event", service.event), ("clock", service.processing)):
            yield (
                f"{kind} timers {name}",
                sorted(repr(row) for group in groups for row in groups[group]),
            )


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Comparisons:
    comparisons = Comparisons()
    decide = CheckpointCoordinator._has_changed

    def has_changed(self: CheckpointCoordinator) -> bool:
        changed = decide(self)
        if not changed:
            # It is called by a timer: an error would only be logged.
            try:
                comparisons.compare(self)
            except Exception as error:
                comparisons.differences.append(repr(error))
        return changed

    monkeypatch.setattr(CheckpointCoordinator, "_has_changed", has_changed)
    return comparisons


@pytest.mark.parametrize("name", RESTING)
def test_what_is_not_asked_for_is_what_would_be_restored(
    name: str, compared: Comparisons
) -> None:
    simulate(PIPELINES[name], seeds=[1], backends=BACKENDS)
    assert compared.differences == []
    assert compared.made > 3


def test_a_task_that_does_not_count_what_it_does_is_found(
    compared: Comparisons, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StreamTask, "_steps", lambda self: 0)
    simulate(PIPELINES["map_async_batched"], seeds=[0], faults=Faults.none())
    assert compared.differences
