"""Spark's Java process is killed, and the error says so."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest

from aiomailbox.connectors.spark.jobs import died_since, lost_session_error

pytestmark = pytest.mark.spark

# Its Java process has little memory, and would not end when that runs out, but hang.
PROGRAM = """
import asyncio, os, signal, sys
import aiomailbox as am
from aiomailbox.connectors import dataframe_from_records
from aiomailbox.connectors.spark.session import local_session

memory = {"spark.driver.memory": "512m", "spark.driver.maxResultSize": "1g"}
spark = local_session(cores=1, **memory, **{"spark.driver.extraJavaOptions": "-Da=b"})
more = [f"id + {n} AS n{n}" for n in range(1, 20)]
longs = spark.range(500_000, numPartitions=1).selectExpr("id", *more)
wide = spark.range(100, numPartitions=1).selectExpr("repeat('x', 1000000) AS x")

async def count(frame, read):
    stream = am.StreamExecutionEnvironment().from_source(
        am.SparkSource(frame, records="batch", read=read)
    )
    return sum([batch.num_rows async for batch in stream])

for large in (longs, wide):
    try:
        print(am.run(count(large, "iterate")), "rows")
    except am.JobFailedError as error:
        print(type(error.__cause__).__name__, error.__cause__)
    print(am.run(count(large, "push")), "rows", flush=True)

frame, other = spark.range(100_000, numPartitions=10), spark.range(3)
java = spark.sparkContext._gateway.proc.pid

def show(error):
    print("|".join([type(error).__name__, str(error), *getattr(error, "__notes__", [])]))

def read():
    def kill_later(row):
        if row.id == 5:
            os.kill(java, signal.SIGKILL)

    env = am.StreamExecutionEnvironment()
    source = am.SparkSource(frame)
    env.from_source(source).name("rows").uid("r-1").sink_to(kill_later)
    am.run(env.execute())

print(java)
try:
    read()
except am.JobFailedError as error:
    show(error.__cause__)
try:
    am.SparkSource(other)
except Exception as error:
    show(error)
try:
    asyncio.run(dataframe_from_records(spark, [{"a": 1}]))
except Exception as error:
    show(error)
os._exit(0)
"""


@pytest.fixture(scope="module")
def said() -> list[str]:
    """Return the lines of the program: a Spark takes longer to start than all of it."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        timeout=230,
    )
    lines = ended.stdout.splitlines()
    assert len(lines) == 8, ended.stdout + ended.stderr[-2_000:]
    return lines


@pytest.mark.timeout(240)
def test_a_killed_java_process_is_named_with_the_signal(said: list[str]) -> None:
    java, *errors = said[4:]
    how = f"Spark's Java process (process {java}) was ended by signal SIGKILL"
    doing = "a Spark job that reads the DataFrame ran"
    assert errors[0].startswith(f"SparkJobError|while {doing}, {how}")
    assert "operator 'rows' (uid 'r-1')" in errors[0]
    assert errors[1].startswith(f"SparkJobError|while a DataFrame was examined, {how}")
    assert errors[2].startswith(f"SparkJobError|while a DataFrame was made, {how}")


class Session:
    """Has no process of its own."""


@pytest.mark.parametrize("error", [EOFError(), ConnectionResetError(104, "reset")])
def test_a_lost_connection_to_a_process_that_others_started_is_told(
    error: Exception,
) -> None:
    lost: Any = lost_session_error(error, Session(), "reading")
    assert "while reading, Spark closed the connection" in str(lost)
    assert type(error).__name__ in str(lost)


def test_other_errors_are_no_loss() -> None:
    assert lost_session_error(ValueError("no"), Session(), "reading") is None


def threads(*names: str) -> str:
    """As Java shows a set of threads."""
    return str([f"Thread[{name},5,main]" for name in (*names, "main")])


@pytest.mark.parametrize(
    ("before", "now", "dead"),
    [
        ([], [], []),
        ([], [0, 1], []),
        ([0, 1], [0, 1, 2, 3], []),
        ([0], [1], [0]),
        ([], [1], [0]),
        ([1, 2], [1, 2], []),
        ([1, 2], [2, 4], [1, 3]),
        ([10], [11], [10]),
    ],
)
def test_threads_that_fetch_results_and_died_are_known_by_their_numbers(
    before: list[int], now: list[int], dead: list[int]
) -> None:
    lists = [
        threads(*[f"task-result-getter-{each}" for each in one])
        for one in (before, now)
    ]
    assert died_since(*lists) == [f"task-result-getter-{each}" for each in dead]


@pytest.mark.timeout(240)
def test_a_partition_too_large_for_the_driver_is_said_before_the_driver_dies(
    said: list[str],
) -> None:
    for refused in said[:4:2]:
        # How much fits depends on Java's collector, which takes a part of the heap.
        size = re.match(r"SparkJobError partition 0 has (\d+) MiB or more", refused)
        assert size, refused
        assert 16 <= int(size[1]) <= 64
        assert 'SparkSource(df, read="push")' in refused
        assert "SparkSource(df, stage=directory)" in refused
    # Nothing has died: it goes on, and takes the same partitions by another way.
    assert said[1:4:2] == ["500000 rows", "100 rows"]
