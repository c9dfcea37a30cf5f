"""The page of a running job: who may read, who may change, and what a browser shows."""

from __future__ import annotations

import asyncio
import io
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

import aiomailbox as am
from aiomailbox.observe.dashboard import dashboard, serving_dashboard
from aiomailbox.runtime.job_snapshot import JobSnapshot
from tests.browsers import CHROMIUM, browser_page

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(120)]

# A busy machine takes its time to answer.
TIMEOUT_S = 60


async def call(number: int) -> int:
    await asyncio.sleep(0.05)
    if number % 97 == 5:
        raise ValueError(f"no price for {number}")
    return number


async def numbers() -> AsyncIterator[int]:
    for number in range(10_000_000):
        yield number
        if number % 64 == 0:
            await asyncio.sleep(0)


def pipeline(env: am.StreamExecutionEnvironment) -> None:
    orders = env.from_async_iterable(numbers, name="orders")
    limit = am.RateLimit(60, per=1.0, name="prices")
    priced = (
        orders.map(abs)
        .name("clean")
        .map_async(call, concurrency=16, limit=limit, on_error=am.skip)
    )
    keyed = priced.name("price").key_by(lambda number: number % 5)
    keyed.reduce(max).name("highest").set_parallelism(2).sink_to(lambda number: None)
    orders.filter(lambda number: number % 2).name("odd").rebalance().sink_to(
        lambda number: None
    )


@asynccontextmanager
async def client_of(app: Any, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=app, **options)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost:8081"
    ) as client:
        yield client


async def test_it_shows_the_jobs_snapshot_and_its_files() -> None:
    env = am.StreamExecutionEnvironment()
    pipeline(env)
    async with env.start("shop") as job, client_of(dashboard(job)) as client:
        while job.state is not am.JobState.RUNNING:
            await asyncio.sleep(0.01)
        answer = await client.get("/snapshot")
        snapshot = JobSnapshot.from_json(answer.content)
        assert snapshot.job == "shop"
        assert {one.name for one in snapshot.operators} >= {"orders", "price"}
        page = await client.get("/")
        assert page.headers["content-type"].startswith("text/html")
        assert "default-src 'self'" in page.headers["content-security-policy"]
        for name in ("page.js", "page.css"):
            assert name in page.text
            assert (await client.get(f"/{name}")).status_code == 200
        assert (await client.get("/../dashboard.py")).status_code == 404
        tree = (await client.get("/await-tree")).text
        assert tree.startswith("job 'shop': running")


async def test_without_a_token_nothing_can_be_changed() -> None:
    env = am.StreamExecutionEnvironment()
    pipeline(env)
    async with env.start() as job, client_of(dashboard(job)) as client:
        for way in ("stop", "cancel", "savepoint"):
            assert (await client.post(f"/{way}")).status_code == 403
            assert (await client.get(f"/{way}")).status_code == 404
        assert job.state in {am.JobState.CREATED, am.JobState.RUNNING}


async def test_a_wrong_token_changes_nothing_and_the_right_one_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(given: bytes, wanted: bytes) -> bool:
        compared.append((given, wanted))
        return given == wanted

    # In a time that does not say how much of it was right.
    monkeypatch.setattr("hmac.compare_digest", compare)
    env = am.StreamExecutionEnvironment()
    env.from_async_iterable(numbers).map(abs).sink_to(lambda number: None)
    async with (
        env.start() as job,
        client_of(dashboard(job, token="secret")) as client,
    ):
        while job.state is not am.JobState.RUNNING:
            await asyncio.sleep(0.01)
        for wrong in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "secret"},
            {"authorization": "Bearer secre"},
            # What a browser sends by itself is no token.
            {"cookie": "token=secret"},
        ):
            answer = await client.post("/stop?token=secret", headers=wrong)
            assert answer.status_code == 401
        assert len(compared) == 5
        right = {"authorization": "Bearer secret"}
        refused = await client.post("/savepoint?path=/tmp/x", headers=right)
        assert refused.status_code == 409
        assert "checkpointing is not enabled" in refused.text
        assert job.state is am.JobState.RUNNING
        stopped = await client.post("/stop", headers=right)
        assert stopped.json()["state"] == "finished"
        # A job that has ended stays to be seen, and cannot be stopped any more.
        assert (await client.get("/snapshot")).json()["state"] == "finished"
    with pytest.raises(am.InvalidArgumentError, match="token"):
        dashboard(job, token="")


