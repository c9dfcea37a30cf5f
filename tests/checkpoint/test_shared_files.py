"""Files of a database are written once, and live as long as a checkpoint has them."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.checkpoint.store import CheckpointStore
from aiomailbox.checkpoint.writer import CheckpointWriter
from aiomailbox.errors import DamagedFileError, StateError
from aiomailbox.ids import SubtaskId, VertexId
from aiomailbox.keygroups.assignment import KeyGroupRange, key_group_range
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot, redistribute
from aiomailbox.state.backends import HeapStateStore
from aiomailbox.state.descriptors import ValueStateDescriptor
from aiomailbox.state.rocksdb.store import RocksDBStateStore
from aiomailbox.storage.contract import Storage
from aiomailbox.storage.local import LocalStorage
from aiomailbox.storage.remote import RemoteStorage
from aiomailbox.task.in_flight import TaskSnapshot
from aiomailbox.task.messages import TaskHandle
from aiomailbox.testing import ManualClock, RecordingLog
from tests.checkpoint.checkpoints import COUNT, SINK, Visit, metadata, open_store

ALL = KeyGroupRange(0, 127)
TASK = SubtaskId(VertexId(1), 0)


@dataclass(frozen=True)
class Account:
    """A value; another class takes its place in a test."""

    owner: str
    amount: int


SEEN = ValueStateDescriptor("seen", Account)


@pytest.fixture(autouse=True)
def no_file_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small databases be kept as files."""
    monkeypatch.setattr("aiomailbox.state.rocksdb.database.FILES_BYTES_MIN", 0)


@pytest.fixture
def rocksdb(tmp_path: Path) -> Iterator[Callable[[], RocksDBStateStore]]:
    """Make stores, which are closed after the test."""
    made: list[RocksDBStateStore] = []

    def make(groups: KeyGroupRange = ALL) -> RocksDBStateStore:
        made.append(RocksDBStateStore(128, groups, ManualClock(), path=tmp_path / "db"))
        return made[-1]

    yield make
    for one in made:
        one.close()


def put(store: Any, keys: range, amount: int) -> None:
    """Give keys a value."""
    for key in keys:
        store.set_current_key(key)
        # Nothing that can be compressed.
        owner = Random(key).randbytes(250).hex()
        store.get_value(SEEN).update(Account(owner, amount))


def values(store: Any, keys: range) -> list[int | None]:
    """Return the amounts that keys have."""
    found = []
    for key in keys:
        store.set_current_key(key)
        value = store.get_value(SEEN).value()
        found.append(None if value is None else value.amount)
    return found


class Job:
    """A job with one task that has a database."""

    def __init__(self, storage: Storage, state: RocksDBStateStore) -> None:
        self.storage = storage
        self.state = state
        self.writer = CheckpointWriter(storage, "job", [Account])

    def write(self, number: int, location: Any = None) -> TaskHandle:
        """Write the task's part of a checkpoint."""
        count = OperatorSnapshot((self.state.snapshot(),))
        operators = {COUNT: count, SINK: OperatorSnapshot()}
        snapshot = TaskSnapshot(operators=operators)
        return self.writer.write_task(TASK, 1, number, snapshot, location)

    def take(self, store: CheckpointStore, number: int, location: Any = None) -> str:
        """Take a checkpoint whole."""
        handle = self.write(number, location)
        other = dataclasses.replace(TaskSnapshot())
        second = self.writer.write_task(
            SubtaskId(VertexId(1), 1), 1, number, other, location
        )
        return store.complete(metadata(number, [handle, second]), location)

    def shared(self) -> set[str]:
        """Return the names of the shared files that there are."""
        return {name.rpartition("/")[2] for name in self.storage.names("job/shared")}


def restored(store: CheckpointStore, into: Any, which: Any = "latest") -> Any:
    """Return a store of state, filled from a checkpoint."""
    found = store.load(which, [Account, Visit])
    assert found is not None
    pieces = [
        piece
        for one in found.snapshot.operators[COUNT]
        if one is not None
        for piece in one.keyed
    ]
    for _ in into.restoring(pieces):
        pass
    return into


