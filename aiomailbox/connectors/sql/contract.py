"""The contract between a database and the writers and committers of its sink.

Theory of operation: rows that no checkpoint has yet are in a *staging table* beside the
target, which has the target's columns and says whose row it is: the writer, the writer's
batch, and the row's number in it. A commit moves batches from there into the target and
advances the writer's row in the *ledger*, ``aiomailbox_commits``, in one transaction of
the database. So a commit that is made again finds in the ledger that it has been made,
memory holds no more than one run, and no transaction is left open between two calls.

Whose staged rows are whose is said by a *lease*, a row of ``aiomailbox_leases``, and not
by a lock, which a connection takes with it when it goes. An execution takes the lease once,
when it begins, and looks in each of its transactions whether it still has it: one that
another execution has followed commits nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

from aiomailbox.errors import (
    RecordTypeError,
    SinkError,
    StorageClaimedError,
    lasting,
)
from aiomailbox.logs import library_log
from aiomailbox.typevars import T

LEDGER: Final = "aiomailbox_commits"
LEASES: Final = "aiomailbox_leases"
# How long an execution that says nothing is taken for alive, by the database's clock.
LEASE_S: Final = 60
STAGING_COLUMNS: Final = ("aiomailbox_writer", "aiomailbox_batch", "aiomailbox_row")


class RowsRefused(Exception):  # noqa: N818 -- says what happened, the writer decides
    """The database takes at least one of some rows not, and never will."""


@dataclass(frozen=True, slots=True)
class TableTarget:
    """The table that a sink writes.

    Attributes:
        place: The database, without secrets, for messages.
        table: The table, perhaps with its schema before a dot.
        columns: The columns that records have; None takes those of the first record.
        upsert_by: The columns whose values name a row that is replaced; empty to insert.
        line: The line that made the sink, for warnings.
    """

    place: str
    table: str
    columns: tuple[str, ...] | None
    upsert_by: tuple[str, ...]
    line: str = ""

    def __str__(self) -> str:
        return f"table {self.table!r} of {self.place}"


class WaitLog:
    """Says that a sink waits for others, the first, the second and the fourth time.

    Args:
        target: What it writes.
        sink: The name of the sink.
    """

    def __init__(self, target: TableTarget, sink: str) -> None:
        self._log = library_log(sink=sink, line=target.line, target=str(target))
        self._times = 0

    def tell(self, what: str, **more: object) -> None:
        """Say it, if it is time."""
        self._times += 1
        if self._times & (self._times - 1) == 0:
            self._log.warning(what, times=self._times, **more)


@dataclass(frozen=True, slots=True)
class StagingLease:
    """Which execution stages rows under a token, and who may follow it.

    Attributes:
        token: How the names of the sink's writers begin: of job and sink, or of the
            execution if nothing can go on from it.
        job_id: Names the job, for messages.
        sink: Names the sink, for messages.
        lineage: Names the executions that go on from each other in one directory of
            checkpoints, of which only one runs: another one of them follows at once.
            "" if there is none.
        execution: Names the execution, and no other.
        owner: The execution's name for people.
    """

    token: str
    job_id: str
    sink: str
    lineage: str
    execution: str
    owner: str

    def follows(self, lineage: str, execution: str) -> bool:
        """Say whether who has the lease is over, since this execution has begun."""
        return execution == self.execution or (
            bool(lineage) and lineage == self.lineage
        )


class StagedBatch(NamedTuple):
    """Rows of one writer that are in the staging table and that a commit moves.

    Attributes:
        writer: Names job, sink, execution, attempt and subtask; of no other writer.
        batch: From 0; grows with the writer's batches.
        subtask: The writer's subtask.
        rows: How many rows.
        columns: Their columns.
    """

    writer: str
    batch: int
    subtask: int
    rows: int
    columns: tuple[str, ...]

    @classmethod
    def of(cls, committable: Any) -> StagedBatch:
        """Return the batch that a committable was made of."""
        writer, batch, subtask, rows, columns = committable
        return cls(writer, batch, subtask, rows, tuple(columns))


class Dialect(NamedTuple):
    """What the statements of two databases differ in.

    Attributes:
        mark: Goes before the number of a value.
        number: The type of a number of 64 bits.
        moment: The type of a moment.
        now: The moment by the database's clock, which all executions see.
        until: The end of a lease that is taken now.
        left_s: How many seconds a lease has left.
        by_bytes: Compares texts byte by byte: other orders skip punctuation, and would
            find others' tokens.
        to_change: Locks a row that is read, so that it can be changed.
        to_keep: Locks it until the transaction ends, so that nobody changes it.
        no_index: Says that no unique index has just these columns.
        refusals: Say that a row does not fit.
    """

    mark: str
    number: str
    moment: str
    now: str
    until: str
    left_s: str
    by_bytes: str
    to_change: str
    to_keep: str
    no_index: type[Exception]
    refusals: tuple[type[Exception], ...]


Statement = tuple[str, tuple[Any, ...]]


def sql(text: str, *values: Any) -> Statement:
    """Return a statement with its values."""
    return text, values


# Gives statements with their values, and is sent the rows of each.
Steps = Generator[Statement, Sequence[Any], T]


class SqlDatabase(ABC):
    """One connection, made when it is needed; not for two callers at once.

    What is done in a transaction is written once, as steps; each database sends them in
    its way. Every method raises ``ConnectionError`` if it may succeed when called again.
    Those that write, and `make_durable`, raise ``StorageClaimedError`` if another
    execution has taken the lease.
    """

    dialect: ClassVar[Dialect]

    def __init__(
        self, target: TableTarget, lease: StagingLease, schema: str, staging_name: str
    ) -> None:
        self._target = target
        self._lease = lease
        self._schema = schema
        self._name = target.table.rpartition(".")[2]
        self._staging_name = staging_name
        place = f"{quoted(schema)}." if schema else ""
        self._table = f"{place}{quoted(self._name)}"
        self._staging = f"{place}{quoted(staging_name)}"
        self._ledger = f"{place}{quoted(LEDGER)}"
        self._leases = f"{place}{quoted(LEASES)}"
        self._waits = WaitLog(target, lease.sink)

    async def begin(self) -> str:
        """Check the target, make the tables beside it, and take the lease.

        What executions without a successor have left when they died is removed.

        Returns:
            Who had the lease until it ran out, if that was another job; else "".

        Raises:
            SinkError: If the target is missing or does not fit.
            StorageClaimedError: If another job has the lease, and may still run.
        """
        return await self._transact(self._begin(), is_durable=True)

    async def renew(self) -> None:
        """Say that the execution lives."""
        await self._transact(self._renew())

    async def release(self) -> None:
        """Give the lease back, if it is still this execution's."""
        await self._transact(self._release())

    async def column_names(self) -> tuple[str, ...]:
        """Return the columns of the target that can be written."""
        return tuple(name for name, *_ in await self._transact(self._columns()))

    @abstractmethod
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

    async def make_durable(self, writer: str, batch: int, rows: int) -> None:
        """Let the rows of a batch, so many, survive a loss of power.

        Raises:
            SinkError: If they are not all there.
        """
        await self._transact(self._check_batch(writer, batch, rows), is_durable=True)

    async def commit(
        self, job: str, sink: str, checkpoint_id: int, batches: Sequence[StagedBatch]
    ) -> None:
        """Move batches into the target, all or none; those that were moved are passed.

        Raises:
            SinkError: If rows are lost, or the target refuses them.
        """
        steps = self._commit(job, sink, checkpoint_id, batches)
        await self._transact(steps, is_durable=True)

    async def sweep(self, token: str) -> None:
        """Remove what writers whose names begin with a token have staged."""
        await self._transact(self._sweep(self._staging, STAGING_COLUMNS[0], token))

    async def writers(self, token: str) -> list[str]:
        """Return the names of writers that begin with a token and have staged rows."""
        return await self._transact(self._writers(token))

    async def drop(self, writers: Collection[str]) -> None:
        """Remove what some writers have staged."""
        await self._transact(self._drop(sorted(writers)))

    async def forget(self, token: str) -> None:
        """Remove what the ledger says of writers whose names begin with a token."""
        await self._transact(self._sweep(self._ledger, "writer", token))

    @abstractmethod
    async def close(self) -> None:
        """Close the connection, if there is one."""

    @abstractmethod
    async def _transact(self, steps: Steps[T], *, is_durable: bool = False) -> T:
        """Do steps in one transaction, which waits for the disk if it is durable."""

    @abstractmethod
    def _columns(self) -> Steps[Sequence[Any]]:
        """Return the columns that can be written, each beginning with its name."""

    @abstractmethod
    def _make_staging(self, columns: Sequence[Any]) -> Steps[None]:
        """Make the staging table, unless there is one for just these columns."""

    @abstractmethod
    def _moving(self, names: str, which: str, batch: StagedBatch) -> Iterator[str]:
        """Yield the statements that move the rows of a batch into the target."""

    def _begin(self) -> Steps[str]:
        columns = yield from self._columns()
        if not columns:
            others = yield from self._others()
            raise SinkError(f"there is no {self._target}{others}")
        check_columns(self._target, [name for name, *_ in columns])
        yield from self._check_upsert()
        yield sql(
            f"CREATE TABLE IF NOT EXISTS {self._ledger} (writer text PRIMARY KEY, "
            "job text NOT NULL, sink text NOT NULL, checkpoint bigint NOT NULL, "
            "subtask integer NOT NULL, batch bigint NOT NULL)"
        )
        yield sql(
            f"CREATE TABLE IF NOT EXISTS {self._leases} (token text, target text, "
            "lineage text NOT NULL, execution text NOT NULL, owner text NOT NULL, "
            f"until {self.dialect.moment} NOT NULL, PRIMARY KEY (token, target))"
        )
        yield from self._make_staging(columns)
        former = yield from self._take_lease()
        # What executions that nothing goes on from have staged and left.
        dead = yield sql(
            f"DELETE FROM {self._leases} WHERE target = {self.dialect.mark}1 AND "
            f"lineage = '' AND until < {self.dialect.now} RETURNING token",
            self._name,
        )
        for (token,) in dead:
            yield self._deletion(self._staging, STAGING_COLUMNS[0], token)
        return former

    def _others(self) -> Steps[str]:
        """Return what there is in place of the target, and what to do."""
        yield from ()
        return ": create it first."

    def _check_upsert(self) -> Steps[None]:
        if not self._target.upsert_by:
            return
        keys = ", ".join(map(quoted, self._target.upsert_by))
        try:
            # EXPLAIN asks the planner, which finds the index, and changes nothing.
            yield sql(
                f"EXPLAIN INSERT INTO {self._table} ({keys}) SELECT {keys} FROM "
                f"{self._table} WHERE false ON CONFLICT ({keys}) DO NOTHING"
            )
        except self.dialect.no_index as error:
            raise SinkError(
                f"{self._target} has no unique index of just the columns "
                f"{list(self._target.upsert_by)}: {error}. Create one, or leave out "
                "upsert_by."
            ) from error

    def _drop_staging(self) -> Steps[None]:
        """Remove the table of another target: rows staged for that might not fit."""
        if (yield sql(f"SELECT 1 FROM {self._staging} LIMIT 1")):
            raise staging_mismatch(self._target, self._staging_name)
        yield sql(f"DROP TABLE {self._staging}")

    def _definition(self, columns: Iterable[str], checks: Iterable[str] = ()) -> str:
        """Return what the staging table has: where a row comes from, and its values."""
        writer, batch, row = STAGING_COLUMNS
        parts = [
            f"{writer} text NOT NULL",
            f"{batch} {self.dialect.number} NOT NULL",
            f"{row} {self.dialect.number} NOT NULL",
            *columns,
            f"PRIMARY KEY ({', '.join(STAGING_COLUMNS)})",
            *checks,
        ]
        return ", ".join(parts)

    def _make_room(
        self, writer: str, batch: int, first_row: int, *, also: str = ""
    ) -> Steps[None]:
        """Remove what a call has staged whose answer was lost: it is made again."""
        yield from self._check_lease(also=also)
        yield sql(
            f"DELETE FROM {self._staging} WHERE {self._of_batch} AND "
            f"{STAGING_COLUMNS[2]} >= {self.dialect.mark}3",
            writer,
            batch,
            first_row,
        )

    @property
    def _of_lease(self) -> str:
        return f"WHERE token = {self.dialect.mark}1 AND target = {self.dialect.mark}2"

    @property
    def _lease_key(self) -> tuple[str, str]:
        return self._lease.token, self._name

    def _take_lease(self) -> Steps[str]:
        """Make the lease this execution's; return whose it was, if another job's.

        Raises:
            StorageClaimedError: If another job has it, and may still run.
        """
        lease, dialect, former = self._lease, self.dialect, ""
        held = yield sql(
            f"SELECT lineage, execution, owner, {dialect.left_s} FROM {self._leases} "
            f"{self._of_lease}{dialect.to_change}",
            *self._lease_key,
        )
        for lineage, execution, owner, left_s in held:
            if lease.follows(lineage, execution):
                continue
            if left_s > 0:
                raise _claimed(lease, self._target, owner, left_s)
            former = owner
        marks = ", ".join(f"{dialect.mark}{number}" for number in range(1, 6))
        yield sql(
            f"INSERT INTO {self._leases} VALUES ({marks}, {dialect.until}) "
            "ON CONFLICT (token, target) DO UPDATE SET lineage = excluded.lineage, "
            "execution = excluded.execution, owner = excluded.owner, "
            "until = excluded.until",
            *self._lease_key,
            lease.lineage,
            lease.execution,
            lease.owner,
        )
        return former

    def _check_lease(self, *, also: str = "", lock: str = "") -> Steps[None]:
        """Refuse to write for an execution that another one has followed.

        ``also`` is selected, too, which saves a round trip.

        Raises:
            StorageClaimedError: If that is so.
        """
        held = yield sql(
            f"SELECT execution, owner{also} FROM {self._leases} {self._of_lease}{lock}",
            *self._lease_key,
        )
        if not held or held[0][0] != self._lease.execution:
            owner = held[0][1] if held else None
            raise lease_lost(self._lease, self._target, owner)

    def _renew(self) -> Steps[None]:
        yield from self._check_lease()
        yield sql(
            f"UPDATE {self._leases} SET until = {self.dialect.until} {self._of_lease} "
            f"AND execution = {self.dialect.mark}3",
            *self._lease_key,
            self._lease.execution,
        )

    def _release(self) -> Steps[None]:
        yield sql(
            f"DELETE FROM {self._leases} {self._of_lease} "
            f"AND execution = {self.dialect.mark}3",
            *self._lease_key,
            self._lease.execution,
        )

    def _commit(
        self, job: str, sink: str, checkpoint_id: int, batches: Sequence[StagedBatch]
    ) -> Steps[None]:
        # Kept until the end: who follows this execution waits for it here.
        yield from self._check_lease(lock=self.dialect.to_keep)
        marks = ", ".join(f"{self.dialect.mark}{number}" for number in range(1, 7))
        for batch in batches:
            # Another commit of the same waits here, and finds that it is done.
            advanced = yield sql(
                f"INSERT INTO {self._ledger} AS ledger (writer, job, sink, checkpoint, "
                f"subtask, batch) VALUES ({marks}) ON CONFLICT (writer) DO UPDATE SET "
                "checkpoint = excluded.checkpoint, batch = excluded.batch "
                "WHERE ledger.batch < excluded.batch RETURNING batch",
                batch.writer,
                job,
                sink,
                checkpoint_id,
                batch.subtask,
                batch.batch,
            )
            # Otherwise it has been moved by a commit whose answer was lost.
            if advanced:
                yield from self._move(batch)

    def _move(self, batch: StagedBatch) -> Steps[None]:
        found = yield from self._count(batch.writer, batch.batch)
        # Fewer rows than were staged must not be committed as if they were all.
        if found != batch.rows:
            raise lost(self._target, batch, found)
        names = ", ".join(map(quoted, batch.columns))
        try:
            for statement in self._moving(names, self._of_batch, batch):
                yield sql(statement, batch.writer, batch.batch)
        except self.dialect.refusals as error:
            raise refused_at_commit(self._target, error) from error

    def _check_batch(self, writer: str, batch: int, rows: int) -> Steps[None]:
        yield from self._check_lease()
        found = yield from self._count(writer, batch)
        if found != rows:
            raise gone(self._target, batch, rows, found)

    @property
    def _of_batch(self) -> str:
        writer, batch, _ = STAGING_COLUMNS
        return f"{writer} = {self.dialect.mark}1 AND {batch} = {self.dialect.mark}2"

    def _count(self, writer: str, batch: int) -> Steps[int]:
        [(found,)] = yield sql(
            f"SELECT count(*) FROM {self._staging} WHERE {self._of_batch}",
            writer,
            batch,
        )
        return int(found)

    def _sweep(self, table: str, column: str, token: str) -> Steps[None]:
        yield from self._check_lease()
        yield self._deletion(table, column, token)

    def _writers(self, token: str) -> Steps[list[str]]:
        where, values = self._beginning(STAGING_COLUMNS[0], token)
        found = yield sql(
            f"SELECT DISTINCT {STAGING_COLUMNS[0]} FROM {self._staging} {where}",
            *values,
        )
        return [writer for (writer,) in found]

    def _drop(self, writers: list[str]) -> Steps[None]:
        yield from self._check_lease()
        where = f"{STAGING_COLUMNS[0]} = {self.dialect.mark}1"
        for writer in writers:
            yield sql(f"DELETE FROM {self._staging} WHERE {where}", writer)

    def _deletion(self, table: str, column: str, token: str) -> Statement:
        where, values = self._beginning(column, token)
        return sql(f"DELETE FROM {table} {where}", *values)

    def _beginning(self, column: str, token: str) -> Statement:
        """Return what finds the names that begin with a token."""
        column, mark = f"{column}{self.dialect.by_bytes}", self.dialect.mark
        # A slash ends the token, and 0 is the character behind it.
        where = f"WHERE {column} >= {mark}1 AND {column} < {mark}2"
        return where, (f"{token}/", f"{token}0")


