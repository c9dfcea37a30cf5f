"""A user function that raises names the operator, its uid and the user's line."""

from __future__ import annotations

import asyncio
import gc
import inspect
import traceback
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any, NamedTuple

import pytest

import aiomailbox as am
from aiomailbox.errors import KeyTypeError, TimestampError

Env = am.StreamExecutionEnvironment
Stream = am.DataStream[Any]


class Event(NamedTuple):
    key: str
    at: Any


EVENTS = [Event("a", 1_000), Event("a", 2_000)]


def broken(*_: Any) -> Any:
    raise ValueError("broken")


async def broken_async(*_: Any) -> Any:
    await asyncio.sleep(0.01)
    raise ValueError("broken")


made: list[Coroutine[Any, Any, Any]] = []


def coroutine(*_: Any) -> Any:
    """Return a coroutine that nobody will await, without Python's warning of that."""
    made.append(broken_async())
    return made[-1]


def broken_generator(_: Any) -> Any:
    yield 1
    raise ValueError("broken")


class BrokenAggregate:
    create_accumulator = staticmethod(list)
    add = staticmethod(broken)
    get_result = staticmethod(lambda accumulator: accumulator)
    merge = staticmethod(broken)


class BrokenResult(BrokenAggregate):
    add = staticmethod(lambda value, accumulator: accumulator)
    get_result = staticmethod(broken)


class CoroutineAggregate(BrokenAggregate):
    add = staticmethod(lambda value, accumulator: coroutine(value))


class CoroutineResult(BrokenAggregate):
    add = staticmethod(lambda value, accumulator: accumulator)
    get_result = staticmethod(lambda accumulator: coroutine(accumulator))


class BrokenProcess(am.ProcessFunction):
    process_element = broken


class BrokenOpen(am.ProcessFunction):
    open = broken

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        pass


class BrokenFinish(am.ProcessFunction):
    finish = broken

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        pass


class BrokenKeyed(am.KeyedProcessFunction):
    process_element = broken


class BrokenTimer(am.KeyedProcessFunction):
    on_timer = broken

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        context.timer_service.register_event_time_timer(1_500)


class BrokenWindow(am.ProcessWindowFunction):
    process = broken


class BrokenCall:
    async def __call__(self, value: Any) -> Any:
        return broken()


def windowed(stream: Stream) -> Any:
    return stream.key_by("key").window(am.TumblingEventTimeWindows.of(am.seconds(1)))


OPERATORS: dict[str, Callable[[Stream], Stream]] = {
    "map": lambda s: s.map(broken),
    "map async": lambda s: s.map(broken_async),
    "filter": lambda s: s.filter(broken),
    "filter async": lambda s: s.filter(broken_async),
    "flat_map": lambda s: s.flat_map(broken),
    "flat_map generator": lambda s: s.flat_map(broken_generator),
    "map_async": lambda s: s.map_async(broken_async),
    "map_async object": lambda s: s.map_async(BrokenCall()),
    "process": lambda s: s.process(BrokenProcess()),
    "process open": lambda s: s.process(BrokenOpen()),
    "process finish": lambda s: s.process(BrokenFinish()),
    "key_by": lambda s: s.key_by(broken).reduce(lambda a, b: b),
    "reduce": lambda s: s.key_by("key").reduce(broken),
    "reduce async": lambda s: s.key_by("key").reduce(broken_async),
    "aggregate": lambda s: s.key_by("key").aggregate(BrokenAggregate()),
    "aggregate result": lambda s: s.key_by("key").aggregate(BrokenResult()),
    "keyed process": lambda s: s.key_by("key").process(BrokenKeyed()),
    "timer": lambda s: s.key_by("key").process(BrokenTimer()),
    "window reduce": lambda s: windowed(s.map(same_time)).reduce(broken),
    "window aggregate": lambda s: windowed(s).aggregate(BrokenAggregate()),
    "window result": lambda s: windowed(s).aggregate(BrokenResult()),
    "window where": lambda s: windowed(s).aggregate(am.count(where=broken)),
    "window process": lambda s: windowed(s).process(BrokenWindow()),
    "sink": lambda s: s.sink_to(broken),
    "sink async": lambda s: s.sink_to(broken_async),
}


