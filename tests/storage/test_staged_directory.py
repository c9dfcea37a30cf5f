"""A staged directory is there as it was, or with all that was committed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from aiomailbox.errors import SinkError, TargetExistsError
from aiomailbox.storage.commit_log import CommitLog
from aiomailbox.storage.local import Disk, ExchangeNotSupportedError
from aiomailbox.storage.spark_log import SparkLog
from aiomailbox.storage.staged_directory import StagedDirectory
from aiomailbox.storage.workplace import staging_directory
from tests.storage.disks import Died, ScriptedDisk
from tests.storage.test_directory_logs import followed, listed

OLD = {"_SUCCESS": "", "a": "old", "b": "old"}
NEW = {"_SUCCESS": "", "b": "new", "c": "new"}


def put(directory: Path, files: dict[str, str]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(text)


def found(target: Path) -> dict[str, str] | None:
    if not target.exists():
        return None
    return {entry.name: entry.read_text() for entry in target.iterdir()}


def die(directory: StagedDirectory) -> None:
    """Do what the system does for a process that has died."""
    claim = directory._workplace._claim
    if claim is not None:
        claim._close()


def replace(
    target: Path,
    disk: Disk | None = None,
    *,
    token: str = "one",
    succeeded: bool = True,
) -> None:
    """Replace a target by the new files, as a job would."""
    directory = StagedDirectory(target, token, overwrite=True, disk=disk)
    try:
        directory.begin("the test")
        put(staging_directory(target, token), {"b": "new", "c": "new"})
        directory.commit([f"{token}/b", f"{token}/c"])
        directory.end(succeeded=succeeded)
    finally:
        die(directory)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.mark.parametrize("exchanges", [True, False])
@pytest.mark.parametrize("succeeded", [True, False])
@pytest.mark.parametrize("has_old", [True, False])
def test_death_at_any_operation_leaves_old_or_new_and_the_next_start_cleans_up(
    tmp_path: Path, exchanges: bool, succeeded: bool, has_old: bool
) -> None:
    """Without exchanging, readers find nothing between the two steps of replacing."""
    old = OLD if has_old else None
    gaps = 0
    for dies_at in range(1, 60):
        target = tmp_path / str(dies_at) / "out"
        put(target, OLD) if has_old else target.parent.mkdir()
        has_died = False
        try:
            replace(
                target, ScriptedDisk(dies_at, exchanges=exchanges), succeeded=succeeded
            )
        except Died:
            has_died = True
        seen = found(target)
        gaps += seen is None and has_old
        assert seen in (old, NEW) or not exchanges
        assert seen in (old, NEW, None)
        # What was there before is there again as soon as somebody claims the target.
        waiting = StagedDirectory(target, "two", overwrite=True)
        waiting.begin("the next start")
        assert found(target) == (old if seen is None else seen)
        waiting.end(succeeded=False)
        assert os.listdir(target.parent) == ([] if found(target) is None else ["out"])
        if not has_died:
            break
    else:
        pytest.fail("it never came to its end")
    assert found(target) == (NEW if succeeded else old)
    # Each way between the two has one moment without a target.
    assert gaps == (0 if exchanges or not has_old else 2 - succeeded)


def test_death_while_what_another_death_left_is_removed_changes_nothing(
    tmp_path: Path,
) -> None:
    for dies_at in range(1, 30):
        target = tmp_path / str(dies_at) / "out"
        put(target, OLD)
        with pytest.raises(Died):
            replace(target, ScriptedDisk(11, exchanges=False))
        assert found(target) is None
        with pytest.raises(Died):
            replace(target, ScriptedDisk(dies_at), token="two")
        assert found(target) in (None, OLD, NEW)
        if found(target) == NEW:
            break
        replace(target, token="three", succeeded=False)
        assert found(target) == OLD
        assert os.listdir(target.parent) == ["out"]
    assert found(target) == NEW


@pytest.mark.parametrize(
    "fails",
    [
        {"move": 1},
        {"move": 2},
        {"create": 1},
        {"sync": 1},
        {"sync": 2},
        {"sync": 3},
        {"exchange": 1},
    ],
)
def test_a_disk_that_refuses_leaves_what_was_there(
    target: Path, fails: dict[str, int]
) -> None:
    put(target, OLD)
    directory = StagedDirectory(
        target, "one", overwrite=True, disk=ScriptedDisk(fails=fails)
    )
    directory.begin("the test")
    put(staging_directory(target, "one"), {"b": "new", "c": "new"})
    with pytest.raises(OSError, match="refuses"):
        directory.commit(["one/b", "one/c"])
    directory.end(succeeded=False)
    assert found(target) == OLD
    assert os.listdir(target.parent) == ["out"]


def test_the_second_step_of_replacing_may_fail_too(target: Path) -> None:
    put(target, OLD)
    disk = ScriptedDisk(exchanges=False, fails={"move": 4})
    directory = StagedDirectory(target, "one", overwrite=True, disk=disk)
    directory.begin("the test")
    put(staging_directory(target, "one"), {"b": "new", "c": "new"})
    with pytest.raises(OSError, match="refuses"):
        directory.commit(["one/b", "one/c"])
    assert found(target) is None
    directory.end(succeeded=False)
    assert found(target) == OLD
    assert os.listdir(target.parent) == ["out"]


def test_a_commit_that_failed_can_be_made_again(target: Path) -> None:
    put(target, OLD)
    disk = ScriptedDisk(exchanges=False, fails={"move": 4})
    directory = StagedDirectory(target, "one", overwrite=True, disk=disk)
    directory.begin("the test")
    put(staging_directory(target, "one"), {"b": "new", "c": "new"})
    with pytest.raises(OSError, match="refuses"):
        directory.commit(["one/b", "one/c"])
    directory.commit(["one/b", "one/c"])
    directory.end(succeeded=True)
    assert found(target) == NEW


def test_what_cannot_be_put_back_is_kept_and_named(target: Path) -> None:
    put(target, OLD)
    disk = ScriptedDisk(fails={"exchange": 2})
    directory = StagedDirectory(target, "one", overwrite=True, disk=disk)
    directory.begin("the test")
    directory.commit([])
    with pytest.raises(SinkError, match="cannot be put back") as caught:
        directory.end(succeeded=False)
    workplace = staging_directory(target, "one").parent
    assert str(workplace) in str(caught.value)
    assert found(workplace / "new") == OLD
    # Until a job writes there again.
    replace(target, token="two")
    assert found(target) == NEW
    assert os.listdir(target.parent) == ["out"]


def test_contents_are_synced_before_they_are_visible_and_the_place_afterwards(
    target: Path,
) -> None:
    put(target, OLD)
    disk = ScriptedDisk()
    replace(target, disk)
    names = [call[0] for call in disk.calls]
    at = names.index("exchange")
    workplace = staging_directory(target, "one").parent.name
    assert disk.calls[at - 1] == ("sync", "new")
    assert disk.calls[at + 1 : at + 3] == [
        ("sync", workplace),
        ("sync", target.parent.name),
    ]
    assert "remove file" not in names[:at]


@pytest.mark.parametrize("exchanges", [True, False])
@pytest.mark.parametrize("succeeded", [True, False])
def test_whatever_gets_an_entry_is_synced_before_the_next_step_and_at_the_end(
    target: Path, exchanges: bool, succeeded: bool
) -> None:
    """Or a loss of power could leave a target without its files, or none at all."""
    put(target, OLD)
    disk = ScriptedDisk(exchanges=exchanges)
    directory = StagedDirectory(target, "one", overwrite=True, disk=disk)
    directory.begin("the test")
    put(staging_directory(target, "one") / "day=1" / "hour=2", {"b": "new"})
    put(staging_directory(target, "one") / "day=2", {"c": "new"})
    directory.commit(["one/day=1/hour=2/b", "one/day=2/c"])
    published = next(
        at
        for at, call in enumerate(disk.calls)
        if call[0] in ("exchange", "move") and "out" in call
    )
    assert {("sync", "hour=2"), ("sync", "day=2"), ("sync", "new")} <= {
        *disk.calls[:published]
    }
    directory.end(succeeded=succeeded)
    workplace, parent = staging_directory(target, "one").parent.name, target.parent.name
    steps = [call for call in disk.calls[published:] if "remove" not in call[0]]
    renamed = max(
        at for at, call in enumerate(steps) if call[0] in ("exchange", "move")
    )
    assert steps[renamed + 1 :] == [("sync", workplace), ("sync", parent)]


@pytest.mark.parametrize("fails", [None, {"exchange": 1}, {"create": 1}])
def test_readers_are_told_of_all_files_once_as_soon_as_they_are_there(
    target: Path, fails: dict[str, int] | None
) -> None:
    put(target, {"old": ""})
    disk = ScriptedDisk(fails=fails)
    logs = [CommitLog("keep", disk), SparkLog(target, disk)]
    directory = StagedDirectory(target, "one", overwrite=True, disk=disk, logs=logs)
    directory.begin("the test")
    put(staging_directory(target, "one"), {"a": "1", "b": "2"})
    if fails:
        with pytest.raises(OSError, match="refuses"):
            directory.commit(["one/a", "one/b"])
        assert os.listdir(target) == ["old"]
    directory.commit(["one/a", "one/b"])
    assert followed(target) == listed(target) == ["a", "b"]
    directory.end(succeeded=True)
    for log in logs:
        log.check(target)


def test_a_commit_may_be_repeated(target: Path) -> None:
    directory = StagedDirectory(target, "one", overwrite=False)
    directory.begin("the test")
    put(staging_directory(target, "one"), {"a": "1"})
    directory.commit(["one/a"])
    directory.commit(["one/a"])
    directory.end(succeeded=True)
    assert found(target) == {"_SUCCESS": "", "a": "1"}


def test_a_file_that_is_nowhere_is_an_error(target: Path) -> None:
    directory = StagedDirectory(target, "one", overwrite=False)
    directory.begin("the test")
    with pytest.raises(FileNotFoundError):
        directory.commit(["one/lost"])
    directory.end(succeeded=False)
    assert found(target) is None


def test_one_execution_at_a_time_writes_to_a_target(target: Path) -> None:
    first = StagedDirectory(target, "one", overwrite=False)
    second = StagedDirectory(target, "two", overwrite=True)
    first.begin("job 'delays'")
    with pytest.raises(SinkError, match="written by job 'delays'"):
        second.begin("job 'other'")
    second.end(succeeded=False)
    assert staging_directory(target, "one").exists()
    first.end(succeeded=False)
    second.begin("job 'other'")
    second.end(succeeded=False)


def test_a_target_that_appears_meanwhile_is_refused(target: Path) -> None:
    directory = StagedDirectory(target, "one", overwrite=False)
    directory.begin("the test")
    put(target, OLD)
    with pytest.raises(TargetExistsError):
        directory.commit([])
    directory.end(succeeded=False)
    assert found(target) == OLD


def test_a_symbolic_link_stands_for_where_it_leads(tmp_path: Path) -> None:
    put(tmp_path / "disk" / "data", OLD)
    link = tmp_path / "out"
    link.symlink_to("disk/data")
    replace(link)
    assert link.is_symlink()
    assert found(tmp_path / "disk" / "data") == NEW
    assert sorted(os.listdir(tmp_path)) == ["disk", "out"]
    assert os.listdir(tmp_path / "disk") == ["data"]


def test_a_link_that_leads_nowhere_yet_says_where_to_write(tmp_path: Path) -> None:
    link = tmp_path / "out"
    link.symlink_to("data")
    replace(link)
    assert link.is_symlink()
    assert found(tmp_path / "data") == NEW


def test_a_path_may_go_up_and_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "out" / "inner", {})
    monkeypatch.chdir(tmp_path)
    replace(Path("out/inner/../../out/inner/.."))
    assert found(tmp_path / "out") == NEW
    assert os.listdir(tmp_path) == ["out"]


def test_a_path_through_a_link_goes_where_the_system_goes(tmp_path: Path) -> None:
    """``link/..`` is the parent of where the link leads, not of the link."""
    put(tmp_path / "far" / "inner", {})
    (tmp_path / "link").symlink_to("far/inner")
    replace(tmp_path / "link" / ".." / "out")
    assert found(tmp_path / "far" / "out") == NEW


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127, "\udcff" * 255])
def test_a_name_may_be_as_long_as_the_system_allows(tmp_path: Path, name: str) -> None:
    put(tmp_path / name, OLD)
    replace(tmp_path / name)
    assert found(tmp_path / name) == NEW
    assert os.listdir(tmp_path) == [name]


def test_long_names_that_begin_alike_have_places_of_their_own(tmp_path: Path) -> None:
    one, other = (staging_directory(tmp_path / f"{'x' * 99}{n}", "t") for n in "12")
    assert one.parent != other.parent


@pytest.mark.parametrize("path", ["/", "/tmp/.."])
def test_the_root_is_no_target(path: str) -> None:
    with pytest.raises(SinkError, match="cannot be replaced"):
        StagedDirectory(Path(path), "one", overwrite=True)


def test_a_mount_point_is_refused_at_once(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(target, OLD)
    monkeypatch.setattr(Path, "is_mount", lambda self: self == target)
    directory = StagedDirectory(target, "one", overwrite=True)
    with pytest.raises(SinkError, match="mount point"):
        directory.begin("the test")
    assert found(target) == OLD
    assert os.listdir(target.parent) == ["out"]


def test_a_file_is_no_directory(target: Path) -> None:
    target.write_text("mine")
    with pytest.raises(SinkError, match="not a directory"):
        StagedDirectory(target, "one", overwrite=True).begin("the test")
    assert target.read_text() == "mine"


def test_exchanging_needs_both(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(FileNotFoundError):
        Disk().exchange(tmp_path / "a", tmp_path / "b")


def test_a_system_without_the_call_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Nothing:
        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name)

    monkeypatch.setattr("ctypes.CDLL", lambda *args, **options: Nothing())
    with pytest.raises(ExchangeNotSupportedError):
        Disk().exchange(tmp_path, tmp_path)


def test_what_a_dying_worker_still_writes_does_not_keep_the_next_job_from_starting(
    target: Path,
) -> None:
    class LateWriter(Disk):
        def remove_directory(self, path: Path) -> None:
            if path.name == "dead":
                (path / "late").touch()
            super().remove_directory(path)

    put(staging_directory(target, "dead"), {"part": "half"})
    replace(target, LateWriter())
    assert found(target) == NEW
    replace(target)
    assert os.listdir(target.parent) == ["out"]


def test_what_cannot_be_removed_at_the_end_is_left_to_the_next_start(
    target: Path,
) -> None:
    """All results are there, and visible: that is no reason to fail."""
    put(target, OLD)
    replace(target, ScriptedDisk(fails={"remove file": 1}))
    assert found(target) == NEW
    assert len(os.listdir(target.parent)) == 2
    replace(target)
    assert os.listdir(target.parent) == ["out"]


def test_what_may_be_old_data_is_never_passed_over(target: Path) -> None:
    put(target, OLD)
    put(staging_directory(target, "x").parent / "new", {"a": "who knows"})
    disk = ScriptedDisk(fails={"remove file": 1})
    with pytest.raises(OSError, match="refuses"):
        StagedDirectory(target, "one", overwrite=True, disk=disk).begin("the test")
    replace(target)
    assert found(target) == NEW
