"""Mistakes that once passed in silence, or ended in an error of the library's inside."""

from __future__ import annotations

import asyncio
import gzip
import inspect
import json
import re
import sqlite3
import statistics
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from operator import itemgetter, mod
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.compute as pc
import pytest

import aiomailbox as am
from aiomailbox.errors import UsageError

Env = am.StreamExecutionEnvironment
field = pc.field("price")


def stream_of(*values: Any) -> Any:
    return Env().from_collection(list(values))


class NoCommitter:
    def create_writer(self, context: Any) -> Any: ...


class NoEnumerator:
    boundedness = am.Boundedness.BOUNDED

    def create_reader(self, context: Any) -> Any: ...


class Rules(am.BroadcastProcessFunction):
    def process_element(self, value: Any, context: Any, out: Any) -> None: ...

    def process_broadcast_element(self, value: Any, context: Any, out: Any) -> None: ...


class OpensWithout:
    async def open(self) -> None: ...

    async def __call__(self, record: Any) -> Any:
        return record


async def again(given: Any) -> bool:
    return True


def as_any(one: Any) -> Any:
    return one


def global_windows() -> Any:
    return stream_of(1).key_by(str).window(am.GlobalWindows.create())


def both() -> Any:
    env = Env()
    return env.from_collection([1]).connect(env.from_collection([2]))


ANY: Any = am
REFUSED: list[tuple[Callable[[], object], list[str]]] = [
    (
        lambda: global_windows().aggregate(am.count()),
        ["trigger", "never fire", "am.CountTrigger.of(n)"],
    ),
    (
        lambda: global_windows().trigger(am.CountTrigger),
        ["CountTrigger.of(...)"],
    ),
    (lambda: Env().from_source(ANY.FileSource), ["FileSource is a class"]),
    (lambda: Env().from_source(ANY.Inbox), ["Inbox is a class", "Inbox(...)"]),
    (
        lambda: Env().from_source(as_any(NoEnumerator())),
        ["NoEnumerator has no create_enumerator"],
    ),
    (
        lambda: stream_of(1).sink_to(as_any(NoCommitter())),
        ["NoCommitter has no create_committer"],
    ),
    (lambda: am.Retry(retry_if=again), ["retry_if", "def instead of async def"]),
    (lambda: am.Retry(retry_on=again), ["retry_on", "def instead of async def"]),
    (
        lambda: am.ValueStateDescriptor("n", int, ttl=ANY.hours(1)),
        ["ttl", "am.StateTtlConfig(am.hours(1))"],
    ),
    (
        lambda: am.ValueStateDescriptor("n", default=list),
        ["default", "a class and not a value", "default=list()"],
    ),
    (
        lambda: stream_of(1).map_async(OpensWithout()),
        ["OpensWithout.open", "def open(self, context)"],
    ),
    (lambda: stream_of(1).map(str, on_error=ANY.skip()), ["on_error=am.skip", "paren"]),
    (lambda: ANY.aggregates(am.count()), ["aggregates(n=count())"]),
    (
        lambda: both().process(Rules()),
        ["connect(rules.broadcast(descriptor))"],
    ),
]


@pytest.mark.parametrize(
    ("mistake", "told"), REFUSED, ids=lambda one: one[0] if type(one) is list else ""
)
def test_a_mistake_is_refused_where_it_is_written(
    mistake: Callable[[], object], told: list[str]
) -> None:
    with pytest.raises(UsageError) as refused:
        mistake()
    for words in told:
        assert words in str(refused.value)
    file = Path(inspect.getfile(mistake)).name
    assert any(Path(entry.path).name == file for entry in refused.traceback)


def test_a_count_of_a_field_is_not_taken_for_one_of_what_is_true() -> None:
    with pytest.raises(am.WrongTypeError, match=r"count\(where=field\)"):
        ANY.count("price")


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (lambda one: one.value.set(5), "state.update(value)"),
        (lambda one: one.value.get(), "state.value()"),
        (lambda one: one.list.append(5), "state.add(value)"),
        (lambda one: one.map.__setitem__("a", 5), "state.put(key, value)"),
        (lambda one: one.map["a"], "state.get(key)"),
    ],
)
@pytest.mark.parametrize("lives", [None, am.StateTtlConfig(am.hours(1))])
async def test_a_name_of_elsewhere_leads_to_that_of_the_state(
    use: Callable[[Any], object], told: str, lives: am.StateTtlConfig | None
) -> None:
    class Uses(am.KeyedProcessFunction):
        def open(self, context: Any) -> None:
            state = context.keyed_state
            self.value = state.get_value(am.ValueStateDescriptor("v", int, ttl=lives))
            self.list = state.get_list(am.ListStateDescriptor("l", int, ttl=lives))
            self.map = state.get_map(am.MapStateDescriptor("m", str, int, ttl=lives))

        def process_element(self, value: Any, context: Any, out: Any) -> None:
            use(self)

    with pytest.raises(am.JobFailedError) as failed:
        await stream_of(1).key_by(str).process(Uses()).collect()
    assert told in str(failed.value)


async def test_a_uid_that_is_given_twice_names_both_lines() -> None:
    env = Env()
    line = inspect.currentframe().f_lineno  # type: ignore[union-attr]
    stream = env.from_collection([1]).uid("same")
    stream.map(str).sink_to(print).uid("same")
    with pytest.raises(am.InvalidArgumentError) as caught:
        await env.execute()
    assert (
        f"'same' names both 'collection' ({__file__}:{line + 1}) and 'FunctionSink' "
        f"({__file__}:{line + 2})"
    ) in str(caught.value)


async def test_an_offset_that_is_in_no_record_fails_at_the_first_one() -> None:
    async def read(after: Any) -> AsyncIterator[dict[str, int]]:
        yield {"id": 1}

    stream = Env().from_async_iterable(read, offset="idd")
    with pytest.raises(am.JobFailedError, match=r"'idd'.*id"):
        await stream.collect()


