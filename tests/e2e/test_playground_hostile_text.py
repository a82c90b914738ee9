"""The playground in a real browser renders hostile model output without blocking."""

import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from e2e.browser import browsing, note_faults
from support.fixture_contexts import in_own_task
from support.live_server import serving
from tailrace.server import Settings, Turn, create_app
from tailrace.streaming import Update
from tailrace.streaming.a2a.models import Artifact, Part
from tailrace.streaming.task.updates import ArtifactUpdate

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]

TEXTS = {
    "quotes": "> " * 5000 + "deep",
    "lists": "- " * 5000 + "deep",
    "numbers": "1. " * 5000 + "deep",
    "quotes and lists": "> - " * 5000 + "deep",
    "indented": "\n".join(" " * (2 * level) + "- x" for level in range(1000)),
    "marks": "**a *b ~~c __d " * 5000,
    "closed marks": "**a *b ~~" * 3000 + "c" + "~~ b* a**" * 3000,
    "links": "[" * 50_000 + "](https://example.com)" * 2000,
    "no spaces": "**a**`b`" * 30_000,
    "a heading": "# " + "*a* " * 50_000,
    "cells": "|a|b|\n|-|-|\n" + "|" * 200_000,
    "fences": "```\n" * 5000,
}
"""Answers, by prompt."""

HIGHEST_DEPTH = 40


async def write(turn: Turn) -> AsyncIterator[Update]:
    text = "".join(part.text or "" for part in turn.message.parts)
    yield ArtifactUpdate(Artifact(artifact_id="hostile", parts=(Part(text=TEXTS[text]),)))
    yield ArtifactUpdate(Artifact(artifact_id="after", parts=(Part(text="**after** everything"),)))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url() -> AsyncGenerator[str]:
    async with in_own_task(serving(create_app(Settings(store="sqlite://"), handler=write))) as url:
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncGenerator["Browser"]:
    async with in_own_task(browsing()) as browser:
        yield browser


@pytest.mark.parametrize("prompt", TEXTS)
async def test_the_page_goes_on_drawing(browser: "Browser", url: str, prompt: str) -> None:
    faults: list[str] = []
    context = await browser.new_context()
    page = await context.new_page()
    note_faults(page, faults)
    await page.goto(url)
    began = time.monotonic()
    await page.get_by_label("Message", exact=True).fill(prompt)
    await page.keyboard.press("Enter")
    await page.locator("article[data-state=completed]").wait_for()
    await page.locator("strong", has_text="after").wait_for()
    assert faults == []
    assert time.monotonic() - began < 30  # without bounds the page hangs for minutes
    depth = await page.evaluate(
        """() => {
            const root = document.querySelector("tailrace-chat").shadowRoot ?? document;
            const depth = (node) => 1 + Math.max(0, ...[...node.children].map(depth));
            return Math.max(...[...root.querySelectorAll(".md")].map(depth));
        }"""
    )
    assert depth < 2 * HIGHEST_DEPTH + 10
    await context.close()
