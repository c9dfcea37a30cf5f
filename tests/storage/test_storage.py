"""Files that are whole or not there, whatever happens while they are written."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiomailbox.errors import InvalidArgumentError, StorageClaimedError
from aiomailbox.storage import open_storage
from aiomailbox.storage.contract import Storage
from aiomailbox.storage.local import LocalStorage
from aiomailbox.storage.remote import LEASE_MS, RemoteStorage


@pytest.fixture(params=["local", "remote"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "local":
        return LocalStorage(tmp_path / "jobs")
    return RemoteStorage(f"memory://{tmp_path.name}/jobs")


def contents(storage: Storage) -> dict[str, bytes]:
    return {name: b"".join(storage.read(name)) for name in storage.names()}


def test_what_was_written_is_read(storage: Storage) -> None:
    assert storage.names() == []
    large = os.urandom(3 << 20)
    assert storage.write("a/b/one", [b"1", b"", b"23"]) == 3
    assert storage.write("a/two", [large]) == len(large)
    assert contents(storage) == {"a/b/one": b"123", "a/two": large}
    assert storage.names("a/b") == ["a/b/one"]
    assert max(map(len, storage.read("a/two"))) <= 1 << 20


def test_a_file_is_replaced_as_a_whole(storage: Storage) -> None:
    storage.write("a", [b"old"])
    storage.write("a", [b"new and longer"])
    assert contents(storage) == {"a": b"new and longer"}


def test_a_failure_leaves_the_old_file_and_nothing_else(storage: Storage) -> None:
    storage.write("a", [b"old"])

    def chunks() -> Iterator[bytes]:
        yield b"new"
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        storage.write("a", chunks())
    with pytest.raises(OSError, match="no space"):
        storage.write("b/c", chunks())
    assert contents(storage) == {"a": b"old"}


def test_deleting_passes_over_what_is_not_there(storage: Storage) -> None:
    storage.write("a/b/c", [b"1"])
    storage.write("a/d", [b"2"])
    storage.delete(["a/b/c", "nothing"])
    assert storage.names() == ["a/d"]
    storage.delete(["a/d"])
    assert storage.names() == []


def test_directories_go_with_their_last_file(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "jobs")
    storage.write("a/b/c", [b"1"])
    storage.delete(["a/b/c"])
    assert list((tmp_path / "jobs").iterdir()) == []


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../a", "a/../../b", "a\0b"])
def test_a_name_cannot_lead_out(storage: Storage, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="name"):
        storage.write(name, [b"1"])


def test_a_file_is_fetched_or_seen_as_a_whole(storage: Storage, tmp_path: Path) -> None:
    data = bytes(range(256)) * 5_000
    for name, chunks in (("a/large", [data]), ("a/small", [b"abc"]), ("a/empty", [])):
        storage.write(name, chunks)
        assert storage.view(name) == b"".join(chunks)
        target = tmp_path / name.rpartition("/")[2]
        storage.fetch(name, target)
        assert target.read_bytes() == b"".join(chunks)
        storage.delete([name])
        assert target.read_bytes() == b"".join(chunks)
    for read in (storage.view, lambda name: storage.fetch(name, tmp_path / "other")):
        with pytest.raises(FileNotFoundError):
            read("a/gone")


def test_reading_what_is_not_there_says_so(storage: Storage) -> None:
    with pytest.raises(FileNotFoundError):
        list(storage.read("a"))


def test_one_place_has_one_owner(storage: Storage) -> None:
    claim = storage.claim("job", "first", now_ms=0)
    with pytest.raises(StorageClaimedError, match="belongs to first"):
        storage.claim("job", "second", now_ms=1000)
    storage.claim("other", "second", now_ms=1000).release()
    claim.renew(now_ms=2000)
    claim.release()
    claim.release()
    storage.claim("job", "second", now_ms=3000).release()
    assert storage.names() == []


def test_a_lease_runs_out_and_its_late_owner_is_told(tmp_path: Path) -> None:
    storage = RemoteStorage(f"memory://{tmp_path.name}")
    first = storage.claim("job", "first", now_ms=0)
    first.renew(now_ms=50_000)
    with pytest.raises(StorageClaimedError, match="belongs to first for another 50 s"):
        storage.claim("job", "second", now_ms=LEASE_MS)
    second = storage.claim("job", "second", now_ms=50_001 + LEASE_MS)
    with pytest.raises(StorageClaimedError, match="belongs to second"):
        first.renew(now_ms=50_002 + LEASE_MS)
    # And does not take the other one's away.
    first.release()
    second.renew(now_ms=50_003 + LEASE_MS)


def test_a_cache_between_a_job_and_its_storage_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="asks for simplecache"):
        open_storage(f"simplecache::file://{tmp_path}")


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    program = """
        import sys, time
        from aiomailbox.storage.local import LocalStorage
        claim = LocalStorage(sys.argv[1]).claim("job", "child", 0)
        print("held", flush=True)
        time.sleep(60)
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    storage = LocalStorage(tmp_path)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(StorageClaimedError, match=f"child .process {child.pid}"):
            storage.claim("job", "parent", 0)
        child.kill()
    storage.claim("job", "parent", 0).release()


# One process per step, forked where nothing else runs.
CRASHING = """
    import os, sys
    from aiomailbox.storage.local import LocalStorage

    watched = {"open", "os.rename", "os.mkdir", "os.remove", "os.truncate"}

    def crash_at(last, place):
        seen = 0

        def crash(event, arguments):
            nonlocal seen
            if event in watched and place in str(arguments[0]):
                seen += 1
                if seen > last:
                    os._exit(9)

        sys.addaudithook(crash)

    step, status = -1, 9
    while status:
        step += 1
        place = os.path.join(sys.argv[1], str(step))
        storage = LocalStorage(place)
        storage.write("a/old", [b"old"])
        storage.write("a/gone", [b"gone"])
        child = os.fork()
        if not child:
            crash_at(step, place)
            storage.write("a/old", [b"new", b"er"])
            storage.write("b/c", [b"1", b"2"])
            storage.delete(["a/gone"])
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


def test_a_crash_at_any_operation_leaves_each_file_old_or_new(tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(CRASHING), str(tmp_path)]
    subprocess.run(command, check=True)
    steps = sorted(tmp_path.iterdir(), key=lambda place: int(place.name))
    assert len(steps) > 8
    for place in steps:
        storage = LocalStorage(place)
        found = contents(storage)
        assert found["a/old"] in {b"old", b"newer"}
        assert found.get("b/c", b"12") == b"12"
        assert found.keys() <= {"a/old", "a/gone", "b/c"}
        storage.sweep()
        assert not list(place.rglob("*.part"))
    assert found == {"a/old": b"newer", "b/c": b"12"}


def test_a_place_is_a_path_or_a_url(tmp_path: Path) -> None:
    assert isinstance(open_storage(tmp_path), LocalStorage)
    assert open_storage(f"file://{tmp_path}").place == str(tmp_path)
    assert isinstance(open_storage("memory://a"), RemoteStorage)