def check_columns(target: TableTarget, existing: Sequence[str]) -> None:
    """Refuse columns that the target does not have.

    Raises:
        SinkError: If there are such.
    """
    wanted = dict.fromkeys((target.columns or ()) + target.upsert_by)
    missing = [name for name in wanted if name not in existing]
    if missing:
        raise SinkError(
            f"{target} has no columns {missing} that can be written; it has "
            f"{list(existing)}."
        )


def lost(target: TableTarget, batch: StagedBatch, found: int) -> SinkError:
    """Return the error of a batch that is not whole."""
    return SinkError(
        f"{batch.rows} rows were staged for {target} and {found} of them are left "
        f"(writer {batch.writer}, batch {batch.batch}). They were deleted, or the "
        "job was started without state since: resume from another checkpoint, or "
        "start without one."
    )


def gone(target: TableTarget, batch: int, rows: int, found: int) -> SinkError:
    """Return the error of rows that are gone before a checkpoint has them."""
    return SinkError(
        f"{rows} rows were staged for {target} since the last checkpoint, and {found} of "
        f"them are there (batch {batch}): the server crashed, or somebody deleted them. "
        "This checkpoint must not have them; the job can go on from the one before."
    )


def lease_lost(
    lease: StagingLease, target: TableTarget, owner: str | None
) -> Exception:
    """Return the error of an execution that has lost its lease."""
    if owner is None:
        return SinkError(
            f"{target} has no lease of this execution any more: its row in {LEASES!r} "
            "was deleted, or the job has ended. Start the job again."
        )
    return _claimed(lease, target, owner, None)


