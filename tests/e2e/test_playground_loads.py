"""Loading a conversation whose response is running: once, however often it is opened."""

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import pytest_asyncio

from e2e.browser import browsing
from e2e.playground_echo import (
    CARD_LOADED,
    Echo,
    Growing,
    begin_conversations,
    chat,
    hold,
    method_of,
    say,
    titles,
    until_articles,
    until_texts,
)
from support.fixture_contexts import in_own_task

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncGenerator["Browser"]:
    async with in_own_task(browsing()) as browser:
        yield browser


async def note_events(page: "Page") -> None:
    """Keep the texts and states that the element reports in ``window.reported``."""
    await page.evaluate(
        """() => {
            window.reported = [];
            const chat = document.querySelector("tailrace-chat");
            chat.addEventListener("textdelta", ({ detail }) => reported.push(detail.text));
            chat.addEventListener("taskstate", ({ detail }) => reported.push(detail.state));
        }"""
    )


async def until_reported(page: "Page", *expected: str) -> None:
    """Wait until the last of these is reported: they are, once each."""
    reported: list[Any] = []
    with anyio.fail_after(30):
        while expected[-1] not in reported:
            reported = await page.evaluate("window.reported")
    assert reported == list(expected)


def note_methods(page: "Page") -> list[str]:
    methods: list[str] = []
    page.on("request", lambda request: methods.append(method_of(request)))
    return methods


async def test_a_conversation_that_is_clicked_again_is_loaded_and_followed_once(browser: "Browser") -> None:
    """A browser opens six connections to a server: further subscriptions would leave none to stop the response."""
    growing = Growing()
    async with chat(browser, growing) as page:
        await begin_conversations(page, "one", "two")
        await say(page, "grow")
        await until_articles(page, 2, "working")
        await page.get_by_role("button", name="one", exact=True).click()
        await page.locator(".said", has_text="one").wait_for()
        await note_events(page)
        methods = note_methods(page)
        held = await hold(page, "ListTasks")
        for _ in range(7):
            await page.get_by_role("button", name="two", exact=True).click()
        await held.begun()
        held.release()
        await until_articles(page, 2, "working")
        await page.get_by_role("button", name="Stop").click()
        await until_articles(page, 2, "canceled")
        assert [methods.count(each) for each in ("ListTasks", "SubscribeToTask")] == [1, 1]
        await until_reported(page, "canceled")


async def test_events_are_reported_once_after_two_loads_of_a_conversation(browser: "Browser") -> None:
    growing = Growing()
    async with chat(browser, growing) as page:
        await begin_conversations(page, "one")
        await say(page, "grow")
        await until_articles(page, 2, "working")
        conversation = await page.evaluate("document.querySelector('tailrace-chat').contextId")
        await begin_conversations(page, "two")
        await note_events(page)
        await page.evaluate(
            """async (id) => {
                const chat = document.querySelector("tailrace-chat");
                await Promise.all([chat.open(id), chat.newConversation(), chat.open(id), chat.open(id)]);
            }""",
            conversation,
        )
        await until_articles(page, 2, "working")
        growing.end.set()
        await until_articles(page, 2)
        await until_reported(page, " middle", " end", "completed")


async def test_a_load_ends_when_another_conversation_is_entered(browser: "Browser") -> None:
    async with chat(browser, Echo(), expected="ERR_ABORTED") as page:
        await begin_conversations(page, "one", "two", "three")
        held = await hold(page, "ListTasks")
        failed: list[str] = []
        page.on("requestfailed", lambda request: failed.append(method_of(request)))
        await page.get_by_role("button", name="one", exact=True).click()
        await held.begun()
        await page.get_by_role("button", name="two", exact=True).click()
        with anyio.fail_after(30):
            while "ListTasks" not in failed:
                await page.evaluate("new Promise(requestAnimationFrame)")
        held.release()
        await page.locator(".said", has_text="two").wait_for()
        assert await page.locator("article").count() == 1
        assert await page.get_by_role("alert").count() == 0


async def test_a_task_of_another_tab_is_followed_once_by_a_page_that_loads(browser: "Browser") -> None:
    growing = Growing()
    async with chat(browser, growing) as page:
        await begin_conversations(page, "one")
        other = await page.context.new_page()
        await other.goto(page.url)
        await other.evaluate(CARD_LOADED)
        await until_articles(other, 1)
        await begin_conversations(page, "two")
        await note_events(page)
        methods = note_methods(page)
        held = await hold(page, "ListTasks")
        await page.get_by_role("button", name="one", exact=True).click()
        await held.begun()
        async with page.expect_response(lambda response: method_of(response.request) == "ListConversations"):
            await say(other, "grow")
            await until_articles(other, 2, "working")
        await until_texts(titles(page), "one", "two")
        held.release()
        await until_articles(page, 2, "working")
        growing.end.set()
        await until_articles(page, 2)
        assert await page.locator("article").count() == 2
        assert methods.count("SubscribeToTask") == 1
        await until_reported(page, " middle", " end", "completed")
