"""The same works by Polars and DuckDB, where they are installed: the limit.

They get all batches at once, know that no more will come, need no watermarks, and use all
cores. Results of DuckDB leave it as Arrow, as ours do.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tests.benchmarks.measure import System
from tests.benchmarks.records import WINDOW_MS

__all__ = ["column_peers"]

Batches = Callable[[int], list[pa.RecordBatch]]


def column_peers(work: str, batches: Batches) -> list[System]:
    """Return the systems that do a work over batches."""
    systems = []
    if importlib.util.find_spec("polars") and work in _POLARS:
        systems.append(System("Polars, all at once", _polars(_POLARS[work], batches)))
    if importlib.util.find_spec("duckdb") and work in _SQL:
        systems.append(System("DuckDB, all at once", _duckdb(_SQL[work], batches)))
    return systems


def _duckdb(query: str, batches: Batches) -> Callable[[int], int]:
    def run(count: int) -> int:
        import duckdb

        with duckdb.connect() as connection:
            connection.register("records", pa.Table.from_batches(batches(count)))
            return int(connection.sql(query).to_arrow_table().num_rows)

    return run


def _polars(query: Callable[[Any, Any], Any], batches: Batches) -> Callable[[int], int]:
    def run(count: int) -> int:
        import polars as pl

        frame = pl.from_arrow(pa.Table.from_batches(batches(count)))
        return int(query(pl, frame.lazy()).collect().height)

    return run


def _filtered(polars: Any, frame: Any) -> Any:
    even = frame.filter(polars.col("id") & 1 == 0)
    return even.select(polars.col("value") * 2)


def _running(polars: Any, frame: Any) -> Any:
    return frame.select("key", polars.col("value").cum_sum().over("key"))


def _windowed(polars: Any, frame: Any) -> Any:
    start = (polars.col("time_ms") // WINDOW_MS).alias("start")
    return frame.group_by("key", start).agg(
        polars.len().alias("n"), polars.col("value").sum().alias("total")
    )


_POLARS = {"W1c": _filtered, "W2c": _running, "W3c": _windowed}

# Sums are running in the order of records, as ours are.
_SQL = {
    "W1c": "SELECT value * 2 AS value FROM records WHERE id % 2 = 0",
    "W2c": """
        SELECT key, sum(value) OVER (PARTITION BY key ORDER BY id ROWS UNBOUNDED PRECEDING)
        FROM records
    """,
    "W3c": f"""
        SELECT key, time_ms // {WINDOW_MS} AS start, count(*) AS n, sum(value) AS total
        FROM records GROUP BY key, start
    """,
    "W9c": """
        SELECT key, start, count(*) AS n, sum(value) AS total
        FROM (
            SELECT key, value, unnest(range(time_ms // 1000 - 9, time_ms // 1000 + 1)) AS start
            FROM records
        )
        GROUP BY key, start
    """,
    "W10c": """
        SELECT key, session, count(*) AS n, sum(value) AS total
        FROM (
            SELECT key, value, sum(is_first) OVER (PARTITION BY key ORDER BY time_ms, id
                ROWS UNBOUNDED PRECEDING) AS session
            FROM (
                SELECT key, value, time_ms, id, CASE WHEN time_ms <= 3000 + lag(time_ms)
                    OVER (PARTITION BY key ORDER BY time_ms, id)
                    THEN 0 ELSE 1 END AS is_first
                FROM records
            )
        )
        GROUP BY key, session
    """,
}
