from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

import aiomailbox as am
from tests.held import caplog  # noqa: F401 -- a fixture


@pytest.fixture
def env() -> am.StreamExecutionEnvironment:
    """Make an environment; nothing in it knows an event loop yet."""
    return am.StreamExecutionEnvironment()


@pytest.fixture
def assert_nothing_left() -> Callable[[], None]:
    """Check that only the caller's own task is alive."""

    def check() -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert others == set(), others

    return check
