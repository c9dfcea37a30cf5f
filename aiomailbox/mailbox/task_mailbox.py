"""The mailbox of a task: put from anywhere, taken by its owner alone.

Theory of operation: mail arrives in ``queue`` under a lock. The owner moves it to
``batch``, which no other thread touches, so that one turn of the main loop runs a
bounded amount of mail. Urgent mail is pulled to the head of the batch before every
take. Priority filters what a take may see and never reorders. This is Flink 2.3's
rule to the letter, drain order included; see docs/flink-map.md#mailbox.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from aiomailbox.errors import IllegalStateError, MailboxClosedError, WrongTypeError
from aiomailbox.mailbox.lifecycle import MailboxLifecycle, MailboxState
from aiomailbox.mailbox.mail import MIN_PRIORITY, Mail
from aiomailbox.mailbox.ownership import Ownership, current_task_or_none
from aiomailbox.mailbox.parking import Waiter

__all__ = ["MailboxStatistics", "TaskMailbox"]

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class MailboxStatistics:
    """One look at a mailbox; racy when taken from another thread.

    Attributes:
        name: The mailbox's name.
        state: Where it is in its life.
        queued: Mails that the owner has not moved to its batch.
        batched: Mails in the owner's batch.
        parked: Whether the owner sleeps until mail comes.
    """

    name: str
    state: MailboxState
    queued: int
    batched: int
    parked: bool


class TaskMailbox:
    """An unbounded queue of mail with priorities, urgency and a private batch.

    ``put``, ``size``, ``run_exclusively`` and ``statistics`` may be called from any
    thread; everything else belongs to the owner once one is bound.

    Args:
        owner: The task that takes; None to bind it later (`bind_owner`).
        name: For people.

    Attributes:
        signal: True if there may be mail: what a hot loop tests before anything else.

    Invariants:
        ``signal`` is True whenever the queue or the batch holds mail. Urgent mail is a
        prefix of the queue, newest first, and a prefix of the batch.

    Concept:
        Flink, ``TaskMailboxImpl``.

    Example:
        >>> mailbox = TaskMailbox(name="demo")
        >>> mailbox.put(Mail(print, "low", priority=0, description="low"))
        >>> mailbox.put(Mail(print, "high", priority=7, description="high"))
        >>> mailbox.try_take(5)
        <Mail 'high' priority=7 default>
        >>> mailbox
        <TaskMailbox 'demo' open: 1 queued, 0 batched>
    """

    __slots__ = (
        "_batch",
        "_lifecycle",
        "_lock",
        "_queue",
        "_urgent_queued",
        "_waiter",
        "name",
        "ownership",
        "signal",
    )

    def __init__(
        self, owner: asyncio.Task[object] | None = None, *, name: str = ""
    ) -> None:
        self.name = name
        self.signal = False
        self.ownership = Ownership()
        self._lifecycle = MailboxLifecycle()
        # Reentrant: what runs exclusively may put.
        self._lock = threading.RLock()
        self._queue: deque[Mail] = deque()
        self._batch: deque[Mail] = deque()
        # Invariant: it is whether the head of the queue is urgent.
        self._urgent_queued = False
        self._waiter: Waiter | None = None
        if owner is not None:
            self.ownership.bind(owner)

    def bind_owner(self, task: asyncio.Task[object] | None = None) -> None:
        """Make ``task`` (default: the running one) the owner; again is a no-op.

        Raises:
            WrongTaskError: If a task that is still alive owns the mailbox.
            IllegalStateError: If no task was given and none is running.
        """
        task = task or current_task_or_none()
        if task is None:
            raise IllegalStateError("bind_owner() needs a task: none is running here")
        self.ownership.bind(task)

    def put(self, mail: Mail) -> None:
        """Add mail, from anywhere; wakes the owner if it sleeps and may see it.

        Raises:
            MailboxClosedError: If the mailbox is quiesced or closed, or the owner's
                loop is.
        """
        if mail.urgent and self._put_urgent_into_batch(mail):
            return
        with self._lock:
            self._require_accepting()
            if mail.urgent:
                self._queue.appendleft(mail)
                self._urgent_queued = True
            else:
                self._queue.append(mail)
            self.signal = True
            waiter = self._waiter
            if waiter is None or not waiter.wants(mail):
                return
            self._waiter = None
        if not waiter.wake():
            self._withdraw(mail)

    def try_take(self, priority: int = MIN_PRIORITY) -> Mail | None:
        """Take the first mail of at least ``priority``, or return None.

        Raises:
            MailboxClosedError: If the mailbox is closed.
            WrongTaskError: If the caller is not the owner.
        """
        return self._take_first("take", priority, ignore_deferrable=False)

    def try_take_ignoring_deferrable(self, priority: int) -> Mail | None:
        """Do as `try_take` by declared priority: deferrable mail is not hidden.

        For finishing operators, whose deferred work must not be lost.

        Raises:
            MailboxClosedError: If the mailbox is closed.
            WrongTaskError: If the caller is not the owner.
        """
        return self._take_first("take", priority, ignore_deferrable=True)

    async def take(self, priority: int = MIN_PRIORITY) -> Mail:
        """Take the first mail of at least ``priority``; waits for it.

        Raises:
            MailboxClosedError: If the mailbox is closed, or quiesced without such
                mail: none can come any more.
            WrongTaskError: If the caller is not the owner.
        """
        while (mail := self.try_take(priority)) is None:
            self.require_more("take")
            await self.wait_for_mail(priority)
        return mail

    async def wait_for_mail(
        self,
        priority: int = MIN_PRIORITY,
        *,
        ignore_deferrable: bool = False,
        until: asyncio.Future[object] | None = None,
    ) -> None:
        """Suspend until a take at ``priority`` may find mail; the caller looks again.

        Ends early, as a hint, at `wake` and when ``until`` is done. Takes nothing, so
        cancelling it loses nothing.

        Raises:
            WrongTaskError: If the caller is not the owner.
        """
        self.ownership.check("wait_for_mail")
        waiter = self._park(priority, ignore_deferrable=ignore_deferrable)
        if waiter is None:
            return
        if until is not None:
            until.add_done_callback(waiter.wake)
        try:
            await waiter.future
        finally:
            if until is not None:
                until.remove_done_callback(waiter.wake)
            self._unpark(waiter)

    def wake(self) -> None:
        """Wake the owner if it sleeps, so that it looks around; from anywhere."""
        with self._lock:
            waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.wake()

    def create_batch(self) -> bool:
        """Move what is queued to the batch if the batch is used up; has it mail now?

        A batch that is left over grows only when urgent mail has come, and then takes
        everything.

        Raises:
            WrongTaskError: If the caller is not the owner.
        """
        self.ownership.check("create_batch")
        self._pull(everything=True)
        return bool(self._batch)

    def try_take_from_batch(self) -> Mail | None:
        """Take the head of the batch whatever its priority, urgent arrivals first.

        Raises:
            MailboxClosedError: If the mailbox is closed.
            WrongTaskError: If the caller is not the owner.
        """
        self._require_giving("take", "try_take_from_batch")
        self._pull(everything=False)
        if not self._batch:
            return None
        mail = self._batch.popleft()
        self._refresh_signal()
        return mail

    @property
    def has_mail(self) -> bool:
        """Whether there is mail of any kind; owner only.

        Raises:
            WrongTaskError: If the caller is not the owner.
        """
        self.ownership.check("has_mail")
        return bool(self._batch) or bool(self._queue)

    @property
    def has_urgent_mail(self) -> bool:
        """Whether urgent mail waits; a hint."""
        batch = self._batch
        return self._urgent_queued or (bool(batch) and batch[0].urgent)

    @property
    def state(self) -> MailboxState:
        """Where the mailbox is in its life."""
        return self._lifecycle.state

    def size(self) -> int:
        """Return the number of mails; racy from other threads."""
        return len(self._queue) + len(self._batch)

    def drain(self) -> list[Mail]:
        """Remove and return all mail, batch before queue, as stored.

        Urgent mail is stored newest first in the queue: this is not the run order.

        Raises:
            WrongTaskError: If the caller is not the owner.
        """
        self.ownership.check("drain")
        with self._lock:
            mails = [*self._batch, *self._queue]
            self._batch.clear()
            self._queue.clear()
            self._urgent_queued = False
            self.signal = False
        return mails

    def quiesce(self) -> None:
        """Refuse new mail from now on; what is inside stays takeable.

        Raises:
            WrongTaskError: If the caller is not the owner.
        """
        self.ownership.check("quiesce")
        with self._lock:
            self._lifecycle.advance(MailboxState.QUIESCED)

    def close(self) -> list[Mail]:
        """Refuse everything from now on and return what was dropped.

        Returns:
            The mails that will not run, once; an empty list from the second call on.

        Raises:
            WrongTaskError: If the caller is not the owner.
        """
        self.ownership.check("close")
        with self._lock:
            dropped = self.drain()
            self._lifecycle.advance(MailboxState.CLOSED)
        self.wake()
        return dropped

    def run_exclusively(self, function: Callable[[], ResultT]) -> ResultT:
        """Run ``function`` while nobody else can put, quiesce or close.

        Makes "look at the state, then put" atomic, and several puts contiguous.

        Raises:
            WrongTypeError: If ``function`` returns something to await: a lock must not
                be held across an await.
        """
        with self._lock:
            result = function()
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise WrongTypeError(
                "function",
                "it returned something to await, under the mailbox's lock",
                "Pass a plain function; put a coroutine mail from inside it instead.",
            )
        return result

    @property
    def is_open(self) -> bool:
        """Whether mail may be put."""
        return self._lifecycle.accepts_mail

    def require_open(self, operation: str) -> None:
        """Raise unless mail may be put.

        Raises:
            MailboxClosedError: If the mailbox is quiesced or closed.
        """
        if not self._lifecycle.accepts_mail:
            raise MailboxClosedError(operation, self._lifecycle.state.value)

    def require_more(self, operation: str) -> None:
        """Raise if no mail can come any more, so that waiting for it would never end.

        Raises:
            MailboxClosedError: If the mailbox is quiesced or closed.
        """
        if not self._lifecycle.accepts_mail:
            state = f"{self._lifecycle.state.value}, and no such mail is inside"
            raise MailboxClosedError(operation, state)

    def statistics(self) -> MailboxStatistics:
        """Return one look at the mailbox."""
        return MailboxStatistics(
            name=self.name,
            state=self._lifecycle.state,
            queued=len(self._queue),
            batched=len(self._batch),
            parked=self._waiter is not None,
        )

    def __repr__(self) -> str:
        look = self.statistics()
        name = f" {look.name!r}" if look.name else ""
        parked = ", parked" if look.parked else ""
        return (
            f"<TaskMailbox{name} {look.state.value}: {look.queued} queued, "
            f"{look.batched} batched{parked}>"
        )

    def _require_accepting(self) -> None:
        if not self._lifecycle.accepts_mail:
            raise MailboxClosedError("put", self._lifecycle.state.value)

    def _require_giving(self, verb: str, operation: str) -> None:
        self.ownership.check(operation)
        if not self._lifecycle.gives_mail:
            raise MailboxClosedError(verb, self._lifecycle.state.value)

    def _put_urgent_into_batch(self, mail: Mail) -> bool:
        # Only the owner may touch the batch; current_task() is paid by urgent mail only.
        batch = self._batch
        if not batch or not self.ownership.is_held_here():
            return False
        if batch[0].urgent or self._urgent_queued:
            return False
        self._require_accepting()
        batch.appendleft(mail)
        self.signal = True
        return True

    def _take_first(
        self, verb: str, priority: int, *, ignore_deferrable: bool
    ) -> Mail | None:
        self._require_giving(verb, "try_take")
        self._pull(everything=False)
        mail = _pop_first(self._batch, priority, ignore_deferrable)
        if mail is None and self._queue:
            with self._lock:
                queue = self._queue
                mail = _pop_first(queue, priority, ignore_deferrable)
                self._urgent_queued = bool(queue) and queue[0].urgent
        if mail is not None:
            self._refresh_signal()
        return mail

    def _pull(self, *, everything: bool) -> None:
        batch = self._batch
        if batch:
            # A batch whose head is urgent is left alone: urgents stay in order.
            if batch[0].urgent or not self._urgent_queued:
                return
        elif not (self._queue if everything else self._urgent_queued):
            return
        with self._lock:
            queue = self._queue
            # The queue holds urgents newest first: one by one to the head turns them.
            while queue and queue[0].urgent:
                batch.appendleft(queue.popleft())
            self._urgent_queued = False
            if everything:
                batch.extend(queue)
                queue.clear()

    def _refresh_signal(self) -> None:
        if not self._batch:
            with self._lock:
                self.signal = bool(self._queue)

    def _park(self, priority: int, *, ignore_deferrable: bool) -> Waiter | None:
        waiter = Waiter(priority, ignore_deferrable=ignore_deferrable)
        with self._lock:
            if any(map(waiter.wants, self._batch)) or any(
                map(waiter.wants, self._queue)
            ):
                return None
            # Only the innermost frame can wait, so one place is enough.
            assert self._waiter is None, "two frames wait for mail at once"
            self._waiter = waiter
        return waiter

    def _unpark(self, waiter: Waiter) -> None:
        with self._lock:
            if self._waiter is waiter:
                self._waiter = None

    def _withdraw(self, mail: Mail) -> None:
        with self._lock:
            if mail in self._queue:
                self._queue.remove(mail)
        raise MailboxClosedError("put", "left behind: the owner's event loop is closed")


def _pop_first(
    mails: deque[Mail], priority: int, ignore_deferrable: bool
) -> Mail | None:
    for index, mail in enumerate(mails):
        own = mail.declared_priority if ignore_deferrable else mail.priority
        if own >= priority:
            del mails[index]
            return mail
    return None
