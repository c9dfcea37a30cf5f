from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from types import ModuleType

import pytest

Load = Callable[[str], ModuleType]


@pytest.mark.real_time
async def test_the_servers_log_shows_that_limit_and_retry_after_were_kept(
    load_example: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    enrichment = load_example("async_enrichment")
    server = await enrichment.main()
    printed = capsys.readouterr().out

    statuses = Counter(call.status for call in server.log)
    assert statuses[429] > 0, "nothing was tried if the server never said no"
    assert server.most_calls_in_a_window() <= enrichment.LIMIT
    assert server.calls_that_came_too_early() == 0

    answered = {call.article for call in server.log if call.status == 200}
    wrong = {number for number in range(400) if number % 100 in {13, 77}}
    assert answered == set(range(400)) - wrong
    assert statuses[404] == 4, "what cannot succeed is tried once"
    assert statuses[500] == 4 * enrichment.ATTEMPTS - _busy(server, wrong)
    assert "400 orders, 392 priced" in printed
    assert f"the server saw {len(server.log)} calls" in printed
    assert "dead letters: 8" in printed


def _busy(server: object, articles: set[int]) -> int:
    """Return how many attempts at broken articles met a busy server instead."""
    return sum(call.status == 429 and call.article % 100 == 77 for call in server.log)


@pytest.mark.real_time
async def test_the_server_refuses_who_does_not_keep_its_limit(
    load_example: Load,
) -> None:
    """Without this the test above could not fail."""
    enrichment = load_example("async_enrichment")
    enrichment.OVERLOADED_AT_CALL = -1
    async with enrichment.PriceServer() as server:
        client = enrichment.PriceClient(server.url)
        await client.open(None)
        try:
            calls = [_status(client, enrichment, n) for n in range(130)]
            answers = await asyncio.gather(*calls)
        finally:
            await client.close()
    assert answers.count(429) >= 30
    assert server.calls_that_came_too_early() == 0


async def _status(client: object, enrichment: ModuleType, number: int) -> int:
    try:
        await client(enrichment.Order(number, number))
    except enrichment.httpx.HTTPStatusError as error:
        return error.response.status_code
    return 200
