"""W4 as a PyFlink job: 5,000 calls that wait for 5 ms, 100 at a time.

Run by an interpreter that has PyFlink 2.3, with ``ordered`` or ``unordered``; prints the
seconds from the first call to the last, which are comparable with W4, and those of the
whole job, which starts a worker. It does so three times.
"""

# This is for an interpreter of its own, whose packages the type checker does not see.
# mypy: ignore-errors

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from pyflink.common import Configuration, Time, Types, WatermarkStrategy
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.async_data_stream import AsyncDataStream
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.datastream.functions import AsyncFunction

CALLS, DELAY_S, CAPACITY = 5_000, 0.005, 100


class Call(AsyncFunction):
    """Waits, and notes how long all calls took."""

    def __init__(self, notes: str) -> None:
        self.notes, self.began, self.ended = notes, 0.0, 0

    async def async_invoke(self, value: int) -> list[int]:
        self.began = self.began or time.time()
        await asyncio.sleep(DELAY_S)
        self.ended += 1
        if self.ended == CALLS:
            Path(self.notes).write_text(str(time.time() - self.began))
        return [2 * value]


def run(order: str, notes: str) -> float:
    """Run one job; return how long it took, seconds."""
    config = Configuration()
    for name in ("python.executable", "python.client.executable"):
        config.set_string(name, sys.executable)
    env = StreamExecutionEnvironment.get_execution_environment(config)
    env.set_parallelism(1)
    source = NumberSequenceSource(1, CALLS)
    strategy = WatermarkStrategy.no_watermarks()
    numbers = env.from_source(source, strategy, "numbers", type_info=Types.LONG())
    wait = getattr(AsyncDataStream, f"{order}_wait")
    results = wait(numbers, Call(notes), Time.seconds(60), CAPACITY, Types.LONG())
    began = time.time()
    assert sum(1 for _ in results.execute_and_collect()) == CALLS
    return time.time() - began


if __name__ == "__main__":
    path = tempfile.mkdtemp() + "/notes"
    for _ in range(3):
        whole = run(sys.argv[1], path)
        print(f"calls {Path(path).read_text()} s, job {whole} s", flush=True)
