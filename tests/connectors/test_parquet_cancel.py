"""A job that writes Parquet may be cancelled at any moment."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from aiomailbox.connectors.directory import Segments
from aiomailbox.connectors.parquet import ParquetWriter
from aiomailbox.records.run import ListRun
from tests.held import without_held

pytestmark = pytest.mark.real_time

CANCELS = """
import asyncio, random, sys
import aiomailbox as am

async def rows():
    number = 0
    while True:
        for number in range(number, number + 200):
            yield {f"column {k}": number * k for k in range(20)}
        await asyncio.sleep(0)

async def main():
    waits = random.Random(7)
    for number in range(15):
        env = am.StreamExecutionEnvironment()
        sink = am.ParquetSink(f"{sys.argv[1]}/{number}", row_group_rows=1000)
        env.from_async_iterable(rows).sink_to(sink)
        async with env.start("cancelled"):
            await asyncio.sleep(waits.uniform(0.01, 0.1))

asyncio.run(main())
"""


def test_cancelling_at_random_moments_neither_crashes_nor_leaves_files(
    tmp_path: Path,
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CANCELS, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert ended.returncode == 0
    # Each block ends before its input does, which is said, and nothing else.
    log = without_held(ended.stderr)
    assert all("the job is cancelled" in line for line in log.splitlines())
    assert list(tmp_path.iterdir()) == []


async def test_a_cancelled_write_ends_before_the_file_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, may_end = threading.Event(), threading.Event()
    calls: list[str] = []
    write_table, close = pq.ParquetWriter.write_table, pq.ParquetWriter.close

    def slow_write(self: Any, *args: Any, **options: Any) -> None:
        entered.set()
        assert may_end.wait(100)
        write_table(self, *args, **options)
        calls.append("written")

    def noted_close(self: Any) -> None:
        calls.append("closed")
        close(self)

    monkeypatch.setattr(pq.ParquetWriter, "write_table", slow_write)
    monkeypatch.setattr(pq.ParquetWriter, "close", noted_close)
    writer = ParquetWriter(
        Segments(tmp_path, "part", ".parquet"),
        schema=None,
        rows_per_file=None,
        row_group_rows=1,
    )

    async def write_and_close() -> None:
        pending = writer.write_run(ListRun([{"a": 1}]))
        assert pending is not None
        try:
            await pending
        finally:
            closing = writer.close()
            assert closing is not None
            await closing

    task = asyncio.create_task(write_and_close())
    while not entered.is_set():
        await asyncio.sleep(0.001)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.005)
    assert calls == []
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert calls[:2] == ["written", "closed"]
