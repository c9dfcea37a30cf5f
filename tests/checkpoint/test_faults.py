"""Whatever happens to a checkpoint's files, nothing wrong is ever restored."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import aiomailbox as am
from aiomailbox.checkpoint.writer import CheckpointWriter
from aiomailbox.errors import DamagedFileError, NoCheckpointError
from aiomailbox.storage.local import LocalStorage
from aiomailbox.testing import RecordingLog
from tests.checkpoint.checkpoints import (
    COUNT,
    SINK,
    SOURCE,
    Visit,
    handles,
    open_store,
    take,
    task_snapshot,
)

LARGE = "x" * 20_000
ROOT = Path(__file__).parents[2]


@functools.cache
def written() -> dict[str, bytes]:
    """Return the files of a job with two checkpoints, of which each has two files."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        store = open_store(place)
        store.new_epoch()
        for number in (1, 2):
            take(store, place, number, payload=LARGE)
        store.close()
        return {
            str(path.relative_to(place)): path.read_bytes()
            for path in place.rglob("*")
            if path.is_file() and path.name != ".lock"
        }


def expected(number: int) -> Any:
    """Return what is restored from a checkpoint, as values that can be compared."""
    one = task_snapshot(number, payload=LARGE)
    return {
        "operators": [one.operators[SINK]] * 2,
        "inputs": [one.inputs[COUNT]] * 2,
        "channels": one.channel_state,
        "keyed": [
            {f"key-{key}": Visit(f"page{LARGE}-{key}", number) for key in range(4)}
        ]
        * 2,
        "committables": [(Visit("file", number),)] * 2,
        "enumerators": {SOURCE: [Visit("file", number)]},
    }


def restored(store: Any, which: Any = "latest") -> tuple[int, Any]:
    """Return the number of what is restored, and all of it."""
    found = store.load(which, [Visit])
    assert found is not None
    snapshot = found.snapshot
    return found.metadata.checkpoint_id, {
        "operators": list(snapshot.operators[SINK]),
        "inputs": list(snapshot.inputs[COUNT]),
        "channels": snapshot.channels,
        "keyed": [
            {
                key: value
                for group in one.keyed[0].key_groups
                for key, value in one.keyed[0].key_groups[group][0]
            }
            for one in snapshot.operators[COUNT]
        ],
        "committables": [values for _, _, values in found.committables],
        "enumerators": {
            source: one.own.elements("enumerator")
            for source, one in snapshot.enumerators.items()
        },
    }


def lay(place: Path, files: dict[str, bytes]) -> None:
    """Write files below a place."""
    for name, data in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)


