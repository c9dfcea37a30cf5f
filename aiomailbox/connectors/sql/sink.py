"""Rows of a table, written exactly once."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import os
import random
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from aiomailbox.connectors.sinks import RowReader, field_names, patient
from aiomailbox.connectors.sql.contract import (
    LEASE_S,
    RowsRefused,
    SqlDatabase,
    StagedBatch,
    StagingLease,
    TableTarget,
    no_field,
)
from aiomailbox.connectors.sql.sqlite import SqliteDatabase
from aiomailbox.errors import (
    AioMailboxError,
    InvalidArgumentError,
    MissingExtraError,
    RecordsRefusedError,
    RecordTypeError,
    SinkError,
)
from aiomailbox.logs import library_log
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.operator import Pending
from aiomailbox.operators.core.user_code import caller_location
from aiomailbox.operators.sinks.sink import CommitterContext, Guarantee
from aiomailbox.records.run import Run
from aiomailbox.signatures import check_names, check_type, refuse_home
from aiomailbox.storage.local import holder
from aiomailbox.typevars import T

# Moves staged rows into their table, once.


# Four times, so that one that fails is no reason to lose the lease.
_RENEW_S: Final = LEASE_S / 4
_AWAY: Final = (AioMailboxError, ConnectionError, TimeoutError)


class SqlCommitter:
    """Commits the batches of a checkpoint in one transaction, and keeps the lease.

    Args:
        database: A connection of its own.
        keeper: Another one, that says that the execution lives while the first works.
        target: What is written.
        context: Whose it is.
        token: How the names of the sink's writers begin.
    """

    def __init__(
        self,
        database: SqlDatabase,
        keeper: SqlDatabase,
        target: TableTarget,
        context: CommitterContext,
        token: str,
    ) -> None:
        self._database = database
        self._keeper = keeper
        self._target = target
        self._context = context
        self._token = token
        self._random = random.Random(context.execution_id)
        self._keeping: asyncio.Task[None] | None = None

    async def begin(self, *, restored: bool) -> None:
        """Check the table; a job that begins anew gives up what it had staged.

        Raises:
            SinkError: If the table is missing or does not fit.
            StorageClaimedError: If another job of this ``job_id`` writes to it.
        """
        former = await self._database.begin()
        self._keeping = asyncio.get_running_loop().create_task(
            self._keep(), name=f"lease of {self._target}"
        )
        if former:
            self._warn(
                "another job with this job_id counts as dead: its staged rows are "
                "discarded",
                job_id=self._context.job_id,
                former=former,
            )
        if not restored:
            await self._clean()

    async def commit(
        self, committables: list[Any], *, checkpoint_id: int, is_final: bool
    ) -> None:
        """Move rows into the table, those of all subtasks or none.

        Raises:
            SinkError: If rows are lost, the table refuses them, or the database does not
                answer.
            StorageClaimedError: If another execution writes for the job now.
        """
        # In one order for all: two committers that meet can't lock each other out.
        batches = sorted(StagedBatch.of(one) for one in committables)
        if batches:
            job = self._context.job_id or self._context.job_name
            sink = self._context.operator_id
            await self._patient(
                partial(self._database.commit, job, sink, checkpoint_id, batches)
            )

    async def recover(self) -> None:
        """Remove what was staged and is in no checkpoint."""
        await self._patient(partial(self._database.sweep, self._token))

    async def recover_writers(self, subtasks: Collection[int], before: int) -> None:
        """Remove what attempts of some subtasks before one have staged."""
        left = []
        for writer in await self._patient(partial(self._database.writers, self._token)):
            # From the right: a token may have anything in it.
            _, attempt, subtask = writer.rpartition("/")[2].rsplit("-", 2)
            if int(subtask) in subtasks and int(attempt) < before:
                left.append(writer)
        if left:
            await self._patient(partial(self._database.drop, left))

    async def end(self, *, succeeded: bool) -> None:
        """Leave behind what was committed, and what may be committed yet."""
        # Only if it began: otherwise there may be no tables to sweep.
        keeping, self._keeping = self._keeping, None
        if keeping is None:
            await self._database.close()
            return
        keeping.cancel()
        await asyncio.wait((keeping,))
        try:
            if not self._context.commits_at_checkpoints:
                await self._clean()
            elif succeeded or not self._context.is_resumable:
                # The ledger stays: a savepoint that ended the job names these batches.
                await self.recover()
            await self._release()
        finally:
            await self._keeper.close()
            await self._database.close()

    async def _clean(self) -> None:
        await self.recover()
        await self._patient(partial(self._database.forget, self._token))

    async def _keep(self) -> None:
        """Renew the lease; if it is lost, whoever writes next says so."""
        while True:
            await asyncio.sleep(_RENEW_S)
            try:
                await self._keeper.renew()
            except _AWAY as error:
                self._warn("a lease was not renewed", problem=str(error))

    async def _release(self) -> None:
        try:
            await self._database.release()
        except _AWAY as error:
            # It runs out, and who goes on from this execution does not wait for that.
            self._warn("a lease was not given back", problem=str(error))

    def _warn(self, what: str, **facts: str) -> None:
        library_log(job=self._context.job_name).warning(
            what, sink=self._context.operator_name, table=str(self._target), **facts
        )

    async def _patient(self, call: Callable[[], Awaitable[T]]) -> T:
        return await patient(call, self._target, self._random, self._target.line)


# Writes one subtask's rows into the staging table.


class SqlWriter:
    """Stages each run as it comes, so that nothing is kept in memory.

    Args:
        database: A connection of its own.
        target: What is written.
        name: Names the writer; no other one ever has it.
        subtask: Its subtask.
        random: Where the jitter of retries comes from.
    """

    acts_on_records_only = True

    def __init__(
        self,
        database: SqlDatabase,
        target: TableTarget,
        name: str,
        subtask: int,
        random: random.Random,
    ) -> None:
        self._database = database
        self._target = target
        self._name = name
        self._subtask = subtask
        self._random = random
        self._reader: RowReader | None = None
        if target.columns is not None:
            self._reader = RowReader(target.columns, is_exact=False)
        self._batch = 0
        self._row_count = 0
        self._prepared: list[StagedBatch] = []

    def write_run(self, run: Run) -> Pending:
        """Stage records.

        Raises:
            RecordsRefusedError: If the table cannot have some of them; the others are
                staged.
        """
        return self._write(list(run.values)) if len(run) else None

    def flush(self, *, end_of_input: bool) -> Pending:
        """Let what is staged survive, and begin another batch."""
        return self._finish_batch() if self._row_count else None

    def prepare_commit(self) -> list[Any]:
        """Return the batches finished since the last call."""
        prepared, self._prepared = self._prepared, []
        return [tuple(batch) for batch in prepared]

    def snapshot(self) -> list[Any]:
        """Return nothing: a new writer has another name and counts anew."""
        return []

    def restore(self, elements: list[Any]) -> None:
        """Nothing to take over."""

    def close(self) -> Pending:
        """Close the connection; what is staged stays until it is committed or swept."""
        return self._database.close()

    async def _write(self, records: list[Any]) -> None:
        refused: dict[int, BaseException] = {}
        rows: list[tuple[int, tuple[Any, ...]]] = []
        for index, record in enumerate(records):
            try:
                reader = self._reader or await self._reader_of(record)
                rows.append((index, reader.row(record)))
            except SinkError:
                # Not the record's fault.
                raise
            except TypeError as error:
                refused[index] = error
        parts = [rows] if rows else []
        while parts:
            part = parts.pop()
            try:
                await self._stage([row for _, row in part])
            except RowsRefused as error:
                if len(part) == 1:
                    refused[part[0][0]] = error.__cause__ or error
                else:
                    # What fits is found by halves, the first ones first.
                    middle = len(part) // 2
                    parts += [part[middle:], part[:middle]]
        if refused:
            raise RecordsRefusedError(refused, len(records), fault="program")

    async def _stage(self, rows: list[tuple[Any, ...]]) -> None:
        assert self._reader is not None, "a row was read"
        columns = self._reader.columns

        def stage() -> Awaitable[None]:
            return self._database.stage(
                self._name, self._batch, self._row_count, columns, rows
            )

        await self._patient(stage)
        # Only when they are there: a repeated call replaces from the same row on.
        self._row_count += len(rows)

    async def _finish_batch(self) -> None:
        assert self._reader is not None, "a row was read"
        batch = StagedBatch(
            self._name,
            self._batch,
            self._subtask,
            self._row_count,
            self._reader.columns,
        )

        def make_durable() -> Awaitable[None]:
            return self._database.make_durable(batch.writer, batch.batch, batch.rows)

        await self._patient(make_durable)
        self._prepared.append(batch)
        self._batch += 1
        self._row_count = 0

    async def _reader_of(self, record: Any) -> RowReader:
        names = field_names(record)
        existing = await self._patient(self._database.column_names)
        missing = [name for name in names if name not in existing]
        if missing or not names:
            raise no_field(record, missing, self._target)
        keys = [name for name in self._target.upsert_by if name not in names]
        if keys:
            raise RecordTypeError(
                "record",
                f"{type(record).__name__} has no fields {keys}, which upsert_by= names",
                "Give each record those fields.",
            )
        self._reader = RowReader(names, is_exact=True)
        return self._reader

    async def _patient(self, call: Callable[[], Awaitable[T]]) -> T:
        return await patient(call, self._target, self._random, self._target.line)


class SqlSink:
    """Writes records into a table of PostgreSQL or SQLite.

    Guarantee: exactly once. Rows are staged in a table next to the target, and moved into
    it in one transaction for all subtasks: with checkpoints, when a checkpoint is complete;
    without, when the job succeeds. The transaction also records itself in the table
    ``aiomailbox_commits``, so a commit that is repeated after a crash
    changes nothing. A failed job leaves only the rows of complete checkpoints. No
    transaction is prepared or left open. Which execution of a job writes is in the table
    ``aiomailbox_leases``: a second job with the same ``job_id`` is refused while the first
    one runs. The tables are created next to the target, so the database user needs
    permission for that.

    A record that the table rejects for its fields, types, ``NOT NULL`` or ``CHECK``
    is handled by ``on_error``. One that violates a unique or foreign key when it is
    committed fails the job: use ``upsert_by``.

    A commit of SQLite keeps what it changes in memory while other connections read the
    file: about twice the size of the rows of one checkpoint. They do not hold up a file
    with a write-ahead log, ``PRAGMA journal_mode = WAL``.

    Args:
        database: ``postgresql://user:password@host/name``, for which the extra ``sql`` is
            needed, or the path of a SQLite file, also as ``sqlite:///path``.
        table: The table, which must exist; with its schema as ``schema.table``.
        columns: Which fields of the records to write, into columns of these names; None
            for all fields of the first record.
        upsert_by: Columns with a unique index: a row replaces the one that has the same
            values there. Without it, rows are inserted.

    Raises:
        InvalidArgumentError: If an argument has an invalid value.
        MissingExtraError: If asyncpg is needed and not installed.
        WrongTypeError: If an argument has the wrong type.

    Concept:
        Flink, ``JdbcSink``; "transactional outbox".

    Example:
        >>> SqlSink("delays.db", "delays", upsert_by=["origin", "day"])
        <SqlSink table 'delays' of delays.db>
    """

    guarantee = Guarantee.EXACTLY_ONCE
    # A transaction.
    has_fixed_cost = True

    def __init__(
        self,
        database: str | os.PathLike[str],
        table: str,
        *,
        columns: Sequence[str] | None = None,
        upsert_by: Sequence[str] = (),
    ) -> None:
        check_type(
            database, str | os.PathLike, "database", "Give a str.", "a URL or path"
        )
        self._url = refuse_home(database, "database")
        scheme, separator, _ = self._url.partition("://")
        self._is_postgres = bool(separator) and scheme in {"postgres", "postgresql"}
        if not self._url or (
            separator and not self._is_postgres and scheme != "sqlite"
        ):
            raise InvalidArgumentError(
                "database",
                f"{_without_secret(self._url)!r} is not a supported database",
                "Use postgresql://user@host/name or the path of a SQLite file.",
            )
        if self._url.rpartition("/")[2] == ":memory:":
            raise InvalidArgumentError(
                "database",
                f"{self._url!r} is a database of one connection, which nobody else sees",
                "Give the path of a file.",
            )
        if self._is_postgres and importlib.util.find_spec("asyncpg") is None:
            raise MissingExtraError("SqlSink for PostgreSQL", "sql")
        check_type(table, str, "table", "Give a str.", "a name")
        if "/" in table:
            raise InvalidArgumentError(
                "table",
                f"{_without_secret(table)!r} looks like a database",
                'The database comes first: am.SqlSink("shop.db", "orders").',
            )
        if not all(table.split(".")) or table.count(".") > 1:
            raise InvalidArgumentError(
                "table",
                f"{table!r} is not the name of a table",
                "Use name or schema.name.",
            )
        self._target = TableTarget(
            _without_secret(self._url),
            table,
            None if columns is None else check_names(columns, "columns"),
            check_names(upsert_by, "upsert_by"),
            caller_location(),
        )
        if columns is not None:
            if not self._target.columns:
                raise InvalidArgumentError(
                    "columns", "it is empty", "Leave it out for all fields."
                )
            extra = set(self._target.upsert_by) - set(self._target.columns)
            if extra:
                raise InvalidArgumentError(
                    "upsert_by",
                    f"{sorted(extra)} are not in columns",
                    "Add them to columns=.",
                )

    def create_writer(self, context: RuntimeContext) -> SqlWriter:
        """Create the writer of one subtask."""
        # The execution, too: no number of an attempt is trusted never to come again.
        lease = _lease(context)
        name = (
            f"{lease.token}/{context.execution_id[:16]}-{context.attempt}-"
            f"{context.subtask_index}"
        )
        return SqlWriter(
            self._connection(lease),
            self._target,
            name,
            context.subtask_index,
            context.random,
        )

    def create_committer(self, context: CommitterContext) -> SqlCommitter:
        """Create the committer."""
        lease = _lease(context)
        return SqlCommitter(
            self._connection(lease),
            self._connection(lease),
            self._target,
            context,
            lease.token,
        )

    def _connection(self, lease: StagingLease) -> SqlDatabase:
        if not self._is_postgres:
            return SqliteDatabase(_sqlite_path(self._url), self._target, lease)
        from aiomailbox.connectors.sql.postgres import PostgresDatabase

        return PostgresDatabase(self._url, self._target, lease)

    def __repr__(self) -> str:
        return f"<SqlSink {self._target}>"


def _lease(context: RuntimeContext | CommitterContext) -> StagingLease:
    identity = context.execution_id
    if context.commits_at_checkpoints and context.is_resumable:
        # What the next execution finds again, too.
        identity = context.job_id
    named = f"{identity}\0{context.operator_id}".encode()
    return StagingLease(
        hashlib.sha256(named).hexdigest()[:16],
        context.job_id,
        context.operator_name,
        context.lineage,
        context.execution_id,
        # Only the committer takes the lease, and it knows whose it is for.
        f"{holder(f'job {context.job_name!r}')} on {socket.gethostname()}",
    )


def _sqlite_path(url: str) -> str:
    return url.removeprefix("sqlite:///").removeprefix("sqlite://")


def _without_secret(url: str) -> str:
    parts = urlsplit(url)
    if not parts.scheme or "@" not in parts.netloc:
        return url.split("?", maxsplit=1)[0]
    user, _, host = parts.netloc.rpartition("@")
    netloc = f"{user.partition(':')[0]}@{host}"
    return urlunsplit((parts.scheme, netloc, parts.path, "", ""))
