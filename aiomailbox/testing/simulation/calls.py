"""Calls to a server outside of a simulated program, counted where they are paid."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

__all__ = ["Calls"]


@dataclass(slots=True)
class Calls:
    """What a server was asked for, by the key that came with each call.

    Attributes:
        begun: How often each key was asked for.
        answered: How often it was answered; the others were cut off by a crash.
        repeated: The keys, in order, that were asked for again although the program had
            got an answer.

    Example:
        >>> calls = Calls()
        >>> calls.begin("a")
        >>> calls.begin("a")
        >>> calls.answer("a")
        >>> calls.begin("a")
        >>> calls.begun["a"], calls.in_flight_again, calls.repeated
        (3, 1, ['a'])
    """

    begun: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    repeated: list[str] = field(default_factory=list)

    @property
    def in_flight_again(self) -> int:
        """How many calls were made again that had not been answered."""
        return self.begun.total() - len(self.begun) - len(self.repeated)

    def begin(self, key: str) -> None:
        """Count a call."""
        self.begun[key] += 1
        if self.answered[key]:
            self.repeated.append(key)

    def answer(self, key: str) -> None:
        """Count an answer."""
        self.answered[key] += 1