async def test_another_machine_reads_only_what_it_may() -> None:
    env = am.StreamExecutionEnvironment()
    pipeline(env)
    far = ("192.0.2.7", 1234)
    async with env.start() as job:
        async with client_of(dashboard(job), client=far) as client:
            assert (await client.get("/snapshot")).status_code == 403
            assert (await client.get("/")).status_code == 403
        app = dashboard(job, allow_remote=True)
        async with client_of(app, client=far) as client:
            assert (await client.get("/snapshot")).status_code == 200


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("localhost:8081", 200),
        ("127.0.0.1", 200),
        ("[::1]:8081", 200),
        ("job.localhost", 200),
        ("evil.example", 403),
        ("evil.example:8081", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example:80", 403),
        ("192.0.2.7", 403),
    ],
)
async def test_a_strangers_name_for_this_machine_is_refused(
    host: str, code: int
) -> None:
    """What a page of a stranger would use, whose name means this machine of late."""
    env = am.StreamExecutionEnvironment()
    env.from_collection([1]).sink_to(lambda number: None)
    async with env.start() as job:
        asked = {"host": host}
        async with client_of(dashboard(job, token="secret")) as client:
            for path in ("/", "/snapshot", "/await-tree"):
                assert (await client.get(path, headers=asked)).status_code == code
            right = {**asked, "authorization": "Bearer secret"}
            answer = await client.post("/savepoint", headers=right)
            assert answer.status_code == (409 if code == 200 else 403)
        app = dashboard(job, allow_remote=True)
        async with client_of(app) as client:
            assert (await client.get("/snapshot", headers=asked)).status_code == 200


async def test_the_page_of_a_stranger_may_neither_read_nor_ask() -> None:
    """A browser asks before it sends a token for somebody else's page."""
    env = am.StreamExecutionEnvironment()
    env.from_collection([1]).sink_to(lambda number: None)
    async with env.start() as job, client_of(dashboard(job, token="s")) as client:
        origin = {"origin": "https://evil.example"}
        ask = {
            **origin,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization",
        }
        for answer in (
            await client.get("/snapshot", headers=origin),
            await client.options("/stop", headers=ask),
        ):
            assert not [
                name for name in answer.headers if name.startswith("access-control-")
            ]
        assert answer.is_error
        answer = await client.get("/snapshot")
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


async def test_it_is_mounted_below_a_path() -> None:
    from starlette.applications import Starlette

    app = Starlette()
    env = am.StreamExecutionEnvironment()
    env.from_collection([1]).sink_to(lambda number: None)
    async with env.start("mounted") as job:
        app.mount("/job", dashboard(job))
        async with client_of(app) as client:
            answer = await client.get("/job", follow_redirects=True)
            assert answer.url.path == "/job/"
            assert "page.js" in answer.text
            snapshot = (await client.get("/job/snapshot")).json()
    assert snapshot["job"] == "mounted"


async def test_before_there_is_a_job_it_says_so_and_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("aiomailbox.observe.history.held_jobs", list)
    async with (
        serving_dashboard(0) as address,
        httpx.AsyncClient(base_url=address, timeout=TIMEOUT_S) as client,
    ):
        assert (await client.get("")).status_code == 200
        answer = await client.get("snapshot")
        assert (answer.status_code, answer.text) == (
            404,
            "No job has been started yet.",
        )
        async with client.stream("GET", "events") as response:
            lines = response.aiter_lines()
            while (line := await anext(lines)) != "event: waiting":
                assert "version" not in line


async def test_a_job_that_has_ended_stays_to_be_seen_and_is_not_ended_again() -> None:
    env = am.StreamExecutionEnvironment()
    env.from_collection([1]).sink_to(lambda number: None)
    async with env.start("over") as job:
        await job.result()
    right = {"authorization": "Bearer secret"}
    async with client_of(dashboard(job, token="secret")) as client:
        for way in ("stop", "cancel"):
            answer = await client.post(f"/{way}", headers=right)
            assert answer.json()["state"] == "finished"
        refused = await client.post("/savepoint?path=/nowhere", headers=right)
        assert refused.status_code == 409
        assert (await client.get("/await-tree")).text.startswith("job 'over': finished")
    assert job.bottleneck() is None
    assert "over finished" in job._repr_html_()


