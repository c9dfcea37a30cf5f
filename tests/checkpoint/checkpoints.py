"""A small job's checkpoints, for tests of what keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiomailbox.checkpoint.layout import (
    CheckpointMetadata,
    OperatorInfo,
    VertexMetadata,
)
from aiomailbox.checkpoint.store import CheckpointStore
from aiomailbox.checkpoint.writer import CheckpointWriter
from aiomailbox.clock import SystemClock
from aiomailbox.eventtime.timers import TimerSnapshot
from aiomailbox.eventtime.valve import ValveSnapshot
from aiomailbox.ids import OperatorId, SubtaskId, VertexId
from aiomailbox.operators.snapshots.codec import encode_snapshot
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.records.events import SnapshotType
from aiomailbox.state.operator_state import OperatorStateSnapshot
from aiomailbox.state.snapshot import KeyedStateSnapshot, StateMeta
from aiomailbox.storage.contract import Storage
from aiomailbox.storage.local import LocalStorage
from aiomailbox.task.in_flight import TaskSnapshot
from aiomailbox.task.messages import TaskHandle
from aiomailbox.testing import RecordingLog

SOURCE, COUNT, SINK = OperatorId("source"), OperatorId("count"), OperatorId("sink")
KEYS = 4


@dataclass(frozen=True)
class Visit:
    """What the job counts."""

    page: str
    number: int = 0


def keyed(values: Mapping[Any, Any], *, kind: str = "value") -> KeyedStateSnapshot:
    """Return keyed state with one state, ``seen``, a key group per key."""
    meta = StateMeta("seen", kind, namespaced=False, ttl=False)
    groups = {
        group: {0: [(key, value)]} for group, (key, value) in enumerate(values.items())
    }
    return KeyedStateSnapshot(128, [meta], groups)


def task_snapshot(number: int, *, payload: str = "") -> TaskSnapshot:
    """Return what a subtask of the counting vertex keeps at a checkpoint."""
    values = {
        f"key-{one}": Visit(f"page{payload}-{one}", number) for one in range(KEYS)
    }
    count = OperatorSnapshot(
        keyed=(keyed(values),),
        timers={"timers": TimerSnapshot(128, {0: [(number, "key-0", None)]}, {})},
        watermark=number,
    )
    own = OperatorStateSnapshot().with_list("writer", [Visit("open", number)])
    return TaskSnapshot(
        operators={COUNT: count, SINK: OperatorSnapshot(own=own)},
        inputs={COUNT: (ValveSnapshot(number, channels=((number, True, True),)),)},
        committables={SINK: ((number, Visit("file", number)),)},
        channel_state={"0.0": (b"one", b"", b"three")},
    )


def open_store(
    place: Path | Storage, log: RecordingLog | None = None, job_id: str = "job"
) -> CheckpointStore:
    """Return the store of the job's checkpoints at a place."""
    storage = LocalStorage(place) if isinstance(place, Path) else place
    return CheckpointStore(storage, job_id, SystemClock(), log or RecordingLog())


def handles(
    writer: CheckpointWriter, number: int, location: Any = None, payload: str = ""
) -> list[TaskHandle]:
    """Write both subtasks of a checkpoint; return their handles."""
    return [
        writer.write_task(
            SubtaskId(VertexId(1), index),
            1,
            number,
            task_snapshot(number, payload=payload),
            location,
        )
        for index in range(2)
    ]


def metadata(number: int, tasks: list[TaskHandle], **kwargs: Any) -> CheckpointMetadata:
    """Return the metadata of a checkpoint of the job, given its handles."""
    files = OperatorStateSnapshot().with_list("enumerator", [Visit("file", number)])
    known: dict[str, Any] = {
        "kind": SnapshotType.CHECKPOINT,
        "epoch": 1,
        "job_id": "job",
        "job_name": "a job",
        "timestamp_ms": 1_000 * number,
        "vertices": (
            VertexMetadata(
                VertexId(0), (OperatorInfo(SOURCE, None, "source"),), 1, 128, (None,)
            ),
            VertexMetadata(
                VertexId(1),
                (OperatorInfo(COUNT, "count", "count"), OperatorInfo(SINK, None, "s")),
                2,
                128,
                tuple(tasks),
            ),
        ),
        "enumerators": {SOURCE: encode_snapshot(OperatorSnapshot(own=files))},
    }
    return CheckpointMetadata(checkpoint_id=number, **{**known, **kwargs})


def take(store: CheckpointStore, place: Path | Storage, number: int, **kw: Any) -> str:
    """Take a checkpoint whole."""
    storage = LocalStorage(place) if isinstance(place, Path) else place
    written = handles(CheckpointWriter(storage, "job"), number, **kw)
    return store.complete(metadata(number, written), kw.get("location"))
