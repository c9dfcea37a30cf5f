from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import ModuleType

import pytest


async def test_what_went_through_both_libraries_is_counted_once(
    load_example: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    pipes = load_example("aiostream_pipes")
    chunks = await pipes.main()
    assert [len(chunk) for chunk in chunks] == [2, 2, 2]
    counts = sorted((page, count) for chunk in chunks for page, count in chunk)
    assert counts == [
        ("home", 1),
        ("home", 2),
        ("home", 3),
        ("news", 1),
        ("news", 2),
        ("sport", 1),
    ]
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert len(asyncio.all_tasks()) == 1
