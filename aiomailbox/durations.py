"""Durations and event times as users write them, and as the runtime counts them."""

from __future__ import annotations

import logging
import math
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from aiomailbox.errors import InvalidArgumentError, TimestampError, WrongTypeError
from aiomailbox.typevars import T

_SECONDS_MAX = 86_400
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST: Final = datetime(1, 1, 1, tzinfo=UTC)
_LATEST: Final = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_HERE: Final = str(Path(__file__).parent)
# Numbers of seconds that looked like milliseconds.
_TOLD: Final[set[tuple[str, int]]] = set()
_TOLD_MAX: Final = 1_000
_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


def millis(n: float) -> timedelta:
    """Return ``n`` milliseconds."""
    return _duration("millis", milliseconds=n)


def seconds(n: float) -> timedelta:
    """Return ``n`` seconds."""
    return _duration("seconds", seconds=n)


def minutes(n: float) -> timedelta:
    """Return ``n`` minutes."""
    return _duration("minutes", minutes=n)


def hours(n: float) -> timedelta:
    """Return ``n`` hours.

    Example:
        >>> hours(1) == minutes(60)
        True
    """
    return _duration("hours", hours=n)


def days(n: float) -> timedelta:
    """Return ``n`` days of 24 hours."""
    return _duration("days", days=n)


def _duration(unit: str, **given: float) -> timedelta:
    """Return a duration; ``n`` is what the user calls the number."""
    [n] = given.values()
    try:
        return timedelta(**given)
    except TypeError as error:
        raise WrongTypeError(
            "n", f"{n!r} is not a number", f"Write e.g. am.{unit}(5)."
        ) from error
    except (ValueError, OverflowError) as error:
        raise InvalidArgumentError(
            "n",
            f"{n!r} {unit} are no duration: {error}",
            "Give a finite number of at most 999,999,999 days.",
        ) from error


def duration_ms(value: timedelta | float, parameter: str) -> int:
    """Return a duration in whole milliseconds, rounded to the nearest.

    Args:
        value: A `timedelta`, or a number of seconds.
        parameter: The argument's name as the caller wrote it, for the message.

    Raises:
        InvalidArgumentError: If the duration is negative or not finite, or is an int
            above 86,400: more than a day is hardly ever given in seconds, but often
            milliseconds are.
        WrongTypeError: If it is neither a timedelta nor a number.

    Example:
        >>> duration_ms(1.5, "timeout"), duration_ms(minutes(2), "timeout")
        (1500, 120000)
    """
    if isinstance(value, timedelta):
        _refuse_negative(value < timedelta(), value, parameter)
        return round(value / _MILLISECOND)
    _check_seconds(value, parameter)
    return round(value * 1000)


def pipeline_ms(value: timedelta, parameter: str) -> int:
    """Return a time of the pipeline in whole milliseconds; its unit is always said.

    A number alone does not say whether it counts seconds or milliseconds, and a job runs
    for long before anybody sees that it was taken for the other. 0 needs no unit.

    Args:
        value: A `timedelta`, or 0.
        parameter: The argument's name as the caller wrote it, for the message.

    Raises:
        InvalidArgumentError: If it is a number other than 0, or negative.
        WrongTypeError: If it is neither.

    Example:
        >>> pipeline_ms(seconds(1.5), "size")
        1500
        >>> pipeline_ms(1000, "size")
        Traceback (most recent call last):
            ...
        aiomailbox.errors.InvalidArgumentError: size: 1000 has no unit. Were seconds or
        milliseconds meant? Write am.seconds(1000), am.millis(1000), or give a timedelta.
    """
    if isinstance(value, timedelta):
        return duration_ms(value, parameter)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WrongTypeError(
            parameter,
            f"{value!r} is not a duration",
            "Use e.g. am.minutes(5), or a timedelta.",
        )
    if value == 0:
        return 0
    raise InvalidArgumentError(
        parameter,
        f"{value!r} has no unit",
        f"Were seconds or milliseconds meant? Write am.seconds({value!r}), "
        f"am.millis({value!r}), or give a timedelta.",
    )


def above_zero(duration: T, parameter: str, why: str = "") -> T:
    """Return a duration, in whichever unit, if it is not 0.

    Args:
        duration: The duration.
        parameter: The argument's name as the caller wrote it, for the message.
        why: The effect of 0, as in ", so that every checkpoint would fail".

    Raises:
        InvalidArgumentError: If it is 0.
    """
    if duration == 0:
        raise InvalidArgumentError(parameter, f"it is 0{why}", "Use more than 0.")
    return duration


