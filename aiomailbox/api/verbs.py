"""The base of all verbs that run a job, or wait for one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import aclosing, contextmanager, suppress
from functools import partial, wraps
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, ParamSpec, TypeVar
from weakref import WeakSet

from aiomailbox.api.definition import JobDefinition, refuse_ended
from aiomailbox.api.showing import show_records
from aiomailbox.connectors.async_iterable import AsyncIterableSource
from aiomailbox.connectors.collection import IteratorSource
from aiomailbox.connectors.sinks import PullSink
from aiomailbox.errors import JobFailedError, UsageError
from aiomailbox.graph.transformation import Origin, Transformation, known_fields
from aiomailbox.logs import library_log
from aiomailbox.operators.sinks.sink import SinkOperator
from aiomailbox.operators.sources.source import Boundedness, Source
from aiomailbox.records.run import Run
from aiomailbox.runtime.master import JobMaster
from aiomailbox.runtime.services import CountingHandover, PullHandover
from aiomailbox.signatures import check_count, explained
from aiomailbox.typevars import T

if TYPE_CHECKING:
    from aiomailbox.connectors.spark import DataFrame

P = ParamSpec("P")
R = TypeVar("R")


class _Folded:
    """A block whose frames are left out of what a job's end, or a refusal, raises.

    The functions that it calls are left out, and so is the one that has the block: Python
    adds no frame where a block passes on what was raised in it. The caller's come after.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        """Enter; there is nothing to do."""

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        # An interrupt in a notebook is a cancellation: it says nothing of the engine,
        # and a notebook shows five lines of source for each frame. What is wrong with the
        # program is said in words, and there is no line of it in the engine.
        if isinstance(error, JobFailedError | UsageError | asyncio.CancelledError):
            error.__traceback__ = None


folded: Final = _Folded()


def verb(
    run: Callable[P, Coroutine[Any, Any, R]],
) -> Callable[P, Coroutine[Any, Any, R]]:
    """Let a failure, a refusal or a cancellation be raised without lines of the engine."""

    @wraps(run)
    async def shortly(*args: P.args, **named: P.kwargs) -> R:
        with folded:
            return await run(*args, **named)

    return shortly


# What others give a verb that runs a job.
_OF_RESULTS: Final = {
    "config": "am.StreamExecutionEnvironment(config=...)",
    "limit": "take(count)",
    "parallelism": "am.StreamExecutionEnvironment(parallelism=...)",
    "progress": "await env.execute(progress=True), with a sink in place of the verb",
    "timeout": "async with asyncio.timeout(seconds) around it",
}


# Python's, called as a loop is closed by `asyncio.run` and its like.
_AT_THE_END: Final = asyncio.runners._cancel_all_tasks.__code__  # type: ignore[attr-defined]
_ended_by_loop: Final[WeakSet[JobMaster]] = WeakSet()


