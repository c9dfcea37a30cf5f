"""Makes Spark's format "aiomailbox" known to a session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aiomailbox.connectors.spark.frame_checks import check_session
from aiomailbox.errors import UsageError


def register_format(spark: Any) -> None:
    """Let a session read ``spark.readStream.format("aiomailbox").load(directory)``.

    The directory is one that `ParquetSink` writes with ``follow=``. Of a commit Spark sees
    all files or none, each row once, also where the query or the pipeline starts again;
    ``spark.read`` works, too. Options: ``reader``, a name, which is needed where files are
    deleted when all readers have passed them, and which must be another one for each
    query; ``maxFilesPerTrigger``. Spark's executors and this process must see the
    directory. They need pyarrow, not this library.

    Needs Spark 4.2 or newer, whose Python sources get a limit.

    Args:
        spark: The session, classic or Connect.

    Raises:
        WrongTypeError: If ``spark`` is no session.
        InvalidArgumentError: If it was stopped.
        UsageError: If this Spark is too old.
    """
    check_session(spark)
    from pyspark import cloudpickle

    try:
        from aiomailbox.connectors.spark import follower
    except ImportError as error:
        raise UsageError(
            'the format "aiomailbox" needs Spark 4.2 or newer; an older one can follow '
            "the directory with spark.readStream.parquet, file by file"
        ) from error

    follower.DirectoryFormat.base = str(Path.cwd())
    cloudpickle.register_pickle_by_value(follower)
    try:
        spark.dataSource.register(follower.DirectoryFormat)
    finally:
        cloudpickle.unregister_pickle_by_value(follower)
