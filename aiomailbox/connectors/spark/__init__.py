"""Everything that knows Spark: finding Java, sessions, sources and results.

Sources and results are imported when they are first used: they need pyarrow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from aiomailbox.connectors.spark.session import (
    JavaHome,
    ensure_java,
    find_java,
    local_session,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame as DataFrame

    from aiomailbox.connectors.spark.inside.applied import (
        Application,
        Applied,
        default_parallelism,
        new_input,
    )
    from aiomailbox.connectors.spark.inside.barrier import (
        BarrierRun,
        new_exchange_input,
        run_in_barrier,
    )
    from aiomailbox.connectors.spark.reader import SparkSplit
    from aiomailbox.connectors.spark.result import (
        SparkTableSink,
        dataframe_from_records,
        dataframe_from_runs,
        dataframe_from_state,
    )
    from aiomailbox.connectors.spark.session import register_format, ship_library
    from aiomailbox.connectors.spark.source import SparkSource
    from aiomailbox.connectors.spark.streaming import SparkStreamSource

__all__ = [
    "Application",
    "Applied",
    "BarrierRun",
    "JavaHome",
    "SparkSource",
    "SparkSplit",
    "SparkStreamSource",
    "SparkTableSink",
    "dataframe_from_records",
    "dataframe_from_runs",
    "dataframe_from_state",
    "default_parallelism",
    "ensure_java",
    "find_java",
    "local_session",
    "new_exchange_input",
    "new_input",
    "register_format",
    "run_in_barrier",
    "ship_library",
]

_LAZY = {
    "Application": "aiomailbox.connectors.spark.inside.applied",
    "Applied": "aiomailbox.connectors.spark.inside.applied",
    "BarrierRun": "aiomailbox.connectors.spark.inside.barrier",
    "new_exchange_input": "aiomailbox.connectors.spark.inside.barrier",
    "run_in_barrier": "aiomailbox.connectors.spark.inside.barrier",
    "dataframe_from_runs": "aiomailbox.connectors.spark.result",
    "default_parallelism": "aiomailbox.connectors.spark.inside.applied",
    "new_input": "aiomailbox.connectors.spark.inside.applied",
    "register_format": "aiomailbox.connectors.spark.session",
    "SparkSource": "aiomailbox.connectors.spark.source",
    "ship_library": "aiomailbox.connectors.spark.session",
    "SparkStreamSource": "aiomailbox.connectors.spark.streaming",
    "SparkSplit": "aiomailbox.connectors.spark.reader",
    "SparkTableSink": "aiomailbox.connectors.spark.result",
    "dataframe_from_state": "aiomailbox.connectors.spark.result",
    "dataframe_from_records": "aiomailbox.connectors.spark.result",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
