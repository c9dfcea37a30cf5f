"""The checkpoints that a job keeps for its next attempt, and resumes from.

Theory of operation: the store is opened, and claimed, before anything else runs. Before
each attempt what the last complete checkpoint holds is read again, and what sinks had
prepared for it is committed once more: whether that was done is not known. That a job
has finished is written before its checkpoints are deleted: a program that is killed
in between finds both when it is started again, and has only to clean up.

Concept:
    Flink, ``CheckpointCoordinator.restoreLatestCheckpointedStateToAll`` and
    ``DefaultScheduler``.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

from aiomailbox.checkpoint.reader import CheckpointFiles, RestoredJob
from aiomailbox.checkpoint.restored import RestoredTasks, finished_tasks, restored_tasks
from aiomailbox.checkpoint.settings import CheckpointConfig
from aiomailbox.checkpoint.store import LATEST, CheckpointStore
from aiomailbox.checkpoint.writer import decode_prepared
from aiomailbox.errors import (
    AioMailboxError,
    CheckpointFailedError,
    InvalidArgumentError,
    JobFinishedError,
    NoCheckpointError,
    StateError,
)
from aiomailbox.graph.job_graph import JobGraph, Node
from aiomailbox.ids import OperatorId, SubtaskId, VertexId
from aiomailbox.operators.core.failures import call_hook, naming_hook
from aiomailbox.operators.core.operator import Pending, finished
from aiomailbox.operators.core.user_code import user_location
from aiomailbox.operators.sinks.sink import Committer, CommitterContext
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.policies.retry import Retry
from aiomailbox.runtime.builder import AttemptPlan
from aiomailbox.runtime.config import JobConfig, JobState
from aiomailbox.runtime.coordinator import (
    CheckpointCoordinator,
    StepRunner,
)
from aiomailbox.runtime.host import LocalTasks
from aiomailbox.runtime.job_journal import FinishedCalls
from aiomailbox.runtime.limiter import LimiterService
from aiomailbox.runtime.services import JobServices
from aiomailbox.scratch import ScratchDirectories
from aiomailbox.storage import open_storage
from aiomailbox.storage.remote import LEASE_MS, RemoteStorage
from aiomailbox.supervision import run_in_thread
from aiomailbox.task.messages import PreparedData

# The committers of a job: checked first, committed with checkpoints, ended always.


# A commit is retried if the other end does not answer; any other error would only come
# again.
_RETRY: Final = Retry(
    attempts=5, initial=0.1, maximum=5.0, retry_on=(ConnectionError, TimeoutError)
)


@dataclass(frozen=True, slots=True)
class _Entry:
    operator_id: OperatorId
    vertex: VertexId
    context: CommitterContext
    committer: Committer
    line: str

    async def call(self, hook: str, call: Callable[[], Pending]) -> None:
        operator, uid = self.context.operator_name, self.context.uid
        try:
            pending = call_hook(hook, operator, uid, call)
            if pending is not None:
                with naming_hook(hook, operator, uid):
                    await pending
                    # Where it cancelled the task that runs it, that arrives here.
                    await asyncio.sleep(0)
        except AioMailboxError as error:
            error.operator, error.uid = error.operator or operator, error.uid or uid
            # A sink of the library has no line of the user's but the one that gave it.
            if self.line and not user_location(error):
                found: Any = error
                found.location = self.line
            raise


class JobCommitters:
    """The committers of a job: they make results visible, at each checkpoint or at the end.

    Args:
        graph: The job; each of its sinks may have a committer.
        services: Name the execution and the job, and say when it commits.
        lineage: Names the executions that go on from each other's checkpoints.

    Raises:
        UserFunctionError: If a sink cannot make its committer.
    """

    def __init__(
        self, graph: JobGraph, services: JobServices, lineage: str = ""
    ) -> None:
        self._random = random.Random(services.seed)
        self._begun: list[_Entry] = []
        self._entries = [
            entry
            for vertex in graph.vertices
            for node in vertex.nodes
            if (entry := _entry(graph, vertex.id, node, services, lineage)) is not None
        ]

    async def begin(self, *, restored: bool) -> None:
        """Check every target, before any task starts.

        Raises whatever a committer raises; what `ending` yields cleans up what had begun.

        Args:
            restored: Whether the job resumes from a checkpoint.
        """
        for entry in self._entries:
            # Before it is called: one that fails half-way may have something to clean
            # up.
            self._begun.append(entry)
            begin = partial(entry.committer.begin, restored=restored)
            # Noted first: one whose `begin` fails may have made something, which `end`
            # cleans up.
            await entry.call("begin", begin)

    async def commit(
        self,
        prepared: Mapping[OperatorId, Sequence[Any]],
        *,
        checkpoint_id: int,
        is_final: bool,
    ) -> None:
        """Make visible what the writers prepared; may be called again with the same.

        A sink is asked if there is something of it, and at the end.

        Raises whatever a committer raises, after a few attempts if none was answered.

        Args:
            prepared: What `SinkWriter.prepare_commit` returned, by the sink's operator.
            checkpoint_id: The checkpoint that holds it; 0 without checkpoints.
            is_final: Whether nothing follows.
        """
        for entry in self._entries:
            committables = list(prepared.get(entry.operator_id, ()))
            # At the end also without anything: some targets are made visible as a
            # whole.
            if committables or is_final:
                commit = partial(
                    entry.committer.commit,
                    committables,
                    checkpoint_id=checkpoint_id,
                    is_final=is_final,
                )
                await entry.call("commit", partial(self._persist, commit))

    async def recover(self) -> None:
        """Let committers remove what was prepared and nothing refers to.

        To be called when no writer runs and what a restored checkpoint holds has been
        committed. Raises whatever a committer raises.
        """
        for entry in self._entries:
            recover = getattr(entry.committer, "recover", None)
            if recover is not None:
                await entry.call("recover", recover)

    async def recover_writers(self, tasks: Collection[SubtaskId], before: int) -> None:
        """Let committers remove what writers prepared whose tasks begin again.

        To be called when none of these runs, others may, and what a restored checkpoint
        holds has been committed. Raises whatever a committer raises.

        Args:
            tasks: The tasks that begin again.
            before: The attempt that begins: what older ones of theirs left can go.
        """
        for entry in self._entries:
            recover = getattr(entry.committer, "recover_writers", None)
            subtasks = {
                one.subtask_index for one in tasks if one.vertex == entry.vertex
            }
            if recover is not None and subtasks:
                call = partial(recover, subtasks, before)
                await entry.call("recover_writers", call)

    def ending(self, *, succeeded: bool) -> Iterator[Callable[[], Pending]]:
        """Yield what cleans up every target that was begun: each is to be called once.

        Args:
            succeeded: Whether the job has.
        """
        for entry in self._begun:
            end = partial(entry.committer.end, succeeded=succeeded)
            yield partial(entry.call, "end", end)

    async def _persist(self, commit: Callable[[], Pending]) -> None:
        """Retry a few times while the other end does not answer."""
        for attempt in range(1, _RETRY.attempts + 1):
            try:
                await finished(commit())
            except Exception as error:
                if attempt == _RETRY.attempts or not _RETRY.wants_error(error):
                    raise
                await asyncio.sleep(_RETRY.delay_s(attempt, self._random))
            else:
                return


def _entry(
    graph: JobGraph, vertex: VertexId, node: Node, services: JobServices, lineage: str
) -> _Entry | None:
    item = node.transformation
    if item.sink is None:
        return None
    context = CommitterContext(
        graph.name,
        services.execution_id,
        item.name,
        item.uid,
        operator_id=node.operator_id,
        job_id=services.job_id,
        commits_at_checkpoints=services.commits_at_checkpoints,
        is_resumable=services.is_resumable,
        lineage=lineage,
    )
    create = item.sink.create_committer
    committer = call_hook("create_committer", item.name, item.uid, create, context)
    if committer is None:
        return None
    return _Entry(node.operator_id, vertex, context, committer, item.line)


_LIMITS: Final = "limits"
_RENEWALS_PER_LEASE: Final = 4


class JobCheckpoints:
    """The checkpoints of one job, and what its attempts resume from.

    Args:
        graph: The job.
        config: Its settings.
        services: What its tasks share.
        tasks: Those of the present attempt.
        job: Runs what takes time.

    Attributes:
        completed_id: The newest complete checkpoint of this attempt, or what it went on
            from; -1.
        finished_before: When an earlier run of the job has finished, if this one has
            nothing to run for that; None for one that runs.
        lineage: Names the executions that go on from each other in the directory of
            the checkpoints; "" before it is open, and for one that does not outlive the
            job.
    """

    def __init__(
        self,
        graph: JobGraph,
        config: JobConfig,
        services: JobServices,
        tasks: LocalTasks,
        job: StepRunner,
    ) -> None:
        self._graph = graph
        self._config = config
        self._services = services
        self._job = job
        self.finished_before: datetime | None = None
        # Their epoch has to grow with that of the attempt: both shut out late writers.
        self._finished_calls: FinishedCalls | None = (
            FinishedCalls(graph, config.checkpoints, services)
            if graph.has_journal
            else None
        )
        self._scratch = ScratchDirectories()
        self._place: str | None = None
        self._store: CheckpointStore | None = None
        self.lineage: str = ""
        self._restored: RestoredJob | None = None
        self._committers: JobCommitters | None = None
        self._committed_id = 0
        # The newest complete checkpoint of the present attempt, or what it began with.
        self.completed_id: int = -1
        self._epoch = -1
        self._renewing: asyncio.Task[None] | None = None
        settings = config.checkpoints
        self.coordinator: CheckpointCoordinator | None = (
            None
            if settings is None
            else CheckpointCoordinator(graph, settings, services, tasks, self, job)
        )

    @property
    def is_restored(self) -> bool:
        """Whether the next attempt resumes from something."""
        return self._restored is not None

    @property
    def beginning(self) -> tuple[str, dict[str, Any]]:
        """The state that the first attempt begins with, as a line of the log."""
        if self._restored is None:
            return "the job starts from the beginning", {}
        metadata = self._restored.metadata
        kind = "savepoint" if metadata.kind.is_savepoint else "checkpoint"
        facts = {"checkpoint_id": metadata.checkpoint_id, "place": self._restored.place}
        return f"the job starts from a {kind}", facts

    @property
    def restored_id(self) -> int:
        """The checkpoint that tasks went on from last, -1 for none."""
        restored = self._restored
        return -1 if restored is None else restored.metadata.checkpoint_id

    @property
    def restored_operators(
        self,
    ) -> Mapping[OperatorId, Sequence[OperatorSnapshot | None]]:
        """The state that the operators last resumed from, by their ids."""
        return {} if self._restored is None else self._restored.snapshot.operators

    async def open(self) -> None:
        """Claim the place of the checkpoints, and read what the job resumes from.

        Raises:
            JobFinishedError: If it has finished before, and is not to run then.
            StorageClaimedError: If another job with this identity runs.
            NoCheckpointError: If what it is to resume from is not there.
            StateError: If it does not fit the job.
            InvalidArgumentError: If finished calls cannot be kept there, or no job can have
                left a latest checkpoint there.
            OSError: If the place cannot be used.
        """
        settings, which = self._config.checkpoints, self._config.restore_from
        if which == LATEST and (settings is None or settings.directory is None):
            problem = "checkpointing is not enabled"
            if settings is not None:
                problem = "checkpoints go to a directory that ends with the job"
            raise InvalidArgumentError(
                "restore_from",
                f"{problem}, so there is no latest checkpoint",
                "Call env.enable_checkpointing(..., directory=...), or give a path.",
            )
        if settings is not None:
            await self._open_store(settings)
        if self._finished_calls is not None:
            await self._finished_calls.open(self._place, self._scratch)
        store = self._store
        if settings is not None and store is not None and _has_leases(settings):
            self._renewing = asyncio.get_running_loop().create_task(
                self._renew(store), name=f"claim of job {self._graph.name}"
            )
        if store is not None:
            self.finished_before = await self._finished(store)
            if self.finished_before is not None:
                return
        if which is not None:
            self._restored = await self._load(which)
            if self._restored is None and store is not None:
                await self._warn_of_others(store)
            if self._restored is not None and self._restored.unused_names:
                # A service that is started again has written the new names meanwhile.
                is_own = which == LATEST or (
                    store is not None
                    and self._restored.place.startswith(f"{store.place}/")
                )
                self._check_unused(self._restored, is_own=is_own)
        if store is not None:
            store.go_on_from(self._restored)
            assert self.coordinator is not None, "there is a store"
            self.coordinator.open(store)
        if self._restored is not None:
            # Once: in a job that starts again, limiters know more than a checkpoint.
            totals = self._restored.metadata.services.get(_LIMITS)
            if totals is not None:
                self._limiters.restore(totals)

    async def _warn_of_others(self, store: CheckpointStore) -> None:
        """Warn if "latest" finds nothing, and would as a job of another name."""
        others = await run_in_thread(store.other_jobs)
        if others:
            self._services.log.warning(
                "the job starts without state: its directory has checkpoints of other "
                "jobs only",
                job_id=self._services.job_id,
                others=others,
                place=store.place,
                remedy="a job that had another name goes on with job_id= that name; a "
                "new job has nothing to go on from",
            )

    async def _finished(self, store: CheckpointStore) -> datetime | None:
        """Return when the job has finished, if there is nothing to run for that.

        Raises:
            JobFinishedError: If it has, and is not to run then.
        """
        config = self._config
        when = await run_in_thread(store.finished, config.restore_from)
        if when is None:
            return None
        if config.if_finished == "refuse":
            raise JobFinishedError(self._services.job_id, when)
        facts = {"place": store.place, "finished": when.isoformat(timespec="seconds")}
        log = self._services.log
        if config.if_finished == "return":
            log.info("the job had finished before, and is not run again", **facts)
            return when
        # Whoever begins without state repeats everything on purpose.
        if config.restore_from is None or not store.is_left_half_deleted:
            return None
        log.warning(
            "the job had finished before, and its program died during the clean-up: "
            "the job completes the clean-up, and does not run again",
            **facts,
        )
        return when

    @property
    def ancestors(self) -> tuple[str, ...]:
        """The savepoints that the job has gone on from."""
        return () if self._restored is None else self._restored.ancestors

    def _check_unused(self, restored: RestoredJob, *, is_own: bool) -> None:
        # Kept results say only when they are read what classes they have.
        if self._finished_calls is not None:
            return
        names = ", ".join(map(repr, restored.unused_names))
        if not is_own:
            raise StateError(
                f"state_names= renames {names}, but no state in {restored.place} has a "
                "class of that name. Compare it with the output of `aiomailbox checkpoints "
                "inspect`, or leave it out."
            )
        self._services.log.warning(
            "state_names= gives names that no class was saved under",
            names=names,
            place=restored.place,
        )

    @property
    def _limiters(self) -> LimiterService:
        limiters = self._services.limiters
        assert isinstance(limiters, LimiterService), "workers have no checkpoints"
        return limiters

    async def begin_attempt(self, committers: JobCommitters) -> AttemptPlan:
        """Return what the next attempt is; commit what the last one could not.

        Raises whatever a committer raises, and what `open` does.
        """
        self._committers = committers
        restored = self._restored
        await self._begin_epoch()
        if restored is None:
            self._job.sources.prepare(self._graph)
            await committers.recover()
            return AttemptPlan(
                self._epoch, checkpoint_place=self._place, lineage=self.lineage
            )
        checkpoint_id = restored.metadata.checkpoint_id
        # Committed once more: whether that was done before the crash is not known, and
        # committers are idempotent.
        await self._commit(restored.committables)
        self._committed_id = max(self._committed_id, checkpoint_id)
        await committers.recover()
        tasks = self._tasks_of(restored)
        self._job.sources.prepare(
            self._graph, restored.snapshot.enumerators, checkpoint_id
        )
        return AttemptPlan(
            self._epoch, tasks, checkpoint_id, self._place, lineage=self.lineage
        )

    async def begin_again(self, tasks: frozenset[SubtaskId]) -> AttemptPlan:
        """Return what some tasks of the present attempt begin again with.

        What sinks have prepared for the checkpoint was committed when it was complete,
        for those that go on have heard so.

        Raises:
            CheckpointFailedError: If the checkpoint that the other tasks have behind
                them cannot be read any more.
        """
        if self.coordinator is not None:
            await self.coordinator.settle()
        await self.reload()
        restored, restored_id = self._restored, self.restored_id
        # The tasks that go on are ahead of it, and records between the two would be
        # lost.
        if restored_id < self.completed_id:
            raise CheckpointFailedError(
                f"checkpoint {self.completed_id} cannot be read any more, and the "
                "tasks that kept running are past it: all tasks restart from "
                f"checkpoint {restored_id}"
            )
        await self._begin_epoch(tasks)
        kept = {} if restored is None else self._tasks_of(restored)
        return AttemptPlan(
            self._epoch,
            {place: one for place, one in kept.items() if SubtaskId(*place) in tasks},
            restored_id,
            self._place,
            tasks,
            is_first=False,
            lineage=self.lineage,
        )

    async def _begin_epoch(self, tasks: frozenset[SubtaskId] | None = None) -> None:
        self._epoch += 1
        store, restored = self._store, self._restored
        if store is not None:
            self._epoch = await run_in_thread(store.new_epoch)
        if store is not None and self._finished_calls is not None:
            self._epoch = await self._finished_calls.begin_attempt(
                self._epoch,
                None if restored is None else restored.metadata.checkpoint_id,
                store.newest_first(),
                tasks,
            )

    def _tasks_of(self, restored: RestoredJob) -> RestoredTasks:
        return {
            **restored_tasks(
                restored.snapshot,
                self._graph,
                allow_unmatched=self._config.allow_unmatched_state,
                codec=self._services.codec,
            ),
            **finished_tasks(restored.metadata.finished_operators, self._graph),
        }

    def on_attempt(self, plan: AttemptPlan) -> None:
        """Expect the tasks of an attempt to start."""
        self.completed_id = plan.restored_id
        if self.coordinator is not None:
            self.coordinator.begin_attempt(plan.number, plan.restored_id)

    async def end_attempt(self) -> None:
        """Take no checkpoints until the next attempt; wait for what is being written."""
        if self.coordinator is not None:
            await self.coordinator.end_attempt()

    async def reload(self) -> None:
        """Read again what the next attempt resumes from: the last complete checkpoint.

        Raises what `open` does.
        """
        if self._store is None:
            return
        latest = await self._load(LATEST)
        if latest is None:
            return
        before = self._restored
        if before is None or (
            latest.metadata.checkpoint_id > before.metadata.checkpoint_id
        ):
            self._restored = latest

    async def close(self, state: JobState, *, is_refused: bool) -> None:
        """Give the place back; what the job is not to leave behind is deleted.

        Args:
            state: How the job ended.
            is_refused: Whether what it was to go on with is not what it was before.
        """
        if self.coordinator is not None:
            self.coordinator.close()
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait((self._renewing,))
        store, self._store = self._store, None
        if store is not None:
            await self._close_store(store, state, is_refused=is_refused)
        if self._finished_calls is not None:
            await self._finished_calls.close()
        if self._scratch.paths:
            await run_in_thread(self._scratch.remove)

    def on_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Be notified that tasks resume from a checkpoint, or a later one, from now on."""
        self.completed_id = max(self.completed_id, checkpoint_id)
        self._job.sources.on_checkpoint_complete(checkpoint_id)

    def capture_services(self) -> dict[str, bytes]:
        """Return the totals of limiters and budgets."""
        return {_LIMITS: self._limiters.snapshot()}

    async def commit_prepared(
        self, prepared: Sequence[PreparedData], checkpoint_id: int
    ) -> None:
        """Make visible what sinks have prepared; what is visible already stays."""
        classes = self._services.state_classes
        await self._commit(
            (one.checkpoint_id, one.operator, decode_prepared(one, classes))
            for one in prepared
            # What was committed with an earlier one is in every later one until tasks
            # hear of it.
            if one.checkpoint_id > self._committed_id
        )
        self._committed_id = max(self._committed_id, checkpoint_id)

    async def on_retained(self, oldest: int) -> None:
        """Be notified of the oldest checkpoint that a job may resume from."""
        if self._finished_calls is not None:
            await self._finished_calls.prune(oldest)

    async def _commit(
        self, prepared: Iterable[tuple[int, OperatorId, Sequence[Any]]]
    ) -> None:
        """Commit what subtasks had prepared, that of earlier checkpoints first."""
        committers = self._committers
        assert committers is not None, "an attempt has begun"
        by_checkpoint: dict[int, dict[OperatorId, list[Any]]] = {}
        for checkpoint_id, operator, values in prepared:
            found = by_checkpoint.setdefault(checkpoint_id, {})
            found.setdefault(operator, []).extend(values)
        for checkpoint_id in sorted(by_checkpoint):
            await committers.commit(
                by_checkpoint[checkpoint_id],
                checkpoint_id=checkpoint_id,
                is_final=False,
            )

    async def _open_store(self, settings: CheckpointConfig) -> None:
        if settings.directory is None:
            self._place = await run_in_thread(self._scratch.below, "")
        else:
            self._place = os.fspath(settings.directory)
        try:
            await run_in_thread(self._make_store, self._place, settings.file_mode)
        except OSError as error:
            if settings.directory is None or error.errno is None:
                raise
            problem = (
                f"{error.strerror}: no checkpoints can be written to {self._place!r}. "
                "Give env.enable_checkpointing(..., directory=...) one where this "
                "process may create files"
            )
            raise type(error)(error.errno, problem, error.filename) from error
        assert self._store is not None, "it was made"

    def _make_store(self, place: str, file_mode: int) -> None:
        # Set here: the waiter may be cancelled, and the claim is to be released.
        services = self._services
        self._store = CheckpointStore(
            open_storage(place, file_mode=file_mode),
            services.job_id,
            services.clock,
            services.log,
            owner=f"job {self._graph.name!r} of process {os.getpid()}",
            file_mode=file_mode,
        )
        if services.is_resumable:
            self.lineage = self._store.join_lineage(services.execution_id)

    async def _load(self, which: str | os.PathLike[str]) -> RestoredJob | None:
        store = self._store
        classes = self._services.state_classes
        pickle = self._config.allow_pickled_state
        if store is not None:
            return await run_in_thread(
                lambda: store.load(which, classes, allow_pickled_state=pickle)
            )
        files = CheckpointFiles.at(which)
        try:
            return await run_in_thread(
                lambda: files.restored(classes, allow_pickled_state=pickle)
            )
        except FileNotFoundError as error:
            raise NoCheckpointError(files.place, files.absence) from error

    async def _close_store(
        self, store: CheckpointStore, state: JobState, *, is_refused: bool
    ) -> None:
        settings = self._config.checkpoints
        assert settings is not None, "there is a store only with settings"
        try:
            if state is JobState.FINISHED:
                await self._clean_up(store)
            # What earlier lives have left is not lost by one that came to nothing, such as
            # for a class that does not fit, or a source that is another one for now.
            elif (
                store.has_completed
                and not is_refused
                and not settings.keeps_after(cancelled=state is JobState.CANCELED)
            ):
                await self._discard_all(store)
        finally:
            await run_in_thread(store.close)

    async def _clean_up(self, store: CheckpointStore) -> None:
        """Leave what a job that has finished leaves; again, if the first time was cut short.

        The newest checkpoint goes last: as long as there is one, the next life does this.
        """
        coordinator = self.coordinator
        assert coordinator is not None, "there is a store"
        if self.finished_before is None:
            ended_with = coordinator.last_savepoint_id
            await run_in_thread(store.finish, self.ancestors, ended_with)
        elif store.ended_with is not None:
            # It can be resumed from; nothing else was left that is in the way.
            return
        # Only now: a failed job that is run again pays for no call twice.
        if self._finished_calls is not None:
            # Calls may have got further before a restart than a savepoint is.
            await self._finished_calls.end(store.ended_with)
        await self._discard_all(store)

    async def _discard_all(self, store: CheckpointStore) -> None:
        count = await run_in_thread(store.discard_all)
        settings = self._config.checkpoints
        # A temporary directory goes with the job, which surprises nobody.
        if count and settings is not None and settings.is_durable:
            self._services.log.info(
                "checkpoints were removed", count=count, place=store.place
            )

    async def _renew(self, store: CheckpointStore) -> None:
        while True:
            # Four times a lease, so that one that fails is no reason to lose it.
            await asyncio.sleep(LEASE_MS / 1000 / _RENEWALS_PER_LEASE)
            try:
                await run_in_thread(store.renew)
                if self._finished_calls is not None:
                    await self._finished_calls.renew()
            except Exception as error:  # noqa: BLE001 -- another job may write now
                self._job.fail_attempt(error)


def _has_leases(settings: CheckpointConfig) -> bool:
    """Say whether claims have to be renewed: there are no locks on object stores."""
    places = (settings.directory, settings.journal_directory)
    return any(
        isinstance(open_storage(place), RemoteStorage)
        for place in places
        if place is not None
    )
