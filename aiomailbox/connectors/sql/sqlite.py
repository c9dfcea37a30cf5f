"""SQLite, through the standard library, in a thread."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from difflib import get_close_matches
from enum import Enum
from typing import Any, Final, TypeVar
from uuid import UUID

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
from aiomailbox.threads import ThreadTurns

T = TypeVar("T")

# How long a transaction waits for those of others, and how long without a word.
_BUSY_S: Final = 30.0
_SILENT_S: Final = 2.0
# Each transaction waits for the disk: small runs share one.
_BUFFERED_MAX: Final = 4096
# Seconds by the database's clock, which is this machine's.
_NOW: Final = "((julianday('now') - 2440587.5) * 86400.0)"
_INTEGERS: Final = range(-(2**63), 2**63)
_PLAIN: Final = (int, float, str, bytes, bytearray, memoryview, type(None))


class SqliteDatabase:
    """A connection to a SQLite file; see `Database`.

    Values that SQLite has no type for become text: times in ISO 8601 (those with a zone
    in UTC), decimals, UUIDs; lists and dicts as JSON. Enums become their values.

    Rows that cannot be stored are found before they are written, but for those of a
    table that is ``STRICT`` or has a ``CHECK``: SQLite is asked about each of its runs.

    Args:
        path: The file.
        target: The table.
        lease: What an execution has that writes there.
    """

    def __init__(self, path: str, target: TableTarget, lease: StagingLease) -> None:
        self._path = path
        self._target = target
        self._lease = lease
        schema, _, table = target.table.rpartition(".")
        self._schema = schema or "main"
        self._name = table
        self._table = f"{quoted(self._schema)}.{quoted(table)}"
        self._staging_name = f"aiomailbox_staged_{table}"
        self._staging = f"{quoted(self._schema)}.{quoted(self._staging_name)}"
        self._ledger = f"{quoted(self._schema)}.{quoted(LEDGER)}"
        self._leases = f"{quoted(self._schema)}.{quoted(LEASES)}"
        self._connection: sqlite3.Connection | None = None
        # What is to be staged, up to `_BUFFERED_MAX` rows and a run, in their order.
        self._buffer: list[tuple[Any, ...]] = []
        self._buffered_columns: tuple[str, ...] = ()
        self._required: frozenset[str] | None = None
        self._is_strict = False
        self._has_checks = False
        self._turns = ThreadTurns()
        self._waits = WaitLog(target, lease.sink)

    async def begin(self) -> str:
        """Check the target, make the tables beside it, and take the lease."""
        return await self._run(self._begin)

    async def renew(self) -> None:
        """Say that the execution lives."""
        await self._run(self._renew)

    async def release(self) -> None:
        """Give the lease back, if it is still this execution's."""
        await self._run(self._release)

    async def column_names(self) -> tuple[str, ...]:
        """Return the columns of the target that can be written."""
        return await self._run(self._column_names)

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
        if self._required is None:
            # Before anything is buffered: a row that is refused later has others around
            # it.
            await self._run(self._look_at_columns)
        adapted = list(self._adapted(writer, batch, first_row, columns, rows))
        # When it is called again, some may be there from the first time.
        while self._buffer and self._buffer[-1][2] >= first_row:
            self._buffer.pop()
        self._buffer += adapted
        self._buffered_columns = tuple(columns)
        # Such tables refuse by what is known to SQLite only.
        asks = self._is_strict or self._has_checks
        if asks or len(self._buffer) >= _BUFFERED_MAX:
            await self._write_buffer()

    async def make_durable(self, writer: str, batch: int, rows: int) -> None:
        """Write what is buffered; each transaction is durable."""
        if self._buffer:
            await self._write_buffer()
        await self._run(self._check_batch, writer, batch, rows)

    async def commit(
        self, job: str, sink: str, checkpoint_id: int, batches: Sequence[StagedBatch]
    ) -> None:
        """Move batches into the target, all or none; those that were moved are passed.

        Raises:
            SinkError: If rows are lost, or the target refuses them.
        """
        await self._run(self._commit, job, sink, checkpoint_id, batches)

    async def sweep(self, token: str) -> None:
        """Remove what writers whose names begin with a token have staged."""
        await self._run(self._sweep, self._staging, "aiomailbox_writer", token)

    async def writers(self, token: str) -> list[str]:
        """Return the names of writers that begin with a token and have staged rows."""
        return await self._run(self._writers, token)

    async def drop(self, writers: Collection[str]) -> None:
        """Remove what some writers have staged."""
        await self._run(self._drop, sorted(writers))

    async def forget(self, token: str) -> None:
        """Remove what the ledger says of writers whose names begin with a token."""
        await self._run(self._sweep, self._ledger, "writer", token)

    async def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            await self._turns.run(self._close)

    async def _write_buffer(self) -> None:
        """Write what is buffered; it stays buffered if that may be tried again."""
        try:
            await self._run(self._stage)
        except RowsRefused:
            self._buffer.clear()
            raise
        self._buffer.clear()

    async def _run(self, work: Callable[..., T], *args: Any) -> T:
        return await self._turns.run(self._in_transaction, work, args)

    def _in_transaction(self, work: Callable[..., T], args: tuple[Any, ...]) -> T:
        """Do work in one transaction that may write.

        Raises:
            ConnectionError: If another connection writes for too long.
            SinkError: If the file is no database, or cannot be written.
        """
        try:
            if self._connection is None:
                self._connection = _connected(self._path)
            connection = self._connection
            # At once: a transaction that reads first may not be able to write later.
            self._wait_for_others(connection, "BEGIN IMMEDIATE")
            try:
                result = work(connection, *args)
                self._wait_for_others(connection, "COMMIT")
            except BaseException:
                # Some errors have rolled it back already.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except sqlite3.OperationalError as error:
            # Others write: this passes, and the caller tries again.
            if _is_busy(error):
                raise ConnectionError(f"{self._path!r}: {error}") from error
            raise SinkError(f"{self._target}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise SinkError(f"{self._target}: {error}") from error
        return result

    def _wait_for_others(self, connection: sqlite3.Connection, statement: str) -> None:
        """Execute a statement that waits for other connections, and say if it does."""
        connection.execute(_busy_timeout(_SILENT_S))
        try:
            connection.execute(statement)
            return
        except sqlite3.OperationalError as error:
            if not _is_busy(error):
                raise
        finally:
            # Others may wait, too: a large transaction writes before its end.
            connection.execute(_busy_timeout(_BUSY_S))
        self._waits.tell(
            "a sink waits for a locked database",
            database=self._path,
            waited_s=_SILENT_S,
            gives_up_after_s=_SILENT_S + _BUSY_S,
            remedy="another connection has a transaction open: commit it, or close "
            "that connection",
        )
        connection.execute(statement)

    def _begin(self, connection: sqlite3.Connection) -> str:
        existing = self._column_names(connection)
        if not existing:
            raise SinkError(f"there is no {self._target}{self._others(connection)}")
        check_columns(self._target, existing)
        self._check_writable(connection)
        self._check_upsert(connection)
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {self._ledger} (writer TEXT PRIMARY KEY, "
            "job TEXT NOT NULL, sink TEXT NOT NULL, checkpoint INTEGER NOT NULL, "
            "subtask INTEGER NOT NULL, batch INTEGER NOT NULL)"
        )
        columns = [
            (name, kind)
            for _, name, kind, _, _, _, hidden in self._table_info(
                connection, self._name
            )
            if not hidden
        ]
        found = [
            (row[1], row[2])
            for row in self._table_info(connection, self._staging_name)
            if row[1] not in STAGING_COLUMNS
        ]
        if found and found != columns:
            used = connection.execute(f"SELECT 1 FROM {self._staging}").fetchone()
            if used is not None:
                raise staging_mismatch(self._target, self._staging_name)
            connection.execute(f"DROP TABLE {self._staging}")
            found = []
        if not found:
            self._create_staging(connection, columns)
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {self._leases} (token TEXT, target TEXT, "
            "lineage TEXT NOT NULL, execution TEXT NOT NULL, owner TEXT NOT NULL, "
            "until REAL NOT NULL, PRIMARY KEY (token, target))"
        )
        former = self._take_lease(connection)
        # What executions that nothing goes on from have staged and left.
        dead = connection.execute(
            f"DELETE FROM {self._leases} WHERE target = ? AND lineage = '' "
            f"AND until < {_NOW} RETURNING token",
            (self._name,),
        ).fetchall()
        for (token,) in dead:
            self._delete(connection, self._staging, "aiomailbox_writer", token)
        return former

    def _others(self, connection: sqlite3.Connection) -> str:
        """Return what there is in place of the target, and what to do."""
        found = connection.execute(
            f"SELECT name FROM {quoted(self._schema)}.sqlite_master WHERE type = 'table' "
            "AND name NOT LIKE 'aiomailbox_%' AND name NOT LIKE 'sqlite_%' ORDER BY name"
        ).fetchall()
        names = [name for (name,) in found]
        close = get_close_matches(self._name, names, n=1)
        if close:
            return f". Is {close[0]!r} meant?"
        tables = f"it has {', '.join(names)}" if names else "the file has no tables"
        return f": create it first; {tables}."

    def _take_lease(self, connection: sqlite3.Connection) -> str:
        """Make the lease this execution's; return whose it was, if another job's.

        Raises:
            StorageClaimedError: If another job has it, and may still run.
        """
        lease, former = self._lease, ""
        held = connection.execute(
            f"SELECT lineage, execution, owner, until - {_NOW} FROM {self._leases} "
            "WHERE token = ? AND target = ?",
            (lease.token, self._name),
        ).fetchone()
        if held is not None and not lease.follows(*held[:2]):
            owner, left_s = held[2:]
            if left_s > 0:
                raise taken(lease, self._target, owner, left_s)
            former = owner
        connection.execute(
            f"INSERT OR REPLACE INTO {self._leases} "
            f"VALUES (?, ?, ?, ?, ?, {_NOW} + {LEASE_S})",
            (lease.token, self._name, lease.lineage, lease.execution, lease.owner),
        )
        return former

    def _check_lease(self, connection: sqlite3.Connection) -> None:
        """Refuse to write for an execution that another one has followed.

        Raises:
            StorageClaimedError: If that is so.
        """
        held = connection.execute(
            f"SELECT execution, owner FROM {self._leases} "
            "WHERE token = ? AND target = ?",
            (self._lease.token, self._name),
        ).fetchone()
        if held is None or held[0] != self._lease.execution:
            raise lease_lost(self._lease, self._target, held and held[1])

    def _renew(self, connection: sqlite3.Connection) -> None:
        self._check_lease(connection)
        connection.execute(
            f"UPDATE {self._leases} SET until = {_NOW} + {LEASE_S} "
            "WHERE token = ? AND target = ?",
            (self._lease.token, self._name),
        )

    def _release(self, connection: sqlite3.Connection) -> None:
        connection.execute(
            f"DELETE FROM {self._leases} "
            "WHERE token = ? AND target = ? AND execution = ?",
            (self._lease.token, self._name, self._lease.execution),
        )

    def _create_staging(
        self, connection: sqlite3.Connection, columns: list[tuple[str, str]]
    ) -> None:
        parts = [
            "aiomailbox_writer TEXT NOT NULL",
            "aiomailbox_batch INTEGER NOT NULL",
            "aiomailbox_row INTEGER NOT NULL",
            *(f"{quoted(name)} {kind}" for name, kind in columns),
            "PRIMARY KEY (aiomailbox_writer, aiomailbox_batch, aiomailbox_row)",
        ]
        connection.execute(
            f"CREATE TABLE {self._staging} ({', '.join(parts)})"
            f"{' STRICT' if self._strict(connection) else ''}"
        )

    def _look_at_columns(self, connection: sqlite3.Connection) -> None:
        """Learn which columns need a value, and whether types and checks are enforced."""
        self._required = frozenset(
            name
            for _, name, _, not_null, default, key, _ in self._table_info(
                connection, self._name
            )
            if not_null and default is None and not key
        )
        self._is_strict = self._strict(connection)
        (made,) = connection.execute(
            f"SELECT sql FROM {quoted(self._schema)}.sqlite_master "
            "WHERE type = 'table' AND name = ? COLLATE NOCASE",
            (self._name,),
        ).fetchone() or ("",)
        self._has_checks = re.search(r"\bcheck\b", made, re.IGNORECASE) is not None

    def _strict(self, connection: sqlite3.Connection) -> bool:
        found = connection.execute(
            "SELECT strict FROM pragma_table_list WHERE schema = ? AND name = ?",
            (self._schema, self._name),
        ).fetchone()
        return found is not None and bool(found[0])

    def _check_writable(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute(f"EXPLAIN INSERT INTO {self._table} DEFAULT VALUES")
        except sqlite3.OperationalError as error:
            raise SinkError(
                f"{self._target} cannot be written: {error}. Name the table behind it."
            ) from error

    def _check_upsert(self, connection: sqlite3.Connection) -> None:
        if not self._target.upsert_by:
            return
        keys = ", ".join(map(quoted, self._target.upsert_by))
        values = ", ".join("NULL" for _ in self._target.upsert_by)
        try:
            connection.execute(
                f"EXPLAIN INSERT INTO {self._table} ({keys}) VALUES ({values}) "
                f"ON CONFLICT ({keys}) DO NOTHING"
            )
        except sqlite3.OperationalError as error:
            raise SinkError(
                f"{self._target} has no unique index of just the columns "
                f"{list(self._target.upsert_by)}: {error}. Create one, or leave out "
                "upsert_by."
            ) from error

    def _column_names(self, connection: sqlite3.Connection) -> tuple[str, ...]:
        return tuple(
            row[1] for row in self._table_info(connection, self._name) if not row[6]
        )

    def _table_info(
        self, connection: sqlite3.Connection, table: str
    ) -> list[tuple[Any, ...]]:
        return connection.execute(
            f"PRAGMA {quoted(self._schema)}.table_xinfo({quoted(table)})"
        ).fetchall()

    def _adapted(
        self,
        writer: str,
        batch: int,
        first_row: int,
        columns: Sequence[str],
        rows: Sequence[tuple[Any, ...]],
    ) -> Iterator[tuple[Any, ...]]:
        """Yield rows as they are staged.

        Raises:
            RowsRefused: If SQLite cannot store one.
        """
        required = self._required or frozenset()
        must = [index for index, name in enumerate(columns) if name in required]
        for number, row in enumerate(rows, first_row):
            try:
                plain = tuple(map(_plain, row))
            except (OverflowError, TypeError, ValueError) as error:
                raise RowsRefused from error
            for index in must:
                # SQLite takes NaN for NULL.
                if plain[index] is None or plain[index] != plain[index]:
                    reason = (
                        f"NOT NULL constraint failed: {columns[index]}. Give each record "
                        "a value there, or leave those without out: "
                        "sink_to(..., on_error=am.skip)"
                    )
                    raise RowsRefused from sqlite3.IntegrityError(reason)
            yield (writer, batch, number, *plain)

    def _stage(self, connection: sqlite3.Connection) -> None:
        """Write what is buffered, in place of what a lost answer has left."""
        self._check_lease(connection)
        writer, batch, first_row = self._buffer[0][:3]
        connection.execute(
            f"DELETE FROM {self._staging} WHERE aiomailbox_writer = ? AND "
            "aiomailbox_batch = ? AND aiomailbox_row >= ?",
            (writer, batch, first_row),
        )
        columns = self._buffered_columns
        names = ", ".join([*STAGING_COLUMNS, *map(quoted, columns)])
        marks = ", ".join("?" * (len(STAGING_COLUMNS) + len(columns)))
        try:
            connection.executemany(
                f"INSERT INTO {self._staging} ({names}) VALUES ({marks})", self._buffer
            )
            if self._has_checks:
                self._try_out(connection, columns)
        except (sqlite3.IntegrityError, sqlite3.DataError) as error:
            raise RowsRefused from error

    def _try_out(self, connection: sqlite3.Connection, columns: Sequence[str]) -> None:
        """Let the target check what is buffered, and take it back."""
        names = ", ".join(map(quoted, columns))
        marks = ", ".join("?" * len(columns))
        connection.execute("SAVEPOINT aiomailbox_try")
        connection.executemany(
            f"INSERT INTO {self._table} ({names}) VALUES ({marks}) "
            "ON CONFLICT DO NOTHING",
            [row[len(STAGING_COLUMNS) :] for row in self._buffer],
        )
        connection.execute("ROLLBACK TO aiomailbox_try")
        connection.execute("RELEASE aiomailbox_try")

    def _commit(
        self,
        connection: sqlite3.Connection,
        job: str,
        sink: str,
        checkpoint_id: int,
        batches: Sequence[StagedBatch],
    ) -> None:
        # Nobody follows this execution meanwhile: one connection writes at a time.
        self._check_lease(connection)
        for batch in batches:
            advanced = connection.execute(
                f"INSERT INTO {self._ledger} (writer, job, sink, checkpoint, subtask, "
                "batch) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (writer) DO UPDATE SET "
                "checkpoint = excluded.checkpoint, batch = excluded.batch "
                "WHERE batch < excluded.batch",
                (batch.writer, job, sink, checkpoint_id, batch.subtask, batch.batch),
            )
            # Otherwise it has been moved by a commit whose answer was lost.
            if advanced.rowcount:
                self._move(connection, batch)

    def _check_batch(
        self, connection: sqlite3.Connection, writer: str, batch: int, rows: int
    ) -> None:
        self._check_lease(connection)
        found = self._count(connection, writer, batch)
        if found != rows:
            raise gone(self._target, batch, rows, found)

    def _count(self, connection: sqlite3.Connection, writer: str, batch: int) -> int:
        (found,) = connection.execute(
            f"SELECT count(*) FROM {self._staging} "
            "WHERE aiomailbox_writer = ? AND aiomailbox_batch = ?",
            (writer, batch),
        ).fetchone()
        return int(found)

    def _move(self, connection: sqlite3.Connection, batch: StagedBatch) -> None:
        where = "aiomailbox_writer = ? AND aiomailbox_batch = ?"
        which = (batch.writer, batch.batch)
        found = self._count(connection, *which)
        if found != batch.rows:
            raise lost(self._target, batch, found)
        names = ", ".join(map(quoted, batch.columns))
        try:
            connection.execute(
                f"INSERT INTO {self._table} ({names}) SELECT {names} FROM "
                f"{self._staging} WHERE {where} ORDER BY aiomailbox_row"
                f"{on_conflict(batch.columns, self._target.upsert_by)}",
                which,
            )
        except (sqlite3.IntegrityError, sqlite3.DataError) as error:
            raise refused_at_commit(self._target, error) from error
        connection.execute(f"DELETE FROM {self._staging} WHERE {where}", which)

    def _sweep(
        self, connection: sqlite3.Connection, table: str, column: str, token: str
    ) -> None:
        self._check_lease(connection)
        self._delete(connection, table, column, token)

    def _delete(
        self, connection: sqlite3.Connection, table: str, column: str, token: str
    ) -> None:
        # A slash ends the token, and 0 is the character behind it.
        connection.execute(
            f"DELETE FROM {table} WHERE {column} >= ? AND {column} < ?",
            (f"{token}/", f"{token}0"),
        )

    def _writers(self, connection: sqlite3.Connection, token: str) -> list[str]:
        found = connection.execute(
            f"SELECT DISTINCT aiomailbox_writer FROM {self._staging} "
            "WHERE aiomailbox_writer >= ? AND aiomailbox_writer < ?",
            (f"{token}/", f"{token}0"),
        )
        return [row[0] for row in found]

    def _drop(self, connection: sqlite3.Connection, writers: list[str]) -> None:
        self._check_lease(connection)
        connection.executemany(
            f"DELETE FROM {self._staging} WHERE aiomailbox_writer = ?",
            [(one,) for one in writers],
        )

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _is_busy(error: sqlite3.OperationalError) -> bool:
    return "locked" in str(error) or "busy" in str(error)


def _busy_timeout(seconds: float) -> str:
    return f"PRAGMA busy_timeout = {int(seconds * 1000)}"


def _connected(path: str) -> sqlite3.Connection:
    # Calls come from several threads, one after the other; transactions are ours.
    return sqlite3.connect(
        path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
    )


def _plain(value: Any) -> Any:
    """Return a value that SQLite has a type for.

    Raises:
        OverflowError: If it is a number of more than 64 bits.
        TypeError: If there is none.
    """
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, int) and value not in _INTEGERS:
        raise OverflowError(
            f"{value} does not fit into the 64 bits of SQLite's integers: give it as "
            "text, str(value)"
        )
    if isinstance(value, str) and not value.isascii():
        # Here, where one record is refused: its run is written with others'.
        value.encode()
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).isoformat(sep=" ")
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    return msgspec.json.encode(value).decode()
