"""A local Spark session with the settings that a pipeline in asyncio wants."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from aiomailbox.connectors.spark.java import ensure_java
from aiomailbox.errors import InvalidArgumentError, MissingExtraError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["local_session"]


def local_session(
    app_name: str = "aiomailbox", *, cores: int = 2, **conf: object
) -> SparkSession:
    """Start (or get) a Spark session inside this process, listening to no other process.

    Its clock is UTC, its workers run the interpreter that runs this, and Parquet files
    get timestamps that other readers understand.

    Args:
        app_name: The name that Spark shows.
        cores: How many tasks run at a time, at least 1.
        conf: More settings of Spark, which win over ours:
            ``**{"spark.sql.shuffle.partitions": 4}``.

    Returns:
        The session. Stopping it is the caller's business.

    Raises:
        InvalidArgumentError: If ``cores`` is less than 1.
        MissingExtraError: If pyspark is not installed.
        JavaNotFoundError: If there is no Java 17 or newer.
    """
    if cores < 1:
        raise InvalidArgumentError("cores", f"{cores!r} is too few", "Give 1 or more.")
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingExtraError("local_session", "spark") from error
    ensure_java()
    # These two are read from the environment only, so here is where they are set.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name).master(f"local[{cores}]")
    for key, value in (_SETTINGS | {"spark.pyspark.python": sys.executable}).items():
        builder = builder.config(key, value)
    for key, given in conf.items():
        builder = builder.config(key, _as_text(given))
    return builder.getOrCreate()


_SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # A barrier stage that does not fit is refused now, not after ten minutes.
    "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "1",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    # The progress bar is drawn over whatever the program prints.
    "spark.ui.showConsoleProgress": "false",
}


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
