"""Graceful shutdown: SIGTERM ends a service, and it loses no call that has begun.

systemd and Kubernetes end a program with SIGTERM. `job.stop()` stops the sources,
finishes the records that they have read, and commits. This program sends the signal to
itself.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import aiomailbox as am


async def requests() -> AsyncIterator[int]:
    """Yield requests, for ever."""
    number = 0
    while True:
        yield number
        number += 1
        await asyncio.sleep(0.001)


async def main() -> None:
    begun = 0
    answered: list[int] = []

    async def answer(number: int) -> int:
        nonlocal begun
        begun += 1
        await asyncio.sleep(0.05)
        return number

    env = am.StreamExecutionEnvironment()
    answers = env.from_async_iterable(requests).map_async(answer, concurrency=20)
    answers.sink_to(answered.append)

    told_to_end = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told_to_end.set)
    async with env.start("service") as job:
        asyncio.get_running_loop().call_later(0.2, os.kill, os.getpid(), signal.SIGTERM)
        await told_to_end.wait()
        await job.stop()
    print(job.state.value, "- answered all that was begun:", len(answered) == begun)


if __name__ == "__main__":
    asyncio.run(main())
