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

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from aiomailbox.errors import (
    RecordTypeError,
    SinkError,
    StorageClaimedError,
    lasting,
)
from aiomailbox.logs import library_log

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
        """Say it, if it is time.

        Args:
            what: The sentence.
            more: What else there is to say, with a remedy.
        """
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
        """Say whether who has the lease is over, since this execution has begun.

        Args:
            lineage: That of who has it.
            execution: Who has it.
        """
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


class SqlDatabase(Protocol):
    """One connection, made when it is needed; not for two callers at once.

    Every method raises ``ConnectionError`` if it may succeed when called again. Those that
    write, and `make_durable`, raise ``StorageClaimedError`` if another execution has taken
    the lease.
    """

    async def begin(self) -> str:
        """Check the target, make the tables beside it, and take the lease.

        What executions without a successor have left when they died is removed.

        Returns:
            Who had the lease until it ran out, if that was another job; else "".

        Raises:
            SinkError: If the target is missing or does not fit.
            StorageClaimedError: If another job has the lease, and may still run.
        """
        ...

    async def renew(self) -> None:
        """Say that the execution lives."""
        ...

    async def release(self) -> None:
        """Give the lease back, if it is still this execution's."""
        ...

    async def column_names(self) -> tuple[str, ...]:
        """Return the columns of the target that can be written."""
        ...

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
        ...

    async def make_durable(self, writer: str, batch: int, rows: int) -> None:
        """Let the rows of a batch survive a loss of power.

        Args:
            writer: Whose batch it is.
            batch: The batch.
            rows: How many rows were staged in it.

        Raises:
            SinkError: If they are not all there.
        """
        ...

    async def commit(
        self, job: str, sink: str, checkpoint_id: int, batches: Sequence[StagedBatch]
    ) -> None:
        """Move batches into the target, all or none; those that were moved are passed.

        Raises:
            SinkError: If rows are lost, or the target refuses them.
        """
        ...

    async def sweep(self, token: str) -> None:
        """Remove what writers whose names begin with a token have staged."""
        ...

    async def writers(self, token: str) -> list[str]:
        """Return the names of writers that begin with a token and have staged rows."""
        ...

    async def drop(self, writers: Collection[str]) -> None:
        """Remove what some writers have staged."""
        ...

    async def forget(self, token: str) -> None:
        """Remove what the ledger says of writers whose names begin with a token."""
        ...

    async def close(self) -> None:
        """Close the connection, if there is one."""
        ...


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


def taken(
    lease: StagingLease, target: TableTarget, owner: str, left_s: float
) -> Exception:
    """Return the error of a lease that another job has."""
    return _claimed(lease, target, owner, left_s)


def lease_lost(
    lease: StagingLease, target: TableTarget, owner: str | None
) -> Exception:
    """Return the error of an execution that has lost its lease.

    Args:
        lease: The one it had.
        target: The table.
        owner: Who has it now; None for nobody.
    """
    if owner is None:
        return SinkError(
            f"{target} has no lease of this execution any more: its row in {LEASES!r} "
            "was deleted, or the job has ended. Start the job again."
        )
    return _claimed(lease, target, owner, None)


def _claimed(
    lease: StagingLease, target: TableTarget, owner: str, left_s: float | None
) -> StorageClaimedError:
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
