"""One attempt of one subtask: a chain of operators on a mailbox, in one asyncio task.

Theory of operation: one asyncio task, the runner, restores, runs the mailbox loop with
`_process_input` as its default action, finishes and cleans up. `run` only waits for it,
and cannot be torn away from that. "Interrupt" means cancelling the runner: from the first
`cancel` until clean-up begins, again and again. If its time is up before it has ended,
`run` closes what is left without it. Whatever happens, each thing is closed exactly once
and the task reaches a terminal state.

Concept:
    Flink, ``StreamTask``.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from functools import partial
from traceback import StackSummary
from types import FrameType
from typing import Any, Final

from aiomailbox.availability import Availability
from aiomailbox.errors import (
    AioMailboxError,
    CancelTimeoutError,
    IllegalStateError,
    MailFailedError,
    RejectedMailError,
    StopTask,
    UserFunctionError,
    add_note,
    named_operator,
    safe_repr,
)
from aiomailbox.exchange.core.contract import decode_in_flight
from aiomailbox.exchange.writer import RecordWriter
from aiomailbox.ids import SubtaskId
from aiomailbox.mailbox.control import MailboxController
from aiomailbox.mailbox.mail import MAX_PRIORITY
from aiomailbox.mailbox.metrics import PeriodMeter
from aiomailbox.mailbox.processor import MailboxProcessor
from aiomailbox.metrics.catalogue import MetricValue
from aiomailbox.operators.core.failures import ends_program, is_foreign, owner_of
from aiomailbox.operators.core.operator import Pending, finished
from aiomailbox.operators.core.user_code import users_line
from aiomailbox.operators.sources.operator import SourceOperator
from aiomailbox.operators.sources.source import InputStatus
from aiomailbox.records.events import (
    MAX_TIMESTAMP,
    StopMode,
    Watermark,
)
from aiomailbox.supervision import Closing, SupervisedTask, frames_of
from aiomailbox.task.backlog import Backlog
from aiomailbox.task.chain import HelperTasks, Link, OperatorChain
from aiomailbox.task.checkpoints import PreparedResults, TaskCheckpoints
from aiomailbox.task.environment import TaskEnvironment, TaskPlan
from aiomailbox.task.in_flight import TaskSnapshot
from aiomailbox.task.messages import (
    AddSplits,
    CheckpointAborted,
    CheckpointComplete,
    Command,
    DataEnded,
    SplitRequest,
    StopSource,
    TaskRunning,
    TriggerCheckpoint,
)
from aiomailbox.task.outputs import all_of
from aiomailbox.task.processing_time import SystemProcessingTimeService
from aiomailbox.task.processors import TaskInput, create_input
from aiomailbox.task.task_metrics import buffer_metrics, latency_metrics, time_metrics

# The error that ended a task, with notes about those that came after it.


def first_of(
    first: BaseException | None, later: BaseException | None, occasion: str
) -> BaseException | None:
    """Return the first error, with a note about the later one.

    Example:
        >>> error = first_of(ValueError("a"), KeyError("b"), "closing failed too")
        >>> error, error.__notes__
        (ValueError('a'), ["closing failed too: KeyError('b')"])
    """
    if first is None or later is None or later is first:
        return later if first is None else first
    add_note(first, f"{occasion}: {safe_repr(later)}")
    return first


# The life of a task, as a table.
class TaskState(Enum):
    """Where a task is in its life.

    Concept:
        Flink, ``ExecutionState`` and the phases of ``StreamTask``.
    """

    CREATED = "created"
    RESTORING = "restoring"
    RUNNING = "running"
    FINISHING = "finishing"
    CANCELLING = "cancelling"
    FINISHED = "finished"
    CANCELED = "canceled"
    FAILED = "failed"


_NEXT: Final[dict[TaskState, frozenset[TaskState]]] = {
    TaskState.CREATED: frozenset(
        {TaskState.RESTORING, TaskState.CANCELLING, TaskState.FAILED}
    ),
    TaskState.RESTORING: frozenset(
        {TaskState.RUNNING, TaskState.CANCELLING, TaskState.FAILED}
    ),
    TaskState.RUNNING: frozenset(
        {TaskState.FINISHING, TaskState.CANCELLING, TaskState.FAILED}
    ),
    TaskState.FINISHING: frozenset(
        {TaskState.FINISHED, TaskState.CANCELLING, TaskState.FAILED}
    ),
    TaskState.CANCELLING: frozenset({TaskState.CANCELED, TaskState.FAILED}),
    TaskState.FINISHED: frozenset(),
    TaskState.CANCELED: frozenset(),
    TaskState.FAILED: frozenset(),
}

ENDED_TASKS: Final = frozenset(
    state for state, following in _NEXT.items() if not following
)


class TaskLifecycle:
    """The state of one attempt of a task; it only moves along the table.

    Example:
        >>> life = TaskLifecycle()
        >>> life.advance(TaskState.RESTORING)
        >>> life.state.value, life.is_terminal
        ('restoring', False)
    """

    def __init__(self) -> None:
        self.state: TaskState = TaskState.CREATED

    @property
    def is_terminal(self) -> bool:
        """Whether the life is over."""
        return not _NEXT[self.state]

    @property
    def is_cancelling(self) -> bool:
        """Whether the end was asked for."""
        return self.state in {TaskState.CANCELLING, TaskState.CANCELED}

    def can_advance(self, target: TaskState) -> bool:
        """Say whether ``target`` may follow the present state."""
        return target in _NEXT[self.state]

    def advance(self, target: TaskState) -> None:
        """Move on to ``target``.

        Raises:
            IllegalStateError: If ``target`` cannot follow the present state.
        """
        if target not in _NEXT[self.state]:
            message = f"a task that is {self.state.value} cannot become {target.value}"
            raise IllegalStateError(message)
        self.state = target


# Which operator, and which line of the user's code, a task stands in or failed in.
_Stack = list[tuple[FrameType, int]]


def place_of(frames: Iterable[FrameType], otherwise: str) -> str:
    """Return the operator and the user's line where suspended code stands."""
    stack = _lines_of(frames)
    if not stack:
        return ""
    links = [frame.f_locals.get("link") for frame, _ in stack]
    contexts = [link.operator.context for link in links if isinstance(link, Link)]
    owner = owner_of(frame for frame, _ in stack)
    if owner is not None:
        otherwise = named_operator(owner.operator, owner.uid)
    elif contexts:
        otherwise = named_operator(contexts[-1].operator_name, contexts[-1].uid)
    line = _line(stack) or (owner.line if owner is not None else "")
    return f"in {otherwise} at {line}" if line else f"in {otherwise}"


