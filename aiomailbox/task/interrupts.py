"""The error that ended a task, with notes about those that came after it."""

from __future__ import annotations

from aiomailbox.errors import add_note, safe_repr


def first_of(
    first: BaseException | None, later: BaseException | None, occasion: str
) -> BaseException | None:
    """Return the first error, with a note about the later one.

    Args:
        first: The error that counts, if there is one.
        later: The error that came after it, if there is one.
        occasion: What went wrong then, for the note.

    Example:
        >>> error = first_of(ValueError("a"), KeyError("b"), "closing failed too")
        >>> error, error.__notes__
        (ValueError('a'), ["closing failed too: KeyError('b')"])
    """
    if first is None or later is None or later is first:
        return later if first is None else first
    add_note(first, f"{occasion}: {safe_repr(later)}")
    return first
