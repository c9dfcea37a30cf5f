from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from types import ModuleType

import httpx
import pytest

import aiomailbox as am

Load = Callable[[str], ModuleType]


@asynccontextmanager
async def client_of(service: ModuleType) -> AsyncGenerator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=service.app)
    async with (
        service.app.router.lifespan_context(service.app),
        httpx.AsyncClient(transport=transport, base_url="http://service") as client,
    ):
        yield client


async def post(client: httpx.AsyncClient, sensor: str, value: float) -> int:
    reading = {"sensor": sensor, "value": value}
    return (await client.post("/readings", json=reading)).status_code


async def test_the_example_runs(
    load_example: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    await load_example("fastapi_service").main()
    assert capsys.readouterr().out.splitlines() == [
        "{'sensor': 'attic', 'readings': 3, 'mean': 22.0, 'highest': 24.0}",
        "running 3",
    ]


async def test_what_was_posted_can_be_asked_for_by_key(load_example: Load) -> None:
    async with client_of(load_example("fastapi_service")) as client:
        for sensor, value in [("a", 1.0), ("b", 5.0), ("a", 3.0)]:
            assert await post(client, sensor, value) == 202
        await asyncio.sleep(1)
        answer = await client.get("/totals/a")
        assert answer.json() == {
            "sensor": "a",
            "readings": 2,
            "mean": 2.0,
            "highest": 3.0,
        }
        assert (await client.get("/totals/c")).status_code == 404
        metrics = (await client.get("/metrics")).json()
        assert metrics["state"] == "running"
        assert metrics["operators"]["totals"]["num_records_in"] == 3


async def test_the_application_ends_after_what_it_had_accepted(
    load_example: Load,
) -> None:
    service = load_example("fastapi_service")
    async with client_of(service) as client:
        for _ in range(10):
            assert await post(client, "a", 1.0) == 202
        state = service.app.state.service
    assert state.totals["a"].readings == 10
    assert state.job.state is am.JobState.FINISHED
    assert len(asyncio.all_tasks()) == 1


async def test_a_full_inbox_is_said_to_the_client_and_not_kept_in_memory(
    load_example: Load,
) -> None:
    service = load_example("fastapi_service")
    async with client_of(service) as client:
        state = service.app.state.service
        inbox = state.inbox
        # Nobody reads this one.
        state.inbox = service.Inbox()
        for _ in range(service.INBOX_MAX):
            assert await post(client, "a", 1.0) == 202
        assert await post(client, "a", 1.0) == 503
        state.inbox = inbox
        assert await post(client, "a", 1.0) == 202


async def test_a_pipeline_that_failed_fails_requests_and_the_application(
    load_example: Load,
) -> None:
    service = load_example("fastapi_service")

    def refuse(*_: object) -> None:
        raise ValueError("no")

    service.RunningTotal.add = refuse
    with pytest.raises(am.JobFailedError, match="totals"):
        async with client_of(service) as client:
            assert await post(client, "a", 1.0) == 202
            await asyncio.sleep(1)
            assert await post(client, "a", 1.0) == 503
