"""The operators of a task: built and wired, opened and closed in order.

Concept:
    Flink, ``OperatorChain`` and ``StreamOperatorWrapper``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from aiomailbox.availability import Availability
from aiomailbox.errors import IllegalStateError, StateError, named_operator
from aiomailbox.eventtime.alignment import AlignmentGroup
from aiomailbox.eventtime.processing_time import NoTimers, ProcessingTimeService
from aiomailbox.eventtime.strategy import AlignmentConfig
from aiomailbox.eventtime.timers import InternalTimerService, Triggerable
from aiomailbox.ids import OperatorId
from aiomailbox.journal.journals import SubtaskJournal
from aiomailbox.keygroups.assignment import key_group_range
from aiomailbox.mailbox.executor import MailboxExecutor
from aiomailbox.mailbox.processor import MailboxProcessor
from aiomailbox.operators.core.context import Handover, Limiter, RepeatedWarnings
from aiomailbox.operators.core.failures import Context, naming_hook
from aiomailbox.operators.core.mutations import (
    MutationCheck,
    SharedRecords,
    Worker,
    joined,
)
from aiomailbox.operators.core.operator import (
    Input,
    Operator,
    Output,
    Pending,
    finished,
)
from aiomailbox.operators.core.watched import WatchedOutput, watched_input
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.operators.sources.operator import SourceOperator
from aiomailbox.operators.stateless.operators import fused
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.records.events import OutputTag, StopMode
from aiomailbox.state.operator_state import OperatorStateStore
from aiomailbox.state.store import NoKeysStateStore
from aiomailbox.state.table_store import KeyedStateStore
from aiomailbox.supervision import INTERRUPTS, close_by_force, end_tasks
from aiomailbox.task.backlog import Backlog, has_backlog
from aiomailbox.task.environment import (
    OperatorPlan,
    OutgoingEdge,
    TaskEnvironment,
    TaskPlan,
)
from aiomailbox.task.outputs import (
    COLUMN_SLICES,
    COSTLY_ROW_SLICES,
    MIXED_SLICES,
    ROW_SLICES,
    BroadcastingOutput,
    ChainingOutput,
    OperatorOutput,
    PartingOutput,
    SliceForm,
    WriterOutput,
    all_of,
    main_output,
)
from aiomailbox.task.processing_time import (
    MailboxProcessingTimeService,
    SystemProcessingTimeService,
)
from aiomailbox.task.task_metrics import MeasuredAvailability

# The coroutines that operators start beside the mailbox, owned by their task.


class HelperTasks:
    """Starts coroutines, reports their failures, and leaves none behind.

    Args:
        on_failure: Told when one fails.
        timeout_s: How long those that are asked to end may take.
    """

    def __init__(
        self, on_failure: Callable[[BaseException], None], timeout_s: float = 30.0
    ) -> None:
        self._on_failure = on_failure
        self._every_s = timeout_s / INTERRUPTS
        # As a set that keeps their order.
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._closing = False

    def spawn(
        self, work: Coroutine[Any, Any, None], *, name: str
    ) -> asyncio.Task[None]:
        """Start a coroutine; it is cancelled when the task ends."""
        task = asyncio.get_running_loop().create_task(self._keep(work), name=name)
        self._tasks[task] = None
        task.add_done_callback(partial(self._ended, work))
        return task

    @property
    def running(self) -> list[asyncio.Task[None]]:
        """Those that have not ended."""
        return [task for task in self._tasks if not task.done()]

    async def close(self) -> None:
        """Cancel what still runs, again and again, and wait for it.

        When time is up this is abandoned, and the task calls `end_by_force`.
        """
        self._closing = True
        await end_tasks(self._tasks, every_s=self._every_s)

    def end_by_force(self) -> None:
        """End what does not heed its cancellation; for when time is up."""
        self._closing = True
        for task in self.running:
            close_by_force(task)

    async def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (KeyboardInterrupt, SystemExit) as error:
            # It would end the loop and not the task.
            if not self._closing:
                self._on_failure(error)

    def _ended(self, work: Coroutine[Any, Any, None], task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        # Cancelling a task that has not begun leaves its work as it was made.
        work.close()
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not self._closing:
            self._on_failure(error)


# The runtime context of one operator in one task.


class TaskRuntimeContext(Context):
    """The services of its task and job that an operator may use; see `RuntimeContext`.

    Args:
        environment: The task's facts and services.
        plan: The operator.
        mailbox: The task's mailbox at the operator's priority.
        processing_time: Timers as mail of the operator.
        helpers: Owns the coroutines that operators start.
    """

    def __init__(
        self,
        environment: TaskEnvironment,
        plan: OperatorPlan,
        mailbox: MailboxExecutor,
        processing_time: ProcessingTimeService,
        helpers: HelperTasks,
    ) -> None:
        job, settings = environment.job, environment.settings
        self._environment = environment
        self._helpers = helpers
        self._plan = plan
        self.job_name: str = job.job_name
        self.execution_id: str = job.execution_id
        self.job_id: str = job.job_id
        self.task_name: str = environment.task_name
        self.operator_name: str = plan.name
        self.uid: str | None = plan.uid
        self.line: str = plan.line
        self.operator_id: str = str(plan.operator_id)
        self.subtask_index: int = environment.task_id.subtask_index
        self.parallelism: int = environment.parallelism
        self.max_parallelism: int = environment.max_parallelism
        self.attempt: int = environment.task_id.attempt
        self.commits_at_checkpoints: bool = job.commits_at_checkpoints
        self.is_resumable: bool = job.is_resumable
        self.lineage: str = environment.lineage
        self.latency_interval_ms: int | None = settings.latency_interval_ms
        self.cancel_timeout_s: float = settings.cancel_timeout_s
        self.trace_carrier: Mapping[str, str] | None = settings.trace_carrier
        self.key_group_range = key_group_range(
            self.max_parallelism, self.parallelism, self.subtask_index
        )
        self.clock = job.clock
        # Seeded with text, which `Random` hashes itself: `hash()` of it differs per
        # process.
        self.random = random.Random(
            f"{job.seed}/{plan.name}/{plan.uid}/{self.subtask_index}"
        )
        self.log: Any = environment.log.bind(operator=plan.name)
        if plan.uid is not None:
            self.log = self.log.bind(uid=plan.uid)
        self.repeated: RepeatedWarnings = RepeatedWarnings(self.log, self.clock)
        self.metrics = environment.metrics.child(plan.metrics_name or plan.name)
        self.mailbox = mailbox
        self.processing_time: ProcessingTimeService = processing_time
        self.limiter: Callable[[RateLimit], Limiter] = environment.limiter
        self.handover: Callable[[str], Handover] = job.handover
        self.alignment: Callable[[AlignmentConfig], AlignmentGroup]
        self.alignment = job.alignments.get
        self.keyed_state: KeyedStateStore = self._keyed_state(plan)
        self.operator_state: OperatorStateStore = OperatorStateStore()
        self.mutations: MutationCheck | None = (
            MutationCheck(plan.name, plan.uid) if settings.check_mutations else None
        )
        is_shared = settings.shares_records and not settings.check_mutations
        self.shared: SharedRecords | None = (
            job.shared if is_shared and not job.shared.is_over else None
        )

    def close(self) -> None:
        """Log the warnings held back, and release what state holds outside of memory.

        Idempotent.
        """
        self.repeated.flush()
        self.keyed_state.close()

    def _keyed_state(self, plan: OperatorPlan) -> KeyedStateStore:
        if not plan.is_keyed:
            return cast("KeyedStateStore", NoKeysStateStore(plan.name))
        store = self._environment.job.state_backend.create_store(
            self.max_parallelism, self.key_group_range, self.clock
        )
        store.used_by(named_operator(plan.name, plan.uid))
        self.metrics.gauge("state_keys", store.estimated_keys)
        self.metrics.gauge("state_bytes", store.size_bytes)
        return store

    def on_unread(self, tag: OutputTag, count: int) -> None:
        """Say that records of a side output are dropped, unless the job has at its start."""
        if count and tag not in self._plan.tags_given:
            self.repeated.unread(tag, count, self._plan.functions)

    def commit_later(self, committables: list[Any]) -> None:
        """Hand over what a sink's writer prepared.

        It is filed under the operator's id: names are the user's, and two sinks may
        have one.
        """
        self._environment.prepared(self._plan.operator_id, committables)

    def journal(self) -> SubtaskJournal:
        """Return this operator's journal of finished calls."""
        journals = self._environment.journals
        if journals is None:
            raise IllegalStateError(
                f"{named_operator(self.operator_name, self.uid)} has journal=True, "
                "and the job has no place for a journal: write "
                "env.enable_checkpointing(interval, directory=...)"
            )
        return journals.journal(self.operator_id, self.subtask_index)

    def timer_service(self, target: Triggerable) -> InternalTimerService:
        """Return a timer service of this operator."""
        refusal = self._environment.job.no_processing_time
        processing_time = self.processing_time
        return InternalTimerService(
            target,
            self.keyed_state,
            NoTimers(processing_time, refusal) if refusal else processing_time,
            self.max_parallelism,
            cancellation=self.mailbox.cancellation,
        )

    def spawn(
        self, work: Coroutine[Any, Any, None], *, name: str
    ) -> asyncio.Task[None]:
        """Start a coroutine that belongs to this task."""
        return self._helpers.spawn(work, name=f"{self.task_name}/{name}")


