"""The environment: where streams begin, and how they are run."""

from __future__ import annotations

import asyncio
import html
import shutil
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Callable,
    Iterable,
    Mapping,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import fields, replace as replaced
from datetime import timedelta
from functools import partial
from os import PathLike
from tempfile import mkdtemp
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    NoReturn,
    Unpack,
    overload,
)

from aiomailbox.api.build import (
    check_max_parallelism,
    check_name,
    check_source,
    check_strategy,
    has_watermarks,
    told_strategy,
)
from aiomailbox.api.definition import JobDefinition, check_reads
from aiomailbox.api.job import (
    Body,
    JobBlock,
    JobClient,
    in_background,
    inboxes_kept_open,
    running_job,
)
from aiomailbox.api.job_progress import progress as showing_progress
from aiomailbox.api.misnamed import Hinting, no_such_method
from aiomailbox.api.stream import DataStream
from aiomailbox.api.verbs import verb, warn_if_loop_ends
from aiomailbox.checkpoint.settings import (
    MEMORY_THRESHOLD,
    CheckpointConfig,
    CheckpointingMode,
    Retention,
)
from aiomailbox.clock import Clock
from aiomailbox.connectors.async_iterable import AsyncIterableSource
from aiomailbox.connectors.collection import CollectionSource
from aiomailbox.connectors.inbox import Inbox, Questions
from aiomailbox.errors import InvalidArgumentError, UsageError, WrongTypeError, add_note
from aiomailbox.eventtime.strategy import WatermarkStrategy
from aiomailbox.graph.transformation import Transformation
from aiomailbox.operators.core.event_progress import rows_for_times
from aiomailbox.operators.core.user_code import warn_here
from aiomailbox.operators.sources.operator import SourceOperator
from aiomailbox.operators.sources.source import Boundedness, Source
from aiomailbox.records.events import Question
from aiomailbox.runtime.config import ENDED, JobConfig, JobSettings, JobState
from aiomailbox.runtime.master import JobMaster, JobResult
from aiomailbox.signatures import check_count, check_type, explained
from aiomailbox.typevars import T

if TYPE_CHECKING:
    from aiomailbox.connectors.files.source import FileSource
    from aiomailbox.connectors.spark.source import SparkSource


# What a job is called that was given no name: several of them may run at once.
UNNAMED: Final = "job"


