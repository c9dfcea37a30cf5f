"""How many units may be used in any window of time.

Theory of operation: a token bucket that holds ``count`` units lets twice as many
through in one window: a full bucket, then what flows in. The window here remembers what
was used when, and gives a unit back only when ``per`` seconds have passed since it was
used. Uses that lie closer together than a thousandth of ``per`` are remembered as one,
at the time of the last of them, which bounds the memory and errs on the safe side.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

import msgspec

from aiomailbox.durations import above_zero, duration_s, duration_text
from aiomailbox.errors import InvalidArgumentError
from aiomailbox.signatures import check_choice, check_number, check_type

# More than a clock's rounding: windows are closed at both ends.
_MARGIN_S: Final = 1e-6
_STEPS_PER_WINDOW: Final = 1024
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most ``count`` units in any window of ``per``, for all users of the limit.

    A unit is what the user counts: a call, a record, a token. Attempts use units, not
    records: a retry uses its units again. The guarantee is for the moment at which a
    lease is granted; a network that delays one request more than the next can bring
    them closer together, so leave a margin for a server that counts exactly.

    Args:
        count: The maximum number of units in a window.
        per: The window: a timedelta or seconds.
        name: Operators whose limits have the same name share one limit in the job. Without
            a name, it is shared by the subtasks of the operator.
        burst: Units that may be used at once; the others follow evenly. None means
            ``count``: all units of a window may be used at its start.
        budget: Units that the job may use in total, including restarts; None for no limit.
            A call that would use more is not made: `BudgetExceededError` goes to its
            ``on_error``, no later call is made, and the job's sources stop.
        unit: The name of a unit, for display: ``"tokens"``, ``"USD"``.
        per_task: Whether each task has its own limit, without coordination; the job may
            then use that many units for each task.
        on_refusal: The calls that a refusal of the server delays, if it says when to
            come again (Retry-After, `RetryLater`): ``"all"`` calls, as the server means
            the account; or ``"call"``: only the call that it refused, until a second
            one is refused within a window of ``per``.

    Raises:
        InvalidArgumentError: If a number is not positive, or ``burst > count``.
        WrongTypeError: If an argument has the wrong type.

    Example:
        >>> RateLimit(20_000, per=1.0).per_s
        1.0
    """

    count: float
    per: timedelta | float = 1.0
    name: str | None = None
    burst: float | None = None
    per_task: bool = False
    budget: float | None = None
    unit: str = "units"
    on_refusal: Literal["all", "call"] = "all"

    def __post_init__(self) -> None:
        _check_positive(self.count, "count")
        above_zero(duration_s(self.per, "per"), "per")
        check_type(self.name, str | None, "name", "Use a str.", "a name")
        if self.name == "":
            raise InvalidArgumentError("name", "it is empty", "Use a name, or None.")
        check_type(self.unit, str, "unit", "Use a str.", "a name")
        if not self.unit:
            raise InvalidArgumentError("unit", "it is empty", 'Use e.g. "tokens".')
        check_choice(self.on_refusal, "on_refusal", "all", "call")
        if self.budget is not None:
            _check_positive(self.budget, "budget")
        if self.burst is not None:
            _check_positive(self.burst, "burst")
            check_number(self.burst, "burst", minimum=0, maximum=self.count)

    @property
    def per_s(self) -> float:
        """The window in seconds."""
        return duration_s(self.per, "per")

    @property
    def label(self) -> str:
        """The name for display."""
        return "the limit" if self.name is None else f"limit {self.name!r}"

    @property
    def title(self) -> str:
        """Its name and what it counts, "" where neither is said.

        Example:
            >>> RateLimit(90_000, per=60, name="openai", unit="tokens").title
            'openai (tokens)'
        """
        unit = "" if self.unit == "units" else f"({self.unit})"
        return f"{self.name or ''} {unit}".strip()

    def __str__(self) -> str:
        """Return what it allows, for `explain`.

        Example:
            >>> str(RateLimit(90_000, per=60, name="openai", unit="tokens"))
            "limit 'openai': 90000 tokens in 1 min"
        """
        name = "limit" if self.name is None else self.label
        texts = [
            f"{name}: {self.count:.15g} {self.unit} in {duration_text(self.per_s * 1000)}"
        ]
        if self.burst is not None:
            texts.append(f"{self.burst:.15g} at once")
        if self.budget is not None:
            texts.append(f"{self.budget:.15g} in all")
        if self.per_task:
            texts.append("for each task")
        return ", ".join(texts)

    def check_weight(self, weight: float) -> None:
        """Raise unless a lease of this weight can be granted at some time.

        Raises:
            InvalidArgumentError: If it is negative, not finite, or more than ``count``.
            WrongTypeError: If it is not a number.
        """
        check_number(weight, "weight", minimum=0)
        if weight > self.count:
            raise InvalidArgumentError(
                "weight",
                f"{weight} {self.unit} are more than the limit of {self.count} ever allows",
                "Split the record, or raise the limit's count.",
            )


class RateUse(msgspec.Struct, frozen=True):
    """Units that were used, by how long ago that was.

    Attributes:
        first_s: Seconds since the first of them was used.
        last_s: Seconds since the last of them was.
        weight: How many.
    """

    first_s: float
    last_s: float
    weight: float


class RateUsage(msgspec.Struct, frozen=True):
    """How far a limit is used, without a clock: times are seconds before and after now.

    Attributes:
        used: All units that ever were used.
        uses: Those of the last window.
        even_in_s: After how long use would be even again.
        paused_for_s: How long nothing is granted.
    """

    used: float = 0.0
    uses: tuple[RateUse, ...] = ()
    even_in_s: float = 0.0
    paused_for_s: float = 0.0


