"""A task with a source at its head: how it ends, and how it is cancelled."""

from __future__ import annotations

from typing import Any

import pytest

from aiomailbox.errors import StopTask
from aiomailbox.operators.core.operator import Operator
from aiomailbox.operators.sources.operator import SourceOperator
from aiomailbox.records.events import MAX_TIMESTAMP
from aiomailbox.task.messages import AddSplits
from aiomailbox.task.stream_task import TaskState
from aiomailbox.testing import PAUSE, ScriptedSource
from aiomailbox.testing.scripted_source import ScriptSplit


class LoggedSource(SourceOperator):
    """Writes down that it is finished."""

    def __init__(self, log: list[Any], source: Any) -> None:
        super().__init__(source)
        self.log = log

    def finish(self) -> Any:
        self.log.append("source finish")
        return super().finish()


class Follower(Operator):
    """Writes down what comes, and passes it on."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def process_run(self, run: Any) -> Any:
        self.log += run.values
        return self.output.emit_run(run)

    def process_watermark(self, timestamp_ms: int) -> Any:
        self.log.append(f"watermark {timestamp_ms}")
        return super().process_watermark(timestamp_ms)

    def end_input(self) -> Any:
        self.log.append("end of input")

    def finish(self) -> Any:
        self.log.append("finish")


async def start(bench: Any, *script: Any) -> Any:
    bench.add(lambda: LoggedSource(bench.log, ScriptedSource(list(script))), "source")
    bench.add(lambda: Follower(bench.log), "follower")
    consumer = bench.output()
    task = bench.start()
    await bench.settle()
    task.tell(AddSplits([ScriptSplit("script")], no_more=True))
    await bench.settle()
    return consumer


async def test_event_time_ends_before_the_source_finishes_and_then_what_follows(
    bench: Any,
) -> None:
    """MB-108: a source has no input that could end."""
    await start(bench, 1, 2)
    assert await bench.end() is None
    assert bench.log == [
        *(1, 2),
        f"watermark {MAX_TIMESTAMP}",
        "source finish",
        "end of input",
        "finish",
    ]


async def test_a_cancelled_source_tells_of_no_end(bench: Any) -> None:
    """MB-109."""
    consumer = await start(bench, 1, PAUSE, 2)
    assert consumer.read() == [1]
    bench.task.cancel()
    assert await bench.end() is None
    assert bench.task.lifecycle.state is TaskState.CANCELED
    assert bench.log == [1]
    with pytest.raises(StopTask):
        consumer.read()