def same_time(event: Event) -> Event:
    return event


def events(env: Env) -> Stream:
    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    # Both in one window, so that there is something to reduce.
    values = [Event("a", 1_000), Event("a", 1_001)]
    return env.from_collection(values, strategy.with_timestamp_assigner("at"))


def user_error_of(error: BaseException) -> am.UserFunctionError:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, am.UserFunctionError):
        cause = cause.__cause__
    assert cause is not None, f"no UserFunctionError behind {error!r}"
    return cause


@pytest.mark.parametrize("case", OPERATORS)
async def test_a_function_that_raises_names_operator_uid_and_line(
    env: Env, case: str, assert_nothing_left: Callable[[], None]
) -> None:
    stream = OPERATORS[case](events(env)).name("culprit").uid("u-1")
    with pytest.raises(am.JobFailedError) as caught:
        if case.startswith("sink"):
            await env.execute()
        else:
            await stream.collect()
    error = user_error_of(caught.value)
    assert (error.operator, error.uid) == ("culprit", "u-1")
    file, _, line = error.location.rpartition(":")
    assert file == __file__
    assert (
        "raise ValueError"
        in inspect.getsource(inspect.getmodule(broken)).splitlines()[int(line) - 1]
    )
    assert type(error.__cause__) is ValueError
    text = str(caught.value)
    assert "'culprit'" in text
    assert "'u-1'" in text
    assert error.location in text
    assert_nothing_left()


async def test_a_key_function_that_raises_names_the_keyed_operator(env: Env) -> None:
    """Also when the records cross a channel before they are used."""
    env.configure(operator_chaining=False)
    stream = events(env).key_by(broken).reduce(lambda a, b: b).name("culprit")
    with pytest.raises(am.JobFailedError, match="broken"):
        await stream.collect()


async def test_a_skipped_record_is_counted(env: Env) -> None:
    seen: list[float] = []
    numbers = env.from_collection([2, 0, 1])
    numbers.map(lambda n: 2 / n, on_error=am.skip).name("divide").sink_to(seen.append)
    async with env.start() as job:
        await job.result()
    assert seen == [1.0, 2.0]
    assert job.metrics().operators["divide"]["skipped"] == 1


SKIPPING: dict[str, Callable[[Stream], Stream]] = {
    "process": lambda s: s.process(BrokenProcess(), on_error=am.skip),
    "reduce": lambda s: s.key_by("key").reduce(broken, on_error=am.skip),
    "aggregate": lambda s: s.key_by("key").aggregate(
        BrokenAggregate(), on_error=am.skip
    ),
    "keyed process": lambda s: s.key_by("key").process(BrokenKeyed(), on_error=am.skip),
    "connected map": lambda s: s.connect(s).map(broken, broken, on_error=am.skip),
    "connected flat_map": lambda s: s.connect(s).flat_map(
        broken, broken, on_error=am.skip
    ),
}


@pytest.mark.parametrize("case", SKIPPING)
async def test_every_operator_can_skip_records(env: Env, case: str) -> None:
    # A reduce is called with the second record of a key at the earliest.
    first = [EVENTS[0]] if case == "reduce" else []
    assert await SKIPPING[case](events(env)).map(lambda event: event.key).collect() == [
        event.key for event in first
    ]


async def test_a_dead_letter_has_the_record_and_the_reason(env: Env) -> None:
    failed = am.OutputTag("failed")
    divided = (
        env.from_collection([2, 0])
        .map(lambda n: 2 / n, on_error=am.dead_letter(failed))
        .name("divide")
        .uid("d")
    )
    (letter,) = await divided.get_side_output(failed).collect()
    assert (letter.record, letter.operator, letter.uid) == (0, "divide", "d")
    assert letter.error_type == "ZeroDivisionError"
    assert __file__ in letter.traceback


