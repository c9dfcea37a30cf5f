"""Pipelines in a barrier stage: side by side, with checkpoints, started again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import aiomailbox as am
from aiomailbox.connectors.spark.inside import barrier
from aiomailbox.errors import (
    InvalidArgumentError,
    JobFailedError,
    NotShippableError,
    RemoteTaskError,
    SparkJobError,
    TargetExistsError,
    UsageError,
)

pytestmark = pytest.mark.spark


class Seen(NamedTuple):
    """What the pipelines return."""

    id: int
    value: int


def pairs(df: Any) -> list[tuple[int, int]]:
    return sorted((row.id, row.value) for row in df.collect())


EVERY = am.CheckpointConfig(am.seconds(0.1))
# How often checkpoints are taken, and how often a job starts again.
OFTEN: dict[str, Any] = {
    "config": am.JobConfig(checkpoints=EVERY, restart=am.restart.fixed_delay(2, 0.1)),
}


def counted(place: Path, die: Any, kind: Any = Seen, awaits: str | None = None) -> Any:
    """Return a pipeline that counts per key, and meets its end once; None for never.

    A worker that has called for some rows goes on slowly, until checkpoints hold these, and
    there is a file if it is to wait for one. Then it writes down which rows they are, and
    dies. Each call leaves a line.
    """
    kept = str(place)

    def newest() -> int:
        found = Path(kept).glob(".*.aiomailbox/checkpoints/**/chk-*/_metadata")
        return max((int(each.parent.name[4:]) for each in found), default=0)

    class Slow:
        def __init__(self) -> None:
            self.called: list[int] = []
            self.first: int | None = None

        def __call__(self, row: Any) -> Any:
            if die is not None and len(self.called) == CALLED_BEFORE:
                self.first = newest()
            if self.first is not None and not Path(kept, "died").exists():
                self.die_or_wait(self.first)
            with Path(kept, f"calls-{os.getpid()}").open("a") as calls:
                calls.write(f"{row.id}\n")
            self.called.append(row.id)
            return kind(row.id % 5, 1)

        def die_or_wait(self, first: int) -> None:
            # One may have been under way: the next one began after the calls.
            is_awaited = awaits is not None and not Path(kept, awaits).exists()
            if is_awaited or newest() < first + 2:
                # Between two rows, a checkpoint passes.
                time.sleep(0.1)
                return
            with contextlib.suppress(FileExistsError):
                Path(kept, "died").touch(exist_ok=False)
                held = self.called[:CALLED_BEFORE]
                Path(kept, "held").write_text(" ".join(map(str, held)))
                die()

    @am.pipeline
    def pipeline(rows: Any) -> Any:
        ones = rows.map(Slow()).key_by("id")
        return ones.reduce(lambda one, other: kind(one.id, one.value + other.value))

    return pipeline


# Of about 750 of a worker: the others take a minute, unless it dies before.
CALLED_BEFORE = 100


def check_resumed(place: Path) -> None:
    """Check that no call that a checkpoint held was made again."""
    made = Counter(
        int(line) for file in place.glob("calls-*") for line in file.read_text().split()
    )
    assert set(made) == set(range(1500))
    held = [int(each) for each in (place / "held").read_text().split()]
    assert len(held) == CALLED_BEFORE
    assert {made[each] for each in held} == {1}


EACH_COUNTED = sorted((key, n) for key in range(5) for n in range(1, 301))


def kill_this_worker() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise LookupError("once")


@pytest.mark.parametrize("die", [kill_this_worker, fail])
async def test_a_job_goes_on_from_its_last_checkpoint_and_counts_each_row_once(
    spark: Any, tmp_path: Path, die: Any
) -> None:
    pipeline = counted(tmp_path, die, awaits="seen running")
    df = spark.range(0, 1500)
    seen: list[am.JobSnapshot] = []

    def see(snapshot: am.JobSnapshot) -> None:
        seen.append(snapshot)
        if snapshot.state == "running":
            (tmp_path / "seen running").touch()

    result = await pipeline.run_on(
        df,
        tmp_path / "the out",
        schema=Seen,
        order_by="id",
        on_snapshot=see,
        **OFTEN,
    )
    assert pairs(result) == EACH_COUNTED
    # The same value as that of a job of this program, for whatever shows one.
    assert {one.job for one in seen} == {pipeline.name}
    assert "running" in {one.state for one in seen}
    last = seen[-1]
    assert last.state == "finished"
    assert last.operator("df").is_source
    assert last.operator("results").metrics["num_records_in"]
    assert {task.name.partition(" (")[0] for task in last.tasks}
    assert last.checkpoint_metrics["number_of_completed_checkpoints"]
    check_resumed(tmp_path)
    assert (tmp_path / "the out" / "_SUCCESS").exists()
    assert not (tmp_path / ".the out.aiomailbox").exists()


async def test_another_program_goes_on_with_what_one_has_begun(
    spark: Any, tmp_path: Path
) -> None:
    """The first one is not there any more when its stage fails."""
    pipeline = counted(tmp_path, fail)
    given: dict[str, Any] = {
        "df": spark.range(0, 1500),
        "path": tmp_path / "out",
        "schema": Seen,
        "order_by": "id",
    }
    config = am.JobConfig(checkpoints=EVERY, restart=am.restart.none())
    with pytest.raises(JobFailedError, match="once"):
        await pipeline.run_on(**given, config=config)
    config = am.JobConfig(
        checkpoints=EVERY, restart=am.restart.none(), restore_from="latest"
    )
    result = await pipeline.run_on(**given, config=config)
    assert pairs(result) == EACH_COUNTED
    check_resumed(tmp_path)


@pytest.mark.parametrize("dies", ["the driver", "the stage"])
async def test_a_job_that_had_finished_is_not_run_again(
    spark: Any, tmp_path: Path, dies: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waited for it has died in the moment after."""
    pipeline = counted(tmp_path, None)
    given: dict[str, Any] = {
        "df": spark.range(0, 100),
        "path": tmp_path / "out",
        "schema": Seen,
        "order_by": "id",
    }
    collected, deaths = barrier._collected, []

    async def dying(frame: Any) -> list[Any]:
        rows = await collected(frame)
        if not deaths:
            deaths.append(1)
            raise SparkJobError("executor lost")
        return rows

    monkeypatch.setattr(barrier, "_collected", dying)
    often = am.restart.none() if dies == "the driver" else am.restart.fixed_delay(1, 0)
    job = pipeline.run_on(**given, config=am.JobConfig(restart=often))
    if dies == "the driver":
        with pytest.raises(SparkJobError):
            await job
        config = am.JobConfig(restore_from="latest")
        job = pipeline.run_on(**given, config=config)
    assert pairs(await job) == [pair for pair in EACH_COUNTED if pair[1] <= 20]
    calls = [path.read_text().split() for path in tmp_path.glob("calls-*")]
    assert sum(map(len, calls)) == 100
    assert not (tmp_path / ".out.aiomailbox").exists()


