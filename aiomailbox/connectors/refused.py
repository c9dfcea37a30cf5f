"""What a writer returns for a run of which it takes only some records."""

from __future__ import annotations

from collections.abc import Awaitable

from aiomailbox.errors import RecordsRefusedError
from aiomailbox.operators.core.contract import Pending

__all__ = ["refuse"]


def refuse(refused: dict[int, BaseException], seen: int, pending: Pending) -> Pending:
    """Say which records of a run are refused, after what is pending for the others.

    Args:
        refused: Why, by the index of the record in the run.
        seen: How many records the run has.
        pending: What is under way for those that were taken, or None.

    Returns:
        Raises `RecordsRefusedError` when it is awaited.

    Raises:
        RecordsRefusedError: At once, if nothing is pending.

    Example:
        >>> refuse({1: ValueError("no price")}, 2, None)
        Traceback (most recent call last):
        aiomailbox.errors.RecordsRefusedError: 1 of 2 records refused, ...
    """
    error = RecordsRefusedError(refused, seen)
    if pending is None:
        raise error
    return _raise_after(pending, error)


async def _raise_after(pending: Awaitable[None], error: Exception) -> None:
    await pending
    raise error
