"""A job that is asked by the clients of a service."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import httpx
import pytest

Load = Callable[[str], ModuleType]

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(120)]


async def test_two_hundred_clients_are_answered(
    load_example: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    await load_example("fastapi_ask").main(clients=200, requests=5)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1000 answers for 200 clients"
    assert lines[1].startswith("p50 ")


async def test_the_state_of_a_card_decides(load_example: Load) -> None:
    service = load_example("fastapi_ask")
    transport = httpx.ASGITransport(app=service.app)
    async with (
        service.app.router.lifespan_context(service.app),
        httpx.AsyncClient(transport=transport, base_url="http://shop") as client,
    ):
        answers = [
            (
                await client.post("/payments", json={"card": card, "amount": amount})
            ).json()
            for card, amount in [("a", 900), ("b", 900), ("a", 200), ("a", 100)]
        ]
    assert [answer["allowed"] for answer in answers] == [True, True, False, True]
    assert answers[-1]["spent"] == 1_000
