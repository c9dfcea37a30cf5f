"""Several records in one call."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from aiomailbox.durations import duration_s
from aiomailbox.signatures import check_count


@dataclass(frozen=True, slots=True)
class Batch:
    """Calls get a list of up to ``size`` records and return as many results.

    Args:
        size: The maximum number of records per call.
        within: How long the first record of a batch waits for others: a timedelta or
            seconds. With 0, a batch holds the records that are already there.

    Raises:
        InvalidArgumentError: If ``size`` is below 1 or ``within`` negative.
        WrongTypeError: If one of them is not a number.

    Example:
        >>> Batch(size=50, within=0.02).within_s
        0.02
    """

    size: int
    within: timedelta | float = 0.01

    def __post_init__(self) -> None:
        check_count(self.size, "size")
        duration_s(self.within, "within")

    @property
    def within_s(self) -> float:
        """How long the first record waits, seconds."""
        return duration_s(self.within, "within")
