"""Each line of the page "What is never silent" happens here, and is told as it says.

A program makes it happen; what the page quotes has to be among the errors, the log
lines, the counters above zero or the texts of `explain()` that the program leads to. A
line without a program fails, and so does a program without a line.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import re
import signal
import sqlite3
import sys
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import aiomailbox as am
from aiomailbox.api.definition import _UNRUN, warn_of_unrun
from aiomailbox.connectors.spark.session import local_session
from aiomailbox.storage.append_log import LogSegment
from tests.runtime.test_stalls import block

PAGE = Path(__file__).parents[2] / "docs" / "never-silent.md"
KINDS = (
    "an error",
    "a warning",
    "a warning of Python",
    "a line at INFO",
    "a counter",
    "`explain()`",
)


@dataclass
class Told:
    """What a program leads to, besides log lines.

    Attributes:
        directory: An empty one, for the program.
        errors: Texts of what it raises.
        counters: Those above zero.
        explained: Texts of `explain()`.
        log: The log lines so far.
    """

    directory: Path
    log: Callable[[], str]
    errors: list[str] = field(default_factory=list)
    counters: set[str] = field(default_factory=set)
    explained: list[str] = field(default_factory=list)

    async def run(
        self, env: am.StreamExecutionEnvironment, /, **options: Any
    ) -> am.JobClient:
        """Run a job to its end, and note its counters, and how it fails."""
        async with env.start("job", on_failure="log", **options) as job:
            try:
                await job.result()
            except am.AioMailboxError as error:
                self.errors.append(str(error))
        self.count(job)
        return job

    @property
    def state(self) -> Path:
        """Where checkpoints go."""
        return self.directory / "state"

    def count(self, job: am.JobClient) -> None:
        """Note the counters of a job."""
        snapshot = job.snapshot()
        found = [one.metrics for one in snapshot.operators]
        for metrics in [*found, snapshot.checkpoint_metrics]:
            self.counters.update(name for name, value in metrics.items() if value)
        if snapshot.restarts:
            # So exporters name it.
            self.counters.add("num_restarts")

    async def until_logged(self, text: str) -> None:
        """Wait for a log line."""
        while text not in self.log():
            await asyncio.sleep(0.01)


Program = Callable[[Told], Awaitable[None]]
PROGRAMS: dict[str, Program] = {}
OF_REAL_TIME = {
    "a function waits for room in the inbox that its own job reads",
    "a job makes no progress",
    "a barrier does not come through",
    "a silent source holds event time back",
    "a function blocks the event loop",
    "a function of a job in several processes changes a global",
    "a function of a job in several processes uses a lock, a queue or an open file",
    "a question without a timeout waits for an answer",
    "`am.Processes` has work for one process only",
    "a sink waits for a locked SQLite file",
    "a sink cannot reach its server",
}
OF_SPARK = {
    "a Python worker of Spark is killed",
    "a map's keys cannot be those of a dict",
    "calls inside Spark are divided over tasks",
    "a function inside Spark adds to a list of this program",
    "a pipeline is applied inside Spark, and none of its DataFrames is read",
    "`apply_to` gets settings that only `run_on` follows",
    "a result is None in a column that takes no null",
    "a sink writes files, or rows of a table, where the DataFrame of its job reads",
    "a sink writes files where a streaming DataFrame of its job reads",
    "`to_spark()` waits for a source that may never end",
    "`local_session` finds a session that exists already, with other settings",
}


def line(what: str) -> Callable[[Program], Program]:
    """Say which line of the page a program is for."""

    def keep(program: Program) -> Program:
        assert what not in PROGRAMS, what
        PROGRAMS[what] = program
        return program

    return keep


def lines_of_the_page() -> dict[str, list[tuple[str, str]]]:
    """Return for each line what tells it, with the words that are quoted."""
    text = PAGE.read_text("utf-8")
    tables = re.findall(r"<!-- lines -->\n(.*?)<!-- end of lines -->", text, re.DOTALL)
    rows = [
        [cell.strip() for cell in row.strip("|").split(" | ")]
        for table in tables
        for row in table.strip().splitlines()[2:]
    ]
    found = {}
    for what, told_by, words in rows:
        kinds = told_by.split(", ")
        quoted = re.findall(r"`([^`]+)`", words)
        assert len(kinds) == len(quoted), what
        assert what not in found, what
        found[what] = list(zip(kinds, quoted, strict=True))
    return found


LINES = lines_of_the_page()


def test_each_line_of_the_page_has_a_program_and_each_program_a_line() -> None:
    assert set(LINES) == set(PROGRAMS)
    assert {kind for told in LINES.values() for kind, _ in told} == set(KINDS)
    assert set(PROGRAMS) >= OF_REAL_TIME | OF_SPARK


async def check(what: str, told: Told, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aiomailbox")
    with warnings.catch_warnings(record=True) as of_python:
        warnings.simplefilter("always")
        try:
            await PROGRAMS[what](told)
        except (am.AioMailboxError, AttributeError) as error:
            told.errors.append(str(error))
    records = caplog.records
    by_kind: dict[str, list[str]] = {
        "an error": told.errors,
        "a warning": [
            one.getMessage() for one in records if one.levelno == logging.WARNING
        ],
        "a warning of Python": [str(one.message) for one in of_python],
        "a line at INFO": [
            one.getMessage() for one in records if one.levelno == logging.INFO
        ],
        "a counter": sorted(told.counters),
        "`explain()`": told.explained,
    }
    for kind, words in LINES[what]:
        found = by_kind[kind]
        if kind == "a counter":
            assert words in found, (kind, words, found)
        else:
            assert any(words in one for one in found), (kind, words, found)


def told_of(directory: Path, caplog: pytest.LogCaptureFixture) -> Told:
    return Told(
        directory, lambda: "\n".join(one.getMessage() for one in caplog.records)
    )


@pytest.mark.parametrize("what", sorted(set(LINES) - OF_REAL_TIME - OF_SPARK))
async def test_what_happens_is_told_as_the_page_says(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await check(what, told_of(tmp_path, caplog), caplog)


@pytest.mark.real_time
@pytest.mark.timeout(120)
@pytest.mark.parametrize("what", [one for one in LINES if one in OF_REAL_TIME])
async def test_what_only_a_real_clock_shows_is_told_as_the_page_says(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await check(what, told_of(tmp_path, caplog), caplog)


@pytest.mark.spark
@pytest.mark.real_time
@pytest.mark.parametrize("what", sorted(OF_SPARK))
async def test_what_goes_wrong_in_spark_is_told_as_the_page_says(
    spark: Any, what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # It is the session that programs get.
    assert spark is local_session()
    await check(what, told_of(tmp_path, caplog), caplog)


# Parts of the programs.


def is_good(word: str) -> bool:
    return bool(word)


def new_env(**options: Any) -> am.StreamExecutionEnvironment:
    return am.StreamExecutionEnvironment(**options)


def drop(record: Any) -> None:
    """Take it."""


LATE = [("a", 1_000), ("a", 10_001), ("a", 2_000)]
MONOTONOUS = am.WatermarkStrategy.for_monotonous_timestamps()


def late(env: am.StreamExecutionEnvironment) -> Any:
    """Make windows to which one record comes too late."""

    async def events() -> AsyncIterator[tuple[str, int]]:
        for event in LATE:
            yield event
            # The watermark follows it.
            await asyncio.sleep(1)

    timed = MONOTONOUS.with_timestamp_assigner(lambda event: event[1])
    keyed = env.from_async_iterable(events, timed).key_by(lambda event: event[0])
    return keyed.window(am.TumblingEventTimeWindows.of(am.seconds(1)))


async def numbers_from(last: int | None) -> AsyncIterator[int]:
    for number in itertools.count(0 if last is None else last + 1):
        yield number
        await asyncio.sleep(0.001)


class Noting(am.KeyedProcessFunction[int, int, int]):
    """Keeps the last number in a state of a name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def open(self, context: am.KeyedRuntimeContext) -> None:
        descriptor = am.ValueStateDescriptor(self._name, int, default=0)
        self._last = context.keyed_state.get_value(descriptor)

    def process_element(self, value: int, context: Any, out: Any) -> None:
        self._last.update(value)


def endless(
    told: Told, *, build: Callable[[Any], Any] | None = None, **settings: Any
) -> am.StreamExecutionEnvironment:
    """Make a job that reads on, and takes checkpoints when it is asked for them."""
    env = new_env().enable_checkpointing(None, directory=told.state, **settings)
    timed = MONOTONOUS.with_timestamp_assigner(lambda number: number)
    numbers = env.from_async_iterable(numbers_from, timed, offset=lambda number: number)
    keyed = numbers.uid("numbers").key_by(lambda number: number % 2)
    stream = (
        keyed.process(Noting("last")).uid("noting") if build is None else build(keyed)
    )
    stream.sink_to(drop).uid("end")
    return env


async def leave_checkpoint(told: Told, count: int = 1) -> None:
    async with endless(told, retained=2).start("job") as job:
        for _ in range(count):
            await asyncio.sleep(0.05)
            await job.trigger_checkpoint()
        await job.cancel()


async def start_once(env: am.StreamExecutionEnvironment, restore_from: Any) -> None:
    async with env.start("job", restore_from=restore_from) as job:
        await asyncio.sleep(0.05)
        await job.trigger_checkpoint()
        await job.cancel()


async def savepoint(told: Told, build: Callable[[Any], Any] | None = None) -> Path:
    place = told.directory / "saved"
    async with endless(told, build=build).start("job") as job:
        await asyncio.sleep(0.05)
        await job.stop_with_savepoint(place)
    return place


# Records.


@line("a record comes too late for its window")
async def _late(told: Told) -> None:
    env = new_env()
    late(env).aggregate(am.count()).sink_to(drop)
    await told.run(env)


@line("a record is left out by `on_error=am.skip`")
async def _skipped(told: Told) -> None:
    env = new_env()
    env.from_collection(["1", "n/a"]).map(float, on_error=am.skip).sink_to(drop)
    await told.run(env)


