"""How often a failed call is retried, and after which delay."""

from __future__ import annotations

import inspect
import math
import random as random_module
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, timedelta
from email.utils import parsedate_to_datetime
from operator import attrgetter
from typing import Any, Final

from aiomailbox.durations import duration_s
from aiomailbox.errors import (
    InvalidArgumentError,
    RetryLater,
    StopTask,
    WrongTypeError,
)
from aiomailbox.signatures import accepts, check_count, check_number

RetryOn = (
    type[BaseException]
    | tuple[type[BaseException], ...]
    | Callable[[BaseException], bool]
)


_INITIAL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Retry:
    """Repeats a failed call with exponential backoff and jitter.

    The delay before the second attempt is ``initial``, before each further one
    ``multiplier`` times as long, never more than ``maximum``. A server's Retry-After
    makes a delay longer, even beyond ``maximum``, but never shorter.

    Args:
        attempts: The maximum number of calls per record, including the first one.
        initial: The first delay: a timedelta or seconds.
        multiplier: The growth of the delay, at least 1.
        maximum: The maximum delay from backoff: a timedelta or seconds.
        jitter: Each delay varies randomly by up to this fraction, from 0 to 1.
        retry_on: Which failures are retried: an exception type, several,
            or a function of the exception. A `RetryLater` always is. An exception group,
            as of an ``asyncio.TaskGroup``, is if each exception in it is; a function gets
            the group.
        retry_if: A function of a result that returns whether to retry anyway.
            The result of the last attempt is used in any case.

    Raises:
        InvalidArgumentError: If a number is out of its range, or the first delay is
            longer than any may be.
        WrongTypeError: If an argument has the wrong type.

    Concept:
        Flink, ``AsyncRetryStrategy`` and ``ExponentialBackoffDelayRetryStrategy``.

    Example:
        >>> import random
        >>> retry = Retry(attempts=4, initial=0.1, jitter=0)
        >>> [retry.delay_s(attempt, random.Random(0)) for attempt in (1, 2, 3)]
        [0.1, 0.2, 0.4]
    """

    attempts: int = 4
    initial: timedelta | float = _INITIAL_S
    multiplier: float = 2.0
    maximum: timedelta | float = 60.0
    jitter: float = 0.1
    retry_on: RetryOn = Exception
    retry_if: Callable[[Any], bool] | None = None

    def __post_init__(self) -> None:
        check_count(self.attempts, "attempts")
        initial_s = duration_s(self.initial, "initial")
        check_number(self.multiplier, "multiplier", minimum=1.0)
        maximum_s = duration_s(self.maximum, "maximum")
        # A maximum alone may be shorter than the first delay that nobody gave.
        if initial_s > max(maximum_s, _INITIAL_S):
            raise InvalidArgumentError(
                "initial",
                f"{initial_s:g} s is more than maximum={maximum_s:g}, which no delay of "
                "the backoff exceeds",
                "Give a longer maximum= too, in seconds, or a shorter initial=.",
            )
        check_number(self.jitter, "jitter", minimum=0.0, maximum=1.0)
        _check_retry_on(self.retry_on)
        if self.retry_if is not None and not callable(self.retry_if):
            raise WrongTypeError(
                "retry_if",
                f"{self.retry_if!r} is not a function",
                "Give a function of a result, as lambda response: response is None.",
            )
        if self.retry_if is not None:
            _check_takes_one(self.retry_if, "retry_if", "a result")

    def delay_s(
        self,
        attempt: int,
        random: random_module.Random,
        retry_after_s: float | None = None,
    ) -> float:
        """Return how long to wait after an attempt.

        Args:
            attempt: The attempt that has just failed, from 1.
            random: Where jitter comes from.
            retry_after_s: The delay that the server asked for, in seconds; None if it
                asked for none.

        Returns:
            Seconds; at least ``retry_after_s``, else at most ``maximum``.
        """
        maximum_s = duration_s(self.maximum, "maximum")
        try:
            growth = self.multiplier ** (attempt - 1)
        except OverflowError:
            growth = float("inf")
        initial_s = duration_s(self.initial, "initial")
        backoff_s = min(initial_s * growth, maximum_s) if initial_s else 0.0
        if self.jitter:
            backoff_s *= 1 + random.uniform(-self.jitter, self.jitter)
        return max(min(backoff_s, maximum_s), retry_after_s or 0.0)

    def wants_error(self, error: BaseException) -> bool:
        """Whether an attempt that raised ``error`` is retried."""
        if isinstance(error, StopTask):
            return False
        if isinstance(error, RetryLater):
            return True
        retry_on = self.retry_on
        if not isinstance(retry_on, type | tuple):
            return bool(retry_on(error))
        if isinstance(error, retry_on):
            return True
        # As `except*` would handle it to its end: no failure in it is another one.
        return isinstance(error, BaseExceptionGroup) and all(
            self.wants_error(each) for each in error.exceptions
        )

    def wants_result(self, result: Any) -> bool:
        """Whether a call that returned ``result`` is retried."""
        return self.retry_if is not None and bool(self.retry_if(result))


