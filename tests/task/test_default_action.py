"""A task's default action by the statuses of its input, and mail beside it."""

from __future__ import annotations

from typing import Any

import pytest

from aiomailbox.availability import Availability
from aiomailbox.operators.sources.source import InputStatus
from aiomailbox.task import stream_task
from aiomailbox.task.stream_task import TaskState

S = InputStatus


class ScriptedProcessor:
    """Says one status after the other; does something before some of them."""

    def __init__(self, *statuses: InputStatus) -> None:
        self.statuses = list(statuses)
        self.availability = Availability(available=True)
        self.pending: Any = None
        self.calls = 0
        self.before: dict[InputStatus, Any] = {}

    async def repeat_status(self) -> None: ...

    def start(self) -> None: ...

    def emit_next(self) -> InputStatus:
        self.calls += 1
        status = self.statuses.pop(0)
        if status in self.before:
            self.before[status]()
        return status

    async def end_of_event_time(self) -> None: ...

    async def close(self) -> None: ...


@pytest.fixture
def scripted(bench: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Start a task whose input says these statuses."""

    def start(*statuses: InputStatus) -> ScriptedProcessor:
        processor = ScriptedProcessor(*statuses)
        monkeypatch.setattr(stream_task, "create_input", lambda *_: processor)
        bench.input()
        bench.logged("a")
        bench.start()
        return processor

    return start


async def test_input_is_asked_until_it_has_ended_and_no_more(
    bench: Any, scripted: Any
) -> None:
    """MB-63."""
    processor = scripted(*[S.MORE_AVAILABLE] * 9, S.END_OF_INPUT)
    assert await bench.end() is None
    assert processor.calls == 10
    assert bench.task.lifecycle.state is TaskState.FINISHED


async def test_input_that_came_after_it_said_nothing_is_read_without_waiting(
    bench: Any, scripted: Any
) -> None:
    """MB-64."""
    processor = scripted(S.NOTHING_AVAILABLE, S.NOTHING_AVAILABLE, S.END_OF_INPUT)
    assert await bench.end() is None
    assert processor.calls == 3
    assert bench.task.processor.metrics.idle.total_ms() == 0


async def test_mail_that_the_last_step_sent_still_runs(
    bench: Any, scripted: Any
) -> None:
    """MB-61."""
    processor = scripted(S.MORE_AVAILABLE, S.END_OF_INPUT)
    processor.before[S.END_OF_INPUT] = lambda: (
        bench.task.processor.main_executor.execute(bench.log.append, "mail")
    )
    assert await bench.end() is None
    assert bench.log == ["a.open", "mail", "a.close"]
