"""The life of a mailbox: a table of states and the moves between them."""

from __future__ import annotations

import enum
from typing import Final

__all__ = ["MailboxLifecycle", "MailboxState"]


class MailboxState(enum.Enum):
    """What a mailbox allows.

    Attributes:
        OPEN: Puts and takes.
        QUIESCED: Takes only; what is inside stays takeable.
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

    __slots__ = ("state",)

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
