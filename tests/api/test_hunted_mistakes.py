"""Mistakes of one program each, which a hunt for them found to be silent or misleading."""

from __future__ import annotations

import asyncio
import math
import threading
import traceback
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import aiomailbox as am
from aiomailbox.operators.functions.process import ProcessOperator
from aiomailbox.testing import OneInputHarness


def stream_of(*values: Any) -> Any:
    return am.StreamExecutionEnvironment().from_collection(list(values))


class Word(NamedTuple):
    text: str
    length: int


async def test_a_named_tuple_that_a_flat_map_or_a_window_would_take_apart_is_refused() -> (
    None
):
    def one(text: str) -> Word:
        return Word(text, len(text))

    def of_window(key: Any, window: Any, records: list[str]) -> Word:
        return one(records[0])

    with pytest.raises(am.JobFailedError) as failed:
        await stream_of("tea").flat_map(one).collect()
    assert "a Word, which flat_map takes apart" in str(failed.value.__cause__)
    with pytest.raises(am.JobFailedError) as failed:
        await stream_of("tea").count_window_all(1).apply(of_window).collect()
    assert "a Word, which apply takes apart" in str(failed.value.__cause__)


async def test_a_tuple_of_results_of_one_kind_is_no_mistake(
    caplog: pytest.LogCaptureFixture,
) -> None:
    texts = await stream_of("tea").flat_map(lambda text: (text, text.upper())).collect()
    numbers = await stream_of(1).flat_map(lambda number: (number, 0.5)).collect()
    assert (texts, numbers) == (["tea", "TEA"], [1, 0.5])
    assert not caplog.records


async def test_a_function_that_changes_a_result_of_a_cache_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def look_up(number: int) -> dict[str, int]:
        return {"n": 0}

    def count(row: dict[str, int]) -> dict[str, int]:
        row["n"] += 1
        return row

    cached = stream_of(1, 2, 3).map_async(look_up, cache=am.Cache(lambda _: "all"))
    await cached.map(count).collect()
    told = [one.getMessage() for one in caplog.records]
    assert any("returns an object again that has changed" in one for one in told)
    assert any("look_up" in one for one in told)


async def test_new_objects_for_each_record_are_no_mistake_whatever_changes_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def grow(row: list[int]) -> list[int]:
        row.append(0)
        return row

    await stream_of(*range(40)).map(lambda n: [n]).map(grow).map(grow).collect()
    assert not caplog.records


async def test_a_counter_that_is_added_to_says_how() -> None:
    def process(value: int, context: Any, out: Any) -> None:
        counter = context.metrics.counter("seen")
        counter += 1

    with pytest.raises(am.JobFailedError) as failed:
        await stream_of(1).process(process).collect()
    assert "write counter.add(1)" in str(failed.value.__cause__)


async def test_a_function_logs_with_arguments_as_logging_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Logs(am.ProcessFunction[int, int]):
        def open(self, context: Any) -> None:
            self.log = context.log

        def process_element(self, value: int, context: Any, out: Any) -> None:
            self.log.warning("seen %s of %s", value, 2)

    await stream_of(1).process(Logs()).collect()
    [record] = caplog.records
    assert record.getMessage().startswith("seen 1 of 2 job=")


def test_worker_processes_without_a_number_are_told_how_to_give_it() -> None:
    with pytest.raises(am.WrongTypeError, match=r"Write am\.Processes\(4\)"):
        am.Processes()  # type: ignore[call-arg]


def test_a_timeout_of_a_job_is_told_to_be_pythons() -> None:
    env = am.StreamExecutionEnvironment()
    env.from_collection([1]).sink_to(print)
    with pytest.raises(am.InvalidArgumentError, match=r"asyncio\.timeout\(seconds\)"):
        am.run(env.execute("job", timeout=5))  # type: ignore[call-arg]


def test_a_harness_without_keys_is_told_how_to_have_them() -> None:
    class Keeps(am.ProcessFunction[int, int]):
        def open(self, context: Any) -> None:
            context.keyed_state.get_value(am.ValueStateDescriptor("n", int))

        def process_element(self, value: int, context: Any, out: Any) -> None: ...

    harness = OneInputHarness(ProcessOperator(Keeps()))
    with pytest.raises(am.AioMailboxError, match="keyed=True"):
        harness.open()


