"""Versions of a message in the chat: one entry of the list for all, failures in between, and the id of an embedding page."""

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

import anyio
import pytest
import pytest_asyncio

from e2e.browser import browsing
from e2e.playground_echo import (
    Echo,
    begin_conversations,
    chat,
    method_of,
    say,
    titles,
    until_articles,
    until_texts,
)
from support.fixture_contexts import in_own_task

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page, Route

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]

OPEN_ID = "document.querySelector('tailrace-chat').contextId"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncGenerator["Browser"]:
    async with in_own_task(browsing()) as browser:
        yield browser


async def regenerate(page: "Page", *numbers: int) -> None:
    """Request further versions, up to these numbers."""
    for number in numbers:
        await page.get_by_role("button", name="Regenerate").last.click()
        await page.get_by_text(f"{number}/{number}").wait_for()
        await page.locator('article:last-of-type[data-state="completed"]').wait_for()


async def fail_once(page: "Page", method: str, number: int) -> None:
    """Make the call of a method with this number fail."""
    calls = 0

    async def answer(route: "Route") -> None:
        nonlocal calls
        calls += method_of(route.request) == method
        if method_of(route.request) == method and calls == number:
            error = {"code": -32603, "message": "no database"}
            await route.fulfill(json={"jsonrpc": "2.0", "id": 1, "error": error})
        else:
            await route.fallback()

    await page.route(lambda _: True, answer)


async def test_a_deletion_that_fails_in_the_middle_is_completed_by_another_one(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await begin_conversations(page, "other", "one")
        await regenerate(page, 2, 3)
        await page.get_by_role("button", name="Previous version").click()
        await page.get_by_text("2/3").wait_for()
        await fail_once(page, "DeleteConversation", 2)
        await titles(page).first.focus()
        await page.keyboard.press("Delete")
        await page.keyboard.press("Enter")
        await until_texts(page.get_by_role("navigation").get_by_role("alert"), "no database")
        await page.keyboard.press("Escape")
        await until_texts(titles(page), "one", "other")
        await page.reload()
        await until_texts(titles(page), "one", "other")
        await page.get_by_text("2/2").or_(page.get_by_text("1/2")).wait_for()
        await titles(page).first.focus()
        await page.keyboard.press("Delete")
        await page.keyboard.press("Enter")
        await until_texts(page.locator("nav li"), "other")
        await page.reload()
        await until_texts(titles(page), "other")


async def test_the_question_shows_that_a_deletion_is_under_way(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await begin_conversations(page, "one")
        await page.route(
            lambda _: True,
            lambda route: None if method_of(route.request) == "DeleteConversation" else route.fallback(),
        )
        await titles(page).first.focus()
        await page.keyboard.press("Delete")
        await page.keyboard.press("Enter")
        await page.get_by_role("navigation").get_by_text("Deleting …").wait_for()


async def test_a_title_that_is_refused_in_the_middle_is_completed_by_another_attempt(
    browser: "Browser",
) -> None:
    async with chat(browser, Echo()) as page:
        await begin_conversations(page, "one")
        await regenerate(page, 2)
        await fail_once(page, "RenameConversation", 2)
        await titles(page).first.focus()
        await page.keyboard.press("F2")
        await page.keyboard.type("rivers")
        await page.keyboard.press("Enter")
        await until_texts(page.get_by_role("navigation").get_by_role("alert"), "no database")
        async with page.expect_response(lambda response: method_of(response.request) == "RenameConversation"):
            await page.keyboard.press("Enter")
        await until_texts(titles(page), "rivers")
        assert await all_titles(page) == {"rivers"}


async def all_titles(page: "Page") -> set[str]:
    """Return the titles of the server."""
    script = "document.querySelector('tailrace-chat').client.listConversations()"
    return {each["title"] for each in (await page.evaluate(script))["conversations"]}


async def test_an_empty_title_restores_the_default_of_the_first_version(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await begin_conversations(page, "one")
        await say(page, "two")
        await until_articles(page, 2)
        await regenerate(page, 2)
        for title in ("rivers", ""):
            await titles(page).first.focus()
            await page.keyboard.press("F2")
            await page.keyboard.press("Delete")
            await page.keyboard.type(title)
            await page.keyboard.press("Enter")
            await until_texts(titles(page), title or "one")
        await page.reload()
        await until_texts(titles(page), "one")
        assert await all_titles(page) == {"one"}


async def test_the_id_of_a_page_leads_to_the_version_that_was_used_last(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await page.goto(page.url.partition("#")[0] + "embed.html")
        set_id = "document.querySelector('tailrace-chat').setAttribute('context', 'my-id')"
        await page.evaluate(set_id)
        await say(page, "one")
        await until_articles(page, 1)
        assert await page.evaluate(OPEN_ID) == "my-id"
        await regenerate(page, 2)
        await say(page, "later")
        await until_articles(page, 2)
        version = await page.evaluate(OPEN_ID)
        tab, early = await page.context.new_page(), await page.context.new_page()
        released = anyio.Event()

        async def hold(route: "Route") -> None:
            await released.wait()
            await route.fallback()

        await early.route("**/agent-card.json", hold)
        for each in (page, tab, early):
            await each.goto(page.url)
            await each.evaluate(set_id)
            if each is early:
                released.set()
            await until_articles(each, 2)
            assert await each.evaluate(OPEN_ID) == version


async def test_a_version_with_a_complete_response_has_events(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await begin_conversations(page, "one")
        await page.evaluate(
            """() => {
                window.events = [];
                for (const name of ["textdelta", "taskstate"])
                    document.querySelector("tailrace-chat").addEventListener(name, ({ detail }) => events.push(detail.text ?? detail.state));
            }"""
        )

        async def wait(route: "Route") -> None:
            response = await route.fetch()
            if method_of(route.request) == "SendMessage":
                await page.evaluate(
                    """async (id) => {
                        const { client } = document.querySelector("tailrace-chat");
                        for await (const _ of client.subscribe(id));
                    }""",
                    (await response.json())["result"]["task"]["id"],
                )
            await route.fulfill(response=response)

        await page.route(
            lambda _: True,
            lambda route: wait(route) if method_of(route.request) == "SendMessage" else route.fallback(),
        )
        await regenerate(page, 2)
        assert await page.evaluate("events") == ["You wrote: one", "completed"]


async def test_an_unknown_conversation_is_explained_until_the_next_action(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await begin_conversations(page, "one")
        await page.evaluate(f"document.querySelector('tailrace-chat').client.deleteConversation({OPEN_ID})")
        alarm = page.get_by_role("log").get_by_role("alert")
        for _ in range(2):
            await page.get_by_role("button", name="Regenerate").click()
            await until_texts(
                alarm, "There is no such conversation: it was deleted, or it belongs to another user."
            )
        await say(page, "two")
        await until_articles(page, 2)
        assert await alarm.count() == 0


async def test_the_title_of_a_reused_id_is_new(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await begin_conversations(page, "gone", "open")
        await page.evaluate(
            """async () => {
                const { client } = document.querySelector("tailrace-chat");
                const { conversations } = await client.listConversations();
                await client.deleteConversation(conversations[1].contextId);
            }"""
        )
        await titles(page).last.click()
        await page.get_by_text("There is no such conversation").wait_for()
        await say(page, "used again")
        await until_articles(page, 1)
        await until_texts(titles(page), "used again", "open")