def places_of(tasks: Iterable[asyncio.Task[Any]], otherwise: str) -> str:
    """Return where suspended asyncio tasks stand; see `place_of`.

    One that only waits, on no line of the user's, is left out if another one is there.
    """
    stacks = [frames for task in tasks if (frames := frames_of(task))]
    own = [stack for stack in stacks if _line(_lines_of(stack))]
    return "; ".join(place_of(stack, otherwise) for stack in own or stacks)


def failure_of(error: BaseException, what: str) -> BaseException:
    """Return the failure that an error is which ended something; never raises.

    It names operator and line where they can be found, and is no cancellation: the
    caller knows that the end was not asked for.
    """
    if isinstance(error, asyncio.CancelledError) and error.__cause__ is not None:
        # A hook of the user's, which is named there.
        return error.__cause__
    is_alien = is_foreign(error) or _is_exit(error)
    failure = MailFailedError(what, error) if is_alien else error
    if failure is not error:
        failure.__cause__ = error
    try:
        failure = name_place(failure)
    except BaseException as fault:  # noqa: BLE001 -- the error itself must not be lost
        add_note(failure, f"its place was not found: {safe_repr(fault)}")
    if isinstance(failure, asyncio.CancelledError):
        failure = MailFailedError(what, error)
        failure.__cause__ = error
    return failure


