"""Rows are in a table once, whatever dies when."""

from __future__ import annotations

import asyncio
import enum
import re
import sqlite3
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import asyncpg
import pytest

import aiomailbox as am
from aiomailbox.connectors import sinks as patient_module
from aiomailbox.connectors.sql import (
    postgres as postgres_module,
    sink as sink_module,
    sqlite as sqlite_module,
)
from aiomailbox.errors import (
    InvalidArgumentError,
    JobFailedError,
    RecordsRefusedError,
    SinkError,
    StorageClaimedError,
    WrongTypeError,
)
from aiomailbox.operators.sinks.sink import CommitterContext
from aiomailbox.records.run import ListRun
from aiomailbox.testing import TestRuntimeContext
from tests.connectors import sinks_by_hand
from tests.connectors.sinks_by_hand import Program, finish, release

pytestmark = pytest.mark.real_time


def numbers(*values: int) -> list[dict[str, int]]:
    return [{"n": value} for value in values]


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    retry = replace(patient_module._RETRY, initial=0.001)
    monkeypatch.setattr(patient_module, "_RETRY", retry)


def program(database: Any, parallelism: int = 1, **options: Any) -> Program:
    sink = partial(am.SqlSink, database.url, "numbers", **options)
    return Program(sink, parallelism=parallelism)


async def create(
    database: Any, columns: str = "n bigint", table: str = "numbers"
) -> None:
    await database.execute(f"CREATE TABLE {table} ({columns})")


async def rows(database: Any, table: str = "numbers") -> list[Any]:
    found = await database.execute(f"SELECT * FROM {table} ORDER BY 1")
    return [row[0] if len(row) == 1 else row for row in found]


async def staged(database: Any) -> int:
    return len(await database.execute("SELECT 1 FROM aiomailbox_staged_numbers"))


async def test_rows_of_all_subtasks_appear_with_their_checkpoint(database: Any) -> None:
    await create(database)
    job = program(database, parallelism=2)
    await job.start()
    await job.write(*numbers(1, 2), subtask=0)
    await job.write(*numbers(3), subtask=1)
    await job.prepare()
    job.complete()
    assert await rows(database) == []
    await job.commit()
    assert await rows(database) == [1, 2, 3]
    assert await staged(database) == 0
    await job.write(*numbers(4))
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    assert await rows(database) == [1, 2, 3, 4]
    assert await staged(database) == 0


async def test_the_ledger_names_job_sink_checkpoint_and_subtask(database: Any) -> None:
    await create(database)
    job = program(database, parallelism=2)
    await job.start()
    for checkpoint in (1, 2):
        await job.write(*numbers(checkpoint), subtask=1)
        await job.checkpoint()
    found = await database.execute(
        "SELECT job, sink, checkpoint, subtask, batch FROM aiomailbox_commits"
    )
    assert found == [("orders", "s-1", 2, 1, 1)]
    await job.end(succeeded=True)


async def test_a_commit_may_be_repeated_by_any_later_execution(database: Any) -> None:
    await create(database)
    job = program(database)
    await job.start()
    await job.write(*numbers(1, 2))
    await job.checkpoint()
    await job.commit()
    await job.crash()
    await job.start()
    for writer in job.writers:
        await writer.close()
    await job.restart()
    assert await rows(database) == [1, 2]
    # Also after the job has ended: a savepoint that stopped it names these batches.
    await job.end(succeeded=True)
    await job.start()
    assert await rows(database) == [1, 2]
    await job.end(succeeded=True)


async def test_what_no_complete_checkpoint_has_is_swept_and_written_again(
    database: Any,
) -> None:
    await create(database)
    job = program(database)
    await job.start()
    await job.write(*numbers(1))
    await job.checkpoint()
    await job.write(*numbers(2))
    await job.prepare()
    await job.write(*numbers(3))
    await job.crash()
    # What SQLite had buffered is gone at once.
    assert await staged(database) in {1, 2}
    await job.start()
    assert await staged(database) == 0
    await job.write(*numbers(2, 3))
    await job.checkpoint(end=True)
    assert await rows(database) == [1, 2, 3]
    await job.end(succeeded=True)


async def test_what_a_complete_checkpoint_has_outlives_the_failure_of_the_job(
    database: Any,
) -> None:
    await create(database)
    job = program(database)
    await job.start()
    await job.write(*numbers(1))
    await job.prepare()
    job.complete()
    await job.end(succeeded=False)
    assert await rows(database) == []
    await job.start()
    assert await rows(database) == [1]
    await job.end(succeeded=True)


async def test_only_the_columns_that_are_named_are_written_whatever_else_records_have(
    database: Any,
) -> None:
    await create(database, "n bigint, word text DEFAULT 'none'")
    job = program(database, columns=["n"])
    await job.start()
    await job.write({"n": 1, "word": "a"}, {"other": 2, "n": 2})
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    assert await rows(database) == [(1, "none"), (2, "none")]


@pytest.mark.parametrize("succeeded", [True, False])
@pytest.mark.parametrize("is_resumable", [True, False])
async def test_only_what_another_execution_may_commit_stays_staged_at_the_end(
    database: Any, succeeded: bool, is_resumable: bool
) -> None:
    await create(database)
    job = program(database)
    await job.start()
    committer = job.committer
    committer._context = replace(committer._context, is_resumable=is_resumable)
    await job.write(*numbers(1))
    await job.prepare()
    await job.end(succeeded=succeeded)
    assert await staged(database) == (not succeeded and is_resumable)


async def test_a_writer_of_a_dead_attempt_that_wakes_up_commits_nothing(
    database: Any,
) -> None:
    await create(database)
    job = program(database)
    await job.start()
    (dead,) = job.writers
    await job.write(*numbers(1))
    await job.restart()
    # What it had staged is swept already, or is staged only now.
    with suppress(SinkError):
        await finish(dead.flush(end_of_input=True))
    await job.write(*numbers(1))
    await job.checkpoint(end=True)
    assert await rows(database) == [1]
    await finish(dead.close())
    await job.end(succeeded=True)


async def test_only_what_older_attempts_of_some_subtasks_have_staged_is_removed(
    database: Any,
) -> None:
    """The others go on."""
    await create(database)
    job = program(database, parallelism=2)
    await job.start()
    await job.write(*numbers(1, 2), subtask=0)
    await job.write(*numbers(3), subtask=1)
    await job.prepare()
    await job.committer.recover_writers({0}, job.epoch)
    await job.committer.recover_writers({5}, job.epoch + 1)
    assert await staged(database) == 3
    await job.committer.recover_writers({0}, job.epoch + 1)
    assert await staged(database) == 1
    killed, dead = job.committer, job.writers
    await job.start()
    await job.write(*numbers(1, 2))
    await job.prepare()
    # Nor does one that was followed remove what is another's now.
    with pytest.raises(StorageClaimedError):
        await killed.recover_writers({0}, job.epoch + 1)
    with pytest.raises(StorageClaimedError):
        await killed.recover()
    assert await staged(database) == 2
    await killed.end(succeeded=False)
    for writer in dead:
        await finish(writer.close())
    await job.end(succeeded=True)


