"""Runs a pipeline in a barrier stage, again and again until it has succeeded.

Theory of operation: Spark neither repeats a barrier stage whose rows go to the driver,
nor keeps the rows of one that failed. So the driver starts it again, as the restart
strategy says, and the job resumes from its last checkpoint. A file beside the results has
the number of the attempt: what is left of an older one ends when it reads it, knows
another secret, and has lost its claim to the checkpoints.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import secrets
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from aiomailbox.checkpoint.settings import CheckpointConfig, Retention
from aiomailbox.checkpoint.store import LATEST
from aiomailbox.clock import SystemClock
from aiomailbox.connectors.parquet import ParquetSink
from aiomailbox.connectors.spark.frame_source import InputFrame, input_frame
from aiomailbox.connectors.spark.inside.applied import (
    Application,
    check_no_sinks,
    check_runnable,
    drawn_seed,
    packed,
)
from aiomailbox.connectors.spark.inside.member import (
    MARKER,
    BarrierPart,
    Outcome,
    run_member,
    watching,
)
from aiomailbox.connectors.spark.inside.partitions import BarrierInput, exchange_frame
from aiomailbox.connectors.spark.inside.results import (
    DEAD_LETTER_COLUMNS,
    dead_letter_origins,
    dead_letter_rows,
)
from aiomailbox.connectors.spark.jobs import (
    JobTag,
    is_connect,
    is_one_process,
    lost_session_error,
    master_of,
    url_for_spark,
)
from aiomailbox.connectors.spark.shipped import new_credentials, shipped
from aiomailbox.connectors.spark.types import (
    arrow_columns,
    output_schema,
    spark_schema,
)
from aiomailbox.errors import (
    InvalidArgumentError,
    SparkJobError,
    TargetExistsError,
    UsageError,
    WrongTypeError,
)
from aiomailbox.graph.job_graph import JobGraph
from aiomailbox.graph.transformation import Origin, Transformation, reachable
from aiomailbox.logs import library_log
from aiomailbox.operators.sinks.sink import SinkOperator
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.policies.restart import FixedDelayRestart, NoRestart, RestartStrategy
from aiomailbox.records.events import OutputTag
from aiomailbox.runtime.config import IfFinished, JobConfig
from aiomailbox.runtime.declared import warn_of_copies
from aiomailbox.runtime.failures import job_failure
from aiomailbox.runtime.job_snapshot import JobSnapshot
from aiomailbox.runtime.peers.messages import error_from_text
from aiomailbox.storage.workplace import SUCCESS
from aiomailbox.supervision import outlast, run_in_thread

# As often as Spark repeats a task.
_RESTART: Final = FixedDelayRestart(3, 1.0)
# From one checkpoint to the next, unless the settings say it.
_INTERVAL: Final = timedelta(seconds=10)
_OUTCOME: Final = "outcome binary"
_CANCEL_EVERY_S: Final = 0.5
_LETTERS: Final = "dead_letters"
# How Spark says that a barrier stage has more tasks than slots.
_TOO_FEW_SLOTS: Final = "SPARK-24819"


@dataclass(frozen=True, slots=True, eq=False)
class BarrierRun(Application):
    """A pipeline, and the DataFrames that it runs on.

    Attributes:
        parallelism: Subtasks of operators that do not say how many.
        sides: The side outputs that are kept, with their schemas.
        encrypt: Whether workers encrypt what they say; None if they may be on several
            machines.
        on_snapshot: Called with snapshots of the job; None for nothing.
    """

    parallelism: int = 1
    sides: Mapping[OutputTag, Any] = field(default_factory=dict)
    encrypt: bool | None = None
    on_snapshot: Callable[[JobSnapshot], object] | None = None


def new_exchange_input(
    df: Any, number: int, name: str, *, records: Any, order_by: Any
) -> InputFrame:
    """Return a DataFrame as an input of that number; see `input_frame`."""
    source = partial(BarrierInput, number)
    return input_frame(df, name, source, records=records, order_by=order_by)


def barrier_parallelism(df: Any) -> int:
    """Return how many subtasks operators have that do not say: Spark's slots."""
    slots = _slots(df)
    if slots is None:
        raise InvalidArgumentError(
            "parallelism",
            "Spark Connect does not report how many tasks can run at a time",
            "Set it to at most that number: all tasks of a barrier stage run "
            "at the same time.",
        )
    return slots


