"""How rows come from Spark: chunks of a partition, from one of several feeders.

Theory of operation: a feeder gives, in a thread, what a receiver takes on the loop: what is
read, then for each partition in the order of their indexes its rows in chunks, and its
end. Each reads from a position on: what is before it is passed over where it is made, and
its checks are told.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa

from aiomailbox.connectors.spark import packing
from aiomailbox.connectors.spark.frame_checks import CHECK, plan_digest, row_check
from aiomailbox.connectors.spark.jobs import MEMORY_REMEDY, JobTag, is_connect
from aiomailbox.connectors.spark.pushing import Push
from aiomailbox.connectors.spark.shipped import Credentials
from aiomailbox.connectors.spark.staged import Stage
from aiomailbox.errors import SourceChangedError, SparkJobError

ReadWay = Literal["iterate", "push"]
# What the user should know, and why it is so.
Warn = Callable[[str, str], None]

# What Spark keeps of the driver's heap for itself, and how often the rest would hold a
# partition: as the result of a task, as a block, and as what is sent to Python.
_RESERVED_BYTES: Final = 300 << 20
_COPIES: Final = 5
_ROOM_BYTES_MIN: Final = 16 << 20
# Of its maxResultSize, which counts what is around them, too.
_RESULT_SHARE: Final = 0.9


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """A read of a DataFrame.

    Attributes:
        df: The DataFrame; None to read what is staged.
        batch_rows: The most rows of a chunk.
        way: How Spark gives them.
        listen: The address to listen on where it pushes them.
        credentials: What that is encrypted with; None for no encryption.
        prefetch: Whether Spark computes the next partition ahead.
        stage: Where Spark writes all rows first, and how; None to read from Spark.
        by_count: Whether a position is the number of rows before it: where all rows are
            in one order, and Spark may cut it into partitions otherwise each time.
        checks: Whether Spark says what follows from the values of each row: where no job
            will ever resume from a position, it need not.
        parts: How many partitions were asked for; for progress where Spark does not tell.
    """

    df: Any
    batch_rows: int
    way: ReadWay = "iterate"
    listen: str = "127.0.0.1"
    prefetch: bool = False
    stage: Stage | None = None
    by_count: bool = False
    checks: bool = True
    parts: int | None = None
    credentials: Credentials | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows of a partition.

    Attributes:
        part: The partition's index.
        first: The number of the first row in it.
        batch: The rows.
        checks: What follows from the values of each row, shape ``(rows,)``; None where
            rows cannot change, or are not compared.
    """

    part: int
    first: int
    batch: pa.RecordBatch
    checks: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class PartEnd:
    """A partition ended.

    Attributes:
        part: Its index.
        rows: How many it had; None if they were not counted.
        check: Sum of the checks of the rows that were passed over.
    """

    part: int
    rows: int | None = None
    check: int = 0


@dataclass(frozen=True, slots=True)
class Skipped:
    """Rows at the beginning of a partition were passed over.

    Attributes:
        check: Sum of their checks.
    """

    check: int


@dataclass(frozen=True, slots=True)
class Beginning:
    """The head of a read, which comes first.

    Attributes:
        fingerprint: Tells this DataFrame, as it is read, from others.
        parts: How many partitions it has; None where Spark does not tell.
        rows: How many rows it has; None if they were not counted.
    """

    fingerprint: str
    parts: int | None
    rows: int | None = None


ReadItem = Chunk | PartEnd | Skipped | Beginning


class Feeder(ABC):
    """Gives the rows of a DataFrame, in a thread."""

    def __init__(self, plan: ReadPlan, part: int, row: int) -> None:
        self._plan, self._part, self._row = plan, part, row
        # What was staged before is read without Spark.
        self._tag = None if plan.df is None else JobTag(plan.df)

    def items(self) -> Iterator[ReadItem]:
        """Read; blocks, and drops what it holds in the same thread."""
        if self._tag is None:
            yield from self.read()
            return
        self._tag.tag_thread()
        with self._tag.watching(self.look):
            yield from self.read()

    def look(self) -> None:  # noqa: B027 -- most have nothing to look for
        """Look at what goes on in Spark, every few seconds, from another thread."""

    @abstractmethod
    def read(self) -> Iterator[ReadItem]:
        """Read, in a thread whose jobs are marked, if marks matter."""

    def cancel(self) -> bool:
        """Make `items` end soon; say whether nothing is left. From any thread."""
        return self._tag is None or self._tag.cancel_jobs()

    def explain(self, error: BaseException) -> Exception:
        """Return an error that says what went wrong; in the thread that got it."""
        if self._tag is not None:
            return self._tag.explain(error)
        return (
            error if isinstance(error, Exception) else SourceChangedError(repr(error))
        )


