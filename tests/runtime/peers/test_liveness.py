"""Signs of life: who is accused of silence, who is not, and what holds a loop."""

from __future__ import annotations

import asyncio
import functools
import os
import queue
import socket
import threading
import time
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.runtime.held_loop import HeldLoop, look_at_loop
from aiomailbox.runtime.peers import control
from aiomailbox.runtime.peers.control import FrameBuffer, Heart, LivenessWatch
from aiomailbox.runtime.peers.messages import Beat, Cancel, decode_beat, encode

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(180)]


@pytest.fixture(autouse=True)
def quick(monkeypatch: Any) -> None:
    """Let hearts beat twenty times a second."""
    monkeypatch.setattr(control, "_BEAT_S", 0.05)


class Listener:
    """A watch, and what it has told."""

    def __init__(self, end: Any, timeout_s: float) -> None:
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.held: list[Beat] = []
        self.watch = LivenessWatch(
            end, timeout_s, self.failed.set_result, self.held.append
        )


class ScriptedEnd:
    """An end of a connection where a test says what comes, and when nothing does."""

    def __init__(self) -> None:
        self._coming: queue.Queue[bytes | None] = queue.Queue()
        self._is_read = False

    def fileno(self) -> int:
        return -1

    def settimeout(self, seconds: float) -> None:
        """A wait is a beat, whatever time it takes."""

    def recv(self, size: int) -> bytes:
        if self._is_read:
            self._coming.task_done()
        self._is_read = True
        found = self._coming.get()
        if found is None:
            raise TimeoutError
        return found

    async def brings(self, *what: bytes | None) -> None:
        """Let these come, None for a beat of silence, and wait until all are read."""
        for each in what:
            self._coming.put(each)
        await asyncio.to_thread(self._coming.join)

    def shutdown(self, how: int) -> None:
        self._coming.put(b"")

    def close(self) -> None:
        """Nothing is held."""


async def test_silence_is_told_once_somebody_was_heard() -> None:
    end = ScriptedEnd()
    listener = Listener(end, 0.3)
    # Beats of 0.05 s: who was heard again is silent from then on.
    await end.brings(encode(Beat(0.0, None)), *[None] * 4)
    await end.brings(encode(Beat(0.0, None)), *[None] * 5)
    assert not listener.failed.done()
    end.shutdown(socket.SHUT_RDWR)
    listener.watch.close()


async def test_who_is_silent_for_too_long_is_told_of() -> None:
    mine, theirs = socket.socketpair()
    listener = Listener(mine, 0.3)
    theirs.sendall(encode(Beat(0.0, None)))
    async with asyncio.timeout(20):
        reason = await listener.failed
    assert "sent no heartbeat for 0.3 s" in reason
    assert "heartbeat_timeout" in reason
    listener.watch.close()
    assert theirs.recv(1) == b""
    theirs.close()