async def run_in_barrier(run: BarrierRun, path: Any, schema: Any) -> Any:
    """Run a pipeline to its end, and return its results as a DataFrame."""
    target = _target(path)
    session = run.inputs[0].df.sparkSession
    place = target.with_name(f".{target.name}.aiomailbox")
    job = await run_in_thread(_Job, run, target, place, schema)
    try:
        async with watching(place, run.on_snapshot):
            await job.run()
    finally:
        await run_in_thread(job.clean)
    reader = session.read.schema(job.schema)
    return await run_in_thread(reader.parquet, url_for_spark(target))


class _Job:
    """One call of ``run_on``: what is the same in all attempts.

    Attributes:
        schema: The results'.
    """

    def __init__(self, run: BarrierRun, target: Path, place: Path, schema: Any) -> None:
        self._run, self._target, self._place = run, target, place
        df = run.inputs[0].df
        check_no_sinks(run.sinks)
        check_runnable(run.origins, BarrierInput, len(run.inputs))
        self.schema: Any = output_schema(schema, run.origins, df.sparkSession)
        results = _output("results", target, self.schema, run.origins)
        outputs = {target: results, **_other_outputs(run, target)}
        self._workers = _widest(results, run.parallelism)
        _check_slots(results, self._workers, _slots(df))
        for each in run.inputs:
            each.transformation.parallelism = self._workers
        self._restart: RestartStrategy = (
            _RESTART if run.config.restart is None else run.config.restart
        )
        self._first = run.config.restore_from
        self._config = _config(run.config, place)
        self._graph = run.build_graph([*outputs.values()])
        warn_of_copies(self._graph)
        _check_groups(self._graph)
        encrypt = run.encrypt
        if encrypt is None:
            encrypt = not is_one_process(df.sparkSession)
        self._credentials = new_credentials() if encrypt else None
        self._secret = secrets.token_bytes(32)
        self._seed = drawn_seed(run.config)
        # What cannot be sent is said now.
        self._packed(0)
        if self._first is None:
            for path in outputs:
                if path.exists():
                    raise TargetExistsError(
                        f"{str(path)!r} exists already. Give another path, or remove it"
                    )
            # Left there by another program, and not resumed from.
            shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True, exist_ok=True)
        self._frame, self._wrapping = exchange_frame(
            [each.df for each in run.inputs],
            [each.order for each in run.inputs],
            self._workers,
        )
        self._is_over = False

    async def run(self) -> None:
        """Run attempts until one succeeds, or no other one follows."""
        clock = SystemClock()
        log = library_log(job=self._run.name)
        backoff = self._restart.begin(random.Random(self._seed))
        epoch = 0
        while True:
            error, may_repeat = await self._attempt(epoch)
            if error is None:
                self._is_over = True
                return
            backoff.on_failure(int(clock.monotonic() * 1000))
            if not may_repeat or not backoff.can_restart:
                raise error
            log.warning(
                "the barrier stage failed and starts again",
                attempt=epoch + 1,
                delay_s=backoff.delay_ms / 1000,
                error=str(error)[:2_000],
            )
            await asyncio.sleep(backoff.delay_ms / 1000)
            epoch += 1

    def clean(self) -> None:
        """Remove what was kept for another attempt, if there will be none."""
        if self._is_over:
            shutil.rmtree(self._place, ignore_errors=True)

    async def _attempt(self, epoch: int) -> tuple[Exception | None, bool]:
        """Run the stage once; say why it failed, and whether it may be repeated."""
        part = self._part(epoch)
        await run_in_thread((self._place / MARKER).write_text, str(epoch), "utf-8")
        frame = self._frame.mapInArrow(
            shipped(run_member, part), _OUTCOME, barrier=True
        )
        try:
            rows = await _collected(frame)
        except SparkJobError as error:
            if _TOO_FEW_SLOTS in str(error):
                raise UsageError(_needs_slots(self._run.name, self._workers)) from error
            lost = await run_in_thread(_is_lost, error, self._frame.sparkSession)
            return error, not lost
        outcome = msgspec.json.decode(bytes(rows[0][0]), type=Outcome)
        if outcome.error is None:
            return None, False
        cause = error_from_text(outcome.worker, outcome.error)
        failure = job_failure(self._run.name, cause, outcome.engine_traceback)
        return failure, not outcome.is_final

    def _part(self, epoch: int) -> BarrierPart:
        payload, limits = self._packed(epoch)
        return BarrierPart(
            payload,
            limits,
            self._workers,
            self._wrapping,
            self._secret,
            self._credentials,
            str(self._place),
            epoch,
            self._run.on_snapshot is not None,
        )

    def _packed(self, epoch: int) -> tuple[bytes, list[RateLimit]]:
        """Return the job for an attempt, and its rate limits."""
        # A savepoint stays what it is: the job goes on from what descends from it.
        origin = LATEST if epoch and self._first is None else self._first
        config = replace(
            self._config, restore_from=origin, if_finished=self._if_finished(epoch)
        )
        job_id = secrets.token_bytes(16)
        return packed(
            self._graph, config, self._workers, self._seed, job_id, for_parent=True
        )

    def _if_finished(self, epoch: int) -> IfFinished:
        """Return what the job does if it has finished, and its stage or driver had not."""
        chosen = self._run.config.if_finished
        if epoch == 0 and (self._first is None or chosen != "run"):
            return chosen
        # With other results, or without any, it is another run.
        return "return" if (self._target / SUCCESS).exists() else "run"


