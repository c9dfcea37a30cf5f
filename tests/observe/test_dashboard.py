"""The page of a running job: who may read, who may change, and what a browser shows."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import aiomailbox as am
from aiomailbox.observe import dashboard, serving_dashboard
from aiomailbox.runtime import JobSnapshot

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(120)]

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


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
    async with httpx.AsyncClient(transport=transport, base_url="http://job") as client:
        yield client


async def test_it_shows_the_jobs_snapshot_and_its_files() -> None:
    env = am.StreamExecutionEnvironment()
    pipeline(env)
    async with env.start("shop") as job, client_of(dashboard(job)) as client:
        await asyncio.sleep(0.3)
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


async def test_a_wrong_token_changes_nothing_and_the_right_one_does() -> None:
    env = am.StreamExecutionEnvironment()
    pipeline(env)
    async with (
        env.start() as job,
        client_of(dashboard(job, token="secret")) as client,
    ):
        await asyncio.sleep(0.2)
        for wrong in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "secret"},
        ):
            assert (await client.post("/stop", headers=wrong)).status_code == 401
        right = {"authorization": "Bearer secret"}
        refused = await client.post("/savepoint?path=/tmp/x", headers=right)
        assert refused.status_code == 409
        assert "takes no checkpoints" in refused.text
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
        httpx.AsyncClient(base_url=address) as client,
    ):
        seen = []
        async with client.stream("GET", "events") as response:
            async for line in response.aiter_lines():
                if line:
                    seen.append(JobSnapshot.from_json(line.removeprefix("data: ")))
                if len(seen) == 3:
                    break
    assert seen[0].taken_at_ms < seen[1].taken_at_ms < seen[2].taken_at_ms


PROGRAM = """
import asyncio, sys
import aiomailbox as am

async def hang(number):
    await asyncio.sleep(3600)

async def main():
    env = am.StreamExecutionEnvironment()
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
            answer = httpx.get(f"{address}snapshot")
            snapshot = answer.json() if answer.is_success else {}
        assert snapshot["job"] == "hung"
        os.kill(program.pid, signal.SIGUSR1)
        told = program.stderr.readline()
        assert told == "job 'hung': running\n"
        signalled = [program.stderr.readline().strip() for _ in range(8)]
        page = httpx.get(f"{address}await-tree").text
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


@asynccontextmanager
async def browser_page(address: str, **options: Any) -> AsyncIterator[Any]:
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=[
                "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                "--disable-background-networking", "--disable-component-update",
                "--disable-sync", "--enable-precise-memory-info",
            ],
        )  # fmt: skip
        page = await browser.new_page(**options)
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on(
            "console",
            lambda said: errors.append(said.text) if said.type == "error" else None,
        )
        await page.goto(address)
        yield page
        await browser.close()
        assert [error for error in errors if "ERR_" not in error] == []


needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_browser_shows_the_running_job(scheme: str, tmp_path: Path) -> None:
    env = am.StreamExecutionEnvironment()
    pipeline(env)
    size = {"width": 1280, "height": 1500}
    async with (
        serving_dashboard(0) as address,
        env.start("shop"),
        browser_page(address, color_scheme=scheme, viewport=size) as page,
    ):
        await page.wait_for_selector("#bottleneck:not([hidden])", timeout=30_000)
        await asyncio.sleep(2)
        assert await page.inner_text("#state") == "running"
        why = await page.inner_text("#bottleneck")
        names = await page.locator("#graph text").all_text_contents()
        assert {"orders", "clean", "price", "highest"} <= set(names)
        rows = await page.locator("#operators tr").count()
        calls = await page.locator("#calls tr").count()
        # By keyboard.
        await page.focus("#tree summary")
        await page.keyboard.press("Enter")
        await page.locator("#tree pre", has_text="task").wait_for()
        await page.keyboard.press("Enter")
        folder = PICTURES if os.environ.get("AIOMAILBOX_PICTURES") else tmp_path
        await page.screenshot(path=folder / f"dashboard-{scheme}.png")
        await page.set_viewport_size({"width": 400, "height": 800})
        wide = await page.evaluate(
            "document.documentElement.scrollWidth <= window.innerWidth"
        )
    assert "price waits for limiter prices" in why
    assert rows == 1 + 7
    assert calls > 1
    assert wide, "a narrow window scrolls sideways"


@needs_chromium
async def test_a_page_goes_on_through_a_restart_of_the_job() -> None:
    failed = False

    def fail_once(number: int) -> int:
        nonlocal failed
        if number > 20 and not failed:
            failed = True
            raise ConnectionError("the network is gone <b>&")
        return number

    async def slowly() -> AsyncIterator[int]:
        for number in range(100_000):
            yield number
            await asyncio.sleep(0.05)

    env = am.StreamExecutionEnvironment()
    env.set_restart_strategy(am.restart.fixed_delay(2, 0.5))
    env.from_async_iterable(slowly).map(fail_once).sink_to(lambda number: None)
    async with (
        serving_dashboard(0) as address,
        env.start("again"),
        browser_page(address) as page,
    ):
        again = page.locator("#facts", has_text="again 1 times")
        await again.wait_for(timeout=60_000)
        assert await page.inner_text("#state") in {"running", "restarting"}
        failures = await page.inner_text("#failures")
    # As text, whatever it looks like.
    assert "the network is gone <b>&" in failures


@needs_chromium
async def test_ten_thousand_updates_do_not_let_a_page_grow() -> None:
    env = am.StreamExecutionEnvironment()
    pipeline(env)
    async with (
        serving_dashboard(0) as address,
        env.start("shop") as job,
        browser_page(address) as page,
    ):
        await page.wait_for_selector("#operators td")
        session = await page.context.new_cdp_session(page)
        snapshot = job.snapshot().to_json().decode()

        async def nodes_after(count: int) -> int:
            await page.evaluate(
                "([text, count]) => { const job = JSON.parse(text);"
                "for (let n = 0; n < count; n++) { job.duration_s = n;"
                "window.render(job); } }",
                [snapshot, count],
            )
            await session.send("HeapProfiler.collectGarbage")
            counters = await session.send("Memory.getDOMCounters")
            return int(counters["nodes"])

        few = await nodes_after(100)
        many = await nodes_after(10_000)
    # Ten thousand times some hundred nodes would be millions.
    assert many < few + 5_000
