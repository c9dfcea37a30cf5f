"""Breaks the code in one place each: what a simulation has to find."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple
from unittest import mock

from aiomailbox.api.environment import StreamExecutionEnvironment
from aiomailbox.checkpoint import restored
from aiomailbox.checkpoint.settings import CheckpointingMode
from aiomailbox.checkpoint.writer import CheckpointWriter
from aiomailbox.eventtime import timers
from aiomailbox.eventtime.valve import ValveSnapshot
from aiomailbox.operators.async_io.operator import AsyncMapOperator
from aiomailbox.operators.core.operator import Operator
from aiomailbox.operators.sinks.sink import SinkOperator
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.runtime.coordinator import CheckpointCoordinator
from aiomailbox.runtime.job_checkpoints import JobCheckpoints
from aiomailbox.state.snapshot import KeyedStateSnapshot
from aiomailbox.storage.append_log import AppendLog
from aiomailbox.task.in_flight import InputState
from aiomailbox.task.messages import CheckpointComplete


class Mutation(NamedTuple):
    """One thing that is done wrong.

    Attributes:
        what: What it is.
        broken: Does it, while the context lasts.
        pipeline: One that shows it soon.
        seed: The first that did, until a change moves what is drawn: tried first.
    """

    what: str
    broken: Callable[[], Any]
    pipeline: str
    seed: int = 0


def _instead(owner: Any, name: str, made: Callable[[Any], Any]) -> Callable[[], Any]:
    """Return what puts something made of a method in its place."""
    return lambda: mock.patch.object(owner, name, made(getattr(owner, name)))


def _restored_without(**parts: Any) -> Callable[[Any], Any]:
    def make(load: Any) -> Any:
        async def loaded(self: Any, which: Any) -> Any:
            found = await load(self, which)
            return None if found is None else replace(found, **parts)

        return loaded

    return make


def _begun_times(spread: Any) -> Any:
    def begin(former: Any, parallelism: int) -> Any:
        return [
            tuple(ValveSnapshot(one.watermark) for one in times)
            for times in spread(former, parallelism)
        ]

    return begin


def _committed_first(finalize: Any) -> Any:
    async def commit(self: Any, checkpoint_id: int) -> None:
        progress = self._planner.in_progress.get(checkpoint_id)
        if progress is not None:
            await self._owner.commit_prepared(progress.prepared, checkpoint_id)
        await finalize(self, checkpoint_id)

    return commit


def _told_first(complete: Any) -> Any:
    async def tell(self: Any, checkpoint_id: int, tasks: Any) -> None:
        if checkpoint_id in self._planner.in_progress:
            self._tell(tasks, CheckpointComplete(checkpoint_id))
        await complete(self, checkpoint_id, tasks)

    return tell


def _sources_late(finalize: Any) -> Any:
    async def capture(self: Any, checkpoint_id: int) -> None:
        from aiomailbox.operators.snapshots.codec import encode_snapshot

        progress = self._planner.in_progress.get(checkpoint_id)
        if progress is not None:
            progress.enumerators = {
                name: encode_snapshot(one)
                for name, one in self._job.sources.snapshot(checkpoint_id).items()
            }
        await finalize(self, checkpoint_id)

    return capture


class _LateStorage:
    """Writes files a while after it has said so."""

    def __init__(self, storage: Any) -> None:
        self._storage = storage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def write(self, name: str, chunks: Any) -> int:
        data = b"".join(chunks)
        asyncio.get_event_loop().call_later(1.0, self._write, name, data)
        return len(data)

    def _write(self, name: str, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self._storage.write(name, [data])


def _written_late(place: Any) -> Any:
    def late(self: Any, *args: Any) -> Any:
        storage, below = place(self, *args)
        return _LateStorage(storage), below

    return late


def _without_a_key_group(entries_of: Any) -> Any:
    def entries(self: Any, key_groups: Any) -> Iterator[Any]:
        pieces = entries_of(self, key_groups)
        next(pieces, None)
        yield from pieces

    return entries


def _forgotten_watermark(restoring: Any) -> Any:
    def restore(self: Any, snapshot: OperatorSnapshot) -> Iterator[None]:
        return restoring(self, replace(snapshot, watermark=-(1 << 63)))

    return restore


def _no_elements(snapshot_own: Any) -> Any:
    def own(self: Any) -> Any:
        return Operator.snapshot_own(self)

    return own


def _appended_late(append_one: Any) -> Any:
    def append(self: Any, entry: bytes) -> int:
        # It says where the entry will be, and writes it with the next commit.
        place = self._end + sum(len(one) + 8 for one in _waiting(self))
        _waiting(self).append(entry)
        return place

    return append


def _waiting(log: Any) -> list[bytes]:
    found: list[bytes] = log.__dict__.setdefault("_waiting", [])
    return found


@contextlib.contextmanager
def _journal_after_sync() -> Iterator[None]:
    append_one, sync, append = AppendLog.append_one, AppendLog.sync, AppendLog.append
    close = AppendLog.close

    def flush(self: Any) -> None:
        waiting, self.__dict__["_waiting"] = _waiting(self), []
        for entry in waiting:
            append_one(self, entry)

    def synced(self: Any) -> None:
        flush(self)
        sync(self)

    def appended(self: Any, entries: Any) -> int:
        flush(self)
        return append(self, entries)

    def closed(self: Any) -> None:
        # What has not been written is lost with the process.
        _waiting(self).clear()
        close(self)

    with (
        mock.patch.object(AppendLog, "close", closed),
        mock.patch.object(AppendLog, "append_one", _appended_late(append_one)),
        mock.patch.object(AppendLog, "append", appended),
        mock.patch.object(AppendLog, "sync", synced),
    ):
        yield


def _at_least_once(enable: Any) -> Any:
    def enabled(self: Any, interval: Any, **settings: Any) -> Any:
        for name in ("unaligned", "aligned_timeout"):
            settings.pop(name, None)
        settings["mode"] = CheckpointingMode.AT_LEAST_ONCE
        return enable(self, interval, **settings)

    return enabled


def _pruned_too_far(prune: Any) -> Any:
    async def on_retained(self: Any, oldest: int) -> None:
        await prune(self, oldest + 1)

    return on_retained


def _no_timers(load: Any) -> Any:
    def none(self: Any, snapshot: Any) -> Iterator[None]:
        return iter(())

    return none


MUTATIONS = [
    Mutation(
        "what a restored checkpoint holds of sinks is not committed",
        _instead(JobCheckpoints, "_load", _restored_without(committables=())),
        "keyed_reduce",
        seed=9,
    ),
    Mutation(
        "a checkpoint is committed before its metadata is written",
        _instead(CheckpointCoordinator, "_finalize", _committed_first),
        "keyed_reduce",
    ),
    Mutation(
        "tasks hear that a checkpoint is complete before it is committed",
        _instead(CheckpointCoordinator, "_complete", _told_first),
        "late_data",
    ),
    Mutation(
        "a task acknowledges before its file is written",
        _instead(CheckpointWriter, "_place", _written_late),
        "large_state",
    ),
    Mutation(
        "enumerators are captured when a checkpoint ends, not when it begins",
        _instead(CheckpointCoordinator, "_finalize", _sources_late),
        "dealt",
    ),
    Mutation(
        "barriers of one checkpoint are not waited for",
        _instead(StreamExecutionEnvironment, "enable_checkpointing", _at_least_once),
        "unchained",
    ),
    Mutation(
        "data in flight is not restored",
        _instead(restored, "_in_flight", lambda _: lambda *_: {}),
        "unchained",
    ),
    Mutation(
        "data that arrives while barriers overtake is not kept",
        _instead(InputState, "on_data", lambda _: lambda *_: None),
        "unchained",
    ),
    Mutation(
        "channels forget their watermarks",
        _instead(restored, "_spread_times", _begun_times),
        "timers",
    ),
    Mutation(
        "operators forget their watermarks",
        _instead(Operator, "restoring", _forgotten_watermark),
        "late_for_long",
    ),
    Mutation(
        "one key group is not restored",
        _instead(KeyedStateSnapshot, "entries_of", _without_a_key_group),
        "keyed_reduce",
        seed=1,
    ),
    Mutation(
        "timers are not restored",
        _instead(timers.LoadedTimers, "load", _no_timers),
        "timers",
    ),
    Mutation(
        "rows whose calls are in flight are not in the snapshot",
        _instead(AsyncMapOperator, "snapshot_own", _no_elements),
        "map_async_ordered",
    ),
    Mutation(
        "a finished call is appended to the journal with the next group commit",
        _journal_after_sync,
        "journalled",
    ),
    Mutation(
        "the journal is pruned beyond the oldest checkpoint",
        _instead(JobCheckpoints, "on_retained", _pruned_too_far),
        "journalled",
    ),
    Mutation(
        "a sink hands over nothing at a barrier",
        _instead(
            SinkOperator, "prepare_snapshot_pre_barrier", lambda _: lambda *_: None
        ),
        "stateless",
        seed=2,
    ),
]
