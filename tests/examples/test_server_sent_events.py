"""A job that the clients of a service listen to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import ModuleType

import httpx
import pytest
import uvicorn

Load = Callable[[str], ModuleType]

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(120)]


async def test_the_example_of_events_runs(
    load_example: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    await load_example("server_sent_events").main()
    assert capsys.readouterr().out.splitlines() == [
        'data: {"sensor": "attic", "value": 20.0}',
        'data: {"sensor": "cellar", "value": 9.0}',
        'data: {"sensor": "attic", "value": 24.0}',
    ]


async def test_browsers_that_come_and_go_see_what_comes_while_they_listen(
    load_example: Load,
) -> None:
    service = load_example("server_sent_events")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        config = uvicorn.Config(service.app, log_level="warning")
        server = uvicorn.Server(config)
        serving = asyncio.get_running_loop().create_task(server.serve([taken]))
        while not server.started:
            await asyncio.sleep(0.01)
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            for listener in range(3):
                async with client.stream("GET", "/changes") as response:
                    params = {"sensor": "s", "value": listener}
                    assert (await client.post("/readings", params=params)).is_success
                    async for line in response.aiter_lines():
                        assert line == f'data: {{"sensor": "s", "value": {listener}.0}}'
                        break
        server.should_exit = True
        await serving
