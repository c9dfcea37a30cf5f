"""Reports once that a job has failed permanently: to the log, and to its subscriber."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from aiomailbox.clock import Clock
from aiomailbox.errors import safe_str
from aiomailbox.runtime.failures import is_echo, place_of_error, short_text
from aiomailbox.runtime.job_snapshot import FailureSummary

__all__ = ["FailureReport"]

_TRACEBACK_MAX: Final = 16 * 1024
_TEXT_MAX: Final = 1_000
_FAILURES_MAX: Final = 20


class FailureReport:
    """The one report of a job's failure, and what has failed before.

    Args:
        log: A structlog logger with the job bound.
        clock: The job's clock.

    Attributes:
        failures: The last failures, also those after which the job started again.
    """

    def __init__(self, log: Any, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self.failures: deque[FailureSummary] = deque(maxlen=_FAILURES_MAX)
        self._has_failed = False
        self._is_logged = False
        self._call: Callable[[], None] | None = None

    def announce(self, error: BaseException) -> None:
        """Report that the job fails, while its tasks are still being ended.

        An error that only reports another one is not logged: that one comes with `add`.
        """
        # An echo is reported later, if nothing better comes.
        if not is_echo(error):
            self._write(error)
        self._notify()

    def add(self, error: BaseException) -> None:
        """Report an error that the job keeps, unless one has been reported."""
        self._write(error)
        self._notify()

    def keep(self, error: BaseException, restarts: int) -> None:
        """Keep a failure for people to look at.

        Args:
            error: What failed.
            restarts: How often the job had been started again before.
        """
        place = place_of_error(error)
        self.failures.append(
            FailureSummary(
                error=f"{type(error).__name__}: {safe_str(error)}"[:_TEXT_MAX],
                at_ms=self._clock.now_ms(),
                restarts=restarts,
                operator=place.operator,
                uid=place.uid,
                line=place.location,
                record=place.record,
            )
        )

    def call(self, function: Callable[[], None] | None) -> None:
        """Call a function when the job has failed: once, at once if it has already."""
        self._call = function
        if self._has_failed:
            self._notify()

    def _notify(self) -> None:
        self._has_failed = True
        function, self._call = self._call, None
        if function is not None:
            function()

    def _write(self, error: BaseException) -> None:
        # What ends the program is no failure of the job's.
        if self._is_logged or isinstance(error, KeyboardInterrupt | SystemExit):
            return
        self._is_logged = True
        place = place_of_error(error)
        about = {
            "operator": place.operator,
            "uid": place.uid,
            "line": place.location,
            "record": place.record,
        }
        self._log.error(
            "the job failed",
            **{name: text for name, text in about.items() if text is not None},
            error=f"{type(error).__name__}: {safe_str(error)}",
            # The end says where it happened.
            traceback=short_text(error)[-_TRACEBACK_MAX:].rstrip(),
        )
