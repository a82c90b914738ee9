"""The list of conversations: pages and searches of the server."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import pytest_asyncio

from e2e.browser import browsing
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
from support.fixture_contexts import in_own_task
from support.rpc import Rpc, message

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page, Route

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncGenerator["Browser"]:
    async with in_own_task(browsing()) as browser:
        yield browser


async def send(page: "Page", *texts: str, context_id: str = "") -> None:
    """Send messages to the server of a page, each in a conversation of its own, or all in one."""
    async with Rpc(page.url.partition("/#")[0].rstrip("/")) as rpc:
        for text in texts:
            params = message(text, **({"contextId": context_id} if context_id else {}))
            await rpc.result("SendMessage", params)


async def begin_with_file(page: "Page", text: str, size: int) -> None:
    """Begin a conversation with a text and a file of this many bytes."""
    await page.evaluate(
        """async ([text, size]) => {
            const chat = document.querySelector("tailrace-chat");
            const over = new Promise((resolve) => chat.addEventListener("taskstate", ({ detail }) => detail.state === "completed" && resolve()));
            await chat.newConversation();
            await chat.send(text, [{ raw: "eHh4".repeat(size / 3), filename: "photo.png", mediaType: "image/png" }]);
            await over;
        }""",
        [text, size],
    )


def search_field(page: "Page") -> Any:
    return page.get_by_role("searchbox", name="Search conversations")


async def intercept(page: "Page", answer: Callable[["Route", dict[str, Any]], Awaitable[bool]]) -> None:
    """Call a function for each ListConversations; if it returns False, the request continues to the server."""

    async def handle(route: "Route") -> None:
        call = call_of(route.request)
        if call.get("method") != "ListConversations" or not await answer(route, call["params"]):
            await route.fallback()

    await page.route(lambda _: True, handle)


async def test_a_long_conversation_hides_no_other_one(browser: "Browser") -> None:
    others = [f"Give me a river with {number}" for number in range(26)]
    async with chat(browser, Echo()) as page:
        await send(page, *others)
        await send(page, *(f"turn {number}" for number in range(100)), context_id="long")
        await page.reload()
        await until_texts(titles(page), "turn 0", *others[::-1])
        await page.keyboard.press("Control+k")
        await page.keyboard.type("RIVER WITH 0")
        await until_texts(titles(page), others[0])
        await search_field(page).fill("turn 0")
        await until_texts(titles(page), "turn 0")
        await titles(page).click()
        await page.locator(".said", has_text="turn 99").wait_for()
        await send(page, "İstanbul and a cafe\u0301")
        await search_field(page).fill("istanbul AND A CAFÉ")
        await until_texts(titles(page), "İstanbul and a cafe\u0301")
        await search_field(page).fill("turn 99")  # no title
        await page.get_by_text("Nothing found").wait_for()
        await search_field(page).fill("")
        await until_texts(titles(page), "İstanbul and a cafe\u0301", "turn 0", *others[::-1])


async def test_further_pages_are_loaded_on_demand(browser: "Browser") -> None:
    texts = [f"number {number}" for number in range(120)]
    async with chat(browser, Echo()) as page:
        await send(page, *texts)
        await page.reload()
        await until_texts(titles(page), *texts[:-51:-1])
        more = page.get_by_role("button", name="Show more")
        await more.focus()
        await page.keyboard.press("Enter")
        await until_texts(titles(page), *texts[:-101:-1])
        assert await focused(page) == "number 69"  # the first of the page
        await search_field(page).fill("number 1")  # the others of this search are not loaded yet
        await until_texts(titles(page), *[text for text in texts if text.startswith("number 1")][::-1])
        assert not await more.is_visible()
        await search_field(page).fill("")
        await more.click()
        await until_texts(titles(page), *texts[:-101:-1])
        await more.click()
        await until_texts(titles(page), *texts[::-1])
        assert not await more.is_visible()


async def test_no_attachment_is_transferred_for_the_list(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        url = page.url
        await begin_with_file(page, "look at this", 3_000_000)
        await begin_with_file(page, "", 3)
        await page.goto("about:blank")
        await page.goto(url)
        await until_texts(titles(page), "photo.png", "look at this")
        sizes = await page.evaluate(
            "performance.getEntriesByType('resource').map((each) => each.decodedBodySize)"
        )
        assert len(sizes) >= 3  # the module, the card, the list
        assert sum(sizes) < 300_000


async def test_a_file_of_a_conversation_is_transferred_once(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await begin_with_file(page, "look at this", 3_000_000)
        url = page.url
        await page.goto("about:blank")
        await page.goto(url)
        image = page.locator("article img")
        await image.wait_for()
        assert len(await image.get_attribute("src") or "") > 4_000_000
        sizes = await page.evaluate(
            "performance.getEntriesByType('resource').map((each) => each.decodedBodySize)"
        )
        assert 4_000_000 < sum(sizes) < 4_500_000  # base64


async def test_files_of_tasks_that_are_not_listed_are_shown(browser: "Browser") -> None:
    async def list_none(route: "Route") -> None:
        if method_of(route.request) == "ListTasks":
            await route.fulfill(
                json={"jsonrpc": "2.0", "id": 1, "result": {"tasks": [], "nextPageToken": ""}}
            )
        else:
            await route.fallback()

    async with chat(browser, Echo()) as page:
        await begin_with_file(page, "look at this", 300)
        await page.route(lambda _: True, list_none)
        await page.reload()
        image = page.locator("article img")
        await image.wait_for()
        assert len(await image.get_attribute("src") or "") > 400


async def test_a_branch_shows_the_files_before_it(browser: "Browser") -> None:
    """Its copies of earlier messages belong to no task."""
    async with chat(browser, Echo()) as page:
        await begin_with_file(page, "look at this", 300)
        await say(page, "more")
        await until_articles(page, 2)
        await page.keyboard.press("ArrowUp")
        await say(page, "something else")
        await page.get_by_text("You wrote: something else").wait_for()
        assert len(await page.locator("article img").get_attribute("src") or "") > 400


async def test_a_late_response_to_an_earlier_search_changes_nothing(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await begin_conversations(page, "the Nile", "the Danube")
        waits, give, given = anyio.Event(), anyio.Event(), anyio.Event()

        async def hold(route: "Route", params: dict[str, Any]) -> bool:
            if params.get("query") != "the":
                return False
            waits.set()
            await give.wait()
            await route.fulfill(response=await route.fetch())
            given.set()
            return True

        await intercept(page, hold)
        await search_field(page).fill("the")
        with anyio.fail_after(30):
            await waits.wait()
        await search_field(page).fill("the Nile")
        await until_texts(titles(page), "the Nile")
        give.set()
        with anyio.fail_after(30):
            await given.wait()
        await page.evaluate("document.querySelector('tailrace-chat').client.listConversations()")
        assert await titles(page).all_inner_texts() == ["the Nile"]


async def test_an_agent_without_a_list_has_the_conversations_of_the_page(browser: "Browser") -> None:
    async def refuse(route: "Route", _: dict[str, Any]) -> bool:
        await route.fulfill(
            json={"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "no such method"}}
        )
        return True

    async with chat(browser, Echo()) as page:
        await intercept(page, refuse)
        await page.reload()
        await begin_conversations(page, "the Nile", "the Danube")
        await until_texts(titles(page), "the Danube", "the Nile")
        await search_field(page).fill("nile")
        await until_texts(titles(page), "the Nile")
        await begin_conversations(page, "İstanbul and a cafe\u0301")
        await search_field(page).fill("istanbul AND A CAFÉ")
        await until_texts(titles(page), "İstanbul and a cafe\u0301")
        await begin_conversations(page, "שָׁלוֹם مُحَمَّد")
        await search_field(page).fill("שלום محمد")
        await until_texts(titles(page), "שָׁלוֹם مُحَمَّد")
        await search_field(page).fill("nothing like this")
        await page.get_by_text("Nothing found").wait_for()
        assert await page.get_by_role("alert").count() == 0


async def test_a_list_that_cannot_be_loaded_is_tried_again(browser: "Browser") -> None:
    fails = True

    async def fail(route: "Route", _: dict[str, Any]) -> bool:
        if fails:
            await route.fulfill(
                json={"jsonrpc": "2.0", "id": 1, "error": {"code": -32603, "message": "no database"}}
            )
        return fails

    async with chat(browser, Echo()) as page:
        await send(page, "the Nile")
        await intercept(page, fail)
        await page.reload()
        note = page.get_by_role("navigation").get_by_role("alert")
        await note.wait_for()
        assert "no database" in await note.inner_text()
        fails = False
        await note.get_by_role("button", name="Try again").click()
        await until_texts(titles(page), "the Nile")
        assert await note.count() == 0


async def test_a_list_that_was_under_way_does_not_bring_a_deleted_conversation_back(
    browser: "Browser",
) -> None:
    async with chat(browser, Echo()) as page:
        await begin_conversations(page, "the Nile", "the Danube")
        waits, give, given = anyio.Event(), anyio.Event(), anyio.Event()

        async def hold(route: "Route", params: dict[str, Any]) -> bool:
            if params.get("query") != "the" or waits.is_set():
                return False
            response = await route.fetch()
            waits.set()
            await give.wait()
            await route.fulfill(response=response)
            given.set()
            return True

        await intercept(page, hold)
        await search_field(page).fill("the")
        with anyio.fail_after(30):
            await waits.wait()
        await titles(page).last.focus()  # not the open one: that would end the search
        await page.keyboard.press("Delete")
        await page.keyboard.press("Enter")
        await until_texts(titles(page), "the Danube")
        give.set()
        with anyio.fail_after(30):
            await given.wait()
        await page.evaluate("document.querySelector('tailrace-chat').client.listConversations()")
        assert await titles(page).all_inner_texts() == ["the Danube"]


async def test_a_searched_text_is_no_longer_than_the_server_accepts(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await search_field(page).press_sequentially("x" * 201)
        assert await search_field(page).input_value() == "x" * 200
        await page.get_by_text("Nothing found").wait_for()
        assert await page.get_by_role("alert").count() == 0


async def test_the_shortcut_of_the_search_does_not_open_a_hidden_list(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await page.evaluate("document.querySelector('tailrace-chat').hide = 'conversations'")
        await page.get_by_role("navigation").wait_for(state="hidden")
        await page.keyboard.press("Control+k")
        assert await page.get_by_role("navigation").count() == 0
