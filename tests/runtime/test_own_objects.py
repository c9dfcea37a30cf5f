"""Locks, queues and files of functions that go to workers are named: each has its own."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.runtime.declared import own_objects

STOP = asyncio.Event()
QUEUE: queue.Queue[int] = queue.Queue()
GATE = threading.Lock()
LIMIT = 3


class Holds:
    def __init__(self) -> None:
        self.turn = asyncio.Semaphore(1)
        self.limit = LIMIT

    def __call__(self, value: int) -> int:
        return value


def stop(value: int) -> int:
    STOP.set()
    return value


def stop_by_another(value: int) -> int:
    return stop(value)


def put_inside(value: int) -> list[int]:
    return [QUEUE.put(one) or one for one in range(value)]


def gated(value: int) -> int:
    with GATE:
        return value


def around_a_lock() -> Callable[[int], Any]:
    lock = asyncio.Lock()

    async def call(value: int) -> int:
        async with lock:
            return value

    return call


def around_a_file() -> Callable[[int], Any]:
    log = open(Path(__file__), encoding="utf-8")  # noqa: SIM115 -- a user's mistake
    log.close()
    return lambda value: log.write(str(value))


def names_of(function: Callable[[int], Any]) -> list[tuple[str, str, str]]:
    env = am.StreamExecutionEnvironment().configure(deployment=am.Processes(1))
    stream = env.from_collection([1]).rebalance().map(function).name("one")
    stream.sink_to(lambda _: None)
    graph = env._definition.job_graph("job", env._definition.sinks)
    return [(one.operator, one.variable, one.kind) for one in own_objects(graph)]


@pytest.mark.parametrize(
    ("function", "variable", "kind"),
    [
        (around_a_lock(), "nonlocal lock", "asyncio.Lock"),
        (around_a_file(), "nonlocal log", "_io.TextIOWrapper"),
        (stop, "global STOP", "asyncio.Event"),
        (stop_by_another, "global STOP", "asyncio.Event"),
        (put_inside, "global QUEUE", "queue.Queue"),
        (gated, "global GATE", "_thread.lock"),
        (Holds(), "attribute turn", "asyncio.Semaphore"),
    ],
)
def test_what_a_function_waits_for_is_named(
    function: Any, variable: str, kind: str
) -> None:
    assert names_of(function) == [("one", variable, kind)]


def test_other_variables_are_no_matter() -> None:
    def limited(value: int) -> int:
        return min(value, LIMIT)

    assert names_of(limited) == []
    assert names_of(str) == []
