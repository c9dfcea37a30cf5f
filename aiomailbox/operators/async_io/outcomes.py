"""What came of a call, row by row."""

from __future__ import annotations

from collections.abc import Callable
from types import CoroutineType
from typing import Any

from aiomailbox.errors import WrongTypeError
from aiomailbox.operators.async_io.entry import Call, Entry
from aiomailbox.operators.async_io.settings import CallSettings
from aiomailbox.operators.core.callables import describe

__all__ = ["Answers", "Outcomes"]


class Outcomes:
    """Is notified of what came of a row; each row exactly once.

    Args:
        on_result: Told the row and its result.
        on_failure: Told the row, the error and how many attempts there were.
        on_fatal: Told of an error that no row is to blame for.
    """

    __slots__ = ("on_failure", "on_fatal", "on_result")

    def __init__(
        self,
        on_result: Callable[[Entry, Any], None],
        on_failure: Callable[[Entry, BaseException, int], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self.on_result: Callable[[Entry, Any], None] = on_result
        self.on_failure: Callable[[Entry, BaseException, int], None] = on_failure
        self.on_fatal: Callable[[BaseException], None] = on_fatal


class Answers:
    """Judges what the function returned.

    Args:
        function: The function, for messages.
        settings: Whether there are batches, and which results are to be asked again.
        outcomes: Notified of the outcome of each row.
    """

    __slots__ = ("_batched", "_function", "_outcomes", "_plain", "_retry")

    def __init__(
        self, function: Callable[..., Any], settings: CallSettings, outcomes: Outcomes
    ) -> None:
        self._function = function
        self._retry = retry = settings.retry
        self._batched = settings.batch is not None
        self._outcomes = outcomes
        self._plain = not self._batched and (retry is None or retry.retry_if is None)

    def is_final(self, result: Any) -> bool:
        """Whether a result is its row's, and there is nothing more to ask."""
        return self._plain and type(result) is not CoroutineType

    def sort_out(self, call: Call, result: Any) -> tuple[list[Entry], Any]:
        """Tell the outcome of rows that are done.

        Returns:
            The rows whose call should be made again, and what is wrong with the first:
            an exception or a result.

        Raises:
            WrongTypeError: If a batch was not answered with as many results, or a
                result is a coroutine.
        """
        entries = call.entries
        results = self._each(result, len(entries)) if self._batched else [result]
        for one in results:
            self._check(one)
        wanted = [self._wants_again(call, one) for one in results]
        again: list[Entry] = []
        reason: Any = None
        for entry, one, is_wanted in zip(entries, results, wanted, strict=True):
            if is_wanted:
                reason = one if not again else reason
                again.append(entry)
            elif self._batched and isinstance(one, Exception):
                self._outcomes.on_failure(entry, one, call.attempts)
            else:
                self._outcomes.on_result(entry, one)
        return again, reason

    def _each(self, result: Any, count: int) -> list[Any]:
        if isinstance(result, list | tuple):
            if len(result) == count:
                return list(result)
            got = f"{len(result)} results"
        else:
            got = type(result).__name__
        raise WrongTypeError(
            "function",
            f"{describe(self._function)} returned {got} for a batch of {count}",
            "Return a list with one result for each record, in their order.",
        )

    def _check(self, result: Any) -> None:
        if type(result) is CoroutineType:
            result.close()
            raise WrongTypeError(
                "function",
                f"{describe(self._function)} returned a coroutine instead of a value",
                "Await it inside the function.",
            )

    def _wants_again(self, call: Call, result: Any) -> bool:
        retry = self._retry
        if retry is None or call.attempts >= retry.attempts:
            return False
        if self._batched and isinstance(result, Exception):
            return retry.wants_error(result)
        return retry.wants_result(result)