async def test_who_was_never_heard_has_the_time_that_a_start_takes() -> None:
    mine, theirs = socket.socketpair()
    listener = Listener(mine, 0.1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await asyncio.shield(listener.failed)
    listener.watch.close()
    theirs.close()


async def test_a_parent_that_was_held_accuses_nobody() -> None:
    mine, theirs = socket.socketpair()
    listener = Listener(mine, 1.5)
    ended = threading.Event()
    Heart(theirs, ended.set)
    await asyncio.sleep(0.1)
    time.sleep(2.5)
    await asyncio.sleep(0.2)
    assert not listener.failed.done()
    listener.watch.close()
    assert ended.wait(20)


async def test_a_loop_that_is_held_is_told_with_its_line_and_not_accused(
    monkeypatch: Any,
) -> None:
    mine, theirs = socket.socketpair()
    listener = Listener(mine, 1.0)
    ended = threading.Event()

    told = threading.Event()
    looks: list[float] = []

    def look(loop: Any, thread: int) -> HeldLoop | None:
        found = look_at_loop(loop, thread)
        if found is not None and found.line == line:
            looks.append(heart._held_beats)
        if len(looks) == 3:
            told.set()
        return found

    async def work(heart: Heart) -> None:
        heart.watch(asyncio.get_running_loop())
        told.wait(50)

    line = f"{__file__}:{work.__code__.co_firstlineno + 2}"
    monkeypatch.setattr(control, "look_at_loop", look)
    heart = Heart(theirs, ended.set)
    thread = threading.Thread(target=asyncio.run, args=[work(heart)])
    thread.start()
    async with asyncio.timeout(80):
        while thread.is_alive():
            await asyncio.sleep(0.05)
    assert not listener.failed.done()
    # Pauses between reports double.
    first, second, third = looks[:3]
    assert first >= 3
    assert third - second == 2 * (second - first)
    # A busy machine may hold it elsewhere, too.
    beats = [one for one in listener.held if one.held and one.held.line == line]
    assert beats[0].held_s == pytest.approx(0.05 * first)
    assert beats[0].held is not None
    assert any("in work" in frame for frame in beats[0].held.stack)
    listener.watch.close()
    assert ended.wait(20)


async def test_a_worker_learns_that_its_parent_is_gone() -> None:
    mine, theirs = socket.socketpair()
    orphaned = threading.Event()
    Heart(theirs, orphaned.set)
    mine.close()
    assert orphaned.wait(20)
    theirs.close()


async def test_a_parent_that_reads_nothing_stops_no_heart(monkeypatch: Any) -> None:
    """What was begun is ended before the next beat, so that frames stay frames."""
    frame = encode(Beat(0.0, None))
    padded = frame * 50_000
    monkeypatch.setattr(control, "encode", lambda beat: padded)
    mine, theirs = socket.socketpair()
    orphaned = threading.Event()
    Heart(theirs, orphaned.set)
    await asyncio.sleep(0.5)
    assert not orphaned.is_set()
    received = 0
    async with asyncio.timeout(20):
        while received < 2 * len(padded):
            data = mine.recv(len(frame) - received % len(frame))
            assert data == frame[received % len(frame) :][: len(data)]
            received += len(data)
            await asyncio.sleep(0)
    mine.close()
    assert orphaned.wait(20)


async def test_what_is_no_sign_of_life_breaks_the_protocol() -> None:
    mine, theirs = socket.socketpair()
    listener = Listener(mine, 50)
    theirs.sendall(encode(Cancel()))
    async with asyncio.timeout(20):
        assert "broke the protocol" in await listener.failed
    listener.watch.close()
    theirs.close()


def hold(value: int) -> int:
    _HELD.set()
    _RELEASED.wait(20)
    return value


_HELD, _RELEASED = threading.Event(), threading.Event()


@pytest.mark.parametrize("function", [hold, functools.partial(hold)])
def test_the_operator_of_a_fused_chain_is_told_by_its_function(function: Any) -> None:
    _HELD.clear()
    _RELEASED.clear()
    seen: list[HeldLoop | None] = []
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection([1]).map(abs).name("before").map(function)
    stream = stream.name("slow").uid("slow-1").map(abs).name("after")
    thread = threading.Thread(target=lambda: am.run(collect()))
    loops: list[asyncio.AbstractEventLoop] = []

    async def collect() -> None:
        loops.append(asyncio.get_running_loop())
        await stream.collect()

    thread.start()
    assert _HELD.wait(20)
    assert thread.ident is not None
    seen.append(look_at_loop(loops[0], thread.ident))
    _RELEASED.set()
    thread.join()
    (held,) = seen
    assert held is not None
    assert (held.operator, held.uid) == ("slow", "slow-1")
    assert "slow" in held.task
    assert held.line == f"{__file__}:{hold.__code__.co_firstlineno + 2}"


class Proxy:
    """Like the proxies of web frameworks outside of a request."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("there is no request")

    def hold(self, value: int) -> int:
        return hold(value)


def named(name: str) -> Any:
    """A function of a file of that name."""
    code = compile("def outer(value):\n    return inner(value)", name, "exec")
    found: dict[str, Any] = {"inner": hold}
    exec(code, found)
    return found["outer"]


@pytest.mark.parametrize(
    "function",
    [
        lambda value: Proxy.hold(Proxy(), value),
        named("long" * 20_000),
        named("undecodable\udc80"),
    ],
    ids=["proxy", "long", "undecodable"],
)
def test_whatever_holds_a_loop_fits_into_a_sign_of_life(function: Any) -> None:
    _HELD.clear()
    _RELEASED.clear()
    loops: list[asyncio.AbstractEventLoop] = []
    stream = am.StreamExecutionEnvironment().from_collection([1]).map(function)
    stream = stream.name("name" * 20_000).uid("uid" * 20_000)

    async def collect() -> None:
        loops.append(asyncio.get_running_loop())
        await stream.collect()

    thread = threading.Thread(target=lambda: am.run(collect()))
    thread.start()
    assert _HELD.wait(20)
    assert thread.ident is not None
    frame = encode(Beat(3.0, look_at_loop(loops[0], thread.ident)))
    _RELEASED.set()
    thread.join()
    (body,) = FrameBuffer(64 * 1024).feed(frame)
    held = decode_beat(body).held
    assert held is not None
    assert held.operator.startswith("namename")
    assert held.line == f"{__file__}:{hold.__code__.co_firstlineno + 2}"
    assert len(held.stack) > 3


async def test_a_heart_beats_on_where_nobody_can_say_what_holds_the_loop(
    monkeypatch: Any,
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("cannot be described")

    monkeypatch.setattr(control, "look_at_loop", fail)
    mine, theirs = socket.socketpair()
    listener = Listener(mine, 1.5)
    ended = threading.Event()
    heart = Heart(theirs, ended.set)
    # One that never turns.
    loop = asyncio.new_event_loop()
    heart.watch(loop)
    await asyncio.sleep(2.5)
    assert not listener.failed.done()
    listener.watch.close()
    assert ended.wait(20)
    loop.close()


@pytest.mark.parametrize("timeout_s", [2.9, 0, -1])
def test_a_heartbeat_timeout_that_beats_cannot_keep(timeout_s: float) -> None:
    with pytest.raises(am.UsageError, match="heartbeat_timeout"):
        am.JobConfig(heartbeat_timeout=am.seconds(timeout_s))
    assert am.JobConfig(heartbeat_timeout=None).heartbeat_timeout_s == float("inf")


def test_a_stopped_thread_has_no_loop_to_look_at() -> None:
    loop: Any = None
    assert look_at_loop(loop, os.getpid() << 20) is None