@pytest.fixture(params=["local", "remote"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    """A directory, and a storage that is none."""
    if request.param == "local":
        yield LocalStorage(tmp_path / "jobs")
        return
    remote = RemoteStorage(f"memory://{secrets.token_hex(4)}")
    yield remote
    remote.delete(remote.names())


def test_what_did_not_change_is_not_written_again(
    storage: Storage, rocksdb: Any
) -> None:
    text = ValueStateDescriptor("text", str)

    def write(keys: range, value: str) -> None:
        for key in keys:
            job.state.set_current_key(key)
            job.state.get_value(text).update(value + Random(key).randbytes(250).hex())

    job = Job(storage, rocksdb())
    with contextlib.closing(open_store(storage)) as store:
        write(range(200), "1")
        first = job.write(1)
        write(range(3), "2")
        second = job.write(2)
        written = [sum(file.size for file in one.shared) for one in (first, second)]
        known = {file.file for file in first.shared}
        new = [file for file in second.shared if file.file not in known]
        tables = [file.size for file in new if file.name.endswith(".sst")]
        assert sum(tables) < written[0] / 20
        assert {file for file in first.shared if file.name.endswith(".sst")} <= {
            *second.shared
        }
        job.take(store, 3)
        after = restored(store, rocksdb())
        found = {key: value[0] for key, value in after.table(text).items()}
        assert found == {key: "2" if key < 3 else "1" for key in range(200)}


def test_files_go_when_no_complete_checkpoint_has_them(
    storage: Storage, rocksdb: Any
) -> None:
    job = Job(storage, rocksdb())
    with contextlib.closing(open_store(storage)) as store:
        used = {}
        for number in range(1, 6):
            put(job.state, range(100), number)
            job.take(store, number)
            found = store.load(number, [Account, Visit])
            assert found is not None
            used[number] = found.metadata.shared_files
            if number > 2:
                store.discard(number - 2)
                assert job.shared() == used[number] | used[number - 1]
            assert values(restored(store, rocksdb()), range(100)) == [number] * 100
        for number in (4, 5):
            store.discard(number)
    assert job.shared() == set()


def test_files_of_checkpoints_that_failed_go_with_the_next_one(
    storage: Storage, rocksdb: Any
) -> None:
    job = Job(storage, rocksdb())
    with contextlib.closing(open_store(storage)) as store:
        put(job.state, range(100), 1)
        job.take(store, 1)
        put(job.state, range(50), 2)
        failed = {file.file for file in job.write(2).shared}
        store.discard(2)
        # It may be that the next one names them again.
        assert failed <= job.shared()
        job.take(store, 3)
        store.discard(1)
        found = store.load(3, [Account, Visit])
        assert found is not None
        assert job.shared() == found.metadata.shared_files
        assert {one for one in failed if one.startswith("2-")} & job.shared()
        assert values(restored(store, rocksdb()), range(100)) == [2] * 50 + [1] * 50
        job.write(4)
    with contextlib.closing(open_store(storage)):
        assert job.shared() == found.metadata.shared_files


def test_a_slow_snapshot_does_not_bring_back_what_is_gone(
    storage: Storage, rocksdb: Any
) -> None:
    job = Job(storage, rocksdb())
    with contextlib.closing(open_store(storage)) as store:
        put(job.state, range(100), 1)
        slow = OperatorSnapshot((job.state.snapshot(),))
        job.take(store, 2)
        # Its thread goes on though nobody waits for it.
        job.writer.write_task(TASK, 1, 1, TaskSnapshot(operators={COUNT: slow}))
        job.take(store, 3)
        store.discard(2)
        job.take(store, 4)
        assert values(restored(store, rocksdb()), range(100)) == [1] * 100
        assert not [name for name in job.shared() if name.startswith("1-")]


def test_another_attempt_writes_its_own_files(tmp_path: Path, rocksdb: Any) -> None:
    job = Job(LocalStorage(tmp_path), rocksdb())
    put(job.state, range(10), 1)
    first = job.write(1)
    other = Job(job.storage, rocksdb())
    other.writer = job.writer
    put(other.state, range(10), 2)
    snapshot = TaskSnapshot(
        operators={COUNT: OperatorSnapshot((other.state.snapshot(),))}
    )
    second = job.writer.write_task(TASK, 2, 2, snapshot)
    assert not {one.file for one in first.shared} & {one.file for one in second.shared}


def test_files_are_read_by_other_subtasks_and_by_the_other_backend(
    tmp_path: Path, rocksdb: Any
) -> None:
    job = Job(LocalStorage(tmp_path), rocksdb())
    with contextlib.closing(open_store(tmp_path)) as store:
        put(job.state, range(100), 1)
        job.take(store, 1)
        heap = HeapStateStore(128, ALL, ManualClock())
        assert values(restored(store, heap), range(100)) == [1] * 100
        found = store.load(1, [Account, Visit])
        assert found is not None
        halves = redistribute(list(found.snapshot.operators[COUNT]), 3)
        amounts: list[int | None] = []
        for index, half in enumerate(halves):
            part = rocksdb(key_group_range(128, 3, index))
            for _ in part.restoring(half.keyed):
                pass
            amounts += [one.amount for _, one in part.table(SEEN).items()]
        assert amounts == [1] * 100


def test_savepoints_have_no_files_of_others(tmp_path: Path, rocksdb: Any) -> None:
    job = Job(LocalStorage(tmp_path / "jobs"), rocksdb())
    with contextlib.closing(open_store(tmp_path / "jobs")) as store:
        put(job.state, range(100), 1)
        job.take(store, 1, location=tmp_path / "saved")
        assert job.shared() == set()
        (tmp_path / "saved").rename(tmp_path / "moved")
        heap = HeapStateStore(128, ALL, ManualClock())
        moved = restored(store, heap, tmp_path / "moved")
        assert values(moved, range(100)) == [1] * 100


def test_a_checkpoint_with_files_is_read_as_data(tmp_path: Path, rocksdb: Any) -> None:
    job = Job(LocalStorage(tmp_path), rocksdb())
    with contextlib.closing(open_store(tmp_path)) as store:
        put(job.state, range(100), 1)
        place = job.take(store, 1)
    saved = am.Savepoint(place)
    assert {
        key: one.amount for key, one in saved.state("count", "seen")
    } == dict.fromkeys(range(100), 1)
    (state,) = next(one for one in saved.operators() if one.uid == "count").states
    assert list(state.classes) == [f"{__name__}:Account"]


@pytest.mark.parametrize("way", ["missing", "flipped", "cut"])
def test_a_damaged_shared_file_gives_the_checkpoint_before(
    tmp_path: Path, rocksdb: Any, way: str
) -> None:
    log = RecordingLog()
    job = Job(LocalStorage(tmp_path), rocksdb())
    with contextlib.closing(open_store(tmp_path, log)) as store:
        for number in (1, 2):
            put(job.state, range(100), number)
            job.take(store, number)
        paths = (tmp_path / "job/shared").glob("2-*")
        path = max(paths, key=lambda one: one.stat().st_size)
        data = bytearray(path.read_bytes())
        path.unlink()
        if way == "flipped":
            data[len(data) // 2] ^= 1
        if way != "missing":
            path.write_bytes(data[: -1 if way == "cut" else None])
        assert values(restored(store, rocksdb()), range(100)) == [1] * 100
        assert log.entries[0][1] == "checkpoint skipped"
        with pytest.raises(DamagedFileError, match="shared/2-"):
            store.load(2, [Account, Visit])
        with pytest.raises(DamagedFileError, match="shared/2-"):
            list(am.Savepoint(f"{store.place}/chk-2").state("count", "seen"))


def test_nothing_is_deleted_while_metadata_cannot_be_read(
    tmp_path: Path, rocksdb: Any
) -> None:
    job = Job(LocalStorage(tmp_path), rocksdb())
    with contextlib.closing(open_store(tmp_path)) as store:
        put(job.state, range(100), 1)
        job.take(store, 1)
    file = tmp_path / "job/chk-1/_metadata"
    good = file.read_bytes()
    file.write_bytes(good[:-1])
    before = job.shared()
    with contextlib.closing(open_store(tmp_path)) as store:
        put(job.state, range(100), 2)
        job.take(store, 2)
        assert before <= job.shared()
    file.write_bytes(good)
    with contextlib.closing(open_store(tmp_path)) as store:
        assert values(restored(store, rocksdb(), 1), range(100)) == [1] * 100


def test_classes_in_files_are_checked_as_those_in_bytes(
    tmp_path: Path, rocksdb: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(LocalStorage(tmp_path), rocksdb())
    with contextlib.closing(open_store(tmp_path)) as store:
        put(job.state, range(10), 1)
        job.take(store, 1)
        with pytest.raises(StateError, match="Account"):
            store.load(1, [Visit])
        options: Any = [
            ("amount", int),
            ("owner", str),
            ("limit", int, dataclasses.field(default=9)),
        ]
        newer = dataclasses.make_dataclass("Account", options)
        newer.__module__ = __name__
        monkeypatch.setattr(sys.modules[__name__], "Account", newer)
        heap = HeapStateStore(128, ALL, ManualClock())
        restored(store, heap)
        heap.set_current_key(1)
        found = heap.get_value(ValueStateDescriptor("seen", newer)).value()
        assert (found.amount, found.limit) == (1, 9)
    job.writer = CheckpointWriter(job.storage, "job", [])
    with pytest.raises(StateError, match="Account cannot be written to a snapshot"):
        job.write(2)
