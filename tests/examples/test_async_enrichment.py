from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

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
    wrong = {number for number in range(300) if number % 100 in {13, 77}}
    assert answered == set(range(300)) - wrong
    assert statuses[404] == 3, "what cannot succeed is tried once"
    assert statuses[500] == 3 * enrichment.ATTEMPTS - _busy(server)
    assert "300 orders, 294 priced" in printed
    assert f"the server saw {len(server.log)} calls" in printed
    assert "dead letters: 6" in printed


def _busy(server: Any) -> int:
    """Return how many attempts at broken articles met a busy server instead."""
    return sum(call.status == 429 and call.article % 100 == 77 for call in server.log)


@pytest.mark.real_time
async def test_the_server_refuses_who_does_not_keep_its_limit(
    load_example: Load,
) -> None:
    """Without this the test above could not fail."""
    enrichment = load_example("async_enrichment")
    async with enrichment.PriceServer() as server:
        client = enrichment.PriceClient(server.url)
        await client.open(None)
        try:
            assert (await client(enrichment.Order(1, 1))).price == 101
            # As if all the others had been now.
            now_s = server.log[0].at_s + 60
            server.log += [enrichment.Call(now_s, 2, 200)] * enrichment.LIMIT
            with pytest.raises(enrichment.httpx.HTTPStatusError) as refused:
                await client(enrichment.Order(3, 3))
        finally:
            await client.close()
    assert refused.value.response.status_code == 429
    assert refused.value.response.headers["retry-after"] == "1"


def test_the_log_tells_windows_that_are_too_full_and_calls_that_came_too_early(
    load_example: Load,
) -> None:
    enrichment = load_example("async_enrichment")
    server = enrichment.PriceServer()
    server.log = [
        enrichment.Call(at_s, article, status)
        for at_s, article, status in [
            (0.0, 1, 200),
            (0.4, 2, 429),
            (0.5, 3, 200),
            (1.3, 2, 429),
            (2.3, 2, 200),
        ]
    ]
    assert server.most_calls_in_a_window() == 2
    assert server.calls_that_came_too_early() == 1
