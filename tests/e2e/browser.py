"""Debian's Chromium, driven by playwright: pages whose errors fail the test, and screenshots."""

import base64
import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PUBLISHED = Path(__file__).parents[2] / "docs/pictures/chat"
TOLERANCE = 0.02
"""Mean difference of two pictures of the same state."""

PICTURES = Path(__file__).parents[2] / "build/playground"


AXE = Path(__file__).parent / "ui_streams/javascript/node_modules/axe-core/axe.min.js"


async def add_axe(page: "Page") -> None:
    """Add axe-core, a checker of accessibility, to a page; skip the test if it is not installed."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed: run `make e2e`")
    await page.evaluate(AXE.read_text(encoding="utf-8"))


async def check_accessibility(page: "Page") -> None:
    """Check that a page with axe-core has no moderate or worse violation, and is not wider than its window."""
    found = await page.evaluate("axe.run({ resultTypes: ['violations'] })")
    wrong = [
        f"{each['impact']}: {each['id']}: {[node['html'] for node in each['nodes']]}"
        for each in found["violations"]
        if each["impact"] in ("moderate", "serious", "critical")
    ]
    assert wrong == []
    width = await page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width[0] <= width[1]


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
    """Save a screenshot of a page, and compare it with that of the same name in the documentation, if there is one.

    Both are compared at an eighth of their size: fonts differ between machines, a missing panel or another color does not pass.
    ``TAILRACE_TEST_PICTURES=1`` writes those of the documentation.
    """
    PICTURES.mkdir(parents=True, exist_ok=True)
    taken = await _screenshot_at_rest(page)
    (PICTURES / f"{name}.png").write_bytes(taken)
    published = PUBLISHED / f"{name}.png"
    if os.environ.get("TAILRACE_TEST_PICTURES") and published.exists():
        published.write_bytes(taken)
    if published.exists():
        shares = await _difference(page, taken, published.read_bytes())
        assert shares < TOLERANCE, f"{PICTURES / name}.png differs from {published} by {shares:.1%}"


async def _screenshot_at_rest(page: "Page") -> bytes:
    """Return the first screenshot that equals the one before it: transitions and scrolling have ended."""
    before = await page.screenshot(animations="disabled")
    while (taken := await page.screenshot(animations="disabled")) != before:
        before = taken
    return taken


async def _difference(page: "Page", one: bytes, other: bytes) -> float:
    """Return the mean difference of two pictures, from 0 to 1; 1 if their sizes differ."""
    assert page.context.browser is not None
    blank = await page.context.browser.new_page()  # without the policy of the page
    difference: float = await blank.evaluate(
        """async (pictures) => {
            const pixels = async (picture) => {
                const blob = await (await fetch(`data:image/png;base64,${picture}`)).blob();
                const { width, height } = await createImageBitmap(blob);
                const size = [Math.round(width / 8), Math.round(height / 8)];
                const bitmap = await createImageBitmap(blob, { resizeWidth: size[0], resizeHeight: size[1], resizeQuality: "high" });
                const context = new OffscreenCanvas(...size).getContext("2d");
                context.drawImage(bitmap, 0, 0);
                return context.getImageData(0, 0, ...size).data;
            };
            const [one, other] = await Promise.all(pictures.map(pixels));
            if (one.length !== other.length) return 1;
            return one.reduce((sum, value, at) => sum + Math.abs(value - other[at]), 0) / (255 * one.length);
        }""",
        [base64.b64encode(picture).decode() for picture in (one, other)],
    )
    await blank.close()
    return difference
