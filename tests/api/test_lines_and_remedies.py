"""An error names a line of the user's and what would be right, and nothing that misleads."""

from __future__ import annotations

import json
import logging
import sqlite3
import sys
import traceback
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

import aiomailbox as am
from aiomailbox.errors import DamagedFileError, RecordIdReusedError
from aiomailbox.operators.core.fields import FieldSelector
from aiomailbox.operators.core.user_code import describe, users_line_of
from aiomailbox.runtime.held_loop import Stall, describe_frames
from aiomailbox.runtime.loop_watch import StallLog

Env = am.StreamExecutionEnvironment
ANY: Any = am
PACKAGE = str(Path(am.__file__).parent)


def here() -> int:
    return sys._getframe(1).f_lineno


async def failure_of(work: Any) -> am.JobFailedError:
    with pytest.raises(am.JobFailedError) as failed:
        await work
    return failed.value


# The user's line, and never one of a library.


async def same(record: Any) -> Any:
    return record


async def test_a_key_that_is_a_field_is_named_with_the_line_that_asks_for_it() -> None:
    stream = Env().from_collection([{"ids": [1]}])
    line = here() + 1
    found = await failure_of(stream.map_async(same, cache=am.Cache("ids")).collect())
    assert "'ids' returned a key without a hash" in str(found)
    assert found.location == f"{__file__}:{line}"
    assert PACKAGE not in str(found)


def test_what_the_library_has_made_is_described_without_a_line_of_its_own() -> None:
    assert describe(FieldSelector("city", "key", "job.py:7")) == "'city' (job.py:7)"
    assert describe(Env().configure) == "StreamExecutionEnvironment.configure"
    assert "test_lines" in describe(here)


async def test_a_function_of_a_library_that_gives_what_it_must_not_names_the_call() -> (
    None
):
    stream = Env().from_collection([1])
    line = here() + 1
    found = await failure_of(stream.flat_map(str).collect())
    assert found.location == f"{__file__}:{line}"
    assert "takes apart into letters" in str(found)


async def test_a_function_of_a_library_that_raises_names_the_call() -> None:
    stream = Env().from_collection(["{"])
    line = here() + 1
    found = await failure_of(stream.map(json.loads).collect())
    assert found.location == f"{__file__}:{line}"


