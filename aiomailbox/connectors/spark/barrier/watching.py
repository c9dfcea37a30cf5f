"""How far a barrier stage is, for the driver: a file of its directory.

Theory of operation: the director, which is in a worker, writes the job's snapshot to a file
once a second, and once more when the job has ended. The driver reads it. A snapshot that
could not be written or read is left out: another one follows.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

from aiomailbox.errors import CorruptStreamError
from aiomailbox.runtime.job_snapshot import JobSnapshot
from aiomailbox.runtime.master import JobMaster
from aiomailbox.runtime.observer import JobObserver
from aiomailbox.threads import run_in_thread

__all__ = ["showing", "watching"]

_FILE: Final = "snapshot.json"
_EVERY_S: Final = 1.0


@contextlib.asynccontextmanager
async def showing(job: JobMaster, place: Path | None) -> AsyncIterator[None]:
    """Write a job's snapshots for as long as the block is, and one at its end.

    Args:
        job: The job, which has started.
        place: The directory; None if they are not wanted.
    """
    if place is None:
        yield
        return
    observer = JobObserver(job)

    async def write() -> None:
        data = observer.snapshot(with_stacks=True).to_json()
        with contextlib.suppress(OSError):
            await run_in_thread(_write, place / _FILE, data)

    async def keep_writing() -> None:
        while True:
            await write()
            await asyncio.sleep(_EVERY_S)

    writing = asyncio.get_running_loop().create_task(keep_writing(), name="snapshots")
    try:
        yield
    finally:
        writing.cancel()
        await asyncio.wait([writing])
        await write()


@contextlib.asynccontextmanager
async def watching(
    place: Path, tell: Callable[[JobSnapshot], object] | None
) -> AsyncIterator[None]:
    """Tell of new snapshots for as long as the block is, and of the last one.

    Args:
        place: The directory.
        tell: Called with each; None to tell nothing.

    Raises:
        Exception: What ``tell`` raised, at the end of the block.
    """
    if tell is None:
        yield
        return
    last: bytes = b""

    async def read() -> None:
        nonlocal last
        data = last
        with contextlib.suppress(OSError):
            data = await run_in_thread((place / _FILE).read_bytes)
        if data == last:
            return
        last = data
        with contextlib.suppress(CorruptStreamError):
            snapshot = JobSnapshot.from_json(data)
            tell(snapshot)

    async def keep_reading() -> None:
        while True:
            await read()
            await asyncio.sleep(_EVERY_S / 2)

    reading = asyncio.get_running_loop().create_task(keep_reading(), name="snapshots")
    try:
        yield
    finally:
        reading.cancel()
        await asyncio.wait([reading])
    if not reading.cancelled():
        reading.result()
    await read()


def _write(path: Path, data: bytes) -> None:
    part = path.with_suffix(".part")
    part.write_bytes(data)
    os.replace(part, path)
