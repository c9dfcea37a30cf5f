"""Durations and event times: what is accepted, and what is asked back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from aiomailbox.durations import (
    days,
    duration_ms,
    duration_s,
    event_time_ms,
    hours,
    millis,
    minutes,
    seconds,
)
from aiomailbox.errors import InvalidArgumentError, TimestampError, WrongTypeError


def test_units_agree() -> None:
    assert days(1) == hours(24) == minutes(1440) == seconds(86_400) == millis(86.4e6)


@pytest.mark.parametrize(
    ("value", "ms"),
    [(0, 0), (2, 2000), (0.25, 250), (86_400, 86_400_000), (days(30), 2_592_000_000)],
)
def test_numbers_are_seconds(value: Any, ms: int) -> None:
    assert duration_ms(value, "timeout") == ms
    assert duration_s(value, "timeout") == ms / 1000


@pytest.mark.parametrize("convert", [duration_ms, duration_s])
def test_an_int_above_a_day_is_asked_back(convert: Any) -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"timeout: .*milliseconds meant\? .*millis\(86401\)"
    ):
        convert(86_401, "timeout")


@pytest.mark.parametrize("value", [-1, -0.5, -seconds(1), float("nan"), float("inf")])
@pytest.mark.parametrize("convert", [duration_ms, duration_s])
def test_a_duration_is_finite_and_not_negative(convert: Any, value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="timeout"):
        convert(value, "timeout")


@pytest.mark.parametrize("value", [True, "1", None])
def test_a_duration_is_a_timedelta_or_a_number(value: Any) -> None:
    with pytest.raises(WrongTypeError, match="timeout"):
        duration_ms(value, "timeout")


def test_event_times_are_rounded_down_to_milliseconds() -> None:
    start = datetime(1970, 1, 1, tzinfo=UTC)
    assert event_time_ms(start + timedelta(microseconds=1999)) == 1
    assert event_time_ms(start - timedelta(microseconds=1)) == -1
    assert event_time_ms(start.astimezone(timezone(hours(5)))) == 0
    assert event_time_ms(-5) == -5


@pytest.mark.parametrize("value", [None, True, 1.0, "1", datetime(2020, 1, 1)])
def test_nothing_else_is_an_event_time(value: Any) -> None:
    with pytest.raises(TimestampError):
        event_time_ms(value)
