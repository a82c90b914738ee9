"""The playground in a real browser: hostile output of an agent neither blocks the page nor runs in it."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from e2e.browser import browsing, note_faults
from support.fixture_contexts import in_own_task
from support.live_server import serving
from tailrace.server import CardSettings, Settings, Turn, create_app
from tailrace.streaming import Update
from tailrace.streaming.a2a.models import AgentSkill, Artifact, Part
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.task.updates import ArtifactUpdate

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]

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

SCRIPT = "\"><img src=x onerror=hit()><script>hit()</script>\u202e'"
"""A name that would run in a page that takes names for HTML."""

FILES = [
    Part(raw=b"<script>hit()</script>", media_type="text/html", filename=f"{SCRIPT}.html"),
    Part(
        raw=b"<svg xmlns='http://www.w3.org/2000/svg' onload='hit()'/>",
        media_type="image/svg+xml",
        filename=SCRIPT,
    ),
    Part(raw=b"x", media_type=f"image/png{SCRIPT}", filename=SCRIPT),
    Part(raw=b"x", media_type=f"audio/{SCRIPT}", filename=SCRIPT),
    Part(url="javascript:hit()", filename=SCRIPT),
    Part(url="data:text/html,<script>hit()</script>", filename=SCRIPT),
    Part(url=f"https://example.com/{SCRIPT}"),
    Part(data={SCRIPT: SCRIPT, "__proto__": {"polluted": SCRIPT}}),
]
"""Files and data with hostile names, addresses and media types."""


async def write(turn: Turn) -> AsyncIterator[Update]:
    text = "".join(part.text or "" for part in turn.message.parts)
    if text == "names":
        for update in hostile_names():
            yield update
        return
    yield ArtifactUpdate(Artifact(artifact_id="hostile", parts=(Part(text=TEXTS[text]),)))
    yield ArtifactUpdate(Artifact(artifact_id="after", parts=(Part(text="**after** everything"),)))


def hostile_names() -> Iterator[Update]:
    """An agent's artifacts, calls and status, whose names are scripts."""
    call = {"call_id": SCRIPT, "name": SCRIPT, "arguments": {SCRIPT: SCRIPT}, "arguments_error": SCRIPT}
    result = {"call_id": SCRIPT, "name": SCRIPT, "output": SCRIPT, "is_error": True}
    facts = {EXTENSION_URI: {"channel": "tool_call", "callId": SCRIPT}}
    yield ArtifactUpdate(Artifact(artifact_id="files", name=SCRIPT, parts=tuple(FILES)))
    yield ArtifactUpdate(
        Artifact(artifact_id=SCRIPT, name=SCRIPT, parts=(Part(data={"tool_calls": [call]}),), metadata=facts)
    )
    results = {EXTENSION_URI: {"channel": "tool_result", "callId": SCRIPT}}
    yield ArtifactUpdate(
        Artifact(
            artifact_id="r", name=SCRIPT, parts=(Part(data={"tool_results": [result]}),), metadata=results
        )
    )
    unknown = {EXTENSION_URI: {"channel": SCRIPT, "choice": SCRIPT, "turn": SCRIPT}}
    yield ArtifactUpdate(
        Artifact(artifact_id="u", name=SCRIPT, parts=(Part(text="**after** everything"),), metadata=unknown)
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url() -> AsyncGenerator[str]:
    skill = AgentSkill(id=SCRIPT, name=SCRIPT, description=SCRIPT, tags=(SCRIPT,), examples=(SCRIPT,))
    settings = Settings(store="sqlite://", agent_name=SCRIPT, card=CardSettings(description=SCRIPT))
    async with in_own_task(serving(create_app(settings, handler=write, skills=[skill]))) as url:
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


async def test_hostile_names_run_nothing(browser: "Browser", url: str) -> None:
    """Names of the agent, of its skills, artifacts, files and tools are texts, also after a reload from the server."""
    faults: list[str] = []
    context = await browser.new_context()
    await context.add_init_script("window.hits = 0; window.hit = () => (window.hits += 1);")
    page = await context.new_page()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    note_faults(page, faults)
    await page.goto(url)
    await page.get_by_label("Message", exact=True).fill("names")
    await page.keyboard.press("Enter")
    for _ in range(2):
        await page.locator("article[data-state=completed]").wait_for()
        await page.locator("strong", has_text="after").wait_for()
        found = await page.evaluate(
            """() => {
                const chat = document.querySelector("tailrace-chat");
                const nodes = [...document.querySelectorAll("*"), ...(chat.shadowRoot ?? chat).querySelectorAll("*")];
                const runs = (node) => [...node.attributes].some(({ name, value }) => name.startsWith("on") || /^(javascript:|data:text)/i.test(value));
                const wrong = nodes.filter((node) => runs(node) || ["iframe", "object", "embed", "base"].includes(node.localName));
                return { wrong: wrong.map((node) => node.outerHTML), hits: window.hits, polluted: {}.polluted ?? null };
            }"""
        )
        assert found == {"wrong": [], "hits": 0, "polluted": None}
        await page.reload()
    assert {
        request for request in requests if not request.startswith((url, "data:image/", "data:audio/"))
    } == set()
    # Images that are none are reported by the browser alone.
    assert [fault for fault in faults if "data:" not in fault] == []
    await context.close()
