"""Finished calls are found again by whoever asks, and by nobody who is shut out."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from aiomailbox.errors import DamagedFileError, FencedError, WrongTypeError
from aiomailbox.journal import (
    fence as fence_module,
    job as job_module,
    journals as journals_module,
)
from aiomailbox.journal.entries import (
    EntryKind,
    FinishedBefore,
    LogDirectory,
    base_directories,
    decode_entry,
    encode_entry,
    encode_mark,
    first_needed,
    log_directories,
    operator_directory,
    record_key,
)
from aiomailbox.journal.fence import fenced_epochs
from aiomailbox.journal.job import JobJournal
from aiomailbox.journal.journals import Journals, SharedJournals, SubtaskJournal
from aiomailbox.journal.place import JournalPlace, RemotePlace
from aiomailbox.scratch import ScratchDirectory
from aiomailbox.storage.append_log import AppendLog, LogSegment
from aiomailbox.storage.remote import RemoteStorage

PRINT = b"01234567"


# Where the journals of tests are on a storage that appends to nothing.
REMOTE: dict[Path, RemotePlace] = {}


@pytest.fixture(params=["a file system", "an object store"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Run a test both where files are appended to and where they are not."""
    if request.param == "an object store":
        remote(tmp_path)


@pytest.fixture(autouse=True)
def _forget_places() -> Iterator[None]:
    yield
    REMOTE.clear()


def job(directory: Path) -> JobJournal:
    return JobJournal(REMOTE.get(directory) or JournalPlace(directory))


def journals_of(directory: Path, epoch: int) -> Journals:
    place = REMOTE.get(directory)
    if place is None:
        return Journals(JournalPlace(directory), epoch)
    storage = place._storage
    return Journals(lambda path: RemotePlace(storage, "job/journal", path), epoch)


async def opened(
    directory: Path,
    epoch: int,
    *,
    subtasks: int = 1,
    oldest: int | None = None,
) -> list[SubtaskJournal]:
    """Begin an attempt of one operator, and open all its journals."""
    job(directory).begin(epoch, {"ask": range(subtasks)}, oldest)
    journals = journals_of(directory, epoch)
    found = [journals.journal("ask", index) for index in range(subtasks)]
    for journal in found:
        await journal.open()
    return found


def finish(journal: SubtaskJournal, *names: str) -> None:
    for name in names:
        payload = f"result of {name}".encode()
        journal.append(EntryKind.RESULT, name.encode(), PRINT, payload)


async def close(journals: list[SubtaskJournal]) -> None:
    for journal in journals:
        await journal.close()


async def close_with(journals: list[SubtaskJournal], *names: str) -> None:
    """Finish calls in the first journal, and close all."""
    finish(journals[0], *names)
    await close(journals)


async def known(journal: SubtaskJournal, *names: str) -> list[str]:
    """Return which of the names are found, and check what their calls came to."""
    places = {name: journal.find(name.encode()) for name in names}
    found = [name for name, place in places.items() if place is not None]
    entries = await journal.read([places[name] for name in found])  # type: ignore[misc]
    for name, entry in zip(found, entries, strict=True):
        assert entry is not None
        payload = f"result of {name}".encode()
        assert entry == (EntryKind.RESULT, name.encode(), PRINT, payload)
    return found


async def left(
    directory: Path, epoch: int, *names: str, oldest: int | None
) -> list[str]:
    """Return which of the names the next attempt finds."""
    journals = await opened(directory, epoch, oldest=oldest)
    found = await known(journals[0], *names)
    await close(journals)
    return found


@pytest.mark.usefixtures("anywhere")
async def test_any_subtask_of_the_next_attempt_finds_what_any_one_finished(
    tmp_path: Path,
) -> None:
    first = await opened(tmp_path, 0, subtasks=3)
    for index, journal in enumerate(first):
        finish(journal, f"a{index}", f"b{index}")
    await close(first)
    names = ["a0", "a1", "a2", "b0", "b1", "b2"]
    second = await opened(tmp_path, 1, subtasks=2)
    for journal in second:
        assert await known(journal, *names, "other") == names
    await close(second)


@pytest.mark.usefixtures("anywhere")
async def test_what_was_finished_is_found_in_the_same_attempt(tmp_path: Path) -> None:
    journals = await opened(tmp_path, 0)
    finish(journals[0], "a", "b")
    assert await known(journals[0], "a", "b", "c") == ["a", "b"]
    await close(journals)


@pytest.mark.usefixtures("anywhere")
async def test_it_is_found_attempt_after_attempt_while_nothing_is_pruned(
    tmp_path: Path,
) -> None:
    for epoch in range(5):
        journals = await opened(tmp_path, epoch)
        names = [f"n{number}" for number in range(epoch)]
        assert await known(journals[0], *names) == names
        finish(journals[0], f"n{epoch}")
        await close(journals)


async def test_entries_before_the_oldest_checkpoint_are_deleted(tmp_path: Path) -> None:
    journals = await opened(tmp_path, 0)
    (journal,) = journals
    for checkpoint in (1, 2, 3):
        finish(journal, f"before {checkpoint}")
        journal.mark(checkpoint, held=None)
    finish(journal, "after 3")
    await journal.sync()
    job(tmp_path).prune(2)
    # Whoever asks for one that was pruned is told, and does not fail.
    place = journal.find(b"before 1")
    assert place is not None
    assert await journal.read([place]) == [None]
    await close(journals)
    names = [*(f"before {number}" for number in (1, 2, 3)), "after 3"]
    assert await left(tmp_path, 1, *names, oldest=2) == ["before 3", "after 3"]
    assert job(tmp_path).pruned_to == 2


