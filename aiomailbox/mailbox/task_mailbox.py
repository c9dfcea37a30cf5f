"""The mailbox of a task: put from anywhere, taken by its owner alone.

Theory of operation: mail arrives in a queue under a lock. The owner moves it to its
batch, which no other thread touches, so that one turn of the main loop runs a bounded
amount of mail. Urgent mail is pulled to the head of the batch before every take.
Priority filters what a take may see and never reorders. The order is Flink 2.3's to
the letter (`MailStorage`), that of `TaskMailbox.drain` included.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from aiomailbox.errors import (
    IllegalStateError,
    MailboxClosedError,
    WrongTaskError,
    WrongTypeError,
)
from aiomailbox.mailbox.mail import MIN_PRIORITY, Mail, MailOptions
from aiomailbox.typevars import ResultT

# The life of a mailbox: a table of states and the moves between them.


class MailboxState(enum.Enum):
    """The operations that a mailbox allows.

    Attributes:
        OPEN: Puts and takes.
        QUIESCED: Takes only: the mail inside stays takeable.
        CLOSED: Neither.

    Concept:
        Flink, ``TaskMailbox.State``.
    """

    OPEN = "open"
    QUIESCED = "quiesced"
    CLOSED = "closed"


_NEXT: Final = {
    MailboxState.OPEN: frozenset({MailboxState.QUIESCED, MailboxState.CLOSED}),
    MailboxState.QUIESCED: frozenset({MailboxState.CLOSED}),
    MailboxState.CLOSED: frozenset[MailboxState](),
}


class MailboxLifecycle:
    """The state of one mailbox, which only moves forward.

    Example:
        >>> life = MailboxLifecycle()
        >>> life.advance(MailboxState.QUIESCED), life.advance(MailboxState.OPEN)
        (True, False)
        >>> life.accepts_mail, life.gives_mail
        (False, True)
    """

    def __init__(self) -> None:
        self.state: MailboxState = MailboxState.OPEN

    def advance(self, target: MailboxState) -> bool:
        """Move to ``target`` if the table allows it; say whether it did."""
        if target not in _NEXT[self.state]:
            return False
        self.state = target
        return True

    @property
    def accepts_mail(self) -> bool:
        """Whether mail may be put."""
        return self.state is MailboxState.OPEN

    @property
    def gives_mail(self) -> bool:
        """Whether mail may be taken."""
        return self.state is not MailboxState.CLOSED


# Whose mailbox it is: the runner's, or that of a child it lent its token to.
#
# Theory of operation: three kinds of caller exist: the runner's own mail stack, other
# tasks and callbacks on the same loop, other threads. A thread id cannot tell the first
# two apart, so ownership is an asyncio task. While a nested mail runs in a child task
# the child is the holder; the runner waits for it and cannot act anyway.


def current_task_or_none() -> asyncio.Task[object] | None:
    """Return the running task; None in callbacks and outside of any loop."""
    # `asyncio.current_task()` alone raises where no loop runs, and threads ask this.
    loop = asyncio._get_running_loop()
    return None if loop is None else asyncio.current_task(loop)


class Ownership:
    """Which task may take, yield, suspend, quiesce and close.

    Unbound it belongs to its holder. The ownership of a task that has ended is
    void, so that its supervisor can clean up.
    """

    def __init__(self) -> None:
        self.holder: asyncio.Task[object] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None

    def bind(self, task: asyncio.Task[object]) -> None:
        """Give the ownership to ``task``.

        Raises:
            WrongTaskError: If another task that is still alive has it.
        """
        holder = self.holder
        if holder is not None and holder is not task and not holder.done():
            raise WrongTaskError("bind_owner", holder.get_name(), task.get_name())
        self.holder = task
        self.loop = task.get_loop()

    def is_held_here(self) -> bool:
        """Whether the caller is the holder (False while unbound)."""
        holder = self.holder
        return holder is not None and current_task_or_none() is holder

    def is_on_loop(self) -> bool:
        """Whether the caller runs on the holder's loop, as whichever task."""
        loop = asyncio._get_running_loop()
        return loop is not None and loop is self.loop

    def check(self, operation: str) -> None:
        """Raise unless the caller may do what belongs to the holder.

        Raises:
            WrongTaskError: If another, living task is the holder.
        """
        holder = self.holder
        if holder is None:
            return
        caller = current_task_or_none()
        if caller is holder or holder.done():
            return
        name = caller.get_name() if caller else threading.current_thread().name
        raise WrongTaskError(operation, holder.get_name(), name)

    def void(self) -> None:
        """Take the ownership from a task that does not end."""
        self.holder = None

    def lend_to_current(self) -> asyncio.Task[object] | None:
        """Make the running task the holder; return the one to hand back to."""
        previous = self.holder
        self.holder = current_task_or_none()
        return previous

    def hand_back(self, previous: asyncio.Task[object] | None) -> None:
        """Undo `lend_to_current`."""
        self.holder = previous


