"""Who may read what a job keeps: its files and directories have modes of their own."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aiomailbox.checkpoint.settings import CheckpointConfig
from aiomailbox.durations import seconds
from aiomailbox.errors import InvalidArgumentError, WrongTypeError

# A job that keeps all there is: files of tasks, a savepoint, a journal.
_JOB = """
import asyncio, os, sys
import aiomailbox as am

async def ask(value):
    return value

async def main(place, options):
    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(
        None,
        directory=f"{place}/above/kept",
        mode=am.CheckpointingMode.AT_LEAST_ONCE,
        memory_threshold=0,
        **options,
    )
    inbox = am.Inbox()
    numbers = env.from_source(inbox).uid("numbers")
    asked = numbers.map_async(ask, journal=True, id=lambda value: value).uid("ask")
    sums = asked.key_by(lambda value: value % 3).reduce(max).uid("sums")
    seen = asyncio.Queue()
    sums.sink_to(seen.put_nowait)
    async with env.start("modes") as job:
        await inbox.put(1)
        await seen.get()
        await job.trigger_checkpoint()
        await job.trigger_savepoint(f"{place}/savepoints/first")
        await job.cancel()

for umask, place, options in eval(sys.argv[1]):
    os.umask(int(umask, 8))
    am.run(main(place, options))
"""


@pytest.fixture
def run_jobs(run_program: Callable[..., Any]) -> Callable[..., None]:
    """Give what runs jobs in a process of its own: of each its umask, place, options."""

    def run(*jobs: tuple[str, Path, dict[str, int]]) -> None:
        given = [(umask, str(place), options) for umask, place, options in jobs]
        done = run_program(_JOB, repr(given))
        assert not done.code, done.log

    return run


def modes_of(place: Path) -> dict[str, str]:
    """Return the modes of all that a job has made."""
    return {
        str(one.relative_to(place)): stat.filemode(one.stat().st_mode)
        for one in sorted(place.rglob("*"))
    }


@pytest.mark.real_time
def test_new_files_and_directories_have_their_mode_whatever_the_umask(
    tmp_path: Path, run_jobs: Callable[..., None]
) -> None:
    cases: list[tuple[str, dict[str, int], str, str]] = [
        ("022", {}, "-rw-------", "drwx------"),
        ("000", {}, "-rw-------", "drwx------"),
        ("077", {"file_mode": 0o640}, "-rw-r-----", "drwxr-x---"),
        ("022", {"file_mode": 0o660}, "-rw-rw----", "drwxrwx---"),
    ]
    places = [tmp_path / str(number) for number in range(len(cases))]
    for place in places:
        place.mkdir()
    run_jobs(
        *((case[0], place, case[1]) for case, place in zip(cases, places, strict=True))
    )
    for case, place in zip(cases, places, strict=True):
        modes = modes_of(place)
        assert set(modes.values()) == {case[2], case[3]}, (case, modes)
        for part in ("_job", "_metadata", ".lock", "journal/", "savepoints/"):
            assert any(part in name for name in modes), (case, part)


@pytest.mark.real_time
def test_directories_that_exist_keep_their_mode(
    tmp_path: Path, run_jobs: Callable[..., None]
) -> None:
    kept = tmp_path / "above" / "kept"
    kept.mkdir(parents=True)
    kept.chmod(0o755)
    run_jobs(("022", tmp_path, {}))
    modes = modes_of(tmp_path)
    assert modes["above/kept"] == "drwxr-xr-x"
    assert modes["above/kept/modes"] == "drwx------"


@pytest.mark.parametrize("mode", [0o400, 0o755, 640, 0o1600, -1])
def test_a_mode_that_its_owner_cannot_use_is_refused(mode: int) -> None:
    with pytest.raises(InvalidArgumentError, match="0o640"):
        CheckpointConfig(interval=seconds(1), file_mode=mode)


def test_a_mode_is_a_number() -> None:
    with pytest.raises(WrongTypeError, match="file_mode"):
        CheckpointConfig(interval=seconds(1), file_mode="0o640")  # type: ignore[arg-type]
