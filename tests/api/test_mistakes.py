"""Mistakes of a new user end with one message that names what to write instead."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import os
import re
import signal
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import aiomailbox as am
from aiomailbox.errors import UsageError, WrongTypeError


def stream_of(*values: Any) -> Any:
    return am.StreamExecutionEnvironment().from_collection(list(values))


def forgets(number: int) -> Any:
    number > 1  # noqa: B015


def forgets_on_each_way(number: int) -> Any:
    if number > 1:
        return None
    for _ in range(number):
        return None
    return None


async def forgets_async(number: int) -> Any:
    await asyncio.sleep(number)


@pytest.mark.parametrize("function", [forgets, forgets_on_each_way, forgets_async])
@pytest.mark.parametrize("run_in", ["loop", "thread"])
def test_a_filter_without_a_result_is_refused_where_it_is_written(
    function: Any, run_in: Any
) -> None:
    if run_in == "thread" and function is forgets_async:
        # No async function runs in a thread.
        return
    told = rf"{function.__name__} .* never returns a value"
    with pytest.raises(WrongTypeError, match=told):
        stream_of(1, 2).filter(function, run_in=run_in)


def sometimes(number: int) -> Any:
    if number > 1:
        return True
    return None


async def test_a_filter_that_returns_something_on_one_way_is_taken() -> None:
    assert await stream_of(1, 2).filter(sometimes).collect() == [2]
    assert await stream_of({}, {1: 1}).filter({1: 1}.__eq__).collect() == [{1: 1}]


@pytest.mark.parametrize("work", [stream_of(1), lambda: None, None, 3])
def test_what_cannot_be_run_is_refused_by_name(work: Any) -> None:
    with pytest.raises(WrongTypeError, match=r"^work: .* Write am.run\(main\(\)\)"):
        am.run(work)


def test_a_stream_is_neither_true_nor_counted() -> None:
    with pytest.raises(UsageError, match=r"await stream.take\(1\)"):
        bool(stream_of(1))
    with pytest.raises(UsageError, match=r"await stream.count\(\)"):
        len(stream_of(1))


async def test_a_failure_names_no_line_that_is_not_the_users(tmp_path: Path) -> None:
    """What a thread of the library raises passes through the standard library."""
    env = am.StreamExecutionEnvironment().enable_checkpointing(
        am.seconds(10), directory=tmp_path
    )
    env.from_collection([1]).sink_to(print)
    with pytest.raises(am.JobFailedError) as caught:
        await env.execute("job", restore_from=tmp_path / "no such checkpoint")
    assert caught.value.location is None
    notes = getattr(caught.value, "__notes__", [])
    assert not [note for note in notes if note.startswith("at ")]


async def test_a_failure_in_no_function_of_the_users_names_the_call_of_the_verb() -> (
    None
):
    texts = stream_of({"n": "1"}).key_by(lambda row: 1).aggregate(am.sum_("n"))
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    with pytest.raises(am.JobFailedError) as caught:
        await texts.collect()
    assert caught.value.location == f"{__file__}:{line}"
    [place, *_] = caught.value.__notes__
    assert place.startswith(f"in operator 'aggregate', at {__file__}:{line}: texts = ")


async def test_a_failure_in_a_library_names_the_line_that_called_it() -> None:
    with pytest.raises(am.JobFailedError) as caught:
        await stream_of("{").map(lambda text: json.loads(text)).collect()
    assert str(caught.value.location).partition(":")[0] == __file__


async def test_an_inbox_says_once_that_nobody_reads_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    inbox: am.Inbox[int] = am.Inbox(size=1)
    await inbox.put(1)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(inbox.put(2), 1)
    assert caplog.text.count("an inbox is full, and no job reads it") == 1


async def test_an_inbox_that_is_read_waits_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    inbox: am.Inbox[int] = am.Inbox(size=1)
    env = am.StreamExecutionEnvironment()
    env.from_source(inbox).sink_to(lambda _: None)
    async with env.start("job") as job:
        for number in range(100):
            await inbox.put(number)
        await job.stop()
    assert not caplog.records


def leaves(number: int) -> int:
    return sys.exit(0) if number == 2 else number


async def leaves_later(number: int) -> int:
    await asyncio.sleep(1)
    return leaves(number)


def leaves_while_read() -> Iterator[int]:
    yield 1
    sys.exit(0)


async def counted(last: int | None) -> Any:
    number = 0 if last is None else last
    while True:
        number += 1
        yield number
        await asyncio.sleep(0.01)


def sources(directory: Path) -> dict[str, Any]:
    """Return what begins a stream with each kind of source."""
    files = directory / "files"
    files.mkdir()
    (files / "1.jsonl").write_text('{"n": 1}\n')
    table = pa.table({"n": [1]})
    source = am.FileSource(files, "jsonl", watch=1)
    return {
        "async": lambda env: env.from_async_iterable(counted, offset=lambda n: n),
        "list": lambda env: env.from_collection([1]),
        "iterator": lambda env: env.from_collection(itertools.count()),
        "arrow": lambda env: env.from_arrow(table),
        "files": lambda env: env.from_source(source),
    }


@pytest.mark.parametrize("after", ["async", "list", "iterator", "arrow", "files"])
@pytest.mark.parametrize("before", ["async", "iterator", "files"])
async def test_a_source_of_another_kind_is_refused_by_name(
    before: str, after: str, tmp_path: Path
) -> None:
    made = sources(tmp_path)
    came = asyncio.Event()

    def build(kind: str) -> am.StreamExecutionEnvironment:
        env = am.StreamExecutionEnvironment()
        env.enable_checkpointing(None, mode=am.CheckpointingMode.AT_LEAST_ONCE)
        made[kind](env).uid("in").sink_to(lambda _: came.set()).uid("out")
        return env

    async with build(before).start("before") as job:
        await came.wait()
        savepoint = await job.stop_with_savepoint(tmp_path / "savepoint")
    resumed = build(after).start("after", restore_from=savepoint.place)
    if after == before:
        async with resumed as job:
            assert job.state in {am.JobState.CREATED, am.JobState.RUNNING}
            await job.cancel()
        return
    with pytest.raises(am.JobFailedError) as caught:
        async with resumed as job:
            await job.result()
    told = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert "when the snapshot was taken" in told
    assert "another uid" in told
    assert "'in'" in told


def as_it_is(record: Any) -> Any:
    return record


async def as_it_is_later(record: Any) -> Any:
    return record


FLAT: dict[str, Any] = {
    "loop": lambda stream: stream.flat_map(as_it_is),
    "thread": lambda stream: stream.flat_map(as_it_is, run_in="thread"),
    "async": lambda stream: stream.flat_map(as_it_is_later),
    "connected": lambda stream: stream.connect(stream).flat_map(as_it_is, as_it_is),
}


@pytest.mark.parametrize("way", FLAT)
@pytest.mark.parametrize(
    ("record", "told"),
    [
        ("to be", r"text, which flat_map takes apart into letters: .* Return \[text\]"),
        ({"n": 1}, r"a dict, which flat_map takes apart into keys: .* Return \[row\]"),
        (b"to be", r"bytes, which flat_map takes apart into numbers"),
    ],
)
async def test_a_flat_map_that_returns_one_record_for_a_list_fails(
    way: str, record: Any, told: str
) -> None:
    stream = FLAT[way](stream_of(record)).name("here")
    with pytest.raises(
        am.JobFailedError, match=rf"as_it_is.* returned {told}"
    ) as caught:
        await stream.collect()
    assert "'here'" in "\n".join([str(caught.value), *caught.value.__notes__])
    assert f"{__file__}:" in str(caught.value)


LEAVING: dict[str, Any] = {
    "map": lambda stream: stream.map(leaves).name("here"),
    "thread": lambda stream: stream.map(leaves, run_in="thread").name("here"),
    "on_error": lambda stream: stream.map(leaves, on_error=am.skip).name("here"),
    "map_async": lambda stream: stream.map_async(leaves_later).name("here"),
    "key_by": lambda stream: stream.key_by(leaves).aggregate(am.count()).name("here"),
    "sink_to": lambda stream: stream.sink_to(leaves).name("here"),
}


@pytest.mark.parametrize("where", LEAVING)
async def test_a_function_that_exits_fails_the_job_at_once_and_is_named(
    where: str, tmp_path: Path
) -> None:
    """Also where failures restart the job: it would exit again."""
    env = am.StreamExecutionEnvironment().enable_checkpointing(
        am.seconds(10), directory=tmp_path
    )
    stream = LEAVING[where](env.from_collection([1, 2]))
    if where != "sink_to":
        stream.sink_to(lambda _: None)
    line = leaves.__code__.co_firstlineno + 1
    with pytest.raises(am.JobFailedError) as caught:
        async with env.start("job") as job:
            await job.result()
    assert job.restarts == 0
    assert f"{__file__}:{line}: SystemExit: 0. A function of" in str(caught.value)
    assert caught.value.operator is not None


async def test_a_source_that_exits_fails_the_job_and_is_named() -> None:
    numbers = am.StreamExecutionEnvironment().from_collection(leaves_while_read())
    with pytest.raises(am.JobFailedError, match=r"'collection' failed.* SystemExit: 0"):
        await numbers.collect()


async def test_a_handler_of_a_signal_that_exits_ends_the_program() -> None:
    """It comes in the middle of a function, which did nothing wrong."""

    def interrupted(number: int) -> int:
        os.kill(os.getpid(), signal.SIGUSR2)
        return sum(range(number))

    before = signal.signal(signal.SIGUSR2, lambda number, frame: sys.exit(3))
    try:
        with pytest.raises(SystemExit) as caught:
            await stream_of(1000).map(interrupted).collect()
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert caught.value.code == 3


class Aside(am.ProcessFunction[int, int]):
    """Sends what it gets to a side output, and nothing on."""

    def __init__(self, tag: am.OutputTag[int]) -> None:
        self._tag = tag

    def process_element(self, value: int, context: Any, out: Any) -> None:
        context.output(self._tag, value)


@pytest.mark.parametrize("is_read", [False, True])
async def test_a_side_output_that_nothing_reads_is_told_once_and_summed_at_the_end(
    caplog: pytest.LogCaptureFixture, *, is_read: bool
) -> None:
    tag = am.OutputTag[int]("rest")
    stream = stream_of(*range(3_000)).process(Aside(tag)).name("here")
    if is_read:
        assert await stream.get_side_output(tag).count() == 3_000
        assert not caplog.records
        return
    assert await stream.collect() == []
    told = [one.getMessage() for one in caplog.records]
    assert len(told) == 2
    assert all("side_output='rest'" in one for one in told)
    assert all("operator='here'" in one and f"{__file__}:" in one for one in told)
    assert told[-1].count("total=3000") == 1


async def test_a_stream_that_was_collected_is_not_said_to_run_never(
    caplog: pytest.LogCaptureFixture,
) -> None:
    env = am.StreamExecutionEnvironment()
    numbers = env.from_collection([1, 2])
    doubled = numbers.map(lambda number: 2 * number)
    assert await doubled.collect() == [2, 4]
    numbers.sink_to(lambda _: None)
    await env.execute("job")
    assert not caplog.records
    numbers.map(abs)
    numbers.sink_to(lambda _: None)
    for _ in range(2):
        await env.execute("job")
        numbers.sink_to(lambda _: None)
    told = [one.getMessage() for one in caplog.records]
    assert len(told) == 1, told
    assert "operator='map'" in told[0]


OTHER_LOOP = "runs on another event loop"


async def test_a_job_is_not_asked_from_another_loop(tmp_path: Path) -> None:
    """What is awaited there is never woken."""
    inbox: am.Inbox[int] = am.Inbox()
    mode = am.CheckpointingMode.AT_LEAST_ONCE
    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(None, directory=tmp_path / "jobs", mode=mode)
    numbers = env.from_source(inbox).publish()
    numbers.sink_to(lambda _: None)
    env.from_questions().map(lambda q: q.answer(q.value)).sink_to(am.Answers())
    async with env.start("job") as job:
        here = job.subscribe(numbers)
        asked: list[Any] = [
            job.result,
            job.stop,
            job.cancel,
            job.trigger_checkpoint,
            lambda: job.trigger_savepoint(tmp_path / "one"),
            lambda: job.stop_with_savepoint(tmp_path / "two"),
            lambda: job.ask(1),
            lambda: anext(job.subscribe(numbers)),
            lambda: anext(here),
            lambda: inbox.put(1),
        ]

        async def elsewhere(call: Any) -> None:
            with pytest.raises(am.UsageError, match=OTHER_LOOP) as caught:
                await asyncio.wait_for(call(), 2)
            assert "run_coroutine_threadsafe" in str(caught.value)

        for call in asked:
            await asyncio.to_thread(asyncio.run, elsewhere(call))
        for call in (lambda: inbox.try_put(1), inbox.close):
            with pytest.raises(am.UsageError, match="call_soon_threadsafe"):
                await asyncio.to_thread(call)
        assert await job.ask(2, timeout=10) == 2
        await job.cancel()


def test_a_job_whose_loop_has_ended_says_so() -> None:
    async def begin() -> am.JobClient:
        env = am.StreamExecutionEnvironment()
        env.from_collection([1]).sink_to(lambda _: None)
        job = await env.execute_async("job")
        await job.result()
        return job

    job = asyncio.run(begin())

    async def later() -> Any:
        return (await job.result()).name

    # There is nothing left to wait for.
    assert asyncio.run(later()) == "job"


def test_an_inbox_is_filled_anywhere_before_its_job_begins() -> None:
    inbox: am.Inbox[int] = am.Inbox()
    inbox.try_put(1)
    asyncio.run(inbox.put(2))
    inbox.close()
    env = am.StreamExecutionEnvironment()
    assert asyncio.run(env.from_source(inbox).collect()) == [1, 2]


SINKS: list[tuple[Any, Any, str]] = [
    (
        lambda place: am.FileSink(place, "jsonl"),
        {"n": 1, "s": object()},
        "field 's': <o",
    ),
    (lambda place: am.FileSink(place, "csv"), {"n": 1, "s": object()}, "field 's': <o"),
    (lambda place: am.FileSink(place, "csv"), {"n": 1, "z": "a"}, "['n', 'z']"),
    (lambda place: am.ParquetSink(place), {"n": "x", "s": "a"}, "'n': a record .* 'x'"),
    (lambda place: am.ParquetSink(place), 3, "3 has other fields than the first"),
]


@pytest.mark.parametrize(("make", "record", "told"), SINKS)
async def test_a_sink_that_refuses_a_record_names_the_line_that_wrote_it(
    make: Any, record: Any, told: str, tmp_path: Path
) -> None:
    env = am.StreamExecutionEnvironment()
    rows = env.from_collection([{"n": 1, "s": "a"}, record])
    line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    rows.sink_to(make(tmp_path / "out")).name("out").uid("rows")
    with pytest.raises(am.JobFailedError) as caught:
        await env.execute("job")
    assert caught.value.location == f"{__file__}:{line}"
    text = str(caught.value)
    assert f"operator 'out' (uid 'rows') failed at {__file__}:{line}: " in text
    assert re.search(told.replace("[", r"\[").replace("]", r"\]"), text), text


@pytest.mark.parametrize(
    ("number", "told"),
    [
        # Refused as it is written, and as the checkpoint that has it is committed.
        (2**70, "ended 3 attempts"),
        (1, "refuses rows of a completed checkpoint"),
        (7, "CHECK constraint failed: n < 5"),
    ],
)
async def test_a_record_that_a_table_always_refuses_ends_the_job(
    number: int, told: str, tmp_path: Path
) -> None:
    """The default strategy would start it again forever: such a record comes again."""
    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(am.hours(1), directory=tmp_path / "kept")
    place = tmp_path / "shop.db"
    with closing(sqlite3.connect(place)) as database:
        database.execute("CREATE TABLE orders (n INTEGER UNIQUE CHECK (n < 5))")
    rows = env.from_collection([{"n": 1}, {"n": number}])
    rows.sink_to(am.SqlSink(f"sqlite:///{place}", "orders"))
    with pytest.raises(am.JobFailedError, match=told):
        await env.execute("job")


@pytest.mark.parametrize("unit", ["millis", "seconds", "minutes", "hours", "days"])
@pytest.mark.parametrize("given", ["5", None, []])
def test_a_duration_of_what_is_no_number_is_refused(unit: str, given: Any) -> None:
    with pytest.raises(
        WrongTypeError, match=rf"^n: .* is not a number.*am\.{unit}\(5\)"
    ):
        getattr(am, unit)(given)


@pytest.mark.parametrize("given", [float("nan"), float("inf"), 10**30])
def test_a_duration_that_has_no_length_is_refused(given: float) -> None:
    with pytest.raises(am.InvalidArgumentError, match=r"^n: "):
        am.seconds(given)


@pytest.mark.parametrize(
    ("name", "count", "maker"),
    [
        ("TumblingEventTimeWindows", 1, "of"),
        ("TumblingProcessingTimeWindows", 2, "of"),
        ("SlidingEventTimeWindows", 1, "of"),
        ("SlidingProcessingTimeWindows", 2, "of"),
        ("EventTimeSessionWindows", 1, "with_gap"),
        ("ProcessingTimeSessionWindows", 1, "with_gap"),
    ],
)
def test_windows_are_not_made_of_durations_without_their_maker(
    name: str, count: int, maker: str
) -> None:
    with pytest.raises(WrongTypeError, match=rf"Write am\.{name}\.{maker}\("):
        getattr(am, name)(*[am.seconds(1)] * count)


OF_CLASSES = [
    ("WatermarkStrategy", "forBoundedOutOfOrderness", "for_bounded_out_of_orderness("),
    ("WatermarkStrategy", "for_monotonous_timestamp", "for_monotonous_timestamps"),
    ("TumblingEventTimeWindows", "every", "am.TumblingEventTimeWindows.of(size)"),
    ("SlidingProcessingTimeWindows", "over", ".of(size, slide)"),
    ("EventTimeSessionWindows", "withGap", "am.EventTimeSessionWindows.with_gap("),
    ("EventTimeSessionWindows", "of", "am.EventTimeSessionWindows.with_gap(gap)"),
    ("StateTtlConfig", "new_builder", "am.StateTtlConfig(ttl="),
    ("StateTtlConfig", "newBuilder", "am.StateTtlConfig(ttl="),
]


@pytest.mark.parametrize(("kind", "name", "meant"), OF_CLASSES)
def test_a_class_says_what_is_meant_by_a_name_of_another_library(
    kind: str, name: str, meant: str
) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(getattr(am, kind), name)
    assert f"{kind!r} has no attribute {name!r}" in str(caught.value)
    assert meant in str(caught.value)
    assert not hasattr(getattr(am, kind), "__nothing__")


@pytest.mark.parametrize("name", ["newest", "Latest", "last"])
async def test_the_newest_checkpoint_has_one_name(name: str, tmp_path: Path) -> None:
    env = am.StreamExecutionEnvironment().enable_checkpointing(
        am.seconds(10), directory=tmp_path
    )
    env.from_collection([1]).sink_to(lambda _: None)
    with pytest.raises(am.InvalidArgumentError, match=r'restore_from: .*"latest"'):
        await env.execute("job", restore_from=name)


async def test_a_checkpoint_is_restored_from_its_place(tmp_path: Path) -> None:
    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(None, directory=tmp_path / "jobs")
    env.from_async_iterable(counted, offset=lambda n: n).sink_to(lambda _: None)
    async with env.start("job") as job:
        saved: Any = await job.stop_with_savepoint(tmp_path / "saved")
    with pytest.raises(WrongTypeError, match=r"restore_from: .* Write .*\.place"):
        await env.execute("job", restore_from=saved)
    with pytest.raises(WrongTypeError, match=r"restore_from: 7 is not .*path"):
        await env.execute("job", restore_from=7)  # type: ignore[arg-type]
