"""The session of the page on observability: what was said, and what a change did."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType

import pytest

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(300)]


async def looked_at(
    load_example: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
) -> tuple[str, str]:
    """Return what was said before the change, and after it."""
    await load_example("slow_pipeline").main(seconds=3.0)
    before, after = capsys.readouterr().out.split("concurrency=32: ")
    return before, after


async def test_it_names_its_calls_and_then_its_limit(
    load_example: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    # All four take 50 ms: just then they may have ended together. And a machine that is
    # busy elsewhere may make more calls at once no faster, and have other bottlenecks.
    while not are_as_told(*await looked_at(load_example, capsys)):
        """Look again; the time limit is that of the test."""


def are_as_told(before: str, after: str) -> bool:
    waiting = r"limit 'geocoder': \d+ of 200 units free in 1 s, (\d+) calls wait for it"
    # Some are called just then.
    calls = [int(each) for each in re.findall(waiting, after)]
    return (
        "enrich waits for its calls (4 at once), " in before
        and "operator 'enrich': 4 calls are open, 12 wait until fewer are" in before
        and "enrich waits for limiter geocoder, " in after
        and len(calls) == 1
        and 4 < calls[0] <= 32
        and rate(after) > 1.5 * rate(before.split(": ")[1])
    )


def rate(said: str) -> float:
    """Return the number that a line begins with."""
    return float(said.split(maxsplit=1)[0])