def _check_takes_one(
    function: Callable[..., Any], parameter: str, argument: str
) -> None:
    call = getattr(function, "__call__", None)  # noqa: B004 -- the method is looked at
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call):
        raise WrongTypeError(
            parameter,
            f"{function!r} is async, and is called without awaiting",
            "Write def instead of async def.",
        )
    if not accepts(function, 1):
        raise WrongTypeError(
            parameter,
            f"{function!r} cannot be called with {argument}",
            f"Its signature is {inspect.signature(function)}.",
        )


def _check_retry_on(retry_on: object) -> None:
    types = retry_on if isinstance(retry_on, tuple) else (retry_on,)
    if all(isinstance(one, type) and issubclass(one, BaseException) for one in types):
        return
    if not isinstance(retry_on, type | tuple) and callable(retry_on):
        _check_takes_one(retry_on, "retry_on", "an exception")
        return
    raise WrongTypeError(
        "retry_on",
        f"{retry_on!r} does not say which failures to retry",
        "Give an exception type, a tuple of them, or a function of an exception.",
    )


# Finds out how long a server asks clients to wait.


_CAUSES_MAX: Final = 8


def retry_after_s(answer: object, now_ms: int) -> float | None:
    """Return the Retry-After that an error, or a response, carries.

    The function looks first at the attribute ``retry_after``: a number of seconds, a
    timedelta, or the text of the header. Then it looks for the header ``Retry-After``
    in ``response.headers`` (errors of httpx and requests) and in ``headers`` (errors of
    aiohttp and urllib, and responses). Last it looks at the error's ``__cause__`` in
    the same way. Of an exception group, it is the longest in it. What fails while it is
    read says nothing, and the next place is looked at.

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
    if isinstance(answer, BaseExceptionGroup):
        # None of them may be called sooner.
        asked = [retry_after_s(each, now_ms) for each in answer.exceptions]
        return max((one for one in asked if one is not None), default=None)
    for _ in range(_CAUSES_MAX):
        for place in _PLACES:
            delay_s: float | None = _read(place, looked_at, now_ms)
            if delay_s is not None:
                return delay_s
        looked_at = _read(_CAUSE, looked_at)
    return None


def _read(read: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return read(*arguments)
    except Exception:  # noqa: BLE001 -- a user's type, and what a server wrote
        return None


def _own(answer: Any, now_ms: int) -> float | None:
    return _seconds(answer.retry_after, now_ms)


def _of_response(answer: Any, now_ms: int) -> float | None:
    return _seconds(_header(answer.response.headers), now_ms)


def _of_headers(answer: Any, now_ms: int) -> float | None:
    return _seconds(_header(answer.headers), now_ms)


_PLACES: Final = (_own, _of_response, _of_headers)
_CAUSE: Final = attrgetter("__cause__")


def _header(headers: Any) -> Any:
    # A plain dict tells the spellings apart; the headers of clients do not.
    for name in ("Retry-After", "retry-after"):
        value = headers.get(name)
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


def _seconds_of_text(text: str, now_ms: int) -> float:
    try:
        return float(text)
    except ValueError:
        pass
    when = parsedate_to_datetime(text)
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return when.timestamp() - now_ms / 1000