@line("a dead letter goes to a side output that nothing reads")
async def _dead_letter(told: Told) -> None:
    env = new_env()
    on_error = am.dead_letter(am.OutputTag("bad"))
    env.from_collection(["1", "n/a"]).map(float, on_error=on_error).sink_to(drop)
    await told.run(env)


@line("a late record goes to a side output that nothing reads")
async def _late_aside(told: Told) -> None:
    env = new_env()
    windows = late(env).side_output_late_data(am.OutputTag("late"))
    windows.aggregate(am.count()).sink_to(drop)
    await told.run(env)


class Aside(am.ProcessFunction[int, int]):
    """Sends each number to a side output."""

    def process_element(self, value: int, context: Any, out: Any) -> None:
        context.output(am.OutputTag("aside"), value)


@line("a process function emits to a side output that nothing reads")
async def _unread(told: Told) -> None:
    env = new_env()
    env.from_collection([1, 2]).process(Aside()).name("aside").sink_to(drop)
    await told.run(env)
    assert "operator='aside'" in told.log()
    assert "side_output='aside'" in told.log()
    # The same operator may run inside Spark, where no stream can be read.
    assert "applied.side(tag, schema=...) before applied.result" in told.log()


@line("a side output is read that no operator has")
async def _no_side_output(told: Told) -> None:
    stream = new_env().from_collection([1]).map(str)
    await stream.get_side_output(am.OutputTag("late")).collect()


@line(
    "a window ends, or the input, before a count trigger has fired for the last records"
)
async def _rest_of_count(told: Told) -> None:
    env = new_env()
    env.from_collection([1, 2, 3]).count_window_all(2).reduce(max).sink_to(drop)
    await told.run(env)


@line("the input ends before windows of processing time do")
async def _cut_off(told: Told) -> None:
    env = new_env()
    windows = am.TumblingProcessingTimeWindows.of(am.seconds(60))
    keyed = env.from_collection([1, 2]).key_by(lambda number: number)
    keyed.window(windows).aggregate(am.count()).sink_to(drop)
    await told.run(env)


@line("a full `buffer` drops records")
async def _buffer(told: Told) -> None:
    async def slow(number: int) -> None:
        await asyncio.sleep(1)

    env = new_env()
    env.configure(buffer_timeout=am.millis(0))
    env.from_collection(range(10_000)).buffer(1).rebalance().sink_to(slow)
    async with env.start("job") as job:
        while "records_dropped" not in told.counters:
            await asyncio.sleep(1)
            told.count(job)
        await job.cancel()


@line("`deduplicate` drops a record seen before")
async def _duplicate(told: Told) -> None:
    env = new_env()
    env.from_collection([1, 1]).key_by(lambda number: number).deduplicate().sink_to(
        drop
    )
    await told.run(env)


@line("`with_latest_from` has nothing to combine a record with")
async def _no_latest(told: Told) -> None:
    async def never() -> AsyncIterator[int]:
        await asyncio.sleep(10)
        return
        yield

    env = new_env()
    rates = env.from_async_iterable(never)
    env.from_collection([1]).with_latest_from(rates, lambda a, b: a).sink_to(drop)
    await told.run(env)


@line("`match` gives up partial matches, as there are too many")
async def _partial_matches(told: Told) -> None:
    env = new_env()
    timed = MONOTONOUS.with_timestamp_assigner(lambda number: number)
    keyed = env.from_collection(range(50), timed).key_by(lambda _: "all")
    looked_for = am.pattern("low", lambda number: number < 40)
    looked_for = looked_for.followed_by("high", lambda number: number > 40)
    keyed.match(looked_for.within(am.seconds(9)), partials_max=2).sink_to(drop)
    await told.run(env)


@line("a subscriber is too slow and misses results")
async def _subscriber(told: Told) -> None:
    env = new_env()
    numbers = env.from_async_iterable(numbers_from, offset=lambda number: number)
    published = numbers.map(str)
    published.publish()
    async with env.start("job") as job:
        async with job.subscribe(published, size=1) as results:
            await anext(results)
            await asyncio.sleep(1)
            if results.dropped:
                told.counters.add("Subscription.dropped")
        await job.cancel()


@line("records are put into an inbox and never read")
async def _inbox(told: Told) -> None:
    async def hang(number: int) -> int:
        await asyncio.sleep(1_000)
        return number

    inbox: am.Inbox[int] = am.Inbox(size=3)

    async def put_all() -> None:
        for number in range(100):
            await inbox.put(number)

    env = new_env()
    env.from_source(inbox).map_async(hang, concurrency=1, capacity=1).sink_to(drop)
    async with env.start("job") as job:
        putting = asyncio.get_running_loop().create_task(put_all())
        await asyncio.sleep(1)
        await job.cancel()
        with pytest.raises(am.IllegalStateError):
            await putting


@line("a question is never answered")
async def _question(told: Told) -> None:
    env = new_env()
    env.from_questions().filter(lambda question: False).sink_to(am.Answers())
    async with env.start("job") as job:
        await job.ask(1, timeout=1)


@line("an answer comes when nobody waits for it any more")
async def _second_answer(told: Told) -> None:
    env = new_env()
    twice = env.from_questions().flat_map(lambda one: [one.answer(1), one.answer(2)])
    twice.sink_to(am.Answers())
    async with env.start("job") as job:
        assert await job.ask(1, timeout=5) == 1
        await job.stop()
    told.count(job)


@line("a process function returns a value")
async def _returned(told: Told) -> None:
    class Returns(am.ProcessFunction[int, int]):
        def process_element(self, value: int, context: Any, out: Any) -> None:
            return value  # type: ignore[return-value]

    env = new_env()
    env.from_collection([1]).process(Returns()).sink_to(drop)
    await told.run(env)


@line("the function of a `flat_map` returns text, bytes or a dict")
async def _taken_apart(told: Told) -> None:
    env = new_env()
    env.from_collection(["to be"]).flat_map(str.strip).sink_to(drop)
    await told.run(env)


@line("the function of a window or a partition returns text, bytes or a dict")
async def _taken_apart_by_windows(told: Told) -> None:
    env = new_env()
    windows = env.from_collection([1]).count_window_all(1)
    windows.apply(lambda key, window, records: f"{len(records)}").sink_to(drop)
    await told.run(env)


@line("a path begins with `~`, which only a shell knows")
async def _home(told: Told) -> None:
    try:
        am.FileSink("~/orders", "jsonl")
    except am.AioMailboxError as error:
        told.errors.append(str(error))


@line("the function of a filter returns nothing")
async def _filter(told: Told) -> None:
    def keep(number: int) -> bool:  # type: ignore[return]
        number > 1  # noqa: B015

    new_env().from_collection([1]).filter(keep)


@line("a function changes one of the first records that another operator has, too")
async def _shared(told: Told) -> None:
    def spoil(row: dict[str, int]) -> dict[str, int]:
        row["n"] += 1
        return row

    env = new_env()
    rows = env.from_collection([{"n": 1}])
    rows.map(spoil).sink_to(drop)
    rows.sink_to(drop)
    await told.run(env)


@line("a sink adds files to a directory whose files have other columns, or other types")
async def _other_columns(told: Told) -> None:
    for rows in ([{"n": 1}], [{"n": "one", "m": 2}]):
        env = new_env()
        sink = am.ParquetSink(told.directory / "out", mode="append")
        env.from_collection(rows).sink_to(sink)
        await told.run(env)


@line("a sink writes files where a source of its job reads")
async def _own_input(told: Told) -> None:
    (told.directory / "in.jsonl").write_text('{"n": 1}')
    env = new_env()
    rows = env.from_source(am.FileSource(told.directory, "jsonl"))
    rows.sink_to(am.FileSink(told.directory / "out", "jsonl"))
    await told.run(env)


@line("a sink writes files where a source of its job looks for new ones")
async def _own_results(told: Told) -> None:
    env = new_env()
    source = am.FileSource(told.directory, "jsonl", watch=am.seconds(1))
    env.from_source(source).sink_to(am.FileSink(told.directory / "out", "jsonl"))
    await env.execute()


@line("a path ends like files of another format")
async def _other_format(told: Told) -> None:
    am.FileSink(told.directory / "orders.csv", "jsonl")


@line("a pipeline returns a stream of another environment")
async def _other_environment(told: Told) -> None:
    other = new_env().from_collection([1])
    new_env().from_collection([2]).through(lambda stream: other)


@line("an object changes after it was emitted, with `check_mutations=True`")
async def _changed(told: Told) -> None:
    def rows() -> Iterator[dict[str, int]]:
        row: dict[str, int] = {}
        for number in range(3):
            row["n"] = number
            yield row

    env = new_env(config=am.JobConfig(check_mutations=True))
    env.from_collection(rows()).map(lambda row: row["n"]).sink_to(drop)
    await told.run(env)


@line("a key is None, or of another type than the first")
async def _key(told: Told) -> None:
    env = new_env()
    env.from_collection([1]).key_by(lambda number: None).reduce(max).sink_to(drop)
    await told.run(env)


@line("an iterator is read a second time")
async def _iterator(told: Told) -> None:
    numbers = new_env().from_collection(iter([1]))
    await numbers.collect()
    await numbers.collect()


@line("event times look like seconds")
async def _seconds(told: Told) -> None:
    env = new_env()
    timed = MONOTONOUS.with_timestamp_assigner(lambda _: 1_700_000_000)
    env.from_collection([1], timed).sink_to(drop)
    await told.run(env)


@line("event times look like microseconds or nanoseconds")
async def _microseconds(told: Told) -> None:
    env = new_env()
    timed = MONOTONOUS.with_timestamp_assigner(lambda _: 1_700_000_000_000_000)
    env.from_collection([1], timed).sink_to(drop)
    await told.run(env)


@line("the default of a state is changed, and not written with `update`")
async def _changed_default(told: Told) -> None:
    class Keeps(am.KeyedProcessFunction):
        def open(self, context: Any) -> None:
            kept = am.ValueStateDescriptor("kept", list, default=[])
            self.kept = context.keyed_state.get_value(kept)

        def process_element(self, value: Any, context: Any, out: Any) -> None:
            self.kept.value().append(value)

    env = new_env()
    env.from_collection([1, 1]).key_by(str).process(Keeps()).sink_to(drop)
    await told.run(env)


