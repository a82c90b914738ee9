"""The first load of the playground: its requests, and their compressed size."""

import re
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from e2e.browser import browsing, note_faults
from support.live_server import serving
from tailrace.server import Settings, Turn, create_app
from tailrace.streaming import Update
from tailrace.streaming.a2a.models import Artifact, Part
from tailrace.streaming.task.updates import ArtifactUpdate

if TYPE_CHECKING:
    from playwright.async_api import Request

pytestmark = pytest.mark.timeout(240)

MAX_BYTES = 60_000
"""Bound on the first load, with the headers of the responses."""


async def answer(turn: Turn) -> AsyncIterator[Update]:
    text = "A formula, $x^2$, and code:\n\n```python\ndef flow(): pass\n```\n"
    yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text=text),)))


def modules(requests: list["Request"]) -> set[str]:
    """Names of the requested modules, without the hashes of their addresses."""
    paths = (urlsplit(each.url).path for each in requests)
    return {re.sub(r"[.-][0-9a-f]{8,}(?=\.js$)", "", path) for path in paths if path.endswith(".js")}


async def test_the_first_load_is_small() -> None:
    """Modules for code and math are loaded later, by the first response that needs them."""
    requests: list[Request] = []
    faults: list[str] = []
    async with serving(create_app(Settings(store="sqlite://"), handler=answer)) as url, browsing() as browser:
        page = await browser.new_page()
        note_faults(page, faults)
        page.on("request", lambda request: requests.append(request))
        await page.goto(url, wait_until="networkidle")
        await page.locator(".welcome").wait_for()
        first = list(requests)
        sizes = [await each.sizes() for each in first]
        assert sum(each["responseBodySize"] + each["responseHeadersSize"] for each in sizes) <= MAX_BYTES
        assert modules(first) == {"/tailrace-chat.js"}
        await page.get_by_label("Message", exact=True).fill("hello")
        await page.keyboard.press("Enter")
        await page.locator("code .hljs-keyword").first.wait_for()
        await page.locator("math").wait_for()
        assert modules(requests[len(first) :]) == {"/tailrace-highlight.js", "/tailrace-math.js"}
    assert faults == []
