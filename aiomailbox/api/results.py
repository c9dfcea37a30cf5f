"""The verbs that run a stream and return what comes out."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Generic, TypeVar

from aiomailbox.api.build import check_count
from aiomailbox.api.definition import JobDefinition
from aiomailbox.api.pull import pull_runs, pull_values
from aiomailbox.graph import Origin

T = TypeVar("T")


class ResultVerbs(Generic[T]):
    """Running a stream by itself: just what its records need, without other sinks.

    Every one of these starts a job, waits for its end, and leaves nothing of it
    behind; cancelling the caller cancels the job.
    """

    _definition: JobDefinition
    _origins: list[Origin]

    def __aiter__(self) -> AsyncGenerator[T]:
        """Run the stream and yield its records, at the pace of the consumer.

        Leaving the loop early needs ``contextlib.aclosing`` (or ``stream.take``) to
        cancel the job at once.
        """
        return pull_values(self._definition, self._origins, "pull")

    async def collect(self, job_name: str = "collect") -> list[T]:
        """Return all records as a list; with subtasks, in no promised order.

        Raises:
            JobFailedError: If the job failed.
        """
        values: list[T] = []
        runs = pull_runs(self._definition, self._origins, job_name)
        async with aclosing(runs):
            async for run in runs:
                values.extend(run.values)
        return values

    async def count(self) -> int:
        """Return how many records there are.

        Raises:
            JobFailedError: If the job failed.
        """
        total = 0
        runs = pull_runs(self._definition, self._origins, "count")
        async with aclosing(runs):
            async for run in runs:
                total += len(run)
        return total

    async def take(self, count: int) -> list[T]:
        """Return the first records, then cancel the rest of the job.

        Args:
            count: How many at most, at least 1.

        Raises:
            JobFailedError: If the job failed before.
        """
        check_count(count, "count")
        values: list[T] = []
        records: AsyncGenerator[Any] = pull_values(
            self._definition, self._origins, "take"
        )
        async with aclosing(records):
            async for value in records:
                values.append(value)
                if len(values) == count:
                    break
        return values

    async def show(self, count: int = 20) -> None:
        """Print the first records, one a line.

        Raises:
            JobFailedError: If the job failed before.
        """
        for value in await self.take(count):
            print(value)  # noqa: T201 -- printing is what it is for

    async def arrow_batches(self) -> AsyncGenerator[Any]:
        """Yield the results as Arrow record batches, one per run.

        Needs pyarrow. Records are NamedTuples, dicts, dataclasses or msgspec Structs;
        records that are batches already are passed on.

        Raises:
            MissingExtraError: If pyarrow is not installed.
            JobFailedError: If the job failed.
        """
        from aiomailbox.connectors import record_batches

        runs = pull_runs(self._definition, self._origins, "arrow_batches")
        to_batches = record_batches()
        async with aclosing(runs):
            async for run in runs:
                for batch in to_batches(run):
                    yield batch

    async def to_spark(self, spark: Any, *, schema: Any = None) -> Any:
        """Run the stream and return its records as a Spark DataFrame.

        The records are collected in this process first.

        Args:
            spark: The SparkSession that gets the data.
            schema: The DataFrame's schema; None infers it from the records.

        Raises:
            MissingExtraError: If pyspark is not installed.
            JobFailedError: If the job failed.
        """
        from aiomailbox.connectors import dataframe_from_records

        records = await self.collect("to_spark")
        return await dataframe_from_records(spark, records, schema=schema)
