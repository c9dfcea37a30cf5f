"""What all verbs that run a job, or wait for one, have in common."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial, wraps
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar

from aiomailbox.api.definition import JobDefinition
from aiomailbox.connectors.async_iterable import AsyncIterableSource
from aiomailbox.connectors.collection import IteratorSource
from aiomailbox.connectors.sinks import PullSink
from aiomailbox.errors import JobFailedError
from aiomailbox.graph.transformation import Origin, Transformation
from aiomailbox.operators.sinks.sink import SinkOperator
from aiomailbox.operators.sources.source import Boundedness, Source
from aiomailbox.records.run import Run
from aiomailbox.runtime.master import JobMaster
from aiomailbox.runtime.services import CountingHandover, PullHandover

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


# Pulling results: a job whose last operator hands its runs to the caller.


_HANDOVER = "results"


# Twice that is as long as a person waits for a program that says nothing.
_LOOK_S: Final = 5.0


T = TypeVar("T")


@contextmanager
def looking_on(look: Callable[[], bool]) -> Iterator[None]:
    """Call a function each few seconds until it returns True, or the block is left."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    def wait() -> None:
        nonlocal timer
        timer = loop.call_later(_LOOK_S, on_timer)

    def on_timer() -> None:
        if not look():
            wait()

    wait()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()


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

    def waited_for(self, verb: str, **facts: int) -> bool:
        """Say in the log that a verb goes on until sources end that may never do so.

        Args:
            verb: What the user has called.
            facts: What else there is to say.

        Returns:
            Whether the job has started, so that its sources are known.
        """
        if self._pulling is not None:
            self._pulling.warn_of_wait(verb, **facts)
        return self._pulling is not None

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

    def warn_of_wait(self, verb: str, **facts: int) -> None:
        """Say that the sources have not ended; see `Pulled.waited_for`."""
        sources = [
            node.name
            for vertex in self.job.graph.vertices
            for node in vertex.nodes
            if _may_be_endless(node.transformation.source)
        ]
        if sources:
            self.job.services.log.warning(
                "a call goes on until its sources end",
                call=f"{verb}()",
                sources=sources,
                **facts,
                remedy="for one without end, use `async for record in stream`, "
                "take(count), or a sink and env.start(); an inbox ends with close()",
            )

    def abandon(self) -> None:
        """Cancel the job, if it has not ended, and drop what it hands over."""
        self.handover.abandon()
        self.job.cancel()


def _may_be_endless(source: Source[Any] | None) -> bool:
    # Nobody has to say that what is iterated over ends.
    return isinstance(source, AsyncIterableSource | IteratorSource) or (
        source is not None and source.boundedness is Boundedness.UNBOUNDED
    )


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

    def look() -> bool:
        pulling.warn_of_wait("count", records=counted.records)
        return True

    try:
        with looking_on(look):
            await pulling.job.wait()
    finally:
        pulling.abandon()
        await pulling.job.outlast()
    return counted.records
