"""Laws of finding Retry-After."""

from __future__ import annotations

import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from aiomailbox.errors import RetryLater
from aiomailbox.policies.retry import retry_after_s

DATE = "Wed, 21 Oct 2015 07:28:00 GMT"
DATE_MS = 1_445_412_480_000


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (3, 3.0),
        (2.5, 2.5),
        ("7", 7.0),
        (" 7 ", 7.0),
        (b"7", 7.0),
        (timedelta(minutes=1), 60.0),
        (DATE, 10.0),
        ("Wed, 21 Oct 2015 09:28:00 +0200", 10.0),
        (-5, 0.0),
        ("soon", None),
        ("nan", None),
        ("1e400", None),
        pytest.param(10**400, None, id="more than a float"),
        ("Wed, 21 Oct 2015 07:28:00 +9999999999999999", None),
        ("Wed, 21 Oct 99999999999999999999 07:28:00 GMT", None),
        (float("inf"), None),
        (True, None),
        (None, None),
    ],
)
def test_every_form_of_retry_after_is_understood(
    value: Any, seconds: float | None
) -> None:
    assert retry_after_s(RetryLater(retry_after=value), DATE_MS - 10_000) == seconds


def test_a_date_without_a_zone_is_of_greenwich_wherever_the_program_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as place:
        place.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        error = RetryLater(retry_after="Wed, 21 Oct 2015 07:28:00 -0000")
        assert retry_after_s(error, DATE_MS - 10_000) == 10
    time.tzset()


def test_a_date_that_has_passed_means_now() -> None:
    assert retry_after_s(RetryLater(retry_after=DATE), DATE_MS + 1) == 0


@pytest.mark.parametrize("name", ["Retry-After", "retry-after"])
def test_headers_of_the_response_or_of_the_error_itself_are_read(name: str) -> None:
    like_httpx = ValueError()
    like_httpx.response = SimpleNamespace(headers={name: "4"})  # type: ignore[attr-defined]
    like_aiohttp = ValueError()
    like_aiohttp.headers = {name: "5"}  # type: ignore[attr-defined]
    assert retry_after_s(like_httpx, 0) == 4
    assert retry_after_s(like_aiohttp, 0) == 5
    assert retry_after_s(SimpleNamespace(headers={name: "6"}), 0) == 6


def test_the_cause_of_an_error_is_asked_too() -> None:
    error = ValueError("wrapped")
    error.__cause__ = RetryLater(retry_after=2)
    assert retry_after_s(error, 0) == 2


class UnreadyError(ValueError):
    """An error of a client that has no response yet, and says so by raising."""

    def _raise(self) -> Any:
        raise RuntimeError("no response has been set")

    response = headers = property(_raise)


def test_what_cannot_be_read_asks_for_nothing_and_hides_nothing() -> None:
    class Headers:
        get = UnreadyError._raise

    assert retry_after_s(UnreadyError(), 0) is None
    assert retry_after_s(SimpleNamespace(headers=Headers()), 0) is None
    error = UnreadyError()
    error.__cause__ = RetryLater(retry_after=2)
    assert retry_after_s(error, 0) == 2
    error.retry_after = 3  # type: ignore[attr-defined]
    assert retry_after_s(error, 0) == 3


def test_a_circle_of_causes_ends() -> None:
    first, second = ValueError(), ValueError()
    first.__cause__, second.__cause__ = second, first
    assert retry_after_s(first, 0) is None


@given(st.text())
def test_no_text_breaks_it(text: str) -> None:
    delay_s = retry_after_s(RetryLater(retry_after=text), 0)
    assert delay_s is None or delay_s >= 0
