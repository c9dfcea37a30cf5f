"""Results in a table of Spark: once with a ledger, without one perhaps again."""

from __future__ import annotations

import asyncio
import hashlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.connectors.spark.result import (
    SparkTableSink,
    _Table,
    dataframe_from_state,
)
from aiomailbox.errors import (
    InvalidArgumentError,
    SinkError,
    UsageError,
    WrongTypeError,
)
from aiomailbox.operators.sinks.sink import Guarantee
from tests.connectors.sinks_by_hand import Program

pytestmark = [pytest.mark.spark, pytest.mark.real_time]


@pytest.fixture
def table(spark: Any) -> Any:
    """Give the name of a table that is not there, and remove it."""
    name = "results_of_test"
    spark.sql(f"DROP TABLE IF EXISTS {name}")
    yield name
    spark.sql(f"DROP TABLE IF EXISTS {name}")


def numbers(*values: int) -> list[dict[str, int]]:
    return [{"n": value} for value in values]


def rows(spark: Any, table: str) -> list[int]:
    return sorted(row.n for row in spark.table(table).collect())


def program(spark: Any, table: str, tmp_path: Path, ledger: str | None) -> Program:
    sink = partial(
        SparkTableSink, spark, table, stage=tmp_path / "a stage", ledger=ledger
    )
    return Program(sink, parallelism=2)


async def test_rows_are_appended_with_each_checkpoint(
    spark: Any, table: str, tmp_path: Path
) -> None:
    job = program(spark, table, tmp_path, ledger=None)
    await job.start()
    await job.write(*numbers(1), subtask=0)
    await job.write(*numbers(2), subtask=1)
    await job.prepare()
    assert not spark.catalog.tableExists(table)
    job.complete()
    await job.commit()
    assert rows(spark, table) == [1, 2]
    await job.write(*numbers(3))
    await job.prepare()
    await job.crash()
    # What is in no complete checkpoint is not appended.
    await job.start()
    await job.write(*numbers(4))
    await job.checkpoint(end=True)
    assert rows(spark, table) == [1, 2, 4]
    await job.end(succeeded=True)
    assert list((tmp_path / "a stage").iterdir()) == []