def changed(data: bytes, way: str, at: int) -> bytes | None:
    """Return a file's contents after something happened to them; None if it is gone."""
    match way:
        case "cut":
            return data[: at % len(data)]
        case "flipped":
            damaged = bytearray(data)
            damaged[at // 8 % len(data)] ^= 1 << at % 8
            return bytes(damaged)
        case "zeros":
            start = at % len(data)
            return data[:start] + bytes(len(data) - start)
        case "longer":
            return data + bytes(at % 7 + 1)
        case _:
            return None


WAYS = ["cut", "flipped", "zeros", "longer", "gone"]
DAMAGES = st.lists(
    st.tuples(
        st.sampled_from(sorted(written())),
        st.sampled_from(WAYS),
        st.integers(0, 2**20),
    ),
    min_size=1,
    max_size=3,
)


@given(DAMAGES)
def test_damage_gives_the_checkpoint_the_one_before_or_an_error(damages: Any) -> None:
    files: dict[str, bytes | None] = dict(written())
    for name, way, at in damages:
        data = files[name]
        if data:
            files[name] = changed(data, way, at)
    log = RecordingLog()
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        lay(place, {name: data for name, data in files.items() if data is not None})
        with contextlib.closing(open_store(place, log)) as store:
            try:
                number, found = restored(store)
            except NoCheckpointError:
                assert log.entries
                return
            assert found == expected(number)
            assert number == 2 or log.entries


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [n for n in sorted(written()) if "chk-2" in n])
def test_whatever_file_of_the_newest_is_damaged_the_one_before_is_restored(
    tmp_path: Path, name: str, way: str
) -> None:
    lay(tmp_path, written())
    data = changed(written()[name], way, len(written()[name]) // 2)
    if data == written()[name]:
        return
    if data is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(data)
    with contextlib.closing(open_store(tmp_path)) as store:
        assert restored(store) == (1, expected(1))
        with pytest.raises((DamagedFileError, NoCheckpointError), match="chk-2"):
            store.load(2, [Visit])


@pytest.mark.parametrize("way", WAYS)
def test_whatever_file_of_a_savepoint_is_damaged_it_is_refused(
    tmp_path: Path, way: str
) -> None:
    with contextlib.closing(open_store(tmp_path / "jobs")) as store:
        saved = tmp_path / "saved"
        take(store, tmp_path / "jobs", 1, payload=LARGE, location=saved)
        assert restored(store, saved) == (1, expected(1))
        for path in sorted(saved.iterdir()):
            good = path.read_bytes()
            data = changed(good, way, len(good) // 2 * 8)
            path.unlink()
            if data is not None:
                path.write_bytes(data)
            with pytest.raises((DamagedFileError, NoCheckpointError), match="saved"):
                store.load(saved, [Visit])
            with pytest.raises((DamagedFileError, NoCheckpointError), match="saved"):
                am.Savepoint(saved).operators()
            path.write_bytes(good)


def test_a_file_that_is_too_large_for_the_disk_leaves_the_one_before(
    tmp_path: Path,
) -> None:
    with contextlib.closing(open_store(tmp_path)) as store:
        take(store, tmp_path, 1, payload=LARGE)
    script = f"""
import resource
from pathlib import Path
from aiomailbox.checkpoint import CheckpointWriter
from aiomailbox.storage.local import LocalStorage
from tests.checkpoint.checkpoints import *
place = Path({str(tmp_path)!r})
store = open_store(place)
many = [
    CheckpointWriter(LocalStorage(place), "job").write_task(
        SubtaskId(VertexId(1), index), 1, 2, task_snapshot(2)
    )
    for index in range(40)
]
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
for act in (
    lambda: handles(CheckpointWriter(LocalStorage(place), "job"), 2, payload="x" * 20_000),
    lambda: store.complete(metadata(2, many)),
):
    try:
        act()
    except OSError as error:
        print(error.strerror)
print(store.newest_first())
store.discard(2)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == ["File too large", "File too large", "[1]"]
    assert not (tmp_path / "job/chk-2").exists()
    with contextlib.closing(open_store(tmp_path)) as store:
        assert restored(store) == (1, expected(1))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB, where one may be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "none", str(place)]
    if (
        shutil.which("mount") is None
        or subprocess.run(command, capture_output=True, check=False).returncode
    ):
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_fails_the_checkpoint_and_takes_the_next_when_there_is_room(
    small_disk: Path,
) -> None:
    with contextlib.closing(open_store(small_disk)) as store:
        take(store, small_disk, 1, payload=LARGE)
        filler = small_disk / "filler"
        with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        writer = CheckpointWriter(LocalStorage(small_disk), "job")
        with pytest.raises(OSError, match="No space left"):
            handles(writer, 2, payload=LARGE)
        store.discard(2)
        assert restored(store) == (1, expected(1))
        filler.unlink()
        take(store, small_disk, 3, payload=LARGE)
        store.discard(1)
        assert restored(store) == (3, expected(3))


@contextlib.contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """Let nobody write into a directory; root is somebody else meanwhile."""
    directory.chmod(0o555)
    is_root = os.geteuid() == 0
    if is_root:
        # Who may write nothing there owns what is in it: it is for its owner alone.
        for one in directory.rglob("*"):
            os.chown(one, 65534, -1)
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        directory.chmod(0o755)


def test_a_read_only_directory_is_said_when_the_job_starts() -> None:
    # Not below pytest's directory, where nobody else may go.
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with read_only(directory), pytest.raises(PermissionError, match="job"):
            open_store(directory)


def test_a_savepoint_can_be_read_from_a_read_only_directory() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with contextlib.closing(open_store(directory)) as store:
            place = take(store, directory, 1, payload=LARGE)
        with read_only(directory):
            saved = am.Savepoint(place, classes=[Visit])
            assert len(dict(saved.state("count", "seen"))) == 4


def test_a_job_that_lost_all_its_metadata_does_not_begin_anew(tmp_path: Path) -> None:
    files = written()
    lost = ("_metadata", "_job")
    lay(tmp_path, {name: files[name] for name in files if not name.endswith(lost)})
    for _ in range(2):
        with contextlib.closing(open_store(tmp_path)) as store:
            assert store.next_checkpoint_id == 3
            with pytest.raises(NoCheckpointError, match="none of them can be read"):
                store.load("latest", [Visit])


class Crash(BaseException):
    """The program ends here."""


class CrashingStorage(LocalStorage):
    """A directory in which a program does so many things, and then dies.

    Args:
        directory: The directory.
        steps: How many files it writes, reads or deletes before.
    """

    def __init__(self, directory: Path, steps: int) -> None:
        super().__init__(directory)
        self.steps = steps

    def write(self, name: str, chunks: Any) -> int:
        """Die in the middle of a file, or write it."""
        self._step(lambda: self._leave_half(name, chunks))
        return super().write(name, chunks)

    def delete(self, names: Any) -> None:
        """Delete one after the other."""
        for name in names:
            self._step(lambda: None)
            super().delete([name])

    def _leave_half(self, name: str, chunks: Any) -> None:
        path = Path(self.place) / f"{name}.dead.part"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(next(iter(chunks)))

    def _step(self, last_words: Any) -> None:
        if not self.steps:
            last_words()
            raise Crash
        self.steps -= 1


def live(place: Path, steps: int, retained: int) -> tuple[int, bool]:
    """Take checkpoints until the crash; return the last complete one, and if it came."""
    storage = CrashingStorage(place, steps)
    completed = 0
    store = None
    try:
        store = open_store(storage)
        store.new_epoch()
        for number in range(store.next_checkpoint_id, store.next_checkpoint_id + 3):
            take(store, storage, number, payload=LARGE)
            completed = number
            for old in store.newest_first()[retained:]:
                store.discard(old)
    except Crash:
        return completed, True
    finally:
        # As the system does for the dead.
        if store is not None:
            store.close()
    return completed, False


@pytest.mark.parametrize("retained", [1, 2])
def test_a_crash_at_any_file_leaves_a_whole_checkpoint(
    tmp_path: Path, retained: int
) -> None:
    steps = 0
    has_crashed = True
    while has_crashed:
        place = tmp_path / str(steps)
        newest = 0
        # Three lives, each of which dies at the same step.
        for _ in range(3):
            completed, has_crashed = live(place, steps, retained)
            with contextlib.closing(open_store(place)) as store:
                if completed:
                    newest = completed
                found = store.load("latest", [Visit])
                if found is None:
                    assert newest == 0
                    continue
                number, contents = restored(store)
                # The metadata may have been written when it died.
                assert number >= newest
                assert contents == expected(number)
                newest = number
            assert not list(place.rglob("*.part"))
        steps += 1
    assert steps > 20


def test_a_program_that_is_killed_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    script = f"""
import sys
from pathlib import Path
from tests.checkpoint.checkpoints import *
place = Path({str(tmp_path)!r})
store = open_store(place)
store.new_epoch()
while True:
    number = store.next_checkpoint_id
    take(store, place, number, payload={LARGE!r})
    sys.stdout.write(f"{{number}}\\n")
    sys.stdout.flush()
    for old in store.newest_first()[1:]:
        store.discard(old)
"""
    newest = 0
    for life in range(4):
        program = subprocess.Popen(
            [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert program.stdout is not None
        for _ in range(life * 3 + 1):
            newest = int(program.stdout.readline())
        program.kill()
        lines = program.stdout.read().split()
        program.wait()
        program.stdout.close()
        newest = int(lines[-1]) if lines else newest
        with contextlib.closing(open_store(tmp_path)) as store:
            number, contents = restored(store)
            assert number in {newest, newest + 1}
            assert contents == expected(number)
