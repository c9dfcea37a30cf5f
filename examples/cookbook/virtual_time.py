"""Test a pipeline of hours in milliseconds.

On a loop of virtual time no wait takes long: when all tasks wait, the clock jumps.
Timers, timeouts, retries and rate limits of a job read that clock. So a test of them is
fast, and gives the same result every time.
"""

import asyncio

import aiomailbox as am
from aiomailbox.testing import virtual_time_loop_factory


async def slow_and_moody(number: int) -> int:
    """Take an hour, and fail at the first try of the number 1."""
    await asyncio.sleep(3600)
    if number == 1 and number not in tried:
        tried.add(number)
        raise ConnectionError("try again")
    return number


tried: set[int] = set()


async def test_a_failed_call_is_tried_again() -> None:
    """A test as pytest would run it."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    env = am.StreamExecutionEnvironment()
    numbers = env.from_collection(range(3)).map_async(
        slow_and_moody,
        concurrency=1,
        retry=am.Retry(attempts=2, initial=60.0, jitter=0.0),
    )
    assert await numbers.collect() == [0, 1, 2]
    print("hours that passed:", round((loop.time() - begun) / 3600, 2))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=virtual_time_loop_factory()) as runner:
        runner.run(test_a_failed_call_is_tried_again())
