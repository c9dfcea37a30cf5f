"""PostgreSQL, through asyncpg."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg
import msgspec

from aiomailbox.connectors.sql.contract import (
    LEASE_S,
    STAGING_COLUMNS,
    Dialect,
    RowsRefused,
    SqlDatabase,
    StagedBatch,
    StagingLease,
    Steps,
    TableTarget,
    on_conflict,
    quoted,
    sql,
)
from aiomailbox.errors import SinkError
from aiomailbox.typevars import T

_CONNECT_S: Final = 30.0
_CLOSE_S: Final = 5.0
# How long a transaction may take without a word; most take milliseconds.
_SILENT_S: Final = 5.0
# How long the end of another execution's commit is waited for.
_LEASE_WAIT: Final = "30s"
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


class PostgresDatabase(SqlDatabase):
    """A connection to a PostgreSQL server.

    What is no text for a column of type ``json`` or ``jsonb`` is encoded as JSON.
    """

    dialect = Dialect(
        mark="$",
        number="bigint",
        moment="timestamptz",
        now="clock_timestamp()",
        until=f"clock_timestamp() + interval '{LEASE_S} s'",
        left_s="extract(epoch FROM until - clock_timestamp())::float",
        by_bytes=' COLLATE "C"',
        to_change=" FOR UPDATE",
        to_keep=" FOR KEY SHARE",
        no_index=asyncpg.InvalidColumnReferenceError,
        refusals=(asyncpg.IntegrityConstraintViolationError, asyncpg.DataError),
    )

    def __init__(self, url: str, target: TableTarget, lease: StagingLease) -> None:
        schema, _, name = target.table.rpartition(".")
        super().__init__(target, lease, schema, _staging_name(name))
        self._url = url
        self._connection: Any = None
        self._json: frozenset[str] | None = None
        # The staging table lacks this rule for those: a record may leave them out.
        self._takes_no_null: frozenset[str] = frozenset()

    async def stage(
        self,
        writer: str,
        batch: int,
        first_row: int,
        columns: Sequence[str],
        rows: Sequence[tuple[Any, ...]],
    ) -> None:
        async with self._transaction() as connection:
            # Many small transactions; `make_durable` waits for all of them.
            also = ", set_config('synchronous_commit', 'off', true)"
            room = self._make_room(writer, batch, first_row, also=also)
            await _done(connection, room)
            try:
                await connection.copy_records_to_table(
                    self._staging_name,
                    schema_name=self._schema or None,
                    columns=[*STAGING_COLUMNS, *columns],
                    records=[
                        (writer, batch, number, *row)
                        for number, row in enumerate(
                            await self._checked(connection, columns, rows), first_row
                        )
                    ],
                )
            except _REFUSED as error:
                raise RowsRefused from error

    async def close(self) -> None:
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

    async def _transact(self, steps: Steps[T], *, is_durable: bool = False) -> T:
        async with self._transaction() as connection:
            if is_durable:
                # Whatever is set.
                await connection.execute(
                    "SELECT set_config('synchronous_commit', 'on', true) "
                    "WHERE current_setting('synchronous_commit') = 'off'"
                )
            return await _done(connection, steps)

    def _begin(self) -> Steps[str]:
        # `CREATE TABLE IF NOT EXISTS` of two at once may fail in one of them.
        yield sql("SELECT pg_advisory_xact_lock($1)", _MAKING_TABLES)
        return (yield from super()._begin())

    def _take_lease(self) -> Steps[str]:
        yield sql(f"SET LOCAL lock_timeout = '{_LEASE_WAIT}'")
        return (yield from super()._take_lease())

    def _check_batch(self, writer: str, batch: int, rows: int) -> Steps[None]:
        """Check what a server that crashed has lost: it had not waited for the disk."""
        # A lost connection does not say so: a pooler makes another one.
        yield from super()._check_batch(writer, batch, rows)
        # Only a transaction that wrote to the log waits for it.
        yield sql("SELECT pg_logical_emit_message(true, 'aiomailbox', '')")

    async def _connected(self) -> Any:
        if self._connection is None or self._connection.is_closed():
            self._connection = await asyncpg.connect(self._url, timeout=_CONNECT_S)
        return self._connection

    def _columns(self) -> Steps[Sequence[Any]]:
        """Return names and types, whether a value must be given, whether it is JSON."""
        return (
            yield sql(
                """
            SELECT attname AS name, format_type(atttypid, atttypmod) AS type,
                   attnotnull AS takes_no_null,
                   attnotnull AND NOT atthasdef AND attidentity = '' AS needs_value,
                   atttypid IN ('json'::regtype, 'jsonb'::regtype) AS is_json
            FROM pg_attribute
            WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped
                  AND attgenerated = '' AND attidentity <> 'a'
            ORDER BY attnum
            """,
                self._table,
            )
        )

    def _make_staging(self, columns: Sequence[Any]) -> Steps[None]:
        # CHECKs, so that a row is refused when it is staged, while its record is known.
        checks = yield sql(
            "SELECT pg_get_constraintdef(oid) AS text FROM pg_constraint "
            "WHERE conrelid = to_regclass($1) AND contype = 'c' ORDER BY conname",
            self._table,
        )
        definition = self._definition(
            map(self._column, columns), [check["text"] for check in checks]
        )
        digest = hashlib.sha256(definition.encode()).hexdigest()
        [(exists, made_as)] = yield sql(
            "SELECT to_regclass($1) IS NOT NULL, obj_description(to_regclass($1))",
            self._staging,
        )
        if exists and made_as == digest:
            return
        if exists:
            yield from self._drop_staging()
        yield sql(f"CREATE TABLE {self._staging} ({definition})")
        yield sql(f"COMMENT ON TABLE {self._staging} IS '{digest}'")

    def _column(self, column: Any) -> str:
        written = self._target.columns
        must = column["needs_value"] and (written is None or column["name"] in written)
        return f"{quoted(column['name'])} {column['type']}{' NOT NULL' if must else ''}"

    async def _checked(
        self, connection: Any, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]
    ) -> Sequence[tuple[Any, ...]]:
        """Return rows with JSON as text.

        Raises:
            RowsRefused: If one has None where the table takes no null.
        """
        # Asked once: types of columns that are written do not change under a job.
        if self._json is None:
            found = await _done(connection, self._columns())
            self._json = frozenset(one["name"] for one in found if one["is_json"])
            self._takes_no_null = frozenset(
                one["name"]
                for one in found
                if one["takes_no_null"] and not one["needs_value"]
            )
        for index, name in enumerate(columns):
            if name in self._takes_no_null and any(row[index] is None for row in rows):
                reason = f'null value in column "{name}" violates not-null constraint'
                raise RowsRefused from ValueError(reason)
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

    def _moving(self, names: str, which: str, batch: StagedBatch) -> Iterator[str]:
        # One statement: rows leave the staging table as they come into the target.
        yield (
            f"WITH moved AS (DELETE FROM {self._staging} WHERE {which} RETURNING "
            f"{names}, aiomailbox_row) INSERT INTO {self._table} ({names}) "
            f"{_selected(names, self._target.upsert_by)}"
            f"{on_conflict(batch.columns, self._target.upsert_by)}"
        )


async def _done(connection: Any, steps: Steps[T]) -> T:
    """Do steps, and return what they come to."""
    try:
        statement, values = next(steps)
        while True:
            try:
                rows = await connection.fetch(statement, *values)
            except asyncpg.PostgresError as error:
                statement, values = steps.throw(error)
            else:
                statement, values = steps.send(rows)
    except StopIteration as end:
        return end.value


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