@pytest.mark.parametrize(
    ("value", "written"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")]
)
async def test_a_csv_file_has_numbers_that_are_not_finite_and_gives_them_back(
    tmp_path: Path, value: float, written: str
) -> None:
    env = am.StreamExecutionEnvironment()
    env.from_collection([{"price": value}]).sink_to(am.FileSink(tmp_path / "o", "csv"))
    await env.execute()
    [file] = (tmp_path / "o").glob("part*")
    assert file.read_text("utf-8") == f"price\n{written}\n"
    read = am.FileSource(tmp_path / "o", "csv", records={"price": float})
    [row] = await am.StreamExecutionEnvironment().from_source(read).collect()
    assert repr(row["price"]) == written


async def test_a_process_function_that_asks_its_context_for_a_log_is_told_where_it_is() -> (
    None
):
    def process(value: int, context: Any, out: Any) -> None:
        context.log.info("seen")

    with pytest.raises(am.JobFailedError) as failed:
        await stream_of(1).process(process).collect()
    assert "self.log = context.log" in str(failed.value.__cause__)


async def test_a_list_that_is_added_to_a_list_of_numbers_is_told_how_to_replace_it() -> (
    None
):
    class Keeps(am.KeyedProcessFunction[int, int, int]):
        def open(self, context: Any) -> None:
            kept = am.ListStateDescriptor("kept", int)
            self.kept = context.keyed_state.get_list(kept)

        def process_element(self, value: int, context: Any, out: Any) -> None:
            self.kept.add([*self.kept.get(), value])

    with pytest.raises(am.JobFailedError) as failed:
        await stream_of(1).key_by(str).process(Keeps()).collect()
    assert "state.update(values)" in str(failed.value.__cause__)


@pytest.mark.parametrize(
    ("key", "is_told"),
    [
        (hash, True),
        (lambda word: hash((1, word)), True),
        (lambda word: hash(len(word)), False),
        (len, False),
    ],
)
async def test_a_key_that_is_a_hash_of_text_is_told_where_a_job_may_resume(
    key: Any, is_told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(None, directory=tmp_path)
    await env.from_collection(["tea"]).key_by(key).reduce(max).collect()
    assert any("uses hash()" in one.getMessage() for one in caplog.records) == is_told


async def test_a_filter_of_text_that_says_false_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rows = [{"ok": "True"}] * 40 + [{"ok": "False"}]
    assert await stream_of(*rows).filter(lambda row: row["ok"]).collect() == rows
    [record] = caplog.records
    assert "the verdict of a filter is the text 'false'" in record.getMessage()


async def test_a_filter_of_another_text_is_no_mistake(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rows = [{"answer": "no"}, {"answer": ""}]
    kept = await stream_of(*rows).filter(lambda row: row["answer"]).collect()
    assert kept == rows[:1]
    assert not caplog.records


def test_a_generator_whose_returned_value_is_lost_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def parts(text: str) -> Any:
        if not text:
            return ["nothing"]
        yield from text.split()

    def ends(text: str) -> Any:
        if not text:
            return
        yield from text.split()

    stream_of("tea").flat_map(ends)
    assert not caplog.records
    stream_of("tea").flat_map(parts)
    [record] = caplog.records
    assert "is a generator that returns a value, which is lost" in record.getMessage()


def test_what_a_reduce_and_checkpoints_take_by_name_is_told() -> None:
    keyed = stream_of(1).key_by(str)
    with pytest.raises(am.WrongTypeError, match=r"use aggregate\(\.\.\.\)"):
        keyed.reduce(max, 0)
    env = am.StreamExecutionEnvironment()
    with pytest.raises(am.WrongTypeError, match=r"directory=\.\.\."):
        env.enable_checkpointing(am.seconds(1), "state")  # type: ignore[misc]


def test_an_empty_text_is_no_checkpoint() -> None:
    with pytest.raises(am.InvalidArgumentError, match="it is an empty text"):
        am.JobConfig(restore_from="")


async def test_a_cell_of_another_type_is_shown(tmp_path: Path) -> None:
    (tmp_path / "prices.csv").write_text("item;price\ntea;2,5\n", "utf-8")
    source = am.FileSource(
        tmp_path / "prices.csv", delimiter=";", records={"price": float}
    )
    with pytest.raises(am.JobFailedError, match="the cell is '2,5'"):
        await am.StreamExecutionEnvironment().from_source(source).collect()


def test_a_lock_of_an_earlier_event_loop_is_told_to_be_made_anew() -> None:
    lock = asyncio.Semaphore(1)

    async def call(number: int) -> int:
        async with lock:
            await asyncio.sleep(0)
        return number

    def run() -> None:
        asyncio.run(stream_of(1, 2, 3).map_async(call, concurrency=3).collect())

    run()
    with pytest.raises(am.JobFailedError) as failed:
        run()
    assert "used on another event loop" in "".join(
        traceback.format_exception(failed.value)
    )


async def test_a_timer_in_open_is_told_where_it_belongs() -> None:
    class Alarm(am.KeyedProcessFunction[int, int, int]):
        def open(self, context: Any) -> None:
            context.timer_service.register_processing_time_timer(after=am.seconds(1))

        def process_element(self, value: int, context: Any, out: Any) -> None: ...

    with pytest.raises(am.JobFailedError) as failed:
        await stream_of(1).key_by(str).process(Alarm()).collect()
    told = "".join(traceback.format_exception(failed.value))
    assert "register it in process_element" in told


async def test_a_default_that_is_put_is_not_told_of_whatever_is_in_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Keeps(am.KeyedProcessFunction):
        def open(self, context: Any) -> None:
            kept = am.MapStateDescriptor("kept", str, list)
            self.kept = context.keyed_state.get_map(kept)

        def process_element(self, value: Any, context: Any, out: Any) -> None:
            values = self.kept.get("values", [])
            values.append(value)
            self.kept.put("values", values)
            # What cannot be copied, and what is in itself.
            endless: dict[str, Any] = {"lock": threading.Lock()}
            endless["self"] = endless
            out.collect(len(self.kept.get("none", endless)))

    found = await stream_of(1, 1, 1).key_by(str).process(Keeps()).collect()
    assert found == [2, 2, 2]
    assert not caplog.records