@line("a list that a state returned is changed, and not written")
async def _changed_list(told: Told) -> None:
    class Keeps(am.KeyedProcessFunction):
        def process_element(self, value: Any, context: Any, out: Any) -> None:
            kept = am.ListStateDescriptor("kept", int)
            context.keyed_state.get_list(kept).get().append(value)

    env = new_env()
    env.from_collection([1, 1]).key_by(str).process(Keeps()).sink_to(drop)
    await told.run(env)


@line("in `process_async` a value that a state returned is changed, and not written")
async def _changed_in_a_call(told: Told) -> None:
    kept = am.ValueStateDescriptor("kept", list, default=[])

    async def call(value: int, context: Any, out: Any) -> None:
        context.keyed_state.get_value(kept).value().append(value)

    env = new_env()
    env.from_collection([1]).key_by(str).process_async(call).sink_to(drop)
    await told.run(env)


@line("state or a timer is used when its function has returned")
async def _late_use(told: Told) -> None:
    class Late(am.KeyedProcessFunction):
        def open(self, context: Any) -> None:
            self.count = context.keyed_state.get_value(am.ValueStateDescriptor("n"))

        def process_element(self, value: Any, context: Any, out: Any) -> None:
            asyncio.get_running_loop().call_soon(self.late)

        def late(self) -> None:
            try:
                self.count.update(1)
            except am.StateError as error:
                told.errors.append(str(error))

    env = new_env()
    env.from_collection([1]).key_by(str).process(Late()).uid("late").sink_to(drop)
    await told.run(env)
    assert "operator 'process' (uid 'late')" in told.errors[0]


@line("an aggregate function gives all keys the same accumulator")
async def _shared_accumulator(told: Told) -> None:
    class Distinct:
        seen: set[int] = set()

        def create_accumulator(self) -> set[int]:
            return self.seen

        def add(self, value: int, accumulator: set[int]) -> set[int]:
            accumulator.add(value)
            return accumulator

        def get_result(self, accumulator: set[int]) -> int:
            return len(accumulator)

        def merge(self, first: set[int], second: set[int]) -> set[int]:
            return first | second

    new_env().from_collection([1]).key_by(str).aggregate(Distinct())


@line("a state object is used as if it were its value")
async def _state_as_value(told: Told) -> None:
    class Once(am.KeyedProcessFunction):
        def open(self, context: Any) -> None:
            self.seen = context.keyed_state.get_value(am.ValueStateDescriptor("s"))

        def process_element(self, value: Any, context: Any, out: Any) -> None:
            if not self.seen:
                out.collect(value)

    env = new_env()
    env.from_collection([1]).key_by(str).process(Once()).sink_to(drop)
    await told.run(env)


@line("a function that folds values into state returns nothing")
async def _folds_into_nothing(told: Told) -> None:
    def add(total: list[int], values: list[int]) -> Any:
        total.extend(values)

    class Adds(am.KeyedProcessFunction):
        def process_element(self, value: Any, context: Any, out: Any) -> None:
            total = am.ReducingStateDescriptor("total", add)
            context.keyed_state.get_reducing(total).add([value])

    env = new_env()
    env.from_collection([1, 1]).key_by(str).process(Adds()).sink_to(drop)
    await told.run(env)


@line("list state is given text, bytes or a dict as its elements")
async def _text_into_list(told: Told) -> None:
    class Adds(am.KeyedProcessFunction):
        def process_element(self, value: Any, context: Any, out: Any) -> None:
            words = am.ListStateDescriptor("words", str)
            context.keyed_state.get_list(words).add_all("word")

    env = new_env()
    env.from_collection([1]).key_by(str).process(Adds()).sink_to(drop)
    await told.run(env)


class Plans(am.KeyedProcessFunction):
    def process_element(self, value: Any, context: Any, out: Any) -> None:
        timers = context.timer_service
        if value == "clock":
            timers.register_processing_time_timer(after=am.hours(1))
        else:
            timers.register_event_time_timer(5)

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None: ...


@line("the input ends before timers of processing time are due")
async def _ends_before_timers(told: Told) -> None:
    env = new_env()
    env.from_collection(["clock"]).key_by(len).process(Plans()).sink_to(drop)
    await told.run(env)


@line("a timer of event time is registered where no record has an event time")
async def _timer_without_times(told: Told) -> None:
    env = new_env()
    env.from_collection(["event"]).key_by(len).process(Plans()).sink_to(drop)
    await told.run(env)


@line("a key function gives another key for the first record when it is asked again")
async def _unstable_key(told: Told) -> None:
    keys = itertools.count()
    env = new_env()
    env.from_collection([1]).key_by(lambda n: next(keys)).reduce(max).sink_to(drop)
    await told.run(env)


@line("the first call of a reduce function changes a record that was emitted")
async def _reduce_changes(told: Told) -> None:
    def add(total: dict[str, int], row: dict[str, int]) -> dict[str, int]:
        total["n"] += row["n"]
        return total

    env = new_env()
    rows = env.from_collection([{"k": 1, "n": 1}, {"k": 1, "n": 2}])
    rows.key_by("k").reduce(add).sink_to(drop)
    await told.run(env)


@line("`add` of an aggregate takes the accumulator first")
async def _swapped_add(told: Told) -> None:
    class Total:
        def create_accumulator(self) -> int:
            return 0

        def add(self, acc: int, number: int) -> int:
            return acc + number

        def get_result(self, acc: int) -> int:
            return acc

        def merge(self, first: int, second: int) -> int:
            return first + second

    new_env().from_collection([1]).key_by(str).aggregate(Total())


@line("a task uses state or a timer while the call for another record is awaited")
async def _use_by_another_call(told: Told) -> None:
    second = asyncio.Event()

    class Overlapping(am.KeyedProcessFunction):
        def open(self, context: Any) -> None:
            self.count = context.keyed_state.get_value(am.ValueStateDescriptor("n"))

        async def process_element(self, value: Any, context: Any, out: Any) -> None:
            if value == 1:
                self.late = asyncio.create_task(self.go_on())
                return
            second.set()
            await asyncio.wait([self.late])
            told.errors.append(str(self.late.exception()))

        async def go_on(self) -> None:
            await second.wait()
            self.count.update(1)

    env = new_env()
    env.from_collection([1, 2]).key_by(str).process(Overlapping()).sink_to(drop)
    await told.run(env)
    assert "operator 'process'" in told.errors[0]


@line("a result is collected when the function has returned")
async def _late_result(told: Told) -> None:
    class Late(am.ProcessFunction):
        def process_element(self, value: Any, context: Any, out: Any) -> None:
            asyncio.get_running_loop().call_soon(self.late, out)

        def late(self, out: Any) -> None:
            try:
                out.collect(1)
            except am.AioMailboxError as error:
                told.errors.append(str(error))

    env = new_env()
    env.from_collection([1]).process(Late()).uid("late").sink_to(drop)
    await told.run(env)
    assert "operator 'process' (uid 'late')" in told.errors[0]


@line("two states of a function have one name")
async def _one_name(told: Told) -> None:
    class Twice(am.KeyedProcessFunction):
        seen = am.ValueStateDescriptor("n", int)
        held = am.ValueStateDescriptor("n", int)

        def process_element(self, value: Any, context: Any, out: Any) -> None: ...

    try:
        new_env().from_collection([1]).key_by(str).process(Twice())
    except am.AioMailboxError as error:
        told.errors.append(str(error))


@line("`max_` compares text")
async def _text(told: Told) -> None:
    env = new_env()
    keyed = env.from_collection([{"n": "9"}, {"n": "10"}]).key_by(lambda row: 1)
    keyed.aggregate(am.max_("n")).sink_to(drop)
    await told.run(env)


@line("a budget is exhausted")
async def _budget(told: Told) -> None:
    async def call(number: int) -> int:
        return number

    env = new_env()
    limit = am.RateLimit(10, per=1.0, budget=3)
    env.from_collection(range(10)).map_async(call, limit=limit).sink_to(drop)
    await told.run(env)


@line("`collect()` holds a million records")
async def _many(told: Told) -> None:
    stream = new_env().from_collection(itertools.repeat(1, 1_100_000))
    assert len(await stream.collect()) == 1_100_000


@line("`map_partition` holds a million records")
async def _many_of_a_partition(told: Told) -> None:
    stream = new_env().from_collection(itertools.repeat(1, 2_000))
    lengths = stream.full_window_partition().map_partition(lambda ones: [len(ones)])
    with pytest.MonkeyPatch.context() as patch:
        # A million take seconds, and prove no more.
        patch.setattr("aiomailbox.windowing.partition._MANY", 1_000)
        assert await lengths.collect() == [2_000]


@line("a partition waits for the end of a source that never ends")
async def _partition_of_an_inbox(told: Told) -> None:
    env = new_env()
    stream = env.from_source(am.Inbox[int]()).full_window_partition()
    stream.aggregate(am.count()).sink_to(drop)
    async with env.start():
        pass


@line("`sort_partition` is used in a job with checkpoints")
async def _sorted_with_checkpoints(told: Told) -> None:
    env = new_env()
    env.enable_checkpointing(am.seconds(1))
    partition = env.from_collection([2, 1]).full_window_partition()
    await partition.sort_partition(abs).collect()


@line("sliding windows have gaps, and records fall into them")
async def _gaps(told: Told) -> None:
    keyed = new_env().from_collection([1]).key_by(lambda number: number)
    keyed.window(am.SlidingEventTimeWindows.of(am.seconds(1), am.seconds(10)))


@line("lateness is set for windows that no record is late for")
async def _never_late(told: Told) -> None:
    keyed = new_env().from_collection([1]).key_by(lambda number: number)
    windows = keyed.window(am.TumblingProcessingTimeWindows.of(am.seconds(1)))
    windows.allowed_lateness(am.seconds(1))


