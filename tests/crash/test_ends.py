"""Jobs that are ended from outside, at each moment that counts, and started again."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.connectors.databases import SqliteFile, sqlite
from tests.crash.ends_program import COUNT
from tests.forks import Done, Forks

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(180)]
__all__ = ["sqlite"]

# More than there are steps in the clean-up of a job.
STEPS_MAX = 20
ONCE = Counter(range(COUNT))


class Program:
    """The program, with its place."""

    def __init__(self, place: Path, database: SqliteFile, forks: Forks) -> None:
        self.place = place
        self._database = database
        self._forks = forks

    async def run(self, **facts: Any) -> Done:
        given = {"place": str(self.place), **facts}
        done = await asyncio.to_thread(self._forks.run, self.place, given)
        struck = -signal.SIGKILL, 128 + signal.SIGTERM
        assert done.code in {0, *struck}, done.log[-3000:]
        return done

    async def rows(self) -> Counter[int]:
        found = await self._database.execute("SELECT n FROM numbers")
        return Counter(row[0] for row in found)

    def calls(self) -> Counter[int]:
        return Counter(map(int, (self.place / "calls").read_text().split()))

    def kept(self) -> list[Path]:
        found = (self.place / "state").glob("*/chk-*/_metadata")
        return sorted((one.parent for one in found), key=lambda one: int(one.name[4:]))


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks("tests.crash.ends_program") as made:
        yield made


@pytest.fixture
async def program(tmp_path: Path, sqlite: SqliteFile, forks: Forks) -> Program:
    await sqlite.execute("CREATE TABLE numbers (n bigint)")
    return Program(tmp_path, sqlite, forks)


async def empty(program: Program) -> None:
    """Let the next run be a first one."""
    await program._database.execute("DELETE FROM numbers")
    (program.place / "calls").unlink()


async def test_a_kill_while_a_finished_job_cleans_up_repeats_nothing_in_silence(
    program: Program,
) -> None:
    """Before each step in turn that changes a file; then the program starts again."""
    repeated, step = 0, 0
    while (await program.run(step=step, **{"from": "latest"})).code:
        assert await program.rows() == ONCE
        was_kept = bool(program.kept())
        again = await program.run(**{"from": "latest"})
        assert again.code == 0
        assert "had finished before" in again.log or step == 0
        if await program.rows() == ONCE:
            assert program.calls() == ONCE
        else:
            # All had been deleted, so it is a run like that of the next day.
            assert not was_kept
            repeated += 1
            assert await program.rows() == ONCE + ONCE == program.calls()
        assert not program.kept()
        assert not list((program.place / "state").rglob("journal/*"))
        await empty(program)
        (program.place / "state/ends/_job").unlink()
        step += 1
    assert 3 < step < STEPS_MAX
    assert repeated < step / 2


async def test_who_asks_for_it_is_given_back_a_run_that_has_finished(
    program: Program,
) -> None:
    """Killed before any step of the clean-up, or after it: nothing comes twice."""
    choice = {"if_finished": "return"}
    step, code = 0, None
    while code != 0:
        code = (await program.run(step=step, choice=choice, **{"from": "latest"})).code
        again = await program.run(choice=choice, **{"from": "latest"})
        assert again.code == 0
        assert again.printed.startswith("ended 20") or step == 0
        assert await program.rows() == ONCE == program.calls()
        await empty(program)
        (program.place / "state/ends/_job").unlink()
        step += 1
    assert 3 < step < STEPS_MAX


@pytest.mark.suite("tests")
async def test_a_restart_of_an_upgraded_job_does_not_repeat_what_it_did_since(
    program: Program,
) -> None:
    """The service manager starts it with the same arguments, naming the savepoint."""
    savepoint = str(program.place / "savepoints/1.4")
    assert (await program.run(savepoint=savepoint, **{"from": "latest"})).code == 0
    before = len(await program.rows())
    assert 0 < before < COUNT
    assert not program.kept()
    for _ in range(2):
        killed = await program.run(checkpoint=2, **{"from": savepoint})
        assert killed.code == -signal.SIGKILL
        assert len(program.kept()) in {1, 2}
    last = await program.run(**{"from": savepoint})
    assert last.code == 0
    assert "goes on from its own checkpoint" in last.log
    assert await program.rows() == ONCE
    # A call in flight at a kill is made again.
    assert set(program.calls()) == set(ONCE)


@pytest.mark.parametrize("workers", [0, 2])
async def test_sigterm_leaves_what_the_next_start_resumes_from(
    program: Program, workers: int
) -> None:
    """With the two arguments that the page about guarantees names, and no others."""
    facts: dict[str, Any] = {"workers": workers, "parallelism": workers or 1}
    latest = {**facts, "from": "latest"}
    for _ in range(2):
        ended = await program.run(checkpoint=2, sign="SIGTERM", **latest)
        assert ended.code == 128 + signal.SIGTERM
        assert program.kept()
    assert len(await program.rows()) < COUNT
    last = await program.run(**latest)
    assert last.code == 0
    assert await program.rows() == ONCE
    assert not program.kept()


async def test_who_starts_without_state_over_what_sigterm_left_is_told(
    program: Program,
) -> None:
    await program.run(checkpoint=2, sign="SIGTERM")
    newest = program.kept()[-1]
    anew = await program.run()
    assert anew.code == 0
    assert f"newest={str(newest)!r}" in anew.log
    assert 'restore_from="latest"' in anew.log
    assert not program.kept()


async def test_who_retains_nothing_keeps_nothing(program: Program) -> None:
    """Said explicitly, as Flink does by default."""
    await program.run(checkpoint=2, sign="SIGTERM", retention="NEVER")
    assert not program.kept()
