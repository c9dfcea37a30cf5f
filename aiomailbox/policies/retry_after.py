"""Finds out how long a server asks clients to wait."""

from __future__ import annotations

import math
from datetime import UTC, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final

__all__ = ["retry_after_s"]

_CAUSES_MAX: Final = 8


def retry_after_s(answer: object, now_ms: int) -> float | None:
    """Return the Retry-After that an error, or a response, carries.

    It is looked for in this order: the attribute ``retry_after`` (a number of seconds,
    a timedelta, or the text of the header), then the header ``Retry-After`` of
    ``response.headers`` (errors of httpx and requests), then of ``headers`` (errors of
    aiohttp and urllib, and responses), then the same of the error's ``__cause__``.

    Args:
        answer: An exception, or what a call returned.
        now_ms: The time that an HTTP date is compared with, in milliseconds since the
            epoch.

    Returns:
        Seconds, at least 0; None if there is nothing that can be understood.

    Example:
        >>> error = ConnectionError("busy")
        >>> error.retry_after = "Thu, 01 Jan 1970 00:00:10 GMT"
        >>> retry_after_s(error, now_ms=4_000)
        6.0
    """
    looked_at: object = answer
    for _ in range(_CAUSES_MAX):
        if looked_at is None:
            return None
        for value in _candidates(looked_at):
            delay_s = _seconds(value, now_ms)
            if delay_s is not None:
                return delay_s
        looked_at = getattr(looked_at, "__cause__", None)
    return None


def _candidates(answer: object) -> list[Any]:
    response = getattr(answer, "response", None)
    return [
        getattr(answer, "retry_after", None),
        _header(getattr(response, "headers", None)),
        _header(getattr(answer, "headers", None)),
    ]


def _header(headers: Any) -> Any:
    get = getattr(headers, "get", None)
    if not callable(get):
        return None
    # A plain dict tells the spellings apart; the headers of clients do not.
    for name in ("Retry-After", "retry-after"):
        value = get(name)
        if value is not None:
            return value
    return None


def _seconds(value: Any, now_ms: int) -> float | None:
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    if isinstance(value, timedelta):
        value = value.total_seconds()
    elif isinstance(value, str):
        value = _seconds_of_text(value.strip(), now_ms)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return max(float(value), 0.0) if math.isfinite(value) else None


def _seconds_of_text(text: str, now_ms: int) -> float | None:
    try:
        return float(text)
    except ValueError:
        pass
    try:
        when = parsedate_to_datetime(text)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return when.timestamp() - now_ms / 1000
