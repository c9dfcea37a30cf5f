"""Programs, workers and databases are killed at any moment: the results are equal.

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

from tests.connectors.databases import MortalServer, SqliteFile
from tests.crash.program import CONCURRENCY
from tests.crash.server import CountingServer

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(300)]

# More in a session of their own: AIOMAILBOX_CRASHES=30.
SEEDS = range(1, 1 + int(os.environ.get("AIOMAILBOX_CRASHES", "2")))
ROWS, FILES, KILLS = 1_200, 4, 3
# A database that was killed may fail each subtask of its sink, and the commit, in turn.
RESTARTS_BY_SERVER = 3


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
    command: tuple[Path, str, str, int],
    chance: random.Random,
    server: CountingServer,
    mortal: MortalServer | None,
) -> tuple[int, int]:
    """Run the program to its end, killed a few times.

    Args:
        command: The arguments of `start`.
        chance: Says when and who.
        server: Counts calls.
        mortal: The server of its database, which is killed as well; None if it has none.

    Returns:
        How often something was killed, and how often tasks may have begun again.
    """
    kills = begun = 0
    while True:
        program = await start(*command)
        ending = asyncio.create_task(program.communicate())
        # One that meets the death of its database when it begins ends with an error.
        may_fail = False
        while kills < KILLS and not ending.done():
            # Mostly while it works, and also while it starts or ends.
            calls = server.begun.total() + chance.randint(1, ROWS // KILLS)
            await until_called(server, calls, ending)
            await asyncio.wait((ending,), timeout=chance.choice([0.0, 0.05, 0.5]))
            if ending.done():
                break
            kills += 1
            if mortal is not None and chance.random() < 0.6:
                may_fail = True
                begun += RESTARTS_BY_SERVER
                # In a thread: calls are answered meanwhile.
                await asyncio.to_thread(mortal.kill)
                await asyncio.to_thread(mortal.start)
                continue
            begun += 1
            if kill_somebody(program.pid, chance, command[-1]):
                break
        _, errors = await ending
        if program.returncode == 0:
            return kills, begun
        if program.returncode != -signal.SIGKILL:
            said = errors.decode()
            assert may_fail, said[-3000:]
            assert "ConnectionError" in said, said[-3000:]


@pytest.mark.parametrize("seed", SEEDS)
async def test_kills_change_no_result_and_pay_for_no_finished_call_twice(
    seed: int, tmp_path: Path, mortal: MortalServer, sqlite: SqliteFile
) -> None:
    # In turn: all in one process, and in workers, which are killed too.
    workers = 2 * (seed % 2)
    # And rows go to a server that is killed too, or into a file.
    has_server = seed % 4 < 2
    database: MortalServer | SqliteFile = mortal if has_server else sqlite
    rows = write_input(tmp_path)
    await database.execute("CREATE TABLE priced (id BIGINT, total BIGINT)")
    server = CountingServer(seed)
    with tempfile.TemporaryDirectory(prefix="aiomailbox-") as place:
        socket = f"{place}/calls.sock"
        command = (tmp_path, database.url, socket, workers)
        async with server.at(socket):
            kills, begun = await run_with_crashes(
                command, random.Random(seed), server, mortal if has_server else None
            )
    priced = await database.execute("SELECT id, total FROM priced")
    wanted = Counter((row["id"], 2 * row["price"]) for row in rows)
    windows = pq.read_table(tmp_path / "windows").to_pylist()
    got = Counter((one["key"], one["count"], one["total"]) for one in windows)
    assert Counter(priced) == wanted
    assert got == expected_windows(rows)
    repeated = sum(count - 1 for count in server.begun.values())
    assert len(server.begun) == ROWS
    assert repeated <= begun * CONCURRENCY
    where = "a server" if has_server else "a file"
    print(f"{kills} kills, {repeated} calls in flight were made again, rows in {where}")