@pytest.mark.usefixtures("anywhere")
async def test_an_entry_whose_row_has_not_left_is_kept(tmp_path: Path) -> None:
    journals = await opened(tmp_path, 0)
    (journal,) = journals
    finish(journal, "gone")
    journal.mark(1, held=None)
    held = journal.segment
    finish(journal, "held")
    journal.mark(2, held=held)
    finish(journal, "also gone")
    journal.mark(3, held=held)
    await close(journals)
    job(tmp_path).prune(3)
    names = ["gone", "held", "also gone"]
    assert await left(tmp_path, 1, *names, oldest=3) == ["held", "also gone"]


async def test_checkpoints_of_an_idle_operator_leave_nothing_to_load(
    tmp_path: Path,
) -> None:
    journals = await opened(tmp_path, 0)
    (journal,) = journals
    finish(journal, "a")
    held = journal.segment
    journal.mark(1, held=held)
    for checkpoint in range(2, 50):
        journal.mark(checkpoint, held=None)
    await close(journals)
    files = list(tmp_path.rglob("*.log"))
    assert len(files) == 3
    job(tmp_path).prune(49)
    assert await left(tmp_path, 1, "a", oldest=49) == []


async def test_a_row_that_came_again_and_left_is_forgotten_at_last(
    tmp_path: Path,
) -> None:
    first = await opened(tmp_path, 0)
    finish(first[0], "a", "b")
    await close(first)
    second = await opened(tmp_path, 1, oldest=None)
    (journal,) = second
    for name in (b"a", b"b"):
        place = journal.find(name)
        assert place is not None
        journal.note_found(name, place)
    # A second record of that id is answered, too.
    assert await known(journal, "a") == ["a"]
    journal.mark(1, held=None)
    master = job(tmp_path)
    master.prune(0)
    assert list(tmp_path.glob("op-ask/base-*"))
    master.prune(1)
    assert not list(tmp_path.glob("op-ask/base-*"))
    await close(second)
    assert await left(tmp_path, 2, "a", "b", oldest=1) == []


@pytest.mark.usefixtures("anywhere")
async def test_a_row_that_has_not_come_again_is_kept_through_checkpoints(
    tmp_path: Path,
) -> None:
    first = await opened(tmp_path, 0)
    finish(first[0], "a", "slow")
    await close(first)
    second = await opened(tmp_path, 1, oldest=None)
    place = second[0].find(b"a")
    assert place is not None
    second[0].note_found(b"a", place)
    second[0].mark(1, held=None)
    master = job(tmp_path)
    master.prune(1)
    await close(second)
    assert await left(tmp_path, 2, "a", "slow", oldest=1) == ["slow"]


async def test_an_older_attempt_appends_nothing(tmp_path: Path) -> None:
    old = await opened(tmp_path, 0)
    finish(old[0], "a")
    new = await opened(tmp_path, 1)
    with pytest.raises(FencedError, match="attempt 0 may not write to"):
        finish(old[0], "b")
    with pytest.raises(FencedError):
        await old[0].sync()
    assert await known(new[0], "a", "b") == ["a"]
    await close(old)
    await close(new)
    with pytest.raises(FencedError):
        job(tmp_path).begin(1, {"ask": [0]})


async def test_an_older_attempt_is_refused_also_when_its_journal_is_gone(
    tmp_path: Path,
) -> None:
    """A later attempt has finished, and removed it."""
    (old,) = await opened(tmp_path / "journal", 0)
    finish(old, "a")
    await close(await opened(tmp_path / "journal", 1))
    job(tmp_path / "journal").remove()
    with pytest.raises(FencedError, match="attempt 0 may not write to"):
        await old.sync()
    # A writer that was shut out leaves nothing.
    await old.close()


@pytest.mark.usefixtures("anywhere")
async def test_a_task_of_an_older_attempt_that_opens_late_is_refused(
    tmp_path: Path,
) -> None:
    job(tmp_path).begin(0, {"ask": [0]})
    late = journals_of(tmp_path, 0).journal("ask", 0)
    new = await opened(tmp_path, 1)
    with pytest.raises(FencedError):
        await late.open()
    await close([late, *new])


@pytest.mark.usefixtures("anywhere")
async def test_what_is_closed_holds_no_file_open(tmp_path: Path) -> None:
    async def live(epoch: int) -> None:
        journals = await opened(tmp_path, epoch)
        finish(journals[0], f"n{epoch}")
        await close(journals)
        late = journals_of(tmp_path, epoch).journal("ask", 0)
        job(tmp_path).begin(epoch + 1, {"ask": [0]})
        # Its traceback keeps everything that is not closed.
        with pytest.raises(FencedError) as caught:
            await late.open()
        await late.close()
        assert str(epoch) in str(caught.value)
        assert set(os.listdir("/proc/self/fd")) <= before

    before = {str(number) for number in range(10_000)}
    # What is imported, and the threads.
    await live(0)
    before = set(os.listdir("/proc/self/fd"))
    await live(2)


