"""Run by test_local_cluster.py: Spark whose Python workers do not have this library."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.connectors.spark.session import local_session, ship_library


def main(python: str) -> None:
    # __main__ is sent by value, so that workers need no module of this program.
    @am.pipeline
    def doubled(rows: Any) -> Any:
        async def call(row: Any) -> Any:
            return {"id": row.id, "twice": 2 * row.id}

        called = rows.map_async(call).key_by(lambda row: row["id"])
        return called.reduce(lambda one, other: one)

    os.environ["PYSPARK_PYTHON"] = python
    spark = local_session("bare workers")
    spark.sparkContext.setLogLevel("OFF")
    try:
        df = spark.range(0, 100, 1, 2)
        schema = "id long, twice long"
        with pytest.raises(Exception, match="No module named 'aiomailbox'") as failure:
            doubled.apply_to(df, schema=schema).result.collect()
        assert "ship_library(spark)" in str(failure.value)
        ship_library(spark)
        rows = doubled.apply_to(df, schema=schema).result.collect()
        assert sorted(tuple(row) for row in rows) == [(n, 2 * n) for n in range(100)]
        print("ok")
    finally:
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
