"""What earlier versions saved is restored, and jobs end as if they had not been cut."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.saved import objects, programs
from tests.saved.moved import MOVED
from tests.saved.programs import JOBS, NEXT, Job
from tests.saved.write import NAME, Fixture, rows_of, run

VERSIONS = sorted(Path(__file__).parent.glob("[0-9]*"))
FIXTURES = [file for version in VERSIONS for file in sorted(version.glob("*.zip"))]
OF_JOBS = [file for file in FIXTURES if file.stem in JOBS]


def name_of(file: Path) -> str:
    return f"{file.parent.name}-{file.stem}"


@pytest.fixture(autouse=True)
def _directory(tmp_path: Path) -> Iterator[None]:
    """Work where the files of a job have the names that they had."""
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        yield
    finally:
        os.chdir(before)


def unpacked(file: Path) -> Fixture:
    with zipfile.ZipFile(file) as packed:
        packed.extractall()
    return msgspec.json.decode(Path(NAME).read_bytes(), type=Fixture)


async def restored(file: Path, job: Job, **start: Any) -> Fixture:
    """Run a job from its cut to its end, and compare what all of it gave."""
    fixture = unpacked(file)
    committed = dict(fixture.committed)
    await run(job, committed, NEXT, restore_from=fixture.place, **start)
    assert rows_of(committed) == fixture.expected
    return fixture


def test_every_job_has_its_fixture() -> None:
    assert {file.stem for file in FIXTURES} == {*JOBS, *MOVED}
    assert sum(file.stat().st_size for file in FIXTURES) < 1_000_000


@pytest.mark.parametrize("file", OF_JOBS, ids=name_of)
async def test_a_job_that_was_cut_goes_on(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = JOBS[file.stem]
    if job.reads_files:
        # Their readers have threads, with which virtual time would wait.
        monkeypatch.setattr(programs, "PACE_S", [0])
    programs.ASKED.clear()
    fixture = await restored(file, job)
    # What a journal has is not asked again, but for calls that had not ended.
    asked_twice = {*programs.ASKED} & {*fixture.asked}
    assert len(asked_twice) <= 10
    if fixture.files:
        assert programs.files_written() == fixture.files


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_objects_of_our_classes_are_read(version: Path) -> None:
    data = (version / objects.NAME).read_bytes()
    assert objects.decoded(data) == objects.objects()
