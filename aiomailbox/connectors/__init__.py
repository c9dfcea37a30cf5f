"""Sources and sinks that reach outside the program.

What needs an optional dependency is looked up when it is first used.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any, Final

from aiomailbox.connectors.async_iterable import AsyncIterableSource
from aiomailbox.connectors.collection import CollectionSource, IteratorSource
from aiomailbox.connectors.inbox import (
    Answers,
    Inbox,
    Publication,
    Questions,
    Subscription,
)
from aiomailbox.connectors.sinks import FunctionSink, PullSink
from aiomailbox.errors import MissingExtraError

if TYPE_CHECKING:
    from aiomailbox.connectors.file_sink import FileSink
    from aiomailbox.connectors.files.source import FileSource
    from aiomailbox.connectors.redis_sink import RedisSink
    from aiomailbox.connectors.spark import DataFrame as DataFrame
    from aiomailbox.connectors.spark.inside.applied import Applied as Applied
    from aiomailbox.connectors.sql.sink import SqlSink

__all__ = [
    "Answers",
    "AsyncIterableSource",
    "CollectionSource",
    "FileSink",
    "FileSource",
    "FunctionSink",
    "Inbox",
    "IteratorSource",
    "Publication",
    "PullSink",
    "Questions",
    "RedisSink",
    "SqlSink",
    "Subscription",
]

# What needs no extra, but only some programs.
_LATE: Final = {
    "FileSink": "aiomailbox.connectors.file_sink",
    "FileSource": "aiomailbox.connectors.files",
    "RedisSink": "aiomailbox.connectors.redis_sink",
    "SqlSink": "aiomailbox.connectors.sql.sink",
}
_SPARK: Final = "aiomailbox.connectors.spark"
# Names behind an extra: where it is, the extra, what the extra brings.
_BEHIND_AN_EXTRA: Final = {
    "ArrowSource": ("aiomailbox.connectors.arrow", "arrow", "pyarrow"),
    "ParquetSink": ("aiomailbox.connectors.parquet", "arrow", "pyarrow"),
    "SparkSource": (f"{_SPARK}.source", "spark", "pyspark"),
    "SparkStreamSource": (f"{_SPARK}.streaming", "spark", "pyspark"),
    "SparkTableSink": (f"{_SPARK}.result", "spark", "pyspark"),
    "dataframe_from_records": (f"{_SPARK}.result", "spark", "pyspark"),
    "dataframe_from_runs": (f"{_SPARK}.result", "spark", "pyspark"),
    "Application": (f"{_SPARK}.inside.applied", "spark", "pyspark"),
    "Applied": (f"{_SPARK}.inside.applied", "spark", "pyspark"),
    "default_parallelism": (f"{_SPARK}.inside.applied", "spark", "pyspark"),
    "new_input": (f"{_SPARK}.inside.applied", "spark", "pyspark"),
    "BarrierRun": (f"{_SPARK}.inside.barrier", "spark", "pyspark"),
    "barrier_parallelism": (f"{_SPARK}.inside.barrier", "spark", "pyspark"),
    "new_exchange_input": (f"{_SPARK}.inside.barrier", "spark", "pyspark"),
    "run_in_barrier": (f"{_SPARK}.inside.barrier", "spark", "pyspark"),
    "record_batches": ("aiomailbox.columnar.encode", "arrow", "pyarrow"),
    "ExpressionFilter": ("aiomailbox.columnar.expressions", "arrow", "pyarrow"),
    "ProjectionOperator": ("aiomailbox.columnar.expressions", "arrow", "pyarrow"),
    "ColumnarKeyCheck": ("aiomailbox.columnar.key_check", "arrow", "pyarrow"),
    "AsyncColumnOperator": ("aiomailbox.columnar.async_column", "arrow", "pyarrow"),
    "MapBatchesOperator": ("aiomailbox.columnar.map_batches", "arrow", "pyarrow"),
    "Drop": ("aiomailbox.columnar.expressions", "arrow", "pyarrow"),
    "Rename": ("aiomailbox.columnar.expressions", "arrow", "pyarrow"),
    "Select": ("aiomailbox.columnar.expressions", "arrow", "pyarrow"),
    "WithColumns": ("aiomailbox.columnar.expressions", "arrow", "pyarrow"),
    "check_expression": ("aiomailbox.columnar.evaluator", "arrow", "pyarrow"),
    "made": ("aiomailbox.columnar.making", "arrow", "pyarrow"),
    "rows_reason": ("aiomailbox.columnar.making", "arrow", "pyarrow"),
    "pair_fields": ("aiomailbox.columnar.pairs", "arrow", "pyarrow"),
}


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(importlib.import_module(_LATE[name]), name)
    if name not in _BEHIND_AN_EXTRA:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, extra, requirement = _BEHIND_AN_EXTRA[name]
    if importlib.util.find_spec(requirement) is None:
        raise MissingExtraError(name, extra)
    return getattr(importlib.import_module(module), name)
