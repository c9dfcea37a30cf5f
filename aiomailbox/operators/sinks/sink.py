"""Sinks: writers in the tasks, one committer per job.

Theory of operation: writers prepare, the committer makes visible. In a job that takes
checkpoints, what was prepared before a barrier is part of the checkpoint and is committed
when that is complete; without, everything is committed once, at the job's success. After
a crash the committer begins with ``restored=True``, commits what the restored checkpoint
has, perhaps again, and then removes what nothing refers to.

Concept:
    Flink, SinkV2 (FLIP-143): ``Sink``, ``SinkWriter``, ``Committer``. Ours commits at
    the job.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.contract import Pending
from aiomailbox.records.run import Run


class SinkWriter(Protocol):
    """Writes records; one per subtask, called from its mailbox only."""

    def write_run(self, run: Run, /) -> Pending:
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
        """Return what a new writer needs to resume, as elements; usually none.

        When the parallelism changes, the elements of all writers are split evenly.
        """
        ...

    def restore(self, elements: list[Any], /) -> None:
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
        operator_id: What `RuntimeContext.operator_id` is to the sink's writers.
        job_id: What `RuntimeContext.job_id` is to the sink's writers.
        commits_at_checkpoints: Whether the job takes checkpoints, and commits at each.
        is_resumable: Whether a checkpoint may outlive this execution, so that another
            one resumes from it.
        lineage: What `RuntimeContext.lineage` is to the sink's writers.
    """

    job_name: str
    execution_id: str
    operator_name: str
    uid: str | None
    operator_id: str = ""
    job_id: str = ""
    commits_at_checkpoints: bool = False
    is_resumable: bool = False
    lineage: str = ""


class Committer(Protocol):
    """Makes results visible; one per sink and job, called by the job.

    A committer whose writers leave something durable before it is committed has a method
    ``recover()``, without arguments. It is called after `begin` and after what a restored
    checkpoint holds was committed, before writers start, and at each later restart of the
    tasks; it removes what writers prepared and nothing refers to any more. If it also has
    ``recover_writers(subtasks, before)``, that is called where only some tasks start again:
    it removes what attempts with a number below ``before`` of these subtasks prepared,
    while other writers go on.
    """

    def begin(self, *, restored: bool) -> Pending:
        """Claim and check the target, before any task starts.

        Args:
            restored: Whether the job resumes from a checkpoint: the target holds what
                earlier executions committed, and what they prepared must stay.

        Raises:
            TargetExistsError: If the target is already there.
            SinkError: If the target cannot be written.
        """
        ...

    def commit(
        self, committables: list[Any], /, *, checkpoint_id: int, is_final: bool
    ) -> Pending:
        """Make visible what writers prepared; may be called again with the same.

        A ``ConnectionError`` or ``TimeoutError`` makes the job call it again, a few
        times; any other error fails the job.

        Args:
            committables: What writers prepared, of all subtasks; may be empty if final.
            checkpoint_id: The checkpoint that has it; 0 in a job without checkpoints.
            is_final: Whether everything is there then. The job may still fail, if
                another of its sinks does.
        """
        ...

    def end(self, *, succeeded: bool) -> Pending:
        """Clean up, also if `begin` failed; called once.

        Args:
            succeeded: Whether the job did. If not, a job without checkpoints leaves
                nothing behind, and may take back what it committed. A job with them
                keeps what it committed; if `CommitterContext.is_resumable`, also what
                it prepared, for the execution that resumes.
        """
        ...


class Sink(Protocol):
    """A description of where results go; picklable, nothing live in it.

    A sink that gives results to objects of the process that starts the job says so with
    an attribute ``stays_in_parent`` that is True: its writers then run in that process.
    What it promises after failures it says with an attribute ``guarantee``; without, that
    is `Guarantee.AT_LEAST_ONCE`.
    """

    def create_writer(self, context: RuntimeContext, /) -> SinkWriter:
        """Create the writer of one subtask."""
        ...

    def create_committer(self, context: CommitterContext, /) -> Committer | None:
        """Create the committer, or None if writing is all there is."""
        ...
