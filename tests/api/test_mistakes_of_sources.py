"""Mistakes about sources, their files and their times that once passed in silence."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am

Env = am.StreamExecutionEnvironment


async def times() -> AsyncIterator[int]:
    for time in (1_000, 2_000, 3_000):
        yield time


ORDERED = am.WatermarkStrategy.for_monotonous_timestamps()
WITHOUT = am.WatermarkStrategy.no_watermarks()
SECOND = am.TumblingEventTimeWindows.of(am.seconds(1))


def counted(stream: Any) -> None:
    stream.key_by(str).window(SECOND).aggregate(am.count()).sink_to(print)


def timed(env: Env, strategy: Any, *, bounded: bool) -> Any:
    at = strategy.with_timestamp_assigner(lambda time: time)
    return env.from_async_iterable(times, at, bounded=bounded)


def of_a_source_without_watermarks(env: Env) -> None:
    counted(timed(env, WITHOUT, bounded=False))


def beside_a_source_that_has_some(env: Env) -> None:
    without = timed(env, WITHOUT, bounded=False)
    counted(timed(env, ORDERED, bounded=False).union(without))


def with_watermarks_replaced_by_none(env: Env) -> None:
    stream = timed(env, ORDERED, bounded=False).map(lambda time: time)
    at = WITHOUT.with_timestamp_assigner(lambda time: time)
    counted(stream.assign_timestamps_and_watermarks(at))


STILL = (
    of_a_source_without_watermarks,
    beside_a_source_that_has_some,
    with_watermarks_replaced_by_none,
)


@pytest.mark.parametrize("build", STILL)
async def test_windows_that_never_fire_are_named_when_the_job_starts(
    build: Callable[[Env], None], caplog: pytest.LogCaptureFixture
) -> None:
    env = Env()
    build(env)
    async with env.start() as job:
        await job.cancel()
    [told] = [one for one in caplog.records if "never moves" in one.getMessage()]
    fields = vars(told)
    assert fields["operator"] == "window aggregate"
    assert fields["line"].startswith(f"{__file__}:")
    assert "for_monotonous_timestamps" in fields["remedy"]


def that_have_watermarks(env: Env) -> None:
    counted(timed(env, ORDERED, bounded=False))


def that_end(env: Env) -> None:
    counted(timed(env, WITHOUT, bounded=True))


def that_get_watermarks_on_the_way(env: Env) -> None:
    stream = timed(env, WITHOUT, bounded=False)
    at = ORDERED.with_timestamp_assigner(lambda time: time)
    counted(stream.assign_timestamps_and_watermarks(at))


def that_fire_by_count(env: Env) -> None:
    windows = timed(env, WITHOUT, bounded=False).key_by(str).window(SECOND)
    windows.trigger(am.CountTrigger.of(2)).aggregate(am.count()).sink_to(print)


MOVING = (
    that_have_watermarks,
    that_end,
    that_get_watermarks_on_the_way,
    that_fire_by_count,
)


@pytest.mark.parametrize("build", MOVING)
async def test_windows_that_fire_are_not_named(
    build: Callable[[Env], None], caplog: pytest.LogCaptureFixture
) -> None:
    env = Env()
    build(env)
    async with env.start() as job:
        await job.cancel()
    assert "never moves" not in caplog.text


async def test_a_config_that_leaves_out_settings_of_the_environment_names_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    own = am.JobConfig(checkpoints=am.CheckpointConfig(None), seed=7)
    env = Env(config=own)
    env.from_collection([1]).sink_to(lambda number: None)
    await env.execute(config=am.JobConfig(seed=8))
    [told] = [one for one in caplog.records if "config=" in one.getMessage()]
    assert vars(told)["left_out"] == ["checkpoints"]
    assert vars(told)["line"].startswith(f"{__file__}:")
    caplog.clear()
    env.from_collection([1]).sink_to(lambda number: None)
    await env.execute(config=am.JobConfig(), checkpoints=None, seed=8)
    env.from_collection([1]).sink_to(lambda number: None)
    await env.execute(seed=8)
    assert "config=" not in caplog.text


@pytest.mark.real_time
async def test_a_head_with_another_delimiter_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("item;price\ntea;3\n")
    source = am.FileSource(tmp_path, "csv")
    assert await Env().from_source(source).collect() == [{"item;price": "tea;3"}] * 2
    [told] = caplog.records
    assert "single column" in told.getMessage()
    assert "delimiter=';'" in told.getMessage()
    assert vars(told)["file"] == str(tmp_path / "a.csv")
    caplog.clear()
    right = am.FileSource(tmp_path, "csv", delimiter=";")
    rows = await Env().from_source(right).collect()
    assert rows == [{"item": "tea", "price": "3"}] * 2
    assert caplog.records == []


@pytest.mark.real_time
async def test_a_column_that_a_header_has_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "orders.csv"
    file.write_text("price,price,item\n1,2,tea\n")
    with pytest.raises(am.JobFailedError, match="has column 'price' twice") as failed:
        await Env().from_source(am.FileSource(file)).collect()
    assert f"{file}, line 1" in str(failed.value)
    named = am.FileSource(file, columns=["net", "gross", "item"])
    first, _ = await Env().from_source(named).collect()
    assert first == {"net": "price", "gross": "price", "item": "item"}
    # As spreadsheets write it.
    file.write_text("price,item,,\n1,tea,,\n")
    rows = await Env().from_source(am.FileSource(file)).collect()
    assert rows == [{"price": "1", "item": "tea", "": ""}]


@pytest.mark.real_time
async def test_a_file_that_does_not_belong_to_the_others_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.csv").write_text("item,price\ntea,3\n")
    (tmp_path / "b.csv").write_text("price,item\n4,jam\n")
    source = am.FileSource(tmp_path, "csv")
    assert len(await Env().from_source(source).collect()) == 2
    # The order of columns says nothing.
    assert caplog.records == []
    (tmp_path / "notes.txt").write_text("do not delete\nAnn\n")
    await Env().from_source(am.FileSource(tmp_path, "csv")).collect()
    [told] = caplog.records
    assert "have different columns" in told.getMessage()
    assert vars(told)["file"] == str(tmp_path / "notes.txt")


@pytest.mark.real_time
async def test_a_header_that_is_read_as_a_record_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "orders.csv"
    file.write_text("item,price\ntea,3\n")
    source = am.FileSource(file, columns=["item", "price"])
    assert len(await Env().from_source(source).collect()) == 2
    [told] = caplog.records
    assert "is read as a record" in told.getMessage()
    caplog.clear()
    file.write_text("tea,3\n")
    assert len(await Env().from_source(source).collect()) == 1
    assert caplog.records == []


@pytest.mark.real_time
async def test_a_json_array_in_a_file_of_json_lines_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_text('[{"price": 3}, {"price": 4}]')
    source = am.FileSource(file)
    [record] = await Env().from_source(source).collect()
    assert record == [{"price": 3}, {"price": 4}]
    assert "is an array: it is one record" in caplog.text
    file.write_text('[\n  {"price": 3}\n]\n')
    with pytest.raises(am.JobFailedError, match="has to be on one line"):
        await Env().from_source(am.FileSource(file)).collect()


def test_a_table_that_is_a_database_is_refused() -> None:
    with pytest.raises(am.InvalidArgumentError, match="The database comes first"):
        am.SqlSink("orders", "sqlite:///shop.db")
