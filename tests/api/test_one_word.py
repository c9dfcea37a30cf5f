"""One word for one thing: a function where an object has one method, and new names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import aiomailbox as am

COUNT = am.ValueStateDescriptor("count", int, default=0)


@pytest.fixture
def env() -> am.StreamExecutionEnvironment:
    return am.StreamExecutionEnvironment()


def split(value: str, context: am.ProcessContext, out: am.Collector[str]) -> None:
    for letter in value:
        out.collect(letter)


async def split_later(
    value: str, context: am.ProcessContext, out: am.Collector[str]
) -> None:
    await asyncio.sleep(1)
    split(value, context, out)


def number(
    value: str, context: am.KeyedProcessContext[str], out: am.Collector[str]
) -> None:
    count = context.keyed_state.get_value(COUNT)
    count.update((count.value() or 0) + 1)
    out.collect(f"{context.current_key}{count.value()}")


def widest(
    key: str,
    context: am.ProcessWindowContext[am.TimeWindow],
    elements: list[str],
    out: am.Collector[tuple[str, str, int]],
) -> None:
    out.collect((key, max(elements), context.window.end))


@pytest.mark.parametrize("function", [split, split_later])
async def test_a_function_processes_records(
    env: am.StreamExecutionEnvironment, function: Any
) -> None:
    stream = env.from_collection(["ab", "c"]).process(function)
    assert await stream.collect() == ["a", "b", "c"]


async def test_a_function_processes_records_with_a_key(
    env: am.StreamExecutionEnvironment,
) -> None:
    words = env.from_collection(["a", "b", "a"]).key_by(lambda word: word)
    assert await words.process(number).collect() == ["a1", "b1", "a2"]


async def test_a_function_processes_windows(env: am.StreamExecutionEnvironment) -> None:
    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    words = env.from_collection(
        ["b", "a"], strategy.with_timestamp_assigner(lambda word: 1)
    )
    windows = words.key_by(lambda word: "all").window(
        am.TumblingEventTimeWindows.of(am.seconds(1))
    )
    assert await windows.process(widest).collect() == [("all", "b", 1_000)]


async def test_an_error_of_a_function_names_it_and_its_line(
    env: am.StreamExecutionEnvironment,
) -> None:
    def fails(value: int, context: Any, out: Any) -> None:
        raise ValueError("no")

    with pytest.raises(am.JobFailedError, match=r"test_one_word\.py:\d+"):
        await env.from_collection([1]).process(fails).collect()
    assert "fails" in env.from_collection([1]).process(fails).explain()


class Opened:
    def open(self, context: Any) -> None: ...

    def __call__(self, value: Any, context: Any, out: Any) -> None: ...


async def later(value: Any, context: Any, out: Any) -> None: ...


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (am.ProcessFunction, "is a class"),
        (lambda value: None, r"3 positional arguments \(value, context, out\)"),
        (7, "is not an instance of"),
        # Nothing would open it.
        (Opened(), "derived from am."),
        (lambda: None, r"3 positional arguments \(value, context, out\)"),
    ],
)
@pytest.mark.parametrize("is_keyed", [False, True])
def test_what_is_no_function_of_a_record_is_refused(
    env: am.StreamExecutionEnvironment, given: Any, text: str, is_keyed: bool
) -> None:
    stream: Any = env.from_collection([1])
    stream = stream.key_by(lambda number: number) if is_keyed else stream
    with pytest.raises(am.WrongTypeError, match=text):
        stream.process(given)


async def call(value: Any) -> Any:
    return value


# What 0.1 called it, and the words that its error names.
OLD_SPELLINGS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda stream: stream.map_async(call, buffer=9), "capacity=..."),
    (lambda stream: stream.map_async(call, key_buffer=9), "key_capacity=..."),
    (
        lambda stream: stream.lookup_join(call, key=lambda n: n, buffer=9),
        "capacity=...",
    ),
    (
        lambda stream: stream.key_by(lambda n: n).process_async(later, buffer=9),
        "capacity=...",
    ),
    (
        lambda stream: stream.key_by(lambda n: n).process_async(later, key_buffer=9),
        "key_capacity=...",
    ),
    (lambda stream: am.JobClient.subscribe(stream, stream, buffer=9), "size=..."),  # type: ignore[call-arg]
]


@pytest.mark.parametrize(("old", "new"), OLD_SPELLINGS)
def test_the_error_of_an_old_spelling_names_the_new_one(
    env: am.StreamExecutionEnvironment, old: Callable[[Any], Any], new: str
) -> None:
    with pytest.raises(am.InvalidArgumentError) as caught:
        old(env.from_collection([1]))
    assert new in str(caught.value)


async def test_keyed_state_has_one_name_in_every_context(
    env: am.StreamExecutionEnvironment,
) -> None:
    class Everywhere(am.KeyedProcessFunction[int, int, str]):
        def open(self, context: Any) -> None:
            self.refused(context)
            context.keyed_state.get_value(COUNT)

        def initialize_state(self, context: Any) -> None:
            self.refused(context)
            assert context.keyed_state is not None

        def snapshot_state(self, context: Any) -> None: ...

        def process_element(self, value: int, context: Any, out: Any) -> None:
            self.refused(context)
            out.collect(str(context.keyed_state.get_value(COUNT).value()))

        def refused(self, context: Any) -> None:
            with pytest.raises(AttributeError, match=r"write context\.keyed_state"):
                context.state  # noqa: B018 -- it raises

    keyed = env.from_collection([1]).key_by(lambda number: number)
    assert await keyed.process(Everywhere()).collect() == ["0"]