@line("`collect()`, `count()` or `take()` waits for sources that may never end")
async def _endless(told: Told) -> None:
    async def hours() -> AsyncIterator[int]:
        for hour in itertools.count():
            yield hour
            await asyncio.sleep(3600)

    numbers = new_env().from_async_iterable(hours)
    for verb in (numbers.collect, numbers.count, partial(numbers.take, 10**6)):
        for hours_long, times in ((23, 0), (48, 1)):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(verb(), hours_long * 3600)
            name = getattr(verb, "func", verb).__name__
            assert told.log().count(f"call='{name}()'") == times


@line("a job whose end is awaited waits for an inbox that nobody closes")
async def _open_inbox(told: Told) -> None:
    env, inbox = new_env(), am.Inbox[int]()
    env.from_source(inbox, name="numbers").sink_to(drop)
    await inbox.put(1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(env.execute("job"), 7 * 24 * 3600)
    assert told.log().count("inboxes=['numbers']") == 1


@line("an inbox is full before a job reads it")
async def _unread_inbox(told: Told) -> None:
    inbox: am.Inbox[int] = am.Inbox(size=1)
    await inbox.put(1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(inbox.put(2), 1)


@line("an inbox is read by two jobs at once")
async def _two_readers(told: Told) -> None:
    inbox: am.Inbox[int] = am.Inbox()
    one, other = new_env(), new_env()
    one.from_source(inbox).sink_to(drop)
    other.from_source(inbox).sink_to(drop)
    async with one.start("one"), other.start("other"):
        await asyncio.sleep(1)


@line("a question is asked of a job without answers")
async def _no_answers(told: Told) -> None:
    env = new_env()
    env.from_questions().sink_to(drop)
    async with env.start("job") as job:
        await job.ask(1)


@line("a directory has no files for a source")
async def _no_files(told: Told) -> None:
    env = new_env()
    env.from_source(am.FileSource(told.directory, "csv")).sink_to(drop)
    await told.run(env)


@line("a source finds files in directories such as `day=2026-05-01`")
async def _columns_in_names(told: Told) -> None:
    place = told.directory / "day=2026-05-01"
    place.mkdir()
    (place / "a.csv").write_text("item\ntea\n")
    env = new_env()
    env.from_source(am.FileSource(told.directory, "csv")).sink_to(drop)
    await told.run(env)


@line("the header of a CSV file looks as if it had another delimiter")
async def _other_delimiter(told: Told) -> None:
    await read_csv(told, "item;price\ntea;3\n")


async def read_csv(told: Told, *texts: str, **options: Any) -> None:
    for number, text in enumerate(texts):
        (told.directory / f"{number}.csv").write_text(text)
    env = new_env()
    env.from_source(am.FileSource(told.directory, "csv", **options)).sink_to(drop)
    await told.run(env)


@line("the CSV files of a source have different columns")
async def _other_columns(told: Told) -> None:
    await read_csv(told, "item,price\ntea,3\n", "do not delete\nAnn\n")


@line("the header of a CSV file is read as a record")
async def _header_as_record(told: Told) -> None:
    await read_csv(told, "item,price\ntea,3\n", columns=["item", "price"])


@line("the header of a CSV file has a column twice")
async def _column_twice(told: Told) -> None:
    await read_csv(told, "price,price\n1,2\n")


class Priced(NamedTuple):
    item: str
    price: float


@line("the header of a CSV file lacks a field of the records' class")
async def _column_missing(told: Told) -> None:
    await read_csv(told, "item,cost\ntea,3\n", records=Priced)


@line("a file of JSON lines is one array")
async def _json_array(told: Told) -> None:
    file = told.directory / "orders.jsonl"
    file.write_text('[{"price": 3}, {"price": 4}]')
    env = new_env()
    env.from_source(am.FileSource(file)).sink_to(drop)
    await told.run(env)


@line("windows wait for watermarks, which their source never gives")
async def _no_watermarks(told: Told) -> None:
    env = new_env()
    still = am.WatermarkStrategy.no_watermarks()
    timed = still.with_timestamp_assigner(lambda number: number)
    numbers = env.from_async_iterable(numbers_from(None), timed, bounded=False)
    windows = numbers.key_by(str).window(am.TumblingEventTimeWindows.of(am.seconds(1)))
    windows.aggregate(am.count()).sink_to(drop)
    async with env.start("job") as job:
        await job.cancel()


@line("a sink waits for a locked SQLite file")
async def _locked_file(told: Told) -> None:
    file = told.directory / "numbers.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("CREATE TABLE numbers (n)")
        other.execute("BEGIN IMMEDIATE")
        env = new_env()
        env.from_collection([{"n": 1}]).sink_to(am.SqlSink(file, "numbers"))
        async with env.start("job") as job:
            await told.until_logged("a sink waits for a locked database")
            other.execute("COMMIT")
            await job.result()
        assert other.execute("SELECT n FROM numbers").fetchall() == [(1,)]


@line("a sink cannot reach its server")
async def _no_server(told: Told) -> None:
    env = new_env()
    sink = am.RedisSink("redis://127.0.0.1:1", key="n")
    env.from_collection([{"n": 1}]).sink_to(sink)
    async with env.start("job") as job:
        await told.until_logged("a sink cannot reach its server")
        await job.cancel()


# Failures and restarts.


@line("a job fails and starts again")
async def _restart(told: Told) -> None:
    failures = [OSError("away")]

    def fail_once(number: int) -> int:
        if failures:
            raise failures.pop()
        return number

    env = new_env().enable_checkpointing(am.seconds(10), directory=told.directory)
    env.from_collection([1]).map(fail_once).sink_to(drop)
    await told.run(env)


@line("a call of the library is wrong while the job runs")
async def _wrong_call(told: Told) -> None:
    env = new_env().enable_checkpointing(am.seconds(10), directory=told.directory)
    function: Any = lambda number: number  # noqa: E731
    env.from_collection([1]).map_async(function).sink_to(drop)
    await told.run(env)


@line(
    "a function waits for the end of its own job, or for a checkpoint that waits for it"
)
async def _waits_for_itself(told: Told) -> None:
    env = new_env()
    env.enable_checkpointing(None, directory=told.state)
    jobs: list[am.JobClient] = []

    async def saves(number: int) -> None:
        await jobs[0].trigger_savepoint(told.directory / "saved")

    env.from_collection([1]).sink_to(saves)
    async with env.start("job", on_failure="log") as job:
        jobs.append(job)
        await job.result()


@line("a function calls `sys.exit()`")
async def _exit(told: Told) -> None:
    env = new_env().enable_checkpointing(am.seconds(10), directory=told.directory)
    env.from_collection([1]).map(lambda number: sys.exit(0)).sink_to(drop)
    job = await told.run(env)
    assert job.restarts == 0


@line("a function fails with the same mistake three times")
async def _mistake(told: Told) -> None:
    env = new_env().enable_checkpointing(am.seconds(10), directory=told.directory)
    env.from_collection([1]).map(lambda number: number / 0).sink_to(drop)
    job = await told.run(env)
    assert job.restarts == 2


@line("a call is made again after a failure")
async def _retry(told: Told) -> None:
    failures = [OSError("away")]

    async def call(number: int) -> int:
        if failures:
            raise failures.pop()
        return number

    env = new_env()
    env.from_collection([1]).map_async(call, retry=am.Retry(attempts=2)).sink_to(drop)
    await told.run(env)


@line("a call takes longer than its timeout")
async def _timeout(told: Told) -> None:
    async def call(number: int) -> int:
        await asyncio.sleep(5)
        return number

    env = new_env()
    stream = env.from_collection([1]).map_async(call, timeout=1, on_error=am.skip)
    stream.sink_to(drop)
    await told.run(env)


@line("a checkpoint cannot be written")
async def _unwritable(told: Told) -> None:
    async with endless(told, tolerable_failures=5).start("job") as job:
        await asyncio.sleep(0.05)
        # A file where the next checkpoint's directory has to be.
        await job.trigger_checkpoint()
        [own] = [one for one in told.state.iterdir() if one.is_dir()]
        (own / "chk-2").write_text("in the way")
        with pytest.raises(am.CheckpointFailedError):
            await job.trigger_checkpoint()
        # It is given up first.
        while "number_of_failed_checkpoints" not in told.counters:
            await asyncio.sleep(0.01)
            told.count(job)
        await job.cancel()


@line("a job makes no progress")
async def _stuck(told: Told) -> None:
    async def hang(number: int) -> int:
        await asyncio.sleep(3_600)
        return number

    env = new_env(config=am.JobConfig(stuck_after=am.seconds(0.3)))
    env.from_collection([1, 2, 3]).map_async(hang, concurrency=1).sink_to(drop)
    async with env.start("job") as job:
        await told.until_logged("tasks make no progress")
        await job.cancel()


@line("a function waits for room in the inbox that its own job reads")
async def _own_inbox(told: Told) -> None:
    inbox: am.Inbox[int] = am.Inbox(size=1)

    async def put_more(number: int) -> None:
        for more in range(number):
            await inbox.put(more)

    env = new_env(config=am.JobConfig(stuck_after=am.seconds(0.3)))
    env.from_source(inbox).sink_to(put_more)
    async with env.start("job") as job:
        await inbox.put(9)
        await told.until_logged("tasks make no progress")
        await job.cancel()
    assert f"lines=['{__file__}:{put_more.__code__.co_firstlineno + 2}']" in told.log()


@line("a silent source holds event time back")
async def _silent(told: Told) -> None:
    async def silent() -> AsyncIterator[int]:
        yield 0
        await asyncio.sleep(3600)

    env = new_env(config=am.JobConfig(stuck_after=am.seconds(0.3)))
    timed = MONOTONOUS.with_timestamp_assigner(lambda number: number)
    one, other = (
        env.from_async_iterable(items, timed, bounded=False)
        for items in (numbers_from(None), silent)
    )
    windows = one.union(other).key_by(str)
    seconds = windows.window(am.TumblingEventTimeWindows.of(am.seconds(1)))
    seconds.aggregate(am.count()).sink_to(drop)
    async with env.start("job") as job:
        await told.until_logged("event time stands still")
        await job.cancel()


@line("a barrier does not come through")
async def _late_barrier(told: Told) -> None:
    async def hang(number: int) -> None:
        await asyncio.sleep(3_600)

    env = new_env(config=am.JobConfig(stuck_after=am.seconds(0.3)))
    env.enable_checkpointing(am.seconds(0.1), directory=told.directory)
    env.from_collection([1, 2, 3]).sink_to(hang)
    async with env.start("job") as job:
        await told.until_logged("a barrier is late")
        await job.cancel()


@line("a function blocks the event loop")
async def _held(told: Told) -> None:
    env = new_env()
    # Until it has been seen: who looks waits for a processor, too.
    env.from_collection([3]).map(block).sink_to(drop)
    await told.run(env)


@line("a job is made and never started")
async def _never_started(told: Told) -> None:
    env = new_env()
    env.from_collection([1]).sink_to(drop)
    env.start("job")


@line("the block of a job ends before its input does")
async def _cut_short(told: Told) -> None:
    env = new_env()
    env.from_collection([1]).sink_to(drop)
    async with env.start("job"):
        pass


@line("a job stops before event time ends")
async def _not_drained(told: Told) -> None:
    def counted(keyed: Any) -> Any:
        windows = keyed.window(am.TumblingEventTimeWindows.of(am.days(1)))
        return windows.aggregate(am.count()).uid("counts")

    async with endless(told, build=counted).start() as job:
        await asyncio.sleep(0.05)
        await job.stop()


@line("a job uses an operator as it was before `.uid()` or its like")
async def _changed(told: Told) -> None:
    env = new_env()
    stream = env.from_collection([1]).map(abs)
    stream.uid("abs")
    stream.sink_to(drop)
    await told.run(env)


@line("a setting of windows is dropped")
async def _dropped_setting(told: Told) -> None:
    windows = late(new_env())
    windows.trigger(am.CountTrigger.of(1))
    await windows.aggregate(am.count()).collect()


@line("a stream ends in no sink, beside others that do")
async def _no_sink(told: Told) -> None:
    env = new_env()
    numbers = env.from_collection([1])
    numbers.map(abs).name("branch").map(print).name("forgotten")
    numbers.sink_to(drop)
    await told.run(env)
    assert "operator='forgotten'" in told.log()
    assert "operator='branch'" not in told.log()
    assert f"line='{__file__}:" in told.log()


@line("the program ends before a job of `execute_async` does")
async def _not_awaited(told: Told) -> None:
    async def main() -> None:
        env = new_env()
        env.from_async_iterable(numbers_from(None)).sink_to(drop)
        await env.execute_async("job")

    # A loop of its own, which ends.
    await asyncio.to_thread(asyncio.run, main())
    assert "job='job'" in told.log()


@line("the program ends, and never executes an environment that has sinks")
async def _never_executed(told: Told) -> None:
    _UNRUN.clear()
    new_env().from_collection([1]).sink_to(drop)
    with pytest.MonkeyPatch.context() as patch:
        # Of a test that failed before.
        patch.delattr(sys, "last_value", raising=False)
        warn_of_unrun()
    assert f"line='{__file__}:" in told.log()


@line("a sink is added after its job has started")
async def _late_sink(told: Told) -> None:
    env = new_env()
    numbers = env.from_collection([1])
    numbers.sink_to(drop)
    async with env.start("job") as job:
        numbers.sink_to(drop)
        await job.result()


@line("the config of a job leaves out settings of the environment")
async def _left_out(told: Told) -> None:
    env = new_env().enable_checkpointing(None)
    env.from_collection([1]).sink_to(drop)
    await told.run(env, config=am.JobConfig(seed=1))


@line("more subtasks are asked for than an operator can have")
async def _too_many_subtasks(told: Told) -> None:
    try:
        new_env().from_source(am.Inbox()).set_parallelism(2)
    except am.AioMailboxError as error:
        told.errors.append(str(error))


@line("two operators have one `uid`")
async def _one_uid_twice(told: Told) -> None:
    env = new_env()
    env.from_collection([1]).uid("same").sink_to(drop).uid("same")
    await told.run(env)


hits = 0


def count_up() -> None:
    global hits
    hits += 1


class Counts:
    """Calls a function that assigns a global."""

    def __call__(self, number: int) -> int:
        """Count."""
        count_up()
        return number


@line("a function of a job in several processes uses a lock, a queue or an open file")
async def _own_locks(told: Told) -> None:
    lock = asyncio.Lock()

    async def one_at_a_time(number: int) -> int:
        async with lock:
            return number

    env = new_env()
    env.configure(deployment=am.Processes(1))
    env.from_collection([1]).map_async(one_at_a_time).name("call").sink_to(drop)
    await told.run(env)
    assert "operator='call' uid=None variable='nonlocal lock'" in told.log()
    assert "kind='asyncio.Lock'" in told.log()


@line("a function of a job in several processes changes a global")
async def _own_copies(told: Told) -> None:
    seen = 0

    def count_around(number: int) -> int:
        nonlocal seen
        seen += 1
        return number

    def count_here(number: int) -> None:
        count_up()

    env = new_env()
    env.configure(deployment=am.Processes(1))
    numbers = env.from_collection([1]).map(Counts()).name("counts").uid("c")
    numbers.map(count_around).sink_to(count_here)
    await told.run(env)
    lines = [one for one in told.log().splitlines() if "has its own" in one]
    assert len(lines) == 2
    of_global, of_closure = sorted(lines)
    assert "operator='counts' uid='c' variable='global hits'" in of_global
    assert f"function='count_up ({__file__}:" in of_global
    assert "variable='nonlocal seen'" in of_closure


@line("there is no pipeline to run")
async def _nothing(told: Told) -> None:
    env = new_env()
    env.from_collection([1]).map(str)
    await env.execute("job")


# State and checkpoints.


@line("a job starts without state over kept checkpoints")
async def _over_kept(told: Told) -> None:
    await leave_checkpoint(told)
    await start_once(endless(told), None)


@line("a job goes on from a checkpoint that is newer than its savepoint")
async def _descendant(told: Told) -> None:
    place = await savepoint(told)
    for _ in range(2):
        await start_once(endless(told), place)


@line("a job goes on from a savepoint beside a newer checkpoint")
async def _beside(told: Told) -> None:
    async with endless(told).start("job") as job:
        await asyncio.sleep(0.05)
        await job.trigger_savepoint(told.directory / "saved")
        await asyncio.sleep(0.05)
        await job.trigger_checkpoint()
        await job.cancel()
    await start_once(endless(told), told.directory / "saved")


async def finish(told: Told, times: int, **options: Any) -> None:
    for _ in range(times):
        env = new_env().enable_checkpointing(am.seconds(10), directory=told.directory)
        env.from_collection([1]).sink_to(drop)
        await told.run(env, restore_from="latest", **options)


@line("a job runs again that had finished")
async def _again(told: Told) -> None:
    await finish(told, 2)


@line('a job had finished, with `if_finished="return"`')
async def _returns(told: Told) -> None:
    await finish(told, 2, if_finished="return")


@line('a job had finished, with `if_finished="refuse"`')
async def _refuses(told: Told) -> None:
    await finish(told, 2, if_finished="refuse")


@line("state is restored that no operator reads")
@line("a state begins empty beside it")
async def _renamed(told: Told) -> None:
    place = await savepoint(told)
    renamed = endless(
        told, build=lambda keyed: keyed.process(Noting("newest")).uid("noting")
    )
    await start_once(renamed, place)


@line("a snapshot holds state of an operator that is gone")
async def _gone(told: Told) -> None:
    place = await savepoint(told)
    other = endless(
        told, build=lambda keyed: keyed.process(Noting("last")).uid("other")
    )
    await start_once(other, place)


def windows(keyed: Any, *, trigger: bool) -> Any:
    made = keyed.window(am.TumblingEventTimeWindows.of(am.seconds(100)))
    if trigger:
        made = made.trigger(am.PurgingTrigger.of(am.EventTimeTrigger()))
    return made.aggregate(am.count()).uid("windows")


@line("windows are kept in another way than in the snapshot")
async def _other_windows(told: Told) -> None:
    place = await savepoint(told, lambda keyed: windows(keyed, trigger=False))
    other = endless(told, build=lambda keyed: windows(keyed, trigger=True))
    with pytest.raises(am.AioMailboxError) as caught:
        await start_once(other, place)
    told.errors.append(str(caught.value))
    assert "(uid 'windows')" in told.errors[0]
    assert "was aggregate(...) or reduce(...) alone, and is apply(" in told.errors[0]


class NotingText(Noting):
    """Puts text where a number was declared."""

    def process_element(self, value: int, context: Any, out: Any) -> None:
        self._last.update(str(value))


@line("a value in state is not of the declared type")
async def _not_as_declared(told: Told) -> None:
    job = endless(told, build=lambda keyed: keyed.process(NotingText("last")).uid("n"))
    async with job.start("job") as running:
        for _ in range(2):
            await asyncio.sleep(0.05)
            await running.trigger_checkpoint()
        await running.cancel()
    [told_once] = [one for one in told.log().splitlines() if "declared='int'" in one]
    for words in ("uid='n'", "state='last'", "part='value'", "found='str'"):
        assert words in told_once


class Counted(am.ProcessWindowFunction[int, int, int, Any]):
    """Counts the records of a window."""

    def process(self, key: int, context: Any, elements: Any, out: Any) -> None:
        out.collect(len(list(elements)))


@line("the function of windows is of another kind than in the snapshot")
async def _other_function(told: Told) -> None:
    def counted(keyed: Any) -> Any:
        made = keyed.window(am.TumblingEventTimeWindows.of(am.seconds(100)))
        return made.process(Counted()).uid("windows")

    place = await savepoint(told, lambda keyed: windows(keyed, trigger=True))
    await start_once(endless(told, build=counted), place)


@line("a source is of another kind than in the snapshot")
async def _other_source(told: Told) -> None:
    place = await savepoint(told, lambda keyed: keyed.process(Noting("last")))
    env = new_env()
    env.from_collection([1]).uid("numbers").sink_to(drop).uid("end")
    await told.run(env, restore_from=place, allow_unmatched_state=True)


def newest_metadata(told: Told) -> Path:
    found = told.state.glob("*/chk-*/_metadata")
    return max(found, key=lambda path: int(path.parent.name[4:]))


@line("the newest checkpoint is damaged")
async def _damaged(told: Told) -> None:
    await leave_checkpoint(told, 2)
    path = newest_metadata(told)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    await start_once(endless(told, retained=2), "latest")


@line("the metadata of a checkpoint is missing")
async def _missing(told: Told) -> None:
    await leave_checkpoint(told, 2)
    newest_metadata(told).unlink()
    await start_once(endless(told, retained=2), "latest")


@line("a file of the journal is damaged")
async def _journal(told: Told) -> None:
    async def call(number: int) -> int:
        return number

    def damage(number: int) -> int:
        if number < 50:
            return number
        for path in told.directory.rglob("log-*/*.log"):
            first, _ = next(iter(LogSegment(path.parent, int(path.stem)).entries()))
            with open(path, "r+b") as file:
                file.seek(first)
                file.write(b"#")
        message = "stumbled"
        raise OSError(message)

    env = new_env().enable_checkpointing(am.seconds(60), directory=told.directory)
    calls = env.from_collection(range(100)).map_async(
        call, concurrency=4, journal=True, id=lambda number: number
    )
    calls.uid("calls").map(damage).sink_to(drop)
    await told.run(env)


@line("checkpoints are removed")
async def _removed(told: Told) -> None:
    async with endless(told).start("job") as job:
        await asyncio.sleep(0.05)
        await job.trigger_checkpoint()
        await job.stop()


@line("a job of the same name runs already")
async def _same_name(told: Told) -> None:
    first = await endless(told).execute_async("orders")
    try:
        await endless(told).execute_async("orders")
    finally:
        await first.cancel()


@line("exactly once is asked of a source that cannot replay")
async def _exactly_once(told: Told) -> None:
    env = new_env().enable_checkpointing(am.seconds(10), directory=told.directory)
    env.from_collection(iter([1])).sink_to(drop)
    await told.run(env)


@line("a job is to resume from checkpoints that end with each job")
async def _temporary(told: Told) -> None:
    env = new_env().enable_checkpointing(am.seconds(10))
    env.from_collection([1]).sink_to(drop)
    await told.run(env, restore_from="latest")


@line("a failure loses the records of a source since the last checkpoint")
async def _lost(told: Told) -> None:
    mode = am.CheckpointingMode.AT_LEAST_ONCE
    env = new_env().enable_checkpointing(
        am.seconds(10), directory=told.directory, mode=mode
    )
    env.from_collection(iter([1])).sink_to(drop)
    told.explained.append(env.explain())


@line("a sink shows rows again after a failure")
async def _twice(told: Told) -> None:
    env = new_env().enable_checkpointing(am.seconds(10), directory=told.directory)
    env.from_collection([1]).sink_to(drop)
    told.explained.append(env.explain())


@line("state grows without bound")
async def _grows(told: Told) -> None:
    env = new_env()
    env.from_collection([1]).key_by(lambda number: number).deduplicate().sink_to(drop)
    told.explained.append(env.explain())


@line("an async function runs one record at a time")
async def _one_at_a_time(told: Told) -> None:
    async def call(number: int) -> int:
        return number

    told.explained.append(new_env().from_collection([1]).map(call).explain())


@line("a record has a field that the given schema has not")
async def _not_in_schema(told: Told) -> None:
    env = new_env()
    schema = pa.schema([("a", pa.int64())])
    target = told.directory / "rows"
    env.from_collection([{"a": 1, "b": 2}]).sink_to(
        am.ParquetSink(target, schema=schema)
    )
    await told.run(env)


@line("a Python worker of Spark is killed")
async def _killed_worker(told: Told) -> None:
    @am.pipeline
    def deadly(rows: Any) -> Any:
        return rows.map(lambda row: os.kill(os.getpid(), signal.SIGKILL))

    applied = deadly.apply_to(local_session().range(1), schema="n int")
    applied.materialize(told.directory / "rows")


@line("a map's keys cannot be those of a dict")
async def _keys(told: Told) -> None:
    am.SparkSource(local_session().sql("SELECT map(array(1), 2) AS m"))


@line("calls inside Spark are divided over tasks")
async def _divided(told: Told) -> None:
    @am.pipeline
    def called(rows: Any) -> Any:
        async def call(row: Any) -> dict[str, int]:
            return {"n": 1}

        return rows.map_async(call, concurrency=6)

    applied = called.apply_to(local_session().range(1), schema="n int")
    told.explained.append(applied.explain())


SEEN: list[int] = []


@am.pipeline
def remembering(rows: Any) -> Any:
    def remember(row: Any) -> dict[str, int]:
        SEEN.append(row.id)
        return {"n": row.id}

    return rows.map(remember)


@line("a function inside Spark adds to a list of this program")
async def _adds_inside(told: Told) -> None:
    rows = local_session().range(1)
    assert remembering.apply_to(rows, schema="n int").result.count() == 1
    await remembering.run_on(rows, told.directory / "rows", schema="n int")
    assert SEEN == []
    assert told.log().count("variable='global SEEN'") == 2


@line("a pipeline is applied inside Spark, and none of its DataFrames is read")
async def _never_read(told: Told) -> None:
    remembering.apply_to(local_session().range(1), schema="n int")


@line("`apply_to` gets settings that only `run_on` follows")
async def _settings_of_run_on(told: Told) -> None:
    config = am.JobConfig(restore_from="latest")
    remembering.apply_to(local_session().range(1), schema="n int", config=config)


@line("a result is None in a column that takes no null")
async def _no_null(told: Told) -> None:
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    stream = new_env().from_collection([{"n": None}])
    await stream.to_spark(local_session(), schema=schema)


@line("a sink writes files, or rows of a table, where the DataFrame of its job reads")
async def _back_to_the_dataframe(told: Told) -> None:
    spark, place = local_session(), told.directory / "rows"
    spark.sql(f"CREATE TABLE echoed (n LONG) USING parquet LOCATION '{place}'")
    try:
        spark.sql("INSERT INTO echoed VALUES (1)")
        for df, sink in (
            (spark.read.parquet(str(place)), am.ParquetSink(place, mode="append")),
            (
                spark.table("echoed"),
                am.SparkTableSink(spark, "echoed", stage=told.directory / "stage"),
            ),
        ):
            env = new_env()
            env.from_source(am.SparkSource(df, records=dict)).sink_to(sink)
            await told.run(env)
    finally:
        spark.sql("DROP TABLE echoed")
    assert told.log().count("a sink writes files where a source of its job reads") == 2


@line("a sink writes files where a streaming DataFrame of its job reads")
async def _back_to_the_stream(told: Told) -> None:
    place = told.directory / "rows"
    local_session().range(1).write.parquet(str(place))
    df = local_session().readStream.schema("id long").parquet(str(place))
    env = new_env()
    rows = env.from_source(am.SparkStreamSource(df, told.state, records=dict))
    rows.sink_to(am.ParquetSink(place, mode="append"))
    await told.run(env)


@line("`to_spark()` waits for a source that may never end")
async def _waits_for_spark(told: Told) -> None:
    async def until_told() -> AsyncIterator[dict[str, int]]:
        yield {"n": 1}
        await told.until_logged("call='to_spark()'")

    await new_env().from_async_iterable(until_told).to_spark(local_session())


@line("`local_session` finds a session that exists already, with other settings")
async def _session_exists(told: Told) -> None:
    local_session()
    assert "a Spark session exists" not in told.log()
    local_session(cores=3)


# Mistakes in what functions return.


@line("the function of a `map`, `map_async` or `lookup_join` returns nothing")
async def _no_return(told: Told) -> None:
    def shout(word: str) -> Any:
        word.upper()

    async def ask(word: str) -> Any:
        await asyncio.sleep(0)

    words = new_env().from_collection(["tea"])
    assert await words.map(shout).collect() == [None]
    assert await words.map_async(ask).collect() == [None]
    assert await words.lookup_join(ask, key=str).collect() == []
    assert told.log().count("never returns a value") == 3


@line("a function returns a method, and does not call it")
async def _uncalled(told: Told) -> None:
    env = new_env()
    env.from_collection(["tea"]).map(lambda word: word.upper).sink_to(drop)
    await told.run(env)


@line("the function of a filter returns another function")
async def _undecided(told: Told) -> None:
    env = new_env()
    env.from_collection(["tea"]).filter(lambda word: is_good).sink_to(drop)
    await told.run(env)


@line("a function returns a generator, or a `map` object")
async def _generator(told: Told) -> None:
    env = new_env()
    env.from_collection(["tea"]).map(lambda word: map(ord, word)).sink_to(drop)
    await told.run(env)


@line("a function returns a task, or a future")
async def _task(told: Told) -> None:
    env = new_env()
    env.from_collection([0]).map(
        lambda number: asyncio.ensure_future(asyncio.sleep(number))
    ).sink_to(drop)
    await told.run(env)


@line("a function of `map_async` returns an exception")
async def _returned_error(told: Told) -> None:
    async def call(number: int) -> Any:
        return ValueError(number)

    env = new_env()
    env.from_collection([1, 2]).map_async(call).sink_to(drop)
    await told.run(env)
    assert told.log().count("a call returned an exception") == 1


@line("a result goes on that `retry_if` wants again")
async def _unwanted(told: Told) -> None:
    async def call(number: int) -> Any:
        return None if number < 10 else number

    retry = am.Retry(2, initial=0.01, retry_if=lambda result: result is None)
    env = new_env()
    env.from_collection([1, 2]).map_async(call, retry=retry).sink_to(drop)
    await told.run(env)
    assert told.log().count("a result goes on that retry_if wants again") == 1


@line("the first call of a reduce function returns another kind of value")
async def _other_kind(told: Told) -> None:
    rows: Any = new_env().from_collection([{"n": 1}, {"n": 2}])

    def add(one: Any, other: Any) -> Any:
        return one["n"] + other["n"]

    assert await rows.key_by(len).reduce(add).collect() == [{"n": 1}, 3]
    assert await rows.key_by(len).full_window_partition().reduce(add).collect() == [3]
    assert told.log().count("returns something else than a record") == 2


@line("the first call of a reduce function joins texts that are written like numbers")
async def _joined(told: Told) -> None:
    rows = new_env().from_collection([{"n": "9"}, {"n": "10"}])

    def add(one: Any, other: Any) -> Any:
        return {"n": one["n"] + other["n"]}

    await rows.key_by(len).reduce(add).collect()


@line("`max_by` compares text that is written like a number")
async def _text_in_max_by(told: Told) -> None:
    rows = new_env().from_collection([{"n": "9", "at": 1}, {"n": "10", "at": 2}])
    await rows.key_by(len).max_by("n").collect()


@line("`top_n`, `first` or `last` compares text that is written like a number")
async def _text_in_top(told: Told) -> None:
    rows = new_env().from_collection([{"n": "9", "at": 1}, {"n": "10", "at": 2}])
    for one in (am.top_n(1, by="n"), am.last("at", by="n")):
        await rows.key_by(len).aggregate(one).collect()
    both = am.aggregates(most=am.top_n(1, by="n"), count=am.count())
    await rows.key_by(len).full_window_partition().aggregate(both).collect()
    assert told.log().count("text is compared letter by letter") == 3


@line("`lookup_join` or `as_of_join` finds nothing for a record, and drops it")
async def _no_partner(told: Told) -> None:
    async def find(word: str) -> str | None:
        return None if word == "tea" else word

    env = new_env()
    env.from_collection(["tea", "jam"]).lookup_join(find, key=str).sink_to(drop)
    job = await told.run(env)
    metrics = [one.metrics for one in job.snapshot().operators]
    counts = [one.get("records_without_partner") for one in metrics]
    assert [one for one in counts if one is not None] == [1]


# Mistakes with times, settings and names.


@line("a function with keys counts on itself, as `self.count += 1` does")
async def _own_count(told: Told) -> None:
    class Count(am.KeyedProcessFunction[str, str, int]):
        def __init__(self) -> None:
            self.count = 0

        def process_element(self, value: str, context: Any, out: Any) -> None:
            self.count += 1
            out.collect(self.count)

    await new_env().from_collection(["a", "b"]).key_by(str).process(Count()).collect()
    assert told.log().count("counts on itself") == 1


class AtATime(am.KeyedProcessFunction[str, int, int]):
    """Registers a timer for each time that comes."""

    def process_element(self, value: int, context: Any, out: Any) -> None:
        context.timer_service.register_processing_time_timer(value)

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        """React."""


class AtATimeLater(am.KeyedAsyncProcessFunction[str, int, int]):
    async def process_element(self, value: int, context: Any, out: Any) -> None:
        context.timer_service.register_processing_time_timer(value)

    async def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        """React."""


@line("the time of a timer looks like seconds")
async def _timer_in_seconds(told: Told) -> None:
    times = new_env().from_collection([1_700_000_000]).key_by(str)
    await times.process(AtATime()).collect()
    await times.process_async(AtATimeLater()).collect()
    assert told.log().count("a timer looks like seconds") == 2


@line("the time of a timer looks like a number of seconds from now")
async def _timer_from_now(told: Told) -> None:
    times = new_env().from_collection([3_600]).key_by(str)
    await times.process(AtATime()).collect()


@line("a setting of a watermark strategy is dropped")
async def _dropped_idleness(told: Told) -> None:
    strategy = MONOTONOUS.with_timestamp_assigner(lambda number: number)
    strategy.with_idleness(am.seconds(1))
    assert await new_env().from_collection([1], strategy).collect() == [1]
    assert "dropped='with_idleness(...)'" in told.log()


@line("an inbox is given to two sources of a job")
async def _inbox_twice(told: Told) -> None:
    inbox: am.Inbox[int] = am.Inbox()
    env = new_env()
    for _ in range(2):
        env.from_source(inbox).sink_to(drop)
    await env.execute()


@line("a question without a timeout waits for an answer")
async def _no_answer_yet(told: Told) -> None:
    env = new_env(config=am.JobConfig(stuck_after=am.seconds(0.3)))
    questions = env.from_questions().filter(lambda question: False)
    questions.map(lambda question: question.answer(1)).sink_to(am.Answers())
    async with env.start("job") as job:
        asked = asyncio.ensure_future(job.ask("tea"))
        await told.until_logged("a question has no answer yet")
        asked.cancel()
        await job.cancel()
    assert "'tea'" in told.log()


@line("a setting behind `key_by` replaces that of the operator before it")
async def _uid_behind_key_by(told: Told) -> None:
    numbers = new_env().from_collection([1]).map(str).uid("texts")
    numbers.key_by(str).uid("counts").aggregate(am.count())


@line("`am.Processes` has work for one process only")
async def _one_process(told: Told) -> None:
    env = new_env(config=am.JobConfig(deployment=am.Processes(2)))
    assert await env.from_collection([1]).map(str).collect() == ["1"]


@line("the first delay of a `Retry` is longer than its maximum")
async def _long_delay(told: Told) -> None:
    am.Retry(initial=100)


@line("a deadline is shorter than the timeout of one attempt")
async def _short_deadline(told: Told) -> None:
    numbers = new_env().from_collection([1])
    numbers.map_async(asyncio.sleep, timeout=5, deadline=1)


@line("checkpoints are configured a second time, without a setting of the first")
async def _configured_twice(told: Told) -> None:
    env = new_env().enable_checkpointing(am.seconds(1), directory=told.state)
    env.enable_checkpointing(am.seconds(2))
    assert "left_out=['directory']" in told.log()


@line("a job that is to resume finds only checkpoints of other jobs")
async def _renamed_job(told: Told) -> None:
    await leave_checkpoint(told)
    async with endless(told).start("renamed", restore_from="latest") as job:
        await job.cancel()
    assert "others=['job']" in told.log()


# What users take the library for.


@line("a function with keys adds to a list, dict or set of its own")
async def _own_values(told: Told) -> None:
    class Seen(am.KeyedProcessFunction[str, str, str]):
        def __init__(self) -> None:
            self.seen: set[str] = set()

        def process_element(self, value: str, context: Any, out: Any) -> None:
            self.seen.add(value)

    await new_env().from_collection(["a", "b"]).key_by(str).process(Seen()).collect()


@line("a method has almost the name of one that the library calls")
async def _misnamed(told: Told) -> None:
    class Pass(am.ProcessFunction[str, str]):
        def process_element(self, value: str, context: Any, out: Any) -> None:
            out.collect(value)

        def on_checkpoint_complete(self, checkpoint_id: int) -> None:
            """Never called."""

    await new_env().from_collection(["a"]).process(Pass()).collect()


@line("an object with `open` is given to `map`, `filter`, `flat_map` or `sink_to`")
async def _unopened(told: Told) -> None:
    class Named:
        def open(self, context: Any) -> None:
            """Never called."""

        def __call__(self, value: str) -> str:
            return value

    await new_env().from_collection(["a"]).map(Named()).collect()


@line("a sink's function begins a task, or submits to a pool")
async def _begun(told: Told) -> None:
    tasks: list[Any] = []

    def begin(number: int) -> Any:
        tasks.append(asyncio.ensure_future(asyncio.sleep(1)))
        return tasks[-1]

    env = new_env()
    env.from_collection([1, 2]).sink_to(begin)
    await told.run(env)
    assert told.log().count("does not wait for what its function has begun") == 1


@line("a stream ends in one function twice")
async def _twice_in_one(told: Told) -> None:
    env = new_env()
    stream = env.from_collection([1])
    for _ in range(2):
        stream.sink_to(drop)
    await told.run(env)


class Mistaken(am.KeyedProcessFunction[str, int, int]):
    """Deletes timers by another time than that for which it has registered them."""

    def process_element(self, value: int, context: Any, out: Any) -> None:
        context.timer_service.delete_processing_time_timer(value)
        context.timer_service.register_processing_time_timer(after=am.hours(1))

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        """React."""


@line("timers are deleted that are not there")
async def _not_there(told: Told) -> None:
    await new_env().from_collection(range(30)).key_by(str).process(Mistaken()).collect()


@line("a timeout or another number of seconds looks like milliseconds")
async def _milliseconds(told: Told) -> None:
    new_env().from_collection([1]).map_async(asyncio.sleep, timeout=15_500)


@line('a job waits for a subscriber that does not read, with `on_full="wait"`')
async def _waits_for_reader(told: Told) -> None:
    env = new_env()
    stream = env.from_async_iterable(numbers_from, offset=lambda number: number)
    stream.publish()
    async with env.start("job") as job:
        kept = job.subscribe(stream, size=2, on_full="wait")
        await told.until_logged("the job waits for a subscriber")
        kept.close()
        await job.stop()


@line("a subscription begins when its job has ended")
async def _subscribed_late(told: Told) -> None:
    env = new_env()
    stream = env.from_collection([1])
    stream.publish()
    job = await told.run(env)
    assert [record async for record in job.subscribe(stream)] == []


@line("a restore with `allow_unmatched_state=True` drops the state of an operator")
async def _dropped_state(told: Told) -> None:
    place = await savepoint(told)

    def build(keyed: Any) -> Any:
        return keyed.process(Noting("last")).uid("renamed")

    env = endless(told, build=build)
    options: Any = {"restore_from": place, "allow_unmatched_state": True}
    async with env.start("job", **options) as job:
        await asyncio.sleep(0.05)
        await job.cancel()


async def resumed_in(told: Told, source: Callable[[int], Any]) -> None:
    """Stop a job in the middle of its source, and resume it with a shorter one."""

    async def slow(record: Any) -> Any:
        await asyncio.sleep(1)
        return record

    def described(count: int) -> am.StreamExecutionEnvironment:
        env = new_env().enable_checkpointing(None, directory=told.state)
        records = env.from_source(source(count)).uid("records")
        slowed = records.map_async(slow, concurrency=1, capacity=1).uid("slowed")
        slowed.sink_to(drop)
        return env

    async with described(3_000).start("job") as job:
        await asyncio.sleep(2)
        await job.trigger_checkpoint()
        await job.cancel()
    await told.run(described(2), restore_from="latest")


@line("a list has fewer records than when its position was recorded")
async def _shorter_list(told: Told) -> None:
    await resumed_in(told, lambda count: am.CollectionSource(list(range(count))))


@line("a file ends before the position that was recorded")
async def _shorter_file(told: Told) -> None:
    file = told.directory / "lines.txt"

    def source(count: int) -> am.FileSource:
        file.write_text("a line of a file\n" * count)
        return am.FileSource(file)

    await resumed_in(told, source)


@line("the journal of calls is in a temporary directory")
async def _short_journal(told: Told) -> None:
    async def call(number: int) -> int:
        return number

    env = new_env().enable_checkpointing(None)
    calls = env.from_collection([1]).map_async(call, journal=True, id=lambda n: n)
    calls.sink_to(drop)
    await told.run(env)


@line("a process function clears or fills a result that it has emitted")
async def _cleared(told: Told) -> None:
    batch: list[int] = []

    def emit(number: int, context: Any, out: Any) -> None:
        batch.append(number)
        if len(batch) == 2:
            out.collect(batch)
            batch.clear()

    await new_env().from_collection([1, 2, 3, 4]).process(emit).collect()


@line("a source yields one object again, with other contents")
async def _one_object(told: Told) -> None:
    async def rows() -> AsyncIterator[dict[str, int]]:
        row: dict[str, int] = {}
        for number in range(3):
            row["n"] = number
            yield row

    await new_env().from_async_iterable(rows).collect()


@line("the function of a source ignores the offset that it gets")
async def _deaf(told: Told) -> None:
    async def numbers(after: int | None) -> AsyncIterator[int]:
        for number in range(100):
            yield number
            await asyncio.sleep(1)

    def described() -> am.StreamExecutionEnvironment:
        env = new_env().enable_checkpointing(None, directory=told.state)
        env.from_async_iterable(numbers, offset=lambda number: number).sink_to(drop)
        return env

    async with described().start("job") as job:
        await asyncio.sleep(5)
        await job.trigger_checkpoint()
        await job.cancel()
    await told.run(described(), restore_from="latest")


@line("`results.extend` as a sink is given text, bytes or a dict")
async def _extended(told: Told) -> None:
    results: list[Any] = []
    env = new_env()
    env.from_collection(["tea"]).sink_to(results.extend)
    await told.run(env)


@line(
    "a `flat_map` or a window function returns one record as a tuple of text and numbers"
)
async def _one_tuple(told: Told) -> None:
    env = new_env()
    env.from_collection(["tea"]).flat_map(lambda word: (word, len(word))).sink_to(drop)
    await told.run(env)


@line("a function returns one object again and again, with other contents")
async def _again(told: Told) -> None:
    batch: list[int] = []

    def batches(number: int) -> Iterator[list[int]]:
        batch.append(number)
        if len(batch) == 2:
            yield batch
            batch.clear()

    await new_env().from_collection([1, 2, 3, 4]).flat_map(batches).collect()


@line("the default that `MapState.get` returned is changed, and not put")
async def _changed_map_default(told: Told) -> None:
    class Keeps(am.KeyedProcessFunction):
        def open(self, context: Any) -> None:
            kept = am.MapStateDescriptor("kept", str, list)
            self.kept = context.keyed_state.get_map(kept)

        def process_element(self, value: Any, context: Any, out: Any) -> None:
            self.kept.get("values", []).append(value)

    env = new_env()
    env.from_collection([1, 1]).key_by(str).process(Keeps()).sink_to(drop)
    await told.run(env)


class InSeconds:
    """Makes watermarks of another unit than that of the event times."""

    def on_run(self, timestamps: list[int], output: Any) -> None:
        self.latest = max(timestamps)

    def on_periodic_emit(self, output: Any) -> None:
        output.emit_watermark(self.latest // 1000)


@line("a watermark of a generator of your own looks like seconds")
async def _watermarks_in_seconds(told: Told) -> None:
    strategy = am.WatermarkStrategy[int].for_generator(InSeconds)
    strategy = strategy.with_timestamp_assigner(lambda at: at)
    env = new_env()
    env.from_collection([1_700_000_000_000], strategy).sink_to(drop)
    await told.run(env)


@dataclass
class Prized:
    item: str
    prize: float = 0.0


@line("a field of the records' class has nearly the name that it has in the file")
async def _renamed(told: Told) -> None:
    path = told.directory / "orders.jsonl"
    path.write_text('{"item":"tea","price":3}\n', "utf-8")
    env = new_env()
    env.from_source(am.FileSource(path, records=Prized)).sink_to(drop)
    await told.run(env)


@line("a number is NaN or infinite, which JSON does not have")
async def _not_a_number(told: Told) -> None:
    env = new_env()
    sink = am.FileSink(told.directory / "out", "jsonl")
    env.from_collection([{"price": None}, {"price": float("nan")}]).sink_to(sink)
    await told.run(env)
    assert "field='price'" in told.log()


@line("the program ends, and cancels a task in which a job runs")
async def _task_not_awaited(told: Told) -> None:
    async def main() -> None:
        started = asyncio.Event()
        stream = new_env().from_async_iterable(numbers_from(None))
        results = stream.map(lambda number: started.set()).collect()
        task = asyncio.create_task(results)
        await started.wait()
        assert not task.done()

    # A loop of its own, which ends.
    await asyncio.to_thread(asyncio.run, main())
    assert "job='collect'" in told.log()


@line("settings are changed after the job has started")
async def _late_settings(told: Told) -> None:
    env = new_env()
    env.from_source(am.Inbox()).sink_to(drop)
    async with env.start("job") as job:
        env.enable_checkpointing(am.seconds(10))
        await job.cancel()
    assert "settings=['checkpoints']" in told.log()


@line("a call answers after its timeout or deadline")
async def _too_late(told: Told) -> None:
    async def pay(number: int) -> str:
        try:
            await asyncio.sleep(1_000)
        except asyncio.CancelledError:
            if number > 1:
                raise ValueError("no refund") from None
        return f"paid {number}"

    env = new_env()
    numbers = env.from_collection([1])
    numbers.map_async(pay, timeout=5, on_error=am.skip).sink_to(drop)
    env.from_collection([2]).map_async(pay, deadline=5, on_error=am.skip).sink_to(drop)
    await told.run(env)
    assert "paid 1" in told.log()
    assert "no refund" in told.log()


@line("a call answers the end of its job with an error")
async def _fails_while_closing(told: Told) -> None:
    async def roll_back(number: int) -> int:
        begun.set()
        try:
            await asyncio.sleep(1_000)
        except asyncio.CancelledError:
            raise ValueError("no rollback") from None
        return number

    begun, env = asyncio.Event(), new_env()
    env.from_collection([1]).map_async(roll_back, on_error=am.skip).sink_to(drop)
    async with env.start("job") as job:
        await begun.wait()
        await job.cancel()
    assert "no rollback" in told.log()
    # Its record is not left out: it is called again where the job resumes.
    assert not job.metrics().total("skipped")


@line("an async generator answers the end of its job with an error")
async def _source_fails_while_closing(told: Told) -> None:
    begun = asyncio.Event()

    async def rows() -> AsyncIterator[int]:
        try:
            begun.set()
            await asyncio.sleep(1_000)
        finally:
            raise ValueError("no connection to close")
        yield 1

    env = new_env()
    env.from_async_iterable(rows).sink_to(drop)
    async with env.start("job") as job:
        await begun.wait()
        await job.cancel()
    assert "no connection to close" in told.log()


@line("a call waits a minute or longer before its next attempt, as `retry_after` says")
async def _asked_to_wait(told: Told) -> None:
    async def call(number: int) -> int:
        raise am.RetryLater("busy", retry_after=5000)

    env = new_env()
    numbers = env.from_collection([1])
    numbers.map_async(call, retry=am.Retry(attempts=2)).sink_to(drop)
    await told.run(env)
    assert "wait_s=5000.0" in told.log()


@line("a key function makes its keys with `hash(text)`, in a job that may resume")
async def _hashed(told: Told) -> None:
    env = new_env().enable_checkpointing(None, directory=told.state)
    words = env.from_collection(["tea"]).key_by(lambda word: hash(word) % 4)
    words.reduce(max).sink_to(drop)
    await told.run(env)


@line("a list is added to list state of numbers or text as one element")
async def _list_in_list(told: Told) -> None:
    class Keeps(am.KeyedProcessFunction):
        def process_element(self, value: Any, context: Any, out: Any) -> None:
            kept = context.keyed_state.get_list(am.ListStateDescriptor("kept", int))
            kept.add([*kept.get(), value])

    env = new_env()
    env.from_collection([1]).key_by(str).process(Keeps()).sink_to(drop)
    await told.run(env)


@line('the verdict of a filter is the text `"False"`, as of a CSV file')
async def _false_text(told: Told) -> None:
    await new_env().from_collection(["False"]).filter(str).collect()


@line("a generator of a `flat_map` returns a value")
async def _lost_return(told: Told) -> None:
    def letters(word: str) -> Iterator[str]:
        if not word:
            return ["none"]
        yield from word

    new_env().from_collection(["tea"]).flat_map(letters)


@line("a map state with keys of text is asked for a key that is no text")
async def _other_key(told: Told) -> None:
    class Keeps(am.KeyedProcessFunction):
        def process_element(self, value: int, context: Any, out: Any) -> None:
            kept = am.MapStateDescriptor("kept", str, int)
            counts = context.keyed_state.get_map(kept)
            counts.put(str(value), 1)
            counts.get(value)

    env = new_env()
    env.from_collection([1]).key_by(str).process(Keeps()).sink_to(drop)
    await told.run(env)
