"""One look at a mailbox, for people and for metrics."""

from __future__ import annotations

from dataclasses import dataclass

from aiomailbox.mailbox.lifecycle import MailboxState

__all__ = ["MailboxStatistics"]


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
