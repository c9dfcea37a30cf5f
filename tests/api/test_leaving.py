"""Programs that leave a job behind: its sources clean up to the end.

They do so in silence, unless nobody waits for the task that a job is awaited in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

PROGRAM = """
import asyncio
import aiomailbox as am

async def numbers():
    number = 0
    try:
        while True:
            yield number
            number += 1
            if number == 5:
                started.set()
            await asyncio.sleep(0.001)
    finally:
        # Two, since what interrupts the first one leaves out the rest.
        await asyncio.sleep(0.05)
        await asyncio.sleep(0.05)
        print("cleaned up")

async def main():
    global started
    started = asyncio.Event()
    env = am.StreamExecutionEnvironment()
    stream = env.from_async_iterable(numbers).map(lambda number: number)
    {ending}

for run in (asyncio.run, am.run):
    try:
        run(main())
    except KeyError:
        print("KeyError")
    print("over", flush=True)
"""
BREAK = """async for number in stream:
        if number == 3:
            break"""
RAISE = """async for number in stream:
        if number == 3:
            raise KeyError(number)"""
LEAVE = """task = asyncio.create_task(stream.collect())
    await started.wait()"""


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("ending", "after", "told"),
    [
        (BREAK, "", ""),
        (RAISE, "KeyError\n", ""),
        (LEAVE, "", "the event loop ended before the job did"),
    ],
    ids=["break", "raise", "task"],
)
def test_the_last_act_of_a_program_lets_a_source_clean_up(
    ending: str, after: str, told: str, run_program: Callable[..., Any]
) -> None:
    """That is, the last one of an event loop; and nothing is said when Python ends."""
    done = run_program(PROGRAM.replace("{ending}", ending))
    lines = done.log.splitlines()
    assert len(lines) == (2 if told else 0)
    assert all(told in line for line in lines)
    assert done.printed == 2 * f"cleaned up\n{after}over\n"