async def test_a_misspelt_metric_is_not_zero() -> None:
    env = Env()
    env.from_collection([1, 2]).sink_to(lambda number: None)
    async with env.start() as job:
        await job.result()
    assert job.metrics().total("num_records_in") == 2
    assert job.metrics().total("num_late_records_dropped") == 0
    with pytest.raises(am.InvalidArgumentError, match="Is 'num_records_in' meant"):
        job.metrics().total("num_record_in")
    with pytest.raises(
        am.InvalidArgumentError, match="have: current_input_watermark, "
    ):
        job.metrics().total("a_metric_of_mine")


class Measures(am.ProcessFunction[int, int]):
    """Has a metric of each kind."""

    def open(self, context: am.RuntimeContext) -> None:
        metrics = context.metrics
        self.sizes = metrics.histogram("sizes", unit="1", text="Sizes.")
        metrics.gauge("area", lambda: 2.5, unit="1")
        metrics.gauge("colour", lambda: "red", unit="1", merge=am.Merge.LAST)

    def process_element(self, value: int, context: Any, out: Any) -> None:
        self.sizes.observe(value)
        out.collect(value)


async def test_numbers_of_any_kind_are_added_up_and_nothing_else_is() -> None:
    env = Env()
    stream = env.from_collection([1, 2]).process(Measures()).process(Measures())
    stream.sink_to(lambda number: None)
    async with env.start() as job:
        early = job.metrics()
        await job.result()
    # Nobody has declared them before the functions were opened.
    assert early.total("area") == 0
    assert job.metrics().total("area") == 5.0
    for name, told in (
        ("sizes", "'sizes' is a histogram, and has no sum"),
        ("colour", "'colour' is a text, and has no sum"),
        ("arrea", "Is 'area' meant"),
        ("busy_time_ms_per_second", r"in job\.metrics\(\)\.tasks"),
    ):
        with pytest.raises(am.InvalidArgumentError, match=told):
            job.metrics().total(name)


async def test_a_job_is_not_awaited_itself() -> None:
    env = Env()
    env.from_collection([1]).sink_to(lambda number: None)
    async with env.start() as job:
        with pytest.raises(UsageError, match=r"await job\.result\(\)"):
            await as_any(job)
        await job.result()


@pytest.mark.parametrize("sink", ["parquet", "sql", "upsert"])
async def test_a_target_that_is_refused_names_the_line_of_its_sink(
    sink: str, tmp_path: Path
) -> None:
    database = tmp_path / "shop.db"
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("create table prices (price integer)")
    env = Env()
    stream = env.from_collection([{"price": 1}])
    if sink == "parquet":
        stream.sink_to(am.ParquetSink(tmp_path))
    elif sink == "sql":
        stream.sink_to(am.SqlSink(database, "none"))
    else:
        stream.sink_to(am.SqlSink(database, "prices", upsert_by=["price"]))
    with pytest.raises(am.JobFailedError) as failed:
        await env.execute()
    assert Path(__file__).name in str(failed.value.location)
    assert failed.value.operator in {"ParquetSink", "SqlSink"}


