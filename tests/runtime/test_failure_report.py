"""What is said of a job's failure, and when."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from aiomailbox.clock import SystemClock
from aiomailbox.errors import RemoteFailureError
from aiomailbox.logs import library_log
from aiomailbox.runtime.failures import FailureReport


def logged(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [vars(r)["error"] for r in caplog.records if r.levelno == logging.ERROR]


def test_an_echo_calls_at_once_and_leaves_the_line_to_the_error_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    report = FailureReport(library_log(job="j"), SystemClock())
    calls: list[int] = []
    report.call(lambda: calls.append(1))
    report.announce(RemoteFailureError("worker 1", "E", "x"))
    assert calls == [1]
    assert logged(caplog) == []
    report.add(ValueError("the cause"))
    report.add(ValueError("later"))
    assert calls == [1]
    assert logged(caplog) == ["ValueError: the cause"]


def test_who_asks_after_the_failure_is_called_at_once() -> None:
    report = FailureReport(library_log(job="j"), SystemClock())
    report.add(ValueError())
    calls: list[int] = []
    report.call(lambda: calls.append(1))
    assert calls == [1]


def test_what_ends_the_program_is_no_failure_of_the_job(
    caplog: pytest.LogCaptureFixture,
) -> None:
    report = FailureReport(library_log(job="j"), SystemClock())
    report.announce(KeyboardInterrupt())
    assert logged(caplog) == []