async def test_two_sinks_with_one_target_name_the_line_of_the_second(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    env = Env()
    one = env.from_collection([{"a": 1}])
    one.sink_to(am.FileSink(tmp_path / "o", "jsonl"))
    line = here() + 1
    one.sink_to(am.FileSink(tmp_path / "o", "jsonl"))
    found = await failure_of(env.execute())
    assert found.location == f"{__file__}:{line}"
    cause: Any = found.__cause__
    assert cause.__notes__[0] == "in begin() of operator 'FileSink #2'"
    [told] = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert vars(told)["line"] == f"{__file__}:{line}"


def test_a_directory_beside_the_library_is_not_the_librarys() -> None:
    frame = SimpleNamespace(
        f_code=SimpleNamespace(co_filename=f"{PACKAGE}_jobs/job.py", co_name="f"),
        f_lineno=3,
    )
    frames: Any = [frame]
    assert users_line_of(frames) == f"{PACKAGE}_jobs/job.py:3"


@pytest.mark.parametrize(
    ("file", "function"),
    [
        (json.__file__, "loads"),
        ("/usr/lib/python3/dist-packages/a.py", "f"),
        ("/home/me/venv/lib/python3.11/site-packages/a.py", "f"),
        (am.__file__, "f"),
        # What a dataclass does by itself.
        ("<string>", "__setattr__"),
    ],
)
def test_no_line_is_named_where_only_a_library_ran(file: str, function: str) -> None:
    code = SimpleNamespace(co_filename=file, co_name=function)
    frames: Any = [SimpleNamespace(f_code=code, f_lineno=3)]
    assert users_line_of(frames) == ""


async def test_an_error_of_use_out_of_another_library_shows_where_it_was_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries = tmp_path / "site-packages"
    libraries.mkdir()
    (libraries / "a_library_of_theirs.py").write_text(
        "import aiomailbox as am\n"
        "def read(value):\n"
        "    raise am.UsageError('nothing to read')\n"
    )
    monkeypatch.syspath_prepend(libraries)
    from a_library_of_theirs import read  # type: ignore[import-not-found]

    found = await failure_of(Env().from_collection([1]).map(read).collect())
    shown = "".join(traceback.format_exception(found))
    assert 'a_library_of_theirs.py", line 3, in read' in shown


# A loop that is held.


class Operator:
    """As far as the code that looks at frames asks for one."""

    def __init__(self) -> None:
        self.context = SimpleNamespace(
            operator_name="write", uid=None, line="job.py:7", metrics=None
        )


LOOP = "in _run (/usr/lib/python3.11/asyncio/events.py:80)"
IMPORT = "in _find_and_load (<frozen importlib._bootstrap>:1176)"
BODY = "in <module> (/lib/pandas/__init__.py:26)"


def held(
    function: str, operator: str = "write", stack: list[str] | None = None
) -> Stall:
    return Stall(
        at_ms=0, duration_ms=200, gc_ms=0, cpu_ms=None, task="", operator=operator,
        uid=None, mail="", function=function, line="job.py:7",
        stack=stack or [],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("stall", "remedy"),
    [
        (held("slow"), "give it run_in="),
        (held("slow", ""), "run it in a thread"),
        (held(""), "no function of yours ran"),
        (held("", ""), "no function of yours ran"),
        # Neither a thread nor an await mends an import.
        (held("slow", stack=[LOOP, "a.py:3", IMPORT, "b.py:1"]), "a module was impor"),
        (held("", stack=[IMPORT]), "a module was imported:"),
        (
            held("", stack=[IMPORT, BODY]),
            "a module was imported (/lib/pandas/__init__.py):",
        ),
        # The program itself is an import of another one.
        (held("slow", stack=[IMPORT, LOOP, "a.py:3"]), "give it run_in="),
    ],
)
def test_who_holds_the_loop_decides_what_is_advised(
    stall: Stall, remedy: str, caplog: pytest.LogCaptureFixture
) -> None:
    # Left out for those who ask about something else.
    caplog.handler.filters.clear()
    StallLog().add(stall, [])
    [told] = caplog.records
    assert vars(told)["remedy"].startswith(remedy)
    assert vars(told).get("function", "") == stall.function
    assert ("in slow" in str(stall)) == bool(stall.function)


def test_a_loop_that_is_held_by_the_library_names_the_call_that_made_the_operator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[Any] = []
    operator = Operator()
    source = "def run(self):\n    found.append(sys._getframe())\n"
    space = {"found": found, "sys": sys}
    exec(compile(source, f"{PACKAGE}/operators/x.py", "exec"), space)
    space["run"](operator)  # type: ignore[operator]
    told = describe_frames([found[0]], "")
    assert (told.operator, told.line, told.function) == ("write", "job.py:7", "")


# A file whose columns are not those of the records.


class Price(NamedTuple):
    user: str
    cost: float


@dataclass
class Defaulted:
    user: str
    cost: float = 1.0


@pytest.mark.parametrize(
    ("text", "more", "told"),
    [
        (
            "user,price\na,1\nb,2\n",
            {},
            "there is no column 'cost'; it has user, price; if its first row",
        ),
        ("user, Cost\na,1\n", {}, "is ' Cost' meant"),
        ("a,1\n", {"columns": ["user", "price"]}, "columns= names all columns"),
        ("user,user\na,1\n", {}, "the header has column 'user' twice"),
    ],
)
@pytest.mark.parametrize("on_error", [am.fail, am.skip])
async def test_a_header_without_a_field_of_the_class_is_told_once_and_not_per_line(
    tmp_path: Path, text: str, more: Any, told: str, on_error: Any
) -> None:
    path = tmp_path / "o.csv"
    path.write_text(text)
    source = am.FileSource(path, records=Price, on_error=on_error, **more)
    found = await failure_of(Env().from_source(source).collect())
    assert told in str(found)
    assert isinstance(found.__cause__, DamagedFileError)
    assert "Repair the line" not in str(found)


async def test_a_column_for_which_the_class_has_a_default_may_be_missing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "o.csv"
    path.write_text("user\na\n")
    source = am.FileSource(path, records=Defaulted)
    assert await Env().from_source(source).collect() == [Defaulted("a", 1.0)]
    path.write_text("")
    assert await Env().from_source(source).collect() == []


async def test_a_row_says_how_many_columns_it_has(tmp_path: Path) -> None:
    path = tmp_path / "o.csv"
    path.write_text("a,b\n1,2,3\n")
    found = await failure_of(Env().from_source(am.FileSource(path)).collect())
    assert "the row has another number of columns than the first row: 3, and not 2" in (
        str(found)
    )


async def test_lines_that_are_skipped_are_not_told_to_be_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "o.jsonl"
    path.write_text('{"a": 1}\n{\n')
    source = am.FileSource(path, on_error=am.skip)
    assert await Env().from_source(source).collect() == [{"a": 1}]
    [told] = [each for each in caplog.records if "are skipped" in each.getMessage()]
    assert "line 2, at byte 9" in vars(told)["first"]
    assert "on_error=am.skip" not in vars(told)["first"]


# Remedies that are right.


@pytest.mark.parametrize("name", ["parallelism", "max_parallelism", "clock"])
def test_a_setting_of_the_environment_is_sent_there(name: str) -> None:
    remedy = rf"am\.StreamExecutionEnvironment\({name}=\.\.\.\)"
    with pytest.raises(am.InvalidArgumentError, match=remedy):
        ANY.StreamExecutionEnvironment().configure(**{name: 2})
    with pytest.raises(am.InvalidArgumentError, match=remedy):
        ANY.JobConfig(**{name: 2})


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: ANY.JobConfig(jobid="a"), "Is job_id meant"),
        (lambda: ANY.JobConfig(colour="a"), "See am.JobConfig"),
        (lambda: ANY.StreamExecutionEnvironment().configure(jobid="a"), "Is job_id"),
        (
            lambda: as_any(Env().from_collection([1])).map_async(same, concurency=2),
            "Is concurrency meant",
        ),
        (
            lambda: as_any(Env().from_collection([1])).rename(price="cost"),
            'Write rename({"old": "new"})',
        ),
        (lambda: ANY.count("price"), "Write count()"),
    ],
)
def test_an_argument_that_there_is_not_says_what_is_meant(
    call: Callable[[], Any], told: str
) -> None:
    with pytest.raises(am.UsageError) as refused:
        call()
    assert told in str(refused.value)


