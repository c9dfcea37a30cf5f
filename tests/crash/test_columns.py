"""A program whose state is in columns is killed, and started again: nothing changes."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.crash.columns_program import (
    GAP_MS,
    JITTER_MS,
    NEAR_MS,
    SIZE_MS,
    SLIDE_MS,
)

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(120)]

ROWS = 1600
# Of each run the length of batches, whose borders are others, too, and the checkpoints
# after which it is killed; None for no kill.
RUNS = [(40, 2), (50, None)]


def rows() -> list[dict[str, Any]]:
    return [
        {
            "id": number,
            "user": f"user-{number * number % 13}",
            "price": number * 31 % 997,
            "tax": number % 3,
            "ms": 10 * number - 3000 - number * 7 % JITTER_MS,
        }
        for number in range(ROWS)
    ]


def expected(rows: list[dict[str, Any]]) -> dict[str, Counter[Any]]:
    """Compute by hand what comes out."""
    found: dict[str, Counter[Any]] = defaultdict(Counter)
    groups: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    seen: dict[str, list[dict[str, Any]]] = defaultdict(list)
    distinct = set()
    for row in rows:
        row["net"] = row["price"] - row["tax"]
        seen[row["user"]].append(row)
        found["running"][(row["user"], *folded(seen[row["user"]]))] += 1
        if (row["user"], row["tax"]) not in distinct:
            distinct.add((row["user"], row["tax"]))
            found["distinct"][row["id"],] += 1
        at = row["ms"]
        groups["tumbling", row["user"], at // SIZE_MS].append(row)
        for start in range(at - at % SLIDE_MS, at - SIZE_MS, -SLIDE_MS):
            groups["sliding", row["user"], start].append(row)
    for user, mine in seen.items():
        mine.sort(key=lambda row: row["ms"])
        session, end = 0, -(10**9)
        for row in mine:
            session += row["ms"] > end
            end = row["ms"] + GAP_MS
            groups["sessions", user, session].append(row)
        for left in mine:
            for right in mine:
                if left["tax"] or not right["tax"]:
                    continue
                gain = right["net"] - left["net"]
                pair = (user, left["id"], right["id"], gain)
                found["near"][pair] += abs(left["ms"] - right["ms"]) <= NEAR_MS
                same = left["ms"] // SIZE_MS == right["ms"] // SIZE_MS
                found["joined"][pair] += same
    for (kind, user, _), mine in groups.items():
        found[kind][(user, *folded(mine))] += 1
    return {name: +counts for name, counts in found.items()}


def folded(rows: list[dict[str, Any]]) -> tuple[int, int, int]:
    nets, prices = [row["net"] for row in rows], [row["price"] for row in rows]
    return len(rows), sum(nets), max(prices)


def written(directory: Path, name: str) -> Counter[Any]:
    fields = {"near": ["user", "id", "id2", "gain"], "distinct": ["id"]}
    fields["joined"] = fields["near"]
    names = fields.get(name, ["key", "n", "net", "most"])
    table = pq.read_table(directory / name, columns=names)
    return Counter(zip(*(table[each].to_pylist() for each in names), strict=True))


async def run_until_killed(
    directory: Path, batch_rows: int, checkpoints: int | None
) -> None:
    """Run the program, and kill it as soon as it has made some checkpoints more."""
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.crash.columns_program"),
        *(str(directory), str(batch_rows)),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    ending = asyncio.create_task(program.communicate())
    before = set((directory / "checkpoints").glob("*/chk-*/_metadata"))
    made: set[Path] = set()
    while checkpoints is not None and not ending.done():
        # Old ones are removed meanwhile.
        made |= set((directory / "checkpoints").glob("*/chk-*/_metadata")) - before
        if len(made) >= checkpoints:
            program.kill()
            break
        await asyncio.wait((ending,), timeout=0.005)
    _, errors = await ending
    killed = 0 if checkpoints is None else -signal.SIGKILL
    assert program.returncode == killed, errors.decode()[-3000:]


async def test_windows_and_joins_in_columns_survive_kills_with_other_batches(
    tmp_path: Path,
) -> None:
    given = rows()
    pq.write_table(pa.Table.from_pylist(given), tmp_path / "in.parquet")
    for batch_rows, checkpoints in RUNS:
        if checkpoints is None:
            (tmp_path / "gate").touch()
        await run_until_killed(tmp_path, batch_rows, checkpoints)
    for name, counts in expected(given).items():
        assert written(tmp_path, name) == counts, name
