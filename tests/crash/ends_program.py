"""A job that is ended from outside at an exact event, in a fork of its own.

It reads numbers, pays for a call about each, writes each into a table of SQLite, and
prints how it ended. What is done is counted in the table, and in a file of calls.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiomailbox as am
from aiomailbox.checkpoint.store import CheckpointStore
from aiomailbox.journal.place import JournalPlace
from aiomailbox.runtime.job_checkpoints import JobCheckpoints
from aiomailbox.storage.local import LocalStorage

COUNT = 300


class Numbers:
    """Yields them after one; some runs are held before the end, until they are ended."""

    def __init__(self, *, is_held: bool) -> None:
        self.is_held = is_held

    async def __call__(self, after: int | None) -> AsyncIterator[int]:
        for number in range(0 if after is None else after + 1, COUNT):
            yield number
            if number % 10 == 0:
                await asyncio.sleep(0.001)
            if self.is_held and number >= COUNT // 2:
                await asyncio.Event().wait()


def identity(number: int) -> int:
    """Return the number, as its offset and as its id."""
    return number


class Pays:
    """Notes each call where a kill leaves it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def __call__(self, number: int) -> dict[str, int]:
        with self.path.open("a") as file:
            file.write(f"{number}\n")
        return {"n": number}


def strike_at_checkpoint(number: int, sign: int) -> None:
    """Get a signal when the metadata of so many checkpoints is durable."""
    complete = CheckpointStore.complete
    left = [number]

    def struck(self: CheckpointStore, metadata: Any, location: Any = None) -> str:
        place = complete(self, metadata, location)
        left[0] -= location is None
        if left[0] == 0:
            os.kill(os.getpid(), sign)
        return place

    CheckpointStore.complete = struck  # type: ignore[method-assign]


def die_in_clean_up(steps: int) -> None:
    """Be killed when the job has ended, before the next step that changes a file."""
    close = JobCheckpoints.close
    left = [-1]

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any) -> Any:
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return call(*args)

        return step

    async def closing(self: JobCheckpoints, *args: Any, **facts: Any) -> None:
        left[0] = steps
        await close(self, *args, **facts)

    JobCheckpoints.close = closing  # type: ignore[method-assign]
    for owner, name in (
        (LocalStorage, "write"),
        (LocalStorage, "delete"),
        (JournalPlace, "delete"),
    ):
        setattr(owner, name, counted(getattr(owner, name)))


async def main(facts: dict[str, Any]) -> None:
    """Run the job as the facts say."""
    place = Path(facts["place"])
    env = am.StreamExecutionEnvironment(parallelism=facts.get("parallelism", 1))
    if facts.get("workers"):
        env.configure(deployment=am.Processes(facts["workers"]))
    more = {name: am.Retention[facts[name]] for name in ("retention",) if name in facts}
    env.enable_checkpointing(am.seconds(0.05), directory=place / "state", **more)
    is_held = "checkpoint" in facts or "savepoint" in facts
    numbers = Numbers(is_held=is_held)
    calls = env.from_async_iterable(numbers, offset=identity).uid("numbers")
    paid = calls.map_async(Pays(place / "calls"), journal=True, id=identity)
    paid.uid("pays").sink_to(am.SqlSink(place / "data.db", "numbers")).uid("table")
    choice = facts.get("choice", {})
    async with env.start("ends", restore_from=facts.get("from"), **choice) as job:
        if facts.get("savepoint"):
            while not job.checkpoints():
                await asyncio.sleep(0.01)
            await job.stop_with_savepoint(facts["savepoint"])
        result: Any = await job.result()
    print("ended", getattr(result, "finished_before", None))


def load() -> None:
    """Load what such a job loads when it runs."""
    ours = "aiomailbox.connectors.sql.sqlite"
    for name in (ours, "anyio._backends._asyncio", "structlog.dev"):
        importlib.import_module(name)


def fork(given: dict[str, Any]) -> None:
    """Run it as a program: it gets a signal where the facts say so."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    if "checkpoint" in given:
        sign = signal.Signals[given.get("sign", "SIGKILL")]
        strike_at_checkpoint(given["checkpoint"], sign)
    if "step" in given:
        die_in_clean_up(given["step"])
    am.run(main(given))
