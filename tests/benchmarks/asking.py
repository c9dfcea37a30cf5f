"""A1: what a question to a running job costs, beside a bare queue and a future."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator

import aiomailbox as am
from tests.benchmarks.measure import OURS, Report, Row

_QUESTIONS = 20_000
# Askers, and how many times the bare ones it may cost.
_WANTED = {1: 8.0, 50: 2.5, 500: 2.5}

Ask = Callable[[int], Awaitable[int]]


async def _cost_s(ask: Ask, askers: int) -> float:
    """Return the seconds of the processor that a question takes."""
    each = _QUESTIONS // askers

    async def asker() -> None:
        for number in range(each):
            assert await ask(number) == number + 1

    started = time.process_time()
    await asyncio.gather(*(asker() for _ in range(askers)))
    return (time.process_time() - started) / (each * askers)


async def _bare(askers: int) -> float:
    queue: asyncio.Queue[tuple[int, asyncio.Future[int]]] = asyncio.Queue()

    async def serve() -> None:
        while True:
            value, answer = await queue.get()
            answer.set_result(value + 1)

    async def ask(value: int) -> int:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        await queue.put((value, answer))
        return await answer

    server = asyncio.get_running_loop().create_task(serve())
    cost_s = await _cost_s(ask, askers)
    server.cancel()
    return cost_s


async def _ours(askers: int) -> float:
    env = am.StreamExecutionEnvironment()
    questions = env.from_questions()
    questions.map(lambda one: one.answer(one.value + 1)).sink_to(am.Answers())
    async with env.start() as job:
        # From here on it runs.
        await job.ask(0)
        return await _cost_s(job.ask, askers)


def reports(rounds: int) -> Iterator[Report]:
    """Yield one for each number of askers."""
    for askers, most in _WANTED.items():
        report = Report("A1", f"a question to a job, {askers} askers (processor time)")
        bare, ours = [], []
        for _ in range(rounds):
            bare.append(asyncio.run(_bare(askers)))
            ours.append(am.run(_ours(askers)))
        times = statistics.median(b / a for a, b in zip(bare, ours, strict=True))
        report.rows = [
            Row(
                "A1", "a bare queue and a future", 1, statistics.median(bare), 1.0, 1.0
            ),
            Row("A1", OURS, 1, statistics.median(ours), 1 / times, 1 / times),
        ]
        report.judge(
            f"{OURS}: {times:.1f} x the bare ones, wanted at most {most:g}",
            reached=times <= most,
        )
        yield report
