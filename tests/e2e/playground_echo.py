"""A page of the playground whose agent repeats its messages, and what its tests do with it."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio

from e2e.browser import note_faults
from support.live_server import serving
from tailrace.server import Settings, Turn, create_app
from tailrace.streaming import StatusUpdate, TaskState, Update
from tailrace.streaming.a2a.models import AgentSkill, Artifact, Part
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.task.task_record import agent_message
from tailrace.streaming.task.updates import ArtifactUpdate, TextDelta

if TYPE_CHECKING:
    from playwright.async_api import Browser, Locator, Page, Request, Route

SKILL = AgentSkill(
    id="echo", name="Echo", description="Repeats.", tags=("echo",), examples=("Say hello", "Say goodbye")
)

CARD_LOADED = """async () => {
    const chat = document.querySelector("tailrace-chat");
    while (!chat.client?.card.name) await new Promise(requestAnimationFrame);
}"""
"""Script that waits until the page has loaded the agent card. Polling by Playwright needs ``eval``, which the page forbids."""


class Echo:
    """A handler that repeats its message, and counts turns. It fails the first time for each "flaky" message."""

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self.files: list[str] = []

    async def __call__(self, turn: Turn) -> AsyncIterator[Update]:
        text = "".join(part.text or "" for part in turn.message.parts)
        self.prompts.append(text)
        self.files += [part.filename or "" for part in turn.message.parts if part.raw is not None]
        if text.startswith("flaky") and self.prompts.count(text) == 1:
            yield StatusUpdate(TaskState.FAILED, agent_message("the model is busy"))
            return
        if text.startswith("refused"):
            error = {EXTENSION_URI: {"error": {"type": "authentication_error", "status": 401}}}
            yield StatusUpdate(TaskState.FAILED, agent_message("Incorrect key: sk-123"), metadata=error)
            return
        answer = "line\n\n" * 200 if text.startswith("long") else f"You wrote: {text}"
        yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text=answer),)))


class Growing(Echo):
    """A handler whose responses to "grow" wait until the test lets them end."""

    def __init__(self) -> None:
        super().__init__()
        self.end = anyio.Event()

    async def __call__(self, turn: Turn) -> AsyncIterator[Update]:
        if "".join(part.text or "" for part in turn.message.parts) != "grow":
            async for update in super().__call__(turn):
                yield update
            return
        yield StatusUpdate(TaskState.WORKING)
        yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text="begin"),)), last=False)
        await self.end.wait()
        yield TextDelta("text", " middle")
        yield TextDelta("text", " end", last=True)


@asynccontextmanager
async def chat(
    browser: "Browser", echo: Echo | None, *, expected: str = "none", **settings: Any
) -> AsyncGenerator["Page"]:
    """A page of a server with this handler, with a loaded card; any error in it, or in other pages of its context, fails the test.

    Args:
        browser: The browser.
        echo: The handler; None for the model of the settings.
        expected: Text of errors that do not fail the test.
        settings: Settings of the server.
    """
    skills = (SKILL,) if echo else ()
    app = create_app(Settings(store="sqlite://", **settings), handler=echo, skills=skills)
    faults: list[str] = []
    async with serving(app) as url:
        context = await browser.new_context(viewport={"width": 1000, "height": 700})
        context.on("page", lambda page: note_faults(page, faults))
        page = await context.new_page()
        await page.goto(url)
        await page.evaluate(CARD_LOADED)
        yield page
        await context.close()
    assert [fault for fault in faults if expected not in fault] == []


async def say(page: "Page", text: str) -> None:
    await page.get_by_label("Message", exact=True).fill(text)
    await page.keyboard.press("Enter")


async def until_articles(page: "Page", count: int, state: str = "completed") -> None:
    """Wait until the conversation has this many tasks, and the last one is in this state."""
    await page.locator("article").nth(count - 1).wait_for()
    await page.locator(f'article:last-of-type[data-state="{state}"]').wait_for()


async def begin_conversations(page: "Page", *texts: str) -> None:
    """Begin a conversation with each of these messages; the last one remains open."""
    for text in texts:
        await page.get_by_role("navigation").get_by_role("button", name="New conversation").click()
        await say(page, text)
        await until_articles(page, 1)


def titles(page: "Page") -> "Locator":
    """Return the titles in the list of conversations."""
    return page.get_by_role("navigation", name="Conversations").locator("li .context")


async def until_texts(located: "Locator", *texts: str) -> None:
    """Wait until elements have these texts."""
    with anyio.fail_after(30):
        while await located.all_inner_texts() != list(texts):
            await located.page.evaluate("new Promise(requestAnimationFrame)")


async def focused(page: "Page") -> str:
    """Return the name of the focused element of the chat; empty if there is none."""
    return await page.evaluate(
        """() => {
            const node = document.activeElement.shadowRoot?.activeElement;
            return node ? node.ariaLabel ?? node.textContent : "";
        }"""
    )


def method_of(request: "Request") -> str:
    """Return the JSON-RPC method of a request; empty for other requests."""
    return call_of(request).get("method", "")


def call_of(request: "Request") -> dict[str, Any]:
    """Return the JSON-RPC object of a request; empty for other requests."""
    body = request.post_data
    return json.loads(body) if body and body.startswith("{") else {}


class Hold:
    """Requests of a page that wait until the test releases them."""

    def __init__(self, method: str) -> None:
        self._method = method
        self._released = anyio.Event()
        self._held = anyio.Event()

    async def handle(self, route: "Route") -> None:
        """Hold a request of the method; others continue."""
        if method_of(route.request) == self._method and not self._released.is_set():
            self._held.set()
            await self._released.wait()
        await route.fallback()

    async def begun(self) -> None:
        """Wait until a request is held."""
        with anyio.fail_after(30):
            await self._held.wait()

    def release(self) -> None:
        """Let all requests of the method continue, also later ones."""
        self._released.set()


async def hold(page: "Page", method: str) -> Hold:
    """Hold all requests of a JSON-RPC method from now on."""
    held = Hold(method)
    await page.route(lambda _: True, held.handle)
    return held