class RateWindow:
    """The progress of one limit; time is an argument and must not go back.

    A grant has two steps: `reserve` holds units for a caller that is about to use them,
    `use` says that this happened now, `release` that it will not.

    Args:
        limit: The limit.

    Invariants:
        The units passed to `use` add up to at most ``count`` in any closed window of
        ``per``, if they were reserved when `delay_s` was 0.

    Example:
        >>> window = RateWindow(RateLimit(2, per=1.0))
        >>> for _ in range(2):
        ...     window.reserve(1, now_s=0.0)
        ...     window.use(1, now_s=0.0)
        >>> round(window.delay_s(1, now_s=0.25), 3)
        0.75
    """

    def __init__(self, limit: RateLimit) -> None:
        self._count = float(limit.count)
        self._per_s = limit.per_s
        self._step_s = self._per_s / _STEPS_PER_WINDOW
        self._burst = limit.burst
        self._interval_s = self._per_s / self._count
        # When use would be even again, were nothing more used (as in GCRA).
        self._even_s = -math.inf
        self._paused_until_s = -math.inf
        self._reserved = 0.0
        self._used = 0.0
        # Not only of the last window.
        self.total: float = 0.0
        # [first use, last use, weight], oldest first.
        self._uses: deque[list[float]] = deque()

    def delay_s(self, weight: float, now_s: float) -> float:
        """Return how long until ``weight`` units can be reserved.

        Args:
            weight: Units, at most the limit's count.
            now_s: The time, seconds.

        Returns:
            Seconds, 0 for now; infinity while only a `use` or `release` can help.
        """
        self._forget(now_s)
        until_s = max(self._paused_until_s, self._free_at_s(weight))
        if self._burst is not None:
            # What a burst allows may be used ahead of an even flow.
            slack = max(self._burst - weight, 0.0)
            until_s = max(until_s, self._even_s - slack * self._interval_s)
        delay_s = until_s - now_s
        return delay_s if delay_s > _ROUNDING else 0.0

    @property
    def committed(self) -> float:
        """Units that ever were used, and those that are about to be."""
        return self.total + self._reserved

    def free(self, now_s: float) -> float:
        """Return how many units may be used now; 0 while it is paused."""
        self._forget(now_s)
        if now_s < self._paused_until_s:
            return 0.0
        return max(0.0, self._count - self._used - self._reserved)

    def reserve(self, weight: float, now_s: float) -> None:
        """Hold units for a caller that will use them in a moment."""
        # At the grant: two that are granted in one turn must not share a slot.
        self._reserved += weight
        if self._burst is not None:
            self._even_s = max(self._even_s, now_s) + weight * self._interval_s

    def use(self, weight: float, now_s: float) -> None:
        """Use reserved units now."""
        self._give_back(weight)
        if not weight:
            return
        self._used += weight
        self.total += weight
        last = self._uses[-1] if self._uses else None
        # Within a thousandth of the window they are one use, at the time of the last
        # one.
        if last is not None and now_s - last[0] <= self._step_s:
            last[1] = now_s
            last[2] += weight
        else:
            self._uses.append([now_s, now_s, weight])

    def release(self, weight: float) -> None:
        """Release reserved units that will not be used."""
        self._give_back(weight)
        if self._burst is not None:
            self._even_s -= weight * self._interval_s

    def pause(self, until_s: float) -> None:
        """Allow nothing before ``until_s``; a pause is never made shorter."""
        self._paused_until_s = max(self._paused_until_s, until_s)

    def snapshot(self, now_s: float) -> RateUsage:
        """Return how far the limit is used; reserved units count as used now."""
        self._forget(now_s)
        uses = [
            RateUse(now_s - first_s, now_s - last_s, weight)
            for first_s, last_s, weight in self._uses
        ]
        # It may be used in a moment, after the snapshot.
        if self._reserved:
            uses.append(RateUse(0.0, 0.0, self._reserved))
        return RateUsage(
            self.total + self._reserved,
            tuple(uses),
            max(self._even_s - now_s, 0.0),
            max(self._paused_until_s - now_s, 0.0),
        )

    def restore(self, usage: RateUsage, now_s: float, elapsed_s: float) -> None:
        """Go on from a snapshot; before anything else.

        Args:
            usage: The snapshot.
            now_s: The time, seconds.
            elapsed_s: How long ago it was taken, at least 0.
        """
        then_s = now_s - elapsed_s
        self.total = usage.used
        for use in usage.uses:
            self._uses.append([then_s - use.first_s, then_s - use.last_s, use.weight])
            self._used += use.weight
        self._even_s = then_s + usage.even_in_s
        self._paused_until_s = then_s + usage.paused_for_s
        self._forget(now_s)

    def _give_back(self, weight: float) -> None:
        self._reserved -= weight
        # Rests of float sums would hold up a lease of the whole window.
        if self._reserved < _ROUNDING:
            self._reserved = 0.0

    def _forget(self, now_s: float) -> None:
        uses = self._uses
        while uses and uses[0][1] + self._per_s + _MARGIN_S <= now_s + _ROUNDING:
            self._used -= uses.popleft()[2]
        if not uses:
            self._used = 0.0

    def _free_at_s(self, weight: float) -> float:
        """Return when the window has room for ``weight`` more."""
        missing = self._reserved + self._used + weight - self._count
        tolerance = self._count * _ROUNDING
        if missing <= tolerance:
            return -math.inf
        for _, last_s, used in self._uses:
            missing -= used
            if missing <= tolerance:
                return last_s + self._per_s + _MARGIN_S
        return math.inf


def _check_positive(value: float, parameter: str) -> None:
    check_number(value, parameter, minimum=0)
    if value == 0:
        raise InvalidArgumentError(
            parameter, "0 would let nothing through", "Use a positive number."
        )
