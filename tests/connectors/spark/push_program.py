"""Run by test_local_cluster.py: rows that tasks send, which are killed, repeated and copied.

Arguments: a place for files, and the cases. Those of "cluster" need executors that are
processes of their own.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest

import aiomailbox as am
from aiomailbox.connectors.spark import pushing
from aiomailbox.connectors.spark.session import ensure_java, local_session

PARTS = 8
ROWS = 40_000
# So that a partition has several batches, and is not sent in one go.
BATCH_ROWS = 1000


def once(place: Path, name: str) -> Callable[[], bool]:
    """Return what says True once, in whichever process asks first."""
    path = str(place / name)

    def is_first() -> bool:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    return is_first


def struck(df: Any, strike: Callable[[], None], is_first: Callable[[], bool]) -> Any:
    """Return the DataFrame, one of whose tasks is struck in the middle of partition 3."""

    def pass_on(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        part = TaskContext.get().partitionId()
        for number, batch in enumerate(batches):
            if part == 3 and number == 3 and is_first():
                strike()
            yield batch

    return df.mapInArrow(pass_on, "id long")


def killing_worker() -> Callable[[], None]:
    def strike() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    return strike


def killing_executor() -> Callable[[], None]:
    def strike() -> None:
        # The worker's parent is Spark's daemon, and that one's is Java.
        with open(f"/proc/{os.getppid()}/stat") as file:
            java = int(file.read().rpartition(")")[2].split()[1])
        os.kill(java, signal.SIGKILL)
        time.sleep(3600)

    return strike


def hanging() -> Callable[[], None]:
    def strike() -> None:
        time.sleep(3600)

    return strike


async def read(
    df: Any, on_row: Callable[[Any], object] = lambda row: None, **options: Any
) -> list[int]:
    def see(row: Any) -> int:
        on_row(row)
        return int(row.id)

    env = am.StreamExecutionEnvironment()
    source = am.SparkSource(
        df, read="push", batch_rows=BATCH_ROWS, listen="127.0.0.1", **options
    )
    return await env.from_source(source).map(see).collect()


def check_survives(spark: Any, place: Path, strike: Callable[[], None]) -> None:
    name = strike.__qualname__.partition(".")[0]
    df = spark.range(0, ROWS, 1, PARTS)
    for splits in ("ordered", "independent"):
        is_first = once(place, f"{name}-{splits}")
        options = {"splits": splits, "encrypt": splits == "independent"}
        found = asyncio.run(read(struck(df, strike, is_first), **options))
        assert found == list(range(ROWS)), (name, splits, len(found))
        assert not is_first(), "nothing was struck"
    print("ok:", name, flush=True)


def check_other_rows(spark: Any, place: Path) -> None:
    """A task that is repeated gives other rows."""
    is_first = once(place, "other")
    taken = place / "taken"
    path = str(taken)

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        import numpy as np
        import pyarrow as pa

        first = is_first()
        for number, _ in enumerate(batches):
            # Large: between two functions, Spark and Python keep what is small.
            ids = np.arange(100_000) + number * 100_000 + (0 if first else 1)
            yield pa.record_batch({"id": ids})
            # Nothing is said of rows that nobody has got.
            while first and number == 9 and not os.path.exists(path):
                time.sleep(0.01)
            if first and number == 9:
                raise ValueError("the first time")

    df = spark.range(0, 12 * BATCH_ROWS, 1, 1).mapInArrow(work, "id long")
    with pytest.raises(am.JobFailedError) as caught:
        asyncio.run(read(df, lambda row: taken.touch()))
    assert isinstance(caught.value.__cause__, am.SourceChangedError), caught.value
    assert "attempt of partition 0 has other rows" in str(caught.value)
    assert not list(spark.sparkContext.statusTracker().getActiveJobsIds())
    print("ok: other rows", flush=True)


def main(place: Path, kind: str) -> None:
    settings = {
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS),
        "spark.master": "local[2,4]",
    }
    if kind == "local":
        check_all(local_session("push", **settings), place, is_cluster=False)
        return
    with two_hosts(place) as master:
        settings |= {
            "spark.master": master,
            "spark.executor.memory": "512m",
            "spark.executorEnv.JAVA_HOME": os.environ.get("JAVA_HOME", ""),
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.quantile": "0.1",
            "spark.speculation.multiplier": "1.1",
            "spark.speculation.minTaskRuntime": "2s",
        }
        check_all(local_session("push", **settings), place, is_cluster=True)


def check_all(spark: Any, place: Path, *, is_cluster: bool) -> None:
    spark.sparkContext.setLogLevel("OFF")
    try:
        check_survives(spark, place, killing_worker())
        if is_cluster:
            pushing.SILENCE_S = 2.0
            check_survives(spark, place, killing_executor())
            check_survives(spark, place, hanging())
        else:
            check_other_rows(spark, place)
        print("ok")
    finally:
        spark.stop()


@contextmanager
def two_hosts(place: Path) -> Iterator[str]:
    """Give the address of a Spark cluster of two hosts, as far as Spark knows.

    It copies no task to an executor of the same host.
    """
    home = os.path.dirname(pyspark.__file__)
    os.environ["SPARK_HOME"] = home
    ensure_java()
    started: list[subprocess.Popen[bytes]] = []

    def start(what: str, *arguments: str) -> None:
        command = [f"{home}/bin/spark-class", f"org.apache.spark.deploy.{what}"]
        environ = {**os.environ, "SPARK_WORKER_WEBUI_PORT": "0"}
        # Each is told its own.
        environ.pop("SPARK_LOCAL_IP", None)
        with (place / "cluster.log").open("ab") as log:
            started.append(
                subprocess.Popen(
                    [*command, *arguments], env=environ, stdout=log, stderr=log
                )
            )

    try:
        at = ("--host", "127.0.0.1", "--port", "0")
        start("master.Master", *at, "--webui-port", "0")
        log = place / "cluster.log"
        # It takes a port that is free, and says which.
        while not (
            said := re.search(r"Starting Spark master at (\S+)\n", log.read_text())
        ):
            assert started[0].poll() is None, log.read_text()
            time.sleep(0.05)
        master = said[1]
        for host in ("127.0.0.1", "127.0.0.2"):
            has = ("--cores", "1", "--memory", "1g", "--webui-port", "0")
            files = ("--work-dir", str(place / f"work-{host}"))
            start("worker.Worker", "--host", host, *has, *files, master)
        yield master
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
