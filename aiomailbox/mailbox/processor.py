"""The processor of a task: its mailbox, its default action and the loop over both."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from inspect import isawaitable
from typing import Any, Final, Self, overload

from aiomailbox.clock import Clock
from aiomailbox.errors import (
    IllegalStateError,
    InvalidArgumentError,
    MailboxClosedError,
    MailFailedError,
)
from aiomailbox.mailbox.budget import LoopClock, SliceBudget
from aiomailbox.mailbox.control import (
    ActionGate,
    LoopControl,
    MailboxController,
    MailboxDefaultAction,
    attach_later_error,
)
from aiomailbox.mailbox.executor import YIELD_DEPTH_MAX, MailboxExecutor, MailYielder
from aiomailbox.mailbox.mail import MIN_PRIORITY, Mail, MailFuture
from aiomailbox.mailbox.metrics import MailboxMetrics
from aiomailbox.mailbox.task_mailbox import TaskMailbox
from aiomailbox.supervision import outlast
from aiomailbox.typevars import ResultT

# The turns of a mailbox loop: mail first, else one step of the default action.
#
# Theory of operation: per turn the loop tests one bool, runs what mail there was when
# it looked, and then does one step of the default action, so that mail which sends
# itself again cannot starve the input. While the default action is suspended the loop
# runs mail one by one and sleeps in between. Nothing else is tested: every change of a
# flag comes with a mail. After a slice of about a millisecond the loop lets the event
# loop run. An action whose turns all took next to no time, without mail, has nothing to
# do and does not say so: it rests for some milliseconds, or until mail comes.


_REST_MIN_S: Final = 0.001
_REST_MAX_S: Final = 0.008


class MailboxLoop:
    """Runs the mail and the default action of one processor, in the running task."""

    def __init__(
        self,
        name: str,
        action: MailboxDefaultAction,
        gate: ActionGate,
        control: LoopControl,
        metrics: MailboxMetrics,
        budget: SliceBudget,
        *,
        action_rests: bool,
    ) -> None:
        self._action_rests = action_rests
        self._rest_s = _REST_MIN_S
        self._name = name
        self._action = action
        self._gate = gate
        self._control = control
        self._metrics = metrics
        self._budget = budget
        self._mailbox = gate.mailbox
        self._controller = MailboxController(gate, control)

    async def surfacing(self, work: Coroutine[object, object, ResultT]) -> ResultT:
        """Await ``work``, and raise the failure that came first, bare.

        Raises:
            MailFailedError: If something was awaited that others cancelled.
        """
        control = self._control
        try:
            result = await work
        except asyncio.CancelledError as error:
            # asyncio raises the same for a cancel of this task and for something
            # awaited that others cancelled. The second one is a failure, and must not
            # look like a clean end.
            if control.is_cancelling():
                raise
            raise control.first_failure(MailFailedError(self._name, error)) from error
        except Exception as error:
            first = control.first_failure(error)
            if first is error:
                raise
            # What was raised since is a consequence of it.
            raise first from None
        # The code around a yield swallowed it; it fails the task all the same.
        if control.failure is not None:
            raise control.failure
        return result

    async def run(self) -> None:
        """Run mail and the default action until asked to leave.

        Raises:
            MailFailedError: If the default action raised ``StopIteration``.
        """
        box, control, gate, budget = (
            self._mailbox,
            self._control,
            self._gate,
            self._budget,
        )
        action, controller = self._action, self._controller
        turns, mails = 0, self._metrics.mails_processed
        await budget.begin()
        try:
            while not control.leave:
                # Flags are not tested: a change of one comes with mail, which sets the
                # signal.
                if box.signal or gate.suspension is not None:
                    await self._process_mail()
                    if control.leave:
                        break
                turns += 1
                pending = action(controller)
                if pending is not None and isawaitable(pending):
                    await pending
                # Reading the clock may cost more than a short turn does.
                elif turns < budget.stride:
                    continue
                # Also after each await, which may have taken any time.
                if budget.is_over(turns):
                    seen, mails = mails, self._metrics.mails_processed
                    if self._action_rests and seen == mails:
                        await self._rest_or_yield()
                    else:
                        await budget.yield_to_loop()
                turns = 0
        # Python would make a RuntimeError of it, which says neither what nor where.
        except StopIteration as error:
            raise MailFailedError(f"default action of {self._name}", error) from error
        finally:
            budget.pause()

    async def _rest_or_yield(self) -> None:
        if not self._budget.is_spent_on_nothing:
            self._rest_s = _REST_MIN_S
            await self._budget.yield_to_loop()
            return
        loop = asyncio.get_running_loop()
        over: asyncio.Future[object] = loop.create_future()
        timer = loop.call_later(self._rest_s, over.cancel)
        self._budget.pause()
        try:
            await self._mailbox.wait_for_mail(MIN_PRIORITY, until=over)
        finally:
            timer.cancel()
        self._rest_s = min(2 * self._rest_s, _REST_MAX_S)
        await self._budget.begin()

    async def _process_mail(self) -> None:
        box, control, gate = self._mailbox, self._control, self._gate
        if box.create_batch():
            # Once around the whole batch, for each pause reads the clock twice.
            paused = gate.pause_timer()
            while not control.leave:
                mail = box.try_take_from_batch()
                if mail is None:
                    break
                await self._run_mail_and_yield(mail)
            gate.continue_timer(paused)
        # One by one, not as a batch: any mail may resume the action.
        while gate.suspension is not None and not control.leave:
            mail = box.try_take(MIN_PRIORITY)
            if mail is None:
                self._budget.pause()
                await box.wait_for_mail(MIN_PRIORITY)
                # What was slept is no part of a slice.
                await self._budget.begin()
                continue
            paused = gate.pause_timer()
            await self._run_mail_and_yield(mail)
            gate.continue_timer(paused)

    async def _run_mail_and_yield(self, mail: Mail) -> None:
        await self.run_mail(mail)
        if self._budget.is_over():
            await self._budget.yield_to_loop()

    async def run_mail(self, mail: Mail) -> None:
        """Run one mail to its end."""
        self._metrics.mails_processed += 1
        pending = mail.run()
        if pending is not None:
            await self._finish(mail, pending)
        self._metrics.on_mail_run(last=self._control.leave)

    async def _finish(self, mail: Mail, pending: Awaitable[object]) -> None:
        # A stack: a mail that yields runs others inside of its own await.
        self._control.suspended_mails.append(mail)
        try:
            await pending
        except asyncio.CancelledError as error:
            if self._control.is_cancelling():
                raise
            raise MailFailedError(mail.description, error) from error
        finally:
            self._control.suspended_mails.pop()

    async def step(self) -> bool:
        """Run one mail, or else one default action; say whether there was one."""
        if await self._run_one_mail():
            return True
        return await self._run_action()

    async def single_turn(self) -> bool:
        """Run at most one mail and one default action; say whether to go on."""
        await self._run_one_mail()
        await self._run_action()
        return not self._control.leave

    async def _run_one_mail(self) -> bool:
        if not self._control.may_run or not self._mailbox.create_batch():
            return False
        mail = self._mailbox.try_take_from_batch()
        assert mail is not None, "create_batch said there was mail"
        paused = self._gate.pause_timer()
        await self.run_mail(mail)
        self._gate.continue_timer(paused)
        return True

    async def _run_action(self) -> bool:
        if self._control.leave or self._gate.suspension is not None:
            return False
        pending = self._action(self._controller)
        if pending is not None and isawaitable(pending):
            await pending
        return True


class MailboxProcessor:
    """Runs a mailbox and a default action in one asyncio task.

    Made anywhere; belongs to the task that first runs it. No event loop is touched
    before that. ``async with`` runs it in its own task. At the end of the block it runs
    the mail that was sent, closes the mailbox, and raises the error that made the loop
    fail. If the block fails, it cancels the running mail and runs no other.

    A loop that has ended for good (completed, failed or cancelled) closes its mailbox,
    and whoever waits for submitted mail that was not run gets `MailboxClosedError`. It
    does so in the next turn of the event loop but one: who wants to run the rest calls
    `prepare_close` before, and then `drain` and `close`.

    Args:
        default_action: One short step of work; see `MailboxDefaultAction`. None for an
            actor, which only runs mail.
        mailbox: The mailbox to run; None for a new one.
        name: For people.
        clock: For the slice, latencies and idle times; None for the event loop's.
        slice_ms: How long the loop may keep the event loop, in milliseconds.
        max_yield_depth: How deep mails may yield to mails.
        is_managed: Whether the caller closes the mailbox, however the loop ends, and the
            action always suspends itself when it has nothing to do.

    Raises:
        InvalidArgumentError: If ``slice_ms`` or ``max_yield_depth`` is not positive.

    Attributes:
        mailbox: The mailbox.
        metrics: The measurements of the loop.
        main_executor: Sends mail of `MIN_PRIORITY`, which only the main loop sees.

    Concept:
        Flink, ``MailboxProcessor``.

    Example:
        >>> import asyncio
        >>> from aiomailbox.mailbox import MailboxController
        >>> steps = []
        >>> def action(controller: MailboxController) -> None:
        ...     steps.append("step")
        ...     if len(steps) == 2:
        ...         controller.all_actions_completed()
        >>> asyncio.run(MailboxProcessor(action).run_mailbox_loop())
        >>> steps
        ['step', 'step']
        >>> async def add() -> int:
        ...     async with MailboxProcessor() as mailbox:
        ...         return await mailbox.submit(lambda: 2 + 3)
        >>> asyncio.run(add())
        5
    """

    def __init__(
        self,
        default_action: MailboxDefaultAction | None = None,
        *,
        mailbox: TaskMailbox | None = None,
        name: str = "task",
        clock: Clock | None = None,
        slice_ms: float = 1.0,
        max_yield_depth: int = YIELD_DEPTH_MAX,
        is_managed: bool = False,
    ) -> None:
        _check_positive("slice_ms", slice_ms)
        _check_positive("max_yield_depth", max_yield_depth)
        found_clock = LoopClock() if clock is None else clock
        self.name: str = name
        self.mailbox: TaskMailbox = (
            TaskMailbox(name=name) if mailbox is None else mailbox
        )
        self.metrics: MailboxMetrics = MailboxMetrics(self.mailbox, found_clock)
        self._budget = SliceBudget(found_clock, slice_ms, self.metrics.ran.add)
        self._control = LoopControl(self.mailbox)
        self._gate = ActionGate(self.mailbox)
        self._loop = MailboxLoop(
            name,
            _idle if default_action is None else default_action,
            self._gate,
            self._control,
            self.metrics,
            self._budget,
            action_rests=not is_managed,
        )
        self._is_managed = is_managed
        self._runner: asyncio.Task[None] | None = None
        self._closing: asyncio.Handle | None = None
        self._yielder = MailYielder(
            self._gate,
            self._control,
            self.metrics,
            self._budget,
            depth_max=max_yield_depth,
        )
        self.main_executor: MailboxExecutor = self.executor(MIN_PRIORITY)

    async def run_mailbox_loop(self) -> None:
        """Run until suspended or completed; again continues where it was suspended.

        Raises:
            MailboxClosedError: If the mailbox is not open.
            WrongTaskError: If another task runs this processor.
            MailFailedError: If a mail or the action awaited what others cancelled.
        """
        self._begin("run the mailbox loop")
        try:
            await self._loop.surfacing(self._loop.run())
        except BaseException as error:
            self._close_soon(error)
            raise
        if not self.is_running:
            self._close_soon(None)

    async def run_mailbox_step(self) -> bool:
        """Run one mail, or else one default action; waits for nothing.

        For tests: it does not show what a batch does.

        Returns:
            Whether there was something to run.
        """
        self._begin("run a mailbox step")
        return await self._loop.surfacing(self._loop.step())

    async def run_single_mailbox_loop(self) -> bool:
        """Run at most one mail, then one default action if it is available.

        For tests: it does not show what a batch does.

        Returns:
            Whether the loop could go on.
        """
        self._begin("run a single mailbox loop")
        return await self._loop.surfacing(self._loop.single_turn())

    def suspend(self) -> None:
        """End the current run of the loop; from anywhere, any number of times."""
        self._control.suspend()

    def all_actions_completed(self) -> None:
        """End the loop permanently; from anywhere, any number of times."""
        self._control.all_actions_completed()

    def cancel(self) -> None:
        """End the loop permanently and make yields raise `StopTask`; from anywhere.

        It does not interrupt code that awaits something else: cancel the asyncio task
        for that, after this.
        """
        self._control.cancel()

    def report_throwable(self, error: BaseException) -> None:
        """Make the loop raise ``error``; from anywhere.

        Dropped with a log entry if the mailbox takes no more mail.
        """
        self._control.report_throwable(error)

    async def drain(self) -> None:
        """Run the mail that is inside now; mail sent meanwhile stays there.

        Raises whatever a mail raises; the mails behind it are cancelled then.
        """
        mails = self.mailbox.drain()
        for index, mail in enumerate(mails):
            try:
                await self._loop.surfacing(self._loop.run_mail(mail))
            except BaseException as error:
                failure = _cancel_all(mails[index + 1 :])
                if failure is not None:
                    attach_later_error(error, failure)
                raise

    def prepare_close(self) -> None:
        """Refuse new mail from now on."""
        self.mailbox.quiesce()

    def close(self) -> None:
        """Close the mailbox and cancel what was left in it; again is a no-op.

        Raises the first error of a cancellation, the later ones as notes.
        """
        self.metrics.stop()
        failure = _cancel_all(self.mailbox.close())
        if failure is not None:
            raise failure

    async def __aenter__(self) -> Self:
        if self._runner is not None:
            raise IllegalStateError(
                "the mailbox was entered before: make a new MailboxProcessor"
            )
        loop = asyncio.get_running_loop()
        self._runner = loop.create_task(self._run_and_close(), name=self.name)
        return self

    async def __aexit__(
        self, kind: object, error: BaseException | None, _: object
    ) -> None:
        runner = self._runner
        assert runner is not None, "the block was entered"
        if error is None:
            self.all_actions_completed()
        else:
            self.cancel()
            runner.cancel()
        await outlast(runner, lambda: _cancel(runner))
        failure = None if runner.cancelled() else runner.exception()
        if failure is None:
            return
        # The second one is what the block saw of the failure.
        if error is None or isinstance(error, MailboxClosedError):
            raise failure
        attach_later_error(error, failure)

    @overload
    def submit(
        self, function: Callable[..., Awaitable[ResultT]], *args: object
    ) -> MailFuture[ResultT]: ...
    @overload
    def submit(
        self, function: Callable[..., ResultT], *args: object
    ) -> MailFuture[ResultT]: ...
    def submit(self, function: Callable[..., object], *args: object) -> Any:
        """Send work and return the future of its result; see `MailboxExecutor.submit`.

        Raises:
            RejectedMailError: If the mailbox takes no more mail.
        """
        return self.main_executor.submit(function, *args)

    def execute(self, function: Callable[..., object], *args: object) -> None:
        """Send work whose failure fails the loop; see `MailboxExecutor.execute`.

        Raises:
            RejectedMailError: If the mailbox takes no more mail.
        """
        self.main_executor.execute(function, *args)

    def executor(self, priority: int) -> MailboxExecutor:
        """Return an executor whose mail has ``priority``.

        Raises:
            InvalidArgumentError: If the priority is out of range.
        """
        return MailboxExecutor(self._yielder, priority)

    def set_up_latency_measurement(self, interval_ms: float = 1000.0) -> None:
        """Measure how long mail waits, from the first mail on.

        Raises:
            IllegalStateError: If it was set up before.
        """
        self.metrics.set_up_latency(interval_ms)

    @property
    def is_default_action_available(self) -> bool:
        """Whether the default action is not suspended."""
        return self._gate.suspension is None

    @property
    def waits_for_turn(self) -> bool:
        """Whether it could work, and others have the event loop."""
        return self._budget.is_queued

    @property
    def has_loop(self) -> bool:
        """Whether it works now, so that the event loop runs its work."""
        return self._budget.is_running

    @property
    def is_running(self) -> bool:
        """Whether the loop has been neither completed nor cancelled."""
        return self._control.may_run

    @property
    def suspended_mails(self) -> tuple[Mail, ...]:
        """The mails that await something now, outermost first; they block the rest."""
        return tuple(self._control.suspended_mails)

    @property
    def children(self) -> list[asyncio.Task[BaseException | None]]:
        """The asyncio tasks that run mail of yields now, outermost first."""
        return list(self._yielder.children)

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._control.cancelled

    def __repr__(self) -> str:
        action = "available" if self.is_default_action_available else "suspended"
        state = "running" if self.is_running else "completed"
        return f"<MailboxProcessor {self.name!r} {state}, action {action}, {self.mailbox!r}>"

    async def _run_and_close(self) -> None:
        try:
            await self.run_mailbox_loop()
            self.prepare_close()
            await self.drain()
        except BaseException as error:
            self._control.ended_by = error
            raise
        finally:
            self.close()

    def _close_soon(self, error: BaseException | None) -> None:
        """Close the mailbox after its loop has ended, unless its task does more with it."""
        if self._is_managed:
            return
        self._control.ended_by = error
        self._close_in(2)

    def _close_in(self, turns: int) -> None:
        # In the first turn those wake that await its task, and may do more with it.
        if turns:
            loop = asyncio.get_running_loop()
            self._closing = loop.call_soon(self._close_in, turns - 1)
        elif self.mailbox.is_open:
            # Its task may live on, and do something else.
            self.mailbox.ownership.void()
            self.close()

    def _begin(self, operation: str) -> None:
        self.mailbox.bind_owner()
        self.mailbox.require_open(operation)
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None
        control = self._control
        # A failure that an earlier run did not surface: this one ends before its first
        # step and raises it.
        control.leave = not control.may_run or control.failure is not None
        self.metrics.start()
        self._budget.restart()


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


def _idle(controller: MailboxController) -> None:
    controller.suspend_default_action()


def _check_positive(parameter: str, value: float) -> None:
    if value <= 0:
        raise InvalidArgumentError(parameter, f"{value} is not positive", "Use > 0.")


def _cancel_all(mails: list[Mail]) -> BaseException | None:
    """Cancel every mail; return the first error, with the later ones as notes."""
    first: BaseException | None = None
    for mail in mails:
        try:
            mail.cancel()
        except BaseException as error:  # noqa: BLE001 -- every mail is attempted
            first = error if first is None else attach_later_error(first, error)
    return first