def test_a_program_whose_port_is_taken_does_not_begin() -> None:
    begun: list[int] = []

    async def main() -> None:
        begun.append(1)

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            am.InvalidArgumentError, match=f"port {port}.*Choose another"
        ):
            am.run(main(), dashboard=port)
    assert begun == []


async def test_a_job_elsewhere_is_shown_by_what_it_tells() -> None:
    """As one inside Spark, whose driver is told a snapshot a second."""
    env = am.StreamExecutionEnvironment()
    env.from_collection(range(3)).map(abs).name("far").sink_to(lambda number: None)
    seen = am.observe.LatestSnapshot()
    registry = CollectorRegistry()
    am.observe.prometheus(seen, registry)
    out = io.StringIO()
    async with (
        am.progress(seen, stream=out),
        client_of(dashboard(seen, token="secret")) as client,
    ):
        assert (await client.get("/snapshot")).status_code == 404
        assert registry.get_sample_value("aiomailbox_job_restarts") is None
        async with env.start("spark") as job:
            await job.result()
            # Over a wire, and without the job.
            seen(JobSnapshot.from_json(job.snapshot().to_json()))
        told = JobSnapshot.from_json((await client.get("/snapshot")).content)
        assert (told.job, told.state) == ("spark", "finished")
        assert (await client.get("/await-tree")).text == job.await_tree()
        right = {"authorization": "Bearer secret"}
        refused = await client.post("/cancel", headers=right)
        assert (refused.status_code, "another program" in refused.text) == (409, True)
    labels = {"job": "spark", "operator": "far", "uid": ""}
    name = "aiomailbox_operator_num_records_in_total"
    # Whoever asks for one number after the other gets them from one look.
    while registry.get_sample_value(name, labels) is None:
        await asyncio.sleep(0.02)
    assert registry.get_sample_value(name, labels) == 3
    assert out.getvalue().startswith("spark finished, 3 of 3 rows read (100%)")


async def test_a_taken_port_and_an_open_address_are_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(am.InvalidArgumentError, match=f"port {port}"):
            async with serving_dashboard(port):
                pass
    with pytest.raises(am.InvalidArgumentError, match="host"):
        async with serving_dashboard(0, host="0.0.0.0"):
            pass


async def test_events_come_while_the_job_runs() -> None:
    env = am.StreamExecutionEnvironment()
    pipeline(env)
    async with (
        serving_dashboard(0) as address,
        env.start("shop"),
        httpx.AsyncClient(base_url=address, timeout=TIMEOUT_S) as client,
    ):
        seen: list[JobSnapshot] = []
        while len(seen) < 3:
            # An answer ends after some seconds, and whoever looks asks again.
            async with client.stream("GET", "events") as response:
                async for line in response.aiter_lines():
                    if line.startswith('data: {"version"'):
                        seen.append(JobSnapshot.from_json(line.removeprefix("data: ")))
                    if len(seen) == 3:
                        break
    assert seen[0].taken_at_ms < seen[1].taken_at_ms < seen[2].taken_at_ms


SERVICE = """
from contextlib import asynccontextmanager
from starlette.applications import Starlette
import aiomailbox as am

@asynccontextmanager
async def lifespan(app):
    env = am.StreamExecutionEnvironment()
    inbox = am.Inbox()
    env.from_source(inbox).sink_to(print)
    async with env.start("shop") as job:
        app.mount("/job", am.observe.dashboard(job))
        await inbox.put("put before")
        yield
        await job.stop()
    print(job.state.value)

app = Starlette(lifespan=lifespan)
"""


