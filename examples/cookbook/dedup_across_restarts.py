"""Each event once, also across restarts of the program.

`deduplicate` remembers keys in state, for a day here. The savepoint of a stop keeps the
state, and `restore_from=` resumes with it; after a crash, `restore_from="latest"` resumes
with the last checkpoint. A receiver cannot read events again, so the sender sends them
again after a restart if it does not know that they had arrived. The job still drops them.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator

import aiomailbox as am


async def run(
    directory: str, day: str, events: list[int], restore_from: str | None = None
) -> tuple[list[int], str]:
    """Run the job as a program would that is started every day.

    Returns:
        The events that are new, and the savepoint.
    """
    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(
        am.seconds(60),
        directory=directory,
        mode=am.CheckpointingMode.AT_LEAST_ONCE,
    )
    new: list[int] = []
    all_came = asyncio.Event()

    async def received() -> AsyncIterator[int]:
        for event in events:
            yield event
        all_came.set()
        await asyncio.Event().wait()  # for events of tomorrow

    (
        env.from_async_iterable(received, name="events")
        .key_by(lambda event: event)
        .deduplicate(ttl=am.days(1))
        .uid("new events")
        .sink_to(new.append)
    )
    async with env.start("events", restore_from=restore_from) as job:
        await all_came.wait()
        savepoint = await job.stop_with_savepoint(f"{directory}/{day}")
    return new, savepoint.place


async def main() -> None:
    directory = tempfile.mkdtemp()
    new, savepoint = await run(directory, "monday", [1, 2, 2, 1])
    print("monday ", new)
    new, savepoint = await run(directory, "tuesday", [2, 1, 3, 3, 4], savepoint)
    print("tuesday", new)


if __name__ == "__main__":
    asyncio.run(main())
