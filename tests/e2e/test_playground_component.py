"""The chat component in a real browser: its options, failures, keyboard, and other pages."""

import base64
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from fastapi import FastAPI, Response

from e2e.browser import add_axe, browsing, check_accessibility, take_picture
from e2e.playground_pages import MARKDOWN, Agent, open_page, png, say, serving_agent, until_state, window
from support.fixture_contexts import in_own_task
from support.live_server import serving
from tailrace.server import Settings, Turn, create_app
from tailrace.streaming import TaskState, Update
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role
from tailrace.streaming.task.updates import ArtifactUpdate, StatusUpdate

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Page

# A browser runs many processes: on a busy machine, loading takes longer than a minute.
pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]

ROOT = Path(__file__).parents[2]
MODULE = ROOT / "server/tailrace/server/http/playground/tailrace-chat.js"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Agent]:
    store = f"sqlite:///{tmp_path_factory.mktemp('agent')}/tasks.db"
    async with in_own_task(serving_agent(store)) as agent:
        yield agent


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncGenerator["Browser"]:
    async with in_own_task(browsing()) as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="module")
async def context(browser: "Browser") -> AsyncGenerator["BrowserContext"]:
    async with in_own_task(window(browser)) as context:
        yield context


@pytest_asyncio.fixture(loop_scope="module")
async def page(context: "BrowserContext", agent: Agent) -> "Page":
    return await open_page(context, agent.url)


async def test_a_request_contains_its_options(page: "Page", agent: Agent) -> None:
    await page.get_by_role("button", name="Inspector").click()
    facts = page.get_by_label("Sent with each request, as JSON")
    await facts.fill("{not JSON")
    await say(page, "hello")
    assert await facts.get_attribute("aria-invalid") == "true"
    assert await page.get_by_label("Message", exact=True).input_value() == "hello"
    tool: dict[str, Any] = {"name": "look", "parameters": {"type": "object", "properties": {}}}
    await facts.fill(json.dumps({"temperature": 0.5, "tools": [tool]}))
    await say(page, "hello")
    await until_state(page, "completed")
    request = agent.upstream.requests[-1].json
    assert request["temperature"] == 0.5
    assert [each["function"]["name"] for each in request["tools"]] == ["look"]


async def test_a_failure_shows_its_reason(page: "Page") -> None:
    await say(page, "fail")
    await until_state(page, "failed")
    assert "the model is not there" in await page.locator("article").inner_text()
    await take_picture(page, "failed")


async def test_it_is_used_from_the_keyboard_alone(page: "Page", agent: Agent) -> None:
    async def focused() -> str:
        element = "document.activeElement.shadowRoot.activeElement"
        return await page.evaluate(f"{element}.ariaLabel ?? {element}.textContent")

    conversations = page.get_by_role("navigation", name="Conversations")
    await conversations.get_by_role("button", name="Keyboard shortcuts").wait_for()
    suggestions = await page.locator(".suggestions button").all_inner_texts()
    order = [await focused()]
    while order[0] != "Conversations":
        await page.keyboard.press("Shift+Tab")
        order.insert(0, await focused())
    titles = await conversations.locator("li .context").all_inner_texts()
    listed = [name for title in titles[:1] for name in (title, f"Rename {title}", f"Delete {title}")]
    assert order == [
        "Conversations",
        "Inspector",
        "New conversation",
        "Search conversations",
        *listed,
        "Keyboard shortcuts",
        "Conversation",
        *suggestions,
        "Attach files",
        "Message",
    ]
    await page.keyboard.press("Control+Shift+O")
    await page.keyboard.type("line one")
    await page.keyboard.press("Shift+Enter")
    await page.keyboard.type("line two")
    await page.keyboard.press("Enter")
    await until_state(page, "completed")
    assert agent.upstream.requests[-1].json["messages"][-1]["content"] == "line one\nline two"
    assert await focused() == "Message"


