"""Jobs that fail, and programs that are killed, pay no finished call twice."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

import aiomailbox as am
from aiomailbox.errors import (
    DamagedFileError,
    InvalidArgumentError,
    JobFailedError,
    StorageClaimedError,
)
from aiomailbox.journal.journals import SubtaskJournal
from aiomailbox.storage import open_storage
from aiomailbox.storage.append_log import LogSegment

CONCURRENCY = 8


class Service:
    """Counts calls by their idempotency keys."""

    def __init__(self, delay_s: float = 0.01) -> None:
        self.keys: Counter[str] = Counter()
        self._delay_s = delay_s

    async def __call__(self, number: int) -> int:
        key = am.current_call().idempotency_key
        self.keys[key] += 1
        await asyncio.sleep(self._delay_s)
        return number * number


def environment(directory: Path | None, *, parallelism: int = 2, **more: Any) -> Any:
    env = am.StreamExecutionEnvironment(parallelism=parallelism)
    env.enable_checkpointing(am.seconds(0.05), directory=directory, **more)
    return env.configure(restart=am.restart.fixed_delay(10, 0.01))


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_job_that_starts_again_makes_no_finished_call_again(
    ordered: bool,
) -> None:
    service = Service()
    failures = [150, 400, 401, 555]
    results: list[int] = []

    def fail_at_times(square: int) -> int:
        if (number := round(square**0.5)) in failures:
            failures.remove(number)
            message = "stumbled"
            raise RuntimeError(message)
        return square

    env = environment(None)
    calls = env.from_collection(list(range(600))).map_async(
        lambda number: service(number),
        concurrency=CONCURRENCY,
        ordered=ordered,
        journal=True,
        id=lambda number: number,
    )
    calls.uid("ask").rebalance().map(fail_at_times).sink_to(results.append)
    async with env.start() as job:
        await job.result()
        assert 2 <= job.restarts <= 4
    assert set(results) == {number * number for number in range(600)}
    assert len(service.keys) == 600
    # Only those in flight when the job failed.
    assert service.keys.total() - 600 <= job.restarts * CONCURRENCY


@pytest.mark.parametrize("where", ["a file system", "an object store"])
async def test_another_program_at_another_parallelism_finds_what_is_finished(
    tmp_path: Path, where: str
) -> None:
    service = Service()
    url = f"memory://{tmp_path}"
    place: Any = tmp_path if where == "a file system" else url

    def program(parallelism: int, fails_at: int | None) -> Any:
        env = environment(
            place, parallelism=parallelism, retention=am.Retention.ON_FAILURE
        )
        env.configure(restart=am.restart.none())

        def fail(number: int) -> int:
            if number == fails_at:
                message = "stumbled"
                raise RuntimeError(message)
            return number

        numbers = env.from_collection(list(range(400)))
        calls = numbers.map_async(
            lambda number: service(number),
            concurrency=CONCURRENCY,
            journal=True,
            id=lambda number: number,
        )
        calls.uid("ask").map(lambda square: fail(round(square**0.5))).sink_to(print)
        return env

    with pytest.raises(JobFailedError):
        await program(3, 300).execute("squares")
    made = service.keys.total()
    assert 100 <= made < 400

    def kept() -> list[str]:
        names = open_storage(place).names()
        return [name for name in names if "/journal/" in name]

    assert any("/log-" in name for name in kept())
    await program(2, None).execute("squares", restore_from="latest")
    assert len(service.keys) == 400
    assert service.keys.total() <= 400 + CONCURRENCY
    # Gone after success.
    assert not kept()


@pytest.mark.parametrize("where", ["a file system", "an object store"])
async def test_what_a_savepoint_has_not_come_to_is_not_paid_again(
    tmp_path: Path, where: str
) -> None:
    service = Service()
    place: Any = tmp_path if where == "a file system" else f"memory://{tmp_path}"

    async def pace(number: int) -> int:
        await asyncio.sleep(0.01)
        return number

    def program(fails_at: int | None) -> Any:
        def fail(number: int) -> int:
            if number == fails_at:
                message = "stumbled"
                raise RuntimeError(message)
            return number

        env = am.StreamExecutionEnvironment()
        env.enable_checkpointing(am.seconds(1000), directory=place)
        env.configure(restart=am.restart.none())
        numbers = env.from_collection(list(range(400))).map_async(pace, concurrency=1)
        calls = numbers.uid("pace").map_async(
            lambda number: service(number),
            concurrency=CONCURRENCY,
            journal=True,
            id=lambda number: number,
        )
        calls.uid("ask").map(lambda square: fail(round(square**0.5))).sink_to(print)
        return env

    with pytest.raises(JobFailedError):
        await program(300).execute("squares")
    made = service.keys.total()
    assert made > 290
    async with program(None).start("squares") as job:
        await asyncio.sleep(0.5)
        savepoint = await job.stop_with_savepoint(tmp_path / "savepoint")
    assert service.keys.total() == made
    await program(None).execute("squares", restore_from=savepoint.place)
    assert len(service.keys) == 400
    assert service.keys.total() <= 400 + CONCURRENCY
    names = open_storage(place).names()
    assert not [name for name in names if "/journal/" in name]


async def test_a_job_that_resumes_from_before_its_journal_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service()

    def program() -> Any:
        env = environment(None, parallelism=1)
        env.enable_checkpointing(None, directory=tmp_path / "jobs")
        calls = env.from_collection(list(range(400))).map_async(
            lambda number: service(number),
            concurrency=1,
            journal=True,
            id=lambda number: number,
        )
        calls.uid("ask").sink_to(print)
        return env

    async def until_called(count: int) -> None:
        while service.keys.total() < count:
            await asyncio.sleep(0.001)

    async with program().start("squares") as job:
        await until_called(10)
        saved = await job.trigger_savepoint(tmp_path / "saved")
        for count in (50, 100, 150):
            await until_called(count)
            await job.trigger_checkpoint()
        await job.cancel()
    told = "the journal does not reach back to the checkpoint"
    assert told not in caplog.text
    made = service.keys.total()
    await program().execute("squares", restore_from=saved.place)
    assert told in caplog.text
    # Those between the savepoint and the checkpoint that the journal begins at.
    assert service.keys.total() > 400 > made


async def test_a_journal_stays_small_while_a_job_goes_on(tmp_path: Path) -> None:
    service = Service(0.001)
    env = environment(tmp_path, parallelism=1, retention=am.Retention.ON_CANCELLATION)
    stream = env.from_collection(range(10**9)).map_async(
        lambda number: service(number),
        concurrency=20,
        journal=True,
        id=lambda number: number,
    )
    stream.uid("ask").sink_to(lambda _: None)
    async with env.start("endless") as job:
        sizes = []
        for _ in range(4):
            # 10 checkpoints, some 10,000 calls.
            await asyncio.sleep(0.5)
            found = tmp_path.rglob("journal/**/*.log")
            sizes.append(sum(path.stat().st_size for path in found))
        await job.cancel()
    assert service.keys.total() > 10_000
    assert max(sizes) < 3 * min(sizes) + 100_000


@pytest.mark.parametrize("sync_ms", [0, 4, 8])
async def test_calls_do_not_wait_for_a_slow_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync_ms: int
) -> None:
    sync = SubtaskJournal.sync

    async def slow(self: SubtaskJournal) -> None:
        await asyncio.sleep(sync_ms / 1000)
        await sync(self)

    monkeypatch.setattr(SubtaskJournal, "sync", slow)
    service = Service(0.005)
    env = environment(tmp_path, parallelism=1)
    stream = env.from_collection(list(range(8000))).map_async(
        lambda number: service(number),
        concurrency=100,
        journal=True,
        id=lambda number: number,
    )
    stream.uid("ask").sink_to(lambda _: None)
    loop = asyncio.get_running_loop()
    started = loop.time()
    await env.execute()
    # 80 rounds of 5 ms, and the last commits.
    assert loop.time() - started < 0.41 + 1.2 * sync_ms / 1000


async def test_without_a_place_for_it_a_journal_is_refused() -> None:
    async def ask(number: int) -> int:
        return number

    env = am.StreamExecutionEnvironment()
    stream = env.from_collection([1]).map_async(
        ask, journal=True, id=lambda number: number
    )
    with pytest.raises(JobFailedError) as caught:
        await stream.collect()
    assert isinstance(caught.value.__cause__, InvalidArgumentError)
    assert "enable_checkpointing(interval, directory=...)" in str(
        caught.value.__cause__
    )


async def test_a_journal_may_be_apart_from_checkpoints_in_an_object_store(
    tmp_path: Path,
) -> None:
    service = Service()
    failures = [60]

    async def ask(number: int) -> int:
        return await service(number)

    def fail_once(square: int) -> int:
        if square == 3600 and failures:
            failures.clear()
            message = "stumbled"
            raise RuntimeError(message)
        return square

    env = environment(None, parallelism=1).enable_checkpointing(
        am.seconds(0.05), directory="memory://apart", journal_directory=tmp_path
    )
    stream = env.from_collection(list(range(100))).map_async(
        ask, concurrency=CONCURRENCY, journal=True, id=lambda number: number
    )
    results: list[int] = []
    stream.uid("ask").map(fail_once).sink_to(results.append)
    kept: list[Path] = []

    async with env.start() as job:
        while not kept:
            await asyncio.sleep(0.01)
            kept = list(tmp_path.rglob("log-*"))
        await job.result()
        assert job.restarts >= 1
    assert set(results) == {number * number for number in range(100)}
    assert service.keys.total() - 100 <= job.restarts * CONCURRENCY
    assert not list(tmp_path.rglob("log-*"))


async def test_a_restart_does_not_wait_for_a_damaged_journal_to_become_whole(
    tmp_path: Path,
) -> None:
    service = Service()

    def damage(square: int) -> int:
        if square != 50 * 50:
            return square
        for path in tmp_path.rglob("log-*/*.log"):
            segment = LogSegment(path.parent, int(path.stem))
            places = [place for place, _ in segment.entries()]
            with open(path, "r+b") as file:
                file.seek(places[0])
                file.write(b"#")
        message = "stumbled"
        raise RuntimeError(message)

    env = environment(tmp_path, parallelism=1)
    stream = env.from_collection(list(range(100))).map_async(
        lambda number: service(number),
        concurrency=CONCURRENCY,
        journal=True,
        id=lambda number: number,
    )
    stream.uid("ask").map(damage).sink_to(lambda _: None)
    with pytest.raises(JobFailedError) as caught:
        await env.execute("squares")
    assert isinstance(caught.value.__cause__, DamagedFileError)
    assert service.keys.total() <= 50 + 1 + CONCURRENCY * 4
    # And not because the strategy had enough.
    assert max(service.keys.values()) == 1


async def test_two_jobs_of_one_job_id_keep_no_finished_calls_in_one_directory(
    tmp_path: Path,
) -> None:
    """The second one would take those of the first for its own, and shut it out."""
    called, go = asyncio.Event(), asyncio.Event()
    asked: list[int] = []

    async def ask(number: int) -> int:
        asked.append(number)
        called.set()
        if len(asked) == 1:
            await go.wait()
        return number

    def pipeline(name: str) -> am.StreamExecutionEnvironment:
        env = am.StreamExecutionEnvironment().enable_checkpointing(
            am.seconds(0.05),
            directory=tmp_path / name,
            journal_directory=tmp_path / "journal",
        )
        stream = env.from_collection([1]).map_async(
            ask, journal=True, id=lambda number: number
        )
        stream.uid("ask").sink_to(lambda _: None)
        return env

    async with pipeline("a").start() as job:
        await called.wait()
        with pytest.raises(JobFailedError) as caught:
            await pipeline("b").execute()
        assert isinstance(caught.value.__cause__, StorageClaimedError)
        go.set()
        await job.result()
    await pipeline("b").execute()
    assert asked == [1, 1]


class Server:
    """An HTTP server that counts requests by their idempotency key."""

    def __init__(self) -> None:
        self.keys: Counter[str] = Counter()
        self.port = 0
        self._random = random.Random(5)

    async def __aenter__(self) -> Server:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")
                (key,) = (
                    line.partition(": ")[2]
                    for line in lines
                    if line.startswith("Idempotency-Key")
                )
                self.keys[key] += 1
                await asyncio.sleep(self._random.uniform(0.001, 0.02))
                body = lines[0].split()[1].encode()
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
                )
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


PROGRAM = """
import asyncio, sys
import aiomailbox as am

