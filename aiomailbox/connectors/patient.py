"""Calls to servers that may be away for a moment."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from aiomailbox.errors import SinkError
from aiomailbox.policies.retry import Retry

__all__ = ["patient"]

T = TypeVar("T")

# Half a minute at most, until the job's own restart has its turn.
_RETRY: Final = Retry(
    attempts=8, initial=0.1, maximum=10.0, retry_on=(ConnectionError, TimeoutError)
)


async def patient(
    call: Callable[[], Awaitable[T]], what: object, random: random.Random
) -> T:
    """Call a function, and retry a few times while its server does not answer.

    Args:
        call: The function; to call it twice must do no harm.
        what: What it is about, for the error.
        random: Where jitter comes from.

    Raises:
        SinkError: If there is no answer.
    """
    attempt = 1
    while True:
        try:
            return await call()
        except (ConnectionError, TimeoutError) as error:
            if attempt == _RETRY.attempts:
                raise SinkError(f"{what} cannot be reached: {error}") from error
            await asyncio.sleep(_RETRY.delay_s(attempt, random))
            attempt += 1
