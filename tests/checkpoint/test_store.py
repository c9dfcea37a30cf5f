"""What was written is restored; a checkpoint counts whole or not at all."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from aiomailbox.checkpoint.reader import RestoredJob
from aiomailbox.checkpoint.store import CheckpointStore
from aiomailbox.checkpoint.writer import CheckpointWriter
from aiomailbox.errors import (
    DamagedFileError,
    NoCheckpointError,
    StateError,
    StorageClaimedError,
)
from aiomailbox.ids import OperatorId, SubtaskId, VertexId
from aiomailbox.records.events import SnapshotType
from aiomailbox.storage.local import LocalStorage
from aiomailbox.storage.remote import LEASE_MS, RemoteStorage
from aiomailbox.task.in_flight import TaskSnapshot
from aiomailbox.task.messages import PreparedData, TaskHandle
from aiomailbox.testing import ManualClock, RecordingLog
from tests.checkpoint.checkpoints import (
    COUNT,
    SINK,
    SOURCE,
    Visit,
    handles,
    metadata,
    open_store,
    take,
    task_snapshot,
)

LARGE = "x" * 20_000


def number_of(restored: RestoredJob | None) -> int:
    """Return the number that all state of a checkpoint was made of, checked whole."""
    assert restored is not None
    snapshot = restored.snapshot
    number = restored.metadata.checkpoint_id
    for one in snapshot.operators[COUNT]:
        assert one is not None
        (keyed,) = one.keyed
        found = {
            key: value
            for groups in keyed.key_groups.values()
            for key, value in groups[0]
        }
        assert {visit.number for visit in found.values()} == {number}
        assert len(found) == 4
        assert one.timers["timers"].event[0] == [(number, "key-0", None)]
    assert snapshot.enumerators[SOURCE].own.elements("enumerator") == [
        Visit("file", number)
    ]
    return number


@pytest.mark.parametrize("payload", ["", LARGE], ids=["inline", "files"])
def test_what_was_written_is_restored(tmp_path: Path, payload: str) -> None:
    store = open_store(tmp_path)
    place = take(store, tmp_path, 1, payload=payload)
    assert ((tmp_path / "job/chk-1/1.0-1").exists()) is bool(payload)
    for which in ("latest", 1, place, f"{place}/_metadata"):
        restored = store.load(which, [Visit])
        assert number_of(restored) == 1
        assert restored is not None
        expected = task_snapshot(1, payload=payload)
        kept = restored.snapshot
        assert list(kept.operators[SINK]) == [expected.operators[SINK]] * 2
        assert list(kept.inputs[COUNT]) == [expected.inputs[COUNT]] * 2
        assert kept.channels == expected.channel_state
        assert list(restored.committables) == [(1, SINK, (Visit("file", 1),))] * 2
        assert restored.place == place


def test_a_job_without_checkpoints_begins_anew(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert store.load("latest", []) is None
    handles(CheckpointWriter(LocalStorage(tmp_path), "job"), 1, payload=LARGE)
    assert store.load("latest", []) is None
    with pytest.raises(NoCheckpointError, match="no _metadata"):
        store.load(1, [])


def test_the_newest_complete_one_is_the_latest(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for number in (1, 2, 10):
        take(store, tmp_path, number)
    handles(CheckpointWriter(LocalStorage(tmp_path), "job"), 11, payload=LARGE)
    assert store.newest_first() == [10, 2, 1]
    assert number_of(store.load("latest", [Visit])) == 10


def test_what_never_became_complete_is_removed_by_the_next_life(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    take(store, tmp_path, 1, payload=LARGE)
    handles(CheckpointWriter(LocalStorage(tmp_path), "job"), 2, payload=LARGE)
    (tmp_path / "job/chk-2/1.0-1.0a.part").touch()
    store.close()
    again = open_store(tmp_path)
    assert not (tmp_path / "job/chk-2").exists()
    assert again.next_checkpoint_id == 3
    assert number_of(again.load("latest", [Visit])) == 1


def test_epochs_grow_over_lives(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert [store.new_epoch(), store.new_epoch()] == [1, 2]
    store.close()
    again = open_store(tmp_path)
    assert again.new_epoch() == 3


def test_executions_in_one_directory_have_the_name_of_the_first(tmp_path: Path) -> None:
    names = []
    for place in (tmp_path / "a", tmp_path / "a", tmp_path / "b"):
        store = open_store(place)
        names.append(store.join_lineage(f"execution {len(names)}"))
        store.new_epoch()
        store.close()
    assert names == ["execution 0", "execution 0", "execution 2"]


def test_a_directory_of_a_version_without_lineages_gets_one(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.new_epoch()
    # As that version wrote it.
    assert store._job.lineage == ""
    store.close()
    again = open_store(tmp_path)
    assert again.join_lineage("first") == "first"
    assert again.new_epoch() == 2
    again.close()


def test_an_epoch_is_never_used_again_when_its_file_is_lost(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    take(store, tmp_path, 1)
    assert store.new_epoch() == 1
    store.close()
    for damage in (b"damaged", None):
        file = tmp_path / "job/_job"
        file.unlink() if damage is None else file.write_bytes(damage)
        log = RecordingLog()
        again = open_store(tmp_path, log)
        assert again.new_epoch() > 1_000
        assert "last attempt is lost" in log.entries[0][1]
        again.close()


def test_two_jobs_do_not_share_a_directory(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(StorageClaimedError, match="job 'job'"):
        open_store(tmp_path)
    other = open_store(tmp_path, job_id="job/2")
    assert other.place == f"{tmp_path}/job%2F2"
    store.close()
    store.close()
    open_store(tmp_path)


def test_discarding_leaves_nothing_and_touches_no_other(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for number in (1, 2):
        take(store, tmp_path, number, payload=LARGE)
    store.discard(1)
    store.discard(1)
    assert store.newest_first() == [2]
    assert sorted(path.name for path in (tmp_path / "job").iterdir()) == [
        ".lock",
        "_job",
        "chk-2",
    ]
    assert number_of(store.load("latest", [Visit])) == 2


def test_a_savepoint_can_be_moved(tmp_path: Path) -> None:
    store = open_store(tmp_path / "jobs")
    place = take(
        store, tmp_path / "jobs", 1, payload=LARGE, location=tmp_path / "saved"
    )
    assert place == f"{tmp_path}/saved"
    assert store.newest_first() == []
    (tmp_path / "saved").rename(tmp_path / "moved")
    assert number_of(store.load(tmp_path / "moved", [Visit])) == 1
    with pytest.raises(NoCheckpointError, match="saved"):
        store.load(place, [Visit])


def test_the_latest_may_be_the_savepoint_that_was_to_end_the_job(
    tmp_path: Path,
) -> None:
    """Sinks have committed with it, and the job may fail before it ends."""
    store = open_store(tmp_path)
    take(store, tmp_path, 1)
    place = tmp_path / "saved"

    def savepoint(number: int, kind: SnapshotType) -> None:
        written = handles(CheckpointWriter(store._storage, "job"), number, place)
        store.complete(metadata(number, written, kind=kind), place)

    savepoint(2, SnapshotType.SAVEPOINT_CANONICAL)
    assert number_of(store.load("latest", [Visit])) == 1
    savepoint(3, SnapshotType.SUSPEND_CANONICAL)
    assert number_of(store.load("latest", [Visit])) == 3
    store.close()
    store = open_store(tmp_path)
    assert number_of(store.load("latest", [Visit])) == 3
    take(store, tmp_path, 4)
    assert number_of(store.load("latest", [Visit])) == 4
    savepoint(5, SnapshotType.TERMINATE_CANONICAL)
    store.discard(5, place)
    assert number_of(store.load("latest", [Visit])) == 4
    savepoint(6, SnapshotType.TERMINATE_CANONICAL)
    store.discard_all()
    assert store.load("latest", [Visit]) is None


def test_a_savepoint_that_failed_leaves_nothing_but_what_was_there(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path / "jobs")
    place = tmp_path / "saved"
    writer = CheckpointWriter(LocalStorage(tmp_path / "jobs"), "job")
    handles(writer, 1, payload=LARGE, location=place)
    # Somebody has chosen a directory with files of their own.
    mine = [place / "thesis.pdf", place / "papers/1.0-1"]
    for file in mine:
        file.parent.mkdir(exist_ok=True)
        file.touch()
    store.discard(1, place)
    assert sorted(path for path in place.rglob("*") if path.is_file()) == sorted(mine)


@pytest.mark.parametrize(
    "damage", ["missing", "cut", "flipped", "longer", "no metadata"]
)
def test_a_damaged_newest_is_skipped_for_the_one_before(
    tmp_path: Path, damage: str
) -> None:
    log = RecordingLog()
    store = open_store(tmp_path, log)
    for number in (1, 2):
        take(store, tmp_path, number, payload=LARGE)
    file = tmp_path / "job/chk-2/1.1-1"
    data = bytearray(file.read_bytes())
    match damage:
        case "missing":
            file.unlink()
        case "cut":
            file.write_bytes(data[:-1])
        case "flipped":
            data[len(data) // 2] ^= 1
            file.write_bytes(data)
        case "longer":
            file.write_bytes(bytes(data) + b"\0")
        case "no metadata":
            (tmp_path / "job/chk-2/_metadata").unlink()
    store.close()
    again = open_store(tmp_path, log)
    assert number_of(again.load("latest", [Visit])) == 1
    ((_, event, _),) = log.entries
    assert event == "checkpoint skipped"
    assert again.next_checkpoint_id == 3
    if damage != "no metadata":
        with pytest.raises(DamagedFileError, match=r"1\.1-1"):
            again.load(2, [Visit])


def test_a_job_whose_checkpoints_are_all_gone_does_not_begin_anew(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path)
    take(store, tmp_path, 1)
    (tmp_path / "job/chk-1/_metadata").unlink()
    store.close()
    with pytest.raises(NoCheckpointError, match="none of them can be read"):
        open_store(tmp_path).load("latest", [Visit])


def tear(file: Path, how: str) -> None:
    """Leave of a file what a crash may leave of it."""
    match how:
        case "truncated":
            file.write_bytes(file.read_bytes()[:-7])
        case "empty":
            file.write_bytes(b"")
        case "missing":
            file.unlink()


@pytest.mark.parametrize("how", ["truncated", "empty", "missing"])
@pytest.mark.parametrize("older", [False, True])
def test_metadata_torn_while_it_was_written_hinders_no_start(
    tmp_path: Path, how: str, older: bool
) -> None:
    """The numbers of the job are written after it: it never counted."""
    log = RecordingLog()
    store = open_store(tmp_path, log)
    store.new_epoch()
    if older:
        take(store, tmp_path, 1, payload=LARGE)
    numbers = (tmp_path / "job/_job").read_bytes()
    take(store, tmp_path, 2, payload=LARGE)
    (tmp_path / "job/_job").write_bytes(numbers)
    tear(tmp_path / "job/chk-2/_metadata", how)
    store.close()
    again = open_store(tmp_path, log)
    found = again.load("latest", [Visit])
    assert found is None or number_of(found) == 1
    assert (found is not None) == older
    skipped = [event for _, event, _ in log.entries]
    # Of one without any metadata nothing says that it was to count.
    assert skipped == ([] if how == "missing" else ["checkpoint skipped"])
    assert again.next_checkpoint_id == 3
    take(again, tmp_path, 3)
    assert number_of(again.load("latest", [Visit])) == 3


@pytest.mark.parametrize("how", ["truncated", "empty", "missing"])
def test_metadata_that_is_damaged_later_is_of_a_checkpoint_that_counted(
    tmp_path: Path, how: str
) -> None:
    """What sinks committed with it would be committed again from the beginning."""
    store = open_store(tmp_path)
    take(store, tmp_path, 1)
    tear(tmp_path / "job/chk-1/_metadata", how)
    store.close()
    with pytest.raises(NoCheckpointError, match="none of them can be read"):
        open_store(tmp_path).load("latest", [Visit])


def test_who_begins_a_job_again_that_had_finished_is_told(tmp_path: Path) -> None:
    log = RecordingLog()
    store = open_store(tmp_path, log)
    take(store, tmp_path, 1)
    store.finish((), None)
    store.discard_all()
    store.close()
    again = open_store(tmp_path, log)
    assert again.load("latest", [Visit]) is None
    ((_, event, _),) = log.entries
    assert event == "the job had finished before, and starts without state"
    again.new_epoch()
    again.close()
    assert open_store(tmp_path, log).load("latest", [Visit]) is None
    assert len(log.entries) == 1


def test_state_that_does_not_fit_is_refused_not_skipped(tmp_path: Path) -> None:
    log = RecordingLog()
    store = open_store(tmp_path, log)
    for number in (1, 2):
        take(store, tmp_path, number)
    with pytest.raises(StateError, match="Visit"):
        store.load("latest", [])
    assert log.entries == []


def test_a_task_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    writer = CheckpointWriter(storage, "job")
    bad: Any = object()
    snapshot = task_snapshot(1, payload=LARGE)
    operators = {**snapshot.operators, "z": task_snapshot(2).operators[SINK]}
    operators["z"].own.states["writer"].elements.append(bad)
    with pytest.raises(StateError, match="object cannot be written to a snapshot"):
        writer.write_task(
            SubtaskId(VertexId(0), 0), 1, 1, TaskSnapshot(operators=operators)
        )
    assert storage.names() == []


def test_state_of_classes_that_nobody_declared_is_refused_when_written(
    tmp_path: Path,
) -> None:
    writer = CheckpointWriter(LocalStorage(tmp_path), "job", [int])
    with pytest.raises(StateError, match="could not be read again"):
        handles(writer, 1)


def test_metadata_of_a_later_format_is_refused_not_skipped(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    take(store, tmp_path, 1)
    written = handles(CheckpointWriter(LocalStorage(tmp_path), "job"), 2)
    store.complete(metadata(2, written, version=2))
    with pytest.raises(
        StateError, match="has format 2, and this release of aiomailbox reads format 1"
    ):
        store.load("latest", [Visit])


def test_numbers_are_never_given_twice_though_all_checkpoints_have_gone(
    tmp_path: Path,
) -> None:
    """Sinks know by them what they have committed."""
    store = open_store(tmp_path)
    store.new_epoch()
    for number in (1, 2):
        take(store, tmp_path, number)
    take(store, tmp_path, 3, location=tmp_path / "saved")
    for number in (2, 1):
        store.discard(number)
    store.close()
    with contextlib.closing(open_store(tmp_path)) as again:
        assert again.load("latest", [Visit]) is None
        assert again.next_checkpoint_id == 4


def test_what_a_slow_task_writes_for_a_failed_checkpoint_does_not_stay(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path)
    store.discard(1)
    handles(CheckpointWriter(LocalStorage(tmp_path), "job"), 1, payload=LARGE)
    take(store, tmp_path, 2)
    assert not (tmp_path / "job/chk-1").exists()
    # After some more nobody looks there any longer.
    for number in range(3, 6):
        take(store, tmp_path, number)
    assert store.newest_first() == [5, 4, 3, 2]
    assert store._failed == {}


@pytest.fixture
def remote() -> Iterator[RemoteStorage]:
    """A storage of its own that is no directory."""
    name = f"memory://{secrets.token_hex(4)}"
    storage = RemoteStorage(name)
    yield storage
    storage.delete(storage.names())


def test_a_number_that_is_used_up_is_never_given_away_again(tmp_path: Path) -> None:
    """And that is written once in 64 numbers, which follow each other closely."""
    at, written = 1, list[int]()
    for _ in range(2):
        with contextlib.closing(open_store(tmp_path)) as store:
            assert store.next_checkpoint_id >= at
            for number in range(store.next_checkpoint_id, at + 100):
                before = files_of(tmp_path)
                was_used_up = store.is_used_up(number)
                store.use_up(number)
                assert store.is_used_up(number)
                if files_of(tmp_path) != before:
                    written.append(number)
                assert was_used_up is (number not in written)
            at += 100
    with contextlib.closing(open_store(tmp_path)) as store:
        assert store.next_checkpoint_id >= at
    assert len(written) == 4


def files_of(place: Path) -> dict[Path, tuple[int, bytes]]:
    found = [one for one in place.rglob("*") if one.is_file() and one.name != ".lock"]
    return {one: (one.stat().st_ino, one.read_bytes()) for one in found}


def test_a_task_resumes_alike_from_handles_that_differ_in_the_checkpoint_only() -> None:
    def handle(checkpoint_id: int = 1, **facts: Any) -> TaskHandle:
        given = {"vertex": VertexId(1), "subtask_index": 0, "epoch": 1, "size": 3}
        return TaskHandle(**{"checkpoint_id": checkpoint_id, **given, **facts})

    kept = {"inline": b"abc", "has_union_state": True}
    assert handle(2, **kept).is_as(handle(1, **kept))
    for other in ({"inline": b"abd"}, {"epoch": 2}, {"size": 4}, {"subtask_index": 1}):
        assert not handle(2, **{**kept, **other}).is_as(handle(1, **kept))
    # Nor can it be told of these, or is it all that there is to say.
    staged = (PreparedData(OperatorId("sink"), 1, 0, b"rows"),)
    for fact in ({"file": "1.0-1"}, {"prepared": staged}, {"is_finished": True}):
        assert not handle(2, **kept, **fact).is_as(handle(1, **kept, **fact))


def test_a_remote_storage_keeps_checkpoints_as_a_directory_does(
    remote: RemoteStorage,
) -> None:
    log = RecordingLog()
    with contextlib.closing(open_store(remote, log)) as store:
        assert store.new_epoch() == 1
        for number in (1, 2, 3):
            place = take(store, remote, number, payload=LARGE)
        assert place == f"{remote.place}/job/chk-3"
        assert number_of(store.load(place, [Visit])) == 3
        store.discard(1)
        saved = f"{remote.place}-saved"
        assert take(store, remote, 4, payload=LARGE, location=saved) == saved
        handles(CheckpointWriter(remote, "job"), 5, payload=LARGE)
    assert [name for name in remote.names() if "chk-1" in name] == []
    remote.write("job/chk-3/1.1-1", [b"damaged"])
    with contextlib.closing(open_store(remote, log)) as store:
        assert (store.new_epoch(), store.next_checkpoint_id) == (2, 6)
        assert number_of(store.load("latest", [Visit])) == 2
        assert number_of(store.load(saved, [Visit])) == 4
        assert [name for name in remote.names() if "chk-5" in name] == []
    assert log.entries[0][1] == "checkpoint skipped"


def test_whoever_lost_its_lease_completes_nothing(remote: RemoteStorage) -> None:
    clock = ManualClock()

    def new_store() -> CheckpointStore:
        return CheckpointStore(remote, "job", clock, RecordingLog())

    first = new_store()
    take(first, remote, 1)
    with pytest.raises(StorageClaimedError):
        new_store()
    clock.advance(LEASE_MS // 2 / 1000)
    first.renew()
    clock.advance(LEASE_MS / 1000)
    second = new_store()
    for act in (first.renew, partial(take, first, remote, 2)):
        with pytest.raises(StorageClaimedError):
            act()
    assert second.newest_first() == [1]
    first.close()
    take(second, remote, 3)
    assert number_of(second.load("latest", [Visit])) == 3
