"""Peers do not know who has started them: here, workers are tasks of one event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import structlog

import aiomailbox as am
from aiomailbox.exchange.remote.connection import ConnectionOptions
from aiomailbox.exchange.remote.handshake import PeerAddress, Security
from aiomailbox.runtime.peers.control import Worker, WorkerEvents
from aiomailbox.runtime.peers.host import assemble
from aiomailbox.runtime.peers.limits import limit_from_text
from aiomailbox.runtime.peers.messages import Begin, FromParent
from aiomailbox.runtime.peers.placement import PeerPlace
from aiomailbox.runtime.peers.shipping import unpack
from aiomailbox.runtime.peers.worker_job import WorkerJob

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(180)]


class LoopWorker(Worker):
    """A worker that is a task of its parent's loop."""

    def __init__(self, peer: int, events: WorkerEvents, place: PeerPlace) -> None:
        super().__init__(peer, events)
        self._place = place

    async def start(self) -> None:
        mine, self._theirs = socket.socketpair()
        mine.setblocking(False)
        self._theirs.setblocking(False)
        await self._channel.connect(mine)

    def send(self, message: FromParent) -> None:
        if not isinstance(message, Begin):
            super().send(message)
            return
        limits = [limit_from_text(text) for text in message.limits]
        job = WorkerJob(
            unpack(message.payload, limits),
            limits,
            message,
            self._place,
            lambda: None,
            structlog.get_logger(),
        )
        self.has_exited = False
        self._task = asyncio.get_running_loop().create_task(
            job.run(lambda channel: channel.connect(self._theirs))
        )
        self._task.add_done_callback(self._on_done)

    def kill(self, reason: str | None) -> None:
        self._task.cancel()

    def _on_lost(self, reason: BaseException | None) -> None:
        pass

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._on_gone("ended")


class LoopStarter:
    """Starts workers on the loop that runs the job, over TCP."""

    def __init__(self, directory: Path) -> None:
        self.place = PeerPlace(
            PeerAddress("127.0.0.1", 0),
            Security(secret=bytes(range(32))),
            ConnectionOptions(),
            lambda below: str(directory),
        )
        self.calls: list[str] = []

    def prepare(self) -> PeerPlace:
        self.calls.append("prepare")
        return self.place

    def new_worker(self, peer: int, events: WorkerEvents) -> LoopWorker:
        return LoopWorker(peer, events, self.place)

    def release(self) -> None:
        self.calls.append("release")


class OnThisLoop:
    """A deployment with workers, none of which is a process."""

    parent_apart = True

    def __init__(self, starter: LoopStarter) -> None:
        self._starter = starter

    def deploy(
        self,
        graph: Any,
        config: Any,
        *,
        clock: Any,
        handovers: Mapping[str, Any],
    ) -> Any:
        job = assemble(graph, config, 2, self._starter, handovers)
        job.start()
        return job


@pytest.fixture
def starter(tmp_path: Path) -> LoopStarter:
    return LoopStarter(tmp_path)


@pytest.fixture
def env(starter: LoopStarter) -> am.StreamExecutionEnvironment:
    made = am.StreamExecutionEnvironment(parallelism=2, config=am.JobConfig(seed=1))
    made.configure(deployment=OnThisLoop(starter))
    return made


async def test_a_job_runs_on_workers_of_another_starter(
    env: am.StreamExecutionEnvironment, starter: LoopStarter
) -> None:
    numbers = env.from_collection(range(1000)).map(lambda n: (n % 7, n))
    sums = numbers.key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))
    last = dict(await sums.collect())
    assert last == {key: sum(range(key, 1000, 7)) for key in range(7)}
    assert starter.calls == ["prepare", "release"]


async def test_an_error_of_such_a_worker_fails_the_job(
    env: am.StreamExecutionEnvironment,
) -> None:
    def fail(number: int) -> int:
        raise LookupError("no such airport")

    with pytest.raises(am.JobFailedError, match="LookupError: no such airport"):
        await env.from_collection(range(10)).map(fail).collect()


class Last(am.KeyedProcessFunction[int, int, int]):
    """Keeps the last number of each key."""

    def open(self, context: Any) -> None:
        self.last = context.keyed_state.get_value(am.ValueStateDescriptor("last", int))

    def process_element(self, value: int, context: Any, out: Any) -> None:
        self.last.update(value)


async def test_a_checkpoint_of_workers_that_have_done_nothing_has_no_barriers(
    env: am.StreamExecutionEnvironment, tmp_path: Path
) -> None:
    """They say so when they report; what is done later is in a later checkpoint."""
    inbox: am.Inbox[int] = am.Inbox()
    env.enable_checkpointing(
        # Here its timer strikes when workers have reported.
        am.hours(1),
        directory=tmp_path / "checkpoints",
        # Of an inbox nothing can be read again.
        mode=am.CheckpointingMode.AT_LEAST_ONCE,
    )
    numbers = env.from_source(inbox).uid("inbox").rebalance().map(abs)
    numbers.key_by(lambda number: number % 5).process(Last()).uid("last").sink_to(print)

    def checkpoints(running: Any) -> tuple[int, int, int]:
        taken = running.metrics().checkpoints
        return (
            taken["number_of_in_progress_checkpoints"],
            taken["number_of_unchanged_checkpoints"],
            taken["last_completed_checkpoint_id"] or 0,
        )

    def mails(running: Any) -> int:
        return sum(task["mails"] for task in running.metrics().tasks.values())

    async def reported(running: Any) -> None:
        """Wait until workers have told all that they have done up to now."""
        looked_s = running._job._host._desk._looked_s
        # Their next report may be on its way; the one after that is not.
        for _ in range(2):
            before = dict(looked_s)
            while any(looked_s.get(peer) == before.get(peer) for peer in (1, 2)):
                await asyncio.sleep(0.01)

    async def quiet(running: Any) -> int:
        """Take checkpoints until no task has got a mail for one; return the newest."""
        while True:
            await reported(running)
            (_, unchanged, newest), before = checkpoints(running), mails(running)
            running._job.coordinator._on_periodic()
            while checkpoints(running)[0]:
                await asyncio.sleep(0.01)
            await reported(running)
            if checkpoints(running)[1] > unchanged and mails(running) == before:
                return newest

    async with env.start("quiet") as running:
        for number in range(3):
            await inbox.put(number)
        newest = await quiet(running)
        assert newest
        await inbox.put(7)
        while await quiet(running) == newest:
            """It is on its way."""
        await running.cancel()
