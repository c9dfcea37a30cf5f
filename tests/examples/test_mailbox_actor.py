from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest


@pytest.mark.real_time
async def test_the_account_serves_tasks_and_threads_in_order(
    load_example: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    await load_example("mailbox_actor").main()
    assert capsys.readouterr().out.splitlines() == [
        "after 250 were withdrawn: 50",
        "after  50 were withdrawn: 0",
        "a deposit during the audit: 7",
        "Ada approves a balance of 7",
        "history: +100 +100 +100 -250 -50 +7 frozen +1",
    ]
