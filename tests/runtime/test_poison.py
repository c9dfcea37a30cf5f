"""A record that no attempt survives: the job says where it is."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.errors import JobFailedError

COUNT = 500


async def slowly(value: int) -> int:
    if value % 20 == 0:
        await asyncio.sleep(0.01)
    return value


def stumble(value: int) -> int:
    if value == 333:
        raise ValueError("no such country")
    return value


def environment(interval: float | None, strategy: Any) -> Any:
    env = am.StreamExecutionEnvironment()
    if interval is not None:
        env.enable_checkpointing(am.seconds(interval))
    return env.configure(restart=strategy)


@pytest.mark.parametrize(
    "strategy",
    [am.restart.failure_rate(3, 1_000, 0.01), am.restart.fixed_delay(3, 0.01)],
)
async def test_the_position_of_a_record_that_none_survives_is_named(
    strategy: Any,
) -> None:
    env = environment(0.02, strategy)
    numbers = env.from_collection(list(range(COUNT)))
    numbers.map(slowly).map(stumble).name("parse").sink_to(lambda value: None)
    with pytest.raises(JobFailedError) as caught:
        await env.execute()
    text = str(caught.value)
    assert "4 attempts in a row failed in operator 'parse' the same way" in text
    assert "with record 333" in text
    assert "what was read after checkpoint " in text
    # The run with the record, and no other, was read in every attempt.
    assert (
        "source 'collection', split 'range-0', from RangeSplit(split_id='range-0'"
        in text
    )
    start, end = (int(part.split(",")[0]) for part in text.split("position=")[1:3])
    assert 0 < start <= 333 < end


async def test_without_checkpoints_it_lies_after_the_beginning() -> None:
    env = environment(None, am.restart.fixed_delay(2, 0.01))
    env.from_collection(list(range(5_000))).map(stumble).sink_to(lambda value: None)
    with pytest.raises(JobFailedError, match="what was read after the beginning") as it:
        await env.execute()
    assert "3 attempts in a row" in str(it.value)
    place = r"from its beginning to RangeSplit\(split_id='range-0', position=(\d+)"
    found = re.search(place, str(it.value))
    assert found is not None
    assert 333 < int(found[1]) < 5_000


async def test_failures_of_several_places_are_no_poison() -> None:
    env = environment(None, am.restart.fixed_delay(1, 0.01))
    failing = iter([ValueError("one"), ValueError("two")])

    def differ(value: int) -> int:
        if value == 10:
            error = next(failing)
            if str(error) == "one":
                raise error
        if value == 20:
            raise ValueError("three")
        return value

    env.from_collection(list(range(COUNT))).map(differ).sink_to(lambda value: None)
    with pytest.raises(JobFailedError) as caught:
        await env.execute()
    assert "in a row" not in str(caught.value)


async def test_what_else_ends_with_a_region_does_not_hide_it() -> None:
    """Its other tasks fail, too, while they are ended."""
    env = am.StreamExecutionEnvironment(parallelism=2)
    env.configure(restart=am.restart.fixed_delay(2, 0.01))

    class Ends(am.ProcessFunction[int, int]):
        def process_element(self, value: int, context: Any, out: Any) -> None:
            out.collect(value)

        def open(self, context: am.RuntimeContext) -> None:
            self.subtask = context.subtask_index

        def close(self) -> None:
            if self.subtask == 1:
                raise OSError("cannot be closed")

    numbers = env.from_collection(list(range(COUNT)))
    parsed = numbers.map(slowly).map(stumble).name("parse")
    parsed.disable_chaining().process(Ends()).disable_chaining().sink_to(
        lambda value: None
    )
    with pytest.raises(JobFailedError, match="3 attempts in a row failed in operator"):
        await env.execute()


async def test_what_fails_before_any_record_is_no_poison() -> None:
    class Unlucky(am.ProcessFunction[int, int]):
        def open(self, context: am.RuntimeContext) -> None:
            raise ValueError("no server")

        def process_element(self, value: int, context: Any, out: Any) -> None:
            out.collect(value)

    env = environment(None, am.restart.fixed_delay(2, 0.01))
    env.from_collection([1]).process(Unlucky()).sink_to(lambda value: None)
    with pytest.raises(JobFailedError) as caught:
        await env.execute()
    assert "in a row" not in str(caught.value)


@pytest.mark.real_time
@pytest.mark.timeout(120)
async def test_a_record_that_kills_its_process_is_named_by_its_range(
    tmp_path: Path,
) -> None:
    env = environment(None, am.restart.fixed_delay(2, 0.01))
    env.enable_checkpointing(am.seconds(0.05), directory=tmp_path)
    env.configure(deployment=am.Processes(1))

    async def die(value: int) -> int:
        if value % 20 == 0:
            await asyncio.sleep(0.02)
        # The first of them after a checkpoint, whenever there is one.
        if value % 333 == 332 and any(tmp_path.glob("*/chk-*/_metadata")):
            os.kill(os.getpid(), signal.SIGKILL)
        return value

    numbers = env.from_collection(range(10**6))
    numbers.map(die).sink_to(am.FileSink(tmp_path / "out", format="jsonl"))
    with pytest.raises(JobFailedError, match="signal SIGKILL") as caught:
        await env.execute()
    text = str(caught.value)
    assert "3 attempts in a row failed the same way" in text
    assert (
        "source 'collection', split 'range-0', from RangeSplit(split_id='range-0'"
        in text
    )