def name_place(error: BaseException) -> BaseException:
    """Return an error that names the operator and the line that raised it.

    One that does so already, or that no operator raised, is returned as it is. What the
    interpreter means by something else than an error, such as the cancellation of what
    was awaited, becomes a `UserFunctionError`; others get a note.
    """
    cause: BaseException = error
    if isinstance(error, MailFailedError) and error.__cause__ is not None:
        cause = error.__cause__
    stack = list(traceback.walk_tb(cause.__traceback__))
    owner = owner_of(frame for frame, _ in stack)
    if owner is None:
        return error
    if isinstance(error, UserFunctionError):
        if error.operator == owner.operator:
            error.location = error.location or owner.line
        return error
    # If nothing of the user's ran: the call that made the operator.
    line = _line(stack) or owner.line
    if cause is error and (isinstance(error, Exception) or ends_program(error)):
        where = f" at {line}" if line else ""
        add_note(error, f"in {named_operator(owner.operator, owner.uid)}{where}")
        if isinstance(error, AioMailboxError):
            if error.operator is None:
                error.operator, error.uid = owner.operator, owner.uid
            found: Any = error
            if where and error.operator == owner.operator:
                found.location = getattr(error, "location", None) or line
        return error
    named = UserFunctionError(owner.operator, owner.uid, line, cause)
    named.__cause__ = cause
    return named


def _is_exit(error: BaseException) -> bool:
    return isinstance(error, SystemExit) and not ends_program(error)


def _lines_of(frames: Iterable[FrameType]) -> _Stack:
    return [(frame, frame.f_lineno) for frame in frames]


def _line(stack: _Stack) -> str:
    return users_line(StackSummary.extract(stack))


