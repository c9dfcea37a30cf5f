"""The library says what it has to say through ``logging``, and nowhere by itself."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import aiomailbox as am

SKIPS = """
import aiomailbox as am
env = am.StreamExecutionEnvironment()
stream = env.from_collection(["1", "n/a"]).map(float, on_error=am.skip).name("parse")
print(am.run(stream.collect("prices")))
"""
PLAIN = "import logging; logging.basicConfig()\n"
STRUCTLOG = """
import logging, structlog
from structlog import stdlib
handler = logging.StreamHandler()
handler.setFormatter(
    stdlib.ProcessorFormatter(
        foreign_pre_chain=[stdlib.add_log_level, stdlib.ExtraAdder()],
        processors=[
            stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.JSONRenderer(),
        ],
    )
)
logging.getLogger().addHandler(handler)
"""


def test_a_program_that_sets_up_no_logging_reads_warnings_on_stderr(
    run_program: Callable[..., Any],
) -> None:
    done = run_program(SKIPS)
    assert done.printed == "[1.0]\n"
    assert done.log.startswith("WARNING aiomailbox: records skipped job='prices'")
    assert done.log.count("\n") == 1


def test_a_worker_writes_no_line_twice() -> None:
    """Its program may configure logging, as its module or a function's open does."""
    program = (
        "import logging\n"
        "from aiomailbox.runtime.processes.worker_main import plain_log\n"
        "log = plain_log()\n"
        "log.warning('before')\n"
        "logging.basicConfig(format='own %(message)s')\n"
        "log.warning('after')\n"
    )
    # Alone: it imports structlog in a way of its own, if nobody has.
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    first, second = done.stderr.splitlines()
    assert first.endswith("WARNING  before")
    assert second == "own after"


def test_plain_logging_shows_all_of_it_in_words(
    run_program: Callable[..., Any],
) -> None:
    done = run_program(PLAIN + SKIPS)
    assert done.printed == "[1.0]\n"
    assert done.log.startswith("WARNING:aiomailbox:records skipped job='prices' task='")
    assert "operator='parse' count=1 total=1" in done.log


def test_a_program_that_uses_structlog_gets_the_fields(
    run_program: Callable[..., Any],
) -> None:
    done = run_program(STRUCTLOG + SKIPS)
    assert done.printed == "[1.0]\n"
    line = json.loads(done.log)
    assert line["event"] == "records skipped"
    assert (line["level"], line["job"], line["operator"], line["count"]) == (
        "warning",
        "prices",
        "parse",
        1,
    )


def test_a_configuration_of_structlog_is_not_asked(
    run_program: Callable[..., Any],
) -> None:
    """It may be for a logger that takes nothing that `logging` knows."""
    broken = "import structlog; structlog.configure(processors=[lambda *_: 1 / 0])\n"
    assert run_program(broken + SKIPS).printed == "[1.0]\n"


async def test_a_field_has_a_name_that_logging_takes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of its own attributes, ``args`` for one, `logging` lets nobody set any."""

    class Warns(am.ProcessFunction[int, int]):
        def open(self, context: am.RuntimeContext) -> None:
            context.log.warning("100 % sure", args=1, text="a\nb")

        def process_element(
            self, value: int, context: am.ProcessContext, out: am.Collector[int]
        ) -> None: ...

    env = am.StreamExecutionEnvironment()
    await env.from_collection([1]).process(Warns()).collect()
    (record,) = caplog.records
    assert record.getMessage().endswith("args=1\na\nb")
    assert (vars(record)["args_"], vars(record)["event"]) == (1, "100 % sure")
    assert record.name == "aiomailbox"
    assert record.levelno == logging.WARNING


FAILS = """
import aiomailbox as am
env = am.StreamExecutionEnvironment()
stream = env.from_collection(["n/a"]).map(float)
am.run(stream.collect("prices"))
"""


def test_a_failure_says_its_traceback_once_where_no_logging_is_set_up(
    run_program: Callable[..., Any],
) -> None:
    done = run_program(FAILS)
    assert done.code == 1
    assert done.log.startswith("ERROR aiomailbox: the job failed job='prices'")
    # The cause of the cause, and what is raised from both.
    assert done.log.count("Traceback (most recent call last)") <= 3
    assert done.log.count("could not convert string to float: 'n/a'\n") <= 3


@pytest.mark.parametrize(
    "set_up",
    [
        "import logging; logging.lastResort = None\n",
        "import logging; logging.getLogger().addHandler(logging.StreamHandler(open('/dev/null', 'w')))\n",
        "import logging; logging.getLogger('aiomailbox').addHandler(logging.StreamHandler(open('/dev/null', 'w')))\n",
        "import logging; logging.getLogger('aiomailbox').setLevel(logging.ERROR)\n",
        "import sys; sys.stderr = None\n",
    ],
)
def test_a_program_that_decides_where_lines_go_reads_none_elsewhere(
    set_up: str, run_program: Callable[..., Any]
) -> None:
    done = run_program(set_up + SKIPS)
    assert done.printed == "[1.0]\n"
    assert done.log == ""
