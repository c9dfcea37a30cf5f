"""A job into a directory and two tables; started again and again, until it ends.

Arguments: a directory for everything, the URL of a PostgreSQL database, how many workers.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import aiomailbox as am
from tests.runtime.processes.programs import Held

COUNT = 6_000
KEYS = 10


def slowly(number: int) -> int:
    """Take so long that somebody can kill the program."""
    if number % 20 == 0:
        time.sleep(0.002)
    return number


def row(number: int) -> dict[str, int]:
    """Make a row."""
    return {"n": number, "key": number % KEYS}


def key(record: dict[str, int]) -> int:
    """Give the rows to both subtasks."""
    return record["key"]


def main(place: Path, postgres: str, workers: int) -> None:
    """Run the job from its newest checkpoint, if there is one."""
    env = am.StreamExecutionEnvironment(parallelism=2)
    env.enable_checkpointing(am.seconds(0.1), directory=place / "checkpoints")
    if workers:
        env.configure(deployment=am.Processes(workers))
    # It does not end before it has been killed as often as it is to be.
    numbers = env.from_source(Held(COUNT, place / "gate", 500))
    rows = numbers.map(slowly).map(row).key_by(key)
    rows = rows.map(dict).uid("rows")
    rows.sink_to(am.ParquetSink(place / "rows")).uid("parquet")
    rows.sink_to(am.SqlSink(place / "data.db", "numbers")).uid("sqlite")
    rows.sink_to(am.SqlSink(postgres, "numbers", columns=["n"])).uid("postgres")
    am.run(env.execute("orders", restore_from="latest"))
    print("ended", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