async def test_the_fence_is_durable_before_the_logs_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a loss of power lets a writer in whose later entries nobody reads."""
    steps: list[str] = []
    fsync, read = os.fsync, log_directories

    def synced(file: int) -> None:
        steps.append(f"sync {Path(os.readlink(f'/proc/self/fd/{file}')).name}")
        fsync(file)

    def reading(operator: Path) -> list[LogDirectory]:
        steps.append("read")
        return read(operator)

    monkeypatch.setattr(fence_module.os, "fsync", synced)
    monkeypatch.setattr(job_module, "log_directories", reading)
    job(tmp_path).begin(0, {"ask": [0]})
    before = steps[: steps.index("read")]
    assert before[-2:] == ["sync fence", "sync op-ask"]


async def test_a_number_of_the_fence_that_a_crash_cut_off_was_never_there(
    tmp_path: Path,
) -> None:
    await close(await opened(tmp_path, 0))
    operator = tmp_path / "op-ask"
    with open(operator / "fence", "ab") as file:
        file.write(b"\xff\xff\xff")
    assert fenced_epochs(operator) == [0]
    job(tmp_path).begin(1, {"ask": [2]}, is_whole=False)
    assert fenced_epochs(operator) == [0, -1, 1]


async def test_an_entry_that_lost_the_race_does_not_count(tmp_path: Path) -> None:
    """It was appended after the new attempt had read, and the writer hears of that."""
    old = await opened(tmp_path, 0)
    fence = old[0]._fence
    # It has looked a moment ago.
    old[0]._fence = SimpleNamespace(check=lambda: None)
    new = await opened(tmp_path, 1)
    finish(old[0], "late")
    old[0]._fence = fence
    with pytest.raises(FencedError):
        await old[0].sync()
    await close(old)
    assert await known(new[0], "late") == []
    await close(new)
    assert await left(tmp_path, 2, "late", oldest=None) == []


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("failed", [0, 1])
async def test_subtasks_that_go_on_are_not_shut_out(
    tmp_path: Path, failed: int
) -> None:
    other = 1 - failed
    before = await opened(tmp_path, 0, subtasks=2)
    finish(before[other], "a")
    finish(before[failed], "b")
    await before[failed].sync()
    job(tmp_path).begin(1, {"ask": [failed]}, is_whole=False)
    again = journals_of(tmp_path, 1).journal("ask", failed)
    await again.open()
    finish(before[other], "c")
    await before[other].sync()
    with pytest.raises(FencedError):
        finish(before[failed], "d")
        # On an object store it is known only now.
        await before[failed].sync()
    assert await known(again, "a", "b") == ["b"]
    await close([*before, again])
    third = await opened(tmp_path, 2, subtasks=2)
    assert await known(third[1], "a", "b", "c") == ["a", "b", "c"]
    await close(third)


async def test_subtasks_of_a_wider_time_are_shut_out_too(tmp_path: Path) -> None:
    wide = await opened(tmp_path, 0, subtasks=3)
    finish(wide[2], "a")
    (narrow,) = await opened(tmp_path, 1)
    with pytest.raises(FencedError):
        finish(wide[2], "b")
    assert await known(narrow, "a") == ["a"]
    await close([*wide, narrow])


async def test_a_crash_while_an_attempt_begins_loses_nothing(tmp_path: Path) -> None:
    first = await opened(tmp_path, 0)
    finish(first[0], "a", "b")
    await close(first)
    operator = next(tmp_path.glob("op-*"))
    kept = {path: path.read_bytes() for path in operator.rglob("*.log")}
    job(tmp_path).begin(1, {"ask": [0]})
    # As if it had crashed before it deleted what it had put together.
    for path, data in kept.items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    (operator / "base-000000009.part").mkdir()
    assert await left(tmp_path, 2, "a", "b", oldest=None) == ["a", "b"]
    assert len(list(operator.glob("base-*"))) == 2


async def test_the_newest_of_two_bases_counts(tmp_path: Path) -> None:
    """A crash came between making it and deleting the one before."""
    for epoch, name in enumerate("abcdefghi"):
        journals = await opened(tmp_path, epoch)
        finish(journals[0], name)
        await close(journals)
    operator = tmp_path / "op-ask"
    (base,) = base_directories(operator)
    kept = {path.name: path.read_bytes() for path in base.iterdir()}
    job(tmp_path).begin(9, {"ask": [0]})
    base.mkdir()
    for name, data in kept.items():
        (base / name).write_bytes(data)
    journal = journals_of(tmp_path, 9).journal("ask", 0)
    await journal.open()
    assert await known(journal, *"abcdefghi") == list("abcdefghi")
    await journal.close()
    assert base_directories(operator) == [base, operator / "base-000000009"]


async def test_a_job_that_may_begin_from_its_beginning_finds_all_calls(
    tmp_path: Path,
) -> None:
    (journal,) = await opened(tmp_path, 0)
    finish(journal, "a")
    journal.mark(1, held=None)
    finish(journal, "b")
    await journal.close()
    assert await left(tmp_path, 1, "a", "b", oldest=None) == ["a", "b"]


async def test_a_base_that_is_damaged_is_not_passed_over(tmp_path: Path) -> None:
    """Neither by a worker that reads it nor where the next one is made of it."""
    await close_with(await opened(tmp_path, 0), "a", "b")
    await close_with(await opened(tmp_path, 1), "c")
    (path,) = tmp_path.rglob("base-*/*.log")
    # The last entry: a base is whole before it is one, so no crash tears its end.
    change(path, 1)
    journal = journals_of(tmp_path, 1).journal("ask", 0)
    with pytest.raises(DamagedFileError, match="Delete it to make those calls"):
        await journal.open()
    await journal.close()
    with pytest.raises(DamagedFileError, match="Delete it to make those calls"):
        job(tmp_path).begin(2, {"ask": [0]})


async def test_only_the_last_segment_of_a_log_may_have_a_torn_end(
    tmp_path: Path,
) -> None:
    (journal,) = await opened(tmp_path, 0)
    finish(journal, "a", "b")
    journal.mark(1, held=journal.segment)
    finish(journal, "c")
    await journal.close()
    path = min(tmp_path.rglob("log-*/*.log"))
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DamagedFileError, match="Delete it to make those calls"):
        job(tmp_path).begin(1, {"ask": [0]}, oldest=1)


def find_again(journal: SubtaskJournal, *names: str) -> None:
    """Let rows come again whose calls an earlier attempt had finished."""
    for name in names:
        place = journal.find(name.encode())
        assert place is not None
        journal.note_found(name.encode(), place)


@pytest.mark.usefixtures("anywhere")
async def test_a_row_that_comes_again_names_the_segment_that_it_needs(
    tmp_path: Path,
) -> None:
    await close_with(await opened(tmp_path, 0), "a")
    (journal,) = await opened(tmp_path, 1)
    finish(journal, "b")
    journal.mark(3, held=0)
    finish(journal, "c")
    # A checkpoint that comes late divides nothing.
    journal.mark(3, held=0)
    journal.mark(2, held=0)
    assert journal.segment == 3
    segments = []
    for name in (b"a", b"b", b"c"):
        place = journal.find(name)
        assert place is not None
        segments.append(journal.note_found(name, place))
    # What was found in the base is noted in the present segment.
    assert segments == [3, 0, 3]
    await journal.close()
    # The task may not know yet that it is closed.
    journal.mark(4, held=None)
    await journal.sync()
    assert journal.segment == 3


async def test_what_is_synced_is_durable_before_the_fence_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an entry could count that a loss of power takes away."""
    steps: list[str] = []
    sync = AppendLog.sync

    def synced(log: AppendLog) -> None:
        sync(log)
        steps.append("sync")

    (journal,) = await opened(tmp_path, 0)
    fence = journal._fence
    assert fence is not None
    monkeypatch.setattr(AppendLog, "sync", synced)
    monkeypatch.setattr(journal, "_commit", lambda: steps.append("commit"))
    monkeypatch.setattr(fence, "check_anew", lambda: steps.append("fence"))
    finish(journal, "a")
    await journal.sync()
    assert steps == ["sync", "commit", "fence"]
    await journal.close()


