"""Sinks: writers in the tasks, one committer per job.

Concept:
    Flink, SinkV2 (FLIP-143): ``Sink``, ``SinkWriter``, ``Committer``. Ours commits at
    the job: when a checkpoint completed, or when a job without checkpoints succeeded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.contract import Pending
from aiomailbox.records import Run


class SinkWriter(Protocol):
    """Writes records; one per subtask, called from its mailbox only."""

    def write_run(self, run: Run) -> Pending:
        """Write records.

        Raises:
            RecordsRefusedError: If it cannot take some of them and knows which, at once
                or while it is awaited; any other error fails the job.
        """
        ...

    def flush(self, *, end_of_input: bool) -> Pending:
        """Write out what is buffered; before a barrier, and at the end of input."""
        ...

    def prepare_commit(self) -> list[Any]:
        """Return what the committer has to make visible since the last call."""
        ...

    def snapshot(self) -> list[Any]:
        """Return what a new writer needs to go on, as elements; mostly none.

        When the parallelism changes, the elements of all writers are split evenly.
        """
        ...

    def restore(self, elements: list[Any]) -> None:
        """Take over what `snapshot` of earlier writers returned, if that was anything."""
        ...

    def close(self) -> Pending:
        """Release resources; what is not committed stays invisible."""
        ...


@dataclass(frozen=True, slots=True)
class CommitterContext:
    """Whose committer it is.

    Attributes:
        job_name: The job's name.
        execution_id: What `RuntimeContext.execution_id` is to the sink's writers.
        operator_name: The sink's name.
        uid: The sink's uid as the user gave it, or None.
    """

    job_name: str
    execution_id: str
    operator_name: str
    uid: str | None


class Committer(Protocol):
    """Makes results visible; one per sink and job, called by the job."""

    def begin(self) -> Pending:
        """Check the target, before any task starts.

        Raises:
            TargetExistsError: If the target is already there.
            SinkError: If the target cannot be written.
        """
        ...

    def commit(self, committables: list[Any], *, is_final: bool) -> Pending:
        """Make visible what writers prepared; may be called again with the same.

        Args:
            committables: What writers prepared, of all subtasks; may be empty.
            is_final: Whether everything is there then. The job may still fail, if
                another of its sinks does.
        """
        ...

    def end(self, *, succeeded: bool) -> Pending:
        """Clean up, also if `begin` failed; called once.

        Args:
            succeeded: Whether the job did. If not, nothing that is not committed stays
                behind, and what was committed may be taken back.
        """
        ...


class Sink(Protocol):
    """A description of where results go; picklable, nothing live in it.

    A sink that gives results to objects of the process that starts the job says so with
    an attribute ``stays_in_parent`` that is True: its writers then run in that process.
    """

    def create_writer(self, context: RuntimeContext) -> SinkWriter:
        """Create the writer of one subtask."""
        ...

    def create_committer(self, context: CommitterContext) -> Committer | None:
        """Create the committer, or None if writing is all there is."""
        ...