async def draw(turn: Turn) -> AsyncIterator[Update]:
    """Return the files it receives, and others."""
    files = [part.filename for part in turn.message.parts if part.kind == "raw"]
    parts = (
        Part(raw=png(160, 90), media_type="image/png", filename="river.png"),
        Part(raw=b"<script>alert(1)</script>", media_type="text/html", filename="page.html"),
        Part(url="https://example.com/far.png", media_type="image/png", filename="far.png"),
        Part(data={"files": list(files)}),
    )
    for number, part in enumerate(parts):
        yield ArtifactUpdate(Artifact(artifact_id=f"file-{number}", parts=(part,)))


async def test_files_are_sent_and_received_and_a_key_is_required(browser: "Browser") -> None:
    settings = Settings(store="sqlite://", caller_keys="alice:open-sesame")  # pyright: ignore[reportArgumentType]
    async with serving(create_app(settings, handler=draw)) as url:
        context = await browser.new_context(viewport={"width": 1280, "height": 800})
        page = await open_page(context, url)
        await page.locator("input[type=file]").set_input_files(
            [{"name": "mine.png", "mimeType": "image/png", "buffer": png(40, 40)}]
        )
        await say(page, "draw")
        await page.get_by_label("Token or key").wait_for()
        assert await page.get_by_role("alert").all_inner_texts() == [
            "The agent requires a valid token or key."
        ]
        assert await page.locator(".waiting:visible").count() == 0
        await take_picture(page, "token")
        await page.get_by_label("Token or key").fill("open-sesame")
        await page.keyboard.press("Enter")
        await until_state(page, "completed")
        sizes = await page.locator("article img").evaluate_all(
            "all => all.map((image) => image.naturalWidth)"
        )
        assert sizes == [40, 160]  # the user's, and the agent's; the remote one is a link
        download = page.get_by_role("link", name="page.html")
        assert await download.get_attribute("href") == (
            "data:application/octet-stream;base64," + base64.b64encode(b"<script>alert(1)</script>").decode()
        )
        assert (
            await page.get_by_role("link", name="far.png").get_attribute("href")
            == "https://example.com/far.png"
        )
        assert json.loads(await page.locator("article pre").inner_text()) == {"files": ["mine.png"]}
        await take_picture(page, "files")
        await page.reload()
        await until_state(page, "completed")
        assert await page.locator("article img").count() == 2
        await context.close()


async def answer_in_two_texts(turn: Turn) -> AsyncIterator[Update]:
    parts = Part(text="Revenue grew."), Part(text="Costs fell.")
    yield ArtifactUpdate(Artifact(artifact_id="text", parts=parts))
    question = Message(message_id="q", role=Role.AGENT, parts=parts)
    yield StatusUpdate(TaskState.INPUT_REQUIRED, question)


async def test_two_texts_of_an_answer_are_two_paragraphs(browser: "Browser") -> None:
    app = create_app(Settings(store="sqlite://"), handler=answer_in_two_texts)
    async with serving(app) as url, window(browser) as context:
        page = await open_page(context, url)
        await say(page, "How was it?")
        await until_state(page, "input required")
        for block in ("text", "message"):
            paragraphs = page.locator(f"article .block.{block} p")
            assert await paragraphs.all_inner_texts() == ["Revenue grew.", "Costs fell."]


async def test_two_lines_put_it_into_a_page_of_another_site(browser: "Browser") -> None:
    settings = Settings(store="sqlite://", allowed_origins=("*",))
    site = FastAPI()
    lines = ""

    @site.get("/")
    async def page_of_another() -> Response:  # pyright: ignore[reportUnusedFunction]
        return Response(f"<!doctype html><title>Mine</title><h1>Mine</h1>{lines}", media_type="text/html")

    @site.get("/favicon.ico")
    async def no_icon() -> Response:  # pyright: ignore[reportUnusedFunction]
        return Response(status_code=204)

    async with (
        serving(create_app(settings, handler=draw)) as url,
        serving(site) as site_url,
        window(browser) as context,
    ):
        lines = (
            f'<script type="module" src="{url}/tailrace-chat.js"></script>\n<tailrace-chat></tailrace-chat>'
        )
        page = await open_page(context, site_url)
        await say(page, "draw")
        await until_state(page, "completed")
        await page.reload()
        await until_state(page, "completed")  # its tab remembers the conversation
        page = await open_page(context, f"{url}/embed.html")
        await say(page, "draw")
        await until_state(page, "completed")
        await take_picture(page, "embedded")
        await context.close()


