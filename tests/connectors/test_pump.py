"""A thread that reads ahead, and ends when it is told to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from aiomailbox.connectors.pump import Pump

pytestmark = pytest.mark.real_time


class Bench:
    """A pump of whatever a test yields, and what came out of it."""

    def __init__(self, produce: Any, explain: Any = lambda error: error) -> None:
        self.ready = asyncio.Event()
        self.cancelled = threading.Event()
        self.pump: Pump[int] = Pump(
            lambda: produce(self),
            self.ready.set,
            depth=2,
            name="test-pump",
            cancel=self._cancel,
            explain=explain,
        )
        self.pump.start()

    def _cancel(self) -> bool:
        self.cancelled.set()
        return True

    async def take_all(self) -> list[int]:
        taken: list[int] = []
        while not self.pump.ended:
            item = self.pump.take()
            if item is not None:
                taken.append(item)
            elif not self.pump.ended:
                self.ready.clear()
                await asyncio.wait_for(self.ready.wait(), 100)
        return taken


def numbers(_: Bench) -> Iterator[int]:
    yield from range(1, 6)


def blocked(bench: Bench) -> Iterator[int]:
    yield 1
    bench.cancelled.wait(30)


def failing(_: Bench) -> Iterator[int]:
    yield 1
    raise OSError("gone")


async def test_items_come_in_order_and_then_the_end() -> None:
    bench = Bench(numbers)
    assert await bench.take_all() == [1, 2, 3, 4, 5]
    assert await bench.pump.stop()
    assert not bench.cancelled.is_set()


async def test_a_blocked_thread_is_cancelled_and_waited_for() -> None:
    bench = Bench(blocked)
    assert await bench.pump.stop()
    assert not bench.pump.is_running


async def test_cancelling_who_stops_it_does_not_cut_that_short() -> None:
    is_stubborn, may_end = threading.Event(), threading.Event()

    def stubborn(_: Bench) -> Iterator[int]:
        is_stubborn.set()
        may_end.wait(30)
        yield 1

    bench = Bench(stubborn)
    while not is_stubborn.is_set():
        await asyncio.sleep(0.001)
    stopping = asyncio.create_task(bench.pump.stop())
    for _ in range(3):
        await asyncio.sleep(0.02)
        stopping.cancel()
    await asyncio.sleep(0.02)
    assert not stopping.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert not bench.pump.is_running


async def test_an_error_is_explained_to_the_taker() -> None:
    bench = Bench(failing, lambda error: ValueError(f"explained: {error}"))
    with pytest.raises(ValueError, match="explained: gone") as caught:
        await bench.take_all()
    assert isinstance(caught.value.__cause__, OSError)
    assert await bench.pump.stop()


async def test_an_explanation_that_fails_is_an_error_and_not_a_silence() -> None:
    def explain(error: BaseException) -> Exception:
        raise TypeError("cannot say")

    bench = Bench(failing, explain)
    with pytest.raises(TypeError, match="cannot say") as caught:
        await bench.take_all()
    assert isinstance(caught.value.__cause__, OSError)
    assert await bench.pump.stop()
