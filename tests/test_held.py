from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

import aiomailbox as am
from tests.held import caplog, without_held  # noqa: F401 -- one is a fixture

PROGRAM = """
import logging, time
import aiomailbox as am
{logging}
env = am.StreamExecutionEnvironment()
env.from_collection([1]).map(lambda n: time.sleep(0.5)).sink_to(lambda n: None)
am.run(env.execute())
logging.getLogger("aiomailbox").warning("something else")
"""


@pytest.mark.real_time
async def test_a_loop_that_was_held_is_in_no_log_that_a_test_looks_at(
    caplog: pytest.LogCaptureFixture,  # noqa: F811
) -> None:
    env = am.StreamExecutionEnvironment()
    # As if the machine had given it no processor.
    env.from_collection([1]).map(lambda n: time.sleep(0.5)).sink_to(lambda n: None)
    await env.execute()
    logging.getLogger("aiomailbox").warning("something else")
    assert [one.getMessage() for one in caplog.records] == ["something else"]


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("set_up", "told"),
    [
        ("", "WARNING aiomailbox: something else\n"),
        ("logging.basicConfig()", "WARNING:aiomailbox:something else\n"),
    ],
)
def test_nor_in_that_of_a_program(
    set_up: str, told: str, run_program: Callable[..., Any]
) -> None:
    assert run_program(PROGRAM.replace("{logging}", set_up)).log == told
