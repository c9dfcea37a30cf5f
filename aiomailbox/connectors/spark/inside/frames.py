"""From a pipeline's graph to a DataFrame: one ``mapInArrow`` a stage."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from aiomailbox.connectors.spark.frame_source import (
    frame_operator,
    frame_rows,
    with_column,
)
from aiomailbox.connectors.spark.inside.levels import JobLevels
from aiomailbox.connectors.spark.inside.limits import (
    LimitDoor,
    check_limits,
    open_door,
)
from aiomailbox.connectors.spark.inside.shuffle import exchanged
from aiomailbox.connectors.spark.inside.source import StageInput
from aiomailbox.connectors.spark.inside.stage import StagePart, run_stage
from aiomailbox.connectors.spark.inside.wire import WIRE_SCHEMA
from aiomailbox.connectors.spark.jobs import is_connect
from aiomailbox.connectors.spark.shipped import shipped
from aiomailbox.graph.job_graph import JobGraph
from aiomailbox.graph.transformation import Transformation
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.runtime.config import JobConfig
from aiomailbox.runtime.peers.placement import Placement
from aiomailbox.runtime.peers.shipping import Shipment, pack

__all__ = [
    "InputFrame",
    "ShippedJob",
    "chained_frames",
    "default_parallelism",
    "new_input",
    "ship_job",
]

# Some peer that is not the parent: nothing of the job stays there.
_WORKER: Final = 1
_CONNECT_PARALLELISM_MAX: Final = 8


@dataclass(frozen=True, slots=True, eq=False)
class InputFrame:
    """A DataFrame that a pipeline is applied to, and its place in the graph."""

    df: Any
    transformation: Transformation
    is_sorted: bool


@dataclass(frozen=True, slots=True)
class ShippedJob:
    """A job as Spark's workers get it.

    Attributes:
        graph: The job.
        levels: Its stages.
        payload: The job in bytes.
        limits: Its rate limits.
        door: Where those are that all workers share; None if there are none.
        journal: The directory of finished calls; None if none are kept.
    """

    graph: JobGraph
    levels: JobLevels
    payload: bytes
    limits: list[RateLimit]
    door: LimitDoor | None
    journal: str | None


def new_input(
    df: Any, name: str = "df", *, records: Any = "namedtuple", order_by: Any = None
) -> InputFrame:
    """Return a DataFrame as the beginning of a pipeline.

    Args:
        df: The DataFrame.
        name: The parameter that it was given as.
        records: What a record is; see `SparkSource`.
        order_by: By what each partition is sorted: columns, or a list of them; None
            for as it comes.

    Raises:
        InvalidArgumentError: If the DataFrame cannot be read.
        UnsupportedColumnError: If a column cannot be carried; names it.
    """
    given = [] if order_by is None else order_by
    order = [*given] if isinstance(given, list | tuple) else [given]
    item = frame_operator(name, StageInput(frame_rows(df, name, records, order)))
    if order:
        df = df.sortWithinPartitions(*order)
    return InputFrame(with_column(df), item, bool(order))


def default_parallelism(df: Any) -> int:
    """Return how many subtasks operators have that do not say: as many as Spark has cores.

    Spark Connect does not tell; there it is what a shuffle has, and at most 8.
    """
    session = df.sparkSession
    if is_connect(df):
        shuffles = int(session.conf.get("spark.sql.shuffle.partitions"))
        return max(1, min(shuffles, _CONNECT_PARALLELISM_MAX))
    return max(1, int(session.sparkContext.defaultParallelism))


def ship_job(
    graph: JobGraph,
    config: JobConfig,
    seed: int,
    job_id: bytes,
    df: Any,
    journal: str | None,
) -> ShippedJob:
    """Return a job for Spark's workers.

    Args:
        graph: The job.
        config: Its settings.
        seed: Of its random sources.
        job_id: 16 bytes that name it.
        df: A DataFrame of the session that it runs in.
        journal: The directory of finished calls; None if none are kept.

    Raises:
        NotShippableError: If an operator cannot be pickled; names it and what of it.
        UsageError: If a rate limit cannot be kept there.
    """
    peers: dict[int, tuple[int, ...]] = {
        vertex.id: (_WORKER,) * vertex.parallelism for vertex in graph.vertices
    }
    _, payload, limits = pack(
        Shipment(graph, config, Placement(1, peers), seed, job_id, has_arrow=True)
    )
    door = None
    if check_limits(limits, is_connect=is_connect(df)):
        host = df.sparkSession.conf.get("spark.driver.host", "127.0.0.1")
        door = open_door(host, secrets.token_bytes(16), limits)
    return ShippedJob(graph, JobLevels(graph), payload, limits, door, journal)


def chained_frames(
    job: ShippedJob, inputs: list[InputFrame], want: int | None, schema: Any
) -> Any:
    """Return the DataFrame of one output, or the rows of all of them.

    Args:
        job: The job.
        inputs: What it reads.
        want: The output; None for rows of all outputs, with their numbers.
        schema: The output's schema; None for that of rows.
    """
    levels = job.levels
    last = len(levels) - 1

    def stage(level: int, vertex: int | None) -> tuple[Any, Any]:
        is_last = level == last
        part = StagePart(
            job.payload, job.limits, level, vertex, want, job.door, job.journal
        )
        final = WIRE_SCHEMA if schema is None else schema
        function = shipped(run_stage, part)
        return function, final if is_last else WIRE_SCHEMA

    frames = []
    for number, vertex in enumerate(levels.vertices[0]):
        frame = next(
            each.df for each in inputs if _is_head(each.transformation, vertex.head)
        )
        frames.append(frame.mapInArrow(*stage(0, number)))
    df = reduce(lambda one, other: one.unionAll(other), frames)
    for level in range(1, len(levels)):
        df = exchanged(df, levels.width(level)).mapInArrow(*stage(level, None))
    return df


def _is_head(item: Transformation, head: Any) -> bool:
    return head.transformation is item