async def test_a_base_is_deleted_when_the_last_of_its_rows_has_left(
    tmp_path: Path,
) -> None:
    await close_with(await opened(tmp_path, 0), "a", "b", "c")
    (journal,) = await opened(tmp_path, 1)
    master = job(tmp_path)
    for checkpoint, name in enumerate("abc", 1):
        assert base_directories(tmp_path / "op-ask")
        find_again(journal, name)
        journal.mark(checkpoint, held=None)
        master.prune(checkpoint)
    assert not base_directories(tmp_path / "op-ask")
    await journal.close()


async def test_a_base_that_was_made_anew_is_kept_for_all_of_its_rows(
    tmp_path: Path,
) -> None:
    """Also by a master that knew what was in the one before."""
    await close_with(await opened(tmp_path, 0), "a", "b")
    master = job(tmp_path)
    master.begin(1, {"ask": [0]})
    journal = journals_of(tmp_path, 1).journal("ask", 0)
    await journal.open()
    find_again(journal, "a")
    journal.mark(1, held=None)
    master.prune(1)
    await close_with([journal], "c")
    master.begin(2, {"ask": [0]}, oldest=1)
    journal = journals_of(tmp_path, 2).journal("ask", 0)
    await journal.open()
    find_again(journal, "b")
    journal.mark(2, held=None)
    master.prune(2)
    await journal.close()
    assert await left(tmp_path, 3, "a", "b", "c", oldest=2) == ["c"]


async def test_damage_is_not_passed_over(tmp_path: Path) -> None:
    first = await opened(tmp_path, 0)
    finish(first[0], "a", "b")
    first[0].mark(1, held=first[0].segment)
    finish(first[0], "c")
    await close(first)
    path = min(tmp_path.rglob("log-*/*.log"))
    data = bytearray(path.read_bytes())
    data[25] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedFileError, match="Delete it to make those calls"):
        job(tmp_path).begin(1, {"ask": [0]}, oldest=1)
    path.unlink()
    assert await left(tmp_path, 2, "a", "b", "c", oldest=1) == ["c"]


def change(path: Path, entry: int) -> None:
    """Change a byte of the content of one entry of a segment."""
    segment = LogSegment(path.parent, int(path.stem))
    place = [place for place, _ in segment.entries()][entry]
    data = bytearray(path.read_bytes())
    data[place + 9] ^= 1
    path.write_bytes(data)


