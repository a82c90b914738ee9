"""Versions of the chat: turns that a branch has copied, and the place on the page when versions are switched."""

import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import pytest_asyncio

from e2e.browser import browsing, note_faults
from e2e.playground_echo import (
    Echo,
    begin_conversations,
    call_of,
    chat,
    focused,
    method_of,
    say,
    titles,
    until_articles,
    until_texts,
)
from support.approval_server import serving_approvals
from support.fixture_contexts import in_own_task
from support.live_server import serving
from support.rounds import answer, sent
from support.upstream import ScriptedUpstream
from tailrace.server import Settings, Turn, create_app
from tailrace.streaming import Update
from tailrace.streaming.a2a.models import Artifact, Part
from tailrace.streaming.a2a.stream_extension import with_extension_metadata
from tailrace.streaming.task.updates import ArtifactUpdate

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page, Route

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]

TOOLS = [{"name": "get_weather", "description": "The weather.", "parameters": {"type": "object"}}]

TURNS = """() => [...document.querySelector("tailrace-chat").shadowRoot.querySelectorAll("article")].map((turn) => [
    turn.dataset.state,
    ...[...turn.querySelectorAll(".said, .block")].map((node) => `${node.className} ${node.open ?? ""} ${node.textContent}`),
    ...[...turn.querySelectorAll("button, [download], img")].filter((node) => !node.closest(".versions") && node.checkVisibility())
        .map((node) => node.ariaLabel ?? node.download ?? node.src ?? node.textContent),
])"""
"""Script that returns the state of each turn, and what it shows."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncGenerator["Browser"]:
    async with in_own_task(browsing()) as browser:
        yield browser


@asynccontextmanager
async def page_at(browser: "Browser", url: str) -> AsyncGenerator["Page"]:
    """A page of a server; any error in it fails the test."""
    faults: list[str] = []
    context = await browser.new_context(viewport={"width": 1000, "height": 700})
    await context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = await context.new_page()
    note_faults(page, faults)
    await page.goto(url)
    yield page
    await context.close()
    assert faults == []


async def turns(page: "Page") -> list[list[str]]:
    return await page.evaluate(TURNS)


async def until_version(page: "Page", position: str, count: int) -> None:
    """Wait until the last message has this position among its versions, and there are this many turns, which have ended."""
    await page.locator("article:last-of-type .versions", has_text=position).wait_for()
    await until_articles(page, count)


async def check_copies(page: "Page", count: int, position: str = "2/2") -> None:
    """Regenerate the last of some turns, and check that the others have the look of the originals: live, reloaded, switched."""
    original = (await turns(page))[:-1]
    assert len(original) == count - 1
    await page.get_by_role("button", name="Regenerate").last.click()
    await until_version(page, position, count)
    assert (await turns(page))[:-1] == original
    await page.reload()
    await until_version(page, position, count)
    assert (await turns(page))[:-1] == original
    await page.get_by_role("button", name="Previous version").last.click()
    await until_version(page, "1/2", count)
    assert (await turns(page))[:-1] == original
    await page.get_by_role("button", name="Next version").last.click()
    await until_version(page, position, count)
    assert (await turns(page))[:-1] == original


async def test_copied_turns_have_the_look_and_the_buttons_of_the_originals(browser: "Browser") -> None:
    script = (
        answer(
            "Let me ", "see.", reasoning="The user asks.", calls=[("c1", "get_weather", {"city": "Rome"})]
        ),
        *(answer(text) for text in ("It is **sunny**.", "Two.", "Two again.", "One again.", "Changed.")),
    )
    async with ScriptedUpstream(*script) as upstream:
        settings: dict[str, Any] = {"base_url": upstream.base_url, "api_key": "none", "store": "sqlite://"}
        async with (
            serving(create_app(Settings(model="openai:scripted", **settings))) as url,
            page_at(browser, url) as page,
        ):
            await page.evaluate(
                "(tools) => document.querySelector('tailrace-chat').request = { tools }", TOOLS
            )
            await say(page, "weather")
            await page.get_by_label("Result of get_weather").fill("sunny")
            await page.get_by_role("button", name="Send results").click()
            await until_articles(page, 1)
            await say(page, "two")
            await until_articles(page, 2)
            await check_copies(page, 2)

            await page.locator("article").first.get_by_role("button", name="Copy").last.click()
            copied = await page.evaluate("navigator.clipboard.readText()")
            assert copied == "Let me see.\n\nIt is **sunny**."
            await page.locator("article").first.get_by_role("button", name="Regenerate").click()
            await page.get_by_text("One again.").wait_for()
            await until_version(page, "2/2", 1)
            assert [each["content"] for each in sent(upstream.requests[-1])] == ["weather"]
            await page.get_by_role("button", name="Previous version").click()
            await until_articles(page, 2)
            await page.locator(".said").first.hover()
            await page.get_by_role("button", name="Edit").first.click()
            await say(page, "climate")
            await page.get_by_text("Changed.").wait_for()
            await until_version(page, "3/3", 1)
            assert [each["content"] for each in sent(upstream.requests[-1])] == ["climate"]


async def test_copied_turns_show_decisions_and_calls_that_were_not_decided(browser: "Browser") -> None:
    calls = [answer(calls=[(f"c{number}", "send_mail", {"to": "bob@example.com"})]) for number in range(3)]
    texts = [
        answer(text) for text in ("Not sent.", "Sent.", "Never.", "Four.", "Four again.", "Never again.")
    ]
    script = (calls[0], texts[0], calls[1], texts[1], calls[2], *texts[2:])
    async with serving_approvals(*script) as server, page_at(browser, server.url) as page:
        await say(page, "one")
        await page.get_by_label("Reason of a rejection").fill("not now")
        await page.get_by_role("button", name="Reject").click()
        await until_articles(page, 1)
        await say(page, "two")
        await page.get_by_role("button", name="Approve").click()
        await until_articles(page, 2)
        await say(page, "three")
        await page.get_by_role("button", name="Approve").wait_for()
        await say(page, "never mind")
        await until_articles(page, 3)
        await say(page, "four")
        await until_articles(page, 4)
        await check_copies(page, 4)
        texts = ["Rejected: not now", "Approved", "Not decided: the call did not run."]
        assert await page.locator("[part=approval]").all_inner_texts() == texts

        # The message that left the call out belongs to the other version, the call to both.
        await page.locator("article").nth(2).get_by_role("button", name="Regenerate").click()
        await page.get_by_text("Never again.").wait_for()
        assert await page.locator(".said p").all_inner_texts() == ["one", "two", "three", "never mind"]
        call = page.locator("details.tool_call").last
        assert await call.locator("summary").inner_text() == "send_mail no result"
        assert "bob@example.com" in await call.get_by_label("Arguments").inner_text()
        tool = sent(server.upstream.requests[-1])[-2]
        assert (tool["role"], tool["tool_call_id"]) == ("tool", "c2")
        assert server.ran == ["bob@example.com"]


class Files(Echo):
    """Responds with reasoning, text, and a file."""

    async def __call__(self, turn: Turn) -> AsyncIterator[Update]:
        for channel, part in (
            ("reasoning", Part(text="Hm.")),
            ("text", Part(text="Here.")),
            ("file", Part(raw=b"1,2", filename="numbers.csv", media_type="text/csv")),
        ):
            metadata = with_extension_metadata({}, channel=channel)
            yield ArtifactUpdate(Artifact(artifact_id=channel, parts=(part,), metadata=metadata))


async def test_copied_turns_show_reasoning_and_files(browser: "Browser") -> None:
    async with chat(browser, Files()) as page:
        files = [{"name": "a.txt", "mimeType": "text/plain", "buffer": b"content"}]
        await page.locator("input[type=file]").set_input_files(files)  # pyright: ignore[reportArgumentType]
        await say(page, "look")
        await until_articles(page, 1)
        await say(page, "two")
        await until_articles(page, 2)
        await check_copies(page, 2)
        async with page.expect_download() as download:
            await page.get_by_role("link", name="numbers.csv").first.click()
        assert (await (await download.value).path()).read_bytes() == b"1,2"


ROW = """() => {
    const root = document.querySelector("tailrace-chat").shadowRoot;
    const rows = [...root.querySelectorAll(".versions")].filter((row) => row.firstChild);
    const log = root.querySelector(".log").getBoundingClientRect();
    return rows.map((row) => Math.round(row.getBoundingClientRect().top - log.top));
}"""
"""Script that returns how far the visible versions are below the top of the log, in pixels."""

AT_REST = """async () => {
    const log = document.querySelector("tailrace-chat").shadowRoot.querySelector(".log");
    for (let same = 0, before; same < 20; same += 1) {
        const now = `${log.scrollTop} ${log.scrollHeight}`;
        if (now !== before) same = 0;
        before = now;
        await new Promise(requestAnimationFrame);
    }
}"""
"""Script that waits until the log does not scroll or change its height."""


async def test_switching_versions_keeps_the_place_and_the_focus(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await say(page, "long 0")
        await until_articles(page, 1)
        await page.evaluate(
            """async () => {
                const { client, contextId } = document.querySelector("tailrace-chat");
                for (let number = 1; number < 24; number += 1)
                    for await (const _ of client.send([{ text: `long ${number}` }], { contextId }));
            }"""
        )
        await page.reload()
        await until_articles(page, 24)
        status = page.get_by_role("status")
        # Regenerated in the middle: 24 turns in the first version, 12 in the others, whose last answer is short in the third.
        await page.get_by_role("button", name="Regenerate").nth(11).click()
        await until_version(page, "2/2", 12)
        assert await status.inner_text() == "The task is completed"
        await page.locator(".said").last.hover()
        await page.get_by_role("button", name="Edit").last.click()
        await say(page, "short")
        await until_version(page, "3/3", 12)
        await page.evaluate(AT_REST)
        for key, number, count, name in (
            ("Previous version", 2, 12, "Previous version"),
            ("Previous version", 1, 24, "Next version"),
            ("Next version", 2, 12, "Next version"),
            ("Next version", 3, 12, "Previous version"),
        ):
            button = page.get_by_role("button", name=key)
            await button.focus()
            await page.evaluate(AT_REST)
            [before] = await page.evaluate(ROW)
            await page.keyboard.press("Enter")
            await page.locator(".versions", has_text=f"{number}/3").wait_for()
            await until_articles(page, count)
            await page.evaluate(AT_REST)
            [after] = await page.evaluate(ROW)
            assert abs(after - before) <= 2
            assert await focused(page) == name
            assert await status.inner_text() == f"Version {number} of 3"


async def test_a_new_version_of_another_tab_keeps_the_focus(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await say(page, "one")
        await until_articles(page, 1)
        await page.get_by_role("button", name="Regenerate").click()
        await until_version(page, "2/2", 1)
        other = await page.context.new_page()
        await other.goto(page.url)
        await until_version(other, "2/2", 1)
        await page.get_by_role("button", name="Previous version").focus()
        await other.get_by_role("button", name="Regenerate").click()
        await page.get_by_text("2/3").wait_for()
        assert await focused(page) == "Previous version"


class Held(Echo):
    """Holds its responses to "hold" until ``release`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.release = anyio.Event()

    async def __call__(self, turn: Turn) -> AsyncIterator[Update]:
        if turn.message.parts[0].text == "hold":
            await self.release.wait()
        async for update in super().__call__(turn):
            yield update


async def test_a_response_cannot_be_regenerated_while_another_one_runs(browser: "Browser") -> None:
    echo = Held()
    async with chat(browser, echo) as page:
        await say(page, "one")
        await until_articles(page, 1)
        regenerate = page.get_by_role("button", name="Regenerate").first
        assert await regenerate.is_enabled()
        assert await regenerate.get_attribute("title") == "Another version of the response"
        await say(page, "hold")
        await page.get_by_role("button", name="Stop").wait_for()
        assert await regenerate.is_disabled()
        reason = "Wait until the present response is complete, or stop it"
        assert await regenerate.get_attribute("title") == reason
        echo.release.set()
        await until_articles(page, 2)
        assert await regenerate.is_enabled()
        assert await regenerate.get_attribute("title") == "Another version of the response"
        await regenerate.click()
        await until_version(page, "2/2", 1)


async def test_a_message_of_another_tab_loads_no_copied_files(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        files = [{"name": "a.txt", "mimeType": "text/plain", "buffer": b"content"}]
        await page.locator("input[type=file]").set_input_files(files)  # pyright: ignore[reportArgumentType]
        await say(page, "look")
        await until_articles(page, 1)
        await say(page, "two")
        await until_articles(page, 2)
        await page.get_by_role("button", name="Regenerate").last.click()
        await until_version(page, "2/2", 2)
        other = await page.context.new_page()
        await other.goto(page.url)
        await until_version(other, "2/2", 2)
        async with page.expect_response(lambda each: method_of(each.request) == "GetConversation") as loaded:
            await say(other, "three")
        text = await (await loaded.value).text()
        assert "a.txt" in text
        assert base64.b64encode(b"content").decode() not in text
        await until_articles(page, 3)
        async with page.expect_download() as download:
            await page.get_by_role("link", name="a.txt").click()
        assert (await (await download.value).path()).read_bytes() == b"content"


async def test_a_version_whose_response_is_lost_is_requested_once(browser: "Browser") -> None:
    echo = Echo()
    async with chat(browser, echo, expected="ERR_FAILED") as page:
        await say(page, "one")
        await until_articles(page, 1)
        keys: list[str] = []

        async def lose(route: "Route") -> None:
            if method_of(route.request) != "SendMessage":
                await route.fallback()
                return
            keys.append(route.request.headers["idempotency-key"])
            if len(keys) == 1:
                await route.fetch()  # the request arrives, and its response is lost
                await route.abort()
            else:
                await route.fallback()

        await page.route(lambda _: True, lose)
        await page.get_by_role("button", name="Regenerate").click()
        await page.get_by_text("2/2").wait_for()
        assert await page.get_by_role("alert").count() == 0
        assert keys[0] == keys[1]
        assert echo.prompts == ["one", "one"]


async def test_a_message_waits_until_a_version_has_begun(browser: "Browser") -> None:
    echo = Echo()
    async with chat(browser, echo) as page:
        await say(page, "one")
        await until_articles(page, 1)
        sent, give = anyio.Event(), anyio.Event()

        async def hold(route: "Route") -> None:
            if method_of(route.request) == "SendMessage":
                sent.set()
                await give.wait()
            await route.fallback()

        await page.route(lambda _: True, hold)
        await page.get_by_role("button", name="Regenerate").click()
        with anyio.fail_after(30):
            await sent.wait()
        await say(page, "two")
        give.set()
        await page.get_by_text("2/2").wait_for()
        assert await page.get_by_label("Message", exact=True).input_value() == "two"
        await page.keyboard.press("Enter")
        await until_articles(page, 2)
        assert echo.prompts == ["one", "one", "two"]


async def test_the_question_before_a_deletion_names_versions_that_are_not_loaded(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await begin_conversations(page, "another", "one")
        await page.get_by_role("button", name="Regenerate").click()
        await page.get_by_text("2/2").wait_for()
        await until_articles(page, 1)

        async def list_one(route: "Route") -> None:
            call = call_of(route.request)
            if call.get("method") == "ListConversations" and "relatedTo" not in call["params"]:
                call["params"]["pageSize"] = 1
                await route.continue_(post_data=json.dumps(call))
            else:
                await route.fallback()

        await page.route(lambda _: True, list_one)
        await page.reload()
        await page.get_by_role("button", name="Show more").wait_for()
        await titles(page).first.focus()
        await page.keyboard.press("Delete")
        await page.get_by_text("Delete “one” with all versions?").wait_for()


async def test_a_version_replaces_no_other_conversation(browser: "Browser") -> None:
    """The user has left the conversation before the branch has begun."""
    async with chat(browser, Echo()) as page:
        await begin_conversations(page, "another", "one")
        sent, give, given = anyio.Event(), anyio.Event(), anyio.Event()

        async def hold(route: "Route") -> None:
            if method_of(route.request) != "SendMessage":
                await route.fallback()
                return
            response = await route.fetch()
            sent.set()
            await give.wait()
            await route.fulfill(response=response)
            given.set()

        await page.route(lambda _: True, hold)
        await page.get_by_role("button", name="Regenerate").click()
        with anyio.fail_after(30):
            await sent.wait()
        await titles(page).last.click()
        await page.locator(".said", has_text="another").wait_for()
        await page.get_by_label("Message", exact=True).fill("a draft")
        give.set()
        with anyio.fail_after(30):
            await given.wait()
        await page.evaluate("document.querySelector('tailrace-chat').client.listConversations()")
        assert await page.locator(".said p").all_inner_texts() == ["another"]
        assert await page.get_by_label("Message", exact=True).input_value() == "a draft"
        await titles(page).first.click()
        await page.get_by_text("2/2").wait_for()
        await until_texts(titles(page), "one", "another")
