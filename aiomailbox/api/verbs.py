"""What all verbs that run a job have in common."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from aiomailbox.errors import JobFailedError

P = ParamSpec("P")
R = TypeVar("R")


def verb(
    run: Callable[P, Coroutine[Any, Any, R]],
) -> Callable[P, Coroutine[Any, Any, R]]:
    """Let a job's failure be raised with one line of the engine, this one."""

    @wraps(run)
    async def shortly(*args: P.args, **named: P.kwargs) -> R:
        failure: JobFailedError
        try:
            return await run(*args, **named)
        except JobFailedError as error:
            failure = error.with_traceback(None)
        # Outside of the handler, so that nothing is said to have happened meanwhile.
        try:
            raise failure
        finally:
            del failure

    return shortly
