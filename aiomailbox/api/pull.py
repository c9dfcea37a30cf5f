"""Pulling results: a job whose last operator hands its runs to the caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from aiomailbox.api.definition import JobDefinition
from aiomailbox.api.verbs import folded
from aiomailbox.connectors import PullSink
from aiomailbox.graph import Origin, Transformation
from aiomailbox.operators import SinkOperator
from aiomailbox.records import Run
from aiomailbox.runtime import CountingHandover, JobMaster, PullHandover

_HANDOVER = "results"

T = TypeVar("T")


class Pulled(AsyncIterator[T]):
    """The results of a job, at the pace of the consumer; it starts with the first pull.

    The job ends with the iteration: when all is taken, when `aclose` is awaited, and
    when the iterator is no longer referenced, as after a ``break``. This is no
    generator, whose end asyncio leaves to a task that no code awaits.

    Args:
        definition: The job without its last operator.
        origins: What is pulled.
        name: The job's name.
        items: Makes of a run what is iterated over.
    """

    # Also of an object whose making failed.
    _pulling: _Pulling | None = None

    def __init__(
        self,
        definition: JobDefinition,
        origins: list[Origin],
        name: str,
        items: Callable[[Run], Iterable[T]],
    ) -> None:
        self._definition = definition
        self._origins = origins
        self._name = name
        self._of_run = items
        self._items: Iterator[T] = iter(())
        self._is_over = False

    async def __anext__(self) -> T:
        """Return the next item.

        Raises:
            StopAsyncIteration: If there is none any more.
            JobFailedError: If the job failed, after what it had handed over.
        """
        while True:
            for item in self._items:
                return item
            if self._is_over:
                raise StopAsyncIteration
            with folded:
                await self._refill()

    async def aclose(self) -> None:
        """Cancel the job and wait until its tasks and resources are gone. Idempotent."""
        self._is_over = True
        self._items = iter(())
        pulling, self._pulling = self._pulling, None
        if pulling is not None:
            pulling.abandon()
            await pulling.job.outlast()

    def __del__(self) -> None:
        pulling = self._pulling
        if pulling is not None:
            # Anywhere, perhaps in another thread; a loop that is closed has no job.
            with suppress(RuntimeError):
                pulling.loop.call_soon_threadsafe(pulling.abandon)

    async def _refill(self) -> None:
        try:
            if self._pulling is None:
                self._pulling = _Pulling(
                    self._definition, self._origins, self._name, PullHandover()
                )
            run = await self._pulling.handover.take()
            if run is not None:
                self._items = iter(self._of_run(run))
                return
            await self._pulling.job.wait()
        except BaseException:
            await self.aclose()
            raise
        await self.aclose()


class _Pulling:
    """A job that hands over its results.

    Args:
        definition: The job without its last operator.
        origins: What is pulled.
        name: The job's name.
        handover: Where the results are left.

    Attributes:
        loop: The event loop that it runs on.
        handover: As given.
        job: The job.
    """

    def __init__(
        self,
        definition: JobDefinition,
        origins: list[Origin],
        name: str,
        handover: PullHandover,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.handover = handover
        sink = PullSink(_HANDOVER)
        last = Transformation(
            name="results",
            factory=partial(SinkOperator, sink),
            inputs=[origins],
            sink=sink,
            takes_columns=True,
        )
        self.job: JobMaster = definition.deploy(
            name, [last], handovers={_HANDOVER: self.handover}
        )
        definition.executed = [last]

    def abandon(self) -> None:
        """Cancel the job, if it has not ended, and drop what it hands over."""
        self.handover.abandon()
        self.job.cancel()


def pull_runs(
    definition: JobDefinition, origins: list[Origin], name: str
) -> Pulled[Run]:
    """Return the results run by run."""
    return Pulled(definition, origins, name, lambda run: (run,))


def pull_values(
    definition: JobDefinition, origins: list[Origin], name: str
) -> Pulled[Any]:
    """Return the results one by one."""
    return Pulled(definition, origins, name, lambda run: run.values)


async def count_results(definition: JobDefinition, origins: list[Origin]) -> int:
    """Return how many results there are; hands none over, which takes turns of the loop.

    Raises:
        JobFailedError: If the job failed.
    """
    counted = CountingHandover()
    pulling = _Pulling(definition, origins, "count", counted)
    try:
        await pulling.job.wait()
    finally:
        pulling.abandon()
        await pulling.job.outlast()
    return counted.records
