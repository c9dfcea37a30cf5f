"""Pipelines as values: steps without a source and without a sink."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from aiomailbox.api.definition import JobDefinition
from aiomailbox.api.stream import DataStream, checked_result
from aiomailbox.errors import InvalidArgumentError, WrongTypeError
from aiomailbox.graph.transformation import Origin
from aiomailbox.records.events import OutputTag
from aiomailbox.runtime.config import JobConfig
from aiomailbox.runtime.job_snapshot import JobSnapshot
from aiomailbox.signatures import check_count, explained

if TYPE_CHECKING:
    from aiomailbox.connectors.spark import DataFrame
    from aiomailbox.connectors.spark.inside.applied import Applied

InT = TypeVar("InT")
OutT = TypeVar("OutT")
RunT = TypeVar("RunT")


class Pipeline(Generic[InT, OutT]):
    """A function from stream to stream that can be kept, sent and attached later.

    Make it with `pipeline`, attach it with ``stream.through(it)``. It holds no running
    resources, so it can be pickled with cloudpickle if its functions can.
    """

    def __init__(self, build: Callable[..., DataStream[OutT]], name: str) -> None:
        self._build = build
        self.name = name

    def __call__(
        self, *streams: DataStream[InT], **named: DataStream[Any]
    ) -> DataStream[OutT]:
        """Attach the steps to one or several streams, and return the resulting stream.

        Raises:
            WrongTypeError: If the function does not return a stream, or is given a
                DataFrame.
        """
        for given in (*streams, *named.values()):
            if hasattr(type(given), "mapInArrow"):
                raise WrongTypeError(
                    "pipeline",
                    f"{self.name!r} takes streams, and it is given a DataFrame",
                    "Write pipeline.apply_to(df), which runs it inside Spark, or "
                    "env.from_source(am.SparkSource(df)).through(pipeline).",
                )
        return checked_result(
            self._build(*streams, **named),
            repr(self.name),
            [*streams, *named.values()],
        )

    def apply_to(
        self,
        df: Any = None,
        *,
        schema: Any = None,
        records: Any = "namedtuple",
        order_by: Any = None,
        parallelism: int | None = None,
        max_parallelism: int | None = None,
        config: JobConfig | None = None,
        journal: str | PathLike[str] | None = None,
        **named: Any,
    ) -> Applied:
        """Run the steps inside Spark, over its own shuffle, and return DataFrames.

        Each chain of operators becomes a stage in Spark's Python workers, with an event
        loop per task; Spark's shuffle connects the stages. Everything is lazy.

        Over a streaming DataFrame, which gives streaming DataFrames, a pipeline may have
        no keys, windows or exchanges: each micro-batch is a run of its own there.
        `SparkStreamSource` is the way for those that have.

        Args:
            df: The DataFrame, if the pipeline has one input; it may be a streaming one.
            schema: The result's schema: text, a StructType, an Arrow schema or a record class;
                None for the class that the last step declares, or for the columns of the
                DataFrame as far as the steps change none.
            records: The form of a record; see `SparkSource`.
            order_by: The columns by which each partition is sorted first; for several
                DataFrames, a dict by name. Without it, a retried task may read its rows
                in another order. Watermarks wait until the end of each partition, so
                that no row is late, unless the first column has the event times, or the
                strategy says ``with_watermarks_on_bounded_input()``.
            parallelism: Subtasks of all operators that do not set their own, except
                those that directly read a DataFrame, which has its own partitions; None for
                the cores that Spark has.
            max_parallelism: Key groups; None for Flink's default.
            config: The settings; ``config.job_id`` names the run in a
                journal, None for the pipeline's name.
            journal: A directory that all workers can access, for the outcomes of calls
                of ``map_async(journal=True, id=...)``: another action, a retried task
                and a program that applies the pipeline again with this directory read
                them instead of calling. Each task attempt appends to its own file;
                concurrent attempts may repeat calls that the other has not finished. A
                task holds about 150 bytes for each call that is kept.
            **named: The DataFrames of several inputs, by the function's parameters.

        Returns:
            An `Applied`: ``.result``, ``.dead_letters``, ``.side(tag)`` are DataFrames.

        Raises:
            InvalidArgumentError: If there is no DataFrame, or one that cannot be read.
            UsageError: If an operator cannot run in Spark; names it and the reason.
            NotShippableError: If a function cannot be sent to Spark's workers.
            MissingExtraError: If pyspark is not installed.

        Example:
            >>> import aiomailbox as am
            >>> @am.pipeline
            ... def doubled(rows):
            ...     return rows.map(lambda row: {"n": 2 * row.n})
            >>> doubled.apply_to(df, schema="n long").result.show()  # doctest: +SKIP
        """
        from aiomailbox.connectors import Application, default_parallelism, new_input
        from aiomailbox.connectors.spark.inside.applied import Applied

        for setting in ("checkpoints", "restart", "restore_from"):
            if getattr(config, setting, None) is not None:
                raise InvalidArgumentError(
                    "config",
                    f"it has {setting}=, and over Spark's shuffle Spark repeats the "
                    "tasks that fail",
                    "Leave it out, or use run_on().",
                )
        frames = _frames(df, named)
        orders = _orders(order_by, frames)
        inputs = {
            name: new_input(frame, name, records=records, order_by=orders.get(name))
            for name, frame in frames.items()
        }
        if parallelism is None:
            parallelism = default_parallelism(next(iter(frames.values())))
        application = self._for_spark(
            Application,
            inputs,
            parallelism,
            max_parallelism,
            config,
            journal=None if journal is None else fspath(journal),
        )
        return Applied(application, schema)

    @explained(
        checkpoint_interval="config=am.JobConfig(checkpoints=am.CheckpointConfig(...))"
    )
    async def run_on(
        self,
        df: Any = None,
        path: str | PathLike[str] | None = None,
        *,
        schema: Any = None,
        sides: Mapping[OutputTag, Any] | None = None,
        records: Any = "namedtuple",
        order_by: Any = None,
        parallelism: int | None = None,
        max_parallelism: int | None = None,
        config: JobConfig | None = None,
        encrypt: bool | None = None,
        on_snapshot: Callable[[JobSnapshot], object] | None = None,
        **named: Any,
    ) -> DataFrame:
        """Run the steps inside Spark, in concurrent workers, until they have finished.

        One barrier stage runs all subtasks concurrently: records flow between workers
        over connections of their own, as they do between `Processes`, and results are
        committed to ``path`` with each checkpoint. A worker that dies ends the stage, which
        is restarted as ``config.restart`` defines (three times if it is not set) and
        resumes from the latest checkpoint.

        Which rows a worker reads depends on the rows alone: ``repartition`` by a hash
        of their values, sorted by ``order_by`` and that hash. A DataFrame that returns
        different rows when it is recomputed is rejected.

        Args:
            df: The DataFrame, if the pipeline has one input.
            path: A directory that does not exist yet, in storage that the driver and
                all executors can access. Until the end, checkpoints are in a hidden one by
                it.
            schema: The schema of the result; see `apply_to`.
            sides: Side outputs that are kept, each with its schema. The files of
                ``OutputTag("late")`` are in ``path + ".late"``, those of dead letters,
                which are always kept, in ``path + ".dead_letters"``.
            records: The form of a record; see `SparkSource`.
            order_by: The columns by which each worker's rows are sorted; for several
                DataFrames, a dict by name, of columns with equal types: their rows are
                sorted together. Watermarks as in `apply_to`.
            parallelism: Subtasks of all operators that do not set their own, and so the
                minimum number of workers; None for the number of Spark's slots.
            max_parallelism: Key groups; None for Flink's default.
            config: The settings; without ``checkpoints`` in it, a checkpoint is taken every
                10 seconds. ``restore_from="latest"`` resumes the run of a driver that
                has died.
            encrypt: Whether workers encrypt their connections to each other; None does so
                unless all of them are on one machine. Workers always authenticate each
                other.
            on_snapshot: Called with the job's `JobSnapshot` once a second, and with the
                last one when it has ended; on the event loop.
            **named: The DataFrames of several inputs, by the function's parameters.

        Returns:
            The results, a DataFrame over the files in ``path``.

        Raises:
            InvalidArgumentError: If there is no DataFrame, one that cannot be read, or
                no path.
            TargetExistsError: If there is something at the path.
            UsageError: If the pipeline cannot run there, or needs more slots than Spark
                has; names the operator.
            NotShippableError: If a function cannot be sent to Spark's workers.
            JobFailedError: If the job failed; names operator, line and record.
            SparkJobError: If Spark could not run the stage.
            MissingExtraError: If pyspark is not installed.

        Example:
            >>> import aiomailbox as am
            >>> @am.pipeline
            ... def doubled(rows):
            ...     return rows.map(lambda row: {"n": 2 * row.n})
            >>> results = await doubled.run_on(df, "out", schema="n long")
            ... # doctest: +SKIP
        """
        from aiomailbox.connectors import (
            BarrierRun,
            barrier_parallelism,
            new_exchange_input,
            run_in_barrier,
        )

        frames = _frames(df, named)
        orders = _orders(order_by, frames)
        inputs = {
            name: new_exchange_input(
                frame, number, name, records=records, order_by=orders.get(name)
            )
            for number, (name, frame) in enumerate(frames.items())
        }
        if parallelism is None:
            parallelism = barrier_parallelism(next(iter(frames.values())))
        run = self._for_spark(
            BarrierRun,
            inputs,
            parallelism,
            max_parallelism,
            config,
            parallelism=parallelism,
            sides=sides or {},
            encrypt=encrypt,
            on_snapshot=on_snapshot,
        )
        return await run_in_barrier(run, path, schema)

    def _for_spark(
        self,
        kind: Callable[..., RunT],
        inputs: dict[str, Any],
        subtasks: int,
        max_parallelism: int | None,
        config: JobConfig | None,
        **more: Any,
    ) -> RunT:
        """Return what runs inside Spark on DataFrames; ``df`` is the one without a name."""
        definition = JobDefinition(
            check_count(subtasks, "parallelism"),
            max_parallelism,
            config=_inside_spark(config),
        )
        streams: dict[str, DataStream[Any]] = {
            name: DataStream(definition, [Origin(each.transformation)])
            for name, each in inputs.items()
        }
        first = [streams.pop("df")] if "df" in streams else []
        return kind(
            self.name,
            partial(definition.job_graph, self.name),
            self(*first, **streams)._origins,
            list(inputs.values()),
            definition.sinks,
            definition.config,
            **more,
        )

    def __repr__(self) -> str:
        return f"<Pipeline {self.name!r}>"


@overload
def pipeline(
    build: Callable[[DataStream[InT]], DataStream[OutT]],
) -> Pipeline[InT, OutT]: ...
@overload
def pipeline(build: Callable[..., DataStream[OutT]]) -> Pipeline[Any, OutT]: ...
def pipeline(build: Callable[..., DataStream[OutT]]) -> Pipeline[Any, OutT]:
    """Turn a function from stream to stream into a pipeline; usable as a decorator.

    One of several streams is called with these: ``sold(clicks, buys)``.

    Example:
        >>> import aiomailbox as am
        >>> @am.pipeline
        ... def doubled(numbers):
        ...     return numbers.map(lambda number: 2 * number)
        >>> env = am.StreamExecutionEnvironment()
        >>> am.run(env.from_collection([1, 2]).through(doubled).collect())
        [2, 4]

    Raises:
        WrongTypeError: If ``build`` is not callable.
    """
    if not callable(build):
        raise WrongTypeError(
            "build", f"{build!r} is not callable", "Pass a function of a stream."
        )
    return Pipeline(build, getattr(build, "__qualname__", repr(build)))


def _frames(df: Any, named: dict[str, Any]) -> dict[str, Any]:
    frames = named if df is None else {"df": df, **named}
    if not frames:
        raise InvalidArgumentError(
            "df",
            "there is no DataFrame",
            "Pass one, or several by the names of the function's parameters.",
        )
    return frames


def _inside_spark(config: JobConfig | None) -> JobConfig:
    """Return the settings of a job that Spark runs.

    Raises:
        InvalidArgumentError: If they say that it runs elsewhere.
    """
    if config is None:
        return JobConfig()
    if config.deployment is not None:
        raise InvalidArgumentError(
            "config",
            f"it has deployment={config.deployment!r}, and Spark's workers run the job",
            "Leave deployment= out.",
        )
    return config


def _orders(order_by: Any, frames: dict[str, Any]) -> dict[str, Any]:
    if isinstance(order_by, dict):
        for name in order_by.keys() - frames.keys():
            raise InvalidArgumentError(
                "order_by", f"there is no DataFrame {name!r}", f"There are {[*frames]}."
            )
        return order_by
    return dict.fromkeys(frames, order_by)
