"""A growing directory has every committed file once, whatever dies when."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from aiomailbox.errors import SinkError, TargetExistsError
from aiomailbox.storage.commit_log import CommitLog
from aiomailbox.storage.local import Disk
from aiomailbox.storage.spark_log import SparkLog
from aiomailbox.storage.staged_directory import GrowingDirectory, StagedDirectory
from aiomailbox.storage.workplace import staging_directory
from tests.storage.disks import Died, ScriptedDisk
from tests.storage.test_directory_logs import followed, listed

CHECKPOINTS = (1, 2, 3)
OLD = "old"


class WatchedDisk(ScriptedDisk):
    """Lets a reader look before every operation, as a reader may at any time."""

    def __init__(
        self, look: Callable[[], None], dies_at: int | None, *, exchanges: bool
    ) -> None:
        super().__init__(dies_at, exchanges=exchanges)
        self._look = look

    def _enter(self, name: str, *paths: Path) -> None:
        self._look()
        super()._enter(name, *paths)


class SimulatedJob:
    """A job of three checkpoints that may die and goes on from the newest complete one.

    Args:
        target: Where it writes.
        exchanges: Whether the disk can exchange directories.
        overwrite: Whether it replaces what is there.
        has_logs: Whether readers are told of commits.
    """

    def __init__(
        self, target: Path, *, exchanges: bool, overwrite: bool, has_logs: bool
    ) -> None:
        self.target = target
        self.has_logs = has_logs
        self.exchanges = exchanges
        self.overwrite = overwrite
        # What is durable elsewhere: the newest complete checkpoint and what it has.
        self.complete: tuple[int, list[str]] = (0, [])
        self.epoch = 0
        self.gaps = 0
        self.has_seen_target = target.exists()

    def live(self, dies_at: int | None = None) -> bool:
        """Run until the end, or death; say whether the end was reached."""
        disk = WatchedDisk(self.look, dies_at, exchanges=self.exchanges)
        logs = [CommitLog("keep", disk), SparkLog(self.target, disk)]
        directory = GrowingDirectory(
            self.target,
            "job",
            overwrite=self.overwrite,
            is_resumable=True,
            disk=disk,
            logs=logs if self.has_logs else (),
        )
        try:
            self._run(directory)
        except Died:
            return False
        finally:
            claim = directory._workplace._claim
            if claim is not None:
                claim._close()
        return True

    def _run(self, directory: GrowingDirectory) -> None:
        restored_id, names = self.complete
        self.epoch += 1
        directory.begin("the test", restored=restored_id > 0)
        if restored_id:
            directory.commit(names, checkpoint_id=restored_id, is_final=False)
        directory.recover()
        for checkpoint_id in CHECKPOINTS[restored_id:]:
            name = f"job/part-{self.epoch}-{checkpoint_id}"
            place = staging_directory(self.target, "job").parent
            (place / name).write_text(str(checkpoint_id))
            # One more that no checkpoint will ever have.
            (place / f"{name}-half").touch()
            self.complete = (checkpoint_id, [name])
            directory.commit(
                [name],
                checkpoint_id=checkpoint_id,
                is_final=checkpoint_id == CHECKPOINTS[-1],
            )
        if restored_id == CHECKPOINTS[-1]:
            directory.commit([], checkpoint_id=0, is_final=True)
        directory.end(succeeded=True)

    def contents(self) -> list[str]:
        """Return what a reader finds, sorted."""
        return sorted((self.target / name).read_text() for name in self.files())

    def files(self) -> list[str]:
        """Return the names of what a reader finds."""
        found = sorted(os.listdir(self.target))
        return [name for name in found if not name.startswith((".", "_"))]

    def look(self) -> None:
        """Be a reader."""
        if not self.target.exists():
            self.gaps += self.has_seen_target
            return
        self.has_seen_target = True
        found = self.contents()
        is_whole = (self.target / "_SUCCESS").exists()
        assert found in ([OLD], [], ["1"], ["1", "2"], ["1", "2", "3"])
        assert not (is_whole and found not in ([OLD], ["1", "2", "3"]))
        assert len(found) <= self.complete[0] or found == [OLD]
        if self.has_logs and found != [OLD]:
            # What a log tells of is there, in the order of the commits; and whoever
            # waits for the mark of success has been told of all.
            for told in (followed(self.target), listed(self.target)):
                texts = [(self.target / name).read_text() for name in told]
                assert texts == found[: len(told)]
                assert len(found) - len(told) <= 1 - is_whole


def prepare(target: Path, *, has_old: bool) -> None:
    target.parent.mkdir(parents=True)
    if has_old:
        target.mkdir()
        (target / "a").write_text(OLD)
        (target / "_SUCCESS").touch()


@pytest.mark.parametrize(
    ("exchanges", "has_old", "has_logs"),
    [
        (True, True, False),
        (True, False, False),
        (False, True, False),
        (False, False, False),
        (True, False, True),
        (False, True, True),
    ],
)
def test_death_at_any_two_operations_loses_and_repeats_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    exchanges: bool,
    has_old: bool,
    has_logs: bool,
) -> None:
    """Also when it dies again while it puts right what the first death left."""
    # Programs die here, not the power.
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    first = second = 1
    # Logs have twice as many operations, and readers who look at them.
    step = 97 if has_logs else 15
    lives = 0
    while True:
        target = tmp_path / f"{first}-{second}" / "out"
        prepare(target, has_old=has_old)
        job = SimulatedJob(
            target, exchanges=exchanges, overwrite=has_old, has_logs=has_logs
        )
        ended_first = job.live(dies_at=first)
        ended_second = ended_first or job.live(dies_at=second)
        if not ended_second:
            assert job.live()
        lives += 1
        assert job.contents() == ["1", "2", "3"]
        if has_logs:
            assert sorted(followed(target)) == sorted(listed(target)) == job.files()
        assert (target / "_SUCCESS").exists()
        assert os.listdir(target.parent) == ["out"]
        # Where directories cannot be exchanged there is none for a moment.
        assert exchanges or has_old or not job.gaps
        assert not (exchanges and job.gaps)
        if ended_first:
            break
        if ended_second:
            first += 1
            # Another one of each so many operations than before.
            second = 1 + first % step
        else:
            second += step
    assert lives > 60


def begun(
    target: Path,
    token: str = "job",
    *,
    restored: bool = False,
    overwrite: bool = False,
    is_resumable: bool = True,
    disk: Disk | None = None,
) -> GrowingDirectory:
    directory = GrowingDirectory(
        target, token, overwrite=overwrite, is_resumable=is_resumable, disk=disk
    )
    directory.begin(f"job {token!r}", restored=restored)
    return directory


def stage(target: Path, name: str, text: str = "") -> str:
    token, _, rest = name.partition("/")
    path = staging_directory(target, token) / rest
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return name


def crash(directory: GrowingDirectory) -> None:
    claim = directory._workplace._claim
    assert claim is not None
    claim._close()


def names(target: Path) -> list[str]:
    return sorted(
        str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()
    )


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_files_appear_with_every_commit_and_the_marker_of_success_with_the_last(
    target: Path,
) -> None:
    directory = begun(target)
    directory.commit([stage(target, "job/a")], checkpoint_id=1, is_final=False)
    assert names(target) == [".aiomailbox", "a"]
    directory.commit([stage(target, "job/b")], checkpoint_id=2, is_final=False)
    assert names(target) == [".aiomailbox", "a", "b"]
    assert os.listdir(staging_directory(target, "job")) == [".owner"]
    directory.commit([], checkpoint_id=0, is_final=True)
    assert names(target) == [".aiomailbox", "_SUCCESS", "a", "b"]
    assert os.listdir(staging_directory(target, "job")) == [".owner"]
    directory.end(succeeded=True)


def test_what_is_replaced_is_there_until_the_first_commit(target: Path) -> None:
    target.mkdir()
    (target / "old").touch()
    directory = begun(target, overwrite=True)
    assert names(target) == ["old"]
    directory.commit([stage(target, "job/a")], checkpoint_id=1, is_final=False)
    assert names(target) == [".aiomailbox", "a"]
    directory.end(succeeded=False)
    assert names(target) == [".aiomailbox", "a"]


def test_an_execution_that_goes_on_replaces_only_what_is_not_its_own(
    target: Path,
) -> None:
    begun_first = begun(target, overwrite=True)
    begun_first.commit([stage(target, "job/a")], checkpoint_id=1, is_final=False)
    crash(begun_first)
    second = begun(target, overwrite=True, restored=True)
    second.commit([stage(target, "job/b")], checkpoint_id=2, is_final=True)
    second.end(succeeded=True)
    assert names(target) == [".aiomailbox", "_SUCCESS", "a", "b"]
    # One that begins anew and dies before its first commit has not replaced it yet.
    third = begun(target, overwrite=True)
    name = stage(target, "job/c")
    crash(third)
    assert names(target) == ["_SUCCESS", "a", "b"]
    fourth = begun(target, overwrite=True, restored=True)
    fourth.commit([name], checkpoint_id=1, is_final=False)
    fourth.end(succeeded=True)
    assert names(target) == [".aiomailbox", "c"]


def test_whoever_goes_on_after_success_takes_the_marker_of_success_away(
    target: Path,
) -> None:
    """A job that was stopped with a savepoint is not complete once it goes on."""
    first = begun(target)
    first.commit([stage(target, "job/a")], checkpoint_id=1, is_final=True)
    first.end(succeeded=True)
    second = begun(target, restored=True)
    assert names(target) == [".aiomailbox", "a"]
    second.commit([stage(target, "job/b")], checkpoint_id=2, is_final=True)
    second.end(succeeded=True)
    assert names(target) == [".aiomailbox", "_SUCCESS", "a", "b"]


def test_a_target_that_is_somebody_elses_is_refused_also_when_going_on(
    target: Path,
) -> None:
    target.mkdir()
    with pytest.raises(TargetExistsError):
        begun(target)
    with pytest.raises(TargetExistsError):
        begun(target, restored=True)
    assert os.listdir(target.parent) == ["out"]


def test_prepared_files_outlive_a_failure_and_only_they_and_only_if_resumable(
    target: Path,
) -> None:
    directory = begun(target)
    name = stage(target, "job/a")
    directory.end(succeeded=False)
    again = begun(target, restored=True)
    again.commit([name], checkpoint_id=1, is_final=False)
    stage(target, "job/half")
    again.recover()
    again.end(succeeded=False)
    assert os.listdir(staging_directory(target, "job")) == [".owner"]
    once = begun(target, restored=True, is_resumable=False)
    stage(target, "job/b")
    once.end(succeeded=False)
    assert os.listdir(target.parent) == ["out"]
    assert names(target) == [".aiomailbox", "a"]


def test_what_another_job_may_still_commit_is_not_removed_unless_told_to(
    target: Path,
) -> None:
    other = begun(target, "other")
    stage(target, "other/a")
    other.end(succeeded=False)
    with pytest.raises(SinkError, match="job 'other' has prepared") as caught:
        begun(target, "job")
    assert str(staging_directory(target, "other")) in str(caught.value)
    with pytest.raises(SinkError, match="job 'other' has prepared"):
        StagedDirectory(target, "x", overwrite=False).begin("the test")
    assert (staging_directory(target, "other") / "a").exists()
    # It is not in the way of a job that goes on, nor removed by it.
    mine = begun(target, "job", restored=True)
    mine.recover()
    mine.end(succeeded=True)
    assert (staging_directory(target, "other") / "a").exists()
    begun(target, "job", overwrite=True).end(succeeded=True)
    assert os.listdir(target.parent) == []
    begun(target, "other").end(succeeded=False)
    stage(target, "other/a")
    whole = StagedDirectory(target, "x", overwrite=True)
    whole.begin("the test")
    whole.end(succeeded=False)
    assert os.listdir(target.parent) == []


def test_a_job_that_died_before_it_prepared_anything_is_not_in_the_way(
    target: Path,
) -> None:
    crash(begun(target, "other"))
    # It has said whose that is, and dies when it does so again.
    (staging_directory(target, "other") / ".owner.part").touch()
    begun(target, "job").end(succeeded=True)
    assert os.listdir(target.parent) == []


def test_a_job_that_begins_anew_gives_up_what_it_had_prepared_unless_refused(
    target: Path,
) -> None:
    first = begun(target)
    first.commit([stage(target, "job/a")], checkpoint_id=1, is_final=False)
    name = stage(target, "job/b")
    crash(first)
    with pytest.raises(TargetExistsError):
        begun(target)
    # To forget to say that it goes on harms nothing.
    again = begun(target, restored=True)
    again.commit([name], checkpoint_id=2, is_final=False)
    stage(target, "job/c")
    crash(again)
    begun(target, overwrite=True).end(succeeded=False)
    assert os.listdir(staging_directory(target, "job")) == [".owner"]


def test_a_file_that_somebody_took_away_may_be_committed_again(target: Path) -> None:
    directory = begun(target)
    one, two = stage(target, "job/a"), stage(target, "job/b")
    directory.commit([one], checkpoint_id=1, is_final=False)
    directory.commit([one, two], checkpoint_id=2, is_final=False)
    (target / "a").unlink()
    (target / "b").unlink()
    crash(directory)
    again = begun(target, restored=True)
    again.commit([one, two], checkpoint_id=2, is_final=False)
    # Another job, which was begun from the first one's savepoint.
    crash(again)
    forked = begun(target, "fork", restored=True)
    forked.commit([one, two], checkpoint_id=2, is_final=False)
    assert names(target) == [".aiomailbox"]
    forked.end(succeeded=True)


def test_a_last_commit_may_be_repeated_though_a_reader_took_its_files_away(
    target: Path,
) -> None:
    directory = begun(target)
    one = stage(target, "job/a")
    directory.commit([one], checkpoint_id=0, is_final=True)
    (target / "a").unlink()
    directory.commit([one], checkpoint_id=0, is_final=True)
    assert names(target) == [".aiomailbox", "_SUCCESS"]
    directory.end(succeeded=True)


@pytest.mark.parametrize(
    ("checkpoint_id", "is_first", "append"),
    [(0, False, False), (2, False, False), (1, True, False), (1, True, True)],
)
def test_a_prepared_file_that_is_lost_is_an_error(
    target: Path, checkpoint_id: int, is_first: bool, append: bool
) -> None:
    if append:
        target.mkdir()
    directory = GrowingDirectory(target, "job", overwrite=False, append=append)
    directory.begin("job", restored=False)
    if not is_first:
        directory.commit([stage(target, "job/a")], checkpoint_id=1, is_final=False)
    with pytest.raises(SinkError, match=r"was prepared for .* and is gone"):
        directory.commit(["job/lost"], checkpoint_id=checkpoint_id, is_final=False)
    directory.end(succeeded=False)


def test_a_fork_is_not_taken_to_have_come_as_far_as_the_job_before_it(
    target: Path,
) -> None:
    first = begun(target)
    first.commit([stage(target, "job/a")], checkpoint_id=5, is_final=True)
    first.end(succeeded=True)
    fork = begun(target, "fork", restored=True)
    fork.commit([stage(target, "fork/b")], checkpoint_id=1, is_final=False)
    with pytest.raises(SinkError, match="is gone"):
        fork.commit(["fork/lost"], checkpoint_id=2, is_final=False)
    fork.end(succeeded=False)


@pytest.mark.parametrize("fails", [{"remove file": 1}, {"remove directory": 2}])
def test_what_cannot_be_removed_is_no_reason_to_fail_and_goes_later(
    target: Path, fails: dict[str, int]
) -> None:
    """Neither what was replaced, at the first commit, nor what is left at the end."""
    target.mkdir()
    (target / "old").touch()
    directory = begun(target, overwrite=True, disk=ScriptedDisk(fails=fails))
    directory.commit([stage(target, "job/a")], checkpoint_id=1, is_final=True)
    place = staging_directory(target, "job").parent
    assert (place / "new").exists() == ("remove file" in fails)
    directory.end(succeeded=True)
    assert names(target) == [".aiomailbox", "_SUCCESS", "a"]
    if place.exists():
        begun(target, "next", overwrite=True).end(succeeded=True)
    assert os.listdir(target.parent) == ["out"]


def test_an_execution_that_was_refused_takes_nothing_away_when_it_ends(
    target: Path,
) -> None:
    first = begun(target, is_resumable=False)
    name = stage(target, "job/a")
    second = GrowingDirectory(target, "job", overwrite=True)
    with pytest.raises(SinkError, match="is being written"):
        second.begin("another one", restored=False)
    second.end(succeeded=False)
    first.commit([name], checkpoint_id=1, is_final=True)
    first.end(succeeded=True)
    assert names(target) == [".aiomailbox", "_SUCCESS", "a"]


def test_a_target_that_is_appended_to_is_a_directory_with_the_same_logs(
    target: Path,
) -> None:
    target.write_text("mine")
    logs = [CommitLog("keep"), SparkLog(target)]
    for log in (None, *logs):
        directory = GrowingDirectory(
            target, "job", overwrite=False, append=True, logs=[log] if log else []
        )
        with pytest.raises(SinkError, match=r"not a directory|hoose another path"):
            directory.begin("job", restored=False)
        directory.end(succeeded=False)
        if log is None:
            target.unlink()
            target.mkdir()
    assert os.listdir(target.parent) == ["out"]


@pytest.mark.parametrize("fails", [False, True])
def test_without_checkpoints_a_failure_takes_back_all_that_was_appended_and_told(
    target: Path, fails: bool
) -> None:
    def directory() -> GrowingDirectory:
        logs = [CommitLog("keep"), SparkLog(target)]
        return GrowingDirectory(target, "job", overwrite=False, append=True, logs=logs)

    first = directory()
    first.begin("job", restored=False)
    first.commit([stage(target, "job/a")], checkpoint_id=0, is_final=True)
    first.end(succeeded=True)
    second = directory()
    second.begin("job", restored=False)
    second.commit(
        [stage(target, "job/b"), stage(target, "job/day=1/c")],
        checkpoint_id=0,
        is_final=False,
    )
    if fails:
        second.end(succeeded=False)
    else:
        crash(second)
    left = ["_SUCCESS", "a"] if fails else ["_SUCCESS", "a", "b", "day=1/c"]
    found = [name for name in names(target) if name[:2] not in (".a", "_a", "_s")]
    assert found == left
    assert sorted(listed(target)) == [name.rpartition("/")[2] for name in left[1:]]
    assert sorted(followed(target)) == left[1:]


def test_whatever_gets_an_entry_is_synced_before_anything_says_so(target: Path) -> None:
    disk = ScriptedDisk()
    directory = begun(target, disk=disk)
    name = stage(target, "job/day=1/hour=2/a")
    directory.commit([name], checkpoint_id=1, is_final=True)
    moved = disk.calls.index(("move", "a", "a"))
    marked = disk.calls.index(("write", ".aiomailbox"), moved)
    synced = {("sync", "hour=2"), ("sync", "out")}
    assert synced <= {*disk.calls[moved:marked]}
    whole = disk.calls.index(("create", "_SUCCESS"))
    assert disk.calls[whole + 1 :] == [("sync", "out")]
    directory.end(succeeded=True)
    # Also that it is the next job's no more.
    disk = ScriptedDisk()
    begun(target, overwrite=True, disk=disk).end(succeeded=True)
    gone = disk.calls.index(("remove file", ".aiomailbox"))
    assert disk.calls[gone + 1] == ("sync", "out")


def test_a_file_is_never_replaced_by_another_one_of_its_name(target: Path) -> None:
    directory = begun(target)
    directory.commit([stage(target, "job/a", "one")], checkpoint_id=1, is_final=False)
    with pytest.raises(SinkError, match="has a file 'a' already"):
        directory.commit(
            [stage(target, "job/a", "two")], checkpoint_id=2, is_final=False
        )
    assert (target / "a").read_text() == "one"
    directory.end(succeeded=False)


def test_a_fork_commits_what_the_job_had_prepared(target: Path) -> None:
    first = begun(target)
    name = stage(target, "job/a", "rows")
    first.end(succeeded=False)
    fork = begun(target, "fork", restored=True)
    fork.commit([name], checkpoint_id=1, is_final=True)
    fork.end(succeeded=True)
    assert (target / "a").read_text() == "rows"


def test_files_may_be_in_folders(target: Path) -> None:
    directory = begun(target)
    name = stage(target, "job/day=1/hour=2/a", "rows")
    directory.commit([name], checkpoint_id=1, is_final=False)
    directory.commit([name], checkpoint_id=1, is_final=True)
    directory.end(succeeded=True)
    assert names(target) == [".aiomailbox", "_SUCCESS", "day=1/hour=2/a"]


@pytest.mark.parametrize(
    "fails", [{"move": 3}, {"move": 4}, {"write": 2}, {"write": 3}, {"sync": 4}]
)
def test_a_commit_that_the_disk_refused_may_be_repeated(
    target: Path, fails: dict[str, int]
) -> None:
    directory = begun(target, disk=ScriptedDisk(fails=fails))
    name = stage(target, "job/a")
    with pytest.raises(OSError, match="refuses"):
        directory.commit([name], checkpoint_id=1, is_final=False)
    directory.commit([name], checkpoint_id=1, is_final=False)
    assert names(target) == [".aiomailbox", "a"]
    directory.end(succeeded=True)


def test_the_hidden_file_says_what_was_committed_last(target: Path) -> None:
    directory = begun(target)
    directory.commit([stage(target, "job/a")], checkpoint_id=4, is_final=False)
    directory.commit([stage(target, "job/b")], checkpoint_id=0, is_final=True)
    kept = json.loads((target / ".aiomailbox").read_text())
    assert kept == {"token": "job", "checkpoint_id": 4, "names": ["job/b"]}
    directory.end(succeeded=True)


def test_what_a_job_had_prepared_itself_is_not_in_its_way(target: Path) -> None:
    begun(target).end(succeeded=False)
    stage(target, "job/half")
    again = begun(target)
    assert os.listdir(staging_directory(target, "job")) == [".owner"]
    # Nor is what nobody can commit, which whoever ends takes away.
    stage(target, "dead/part-0")
    again.end(succeeded=True)
    assert os.listdir(target.parent) == []


def test_what_a_crash_left_between_two_renames_is_put_back_for_good(
    target: Path,
) -> None:
    place = staging_directory(target, "job").parent
    for name in ("old", "new"):
        (place / name).mkdir(parents=True)
    (place / "old" / "a").touch()
    disk = ScriptedDisk()
    directory = begun(target, overwrite=True, disk=disk)
    put_back = disk.calls.index(("move", "old", "out"))
    assert disk.calls[put_back + 1] == ("sync", target.parent.name)
    assert names(target) == ["a"]
    directory.end(succeeded=False)


def test_of_two_executions_of_one_job_one_is_refused(target: Path) -> None:
    first = begun(target)
    with pytest.raises(SinkError, match=r"Wait for it to end"):
        begun(target, "other")
    with pytest.raises(SinkError, match="is being written by job 'job'"):
        begun(target, restored=True)
    first.end(succeeded=True)
