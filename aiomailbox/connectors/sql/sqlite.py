"""SQLite, through the standard library, in a thread."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from difflib import get_close_matches
from enum import Enum
from typing import Any, Final
from uuid import UUID

import msgspec

from aiomailbox.connectors.sql.contract import (
    LEASE_S,
    STAGING_COLUMNS,
    Dialect,
    RowsRefused,
    SqlDatabase,
    StagedBatch,
    StagingLease,
    Statement,
    Steps,
    TableTarget,
    on_conflict,
    quoted,
    sql,
)
from aiomailbox.errors import SinkError
from aiomailbox.supervision import ThreadTurns
from aiomailbox.typevars import T

# How long a transaction waits for those of others, and how long without a word.
_BUSY_S: Final = 30.0
_SILENT_S: Final = 2.0
# Each transaction waits for the disk: small runs share one.
_BUFFERED_MAX: Final = 4096
# Seconds by the database's clock, which is this machine's.
_NOW: Final = "((julianday('now') - 2440587.5) * 86400.0)"
_INTEGERS: Final = range(-(2**63), 2**63)
_PLAIN: Final = (int, float, str, bytes, bytearray, memoryview, type(None))


class SqliteDatabase(SqlDatabase):
    """A connection to a SQLite file.

    Values that SQLite has no type for become text: times in ISO 8601 (those with a zone
    in UTC), decimals, UUIDs; lists and dicts as JSON. Enums become their values.

    Rows that cannot be stored are found before they are written, but for those of a
    table that is ``STRICT`` or has a ``CHECK``: SQLite is asked about each of its runs.
    """

    dialect = Dialect(
        mark="?",
        number="INTEGER",
        moment="real",
        now=_NOW,
        until=f"{_NOW} + {LEASE_S}",
        left_s=f"until - {_NOW}",
        by_bytes="",
        # One connection writes at a time.
        to_change="",
        to_keep="",
        no_index=sqlite3.OperationalError,
        refusals=(sqlite3.IntegrityError, sqlite3.DataError),
    )

    def __init__(self, path: str, target: TableTarget, lease: StagingLease) -> None:
        schema, _, table = target.table.rpartition(".")
        super().__init__(target, lease, schema or "main", f"aiomailbox_staged_{table}")
        self._path = path
        self._connection: sqlite3.Connection | None = None
        # What is to be staged, up to `_BUFFERED_MAX` rows and a run, in their order.
        self._buffer: list[tuple[Any, ...]] = []
        self._buffered_columns: tuple[str, ...] = ()
        self._required: frozenset[str] | None = None
        self._is_strict = False
        self._has_checks = False
        self._turns = ThreadTurns()

    async def stage(
        self,
        writer: str,
        batch: int,
        first_row: int,
        columns: Sequence[str],
        rows: Sequence[tuple[Any, ...]],
    ) -> None:
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
        await super().make_durable(writer, batch, rows)

    async def close(self) -> None:
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

    async def _transact(self, steps: Steps[T], *, is_durable: bool = False) -> T:
        return await self._run(_done, steps)

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
            # A large one tries to write before its end. While others read, SQLite would
            # wait anew for each page, and tell nobody; the pages stay in memory instead.
            connection.execute(_busy_timeout(0))
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
        self._waits.tell(
            "a sink waits for a locked database",
            database=self._path,
            waited_s=_SILENT_S,
            gives_up_after_s=_SILENT_S + _BUSY_S,
            remedy="another connection has a transaction open: commit it, or close "
            "that connection; who only reads holds up no file with PRAGMA "
            "journal_mode = WAL",
        )
        connection.execute(_busy_timeout(_BUSY_S))
        connection.execute(statement)

    def _columns(self) -> Steps[Sequence[Any]]:
        found = yield sql(self._info(self._name))
        return [(name, kind) for _, name, kind, *_, hidden in found if not hidden]

    def _info(self, table: str) -> str:
        return f"PRAGMA {quoted(self._schema)}.table_xinfo({quoted(table)})"

    def _others(self) -> Steps[str]:
        found = yield sql(
            f"SELECT name FROM {quoted(self._schema)}.sqlite_master WHERE type = 'table' "
            "AND name NOT LIKE 'aiomailbox_%' AND name NOT LIKE 'sqlite_%' ORDER BY name"
        )
        names = [name for (name,) in found]
        close = get_close_matches(self._name, names, n=1)
        if close:
            return f". Is {close[0]!r} meant?"
        tables = f"it has {', '.join(names)}" if names else "the file has no tables"
        return f": create it first; {tables}."

    def _check_upsert(self) -> Steps[None]:
        try:
            yield sql(f"EXPLAIN INSERT INTO {self._table} DEFAULT VALUES")
        except sqlite3.OperationalError as error:
            raise SinkError(
                f"{self._target} cannot be written: {error}. Name the table behind it."
            ) from error
        yield from super()._check_upsert()

    def _make_staging(self, columns: Sequence[Any]) -> Steps[None]:
        there = yield sql(self._info(self._staging_name))
        found = [
            (name, kind) for _, name, kind, *_ in there if name not in STAGING_COLUMNS
        ]
        if found == columns:
            return
        if found:
            yield from self._drop_staging()
        definition = self._definition(
            f"{quoted(name)} {kind}" for name, kind in columns
        )
        is_strict = yield self._strictness
        ending = " STRICT" if is_strict == [(1,)] else ""
        yield sql(f"CREATE TABLE {self._staging} ({definition}){ending}")

    @property
    def _strictness(self) -> Statement:
        return sql(
            "SELECT strict FROM pragma_table_list WHERE schema = ?1 COLLATE NOCASE "
            "AND name = ?2 COLLATE NOCASE",
            self._schema,
            self._name,
        )

    def _look_at_columns(self, connection: sqlite3.Connection) -> None:
        """Learn which columns take no null, and whether types and checks are enforced."""
        self._required = frozenset(
            name
            for _, name, _, not_null, _, key, _ in connection.execute(
                self._info(self._name)
            )
            if not_null and not key
        )
        is_strict = _executed(connection, self._strictness).fetchall()
        self._is_strict = is_strict == [(1,)]
        (made,) = connection.execute(
            f"SELECT sql FROM {quoted(self._schema)}.sqlite_master "
            "WHERE type = 'table' AND name = ? COLLATE NOCASE",
            (self._name,),
        ).fetchone() or ("",)
        self._has_checks = re.search(r"\bcheck\b", made, re.IGNORECASE) is not None

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
        writer, batch, first_row = self._buffer[0][:3]
        _done(connection, self._make_room(writer, batch, first_row))
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

    def _moving(self, names: str, which: str, batch: StagedBatch) -> Iterator[str]:
        yield (
            f"INSERT INTO {self._table} ({names}) SELECT {names} FROM {self._staging} "
            f"WHERE {which} ORDER BY aiomailbox_row"
            f"{on_conflict(batch.columns, self._target.upsert_by)}"
        )
        yield f"DELETE FROM {self._staging} WHERE {which}"

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _done(connection: sqlite3.Connection, steps: Steps[T]) -> T:
    """Do steps, and return what they come to."""
    try:
        statement = next(steps)
        while True:
            try:
                rows = _executed(connection, statement).fetchall()
            except sqlite3.Error as error:
                statement = steps.throw(error)
            else:
                statement = steps.send(rows)
    except StopIteration as end:
        return end.value


def _executed(connection: sqlite3.Connection, statement: Statement) -> sqlite3.Cursor:
    # To `sqlite3` a number such as ``?1`` is a name, and names take no sequence.
    text, values = statement
    named = {str(number): value for number, value in enumerate(values, 1)}
    return connection.execute(text, named)


def _is_busy(error: sqlite3.OperationalError) -> bool:
    return "locked" in str(error) or "busy" in str(error)


def _busy_timeout(seconds: float) -> str:
    return f"PRAGMA busy_timeout = {int(seconds * 1000)}"


def _connected(path: str) -> sqlite3.Connection:
    # Calls come from several threads, one after the other; transactions are ours.
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False)


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