DIRECTORY, PORT = sys.argv[1], int(sys.argv[2])
WORKERS, RESTARTS = int(sys.argv[3]), int(sys.argv[4])


def note(text):
    with open(f"{DIRECTORY}/paid", "a") as file:
        file.write(f"{text}\\n")


class Client:
    async def open(self, context):
        self.free = []

    async def __call__(self, order) -> str:
        reader, writer = (
            self.free.pop()
            if self.free
            else await asyncio.open_connection("127.0.0.1", PORT)
        )
        key = am.current_call().idempotency_key
        writer.write(
            f"POST /{order['id']} HTTP/1.1\\r\\nIdempotency-Key: {key}\\r\\n\\r\\n".encode()
        )
        head = await reader.readuntil(b"\\r\\n\\r\\n")
        length = int(head.partition(b"Content-Length: ")[2].split()[0])
        body = await reader.readexactly(length)
        self.free.append((reader, writer))
        return body.decode()

    async def close(self):
        for _, writer in self.free:
            writer.close()


async def main():
    config = am.JobConfig(heartbeat_timeout=am.seconds(float(sys.argv[5])))
    env = am.StreamExecutionEnvironment(parallelism=2, config=config)
    if WORKERS:
        env.configure(deployment=am.Processes(WORKERS))
    env.enable_checkpointing(am.seconds(0.1), directory=f"{DIRECTORY}/checkpoints")
    if RESTARTS:
        env.configure(restart=am.restart.fixed_delay(RESTARTS, 0.01))
    else:
        env.configure(restart=am.restart.none())
    orders = env.from_source(am.FileSource(f"{DIRECTORY}/orders.jsonl"))
    paid = orders.map_async(Client(), concurrency=8, journal=True, id="id", ordered=False)
    paid.uid("pay").sink_to(note)
    await env.execute("pay", restore_from="latest")


