"""What users take the library for, beside what it is: told where it would cost an hour."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

import aiomailbox as am
from aiomailbox.connectors.collection import IteratorSource
from aiomailbox.operators.core import collector
from aiomailbox.operators.core.mutations import structure

Env = am.StreamExecutionEnvironment
TIMED = am.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")


async def error_of(stream: Any) -> str:
    with pytest.raises(am.JobFailedError) as failed:
        await stream.collect()
    return str(failed.value.__cause__)


async def numbers() -> AsyncIterator[int]:
    number = 0
    while True:
        yield number
        number += 1
        await asyncio.sleep(0.01)


# Subscribers that the job waits for.


async def test_a_job_goes_on_when_a_subscriber_that_it_waits_for_leaves_its_loop():
    env = Env()
    stream = env.from_async_iterable(numbers).map(lambda number: number)
    seen: list[int] = []
    stream.publish()
    stream.sink_to(seen.append)
    async with env.start("left") as job:
        async for number in job.subscribe(stream, size=2, on_full="wait"):
            if number == 3:
                break
        gc.collect()
        await asyncio.sleep(5)
        await job.stop()
    assert job.state is am.JobState.FINISHED
    assert len(seen) > 100


async def test_a_subscriber_that_keeps_a_job_waiting_is_told(caplog):
    env = Env()
    stream = env.from_async_iterable(numbers)
    stream.publish()
    async with env.start("kept") as job:
        kept = job.subscribe(stream, size=2, on_full="wait")
        await asyncio.sleep(30)
        assert caplog.text.count("waits for a subscriber that does not read") == 1
        kept.close()
        await job.stop()
    assert job.state is am.JobState.FINISHED


async def test_a_slow_subscriber_that_reads_is_not_told(caplog):
    env = Env()
    stream = env.from_async_iterable(numbers)
    stream.publish()
    async with env.start("slow") as job:
        async with job.subscribe(stream, size=2, on_full="wait") as records:
            for _ in range(20):
                await asyncio.sleep(4)
                await anext(records)
        await job.stop()
    assert "does not read" not in caplog.text


async def test_a_subscriber_whose_task_nobody_references_gets_its_records():
    env = Env()
    stream = env.from_async_iterable(numbers)
    stream.publish()
    seen: list[int] = []

    async def follow(records: am.Subscription[int]) -> None:
        async for number in records:
            seen.append(number)

    async with env.start("followed") as job:
        asyncio.get_running_loop().call_soon(
            lambda: asyncio.ensure_future(follow(job.subscribe(stream))) and None
        )
        for _ in range(5):
            await asyncio.sleep(0.1)
            gc.collect()
        await job.stop()
    assert len(seen) > 10


async def test_a_subscription_of_a_job_that_has_ended_says_that_nothing_comes(caplog):
    env = Env()
    stream = env.from_collection([1, 2])
    stream.publish()
    job = await env.execute_async("ended")
    await job.result()
    assert [number async for number in job.subscribe(stream)] == []
    assert "a subscription begins when its job has ended" in caplog.text


# Sources that are not what a checkpoint knows.


async def resumed(directory: Path, first: Any, second: Any) -> None:
    """Stop a job in the middle of its source, and resume it with another one."""

    async def slow(record: Any) -> Any:
        await asyncio.sleep(1)
        return record

    def env_of(source: Any, seen: list[Any]) -> Env:
        env = Env().enable_checkpointing(None, directory=directory)
        calls = (
            env.from_source(source).uid("in").map_async(slow, concurrency=1, capacity=1)
        )
        calls.uid("slow").sink_to(seen.append)
        return env

    seen: list[Any] = []
    async with env_of(first, seen).start("changing") as job:
        while len(seen) < 3:
            await asyncio.sleep(1)
        await job.trigger_checkpoint()
    with pytest.raises(am.JobFailedError) as failed:
        await env_of(second(), []).execute("changing", restore_from="latest")
    assert isinstance(failed.value.__cause__, am.SourceChangedError)
    assert "pass allow_unmatched_state=True" in str(failed.value)


async def test_a_list_that_has_become_shorter_is_refused_at_a_restore(tmp_path):
    await resumed(
        tmp_path,
        am.CollectionSource(list(range(5_000))),
        lambda: am.CollectionSource([1, 2]),
    )


async def test_a_function_that_makes_fewer_elements_is_refused_at_a_restore(tmp_path):
    await resumed(
        tmp_path,
        IteratorSource(lambda: iter(range(5_000))),
        lambda: IteratorSource(lambda: iter([1])),
    )


async def test_a_table_that_has_become_shorter_is_refused_at_a_restore(tmp_path):
    def source(count: int) -> am.ArrowSource:
        return am.ArrowSource(pa.table({"n": range(count)}))

    await resumed(tmp_path, source(5_000), lambda: source(2))


async def test_a_parquet_file_that_has_become_shorter_is_refused_at_a_restore(tmp_path):
    file = tmp_path / "rows.parquet"

    def source(count: int) -> am.FileSource:
        parquet.write_table(pa.table({"n": range(count)}), file)
        return am.FileSource(file)

    await resumed(tmp_path / "checkpoints", source(5_000), lambda: source(2))


@pytest.mark.parametrize("kind", ["text", "jsonl", "csv"])
async def test_a_file_that_has_become_shorter_is_refused_at_a_restore(tmp_path, kind):
    file = tmp_path / f"rows.{kind}"
    row = {"text": "row {}", "jsonl": '{{"n": {}}}', "csv": "{}"}[kind]
    head = "n\n" if kind == "csv" else ""
    file.write_text(head + "".join(row.format(n) + "\n" for n in range(5_000)))

    def cut() -> am.FileSource:
        file.write_text(head + row.format(7) + "\n")
        return am.FileSource(file, kind)

    await resumed(tmp_path / "checkpoints", am.FileSource(file, kind), cut)


async def test_a_header_is_told_whatever_the_order_of_the_columns(tmp_path, caplog):
    file = tmp_path / "sales.csv"
    file.write_text("item,price\ntea,2.5\n")
    source = am.FileSource(file, columns=["price", "item"])
    await Env().from_source(source).collect()
    assert "has the names in columns=, and is read as a record" in caplog.text


async def test_a_header_is_told_where_one_of_its_columns_is_wanted(tmp_path, caplog):
    file = tmp_path / "sales.csv"
    file.write_text("item,price\ntea,2.5\n")
    await error_of(Env().from_source(am.FileSource(file, columns=["price"])))
    assert "leave columns= out, if the file has a header" in caplog.text


# Sinks.


async def test_a_sink_that_begins_tasks_is_told_once(caplog):
    async def post(number: int) -> None:
        await asyncio.sleep(1)

    tasks: list[Any] = []
    with ThreadPoolExecutor() as pool:
        for begin in (
            lambda n: asyncio.ensure_future(post(n)),
            lambda n: pool.submit(abs, n),
        ):
            caplog.clear()
            env = Env()

            def sink(number: int, begin: Any = begin) -> Any:
                tasks.append(begin(number))
                return tasks[-1]

            env.from_collection([1, 2, 3]).sink_to(sink)
            await env.execute("begun")
            assert (
                caplog.text.count("does not wait for what its function has begun") == 1
            )


class Opened:
    def open(self, context: Any) -> None:
        self.factor = 2

    def __call__(self, number: int) -> int:
        return number

    def close(self) -> None: ...


class Closable:
    """Closed by its program."""

    def __call__(self, number: int) -> int:
        return number

    def close(self) -> None: ...


@pytest.mark.parametrize("verb", ["map", "filter", "flat_map", "sink_to"])
def test_an_object_whose_open_is_not_called_is_told(verb, caplog):
    getattr(Env().from_collection([1]), verb)(Opened())
    assert f"{verb} calls neither open() nor close()" in caplog.text
    caplog.clear()
    getattr(Env().from_collection([1]), verb)(Closable())
    getattr(Env().from_collection([1]), verb)(str)
    assert not caplog.text


async def test_a_function_in_which_a_stream_ends_twice_is_told(caplog):
    seen: list[int] = []
    env = Env()
    stream = env.from_collection([1])
    other = env.from_collection([2])
    stream.sink_to(seen.append)
    other.sink_to(seen.append)
    stream.map(str).sink_to(seen.append)
    assert not caplog.text
    stream.sink_to(seen.append)
    assert "a stream ends in the same function twice" in caplog.text


@pytest.mark.parametrize("record", [{"n": 1}, "text", b"bytes"])
async def test_a_method_that_takes_records_apart_is_refused_as_a_sink(record):
    seen: list[Any] = []
    env = Env()
    env.from_collection([record]).sink_to(seen.extend)
    with pytest.raises(am.JobFailedError, match=r"Write sink_to\(results\.append\)"):
        await env.execute("apart")
    assert seen == []


async def test_a_method_that_takes_lists_is_right_for_lists_of_records():
    seen: list[int] = []
    env = Env()
    env.from_collection(range(5)).batch(2).sink_to(seen.extend)
    await env.execute("lists")
    assert seen == [0, 1, 2, 3, 4]


# Errors of functions, with what was meant.


async def test_the_field_of_a_record_is_not_said_to_be_meant_for_itself():
    def again(answer: dict[str, int]) -> bool:
        return answer["id"] == 1

    async def call(record: dict[str, int]) -> dict[str, int]:
        return {"status": 500}

    retry = am.Retry(attempts=2, retry_if=again)
    text = await error_of(
        Env().from_collection([{"id": 1}]).map_async(call, retry=retry)
    )
    assert "KeyError: 'id'" in text
    assert "meant" not in text


async def test_a_question_is_said_to_have_a_value():
    env = Env()
    env.from_questions().map(lambda asked: asked.answer(asked["n"])).sink_to(
        am.Answers()
    )
    with pytest.raises(am.JobFailedError, match=r"write question\.value"):
        async with env.start("asked") as job:
            await job.ask({"n": 1}, timeout=5)


async def test_a_dead_letter_is_said_to_have_a_record():
    tag = am.OutputTag("bad")
    stream = (
        Env().from_collection([0]).map(lambda n: 1 / n, on_error=am.dead_letter(tag))
    )
    stream.sink_to(print)
    letters = stream.get_side_output(tag)
    assert "write letter.record" in await error_of(letters.map(lambda one: one["n"]))


@pytest.mark.parametrize("run", ["asyncio.run", "run_until_complete"])
async def test_a_loop_within_the_loop_is_told_what_to_write(run):
    async def call(number: int) -> int:
        return number

    def within(number: int) -> int:
        coroutine = call(number)
        try:
            if run == "asyncio.run":
                return asyncio.run(coroutine)
            return asyncio.get_running_loop().run_until_complete(coroutine)
        finally:
            coroutine.close()

    assert "give map_async an async def" in await error_of(
        Env().from_collection([1]).map(within)
    )


class OfTimes(am.KeyedProcessFunction):
    def __init__(self, more: Any) -> None:
        self.more = more

    def process_element(self, record: Any, context: Any, out: Any) -> None:
        out.collect(context.timestamp + self.more)


@pytest.mark.parametrize(
    ("strategy", "more", "told"),
    [
        (None, 1_000, "the record has no event time"),
        (TIMED, am.seconds(1), "register_event_time_timer(after=am.seconds(10))"),
    ],
)
async def test_times_that_cannot_be_added_are_explained(strategy, more, told):
    stream = Env().from_collection([{"at": 1}], strategy).key_by("at")
    assert told in await error_of(stream.process(OfTimes(more)))


@pytest.mark.parametrize("verb", ["map", "sink_to"])
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"name": "n"}, '.name("...")'),
        ({"uid": "n"}, '.uid("...")'),
        ({"parallelism": 2}, ".set_parallelism(...)"),
    ],
)
def test_what_is_said_behind_an_operator_is_no_argument_of_it(verb, given, told):
    with pytest.raises(am.InvalidArgumentError) as refused:
        getattr(Env().from_collection([1]), verb)(print, **given)
    assert told in str(refused.value)


# Timers.


class Deletes(am.KeyedProcessFunction):
    """Deletes by the time of the record; or by the time of the timer."""

    def __init__(self, later_ms: int) -> None:
        self.later_ms = later_ms

    def open(self, context: Any) -> None:
        descriptor = am.ValueStateDescriptor("last", int)
        self.last = context.keyed_state.get_value(descriptor)

    def process_element(self, record: Any, context: Any, out: Any) -> None:
        if self.last.value() is not None:
            context.timer_service.delete_event_time_timer(self.last.value())
        self.last.update(context.timestamp + self.later_ms)
        context.timer_service.register_event_time_timer(context.timestamp + 10_000)

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        out.collect(timestamp)


@pytest.mark.parametrize(("later_ms", "is_told"), [(0, True), (10_000, False)])
async def test_timers_that_are_deleted_and_not_there_are_told(
    later_ms, is_told, caplog
):
    records = [{"at": 1_000 + n} for n in range(50)]
    stream = Env().from_collection(records, TIMED).key_by(lambda _: "all")
    await stream.process(Deletes(later_ms)).collect()
    assert ("timers are deleted that are not there" in caplog.text) is is_told


async def test_a_duration_as_the_time_of_a_timer_is_told_what_to_write():
    class After(am.KeyedProcessFunction):
        def process_element(self, record: Any, context: Any, out: Any) -> None:
            context.timer_service.register_event_time_timer(am.seconds(5))

        def on_timer(self, timestamp: int, context: Any, out: Any) -> None: ...

    stream = Env().from_collection([{"at": 1}], TIMED).key_by("at").process(After())
    assert "for a timer write after=am.seconds(10)" in await error_of(stream)


# Functions with a life.


class Misnamed(am.ProcessFunction):
    def process_element(self, record: Any, context: Any, out: Any) -> None: ...

    def onTimer(self, timestamp: int, context: Any, out: Any) -> None: ...  # noqa: N802

    def on_checkpoint_complete(self, checkpoint_id: int) -> None: ...


class WellNamed(am.ProcessFunction):
    def process_element(self, record: Any, context: Any, out: Any) -> None: ...

    def process_elements(self, records: Any) -> None: ...

    def close(self) -> None: ...

    def opened(self) -> None: ...


def test_a_method_with_almost_the_name_of_a_hook_is_told(caplog):
    Env().from_collection([1]).process(WellNamed())
    assert not caplog.text
    Env().from_collection([1]).process(Misnamed())
    assert "call it on_timer" in caplog.text
    assert "call it notify_checkpoint_complete" in caplog.text


class Keeps(am.KeyedProcessFunction):
    def __init__(self) -> None:
        self.seen: dict[Any, set[Any]] = {}
        self.cache: dict[Any, Any] = {}

    def open(self, context: Any) -> None:
        self.state = context.keyed_state.get_list(am.ListStateDescriptor("seen"))

    def process_element(self, record: Any, context: Any, out: Any) -> None:
        self.cache[record] = 1
        self.state.add(record)
        self.seen[context.current_key].add(record)


def test_containers_that_a_keyed_function_fills_are_told(caplog):
    Env().from_collection([1]).key_by(lambda n: n).process(Keeps())
    assert "keeps values on itself" in caplog.text
    assert "['self.seen']" in caplog.text


# Numbers without a unit.


def test_a_number_of_seconds_that_looks_like_milliseconds_is_told_once(caplog):
    async def call(number: int) -> int:
        return number

    stream = Env().from_collection([1])
    stream.map_async(call, timeout=17_500)
    stream.map_async(call, timeout=17_500)
    [one] = caplog.records
    assert "timeout=17500 is 291 minutes" in one.getMessage()
    assert "write am.millis(17500)" in one.getMessage()
    assert f"{__file__}:" in one.getMessage()
    am.RateLimit(10, per=23_000)
    assert "per=23000" in caplog.text


@pytest.mark.parametrize("seconds", [10, 1_800, 3_600, 7_200, 86_400, 1_000.0])
def test_usual_numbers_of_seconds_are_not_told(seconds, caplog):
    am.RateLimit(10, per=seconds)
    assert not caplog.text


# Restores and journals.


async def test_state_that_a_restore_drops_is_told(tmp_path, caplog):
    def env_of(uid: str, seen: list[int]) -> Env:
        env = Env().enable_checkpointing(None, mode=am.CheckpointingMode.AT_LEAST_ONCE)
        sums = (
            env.from_async_iterable(numbers).uid("in").key_by(lambda _: 0).reduce(max)
        )
        sums.uid(uid).map(abs).sink_to(seen.append)
        return env

    seen: list[int] = []
    async with env_of("sums", seen).start("dropping") as job:
        while len(seen) < 3:
            await asyncio.sleep(0.1)
        await job.stop_with_savepoint(tmp_path / "savepoint")
    assert "state is dropped" not in caplog.text
    async with env_of("totals", seen).start(
        "dropping", restore_from=tmp_path / "savepoint", allow_unmatched_state=True
    ) as job:
        await asyncio.sleep(1)
        await job.stop()
    assert "state is dropped" in caplog.text
    assert "dropped=['sums']" in caplog.text
    # A function has no state, and does not begin empty.
    assert "begin_empty=['totals']" in caplog.text


@pytest.mark.parametrize("is_named", [True, False])
async def test_a_journal_that_ends_with_its_program_is_told(is_named, tmp_path, caplog):
    async def call(number: int) -> int:
        return number

    env = Env().enable_checkpointing(None, directory=tmp_path if is_named else None)
    calls = env.from_collection([1]).map_async(call, journal=True, id=lambda n: n)
    await calls.collect()
    told = "the journal of calls ends with this program" in caplog.text
    assert told is not is_named


# Arguments.


def test_a_file_sink_without_a_format_says_how_it_is_written():
    sink: Any = am.FileSink
    with pytest.raises(
        am.WrongTypeError, match=r'am\.FileSink\("directory", "jsonl"\)'
    ):
        sink("out")
    with pytest.raises(am.InvalidArgumentError, match="compression"):
        sink("out", "jsonl", compression="gzip")


# One object that is emitted again and again.


class Batches(am.ProcessFunction):
    """Emits the records two by two, in lists."""

    def __init__(self, copy: Any) -> None:
        self.copy = copy
        self.batch: list[Any] = []

    def process_element(self, record: Any, context: Any, out: Any) -> None:
        self.batch.append(record)
        if len(self.batch) == 2:
            out.collect(self.copy(self.batch))
            self.batch.clear()


def as_it_is(value: Any) -> Any:
    return value


@pytest.mark.parametrize(("copy", "is_told"), [(as_it_is, True), (list, False)])
async def test_a_list_that_is_cleared_when_it_was_emitted_is_told(
    copy, is_told, caplog
):
    stream = Env().from_collection(range(10))
    results = await stream.process(Batches(copy)).collect()
    assert ([0, 1] in results) is not is_told
    told = caplog.text.count("a function changes a result that it has emitted")
    assert told == int(is_told)


async def test_elements_of_a_window_that_are_cleared_are_told(caplog):
    def emit(key: Any, context: Any, elements: list[Any], out: Any) -> None:
        out.collect(elements)
        elements.clear()

    windows = Env().from_collection(range(4)).key_by(lambda _: 0).count_window(2)
    await windows.process(emit).collect()
    assert "a function changes a result that it has emitted" in caplog.text


async def test_only_the_first_results_are_looked_at_however_many_a_call_emits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0

    def counted(value: Any) -> Any:
        nonlocal looks
        looks += 1
        return structure(value)

    def emit(record: int, context: Any, out: Any) -> None:
        for number in range(1_000):
            out.collect({"number": number})

    monkeypatch.setattr(collector, "structure", counted)
    results = await Env().from_collection([1]).process(emit).collect()
    assert len(results) == 1_000
    # Each of 16 is noted, and compared when one of the others comes, and at the end.
    assert 16 < looks <= 16 + 16 * 16


async def test_what_operators_behind_a_function_change_is_not_told_of_it(caplog):
    def change(record: dict[str, int]) -> dict[str, int]:
        record["n"] += 1
        return record

    def twice(record: Any, context: Any, out: Any) -> None:
        out.collect(record)

    async def single() -> AsyncIterator[dict[str, int]]:
        for n in range(5):
            yield {"n": n}
            await asyncio.sleep(1)

    stream = Env().from_async_iterable(single).process(twice)
    assert len(await stream.map(change).collect()) == 5
    assert "emitted" not in caplog.text


@pytest.mark.parametrize(("copy", "is_told"), [(as_it_is, True), (dict, False)])
async def test_a_dict_that_a_source_fills_again_is_told_once(copy, is_told, caplog):
    async def rows() -> AsyncIterator[dict[str, int]]:
        row: dict[str, int] = {}
        for n in range(5):
            row["n"] = n
            yield copy(row)

    await Env().from_async_iterable(rows).collect()
    told = caplog.text.count("a source yields an object again that it has changed")
    assert told == int(is_told)


async def test_one_object_that_does_not_change_is_not_told(caplog):
    async def rows() -> AsyncIterator[dict[str, int]]:
        row = {"n": 1}
        for _ in range(5):
            yield row

    await Env().from_async_iterable(rows).collect()
    assert not caplog.text


@pytest.mark.parametrize(("kind", "is_told"), [("deaf", True), ("right", False)])
async def test_a_source_that_does_not_begin_behind_its_offset_is_told(
    kind, is_told, caplog
):
    stumbles = [6]

    async def rows(after: int | None) -> AsyncIterator[int]:
        for n in range(0 if after is None or kind == "deaf" else after + 1, 10):
            yield n
            await asyncio.sleep(0.1)

    def stumble(n: int) -> int:
        if n in stumbles:
            stumbles.clear()
            raise OSError("away")
        return n

    env = Env().enable_checkpointing(am.millis(50))
    env.configure(restart=am.restart.fixed_delay(1, 0))
    seen: list[int] = []
    env.from_async_iterable(rows, offset=lambda n: n).map(stumble).sink_to(seen.append)
    await env.execute("stumbling")
    assert ("begins with an element that it has given before" in caplog.text) is is_told
    assert (len(seen) > 12) is is_told


# Worker processes.


def test_an_inbox_is_not_copied_into_a_worker():
    cloudpickle = pytest.importorskip("cloudpickle")
    inbox: am.Inbox[int] = am.Inbox()
    with pytest.raises(TypeError, match="stays in the process that starts the job"):
        cloudpickle.dumps(lambda n: inbox.try_put(n))


# Other arguments.


async def test_a_plain_function_that_registers_a_timer_is_told_to_be_a_class():
    def process(record: Any, context: Any, out: Any) -> None:
        context.timer_service.register_event_time_timer(after=am.seconds(1))

    stream = Env().from_collection([{"at": 1}], TIMED).key_by("at").process(process)
    text = await error_of(stream)
    assert "Write a class derived from am.KeyedProcessFunction" in text
    assert "OnlyKeyedProcess" not in text.partition("\n")[0]


@pytest.mark.parametrize("database", [":memory:", "sqlite:///:memory:"])
def test_a_database_in_memory_is_refused(database):
    with pytest.raises(am.InvalidArgumentError, match="of one connection"):
        am.SqlSink(database, "orders")


def test_windows_are_explained_of_an_assigner_only():
    size: Any = am.minutes(1)
    with pytest.raises(am.WrongTypeError, match=r"am\.TumblingEventTimeWindows\.of"):
        am.explain_window(size, 1_000)
