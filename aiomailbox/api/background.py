"""Jobs that no block of the program encloses, as in the cells of a notebook."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager

from aiomailbox.api.job import JobClient
from aiomailbox.errors import JobCancelledError, JobFailedError
from aiomailbox.supervision import outlast

__all__ = ["in_background"]

# An event loop holds its tasks weakly.
_running: set[asyncio.Task[None]] = set()


async def in_background(block: AbstractAsyncContextManager[JobClient]) -> JobClient:
    """Return a job that runs in a block, which is left when the job has ended.

    The job's log and `JobClient.result` report how it ended. It is cancelled
    with the event loop, as asyncio's tasks are.

    Args:
        block: What starts the job when it is entered, and cleans up when it is left.
    """
    loop = asyncio.get_running_loop()
    started: asyncio.Future[JobClient] = loop.create_future()
    task = loop.create_task(_keep(block, started), name="a job in the background")
    _running.add(task)
    task.add_done_callback(_running.discard)
    try:
        return await asyncio.shield(started)
    except asyncio.CancelledError:
        task.cancel()
        await outlast(task)
        raise


async def _keep(
    block: AbstractAsyncContextManager[JobClient], started: asyncio.Future[JobClient]
) -> None:
    try:
        async with block as job:
            started.set_result(job)
            try:
                # Nobody waits for it here: it may wait for records as long as it likes.
                await job._job.wait()
            except asyncio.CancelledError:
                # Not by `JobClient.cancel`, which the result reports.
                job._job.services.log.warning(
                    "the event loop ended before the job did: the job is cancelled",
                    remedy="write `await job.result()` to wait for its end, or "
                    "`await job.cancel()` to cancel it",
                )
                raise
    except BaseException as error:
        if started.done():
            # The job's log and its result report how it ended.
            if not isinstance(error, (JobFailedError, JobCancelledError)):
                raise
        elif isinstance(error, asyncio.CancelledError):
            started.cancel()
            raise
        else:
            # Also that a job failed: one that has to end before this one can start.
            started.set_exception(error)