def new_feeder(
    plan: ReadPlan,
    part: int,
    row: int,
    fingerprint: str = "",
    warn: Warn = lambda what, why: None,
) -> Feeder:
    """Return what reads from a position on."""
    if plan.way == "push":
        return _Pushed(plan, part, row, fingerprint, warn)
    if plan.stage is not None:
        return _Staged(plan, part, row, fingerprint)
    return Iterated(plan, part, row)


class _Staged(Feeder):
    """Reads files that Spark writes first, if it has not."""

    def __init__(self, plan: ReadPlan, part: int, row: int, fingerprint: str) -> None:
        super().__init__(plan, part, row)
        self._fingerprint = fingerprint

    def read(self) -> Iterator[ReadItem]:
        """Read; if Spark has to write first, in a thread whose jobs are marked."""
        stage = self._plan.stage
        assert stage is not None
        staged = stage.rows(self._plan.df, self._fingerprint)
        yield Beginning(staged.identity, len(staged.files), staged.rows)
        cut = packing.new_cut(self._plan.batch_rows)
        for index in range(self._part, len(staged.files)):
            first = self._row if index == self._part else 0
            for batch in staged.batches(index, first, self._plan.batch_rows):
                for piece in cut(batch):
                    yield Chunk(index, first, piece)
                    first += piece.num_rows
            yield PartEnd(index)


class Iterated(Feeder):
    """Reads partition by partition, each by a job of its own, through the driver's heap."""

    def read(self) -> Iterator[ReadItem]:
        """Read, in a thread whose jobs are marked."""
        plan = self._plan
        df, has_checks = _checked(plan.df, plan.checks)
        bytes_max = _partition_bytes_max(plan)
        pack = packing.new_pack(
            plan.batch_rows, bytes_max, has_checks=has_checks, keeps_checks=True
        )
        packer = packing.new_packer(self._part, self._row, pack)
        packed = df.mapInArrow(packer, packing.PACKED_SCHEMA)
        yield _beginning(plan, packed)
        with contextlib.closing(_iterate(packed, plan.prefetch)) as messages:
            for index, *frame in messages:
                if frame[0] == packing.TOO_LARGE:
                    raise _too_large(index, frame[3])
                yield _item(index, frame, has_checks)


class _Pushed(Feeder):
    """Lets all partitions be sent by one job, whose tasks connect to this process.

    Where there is a stage, or executors may be anywhere, a job of one task tries to connect
    first. If it cannot, the rows are staged, or nothing is read.
    """

    def __init__(
        self, plan: ReadPlan, part: int, row: int, fingerprint: str, warn: Warn
    ) -> None:
        super().__init__(plan, part, row)
        self._warn = warn
        self._staged = _Staged(plan, part, row, fingerprint)
        self._fingerprint = fingerprint
        self._push: Push | None = None
        # Jobs that got no slot when it was looked last; None once that was said.
        self._starved: set[int] | None = set()

    def look(self) -> None:
        tag, before = self._tag, self._starved
        if before is None or tag is None or is_connect(self._plan.df):
            return
        self._starved = now = tag.starved_jobs()
        # A job that has just begun has no task yet.
        if waiting := sorted(before & now):
            self._starved = None
            self._warn(
                "Spark jobs get no slot of an executor, while tasks that push their "
                "rows hold slots until the pipeline takes these: if it waits for such a "
                "job, both stand still. Read with stage=, or give Spark more slots.",
                f"no task runs of the jobs {waiting}",
            )

    def _on_stranger(self, what: str) -> None:
        self._warn("a connection was refused where Spark's tasks send rows", what)

    def read(self) -> Iterator[ReadItem]:
        plan, tag = self._plan, self._tag
        assert tag is not None, "what was staged is not pushed"
        if self._is_in_stage():
            yield from self._read_stage()
            return
        # Attempts of a partition are compared, whether a job has checkpoints or not.
        df, _ = _checked(plan.df, True)
        keeps = plan.checks or not plan.df.columns
        pack = packing.new_pack(
            plan.batch_rows, None, has_checks=True, keeps_checks=keeps
        )
        try:
            push = Push(
                plan.listen, self._part, self._row, self._on_stranger, plan.credentials
            )
        except OSError as error:
            raise SparkJobError(
                f"nothing can listen on {plan.listen!r}: {error}. Give listen= an "
                "address of this machine."
            ) from error
        self._push = push
        tally = None
        try:
            if why := self._why_unreached(push, tag):
                push.close()
                self._refuse_without_stage(why)
                yield from self._read_stage()
                return
            if not is_connect(df):
                context = df.sparkSession.sparkContext
                tally = packing.new_tally(context, push.confirm)
            pusher = packing.new_pusher(push.door, pack, tally)
            packed = df.mapInArrow(pusher, "sent int")
            beginning = _beginning(plan, packed)
            yield beginning

            def run(parts: list[int] | None) -> None:
                if tally is None:
                    confirm = packing.new_confirmer(push.door)
                    packed.mapInArrow(confirm, "sent int").collect()
                elif parts is None:
                    # No Python worker but the one that sends.
                    packed.rdd.collect()
                else:
                    packed.rdd.context.runJob(packed.rdd, iter, parts)

            frames = push.frames(run, tag, beginning.parts)
            with contextlib.closing(frames):
                for index, frame in frames:
                    yield _item(index, frame, keeps)
        finally:
            if tally is not None:
                # Spark never forgets an accumulator.
                tally.accum_param.told = None
            push.close()

    def cancel(self) -> bool:
        if self._push is not None:
            self._push.stop()
        return super().cancel()

    def _read_stage(self) -> Iterator[ReadItem]:
        # No task waits for the pipeline.
        self._starved = None
        return self._staged.read()

    def _is_in_stage(self) -> bool:
        """Say whether the position is in rows that were staged."""
        stage = self._plan.stage
        staged = stage.find() if stage is not None and self._fingerprint else None
        return staged is not None and staged.identity == self._fingerprint

    def _why_unreached(self, push: Push, tag: JobTag) -> str:
        """Return why an executor does not reach this process; "" if one does."""
        plan = self._plan
        # The tasks of a classic session say so themselves.
        if plan.stage is None and not is_connect(plan.df):
            return ""
        one = plan.df.sparkSession.range(0, 1, 1, 1)
        probe = one.mapInArrow(packing.new_prober(push.door), "why string")
        rows: list[Any] = []
        push.probe(lambda: rows.extend(probe.collect()), tag)
        return str(rows[0][0]) if rows else ""

    def _refuse_without_stage(self, why: str) -> None:
        """Warn that rows are staged, because they cannot be pushed."""
        stage = self._plan.stage
        if self._fingerprint:
            raise SparkJobError(
                "the position to resume from is in rows that were pushed, and now none "
                f"can be: {why}"
            )
        if stage is None:
            raise SparkJobError(f"no row can be pushed: {why}")
        self._warn(
            "Spark's executors do not reach this program, so that they cannot push rows: "
            f"Spark writes them to the stage first, {str(stage.directory)!r}",
            why,
        )