def _claimed(
    lease: StagingLease, target: TableTarget, owner: str, left_s: float | None
) -> StorageClaimedError:
    """Return the error of a lease that another job has, for so long, if that is known."""
    return StorageClaimedError(
        f"sink {lease.sink!r} of job_id {lease.job_id!r} in {target}",
        owner,
        left_s,
        remedy="give each job a job_id of its own",
    )


def refused_at_commit(target: TableTarget, reason: object) -> SinkError:
    """Return the error of a target that refuses what its staging table took."""
    return lasting(
        SinkError(
            f"{target} refuses rows of a completed checkpoint: {str(reason).strip()}. "
            "Repair the table, and start the job again; if rows with the same key are "
            "to replace each other, use SqlSink(..., upsert_by=[...])."
        )
    )


def staging_mismatch(target: TableTarget, staging: str) -> SinkError:
    """Return the error of a target that changed while rows are staged for it."""
    return lasting(
        SinkError(
            f"the columns of {target} have changed since the rows in {staging!r} were "
            "staged for it. Run the job that staged them with the table as it was, or "
            "remove these rows."
        )
    )


def no_field(record: Any, missing: Sequence[str], target: TableTarget) -> Exception:
    """Return the error of a record whose fields are no columns."""
    return RecordTypeError(
        "record",
        f"{type(record).__name__} has fields {list(missing)}, and {target} has no such "
        "columns",
        "Add them, or name the columns with SqlSink(..., columns=[...]).",
    )


def on_conflict(columns: Sequence[str], keys: Sequence[str]) -> str:
    """Return the clause that lets a row replace the one with the same keys, or none."""
    if not keys:
        return ""
    changes = ", ".join(
        f"{quoted(name)} = excluded.{quoted(name)}"
        for name in columns
        if name not in keys
    )
    # With nothing else to change, the row that is there is the same one.
    action = f"UPDATE SET {changes}" if changes else "NOTHING"
    return f" ON CONFLICT ({', '.join(map(quoted, keys))}) DO {action}"


def quoted(name: str) -> str:
    """Return a name as both databases take it, whatever is in it."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'
