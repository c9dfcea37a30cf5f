from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest


async def test_two_tasks_exchange_a_million_records_in_bounded_memory(
    load_example: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    await load_example("channel_pair").main()
    assert capsys.readouterr().out.splitlines() == [
        "watermark 1000",
        "data ended with drain",
        "1,000,000 records, sum 499,999,500,000",
        "never more than the permits were queued: True",
        "permits back in the pool: 4 of 4",
    ]