# How the owner of a mailbox sleeps and how new mail wakes it.
#
# Theory of operation: the owner decides under the mailbox's lock that there is nothing
# for it, and leaves a `Waiter` there before it releases the lock; a put appends and
# takes the waiter away under the same lock. So no mail can come unseen between
# the check and the sleep.


class Waiter:
    """One sleeping owner: what it waits for, and how to wake it from any thread."""

    __slots__ = ("_loop", "_thread", "future", "ignore_deferrable", "priority")

    def __init__(self, priority: int, *, ignore_deferrable: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.future: asyncio.Future[None] = self._loop.create_future()
        self.priority: int = priority
        self.ignore_deferrable: bool = ignore_deferrable

    def wants(self, mail: Mail) -> bool:
        """Whether this mail is a reason to wake."""
        priority = mail.declared_priority if self.ignore_deferrable else mail.priority
        return priority >= self.priority

    def wake(self, _done: object = None) -> bool:
        """Wake the owner; False if its loop is closed. A second wake does nothing."""
        if self._loop.is_closed():
            return False
        if threading.get_ident() == self._thread:
            self._complete()
            return True
        # Completed from here, the future would be seen only at the loop's next event.
        try:
            self._loop.call_soon_threadsafe(self._complete)
        except RuntimeError:
            # It has been closed since we looked.
            return False
        return True

    def _complete(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


# One look at a mailbox, for people and for metrics.


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

    def __str__(self) -> str:
        name = f"{self.name!r} " if self.name else ""
        parked = ", parked" if self.parked else ""
        return (
            f"{name}{self.state.value}: {self.queued} queued, "
            f"{self.batched} batched{parked}"
        )


# Where mail lies: the order rules of a mailbox, without locks or tasks.
#
# Theory of operation: mail is put into ``queue``. Its owner moves it to ``batch``.
# Urgent mail is a prefix of both; in the queue it lies newest first, and moving it one
# by one to the head of the batch turns it into the order it was sent in. Which method
# is called under which lock is the business of `TaskMailbox`.


class MailStorage:
    """Two deques with Flink's rule of how mail moves between them.

    Attributes:
        queue: Mail that any thread may put.
        batch: Mail that only the owner touches.
        urgent_queued: Whether the head of the queue is urgent.

    Invariants:
        ``urgent_queued == (bool(queue) and queue[0].urgent)``.

    Concept:
        Flink, ``TaskMailboxImpl``; verified against its recorded cases.

    Example:
        >>> from aiomailbox.mailbox.mail import MailOptions
        >>> storage = MailStorage()
        >>> storage.enqueue(Mail(print, description="a"))
        >>> storage.enqueue(Mail(print, description="U", options=MailOptions.URGENT))
        >>> storage.pull(everything=True)
        >>> [str(mail) for mail in storage.batch]
        ['U', 'a']
    """

    def __init__(self) -> None:
        self.queue: deque[Mail] = deque()
        self.batch: deque[Mail] = deque()
        self.urgent_queued: bool = False

    def enqueue(self, mail: Mail) -> None:
        """Put mail into the queue."""
        if mail.urgent:
            self.queue.appendleft(mail)
            self.urgent_queued = True
        else:
            self.queue.append(mail)

    @property
    def urgent_belongs_in_batch(self) -> bool:
        """Whether the owner's urgent mail skips the queue: no other urgent is near."""
        batch = self.batch
        return bool(batch) and not batch[0].urgent and not self.urgent_queued

    @property
    def has_urgent(self) -> bool:
        """Whether urgent mail is next, in the queue or in the batch."""
        batch = self.batch
        return self.urgent_queued or (bool(batch) and batch[0].urgent)

    def needs_pull(self, *, everything: bool) -> bool:
        """Whether `pull` would move anything."""
        batch = self.batch
        if batch:
            # A batch whose head is urgent is left alone: urgents stay in order.
            return self.urgent_queued and not batch[0].urgent
        return bool(self.queue) if everything else self.urgent_queued

    def pull(self, *, everything: bool) -> None:
        """Move urgent mail to the head of the batch, and maybe the rest to its tail."""
        queue, batch = self.queue, self.batch
        while queue and queue[0].urgent:
            batch.appendleft(queue.popleft())
        self.urgent_queued = False
        if everything:
            batch.extend(queue)
            queue.clear()

    def pop_batched(self, priority: int, *, ignore_deferrable: bool) -> Mail | None:
        """Remove the first eligible mail of the batch, or return None."""
        return _pop_first(self.batch, priority, ignore_deferrable)

    def pop_queued(self, priority: int, *, ignore_deferrable: bool) -> Mail | None:
        """Remove the first eligible mail of the queue, or return None."""
        queue = self.queue
        mail = _pop_first(queue, priority, ignore_deferrable)
        self.urgent_queued = bool(queue) and queue[0].urgent
        return mail

    def has_deferrable(self, priority: int) -> bool:
        """Whether there is deferrable mail of at least this declared priority."""
        return any(
            mail.options is MailOptions.DEFERRABLE
            and mail.declared_priority >= priority
            for mails in (self.batch, self.queue)
            for mail in mails
        )

    def clear(self) -> list[Mail]:
        """Remove and return everything, batch before queue, as stored."""
        mails = [*self.batch, *self.queue]
        self.batch.clear()
        self.queue.clear()
        self.urgent_queued = False
        return mails

    def discard(self, mail: Mail) -> None:
        """Remove mail from the queue if it is still there."""
        if mail in self.queue:
            self.queue.remove(mail)
            self.urgent_queued = bool(self.queue) and self.queue[0].urgent

    def __len__(self) -> int:
        return len(self.batch) + len(self.queue)


def _pop_first(
    mails: deque[Mail], priority: int, ignore_deferrable: bool
) -> Mail | None:
    # From the front: priority says which takes see mail, and never changes its order.
    for index, mail in enumerate(mails):
        own = mail.declared_priority if ignore_deferrable else mail.priority
        if own >= priority:
            del mails[index]
            return mail
    return None


class TaskMailbox:
    """An unbounded queue of mail with priorities, urgency and a private batch.

    ``put``, ``size``, ``run_exclusively`` and ``statistics`` may be called from any
    thread; everything else belongs to the owner once one is bound.

    Args:
        owner: The task that takes; None to bind it later (`bind_owner`).
        name: For people.

    Attributes:
        signal: True if there may be mail; a hot loop tests it before anything else.

    Invariants:
        ``signal`` is True whenever there is mail, and made so under the mailbox's
        lock; the owner alone turns it False.

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

    def __init__(
        self, owner: asyncio.Task[object] | None = None, *, name: str = ""
    ) -> None:
        self.name: str = name
        self.signal: bool = False
        self.ownership: Ownership = Ownership()
        self._lifecycle = MailboxLifecycle()
        # Reentrant: what runs exclusively may put.
        self._lock = threading.RLock()
        self._mails = MailStorage()
        self._waiter: Waiter | None = None
        # A wake without a sleeper; the next sleep returns at once.
        self._woken = False
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
            self.require_open("put")
            self._mails.enqueue(mail)
            self.signal = True
            waiter = self._waiter
            # A waiter for a higher priority sleeps on: waking it would only make it
            # look.
            if waiter is None or not waiter.wants(mail):
                return
            self._waiter = None
        # Without the lock, which the woken owner wants at once.
        if not waiter.wake():
            self._withdraw(mail, waiter)

    def try_take(self, priority: int = MIN_PRIORITY) -> Mail | None:
        """Take the first mail of at least ``priority``, or return None.

        Raises:
            MailboxClosedError: If the mailbox is closed.
            WrongTaskError: If the caller is not the owner.
        """
        return self._take_first(priority, ignore_deferrable=False)

    def try_take_ignoring_deferrable(self, priority: int) -> Mail | None:
        """Do as `try_take` by declared priority: deferrable mail is not hidden.

        For finishing operators, whose deferred work must not be lost.

        Raises:
            MailboxClosedError: If the mailbox is closed.
            WrongTaskError: If the caller is not the owner.
        """
        return self._take_first(priority, ignore_deferrable=True)

    async def take(self, priority: int = MIN_PRIORITY) -> Mail:
        """Take the first mail of at least ``priority``; waits for it.

        Raises:
            MailboxClosedError: If the mailbox is closed, or quiesced without such
                mail: none can come any more.
            WrongTaskError: If the caller is not the owner.
        """
        while (mail := self.try_take(priority)) is None:
            self.require_open("wait for more mail")
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
        waiter = Waiter(priority, ignore_deferrable=ignore_deferrable)
        if not self._park(waiter):
            return
        if until is not None:
            # The waiter's future is awaited and never `until` itself: cancelling this
            # task would cancel it for all other waiters.
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
            self._woken = waiter is None
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
        return bool(self._mails.batch)

    def try_take_from_batch(self) -> Mail | None:
        """Take the head of the batch whatever its priority, urgent arrivals first.

        Raises:
            MailboxClosedError: If the mailbox is closed.
            WrongTaskError: If the caller is not the owner.
        """
        self._require_giving("try_take_from_batch")
        self._pull(everything=False)
        batch = self._mails.batch
        if not batch:
            return None
        mail = batch.popleft()
        self._refresh_signal()
        return mail

    @property
    def has_mail(self) -> bool:
        """Whether there is mail of any kind; owner only.

        Raises:
            WrongTaskError: If the caller is not the owner.
        """
        self.ownership.check("has_mail")
        return len(self._mails) > 0

    @property
    def has_urgent_mail(self) -> bool:
        """Whether urgent mail waits; a hint."""
        return self._mails.has_urgent

    def has_deferrable_mail(self, priority: int) -> bool:
        """Whether deferrable mail of this declared priority or more waits; owner only."""
        self.ownership.check("has_deferrable_mail")
        with self._lock:
            return self._mails.has_deferrable(priority)

    @property
    def state(self) -> MailboxState:
        """Where the mailbox is in its life."""
        return self._lifecycle.state

    def size(self) -> int:
        """Return the number of mails; racy from other threads."""
        return len(self._mails)

    def drain(self) -> list[Mail]:
        """Remove and return all mail, batch before queue, as stored.

        Urgent mail is stored newest first in the queue: this is not the run order.

        Raises:
            WrongTaskError: If the caller is not the owner.
        """
        self.ownership.check("drain")
        with self._lock:
            self.signal = False
            return self._mails.clear()

    def quiesce(self) -> None:
        """Refuse new mail from now on; the mail inside stays takeable.

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
        # A sleeper in a yield sees the closed mailbox only if it wakes.
        self.wake()
        return dropped

    def run_exclusively(self, function: Callable[[], ResultT]) -> ResultT:
        """Run ``function`` while no other thread can put, quiesce or close.

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

    def statistics(self) -> MailboxStatistics:
        """Return the mailbox's state and lengths as they are now."""
        return MailboxStatistics(
            name=self.name,
            state=self._lifecycle.state,
            queued=len(self._mails.queue),
            batched=len(self._mails.batch),
            parked=self._waiter is not None,
        )

    def __repr__(self) -> str:
        return f"<TaskMailbox {self.statistics()}>"

    def _require_giving(self, operation: str) -> None:
        self.ownership.check(operation)
        if not self._lifecycle.gives_mail:
            raise MailboxClosedError("take", self._lifecycle.state.value)

    def _put_urgent_into_batch(self, mail: Mail) -> bool:
        mails = self._mails
        # Only the owner may touch the batch; current_task() is paid by urgent mail only.
        if not mails.urgent_belongs_in_batch or not self.ownership.is_held_here():
            return False
        self.require_open("put")
        mails.batch.appendleft(mail)
        return True

    def _take_first(self, priority: int, *, ignore_deferrable: bool) -> Mail | None:
        self._require_giving("try_take")
        self._pull(everything=False)
        mails = self._mails
        mail = mails.pop_batched(priority, ignore_deferrable=ignore_deferrable)
        # Looked at without the lock: what comes now is found by the next take, and before
        # the owner sleeps, `_park` looks under the lock.
        if mail is None and mails.queue:
            with self._lock:
                mail = mails.pop_queued(priority, ignore_deferrable=ignore_deferrable)
        if mail is not None:
            self._refresh_signal()
        return mail

    def _pull(self, *, everything: bool) -> None:
        if self._mails.needs_pull(everything=everything):
            with self._lock:
                self._mails.pull(everything=everything)

    def _refresh_signal(self) -> None:
        if not self._mails.batch:
            # A put between the look and the assignment would be lost without the lock.
            with self._lock:
                self.signal = bool(self._mails.queue)

    def _park(self, waiter: Waiter) -> bool:
        mails = self._mails
        with self._lock:
            if self._woken:
                self._woken = False
                return False
            if any(map(waiter.wants, mails.batch)) or any(
                map(waiter.wants, mails.queue)
            ):
                return False
            # Only the innermost frame can wait, so one place is enough.
            assert self._waiter is None, "two frames wait for mail at once"
            self._waiter = waiter
        return True

    def _unpark(self, waiter: Waiter) -> None:
        with self._lock:
            if self._waiter is waiter:
                self._waiter = None

    def _withdraw(self, mail: Mail, waiter: Waiter) -> None:
        with self._lock:
            self._mails.discard(mail)
            # It sleeps for ever: the next put is to be refused as well.
            self._waiter = waiter
        raise MailboxClosedError("put", "left behind: the owner's event loop is closed")