async def test_a_place_where_no_checkpoint_can_be_is_told_with_its_argument(
    tmp_path: Path,
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    env = Env().enable_checkpointing(am.seconds(10), directory=file)
    env.from_collection([1]).sink_to(lambda number: None)
    with pytest.raises(am.JobFailedError, match="directory=") as failed:
        await env.execute()
    assert isinstance(failed.value.__cause__, NotADirectoryError)


@pytest.mark.parametrize(
    ("which", "told"), [("lastest", 'Is "latest" meant'), ("gone", "no such directory")]
)
async def test_a_checkpoint_that_is_not_there_is_told_with_the_reason(
    which: str, told: str, tmp_path: Path
) -> None:
    env = Env()
    env.from_collection([1]).sink_to(lambda number: None)
    with pytest.raises(am.JobFailedError, match=told):
        await env.execute(restore_from=tmp_path / which)


async def test_state_that_cannot_be_pickled_ends_the_job_and_names_its_operator(
    tmp_path: Path,
) -> None:
    class Keeps(am.KeyedProcessFunction):
        def open(self, context: Any) -> None:
            by_pickle = am.ValueStateDescriptor("it", serializer=am.PickleSerializer())
            self.it = context.keyed_state.get_value(by_pickle)

        def process_element(self, value: Any, context: Any, out: Any) -> None:
            self.it.update(lambda: value)

    once_or_more = am.CheckpointingMode.AT_LEAST_ONCE
    env = Env().enable_checkpointing(
        am.seconds(1), directory=tmp_path, mode=once_or_more
    )
    inbox: am.Inbox[int] = am.Inbox(5)
    kept = env.from_source(inbox).key_by(lambda number: number)
    kept.process(Keeps()).name("keeps").sink_to(lambda number: None)
    await inbox.put(1)
    with pytest.raises(am.JobFailedError, match="cannot be pickled") as failed:
        await env.execute("pickles")
    assert failed.value.operator == "keeps"


class Price(NamedTuple):
    price: int


def as_dict(record: Any) -> Any:
    return record["price"]


def as_object(record: Any) -> Any:
    return record.price


@pytest.mark.parametrize(
    ("record", "read", "told"),
    [
        (Price(1), as_dict, r"write record\.price\."),
        ({"price": 1}, as_object, r"write record\['price'\]\."),
    ],
)
@pytest.mark.parametrize("verb", ["map", "filter"])
async def test_a_field_that_is_read_in_the_wrong_way_is_told_how(
    record: Any, read: Any, told: str, verb: str
) -> None:
    stream = getattr(stream_of(record), verb)(read)
    with pytest.raises(am.JobFailedError, match=told):
        await stream.collect()


@pytest.mark.parametrize("writes", [True, False])
async def test_a_changed_default_that_is_not_written_is_told_once(
    writes: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class Keeps(am.KeyedProcessFunction):
        def open(self, context: Any) -> None:
            kept = am.ValueStateDescriptor("kept", list, default=[])
            self.kept = context.keyed_state.get_value(kept)

        def process_element(self, value: Any, context: Any, out: Any) -> None:
            kept = self.kept.value()
            kept.append(value)
            if writes:
                self.kept.update(kept)
            out.collect(len(self.kept.value()))

    found = await stream_of(1, 1, 2).key_by(str).process(Keeps()).collect()
    assert found == ([1, 2, 1] if writes else [0, 0, 0])
    told = [one for one in caplog.records if "is lost" in one.getMessage()]
    assert len(told) == (not writes)


def lost_in(log: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in log.records if "is lost" in one.getMessage()]


# Whether each loses a change.
OF_LISTS: list[tuple[Callable[[Any, Any], Any], bool]] = [
    (lambda state, record: state.get().append(record), True),
    (lambda state, record: state.get().extend([record]), True),
    (lambda state, record: state.get() or state.get().append(record), True),
    (lambda state, record: state.add(record), False),
    (lambda state, record: state.update([*state.get(), record]), False),
    (lambda state, record: changed_and_written(state, record), False),
    (lambda state, record: (state.get().append(record), state.add(record)), False),
    (lambda state, record: (state.get().append(record), state.clear()), False),
    (lambda state, record: state.get().sort(), False),
    (lambda state, record: list(state.get()).append(record), False),
]


def changed_and_written(state: Any, record: Any) -> None:
    values = state.get()
    values.append(record)
    state.update(values)


@pytest.mark.parametrize(("use", "loses"), OF_LISTS)
@pytest.mark.parametrize("asks", ["once", "for each record"])
@pytest.mark.parametrize("lives", [None, am.StateTtlConfig(am.hours(1))])
async def test_a_list_of_state_that_is_changed_and_not_written_is_told_once(
    lives: am.StateTtlConfig | None,
    asks: str,
    use: Callable[[Any, Any], Any],
    loses: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = am.ListStateDescriptor("kept", int, ttl=lives)

    class Keeps(am.KeyedProcessFunction):
        def open(self, context: Any) -> None:
            self.kept = context.keyed_state.get_list(kept)

        def process_element(self, value: Any, context: Any, out: Any) -> None:
            state = self.kept if asks == "once" else context.keyed_state.get_list(kept)
            use(state, value)

    stream = stream_of(1, 2, 2, 1).key_by(str).process(Keeps()).uid("keeps")
    await stream.collect()
    told = lost_in(caplog)
    assert len(told) == loses
    assert all("'keeps'" in one and "state.add(value)" in one for one in told)


async def test_the_only_record_is_told_of_as_well(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = am.ListStateDescriptor("kept", int)

    class Keeps(am.KeyedProcessFunction):
        def process_element(self, value: Any, context: Any, out: Any) -> None:
            context.keyed_state.get_list(kept).get().append(value)

    await stream_of(1).key_by(str).process(Keeps()).uid("keeps").collect()
    [told] = lost_in(caplog)
    assert "'keeps'" in told


VALUES = am.ValueStateDescriptor("value", list, default=[])
LISTS = am.ListStateDescriptor("list", int)
MAPS = am.MapStateDescriptor("map", str, list)
REDUCED = am.ReducingStateDescriptor("reduced", lambda one, other: [*one, *other])


# What each writes, and whether a change in place is lost.
OF_CALLS: list[tuple[Callable[[Any, Any], Any], str]] = [
    (lambda state, n: state.get_value(VALUES).value().append(n), "update(value)"),
    (lambda state, n: changed_value(state.get_value(VALUES), n), ""),
    (lambda state, n: state.get_value(VALUES).value().sort(), ""),
    (lambda state, n: state.get_list(LISTS).get().append(n), "add(value)"),
    (lambda state, n: changed_and_written(state.get_list(LISTS), n), ""),
    (lambda state, n: changed_entry(state.get_map(MAPS), n, False), "put(key, value)"),
    (lambda state, n: changed_entry(state.get_map(MAPS), n, True), ""),
    (lambda state, n: changed_folded(state.get_reducing(REDUCED), n), "add(value)"),
]


def changed_value(state: Any, record: Any) -> None:
    value = state.value()
    value.append(record)
    state.update(value)


def changed_entry(state: Any, record: Any, writes: bool) -> None:
    if not state.contains("a"):
        state.put("a", [0])
        return
    values = state.get("a")
    values.append(record)
    if writes:
        state.put("a", values)


def changed_folded(state: Any, record: Any) -> None:
    if state.get() is None:
        state.add([0])
    else:
        state.get().append(record)


@pytest.mark.parametrize(("use", "told"), OF_CALLS)
async def test_state_of_a_call_that_is_changed_and_not_written_is_told_once(
    use: Callable[[Any, Any], Any], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def call(record: Any, context: Any, out: Any) -> None:
        use(context.keyed_state, record)

    await stream_of(1, 1, 1).key_by(str).process_async(call).uid("calls").collect()
    found = lost_in(caplog)
    assert len(found) == bool(told)
    assert all("'calls'" in one and f"write state.{told}" in one for one in found)


class Plain:
    """Compares by identity, as most classes."""

    def __init__(self) -> None:
        self.counts = [1]


@pytest.mark.parametrize("changes", [True, False])
async def test_objects_of_a_call_that_compare_by_identity_are_looked_into(
    changes: bool, caplog: pytest.LogCaptureFixture
) -> None:
    kept = am.ValueStateDescriptor("kept", serializer=am.PickleSerializer())

    async def call(record: Any, context: Any, out: Any) -> None:
        state = context.keyed_state.get_value(kept)
        held = state.value()
        if held is None:
            state.update([Plain()])
        elif changes:
            held[0].counts.append(record)

    await stream_of(1, 1, 1).key_by(str).process_async(call).collect()
    assert len(lost_in(caplog)) == changes


async def test_an_event_time_that_is_none_names_the_function_that_gave_it() -> None:
    def at(record: Any) -> Any:
        return "noon"

    time = am.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(at)
    stream = Env().from_collection([1], time)
    with pytest.raises(am.JobFailedError, match="'noon'") as failed:
        await stream.collect()
    assert Path(__file__).name in str(failed.value.location)


TIMES = am.WatermarkStrategy.for_monotonous_timestamps()
LATER = TIMES.with_timestamp_assigner(lambda record: 1)
LOADED = TIMES.with_timestamp_assigner(json.loads)
TAKEN = TIMES.with_timestamp_assigner(itemgetter(0))

# One line each: a lambda is on the line of the calls in it.
CALLS_OF_A_LIBRARY: list[Callable[[Any], Any]] = [
    lambda stream: stream.map(json.loads),
    lambda stream: stream.map(int),
    lambda stream: stream.map(partial(json.loads, strict=False)),
    lambda stream: stream.map(str.strip).map(json.loads),
    lambda stream: stream.filter(json.loads),
    lambda stream: stream.flat_map(json.loads),
    lambda stream: stream.map(json.loads, run_in="thread"),
    lambda stream: stream.key_by(json.loads).reduce(max),
    lambda stream: stream.key_by(json.loads).reduce(max).set_parallelism(2),
    lambda stream: stream.partition_custom(mod, str).map(str).set_parallelism(2),
    lambda stream: stream.assign_timestamps_and_watermarks(LOADED),
    lambda stream: stream.assign_timestamps_and_watermarks(TAKEN),
    lambda stream: stream.map_async(asyncio.sleep),
    lambda stream: stream.key_by(str).aggregate(am.sum_(json.loads)),
    lambda stream: stream.full_window_partition().map_partition(statistics.mean),
]


@pytest.mark.parametrize("call", CALLS_OF_A_LIBRARY)
async def test_a_function_of_a_library_that_fails_names_the_call_that_it_was_given_to(
    call: Callable[[Any], Any],
) -> None:
    with pytest.raises(am.JobFailedError) as failed:
        await call(stream_of("{")).collect()
    assert failed.value.location == f"{__file__}:{call.__code__.co_firstlineno}"


async def test_a_sink_of_a_library_that_fails_names_the_call_that_it_was_given_to() -> (
    None
):
    env = Env()
    env.from_collection(["{"]).sink_to(json.loads)
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    with pytest.raises(am.JobFailedError) as failed:
        await env.execute()
    assert failed.value.location == f"{__file__}:{line}"


class Counts:
    def __init__(self) -> None:
        self.count = 0


@dataclass(frozen=True)
class Frozen:
    count: int = 0


class Shares:
    """Gives all keys one accumulator."""

    def __init__(self, accumulator: Any) -> None:
        self.accumulator = accumulator

    def create_accumulator(self) -> Any:
        return self.accumulator

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, first: Any, second: Any) -> Any:
        return first


def windows_of(stream: Any) -> Any:
    return stream.key_by(str).window(am.TumblingEventTimeWindows.of(am.seconds(1)))


USES_OF_AGGREGATES: dict[str, Callable[[Any], object]] = {
    "keyed": lambda shares: stream_of(1).key_by(str).aggregate(shares),
    "window": lambda shares: windows_of(stream_of(1)).aggregate(shares),
    "named": lambda shares: windows_of(stream_of(1)).aggregate(am.aggregates(n=shares)),
    "partition": lambda shares: stream_of(1).full_window_partition().aggregate(shares),
    "state": lambda shares: am.AggregatingStateDescriptor("all", shares),
}


@pytest.mark.parametrize("use", USES_OF_AGGREGATES)
@pytest.mark.parametrize(
    "accumulator", [[], {}, set(), bytearray(), Counts()], ids=lambda one: type(one)
)
def test_an_accumulator_that_all_keys_would_share_is_refused_where_it_is_given(
    use: str, accumulator: Any
) -> None:
    with pytest.raises(UsageError, match=r"a new accumulator in each call") as refused:
        USES_OF_AGGREGATES[use](Shares(accumulator))
    line = Shares.create_accumulator.__code__.co_firstlineno
    assert f"Shares.create_accumulator ({__file__}:{line})" in str(refused.value)


@pytest.mark.parametrize("use", USES_OF_AGGREGATES)
@pytest.mark.parametrize(
    "accumulator", [0, (), "", None, Frozen(), frozenset(), am.JobState.RUNNING]
)
def test_an_accumulator_that_cannot_change_may_be_shared(
    use: str, accumulator: Any
) -> None:
    USES_OF_AGGREGATES[use](Shares(accumulator))


def test_a_function_that_cannot_make_an_accumulator_yet_is_no_mistake() -> None:
    class Later(Shares):
        def create_accumulator(self) -> Any:
            return self.accumulator.made_in_open

    stream_of(1).key_by(str).aggregate(Later(None))


OF_STATE: list[tuple[Callable[[Any], object], str]] = [
    (lambda one: one.value or 1, "state.value()"),
    (lambda one: one.list and 1, "if state.get()"),
    (lambda one: list(one.list), "for one in state.get()"),
    (lambda one: len(one.list), "len(state.get())"),
    (lambda one: 1 in one.list, "value in state.get()"),
    (lambda one: one.map or 1, "if not state.is_empty()"),
    (lambda one: [*one.map], "for key in state.keys()"),
    (lambda one: len(one.map), "len(state.keys())"),
    (lambda one: "a" in one.map, "state.contains(key)"),
    (lambda one: one.list.update("ab"), "state.add(value)"),
    (lambda one: one.list.add_all({"a": 1}), "state.add(value)"),
]


@pytest.mark.parametrize(("use", "told"), OF_STATE)
@pytest.mark.parametrize("lives", [None, am.StateTtlConfig(am.hours(1))])
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_state_object_that_is_taken_for_its_value_says_what_is(
    use: Callable[[Any], object],
    told: str,
    lives: am.StateTtlConfig | None,
    is_async: bool,
) -> None:
    class Uses(am.KeyedProcessFunction):
        def process_element(self, value: Any, context: Any, out: Any) -> None:
            state = context.keyed_state
            self.value = state.get_value(am.ValueStateDescriptor("v", int, ttl=lives))
            self.list = state.get_list(am.ListStateDescriptor("l", str, ttl=lives))
            self.map = state.get_map(am.MapStateDescriptor("m", str, int, ttl=lives))
            use(self)

    async def call(record: Any, context: Any, out: Any) -> None:
        Uses().process_element(record, context, out)

    keyed = stream_of(1).key_by(str)
    results = keyed.process_async(call) if is_async else keyed.process(Uses())
    with pytest.raises(am.JobFailedError) as failed:
        await results.collect()
    # Not the text of the job's error, which has the line of the function in it.
    first: BaseException = failed.value
    while first.__cause__ is not None:
        first = first.__cause__
    assert isinstance(first, TypeError)
    assert told in str(first)


class Folds:
    def create_accumulator(self) -> list[Any]:
        return []

    def add(self, value: Any, accumulator: list[Any]) -> Any:
        return accumulator.append(value)

    def get_result(self, accumulator: list[Any]) -> Any:
        return accumulator

    def merge(self, first: Any, second: Any) -> Any:
        return first


@pytest.mark.parametrize("kind", ["reducing", "aggregating"])
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_function_that_folds_into_state_and_returns_none_is_named(
    kind: str, is_async: bool
) -> None:
    described: Any = am.AggregatingStateDescriptor("all", Folds())
    if kind == "reducing":
        described = am.ReducingStateDescriptor("all", lambda first, second: None)

    class Uses(am.KeyedProcessFunction):
        def process_element(self, value: Any, context: Any, out: Any) -> None:
            state = getattr(context.keyed_state, f"get_{kind}")(described)
            state.add(value)
            state.add(value)

    async def call(record: Any, context: Any, out: Any) -> None:
        Uses().process_element(record, context, out)

    keyed = stream_of(1).key_by(str)
    results = keyed.process_async(call) if is_async else keyed.process(Uses())
    named = "lambda" if kind == "reducing" else "Folds.add"
    with pytest.raises(
        am.JobFailedError, match=rf"{named}.*{Path(__file__).name}.*None"
    ):
        await results.collect()


def without_return(self: Any, value: Any, accumulator: Any) -> None:
    accumulator.append(value)


def with_the_accumulator_first(self: Any, acc: Any, value: Any) -> Any:
    return [*acc, value]


@pytest.mark.parametrize(
    ("method", "function", "told"),
    [
        ("add", without_return, "Write return before its result"),
        (
            "get_result",
            lambda self, accumulator: None,
            "Write return before its result",
        ),
        ("add", with_the_accumulator_first, r"add\(self, value, accumulator\)"),
    ],
)
@pytest.mark.parametrize("use", set(USES_OF_AGGREGATES) - {"state"})
def test_a_method_of_an_aggregate_that_cannot_work_is_refused_where_it_is_given(
    use: str, method: str, function: Any, told: str
) -> None:
    wrong = type("Wrong", (Shares,), {method: function})
    with pytest.raises(UsageError, match=told):
        USES_OF_AGGREGATES[use](wrong(()))


def told_in(log: pytest.LogCaptureFixture, words: str) -> int:
    return sum(words in one.getMessage() for one in log.records)


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        (lambda keys: lambda record: next(keys), True),
        (lambda keys: lambda record: record["k"], False),
        (lambda keys: "k", False),
    ],
)
async def test_a_key_that_changes_when_it_is_asked_for_again_is_told_once(
    key: Any, changes: bool, caplog: pytest.LogCaptureFixture
) -> None:
    keyed = stream_of({"k": 1}, {"k": 2}, {"k": 1}).key_by(key(iter(range(100))))
    await keyed.reduce(lambda first, second: second).collect()
    assert told_in(caplog, "another key for the same record") == changes


def changing(total: dict[str, int], row: dict[str, int]) -> dict[str, int]:
    total["n"] += row["n"]
    return total


def replacing(total: dict[str, int], row: dict[str, int]) -> dict[str, int]:
    return {**total, "n": total["n"] + row["n"]}


def choosing(best: dict[str, int], row: dict[str, int]) -> dict[str, int]:
    return best if best["n"] >= row["n"] else row


@pytest.mark.parametrize(
    ("function", "changes", "results"),
    [
        (changing, True, [6, 6, 6]),
        (replacing, False, [1, 3, 6]),
        (choosing, False, [1, 2, 3]),
    ],
)
async def test_a_reduce_that_changes_what_was_emitted_is_told_once(
    function: Any, changes: bool, results: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    rows = stream_of(*({"k": 1, "n": n} for n in (1, 2, 3)))
    found = await rows.key_by("k").reduce(function).collect()
    assert [row["n"] for row in found] == results
    assert told_in(caplog, "changed a record that had been emitted") == changes


class PlansOne(am.KeyedProcessFunction):
    """Registers a timer of event time, or of the clock."""

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        if value["at"] is None:
            context.timer_service.register_processing_time_timer(after=am.hours(1))
        else:
            context.timer_service.register_event_time_timer(value["at"])

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        out.collect(timestamp)


@pytest.mark.parametrize("has_times", [True, False])
async def test_a_timer_of_event_time_without_event_times_is_told_once(
    has_times: bool, caplog: pytest.LogCaptureFixture
) -> None:
    times = am.WatermarkStrategy.for_monotonous_timestamps()
    timed = times.with_timestamp_assigner(lambda row: row["at"])
    rows = [{"at": 1}, {"at": 2}]
    stream = Env().from_collection(rows, timed if has_times else None)
    await stream.key_by("at").process(PlansOne()).collect()
    assert told_in(caplog, "the records have no event times") == (not has_times)


@pytest.mark.parametrize("at", [1, None])
async def test_timers_of_the_clock_that_the_end_of_input_cuts_off_are_told(
    at: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    stream = stream_of({"k": 1, "at": at}).key_by("k").process(PlansOne())
    assert await stream.collect() == ([] if at is None else [1])
    assert told_in(caplog, "before timers of processing time were due") == (at is None)


class TwiceDescribed(am.KeyedProcessFunction):
    seen = am.ValueStateDescriptor("n", int)
    held = am.ValueStateDescriptor("n", int)

    def process_element(self, value: Any, context: Any, out: Any) -> None: ...


class TwiceAsked(am.KeyedProcessFunction):
    def open(self, context: Any) -> None:
        self.seen = context.keyed_state.get_value(am.ValueStateDescriptor("n", int))
        self.held = context.keyed_state.get_value(am.ValueStateDescriptor("n", int))

    def process_element(self, value: Any, context: Any, out: Any) -> None: ...


class TwiceAskedAwaited(am.KeyedAsyncProcessFunction):
    open = TwiceAsked.open

    async def process_element(self, value: Any, context: Any, out: Any) -> None: ...


def test_two_descriptors_of_one_name_are_refused_where_the_function_is_given() -> None:
    with pytest.raises(am.StateError, match=r"'n': .* a name of its own"):
        stream_of(1).key_by(str).process(TwiceDescribed())


@pytest.mark.parametrize(
    "build",
    [
        lambda keyed: keyed.process(TwiceAsked()),
        lambda keyed: keyed.process_async(TwiceAskedAwaited()),
    ],
)
async def test_two_states_of_one_name_are_refused_where_the_second_is_made(
    build: Callable[[Any], Any],
) -> None:
    with pytest.raises(am.JobFailedError, match=r"'n': .* a name of its own") as failed:
        await build(stream_of(1).key_by(str)).collect()
    line = inspect.getsourcelines(TwiceAsked.open)[1] + 2
    assert failed.value.location == f"{__file__}:{line}"


ONE = am.ValueStateDescriptor("n", int, default=0)


class Once(am.KeyedProcessFunction):
    """Uses one descriptor for two objects, and describes another state anew each time."""

    def open(self, context: Any) -> None:
        self.seen = context.keyed_state.get_value(ONE)
        self.same = context.keyed_state.get_value(ONE)

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        kept = context.keyed_state.get_list(am.ListStateDescriptor("kept", int))
        kept.add(value)
        self.seen.update(self.same.value() + len(kept.get()))
        out.collect(self.seen.value())


class OnceAwaited(Once):
    async def process_element(self, value: Any, context: Any, out: Any) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().process_element(value, context, out)


@pytest.mark.parametrize("kind", [Once, OnceAwaited])
async def test_a_state_that_is_described_anew_with_each_record_is_one(
    kind: type[Once],
) -> None:
    assert await stream_of(1, 1).key_by(str).process(kind()).collect() == [1, 3]


async def test_a_task_of_another_windows_call_has_no_key_while_a_call_is_awaited() -> (
    None
):
    seen = am.ListStateDescriptor("seen", int)

    class Overlapping(am.ProcessWindowFunction):
        def open(self, context: Any) -> None:
            self.second = asyncio.Event()

        async def process(
            self, key: Any, context: Any, elements: Any, out: Any
        ) -> None:
            kept = context.global_state.get_list(seen)
            if key == "1":
                self.late = asyncio.create_task(self.go_on(kept))
            else:
                self.second.set()
                with pytest.raises(am.StateError, match="another record"):
                    await self.late
            kept.add(key)
            await asyncio.sleep(0)
            out.collect(kept.get())

        async def go_on(self, kept: Any) -> None:
            await self.second.wait()
            kept.add("late")

    windows = stream_of(1, 2).key_by(str).count_window(1)
    assert await windows.process(Overlapping()).collect() == [["1"], ["2"]]


class UsesState(am.KeyedProcessFunction):
    """Uses its state, or its collector, in a wrong way."""

    def __init__(self, use: Callable[[Any, Any], Any]) -> None:
        self.use = use

    def open(self, context: Any) -> None:
        self.state = context.keyed_state.get_value(am.ValueStateDescriptor("n", int))

    async def process_element(self, value: Any, context: Any, out: Any) -> None:  # type: ignore[override]
        result = self.use(self.state, out)
        if result is None:
            await result


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (lambda state, out: out.collect(1), r"out\.collect\(\.\.\.\).* without await"),
        (lambda state, out: state.update(1), "methods of a state are .* without await"),
        (lambda state, out: state.value + 1, r"state's value is state\.value\(\)"),
        (lambda state, out: state.value() + 1, "unless its descriptor has a default="),
        (
            lambda state, out: setattr(state, "value", 1),
            r"Write state\.update\(value\)",
        ),
        (lambda state, out: ONE.update(1), r"keyed_state\.get_value\(descriptor\)"),  # type: ignore[attr-defined]
    ],
)
async def test_a_state_that_is_used_in_a_wrong_way_is_told_how(
    use: Callable[[Any, Any], Any], told: str
) -> None:
    with pytest.raises(am.JobFailedError) as failed:
        await stream_of(1).key_by(str).process(UsesState(use)).collect()
    [cause] = re.findall(told, str(failed.value.__cause__))
    assert cause


# One line each, as above.
TAKEN_APART: list[Callable[[Any], Any]] = [
    lambda stream: stream.count_window_all(1).apply(lambda key, window, records: "one"),
    lambda stream: stream.count_window_all(1).apply(lambda key, window, records: {}),
    lambda stream: stream.full_window_partition().map_partition(lambda records: b"x"),
]


@pytest.mark.parametrize("call", TAKEN_APART)
async def test_one_record_that_a_window_would_take_apart_is_refused(
    call: Callable[[Any], Any],
) -> None:
    with pytest.raises(am.JobFailedError) as failed:
        await call(stream_of(1)).collect()
    cause = str(failed.value.__cause__)
    assert re.search(
        r"which (apply|map_partition) takes apart into .* Return \[", cause
    )
    assert f"{__file__}:{call.__code__.co_firstlineno}" in str(failed.value.location)


OF_HOME: list[Callable[[Any], Any]] = [
    am.FileSource,
    lambda path: am.FileSink(path, "jsonl"),
    lambda path: am.SqlSink(path, "orders"),
    lambda path: am.CheckpointConfig(am.seconds(1), directory=path),
    lambda path: am.CheckpointConfig(am.seconds(1), journal_directory=path),
    am.RocksDBStateBackend,
]


@pytest.mark.parametrize("make", OF_HOME)
@pytest.mark.parametrize("path", ["~/orders.csv", Path("~/orders.csv")])
def test_a_path_in_a_home_directory_is_not_a_directory_of_that_name_here(
    path: Any, make: Callable[[Any], Any]
) -> None:
    with pytest.raises(am.InvalidArgumentError, match=r"Path\.home\(\) / 'orders"):
        make(path)


@pytest.mark.parametrize(
    "build",
    [
        lambda env: env.from_collection([1]).count_window_all(2).reduce(max),
        lambda env: env.from_source(am.Inbox()),
        lambda env: env.from_collection(iter([1])),
    ],
)
def test_more_subtasks_than_an_operator_can_have_are_refused(
    build: Callable[[Any], Any],
) -> None:
    stream = build(Env())
    stream.set_parallelism(1)
    with pytest.raises(am.InvalidArgumentError, match="has at most 1"):
        build(Env()).set_parallelism(2)


def in_time(*stamps: int) -> Any:
    times = TIMES.with_timestamp_assigner(lambda stamp: stamp)
    return Env().from_collection(list(stamps), times)


SECOND = am.TumblingEventTimeWindows.of(am.seconds(1))
PAIRS = am.CountTrigger.of(2)
OF_COUNTS: list[tuple[Callable[[], Any], int]] = [
    (lambda: stream_of(1, 2, 3).count_window_all(2).reduce(max), 1),
    (lambda: stream_of(1, 2, 3, 4).count_window_all(2).reduce(max), 0),
    (
        lambda: stream_of(1, 1, 1, 2).key_by(str).count_window(4).aggregate(am.count()),
        4,
    ),
    (lambda: in_time(1, 2, 3).window_all(SECOND).trigger(PAIRS).reduce(max), 1),
    (lambda: in_time(1, 2, 3, 1_000).window_all(SECOND).trigger(PAIRS).reduce(max), 2),
    (
        lambda: (
            in_time(1, 2, 1_000, 1_001).window_all(SECOND).trigger(PAIRS).reduce(max)
        ),
        0,
    ),
    (lambda: in_time(1, 2, 3).window_all(SECOND).reduce(max), 0),
    (lambda: stream_of(1, 2, 3).count_window_all(2, 1).reduce(max), 0),
]


@pytest.mark.parametrize(("build", "rest"), OF_COUNTS)
async def test_records_that_a_count_trigger_never_fires_for_are_told(
    build: Callable[[], Any], rest: int, caplog: pytest.LogCaptureFixture
) -> None:
    await build().collect()
    told = [
        one.getMessage()
        for one in caplog.records
        if "their window has ended before its trigger fired" in one.getMessage()
    ]
    assert bool(told) == bool(rest)
    assert not told or f"{rest}" in str(re.findall(r"total\W+(\d+)", told[-1]))


async def test_a_timeout_that_has_not_passed_is_not_advised_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    full = am.ProcessingTimeoutTrigger.of(am.CountTrigger.of(5), am.hours(1))
    windows = stream_of(1, 2, 3).key_by(str).window(am.GlobalWindows.create())
    await windows.trigger(am.PurgingTrigger.of(full)).reduce(max).collect()
    (told,) = (
        one.getMessage()
        for one in caplog.records
        if "before its trigger fired" in one.getMessage()
    )
    assert "ended before the timeout of am.ProcessingTimeoutTrigger" in told
    assert "wrap it" not in told


async def call(record: Any) -> Any:
    return record


def loaded(directory: Path, name: str, content: bytes) -> Any:
    (directory / name).write_bytes(content)
    return am.FileSource(directory / name)


class Yields:
    """Its result would be a generator."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return accumulator + value

    def get_result(self, accumulator: int) -> Any:
        yield accumulator

    def merge(self, first: int, second: int) -> int:
        return first + second


def test_an_aggregate_whose_result_is_a_generator_is_refused() -> None:
    with pytest.raises(am.InvalidArgumentError, match=r"generator.* Return one result"):
        stream_of(1).key_by(str).aggregate(Yields())


@pytest.mark.parametrize("compared", [field == None, ~(field != None)])  # noqa: E711
def test_an_expression_that_compares_with_none_is_refused(compared: Any) -> None:
    with pytest.raises(am.InvalidArgumentError, match=r"never true.*is_null\(\)"):
        stream_of({"price": 1}).filter(compared)


async def test_an_expression_may_compare_with_text_about_null() -> None:
    rows = [{"price": "a == null[null]"}]
    assert await stream_of(*rows).filter(field == rows[0]["price"]).collect() == rows


NAN = float("nan")

# One line each, as above.
OF_CALLS_OF_A_SERVICE: list[tuple[Callable[[Any], Any], str]] = [
    (
        lambda s: s.map_async(call, limit=am.RateLimit(9), weight=lambda r: None),
        "number",
    ),
    (
        lambda s: s.map_async(call, limit=am.RateLimit(9), weight=lambda r: NAN),
        "nan as the weight",
    ),
    (lambda s: s.map_async(call, ordered="key", key=lambda r: [r]), "without a hash"),
    (lambda s: s.lookup_join({}.get, key=str), "Give an async def function"),
]


@pytest.mark.parametrize(("build", "told"), OF_CALLS_OF_A_SERVICE)
async def test_a_function_beside_a_call_is_named_for_what_it_returned(
    build: Callable[[Any], Any], told: str
) -> None:
    with pytest.raises(am.JobFailedError, match=told) as failed:
        await build(stream_of(1)).collect()
    assert f"{__file__}:{build.__code__.co_firstlineno}" in str(failed.value.location)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.csv", gzip.compress(b"id\n1\n", mtime=0), r"its name must end in \.gz"),
        ("a.csv", "id\n\xe9\n".encode("latin-1"), "encoding="),
        ("a.txt", "id\n".encode("utf-16"), "encoding="),
    ],
)
async def test_a_file_that_is_not_in_its_encoding_is_told_what_it_may_be(
    name: str, content: bytes, told: str, tmp_path: Path
) -> None:
    source = loaded(tmp_path, name, content)
    stream = Env().from_source(source)
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    with pytest.raises(am.JobFailedError, match=told) as failed:
        await stream.collect()
    assert failed.value.location == f"{__file__}:{line}"


async def test_a_source_that_cannot_begin_names_the_call_that_made_it() -> None:
    stream = Env().from_source(am.FileSource("no such.csv"))
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    with pytest.raises(am.JobFailedError) as failed:
        await stream.collect()
    assert failed.value.location == f"{__file__}:{line}"


async def test_the_keys_of_a_join_are_named_by_its_functions() -> None:
    env = Env()
    one, other = (env.from_collection([value], LATER) for value in (1, "1"))
    joined = one.join(other).where(abs).equal_to(str.strip)
    with pytest.raises(am.JobFailedError, match=r"where\(abs\).equal_to\(str.strip\)"):
        await joined.window(SECOND).apply(lambda a, b: (a, b)).collect()


OF_KINDS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda state: state.get_value("n"), "'n' is not a descriptor.* am.ValueStateDes"),
    (lambda state: state.get_list(am.ValueStateDescriptor("n")), r"Write get_value\("),
    (lambda state: state.get_value(am.ListStateDescriptor("n")), r"Write get_list\("),
    (lambda state: state.get_map(am.MapStateDescriptor), "is not a descriptor"),
]


@pytest.mark.parametrize(("use", "told"), OF_KINDS)
@pytest.mark.parametrize("is_awaited", [False, True])
async def test_a_state_is_asked_for_by_a_descriptor_of_its_kind(
    is_awaited: bool, use: Callable[[Any], Any], told: str
) -> None:
    def asks(record: Any, context: Any, out: Any) -> None:
        use(context.keyed_state)

    async def asks_awaited(record: Any, context: Any, out: Any) -> None:
        use(context.keyed_state)

    keyed = stream_of(1).key_by(str)
    stream = keyed.process_async(asks_awaited) if is_awaited else keyed.process(asks)
    with pytest.raises(am.JobFailedError, match=told):
        await stream.collect()


@dataclass
class Bid:
    item: str
    price: float | None
    note: str | None = None


@pytest.mark.parametrize("records", [Bid, {"price": float | None}])
async def test_an_empty_cell_is_none_where_its_type_has_none(
    records: Any, tmp_path: Path
) -> None:
    (tmp_path / "bids.csv").write_text("item,price,note\ncup,,\npot,2.5,old\n")
    source = am.FileSource(tmp_path / "bids.csv", records=records)
    rows = await Env().from_source(source).collect()
    found = [one if isinstance(one, dict) else vars(one) for one in rows]
    assert found == [
        {"item": "cup", "price": None, "note": ""},
        {"item": "pot", "price": 2.5, "note": "old"},
    ]


async def test_an_empty_cell_where_a_number_must_be_is_told_how(tmp_path: Path) -> None:
    (tmp_path / "bids.csv").write_text("item,price\ncup,\n")
    source = am.FileSource(tmp_path / "bids.csv", records={"price": float})
    with pytest.raises(am.JobFailedError, match=r"as float \| None"):
        await Env().from_source(source).collect()


class Delegates(am.ProcessFunction):
    def process_element(self, value: Any, context: Any, out: Any) -> Any:
        return super().process_element(value, context, out)


class DelegatesWithKeys(am.KeyedProcessFunction):
    def process_element(self, value: Any, context: Any, out: Any) -> Any:
        return super().process_element(value, context, out)


@pytest.mark.parametrize("function", [Delegates, DelegatesWithKeys])
async def test_a_method_that_leaves_its_record_to_a_base_without_one_loses_none_in_silence(
    function: Any,
) -> None:
    stream = am.StreamExecutionEnvironment().from_collection([1])
    keyed = issubclass(function, am.KeyedProcessFunction)
    processed: Any = stream.key_by(lambda one: one) if keyed else stream
    with pytest.raises(am.JobFailedError, match="defines no process_element"):
        await processed.process(function()).collect()
