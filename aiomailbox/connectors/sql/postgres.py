"""PostgreSQL, through asyncpg."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg
import msgspec

from aiomailbox.connectors.sql.contract import (
    LEASE_S,
    LEASES,
    LEDGER,
    STAGING_COLUMNS,
    RowsRefused,
    StagedBatch,
    StagingLease,
    TableTarget,
    WaitLog,
    check_columns,
    gone,
    lease_lost,
    lost,
    on_conflict,
    quoted,
    refused_at_commit,
    staging_mismatch,
    taken,
)
from aiomailbox.errors import SinkError

_CONNECT_S: Final = 30.0
_CLOSE_S: Final = 5.0
# How long a transaction may take without a word; most take milliseconds.
_SILENT_S: Final = 5.0
# How long the end of another execution's commit is waited for.
_LEASE_WAIT: Final = "30s"
# By the server's clock, which all executions see.
_UNTIL: Final = f"clock_timestamp() + interval '{LEASE_S} s'"
# "aiomailb": sinks that make tables wait for each other.
_MAKING_TABLES: Final = 0x61696F6D61696C62
# What may go well when it is tried again: lost connections, servers that start or stop,
# transactions that met others.
_TRANSIENT: Final = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.TransactionRollbackError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.LockNotAvailableError,
)
# How the client says that a connection is not what it was: one that is lost in the middle
# of something may still look open, and never be ready for anything else.
_CONFUSED: Final = (asyncpg.InterfaceError, asyncpg.InternalClientError)
_REFUSED: Final = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    OverflowError,
    TypeError,
    ValueError,
)


class PostgresDatabase:
    """A connection to a PostgreSQL server; see `Database`.

    What is no text for a column of type ``json`` or ``jsonb`` is encoded as JSON.

    Args:
        url: The server and database.
        target: The table.
        lease: What an execution has that writes there.
    """

    def __init__(self, url: str, target: TableTarget, lease: StagingLease) -> None:
        self._url = url
        self._target = target
        self._lease = lease
        schema, _, name = target.table.rpartition(".")
        self._name = name
        self._schema = schema or None
        self._staging_name = _staging_name(name)
        self._table = _qualified(schema, name)
        self._staging = _qualified(schema, self._staging_name)
        self._ledger = _qualified(schema, LEDGER)
        self._leases = _qualified(schema, LEASES)
        self._connection: Any = None
        self._json: frozenset[str] | None = None
        self._waits = WaitLog(target, lease.sink)

    async def begin(self) -> str:
        """Check the target, make the tables beside it, and take the lease.

        Raises:
            SinkError: If the target is missing or does not fit.
            StorageClaimedError: If another job has the lease, and may still run.
        """
        async with self._durable() as connection:
            # `CREATE TABLE IF NOT EXISTS` of two at once may fail in one of them.
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _MAKING_TABLES)
            columns = await self._columns(connection)
            if not columns:
                raise SinkError(f"there is no {self._target}: create it first.")
            check_columns(self._target, [column["name"] for column in columns])
            await self._check_upsert(connection)
            await connection.execute(
                f"CREATE TABLE IF NOT EXISTS {self._ledger} (writer text PRIMARY KEY, "
                "job text NOT NULL, sink text NOT NULL, checkpoint bigint NOT NULL, "
                "subtask integer NOT NULL, batch bigint NOT NULL)"
            )
            await connection.execute(
                f"CREATE TABLE IF NOT EXISTS {self._leases} (token text, target text, "
                "lineage text NOT NULL, execution text NOT NULL, owner text NOT NULL, "
                "until timestamptz NOT NULL, PRIMARY KEY (token, target))"
            )
            await self._make_staging(connection, columns)
            former = await self._take_lease(connection)
            await self._sweep_dead(connection)
            return former

    async def renew(self) -> None:
        """Say that the execution lives."""
        async with self._transaction() as connection:
            await self._check_lease(connection)
            await connection.execute(
                f"UPDATE {self._leases} SET until = {_UNTIL} "
                "WHERE token = $1 AND target = $2 AND execution = $3",
                *self._lease_key,
                self._lease.execution,
            )

    async def release(self) -> None:
        """Give the lease back, if it is still this execution's."""
        async with self._transaction() as connection:
            await connection.execute(
                f"DELETE FROM {self._leases} "
                "WHERE token = $1 AND target = $2 AND execution = $3",
                *self._lease_key,
                self._lease.execution,
            )

    async def column_names(self) -> tuple[str, ...]:
        """Return the columns of the target that can be written."""
        async with self._transaction() as connection:
            return tuple(one["name"] for one in await self._columns(connection))

    async def stage(
        self,
        writer: str,
        batch: int,
        first_row: int,
        columns: Sequence[str],
        rows: Sequence[tuple[Any, ...]],
    ) -> None:
        """Write rows of a batch, and replace those from the first one on.

        Raises:
            RowsRefused: If a row does not fit; none is written then.
        """
        async with self._transaction() as connection:
            # Many small transactions; `make_durable` waits for all of them.
            await self._check_lease(
                connection, also=", set_config('synchronous_commit', 'off', true)"
            )
            # A lost answer makes a caller stage again: what got through then is
            # replaced.
            await connection.execute(
                f"DELETE FROM {self._staging} WHERE aiomailbox_writer = $1 AND "
                "aiomailbox_batch = $2 AND aiomailbox_row >= $3",
                writer,
                batch,
                first_row,
            )
            try:
                await connection.copy_records_to_table(
                    self._staging_name,
                    schema_name=self._schema,
                    columns=[*STAGING_COLUMNS, *columns],
                    records=[
                        (writer, batch, number, *row)
                        for number, row in enumerate(
                            await self._with_json(connection, columns, rows), first_row
                        )
                    ],
                )
            except _REFUSED as error:
                raise RowsRefused from error

    async def make_durable(self, writer: str, batch: int, rows: int) -> None:
        """Wait until the log is on the disk up to here, with all rows of a batch.

        Raises:
            SinkError: If they are not all there.
        """
        async with self._durable() as connection:
            await self._check_lease(connection)
            # A server that crashed has lost what it had not waited for, and a lost
            # connection does not say so: a pooler makes another one.
            found = await self._count(connection, writer, batch)
            if found != rows:
                raise gone(self._target, batch, rows, found)
            # Only a transaction that wrote to the log waits for it.
            await connection.execute(
                "SELECT pg_logical_emit_message(true, 'aiomailbox', '')"
            )

    async def commit(
        self, job: str, sink: str, checkpoint_id: int, batches: Sequence[StagedBatch]
    ) -> None:
        """Move batches into the target, all or none; those that were moved are passed.

        Raises:
            SinkError: If rows are lost, or the target refuses them.
        """
        async with self._durable() as connection:
            # Kept until the end: who follows this execution waits for it here.
            await self._check_lease(connection, lock=" FOR KEY SHARE")
            for batch in batches:
                # Another commit of the same waits here, and finds that it is done.
                advanced = await connection.fetchval(
                    f"INSERT INTO {self._ledger} AS ledger (writer, job, sink, "
                    "checkpoint, subtask, batch) VALUES ($1, $2, $3, $4, $5, $6) "
                    "ON CONFLICT (writer) DO UPDATE SET checkpoint = excluded.checkpoint, "
                    "batch = excluded.batch WHERE ledger.batch < excluded.batch "
                    "RETURNING batch",
                    batch.writer,
                    job,
                    sink,
                    checkpoint_id,
                    batch.subtask,
                    batch.batch,
                )
                if advanced is not None:
                    await self._move(connection, batch)

    async def sweep(self, token: str) -> None:
        """Remove what writers whose names begin with a token have staged."""
        async with self._transaction() as connection:
            await self._check_lease(connection)
            await self._delete(connection, self._staging, "aiomailbox_writer", token)

    async def writers(self, token: str) -> list[str]:
        """Return the names of writers that begin with a token and have staged rows."""
        async with self._transaction() as connection:
            rows = await connection.fetch(
                f"SELECT DISTINCT aiomailbox_writer FROM {self._staging} WHERE "
                # `COLLATE "C"`: other orders skip punctuation, and would find others'
                # tokens.
                'aiomailbox_writer COLLATE "C" >= $1 AND '
                'aiomailbox_writer COLLATE "C" < $2',
                f"{token}/",
                f"{token}0",
            )
        return [row[0] for row in rows]

    async def drop(self, writers: Collection[str]) -> None:
        """Remove what some writers have staged."""
        async with self._transaction() as connection:
            await self._check_lease(connection)
            await connection.execute(
                f"DELETE FROM {self._staging} WHERE aiomailbox_writer = ANY($1)",
                sorted(writers),
            )

    async def forget(self, token: str) -> None:
        """Remove what the ledger says of writers whose names begin with a token."""
        async with self._transaction() as connection:
            await self._check_lease(connection)
            await self._delete(connection, self._ledger, "writer", token)

    async def close(self) -> None:
        """Close the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            await connection.close(timeout=_CLOSE_S)
        except (*_TRANSIENT, asyncpg.InterfaceError, TimeoutError):
            # It is lost either way; what is left of it must not stay open.
            connection.terminate()

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Any]:
        """Run the body in a transaction.

        Raises:
            ConnectionError: If it may go well when it is tried again.
            SinkError: If the server refuses it.
        """
        loop = asyncio.get_running_loop()
        timer = loop.call_later(_SILENT_S, self._warn_of_slow_one)
        try:
            connection = await self._connected()
            async with connection.transaction():
                yield connection
        except asyncpg.ClientConfigurationError as error:
            raise SinkError(f"{self._target}: {error}") from error
        except (*_TRANSIENT, *_CONFUSED) as error:
            # What state it is in is not known: the next transaction makes another one.
            await self.close()
            raise ConnectionError(f"{self._target.place}: {error}") from error
        except asyncpg.PostgresError as error:
            raise SinkError(f"{self._target}: {error}") from error
        finally:
            timer.cancel()

    def _warn_of_slow_one(self) -> None:
        self._waits.tell(
            "a sink waits for its database",
            waited_s=_SILENT_S,
            remedy="if another transaction has locked the table, end that one: "
            "pg_stat_activity shows who waits, and pg_blocking_pids(pid) for whom",
        )

    @asynccontextmanager
    async def _durable(self) -> AsyncIterator[Any]:
        """Run the body in a transaction that waits for the disk, whatever is set."""
        async with self._transaction() as connection:
            await connection.execute(
                "SELECT set_config('synchronous_commit', 'on', true) "
                "WHERE current_setting('synchronous_commit') = 'off'"
            )
            yield connection

    @property
    def _lease_key(self) -> tuple[str, str]:
        return self._lease.token, self._name

    async def _take_lease(self, connection: Any) -> str:
        """Make the lease this execution's; return whose it was, if another job's.

        Raises:
            StorageClaimedError: If another job has it, and may still run.
        """
        lease, former = self._lease, ""
        await connection.execute(f"SET LOCAL lock_timeout = '{_LEASE_WAIT}'")
        held = await connection.fetchrow(
            "SELECT lineage, execution, owner, "
            "extract(epoch FROM until - clock_timestamp())::float AS left_s "
            f"FROM {self._leases} WHERE token = $1 AND target = $2 FOR UPDATE",
            *self._lease_key,
        )
        if held is not None and not lease.follows(held["lineage"], held["execution"]):
            if held["left_s"] > 0:
                raise taken(lease, self._target, held["owner"], held["left_s"])
            former = held["owner"]
        await connection.execute(
            f"INSERT INTO {self._leases} VALUES ($1, $2, $3, $4, $5, {_UNTIL}) "
            "ON CONFLICT (token, target) DO UPDATE SET lineage = excluded.lineage, "
            "execution = excluded.execution, owner = excluded.owner, "
            "until = excluded.until",
            *self._lease_key,
            lease.lineage,
            lease.execution,
            lease.owner,
        )
        return former

    async def _sweep_dead(self, connection: Any) -> None:
        """Remove what executions that nothing goes on from have staged and left."""
        dead = await connection.fetch(
            f"DELETE FROM {self._leases} WHERE target = $1 AND lineage = '' "
            "AND until < clock_timestamp() RETURNING token",
            self._name,
        )
        for (token,) in dead:
            await self._delete(connection, self._staging, "aiomailbox_writer", token)

    async def _check_lease(
        self, connection: Any, *, also: str = "", lock: str = ""
    ) -> None:
        """Refuse to write for an execution that another one has followed.

        Args:
            connection: In a transaction.
            also: What else is selected, to save a round trip.
            lock: How the lease is locked until the transaction ends.

        Raises:
            StorageClaimedError: If that is so.
        """
        held = await connection.fetchrow(
            f"SELECT execution, owner{also} FROM {self._leases} "
            f"WHERE token = $1 AND target = $2{lock}",
            *self._lease_key,
        )
        if held is None or held["execution"] != self._lease.execution:
            owner = None if held is None else held["owner"]
            raise lease_lost(self._lease, self._target, owner)

    async def _count(self, connection: Any, writer: str, batch: int) -> int:
        found: int = await connection.fetchval(
            f"SELECT count(*) FROM {self._staging} "
            "WHERE aiomailbox_writer = $1 AND aiomailbox_batch = $2",
            writer,
            batch,
        )
        return found

    async def _connected(self) -> Any:
        if self._connection is None or self._connection.is_closed():
            self._connection = await asyncpg.connect(self._url, timeout=_CONNECT_S)
        return self._connection

    async def _columns(self, connection: Any) -> list[Any]:
        """Return what can be written: names, types, whether a value must be given."""
        found: list[Any] = await connection.fetch(
            """
            SELECT attname AS name, format_type(atttypid, atttypmod) AS type,
                   attnotnull AND NOT atthasdef AND attidentity = '' AS needs_value,
                   atttypid IN ('json'::regtype, 'jsonb'::regtype) AS is_json
            FROM pg_attribute
            WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped
                  AND attgenerated = '' AND attidentity <> 'a'
            ORDER BY attnum
            """,
            self._table,
        )
        return found

    async def _check_upsert(self, connection: Any) -> None:
        if not self._target.upsert_by:
            return
        keys = ", ".join(map(quoted, self._target.upsert_by))
        try:
            # EXPLAIN asks the planner, which finds the index, and changes nothing.
            await connection.execute(
                f"EXPLAIN INSERT INTO {self._table} ({keys}) SELECT {keys} FROM "
                f"{self._table} WHERE false ON CONFLICT ({keys}) DO NOTHING"
            )
        except asyncpg.InvalidColumnReferenceError as error:
            raise SinkError(
                f"{self._target} has no unique index of just the columns "
                f"{list(self._target.upsert_by)}: {error}. Create one, or leave out "
                "upsert_by."
            ) from error

    async def _make_staging(self, connection: Any, columns: list[Any]) -> None:
        checks = await connection.fetch(
            # CHECKs, so that a row is refused when it is staged, while its record is
            # known.
            "SELECT pg_get_constraintdef(oid) AS text FROM pg_constraint "
            "WHERE conrelid = to_regclass($1) AND contype = 'c' ORDER BY conname",
            self._table,
        )
        parts = [
            "aiomailbox_writer text NOT NULL",
            "aiomailbox_batch bigint NOT NULL",
            "aiomailbox_row bigint NOT NULL",
            *(self._column(column) for column in columns),
            "PRIMARY KEY (aiomailbox_writer, aiomailbox_batch, aiomailbox_row)",
            *(check["text"] for check in checks),
        ]
        definition = ", ".join(parts)
        digest = hashlib.sha256(definition.encode()).hexdigest()
        exists, made_as = await connection.fetchrow(
            "SELECT to_regclass($1) IS NOT NULL, obj_description(to_regclass($1))",
            self._staging,
        )
        # Another table by now: rows staged for the old one might not fit.
        if exists and made_as != digest:
            if await connection.fetchval(f"SELECT 1 FROM {self._staging} LIMIT 1"):
                raise staging_mismatch(self._target, self._staging_name)
            await connection.execute(f"DROP TABLE {self._staging}")
            exists = False
        if not exists:
            await connection.execute(f"CREATE TABLE {self._staging} ({definition})")
            await connection.execute(f"COMMENT ON TABLE {self._staging} IS '{digest}'")

    def _column(self, column: Any) -> str:
        written = self._target.columns
        must = column["needs_value"] and (written is None or column["name"] in written)
        return f"{quoted(column['name'])} {column['type']}{' NOT NULL' if must else ''}"

    async def _with_json(
        self, connection: Any, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]
    ) -> Sequence[tuple[Any, ...]]:
        # Asked once: types of columns that are written do not change under a job.
        if self._json is None:
            found = await self._columns(connection)
            self._json = frozenset(one["name"] for one in found if one["is_json"])
        which = [index for index, name in enumerate(columns) if name in self._json]
        if not which:
            return rows
        encoded = []
        for row in rows:
            values = list(row)
            for index in which:
                if values[index] is not None and not isinstance(values[index], str):
                    values[index] = msgspec.json.encode(values[index]).decode()
            encoded.append(tuple(values))
        return encoded

    async def _move(self, connection: Any, batch: StagedBatch) -> None:
        where = "aiomailbox_writer = $1 AND aiomailbox_batch = $2"
        found = await self._count(connection, batch.writer, batch.batch)
        # Fewer rows than were staged must not be committed as if they were all.
        if found != batch.rows:
            raise lost(self._target, batch, found)
        names = ", ".join(map(quoted, batch.columns))
        try:
            await connection.execute(
                # One statement: rows leave the staging table as they come into the
                # target.
                f"WITH moved AS (DELETE FROM {self._staging} WHERE {where} RETURNING "
                f"{names}, aiomailbox_row) INSERT INTO {self._table} ({names}) "
                f"{_selected(names, self._target.upsert_by)}"
                f"{on_conflict(batch.columns, self._target.upsert_by)}",
                batch.writer,
                batch.batch,
            )
        except (asyncpg.IntegrityConstraintViolationError, asyncpg.DataError) as error:
            raise refused_at_commit(self._target, error) from error

    async def _delete(
        self, connection: Any, table: str, column: str, token: str
    ) -> None:
        # A slash ends the token, and 0 is the character behind it.
        await connection.execute(
            f'DELETE FROM {table} WHERE {column} COLLATE "C" >= $1 '
            f'AND {column} COLLATE "C" < $2',
            f"{token}/",
            f"{token}0",
        )


def _selected(names: str, keys: Sequence[str]) -> str:
    if not keys:
        return f"SELECT {names} FROM moved ORDER BY aiomailbox_row"
    # A statement may change a row once: the last one of each key counts.
    key = ", ".join(map(quoted, keys))
    return (
        f"SELECT DISTINCT ON ({key}) {names} FROM moved "
        f"ORDER BY {key}, aiomailbox_row DESC"
    )


def _staging_name(table: str) -> str:
    """Return the staging table's name; PostgreSQL truncates names to 63 bytes."""
    name = f"aiomailbox_staged_{table}"
    if len(name.encode()) <= 63:
        return name
    digest = hashlib.sha256(table.encode()).hexdigest()[:12]
    return f"aiomailbox_staged_{digest}"


def _qualified(schema: str, name: str) -> str:
    return f"{quoted(schema)}.{quoted(name)}" if schema else quoted(name)