async def test_a_numbered_attempt_that_comes_again_takes_nothing_for_committed(
    database: Any,
) -> None:
    """Going on from an older checkpoint may count attempts from there."""
    await create(database)
    job = program(database)
    await job.start()
    await job.write(*numbers(1))
    await job.checkpoint()
    await job.crash()
    job.epoch = -1
    await job.start()
    await job.write(*numbers(2))
    await job.checkpoint(end=True)
    assert await rows(database) == [1, 2]
    await job.end(succeeded=True)


class Died(BaseException):
    """The program is no more."""


class Deadline:
    """Counts statements, and lets the program die before the n-th."""

    def __init__(self) -> None:
        self.left: int | None = None

    def on_statement(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left <= 0:
                raise Died


@pytest.fixture
def deadline(monkeypatch: pytest.MonkeyPatch) -> Deadline:
    made = Deadline()

    class Counted(sqlite3.Connection):
        def execute(self, *args: Any) -> Any:
            if not args[0].startswith("ROLLBACK"):
                made.on_statement()
            return super().execute(*args)

        def executemany(self, *args: Any) -> Any:
            made.on_statement()
            return super().executemany(*args)

    connect = partial(sqlite3.connect, factory=Counted)
    monkeypatch.setattr(sqlite_module.sqlite3, "connect", connect)

    def counted(name: str) -> None:
        method = getattr(asyncpg.Connection, name)

        async def call(self: Any, *args: Any, **options: Any) -> Any:
            if not str(args[0]).startswith("ROLLBACK"):
                made.on_statement()
            return await method(self, *args, **options)

        monkeypatch.setattr(asyncpg.Connection, name, call)

    for name in ("execute", "fetchval", "fetch", "copy_records_to_table"):
        counted(name)
    return made


async def live(job: Program) -> None:
    """Run to the end from wherever the job is."""
    await job.start()
    while job.checkpoint_id < 3:
        number = job.checkpoint_id + 1
        await job.write(*numbers(10 * number, 10 * number + 1), subtask=number % 2)
        await job.checkpoint(end=number == 3)
    await job.commit(is_final=True)
    await job.end(succeeded=True)


@pytest.mark.timeout(300)
async def test_death_before_any_statement_loses_and_repeats_nothing(
    database: Any, deadline: Deadline
) -> None:
    await create(database)
    expected = [10, 11, 20, 21, 30, 31]
    for dies_at in range(1, 400):
        await database.execute("DELETE FROM numbers")
        job = Program(
            partial(am.SqlSink, database.url, "numbers"),
            parallelism=2,
            job_id=f"job {dies_at}",
        )
        deadline.left = dies_at
        try:
            await live(job)
        except Died:
            deadline.left = None
            seen = await rows(database)
            assert seen in (expected[:0], expected[:2], expected[:4], expected)
            await job.crash()
            await live(job)
            has_died = True
        else:
            has_died = False
        deadline.left = None
        assert await rows(database) == expected
        assert await staged(database) == 0
        if not has_died:
            break
    else:
        pytest.fail("it never came to its end")
    assert dies_at > 40


async def test_a_job_that_begins_anew_gives_up_what_it_had_staged(
    database: Any,
) -> None:
    await create(database)
    job = program(database)
    await job.start()
    await job.write(*numbers(1))
    await job.prepare()
    job.complete()
    await job.crash()
    other = Program(job.new_sink, job_id="another")
    await other.start()
    assert await staged(database) == 1
    await other.end(succeeded=True)
    assert await staged(database) == 1
    anew = program(database)
    await anew.start()
    assert await staged(database) == 0
    await anew.crash()
    with pytest.raises(SinkError, match=r"1 rows were staged for .* and 0 of them"):
        await job.start()
    await job.committer.end(succeeded=False)


async def test_a_job_that_begins_anew_keeps_no_ledger_of_the_one_before(
    database: Any,
) -> None:
    """Nothing goes on from that, and each job would add to it."""

    async def ledger() -> int:
        ((count,),) = await database.execute("SELECT count(*) FROM aiomailbox_commits")
        return int(count)

    await create(database)
    job = program(database)
    await job.start()
    await job.write(*numbers(1))
    await job.checkpoint()
    await job.crash()
    await job.start()
    assert await ledger() == 1
    await job.end(succeeded=True)
    assert await ledger() == 1
    anew = program(database)
    await anew.start()
    assert await ledger() == 0
    await anew.end(succeeded=True)


async def test_with_upsert_the_last_row_of_a_key_counts(database: Any) -> None:
    await create(database, "n bigint PRIMARY KEY, word text, note text DEFAULT 'none'")
    job = program(database, upsert_by=["n"])
    await job.start()
    await job.write({"n": 1, "word": "a"}, {"n": 2, "word": "b"}, {"n": 1, "word": "c"})
    await job.checkpoint()
    assert await rows(database) == [(1, "c", "none"), (2, "b", "none")]
    await job.write({"n": 2, "word": "d"}, {"n": 3, "word": "e"})
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    assert await rows(database) == [
        (1, "c", "none"),
        (2, "d", "none"),
        (3, "e", "none"),
    ]


async def test_upsert_with_keys_only_passes_over_what_is_there(database: Any) -> None:
    await create(database, "n bigint PRIMARY KEY")
    job = program(database, upsert_by=["n"])
    await job.start()
    await job.write(*numbers(1, 2, 1))
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    assert await rows(database) == [1, 2]


async def test_records_that_the_table_cannot_have_are_refused_and_no_others(
    database: Any,
) -> None:
    await create(database, "n bigint NOT NULL, word text NOT NULL DEFAULT 'x'")
    job = program(database, columns=["n"])
    await job.start()
    with pytest.raises(RecordsRefusedError) as caught:
        await job.write(
            {"n": 1}, {"n": None}, {"m": 3}, {"n": 4}, {"n": 2**70}, {"n": 6}
        )
    assert sorted(caught.value.errors) == [1, 2, 4]
    assert caught.value.seen == 6
    assert "null" in str(caught.value.errors[1]).lower()
    assert "fields are ['m'], not ['n']" in str(caught.value.errors[2])
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    assert await rows(database) == [(1, "x"), (4, "x"), (6, "x")]


async def test_texts_that_no_encoding_has_are_refused_and_no_others(
    database: Any,
) -> None:
    await create(database, "t text")
    job = program(database)
    await job.start()
    with pytest.raises(RecordsRefusedError) as caught:
        await job.write({"t": "a"}, {"t": "\ud800"}, {"t": "\N{SNOWMAN}"})
    assert sorted(caught.value.errors) == [1]
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    assert await rows(database) == ["a", "\N{SNOWMAN}"]


async def test_nan_which_is_null_to_sqlite_is_refused_where_null_is(
    sqlite: Any,
) -> None:
    await sqlite.execute("CREATE TABLE numbers (n REAL NOT NULL)")
    job = program(sqlite)
    await job.start()
    with pytest.raises(RecordsRefusedError) as caught:
        await job.write({"n": 1.5}, {"n": float("nan")}, {"n": 2.5})
    assert sorted(caught.value.errors) == [1]
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    assert await rows(sqlite) == [1.5, 2.5]


async def test_none_is_refused_where_no_null_may_be_also_if_there_is_a_default(
    sqlite: Any,
) -> None:
    """A default is for columns that are not written; the key is given a number."""
    await sqlite.execute(
        "CREATE TABLE numbers (n INTEGER PRIMARY KEY NOT NULL, "
        "t TEXT NOT NULL DEFAULT 'x')"
    )
    job = program(sqlite)
    await job.start()
    with pytest.raises(RecordsRefusedError) as caught:
        await job.write({"n": 1, "t": None}, {"n": 2, "t": "a"}, {"n": None, "t": "b"})
    assert sorted(caught.value.errors) == [0]
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    assert await rows(sqlite) == [(2, "a"), (3, "b")]


async def test_none_is_refused_where_postgres_has_a_default(postgres: Any) -> None:
    await create(postgres, "n bigserial PRIMARY KEY, t text NOT NULL DEFAULT 'x'")
    job = program(postgres)
    await job.start()
    with pytest.raises(RecordsRefusedError) as caught:
        await job.write({"n": 1, "t": None}, {"n": 2, "t": "a"}, {"n": None, "t": "b"})
    assert sorted(caught.value.errors) == [0, 2]
    assert 'column "t"' in str(caught.value.errors[0])
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    # A default is for columns that are left out.
    job = program(postgres)
    await job.start()
    await job.write({"t": "c"})
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    assert await rows(postgres) == [(1, "c"), (2, "a")]


@pytest.mark.parametrize("table", ["numbers", "Main.NUMBERS"])
async def test_a_strict_table_is_asked_about_every_run(sqlite: Any, table: str) -> None:
    """Names of other letters are the same to SQLite."""
    await sqlite.execute("CREATE TABLE numbers (n INTEGER, t TEXT) STRICT")
    job = Program(partial(am.SqlSink, sqlite.url, table))
    await job.start()
    with pytest.raises(RecordsRefusedError) as caught:
        await job.write({"n": 1, "t": "a"}, {"n": "b", "t": "c"}, {"n": 2, "t": "d"})
    assert sorted(caught.value.errors) == [1]
    await job.write({"n": 3, "t": "e"})
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    assert await rows(sqlite) == [(1, "a"), (2, "d"), (3, "e")]


@pytest.mark.parametrize("table", ["numbers", "Numbers"])
@pytest.mark.parametrize("upsert_by", [(), ("n",)])
async def test_a_table_with_a_check_is_asked_about_every_run(
    sqlite: Any, upsert_by: Any, table: str
) -> None:
    await sqlite.execute(
        "CREATE TABLE numbers (n INTEGER PRIMARY KEY, t TEXT, check (length(t) < 3))"
    )
    await sqlite.execute("INSERT INTO numbers VALUES (7, 'a')")
    job = Program(partial(am.SqlSink, sqlite.url, table, upsert_by=upsert_by))
    await job.start()
    with pytest.raises(RecordsRefusedError) as caught:
        await job.write({"n": 1, "t": "a"}, {"n": 2, "t": "long"}, {"n": 3, "t": "d"})
    assert sorted(caught.value.errors) == [1]
    # Nor is the last one of a run tried again with what comes later.
    with pytest.raises(RecordsRefusedError):
        await job.write({"n": 4, "t": "last"})
    # Nothing that was tried is left.
    assert await rows(sqlite) == [(7, "a")]
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    assert await rows(sqlite) == [(1, "a"), (3, "d"), (7, "a")]
    connections = [one._database for one in (*job.writers, job.committer)]
    assert [one._connection for one in connections] == [None, None]


async def test_many_small_runs_share_transactions_and_none_is_lost_when_one_fails(
    sqlite: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(sqlite)
    job = program(sqlite)
    await job.start()
    monkeypatch.setattr(sqlite_module, "_BUFFERED_MAX", 50)
    busy: list[int] = []
    begun = sqlite_module.SqliteDatabase._stage

    def stage(self: Any, connection: Any) -> None:
        begun(self, connection)
        busy.append(len(self._buffer))
        if len(busy) % 2:
            raise sqlite3.OperationalError("database is locked")

    monkeypatch.setattr(sqlite_module.SqliteDatabase, "_stage", stage)
    for number in range(120):
        await job.write(*numbers(number))
    await job.checkpoint(end=True)
    assert busy == [50, 50, 50, 50, 20, 20]
    assert await rows(sqlite) == list(range(120))
    await job.end(succeeded=True)


async def logged(caplog: pytest.LogCaptureFixture, text: str) -> Any:
    """Wait for a line of the log, and return its fields."""
    while not (found := [one for one in caplog.records if text in one.getMessage()]):
        await asyncio.sleep(0.01)
    return vars(found[0])


async def test_a_locked_file_is_named_while_the_sink_waits_for_it(
    sqlite: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await create(sqlite)
    monkeypatch.setattr(sqlite_module, "_SILENT_S", 0.01)
    job = program(sqlite)
    await job.start()
    # It writes rows when there are many, or a checkpoint begins.
    await job.write(*numbers(1))
    with closing(sqlite3.connect(sqlite.url, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        writing = asyncio.create_task(job.checkpoint(end=True))
        told = await logged(caplog, "a sink waits for a locked database")
        assert told["database"] == sqlite.url
        assert not writing.done()
        other.execute("COMMIT")
    await writing
    assert told["sink"] == "sink"
    # Where the sink was made.
    assert f"{sinks_by_hand.__file__}:" in told["line"]
    await job.end(succeeded=True)
    assert await rows(sqlite) == [1]


async def test_what_no_wait_mends_is_not_waited_for(
    sqlite: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await create(sqlite)
    commits: list[str] = []

    class Broken(sqlite3.Connection):
        def execute(self, *args: Any) -> Any:
            if args[0] == "COMMIT":
                commits.append(args[0])
                raise sqlite3.OperationalError("disk I/O error")
            return super().execute(*args)

    job = program(sqlite)
    await job.start()
    connect = partial(sqlite3.connect, factory=Broken)
    monkeypatch.setattr(sqlite_module.sqlite3, "connect", connect)
    monkeypatch.setattr(sqlite_module, "_BUFFERED_MAX", 1)
    with pytest.raises(SinkError, match="disk I/O error"):
        await job.write(*numbers(1))
    assert len(commits) == 1
    assert not [one for one in caplog.messages if "locked" in one]
    await job.crash()


async def test_only_the_ends_of_a_transaction_wait_and_say_so_after_two_seconds(
    sqlite: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite would wait anew for each page that a large one writes before its end."""
    await create(sqlite)
    waits_ms: list[tuple[str, int]] = []

    class Locked(sqlite3.Connection):
        def execute(self, *args: Any) -> Any:
            word = args[0].split()[0]
            if word in {"BEGIN", "DELETE", "COMMIT"}:
                [(wait_ms,)] = super().execute("PRAGMA busy_timeout").fetchall()
                waits_ms.append((word, wait_ms))
                if wait_ms == 2000:
                    raise sqlite3.OperationalError("database is locked")
            return super().execute(*args)

    job = program(sqlite)
    await job.start()
    connect = partial(sqlite3.connect, factory=Locked)
    monkeypatch.setattr(sqlite_module.sqlite3, "connect", connect)
    monkeypatch.setattr(sqlite_module, "_BUFFERED_MAX", 1)
    await job.write(*numbers(1))
    assert waits_ms[-5:] == [
        ("BEGIN", 2000),
        ("BEGIN", 30_000),
        ("DELETE", 0),
        ("COMMIT", 2000),
        ("COMMIT", 30_000),
    ]
    told = await logged(caplog, "a sink waits for a locked database")
    assert (told["waited_s"], told["gives_up_after_s"]) == (2, 32)
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    assert await rows(sqlite) == [1]


async def test_a_commit_waits_aloud_for_who_reads_the_file(
    sqlite: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await create(sqlite)
    await sqlite.execute("INSERT INTO numbers VALUES (0)")
    monkeypatch.setattr(sqlite_module, "_SILENT_S", 0.01)
    job = program(sqlite)
    await job.start()
    await job.write(*numbers(1))
    with closing(sqlite3.connect(sqlite.url, isolation_level=None)) as other:
        other.execute("BEGIN")
        assert other.execute("SELECT n FROM numbers").fetchall() == [(0,)]
        writing = asyncio.create_task(job.checkpoint(end=True))
        await logged(caplog, "a sink waits for a locked database")
        other.execute("COMMIT")
    await writing
    await job.end(succeeded=True)
    assert await rows(sqlite) == [0, 1]


async def test_whoever_reads_a_file_with_a_write_ahead_log_holds_up_no_commit(
    sqlite: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(sqlite)
    await sqlite.execute("INSERT INTO numbers VALUES (0)")
    job = program(sqlite)
    with closing(sqlite3.connect(sqlite.url, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("BEGIN")
        assert other.execute("SELECT n FROM numbers").fetchall() == [(0,)]
        # Whatever waits for others says so, and fails here.
        monkeypatch.setattr(sqlite_module, "_SILENT_S", 0.01)
        monkeypatch.setattr(sqlite_module, "_BUSY_S", 0.01)
        await job.start()
        await job.write(*numbers(1))
        await job.checkpoint(end=True)
        await job.end(succeeded=True)
        # As it was when the reading began.
        assert other.execute("SELECT n FROM numbers").fetchall() == [(0,)]
        other.execute("COMMIT")
    assert await rows(sqlite) == [0, 1]


async def test_a_lock_of_the_server_is_named_while_the_sink_waits_for_it(
    postgres: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await create(postgres)
    monkeypatch.setattr(postgres_module, "_SILENT_S", 0.05)
    job = program(postgres)
    await job.start()
    await job.write(*numbers(1))
    async with postgres.connection.transaction():
        await postgres.execute("LOCK TABLE numbers")
        writing = asyncio.create_task(job.checkpoint(end=True))
        told = await logged(caplog, "a sink waits for its database")
    await writing
    assert f"{sinks_by_hand.__file__}:" in told["line"]
    assert "pg_blocking_pids" in told["remedy"]
    await job.end(succeeded=True)
    assert await rows(postgres) == [1]


async def test_no_wait_is_told_of_a_transaction_that_has_ended(postgres: Any) -> None:
    await create(postgres)
    job = program(postgres)
    await job.start()
    await job.write(*numbers(1))
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    loop: Any = asyncio.get_running_loop()
    timers = [timer for timer in loop._scheduled if not timer.cancelled()]
    assert "_warn_of_slow_one" not in repr(timers)


async def test_checks_of_the_table_are_made_when_rows_are_staged(postgres: Any) -> None:
    await create(postgres, "n bigint CHECK (n > 0)")
    job = program(postgres)
    await job.start()
    with pytest.raises(RecordsRefusedError) as caught:
        await job.write(*numbers(1, -1, 2))
    assert "violates check constraint" in str(caught.value.errors[1])
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    assert await rows(postgres) == [1, 2]


class Word(enum.Enum):
    ONE = "one"


@dataclass
class Typed:
    i: int
    f: float
    b: bool
    t: str
    raw: bytes
    at: datetime
    wall: datetime
    hour: time
    day: date
    exact: Decimal
    id: uuid.UUID
    data: Any
    nothing: str | None = None


VALUE = Typed(
    2**62,
    0.1,
    True,
    "É\n",
    b"\x00\xff",
    datetime(2026, 1, 2, 3, 4, 5, 6, timezone(timedelta(hours=-5))),
    datetime(2026, 1, 2, 3, 4, 5, 6),
    time(3, 4),
    date(2026, 1, 2),
    Decimal("1.50"),
    uuid.UUID(int=7),
    {"a": [1, None]},
)


async def test_values_arrive_in_postgres_as_they_are(postgres: Any) -> None:
    await create(
        postgres,
        "i bigint, f double precision, b boolean, t text, raw bytea, at timestamptz, "
        "wall timestamp, hour time, day date, exact numeric(10,2), id uuid, data jsonb, nothing text",
    )
    job = program(postgres)
    await job.start()
    await job.write(VALUE)
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    (row,) = await rows(postgres)
    *found, data, nothing = row
    assert Typed(*found, VALUE.data, nothing) == VALUE
    assert data == '{"a": [1, null]}'


async def test_text_for_json_is_json_already_and_none_is_null(postgres: Any) -> None:
    await create(postgres, "n bigint, data jsonb, plain json")
    job = program(postgres)
    await job.start()
    await job.write(
        {"n": 1, "data": None, "plain": None},
        {"n": 2, "data": '{"a": 1}', "plain": '"b"'},
        {"n": 3, "data": [1], "plain": {"c": None}},
    )
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    assert await rows(postgres) == [
        (1, None, None),
        (2, '{"a": 1}', '"b"'),
        (3, "[1]", '{"c":null}'),
    ]


async def test_a_trigger_may_give_what_is_not_written(postgres: Any) -> None:
    await create(postgres, "n bigint NOT NULL, word text NOT NULL")
    await postgres.execute(
        "CREATE FUNCTION give() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN NEW.word = 'given'; RETURN NEW; END $$"
    )
    await postgres.execute(
        "CREATE TRIGGER give BEFORE INSERT ON numbers "
        "FOR EACH ROW EXECUTE FUNCTION give()"
    )
    job = program(postgres, columns=["n"])
    await job.start()
    await job.write(*numbers(1, 2))
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    assert await rows(postgres) == [(1, "given"), (2, "given")]


async def test_who_goes_on_does_not_wait_forever_for_a_commit_that_hangs(
    postgres: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(postgres)
    job = program(postgres)
    await job.start()
    await job.checkpoint()
    await job.crash()
    monkeypatch.setattr(postgres_module, "_LEASE_WAIT", "20ms")
    async with postgres.connection.transaction():
        await postgres.execute("SELECT 1 FROM aiomailbox_leases FOR KEY SHARE")
        with pytest.raises(ConnectionError, match="lock timeout"):
            await job.start()
    await finish(job.committer.end(succeeded=False))
    await job.start()
    await job.end(succeeded=True)


async def test_values_arrive_in_sqlite_as_text_where_it_has_no_type(
    sqlite: Any,
) -> None:
    await create(
        sqlite, 'i, f, b, t, raw, at, wall, hour, day, exact, id, data, "nothing"'
    )
    job = program(sqlite)
    await job.start()
    await job.write(VALUE)
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    assert await rows(sqlite) == [
        (
            2**62,
            0.1,
            1,
            "É\n",
            b"\x00\xff",
            "2026-01-02 08:04:05.000006+00:00",
            "2026-01-02 03:04:05.000006",
            "03:04:00",
            "2026-01-02",
            "1.50",
            str(VALUE.id),
            '{"a":[1,null]}',
            None,
        )
    ]
    assert sqlite_module._plain(Word.ONE) == "one"


@pytest.mark.parametrize(
    ("made", "options", "message"),
    [
        ("", {}, "there is no table 'numbers'"),
        ("n bigint", {"columns": ["n", "m"]}, r"has no columns \['m'\]"),
        ("n bigint", {"upsert_by": ["n"]}, "has no unique index of just the columns"),
        ("n bigint", {"upsert_by": ["m"]}, r"has no columns \['m'\]"),
    ],
)
async def test_a_table_that_does_not_fit_is_refused_before_any_task_starts(
    database: Any, made: str, options: dict[str, Any], message: str
) -> None:
    if made:
        await create(database, made)
    job = program(database, **options)
    with pytest.raises(SinkError, match=message):
        await job.start()
    await finish(job.committer.end(succeeded=False))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ("TABLE number (n)", "there is no table 'numbers' .* Is 'number' meant"),
        ("TABLE a (n)", r"there is no table 'numbers' .*: create it first; it has a\."),
        ("INDEX i ON aiomailbox_commits (n)", r"the file has no tables\."),
        ("VIEW numbers AS SELECT 1 AS n", "Name the table behind it"),
    ],
)
async def test_a_file_without_the_table_says_what_it_has(
    sqlite: Any, made: str, message: str
) -> None:
    # What sinks have beside their tables is nobody's target.
    await sqlite.execute("CREATE TABLE aiomailbox_commits (n)")
    await sqlite.execute(f"CREATE {made}")
    job = program(sqlite)
    with pytest.raises(SinkError, match=message):
        await job.start()
    await finish(job.committer.end(succeeded=False))


async def test_a_sink_that_ends_closes_its_files(sqlite: Any) -> None:
    await create(sqlite)
    job = program(sqlite)
    await job.start()
    await job.write(*numbers(1))
    await job.checkpoint(end=True)
    databases = [one._database for one in (*job.writers, job.committer)]
    connections = [one._connection for one in databases]
    await job.end(succeeded=True)
    for connection in connections:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")


async def test_fields_that_are_no_columns_are_refused(database: Any) -> None:
    await create(database)
    job = program(database)
    await job.start()
    with pytest.raises(RecordsRefusedError) as caught:
        await job.write({"n": 1, "m": 2}, 7, {"n": 3})
    assert "fields ['m']" in str(caught.value.errors[0])
    assert "no named fields" in str(caught.value.errors[1])
    await job.checkpoint(end=True)
    assert await rows(database) == [3]
    await job.end(succeeded=True)


async def test_a_record_without_what_it_replaces_by_is_refused(database: Any) -> None:
    await create(database, "n bigint PRIMARY KEY, word text")
    job = program(database, upsert_by=["n"])
    await job.start()
    with pytest.raises(RecordsRefusedError) as caught:
        await job.write({"word": "a"}, {"n": 1, "word": "b"})
    told = "dict has no fields ['n'], which upsert_by= names"
    assert told in str(caught.value.errors[0])
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    assert await rows(database) == [(1, "b")]


async def test_a_run_of_which_no_record_has_a_row_is_refused(database: Any) -> None:
    await create(database)
    job = program(database)
    await job.start()
    with pytest.raises(RecordsRefusedError) as caught:
        await job.write({"m": 2}, 7, {})
    assert sorted(caught.value.errors) == [0, 1, 2]
    assert "has fields []" in str(caught.value.errors[2])
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    assert await rows(database) == []


async def test_a_database_that_is_none_any_more_is_no_fault_of_a_record(
    sqlite: Any,
) -> None:
    await create(sqlite)
    job = program(sqlite)
    await job.start()
    Path(sqlite.url).write_bytes(b"no database" * 1000)
    with pytest.raises(SinkError, match="not a database"):
        await job.write(*numbers(1))
    await job.crash()


async def test_a_unique_key_that_comes_twice_fails_the_commit_and_says_what_to_do(
    database: Any,
) -> None:
    await create(database, "n bigint UNIQUE")
    job = program(database)
    await job.start()
    await job.write(*numbers(1, 1))
    with pytest.raises(SinkError, match=r"upsert_by=\["):
        await job.checkpoint()
    assert await rows(database) == []
    await job.end(succeeded=False)


async def test_strange_names_are_only_names(database: Any) -> None:
    strange = 'a"; DROP TABLE x; --'
    quoted = strange.replace('"', '""')
    await database.execute(f'CREATE TABLE "{quoted}" ("{quoted}" bigint UNIQUE)')
    job = Program(partial(am.SqlSink, database.url, strange, upsert_by=[strange]))
    await job.start()
    await job.write({strange: 1}, {strange: 1})
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    assert await rows(database, f'"{quoted}"') == [1]


async def test_a_table_that_gained_a_column_is_staged_anew(database: Any) -> None:
    await create(database)
    job = program(database)
    await job.start()
    await job.write(*numbers(1))
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    await database.execute("ALTER TABLE numbers ADD COLUMN m bigint")
    job = program(database)
    await job.start()
    await job.write({"n": 2, "m": 3})
    await job.prepare()
    job.complete()
    await job.crash()
    await database.execute("ALTER TABLE numbers ADD COLUMN o bigint")
    with pytest.raises(SinkError, match="have changed since"):
        await job.start()
    await finish(job.committer.end(succeeded=False))


async def test_a_table_in_a_schema(postgres: Any) -> None:
    await postgres.execute("CREATE SCHEMA sales")
    await create(postgres, "id bigserial PRIMARY KEY, n bigint", "sales.numbers")
    job = Program(partial(am.SqlSink, postgres.url, "sales.numbers"))
    await job.start()
    await job.write(*numbers(5, 6))
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    assert await rows(postgres, "sales.numbers") == [(1, 5), (2, 6)]


async def test_the_schema_of_a_file_is_main_and_there_is_no_other(sqlite: Any) -> None:
    await create(sqlite, "n bigint PRIMARY KEY")
    sink = partial(am.SqlSink, sqlite.url, "main.numbers", upsert_by=["n"])
    job = Program(sink)
    await job.start()
    await job.write(*numbers(5, 6))
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    assert await rows(sqlite) == [5, 6]
    other = Program(partial(am.SqlSink, sqlite.url, "sales.numbers"))
    with pytest.raises(SinkError, match=r"'sales\.numbers' .*: unknown database"):
        await other.start()
    await finish(other.committer.end(succeeded=False))


async def test_columns_that_the_database_makes_are_not_written(database: Any) -> None:
    await create(database, "n bigint, twice bigint GENERATED ALWAYS AS (n * 2) STORED")
    job = program(database)
    await job.start()
    with pytest.raises(RecordsRefusedError) as caught:
        await job.write({"n": 1, "twice": 2}, {"n": 3})
    assert "fields ['twice'], and" in str(caught.value.errors[0])
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    assert await rows(database) == [(3, 6)]
    job = program(database, columns=["n", "twice"])
    with pytest.raises(SinkError, match=r"no columns \['twice'\] that can be written"):
        await job.start()
    await finish(job.committer.end(succeeded=False))


async def test_numbers_that_postgres_gives_may_be_left_out(postgres: Any) -> None:
    made = "n bigint GENERATED BY DEFAULT AS IDENTITY, "
    made += "m bigint GENERATED ALWAYS AS IDENTITY (START 7), t text"
    await create(postgres, made)
    job = program(postgres)
    await job.start()
    await job.write({"t": "a"})
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    job = program(postgres, columns=["n", "t"])
    await job.start()
    with pytest.raises(RecordsRefusedError, match="null value in column"):
        await job.write({"n": None, "t": "b"}, {"n": 5, "t": "c"})
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    assert await rows(postgres) == [(1, 7, "a"), (5, 8, "c")]


async def test_what_no_retry_mends_fails_at_once_in_the_words_of_the_database(
    database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(database)
    monkeypatch.setattr(sqlite_module, "_BUFFERED_MAX", 1)
    job = program(database)
    await job.start()
    await job.write(*numbers(1))
    await database.execute("DROP TABLE aiomailbox_staged_numbers")
    with pytest.raises(SinkError, match="aiomailbox_staged_numbers") as caught:
        await job.write(*numbers(2))
    assert "cannot be reached" not in str(caught.value)
    await job.crash()


async def test_an_error_that_has_ended_its_transaction_keeps_its_words(
    sqlite: Any,
) -> None:
    await create(sqlite, "n bigint UNIQUE ON CONFLICT ROLLBACK")
    job = program(sqlite)
    await job.start()
    await job.write(*numbers(1, 1))
    with pytest.raises(SinkError, match=r"UNIQUE constraint failed.*upsert_by=\["):
        await job.checkpoint()
    await job.end(succeeded=False)
    assert await rows(sqlite) == []


async def test_connections_that_are_lost_are_made_again(postgres: Any) -> None:
    await create(postgres)

    async def cut() -> None:
        await postgres.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )

    job = program(postgres)
    await job.start()
    await job.write(*numbers(1))
    await cut()
    await job.write(*numbers(2))
    await cut()
    await job.prepare()
    job.complete()
    await cut()
    await job.commit()
    assert await rows(postgres) == [1, 2]
    await job.end(succeeded=True)


@pytest.mark.parametrize("after", [True, False])
async def test_a_transaction_of_which_nobody_knows_whether_it_was_made_is_made_once(
    postgres: Any, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """The answer to a COMMIT is lost: rows are staged again, and not twice."""
    await create(postgres)
    job = program(postgres)
    await job.start()
    await job.write(*numbers(1))
    execute, lost = asyncpg.Connection.execute, []

    async def losing(self: Any, query: str, *args: Any, **options: Any) -> Any:
        if query.startswith("COMMIT") and not lost:
            lost.append(1)
            if after:
                await execute(self, query, *args, **options)
            raise ConnectionResetError("the answer is lost")
        return await execute(self, query, *args, **options)

    monkeypatch.setattr(asyncpg.Connection, "execute", losing)
    await job.write(*numbers(2, 3))
    assert lost == [1]
    await job.prepare()
    job.complete()
    lost.clear()
    await job.commit()
    assert lost == [1]
    assert await rows(postgres) == [1, 2, 3]
    await job.end(succeeded=True)


@pytest.mark.parametrize("after", [True, False])
async def test_a_commit_of_a_file_of_which_nobody_knows_whether_it_was_made_is_made_once(
    sqlite: Any, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """What it has left is replaced, and neither kept beside the new rows nor refused."""
    await create(sqlite)
    lost: list[int] = []

    class Losing(sqlite3.Connection):
        def execute(self, *args: Any) -> Any:
            if args[0] == "COMMIT" and not lost:
                lost.append(1)
                if after:
                    super().execute(*args)
                raise ConnectionResetError("the answer is lost")
            return super().execute(*args)

    connect = partial(sqlite3.connect, factory=Losing)
    monkeypatch.setattr(sqlite_module.sqlite3, "connect", connect)
    monkeypatch.setattr(sqlite_module, "_BUFFERED_MAX", 2)
    lost.append(0)
    job = program(sqlite)
    await job.start()
    await job.write(*numbers(1))
    lost.clear()
    await job.write(*numbers(2))
    assert lost == [1]
    await job.write(*numbers(3))
    lost.clear()
    await job.checkpoint(end=True)
    assert lost == [1]
    await job.end(succeeded=True)
    assert await rows(sqlite) == [1, 2, 3]


@pytest.mark.parametrize(
    "error", [asyncpg.SerializationError, asyncpg.DeadlockDetectedError]
)
async def test_transactions_that_met_others_are_tried_again(
    postgres: Any, monkeypatch: pytest.MonkeyPatch, error: Callable[[str], Exception]
) -> None:
    await create(postgres)
    job = program(postgres)
    await job.start()
    copy, met = asyncpg.Connection.copy_records_to_table, []

    async def meeting(self: Any, *args: Any, **options: Any) -> Any:
        if len(met) < 2:
            met.append(1)
            raise error("others were faster")
        return await copy(self, *args, **options)

    monkeypatch.setattr(asyncpg.Connection, "copy_records_to_table", meeting)
    await job.write(*numbers(1))
    await job.checkpoint(end=True)
    assert await rows(postgres) == [1]
    await job.end(succeeded=True)


async def test_a_server_that_does_not_come_back_is_named_without_its_password() -> None:
    sink = am.SqlSink("postgresql://me:secret@127.0.0.1:1/x", "t")
    assert "secret" not in repr(sink)
    job = Program(lambda: sink)
    with pytest.raises(ConnectionError, match=r"me@127.0.0.1:1/x") as caught:
        await job.start()
    assert "secret" not in str(caught.value)
    await finish(job.committer.end(succeeded=False))


async def until_over(database: Any) -> None:
    """Let the leases run out."""
    past = "until - 3600" if database.url.endswith(".db") else "until - interval '1 h'"
    await database.execute(f"UPDATE aiomailbox_leases SET until = {past}")


def second(database: Any) -> Program:
    """Return another job with the same job_id, whose checkpoints are elsewhere."""
    sink = partial(am.SqlSink, database.url, "numbers")
    return Program(sink, lineage="another directory")


async def test_a_second_job_of_one_job_id_is_refused_by_name(database: Any) -> None:
    await create(database)
    job, other = program(database), second(database)
    began_s = monotonic()
    await job.start()
    await job.write(*numbers(1))
    with pytest.raises(StorageClaimedError) as caught:
        await other.start()
    took_s = monotonic() - began_s
    await finish(other.committer.end(succeeded=False))
    said = str(caught.value)
    assert "sink 'sink' of job_id 'orders' in table 'numbers'" in said
    assert "belongs to job 'orders job'" in said
    left = re.search(r"for another (\d+) s", said)
    assert left is not None
    assert 59 - took_s < int(left[1]) <= 60
    assert "give each job a job_id of its own" in said
    # It has touched nothing of the first one.
    await job.checkpoint(end=True)
    assert await rows(database) == [1]
    await job.end(succeeded=True)
    # And does not have to wait once that has ended.
    await other.start()
    await other.write(*numbers(2))
    await other.checkpoint(end=True)
    await other.end(succeeded=True)
    assert await rows(database) == [1, 2]
    assert await rows(database, "aiomailbox_leases") == []


async def test_who_goes_on_from_the_same_directory_waits_for_no_lease(
    database: Any,
) -> None:
    await create(database)
    job = program(database)
    await job.start()
    await job.write(*numbers(1))
    await job.checkpoint()
    killed, dead = job.committer, job.writers
    await job.start()
    # One that was taken for dead writes no more, whatever it still does.
    staged_before = [("late", 0, 0, 1, ("n",))]
    with pytest.raises(StorageClaimedError, match="which still runs"):
        await killed.commit(staged_before, checkpoint_id=9, is_final=False)
    with pytest.raises(StorageClaimedError):
        # SQLite asks only when it writes.
        await finish(dead[0].write_run(ListRun(numbers(9))))
        await finish(dead[0].flush(end_of_input=False))
    await killed.end(succeeded=False)
    await finish(dead[0].close())
    await job.write(*numbers(2))
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    assert await rows(database) == [1, 2]


async def test_who_has_lost_the_lease_stages_nothing_more(
    database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would sweep that: who has the lease has looked for such rows already."""
    await create(database)
    monkeypatch.setattr(sqlite_module, "_BUFFERED_MAX", 1)
    job = program(database)
    await job.start()
    killed, (dead,) = job.committer, job.writers
    await job.start()
    with pytest.raises(StorageClaimedError, match="which still runs"):
        await finish(dead.write_run(ListRun(numbers(9))))
    assert await staged(database) == 0
    await killed.end(succeeded=False)
    await finish(dead.close())
    await job.end(succeeded=True)


async def test_a_lease_that_has_run_out_passes_to_another_job(
    database: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await create(database)
    job, other = program(database), second(database)
    await job.start()
    await job.write(*numbers(1))
    await job.prepare()
    await until_over(database)
    await other.start()
    (said,) = [one for one in caplog.messages if "counts as dead" in one]
    assert "job_id='orders'" in said
    assert "orders job" in said
    # The first one was alive, and cannot write any more: nothing is lost in silence.
    job.complete()
    with pytest.raises(StorageClaimedError):
        await job.commit()
    await job.end(succeeded=False)
    await other.write(*numbers(2))
    await other.checkpoint(end=True)
    await other.end(succeeded=True)
    assert await rows(database) == [2]


async def test_the_lease_of_a_job_that_writes_nothing_is_renewed(
    database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(database)
    monkeypatch.setattr(sink_module, "_RENEW_S", 0.001)
    job = program(database)
    await job.start()
    renewed = asyncio.Event()
    keeper = job.committer._keeper
    renew = keeper.renew

    async def renew_and_say() -> None:
        await renew()
        renewed.set()

    await until_over(database)
    monkeypatch.setattr(keeper, "renew", renew_and_say)
    await renewed.wait()
    other = second(database)
    with pytest.raises(StorageClaimedError):
        await other.start()
    await finish(other.committer.end(succeeded=False))
    await job.end(succeeded=True)


async def test_only_the_lease_of_this_execution_is_renewed_and_given_back(
    database: Any,
) -> None:
    await create(database)
    job, other = program(database), Program(program(database).new_sink, job_id="other")
    await job.start()
    await other.start()
    await until_over(database)
    await job.committer._keeper.renew()
    now = "unixepoch()" if database.url.endswith(".db") else "now()"
    left = f"SELECT owner FROM aiomailbox_leases WHERE until > {now}"
    assert len(await database.execute(left)) == 1
    killed, dead = job.committer, job.writers
    await job.start()
    with pytest.raises(StorageClaimedError, match="which still runs"):
        await killed._keeper.renew()
    await killed.end(succeeded=False)
    # The one of who goes on is still there.
    assert len(await rows(database, "aiomailbox_leases")) == 2
    for writer in dead:
        await finish(writer.close())
    await job.end(succeeded=True)
    await other.end(succeeded=True)


async def test_a_lease_that_somebody_has_deleted_is_named(
    database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(database)
    monkeypatch.setattr(sqlite_module, "_BUFFERED_MAX", 1)
    job = program(database)
    await job.start()
    await database.execute("DELETE FROM aiomailbox_leases")
    with pytest.raises(SinkError, match="no lease of this execution any more"):
        await job.write(*numbers(1))
    await job.crash()


async def test_rows_that_are_gone_fail_the_checkpoint_and_not_its_commit(
    database: Any,
) -> None:
    await create(database)
    job = program(database)
    await job.start()
    await job.write(*numbers(1, 2))
    await job.checkpoint()
    (writer,) = job.writers
    await job.write(*numbers(3))
    # SQLite has it in a file only then.
    await writer._database.make_durable(writer._name, 1, 1)
    await database.execute("DELETE FROM aiomailbox_staged_numbers")
    with pytest.raises(
        SinkError, match=r"1 rows were staged .* and 0 of them are there"
    ):
        await job.prepare()
    await finish(writer.close())
    await job.restart()
    await job.write(*numbers(3))
    await job.checkpoint(end=True)
    assert await rows(database) == [1, 2, 3]
    await job.end(succeeded=True)


async def test_what_a_killed_job_that_cannot_go_on_has_staged_is_removed_by_the_next(
    database: Any,
) -> None:
    await create(database)
    sink = am.SqlSink(database.url, "numbers")
    context = TestRuntimeContext("sink", uid="s-1")
    context.job_id, context.execution_id = "orders", "f" * 32
    committer = sink.create_committer(
        CommitterContext("killed", "f" * 32, "sink", "s-1", "s-1", "orders")
    )
    await committer.begin(restored=False)
    writer = sink.create_writer(context)
    await finish(writer.write_run(ListRun(numbers(1))))
    await finish(writer.flush(end_of_input=True))
    await finish(writer.close())
    await release(committer)
    job = program(database)
    await job.start()
    assert await staged(database) == 1
    await job.end(succeeded=True)
    await until_over(database)
    await job.start()
    assert await staged(database) == 0
    await job.end(succeeded=True)
    assert await rows(database, "aiomailbox_leases") == []


async def test_a_connection_that_is_confused_is_replaced_and_the_write_repeated(
    postgres: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that goes in the middle of a copy leaves a connection that looks open."""
    await create(postgres)
    job = program(postgres)
    await job.start()
    copy, met = asyncpg.Connection.copy_records_to_table, []

    async def confused(self: Any, *args: Any, **options: Any) -> Any:
        if not met:
            met.append(self)
            raise asyncpg.InterfaceError(
                "cannot perform operation: another operation is in progress"
            )
        assert self is not met[0]
        return await copy(self, *args, **options)

    monkeypatch.setattr(asyncpg.Connection, "copy_records_to_table", confused)
    await job.write(*numbers(1))
    await job.checkpoint(end=True)
    assert await rows(postgres) == [1]
    await job.end(succeeded=True)


class Pair(NamedTuple):
    n: int
    word: str


async def test_a_job_without_checkpoints_writes_all_rows_or_none(database: Any) -> None:
    await create(database, "n bigint, word text")

    def check(pair: Pair) -> Pair:
        if pair.n == 5000:
            raise ValueError("five thousand")
        return pair

    for size in (6000, 3000):
        env = am.StreamExecutionEnvironment(parallelism=2)
        pairs = env.from_collection([Pair(n, str(n)) for n in range(size)])
        pairs.rebalance().map(check).sink_to(am.SqlSink(database.url, "numbers"))
        if size == 6000:
            with pytest.raises(JobFailedError, match="five thousand"):
                await env.execute()
            assert await rows(database) == []
        else:
            await env.execute()
    assert await rows(database) == [(n, str(n)) for n in range(3000)]
    assert await staged(database) == 0
    assert await rows(database, "aiomailbox_commits") == []


async def test_what_a_table_refuses_goes_where_on_error_says(database: Any) -> None:
    await create(database, "n bigint NOT NULL")
    env = am.StreamExecutionEnvironment()
    records = env.from_collection([{"n": 1}, {"n": None}, {"n": 3}])
    records.sink_to(am.SqlSink(database.url, "numbers"), on_error=am.skip)
    await env.execute()
    assert await rows(database) == [1, 3]


@pytest.mark.parametrize("interval", [None, 0.02])
async def test_jobs_of_one_job_id_may_write_to_one_table_if_none_goes_on_from_another(
    database: Any, interval: float | None
) -> None:
    await create(database)

    async def write(start: int) -> None:
        env = am.StreamExecutionEnvironment(parallelism=2)
        if interval is not None:
            # In a temporary directory.
            env.enable_checkpointing(am.seconds(interval))
        records = env.from_collection(numbers(*range(start, start + 500)))
        records.rebalance().sink_to(am.SqlSink(database.url, "numbers"))
        await env.execute()

    await asyncio.gather(*(write(start) for start in (0, 500, 1000)))
    assert await rows(database) == list(range(1500))


async def test_two_jobs_of_one_job_id_with_checkpoints_of_their_own_are_told_apart(
    database: Any, tmp_path: Path
) -> None:
    await create(database)
    begun, go = asyncio.Event(), asyncio.Event()

    async def numbered(waits: bool) -> AsyncIterator[tuple[dict[str, int], int]]:
        for number in range(10):
            if number == 5 and waits:
                begun.set()
                await go.wait()
            yield {"n": number}, number

    def env(name: str) -> am.StreamExecutionEnvironment:
        made = am.StreamExecutionEnvironment()
        made.enable_checkpointing(am.seconds(0.02), directory=tmp_path / name)
        source = made.from_async_iterable(
            lambda position: numbered(name == "a"), offset=lambda record: record[1]
        )
        source.map(lambda record: record[0]).sink_to(
            am.SqlSink(database.url, "numbers")
        )
        return made

    async with env("a").start() as first:
        await begun.wait()
        with pytest.raises(JobFailedError, match="of job_id 'job' in table"):
            await env("b").execute()
        go.set()
        await first.result()
    assert await rows(database) == list(range(10))


@pytest.mark.parametrize(
    ("args", "options", "kind", "message"),
    [
        ((5, "t"), {}, WrongTypeError, "not a URL or path"),
        (("mysql://x/y", "t"), {}, InvalidArgumentError, "not a supported database"),
        (("", "t"), {}, InvalidArgumentError, "not a supported database"),
        (("x.db", 5), {}, WrongTypeError, "not a name"),
        (("x.db", "a.b.c"), {}, InvalidArgumentError, "not the name of a table"),
        (("x.db", ""), {}, InvalidArgumentError, "not the name of a table"),
        (("x.db", "t"), {"columns": "n"}, WrongTypeError, "not a list of names"),
        (("x.db", "t"), {"columns": []}, InvalidArgumentError, "it is empty"),
        (("x.db", "t"), {"columns": ["a", "a"]}, InvalidArgumentError, "duplicates"),
        (("x.db", "t"), {"upsert_by": [1]}, WrongTypeError, "not a name"),
        (
            ("x.db", "t"),
            {"columns": ["a"], "upsert_by": ["b"]},
            InvalidArgumentError,
            "not in columns",
        ),
    ],
)
def test_arguments_that_cannot_work_are_refused_where_they_are_written(
    args: Any, options: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        am.SqlSink(*args, **options)


@pytest.mark.parametrize("url", ["{}", "sqlite:///{}"])
async def test_a_file_of_sqlite_has_two_spellings(sqlite: Any, url: str) -> None:
    await create(sqlite)
    env = am.StreamExecutionEnvironment()
    sink = am.SqlSink(url.format(sqlite.url), "numbers")
    env.from_collection(numbers(1)).sink_to(sink)
    await env.execute()
    assert await rows(sqlite) == [1]
