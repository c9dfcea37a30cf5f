"""A task mailbox beside a naive model: any sequence of operations, the same answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from aiomailbox.errors import MailboxClosedError
from aiomailbox.mailbox.mail import MIN_PRIORITY, Mail, MailOptions
from aiomailbox.mailbox.task_mailbox import MailboxState, TaskMailbox

T = TypeVar("T")
priorities = st.integers(MIN_PRIORITY, 3)


class NaiveMailbox:
    """Lists instead of deques, no hints, no locks: the recorded rule and nothing else."""

    def __init__(self) -> None:
        self.batch: list[Mail] = []
        self.queue: list[Mail] = []

    def put(self, mail: Mail, *, by_owner: bool) -> None:
        if mail.options is not MailOptions.URGENT:
            self.queue = [*self.queue, mail]
        elif by_owner and self._ordinary(self.batch) and not self._urgent(self.queue):
            self.batch = [mail, *self.batch]
        else:
            self.queue = [mail, *self.queue]

    def pull(self) -> None:
        if self._urgent(self.batch):
            return
        while self._urgent(self.queue):
            self.batch = [self.queue[0], *self.batch]
            self.queue = self.queue[1:]

    def create_batch(self) -> bool:
        moves_all = not self.batch or (
            self._ordinary(self.batch) and self._urgent(self.queue)
        )
        if moves_all:
            self.pull()
            self.batch, self.queue = self.batch + self.queue, []
        return bool(self.batch)

    def take(self, wanted: Callable[[Mail], bool]) -> Mail | None:
        self.pull()
        for place in (self.batch, self.queue):
            for mail in place:
                if wanted(mail):
                    place.remove(mail)
                    return mail
        return None

    def take_from_batch(self) -> Mail | None:
        self.pull()
        return self.batch.pop(0) if self.batch else None

    def drain(self) -> list[Mail]:
        mails = self.batch + self.queue
        self.batch, self.queue = [], []
        return mails

    @staticmethod
    def _urgent(mails: list[Mail]) -> bool:
        return bool(mails) and mails[0].options is MailOptions.URGENT

    @staticmethod
    def _ordinary(mails: list[Mail]) -> bool:
        return bool(mails) and mails[0].options is not MailOptions.URGENT


class MailboxBesideModel(RuleBasedStateMachine):
    """Every rule does the same to both and compares what they say."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.real = TaskMailbox()
        self.model = NaiveMailbox()
        self.state = MailboxState.OPEN
        self.count = 0

    def teardown(self) -> None:
        self.loop.close()

    def as_owner(self, doing: Callable[[], T]) -> T:
        async def own() -> T:
            self.real.bind_owner()
            return doing()

        return self.loop.run_until_complete(own())

    @rule(
        priority=priorities,
        options=st.sampled_from(MailOptions),
        by_owner=st.booleans(),
    )
    def put(self, priority: int, options: MailOptions, by_owner: bool) -> None:
        self.count += 1
        mail = Mail(
            int, priority=priority, options=options, description=f"m{self.count}"
        )
        put = lambda: self.real.put(mail)  # noqa: E731
        try:
            self.as_owner(put) if by_owner else put()
            accepted = True
        except MailboxClosedError:
            accepted = False
        assert accepted is (self.state is MailboxState.OPEN)
        if accepted:
            self.model.put(mail, by_owner=by_owner)

    @precondition(lambda self: self.state is not MailboxState.CLOSED)
    @rule(priority=priorities)
    def try_take(self, priority: int) -> None:
        real = self.as_owner(lambda: self.real.try_take(priority))
        assert real is self.model.take(lambda mail: mail.priority >= priority)

    @precondition(lambda self: self.state is not MailboxState.CLOSED)
    @rule(priority=priorities)
    def try_take_ignoring_deferrable(self, priority: int) -> None:
        real = self.as_owner(lambda: self.real.try_take_ignoring_deferrable(priority))
        assert real is self.model.take(lambda mail: mail.declared_priority >= priority)

    @precondition(lambda self: self.state is not MailboxState.CLOSED)
    @rule()
    def try_take_from_batch(self) -> None:
        assert (
            self.as_owner(self.real.try_take_from_batch) is self.model.take_from_batch()
        )

    @rule()
    def create_batch(self) -> None:
        assert self.as_owner(self.real.create_batch) == self.model.create_batch()

    @rule()
    def drain(self) -> None:
        assert self.as_owner(self.real.drain) == self.model.drain()

    @precondition(lambda self: self.count > 8)
    @rule()
    def quiesce(self) -> None:
        self.as_owner(self.real.quiesce)
        if self.state is MailboxState.OPEN:
            self.state = MailboxState.QUIESCED

    @precondition(lambda self: self.count > 12)
    @rule()
    def close(self) -> None:
        assert self.as_owner(self.real.close) == self.model.drain()
        self.state = MailboxState.CLOSED

    @invariant()
    def both_hold_the_same(self) -> None:
        held = len(self.model.batch) + len(self.model.queue)
        assert self.real.size() == held
        assert self.real.signal is (held > 0)
        assert self.real.state is self.state
        look = self.real.statistics()
        assert (look.batched, look.queued) == (
            len(self.model.batch),
            len(self.model.queue),
        )
        assert self.real.has_urgent_mail is any(
            self.model._urgent(place) for place in (self.model.batch, self.model.queue)
        )


TestMailboxBesideModel = MailboxBesideModel.TestCase
TestMailboxBesideModel.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
