"""Queries over columns give what those over rows give, and make rows of few records."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import aiomailbox as am
from examples.nexmark.arrow_events import arrow_stream, event_batches
from examples.nexmark.catalogue import QUERIES
from examples.nexmark.generator import GeneratorConfig, generate
from examples.nexmark.queries import columns
from examples.nexmark.streams import event_stream

# Some windows of 10 s, with persons who sell something in the same.
CONFIG = GeneratorConfig(rate=100, out_of_order_group_size=20)
EVENTS = 6_000
NAMES = ["q1", "q2", "q5", "q7", "q8"]


def by_columns(env: am.StreamExecutionEnvironment, name: str) -> am.DataStream[Any]:
    events = event_batches(generate(CONFIG, EVENTS))
    return arrow_stream(env, CONFIG, events).through(getattr(columns, name))


def plain(row: Any) -> tuple[Any, ...]:
    # Events have their times in milliseconds.
    return tuple(
        round(value.timestamp() * 1000) if hasattr(value, "timestamp") else value
        for value in row
    )


@pytest.mark.parametrize("name", NAMES)
async def test_the_results_are_those_of_rows(name: str) -> None:
    env = am.StreamExecutionEnvironment()
    by_rows = event_stream(env, CONFIG, EVENTS).through(QUERIES[name].build)
    expected = [plain(row) for row in await by_rows.collect()]
    found = [plain(row) for row in await by_columns(env, name).collect()]
    assert len(expected) > 5
    assert Counter(found) == Counter(expected)


@pytest.mark.parametrize("name", NAMES)
def test_no_event_becomes_a_row(name: str) -> None:
    env = am.StreamExecutionEnvironment()
    by_columns(env, name).sink_to(len)
    before_rows, _, _ = env.explain().partition("; rows")
    assert "filter; columns" in before_rows
    if name in {"q5", "q7"}:
        assert "map_batches; columns" in before_rows
