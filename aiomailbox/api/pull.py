"""Pulling results: a job whose last operator hands its runs to the caller."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any

from aiomailbox.api.definition import JobDefinition
from aiomailbox.connectors import PullSink
from aiomailbox.graph import Origin, Transformation
from aiomailbox.operators import SinkOperator
from aiomailbox.records import Run
from aiomailbox.runtime import JobMaster, PullHandover

_HANDOVER = "results"


@asynccontextmanager
async def _pulled_job(
    definition: JobDefinition, origins: list[Origin], name: str, handover: PullHandover
) -> AsyncGenerator[JobMaster]:
    """Run a job that hands over its results; leave no task of it behind."""
    sink = PullSink(_HANDOVER)
    last = Transformation(
        name="results",
        factory=partial(SinkOperator, sink),
        inputs=[origins],
        sink=sink,
    )
    job = definition.deploy(name, [last], handovers={_HANDOVER: handover})
    try:
        yield job
    finally:
        handover.abandon()
        job.cancel()
        await job.outlast()


async def pull_runs(
    definition: JobDefinition, origins: list[Origin], name: str
) -> AsyncGenerator[Run]:
    """Yield the results run by run, at the consumer's pace.

    Closing the generator (``break`` inside ``contextlib.aclosing``) cancels the job
    and waits until all of it is gone.

    Raises:
        JobFailedError: If the job failed, after what it had handed over.
    """
    handover = PullHandover()
    async with _pulled_job(definition, origins, name, handover) as job:
        while (run := await handover.take()) is not None:
            yield run
        await job.wait()


async def pull_values(
    definition: JobDefinition, origins: list[Origin], name: str
) -> AsyncGenerator[Any]:
    """Yield the results one by one; see `pull_runs`."""
    async with aclosing(pull_runs(definition, origins, name)) as runs:
        async for run in runs:
            for value in run.values:
                yield value
