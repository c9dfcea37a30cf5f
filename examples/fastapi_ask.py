"""A FastAPI handler with a stateful stream processor behind it.

Payments come in as requests. Each is asked of a running job, which keeps the last payments
of each card, decides, and answers: the handler awaits the answer. State is by key, so that
payments of one card are decided one after the other, whatever the order of requests.

Run it: ``python examples/fastapi_ask.py`` asks with 200 clients at once and prints how
long answers took; ``uvicorn examples.fastapi_ask:app`` serves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

import aiomailbox as am

LIMIT = 1_000.0


class Payment(BaseModel):
    """A payment that a shop asks about."""

    card: str
    amount: float


class Decide(am.KeyedProcessFunction[str, Any, Any]):
    """Allows a card up to a limit."""

    def open(self, context: Any) -> None:
        spent = am.ValueStateDescriptor("spent", float)
        self.spent = context.keyed_state.get_value(spent)

    def process_element(self, question: Any, context: Any, out: Any) -> None:
        _, amount = question.value
        spent = (self.spent.value() or 0.0) + amount
        if spent <= LIMIT:
            self.spent.update(spent)
        decision = {"allowed": spent <= LIMIT, "spent": min(spent, LIMIT)}
        out.collect(question.answer(decision))


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    env = am.StreamExecutionEnvironment(parallelism=2)
    questions = env.from_questions(size=500, name="payments")
    keyed = questions.key_by(lambda question: question.value[0])
    keyed.process(Decide()).name("decide").sink_to(am.Answers())
    async with env.start("payments") as job:
        app.state.job = job
        yield
        await job.stop()


app = FastAPI(lifespan=lifespan)


@app.post("/payments")
async def pay(payment: Payment) -> dict[str, Any]:
    job: am.JobClient = app.state.job
    try:
        decision: dict[str, Any] = await job.ask(
            (payment.card, payment.amount), timeout=10.0
        )
    except am.AsyncTimeoutError as error:
        raise HTTPException(503, "no decision in time") from error
    return decision


async def ask_with(clients: int, requests: int) -> list[float]:
    """Return how long each request took, milliseconds, with many clients at once."""
    times: list[float] = []

    async def client(http: httpx.AsyncClient, number: int) -> None:
        for _ in range(requests):
            begun = time.perf_counter()
            body = {"card": f"card {number % 50}", "amount": 1.0}
            answer = await http.post("/payments", json=body)
            assert answer.status_code == 200, answer.text
            times.append((time.perf_counter() - begun) * 1000)

    transport = httpx.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://shop") as http,
    ):
        await asyncio.gather(*(client(http, number) for number in range(clients)))
    return sorted(times)


async def main(clients: int = 200, requests: int = 10) -> None:
    times = await ask_with(clients, requests)
    p50, p99 = times[len(times) // 2], times[len(times) * 99 // 100]
    print(f"{len(times)} answers for {clients} clients")
    print(f"p50 {p50:.1f} ms, p99 {p99:.1f} ms")


if __name__ == "__main__":
    am.run(main())