async def test_damage_of_the_newest_file_is_not_taken_for_a_torn_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One changed byte would make all calls again that were finished later."""
    (journal,) = await opened(tmp_path, 0)
    finish(journal, *(f"n{number}" for number in range(200)))
    await journal.close()
    (path,) = tmp_path.rglob("log-*/*.log")
    whole = path.read_bytes()
    change(path, 63)
    for epoch in (1, 2):
        with pytest.raises(DamagedFileError) as caught:
            job(tmp_path).begin(epoch, {"ask": [0]})
    assert str(path) in str(caught.value)
    assert "no crash does that" in str(caught.value)
    assert "Delete it to make those calls again" in str(caught.value)
    # What a crash tears is passed over, and said.
    path.write_bytes(whole[:-5])
    with caplog.at_level("WARNING", "aiomailbox"):
        assert await left(tmp_path, 3, "n63", "n198", "n199", oldest=None) == [
            "n63",
            "n198",
        ]
    (line,) = caplog.records
    assert vars(line)["path"] == str(path)
    assert vars(line)["length"] == 8 + 10 + len("n199") + len("result of n199") - 5


async def test_an_object_has_no_torn_end(tmp_path: Path) -> None:
    """It is there as a whole or not at all: what is not whole is damage."""
    storage = remote(tmp_path)
    (journal,) = await opened(tmp_path, 0)
    finish(journal, "a", "b")
    await journal.close()
    (part,) = [name for name in storage.names() if "/log-" in name]
    storage.write(part, [bytes(storage.view(part))[:-1]])
    with pytest.raises(DamagedFileError, match="Delete it to make those calls"):
        job(tmp_path).begin(1, {"ask": [0]})


@pytest.mark.parametrize("torn", [False, True])
async def test_a_damaged_copy_of_a_log_is_not_uploaded_up_to_the_damage(
    tmp_path: Path, torn: bool
) -> None:
    storage = remote(tmp_path)
    (journal,) = await opened(tmp_path, 0)
    finish(journal, "a", "b", "c")
    path = journal._path / "000000000000.log"
    if not torn:
        change(path, 1)
    journal.mark(1, held=0)
    if torn:
        # No crash does that to a segment that is complete.
        os.truncate(path, path.stat().st_size - 5)
    with pytest.raises(DamagedFileError, match="entry"):
        await journal.sync()
    assert not [name for name in storage.names() if "/log-" in name]
    journal._commit = lambda: None
    await journal.close()


async def test_an_entry_that_is_just_being_appended_comes_with_the_next_upload(
    tmp_path: Path,
) -> None:
    storage = remote(tmp_path)
    (journal,) = await opened(tmp_path, 0)
    finish(journal, "a")
    path = journal._path / "000000000000.log"
    (entry,) = LogSegment(path.parent, 0).entries()
    end = entry[0] + 8 + len(entry[1])
    with open(path, "r+b") as file:
        # Its length is there, and its content is not.
        file.seek(end)
        file.write((20).to_bytes(4, "little"))
    await journal.sync()
    (part,) = [name for name in storage.names() if "/log-" in name]
    assert len(storage.view(part)) == end
    finish(journal, "b")
    await journal.close()
    assert await left(tmp_path, 1, "a", "b", oldest=None) == ["a", "b"]


async def test_what_was_released_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    """Else what its owner has let go would be found again."""
    first = await opened(tmp_path, 0)
    finish(first[0], "a", "b", "c", "d")
    await close(first)
    (journal,) = second = await opened(tmp_path, 1)
    for name in (b"a", b"b", b"c"):
        place = journal.find(name)
        assert place is not None
        journal.note_found(name, place)
    journal.mark(1, held=None)
    finish(journal, "e")
    await close(second)
    job(tmp_path).prune(1)
    (path,) = tmp_path.rglob("released/*.log")
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"b", b"B"))
    with pytest.raises(DamagedFileError, match="no crash does that"):
        job(tmp_path).begin(2, {"ask": [0]}, oldest=1)
    path.write_bytes(whole)
    assert await left(tmp_path, 3, *"abcde", oldest=1) == ["d", "e"]


async def test_how_far_it_was_pruned_is_a_number(tmp_path: Path) -> None:
    await close(await opened(tmp_path, 0))
    assert job(tmp_path).pruned_to == 0
    job(tmp_path).prune(7)
    # A checkpoint that is kept longer brings nothing back.
    job(tmp_path).prune(3)
    assert job(tmp_path).pruned_to == 7
    (tmp_path / "pruned").write_bytes(b"&")
    with pytest.raises(DamagedFileError, match="not a number"):
        _ = job(tmp_path).pruned_to


async def test_a_journal_without_a_master_passes_over_no_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = SharedJournals(tmp_path).journal("ask", 0)
    await first.open()
    finish(first, "a", "b", "c")
    # While its writer goes on, the room behind is nothing to be told of.
    second = SharedJournals(tmp_path).journal("ask", 1)
    with caplog.at_level("WARNING", "aiomailbox"):
        await second.open()
    assert await known(second, *"abc") == ["a", "b", "c"]
    assert not caplog.records
    await close([first, second])
    path = first._path / "000000000000.log"
    change(path, 1)
    with pytest.raises(DamagedFileError, match="Delete it to make those calls"):
        await SharedJournals(tmp_path).journal("ask", 0).open()


async def test_a_journal_without_a_master_finds_results_beside_all_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = SharedJournals(tmp_path).journal("ask", 0)
    await first.open()
    await close_with([first], "a", "b", "c")
    second = SharedJournals(tmp_path).journal("ask", 0)
    await second.open()
    # That a row has come again is no result.
    find_again(second, "a")
    await close([second])
    # Another attempt is just making its log, and one was killed while it appended.
    new = tmp_path / "op-ask" / "log-000000001-000000"
    new.mkdir()
    (new / "000000000000.log").write_bytes(bytes(4096))
    path = first._path / "000000000000.log"
    path.write_bytes(path.read_bytes()[:-5])
    third = SharedJournals(tmp_path).journal("ask", 1)
    with caplog.at_level("WARNING", "aiomailbox"):
        await third.open()
    assert await known(third, *"abc") == ["a", "b"]
    assert [vars(line)["path"] for line in caplog.records] == [str(path)]
    await close([third])


@pytest.mark.usefixtures("anywhere")
async def test_the_index_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals_module, "_REMEMBERED", 10)
    journals = await opened(tmp_path, 0)
    (journal,) = journals
    for number in range(1000):
        finish(journal, f"n{number}")
    assert len(journal._recent) + len(journal._older) <= 20
    last = [f"n{number}" for number in range(990, 1000)]
    assert await known(journal, *last) == last
    await close(journals)


@pytest.mark.usefixtures("anywhere")
async def test_epochs_grow_over_programs(tmp_path: Path) -> None:
    assert job(tmp_path).next_epoch() == 0
    assert job(tmp_path).next_epoch(7) == 7
    await close(await opened(tmp_path, 7))
    assert job(tmp_path).next_epoch(3) == 8


async def test_a_job_that_ended_well_leaves_nothing(tmp_path: Path) -> None:
    await close(await opened(tmp_path / "journal", 0))
    job(tmp_path / "journal").remove()
    assert list(tmp_path.iterdir()) == []
    job(tmp_path / "journal").remove()


@pytest.mark.parametrize("identity", [None, 1.5, True, ["a"], (), ("a", None)])
def test_what_is_no_id_is_refused(identity: object) -> None:
    with pytest.raises(WrongTypeError, match="The id of a record is a str"):
        record_key(identity)


def test_keys_are_short_and_differ() -> None:
    ids = [
        "",
        "a",
        1,
        "1",
        b"1",
        ("1",),
        (1, "1"),
        "x" * 100,
        "x" * 101,
        2**70,
        -(2**70),
        "\ud800",
        "\udfff",
    ]
    keys = [record_key(each) for each in ids]
    assert len(set(keys)) == len(ids)
    assert max(map(len, keys)) <= 32


def test_a_key_is_what_earlier_versions_have_written() -> None:
    def digest(data: bytes) -> bytes:
        return b"\xc1" + hashlib.blake2b(data, digest_size=16).digest()

    assert record_key("a") == b"\xa1a"
    # 32 bytes are kept, and no more.
    assert record_key(bytes(30)) == b"\xc4\x1e" + bytes(30)
    assert record_key(bytes(31)) == digest(b"\xc4\x1f" + bytes(31))
    assert record_key(2**70) == digest(b"1180591620717411303424")
    assert record_key("\ud800") == digest(b"'\\ud800'")


def test_an_entry_is_what_earlier_versions_have_written() -> None:
    data = [encode_entry(kind, b"k", PRINT, b"p") for kind in EntryKind]
    assert data == [bytes([number, 1]) + PRINT + b"kp" for number in (1, 2, 3, 4)]
    assert encode_mark(258) == b"\x04\x00" + bytes(8) + b"\x02\x01" + bytes(6)


def test_each_operator_has_one_directory_whatever_its_id() -> None:
    ids = ["ask", "ask/1", "../ask", "ä" * 100, "a" * 120, "a" * 300, "a" * 299 + "b"]
    found = [operator_directory(Path("journal"), one) for one in ids]
    assert len({path.name for path in found}) == len(ids)
    assert {path.parent for path in found} == {Path("journal")}
    assert max(len(path.name) for path in found) <= 140
    # Where earlier versions have it.
    assert found[4].name == "op-" + "a" * 120
    assert found[5].name == "op-" + "a" * 120 + "~" + "8b397aa4c75429a2"


def test_logs_are_found_older_epochs_first_and_nothing_else(tmp_path: Path) -> None:
    numbers = [(epoch, subtask) for epoch in (10, 2, 300, 7, 1) for subtask in (1, 0)]
    for epoch, subtask in numbers:
        (tmp_path / f"log-{epoch:09}-{subtask:06}").mkdir()
    for name in ("log-1-x", "log-x-1", "log--1", "log-1-", "base-1-2"):
        (tmp_path / name).mkdir()
        assert LogDirectory.parse(tmp_path / name) is None
    found = log_directories(tmp_path)
    assert [(log.epoch, log.subtask) for log in found] == sorted(numbers)


def test_what_the_base_before_has_and_the_newest_lacks_was_let_go(
    tmp_path: Path,
) -> None:
    for epoch, key in ((10, b"b"), (2, b"a"), (300, b"d"), (11, b"c")):
        log = AppendLog(tmp_path / f"base-{epoch:09}")
        log.append([encode_entry(EntryKind.RESULT, key, PRINT, b"")])
        log.close()
    # One that was not finished.
    (tmp_path / "base-000000301.part").mkdir()
    names = [base.name for base in base_directories(tmp_path)]
    assert names == [f"base-{epoch:09}" for epoch in (2, 10, 11, 300)]
    before = FinishedBefore(tmp_path)
    assert list(before.places) == [b"d"]
    before.close()
    before.close()


def test_a_segment_whose_mark_was_not_written_needs_what_the_one_before_does(
    tmp_path: Path,
) -> None:
    result = encode_entry(EntryKind.RESULT, b"a", PRINT, b"result")
    log = AppendLog(tmp_path)
    log.append([result])
    log.roll(2)
    log.append([encode_mark(1), result])
    # The disk was full.
    log.roll(3)
    log.append([result])
    log.close()
    segments = LogSegment.all_in(tmp_path)
    needed = [first_needed(segments, checkpoint) for checkpoint in (None, 1, 2, 3, 9)]
    assert needed == [0, 0, 1, 1, 1]


def test_an_entry_without_a_head_is_damaged() -> None:
    data = encode_entry(EntryKind.RESULT, b"", PRINT, b"")
    assert decode_entry("log", data) == (EntryKind.RESULT, b"", PRINT, b"")
    with pytest.raises(DamagedFileError, match="log"):
        decode_entry("log", data[:-1])


WRITER = """
    import asyncio, os, sys
    from pathlib import Path
    from aiomailbox.errors import FencedError
    from aiomailbox.journal.place import JournalPlace
    from aiomailbox.journal import EntryKind, Journals

    async def main():
        place = JournalPlace(Path(sys.argv[1]))
        journal = Journals(place, 0).journal("ask", 0)
        await journal.open()
        for number in range(10**9):
            try:
                key = b"%d" % number
                journal.append(EntryKind.RESULT, key, b"01234567", b"result of " + key)
                await journal.sync()
            except FencedError as error:
                os.write(1, b"fenced\\n")
                return
            os.write(1, b"%d\\n" % number)

    asyncio.run(main())
