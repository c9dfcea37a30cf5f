"""Small helpers of the mailbox tests: where a put comes from, labels, a fake timer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aiomailbox.mailbox.mail import Mail, MailOptions
from aiomailbox.mailbox.task_mailbox import TaskMailbox

Doing = Callable[[], object]


async def _here(doing: Doing) -> None:
    doing()


async def _from_another_task(doing: Doing) -> None:
    async def work() -> None:
        doing()

    await asyncio.create_task(work())


async def _from_another_thread(doing: Doing) -> None:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            doing()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


_ORIGINS = {
    "the owner": _here,
    "another task": _from_another_task,
    "another thread": _from_another_thread,
}


@pytest.fixture(params=list(_ORIGINS))
def from_origin(request: pytest.FixtureRequest) -> Callable[[Doing], Awaitable[None]]:
    """Do something synchronous as the owner, as another task, or in a thread."""
    return _ORIGINS[request.param]


@pytest.fixture(params=["another task", "another thread"])
def from_outside(request: pytest.FixtureRequest) -> Callable[[Doing], Awaitable[None]]:
    """Do something synchronous as another task or in a thread."""
    return _ORIGINS[request.param]


@pytest.fixture
def a_mail() -> Callable[..., Mail]:
    """Make mail that does nothing and is known by its label."""

    def make(label: object, priority: int = 1, **kwargs: Any) -> Mail:
        return Mail(int, priority=priority, description=str(label), **kwargs)

    return make


@pytest.fixture
def urgent(a_mail: Callable[..., Mail]) -> Callable[..., Mail]:
    """Make urgent mail that does nothing."""

    def make(label: object, priority: int = 1) -> Mail:
        return a_mail(label, priority, options=MailOptions.URGENT)

    return make


@pytest.fixture
def owned() -> Callable[[], TaskMailbox]:
    """Make a mailbox that belongs to the running task."""

    def make() -> TaskMailbox:
        mailbox = TaskMailbox(name="box")
        mailbox.bind_owner()
        return mailbox

    return make


class RecordingTimer:
    """A period timer that only remembers its marks."""

    def __init__(self) -> None:
        self.marks: list[str] = []

    def mark_start(self) -> None:
        self.marks.append("start")

    def mark_end(self) -> None:
        self.marks.append("end")


@pytest.fixture
def timer() -> RecordingTimer:
    return RecordingTimer()


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()
