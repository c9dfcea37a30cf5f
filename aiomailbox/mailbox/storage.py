"""Where mail lies: the order rules of a mailbox, without locks or tasks.

Theory of operation: mail is put into ``queue``. Its owner moves it to ``batch``. Urgent
mail is a prefix of both; in the queue it lies newest first, and moving it one by one to
the head of the batch turns it into the order it was sent in. Which method is called
under which lock is the business of `TaskMailbox`.
"""

from __future__ import annotations

from collections import deque

from aiomailbox.mailbox.mail import Mail, MailOptions

__all__ = ["MailStorage"]


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

    __slots__ = ("batch", "queue", "urgent_queued")

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
