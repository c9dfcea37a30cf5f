"""What an operator on columns notes for people when it has to go on with rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

__all__ = ["RowsNote", "noting"]


class RowsNote:
    """Why an operator on columns works on rows since it was opened last.

    The operators of all subtasks in this process share it with the description of the job.

    Attributes:
        reason: What happened; "" for nothing.

    Example:
        >>> note = RowsNote()
        >>> note.take("a sum leaves 64 bits")
        >>> note.take("records came as rows")
        >>> note.reason
        'a sum leaves 64 bits'
    """

    __slots__ = ("reason",)

    def __init__(self) -> None:
        self.reason: str = ""

    def take(self, reason: str) -> None:
        """Note a reason, if it is the first one."""
        self.reason = self.reason or reason

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process has operators of its own.
        return RowsNote, ()


def noting(factory: Any, note: RowsNote | None) -> Any:
    """Return a factory whose operators have a note; the same one for none."""
    if note is None:
        return factory
    return partial(_noted, note, factory.func, *factory.args, **factory.keywords)


def _noted(note: RowsNote, make: Callable[..., Any], *args: Any, **named: Any) -> Any:
    operator = make(*args, **named)
    operator.rows_note = note
    return operator
