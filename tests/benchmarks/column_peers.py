"""The same works by Polars, where it is installed: the limit.

It gets all batches at once, knows that no more will come, needs no watermarks, and uses
all cores.
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
    return systems


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