COROUTINES: dict[str, Callable[[Stream], Stream]] = {
    "map": lambda s: s.map(lambda event: coroutine(event)),
    "filter": lambda s: s.filter(lambda event: coroutine(event)),
    "flat_map": lambda s: s.flat_map(lambda event: coroutine(event)),
    "key_by": lambda s: s.key_by(lambda e: coroutine(e)).reduce(lambda a, b: b),
    "reduce": lambda s: s.key_by("key").reduce(lambda a, b: coroutine(a)),
    "aggregate": lambda s: s.key_by("key").aggregate(CoroutineAggregate()),
    "aggregate result": lambda s: s.key_by("key").aggregate(CoroutineResult()),
    "window reduce": lambda s: windowed(s).reduce(lambda a, b: coroutine(a)),
    "window aggregate": lambda s: windowed(s).aggregate(CoroutineAggregate()),
    "window result": lambda s: windowed(s).aggregate(CoroutineResult()),
}


@pytest.mark.parametrize("case", COROUTINES)
async def test_a_coroutine_where_a_value_is_expected_is_said_to_be_one(
    env: Env, case: str
) -> None:
    """Here the function only looks synchronous, so it cannot be seen before."""
    stream = COROUTINES[case](events(env)).name("culprit")
    try:
        with pytest.raises(am.JobFailedError, match="coroutine") as caught:
            await stream.collect()
    finally:
        while made:
            made.pop().close()
    assert "culprit" in str(caught.value)


async def test_keys_of_one_stream_have_one_type_in_all_subtasks() -> None:
    """Each source subtask sees keys of one type, and so would each consumer."""
    env = am.StreamExecutionEnvironment(parallelism=2)
    keys: list[Any] = [1, "2", 3, "4"]
    stream = env.from_collection(keys).key_by(lambda key: key).aggregate(am.count())
    with pytest.raises(am.JobFailedError, match=r"'culprit'.* first key"):
        await stream.name("culprit").collect()


@pytest.mark.parametrize("parallelism", [1, 2])
async def test_a_coroutine_is_no_key_and_nothing_is_left_to_await(
    parallelism: int,
) -> None:
    async def look_up(event: Event) -> str:
        return event.key

    env = am.StreamExecutionEnvironment(parallelism=parallelism)
    stream = events(env).key_by(lambda e: look_up(e)).reduce(lambda a, b: b)
    with pytest.raises(am.JobFailedError, match="returned a coroutine") as caught:
        await stream.name("culprit").uid("c").collect()
    assert "culprit" in "".join(traceback.format_exception(caught.value))
    gc.collect()


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        (["a", 1], "int"),
        ([1, 1.0], "float"),
        ([1, True], "bool"),
        (["a", None], "None"),
        ([None], "None"),
        ([["a"]], "list"),
        ([{"a": 1}], "dict"),
        ([2**70], "64"),
    ],
)
async def test_a_key_that_has_no_place_is_refused(
    env: Env, keys: list[Any], problem: str
) -> None:
    stream = env.from_collection(keys).key_by(lambda key: key).aggregate(am.count())
    with pytest.raises(am.JobFailedError, match=problem) as caught:
        await stream.name("culprit").collect()
    assert "key" in str(caught.value)
    cause: BaseException | None = caught.value
    while cause is not None and not isinstance(cause, KeyTypeError):
        cause = cause.__cause__
    assert cause is not None


@pytest.mark.parametrize(
    ("at", "problem"),
    [
        ("2013-01-01", "str"),
        (None, "None"),
        (1.5, "float"),
        (True, "bool"),
        (datetime(2013, 1, 1), "time zone"),
    ],
)
async def test_an_event_time_must_be_an_int_or_an_aware_datetime(
    env: Env, at: Any, problem: str
) -> None:
    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    stream = env.from_collection(
        [Event("a", at)], strategy.with_timestamp_assigner("at"), name="culprit"
    )
    with pytest.raises(am.JobFailedError, match=problem) as caught:
        await stream.collect()
    assert isinstance(caught.value.__cause__, TimestampError), caught.value.__cause__


async def test_a_window_needs_event_times(env: Env) -> None:
    stream = env.from_collection(EVENTS)
    with pytest.raises(am.JobFailedError, match=r"timestamp|event time"):
        await windowed(stream).aggregate(am.count()).collect()


async def test_a_field_that_is_not_there_is_named_with_those_that_are(
    env: Env,
) -> None:
    stream = env.from_collection(EVENTS).map(same_time)
    with pytest.raises(am.JobFailedError, match=r"kee.*key, at"):
        await stream.key_by("kee").aggregate(am.count()).collect()


