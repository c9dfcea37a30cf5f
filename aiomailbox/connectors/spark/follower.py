"""The format "aiomailbox" of Spark: follows a directory that a running pipeline writes.

Spark pickles these classes and runs them in processes of its own, on machines that need not
have this library: the module is shipped by value, and nothing in it refers to the library.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StringType, StructType


class DirectoryFormat(DataSource):  # type: ignore[misc]  # pyspark has no types
    """A directory of Parquet files with a log of commits, for Spark.

    Options: ``path``; ``reader``, this reader's name, needed where files that all readers
    have passed are deleted; ``maxFilesPerTrigger``, after which a micro-batch takes no
    further commit.

    Attributes:
        base: What relative paths are relative to: where the format was registered, as
            Spark's own processes are somewhere else.
    """

    base: str = "."

    @classmethod
    def name(cls) -> str:
        """Return what stands in ``format(...)``."""
        return "aiomailbox"

    def schema(self) -> StructType:
        """Return the schema of the first file; columns of directories are texts."""
        log = self._log()
        for _, files in log.commits(0):
            kinds = parquet.read_schema(log.directory / files[0])
            found = from_arrow_schema(kinds, prefer_timestamp_ntz=True)
            for name in _values(files[0]):
                found = found.add(name, StringType())
            return found
        raise ValueError(
            f"nothing is committed in {str(log.directory)!r} yet: give the schema of its rows, "
            'with spark.readStream.format("aiomailbox").schema("id long, ...")'
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads all commits that there are."""
        return _BatchReader(self._log(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 -- Spark's
        """Return what follows the commits."""
        files_max = int(self.options.get("maxFilesPerTrigger", "0"))
        name = self.options.get("reader", "")
        if name and not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", name):
            raise ValueError(f"reader={name!r}: use letters, digits, - and _")
        return _StreamReader(self._log(), schema, name, files_max)

    def _log(self) -> _Log:
        path = self.options.get("path")
        if not path:
            raise ValueError("the format aiomailbox needs a directory: .load(path)")
        return _Log(Path(self.base, unquote(urlparse(path).path)))


class _File(InputPartition):  # type: ignore[misc]  # pyspark has no types
    def __init__(self, path: str, values: dict[str, str | None]) -> None:
        super().__init__(path)
        self.path = path
        self.values = values


class _Log:
    """The commits of the writer, and the positions of the readers."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._folder = directory / "_aiomailbox"

    def header(self) -> dict[str, Any] | None:
        """Return what log it is; None if there is none yet."""
        try:
            found: dict[str, Any] = json.loads((self._folder / "log.json").read_bytes())
        except FileNotFoundError:
            if not self.directory.exists():
                return None
            raise ValueError(
                f"{str(self.directory)!r} has no log of commits: write it with "
                'ParquetSink(path, follow="keep")'
            ) from None
        return found

    def numbers(self) -> list[int]:
        """Return the numbers of the commits that can be read."""
        paths = (self._folder / "commits").glob("*.json")
        return sorted(int(path.stem) for path in paths)

    def commits(self, after: int, last: int | None = None) -> Iterator[tuple[int, Any]]:
        """Yield number and files of the commits after one."""
        # Up to a number that was looked at once: commits may come while these are read.
        stop = max(self.numbers(), default=0) if last is None else last
        for number in range(after + 1, stop + 1):
            path = self._folder / "commits" / f"{number:020d}.json"
            try:
                commit = json.loads(path.read_bytes())
            except FileNotFoundError:
                # The first ones may have been deleted before this reader was known.
                if after == 0 and number < min(self.numbers(), default=0):
                    continue
                raise ValueError(
                    f"commit {number} of {str(self.directory)!r} was deleted: all "
                    "readers that were known had read it"
                ) from None
            yield number, commit["files"]

    def register(self, name: str, passed: int, log_id: str) -> None:
        """Let a reader be known from now on."""
        # Readers are processes of their own, on this machine or another one.
        with self._locked():
            if not self._reader(name).exists():
                self._write(self._reader(name), {"log": log_id, "passed": passed})

    def is_known(self, name: str) -> bool:
        """Say whether a reader was registered."""
        return self._reader(name).exists()

    def passed(self, name: str, number: int, header: dict[str, Any]) -> None:
        """Remember that a reader has passed a commit; delete what all have passed."""
        with self._locked():
            self._write(self._reader(name), {"log": header["id"], "passed": number})
            if header["deletes"]:
                self._delete(self._passed_by_all())

    def _passed_by_all(self) -> int:
        readers = (self._folder / "readers").glob("*.json")
        return min(int(json.loads(path.read_bytes())["passed"]) for path in readers)

    def _delete(self, last: int) -> None:
        folder = self._folder / "commits"
        # The newest stays: its number says which one comes next.
        for number in self.numbers()[:-1]:
            if number <= last:
                path = folder / f"{number:020d}.json"
                # In two steps: a commit whose files are half gone must not be found by
                # its name.
                path.rename(path.with_suffix(".gone"))
        # Also what an earlier reader had begun to delete when it was killed.
        for gone in sorted(folder.glob("*.gone")):
            for name in json.loads(gone.read_bytes())["files"]:
                (self.directory / name).unlink(missing_ok=True)
            gone.unlink()

    def _reader(self, name: str) -> Path:
        return self._folder / "readers" / f"{name}.json"

    def _write(self, path: Path, content: Any) -> None:
        draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        with draft.open("w") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # Not at the top: there are systems without it, which may write directories.
        import fcntl

        with (self._folder / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


class _Files:
    """Reads files as the schema wants them."""

    def __init__(self, log: _Log, schema: StructType) -> None:
        self._log = log
        self._schema = schema

    def _partition(self, name: str) -> _File:
        return _File(str(self._log.directory / name), _values(name))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a file's rows."""
        assert isinstance(partition, _File)
        wanted = to_arrow_schema(self._schema, timezone="UTC")
        with parquet.ParquetFile(partition.path) as file:
            names = [name for name in wanted.names if name in file.schema_arrow.names]
            for batch in file.iter_batches(columns=names):
                yield _fitted(batch, wanted, partition.values)


class _BatchReader(_Files, DataSourceReader):  # type: ignore[misc]  # pyspark has no types
    """Reads what was committed when the plan was made."""

    def partitions(self) -> Sequence[InputPartition]:
        self._log.header()
        return [
            self._partition(name) for _, files in self._log.commits(0) for name in files
        ]


class _Bounded(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # pyspark has no types
    """Spark's two interfaces of a reader that ends at a given offset."""


class _StreamReader(_Files, _Bounded):
    """Reads commit after commit; an offset is a log and the last commit that was read."""

    def __init__(
        self, log: _Log, schema: StructType, name: str, files_max: int
    ) -> None:
        super().__init__(log, schema)
        self._name = name
        self._files_max = files_max
        self._target: int | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 -- Spark's
        """Return the offset before the oldest commit that is there."""
        header = self._log.header()
        if header is None:
            return {"log": "", "commit": 0}
        self._begin(header, 0)
        # One before the oldest, as offsets are behind what was read.
        return {"log": header["id"], "commit": min(self._log.numbers(), default=1) - 1}

    def latestOffset(  # noqa: N802 -- Spark's
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Return the offset behind the newest commit, or as many as may be taken."""
        header = self._checked(start)
        if header is None:
            return start
        self._begin(header, start["commit"])
        count, found = 0, start["commit"]
        for number, files in self._log.commits(found, self._target):
            count += len(files)
            is_full = isinstance(limit, ReadMaxFiles) and count > limit.max_files
            # At least one commit, however many files it has, or the query would stand
            # still.
            if is_full and found > start["commit"]:
                break
            found = number
        return {"log": header["id"], "commit": found}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 -- Spark's
        """Return how much a micro-batch takes."""
        return ReadMaxFiles(self._files_max) if self._files_max else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 -- Spark's
        """Remember what is there now."""
        # Spark asks for the end once: what comes later belongs to the next run.
        self._target = max(self._log.numbers(), default=0)

    def partitions(
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> Sequence[InputPartition]:
        """Return the files between two offsets."""
        self._checked(start)
        return [
            self._partition(name)
            for _, files in self._log.commits(start["commit"], end["commit"])
            for name in files
        ]

    def commit(self, end: dict[str, Any]) -> None:
        """Pass what Spark will not ask for again."""
        header = self._checked(end)
        if header is not None and self._name:
            self._log.passed(self._name, end["commit"], header)

    def stop(self) -> None:
        """End; a query that resumes under this name finds its files."""

    def _begin(self, header: dict[str, Any], passed: int) -> None:
        if self._name:
            self._log.register(self._name, passed, header["id"])
        elif header["deletes"]:
            raise ValueError(
                f"files of {str(self._log.directory)!r} are deleted when all "
                'readers have read them: give this one a name, .option("reader", '
                '"name")'
            )

    def _checked(self, offset: dict[str, Any]) -> dict[str, Any] | None:
        header = self._log.header()
        # An empty id: the query began before there was a log.
        if header is not None and offset["log"] not in {"", header["id"]}:
            raise ValueError(
                f"{str(self._log.directory)!r} was replaced since the query began: start "
                "it with another checkpointLocation"
            )
        return header


def _values(name: str) -> dict[str, str | None]:
    """Return the columns that a file's directories name."""
    pairs = (folder.split("=", 1) for folder in name.split("/")[:-1])
    return {
        unquote(column): None
        if value == "__HIVE_DEFAULT_PARTITION__"
        else unquote(value)
        for column, value in pairs
    }


def _fitted(
    batch: pa.RecordBatch, wanted: pa.Schema, values: dict[str, str | None]
) -> pa.RecordBatch:
    columns = []
    for field in wanted:
        if field.name in batch.schema.names:
            column = batch.column(field.name)
        else:
            value = pa.scalar(values.get(field.name), pa.string())
            column = pa.repeat(value, batch.num_rows)
        columns.append(
            column if column.type.equals(field.type) else column.cast(field.type)
        )
    return pa.RecordBatch.from_arrays(columns, schema=wanted)
