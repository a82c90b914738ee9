"""The pages of ``examples/browser`` in a real browser, served by `npm start`, and pages that use only the browser's own
``fetch`` and ``EventSource``.
"""

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
from fastapi import FastAPI, Response

from e2e.browser import browsing, note_faults
from e2e.clients.agent import ANSWER, FIRST_HALF, PIECES, REASONING, Agent, ScriptedModel
from e2e.clients.heard import StreamedEvent, read_event, state_of, streamed_text
from e2e.ui_streams.node import NODE
from support.fixture_contexts import in_own_task
from support.live_server import serving
from support.processes import served
from support.proxy import CuttingProxy
from support.rpc import Rpc, text_of
from support.upstream import ScriptedUpstream

if TYPE_CHECKING:
    from playwright.async_api import Browser, Locator, Page

# A browser runs many processes: on a busy machine, loading takes longer than a minute.
pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="session")]

EXAMPLES = Path(__file__).parents[3] / "examples/browser"
LAST = PIECES[-1]


@asynccontextmanager
async def serving_pages() -> AsyncGenerator[str]:
    """Run the server of `npm start` on a free port."""
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
                pytest.fail(f"the page server did not start: {printed}")
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
async def open_page(browser: "Browser", url: str, *expected: str) -> AsyncGenerator["Page"]:
    """Open a page; unexpected errors and requests to other machines fail the test."""
    context = await browser.new_context()
    faults: list[str] = []
    foreign_urls: list[str] = []
    context.on("page", lambda page: note_faults(page, faults))
    context.on(
        "request",
        lambda request: (
            foreign_urls.append(request.url)
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
    assert foreign_urls == []


async def until_text(locator: "Locator", text: str) -> None:
    """Wait until an element shows a text."""
    await locator.filter(has_text=text).wait_for()


async def conversations_of(agent: Agent, prompt: str) -> list[list[dict[str, Any]]]:
    """Return the conversations that began with a message, each as its tasks in order of creation."""
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
    async with open_page(browser, f"{pages}/ai_sdk.html?agent={agent.url}") as page:
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
    async with open_page(browser, f"{pages}/ai_sdk.html?agent={agent.url}") as page:
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
        # No request is pending: the page shows its stored messages.
        await page.reload()
        await page.locator("form[data-status=ready]").wait_for()
        assert await answers.locator("span").text_content() == ANSWER


async def test_use_chat_shows_what_failed(browser: "Browser", agent: Agent, pages: str) -> None:
    async with open_page(browser, f"{pages}/ai_sdk.html?agent={agent.url}") as page:
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
    async with open_page(browser, f"{pages}/deep_chat.html?agent={agent.url}") as page:
        answers = page.locator(".ai-message-text")
        await say_by_deep_chat(page, pause.prompt)
        await until_text(answers, "Rivers are long")
        assert "wet" not in await answers.inner_text()  # the answer is streamed
        pause.go_on.set()
        await until_text(answers, "Rivers are long and wet.")
        assert await answers.locator("strong").inner_text() == "long"
        await page.locator("#submit-icon").wait_for()
        await say_by_deep_chat(page, "think")
        await until_text(answers.nth(1), LAST)
        assert REASONING not in await answers.nth(1).inner_text()
    [tasks] = await conversations_of(agent, pause.prompt)
    assert [text_of(task) for task in tasks] == ["".join(pieces), ANSWER]
    messages = agent.upstream.requests[-1].json["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]


async def test_deep_chat_shows_what_failed(browser: "Browser", agent: Agent, pages: str) -> None:
    words = "openai: the model is not there (HTTP 404, x)"
    # It also logs the error to the console.
    async with open_page(browser, f"{pages}/deep_chat.html?agent={agent.url}", words) as page:
        await say_by_deep_chat(page, "fail")
        await until_text(page.locator(".error-message-text"), words)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def empty_page() -> AsyncGenerator[str]:
    """Open a page of another origin than the agents'."""
    site = FastAPI()

    @site.get("/")
    async def page() -> Response:  # pyright: ignore[reportUnusedFunction]
        return Response("<!doctype html><title>Mine</title>", media_type="text/html")

    @site.get("/favicon.ico")
    async def no_icon() -> Response:  # pyright: ignore[reportUnusedFunction]
        return Response(status_code=204)

    async with in_own_task(serving(site)) as url:
        yield url


# A client in plain browser code.
BEGIN = """async ([agent, text]) => {
    const message = { messageId: crypto.randomUUID(), role: "ROLE_USER", parts: [{ text }] };
    const headers = { "Content-Type": "application/json", "A2A-Version": "1.0" };
    const body = JSON.stringify({ message, configuration: { returnImmediately: true } });
    const response = await fetch(`${agent}/message:send`, { method: "POST", headers, body });
    const { task } = await response.json();
    Object.assign(window, { heard: [], opened: 0 });
    const source = new EventSource(`${agent}/tasks/${task.id}:subscribe?A2A-Version=1.0&after=0`
        + "&A2A-Extensions=urn:tailrace:ext:stream:v1");
    source.onopen = () => (window.opened += 1);
    source.onmessage = ({ data, lastEventId }) => heard.push([Number(lastEventId), JSON.parse(data)]);
    window.ended = new Promise((resolve) => source.addEventListener("end", () => resolve(source.close())));
    return task.id;
}"""


async def events_of_page(page: "Page", until: int | None = None) -> list[StreamedEvent]:
    """Return the events of its EventSource, in order and without a gap: the first ones, or all."""
    if until is None:
        await page.evaluate("ended")
    else:
        with anyio.fail_after(30):
            while await page.evaluate("heard.length") < until:
                await page.evaluate("new Promise(requestAnimationFrame)")
    events = await page.evaluate("heard")
    assert [number for number, _ in events] == list(range(1, len(events) + 1))
    return [read_event(event) for _, event in events]


async def test_a_browsers_own_event_source_goes_on_where_its_connection_was_cut(
    browser: "Browser", agent: Agent, empty_page: str
) -> None:
    words = [f"w{number} " for number in range(300)]
    pause = agent.model.pause(words, 1)
    broken = "Failed to load resource: net::ERR_INCOMPLETE_CHUNKED_ENCODING"
    async with CuttingProxy(agent.url) as proxy, open_page(browser, empty_page, broken, broken) as page:
        task_id = await page.evaluate(BEGIN, [proxy.url, pause.prompt])
        await events_of_page(page, 3)  # the task, working, and the first word
        proxy.cut_after(20_000, 20_000)
        pause.go_on.set()
        events = await events_of_page(page)
        assert await page.evaluate("opened") == 3
    assert streamed_text(events) == "".join(words)
    assert len(events) == len(words) + 4  # the last chunk, and completed
    async with Rpc(agent.url) as rpc:
        assert text_of(await rpc.result("GetTask", {"id": task_id})) == "".join(words)


async def test_a_browsers_own_event_source_goes_on_after_a_crash_of_the_server(
    browser: "Browser", empty_page: str, tmp_path: Path
) -> None:
    model = ScriptedModel()
    pause = model.pause()
    async with ScriptedUpstream(model.answer) as upstream:
        options = ["--model", "openai:scripted", "--base-url", upstream.base_url]
        options += ["--store", f"sqlite:///{tmp_path / 'tasks.db'}"]
        environment = {"TAILRACE_COALESCE": "none", "TAILRACE_ALLOWED_ORIGINS": "*"}
        with served(tmp_path / "first.log", *options, **environment) as first:
            await first.ready()
            async with CuttingProxy(first.url) as proxy, await browser.new_context() as context:
                page = await context.new_page()  # its console logs the crash
                await page.goto(empty_page)
                task_id = await page.evaluate(BEGIN, [proxy.url, pause.prompt])
                shown = await events_of_page(page, 2 + 4)  # the task, working, and the first half
                assert streamed_text(shown) == FIRST_HALF
                first.kill()
                with served(tmp_path / "second.log", *options, **environment) as second:
                    await second.ready()
                    proxy.turn_to(second.url)
                    pause.go_on.set()  # the response begins again
                    events = await events_of_page(page)
                    async with Rpc(second.url) as rpc:
                        task = await rpc.result("GetTask", {"id": task_id})
    assert streamed_text(events) == text_of(task) == ANSWER
    assert state_of(events[-1].fields) == state_of(task) == "completed"