def _checked(df: Any, checks: bool) -> tuple[Any, bool]:
    """Return a DataFrame with the check of each row in a last column, if it is needed."""
    # Spark gives no rows to Python where there is no column.
    if not checks and df.columns:
        return df, False
    return df.withColumn(CHECK, row_check(df)), True


def _item(index: int, frame: Any, has_checks: bool) -> ReadItem:
    kind, first, _, check, ipc = frame
    if kind == packing.SKIPPED:
        return Skipped(check)
    if kind == packing.END:
        return PartEnd(index, first, check)
    batch = pa.ipc.open_stream(pa.py_buffer(ipc)).read_next_batch()
    if not has_checks:
        return Chunk(index, first, batch)
    last = batch.num_columns - 1
    checks = batch.column(last).to_numpy()
    # Not of its arrays: without one it would have no rows.
    return Chunk(index, first, batch.select(range(last)), checks)


def _beginning(plan: ReadPlan, df: Any) -> Beginning:
    """Return what is read, and how many partitions it has, where Spark knows it.

    It is asked of the very DataFrame that will be read: adaptive execution decides it
    when the plan runs, and a second plan might come out otherwise.
    """
    digest = plan_digest(plan.df)
    if is_connect(df):
        return Beginning(digest, None)
    count = df.rdd.getNumPartitions()
    return Beginning(f"{digest}-{count}", count)


def _iterate(df: Any, prefetch: bool) -> Generator[Any]:
    """Iterate over the rows of a DataFrame, a partition at a time.

    Where there are RDDs, over its RDD: after ``DataFrame.toLocalIterator`` of Spark 4.3
    the JVM keeps the rows of every partition until the session stops (measured: 8.7 MB
    for each pass over 300,000 rows of three numbers, against 0.1 MB).
    """
    source = df if is_connect(df) else df.rdd
    rows: Generator[Any] = source.toLocalIterator(prefetch)
    return rows


def _partition_bytes_max(plan: ReadPlan) -> int | None:
    """Return how large a partition the driver brings here without harm; None if any."""
    session = plan.df.sparkSession
    if is_connect(plan.df):
        # It streams what it has, and counts all partitions for its maxResultSize.
        return None
    heap = int(session._jvm.java.lang.Runtime.getRuntime().maxMemory())
    room = max(heap - _RESERVED_BYTES, _COPIES * _ROOM_BYTES_MIN) // _COPIES
    if plan.prefetch:
        room //= 2
    conf = session.sparkContext._jsc.sc().conf()
    result_max = int(conf.getSizeAsBytes("spark.driver.maxResultSize", "1g"))
    return min(room, int(result_max * _RESULT_SHARE)) if result_max else room


def _too_large(index: int, size_bytes: int) -> SparkJobError:
    return SparkJobError(
        f"partition {index} has {size_bytes >> 20} MiB or more. Spark's driver has less "
        "room than that for a partition, by its heap and spark.driver.maxResultSize. "
        f"{MEMORY_REMEDY}"
    )
