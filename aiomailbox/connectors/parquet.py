"""Results as a directory of Parquet files, which appear when the job commits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from aiomailbox.connectors.directory_commit import GrowingCommitter, WholeCommitter
from aiomailbox.connectors.directory_target import DirectoryTarget, WriteMode
from aiomailbox.connectors.parquet_partitions import check_columns
from aiomailbox.connectors.parquet_writer import ParquetWriter
from aiomailbox.errors import InvalidArgumentError, WrongTypeError
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.sinks.guarantee import Guarantee
from aiomailbox.operators.sinks.sink import CommitterContext
from aiomailbox.storage.commit_log import Following

__all__ = ["ParquetSink"]


class ParquetSink:
    """Writes records into a directory of Parquet files.

    Files are written into a hidden directory next to it and never seen incomplete. One
    job at a time writes to a path. Times are microseconds, in UTC if they have a zone.

    Guarantee: exactly once. In a job that takes checkpoints, each subtask finishes a file
    before every checkpoint, and the files of a checkpoint are moved into the directory
    when it is complete: that makes the rows of an endless job visible, and a crash neither
    loses nor repeats any. The last checkpoint adds a file ``_SUCCESS``. Without them, the
    hidden directory becomes the directory when the job succeeds: readers see what was
    there before, or all new files with ``_SUCCESS``, and a job that fails or is cancelled
    changes nothing. If the file system cannot exchange two directories, there is none
    for a moment. The next job that writes there removes what a crash has left, unless
    another job can resume from it.

    Args:
        path: The directory. It must not exist yet; missing parents are created. A
            symbolic link is followed.
        schema: The files' schema; None for that of the first records of a subtask.
        mode: ``"error"`` rejects a directory that exists, ``"overwrite"`` replaces it
            when the job commits for the first time, ``"append"`` adds files to it. A job
            that resumes from a checkpoint adds to what it has written, in all modes.
            Without checkpoints, the files of ``"append"`` appear one after another when the
            job succeeds; the next job that appends removes those that a crash has left.
        rows_per_file: The maximum number of rows per file; None for one file per subtask,
            or per subtask and checkpoint.
        row_group_rows: How many rows are collected before they are written.
        partition_by: Columns whose values name directories, such as ``day=2024-05-01``,
            outermost first, instead of being in files: texts, integers, bools or dates.
            Readers that want some of the values open only these directories. An empty
            text is read as None, as in Spark's own files.
        follow: Whether the directory has a log of its commits, by which
            ``spark.readStream.format("aiomailbox")`` follows it, commit by commit:
            ``"keep"`` keeps all files, ``"delete"`` deletes the files of commits that all
            its readers have passed, except the newest.
        spark_log: Whether the directory has the log of Spark's own streaming writers, so
            that ``spark.read.parquet`` and ``spark.readStream.parquet`` see the files of
            a commit all at once, too. It has absolute paths: the directory cannot be
            moved, and only Spark uses the log.

    Raises:
        InvalidArgumentError: If an argument has an invalid value.
        WrongTypeError: If ``path`` is not a path, or ``schema`` not an Arrow schema.

    Concept:
        Flink, ``FileSink``.

    Example:
        >>> ParquetSink("out/delays")
        <ParquetSink 'out/delays'>
    """

    guarantee = Guarantee.EXACTLY_ONCE
    takes_columns = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        schema: pa.Schema | None = None,
        mode: WriteMode = "error",
        rows_per_file: int | None = None,
        row_group_rows: int = 65_536,
        partition_by: str | Sequence[str] = (),
        follow: Following | None = None,
        spark_log: bool = False,
    ) -> None:
        if follow not in {None, "keep", "delete"}:
            raise InvalidArgumentError(
                "follow", f"{follow!r} is unknown", 'Use "keep", "delete" or None.'
            )
        if follow == "delete" and spark_log:
            raise InvalidArgumentError(
                "spark_log",
                'Spark\'s log names files that follow="delete" deletes',
                'Use follow="keep".',
            )
        self._target = replace(
            DirectoryTarget.of(path, mode), follow=follow, has_spark_log=spark_log
        )
        if schema is not None and not isinstance(schema, pa.Schema):
            raise WrongTypeError(
                "schema", f"{schema!r} is not a schema", "Use pyarrow.schema([...])."
            )
        if rows_per_file is not None and rows_per_file < 1:
            raise InvalidArgumentError(
                "rows_per_file", f"{rows_per_file!r} is too few", "Use 1 or more."
            )
        if row_group_rows < 1:
            raise InvalidArgumentError(
                "row_group_rows", f"{row_group_rows!r} is too few", "Use 1 or more."
            )
        self._schema = schema
        self._rows_per_file = rows_per_file
        self._row_group_rows = row_group_rows
        self._partition_by = _names(partition_by)
        if schema is not None:
            check_columns(schema, self._partition_by)

    def create_writer(self, context: RuntimeContext) -> ParquetWriter:
        """Create the writer of one subtask."""
        return ParquetWriter(
            self._target.segments(context, ".parquet"),
            schema=self._schema,
            rows_per_file=self._rows_per_file,
            row_group_rows=self._row_group_rows,
            partition_by=self._partition_by,
        )

    def create_committer(
        self, context: CommitterContext
    ) -> GrowingCommitter | WholeCommitter:
        """Create the committer."""
        return self._target.create_committer(context)

    def __repr__(self) -> str:
        return f"<ParquetSink {str(self._target.path)!r}>"


def _names(partition_by: Any) -> tuple[str, ...]:
    names = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    if not all(isinstance(name, str) and name for name in names):
        raise WrongTypeError(
            "partition_by", f"{partition_by!r} are not names", 'Give one, as "day".'
        )
    if len(set(names)) < len(names):
        raise InvalidArgumentError(
            "partition_by", "it has duplicates", "Name each once."
        )
    return names