def as_any(one: Any) -> Any:
    return one


def test_a_type_error_of_the_body_stays_what_it_is() -> None:
    with pytest.raises(TypeError) as raised:
        as_any(Env().from_collection([1])).map_async(3)
    assert "map_async() has no such argument" not in str(raised.value)


async def test_a_directory_of_checkpoints_names_the_newest_one_in_it(
    tmp_path: Path,
) -> None:
    def program() -> Any:
        env = Env().enable_checkpointing(
            am.seconds(10),
            directory=tmp_path,
            mode=am.CheckpointingMode.AT_LEAST_ONCE,
        )
        inbox: am.Inbox[int] = am.Inbox()
        env.from_source(inbox).sink_to(lambda number: None)
        return env

    env = program()
    async with env.start("counts") as job:
        made = await job.trigger_checkpoint()
        await job.cancel()
    for place in (tmp_path, Path(made.place).parent):
        found = await failure_of(program().execute("counts", restore_from=place))
        assert repr(made.place) in str(found)
        assert 'restore_from="latest"' in str(found)


@dataclass
class Plain:
    n: int = 1


class Nameless:
    pass


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        (lambda _: Nameless(), "e.g. by one of its attributes"),
        (lambda _: frozenset(["a"]), "e.g. by tuple(sorted(key))"),
        (lambda _: {"a": 1}, "e.g. by tuple(sorted(key.items()))"),
        (lambda _: Plain(), "e.g. by str(key)"),
        (lambda _: float("nan"), "NaN is not equal to itself"),
    ],
)
async def test_a_key_that_cannot_be_one_is_told_what_would_be_one(
    key: Any, remedy: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Env().from_collection([1]).key_by(key).aggregate(am.count())
    found = await failure_of(stream.collect())
    assert remedy in str(found)
    # Not that it is random, which is no fault of it.
    assert "another key for the same record" not in caplog.text


async def test_a_record_id_that_is_given_twice_shows_both_records(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    env = Env().enable_checkpointing(am.seconds(10), directory=tmp_path)
    stream = env.from_collection([{"n": 1}, {"n": 2}])
    line = here() + 1
    calls = stream.map_async(same, journal=True, id=lambda record: "charge")
    found = await failure_of(calls.collect())
    cause: Any = found.__cause__
    assert isinstance(cause, RecordIdReusedError)
    assert found.record == "{'n': 2}"
    assert "the other record: {'n': 1}" in cause.__notes__
    [told] = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert vars(told)["line"] == found.location == f"{__file__}:{line}"


@pytest.mark.parametrize(
    ("made", "record", "table", "told"),
    [
        ("create table prices (n integer)", {"n": 1}, "price", "Is 'prices' meant"),
        ("create table prices (n integer)", {"n": 1}, "orders", "it has prices"),
        ("", {"n": 1}, "orders", "the file has no tables"),
        (
            "create view totals as select 1 as n",
            {"n": 1},
            "totals",
            "Name the table behind it",
        ),
        (
            "create table prices (n integer not null)",
            {"n": None},
            "prices",
            "Give each record a value there",
        ),
        ("create table prices (n integer)", {"n": 2**70}, "prices", "str(value)"),
    ],
)
async def test_what_sqlite_does_not_take_says_what_it_would(
    tmp_path: Path, made: str, record: Any, table: str, told: str
) -> None:
    database = tmp_path / "shop.db"
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.executescript(made)
    env = Env()
    env.from_collection([record]).sink_to(am.SqlSink(database, table))
    assert told in str(await failure_of(env.execute()))


# What Python says in words of its own.


async def test_the_result_of_a_job_says_where_the_records_are() -> None:
    env = Env()
    env.from_collection([1]).sink_to(lambda number: None)
    result: Any = await env.execute("one")
    for ask in (iter, list, lambda one: one[0]):
        with pytest.raises(am.UsageError, match=r"await stream\.collect\(\)"):
            ask(result)
    assert result
    for name, told in (
        ("records", "await stream.collect()"),
        ("wait", "the job has ended"),
        ("getNetRuntime", "write result.duration_s"),
        ("get_accumulator_result", "job.snapshot()"),
        ("duration", "is result.duration_s meant"),
    ):
        with pytest.raises(AttributeError) as refused:
            getattr(result, name)
        assert told in str(refused.value)


def test_a_stream_has_no_places() -> None:
    stream: Any = Env().from_collection([1])
    with pytest.raises(am.UsageError, match=r"await stream\.take\(count\)"):
        stream[0]


@pytest.mark.parametrize(
    "call",
    [
        lambda: ANY.Inbox(size="9"),
        lambda: ANY.Inbox([1]),
        lambda: ANY.ParquetSink("o", row_group_rows="9"),
        lambda: ANY.ParquetSink("o", rows_per_file=1.5),
    ],
)
def test_a_count_that_is_no_number_is_told(call: Callable[[], Any]) -> None:
    with pytest.raises(am.WrongTypeError, match="is not a whole number"):
        call()


# What fresh eyes tried.


class Gauging(am.ProcessFunction[int, int]):
    def __init__(self, read: Any) -> None:
        self.read = read

    def open(self, context: Any) -> None:
        context.metrics.gauge("waiting", self.read)

    def process_element(self, value: int, context: Any, out: Any) -> None:
        out.collect(value)


@pytest.mark.parametrize("read", [5, lambda one: one])
async def test_a_gauge_that_cannot_be_read_fails_the_job_and_does_not_hang_it(
    read: Any,
) -> None:
    found = await failure_of(
        Env().from_collection([1]).process(Gauging(read)).collect()
    )
    assert "is not a function without arguments" in str(found)
    good = Env().from_collection([1]).process(Gauging(lambda: 5))
    assert await good.collect() == [1]


@pytest.mark.parametrize(
    "go_on",
    [
        lambda end: end.collect(),
        lambda end: end.count(),
        lambda end: end.map(str),
        lambda end: end.sink_to(print),
        lambda end: end.union(end).map(str),
    ],
)
async def test_nothing_goes_on_from_the_end_of_a_stream(go_on: Any) -> None:
    end = Env().from_collection([1]).sink_to(print)
    with pytest.raises(am.UsageError, match=r"a stream ends in sink_to\(\.\.\.\)"):
        pending = go_on(end)
        await pending


async def test_dead_letters_of_a_sink_go_on() -> None:
    def refuse(number: int) -> None:
        raise ValueError(number)

    tag = am.OutputTag[am.DeadLetter]("refused")
    env = Env()
    end = env.from_collection([1]).sink_to(refuse, on_error=am.dead_letter(tag))
    letters = end.get_side_output(tag).map(lambda letter: letter.record)
    assert await letters.collect() == [1]


@pytest.mark.parametrize(
    ("steps", "error"),
    [
        (lambda stream: None, am.WrongTypeError),
        (lambda stream: 3, am.WrongTypeError),
        (lambda stream: stream.sink_to(print), am.UsageError),
    ],
)
def test_steps_that_give_no_stream_are_refused_where_they_are_attached(
    steps: Any, error: Any
) -> None:
    for attached in (steps, am.pipeline(steps)):
        with pytest.raises(error):
            Env().from_collection([1]).through(attached)


async def test_a_subscription_says_how_it_is_read() -> None:
    env = Env()
    inbox: am.Inbox[int] = am.Inbox()
    stream = env.from_source(inbox)
    stream.publish()
    async with env.start() as job:
        with pytest.raises(am.WrongTypeError, match="is not a stream"):
            job.subscribe(as_any("results"))
        subscription = as_any(job.subscribe(stream))
        with pytest.raises(am.UsageError, match="async for record in job"):
            list(subscription)
        with pytest.raises(am.UsageError, match="async for record in job"):
            await subscription
        with pytest.raises(KeyError, match="the job has "):
            job.snapshot().operator("nope")
        await job.cancel()


def test_a_page_is_of_a_job_that_runs() -> None:
    env = Env()
    for given in (env, am.JobClient, "job"):
        with pytest.raises(am.WrongTypeError, match="is not a running job"):
            am.observe.dashboard(as_any(given))


class Writes:
    def __init__(self) -> None: ...

    def __call__(self, record: Any) -> None: ...


async def yields(record: Any) -> Any:
    yield record


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda s: s.sink_to(Writes), r"give an object of it, Writes\("),
        (lambda s: s.sink_to(yields), "is an asynchronous generator"),
        (lambda s: s.map(str, retry=am.Retry(3)), r"map_async\(function, retry="),
        (lambda s: s.map(str, concurrency=3), r"map_async\(function, concurrency="),
        (lambda s: s.sink_to(print, retry=am.Retry(3)), "before the sink"),
        (lambda s: s.map_async(str), "is given to map"),
        (lambda s: s.map_async(same, run_in="thread"), "belongs into map"),
        (
            lambda s: s.map_async(same, limit=am.RateLimit(5), weight="tokens"),
            r"lambda record: record\['tokens'\]",
        ),
        (lambda s: ANY.JobConfig(name="a"), "A job's name is the first argument"),
        (lambda s: ANY.ValueStateDescriptor("n", 0), "is a value and not a type"),
        (lambda s: ANY.ListStateDescriptor("n", [str]), r"such as list\[str\]"),
        (lambda s: ANY.MapStateDescriptor("n", "k", {}), "is a value and not a type"),
        (
            lambda s: Env().enable_checkpointing(am.seconds(1), directory=""),
            "it is empty",
        ),
        (
            lambda s: s.map_async(same, timeout=am.seconds(-1)),
            "timeout: -0:00:01 is negative",
        ),
    ],
)
def test_a_wrong_argument_says_what_would_be_right(call: Any, told: str) -> None:
    stream = as_any(Env().from_collection([1]))
    with pytest.raises(am.UsageError, match=told):
        call(stream)


