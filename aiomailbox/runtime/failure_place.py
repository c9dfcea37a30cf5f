"""Where in a user's job an error happened."""

from __future__ import annotations

import linecache
from typing import NamedTuple

from aiomailbox.errors import JobFailedError, add_note, named_operator
from aiomailbox.operators.core.locate import is_users, user_location

__all__ = ["FailurePlace", "job_failure", "place_of_error"]


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
    if not place.location:
        line = user_location(error)
        place = place._replace(location=line if is_users(line) else None)
    return place


def job_failure(
    job: str, cause: BaseException, engine_traceback: str, remark: str = ""
) -> JobFailedError:
    """Return the failure of a job, whose last lines say where in it that was.

    Its message may be long, and what its cause says stands above all frames.

    Args:
        job: The job's name.
        cause: What failed first.
        engine_traceback: See `JobFailedError`.
        remark: What else there is to say.
    """
    failure = JobFailedError(job, cause, engine_traceback, remark)
    failure.__cause__ = cause
    place = place_of_error(cause)
    failure.operator, failure.uid, failure.location, failure.record = place
    where: list[str] = []
    if place.operator is not None:
        where.append(f"in {named_operator(place.operator, place.uid)}")
    if place.location is not None:
        where.append(f"at {place.location}{_source(place.location)}")
    if where:
        add_note(failure, ", ".join(where))
    if place.record is not None:
        add_note(failure, f"the record: {place.record}")
    return failure


def _source(location: str) -> str:
    """Return the text of a line of the user's, as far as it can be read here."""
    file, _, line = location.rpartition(":")
    text = linecache.getline(file, int(line)).strip() if line.isdecimal() else ""
    return f": {text}" if text else ""


def _text(error: BaseException, name: str) -> str | None:
    """Return an attribute of an error, which may be of a type of the user's."""
    try:
        value = getattr(error, name, None)
    except Exception:  # noqa: BLE001 -- a property of the user's
        return None
    return value if isinstance(value, str) else None
