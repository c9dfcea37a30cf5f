"""Run by test_follower.py, which kills it: follows a directory, and is never done with it.

Arguments: the place, and the row behind which the query waits to be killed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from aiomailbox.connectors.spark.session import local_session, register_format


def slowly(place: Path, waits_behind: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return what passes rows on, and stops in the middle of a micro-batch."""
    reached = str(place / "reached")

    def passed(batches: Iterator[Any]) -> Iterator[Any]:
        import pathlib
        import time

        for batch in batches:
            for index in range(batch.num_rows):
                yield batch.slice(index, 1)
                if batch.column("n")[index].as_py() == waits_behind:
                    pathlib.Path(reached).touch()
                    time.sleep(600)

    return passed


def main(place: Path, waits_behind: int) -> None:
    """Follow the directory, a commit at a time."""
    # Each row goes on as it comes: some of a micro-batch are written when it stops.
    spark = local_session("reader", cores=1)
    register_format(spark)
    stream = spark.readStream.format("aiomailbox").schema("n long")
    stream = stream.options(reader="one", maxFilesPerTrigger=1)
    rows = stream.load(str(place / "results"))
    writer = rows.mapInArrow(slowly(place, waits_behind), "n long").writeStream
    writer = writer.option("checkpointLocation", str(place / "query-one"))
    writer.format("parquet").start(str(place / "seen-one")).awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