class Frozen(NamedTuple):
    price: int


@dataclass(frozen=True)
class FrozenData:
    price: int


def reads(name: str) -> Any:
    return lambda record: getattr(record, name)


def takes(name: str) -> Any:
    return lambda record: record[name]


def change(record: Any) -> None:
    record.price = 3


@pytest.mark.parametrize(
    ("record", "use", "told"),
    [
        ({"price": 1}, takes("prise"), "Is 'price' meant? The record has the fields"),
        (Frozen(1), reads("prise"), "The record has the fields price."),
        (FrozenData(1), reads("prise"), "The record has the fields price."),
        (FrozenData(1), takes("price"), "write record.price."),
        (Frozen(1), change, "make another one, record._replace(price=...)"),
        (FrozenData(1), change, "dataclasses.replace(record, price=...)"),
    ],
)
async def test_a_field_that_is_not_there_is_told_with_those_that_are(
    record: Any, use: Any, told: str
) -> None:
    found = await failure_of(Env().from_collection([record]).map(use).collect())
    assert told in str(found)
    assert str(found.location).startswith(f"{__file__}:")


async def test_a_key_that_another_dict_lacks_says_nothing_of_the_record() -> None:
    stream = Env().from_collection([{"price": 1}])
    found = await failure_of(
        stream.map(lambda record: dict[str, int]()["oslo"]).collect()
    )
    assert "meant" not in str(found)


