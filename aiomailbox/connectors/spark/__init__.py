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
    register_format,
    ship_library,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame as DataFrame

    from aiomailbox.connectors.spark.inside.applied import Applied
    from aiomailbox.connectors.spark.reader import SparkSplit
    from aiomailbox.connectors.spark.result import (
        SparkTableSink,
        dataframe_from_records,
        dataframe_from_state,
    )
    from aiomailbox.connectors.spark.source import SparkSource
    from aiomailbox.connectors.spark.streaming import SparkStreamSource

__all__ = [
    "Applied",
    "JavaHome",
    "SparkSource",
    "SparkSplit",
    "SparkStreamSource",
    "SparkTableSink",
    "dataframe_from_records",
    "dataframe_from_state",
    "ensure_java",
    "find_java",
    "local_session",
    "register_format",
    "ship_library",
]

_LAZY = {
    "Applied": "aiomailbox.connectors.spark.inside.applied",
    "SparkSource": "aiomailbox.connectors.spark.source",
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
