"""Where in a user's job an error happened."""

from __future__ import annotations

from typing import NamedTuple

from aiomailbox.operators.core.locate import is_own_line, user_location

__all__ = ["FailurePlace", "place_of_error"]


class FailurePlace(NamedTuple):
    """What an error says of its place; each is None if it does not say it.

    Attributes:
        operator: The operator's name.
        uid: The operator's uid.
        location: ``file:line`` of the innermost line of the user's code.
        record: The record as text.
    """

    operator: str | None
    uid: str | None
    location: str | None
    record: str | None


def place_of_error(error: BaseException) -> FailurePlace:
    """Return where an error happened.

    Example:
        >>> place_of_error(ValueError("never raised"))
        FailurePlace(operator=None, uid=None, location=None, record=None)
    """
    place = FailurePlace(
        *(_text(error, name) for name in ("operator", "uid", "location", "record"))
    )
    if place.location is None:
        line = user_location(error)
        place = place._replace(location=None if is_own_line(line) else line)
    return place


def _text(error: BaseException, name: str) -> str | None:
    """Return an attribute of an error, which may be of a type of the user's."""
    try:
        value = getattr(error, name, None)
    except Exception:  # noqa: BLE001 -- a property of the user's
        return None
    return value if isinstance(value, str) else None