async def test_of_several_errors_the_first_is_told() -> None:
    async def fails(record: Any) -> None:
        raise ExceptionGroup(
            "unhandled", [ExceptionGroup("one", [ValueError("no row")])]
        )

    found = await failure_of(Env().from_collection([1]).map_async(fails).collect())
    assert "unhandled (1 sub-exception): ValueError: no row" in str(found)


async def test_state_that_is_added_to_says_how_it_is_updated() -> None:
    class Adds(am.KeyedProcessFunction[str, int, int]):
        def open(self, context: Any) -> None:
            state = am.ValueStateDescriptor("n", int, default=0)
            self.n: Any = context.keyed_state.get_value(state)

        def process_element(self, value: int, context: Any, out: Any) -> None:
            self.n += 1

    stream = Env().from_collection([1]).key_by(str).process(Adds())
    assert "state.update(state.value() + 1)" in str(await failure_of(stream.collect()))


@pytest.mark.parametrize(
    ("size", "slide", "told"),
    [
        (am.seconds(1), am.seconds(5), "in none"),
        (am.days(365), am.seconds(1), "in very many windows"),
        (am.days(1), am.minutes(1), None),
    ],
)
def test_sliding_windows_that_hardly_can_be_meant_are_told_with_their_line(
    size: Any, slide: Any, told: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    keyed = Env().from_collection([1]).key_by(str)
    line = here() + 1
    keyed.window(am.SlidingEventTimeWindows.of(size, slide))
    if told is None:
        assert not caplog.records
        return
    [record] = caplog.records
    assert told in record.getMessage()
    assert vars(record)["line"] == f"{__file__}:{line}"


def test_a_config_in_the_place_of_the_parallelism_is_told_its_name() -> None:
    config: Any = am.JobConfig(seed=1)
    with pytest.raises(am.WrongTypeError) as caught:
        am.StreamExecutionEnvironment(config)
    assert str(caught.value) == (
        "parallelism: it is a JobConfig. Write am.StreamExecutionEnvironment(config=...)."
    )
