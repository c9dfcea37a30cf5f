"""What earlier versions saved is restored, and jobs end as if they had not been cut."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

import aiomailbox as am
from aiomailbox.errors import JobFailedError, StateError
from tests.saved import moved, objects, programs
from tests.saved.moved import MOVED, Acc, Kind, Seen, Unlike
from tests.saved.programs import JOBS, NEXT, Job
from tests.saved.write import NAME, Fixture, rows_of, run

VERSIONS = sorted(Path(__file__).parent.glob("[0-9]*"))
FIXTURES = [file for version in VERSIONS for file in sorted(version.glob("*.zip"))]
OF_JOBS = [file for file in FIXTURES if file.stem in JOBS]
# Their classes were those of a program.
OF_MOVED = [file for file in FIXTURES if file.stem in MOVED]
STATE_NAMES = {f"__main__:{kind.__name__}": kind for kind in (Acc, Kind, Seen, Unlike)}


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


@pytest.mark.parametrize("file", OF_MOVED, ids=name_of)
async def test_classes_of_a_program_are_found_in_the_module_where_they_are_now(
    file: Path,
) -> None:
    job = MOVED[file.stem]
    moved.ASKED.clear()
    fixture = await restored(file, job, state_names=STATE_NAMES)
    # What a journal has is not asked again, but for calls that had not ended.
    assert len({*moved.ASKED} & {*fixture.asked}) <= 10


@pytest.mark.parametrize("name", ["moved", "moved-in-flight"])
async def test_the_error_says_how_a_class_that_has_moved_is_found(name: str) -> None:
    (file,) = [one for one in OF_MOVED if one.stem == name]
    with pytest.raises(JobFailedError) as caught:
        await restored(file, MOVED[name])
    cause = caught.value.__cause__
    # Of data in flight bytes alone are left, which name a class and nothing else.
    if name == "moved":
        assert isinstance(cause, StateError)
        assert "state_names={'__main__:" in str(cause)
    assert "__main__" in str(cause)


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_objects_of_our_classes_are_read(version: Path) -> None:
    data = (version / objects.NAME).read_bytes()
    assert objects.decoded(data) == objects.objects()


def of(name: str) -> Path:
    (file,) = [one for one in FIXTURES if one.stem == name]
    return file


class NoRecord:
    pass


async def test_a_class_that_cannot_be_read_as_what_was_saved_is_refused() -> None:
    names = {**STATE_NAMES, "__main__:Acc": NoRecord}
    with pytest.raises(JobFailedError) as caught:
        await restored(of("moved"), MOVED["moved"], state_names=names)
    assert "NoRecord, which state_names= gives for it" in str(caught.value.__cause__)
    names = {**STATE_NAMES, "__main__:Acc": Seen}
    with pytest.raises(JobFailedError) as caught:
        await restored(of("moved"), MOVED["moved"], state_names=names)
    assert "field 'count' of __main__:Acc" in str(caught.value.__cause__)


async def test_a_name_that_nobody_saved_is_refused_with_a_savepoint() -> None:
    with pytest.raises(JobFailedError) as caught:
        await restored(of("joins"), JOBS["joins"], state_names={"__main__:Akk": Acc})
    assert isinstance(caught.value.__cause__, StateError)
    assert "'__main__:Akk'" in str(caught.value.__cause__)


async def test_a_service_may_keep_names_that_its_checkpoints_have_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fixture = await restored(
        of("windows-of-lists"),
        JOBS["windows-of-lists"],
        state_names={"__main__:Akk": Acc},
    )
    assert fixture.place == "latest"
    assert "names that no class was saved under" in caplog.text


async def test_what_was_restored_is_written_by_new_names() -> None:
    unpacked(of("moved"))
    job = MOVED["moved"]
    env = job.environment(NEXT)
    job.build(env, programs.Sink({}, NEXT))
    start: Any = {"restore_from": "savepoint", "state_names": STATE_NAMES}
    async with env.start("saved", **start) as running:
        await running.stop_with_savepoint("again")
    found = {
        name
        for operator in am.Savepoint("again").operators()
        for state in operator.states
        for name in state.classes
    }
    assert "tests.saved.moved:Acc" in found
    assert "aiomailbox.TimeWindow" in found
    assert not [name for name in found if "__main__" in name]
    # Names of before may stay: those of now are there.
    names = {name: kind for name, kind in STATE_NAMES.items() if kind is Acc}
    env = job.environment(NEXT)
    job.build(env, programs.Sink({}, NEXT))
    async with env.start("saved", restore_from="again", state_names=names) as running:
        await running.result()


def test_saved_objects_come_as_the_classes_that_are_named() -> None:
    unpacked(of("moved"))
    saved = am.Savepoint("savepoint", state_names=STATE_NAMES)
    assert {type(value) for _, value in saved.state("acc", "acc")} == {Acc}
    (_, _, values), *_ = am.Savepoint("savepoint").state("lists", "window-contents")
    assert type(values[0]).__name__ == "Seen"


async def test_a_config_may_say_the_names() -> None:
    fixture = unpacked(of("moved"))
    job = MOVED["moved"]
    env = job.environment(NEXT)
    config = replace(env._definition.config, state_names=STATE_NAMES)
    env._definition.config = config
    committed = dict(fixture.committed)
    job.build(env, programs.Sink(committed, NEXT))
    await env.execute("saved", restore_from="savepoint")
    assert rows_of(committed) == fixture.expected


@pytest.mark.real_time
@pytest.mark.parametrize("name", ["moved", "moved-in-flight"])
async def test_names_hold_in_other_processes(name: str) -> None:
    """Also for the data in flight, which workers read."""
    fixture = unpacked(of(name))
    committed = dict(fixture.committed)
    job = MOVED[name]
    env = job.environment(NEXT)
    env.configure(deployment=am.Processes(2))
    job.build(env, programs.Sink(committed, NEXT))
    start: Any = {"restore_from": fixture.place, "state_names": STATE_NAMES}
    async with env.start("saved", **start) as running:
        await running.result()
    assert rows_of(committed) == fixture.expected