if __name__ == "__main__":
    asyncio.run(main())
"""


COUNT = 600


def orders_in(directory: Path) -> None:
    lines = [f'{{"id": "order-{number}"}}\n' for number in range(COUNT)]
    (directory / "orders.jsonl").write_text("".join(lines))
    (directory / "program.py").write_text(textwrap.dedent(PROGRAM))


async def started(
    directory: Path,
    server: Server,
    workers: int,
    restarts: int = 0,
    silent_s: float = 50.0,
    *,
    hears: bool = False,
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        str(directory / "program.py"),
        str(directory),
        str(server.port),
        str(workers),
        str(restarts),
        str(silent_s),
        start_new_session=True,
        stderr=asyncio.subprocess.PIPE if hears else None,
    )


def check_paid(directory: Path, server: Server, crashes: int) -> None:
    assert len(server.keys) == COUNT
    assert server.keys.total() - COUNT <= crashes * CONCURRENCY
    # A function is no sink that commits: it may have been told more than once.
    rows = set((directory / "paid").read_text().split())
    assert rows == {f"/order-{number}" for number in range(COUNT)}


@pytest.mark.real_time
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_workers_that_die_or_stop_pay_each_call_once(
    tmp_path: Path, how: signal.Signals
) -> None:
    """One that is stopped is declared dead when it gives no sign of life, and killed."""
    orders_in(tmp_path)
    crashes = 0
    async with Server() as server:
        # Who is killed is missed at once, and may be twice; who is stopped is missed by
        # its silence, which is longer than a busy machine keeps its followers waiting.
        wanted, silent_s = (1, 8.0) if how == signal.SIGSTOP else (2, 50.0)
        child = await started(tmp_path, server, 2, restarts=5, silent_s=silent_s)
        while child.returncode is None:
            await asyncio.sleep(0.005)
            if crashes < wanted and server.keys.total() >= 150 * (crashes + 1):
                for worker in psutil.Process(child.pid).children(recursive=True):
                    if worker.net_connections():
                        worker.send_signal(how)
                crashes += 1
                paid = server.keys.total()
                while server.keys.total() <= paid + CONCURRENCY:
                    assert child.returncode is None, "it gave up"
                    await asyncio.sleep(0.05)
    assert child.returncode == 0
    assert crashes == wanted
    check_paid(tmp_path, server, crashes)


@pytest.mark.real_time
async def test_a_changed_byte_in_the_newest_file_repeats_no_call_in_silence(
    tmp_path: Path,
) -> None:
    orders_in(tmp_path)
    async with Server() as server:
        child = await started(tmp_path, server, workers=0)
        process = psutil.Process(child.pid)
        while True:
            while server.keys.total() < 200:
                assert child.returncode is None
                await asyncio.sleep(0.005)
            process.suspend()
            while process.status() != psutil.STATUS_STOPPED:
                await asyncio.sleep(0.001)
            logs = sorted(tmp_path.rglob("log-*/*.log"))
            newest = {path.parent: path for path in logs}.values()
            path = max(newest, key=lambda path: len(whole_entries(path)))
            if len(whole_entries(path)) > 1:
                break
            # It has just been begun.
            process.resume()
            await asyncio.sleep(0.005)
        os.kill(child.pid, signal.SIGKILL)
        await child.wait()
        made = server.keys.copy()
        first, *_ = whole_entries(path)
        whole = path.read_bytes()
        changed = bytearray(whole)
        changed[first + 9] ^= 1
        path.write_bytes(changed)
        # It ends, though it may restart: that would not repair the file.
        child = await started(tmp_path, server, workers=0, restarts=100, hears=True)
        _, said = await child.communicate()
        assert child.returncode == 1
        for words in ("DamagedFileError", str(path), "Delete it to make those calls"):
            assert words in said.decode()
        assert server.keys == made
        path.write_bytes(whole)
        child = await started(tmp_path, server, workers=0)
        assert await child.wait() == 0
    check_paid(tmp_path, server, 1)


def whole_entries(path: Path) -> list[int]:
    segment = LogSegment(path.parent, int(path.stem))
    return [place for place, _ in segment.entries()]