@dataclass(slots=True)
class Link:
    """One operator that runs: a user's operator, or several fused into one.

    Attributes:
        operator: What runs.
        members: The indexes of the plan's operators in it, head first.
        mailbox: The mailbox at its priority.
        timers: The processing-time timers of its members.
        backlog: What stands before it; None if it never leaves the rest of a run.
        worker: Its name, where a warning says who changed a record.
    """

    operator: Operator
    members: list[int]
    mailbox: MailboxExecutor
    timers: list[MailboxProcessingTimeService]
    worker: Worker
    backlog: Backlog | None = None

    def input(self, index: int) -> Input:
        """Return an input of the operator."""
        if self.backlog is not None:
            return self.backlog.inputs[index]
        return watched_input(self.operator, index)


class OperatorChain:
    """A task's operators, from the head that gets the input to the tails.

    Args:
        plan: What the chain consists of.
        environment: What the task was given.
        processor: The task's mailbox loop.
        timers: The task's processing-time service.
        helpers: Owns the coroutines that operators start.
        on_timer_error: Told when a timer's callback raised.

    Raises whatever a factory raises.
    """

    def __init__(
        self,
        plan: TaskPlan,
        environment: TaskEnvironment,
        processor: MailboxProcessor,
        timers: SystemProcessingTimeService,
        helpers: HelperTasks,
        on_timer_error: Callable[[BaseException], None],
    ) -> None:
        self._plan = plan
        self._environment = environment
        self._processor = processor
        self._system_timers = timers
        self._helpers = helpers
        self._on_timer_error = on_timer_error
        self._contexts: dict[int, TaskRuntimeContext] = {}
        links: dict[int, Link] = {}
        # Tail first: an operator's output is made of the ones behind it.
        for index in reversed(range(len(plan.operators))):
            links[index] = self._build(index, links)
        members = {index for link in links.values() for index in link.members[1:]}
        self.links: list[Link] = [
            links[i] for i in range(len(links)) if i not in members
        ]
        self._show_event_time(links)
        self._watch_head()

    @property
    def head(self) -> Operator:
        """The operator that gets the task's input."""
        return self.links[0].operator

    @property
    def operators(self) -> list[Operator]:
        """The operators, head first."""
        return [link.operator for link in self.links]

    def head_input(self, index: int) -> Input:
        """Return an input of the task."""
        return self.links[0].input(index)

    @property
    def backlogs(self) -> list[Backlog]:
        """The backlogs of the operators, head first."""
        return [link.backlog for link in self.links if link.backlog is not None]

    def room(self) -> Callable[[], int] | None:
        """Return what tells how many records fit; None if no operator is ever full."""
        operators = [link.operator for link in self.links if link.operator.fills_up]
        if not operators:
            return None
        return lambda: min(operator.room for operator in operators)

    @property
    def slices(self) -> SliceForm:
        """The most records that the operators are given at once, and what that costs.

        For operators of columns it is more: a call into a kernel costs some microseconds
        however few records there are. An operator of rows behind them gets a thousand
        at a time, see `PartingOutput`.
        """
        forms = [operator.takes_columns for operator in self.operators]
        if all(forms):
            return COLUMN_SLICES
        if self._has_source:
            # It has no kernels, and the operators after it get its runs as they are.
            forms = forms[1:]
        if not any(forms):
            has_cost = any(operator.has_fixed_cost for operator in self.operators)
            return COSTLY_ROW_SLICES if has_cost else ROW_SLICES
        if self.head.takes_columns and forms[0]:
            return MIXED_SLICES
        return COSTLY_ROW_SLICES

    @property
    def _has_source(self) -> bool:
        return isinstance(self.head, SourceOperator)

    def accepts(self) -> list[Availability]:
        """Return what must be available before the operators take more input."""
        return [one.accepts for one in self.operators if one.accepts is not None]

    async def open(self) -> None:
        """Open the operators, tail first, so that each may emit while it opens."""
        for link in reversed(self.links):
            with self._naming(link, "open"):
                await finished(link.operator.warm_up())
                await finished(link.operator.open())
                link.operator.check_restored()

    async def resume(self) -> None:
        """Go on with what a snapshot interrupted, tail first, and say how far that is.

        Operators that were restored know how far event time had come, and ignore it;
        new ones, here and behind other tasks, do not.
        """
        for backlog in self.backlogs:
            backlog.resume()
        for link in reversed(self.links):
            with self._naming(link, "resume"):
                await finished(link.operator.resume())
                await finished(link.operator.repeat_progress())

    async def restore(self, snapshots: Mapping[OperatorId, OperatorSnapshot]) -> None:
        """Give each operator the snapshot that was kept under its id, in pieces."""
        for link in self.links:
            snapshot = snapshots.get(self._operator_id(link))
            if snapshot is not None:
                with self._naming(link, "restore"):
                    for _ in link.operator.restoring(snapshot):
                        await asyncio.sleep(0)
                if link.backlog is not None:
                    link.backlog.restore(snapshot)
            self._check_backlog(link, snapshots)

    def snapshot(self) -> dict[OperatorId, OperatorSnapshot]:
        """Return each operator's snapshot by its id, tail first.

        Of operators that are fused, which keep nothing, only the first is named.
        """
        found: dict[OperatorId, OperatorSnapshot] = {}
        for link in reversed(self.links):
            with self._naming(link, "snapshot"):
                taken = link.operator.snapshot()
                if link.backlog is not None:
                    taken = replace(taken, own=link.backlog.snapshot(taken))
                found[self._operator_id(link)] = taken
        return found

    @property
    def acts_at_checkpoints(self) -> bool:
        """Whether a checkpoint does more with an operator than to keep its state."""
        return any(link.operator.acts_at_checkpoints for link in self.links)

    def settle_snapshots(self) -> None:
        """Notify the operators that a snapshot was taken, and may have been read."""
        for link in self.links:
            link.operator.settle_snapshots()

    @property
    def head_id(self) -> OperatorId:
        """The id of the operator that gets the task's input."""
        return self._operator_id(self.links[0])

    async def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        """Let the operators emit what must precede a barrier, head first."""
        for link in self.links:
            await finished(link.operator.prepare_snapshot_pre_barrier(checkpoint_id))

    async def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Notify the operators, tail first; all are notified, the first error is raised."""
        await self._tell_all("notify_checkpoint_complete", checkpoint_id)

    async def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Notify the operators, tail first; all are notified, the first error is raised."""
        await self._tell_all("notify_checkpoint_aborted", checkpoint_id)

    async def _tell_all(self, hook: str, checkpoint_id: int) -> None:
        first: BaseException | None = None
        for link in reversed(self.links):
            try:
                await finished(self._call(link, hook, checkpoint_id))
            except Exception as error:  # noqa: BLE001 -- the others are notified, too
                first = first or error
        if first is not None:
            raise first

    async def finish(self, mode: StopMode) -> None:
        """Finish the operators one by one, head first, each with all its mail.

        An operator's ``finish`` goes through the mailbox: what it had queued runs
        before it, and what it queues runs before the next operator is touched.
        """
        for position, link in enumerate(self.links):
            if link.backlog is not None:
                await link.backlog.emptied()
            # The head heard it from the input processor when its input ended.
            if position and mode is StopMode.DRAIN:
                with self._naming(link, "end_input"):
                    await finished(link.operator.end_input())
            # Flink's order (`StreamOperatorWrapper`): no timer fires once `finish` has
            # run.
            for service in link.timers:
                await service.quiesce()
            # What was put off, as the rest of a watermark's timers, belongs before
            # `finish`: skipping it lost data in Flink (FLINK-39481).
            if link.mailbox.has_deferrable_mail():
                await _run_queued_mail(link.mailbox)
            hook = "finish" if mode is StopMode.DRAIN else "settle"
            link.mailbox.execute(self._call, link, hook, description="finish")
            await _run_queued_mail(link.mailbox)
            # What `finish` sent stands behind it.
            await _run_queued_mail(link.mailbox)

    def closing(self) -> Iterator[Callable[[], Pending]]:
        """Yield what closes the operators, tail first: each is to be called once."""
        for link in reversed(self.links):
            yield partial(self._call, link, "close")

    def releasing(self) -> Iterator[Callable[[], Pending]]:
        """Yield what releases what the operators' state holds, after `closing`."""
        for context in self._contexts.values():
            yield context.close

    def _watch_head(self) -> None:
        """Let the inputs of the task be looked at, until all that watches steps aside."""
        head = self.links[0]
        shared = head.operator.context.shared
        if shared is None:
            return
        for index in range(len(head.operator.inputs)):
            source = head.input(index)
            watched = shared.watched(source.process_run, head.worker)
            # The input's own is found again once this is gone.
            vars(source)["process_run"] = watched
            shared.at_end(partial(vars(source).pop, "process_run", None))

    def _show_event_time(self, links: dict[int, Link]) -> None:
        """Let all operators but the head show how far event time is before them."""
        for link in self.links:
            output = link.operator.output
            if isinstance(output, WatchedOutput):
                output = output.output
            if not isinstance(output, OperatorOutput):
                continue
            followers = link.members[1:]
            for edge in self._plan.operators[link.members[-1]].outgoing:
                if edge.target is not None:
                    followers = followers + links[edge.target].members
            for index in followers:
                self._contexts[index].metrics.gauge(
                    "current_input_watermark", output.get_watermark
                )
                self._contexts[index].metrics.gauge("is_idle", output.get_idle)

    def _call(self, link: Link, hook: str, *args: int) -> Pending:
        with self._naming(link, hook):
            pending: Pending = getattr(link.operator, hook)(*args)
        return None if pending is None else self._await(link, hook, pending)

    async def _await(self, link: Link, hook: str, pending: Awaitable[None]) -> None:
        with self._naming(link, hook):
            await pending

    def _naming(self, link: Link, hook: str) -> AbstractContextManager[None]:
        """Say of an error which operator raised it, where, and in which hook."""
        plan = self._plan.operators[link.members[0]]
        return naming_hook(hook, plan.name, plan.uid)

    def _operator_id(self, link: Link) -> OperatorId:
        return self._plan.operators[link.members[0]].operator_id

    def _check_backlog(
        self, link: Link, snapshots: Mapping[OperatorId, OperatorSnapshot]
    ) -> None:
        """Refuse to lose records that an operator had still to await.

        Raises:
            StateError: If its function is not awaited any more.
        """
        for member in link.members if link.backlog is None else link.members[1:]:
            plan = self._plan.operators[member]
            snapshot = snapshots.get(plan.operator_id)
            if snapshot is not None and has_backlog(snapshot):
                raise StateError(
                    f"{named_operator(plan.name, plan.uid)} had an async def "
                    "function when the checkpoint was taken, which had still to be "
                    "awaited for some records. Restore the job with such a function, "
                    "or stop it with drain=True before the function is changed."
                )

    def _build(self, index: int, links: dict[int, Link]) -> Link:
        plan = self._plan.operators[index]
        operator = plan.factory()
        mailbox = self._processor.executor(index)
        timers = MailboxProcessingTimeService(
            self._system_timers, mailbox, self._on_timer_error
        )
        context = TaskRuntimeContext(
            self._environment, plan, mailbox, timers, self._helpers
        )
        self._contexts[index] = context
        is_source = isinstance(operator, SourceOperator)
        # Where several follow a source, its runs are as long as any of them wants.
        is_alone = is_source and len(plan.outgoing) == 1
        from_kernels = operator.takes_columns and not is_alone
        output: Output = self._output(plan, links, context, from_kernels)
        if context.mutations is not None:
            # Fused functions would be one operator, whichever of them it was.
            watched = WatchedOutput(output, context.mutations, is_source=is_source)
            output = cast("Output", watched)
        operator.setup(context, output)
        makes_calls = type(operator).open_calls is not Operator.open_calls
        worker = Worker(plan.name, plan.uid, plan.functions or plan.line, makes_calls)
        link = Link(operator, [index], mailbox, [timers], worker)
        if any(operator.may_leave_rest(i) for i in range(len(operator.inputs))):
            link.backlog = Backlog(operator, mailbox, self._environment.job.clock)
            link.worker = worker._replace(works_alone=True)
        if context.mutations is not None:
            return link
        return _fused(link, links, plan.outgoing)

    def _output(
        self,
        plan: OperatorPlan,
        links: dict[int, Link],
        context: TaskRuntimeContext,
        from_kernels: bool,
    ) -> OperatorOutput:
        way = partial(_way, links=links, context=context, from_kernels=from_kernels)
        main = [way(edge) for edge in plan.outgoing if edge.tag is None]
        by_tag: dict[OutputTag, list[ChainingOutput | WriterOutput]] = {}
        for edge in plan.outgoing:
            if edge.tag is not None:
                by_tag.setdefault(edge.tag, []).append(way(edge))
        sides = {tag: BroadcastingOutput(ways) for tag, ways in by_tag.items()}
        output = OperatorOutput(
            main_output(main),
            sides,
            context.metrics.counter("num_records_out"),
            context.on_unread,
        )
        if context.shared is not None:
            # Each channel of a broadcast gets the same objects.
            is_broadcast = any(
                edge.writer is not None
                and edge.writer.partitioner.is_broadcast
                and edge.writer.partition.subpartition_count > 1
                for edge in plan.outgoing
            )
            if is_broadcast or len(plan.outgoing) > 1:
                output.note_shared(context.shared, is_broadcast=is_broadcast)
        if not isinstance(output.availability, MeasuredAvailability):
            output.availability = MeasuredAvailability(
                output.availability, self._processor.metrics.hard_backpressured
            )
        return output


