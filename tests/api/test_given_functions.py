"""A function that cannot be used is refused where it is given, or fails with its line."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import aiomailbox as am


def wrong_function_objects() -> Iterator[Any]:
    class TwoArguments(am.ProcessFunction):
        def process_element(self, value: Any, context: Any) -> None: ...

    class OneTimer(am.KeyedProcessFunction):
        def process_element(self, value: Any, context: Any, out: Any) -> None: ...

        def on_timer(self, timestamp: int) -> None: ...

    class Unopened(am.ProcessFunction):
        def open(self) -> None: ...

        def process_element(self, value: Any, context: Any, out: Any) -> None: ...

    class NoOut(am.ProcessWindowFunction):
        def process(self, key: Any, context: Any, elements: Any) -> None: ...

    class AsyncTwo(am.KeyedAsyncProcessFunction):
        async def process_element(self, value: Any, context: Any) -> None: ...

    class Swapped:
        def create_accumulator(self) -> int:
            return 0

        def add(self, value: int) -> int:
            return value

        def get_result(self, accumulator: int) -> int:
            return accumulator

    yield "process_element", lambda s: s.process(TwoArguments())
    yield "on_timer", lambda s: s.key_by(str).process(OneTimer())
    yield "open", lambda s: s.process(Unopened())
    window = am.TumblingEventTimeWindows.of(am.seconds(1))
    yield "process", lambda s: s.key_by(str).window(window).process(NoOut())
    yield "process_element", lambda s: s.key_by(str).process_async(AsyncTwo())
    yield "add", lambda s: s.key_by(str).aggregate(Swapped())


def no_argument() -> Any:
    return 1


class WrongTrigger(am.Trigger):
    def on_element(self, value: Any, context: Any) -> Any: ...


class WrongTimer(am.Trigger):
    def on_element(self, value: Any, time: Any, window: Any, context: Any) -> Any: ...

    def on_event_time(self, timestamp: int) -> Any: ...


class WrongEvictor(am.Evictor):
    def evict(self, records: Any) -> Any: ...


class WrongSnapshot(am.ProcessFunction):
    def initialize_state(self, context: Any) -> None: ...

    def snapshot_state(self) -> None: ...

    def process_element(self, value: Any, context: Any, out: Any) -> None: ...


WINDOW = am.TumblingEventTimeWindows.of(am.seconds(1))


@pytest.mark.parametrize(
    ("named", "build"),
    [
        (
            "timestamp_assigner",
            lambda s: (
                am.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
                    no_argument
                )
            ),
        ),
        ("key", lambda s: am.Cache(key=no_argument)),
        ("retry_on", lambda s: am.Retry(3, retry_on=no_argument)),
        ("retry_if", lambda s: am.Retry(3, retry_if=no_argument)),
        ("reduce_function", lambda s: am.ReducingStateDescriptor("sum", abs)),
        ("iterable", lambda s: am.AsyncIterableSource(lambda offset: s)),
        ("on_element", lambda s: s.window_all(WINDOW).trigger(WrongTrigger())),
        ("on_event_time", lambda s: s.window_all(WINDOW).trigger(WrongTimer())),
        ("evict", lambda s: s.window_all(WINDOW).evictor(WrongEvictor())),
        ("snapshot_state", lambda s: s.process(WrongSnapshot())),
    ],
)
def test_what_takes_other_arguments_is_refused_where_it_is_given(
    named: str, build: Callable[[Any], Any]
) -> None:
    with pytest.raises(am.WrongTypeError, match=rf"{named}.* cannot be called with .*"):
        build(am.StreamExecutionEnvironment().from_collection([1]))


@pytest.mark.parametrize(("method", "build"), list(wrong_function_objects()))
def test_a_method_that_takes_other_arguments_is_refused_where_it_is_given(
    method: str, build: Callable[[Any], Any]
) -> None:
    with pytest.raises(am.WrongTypeError, match=rf"{method} .*{__file__}.*Write def"):
        build(am.StreamExecutionEnvironment().from_collection([1]))


def twice(value: Any) -> Iterator[Any]:
    yield value
    yield value


def both(first: Any, second: Any) -> Iterator[Any]:
    yield first
    yield second


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.map(twice),
        lambda s: s.filter(functools.partial(twice)),
        lambda s: s.connect(s).map(str, twice),
        lambda s: s.key_by(str).reduce(both),
        lambda s: (
            s.key_by(str)
            .window(am.TumblingEventTimeWindows.of(am.seconds(1)))
            .reduce(both)
        ),
        lambda s: s.key_by(twice),
        lambda s: s.map_async(twice),
        lambda s: s.sink_to(twice),
    ],
)
def test_a_generator_is_refused_where_one_result_is_expected(
    build: Callable[[Any], Any],
) -> None:
    stream = am.StreamExecutionEnvironment().from_collection([1])
    with pytest.raises(am.InvalidArgumentError, match="is a generator"):
        build(stream)


async def later(value: Any) -> Any:
    return value


@pytest.mark.parametrize(
    "use",
    [
        lambda s, given: s.map(given),
        lambda s, given: s.flat_map(given),
        lambda s, given: s.map_async(given),
        lambda s, given: s.map_async(later, ordered="key", key=given),
        lambda s, given: s.key_by(given),
        lambda s, given: s.sink_to(given),
    ],
)
@pytest.mark.parametrize("function", [later, twice])
def test_what_a_function_gave_is_not_taken_for_the_function(
    use: Callable[[Any, Any], Any], function: Any
) -> None:
    stream = am.StreamExecutionEnvironment().from_collection([1])
    with pytest.raises(
        am.WrongTypeError, match=f"without parentheses: {function.__name__}"
    ):
        use(stream, function(1))


def forgets(first: Any, second: Any) -> Any:
    max(first, second)


async def forgets_later(first: Any, second: Any) -> Any:
    max(first, second)


def by_window(stream: am.KeyedStream[Any, Any]) -> Any:
    return stream.window(am.TumblingEventTimeWindows.of(am.seconds(1)))


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.reduce(forgets),
        lambda s: s.reduce(forgets_later),
        lambda s: by_window(s).reduce(forgets),
        lambda s: by_window(s).reduce(forgets_later),
    ],
)
async def test_a_reduce_function_that_returns_nothing_fails_with_its_line(
    build: Callable[[Any], Any],
) -> None:
    time = am.WatermarkStrategy.for_monotonous_timestamps()
    time = time.with_timestamp_assigner(lambda number: number)
    stream = am.StreamExecutionEnvironment().from_collection([1, 2], time)
    with pytest.raises(am.JobFailedError, match=rf"{__file__}") as caught:
        await build(stream.key_by(lambda _: "a")).collect()
    assert "None for the record 2" in str(caught.value)


async def test_with_on_error_such_a_reduce_function_changes_nothing() -> None:
    def add_small(total: int, number: int) -> int | None:
        return total + number if number < 10 else None

    stream = am.StreamExecutionEnvironment().from_collection([1, 10, 2])
    sums = stream.key_by(lambda _: "a").reduce(add_small, on_error=am.skip)
    assert await sums.collect() == [1, 3]