def signed_ms(value: timedelta, parameter: str) -> int:
    """Return a time of the pipeline that may be negative, in whole milliseconds.

    Raises:
        As `pipeline_ms`.

    Example:
        >>> signed_ms(-seconds(1.5), "lower")
        -1500
    """
    if isinstance(value, timedelta) and value < timedelta():
        return -pipeline_ms(-value, parameter)
    return pipeline_ms(value, parameter)


def duration_s(value: timedelta | float, parameter: str) -> float:
    """Return a duration in seconds; accepts and refuses what `duration_ms` does.

    Example:
        >>> duration_s(millis(250), "timeout")
        0.25
    """
    if isinstance(value, timedelta):
        _refuse_negative(value < timedelta(), value, parameter)
        return value.total_seconds()
    _check_seconds(value, parameter)
    return float(value)


def duration_text(ms: float) -> str:
    """Return a duration for people, in the largest unit that gives a whole number.

    Example:
        >>> duration_text(120_000), duration_text(90_000), duration_text(1_500)
        ('2 min', '90 s', '1500 ms')
    """
    for size, unit in _UNITS:
        if ms and ms % size == 0:
            return f"{ms / size:g} {unit}"
    return f"{ms:g} ms"


def event_datetime(timestamp_ms: int) -> datetime:
    """Return an event time as an aware datetime; the nearest one there is, if none is.

    Example:
        >>> event_datetime(1_000).isoformat()
        '1970-01-01T00:00:01+00:00'
    """
    try:
        return _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return _LATEST if timestamp_ms > 0 else _EARLIEST


def event_time_ms(value: Any) -> int:
    """Return an event time in milliseconds since the epoch, rounded down.

    Args:
        value: Integer milliseconds, or an aware `datetime`.

    Raises:
        TimestampError: For anything else: a naive datetime, a float, a bool, None.

    Example:
        >>> event_time_ms(datetime(1970, 1, 2, tzinfo=UTC))
        86400000
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, datetime) and value.utcoffset() is not None:
        return (value - _EPOCH) // _MILLISECOND
    if isinstance(value, timedelta):
        remedy = "That is a duration: for a timer write after=am.seconds(10)"
    elif isinstance(value, datetime):
        remedy = "It has no time zone: use value.replace(tzinfo=...) with the right one"
    else:
        remedy = "Use int milliseconds since the epoch, or an aware datetime"
    raise TimestampError(
        f"an event time cannot be {value!r} of type {type(value).__name__}. {remedy}."
    )


def _check_seconds(value: Any, parameter: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WrongTypeError(
            parameter,
            f"{value!r} is not a duration",
            "Use a timedelta, e.g. am.minutes(5), or a number of seconds.",
        )
    if not math.isfinite(value):
        raise InvalidArgumentError(
            parameter, f"{value!r} is not a duration", "Use a finite number of seconds."
        )
    _refuse_negative(value < 0, value, parameter)
    if isinstance(value, int) and value > _SECONDS_MAX:
        raise InvalidArgumentError(
            parameter,
            f"{value} seconds are more than a day",
            f"Were milliseconds meant? Then write am.millis({value}), "
            f"else am.seconds({value}).",
        )
    # As people write milliseconds, and neither half hours nor hours.
    if isinstance(value, int) and value >= 1_000 and value % 500 == 0 and value % 1_800:
        _warn_of_seconds(value, parameter)


def _warn_of_seconds(value: int, parameter: str) -> None:
    """Warn, once in a program for each, of what looks like milliseconds."""
    if (parameter, value) in _TOLD or len(_TOLD) >= _TOLD_MAX:
        return
    _TOLD.add((parameter, value))
    frame = sys._getframe()
    # A dataclass has its `__init__` from a text.
    while frame.f_back is not None and frame.f_code.co_filename.startswith(
        (_HERE, "<")
    ):
        frame = frame.f_back
    fields = {
        "event": f"{parameter}={value} is {value // 60} minutes, as it counts seconds, and "
        "looks like milliseconds",
        "line": f"{frame.f_code.co_filename}:{frame.f_lineno}",
        "remedy": f"write am.millis({value}), or am.seconds({value}) if that is meant",
    }
    # As the library logs, which is no layer below this one.
    text = "{event} line={line!r} remedy={remedy!r}".format(**fields)
    logging.getLogger("aiomailbox").warning(text, extra=fields)


def _refuse_negative(negative: bool, value: Any, parameter: str) -> None:
    if negative:
        # Of a duration Python writes the days first: -1 day, 23:59:59 for a second.
        shown = f"-{-value}" if isinstance(value, timedelta) else value
        raise InvalidArgumentError(
            parameter, f"{shown} is negative", "Use a duration of zero or more."
        )