def _output(
    name: str, target: Path, schema: Any, origins: list[Origin]
) -> Transformation:
    """Return the end of an output, whose files are committed with each checkpoint."""
    sink = ParquetSink(target, schema=arrow_columns(schema))
    factory = partial(SinkOperator, sink)
    return Transformation(name, factory, [origins], follows_input=True, sink=sink)


def _other_outputs(run: BarrierRun, target: Path) -> dict[Path, Transformation]:
    """Return side outputs and dead letters, each for a directory beside the results."""
    outputs: dict[Path, Transformation] = {}
    session = run.inputs[0].df.sparkSession
    items = reachable([origin.transformation for origin in run.origins])
    if not isinstance(run.sides, Mapping):
        raise WrongTypeError(
            "sides",
            f"{run.sides!r} does not say the schemas",
            "Write {am.OutputTag('late'): 'id long'}.",
        )
    for tag, given in run.sides.items():
        _check_side(tag)
        schema = output_schema(given, [], session, "sides")
        origins = [Origin(item, None, tag) for item in items]
        path = _beside(target, tag.id)
        outputs[path] = _output(f"side output {tag.id!r}", path, schema, origins)
    if letters := dead_letter_origins(items):
        path, schema = _beside(target, _LETTERS), spark_schema(DEAD_LETTER_COLUMNS)
        rows = dead_letter_rows(letters)
        outputs[path] = _output("dead letters", path, schema, rows)
    return outputs


def _check_side(tag: Any) -> None:
    if not isinstance(tag, OutputTag):
        raise WrongTypeError(
            "sides", f"{tag!r} is not an OutputTag", "Write am.OutputTag('late')."
        )
    if not re.fullmatch(r"[\w-]+", tag.id) or tag.id == _LETTERS:
        raise InvalidArgumentError(
            "sides",
            f"{tag.id!r} cannot be part of a directory's name",
            f"Use letters, digits, - and _, and not {_LETTERS!r}.",
        )


def _beside(target: Path, name: str) -> Path:
    """Return the directory of another output than the result."""
    return target.with_name(f"{target.name}.{name}")


