"""Results as a directory of Parquet files, which appear when the job succeeded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import pyarrow as pa

from aiomailbox.connectors.parquet_commit import ParquetCommitter
from aiomailbox.connectors.parquet_writer import ParquetWriter
from aiomailbox.errors import InvalidArgumentError, WrongTypeError
from aiomailbox.operators import CommitterContext, RuntimeContext
from aiomailbox.storage import StagedDirectory, staging_directory

__all__ = ["ParquetSink"]


class ParquetSink:
    """Writes records into a directory of Parquet files.

    Files are written into a hidden directory beside it, which becomes the directory when
    the job commits: readers see what was there before, or all of the new, with a file
    ``_SUCCESS``. Where the file system cannot exchange two directories there is none for
    a moment. A job that fails or is cancelled changes nothing; what a crash leaves, the
    next job that writes there removes. One job at a time writes to a path. Times are
    microseconds, in UTC if they have a zone.

    Args:
        path: The directory; must not exist yet, but its parents need not either. A
            symbolic link stands for where it leads.
        schema: The files' schema; None takes that of the first records of a subtask.
        mode: ``"error"`` refuses a directory that exists, ``"overwrite"`` replaces it
            when the job commits.
        rows_per_file: The most rows of a file; None for one file a subtask.
        row_group_rows: How many rows are collected before they are written.

    Raises:
        InvalidArgumentError: If an argument has a value that cannot work.
        WrongTypeError: If ``path`` is no path, or ``schema`` no Arrow schema.

    Concept:
        Flink, ``FileSink``.

    Example:
        >>> ParquetSink("out/delays")
        <ParquetSink 'out/delays'>
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        schema: pa.Schema | None = None,
        mode: Literal["error", "overwrite"] = "error",
        rows_per_file: int | None = None,
        row_group_rows: int = 65_536,
    ) -> None:
        if mode not in {"error", "overwrite"}:
            raise InvalidArgumentError(
                "mode", f"{mode!r} is unknown", 'Use "error" or "overwrite".'
            )
        if schema is not None and not isinstance(schema, pa.Schema):
            raise WrongTypeError(
                "schema", f"{schema!r} is no schema", "Use pyarrow.schema([...])."
            )
        if rows_per_file is not None and rows_per_file < 1:
            raise InvalidArgumentError(
                "rows_per_file", f"{rows_per_file!r} is too few", "Use 1 or more."
            )
        if row_group_rows < 1:
            raise InvalidArgumentError(
                "row_group_rows", f"{row_group_rows!r} is too few", "Use 1 or more."
            )
        if not isinstance(path, str | os.PathLike):
            raise WrongTypeError("path", f"{path!r} is no path", "Give a directory.")
        if not str(path):
            raise InvalidArgumentError("path", "it is empty", "Give a directory.")
        self._path = Path(path)
        self._schema = schema
        self._mode = mode
        self._rows_per_file = rows_per_file
        self._row_group_rows = row_group_rows

    def create_writer(self, context: RuntimeContext) -> ParquetWriter:
        """Create the writer of one subtask."""
        token = _token(context)
        prefix = f"part-{context.subtask_index:05d}-{token}-{context.attempt}"
        return ParquetWriter(
            staging_directory(self._path, token),
            prefix,
            schema=self._schema,
            rows_per_file=self._rows_per_file,
            row_group_rows=self._row_group_rows,
        )

    def create_committer(self, context: CommitterContext) -> ParquetCommitter:
        """Create the committer."""
        directory = StagedDirectory(
            self._path, _token(context), overwrite=self._mode == "overwrite"
        )
        return ParquetCommitter(self._path, directory, context)

    def __repr__(self) -> str:
        return f"<ParquetSink {str(self._path)!r}>"


def _token(context: RuntimeContext | CommitterContext) -> str:
    # Writers and committer, wherever they are, find each other's files by it.
    return context.execution_id[:12]