def warn_if_loop_ends(job: JobMaster, *, is_sure: bool = False) -> None:
    """Warn, once, that a job is cancelled by the end of its event loop; as it is cancelled.

    Args:
        job: The job.
        is_sure: Whether nothing else can have cancelled it.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not _AT_THE_END:
        frame = frame.f_back
    if (frame is None and not is_sure) or job in _ended_by_loop:
        return
    _ended_by_loop.add(job)
    job.services.log.warning(
        "the event loop ended before the job did: the job is cancelled",
        remedy="wait for its end: `await job.result()`, or await the task in which it "
        "was started; `await job.cancel()` cancels it",
    )


# Pulling results: a job whose last operator hands its runs to the caller.


_HANDOVER = "results"
# Twice that is as long as a person waits for a program that says nothing.
_LOOK_S: Final = 5.0
# Virtual seconds cost nobody any patience: a program that goes on for longer is the rare
# one that will never end.
_VIRTUAL_LOOK_S: Final = 24 * 3600.0


@contextmanager
def looking_on(look: Callable[[], bool]) -> Iterator[None]:
    """Call a function each few seconds until it returns True, or the block is left.

    In virtual time it is called each day.
    """
    loop = asyncio.get_running_loop()
    is_virtual = getattr(loop, "clock", None) is not None
    look_s = _VIRTUAL_LOOK_S if is_virtual else _LOOK_S
    timer: asyncio.TimerHandle | None = None

    def wait() -> None:
        nonlocal timer
        timer = loop.call_later(look_s, on_timer)

    def on_timer() -> None:
        if not look():
            wait()

    wait()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()


class Pulled(AsyncIterator[T]):
    """The results of a job, at the pace of the consumer; it starts with the first pull.

    The job ends with the iteration: when all is taken, when `aclose` is awaited, and
    when the iterator is no longer referenced, as after a ``break``. This is no
    generator, whose end asyncio leaves to a task that no code awaits.

    Args:
        definition: The job without its last operator.
        origins: What is pulled.
        name: The job's name.
        items: Makes of a run what is iterated over.
    """

    # Also of an object whose making failed.
    _pulling: _Pulling | None = None

    def __init__(
        self,
        definition: JobDefinition,
        origins: list[Origin],
        name: str,
        items: Callable[[Run], Iterable[T]],
    ) -> None:
        self._definition = definition
        self._origins = origins
        self._name = name
        self._of_run = items
        self._items: Iterator[T] = iter(())
        self._is_over = False

    async def __anext__(self) -> T:
        """Return the next item.

        Raises:
            StopAsyncIteration: If there is none any more.
            JobFailedError: If the job failed, after what it had handed over.
        """
        while True:
            for item in self._items:
                return item
            if self._is_over:
                raise StopAsyncIteration
            with folded:
                await self._refill()

    async def aclose(self) -> None:
        """Cancel the job and wait until its tasks and resources are gone. Idempotent."""
        self._is_over = True
        self._items = iter(())
        pulling, self._pulling = self._pulling, None
        if pulling is not None:
            pulling.abandon()
            await pulling.job.outlast()

    def waited_for(self, verb: str, **facts: int) -> bool:
        """Say in the log that a verb goes on until sources end that may never do so.

        Returns:
            Whether the job has started, so that its sources are known.
        """
        if self._pulling is not None:
            self._pulling.warn_of_wait(verb, **facts)
        return self._pulling is not None

    def __del__(self) -> None:
        pulling = self._pulling
        if pulling is not None:
            # Anywhere, perhaps in another thread; a loop that is closed has no job.
            with suppress(RuntimeError):
                pulling.loop.call_soon_threadsafe(pulling.abandon)

    async def _refill(self) -> None:
        try:
            if self._pulling is None:
                self._pulling = _Pulling(
                    self._definition, self._origins, self._name, PullHandover()
                )
            run = await self._pulling.handover.take()
            if run is not None:
                self._items = iter(self._of_run(run))
                return
            await self._pulling.job.wait()
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and self._pulling is not None:
                warn_if_loop_ends(self._pulling.job)
            await self.aclose()
            raise
        await self.aclose()


class _Pulling:
    """A job that hands over its results.

    Attributes:
        loop: The event loop that it runs on.
        handover: As given.
        job: The job.
    """

    def __init__(
        self,
        definition: JobDefinition,
        origins: list[Origin],
        name: str,
        handover: PullHandover,
    ) -> None:
        refuse_ended(origins)
        self.loop = asyncio.get_running_loop()
        self.handover = handover
        sink = PullSink(_HANDOVER)
        last = Transformation(
            name="results",
            factory=partial(SinkOperator, sink),
            inputs=[origins],
            sink=sink,
            # The order of what one subtask emits stays.
            follows_input=True,
            takes_columns=True,
        )
        self.job: JobMaster = definition.deploy(
            name, [last], handovers={_HANDOVER: self.handover}
        )
        definition.executed = [last]

    def warn_of_wait(self, verb: str, **facts: int) -> None:
        """Say that the sources have not ended; see `Pulled.waited_for`."""
        sources = [
            node.name
            for node in self.job.graph.nodes
            if _may_be_endless(node.transformation.source)
        ]
        if sources:
            self.job.services.log.warning(
                "a call goes on until its sources end",
                call=f"{verb}()",
                sources=sources,
                **facts,
                remedy="for one without end, use `async for record in stream`, "
                "take(count), or a sink and env.start(); an inbox ends with close()",
            )

    def abandon(self) -> None:
        """Cancel the job, if it has not ended, and drop what it hands over."""
        self.handover.abandon()
        self.job.cancel()


def _may_be_endless(source: Source[Any] | None) -> bool:
    # Nobody has to say that what is iterated over ends.
    return isinstance(source, AsyncIterableSource | IteratorSource) or (
        source is not None and source.boundedness is Boundedness.UNBOUNDED
    )


def pull_runs(
    definition: JobDefinition, origins: list[Origin], name: str
) -> Pulled[Run]:
    """Return the results run by run."""
    return Pulled(definition, origins, name, lambda run: (run,))


def pull_values(
    definition: JobDefinition, origins: list[Origin], name: str
) -> Pulled[Any]:
    """Return the results one by one."""
    return Pulled(definition, origins, name, lambda run: run.values)


async def count_results(definition: JobDefinition, origins: list[Origin]) -> int:
    """Return how many results there are; hands none over, which takes turns of the loop.

    Raises:
        JobFailedError: If the job failed.
    """
    counted = CountingHandover()
    pulling = _Pulling(definition, origins, "count", counted)

    def look() -> bool:
        pulling.warn_of_wait("count", records=counted.records)
        return True

    try:
        with looking_on(look):
            await pulling.job.wait()
    except asyncio.CancelledError:
        warn_if_loop_ends(pulling.job)
        raise
    finally:
        pulling.abandon()
        await pulling.job.outlast()
    return counted.records


# As many records take a gigabyte or so.
_COLLECTED_MANY: Final = 1_000_000


def _refusing(remedy: str) -> Callable[..., NoReturn]:
    """Return a method that says how to write what Python calls it for."""

    def refuse(self: object, *_: object) -> NoReturn:
        raise UsageError(remedy)

    return refuse


class Results(Generic[T]):
    """The verbs of a stream that run it; see `DataStream`."""

    _definition: JobDefinition
    _origins: list[Origin]

    def explain(self) -> str:
        """Return the graph that leads to this stream as text, even without a sink.

        Concept:
            See `StreamExecutionEnvironment.explain`.
        """
        return self._explain("text")

    def _repr_html_(self) -> str:
        """Return the graph that leads to this stream as a drawing, for notebooks."""
        return self._explain("svg")

    def _explain(self, form: str) -> str:
        ends = list(dict.fromkeys(one.transformation for one in self._origins))
        return self._definition.explain("stream", ends, form)

    def __aiter__(self) -> Pulled[T]:
        """Run the stream and yield its records, at the pace of the consumer.

        Leaving the loop early cancels the job; ``contextlib.aclosing`` (or
        ``stream.take``) waits until the job has ended.
        """
        return pull_values(self._definition, self._origins, "pull")

    @verb
    @explained("Write collect(), or collect(job_name).", **_OF_RESULTS)
    async def collect(self, job_name: str = "collect") -> list[T]:
        """Return all records as a list; with several subtasks, in no guaranteed order.

        A warning says when the sources have not ended after some seconds, or a million
        records are held: a stream without end is for ``async for``.

        Raises:
            JobFailedError: If the job failed.
        """
        values: list[T] = []
        has_warned = False
        runs = pull_runs(self._definition, self._origins, job_name)

        def look() -> bool:
            return runs.waited_for("collect", records_held=len(values))

        async with aclosing(runs):
            with looking_on(look):
                async for run in runs:
                    values.extend(run.values)
                    if len(values) >= _COLLECTED_MANY and not has_warned:
                        has_warned = True
                        library_log().warning(
                            "collect() holds a million records in memory, and goes on",
                            records=len(values),
                            remedy="use `async for record in stream`, take(count), "
                            "or a sink",
                        )
        return values

    @verb
    @explained("Write count().", **_OF_RESULTS)
    async def count(self) -> int:
        """Return how many records there are.

        Raises:
            JobFailedError: If the job failed.
        """
        return await count_results(self._definition, self._origins)

    @verb
    @explained("Write take(count).", **_OF_RESULTS)
    async def take(self, count: int) -> list[T]:
        """Return the first records, then cancel the rest of the job.

        Args:
            count: The maximum number of records, at least 1.

        Raises:
            JobFailedError: If the job failed before.
        """
        check_count(count, "count")
        values: list[T] = []
        records: Pulled[T] = pull_values(self._definition, self._origins, "take")

        def look() -> bool:
            return records.waited_for("take", records=len(values), wanted=count)

        async with aclosing(records):
            with looking_on(look):
                async for value in records:
                    values.append(value)
                    if len(values) == count:
                        break
        return values

    @verb
    @explained("Write show(), or show(count, truncate=...).", **_OF_RESULTS)
    async def show(self, count: int = 20, *, truncate: int | None = 40) -> None:
        """Run the stream, print its first records as a table, and cancel the rest.

        A column is a field of the records. A notebook shows an HTML table below the cell.
        Where an event loop is running, as in a notebook, write ``await stream.show()``; in
        a script, write ``am.run(stream.show())``.

        Args:
            count: The maximum number of records, at least 1.
            truncate: The maximum number of characters of a value; None for all of them.

        Raises:
            InvalidArgumentError: If an argument is out of its range.
            JobFailedError: If the job failed before.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> orders = [{"item": "tea", "price": 2.5}, {"item": "jam", "price": 4}]
            >>> am.run(env.from_collection(orders).show())
            +------+-------+
            | item | price |
            +------+-------+
            | tea  |   2.5 |
            | jam  |     4 |
            +------+-------+

        Concept:
            Spark, ``DataFrame.show``.
        """
        if truncate is not None:
            check_count(truncate, "truncate")
        show_records(await self.take(count), count, truncate)

    def arrow_batches(self) -> Pulled[Any]:
        """Run the stream and yield the results as Arrow record batches, as they come.

        All batches have one schema, that of the first: dictionaries become plain values,
        and times are in microseconds, in UTC if they have a zone. Rows are NamedTuples,
        dicts, dataclasses or msgspec Structs; records that are batches already are yielded
        themselves, with this schema.

        Raises:
            MissingExtraError: If pyarrow is not installed.
            JobFailedError: If the job failed.
            RecordTypeError: If a record does not fit the schema.

        Example:
            >>> import aiomailbox as am
            >>> import pyarrow as pa
            >>> async def main():
            ...     env = am.StreamExecutionEnvironment()
            ...     cities = env.from_arrow(pa.table({"city": ["Oslo", "Rome"]}))
            ...     async for batch in cities.arrow_batches():
            ...         print(batch.num_rows, batch.schema)
            >>> am.run(main())
            2 city: string
        """
        from aiomailbox.connectors import record_batches

        return Pulled(
            self._definition, self._origins, "arrow_batches", record_batches()
        )

    @verb
    @explained("Write to_spark(spark, schema=..., path=...).", **_OF_RESULTS)
    async def to_spark(
        self, spark: Any, *, schema: Any = None, path: Any = None
    ) -> DataFrame:
        """Run the stream and return its records as a Spark DataFrame.

        A small result stays in memory. A larger one is written to Parquet files, one
        segment at a time, so that memory is bounded.

        Args:
            spark: The SparkSession that gets the data.
            schema: The DataFrame's schema: text, such as ``"city string"``, a StructType,
                an Arrow schema or a record class. None infers it from the records.
            path: A directory that does not exist yet, for all records; it appears when
                they are complete. None for files that are removed with this process and
                that only a local session can read.

        Raises:
            MissingExtraError: If pyspark is not installed.
            JobFailedError: If the job failed.
            UsageError: If there is no path, the records do not fit into one message,
                and Spark's executors may be on other machines.
        """
        from aiomailbox.connectors import dataframe_from_runs

        runs = pull_runs(self._definition, self._origins, "to_spark")
        try:
            with looking_on(partial(runs.waited_for, "to_spark")):
                return await dataframe_from_runs(
                    spark,
                    runs,
                    schema=schema,
                    path=path,
                    fields=known_fields(self._origins),
                )
        finally:
            await runs.aclose()

    if not TYPE_CHECKING:
        __iter__ = _refusing(
            "records come while the job runs: write `async for record in stream`, "
            "or `for record in await stream.collect()`"
        )
        __getitem__ = _refusing(
            "records come while the job runs: write `await stream.take(count)` for "
            "the first ones, or `(await stream.collect())[0]`"
        )
        # It would be true whatever its records are.
        __bool__ = _refusing(
            "a stream is a description, neither true nor false: write "
            "`if await stream.take(1)` to ask whether it has a record, "
            "`if stream is None` to ask whether there is a stream"
        )
        __len__ = _refusing(
            "records come while the job runs: write `await stream.count()`"
        )
        __await__ = _refusing(
            "a stream is a description, which cannot be awaited: write "
            "`await stream.collect()` for its records, or end it with "
            "stream.sink_to(...) and `await env.execute()`"
        )