"""


@pytest.mark.real_time
@pytest.mark.parametrize("lines", [20, 34])
async def test_a_process_that_was_stopped_and_wakes_up_finishes_nothing(
    tmp_path: Path, lines: int
) -> None:
    job(tmp_path).begin(0, {"ask": [0]})
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            for _ in range(lines):
                child.stdout.readline()
            os.kill(child.pid, signal.SIGSTOP)
            os.waitpid(child.pid, os.WUNTRACED)
            (journal,) = await opened(tmp_path, 1)
            before = {path for path in tmp_path.rglob("*") if path.is_file()}
            os.kill(child.pid, signal.SIGCONT)
            *told, last = child.stdout.read().splitlines()
            assert last == b"fenced"
            # What it said was finished before it was stopped; nothing came after.
            numbers = [*range(lines), *map(int, told)]
            names = [str(number) for number in range(len(numbers) + 5)]
            found = await known(journal, *names)
            assert found[: len(numbers)] == [str(number) for number in numbers]
            assert len(found) <= len(numbers) + 1
            assert {path for path in tmp_path.rglob("*") if path.is_file()} == before
            await journal.close()
        finally:
            child.kill()


@pytest.mark.real_time
async def test_what_was_appended_survives_a_kill(tmp_path: Path) -> None:
    job(tmp_path).begin(0, {"ask": [0]})
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        for _ in range(50):
            child.stdout.readline()
        os.kill(child.pid, signal.SIGKILL)
        told = 50 + len(child.stdout.read().splitlines())
    (journal,) = await opened(tmp_path, 1)
    names = [str(number) for number in range(told)]
    assert await known(journal, *names) == names
    await journal.close()


@pytest.mark.usefixtures("anywhere")
async def test_what_left_before_the_oldest_checkpoint_is_not_taken_along(
    tmp_path: Path,
) -> None:
    """Also if nobody came to prune it before the crash."""
    first = await opened(tmp_path, 0)
    finish(first[0], "a", "b")
    await close(first)
    (journal,) = second = await opened(tmp_path, 1)
    place = journal.find(b"a")
    assert place is not None
    journal.note_found(b"a", place)
    finish(journal, "c")
    journal.mark(1, held=None)
    finish(journal, "d")
    await close(second)
    assert await left(tmp_path, 2, "a", "b", "c", "d", oldest=1) == ["b", "d"]


def remote(directory: Path) -> RemoteStorage:
    """Keep the journals of a directory's test where nothing is appended to."""
    storage = RemoteStorage(f"memory://{directory}")
    REMOTE[directory] = RemotePlace(storage, "job/journal", directory / "master")
    return storage


