"""What all verbs that run a job, or wait for one, have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar

from aiomailbox.errors import JobFailedError

__all__ = ["folded", "verb"]

P = ParamSpec("P")
R = TypeVar("R")


class _Folded:
    """A block whose frames are left out of what a job's end raises through it.

    The functions that it calls are left out, and so is the one that has the block: Python
    adds no frame where a block passes on what was raised in it. The caller's come after.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        """Enter; there is nothing to do."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # An interrupt in a notebook is a cancellation: it says nothing of the engine,
        # and a notebook shows five lines of source for each frame.
        if isinstance(error, JobFailedError | asyncio.CancelledError):
            error.__traceback__ = None


folded: Final = _Folded()


def verb(
    run: Callable[P, Coroutine[Any, Any, R]],
) -> Callable[P, Coroutine[Any, Any, R]]:
    """Let a job's failure, or a cancellation, be raised without lines of the engine."""

    @wraps(run)
    async def shortly(*args: P.args, **named: P.kwargs) -> R:
        with folded:
            return await run(*args, **named)

    return shortly
