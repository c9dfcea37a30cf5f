"""Writes the fixtures: ``python -m tests.saved.write DIRECTORY [NAME ...]``.

Run it in a checkout of the version whose format is to be kept, and keep what it wrote as
``tests/saved/VERSION``; the jobs of `tests.saved.programs` are then never changed. Each
job is run twice on virtual time: to its end, for what it should give, and up to the cut.
A fixture is a zip file of the directory in which the job ran (its input, checkpoints,
journal and output), with ``fixture.json``: see `Fixture`.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from aiomailbox.testing import virtual_time_loop_factory
from tests.saved import objects, programs
from tests.saved.programs import CUT_S, FIRST, JOBS, WHOLE, Job, Sink

NAME = "fixture.json"


class Fixture(msgspec.Struct):
    """What a job had at its cut.

    Attributes:
        place: What is restored: a savepoint or checkpoint, or ``"latest"``.
        committed: The rows that its sinks had committed, as text, by committables.
        expected: All rows of an uninterrupted run, as sorted text.
        files: The same of the sinks that write files, by their formats.
        asked: The numbers of the calls that were made before the cut.
    """

    place: str
    committed: dict[str, list[str]]
    expected: list[str]
    files: dict[str, list[str]] = {}
    asked: list[int] = []


@contextlib.contextmanager
def directory() -> Iterator[Path]:
    """Work in a temporary directory: a job's files have relative names."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        try:
            yield Path(place)
        finally:
            os.chdir(before)


def on_virtual_time(work: Any) -> Any:
    """Run a coroutine in which nothing takes time."""
    with asyncio.Runner(loop_factory=virtual_time_loop_factory()) as runner:
        return runner.run(work)


def rows_of(committed: dict[str, list[str]]) -> list[str]:
    """Return all rows that were committed, sorted."""
    return sorted(row for rows in committed.values() for row in rows)


async def run(
    job: Job, committed: dict[str, list[str]], life: int, **start: Any
) -> None:
    """Run a job to its end."""
    env = job.environment(life)
    job.build(env, Sink(committed, life))
    async with env.start("saved", **start) as running:
        await running.result()


async def cut(job: Job, committed: dict[str, list[str]]) -> str:
    """Run a job up to the cut; return what is restored."""
    env = job.environment(FIRST)
    job.build(env, Sink(committed, FIRST))
    async with env.start("saved") as running:
        await asyncio.sleep(CUT_S)
        if job.how == "savepoint":
            await running.stop_with_savepoint("savepoint")
            return "savepoint"
        await running.trigger_checkpoint()
        await running.cancel()
    return "latest"


def write(target: Path, job: Job) -> None:
    """Write the fixture of a job."""
    # A reader of files has a thread, which may wait: virtual time would wait with it.
    runs = asyncio.run if job.reads_files else on_virtual_time
    with directory():
        if job.reads_files:
            programs.write_files()
        whole: dict[str, list[str]] = {}
        runs(run(job, whole, WHOLE))
        files = programs.files_written() if job.build is programs.file_sinks else {}
    programs.ASKED.clear()
    with directory() as place:
        if job.reads_files:
            programs.write_files()
        committed: dict[str, list[str]] = {}
        restored = runs(cut(job, committed))
        fixture = Fixture(
            restored, committed, rows_of(whole), files, sorted(programs.ASKED)
        )
        assert len(rows_of(committed)) < len(fixture.expected), "it was at its end"
        (place / NAME).write_bytes(msgspec.json.format(msgspec.json.encode(fixture)))
        pack(place, target)


def pack(place: Path, target: Path) -> None:
    """Write a directory as a zip file; claims of the process that wrote it stay out."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for file in sorted(place.rglob("*")):
            if file.is_file():
                name = zipfile.ZipInfo(str(file.relative_to(place)))
                name.compress_type = zipfile.ZIP_DEFLATED
                packed.writestr(name, file.read_bytes())
            elif not any(file.iterdir()):
                packed.mkdir(str(file.relative_to(place)))
    target.write_bytes(data.getvalue())


def main(target: Path, names: list[str]) -> None:
    """Write the fixtures of some jobs, or of all."""
    target.mkdir(parents=True, exist_ok=True)
    for name in names or JOBS:
        file = target / f"{name}.zip"
        write(file, JOBS[name])
        print(f"{name:28}{file.stat().st_size:8} bytes", flush=True)
    if not names:
        (target / objects.NAME).write_bytes(objects.encoded())
        # Its classes are those of a program.
        subprocess.run([sys.executable, "-m", "tests.saved.moved", target], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2:])
