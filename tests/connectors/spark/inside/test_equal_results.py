"""One pipeline object, equal results wherever it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import aiomailbox as am
from tests.connectors.spark.inside import pipelines
from tests.connectors.spark.inside.pipelines import Pair

pytestmark = [pytest.mark.spark, pytest.mark.real_time]

ROWS = 2000
EVERYWHERE = {**pipelines.FIVE, **pipelines.AT_END}


class Row(NamedTuple):
    """What a row of a range is, where Spark is not."""

    id: int


def on_loops(pipeline: Any, count: int, deployment: Any) -> Counter[Any]:
    env = am.StreamExecutionEnvironment(parallelism=2)
    if deployment is not None:
        env.configure(deployment=deployment)
    streams = [env.from_collection([Row(n) for n in range(ROWS)]) for _ in range(count)]
    return Counter(tuple(row) for row in am.run(pipeline(*streams).collect()))


@pytest.fixture(scope="module")
def in_processes() -> dict[str, Counter[Any]]:
    """Return what each pipeline gives in worker processes: one job has all of them."""
    env = am.StreamExecutionEnvironment(parallelism=2)
    env.configure(deployment=am.Processes(2))
    found: dict[str, list[Any]] = {name: [] for name in EVERYWHERE}
    for name, (pipeline, count) in EVERYWHERE.items():
        rows = [
            env.from_collection([Row(n) for n in range(ROWS)]) for _ in range(count)
        ]
        pipeline(*rows).sink_to(found[name].append)
    am.run(env.execute())
    return {name: Counter(map(tuple, rows)) for name, rows in found.items()}


def frames_of(spark: Any, count: int, partitions: int) -> dict[str, Any]:
    """Return the DataFrames by name, each of another number of partitions."""
    names = ["df"] if count == 1 else ["left", "right"]
    return {
        name: spark.range(0, ROWS, 1, partitions - number)
        for number, name in enumerate(names)
    }


def in_spark(
    spark: Any, pipeline: Any, count: int, partitions: int, **options: Any
) -> Counter[Any]:
    given: dict[str, Any] = {**frames_of(spark, count, partitions), **options}
    applied = pipeline.apply_to(schema=Pair, order_by="id", **given)
    return Counter(tuple(row) for row in applied.result.collect())


def in_barrier(
    spark: Any, pipeline: Any, count: int, partitions: int, path: Path
) -> Counter[Any]:
    frames = frames_of(spark, count, partitions)
    run = pipeline.run_on(path=path, **frames, schema=Pair, order_by="id")
    return Counter(tuple(row) for row in am.run(run).collect())


@pytest.mark.parametrize("name", EVERYWHERE)
def test_a_pipeline_gives_the_same_wherever_it_runs(
    spark: Any, name: str, in_processes: dict[str, Counter[Any]], tmp_path: Path
) -> None:
    pipeline, count = EVERYWHERE[name]
    embedded = on_loops(pipeline, count, None)
    assert embedded
    assert in_processes[name] == embedded
    # More subtasks than Spark has cores, so that each has to be met.
    assert in_spark(spark, pipeline, count, 3, parallelism=3) == embedded
    assert in_barrier(spark, pipeline, count, 3, tmp_path / "out") == embedded


def test_late_records_are_late_wherever_it_runs(spark: Any, tmp_path: Path) -> None:
    """With one reader the order, and so what is late, is the same everywhere."""

    def on_loop(deployment: Any) -> Counter[Any]:
        env = am.StreamExecutionEnvironment(parallelism=2)
        if deployment is not None:
            env.configure(deployment=deployment)
        rows = env.from_collection([Row(n) for n in pipelines.OUT_OF_ORDER])
        lateness = pipelines.lateness(rows.set_parallelism(1))
        return Counter(tuple(row) for row in am.run(lateness.collect()))

    embedded = on_loop(None)
    # 20 rows are over, and 10 rows let windows fire again.
    assert sum(row[0] < 0 for row in embedded.elements()) == 20
    assert sum(n > 1 for n in embedded.values()) >= 3
    assert on_loop(am.Processes(2)) == embedded
    numbered = [*enumerate(pipelines.OUT_OF_ORDER)]
    df = spark.createDataFrame(numbered, "place long, id long").coalesce(1)
    given: dict[str, Any] = {"df": df, "schema": Pair, "order_by": "place"}
    applied = pipelines.lateness.apply_to(**given, parallelism=2)
    assert Counter(tuple(row) for row in applied.result.collect()) == embedded
    run = pipelines.lateness.run_on(path=tmp_path / "out", **given, parallelism=1)
    assert Counter(tuple(row) for row in am.run(run).collect()) == embedded


STEPS: dict[str, Callable[[Any], Any]] = pipelines.STEPS


@settings(
    max_examples=3,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(steps=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=5))
def test_random_pipelines_give_the_same_wherever_they_run(
    spark: Any, tmp_path_factory: Any, steps: Any
) -> None:
    @am.pipeline
    def pipeline(rows: Any) -> Any:
        stream = pipelines.timed(rows).map(pipelines.as_pair)
        for step in steps:
            stream = pipelines.STEPS[step](stream)
        return stream

    embedded = on_loops(pipeline, 1, None)
    assert on_loops(pipeline, 1, am.Processes(2)) == embedded
    assert in_spark(spark, pipeline, 1, 2) == embedded
    path = tmp_path_factory.mktemp("random") / "out"
    assert in_barrier(spark, pipeline, 1, 2, path) == embedded
