"""Debian's Chromium, driven by playwright: pages whose faults fail the test, and pictures of them."""

import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PICTURES = Path(__file__).parents[2] / "build/playground"


@asynccontextmanager
async def browsing() -> AsyncGenerator["Browser"]:
    """A browser while the block runs; the test is skipped where there is none."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: `make e2e` installs Debian's where it may")
    api = pytest.importorskip("playwright.async_api", reason="playwright is not installed: run `make e2e`")
    async with api.async_playwright() as playwright:
        # Its sandbox needs what containers and the superuser do not have; it sees no page but ours.
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            await browser.close()


def note_faults(page: "Page", faults: list[str]) -> None:
    """Put into a list what goes wrong in a page: errors of its code, what its policy forbids, what cannot be fetched."""
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda said: faults.append(said.text) if said.type in ("error", "warning") else None)


async def take_picture(page: "Page", name: str) -> None:
    """Keep what a page looks like, for people."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    await page.screenshot(path=PICTURES / f"{name}.png")