async def test_an_open_page_does_not_keep_a_server_from_its_end(
    tmp_path: Path,
) -> None:
    """uvicorn waits for open responses, as long as they last, before the lifespan ends."""
    (tmp_path / "shop.py").write_text(SERVICE)
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "uvicorn", "shop:app"),
        *("--port", "0", "--no-access-log"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert server.stderr is not None
    try:
        line = b""
        while b"running on" not in line:
            line = await server.stderr.readline()
            assert line, "it has ended"
        address = re.search(r"http://\S+", line.decode())
        assert address is not None
        seen = 0
        async with (
            asyncio.timeout(60),
            httpx.AsyncClient(base_url=address[0], timeout=60) as client,
            client.stream("GET", "/job/events") as response,
        ):
            async for text in response.aiter_lines():
                if text.startswith("data: "):
                    seen += 1
                    if seen == 1:
                        server.send_signal(signal.SIGTERM)
        said, _ = await server.communicate()
    finally:
        with suppress(ProcessLookupError):
            server.kill()
        await server.wait()
    # It has ended by itself, after the job: uvicorn repeats the signal that it got.
    assert server.returncode == -signal.SIGTERM
    assert said.decode().split("\n") == ["put before", "finished", ""]
    assert seen > 1


PROGRAM = """
import asyncio, sys
import aiomailbox as am

async def hang(number):
    return await asyncio.sleep(3600)

async def main():
    # What it says is read line by line, and on a busy machine anything may hold a loop.
    env = am.StreamExecutionEnvironment().configure(stall_threshold=None)
    env.from_collection([1, 2]).map_async(hang).name("hangs").sink_to(print)
    async with env.start("hung") as job:
        await job.result()

am.run(main(), dashboard=0)
"""


def test_a_program_serves_its_page_and_tells_on_a_signal_what_it_awaits() -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stderr=subprocess.PIPE, text=True
    )
    assert program.stderr is not None
    try:
        address = program.stderr.readline().rpartition(" ")[2].strip()
        snapshot: dict[str, Any] = {}
        while not snapshot.get("tasks"):
            answer = httpx.get(f"{address}snapshot", timeout=TIMEOUT_S)
            snapshot = answer.json() if answer.is_success else {}
        assert snapshot["job"] == "hung"
        await_tree = f"{address}await-tree"
        while "attempt 1 for 2" not in httpx.get(await_tree, timeout=TIMEOUT_S).text:
            pass
        os.kill(program.pid, signal.SIGUSR1)
        told = program.stderr.readline()
        assert told == "job 'hung': running\n"
        signalled = [program.stderr.readline().strip() for _ in range(8)]
        page = httpx.get(await_tree, timeout=TIMEOUT_S).text
        shown = [line.strip() for line in page.splitlines()]
        for lines in (signalled, shown):
            calls = [line for line in lines if line.startswith("attempt 1 for")]
            assert len(calls) == 2
            assert calls[0].startswith("attempt 1 for 1 waits ")
            # Where the user's function stands.
            assert calls[0].endswith(" s for its function at <string>:6")
            assert calls[1].startswith("attempt 1 for 2 waits ")
    finally:
        program.send_signal(signal.SIGINT)
        program.wait(timeout=60)
        program.stderr.close()


SHORT = """
import asyncio, importlib, sys
import aiomailbox as am

# Pages stay open until it ends. The function is called as the module is.
importlib.import_module("aiomailbox.observe.dashboard")._STREAM_S = 100.0

async def main():
    # It has to say nothing, and on a busy machine anything may hold a loop.
    env = am.StreamExecutionEnvironment().configure(stall_threshold=None)
    inbox = am.Inbox()
    env.from_source(inbox).sink_to(print)
    async with env.start("short") as job:
        # Until a page is open.
        await asyncio.to_thread(sys.stdin.readline)
        inbox.close()
        await job.result()

am.run(main(), dashboard=0)
"""


def test_a_program_ends_in_silence_while_pages_are_open() -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", SHORT],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stderr is not None
    try:
        address = program.stderr.readline().rpartition(" ")[2].strip()
        with (
            httpx.Client(base_url=address, timeout=TIMEOUT_S) as client,
            client.stream("GET", "events") as one,
            client.stream("GET", "events") as another,
        ):
            for response in (one, another):
                lines = response.iter_lines()
                # The second one: the stream waits for the next look by then.
                for _ in range(2):
                    while not next(lines).startswith('data: {"version"'):
                        pass
            _, said = program.communicate("\n", timeout=TIMEOUT_S)
    finally:
        program.kill()
        program.wait()
    assert said == ""
    assert program.returncode == 0


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
async def test_a_browser_shows_the_running_job() -> None:
    """More of it is in the session `browser`."""
    env = am.StreamExecutionEnvironment()
    pipeline(env)
    async with (
        serving_dashboard(0) as address,
        env.start("shop"),
        browser_page(address) as page,
    ):
        await page.locator("#state", has_text="running").wait_for()
        names = await page.locator("#graph text").all_text_contents()
        assert {"orders", "clean", "price", "highest"} <= set(names)