async def test_in_a_frame_that_may_keep_nothing_it_works_all_the_same(browser: "Browser") -> None:
    site = FastAPI()
    lines = ""

    @site.get("/")
    async def page_of_another() -> Response:  # pyright: ignore[reportUnusedFunction]
        frame = f'<iframe sandbox="allow-scripts" width="600" height="600" srcdoc=\'{lines}\'></iframe>'
        return Response(f"<!doctype html><title>Mine</title>{frame}", media_type="text/html")

    settings = Settings(store="sqlite://", allowed_origins=("*",))
    async with serving(create_app(settings, handler=draw)) as url, serving(site) as site_url:
        lines = f'<script type="module" src="{url}/tailrace-chat.js"></script><tailrace-chat></tailrace-chat>'
        context = await browser.new_context()
        page = await open_page(context, site_url)
        frame = page.frame_locator("iframe")
        await frame.get_by_label("Message", exact=True).fill("draw")
        await page.keyboard.press("Enter")
        await frame.locator("article[data-state=completed]").wait_for()
        await context.close()


async def test_a_site_that_is_not_allowed_shows_the_setting(browser: "Browser") -> None:
    site = FastAPI()
    lines = ""

    @site.get("/")
    async def page_of_another() -> Response:  # pyright: ignore[reportUnusedFunction]
        return Response(f"<!doctype html><title>Mine</title>{lines}", media_type="text/html")

    @site.get("/tailrace-chat.js")
    async def own_copy() -> Response:  # pyright: ignore[reportUnusedFunction]
        return Response(MODULE.read_bytes(), media_type="text/javascript")

    async with (
        serving(create_app(Settings(store="sqlite://"), handler=draw)) as url,
        serving(site) as site_url,
    ):
        lines = f'<script type="module" src="tailrace-chat.js"></script><tailrace-chat agent="{url}"></tailrace-chat>'
        context = await browser.new_context()
        page = await open_page(context, site_url)
        await say(page, "draw")
        note = page.get_by_role("alert").filter(has_text="TAILRACE_ALLOWED_ORIGINS")
        await note.wait_for()
        assert site_url in await note.inner_text()
        await context.close()


@pytest.mark.parametrize("look", ["light", "dark", "phone", "phone-dark"])
async def test_nothing_keeps_people_from_using_it(browser: "Browser", agent: Agent, look: str) -> None:
    size = {"width": 390, "height": 800} if look.startswith("phone") else {"width": 1280, "height": 800}
    scheme = "dark" if look.endswith("dark") else "light"
    # axe-core is injected into the page, which the page's policy would forbid.
    async with window(browser, viewport=size, color_scheme=scheme, bypass_csp=True) as context:
        page = await open_page(context, agent.url)
        pieces = re.findall(r"\S+\s*|\s+", MARKDOWN)
        pause = agent.model.pause(pieces, len(pieces))
        pause.go_on.set()
        await say(page, "think")
        await until_state(page, "completed")
        await say(page, pause.prompt)
        await until_state(page, "completed")
        await say(page, "weather")
        await until_state(page, "input required")
        await add_axe(page)
        await take_picture(page, look)
        panels = ["Inspector", "Conversations"] if look.startswith("phone") else ["Inspector"]
        for panel in ["", *panels]:
            if panel:
                await page.get_by_role("button", name=panel, exact=True).click()
                await take_picture(page, f"{look}-{panel.lower()}")
            await check_accessibility(page)
            if panel:
                await page.get_by_role("button", name=panel, exact=True).click()