async def test_what_comes_late_to_an_object_store_does_not_count(
    tmp_path: Path,
) -> None:
    """A writer was stopped between its last look at the fence and its upload."""
    storage = remote(tmp_path)
    old = await opened(tmp_path, 0, subtasks=2)
    finish(old[0], "a")
    await old[0].sync()
    new = await opened(tmp_path, 1, subtasks=2)
    for journal in old:
        journal._fence = SimpleNamespace(
            check=lambda: None, check_anew=lambda: None, close=lambda: None
        )
        finish(journal, "late")
        await journal.sync()
    assert len([name for name in storage.names() if "/log-000000000-" in name]) == 2
    assert await known(new[0], "a", "late") == ["a"]
    await close([*old, *new])
    assert await left(tmp_path, 2, "a", "late", oldest=None) == ["a"]
    assert not [name for name in storage.names() if "/log-000000000-" in name]


async def test_a_job_goes_on_from_an_object_store_on_another_machine(
    tmp_path: Path,
) -> None:
    storage = remote(tmp_path)
    old = await opened(tmp_path, 0, subtasks=3)
    finish(old[2], "a")
    await old[2].sync()
    REMOTE[tmp_path] = RemotePlace(storage, "job/journal", tmp_path / "another")
    new = await opened(tmp_path, 1)
    assert await known(new[0], "a") == ["a"]
    # Those of a time with more subtasks are shut out from there, too.
    finish(old[2], "b")
    with pytest.raises(FencedError):
        await old[2].sync()
    await close([*old, *new])
    REMOTE[tmp_path] = RemotePlace(storage, "job/journal", tmp_path / "a third one")
    assert job(tmp_path).next_epoch() == 2
    assert await left(tmp_path, 2, "a", "b", oldest=None) == ["a"]