class StreamExecutionEnvironment(metaclass=Hinting):
    """Where streams begin, and how they are run.

    An environment holds no running resources before a job starts: it can be built
    anywhere, also at import time and in another thread.

    Args:
        parallelism: The number of subtasks of operators that do not set their own.
        max_parallelism: Key groups of the job; None for Flink's default.
        clock: The source of processing time; None for the event loop's own (such as that
            of a virtual-time loop), else the machine's.
        config: The settings of all jobs of the environment.

    Concept:
        Flink, ``StreamExecutionEnvironment``.

    Example:
        >>> import aiomailbox as am
        >>> env = am.StreamExecutionEnvironment()
        >>> am.run(env.from_collection(["a", "b"]).map(str.upper).collect())
        ['A', 'B']
    """

    __slots__ = ("__weakref__", "_definition")

    def __init__(
        self,
        parallelism: int = 1,
        max_parallelism: int | None = None,
        *,
        clock: Clock | None = None,
        config: JobConfig | None = None,
    ) -> None:
        given: Any = parallelism
        if isinstance(given, JobConfig):
            raise WrongTypeError(
                "parallelism",
                "it is a JobConfig",
                "Write am.StreamExecutionEnvironment(config=...).",
            )
        check_count(parallelism, "parallelism")
        if max_parallelism is not None:
            check_max_parallelism(max_parallelism)
            if max_parallelism < parallelism:
                raise InvalidArgumentError(
                    "max_parallelism",
                    f"{parallelism} subtasks cannot share {max_parallelism} key groups",
                    "Use at least the parallelism, better 128.",
                )
        self._definition = JobDefinition(
            parallelism, max_parallelism, clock, _checked(config or JobConfig())
        )

    def __repr__(self) -> str:
        definition = self._definition
        return (
            f"<StreamExecutionEnvironment parallelism={definition.parallelism}, "
            f"{len(definition.sinks)} sinks>"
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Suggest the method that is meant by a name of another library.

            Raises:
                AttributeError: Always.
            """
            raise AttributeError(no_such_method(type(self), name), name=name, obj=None)

        def __setattr__(self, name: str, value: object) -> None:
            """Set what there is, or what a class of the user's own adds.

            Raises:
                AttributeError: If it has no such attribute.
            """
            kind = type(self)
            if kind is StreamExecutionEnvironment and not hasattr(kind, name):
                message = no_such_method(kind, name)
                raise AttributeError(message, name=name, obj=None)
            super().__setattr__(name, value)

    @overload
    def from_source(
        self,
        source: Source[Any],
        watermark_strategy: WatermarkStrategy[Any] | None = None,
        *,
        name: str = "source",
        output_type: type[T],
    ) -> DataStream[T]: ...

    @overload
    def from_source(
        self,
        source: Inbox[T] | FileSource[T] | SparkSource[T],
        watermark_strategy: WatermarkStrategy[Any] | None = None,
        *,
        name: str = "source",
        output_type: None = None,
    ) -> DataStream[T]: ...

    @overload
    def from_source(
        self,
        source: Source[Any],
        watermark_strategy: WatermarkStrategy[Any] | None = None,
        *,
        name: str = "source",
        output_type: None = None,
    ) -> DataStream[Any]: ...

    def from_source(
        self,
        source: Source[Any],
        watermark_strategy: WatermarkStrategy[Any] | None = None,
        *,
        name: str = "source",
        output_type: type[Any] | None = None,
    ) -> DataStream[Any]:
        """Start a stream at a source.

        Args:
            source: For example ``am.SparkSource(df)``.
            watermark_strategy: How records get event times and the stream gets watermarks;
                None for a stream without event time.
            name: The name of the operator.
            output_type: If given, the records are checked to be of this type.
        """
        check_source(source)
        strategy = watermark_strategy or WatermarkStrategy.no_watermarks()
        check_strategy(strategy, "watermark_strategy")
        fields = getattr(source, "record_fields", None)
        factory = partial(SourceOperator, source, strategy)
        check_reads(fields, factory)
        item = Transformation(
            name=check_name(name, "name"),
            factory=factory,
            parallelism_max=getattr(source, "parallelism_max", None),
            record_fields=fields,
            source=source,
            settings=() if watermark_strategy is None else (told_strategy(strategy),),
            watermarks=has_watermarks(strategy),
            asks_for_rows=rows_for_times(strategy),
        )
        origins = self._definition.declare(item)
        stream: DataStream[Any] = DataStream(self._definition, origins)
        return stream.checked(output_type)

    def from_collection(
        self,
        values: Iterable[T],
        watermark_strategy: WatermarkStrategy[Any] | None = None,
        *,
        name: str = "collection",
        output_type: type[T] | None = None,
    ) -> DataStream[T]:
        """Start a stream of the items of a list, or of any iterable.

        A list is split among the subtasks; any other iterable is read once, by one subtask.
        """
        return self.from_source(
            CollectionSource(values),
            watermark_strategy,
            name=name,
            output_type=output_type,
        )

    def from_arrow(
        self,
        data: Any,
        watermark_strategy: WatermarkStrategy[Any] | None = None,
        *,
        records: Any = "namedtuple",
        name: str = "arrow",
    ) -> DataStream[Any]:
        """Start a stream of the rows of Arrow data, as columns.

        Columns stay columns up to the first function of single records. The data is not
        copied.

        Args:
            data: A `pyarrow.Table`, a record batch, or anything that exports an Arrow
                stream, such as a DataFrame of Polars, or several of these. Batches may
                have different columns if their types can be unified; a missing column is
                null.
            watermark_strategy: As in `from_source`. A timestamp assigner that is a field's
                name keeps columns; a function makes rows.
            records: The record that functions get for a row: ``"namedtuple"``,
                ``dict``, or a dataclass, msgspec Struct or NamedTuple class with these
                fields.
            name: The name of the operator.

        Raises:
            InvalidArgumentError: If ``records`` is none of these.
            MissingExtraError: If pyarrow is not installed.
            RecordTypeError: If the schemas of the batches cannot be unified.
            UnsupportedColumnError: If a column does not fit the class.
            WrongTypeError: If ``data`` is none of these.

        Example:
            >>> import aiomailbox as am
            >>> import pyarrow as pa
            >>> env = am.StreamExecutionEnvironment()
            >>> cities = env.from_arrow(pa.table({"city": ["Oslo", "Rome"]}))
            >>> am.run(cities.collect())
            [Record(city='Oslo'), Record(city='Rome')]
        """
        from aiomailbox.connectors import ArrowSource

        source = ArrowSource(data, records)
        return self.from_source(source, watermark_strategy, name=name)

    def from_async_iterable(
        self,
        items: AsyncIterable[T] | Callable[..., AsyncIterable[T]],
        watermark_strategy: WatermarkStrategy[Any] | None = None,
        *,
        name: str = "async iterable",
        output_type: type[T] | None = None,
        offset: str | Callable[[T], Any] | None = None,
        bounded: bool = True,
    ) -> DataStream[T]:
        """Start a stream of the items that an asynchronous iterable yields.

        Args:
            items: The iterable, or a function that makes one (so that the stream can be run
                more than once). It is closed when the job ends early. With ``offset=``, a
                function of the offset after which to resume; None at the beginning.
            watermark_strategy: As in `from_source`.
            name: The name of the operator.
            output_type: If given, the items are checked to be of this type.
            offset: A field of the items, or a function of one, that gives its offset. It
                makes the source replayable after a failure.
            bounded: False for items without an end. Operators that need an end then
                raise an error, or log a warning.
        """
        return self.from_source(
            AsyncIterableSource(items, offset=offset, bounded=bounded),
            watermark_strategy,
            name=name,
            output_type=output_type,
        )

    def from_questions(
        self, *, size: int = 1024, name: str = "questions"
    ) -> DataStream[Question[Any]]:
        """Start a stream of the questions that are put to the job with ``job.ask(value)``.

        Each record is an ``am.Question`` with the ``value`` that was asked; its answer
        is returned by sending ``question.answer(result)`` to the sink ``am.Answers()``.

        Args:
            size: How many questions may be open at once; further callers wait.
            name: The name of the operator.

        Example:
            See `JobClient.ask`.
        """
        return self.from_source(Questions(size), name=name)

    @verb
    async def execute(
        self,
        job_name: str = UNNAMED,
        *,
        config: JobConfig | None = None,
        progress: bool = False,
        replace: JobClient | None = None,
        **settings: Unpack[JobSettings],
    ) -> JobResult:
        """Run every stream that ends in a sink until the job has finished.

        Cancelling the caller cancels the job and waits for its clean-up. Executing
        again runs only what has been added since, as in Flink.

        Args:
            job_name: The name of the job.
            config: As in `start`.
            progress: Whether to show the job's progress; see `progress`.
            replace: As in `start`.
            **settings: As in `start`.

        Raises:
            UsageError: If there is no sink, or the job runs already; see `start`.
            JobFailedError: If the job failed; the cause is the first error.
        """
        shown = self._shown(
            job_name, progress, config=config, replace=replace, **settings
        )
        async with shown as job:
            return await job.result()

    @verb
    async def execute_async(
        self,
        job_name: str = UNNAMED,
        *,
        config: JobConfig | None = None,
        progress: bool = False,
        replace: JobClient | None = None,
        **settings: Unpack[JobSettings],
    ) -> JobClient:
        """Run every stream that ends in a sink in the background, and return at once.

        For when no block can enclose the job, as in the cells of a notebook: other
        cells can run meanwhile. The job ends by itself, by `JobClient.stop`, by
        `JobClient.cancel`, or with the event loop. A failure is logged at once, and
        raised by `JobClient.result`. Otherwise prefer `start`, whose block also ends the
        job.

        Args:
            job_name: The name of the job.
            config: As in `start`.
            progress: Whether to show the job's progress while it runs; see `progress`. In a
                notebook, it is updated below the cell, with a row for each
                operator, even while other cells run.
            replace: As in `start`.
            **settings: As in `start`.

        Returns:
            The job, which has been started.

        Raises:
            UsageError: If there is no sink, or the job runs already; see `start`.

        Concept:
            Flink, ``executeAsync``.

        Example:
            >>> import aiomailbox as am
            >>> async def main() -> None:
            ...     env = am.StreamExecutionEnvironment()
            ...     env.from_collection([1, 2]).sink_to(print)
            ...     job = await env.execute_async()
            ...     await job.result()
            >>> am.run(main())
            1
            2
        """
        shown = self._shown(
            job_name, progress, config=config, replace=replace, **settings
        )
        return await in_background(shown)

    @asynccontextmanager
    async def _shown(
        self, job_name: str, progress: bool, **how: Any
    ) -> AsyncGenerator[JobClient]:
        async with (
            self.start(job_name, on_failure="log", **how) as job,
            showing_progress(job, quiet=not progress),
        ):
            yield job

    def start(
        self,
        job_name: str = UNNAMED,
        *,
        config: JobConfig | None = None,
        on_failure: Literal["cancel", "log"] = "cancel",
        replace: JobClient | None = None,
        **settings: Unpack[JobSettings],
    ) -> AbstractAsyncContextManager[JobClient]:
        """Run every stream that ends in a sink as a service.

        As with `execute`, the next call does not start the same sinks again. Leaving
        the block cancels what still runs and waits for its clean-up. When its restart
        strategy gives up, the job logs an ERROR at once and fails the block: it cancels
        the body, as ``asyncio.TaskGroup`` does. If the body is waiting for
        `JobClient.result`, that raises the failure instead.

        Args:
            job_name: The name of the job.
            config: The settings of this job, in place of all those of the environment,
                with a warning that names what is left out; None for those.
            on_failure: The effect of a failure on the body of the block: ``"cancel"``,
                or ``"log"`` for a body that continues without the job.
            replace: A running job that this one takes over from, such as that of a notebook
                cell that is run again. It is first stopped with a savepoint, from
                which this job resumes. A job that has already ended is left alone.
            **settings: Settings of `JobConfig` that this job has of its own, such as
                ``restore_from="latest"`` or ``deployment=am.Processes(4)``.

        Raises:
            UsageError: If there is no sink; or if a job with this ``job_id`` or, without one, of
                this name, other than the default one, still runs on this event loop, and
                ``replace`` is not given.
            InvalidArgumentError: If ``on_failure`` is none of these, there is no directory
                for what ``if_finished`` asks about, or a setting is out of its range.
            WrongTypeError: If a setting has the wrong type.
            JobFailedError: At the end of the block, if the job failed by itself.
        """
        if config is not None:
            _warn_of_left_out(self.config, config, settings)
        return JobBlock(
            self._running(
                job_name, config or self.config, settings, on_failure, replace
            )
        )

    @asynccontextmanager
    async def _running(
        self,
        job_name: str,
        config: JobConfig,
        settings: JobSettings,
        on_failure: Literal["cancel", "log"],
        replace: JobClient | None,
    ) -> AsyncGenerator[JobClient]:
        if on_failure not in {"cancel", "log"}:
            raise InvalidArgumentError(
                "on_failure",
                f"{on_failure!r} is not known",
                'Use "cancel", which ends the body of the block, or "log".',
            )
        check_name(job_name, "job_name")
        definition = self._definition
        sinks = list(definition.sinks)
        handed_over = None
        config = _checked(config, **settings)
        if replace is None:
            _refuse_twice(job_name, config.job_id)
        else:
            if settings.get("restore_from") is not None:
                raise InvalidArgumentError(
                    "replace",
                    "the job cannot resume from two places",
                    "Pass either replace= or restore_from=.",
                )
            # Before the other one is stopped: what cannot be deployed replaces nothing.
            graph = definition.job_graph(job_name, sinks, config)
            # What both jobs read takes records meanwhile, for this one.
            with inboxes_kept_open(graph):
                handed_over = await _take_over(replace)
            if handed_over is not None:
                config = replaced(config, restore_from=handed_over)
        try:
            job = definition.deploy(job_name, sinks, config=config)
        except BaseException as error:
            if handed_over is not None:
                add_note(error, _is_kept(handed_over))
            raise
        # What could not be deployed stays: it may be mended and run.
        definition.sinks.clear()
        definition.executed = sinks
        definition.taken_by, definition.refused = job_name, False
        _warn_of_unread(job, definition)
        told = definition.config

        def warn_of_late_settings() -> None:
            nonlocal told
            told = definition.warn_of_late_settings(job_name, told)

        def warn_of_late() -> None:
            definition.warn_of_late_sink(job_name)
            warn_of_late_settings()

        body = Body(is_cancelled=on_failure == "cancel")
        job.call_when_failed(body.on_failed)
        try:
            try:
                # Held here: a page finds the jobs that run.
                client = JobClient(job, body, warn_of_late)
                yield client
                warn_of_late_settings()
                _warn_if_cut_off(job)
            except asyncio.CancelledError:
                warn_if_loop_ends(job)
                raise
            finally:
                job.call_when_failed(None)
                job.cancel()
                await job.outlast()
        except asyncio.CancelledError:
            # The block was cancelled by the job's own failure, or from outside: the
            # body knows.
            if not await body.leave():
                raise
        finally:
            if handed_over is not None:
                _give_back(handed_over, job)
            await body.leave()
        if job.failed:
            await job.wait()

    def explain(
        self,
        job_name: str = UNNAMED,
        *,
        format: Literal["text", "mermaid", "svg", "json"] = "text",  # noqa: A002 -- the user's word
    ) -> str:
        """Return the job graph as text: chains, channels, bounds, sync or async.

        The graph that `execute` would run or, if there is none, the one that ran last.

        Args:
            job_name: The name of the job.
            format: ``"text"``; a drawing: ``"mermaid"`` or ``"svg"``; or ``"json"`` for
                programs.

        Raises:
            InvalidArgumentError: If the format is not known.
            UsageError: If there is no sink.
        """
        definition = self._definition
        sinks = definition.sinks or definition.executed
        return definition.explain(job_name, sinks, format)

    def _repr_html_(self) -> str:
        """Return the job graph as a drawing, for notebooks."""
        definition = self._definition
        sinks = definition.sinks or definition.executed
        if not sinks:
            return f"<code>{html.escape(repr(self))}</code>"
        return definition.explain("job", sinks, "svg")

    @explained("Write enable_checkpointing(interval, directory=...).")
    def enable_checkpointing(
        self,
        interval: timedelta | None,
        *,
        directory: str | PathLike[str] | None = None,
        mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE,
        timeout: timedelta = timedelta(minutes=10),
        min_pause: timedelta = timedelta(),
        max_concurrent: int = 1,
        tolerable_failures: int = 0,
        unaligned: bool = False,
        aligned_timeout: timedelta = timedelta(),
        retained: int = 1,
        retention: Retention = Retention.ON_CANCELLATION,
        after_tasks_finish: bool = True,
        journal_directory: str | PathLike[str] | None = None,
        memory_threshold: int = MEMORY_THRESHOLD,
        file_mode: int = 0o600,
    ) -> StreamExecutionEnvironment:
        """Take checkpoints, so that jobs resume from the latest one when they fail.

        Args:
            interval: The time between checkpoints: a timedelta; None for those
                that `JobClient.trigger_checkpoint` requests, and the final one of a job.
            directory: Where they are kept: a path, or a URL such as
                ``s3://bucket/jobs``; None for a temporary directory, which helps when
                a task or a worker fails, but not when the program does.
            mode: Whether records affect state exactly once, or at least once.
            timeout: How long a checkpoint may take before it fails: a timedelta.
            min_pause: The minimum pause between checkpoints: a timedelta.
            max_concurrent: How many checkpoints may be pending at once.
            tolerable_failures: How many in a row may fail before the job fails.
            unaligned: Whether barriers may overtake data, which is then part of the
                checkpoint.
            aligned_timeout: With ``unaligned``, how long barriers wait for each other
                first: a timedelta.
            retained: How many checkpoints are kept; with 1 there is no other to use if the
                latest is damaged.
            retention: Whether checkpoints in ``directory`` are kept when the job has not
                finished: also if it was cancelled, as by SIGTERM, only if it failed, or
                never. A job that has finished, or was stopped, keeps none.
            after_tasks_finish: Whether checkpoints continue once some tasks have finished.
            journal_directory: Where operators with a journal keep finished calls: a
                path or a URL; None for next to the checkpoints.
            memory_threshold: Task state of at most so many bytes is stored in the metadata
                instead of a file of its own.
            file_mode: The mode of new files of checkpoints, savepoints and the journal,
                exactly, whatever the umask; new directories get the x bits that go with it.
                For processes of other users, such as Spark's executors: ``0o660`` for those
                of the same group.

        Raises:
            InvalidArgumentError: If a number is out of its range, or settings exclude
                each other.
            WrongTypeError: If an argument has the wrong type.

        Concept:
            Flink, ``StreamExecutionEnvironment.enableCheckpointing`` and
            ``CheckpointConfig``.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> _ = env.enable_checkpointing(am.seconds(10))
        """
        checkpoints = CheckpointConfig(
            interval,
            directory=directory,
            mode=mode,
            timeout=timeout,
            min_pause=min_pause,
            max_concurrent=max_concurrent,
            tolerable_failures=tolerable_failures,
            unaligned=unaligned,
            aligned_timeout=aligned_timeout,
            retained=retained,
            retention=retention,
            after_tasks_finish=after_tasks_finish,
            journal_directory=journal_directory,
            memory_threshold=memory_threshold,
            file_mode=file_mode,
        )
        return self.configure(checkpoints=checkpoints)

    @property
    def config(self) -> JobConfig:
        """The settings of the jobs of this environment; `configure` changes some."""
        return self._definition.config

    def configure(self, **settings: Unpack[JobSettings]) -> StreamExecutionEnvironment:
        """Change settings of the jobs of this environment: those of `JobConfig`, by name.

        Raises:
            InvalidArgumentError: If a setting is out of its range.
            WrongTypeError: If a setting has the wrong type.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> env = env.configure(restart=am.restart.fixed_delay(3, 0.5))
        """
        self._definition.config = _checked(self._definition.config, **settings)
        return self


def _checked(config: JobConfig, **settings: Unpack[JobSettings]) -> JobConfig:
    """Return the settings with other values of some.

    Raises:
        InvalidArgumentError: If there is no such setting.
    """
    check_type(config, JobConfig, "config", "Write am.JobConfig(...).")
    earlier, given = config.checkpoints, settings.get("checkpoints")
    if earlier is not None and isinstance(given, CheckpointConfig):
        _warn_of_lost_checkpoint_settings(earlier, given)
    return replaced(config, **settings)


def _warn_of_left_out(
    own: JobConfig, given: JobConfig, settings: Mapping[str, Any]
) -> None:
    """Warn of settings of the environment that a job with a config of its own has not."""
    left_out = [
        name for name in _left_out(own, given, JobConfig()) if name not in settings
    ]
    if left_out:
        warn_here(
            "config= takes the place of all settings of the environment",
            left_out=left_out,
            remedy="pass settings by name, as in execute(seed=1), to keep the others",
        )


def _warn_of_lost_checkpoint_settings(
    earlier: CheckpointConfig, given: CheckpointConfig
) -> None:
    """Warn of settings of checkpoints that were given before, and not again."""
    left_out = _left_out(earlier, given, CheckpointConfig(None))
    if left_out:
        warn_here(
            "checkpoints are configured twice: the last call takes the place of all "
            "settings of the first",
            left_out=left_out,
            remedy="write all of them in one call: env.enable_checkpointing(interval, "
            "directory=...)",
        )


def _left_out(earlier: Any, given: Any, usual: Any) -> list[str]:
    """Return the settings that were set before, and are now as if never set."""
    return [
        one.name
        for one in fields(earlier)
        if getattr(earlier, one.name) != getattr(usual, one.name)
        and getattr(given, one.name) == getattr(usual, one.name)
    ]


def _refuse_twice(name: str, job_id: str | None) -> None:
    """Refuse a job that has been given an identity by which another one still runs.

    That is a cell of a notebook that is run again: both would write the same results.

    Raises:
        UsageError: If there is one.
    """
    if job_id is None and name == UNNAMED:
        return
    identity = job_id or name
    if running_job(identity) is None:
        return
    called = f"job {name!r}" if job_id is None else f"a job with job_id={job_id!r}"
    other = "name" if job_id is None else "job_id"
    raise UsageError(
        f"{called} still runs here, and this would run it a second time beside the "
        "first. To take over from it, pass its client: `job = await "
        f"env.execute_async({name!r}, replace=job)`, with env.enable_checkpointing(...). "
        f"To end it first, `await job.cancel()`. To run both, give this one another "
        f"{other}"
    )


async def _take_over(job: JobClient) -> str | None:
    """Stop a running job with a savepoint, and return its place; None if it has ended."""
    if job.state in ENDED:
        return None
    directory = mkdtemp(prefix="aiomailbox-savepoint-")
    try:
        await job.stop_with_savepoint(directory)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return directory


def _warn_of_unread(job: JobMaster, definition: JobDefinition) -> None:
    """Warn of branches that end in no sink: their operators do not run."""
    for item in definition.forget_unread():
        job.services.log.warning(
            "an operator does not run, as nothing reads its results",
            operator=item.name,
            line=item.line,
            remedy="end the stream with sink_to(...), or run it by itself, e.g. with "
            "`await stream.collect()`",
        )


def _warn_if_cut_off(job: JobMaster) -> None:
    """Warn that the end of its block cancels a job that would end by itself."""
    if job.failed or job.state not in {
        JobState.CREATED,
        JobState.RUNNING,
        JobState.RESTARTING,
    }:
        return
    sources = [node.transformation.source for node in job.graph.nodes]
    if all(one is None or one.boundedness is Boundedness.BOUNDED for one in sources):
        job.services.log.warning(
            "the block of the job ended before its input did: the job is cancelled",
            remedy="write `await job.result()` in the block to wait for its end, or "
            "`await job.cancel()` to cancel it",
        )


def _give_back(directory: str, job: JobMaster) -> None:
    """Remove a savepoint that was handed over, unless nothing else has its state."""
    coordinator = job.coordinator
    if job.failed and (coordinator is None or not coordinator.views):
        job.services.log.warning(_is_kept(directory))
    else:
        shutil.rmtree(directory, ignore_errors=True)


def _is_kept(directory: str) -> str:
    return (
        f"{directory!r} still has the savepoint of the job that was replaced: resume from it "
        "with restore_from="
    )
