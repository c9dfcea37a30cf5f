"""A claim is exclusive, and ends with whoever has it."""

from __future__ import annotations

import fcntl
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from aiomailbox.errors import StorageClaimedError
from aiomailbox.storage import local
from aiomailbox.storage.local import LocalClaim


def test_a_claim_that_was_removed_can_be_made_again(tmp_path: Path) -> None:
    claim = LocalClaim(tmp_path / "lock", "job 'delays'")
    with pytest.raises(StorageClaimedError, match="job 'delays'"):
        LocalClaim(tmp_path / "lock", "job 'other'")
    claim.release(remove=True)
    claim.release(remove=True)
    assert list(tmp_path.iterdir()) == []
    again = LocalClaim(tmp_path / "lock", "job 'other'")
    claim.release(remove=True)
    assert (tmp_path / "lock").exists()
    again.release()
    assert (tmp_path / "lock").exists()


def test_a_holder_that_has_not_said_its_name_yet_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For two seconds, which its thread may wait for the processor."""
    looked_s: list[float] = []

    def say_it_late(seconds: float) -> None:
        looked_s.append(seconds)
        if sum(looked_s) > 1.9:
            print("job 'late'", file=file, flush=True)

    with (tmp_path / "lock").open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        monkeypatch.setattr(local, "time", SimpleNamespace(sleep=looked_s.append))
        with pytest.raises(StorageClaimedError, match="another job"):
            LocalClaim(tmp_path / "lock", "me")
        assert sum(looked_s) == pytest.approx(2)
        looked_s.clear()
        monkeypatch.setattr(local, "time", SimpleNamespace(sleep=say_it_late))
        with pytest.raises(StorageClaimedError, match="job 'late'"):
            LocalClaim(tmp_path / "lock", "me")


def test_a_claim_that_is_collected_has_ended(tmp_path: Path) -> None:
    claim = LocalClaim(tmp_path / "lock", "me")
    del claim
    gc.collect()
    LocalClaim(tmp_path / "lock", "you").release()


def test_programs_that_are_started_do_not_keep_a_claim(tmp_path: Path) -> None:
    claim = LocalClaim(tmp_path / "lock", "me")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE):
        claim.release()
        LocalClaim(tmp_path / "lock", "you").release()


def test_of_many_who_come_and_go_one_at_a_time_is_in(tmp_path: Path) -> None:
    """Also where each removes the file that others have opened already."""
    inside: list[int] = []
    most: list[int] = []

    def come_and_go() -> None:
        left = 50
        while left:
            try:
                claim = LocalClaim(tmp_path / "lock", "one of many")
            except StorageClaimedError:
                continue
            inside.append(1)
            os.sched_yield()
            most.append(len(inside))
            inside.pop()
            claim.release(remove=True)
            left -= 1

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 200


@pytest.mark.real_time
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_processes_that_are_forked_do_not_keep_a_claim(tmp_path: Path) -> None:
    claim = LocalClaim(tmp_path / "lock", "me")
    release, hold = os.pipe()
    child = os.fork()
    if not child:
        os.close(hold)
        os.read(release, 1)
        os._exit(0)
    try:
        claim.release()
        LocalClaim(tmp_path / "lock", "you").release()
    finally:
        os.close(hold)
        os.close(release)
        assert os.waitpid(child, 0)[1] == 0
