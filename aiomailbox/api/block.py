"""The block of ``async with env.start(...)``: it says so where it is used otherwise."""

from __future__ import annotations

import warnings
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from aiomailbox.api.job import JobClient
from aiomailbox.api.verbs import folded
from aiomailbox.errors import UsageError

__all__ = ["JobBlock"]

_INSTEAD = (
    "write `async with env.start(...) as job:`, or `job = await env.execute_async(...)` "
    "for a job without a block"
)


class JobBlock(AbstractAsyncContextManager[JobClient]):
    """A job that runs as long as a block does.

    Args:
        block: Starts the job when it is entered, and ends it when it is left.
    """

    __slots__ = ("_block", "_has_begun")

    def __init__(self, block: AbstractAsyncContextManager[JobClient]) -> None:
        self._has_begun = False
        self._block = block

    async def __aenter__(self) -> JobClient:
        self._has_begun = True
        with folded:
            return await self._block.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        with folded:
            return await self._block.__aexit__(kind, error, traceback)

    def __del__(self) -> None:
        if not self._has_begun:
            message = f"a job was made and never started: {_INSTEAD}"
            warnings.warn(message, RuntimeWarning, stacklevel=2, source=self)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Say where the job is.

            Raises:
                AttributeError: Always.
            """
            # A notebook that shows it asks for `_repr_html_` and others.
            if not name.startswith("_"):
                self._has_begun = True
            message = f"env.start() gives a block, which has no {name!r}: {_INSTEAD}"
            raise AttributeError(message, name=name, obj=self)

        def __await__(self) -> NoReturn:
            """Say what can be awaited.

            Raises:
                UsageError: Always.
            """
            self._has_begun = True
            message = f"env.start() gives a block, which cannot be awaited: {_INSTEAD}"
            raise UsageError(message)

        def __enter__(self) -> NoReturn:
            """Say which kind of block it is.

            Raises:
                UsageError: Always.
            """
            self._has_begun = True
            message = f"the block of a job is entered with `async with`: {_INSTEAD}"
            raise UsageError(message)

        def __exit__(self, *_: object) -> None:
            """Be there, for `with` to look at."""
