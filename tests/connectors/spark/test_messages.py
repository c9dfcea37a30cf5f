"""What goes wrong in Spark is said in words that lead to the cause."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

import aiomailbox as am
from aiomailbox.connectors.spark.jobs import explained, spark_job_error
from aiomailbox.connectors.spark.session import local_session
from aiomailbox.policies.restart import NoRestart

pytestmark = pytest.mark.spark


def killing() -> Callable[[int], int]:
    """Return a function that kills the worker at 5; sent by value."""

    def function(number: int) -> int:
        if number == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    return function


async def failure_of(source: am.SparkSource[Any]) -> str:
    stream = am.StreamExecutionEnvironment().from_source(source)
    with pytest.raises(am.JobFailedError) as caught:
        await stream.name("rows").collect()
    assert isinstance(caught.value.__cause__, am.SparkJobError)
    return str(caught.value)


def check_says_killed(text: str) -> None:
    assert "the Python worker that ran it died in task " in text
    assert "killed by a signal, as the system does when memory runs out" in text
    assert "df.repartition(N)" in text
    assert "EOFException" not in text
    assert "\tat " not in text


@pytest.mark.real_time
@pytest.mark.parametrize("way", ["iterate", "push", "stage"])
async def test_a_query_that_fails_at_a_value_ends_the_job(
    spark: Any, way: str, tmp_path: Path
) -> None:
    """Whatever the strategy: Spark would compute the same again."""
    df = spark.sql("SELECT CAST(s AS INT) AS n FROM VALUES ('1'), ('x') AS t(s)")
    if way == "stage":
        source = am.SparkSource(df, stage=tmp_path / "stage")
    else:
        source = am.SparkSource(df, read=way)
    env = am.StreamExecutionEnvironment()
    env.configure(restart=am.restart.fixed_delay(1_000_000, am.millis(1)))
    with pytest.raises(am.JobFailedError, match="CAST_INVALID_INPUT"):
        async with asyncio.timeout(60):
            await env.from_source(source).collect()


@pytest.mark.real_time
@pytest.mark.parametrize("way", ["iterate", "push", "stage"])
async def test_a_killed_worker_of_a_user_defined_function_is_said(
    spark: Any, way: str, tmp_path: Path
) -> None:
    from pyspark.sql import functions as sf

    deadly = killing()
    function = sf.udf(lambda number: deadly(number), "long")
    df = spark.range(20, numPartitions=2).select(function("id").alias("id"))
    if way == "stage":
        source = am.SparkSource(df, stage=tmp_path / "stage")
    else:
        source = am.SparkSource(df, read=way)  # type: ignore[arg-type]
    text = await failure_of(source)
    assert "the Spark job that reads the DataFrame failed" in text
    check_says_killed(text)
    assert "operator 'rows'" in text


@pytest.mark.real_time
async def test_a_killed_worker_of_a_pipeline_is_said(
    spark: Any, tmp_path: Path
) -> None:
    function = killing()

    @am.pipeline
    def deadly(rows: Any) -> Any:
        return rows.map(lambda row: {"n": function(row.id)})

    df = spark.range(20, numPartitions=2)
    with pytest.raises(am.SparkJobError) as caught:
        deadly.apply_to(df, schema="n long").materialize(tmp_path / "kept")
    assert "the Spark job that runs pipeline '" in str(caught.value)
    assert "deadly' failed" in str(caught.value)
    check_says_killed(str(caught.value))
    config = am.JobConfig(restart=NoRestart())
    with pytest.raises(am.SparkJobError) as caught:
        await deadly.run_on(df, tmp_path / "out", schema="n long", config=config)
    text = str(caught.value)
    assert "the Spark job that runs the pipeline failed" in text
    assert "the Python worker that ran it died" in text
    assert "\tat " not in text


class Java:
    """An exception of Java, as py4j shows it."""

    def __init__(self, name: str, message: str | None, cause: Java | None = None):
        self._name, self._message, self._cause = name, message, cause

    def getClass(self) -> Any:  # noqa: N802 -- Java's
        return self

    def getName(self) -> str:  # noqa: N802 -- Java's
        return self._name

    def getMessage(self) -> str | None:  # noqa: N802 -- Java's
        return self._message

    def getCause(self) -> Java | None:  # noqa: N802 -- Java's
        return self._cause


class FromJavaError(Exception):
    """What pyspark raises."""

    def __init__(self, java: Java) -> None:
        super().__init__("from Java")
        self.java_exception = java


@pytest.mark.parametrize(
    ("java", "said"),
    [
        (Java("A", "outer", Java("B", "inner")), "failed: B: inner"),
        (Java("A", "outer", Java("B", None)), "failed: A: outer"),
        (Java("A", None), "failed: A: None"),
        (
            Java("A", "no\n\tat org.Some.thing(Some.scala:3)\n\t... 3 more\nend"),
            "failed: A: no\nend",
        ),
        (
            Java("A", "out", Java("java.lang.OutOfMemoryError", "Java heap space")),
            "failed: Java ran out of memory (java.lang.OutOfMemoryError). Let Spark",
        ),
        (
            Java("A", "Lost task 0.0 in stage 3.0 (TID 0) (host): TaskResultLost (x)"),
            "failed: Java ran out of memory in task 0.0 of stage 3.0 on host (TaskResult",
        ),
    ],
)
def test_the_innermost_cause_that_says_something_is_said(java: Java, said: str) -> None:
    assert said in str(spark_job_error(FromJavaError(java), "reads"))


class MuteError(Exception):
    """Has no text any more: the process that knows it is gone."""

    def __str__(self) -> str:
        raise ConnectionRefusedError(111, "refused")


def test_an_error_whose_text_is_gone_is_said() -> None:
    text = str(spark_job_error(MuteError(), "reads"))
    assert "MuteError, which Spark does not explain any more" in text


@dataclass
class Point:
    """A key without a hash."""

    x: int


@dataclass(frozen=True)
class Fixed:
    """A key with one."""

    x: int


class Spot(msgspec.Struct):
    x: int


@dataclass
class WithSpots:
    m: dict[Spot, str]


@dataclass
class WithPoints:
    """A record."""

    id: int
    m: dict[Point, str]


@dataclass
class WithFixed:
    """A record."""

    id: int
    m: dict[Fixed, str]


MAPS = {
    "array": "map(array(1, 2), 'a')",
    "nested": "array(map(struct(array(1) AS x), 'a'))",
    "struct": "map(struct(1 AS x), 'a')",
}


@pytest.mark.parametrize(
    ("what", "records", "where", "key"),
    [
        ("array", "namedtuple", "m", "a list (of an ARRAY)"),
        ("array", dict, "m", "a list (of an ARRAY)"),
        ("nested", "namedtuple", "m.element", "a list (of an ARRAY)"),
        ("struct", dict, "m", "a dict (of a STRUCT)"),
    ],
)
def test_keys_that_no_dict_can_have_are_refused_where_the_source_is_written(
    spark: Any, what: str, records: Any, where: str, key: str
) -> None:
    df = spark.sql(f"SELECT 1 AS id, {MAPS[what]} AS m")
    with pytest.raises(am.UnsupportedColumnError) as caught:
        am.SparkSource(df, records=records)
    text = str(caught.value)
    assert f"column '{where}' of type map<" in text
    assert key in text
    assert "map_entries()" in text


def test_keys_that_no_dict_can_have_are_refused_by_apply_to(spark: Any) -> None:
    @am.pipeline
    def same(rows: Any) -> Any:
        return rows

    df = spark.sql(f"SELECT 1 AS id, {MAPS['array']} AS m")
    with pytest.raises(am.UnsupportedColumnError, match="column 'm' of type map<"):
        same.apply_to(df, schema="id int")


async def test_keys_that_a_dict_can_have_are_read(spark: Any) -> None:
    df = spark.sql(f"SELECT 1 AS id, {MAPS['struct']} AS m")
    env = am.StreamExecutionEnvironment()
    assert (await env.from_source(am.SparkSource(df)).collect())[0].m == {(1,): "a"}
    array = spark.sql(f"SELECT 1 AS id, {MAPS['array']} AS m")
    batches = am.SparkSource(array, records="batch")
    assert (
        len(await am.StreamExecutionEnvironment().from_source(batches).collect()) == 1
    )
    entries = array.selectExpr("map_entries(m) AS m")
    (row,) = (
        await am.StreamExecutionEnvironment()
        .from_source(am.SparkSource(entries))
        .collect()
    )
    assert [tuple(each) for each in row.m] == [([1, 2], "a")]


def test_a_class_that_has_no_hash_is_no_key(spark: Any) -> None:
    df = spark.sql(f"SELECT 1 AS id, {MAPS['struct']} AS m")
    am.SparkSource(df, records=WithFixed)
    with pytest.raises(am.UnsupportedColumnError, match=r"a Point .*has no hash"):
        am.SparkSource(df, records=WithPoints)
    with pytest.raises(am.UnsupportedColumnError, match=r"a Spot .*has no hash"):
        am.SparkSource(df, records=WithSpots)


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (
            {"a": 1, "b": 2},
            "fields ['b'] are not in the schema, which has a: int64. Add them to",
        ),
        (
            {"c": 1},
            "fields ['c'] are not in the schema",
        ),
        (
            {"a": "x"},
            "column 'a': a record does not fit int64, its type in the schema: 'x' is",
        ),
    ],
)
async def test_records_that_do_not_fit_a_given_schema_are_told_it(
    spark: Any, record: Any, says: str
) -> None:
    stream = am.StreamExecutionEnvironment().from_collection([record])
    with pytest.raises(am.RecordTypeError) as caught:
        await stream.to_spark(spark, schema="a long")
    assert says in str(caught.value)
    assert "schema=" not in str(caught.value)


async def test_a_column_that_only_the_given_schema_has_is_named(spark: Any) -> None:
    stream = am.StreamExecutionEnvironment().from_collection([{"a": 1}])
    with pytest.raises(am.RecordTypeError) as caught:
        await stream.to_spark(spark, schema="a long, b string")
    assert (
        "column 'b': the schema has it, as string, and a record has none: its fields "
        "are ['a']." in str(caught.value)
    )


@am.pipeline
def ids(rows: Any) -> Any:
    return rows.map(lambda row: {"id": row.id})


def mistakes(spark: Any, path: Path) -> dict[str, tuple[Callable[[], Any], str]]:
    """Return calls that are wrong, each with what it is told."""
    df, rates = spark.range(3), spark.readStream.format("rate").load()
    (path / "file").touch()

    def stream(*arguments: Any, **options: Any) -> Callable[[], Any]:
        return lambda: am.SparkStreamSource(rates, *arguments, **options)

    def apply(**options: Any) -> Callable[[], Any]:
        return lambda: ids.apply_to(**{"df": df, "schema": "id long"} | options)

    def of_spark(rows: Any) -> Any:
        return rows.map(lambda row: {"id": df.count()})

    return {
        "a column is no DataFrame": (
            lambda: am.SparkSource(df.id),
            "df: Column is not a Spark DataFrame",
        ),
        "a column sorts no source": (
            lambda: am.SparkSource(df, order_by=df.id.desc()),
            "Give names; for another order, sort before",
        ),
        "a number sorts no source": (
            lambda: am.SparkSource(df, order_by=5),
            "order_by: 5 is not the name of a column",
        ),
        "a number sorts no pipeline": (
            apply(order_by=5),
            'Give e.g. "at", or a list.',
        ),
        "a name that no DataFrame has": (
            apply(df=None, left=df, order_by={"letf": "id"}),
            "order_by: there is no DataFrame 'letf'. There are ['left'].",
        ),
        "columns are no argument": (
            lambda: am.SparkSource(df, columns=["id"]),  # type: ignore[call-overload]
            "Select them before",
        ),
        "a stage is a directory": (
            lambda: am.SparkSource(df, stage=path / "file"),
            "is a file. Give a directory.",
        ),
        "a trigger is no text": (
            stream(path, trigger="1 second"),
            'trigger: \'1 second\' is unknown. Use {"processingTime": "1 second"}',
        ),
        "a trigger is misspelt": (
            stream(path, trigger={"processing_time": "1 second"}),
            'or {"availableNow": True}',
        ),
        "None is no checkpoint": (stream(None), "checkpoint: None is not a path"),
        "there is no checkpoint": (stream(), "Write SparkStreamSource(df, "),
        "there is no stage": (
            lambda: am.SparkTableSink(spark, "rows"),  # type: ignore[call-arg]
            "Write SparkTableSink(spark, ",
        ),
        "a pipeline takes streams": (
            lambda: ids(df),
            "Write pipeline.apply_to(df), which runs it inside Spark, or ",
        ),
        "df.transform() takes no pipeline": (
            lambda: df.transform(ids),
            "Write pipeline.apply_to(df)",
        ),
        "settings of run_on": (
            apply(config=am.JobConfig(restart=am.restart.fixed_delay(1, am.millis(1)))),
            "config: it has restart=, and over Spark's shuffle Spark repeats",
        ),
        "a column twice": (
            apply(schema="id long, id long"),
            "column 'id' exists twice",
        ),
        "a DataFrame in a function": (
            lambda: am.pipeline(of_spark).apply_to(df, schema="id long"),
            "is a DataFrame: Spark's driver is in this program, and functions run out",
        ),
        "not its DataFrame": (
            lambda: ids.apply_to(df, schema="id long").show(),  # type: ignore[attr-defined]
            "write applied.result.show(...)",
        ),
    }


def test_a_wrong_call_is_told_where_it_is_written_with_a_remedy(
    spark: Any, no_job: None, tmp_path: Path
) -> None:
    for what, (call, says) in mistakes(spark, tmp_path).items():
        with pytest.raises((am.AioMailboxError, AttributeError)) as caught:
            call()
        assert says in str(caught.value), what


async def test_what_exists_is_told_with_a_remedy(spark: Any, tmp_path: Path) -> None:
    df, there = spark.range(3), tmp_path / "there"
    there.mkdir()
    stream = am.StreamExecutionEnvironment().from_collection([{"id": 1}])
    with pytest.raises(am.TargetExistsError, match="Give another path, or remove it"):
        await stream.to_spark(spark, path=there)
    with pytest.raises(am.TargetExistsError, match="Give another path, or remove it"):
        await ids.run_on(df, there, schema="id long")
    with pytest.raises(am.TargetExistsError, match="Give another path, or remove it"):
        ids.apply_to(df, schema="id long").materialize(there)
    with pytest.raises(am.WrongTypeError, match="does not say the schemas"):
        sides: Any = [am.OutputTag("late")]
        await ids.run_on(df, tmp_path / "out", schema="id long", sides=sides)


async def test_a_none_in_a_column_that_takes_no_null_is_named(spark: Any) -> None:
    from pyspark.sql.types import IntegerType, StructField, StructType

    schema = StructType([StructField("n", IntegerType(), nullable=False)])
    stream = am.StreamExecutionEnvironment().from_collection([{"n": 1}, {"n": None}])
    with pytest.raises(am.RecordTypeError) as caught:
        await stream.to_spark(spark, schema=schema)
    assert (
        "column 'n': a record does not fit int32, its type in the schema: it is "
        in (str(caught.value))
    )
    nothing = am.pipeline(lambda rows: rows.map(lambda row: {"n": None}))
    with pytest.raises(Exception, match="it is None, and the column takes no null"):
        nothing.apply_to(spark.range(1), schema=schema).result.collect()


class Stopped:
    """A session that was stopped."""

    is_stopped = True


def test_a_session_that_was_stopped_is_told_where_its_rows_are_read() -> None:
    error = AttributeError("'NoneType' object has no attribute 'setJobGroup'")
    told = explained(error, Stopped(), "reads the DataFrame")
    assert "the Spark session was stopped" in str(told)
    assert "make the DataFrame again" in str(told)


def test_a_session_that_exists_keeps_settings_with_a_warning(
    spark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert local_session(cores=2) is spark
    assert "a Spark session exists already" not in caplog.text
    local_session(
        cores=4, **{"spark.driver.memory": "4g", "spark.sql.ansi.enabled": True}
    )
    assert (
        "kept={'spark.master': 'local[2]', 'spark.driver.memory': None}" in caplog.text
    )
