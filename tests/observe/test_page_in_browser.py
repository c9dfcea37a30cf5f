"""The page of a job in a real Chromium: for long, by keyboard, and without a job."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

import aiomailbox as am
from aiomailbox.observe.dashboard import serving_dashboard
from tests.browsers import browser_page

pytestmark = [pytest.mark.browser, pytest.mark.real_time, pytest.mark.timeout(600)]

PROGRAM = """
import asyncio, importlib, sys
import aiomailbox as am

# The function is called as the module is.
importlib.import_module("aiomailbox.observe.dashboard")._LOOK_S = float(sys.argv[2])

async def rows():
    number = 0
    while True:
        yield number
        number += 1
        await asyncio.sleep(0.001)

async def call(number):
    await asyncio.sleep(0.02)
    return number

async def main():
    # There is no job before it is told so.
    await asyncio.to_thread(sys.stdin.readline)
    env = am.StreamExecutionEnvironment()
    calls = env.from_async_iterable(rows, name="rows").map_async(call, concurrency=8)
    keyed = calls.name("call").key_by(lambda number: number % 5)
    keyed.reduce(max).name("highest").sink_to(lambda number: None)
    async with env.start(sys.argv[3]) as job:
        await job.result()

am.run(main(), dashboard=int(sys.argv[1]))
"""


class Program:
    """A job with its page, in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        self.process = process
        self.address = process.stderr.readline().rpartition(" ")[2].strip()

    def start_its_job(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@contextmanager
def program(port: int, *, look_s: float, name: str) -> Iterator[Program]:
    command = [sys.executable, "-c", PROGRAM, str(port), str(look_s), name]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Program(process)
        finally:
            process.terminate()


async def test_neither_page_nor_server_grow_in_ten_thousand_updates() -> None:
    """The job runs on meanwhile, and every update is another snapshot."""
    with program(0, look_s=0.004, name="long") as it:
        it.start_its_job()
        server = psutil.Process(it.process.pid)
        async with browser_page(it.address) as page:
            session = await page.context.new_cdp_session(page)

            async def sizes_after(updates: int) -> dict[str, int]:
                while await page.evaluate("updates") < updates:
                    await asyncio.sleep(0.5)
                await session.send("HeapProfiler.collectGarbage")
                heap = await session.send("Runtime.getHeapUsage")
                counters = await session.send("Memory.getDOMCounters")
                return {
                    "heap": int(heap["usedSize"]),
                    "nodes": int(counters["nodes"]),
                    "listeners": int(counters["jsEventListeners"]),
                    "server": server.memory_info().rss,
                }

            # What is kept of the last minutes has its size by then.
            before = await sizes_after(1_000)
            after = await sizes_after(11_000)
            rows = await page.locator("#operators tbody tr").count()
    print(f"\nafter 1,000 updates {before}\nafter 11,000 updates {after}")
    assert rows == 4
    # What each update left behind would be there ten thousand times.
    assert after["heap"] - before["heap"] < 1_500_000
    assert after["nodes"] - before["nodes"] < 2_000
    assert after["listeners"] == before["listeners"]
    assert after["server"] - before["server"] < 4_000_000


async def test_it_waits_for_a_job_and_for_a_program_that_is_started_again() -> None:
    async with AsyncExitStack() as stack:
        with program(0, look_s=0.2, name="first") as first:
            page = await stack.enter_async_context(browser_page(first.address))
            await page.locator("#state", has_text="no job yet").wait_for()
            first.start_its_job()
            await page.locator("#job", has_text="first").wait_for()
        await page.locator("#connection", has_text="no connection").wait_for()
        port = int(first.address.rstrip("/").rpartition(":")[2])
        with program(port, look_s=0.2, name="second") as second:
            assert second.address == first.address
            second.start_its_job()
            await page.locator("#job", has_text="second").wait_for()
            assert await page.inner_text("#connection") == ""


async def test_it_is_used_by_keyboard_and_in_a_narrow_window() -> None:
    env = am.StreamExecutionEnvironment()
    env.from_async_iterable(rows, name="rows").sink_to(lambda row: None)
    async with (
        serving_dashboard(0, token="open sesame") as address,
        env.start("keys") as job,
        browser_page(address, viewport={"width": 400, "height": 800}) as page,
    ):
        await page.locator("#change").wait_for()
        focused = "document.activeElement.id || document.activeElement.className"
        way = []
        while not way or way[-1] != "token":
            await page.keyboard.press("Tab")
            way.append(await page.evaluate(focused))
            assert len(way) < 20, way
        # What is wider than the window is scrolled by keyboard, too.
        assert "graph" in way[:2], "before it the choice, if there are other jobs"
        assert "wide" in way
        await page.keyboard.type("wrong")
        # In a field it does nothing.
        await page.keyboard.press("Enter")
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        assert await page.inner_text("#answer") == ""
        assert not await page.locator("#sure").is_visible()
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.value") == "stop"
        await confirm(page, "Stop keys?", yes=True)
        await page.locator(
            "#answer", has_text="The token is missing or wrong"
        ).wait_for()
        assert job.state is am.JobState.RUNNING
        await page.focus("#token")
        await page.keyboard.press("Control+A")
        await page.keyboard.type("open sesame")
        for _ in ("path", "stop"):
            await page.keyboard.press("Tab")
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert await page.evaluate(outline) == "solid"
        await confirm(page, "Stop keys?", yes=False)
        assert job.state is am.JobState.RUNNING
        await page.focus("#path")
        await page.keyboard.type("/nowhere/at/all")
        await page.focus("button[value=savepoint]")
        await confirm(page, "savepoint of keys in /nowhere/at/all?", yes=False)
        await page.focus("button[value=cancel]")
        await confirm(page, "Cancel keys?", yes=False)
        assert job.state is am.JobState.RUNNING
        await page.focus("button[value=stop]")
        await confirm(page, "Stop keys?", yes=True)
        await page.locator("#state", has_text="finished").wait_for()
        assert await page.inner_text("#answer") == "Done."
        assert await page.locator("#change button:disabled").count() == 3
        await page.focus("#tree summary")
        await page.keyboard.press("Enter")
        await page.locator("#waits", has_text="job 'keys': finished").wait_for()
        wide = "document.documentElement.scrollWidth <= window.innerWidth"
        assert await page.evaluate(wide), "a narrow window scrolls sideways"


async def confirm(page: Any, question: str, *, yes: bool) -> None:
    """Press the button that has the focus, and answer what it asks, by keyboard."""
    await page.keyboard.press("Space")
    await page.locator("#sure p", has_text=question).wait_for()
    # Whoever presses Enter without reading has said no.
    assert await page.evaluate("document.activeElement.id") == "no"
    if yes:
        await page.keyboard.press("Shift+Tab")
    await page.keyboard.press("Enter")
    await page.locator("#sure").wait_for(state="hidden")


async def rows() -> AsyncIterator[int]:
    for number in range(1_000_000):
        yield number
        await asyncio.sleep(0.01)


async def test_what_is_there_stays_so_that_it_can_be_selected() -> None:
    env = am.StreamExecutionEnvironment()
    env.from_async_iterable(rows, name="rows").sink_to(lambda row: None)
    async with (
        serving_dashboard(0) as address,
        env.start("still"),
        browser_page(address) as page,
    ):
        await page.locator("#operators td").first.wait_for()
        await page.evaluate(
            "getSelection().selectAllChildren(document.querySelector('#operators td'));"
            "window.box = document.querySelector('#graph rect')"
        )
        count = await page.evaluate("updates")
        while await page.evaluate("updates") < count + 3:
            await asyncio.sleep(0.1)
        assert await page.evaluate("getSelection().toString()") == "rows"
        assert await page.evaluate("window.box.isConnected")


async def test_no_line_of_the_graph_crosses_a_box() -> None:
    env = am.StreamExecutionEnvironment()
    far = env.from_async_iterable(rows, name="far")
    near = env.from_async_iterable(rows, name="near")
    for step in ("one", "two"):
        near = near.map(abs).name(step)
        near.rebalance().map(str).sink_to(lambda row: None)
    near.union(far).map(abs).name("end").sink_to(lambda row: None)
    async with (
        serving_dashboard(0) as address,
        env.start("lines"),
        browser_page(address) as page,
    ):
        await page.locator("#graph rect").first.wait_for()
        crossed = await page.evaluate(CROSSED)
    assert crossed == []


def price(number: int) -> int:
    if number == 3:
        raise ValueError("order 3 has no price")
    return number


def failing(env: am.StreamExecutionEnvironment) -> None:
    stream = env.from_async_iterable(rows, name="rows").map(abs).name("clean")
    stream.map(price).name("price").uid("p").rebalance().sink_to(lambda row: None)


async def test_a_failed_job_says_at_the_top_why_and_its_box_is_red() -> None:
    env = am.StreamExecutionEnvironment()
    failing(env)
    async with serving_dashboard(0) as address:
        with pytest.raises(am.JobFailedError):
            await env.execute("broken")
        # Nobody has the job any more.
        gc.collect()
        async with browser_page(address) as page:
            await page.locator("#state", has_text="failed").wait_for()
            told = await page.inner_text("#failure")
            # The user's own error first; how the engine passed it on is folded.
            lines = [line for line in told.splitlines() if line]
            assert lines[1] == "ValueError: order 3 has no price"
            assert "raise_as" not in told
            await page.click("#failure summary")
            assert "raise_as" in await page.inner_text("#failure")
            # Nothing of it can be changed, and no time of it is shown that is none.
            assert await page.locator("#tasks th").all_inner_texts() == [
                "task",
                "state",
            ]
            heads = await page.locator("#operators th").all_inner_texts()
            assert "busy, backpressured" not in heads
            for text in ("ValueError: order 3 has no price", "in operator price (p)"):
                assert text in told
            assert "test_page_in_browser.py:" in told
            assert 'raise ValueError("order 3 has no price")' in told
            place = "document.querySelector('#{}').getBoundingClientRect().top"
            assert await page.evaluate(
                f"{place.format('failure')} < {place.format('graph')}"
            )
            colors = "getComputedStyle(document.querySelector('{}')).{}"
            red = await page.evaluate(colors.format("#failure h2", "color"))
            box = colors.format("#graph rect.failed", "stroke")
            assert await page.evaluate(box) == red
            assert await page.locator("#graph rect.row.failed").count() == 1
            assert await page.locator("#operators tr.failed").count() == 1
            body = await page.inner_text("body")
            assert "not there yet" not in body
            assert "the job failed" in await page.inner_text("#failures")


async def test_all_jobs_of_the_program_are_there_with_their_restarts() -> None:
    async with serving_dashboard(0) as address, browser_page(address) as page:
        first = am.StreamExecutionEnvironment()
        first.from_collection([1]).sink_to(lambda row: None)
        await first.execute("first")
        config = am.JobConfig(restart=am.restart.FixedDelayRestart(2, delay=0.01))
        env = am.StreamExecutionEnvironment(config=config)
        failing(env)
        with pytest.raises(am.JobFailedError):
            await env.execute("again")
        await page.locator("#job", has_text="again").wait_for()
        await page.locator("#state", has_text="failed").wait_for()
        followed = await page.locator("#failures td:nth-child(2)").all_inner_texts()
        assert followed == ["the job failed", "restart 2", "restart 1"]
        assert "restarted 2 times" in await page.inner_text("#facts")
        row = page.locator("#jobs tr", has=page.get_by_text("again", exact=True))
        told = (await row.first.inner_text()).split("\t")
        assert told[4:6] == ["2", "3"]
        # It began before it failed, however much later it is looked at.
        first_failure = page.locator("#failures tbody tr").last.locator("td").first
        assert told[2] <= await first_failure.inner_text()
        # One that has ended is looked at again.
        await page.get_by_role("button", name="first", exact=True).first.click()
        await page.locator("#job", has_text="first").wait_for()
        # Or from the top.
        names = await page.locator("#choice option").all_inner_texts()
        assert {"again – failed", "first – finished"} <= set(names)
        await page.select_option("#choice", label="again – failed")
        await page.locator("#job", has_text="again").wait_for()
        await page.select_option("#choice", label="first – finished")
        await page.locator("#job", has_text="first").wait_for()
        await page.locator("#state", has_text="finished").wait_for()
        assert not await page.locator("#failure").is_visible()


async def test_what_holds_the_job_up_is_the_same_in_box_row_and_sentence() -> None:
    env = am.StreamExecutionEnvironment()
    long = "a name that is so long that nobody reads it to its end, ever"
    limit = am.RateLimit(5, per=1.0, name="prices")
    stream = env.from_async_iterable(rows, name="rows").map(abs).name(long)
    stream.map_async(call, limit=limit).name("call").sink_to(lambda row: None)
    async with (
        serving_dashboard(0) as address,
        env.start("held"),
        browser_page(address) as page,
    ):
        await page.locator("#operators tr.holds").wait_for()
        # Of one update.
        said = await page.evaluate(HELD)
        assert said["sentence"] == said["title"]
        assert said["sentence"] == f"{said['name']} {said['row']}"
        assert said["dashed"] == 1
        # One task, with its operators.
        assert await page.locator("#graph rect:not(.row)").count() == 1
        assert await page.locator("#graph rect.row").count() == 4
        cell = page.locator("#operators td", has_text=long)
        assert await cell.get_attribute("title") == long
        assert await cell.evaluate("(one) => one.scrollWidth > one.clientWidth")
        texts = await page.locator("#graph text").all_text_contents()
        assert long not in texts
        titles = await page.locator("#graph title").all_text_contents()
        assert any(title.startswith(f"{long}\n") for title in titles)
        # As soon as there are two samples.
        line = page.locator("#lines div:not([hidden])", has_text="records in")
        await line.wait_for()
        assert "M" in await line.locator("path").last.get_attribute("d")
        heads = await page.locator("#operators th").all_inner_texts()
        assert not {"late", "dead letters"} & set(heads), "there are none"
        await page.click("#tree summary")
        await page.locator("#waits details").first.wait_for()
        assert "of the engine" in await page.inner_text("#waits")
        assert "<MailboxProcessor" not in await page.inner_text("#waits")
        assert "aiomailbox/task/" not in await page.inner_text("#waits")


def minute_late(row: int) -> int:
    # Every tenth record is far behind the others.
    return 1_000 * row - (60_000 if row % 10 == 9 else 0)


async def slow_call(row: int) -> int:
    await asyncio.sleep(0.05)
    if row % 7 == 3:
        raise ValueError(row)
    return row


def with_everything(directory: Path) -> am.StreamExecutionEnvironment:
    """A job of which every line has something to show."""
    env = am.StreamExecutionEnvironment().enable_checkpointing(
        am.seconds(1), directory=directory, mode=am.CheckpointingMode.AT_LEAST_ONCE
    )
    env.configure(latency_interval=am.millis(200))
    times = am.WatermarkStrategy.for_bounded_out_of_orderness(am.seconds(5))
    stream = env.from_async_iterable(rows, name="rows")
    timed = stream.assign_timestamps_and_watermarks(
        times.with_timestamp_assigner(minute_late)
    )
    lost = am.OutputTag[am.DeadLetter]("lost")
    called = timed.map_async(
        slow_call, concurrency=20, on_error=am.dead_letter(lost)
    ).name("call")
    called.get_side_output(lost).sink_to(lambda letter: None)
    keyed = called.key_by(lambda row: row % 3 and 1)
    windows = keyed.window(am.TumblingEventTimeWindows.of(am.seconds(10)))
    windows.aggregate(am.count()).name("sums").sink_to(lambda count: None)
    keyed.reduce(max).name("highest").sink_to(lambda row: None)
    return env


async def test_all_that_changed_in_the_last_minutes_has_a_line(tmp_path: Path) -> None:
    async with (
        serving_dashboard(0) as address,
        with_everything(tmp_path).start("lines"),
        browser_page(address) as page,
    ):
        heads = {
            "records in", "records out", "watermark lag", "latency, p99",
            "calls in flight", "state", "keys with state", "checkpoint took",
            "checkpoint size", "late records", "dead letters",
        }  # fmt: skip
        for head in heads:
            # A number, and at least two points of it.
            line = page.locator("#lines div:not([hidden])", has_text=head).first
            await line.wait_for(timeout=120_000)
            assert await line.locator("b").inner_text()
            assert "L" in await line.locator("path").last.get_attribute("d")
        shown = await page.locator("#lines div:not([hidden]) span").all_inner_texts()
        assert set(shown) == heads
        # Of each operator, too: how busy its task was, and its own numbers.
        times = page.locator("#operators td[data-head='busy, backpressured'] svg.times")
        assert await times.count() == 8
        assert {"busy", "pressed"} <= set(await times.first.evaluate(CLASSES))
        for head, name in [
            ("in", "call"), ("out", "call"), ("lag", "sums"),
            ("latency, p99", "sums"), ("in flight", "call"), ("state", "highest"),
            ("late", "sums"), ("dead letters", "call"), ("hot keys", "sums"),
        ]:  # fmt: skip
            row = page.locator(
                "#operators tr", has=page.get_by_text(name, exact=True)
            ).first
            path = row.locator(f"td[data-head='{head}'] svg.line path").last
            assert "M" in (await path.get_attribute("d") or ""), (head, name)
        # How many, and how many a second.
        row = page.locator("#operators tr", has=page.get_by_text("call", exact=True))
        told = await row.first.locator("td[data-head='in'] span").all_inner_texts()
        assert int(told[0].replace(",", "")) > 0
        assert told[1].endswith("/s")
        # All columns are there, and fit into a common window.
        assert await page.evaluate("window.innerWidth") == 1280
        wide = "document.querySelector('#operators').parentNode"
        assert await page.evaluate(f"{wide}.scrollWidth <= {wide}.clientWidth")
        # In a smaller one each operator is a card, and nothing scrolls sideways either.
        head = "getComputedStyle(document.querySelector('#operators td:nth-child(3)'),"
        for width in (1279, 1024, 700):
            await page.set_viewport_size({"width": width, "height": 800})
            assert await page.evaluate(f"{wide}.scrollWidth <= {wide}.clientWidth")
            assert "busy" in await page.evaluate(f"{head} '::before').content")
        await page.set_viewport_size({"width": 1280, "height": 720})
        # Windows are not in the store, whose size says nothing of them.
        row = page.locator("#operators tr", has=page.get_by_text("sums", exact=True))
        assert await row.first.locator("td[data-head='state']").inner_text() == ""
        # Nothing is loaded from elsewhere, and no script stands in the page.
        asked = await page.evaluate(
            "performance.getEntriesByType('resource').map((one) => one.name)"
        )
        assert asked
        assert all(one.startswith((address, "data:")) for one in asked), asked
        assert await page.locator("script:not([src])").count() == 0


CLASSES = """(svg) => [...svg.children].map((one) => one.getAttribute("class"))"""


async def test_rows_of_tables_are_cards_where_it_is_narrow() -> None:
    env = am.StreamExecutionEnvironment()
    stream = env.from_async_iterable(rows, name="rows")
    for number in range(48):
        stream = stream.map(abs).name(f"step {number}")
    stream.sink_to(lambda row: None)
    async with (
        serving_dashboard(0) as address,
        env.start("fifty"),
        browser_page(address, viewport={"width": 390, "height": 844}) as page,
    ):
        await page.locator("#operators td").first.wait_for()
        assert await page.locator("#operators tbody tr").count() == 50
        sizes = await page.evaluate(
            "[...document.querySelectorAll('td')]"
            ".map((one) => one.getBoundingClientRect().right)"
        )
        assert max(sizes) <= 390
        head = "getComputedStyle(document.querySelector('#operators td:nth-child(2)'),"
        assert "waits for" in await page.evaluate(f"{head} '::before').content")
        wide = "document.documentElement.scrollWidth <= window.innerWidth"
        assert await page.evaluate(wide)


async def call(row: int) -> int:
    return row


HELD = """(() => {
  const row = document.querySelector("#operators tr.holds");
  const name = row.cells[0].textContent;
  const titles = [...document.querySelectorAll("#graph rect.row.holds")]
    .map((rect) => rect.parentNode.querySelector("title").textContent.split("\\n").pop());
  return { name, row: row.cells[1].textContent, title: titles[0],
    sentence: document.querySelector("#bottleneck").textContent,
    dashed: document.querySelectorAll("#graph rect.bottleneck").length };
})()"""

# All boxes in which a line is anywhere but at their left and right sides.
CROSSED = """
[...document.querySelectorAll("#graph path")].flatMap((line) => {
  const boxes = [...document.querySelectorAll("#graph rect")].map((rect) => rect.getBBox());
  const found = [];
  for (let at = 0; at < line.getTotalLength(); at += 3) {
    const { x, y } = line.getPointAtLength(at);
    for (const box of boxes)
      if (x > box.x + 1 && x < box.x + box.width - 1
          && y > box.y && y < box.y + box.height) found.push([x, y]);
  }
  return found;
})
"""
