"""A real browser: the system's Chromium, which asks nobody anything."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

_OPTIONS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


def place_of_pictures(tmp_path: Path) -> Path:
    """Return where a test saves a picture: with the docs, if it is told to."""
    folder = Path(__file__).parents[1] / "docs" / "pictures"
    return folder if os.environ.get("AIOMAILBOX_PICTURES") else tmp_path


@asynccontextmanager
async def browser_page(address: str, **options: Any) -> AsyncIterator[Any]:
    """Open a page in a browser of its own; it may say no error but of the network."""
    from playwright.async_api import async_playwright

    assert CHROMIUM is not None, "install a Chromium, as with apt-get install chromium"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=_OPTIONS
        )
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
        # What the server refuses, or a server that is gone, is said so, too.
        assert not [error for error in errors if "Failed to load" not in error], errors