@pytest.mark.parametrize("how", ["source", "async source", "map"])
async def test_a_record_of_another_type_than_declared_fails_the_job(
    env: Env, how: str
) -> None:
    async def values() -> Any:
        yield 1
        yield "2"

    if how == "source":
        stream: Stream = env.from_collection([1, "2"], output_type=int)
    elif how == "async source":
        stream = env.from_async_iterable(values, output_type=int)
    else:
        stream = env.from_collection([1, 2]).map(
            lambda n: n if n == 1 else str(n), output_type=int
        )
    with pytest.raises(am.JobFailedError, match=r"'2'.*str.*int"):
        await stream.collect()


async def test_records_of_the_declared_type_pass(env: Env) -> None:
    assert await env.from_collection([1, 2], output_type=int).collect() == [1, 2]


async def test_what_a_flat_map_returns_must_be_iterable(env: Env) -> None:
    with pytest.raises(am.JobFailedError, match="iter"):
        await env.from_collection([1]).flat_map(lambda n: n).collect()


async def test_a_source_that_raises_names_the_source(env: Env) -> None:
    async def values() -> Any:
        yield 1
        raise ValueError("broken")

    with pytest.raises(am.JobFailedError, match="broken") as caught:
        await env.from_async_iterable(values, name="culprit").collect()
    text = str(caught.value) + "".join(getattr(caught.value.__cause__, "__notes__", ()))
    assert "culprit" in text


class Speechless(Exception):  # noqa: N818 -- it has no words, not even these
    """Neither ``str`` nor ``repr`` of it works."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    def __repr__(self) -> str:
        raise RuntimeError("no words")


class Exiting(BaseException):
    """Whoever asks for its words is to exit."""

    def __str__(self) -> str:
        raise SystemExit(5)


async def test_words_that_exit_keep_no_task_from_its_end(
    env: am.StreamExecutionEnvironment,
) -> None:
    def exit_(value: int) -> int:
        raise Exiting

    with pytest.raises(am.JobFailedError, match="__str__ raised SystemExit"):
        await env.from_collection([1]).map(exit_).collect()


@pytest.mark.parametrize("where", ["map", "map_async", "close", "source"])
async def test_an_error_that_cannot_be_printed_is_not_replaced(
    env: am.StreamExecutionEnvironment, where: str
) -> None:
    def check(value: int) -> int:
        if where == "map":
            raise Speechless
        return value

    async def call(value: int) -> int:
        if where == "map_async":
            raise Speechless
        return value

    class Closing(am.ProcessFunction):
        def process_element(self, value: int, context: Any, out: Any) -> None:
            out.collect(value)

        async def close(self) -> None:
            if where == "close":
                raise Speechless

    async def items() -> Any:
        yield 1
        if where == "source":
            raise Speechless

    stream = env.from_async_iterable(items).map(check).map_async(call, concurrency=2)
    stream = stream.process(Closing())
    with pytest.raises(am.JobFailedError) as caught:
        await stream.collect()
    cause = caught.value.__cause__
    assert isinstance(cause, am.UserFunctionError)
    assert isinstance(cause.__cause__, Speechless)
    assert "Speechless: <Speechless.__str__ raised RuntimeError>" in str(caught.value)
    assert f"{__file__}:" in str(caught.value)


async def test_a_record_whose_error_cannot_be_printed_is_skipped_or_a_dead_letter(
    env: am.StreamExecutionEnvironment,
) -> None:
    def check(value: int) -> int:
        raise Speechless

    async def call(value: int) -> int:
        raise Speechless

    letters = am.OutputTag("letters")
    got: list[Any] = []
    numbers = env.from_collection([1, 2])
    for on_error in (am.skip, am.dead_letter(letters)):
        for stream in (
            numbers.map(check, on_error=on_error),
            numbers.map_async(call, concurrency=2, on_error=on_error),
        ):
            stream.sink_to(got.append)
            if on_error is not am.skip:
                stream.get_side_output(letters).sink_to(got.append)
    await env.execute()
    assert [letter.error_type for letter in got] == ["Speechless"] * 4
    assert {letter.record for letter in got} == {1, 2}
