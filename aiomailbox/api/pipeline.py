"""Pipelines as values: steps without a source and without a sink."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from aiomailbox.api.build import check_count
from aiomailbox.api.definition import JobDefinition
from aiomailbox.api.stream import DataStream
from aiomailbox.errors import InvalidArgumentError, WrongTypeError
from aiomailbox.graph import Origin
from aiomailbox.runtime import JobConfig

InT = TypeVar("InT")
OutT = TypeVar("OutT")


class Pipeline(Generic[InT, OutT]):
    """A function from stream to stream that can be kept, sent and attached later.

    Make it with `pipeline`, attach it with ``stream.through(it)``. It holds nothing
    live, so it can be pickled with cloudpickle if its functions can.
    """

    def __init__(self, build: Callable[..., DataStream[OutT]], name: str) -> None:
        self._build = build
        self.name = name

    def __call__(
        self, *streams: DataStream[InT], **named: DataStream[Any]
    ) -> DataStream[OutT]:
        """Attach the steps to a stream, or to several, and return what comes out.

        Raises:
            WrongTypeError: If the function does not return a stream.
        """
        result: Any = self._build(*streams, **named)
        if not isinstance(result, DataStream):
            raise WrongTypeError(
                "pipeline",
                f"{self.name!r} returned {type(result).__name__}",
                "Return the stream that results.",
            )
        return result

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
        **named: Any,
    ) -> Any:
        """Run the steps inside Spark, over its own shuffle, and return DataFrames.

        Each chain of operators becomes a stage in Spark's Python workers, with an event
        loop per task; Spark's shuffle is what lies between two. All of it is lazy.

        Args:
            df: The DataFrame, if the pipeline has one input.
            schema: The result's: text, a StructType, an Arrow schema or a record class;
                None for the class that the last step declares.
            records: What a record is; see `SparkSource`.
            order_by: By which columns each partition is sorted first; of several
                DataFrames a dict by name. Without it a repeated task may read its rows
                in another order.
            parallelism: Subtasks of all operators that do not say how many, but for
                those right behind a DataFrame, which has its own partitions; None for
                the cores that Spark has.
            max_parallelism: Key groups; None for Flink's default.
            config: Settings of the runtime.
            **named: The DataFrames of several inputs, by the function's parameters.

        Returns:
            An `Applied`: ``.result``, ``.dead_letters``, ``.side(tag)`` are DataFrames.

        Raises:
            InvalidArgumentError: If there is no DataFrame, or one that cannot be read.
            UsageError: If an operator cannot run there; names it, and says why.
            NotShippableError: If a function cannot be sent to Spark's workers.
            MissingExtraError: If pyspark is not installed.

        Example:
            >>> import aiomailbox as am
            >>> @am.pipeline
            ... def doubled(rows):
            ...     return rows.map(lambda row: {"n": 2 * row.n})
            >>> doubled.apply_to(df, schema="n long").result.show()  # doctest: +SKIP
        """
        from aiomailbox.connectors import (
            Application,
            Applied,
            default_parallelism,
            new_input,
        )

        frames = named if df is None else {"df": df, **named}
        if not frames:
            raise InvalidArgumentError(
                "df", "there is no DataFrame", "Write pipeline.apply_to(df)."
            )
        orders = (
            order_by if isinstance(order_by, dict) else dict.fromkeys(frames, order_by)
        )
        inputs = {
            name: new_input(frame, name, records=records, order_by=orders.get(name))
            for name, frame in frames.items()
        }
        if parallelism is None:
            parallelism = default_parallelism(next(iter(frames.values())))
        definition = JobDefinition(
            check_count(parallelism, "parallelism"),
            max_parallelism,
            config=config or JobConfig(),
        )
        streams: dict[str, DataStream[Any]] = {
            name: DataStream(definition, [Origin(frame.transformation)])
            for name, frame in inputs.items()
        }
        first = [] if df is None else [streams.pop("df")]
        result = self(*first, **streams)
        application = Application(
            self.name,
            partial(definition.job_graph, self.name),
            result._origins,
            list(inputs.values()),
            definition.sinks,
            definition.config,
        )
        return Applied(application, schema)

    def __repr__(self) -> str:
        return f"<Pipeline {self.name!r}>"


def pipeline(
    build: Callable[[DataStream[InT]], DataStream[OutT]],
) -> Pipeline[InT, OutT]:
    """Turn a function from stream to stream into a pipeline; usable as a decorator.

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
