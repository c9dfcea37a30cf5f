"""A method that emits by its collector is told so if it returns a value."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import aiomailbox as am

Env = am.StreamExecutionEnvironment
Stream = am.DataStream[int]
WINDOWS = am.TumblingEventTimeWindows.of(am.seconds(5))
LIMITS = am.MapStateDescriptor("limits", int, int)


class Plain(am.ProcessFunction):
    def process_element(self, value: Any, context: Any, out: Any) -> Any:
        return value


class Awaited(am.ProcessFunction):
    async def process_element(self, value: Any, context: Any, out: Any) -> Any:
        return value


class Timer(am.KeyedProcessFunction):
    def process_element(self, value: Any, context: Any, out: Any) -> None:
        context.timer_service.register_event_time_timer(value)

    def on_timer(self, timestamp: int, context: Any, out: Any) -> Any:
        return timestamp


class AwaitedTimer(Timer):
    async def on_timer(self, timestamp: int, context: Any, out: Any) -> Any:
        return timestamp


class Window(am.ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any, out: Any) -> Any:
        return [key]


class Second(am.CoProcessFunction):
    def process_element1(self, value: Any, context: Any, out: Any) -> None: ...

    def process_element2(self, value: Any, context: Any, out: Any) -> Any:
        return value


class Rules(am.BroadcastProcessFunction):
    def process_element(self, value: Any, context: Any, out: Any) -> None: ...

    def process_broadcast_element(self, value: Any, context: Any, out: Any) -> Any:
        return value


class Pair(am.ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, context: Any, out: Any) -> Any:
        return left


class Finish(am.ProcessFunction):
    def process_element(self, value: Any, context: Any, out: Any) -> None: ...

    def finish(self, out: Any) -> Any:
        return 1


class AsyncTimer(am.KeyedAsyncProcessFunction):
    async def process_element(self, value: Any, context: Any, out: Any) -> None:
        context.timer_service.register_event_time_timer(value)

    async def on_timer(self, timestamp: int, context: Any, out: Any) -> Any:
        return timestamp


async def call(value: Any, context: Any, out: Any) -> Any:
    return value


def keyed(stream: Stream) -> Any:
    return stream.key_by(lambda value: value)


def joined(stream: Stream) -> Any:
    near = (
        keyed(stream).interval_join(keyed(stream)).between(am.millis(-1), am.seconds(1))
    )
    return near.process(Pair())


CASES: list[tuple[Callable[[Stream], Any], Any]] = [
    (lambda s: s.process(Plain()), Plain.process_element),
    (lambda s: s.process(Awaited()), Awaited.process_element),
    (lambda s: keyed(s).process(Timer()), Timer.on_timer),
    (lambda s: keyed(s).process(AwaitedTimer()), AwaitedTimer.on_timer),
    (lambda s: keyed(s).window(WINDOWS).process(Window()), Window.process),
    (lambda s: s.connect(s).process(Second()), Second.process_element2),
    (
        lambda s: s.connect(s.broadcast(LIMITS)).process(Rules()),
        Rules.process_broadcast_element,
    ),
    (joined, Pair.process_element),
    (lambda s: s.process(Finish()), Finish.finish),
    (lambda s: keyed(s).process_async(call), call),
    (lambda s: keyed(s).process_async(AsyncTimer()), AsyncTimer.on_timer),
]


@pytest.mark.parametrize(
    ("build", "method"), CASES, ids=[method.__qualname__ for _, method in CASES]
)
async def test_a_returned_value_is_refused_with_the_method_s_own_line(
    build: Callable[[Stream], Any], method: Any
) -> None:
    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    strategy = strategy.with_timestamp_assigner(lambda value: value)
    with pytest.raises(am.JobFailedError, match=r"out\.collect\(value\)") as caught:
        await build(Env().from_collection([1, 2], strategy)).collect()
    line = method.__code__.co_firstlineno
    assert f"{method.__qualname__} ({__file__}:{line}) returned" in str(caught.value)


async def test_what_close_returns_is_nobody_s_business() -> None:
    class Client(am.ProcessFunction):
        def process_element(self, value: Any, context: Any, out: Any) -> None:
            out.collect(value)

        async def close(self) -> Any:
            return True

    assert inspect.iscoroutinefunction(Client.close)
    assert await Env().from_collection([1]).process(Client()).collect() == [1]
