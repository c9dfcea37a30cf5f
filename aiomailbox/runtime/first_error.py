"""Which of several errors counts: the first one that is not an echo."""

from __future__ import annotations

from aiomailbox.errors import (
    RemoteFailureError,
    RemoteTaskError,
    TransportError,
    add_note,
    safe_repr,
)

__all__ = ["FirstError", "is_echo"]


class FirstError:
    """The error that counts; the others are its notes.

    Attributes:
        error: The error, or None.

    Example:
        >>> first = FirstError()
        >>> first.add(ValueError("a"))
        >>> first.add(KeyError("b"))
        >>> first.error, first.error.__notes__
        (ValueError('a'), ["later error: KeyError('b')"])
    """

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def add(self, error: BaseException, note: str | None = None) -> None:
        """Keep an error if it counts, else note it.

        Args:
            error: The error.
            note: What to say about it if it counts.
        """
        first = self.error
        # A broken connection often arrives before the reason why it broke.
        if first is None or (is_echo(first) and not is_echo(error)):
            if note is not None:
                add_note(error, note)
            self.error = error
            if first is not None:
                add_note(error, f"also: {safe_repr(first)}")
        elif error is not first:
            add_note(first, f"later error: {safe_repr(error)}")


def is_echo(error: BaseException) -> bool:
    """Say whether an error may only report another one.

    What tells of a failure travels on other ways than what follows from it, and may
    come later.
    """
    if isinstance(error, RemoteTaskError):
        return error.is_echo
    return isinstance(error, RemoteFailureError | TransportError)