async def test_a_class_of_the_program_may_be_in_a_module_when_another_goes_on(
    spark: Any, tmp_path: Path
) -> None:
    class Tally(NamedTuple):
        id: int
        value: int

    Tally.__module__, Tally.__qualname__ = "__main__", "Tally"
    given: dict[str, Any] = {
        "df": spark.range(0, 1500),
        "path": tmp_path / "out",
        "schema": Seen,
        "order_by": "id",
    }
    config = am.JobConfig(checkpoints=EVERY, restart=am.restart.none())
    with pytest.raises(JobFailedError, match="once"):
        await counted(tmp_path, fail, Tally).run_on(**given, config=config)
    config = am.JobConfig(
        checkpoints=EVERY, restart=am.restart.none(), restore_from="latest"
    )
    pipeline = counted(tmp_path, fail, Seen)
    with pytest.raises(JobFailedError, match=r"state_names=.*__main__:Tally"):
        await pipeline.run_on(**given, config=config)
    config = replace(config, state_names={"__main__:Tally": Seen})
    result = await pipeline.run_on(**given, config=config)
    assert pairs(result) == EACH_COUNTED


@pytest.mark.suite("tests")
async def test_a_failure_names_operator_line_and_record_and_is_not_tried_for_ever(
    spark: Any, tmp_path: Path
) -> None:
    @am.pipeline
    def failing(rows: Any) -> Any:
        def divide(row: Any) -> Seen:
            Path(tmp_path, f"{time.time()}").touch()
            return Seen(row.id, 1 // (row.id - 77))

        return rows.map(divide).uid("division").set_parallelism(1)

    config = am.JobConfig(restart=am.restart.fixed_delay(1, 0.1))
    with pytest.raises(JobFailedError) as failure:
        await failing.run_on(
            spark.range(77, 78),
            tmp_path / "out",
            schema=Seen,
            parallelism=1,
            config=config,
        )
    text = str(failure.value)
    assert "at worker 1: UserFunctionError: operator 'map' (uid 'division')" in text
    assert re.search(r"test_run_on\.py:\d+", text)
    cause = failure.value.__cause__
    assert isinstance(cause, RemoteTaskError)
    assert "id=77" in str(cause.record)
    assert len([file for file in tmp_path.iterdir() if file.is_file()]) == 2
    assert not (tmp_path / "out").exists()


FAILED = am.OutputTag("failed")
ODD = am.OutputTag("odd")


@pytest.mark.suite("tests")
async def test_side_outputs_and_dead_letters_are_committed_beside_the_results(
    spark: Any, tmp_path: Path
) -> None:
    class Odd(am.ProcessFunction):
        def process_element(self, row: Any, context: Any, out: Any) -> None:
            if row.id % 2:
                context.output(ODD, Seen(row.id, -1))
            out.collect(row)

    @am.pipeline
    def three_ways(rows: Any) -> Any:
        def check(row: Any) -> Seen:
            if row.id % 10 == 0:
                raise ValueError(f"no {row.id}")
            return Seen(row.id, 1)

        checked = rows.map(check, on_error=am.dead_letter(FAILED)).uid("check")
        return checked.process(Odd())

    run = three_ways.run_on(
        spark.range(0, 50), tmp_path / "out", schema=Seen, sides={ODD: Seen}
    )
    assert [number for number, _ in pairs(await run)] == [
        n for n in range(50) if n % 10
    ]
    odd = spark.read.parquet(str(tmp_path / "out.odd"))
    assert pairs(odd) == [(n, -1) for n in range(1, 50, 2)]
    letters = spark.read.parquet(str(tmp_path / "out.dead_letters")).collect()
    assert sorted(letter.record for letter in letters)[:2] == ['{"id":0}', '{"id":10}']
    assert {(letter.uid, letter.error_type) for letter in letters} == {
        ("check", "ValueError")
    }
    for sides in ({am.OutputTag("../x"): Seen}, {am.OutputTag("dead_letters"): Seen}):
        with pytest.raises(InvalidArgumentError, match="directory's name"):
            await three_ways.run_on(
                spark.range(5), tmp_path / "other", schema=Seen, sides=sides
            )
    with pytest.raises(TargetExistsError, match=r"out\.dead_letters"):
        (tmp_path / "out").rename(tmp_path / "kept")
        await three_ways.run_on(spark.range(5), tmp_path / "out", schema=Seen)


async def test_a_dataframe_that_gives_other_rows_again_is_refused(
    spark: Any, tmp_path: Path
) -> None:
    pipeline = counted(tmp_path, fail)
    # Another value each time that it is computed, and with it another order.
    other = "reflect('java.util.UUID', 'randomUUID') as other"
    df = spark.range(0, 1500).selectExpr("id", other)
    with pytest.raises(JobFailedError, match="has other rows"):
        await pipeline.run_on(df, tmp_path / "out", schema=Seen, **OFTEN)


async def test_a_rate_limit_holds_over_all_workers_and_they_encrypt(
    spark: Any, tmp_path: Path
) -> None:
    asked = str(tmp_path)
    limit = am.RateLimit(10, per=1.0, budget=40)

    @am.pipeline
    def limited(rows: Any) -> Any:
        async def call(row: Any) -> Seen:
            return Seen(row.id, 0)

        def weight(row: Any) -> int:
            Path(asked, f"{time.monotonic():.6f} asked").touch()
            return 1

        called = rows.map_async(
            call, concurrency=50, limit=limit, weight=weight, on_error=am.skip
        )
        return called.rebalance().map(same)

    def same(seen: Any) -> Any:
        return seen

    result = await limited.run_on(
        spark.range(0, 60), tmp_path / "out", schema=Seen, encrypt=True
    )
    # Three windows have passed since the first call asked, and perhaps more: a worker may
    # be held up at any moment.
    first = min(float(one.name.partition(" ")[0]) for one in tmp_path.glob("* asked"))
    assert time.monotonic() - first > 3
    # Had each worker the limit for itself, its thirty rows would be within the budget.
    assert result.count() == 40


async def test_timers_in_processing_time_fire_and_a_cancelled_caller_ends_the_stage(
    spark: Any, tmp_path: Path
) -> None:
    begun = str(tmp_path / "begun")

    class Waiting(am.KeyedProcessFunction):
        def process_element(self, row: Any, context: Any, out: Any) -> None:
            timers = context.timer_service
            timers.register_processing_time_timer(
                timers.current_processing_time() + 100
            )

        async def on_timer(self, timestamp: Any, context: Any, out: Any) -> None:
            Path(begun).touch()
            await asyncio.sleep(3600)

    @am.pipeline
    def endless(rows: Any) -> Any:
        async def wait(row: Any) -> Any:
            await asyncio.sleep(1)
            return row

        slow = rows.map_async(wait, concurrency=1)
        return slow.key_by("id").process(Waiting())

    run = endless.run_on(spark.range(0, 1000), tmp_path / "out", schema="id long")
    task = asyncio.get_running_loop().create_task(run)
    while not Path(begun).exists():
        assert not task.done(), task.result()
        await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    tracker = spark.sparkContext.statusTracker()
    # It would never end by itself.
    while tracker.getActiveJobsIds():
        await asyncio.sleep(0.05)


async def test_no_row_of_a_dataframe_in_no_order_of_time_is_late(
    spark: Any, tmp_path: Path
) -> None:
    """Each worker gets its rows sorted by a hash."""

    @am.pipeline
    def counting(rows: Any) -> Any:
        strategy = am.WatermarkStrategy.for_bounded_out_of_orderness(am.millis(1))
        timed = rows.assign_timestamps_and_watermarks(
            strategy.with_timestamp_assigner("id")
        )
        windows = timed.key_by(lambda row: 0).window(
            am.TumblingEventTimeWindows.of(am.seconds(1))
        )
        counts = windows.aggregate(am.aggregates(start=am.min_("id"), n=am.count()))
        return counts.map(lambda row: Seen(row.start, row.n))

    for name, order_by in {"unsorted": None, "sorted": "id"}.items():
        result = await counting.run_on(
            spark.range(0, 30_000), tmp_path / name, schema=Seen, order_by=order_by
        )
        assert pairs(result) == [(start, 1000) for start in range(0, 30_000, 1000)], (
            name
        )


@pytest.mark.usefixtures("no_job")
async def test_what_cannot_run_side_by_side_is_refused_before_a_job(
    spark: Any, tmp_path: Path
) -> None:
    df, out = spark.range(0, 10), tmp_path / "out"
    before = spark.sparkContext.statusTracker().getJobIdsForGroup(None)

    def plain(rows: Any) -> Any:
        return rows

    def wide(rows: Any) -> Any:
        counted = rows.key_by("id").reduce(lambda one, other: one)
        return counted.name("many").set_parallelism(64)

    def sink(rows: Any) -> Any:
        rows.sink_to(print)
        return rows

    def unshippable(rows: Any) -> Any:
        return rows.map(lambda row: spark.range(row.id))

    def grouped(rows: Any) -> Any:
        return rows.map(lambda row: row).slot_sharing_group("apart")

    for build, kind, words in (
        (wide, UsageError, "'many' has 64 subtasks, and Spark runs"),
        (sink, UsageError, "sink inside the pipeline"),
        (unshippable, NotShippableError, "'map'"),
        (grouped, UsageError, "slot sharing groups"),
    ):
        with pytest.raises(kind, match=words):
            await am.pipeline(build).run_on(df, out, schema="id long")
    run = am.pipeline(plain).run_on
    with pytest.raises(UsageError, match="the pipeline has 64 subtasks"):
        await run(df, out, schema="id long", parallelism=64)
    mapped = am.pipeline(lambda rows: rows.map(lambda row: row)).run_on
    with pytest.raises(
        InvalidArgumentError, match="the columns of the records are unknown"
    ):
        await mapped(df, out)
    with pytest.raises(InvalidArgumentError, match="is not a path"):
        await run(df, schema="id long")
    with pytest.raises(InvalidArgumentError, match="is a URL"):
        await run(df, "s3://bucket/out", schema="id long")
    with pytest.raises(TargetExistsError):
        await run(df, tmp_path, schema="id long")
    with pytest.raises(InvalidArgumentError, match="streaming"):
        stream = spark.readStream.format("rate").load()
        await run(stream, out, schema="id long")
    assert spark.sparkContext.statusTracker().getJobIdsForGroup(None) == before
    assert os.listdir(tmp_path) == []


async def test_inputs_with_orders_that_cannot_be_compared_are_refused(
    spark: Any, tmp_path: Path
) -> None:
    @am.pipeline
    def united(left: Any, right: Any) -> Any:
        return left.union(right)

    left, right = spark.range(0, 5), spark.range(0, 5).selectExpr("string(id) as id")
    with pytest.raises(InvalidArgumentError, match="sorted together"):
        await united.run_on(
            left=left,
            right=right,
            path=tmp_path / "out",
            schema="id long",
            order_by="id",
        )
