"""The demo on its page in a real Chromium: running, held up, and started again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.observe.dashboard import serving_dashboard
from tests.browsers import browser_page, place_of_pictures

Load = Callable[[str], ModuleType]
SIZE = {"width": 1280, "height": 900}

pytestmark = [pytest.mark.browser, pytest.mark.real_time, pytest.mark.timeout(300)]


@pytest.fixture
def demo(load_example: Load) -> Any:
    return load_example("flight_delays")


@asynccontextmanager
async def page_of(job: Any, **options: Any) -> AsyncIterator[Any]:
    """Show what a coroutine runs, which is cancelled at the end."""
    async with serving_dashboard(0) as address:
        task = asyncio.get_running_loop().create_task(job)
        try:
            async with browser_page(address, viewport=SIZE, **options) as page:
                yield page
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def number_in(page: Any, operator: str, head: str) -> int:
    """Return a number of the table of operators; -1 while it is not there."""
    line = page.locator("#operators tr", has=page.get_by_text(operator, exact=True))
    if not await line.count():
        return -1
    cell = line.first.locator(f"td[data-head='{head}']")
    if not await cell.count():
        return -1
    # Behind it is how many a second.
    told = (await cell.inner_text()).split() or ["-1"]
    return int(told[0].replace(",", ""))


async def grown(page: Any, operator: str, head: str, beyond: int) -> int:
    while (found := await number_in(page, operator, head)) <= beyond:
        await asyncio.sleep(0.2)
    return found


async def picture(page: Any, folder: Path, name: str) -> None:
    await page.locator("#lines div:not([hidden])", has_text="records in").wait_for()
    # A page that has been changed is drawn a moment later.
    await page.evaluate("new Promise((done) => requestAnimationFrame(done))")
    await page.screenshot(path=folder / f"{name}.png", full_page=True)


async def test_the_running_demo_in_light_and_dark(
    demo: Any, spark: Any, tmp_path: Path
) -> None:
    flights = demo.read_flights(spark, tmp_path / "unpacked")
    folder = place_of_pictures(tmp_path)
    job = demo.run(flights, tmp_path / "out", quiet=True)
    async with page_of(job, color_scheme="light") as page:
        read = await grown(page, "flights", "out", 60_000)
        assert await page.inner_text("#state") == "running"
        names = set(await page.locator("#graph text").all_text_contents())
        assert {"flights", "weather", "filter", "days", "ParquetSink"} <= names
        # None are while Spark is waited for.
        await grown(page, "weather", "in flight", 0)
        assert await page.locator("#calls tbody tr").count() > 1
        # Seconds of event time: windows of 2013 have been closed.
        marks = page.locator("#operators td[data-head='watermark (UTC)']")
        assert any(mark.startswith("2013-") for mark in await marks.all_inner_texts())
        await picture(page, folder, "dashboard-light")
        await page.emulate_media(color_scheme="dark")
        back = "getComputedStyle(document.body).backgroundColor"
        assert await page.evaluate(back) == "rgb(21, 24, 28)"
        await picture(page, folder, "dashboard-dark")
        assert await grown(page, "flights", "out", read) > read


async def test_the_demo_with_a_slow_service_names_its_bottleneck(
    demo: Any, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "WeatherService", partial(demo.WeatherService, 0.5))
    flights = demo.read_flights(spark, tmp_path / "unpacked")
    job = demo.run(flights, tmp_path / "out", quiet=True)
    async with page_of(job) as page:
        await grown(page, "flights", "out", 1_000)
        sentence = page.locator("#bottleneck", has_text="weather waits for its calls")
        await sentence.wait_for(timeout=120_000)
        assert "(128 at once)" in await sentence.inner_text()
        assert await page.locator("#graph rect.bottleneck").count() == 1
        row = page.locator("#graph g", has=page.locator("rect.row.holds"))
        assert "weather" in await row.locator("text").all_text_contents()
        await picture(page, place_of_pictures(tmp_path), "dashboard-bottleneck")


async def test_the_page_goes_on_through_a_restart_of_the_demo(
    demo: Any, spark: Any, tmp_path: Path
) -> None:
    """A month of flights, of which one cannot be read at first."""
    month = demo.read_flights(spark, tmp_path / "unpacked").where("month(actual) = 1")
    seen: list[Any] = []

    def fail_once(flight: Any) -> Any:
        seen.append(None)
        if len(seen) == 20_000:
            raise ConnectionError("the network is gone <b>&")
        return flight

    async def run() -> None:
        env = am.StreamExecutionEnvironment()
        env.configure(restart=am.restart.fixed_delay(2, 1.0))
        source = am.SparkSource(demo.as_they_left(month), splits="ordered")
        read = env.from_source(source, demo.strategy(), name="flights").map(fail_once)
        read.name("check").through(demo.daily_delays).sink_to(lambda day: None)
        async with env.start("january") as job:
            await job.result()
            await asyncio.Event().wait()

    async with page_of(run()) as page:
        again = page.locator("#facts", has_text="restarted once")
        await again.wait_for(timeout=120_000)
        await page.locator("#state", has_text="finished").wait_for(timeout=120_000)
        failures = page.locator("#failures tbody tr")
        assert await failures.count() == 1
        texts = await failures.locator("td").all_inner_texts()
        # All of it was read once more, and the days are there.
        assert await number_in(page, "days", "out") >= 3 * 30
        assert await page.inner_text("#connection") == ""
    assert texts[1:3] == ["restart 1", "check"]
    # As text, whatever it looks like.
    assert "the network is gone <b>&" in texts[3]
    assert len(seen) == 20_000 + await asyncio.to_thread(month.count)
