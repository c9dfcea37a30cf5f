"""A connector that users write, against the real server, which is killed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import pytest_asyncio

import aiomailbox as am
from aiomailbox.testing import OneInputHarness

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "nats_jetstream.py"
PAGE = ROOT / "docs" / "concepts" / "connectors.md"
LINES_MAX = 60

pytestmark = pytest.mark.real_time


@pytest.fixture
def example(load_example: Callable[[str], ModuleType]) -> Any:
    return load_example("nats_jetstream")


@pytest_asyncio.fixture
async def server(example: Any, tmp_path: Path) -> AsyncIterator[Any]:
    """Start a server that has a stream ``orders`` and a stream ``totals``."""
    server = example.Server(tmp_path)
    await server.start()
    try:
        await example.publish_orders(server.url, 0)
        yield server
    finally:
        await server.kill()


def test_each_total_is_there_once_though_the_server_was_killed() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--orders", "1500"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr[-3000:])
    lines = done.stdout.splitlines()
    assert lines.count("the server was killed, and is back") == 2
    assert "restarts of the job: 0" not in lines
    assert lines[-2:] == ["1,500 totals of 1,500 orders", "equal"]


async def test_a_job_that_is_started_again_continues_after_its_checkpoint(
    example: Any, server: Any, tmp_path: Path
) -> None:
    count = 300
    await example.publish_orders(server.url, count)
    for life_ends_at in (1, count):
        env = am.StreamExecutionEnvironment()
        env.enable_checkpointing(am.seconds(0.1), directory=tmp_path / "checkpoints")
        example.build(env, server.url)
        async with env.start("totals", restore_from="latest") as job:
            await example.wait_for(server.url, life_ends_at)
            await job.cancel()
    found = await example.read_totals(server.url, count + 1)
    assert sorted(found) == example.expected_totals(count)


async def test_a_reader_begins_after_its_position(example: Any, server: Any) -> None:
    await example.publish_orders(server.url, 9)
    # Of nine orders, those of the south are the second, fifth and eighth.
    for after, expected in ((0, [2, 5, 8]), (2, [5, 8])):
        batches = example.messages_after(server.url, "orders", "orders.south", after)
        found = [one.sequence for one in await anext(batches)]
        await batches.aclose()
        assert found == expected


async def test_a_position_that_the_stream_has_dropped_is_refused(
    example: Any, server: Any
) -> None:
    await example.publish_orders(server.url, 9)
    async with example.jetstream(server.url) as jetstream:
        await jetstream.purge_stream("orders", seq=6)
    lost = example.messages_after(server.url, "orders", "orders.south", 2)
    with pytest.raises(LookupError, match="orders begins at 6"):
        await anext(lost)


def parts(example: Any, *messages: str, attempt: int = 0) -> list[Any]:
    """Return what one writer prepared."""
    data = [message.encode() for message in messages]
    return [example.Part("lineage", attempt, 0, data)]


async def commit(
    example: Any, server: Any, prepared: list[Any], checkpoint_id: int
) -> None:
    """Commit as a job does that has just resumed."""
    sink = example.JetStreamSink(server.url, "totals", "totals")
    committer = example.JetStreamCommitter(sink)
    await committer.begin(restored=True)
    await committer.commit(prepared, checkpoint_id=checkpoint_id, is_final=False)


async def texts(example: Any, server: Any) -> str:
    """Return all messages of the target, one after the other."""
    async with example.jetstream(server.url) as jetstream:
        count = (await jetstream.stream_info("totals")).state.messages
        messages = [await jetstream.get_msg("totals", n + 1) for n in range(count)]
    return "".join(message.data.decode() for message in messages)


async def test_commits_that_are_repeated_publish_nothing(
    example: Any, server: Any
) -> None:
    first, second = parts(example, "a", "b"), parts(example, "c")
    # What a restored checkpoint holds may be several commits.
    for prepared, number in ((first, 1), (second, 2), (first, 1), (second, 2)):
        await commit(example, server, prepared, number)
    assert await texts(example, server) == "abc"


async def test_a_commit_that_broke_off_is_completed(example: Any, server: Any) -> None:
    await commit(example, server, parts(example, "a"), 1)
    await commit(example, server, parts(example, "b", "c"), 2)
    # Without its last message the second commit looks like one that broke off.
    async with example.jetstream(server.url) as jetstream:
        await jetstream.delete_msg("totals", 3)
    await commit(example, server, parts(example, "b", "c"), 2)
    async with example.jetstream(server.url) as jetstream:
        last = await jetstream.get_last_msg("totals", "totals")
    assert (last.data, last.seq) == (b"c", 4)


async def test_a_job_that_went_back_to_an_earlier_checkpoint_publishes(
    example: Any, server: Any
) -> None:
    await commit(example, server, parts(example, "a"), 7)
    await commit(example, server, parts(example, "b", attempt=1), 6)
    assert await texts(example, server) == "ab"


async def test_a_subject_of_another_program_is_refused(
    example: Any, server: Any
) -> None:
    async with example.jetstream(server.url) as jetstream:
        await jetstream.publish("totals", b"mine")
    with pytest.raises(LookupError, match="another program publishes to totals"):
        await commit(example, server, parts(example, "a"), 1)


async def test_a_server_that_is_away_is_a_connection_error(
    example: Any, server: Any
) -> None:
    await server.kill()
    with pytest.raises(ConnectionError, match="nats://127"):
        await commit(example, server, parts(example, "a"), 1)


def test_a_source_and_a_sink_have_60_lines_each(example: Any) -> None:
    source = EXAMPLE.read_text("utf-8")
    lines = {
        node.name: lines_of(node, source)
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef)
    }
    reading = ("Subject", "JetStreamSource", "JetStreamReader")
    writing = ("Part", "JetStreamSink", "JetStreamWriter", "JetStreamCommitter")
    for names in (reading, writing):
        assert sum(lines[name] for name in names) <= LINES_MAX


def lines_of(node: ast.ClassDef, source: str) -> int:
    """Count a class's lines, without empty ones, comments and docstrings."""
    docs: set[int] = set()
    for part in ast.walk(node):
        if isinstance(part, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = part.body[0]
            if ast.get_docstring(part) is not None:
                docs |= {*range(first.lineno, (first.end_lineno or 0) + 1)}
    lines = source.splitlines()
    return sum(
        number not in docs and not re.match(r"\s*(#|$)", lines[number - 1])
        for number in range(node.lineno, (node.end_lineno or 0) + 1)
    )


def test_the_page_shows_the_code_that_runs() -> None:
    """What a reader copies is the code that the tests above have run."""
    source = EXAMPLE.read_text("utf-8")
    shown = [
        definition.strip()
        for block in re.findall(
            r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL
        )
        for definition in block.split("\n\n\n")
    ]
    # All but what is about the program that tries it.
    connector = source[: source.index("\n# What follows")].split("\n\n\n")[1:]
    assert [part.strip() for part in connector if part.strip() not in shown] == []


async def test_the_writer_hands_over_what_it_has_at_a_checkpoint(example: Any) -> None:
    from aiomailbox.operators.sinks.sink import SinkOperator

    sink = example.JetStreamSink("nats://nowhere", "totals", "totals")
    with OneInputHarness(SinkOperator(sink)) as harness:
        harness.process_run([b"a", b"b"])
        assert harness.operator.writer.prepare_commit()[0].messages == [b"a", b"b"]
        assert harness.operator.writer.prepare_commit() == []
