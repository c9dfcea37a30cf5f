"""What can be seen of the asynchronous calls that an operator has begun."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["OpenCall", "OpenCalls"]


@dataclass(frozen=True, slots=True)
class OpenCall:
    """One call that has not ended.

    Attributes:
        record: What the function was called with, as text, truncated if it is long.
        attempt: Which attempt it is, from 1.
        age_s: How long ago this attempt began, seconds, waiting for the limit included.
        waits_for: What it waits for, in words.
        line: ``file:line`` of the innermost line of the user's; "" if it was not asked
            for.
    """

    record: str
    attempt: int
    age_s: float
    waits_for: str
    line: str = ""


@dataclass(frozen=True, slots=True)
class OpenCalls:
    """The calls that an operator has begun.

    Attributes:
        count: How many there are.
        oldest: The first of them, oldest first.
        waiting_for_slot: Calls that wait until fewer are being made.
        limit: The limit that they share and how much of it is free, in words; "" if
            there is none.
    """

    count: int
    oldest: list[OpenCall]
    waiting_for_slot: int
    limit: str
