"""Rows of a table, written exactly once."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import socket
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from aiomailbox.connectors.sql.committer import SqlCommitter
from aiomailbox.connectors.sql.contract import Database, Lease, TableTarget
from aiomailbox.connectors.sql.sqlite import SqliteDatabase
from aiomailbox.connectors.sql.writer import SqlWriter
from aiomailbox.errors import InvalidArgumentError, MissingExtraError, WrongTypeError
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.sinks.guarantee import Guarantee
from aiomailbox.operators.sinks.sink import CommitterContext
from aiomailbox.storage.local import holder

__all__ = ["SqlSink"]


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

    def __init__(
        self,
        database: str | os.PathLike[str],
        table: str,
        *,
        columns: Sequence[str] | None = None,
        upsert_by: Sequence[str] = (),
    ) -> None:
        if not isinstance(database, str | os.PathLike):
            raise WrongTypeError(
                "database", f"{database!r} is not a URL or path", "Give a str."
            )
        self._url = os.fspath(database)
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
        if self._is_postgres and importlib.util.find_spec("asyncpg") is None:
            raise MissingExtraError("SqlSink for PostgreSQL", "sql")
        if not isinstance(table, str):
            raise WrongTypeError("table", f"{table!r} is not a name", "Give a str.")
        if not all(table.split(".")) or table.count(".") > 1:
            raise InvalidArgumentError(
                "table",
                f"{table!r} is not the name of a table",
                "Use name or schema.name.",
            )
        self._target = TableTarget(
            _without_secret(self._url),
            table,
            None if columns is None else _names(columns, "columns"),
            _names(upsert_by, "upsert_by"),
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

    def _connection(self, lease: Lease) -> Database:
        if not self._is_postgres:
            return SqliteDatabase(_sqlite_path(self._url), self._target, lease)
        from aiomailbox.connectors.sql.postgres import PostgresDatabase

        return PostgresDatabase(self._url, self._target, lease)

    def __repr__(self) -> str:
        return f"<SqlSink {self._target}>"


def _lease(context: RuntimeContext | CommitterContext) -> Lease:
    identity = context.execution_id
    if context.commits_at_checkpoints and context.is_resumable:
        # What the next execution finds again, too.
        identity = context.job_id
    named = f"{identity}\0{context.operator_id}".encode()
    return Lease(
        hashlib.sha256(named).hexdigest()[:16],
        context.job_id,
        context.operator_name,
        context.lineage,
        context.execution_id,
        # Only the committer takes the lease, and it knows whose it is for.
        f"{holder(f'job {context.job_name!r}')} on {socket.gethostname()}",
    )


def _names(names: Any, argument: str) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise WrongTypeError(
            argument, f"{names!r} is not a list of columns", 'Give a list, as ["user"].'
        )
    if not all(isinstance(name, str) and name for name in names):
        raise WrongTypeError(
            argument, f"{names!r} has an item that is not a name", "Use strings."
        )
    if len(set(names)) < len(names):
        raise InvalidArgumentError(argument, "it has duplicates", "Name each once.")
    return tuple(names)


def _sqlite_path(url: str) -> str:
    return url.removeprefix("sqlite:///").removeprefix("sqlite://")


def _without_secret(url: str) -> str:
    parts = urlsplit(url)
    if not parts.scheme or "@" not in parts.netloc:
        return url.split("?", maxsplit=1)[0]
    user, _, host = parts.netloc.rpartition("@")
    netloc = f"{user.partition(':')[0]}@{host}"
    return urlunsplit((parts.scheme, netloc, parts.path, "", ""))
