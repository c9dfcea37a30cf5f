"""A server of PostgreSQL crashes at one moment of a checkpoint: no row is lost or twice.

The server writes nothing to its log of its own accord, so what was staged and not waited
for is gone for certain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import asyncpg
import pytest

import aiomailbox as am
from aiomailbox.errors import SinkError
from tests.connectors.databases import MortalServer
from tests.connectors.sinks_by_hand import Program, finish

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(120)]

CHECKPOINTS = 3
RUN = 40
# Which statement of a kind it is that meets the crash of the server: the second one of
# what is done twice in a checkpoint.
MOMENTS = {
    "before rows are staged": ("fetch", "SELECT execution", 2, False),
    "before rows are copied": ("copy_records_to_table", "", 2, False),
    "after rows were copied": ("copy_records_to_table", "", 2, True),
    "before rows are counted": ("fetch", "SELECT count(*)", 1, False),
    "before a checkpoint is durable": ("fetch", "SELECT pg_logical_emit", 1, False),
    "after a checkpoint was durable": ("execute", "COMMIT", 4, True),
    "before rows are moved": ("fetch", "INSERT INTO", 1, False),
    "after rows were moved": ("fetch", "WITH moved", 1, True),
}


class Moment:
    """Lets the server crash once, at a statement."""

    def __init__(self, server: MortalServer, patch: pytest.MonkeyPatch) -> None:
        self._server = server
        self._patch = patch
        self.has_come = False

    def come(self) -> None:
        """Let the server crash and begin again, once."""
        if not self.has_come:
            self.has_come = True
            self._server.crash()

    def at(self, method: str, begins: str, number: int, is_after: bool) -> None:
        """Come before or after the n-th statement that begins so."""
        original = getattr(asyncpg.Connection, method)
        seen = 0

        async def call(connection: Any, *args: Any, **options: Any) -> Any:
            nonlocal seen
            seen += str(args[0]).startswith(begins)
            is_it = seen == number and str(args[0]).startswith(begins)
            if is_it and not is_after:
                self.come()
            result = await original(connection, *args, **options)
            if is_it and is_after:
                self.come()
            return result

        self._patch.setattr(asyncpg.Connection, method, call)


async def live(job: Program, on_step: Callable[[str], None]) -> int:
    """Take checkpoints to the end; return how often the tasks began again."""
    restarts = 0
    await job.start()
    on_step("started")
    while job.checkpoint_id < CHECKPOINTS:
        first = job.checkpoint_id * 2 * RUN
        try:
            await job.write(*({"n": first + n} for n in range(RUN)))
            on_step("between runs")
            await job.write(*({"n": first + RUN + n} for n in range(RUN)))
            await job.prepare()
            job.complete()
            on_step("prepared")
            await job.commit()
            on_step("committed")
        except (SinkError, ConnectionError):
            restarts += 1
            # With what cannot be committed, it would begin again for ever.
            assert restarts < 3
            for writer in job.writers:
                await finish(writer.close())
            await job.restart()
    await job.end(succeeded=True)
    return restarts


@pytest.fixture
def moment(mortal: MortalServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Moment]:
    with monkeypatch.context() as patch:
        yield Moment(mortal, patch)


async def run(server: MortalServer, on_step: Callable[[str], None]) -> int:
    """Run a job, and check its rows; return how often its tasks began again."""
    await server.execute("CREATE TABLE numbers (n bigint)")
    job = Program(partial(am.SqlSink, server.url, "numbers"))
    try:
        restarts = await live(job, on_step)
    finally:
        await job.crash()
    found = await server.execute("SELECT n FROM numbers ORDER BY n")
    assert found == [(n,) for n in range(CHECKPOINTS * 2 * RUN)]
    assert await server.execute("SELECT 1 FROM aiomailbox_staged_numbers") == []
    return restarts


@pytest.mark.parametrize("name", MOMENTS)
async def test_a_server_that_crashes_at_a_statement_loses_and_repeats_no_row(
    mortal: MortalServer, moment: Moment, name: str
) -> None:
    def on_step(now: str) -> None:
        if now == "started":
            moment.at(*MOMENTS[name])

    await run(mortal, on_step)
    assert moment.has_come


@pytest.mark.parametrize(
    ("step", "restarts"), [("between runs", 1), ("prepared", 0), ("committed", 0)]
)
async def test_a_server_that_crashes_between_two_steps_loses_and_repeats_no_row(
    mortal: MortalServer, moment: Moment, step: str, restarts: int
) -> None:
    def on_step(now: str) -> None:
        if now == step:
            moment.come()

    # Rows that were staged and not waited for are gone, and the checkpoint fails.
    assert await run(mortal, on_step) == restarts


@pytest.mark.parametrize("step", ["prepared", "committed"])
async def test_rows_are_durable_also_where_the_server_waits_for_no_transaction(
    mortal: MortalServer, moment: Moment, step: str
) -> None:
    await mortal.execute("ALTER DATABASE postgres SET synchronous_commit = off")

    def on_step(now: str) -> None:
        if now == step:
            moment.come()

    try:
        assert await run(mortal, on_step) == 0
    finally:
        await mortal.execute("ALTER DATABASE postgres RESET synchronous_commit")
