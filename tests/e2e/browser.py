"""Debian's Chromium, driven by playwright: pages whose errors fail the test, and screenshots."""

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
async def browsing(*options: str) -> AsyncGenerator["Browser"]:
    """Run a browser with these options while the block runs; skip the test if there is none."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: run `make e2e`")
    api = pytest.importorskip("playwright.async_api", reason="playwright is not installed: run `make e2e`")
    async with api.async_playwright() as playwright:
        # The sandbox needs rights that containers and root lack; the browser loads only our pages.
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *options])
        try:
            yield browser
        finally:
            await browser.close()


def note_faults(page: "Page", faults: list[str]) -> None:
    """Collect a page's errors: exceptions, violations of its policy, failed requests."""
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on(
        "console", lambda entry: faults.append(entry.text) if entry.type in ("error", "warning") else None
    )


async def take_picture(page: "Page", name: str) -> None:
    """Save a screenshot of a page."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    await page.screenshot(path=PICTURES / f"{name}.png")