async def _collected(frame: Any) -> list[Any]:
    """Return the rows of a DataFrame; a cancelled caller cancels the Spark job."""
    tag = JobTag(frame, "runs the pipeline")
    is_over = threading.Event()

    def collect() -> list[Any]:
        tag.tag_thread()
        try:
            with tag.watching():
                return list(frame.collect())
        except Exception as error:
            raise tag.explain(error) from error

    loop = asyncio.get_running_loop()
    work = loop.create_task(run_in_thread(collect), name="barrier stage")

    def cancel_until_over() -> None:
        # A job may start just after a cancellation, so one is not enough.
        while not is_over.wait(_CANCEL_EVERY_S):
            tag.cancel_jobs()

    def cancel() -> None:
        threading.Thread(
            target=cancel_until_over, name="cancel a barrier stage", daemon=True
        ).start()

    try:
        await outlast(work, cancel)
    finally:
        is_over.set()
        # Where the caller was cancelled, asyncio would log an exception not retrieved.
        failure = work.exception()
    if failure is not None:
        raise failure
    return work.result()


def _is_lost(error: Exception, session: Any) -> bool:
    """Say whether Spark itself is gone."""
    cause = error.__cause__ or error
    return lost_session_error(cause, session, "a pipeline ran") is not None


def _target(path: Any) -> Path:
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
    if not text:
        raise InvalidArgumentError(
            "path", f"{path!r} is not a path", "Give a directory."
        )
    if "://" in text:
        raise InvalidArgumentError(
            "path",
            f"{text!r} is a URL, and results are committed by renaming files",
            "Give a directory that the driver and all executors see, e.g. a mounted one.",
        )
    return Path(text).absolute()


def _config(config: JobConfig, place: Path) -> JobConfig:
    """Return the settings of the job inside: the driver starts it again."""
    settings = config.checkpoints or CheckpointConfig(_INTERVAL)
    if settings.directory is None:
        settings = replace(settings, directory=str(place / "checkpoints"))
    settings = replace(settings, retention=Retention.ON_CANCELLATION)
    return replace(config, checkpoints=settings, restart=NoRestart())


def _widest(results: Transformation, parallelism: int) -> int:
    """Return how many slots the pipeline needs."""
    own = [item.parallelism or 1 for item in reachable([results])]
    return max(parallelism, *own)


def _slots(df: Any) -> int | None:
    """Return how many tasks Spark runs at a time; None if it does not tell."""
    if is_connect(df):
        local = re.fullmatch(r"local\[(\d+)\]", master_of(df.sparkSession))
        return None if local is None else int(local[1])
    context = df.sparkSession.sparkContext
    with contextlib.suppress(Exception):
        scala = context._jsc.sc()
        profile = scala.resourceProfileManager().defaultResourceProfile()
        return int(scala.maxNumConcurrentTasks(profile))
    return int(context.defaultParallelism)


def _check_slots(results: Transformation, workers: int, slots: int | None) -> None:
    """Check that all tasks can run side by side."""
    if slots is None or workers <= slots:
        return
    widest = [item for item in reachable([results]) if item.parallelism == workers]
    who = f"operator {widest[0].name!r}" if widest else "the pipeline"
    raise UsageError(_needs_slots(who, workers, f"{slots}"))


def _needs_slots(who: str, workers: int, slots: str = "fewer") -> str:
    return (
        f"{who} has {workers} subtasks, and Spark runs {slots} tasks at a time: in "
        "a barrier stage all of them run at the same time. Set parallelism= to at "
        "most that number, or use apply_to(), where stages run one after the other."
    )


def _check_groups(graph: JobGraph) -> None:
    groups = {vertex.head.slot_sharing_group for vertex in graph.vertices}
    if len(groups) > 1:
        raise UsageError(
            f"the operators are in slot sharing groups {sorted(groups)}: in a barrier "
            "stage each task has a subtask of every operator. Leave "
            "slot_sharing_group() out."
        )
