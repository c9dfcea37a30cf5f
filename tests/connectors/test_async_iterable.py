"""Asynchronous iterables, as soon as their elements come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from aiomailbox.connectors.async_iterable import AsyncIterableSource
from aiomailbox.errors import InvalidArgumentError, UsageError, WrongTypeError


async def numbers(count: int = 10, delay: float = 0.0) -> AsyncIterator[int]:
    for number in range(count):
        if delay:
            await asyncio.sleep(delay)
        yield number


async def test_all_elements_come_in_order(drive: Any) -> None:
    driven = drive(AsyncIterableSource(lambda: numbers(5000)))
    assert await driven.read() == list(range(5000))
    await driven.close()


async def test_an_element_does_not_wait_for_the_next_one(drive: Any) -> None:
    driven = drive(AsyncIterableSource(numbers(3, delay=10)))
    started = asyncio.get_running_loop().time()
    await driven.read(runs_max=1)
    assert asyncio.get_running_loop().time() - started == 10
    assert driven.output.values == [0]
    assert await driven.read() == [0, 1, 2]
    await driven.close()


async def test_the_generator_runs_at_most_so_many_elements_ahead(drive: Any) -> None:
    taken = []

    async def counted() -> AsyncIterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    driven = drive(AsyncIterableSource(counted, buffered_max=7), records_max=3)
    await asyncio.sleep(1)
    assert len(taken) == 7
    assert await driven.read() == list(range(100))
    await driven.close()


@pytest.mark.parametrize("started", [True, False])
async def test_an_early_end_closes_the_generator(drive: Any, started: bool) -> None:
    closed = []

    async def forever() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
                await asyncio.sleep(1)
        finally:
            await asyncio.sleep(1)
            closed.append(True)

    driven = drive(AsyncIterableSource(forever))
    if started:
        await driven.read(runs_max=1)
    await driven.close()
    assert closed == [True] * started


async def test_a_failure_comes_after_what_was_given_before(drive: Any) -> None:
    async def failing() -> AsyncIterator[int]:
        yield 1
        raise ValueError("broken")

    driven = drive(AsyncIterableSource(failing))
    with pytest.raises(ValueError, match="broken"):
        await driven.read()
    assert driven.output.values == [1]
    await driven.close()


async def test_a_function_without_offsets_gives_what_it_gives_to_who_goes_on(
    drive: Any,
) -> None:
    """Nobody knows whether it begins anew: what a queue gives then is not there twice."""
    queue = iter(range(10))

    async def received() -> AsyncIterator[int]:
        for number in queue:
            yield number
            await asyncio.sleep(0)

    source = AsyncIterableSource(received, buffered_max=1)
    first = drive(source, records_max=1)
    head = await first.read(runs_max=4)
    await first.close()
    second = drive(source, splits=first.reader.snapshot(), records_max=3)
    tail = await second.read()
    assert head == [0, 1, 2, 3]
    # What had been taken off the queue, and was not emitted, is lost to any source.
    assert tail[-1] == 9
    assert len(tail) >= 5
    await second.close()


async def test_an_iterator_runs_only_once(drive: Any) -> None:
    source = AsyncIterableSource(numbers())
    assert len(await drive(source).read()) == 10
    with pytest.raises(UsageError, match="once"):
        await drive(source).read()


async def test_a_coroutine_function_is_refused(drive: Any) -> None:
    async def no_generator() -> int:
        return 1

    with pytest.raises(WrongTypeError, match="yield"):
        await drive(AsyncIterableSource(no_generator)).read()


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(WrongTypeError, match="iterable"):
        AsyncIterableSource([1])
    with pytest.raises(InvalidArgumentError, match="buffered_max"):
        AsyncIterableSource(numbers, buffered_max=0)


async def test_the_input_ends_when_nothing_comes_and_nothing_is_held(
    drive: Any,
) -> None:
    """SEM-241: all of no more splits, an ended generator, and an empty buffer."""
    may_end = asyncio.Event()

    async def three() -> AsyncIterator[int]:
        for number in range(3):
            yield number
        await may_end.wait()

    driven = drive(AsyncIterableSource(three), records_max=2)
    reader = driven.reader
    reader.notify_no_more_splits()
    await asyncio.sleep(0)
    polls = [reader.poll_next(driven.output) for _ in range(3)]
    assert [poll.value for poll in polls] == [
        *("more_available", "more_available"),
        "nothing_available",
    ]
    may_end.set()
    await asyncio.sleep(0)
    assert reader.poll_next(driven.output).value == "end_of_input"
    await driven.close()


async def test_a_reader_stays_available_while_something_is_held(drive: Any) -> None:
    """SEM-242."""
    driven = drive(AsyncIterableSource(lambda: numbers(3)), records_max=1)
    await asyncio.sleep(0)
    for left in (2, 1, 0):
        driven.reader.poll_next(driven.output)
        assert driven.reader.availability.available
        assert len(driven.output.values) == 3 - left
    await driven.close()


async def test_a_generator_that_swallows_its_cancellation_is_told_again(
    drive: Any,
) -> None:
    swallowed = []

    async def stubborn() -> AsyncIterator[int]:
        while len(swallowed) < 3:
            try:
                await asyncio.sleep(10**6)
            except asyncio.CancelledError as error:
                swallowed.append(error)
        yield 1

    driven = drive(AsyncIterableSource(stubborn))
    await asyncio.sleep(1)
    await driven.close()
    assert len(swallowed) == 3
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_what_a_stopped_generator_still_gives_is_its_last_element(
    drive: Any,
) -> None:
    closed = []

    async def stubborn() -> AsyncIterator[int]:
        number = 0
        try:
            while True:
                try:
                    await asyncio.sleep(1)
                except asyncio.CancelledError:
                    number = 100
                yield number
                number += 1
        finally:
            closed.append(number)

    driven = drive(AsyncIterableSource(stubborn))
    await driven.read(runs_max=2)
    driven.reader.stop()
    assert await driven.read() == [0, 1, 100]
    assert closed == [100]
    await driven.close()