def _way(
    edge: OutgoingEdge,
    links: dict[int, Link],
    context: TaskRuntimeContext,
    *,
    from_kernels: bool,
) -> ChainingOutput | WriterOutput:
    if edge.writer is not None:
        return WriterOutput(edge.writer, context)
    assert edge.target is not None, "an edge leads to an operator or to a writer"
    link = links[edge.target]
    target, room = link.operator, link.operator.output.availability
    if link.backlog is not None:
        room = all_of([link.backlog.availability, room])
    records_in = target.context.metrics.counter("num_records_in")
    output: ChainingOutput
    if target.takes_columns or not from_kernels:
        output = ChainingOutput(link.input(0), room, records_in)
    else:
        output = PartingOutput(link.input(0), room, records_in, target.context)
    if target.context.shared is not None:
        output.watch(target.context.shared, link.worker)
    return output


def _fused(link: Link, links: dict[int, Link], outgoing: list[OutgoingEdge]) -> Link:
    """Fuse a stateless operator with what follows, if nothing else consumes it."""
    if len(outgoing) != 1:
        return link
    edge = outgoing[0]
    if edge.tag is not None or edge.target is None:
        return link
    following = links[edge.target]
    operator = fused(link.operator, following.operator)
    if operator is None:
        return link
    operator.setup(link.operator.context, following.operator.output)
    return Link(
        operator,
        link.members + following.members,
        link.mailbox,
        link.timers + following.timers,
        joined([link.worker, following.worker]),
    )


async def _run_queued_mail(mailbox: MailboxExecutor) -> None:
    """Run what an operator and those behind it have in the mailbox now.

    Deferrable mail is work that was begun: when it defers the rest once more, that is
    run too. Other mail that sends mail again is not followed: it need not have an end.
    """
    while True:
        # A fence: mail is taken in order, so all that was queued before has run by
        # then.
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        mailbox.execute(_complete, reached, description="end of queued mail")
        await mailbox.yield_until(reached, ignore_deferrable=True)
        if not mailbox.has_deferrable_mail():
            return


def _complete(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
