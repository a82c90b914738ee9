"""The pages of ``examples/browser`` in a real browser, from the server that `npm start` runs, before the one agent."""

import json
import re
import shlex
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import pytest_asyncio
from anyio.streams.text import TextReceiveStream

from e2e.browser import browsing, note_faults
from e2e.clients.agent import ANSWER, PIECES, REASONING, Agent
from e2e.ui_streams.node import NODE
from support.holding import in_own_task
from support.rpc import Rpc, text_of

if TYPE_CHECKING:
    from playwright.async_api import Browser, Locator, Page

# A browser is many processes: where others keep the machine busy, a minute is soon over.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="session")]

EXAMPLES = Path(__file__).parents[3] / "examples/browser"
LAST = PIECES[-1]


@asynccontextmanager
async def serving_pages() -> AsyncGenerator[str]:
    """What `npm start` does, on a free port."""
    command = json.loads((EXAMPLES / "package.json").read_text())["scripts"]["start"]
    name, *arguments = shlex.split(command)
    program = str(EXAMPLES / "node_modules" / name / "bin" / name)
    arguments = [re.sub(r"(--serve=127\.0\.0\.1):\d+", r"\1:0", argument) for argument in arguments]
    async with await anyio.open_process(
        [NODE, program, *arguments], cwd=EXAMPLES, stdin=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as esbuild:
        assert esbuild.stdout is not None
        printed = ""
        with anyio.fail_after(30):
            async for piece in TextReceiveStream(esbuild.stdout):
                printed += piece
                if found := re.search(r"(http://127\.0\.0\.1:\d+)/", printed):
                    break
            else:
                pytest.fail(f"no pages are served: {printed}")
        try:
            yield found[1]
        finally:
            esbuild.terminate()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pages() -> AsyncGenerator[str]:
    async with in_own_task(serving_pages()) as url:
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def browser() -> AsyncGenerator["Browser"]:
    async with in_own_task(browsing()) as browser:
        yield browser


@asynccontextmanager
async def opened(browser: "Browser", url: str, *expected: str) -> AsyncGenerator["Page"]:
    """A page in which nothing may go wrong but what is expected to, and which asks nobody but this machine."""
    context = await browser.new_context()
    faults: list[str] = []
    elsewhere: list[str] = []
    context.on("page", lambda page: note_faults(page, faults))
    context.on(
        "request",
        lambda request: (
            elsewhere.append(request.url)
            if not request.url.startswith(("http://127.0.0.1:", "data:", "blob:"))
            else None
        ),
    )
    page = await context.new_page()
    await page.goto(url)
    try:
        yield page
    finally:
        await context.close()
    assert faults == list(expected)
    assert elsewhere == []


async def until_text(locator: "Locator", text: str) -> None:
    """Until an element shows a text."""
    await locator.filter(has_text=text).wait_for()


async def conversations_of(agent: Agent, prompt: str) -> list[list[dict[str, Any]]]:
    """The conversations that began with a message, each as its tasks from the oldest on."""
    async with Rpc(agent.url) as rpc:
        tasks = (await rpc.result("ListTasks", {"includeArtifacts": True, "pageSize": 100}))["tasks"][::-1]
    found: dict[str, list[dict[str, Any]]] = {}
    for task in tasks:
        found.setdefault(task["contextId"], []).append(task)
    return [tasks for tasks in found.values() if tasks[0]["history"][0]["parts"][0]["text"] == prompt]


async def say_by_use_chat(page: "Page", text: str) -> None:
    box = page.get_by_label("Message")
    await box.fill(text)
    await box.press("Enter")


async def test_use_chat_holds_a_conversation(browser: "Browser", agent: Agent, pages: str) -> None:
    async with opened(browser, f"{pages}/ai_sdk.html?agent={agent.url}") as page:
        answers = page.locator("article[data-role=assistant]")
        await say_by_use_chat(page, "think")
        await until_text(answers.nth(0), LAST)
        await page.locator("form[data-status=ready]").wait_for()
        assert await answers.locator("span").text_content() == ANSWER
        assert REASONING in (await answers.locator("details").text_content() or "")
        await say_by_use_chat(page, "And now?")
        await until_text(answers.nth(1), LAST)
        await page.locator("form[data-status=ready]").wait_for()
        assert await answers.nth(1).locator("span").text_content() == ANSWER
        chat = await page.evaluate("sessionStorage.chat")
    async with Rpc(agent.url) as rpc:
        listed = await rpc.result("ListTasks", {"contextId": chat, "includeArtifacts": True})
    assert [text_of(task) for task in listed["tasks"]] == [ANSWER, ANSWER]


async def test_use_chat_goes_on_with_an_answer_after_a_reload(
    browser: "Browser", agent: Agent, pages: str
) -> None:
    pause = agent.model.pause()
    async with opened(browser, f"{pages}/ai_sdk.html?agent={agent.url}") as page:
        answers = page.locator("article[data-role=assistant]")
        await say_by_use_chat(page, pause.prompt)
        await pause.reached.wait()
        await until_text(answers, "one")
        await page.reload()
        await until_text(page.locator("article[data-role=user]"), pause.prompt)
        await page.locator("form[data-status=streaming]").wait_for()
        pause.go_on.set()
        await until_text(answers, LAST)
        await page.locator("form[data-status=ready]").wait_for()
        assert await page.locator("article").count() == 2
        assert await answers.locator("span").text_content() == ANSWER
        # Nothing is on its way any more: the page shows what it has kept.
        await page.reload()
        await page.locator("form[data-status=ready]").wait_for()
        assert await answers.locator("span").text_content() == ANSWER


async def test_use_chat_shows_what_failed(browser: "Browser", agent: Agent, pages: str) -> None:
    async with opened(browser, f"{pages}/ai_sdk.html?agent={agent.url}") as page:
        await say_by_use_chat(page, "fail")
        await until_text(page.get_by_role("alert"), "the model is not there")


async def say_by_deep_chat(page: "Page", text: str) -> None:
    box = page.locator("#text-input")
    await box.click()
    await box.press_sequentially(text)
    await box.press("Enter")


async def test_deep_chat_holds_a_conversation(browser: "Browser", agent: Agent, pages: str) -> None:
    pieces = ["Rivers ", "are ", "**long**", " and ", "wet."]
    pause = agent.model.pause(pieces, 3)
    async with opened(browser, f"{pages}/deep_chat.html?agent={agent.url}") as page:
        answers = page.locator(".ai-message-text")
        await say_by_deep_chat(page, pause.prompt)
        await until_text(answers, "Rivers are long")
        assert "wet" not in await answers.inner_text()  # it comes as a stream
        pause.go_on.set()
        await until_text(answers, "Rivers are long and wet.")
        assert await answers.locator("strong").inner_text() == "long"
        await page.locator("#submit-icon").wait_for()
        await say_by_deep_chat(page, "think")
        await until_text(answers.nth(1), LAST)
        assert REASONING not in await answers.nth(1).inner_text()
    [tasks] = await conversations_of(agent, pause.prompt)
    assert [text_of(task) for task in tasks] == ["".join(pieces), ANSWER]
    told = agent.upstream.requests[-1].json["messages"]
    assert [message["role"] for message in told] == ["user", "assistant", "user"]


async def test_deep_chat_shows_what_failed(browser: "Browser", agent: Agent, pages: str) -> None:
    words = "openai: the model is not there (HTTP 404, x)"
    # It tells the console, too.
    async with opened(browser, f"{pages}/deep_chat.html?agent={agent.url}", words) as page:
        await say_by_deep_chat(page, "fail")
        await until_text(page.locator(".error-message-text"), words)