async def test_attempts_are_told_apart_whichever_machine_began_them(
    tmp_path: Path,
) -> None:
    storage = remote(tmp_path)
    first = REMOTE[tmp_path]
    await close(await opened(tmp_path, 0))
    REMOTE[tmp_path] = RemotePlace(storage, "job/journal", tmp_path / "another")
    await close_with(await opened(tmp_path, 1), "a")
    REMOTE[tmp_path] = first
    with pytest.raises(FencedError):
        job(tmp_path).begin(1, {"ask": [0]})
    assert job(tmp_path).next_epoch() == 2
    assert await left(tmp_path, 2, "a", oldest=None) == ["a"]


async def test_what_was_let_go_is_not_found_again_on_another_machine(
    tmp_path: Path,
) -> None:
    storage = remote(tmp_path)
    await close_with(await opened(tmp_path, 0), "a", "b")
    (journal,) = await opened(tmp_path, 1)
    find_again(journal, "a")
    journal.mark(1, held=None)
    await close_with([journal], "c")
    job(tmp_path).prune(1)
    REMOTE[tmp_path] = RemotePlace(storage, "job/journal", tmp_path / "another")
    assert job(tmp_path).next_epoch() == 2
    assert job(tmp_path).pruned_to == 1
    assert await left(tmp_path, 2, "a", "b", "c", oldest=1) == ["b", "c"]


async def test_a_writer_that_was_shut_out_uploads_nothing_when_it_closes(
    tmp_path: Path,
) -> None:
    storage = remote(tmp_path)
    old = await opened(tmp_path, 0)
    new = await opened(tmp_path, 1)
    # It has not looked since.
    await close_with(old, "late")
    assert not [name for name in storage.names() if "/log-000000000-" in name]
    await close(new)


async def test_journals_of_one_process_share_a_directory_that_goes_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote(tmp_path)
    made: list[Path] = []

    class Noted(ScratchDirectory):
        def __init__(self) -> None:
            super().__init__()
            made.append(self.path)

    monkeypatch.setattr(journals_module, "ScratchDirectory", Noted)
    job(tmp_path).begin(0, {"ask": range(2)})
    journals = journals_of(tmp_path, 0)
    for _ in range(2):
        both = [journals.journal("ask", subtask) for subtask in range(2)]
        for journal in both:
            await journal.open()
        assert made[-1].is_dir()
        await close(both)
        assert not made[-1].exists()
    assert len(made) == 2


async def test_what_is_uploaded_until_the_fence_is_raised_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote(tmp_path)
    (journal,) = await opened(tmp_path, 0)
    place = REMOTE[tmp_path]
    publish = place.publish

    def publish_late(written: Path) -> None:
        if written.name == "fence":
            finish(journal, "a")
            journal._sync()
        publish(written)

    monkeypatch.setattr(place, "publish", publish_late)
    new = await opened(tmp_path, 1)
    assert await known(new[0], "a") == ["a"]
    await close([journal, *new])


async def test_an_object_that_is_missing_is_not_passed_over(tmp_path: Path) -> None:
    storage = remote(tmp_path)
    (journal,) = await opened(tmp_path, 0)
    for name in ("a", "b", "c"):
        finish(journal, name)
        await journal.sync()
    await journal.close()
    parts = [name for name in storage.names() if "/log-" in name]
    # One for each group commit.
    assert len(parts) == 3
    storage.delete(parts[1:2])
    with pytest.raises(DamagedFileError, match="is missing"):
        job(tmp_path).begin(1, {"ask": [0]})


async def test_pruning_and_success_delete_objects(tmp_path: Path) -> None:
    storage = remote(tmp_path)
    (journal,) = await opened(tmp_path, 0)
    for checkpoint in range(1, 20):
        finish(journal, f"n{checkpoint}")
        await journal.sync()
        journal.mark(checkpoint, held=None)
    await journal.sync()
    job(tmp_path).prune(18)
    assert len([name for name in storage.names() if "/log-" in name]) == 2
    # And with the next upload the copies that the writer had.
    finish(journal, "n20")
    journal.mark(20, held=None)
    await journal.sync()
    assert len(list(journal._path.iterdir())) == 3
    assert job(tmp_path).pruned_to == 18
    assert await known(journal, "n19") == ["n19"]
    await journal.close()
    storage.write("job/chk-19/_metadata", [b"kept"])
    job(tmp_path).remove()
    assert storage.names() == ["job/chk-19/_metadata"]
