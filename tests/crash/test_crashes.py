"""Programs and workers are killed at any moment, and started again: the results are equal.

The calls that were answered are counted at the server, by key: those in flight at a crash
are made again, at most as many as may be in flight; no other one is.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.connectors.databases import PostgresSchema
from tests.crash.program import CONCURRENCY
from tests.crash.server import CountingServer

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(300)]

# More in a session of their own: AIOMAILBOX_CRASHES=30.
SEEDS = range(int(os.environ.get("AIOMAILBOX_CRASHES", "3")))
ROWS, FILES, KILLS = 1_200, 4, 3


def write_input(directory: Path) -> list[dict[str, Any]]:
    maker = random.Random(7)
    rows = [
        {
            "id": number,
            "user": f"user-{maker.randrange(20)}",
            "price": maker.randrange(1000),
            "at_ms": number * 50 + maker.randrange(1500),
        }
        for number in range(ROWS)
    ]
    place = directory / "input"
    place.mkdir()
    size = ROWS // FILES
    for number in range(FILES):
        part = rows[number * size : (number + 1) * size]
        pq.write_table(pa.Table.from_pylist(part), place / f"{number}.parquet")
    return rows


def expected_windows(rows: list[dict[str, Any]]) -> Counter[Any]:
    found: dict[tuple[str, int], list[int]] = {}
    for row in rows:
        found.setdefault((row["user"], row["at_ms"] // 10_000), []).append(
            2 * row["price"]
        )
    return Counter((user, len(t), sum(t)) for (user, _), t in found.items())


async def start(
    directory: Path, database: str, socket: str, workers: int
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.crash.program",
        str(directory),
        database,
        socket,
        str(workers),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )


def kill_somebody(program: int, chance: random.Random, workers: int) -> bool:
    """Kill the program, or one of its workers; say whether it was the program."""
    try:
        parent = psutil.Process(program)
        children = parent.children() if workers and chance.random() < 0.5 else []
        victim = chance.choice(children) if children else parent
        victim.send_signal(signal.SIGKILL)
    except psutil.NoSuchProcess:
        return True
    return victim is parent


async def until_called(
    server: CountingServer, count: int, ending: asyncio.Task[Any]
) -> None:
    """Wait until so many calls have begun, or the program has ended."""
    while server.begun.total() < count and not ending.done():
        await asyncio.wait((ending,), timeout=0.005)


async def run_with_crashes(
    directory: Path,
    database: str,
    socket: str,
    workers: int,
    chance: random.Random,
    server: CountingServer,
) -> int:
    """Run the program to its end, killed a few times; return how often."""
    kills = 0
    while True:
        program = await start(directory, database, socket, workers)
        ending = asyncio.create_task(program.communicate())
        while kills < KILLS and not ending.done():
            # Mostly while it works, and also while it starts or ends.
            calls = server.begun.total() + chance.randint(1, ROWS // KILLS)
            await until_called(server, calls, ending)
            await asyncio.wait((ending,), timeout=chance.choice([0.0, 0.05, 0.5]))
            if not ending.done():
                kills += 1
                if kill_somebody(program.pid, chance, workers):
                    break
        _, errors = await ending
        if program.returncode == 0:
            return kills
        assert program.returncode == -signal.SIGKILL, errors.decode()[-3000:]


@pytest.mark.parametrize("seed", SEEDS)
async def test_kills_change_no_result_and_pay_for_no_finished_call_twice(
    seed: int, tmp_path: Path, postgres: PostgresSchema
) -> None:
    # In turn: all in one process, and in workers, which are killed too.
    workers = 2 * (seed % 2)
    rows = write_input(tmp_path)
    await postgres.execute("CREATE TABLE priced (id BIGINT, total BIGINT)")
    server = CountingServer(seed)
    with tempfile.TemporaryDirectory(prefix="aiomailbox-") as place:
        socket = f"{place}/calls.sock"
        async with server.at(socket):
            kills = await run_with_crashes(
                tmp_path, postgres.url, socket, workers, random.Random(seed), server
            )
    priced = await postgres.execute("SELECT id, total FROM priced")
    wanted = Counter((row["id"], 2 * row["price"]) for row in rows)
    windows = pq.read_table(tmp_path / "windows").to_pylist()
    got = Counter((one["key"], one["count"], one["total"]) for one in windows)
    assert Counter(priced) == wanted
    assert got == expected_windows(rows)
    repeated = sum(count - 1 for count in server.begun.values())
    assert len(server.begun) == ROWS
    assert repeated <= kills * CONCURRENCY
    print(f"{kills} kills, {repeated} calls in flight were made again")
