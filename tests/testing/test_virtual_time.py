from __future__ import annotations

import asyncio
import itertools
import math
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from aiomailbox.clock import clock_of
from aiomailbox.testing import (
    DeadlockError,
    VirtualTimeLoop,
    virtual_time_loop_factory,
)


def run_virtually(body: Callable[[], Any], **options: Any) -> Any:
    factory = virtual_time_loop_factory(**options)
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(body())


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_async_tests_run_on_the_virtual_time_loop() -> None:
    assert isinstance(asyncio.get_running_loop(), VirtualTimeLoop)


@pytest.mark.real_time
async def test_tests_marked_real_time_run_on_a_real_loop() -> None:
    assert type(asyncio.get_running_loop()) is asyncio.SelectorEventLoop


async def test_an_hour_of_sleep_takes_no_time_and_is_exact() -> None:
    really = time.monotonic()
    await asyncio.sleep(3600)
    assert now() == 3600.0
    assert time.monotonic() - really < 10


async def test_timers_fire_in_the_order_of_their_times() -> None:
    order: list[int] = []
    loop = asyncio.get_running_loop()
    for delay in (3, 1, 2):
        loop.call_later(delay, order.append, delay)
    await asyncio.sleep(5)
    assert order == [1, 2, 3]


async def test_time_stands_still_while_something_is_ready() -> None:
    asyncio.get_running_loop().call_later(0.001, lambda: None)
    for _ in range(1000):
        await asyncio.sleep(0)
    assert now() == 0.0


async def test_a_timeout_ends_at_its_virtual_time() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(30):
            await asyncio.Event().wait()
    assert now() == 30.0


async def test_the_loops_clock_moves_with_the_loop() -> None:
    clock = clock_of(asyncio.get_running_loop())
    start_ms = clock.now_ms()
    for _ in range(100):
        await asyncio.sleep(0.057)
    assert clock.now_ms() - start_ms == 5700
    assert clock.monotonic() == now()


async def test_advancing_the_clock_by_hand_makes_timers_due() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    due: list[float] = []
    loop.call_later(10, lambda: due.append(now()))
    loop.clock.advance(20)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert due == [20.0]


def test_the_start_is_configurable() -> None:
    async def read() -> int:
        return clock_of(asyncio.get_running_loop()).now_ms()

    assert run_virtually(read, start=datetime(1970, 1, 2, tzinfo=UTC)) == 86_400_000


def test_waiting_for_ever_is_an_error_that_names_the_waiting_task() -> None:
    async def wait_for_nothing() -> None:
        await asyncio.sleep(7)
        await asyncio.Event().wait()

    with pytest.raises(DeadlockError, match=r"7 s(.|\n)*wait_for_nothing"):
        run_virtually(wait_for_nothing)


async def test_executor_work_is_waited_for_before_time_jumps() -> None:
    async with asyncio.timeout(0.001):
        answer = await asyncio.to_thread(lambda: time.sleep(0.05) or "done")
    assert (answer, now()) == ("done", 0.0)


async def test_work_in_an_executor_of_ones_own_is_waited_for() -> None:
    with ThreadPoolExecutor(1) as executor:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(0.001):
            await loop.run_in_executor(executor, time.sleep, 0.05)
    assert now() == 0.0


async def test_work_in_anyios_threads_is_waited_for() -> None:
    async with asyncio.timeout(0.001):
        await anyio.to_thread.run_sync(time.sleep, 0.05)
    assert now() == 0.0


async def test_an_idle_worker_thread_does_not_slow_the_jumps() -> None:
    await anyio.to_thread.run_sync(time.sleep, 0)
    await asyncio.to_thread(time.sleep, 0)
    really = time.monotonic()
    for _ in range(20):
        await asyncio.sleep(1)
    assert time.monotonic() - really < 5


async def woken_by_a_thread() -> None:
    """Wait for a thread that the loop knows nothing of, and that takes real time."""
    loop = asyncio.get_running_loop()
    woken = asyncio.Event()

    def wake() -> None:
        time.sleep(0.05)
        loop.call_soon_threadsafe(woken.set)

    thread = threading.Thread(target=wake)
    thread.start()
    await woken.wait()
    thread.join()


@pytest.mark.parametrize("has_timer", [True, False])
async def test_a_foreign_thread_wakes_the_loop_before_time_jumps(
    has_timer: bool,
) -> None:
    async with asyncio.timeout(60 if has_timer else None):
        await woken_by_a_thread()
    assert now() == 0.0


async def test_a_pause_of_the_process_takes_no_time_from_foreign_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses = itertools.count(0, 3600)
    really = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: really() + next(pauses))
    async with asyncio.timeout(60):
        await woken_by_a_thread()
    assert now() == 0.0


def test_a_loop_may_wait_for_threads_without_a_limit() -> None:
    run_virtually(woken_by_a_thread, real_wait_limit=math.inf)


def test_a_thread_that_never_wakes_the_loop_delays_the_deadlock_only() -> None:
    release = threading.Event()

    async def wait_for_nothing() -> None:
        threading.Thread(target=release.wait).start()
        await asyncio.Event().wait()

    try:
        with pytest.raises(DeadlockError):
            run_virtually(wait_for_nothing, real_wait_limit=0.05)
    finally:
        release.set()


async def test_bytes_on_a_socket_arrive_before_time_jumps() -> None:
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    with theirs:
        theirs.sendall(b"mail")
        async with asyncio.timeout(1):
            assert await reader.readexactly(4) == b"mail"
        writer.close()
        await writer.wait_closed()
    assert now() == 0.0


async def test_bytes_from_another_process_are_waited_for() -> None:
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    with theirs:
        slow = ["sh", "-c", "sleep 0.2; printf mail"]
        child = subprocess.Popen(slow, stdout=theirs.fileno())
    assert await reader.readexactly(4) == b"mail"
    writer.close()
    await writer.wait_closed()
    assert (await asyncio.to_thread(child.wait), now()) == (0, 0.0)