class StreamTask:
    """A task: made anywhere, run once by `run` in an asyncio task of its own.

    Args:
        environment: What the job gives the task.
        plan: The operators, gates and writers. The task owns the gates and writers
            from now on and closes them.
        restored: What its operators resume from; None for a beginning.

    Attributes:
        environment: What the job gave the task.
        subtask: Which one it is.
        lifecycle: Where the task is in its life.
        processor: Its mailbox loop; `processor.main_executor` sends it mail.
        chain: Its operators, once `run` has built them.
    """

    def __init__(
        self,
        environment: TaskEnvironment,
        plan: TaskPlan,
        restored: TaskSnapshot | None = None,
    ) -> None:
        self._prepared = PreparedResults()
        self._hand_over = environment.prepared
        # The task keeps what its sinks prepare until a checkpoint has committed it.
        if environment.checkpointing is not None:
            environment = replace(environment, prepared=self._prepared.add)
        self.environment = environment
        task_id = environment.task_id
        self.subtask: SubtaskId = SubtaskId(task_id.vertex, task_id.subtask_index)
        self.plan = plan
        self.lifecycle: TaskLifecycle = TaskLifecycle()
        self.processor: MailboxProcessor = MailboxProcessor(
            self._process_input,
            name=environment.task_name,
            clock=environment.job.clock,
            is_managed=True,
        )
        if environment.settings.latency_interval_ms is not None:
            self.processor.set_up_latency_measurement(
                environment.settings.latency_interval_ms
            )
        self.chain: OperatorChain | None = None
        self._restored = restored
        self._timers = SystemProcessingTimeService(environment.job.clock)
        self._output = all_of([writer.availability for writer in plan.writers])
        self._backlog = all_of([])
        self._goes_on = self._output
        self._helpers = HelperTasks(self.fail, environment.settings.cancel_timeout_s)
        self._input: TaskInput | None = None
        self._checkpoints: TaskCheckpoints | None = None
        self._runner: SupervisedTask | None = None
        self._interruptible = False
        self._interrupted = False
        self._failure: BaseException | None = None
        self._error: BaseException | None = None
        self._closing = Closing(self._steps_of_closing())

    @property
    def name(self) -> str:
        """The task's name."""
        return self.environment.task_name

    @property
    def runner(self) -> asyncio.Task[None] | None:
        """The asyncio task that runs this task, once it runs."""
        return None if self._runner is None else self._runner.task

    def metrics(self) -> dict[str, MetricValue]:
        """Return the task's own metrics as they are now; docs/concepts/backpressure.md."""
        return {
            "state": self.lifecycle.state.value,
            "mails": self.processor.metrics.mails_processed,
            "mailbox_queue_size": self.processor.mailbox.size(),
            **latency_metrics(self.processor.metrics),
            **time_metrics(self.processor.metrics),
            **buffer_metrics(self.plan),
        }

    async def run(self) -> None:
        """Run the task to its end and clean up.

        Once the task is asked to end, both take no longer than its ``cancel_timeout_s``
        and a moment, whatever the user's code does with its cancellation.

        Raises whatever made the task fail. Returns normally when it finished, and when
        it was cancelled by `cancel` or by `StopTask`. Cancelling the caller cancels the
        task; the CancelledError is raised after the clean-up.
        """
        interrupt: BaseException | None = None
        self._runner = SupervisedTask(
            self._run(),
            name=self.name,
            timeout_s=self.environment.settings.cancel_timeout_s,
            on_late=self._on_late,
        )
        self._interruptible = True
        try:
            self._runner.start()
            # Cancelling the waiter cancels the task, and waits on until it is closed.
            await self._runner.outlast(self.cancel)
        except asyncio.CancelledError as error:
            interrupt = error
        except BaseException as error:  # noqa: BLE001 -- raised when all is closed
            self._closing.errors.append(error)
        await self._close_rest(self._runner)
        self._end(interrupt)

    def release(self) -> None:
        """End a task that never ran."""
        self._begin_cancelling()
        self._end(None)

    def cancel(self) -> None:
        """Ask the task to end; from its loop, at any time, any number of times."""
        if self._begin_cancelling():
            self._interrupt()

    def fail(self, error: BaseException) -> None:
        """End the task with an error that happened outside its mailbox.

        Concept:
            Flink, ``Environment.failExternally``.
        """
        self._failure = first_of(self._failure, error, "later")
        self._interrupt()

    def tell(self, command: Command) -> None:
        """Send the task a command as mail; one that has ended takes none."""
        # Above everything: a task that yields in the middle of a record hears what
        # became of a checkpoint, too.
        is_urgent = isinstance(command, CheckpointComplete | CheckpointAborted)
        executor = (
            self.processor.executor(MAX_PRIORITY)
            if is_urgent
            else self.processor.main_executor
        )
        with suppress(RejectedMailError):
            executor.execute(self._obey, command, description=command.description)

    def _obey(self, command: Command) -> Pending:
        assert self.chain is not None, "mail runs after restore"
        head, checkpoints = self.chain.head, self._checkpoints
        match command:
            case AddSplits(splits=splits):
                assert isinstance(head, SourceOperator), "only a source gets splits"
                if splits:
                    head.add_splits(splits)
                if command.no_more:
                    head.notify_no_more_splits()
                return None
            case StopSource(mode=mode):
                if isinstance(head, SourceOperator):
                    head.stop(mode)
                return None
            case _:
                pass
        assert checkpoints is not None, "the job takes checkpoints"
        assert self._input is not None, "mail runs after restore"
        match command:
            case TriggerCheckpoint(barrier=barrier):
                recovered = self._input.is_recovered
                if recovered.available:
                    return checkpoints.trigger(barrier)
                # The barrier stands for channels, and what they had in flight comes
                # first.
                recovered.on_available(partial(self.tell, command))
                return None
            case CheckpointComplete(checkpoint_id=checkpoint_id):
                # Where an operator does something about it, it is asked at the next one.
                self.processor.main_executor.disregard()
                return checkpoints.notify_complete(checkpoint_id)
            case CheckpointAborted(checkpoint_id=checkpoint_id):
                return checkpoints.notify_aborted(
                    checkpoint_id, command.latest_completed_id
                )

    def snapshot(self) -> TaskSnapshot:
        """Return the state of all operators; call it as mail of this task."""
        assert self.chain is not None, "the task has not been restored"
        assert self._input is not None, "the task has not been restored"
        times = self._input.event_times()
        inputs = {self.chain.head_id: times} if times else {}
        return TaskSnapshot(self.chain.snapshot(), inputs)

    @property
    def unchanged_id(self) -> int:
        """The complete checkpoint that has its state as it is now, -1 for none.

        There is one only if it has done nothing since, has nothing to do, and no operator
        wants to be asked.
        """
        chain, checkpoints = self.chain, self._checkpoints
        if (
            self.lifecycle.state is TaskState.RUNNING
            and chain is not None
            and checkpoints is not None
            and self.processor.main_executor.is_idle()
            and not chain.acts_at_checkpoints
        ):
            return checkpoints.unchanged_id
        return -1

    def _steps(self) -> int:
        """Return how much it has done: whatever may change its state is a step."""
        assert self._input is not None, "the task has not been restored"
        return self._input.steps + self.processor.metrics.steps

    def _begin_cancelling(self) -> bool:
        if not self.lifecycle.can_advance(TaskState.CANCELLING):
            return False
        self.lifecycle.advance(TaskState.CANCELLING)
        return True

    def _interrupt(self) -> None:
        """End the loop, and whatever the runner awaits."""
        # The mailbox first: what the interrupt tears out of an await must not find a
        # mailbox to yield to.
        self.processor.cancel()
        if self._interruptible and self._runner is not None:
            self._interrupted = True
            self._runner.interrupt()

    async def _run(self) -> None:
        runner = self._runner
        assert runner is not None, "the runner is started by run()"
        error: BaseException | None = None
        try:
            if self.lifecycle.is_cancelling:
                pass
            elif self._restored is not None and self._restored.is_finished:
                self._pass_by()
            else:
                await self._restore()
                await self._invoke()
            if runner.task is not None and runner.task.cancelling():
                # By code of its own, in the last slice: `calm` would take it for ours.
                await asyncio.sleep(0)
        except StopTask as stop:
            if self._failure is None:
                self._begin_cancelling()
            error = stop
        except BaseException as caught:
            # After GeneratorExit a coroutine may not await anything more.
            if runner.is_given_up:
                raise
            error = caught
        # Whatever the clean-up raises comes after this.
        self._error = self._cause_of_end(error)
        # From here on there are no interrupts: clean-up must not be torn.
        self._interruptible = False
        await runner.calm()
        runner.limit()
        await self._closing.run(runner)

    def _check_cancelled(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self.lifecycle.is_cancelling:
            raise StopTask(f"task {self.name!r} was cancelled")

    def _pass_by(self) -> None:
        """End at once: all was done before the checkpoint that the job resumes from.

        Concept:
            Flink, ``FinishedOperatorChain``.
        """
        self.lifecycle.advance(TaskState.RESTORING)
        self.lifecycle.advance(TaskState.RUNNING)
        for writer in self.plan.writers:
            writer.emit_control(Watermark(MAX_TIMESTAMP))
            writer.notify_end_of_data(StopMode.DRAIN)
        self.lifecycle.advance(TaskState.FINISHING)
        self._flush()

    async def _restore(self) -> None:
        self.lifecycle.advance(TaskState.RESTORING)
        self.chain = OperatorChain(
            self.plan,
            self.environment,
            self.processor,
            self._timers,
            self._helpers,
            self.fail,
        )
        if self.chain.head.takes_input_always:
            self._output = Availability(available=True)
        self.processor.mailbox.bind_owner()
        if self._restored is not None:
            await self.chain.restore(self._restored.operators)
        self._checkpoints = self._new_checkpoints(self.chain)
        backlogs = self.chain.backlogs
        self._backlog = all_of([one.availability for one in backlogs])
        self._input = create_input(
            self.chain.head,
            self.chain.head_input,
            self.plan.gates,
            self.environment,
            self.chain.room(),
            self._checkpoints,
            self.chain.slices,
            partial(_records_in, backlogs) if backlogs else None,
        )
        if self._restored is not None:
            self._input.restore(self._restored.inputs.get(self.chain.head_id, ()))
            self._restore_in_flight(self._input, self._restored.channel_state)
        head = self.chain.head
        if isinstance(head, SourceOperator):
            head.request_split = partial(
                self.environment.report, SplitRequest(self.subtask)
            )
        await self.chain.open()
        accepts = self.chain.accepts()
        if accepts and not self.chain.head.takes_input_always:
            self._output = all_of([self._output, *accepts])
        self._goes_on = all_of(
            [self._backlog, self._output] if backlogs else [self._output]
        )
        # Functions may take long to open, and the job may have been cancelled meanwhile.
        self._check_cancelled()
        self.lifecycle.advance(TaskState.RUNNING)
        await self.chain.resume()
        # After the watermarks: an idle stream takes none.
        await finished(self._input.repeat_status())
        self._input.start()
        self.environment.report(TaskRunning(self.subtask))

    def _restore_in_flight(
        self, task_input: TaskInput, state: Mapping[str, tuple[bytes, ...]]
    ) -> None:
        channels = self.plan.channels
        if not state:
            return
        assert channels is not None, "a task that has state of channels can read it"
        task_input.restore_in_flight(
            [
                [
                    decode_in_flight(channels.codec, state.get(name, ()))
                    for name in names
                ]
                for names in channels.inputs
            ]
        )

    async def _invoke(self) -> None:
        latency = self.processor.metrics.latency
        if latency is not None and not latency.started:
            # It is wanted of a task without mail, too.
            latency.start()
        await self.processor.run_mailbox_loop()
        self._check_cancelled()
        await self._after_invoke()

    def _process_input(self, controller: MailboxController) -> Awaitable[None] | None:
        """Process one slice of input: the default action of the mailbox loop."""
        source = self._input
        assert source is not None, "the loop runs after restore"
        status = source.emit_next()
        pending = source.pending
        if pending is not None:
            source.pending = None
            return self._continue_after(pending, status, controller)
        if status is InputStatus.MORE_AVAILABLE and self._goes_on.available:
            return None
        return self._on_status(status, controller)

    async def _continue_after(
        self,
        pending: Awaitable[None],
        status: InputStatus,
        controller: MailboxController,
    ) -> None:
        await pending
        await finished(self._on_status(status, controller))

    def _on_status(
        self, status: InputStatus, controller: MailboxController
    ) -> Awaitable[None] | None:
        match status:
            case InputStatus.MORE_AVAILABLE:
                # Where there is room again by now nothing is suspended: a third
                # outcome, "look again", which Flink lacked once (FLINK-29397).
                self._wait_for_room(controller)
            case InputStatus.NOTHING_AVAILABLE:
                if not self._wait_for_room(controller):
                    self._wait_for_input(controller)
            case InputStatus.STOPPED:
                return self._end_data(StopMode.NO_DRAIN)
            case InputStatus.END_OF_DATA:
                return self._end_data(StopMode.DRAIN)
            case InputStatus.END_OF_INPUT:
                controller.suspend_default_action()
                self.processor.suspend()
            case InputStatus.END_OF_RECOVERY:
                raise AssertionError("recovery ended outside restore")
        return None

    def _wait_for_room(self, controller: MailboxController) -> bool:
        """Suspend the default action until more input can be taken; say whether."""
        if not self._backlog.available:
            # Neither idle nor backpressured: mail works it off.
            self._goes_on.on_available(controller.suspend_default_action().resume)
            return True
        if self._output.available:
            return False
        self._suspend(controller, self._output, self.processor.metrics.backpressured)
        return True

    def _wait_for_input(self, controller: MailboxController) -> None:
        """Suspend the default action until there is input."""
        source = self._input
        assert source is not None, "the loop runs after restore"
        if not source.availability.available:
            # There is time now: half-full buffers need not wait for the flush timer.
            self._flush()
            # Flushing may have made a consumer on this loop give input back.
            if not source.availability.available:
                self._suspend(
                    controller, source.availability, self.processor.metrics.idle
                )

    def _suspend(
        self, controller: MailboxController, until: Availability, timer: PeriodMeter
    ) -> None:
        suspension = controller.suspend_default_action(timer)
        until.on_available(suspension.resume)

    def _flush(self) -> None:
        for writer in self.plan.writers:
            writer.flush_all()

    async def _end_data(self, mode: StopMode) -> None:
        source, chain = self._input, self.chain
        assert source is not None, "the loop runs after restore"
        assert chain is not None, "the loop runs after restore"
        if mode is StopMode.DRAIN:
            # First: windows and timers fire while operators can still emit.
            await finished(source.end_of_event_time())
        await chain.finish(mode)
        for writer in self.plan.writers:
            writer.notify_end_of_data(mode)
        if self._checkpoints is not None:
            self._checkpoints.end_data(is_finished=mode is StopMode.DRAIN)
        self.environment.report(DataEnded(self.subtask))

    async def _after_invoke(self) -> None:
        """Run the remaining mail, stop timers, then the mailbox, then the operators."""
        self.lifecycle.advance(TaskState.FINISHING)
        if self._checkpoints is None:
            self.processor.all_actions_completed()
        else:
            self._checkpoints.when_may_end(self.processor.all_actions_completed)
        await self.processor.run_mailbox_loop()
        self._check_cancelled()
        # Timers before the mailbox: one that fires into a quiesced mailbox is refused,
        # for no visible reason (FLINK-23558).
        self._timers.quiesce()
        self.processor.prepare_close()
        await self.processor.drain()
        self._flush()
        for writer in self.plan.writers:
            await writer.settle()
        for operator_id, committables in self._prepared.take_rest().items():
            self._hand_over(operator_id, committables)

    def _new_checkpoints(self, chain: OperatorChain) -> TaskCheckpoints | None:
        settings = self.environment.checkpointing
        if settings is None:
            return None
        return TaskCheckpoints(
            settings,
            self.environment,
            self.plan,
            chain,
            self.snapshot,
            self._steps,
            self._prepared,
            self.processor.main_executor,
            self._spawn,
        )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> Callable[[], object]:
        return self._helpers.spawn(work, name=f"{self.name}/snapshot").cancel

    def _cause_of_end(self, error: BaseException | None) -> BaseException | None:
        """Say what really ended the task, given what surfaced."""
        ended = isinstance(error, asyncio.CancelledError | StopTask)
        if error is None or (
            ended and (self._interrupted or self.lifecycle.is_cancelling)
        ):
            return None
        if isinstance(error, asyncio.CancelledError) and not is_foreign(error):
            # Its own code's, or the loop goes down: that is known at the end.
            return error
        return failure_of(error, self.name)

    def _steps_of_closing(self) -> Iterator[Callable[[], Pending]]:
        # In the order in which things may still be called: timers call operators,
        # operators use helpers and mail.
        yield self._timers.shutdown
        if self._checkpoints is not None:
            yield self._checkpoints.close
        if self._input is not None:
            yield self._input.close
        if self.chain is not None:
            yield from self.chain.closing()
        yield self._helpers.close
        # What follows needs no time.
        yield self.processor.close
        if self.chain is not None:
            yield from self.chain.releasing()
        for gate in self.plan.gates:
            yield gate.close

    def _on_late(self, runner: asyncio.Task[Any]) -> None:
        what = "ending cancelled" if self._interruptible else "cleaning up"
        self._interruptible = False
        tasks: list[asyncio.Task[Any]] = [
            runner,
            *self.processor.children,
            *self._helpers.running,
        ]
        operators = " or ".join(
            named_operator(one.name, one.uid) for one in self.plan.operators
        )
        places = places_of(tasks, operators)
        timeout_s = self.environment.settings.cancel_timeout_s
        self._closing.errors.append(
            CancelTimeoutError(f"{what} task {self.name!r}", timeout_s, places)
        )

    async def _close_rest(self, runner: SupervisedTask) -> None:
        """Close what the runner left open: it had no time, or was ended by others."""
        self._interruptible = False
        if runner.is_given_up:
            self.processor.mailbox.ownership.void()
        if runner.is_late:
            self._helpers.end_by_force()
        await self._closing.run_late(self.name)

    def _end(self, interrupt: BaseException | None) -> None:
        """Reach a terminal state, and raise what there is to raise."""
        error = first_of(self._failure, self._error, "later")
        for later in [*self._closing.errors, self._failure]:
            error = first_of(error, later, "cleaning up failed too")
        if isinstance(error, SystemExit) or (
            interrupt is None and isinstance(error, asyncio.CancelledError)
        ):
            # Of a coroutine beside the mailbox; or it was not asked for.
            error = failure_of(error, self.name)
        for writer in self.plan.writers:
            try:
                self._end_output(writer, error)
            except BaseException as caught:  # noqa: BLE001 -- raised below
                error = first_of(error, caught, "cleaning up failed too")
        if error is not None:
            self.lifecycle.advance(TaskState.FAILED)
            raise error
        self.lifecycle.advance(
            TaskState.CANCELED if self.lifecycle.is_cancelling else TaskState.FINISHED
        )
        if interrupt is not None:
            raise interrupt

    def _end_output(self, writer: RecordWriter, error: BaseException | None) -> None:
        writer.close()
        if error is None and not self.lifecycle.is_cancelling:
            writer.finish()
        else:
            writer.partition.release(error)


def _records_in(backlogs: Sequence[Backlog]) -> int:
    return sum(backlog.records for backlog in backlogs)
