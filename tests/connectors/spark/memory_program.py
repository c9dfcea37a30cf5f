"""Run by test_memory.py: streams many rows in, and says by how much the process grew.

Arguments: how many rows, in how many partitions, what a record is, "namedtuple" or
"batch", and how it is read.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from typing import Any

import aiomailbox as am
from aiomailbox.connectors.spark.session import local_session


def peak_mib() -> float:
    """Return the most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def count(df: Any, records: Any, read: Any) -> int:
    """Return how many rows there are, by a job that has seen each."""
    env = am.StreamExecutionEnvironment()
    stream = env.from_source(am.SparkSource(df, records=records, read=read))
    if records == "batch":
        return sum([batch.num_rows async for batch in stream])
    return await stream.map(lambda row: row.value).count()


async def main(rows: int, partitions: int, records: Any, read: Any) -> None:
    """Stream few rows, then all of them."""
    spark = local_session(
        "memory",
        **{"spark.driver.memory": "1g", "spark.driver.maxResultSize": "256m"},
    )

    def frame(size: int) -> Any:
        return spark.range(0, size, 1, partitions).selectExpr(
            "id",
            "concat('key-', id % 1000) AS key",
            "id * 0.5D AS value",
            "timestamp_millis(1700000000000 + id) AS ts",
            "id % 2 = 0 AS flag",
        )

    assert await count(frame(100_000), records, read) == 100_000
    before = peak_mib()
    assert await count(frame(rows), records, read) == rows
    heap = spark.sparkContext._jvm.java.lang.Runtime.getRuntime().maxMemory() >> 20
    print(f"{rows} rows as {records}, by {read}: grew by {peak_mib() - before:.0f} MiB")
    print(f"JVM heap {heap} MiB")
    print(round(peak_mib() - before))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]))
