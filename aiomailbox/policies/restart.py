"""Whether a failed job is restarted, and after which delay.

A strategy is a value that describes; `RestartStrategy.begin` makes the counter that
follows one job's failures. Times are milliseconds of any clock that does not go back.

A job without a strategy of its user's restarts with growing delays after what the world
did to it. A wrong program ends (`Fault`, `Mistakes`):

===========  ==================================================  =====================
fault        such as                                             the job
===========  ==================================================  =====================
``caller``   a `UsageError`: a call of this library is wrong     ends at once
``program``  `PROGRAMMING_ERRORS` of a user's function; a        ends at the third
             record that a table refuses                         failure of one type at
                                                                 one line, if no
                                                                 checkpoint completed
                                                                 in between
``lasting``  a damaged file, or a line that is no record         ends at once, whichever
                                                                 strategy it has
``world``    everything else                                     restarts, with growing
                                                                 delays
===========  ==================================================  =====================

Concept:
    Flink, ``RestartBackoffTimeStrategy`` and its implementations.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from random import Random
from typing import Final, NamedTuple, Protocol

from aiomailbox.durations import above_zero, duration_ms
from aiomailbox.errors import (
    AioMailboxError,
    BufferRecycledError,
    CheckpointFailedError,
    GateClosedError,
    IllegalStateError,
    InvalidArgumentError,
    MailboxClosedError,
    MailFailedError,
    PoolDestroyedError,
    RemoteTaskError,
    UsageError,
    UserFunctionError,
)
from aiomailbox.signatures import check_count, check_number

# Growth stops here: far beyond every maximum, far below where floats overflow.
_BACKOFF_MS_MAX: Final = 2.0**60

# What the text of a program gets wrong. Clients of services and databases raise classes
# of their own, or OSError, TimeoutError and ValueError: those may pass.
PROGRAMMING_ERRORS: Final = (
    TypeError,
    AttributeError,
    NameError,
    LookupError,
    ArithmeticError,
    AssertionError,
)
# They follow another failure, whatever their family says.
_ECHOES: Final = (
    BufferRecycledError,
    GateClosedError,
    MailboxClosedError,
    PoolDestroyedError,
)
_TIMES_MAX: Final = 3


class Fault(StrEnum):
    """Whose fault a failure is, which decides whether a restart may cure it."""

    CALLER = "caller"
    PROGRAM = "program"
    LASTING = "lasting"
    WORLD = "world"


class Culprit(NamedTuple):
    """The cause of a failure.

    Attributes:
        fault: Whose fault it is.
        kind: The name of the type of the exception that began it.
    """

    fault: Fault
    kind: str


def culprit_of(error: BaseException) -> Culprit:
    """Return whose fault a failure is, and what began it.

    Example:
        >>> culprit_of(ZeroDivisionError())
        Culprit(fault=<Fault.PROGRAM: 'program'>, kind='ZeroDivisionError')
        >>> culprit_of(ConnectionError()).fault
        <Fault.WORLD: 'world'>
    """
    told = "world"
    while (
        isinstance(error, UserFunctionError | CheckpointFailedError | MailFailedError)
        and error.__cause__
    ):
        told = error.fault or told
        error = error.__cause__
    if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        return culprit_of(error.exceptions[0])
    kind = type(error).__name__
    if isinstance(error, RemoteTaskError):
        kind = error.culprit
    if isinstance(error, AioMailboxError) and error.fault is not None:
        return Culprit(Fault(error.fault), kind)
    is_usage = isinstance(error, UsageError) and not isinstance(error, _ECHOES)
    if is_usage or isinstance(error, SystemExit):
        return Culprit(Fault.CALLER, kind)
    if isinstance(error, PROGRAMMING_ERRORS):
        return Culprit(Fault.PROGRAM, kind)
    return Culprit(Fault(told), kind)


class RestartBackoff(Protocol):
    """Follows the failures of one job."""

    @property
    def can_restart(self) -> bool:
        """Whether the job may be restarted after the last failure."""

    @property
    def delay_ms(self) -> int:
        """The delay before the restart."""

    def on_failure(self, now_ms: int) -> None:
        """Count a failure."""


class RestartWait:
    """How long a failed job, or a part of it, still waits before it begins again.

    The delay begins with the failure. A part that fails while another one waits shares
    the rest of that delay, and is not counted.

    Args:
        backoff: Follows the failures that count.

    Concept:
        Flink, ``ExponentialDelayRestartBackoffTimeStrategy``, where it merges failures.

    Example:
        >>> wait = RestartWait(
        ...     FixedDelayRestart(attempts=3, delay=0.3).begin(Random(0))
        ... )
        >>> wait.on_failure(now_ms=1000)
        True
        >>> wait.left_ms(now_ms=1031)
        269
    """

    def __init__(self, backoff: RestartBackoff) -> None:
        self._backoff = backoff
        self._due_ms: int | None = None

    def on_failure(self, now_ms: int) -> bool:
        """Count a failure; say whether there may be a restart, whose delay begins."""
        self._backoff.on_failure(now_ms)
        if not self._backoff.can_restart:
            return False
        self._due_ms = now_ms + self._backoff.delay_ms
        return True

    def left_ms(self, now_ms: int) -> int:
        """Return what is left of the delay, 0 when it is over."""
        return 0 if self._due_ms is None else max(0, self._due_ms - now_ms)


class RestartStrategy(Protocol):
    """Describes when failed jobs are restarted."""

    def begin(self, random: Random) -> RestartBackoff:
        """Return the counter for one job; jitter comes from ``random``."""


@dataclass(frozen=True, slots=True)
class NoRestart:
    """The first failure ends the job.

    Example:
        >>> import random
        >>> backoff = NoRestart().begin(random.Random(0))
        >>> backoff.on_failure(now_ms=0)
        >>> backoff.can_restart
        False
    """

    def begin(self, random: Random) -> RestartBackoff:
        """Return the counter for one job."""
        return _FixedDelay(0, 0)


@dataclass(frozen=True, slots=True)
class FixedDelayRestart:
    """Restarts a fixed number of times, with the same delay before each.

    Args:
        attempts: How many failures lead to a restart.
        delay: The delay before each restart: a timedelta or seconds.

    Raises:
        InvalidArgumentError: If a number is out of its range.
        WrongTypeError: If an argument has the wrong type.

    Example:
        >>> import random
        >>> backoff = FixedDelayRestart(1, 0.5).begin(random.Random(0))
        >>> backoff.on_failure(now_ms=0)
        >>> backoff.can_restart, backoff.delay_ms
        (True, 500)
        >>> backoff.on_failure(now_ms=600)
        >>> backoff.can_restart
        False
    """

    attempts: int
    delay: timedelta | float = 1.0

    def __post_init__(self) -> None:
        check_count(self.attempts, "attempts")
        duration_ms(self.delay, "delay")

    def begin(self, random: Random) -> RestartBackoff:
        """Return the counter for one job."""
        return _FixedDelay(self.attempts, duration_ms(self.delay, "delay"))


@dataclass(frozen=True, slots=True)
class FailureRateRestart:
    """Restarts unless failures are too frequent.

    Args:
        failures: How many failures are tolerated within ``per``; one more ends the job.
        per: The span of time in which they are counted: a timedelta or seconds.
        delay: The delay before each restart: a timedelta or seconds.

    Raises:
        InvalidArgumentError: If a number is out of its range.
        WrongTypeError: If an argument has the wrong type.

    Example:
        >>> import random
        >>> backoff = FailureRateRestart(1, per=10).begin(random.Random(0))
        >>> backoff.on_failure(now_ms=0)
        >>> backoff.can_restart
        True
        >>> backoff.on_failure(now_ms=10_000)
        >>> backoff.can_restart
        False
    """

    failures: int
    per: timedelta | float
    delay: timedelta | float = 1.0

    def __post_init__(self) -> None:
        check_count(self.failures, "failures")
        above_zero(duration_ms(self.per, "per"), "per")
        duration_ms(self.delay, "delay")

    def begin(self, random: Random) -> RestartBackoff:
        """Return the counter for one job."""
        return _FailureRate(
            self.failures,
            duration_ms(self.per, "per"),
            duration_ms(self.delay, "delay"),
        )


@dataclass(frozen=True, slots=True)
class ExponentialDelayRestart:
    """Restarts after growing delays, which are reset after a time without failures.

    Args:
        initial: The first delay: a timedelta or seconds.
        maximum: The longest delay: a timedelta or seconds.
        multiplier: Growth of the delay, at least 1.
        jitter: Each delay varies randomly by up to this fraction, from 0 to 1.
        reset_after: After this long without a failure, in addition to the last delay, the
            next delay is ``initial`` again: a timedelta or seconds.
        attempts: How many failures in a row lead to a restart; None for any number.

    Raises:
        InvalidArgumentError: If a number is out of its range.
        WrongTypeError: If an argument has the wrong type.

    Example:
        >>> import random
        >>> strategy = ExponentialDelayRestart(multiplier=2, jitter=0)
        >>> backoff = strategy.begin(random.Random(0))
        >>> for now_ms in (0, 1_500, 4_000):
        ...     backoff.on_failure(now_ms)
        ...     print(backoff.delay_ms)
        1000
        2000
        4000
    """

    initial: timedelta | float = 1.0
    maximum: timedelta | float = 60.0
    multiplier: float = 1.5
    jitter: float = 0.1
    reset_after: timedelta | float = timedelta(hours=1)
    attempts: int | None = None

    def __post_init__(self) -> None:
        initial_ms = duration_ms(self.initial, "initial")
        above_zero(initial_ms, "initial", ", and would never grow")
        if duration_ms(self.maximum, "maximum") < initial_ms:
            raise InvalidArgumentError(
                "maximum",
                f"{self.maximum} is shorter than initial={self.initial}",
                "Let the longest delay be at least the first one.",
            )
        check_number(self.multiplier, "multiplier", minimum=1.0)
        check_number(self.jitter, "jitter", minimum=0.0, maximum=1.0)
        duration_ms(self.reset_after, "reset_after")
        if self.attempts is not None:
            check_count(self.attempts, "attempts")

    def begin(self, random: Random) -> RestartBackoff:
        """Return the counter for one job."""
        return _ExponentialDelay(self, random)


class Mistakes:
    """Finds out that a failure will come again however often the job restarts.

    Only for jobs without a strategy of their user's: none of those is overruled.

    Attributes:
        is_certain: Whether the last failure will come again, so that the job ends.
        remark: Why, where the failure itself does not say it; "" otherwise.

    Example:
        >>> mistakes = Mistakes()
        >>> for _ in range(3):
        ...     mistakes.on_failure(ZeroDivisionError(), "job.py:7", completed_id=4)
        >>> print(mistakes.remark)
        ZeroDivisionError at job.py:7 ended 3 attempts, and no checkpoint completed...
    """

    def __init__(self) -> None:
        self.is_certain: bool = False
        self.remark: str = ""
        # By type and line; forgotten when a checkpoint completes.
        self._times: Counter[tuple[str, str]] = Counter()
        self._since_id = -1

    def on_failure(
        self, error: BaseException, place: str | None, *, completed_id: int
    ) -> None:
        """Take a failure.

        Args:
            error: It.
            place: The user's line, or else the operator; None if neither is known.
            completed_id: The last checkpoint that had completed, -1 for none.
        """
        culprit = culprit_of(error)
        if completed_id != self._since_id:
            self._times.clear()
            self._since_id = completed_id
        times = 0
        if culprit.fault is Fault.PROGRAM and place is not None:
            self._times[culprit.kind, place] += 1
            times = self._times[culprit.kind, place]
        is_repeated = times >= _TIMES_MAX
        self.is_certain = is_repeated or culprit.fault in {Fault.CALLER, Fault.LASTING}
        if is_repeated:
            self.remark = (
                f"{culprit.kind} at {place} ended {times} attempts, and no "
                "checkpoint completed in between: the job takes it for a mistake in the "
                "program and ends. A strategy given with JobConfig(restart=...) decides "
                "instead"
            )


def none() -> NoRestart:
    """Return the strategy that never restarts."""
    return NoRestart()


def fixed_delay(attempts: int, delay: timedelta | float = 1.0) -> FixedDelayRestart:
    """Return a `FixedDelayRestart`."""
    return FixedDelayRestart(attempts, delay)


def failure_rate(
    failures: int, per: timedelta | float, delay: timedelta | float = 1.0
) -> FailureRateRestart:
    """Return a `FailureRateRestart`."""
    return FailureRateRestart(failures, per, delay)


def exponential_delay(
    initial: timedelta | float = 1.0,
    maximum: timedelta | float = 60.0,
    multiplier: float = 1.5,
    jitter: float = 0.1,
    reset_after: timedelta | float = timedelta(hours=1),
    attempts: int | None = None,
) -> ExponentialDelayRestart:
    """Return an `ExponentialDelayRestart`."""
    return ExponentialDelayRestart(
        initial, maximum, multiplier, jitter, reset_after, attempts
    )


class _FixedDelay:
    def __init__(self, attempts: int, delay_ms: int) -> None:
        self.delay_ms = delay_ms
        self._attempts = attempts
        self._failures = 0

    @property
    def can_restart(self) -> bool:
        # `<=`: the first run is no restart.
        return self._failures <= self._attempts

    def on_failure(self, now_ms: int) -> None:
        self._failures += 1


class _FailureRate:
    def __init__(self, failures: int, per_ms: int, delay_ms: int) -> None:
        self.delay_ms = delay_ms
        self._per_ms = per_ms
        # One more than are taken: the oldest says whether they came too often.
        self._times_ms: deque[int] = deque(maxlen=failures + 1)

    @property
    def can_restart(self) -> bool:
        times = self._times_ms
        is_full = len(times) == times.maxlen
        return not is_full or times[-1] - times[0] > self._per_ms

    def on_failure(self, now_ms: int) -> None:
        self._times_ms.append(now_ms)


class _ExponentialDelay:
    def __init__(self, strategy: ExponentialDelayRestart, random: Random) -> None:
        self._strategy = strategy
        self._random = random
        self._initial_ms = duration_ms(strategy.initial, "initial")
        self._maximum_ms = duration_ms(strategy.maximum, "maximum")
        self._reset_after_ms = duration_ms(strategy.reset_after, "reset_after")
        self._base_ms = 0.0
        self._delay_ms: int | None = None
        self._last_ms = 0
        self._failures = 0

    @property
    def can_restart(self) -> bool:
        attempts = self._strategy.attempts
        return attempts is None or self._failures <= attempts

    @property
    def delay_ms(self) -> int:
        if self._delay_ms is None:
            raise IllegalStateError("there is no delay before the first failure")
        return self._delay_ms

    def on_failure(self, now_ms: int) -> None:
        delay_ms = self._delay_ms
        if (
            delay_ms is None
            or now_ms - self._last_ms >= self._reset_after_ms + delay_ms
        ):
            self._failures = 0
            self._base_ms = float(self._initial_ms)
        else:
            # Flink's exponential strategy: from the base without jitter.
            grown_ms = self._base_ms * self._strategy.multiplier
            # Bounded, as the base would leave the range of floats after enough
            # failures.
            self._base_ms = min(grown_ms, _BACKOFF_MS_MAX)
        self._failures += 1
        self._last_ms = now_ms
        self._delay_ms = self._with_jitter()

    def _with_jitter(self) -> int:
        """Return the delay: the base off by a random part, and only then clamped."""
        spread_ms = math.floor(self._base_ms * self._strategy.jitter)
        delay_ms = math.floor(self._base_ms)
        if spread_ms:
            delay_ms += self._random.randint(-spread_ms, spread_ms)
        # Clamped after the jitter, as in Flink: the first delay is never shorter than
        # `initial`.
        return min(max(delay_ms, self._initial_ms), self._maximum_ms)
