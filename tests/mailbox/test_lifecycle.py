"""The life of a mailbox: every state with every operation."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from aiomailbox.errors import MailboxClosedError
from aiomailbox.mailbox.mail import Mail
from aiomailbox.mailbox.task_mailbox import MailboxLifecycle, MailboxState, TaskMailbox

OPEN, QUIESCED, CLOSED = MailboxState.OPEN, MailboxState.QUIESCED, MailboxState.CLOSED

ALLOWED = {(OPEN, QUIESCED), (OPEN, CLOSED), (QUIESCED, CLOSED)}


def in_state(state: MailboxState) -> TaskMailbox:
    mailbox = TaskMailbox()
    if state is not OPEN:
        mailbox.quiesce()
    if state is CLOSED:
        mailbox.close()
    return mailbox


@pytest.mark.parametrize(("source", "target"), list(product(MailboxState, repeat=2)))
def test_a_state_only_moves_forward(source: MailboxState, target: MailboxState) -> None:
    life = MailboxLifecycle()
    life.state = source
    moved = life.advance(target)
    assert moved is ((source, target) in ALLOWED)
    assert life.state is (target if moved else source)


# What each operation does in each state: the refused ones, else nothing is raised.
REFUSED = {
    ("put", QUIESCED),
    ("put", CLOSED),
    ("try_take", CLOSED),
    ("try_take_ignoring_deferrable", CLOSED),
    ("try_take_from_batch", CLOSED),
    ("require_open", QUIESCED),
    ("require_open", CLOSED),
}
OPERATIONS: dict[str, Callable[[TaskMailbox], object]] = {
    "put": lambda box: box.put(Mail(int)),
    "try_take": lambda box: box.try_take(),
    "try_take_ignoring_deferrable": lambda box: box.try_take_ignoring_deferrable(0),
    "try_take_from_batch": lambda box: box.try_take_from_batch(),
    "require_open": lambda box: box.require_open("run"),
    "create_batch": lambda box: box.create_batch(),
    "has_mail": lambda box: box.has_mail,
    "size": lambda box: box.size(),
    "drain": lambda box: box.drain(),
    "run_exclusively": lambda box: box.run_exclusively(int),
    "statistics": lambda box: box.statistics(),
    "repr": repr,
    "wake": lambda box: box.wake(),
}


@pytest.mark.parametrize(
    ("operation", "state"), list(product(OPERATIONS, MailboxState))
)
def test_each_state_allows_what_it_says(operation: str, state: MailboxState) -> None:
    mailbox = in_state(state)
    if (operation, state) in REFUSED:
        with pytest.raises(MailboxClosedError, match=state.value):
            OPERATIONS[operation](mailbox)
        assert mailbox.size() == 0
    else:
        OPERATIONS[operation](mailbox)
    assert mailbox.state is state


@pytest.mark.parametrize("state", list(MailboxState))
def test_quiesce_never_reopens(state: MailboxState) -> None:
    mailbox = in_state(state)
    mailbox.quiesce()
    assert mailbox.state is (CLOSED if state is CLOSED else QUIESCED)


@pytest.mark.parametrize("state", list(MailboxState))
def test_close_gives_what_was_dropped_once(state: MailboxState) -> None:
    mailbox = TaskMailbox()
    mail = Mail(int)
    mailbox.put(mail)
    if state is not OPEN:
        mailbox.quiesce()
    if state is CLOSED:
        assert mailbox.close() == [mail]
    expected = [] if state is CLOSED else [mail]
    assert mailbox.close() == expected
    assert mailbox.close() == []
    assert mailbox.state is CLOSED


@pytest.mark.parametrize("state", [QUIESCED, CLOSED])
async def test_take_of_nothing_raises_when_nothing_can_come(
    state: MailboxState,
) -> None:
    with pytest.raises(MailboxClosedError, match=state.value):
        await in_state(state).take()