@pytest.mark.parametrize(("ledger", "expected"), [("by", [1, 2]), (None, [1, 1, 2, 2])])
async def test_an_append_that_nobody_heard_of_is_repeated_only_without_a_ledger(
    spark: Any,
    table: str,
    tmp_path: Path,
    ledger: str | None,
    expected: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = program(spark, table, tmp_path, ledger)
    await job.start()
    await job.write(*numbers(1, 2))
    await job.prepare()
    job.complete()
    append = _Table.append

    def append_and_die(self: _Table, files: list[Path], commit: str) -> None:
        append(self, files, commit)
        raise SinkError("the program dies after the append")

    monkeypatch.setattr(_Table, "append", append_and_die)
    with pytest.raises(SinkError, match="dies"):
        await job.commit()
    await job.crash()
    monkeypatch.undo()
    await job.start()
    assert rows(spark, table) == expected
    # And again, where the staged files are gone by now.
    await job.crash()
    await job.start()
    assert rows(spark, table) == expected
    await job.end(succeeded=True)


@pytest.mark.parametrize("ledger", ["by", None])
async def test_two_jobs_of_one_job_id_sweep_nothing_of_each_other(
    spark: Any, table: str, tmp_path: Path, ledger: str | None
) -> None:
    """Their checkpoints are in directories of their own, and count from 1 in each."""
    job, other = (program(spark, table, tmp_path, ledger) for _ in range(2))
    other.lineage = "another directory"
    await job.start()
    await job.write(*numbers(1))
    await job.prepare()
    job.complete()
    await other.start()
    await other.write(*numbers(2))
    await other.checkpoint(end=True)
    await other.end(succeeded=True)
    await job.crash()
    await job.start()
    await job.write(*numbers(3))
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    assert rows(spark, table) == [1, 2, 3]
    assert list((tmp_path / "a stage").iterdir()) == []


async def test_a_job_goes_on_from_what_versions_without_lineages_have_staged(
    spark: Any, table: str, tmp_path: Path
) -> None:
    job = program(spark, table, tmp_path, None)
    job.lineage = ""
    await job.start()
    await job.write(*numbers(1))
    await job.checkpoint()
    committed = job.prepared
    await job.write(*numbers(2))
    await job.prepare()
    job.complete()
    job.prepared = [*committed, *job.prepared]
    await job.crash()
    job.lineage = "the directory"
    await job.start()
    assert rows(spark, table) == [1, 2]
    await job.end(succeeded=True)
    assert list((tmp_path / "a stage").iterdir()) == []


async def test_an_append_that_was_cut_in_half_is_told(
    spark: Any, table: str, tmp_path: Path
) -> None:
    job = program(spark, table, tmp_path, "by")
    await job.start()
    await job.write(*numbers(1, 2))
    await job.checkpoint()
    [commit] = {row.by for row in spark.table(table).collect()}
    await job.write(*numbers(3, 4))
    await job.prepare()
    job.complete()
    committer = job.committer
    names = sorted(name for _, name in job.prepared)
    files = [committer._folder.parent / name for name in names]
    half = spark.read.parquet(*map(str, files)).where("n = 3")
    digest = hashlib.sha256("\0".join(names).encode()).hexdigest()[:16]
    half.selectExpr("n", f"'{commit.split('-')[0]}-{digest}' AS by").write.mode(
        "append"
    ).saveAsTable(table)
    with pytest.raises(SinkError, match="has 1 of 2 rows of commit"):
        await job.commit()


async def test_a_job_writes_to_a_table(spark: Any, table: str, tmp_path: Path) -> None:
    sink = SparkTableSink(spark, table, stage=tmp_path / "stage", ledger="by")
    assert sink.guarantee is Guarantee.EXACTLY_ONCE
    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(am.seconds(0.05), directory=tmp_path / "job")
    source = am.SparkSource(spark.range(0, 100, 1, 2))
    env.from_source(source).map(lambda row: {"n": row.id * 2}).sink_to(sink)
    await env.execute()
    found = await asyncio.to_thread(rows, spark, table)
    assert found == list(range(0, 200, 2))


async def test_what_cannot_work_is_said_before(
    spark: Any, table: str, tmp_path: Path
) -> None:
    with pytest.raises(WrongTypeError, match="not a Spark session"):
        SparkTableSink(object(), table, stage=tmp_path)
    with pytest.raises(InvalidArgumentError, match="empty"):
        SparkTableSink(spark, "", stage=tmp_path)
    with pytest.raises(UsageError, match="cannot be pickled"):
        SparkTableSink(spark, table, stage=tmp_path).__reduce__()
    assert (
        SparkTableSink(spark, table, stage=tmp_path).guarantee
        is Guarantee.AT_LEAST_ONCE
    )
    spark.sql(f"CREATE TABLE {table} (n BIGINT) USING parquet")
    job = program(spark, table, tmp_path, "by")
    with pytest.raises(SinkError, match="has no column 'by'"):
        await job.start()


async def test_the_state_of_a_savepoint_is_a_dataframe(
    spark: Any, tmp_path: Path
) -> None:
    rows: list[Any] = []
    all_summed = asyncio.Event()

    async def words() -> Any:
        for n in range(30):
            yield {"word": f"w{n % 3}", "n": n}
        await asyncio.Event().wait()

    def show(row: Any) -> None:
        rows.append(row)
        if len(rows) == 30:
            all_summed.set()

    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(
        None, directory=tmp_path / "job", mode=am.CheckpointingMode.AT_LEAST_ONCE
    )
    totals = (
        env.from_async_iterable(words)
        .key_by("word")
        .reduce(lambda one, other: {"word": one["word"], "n": one["n"] + other["n"]})
        .uid("totals")
    )
    totals.sink_to(show)
    async with env.start() as job:
        await all_summed.wait()
        await job.trigger_savepoint(tmp_path / "saved")
        await job.cancel()
    savepoint = am.Savepoint(tmp_path / "saved")
    [operator] = [one for one in savepoint.operators() if one.uid == "totals"]
    [state] = operator.states
    df = await dataframe_from_state(spark, savepoint, "totals", state.name)
    found = {row.key: row.value.n for row in await asyncio.to_thread(df.collect)}
    assert found == {f"w{k}": sum(range(k, 30, 3)) for k in range(3)}
