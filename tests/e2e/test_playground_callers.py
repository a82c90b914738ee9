"""The chat of several callers and agents in one browser: nothing of one is on the page of another."""

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
import pytest_asyncio

from e2e.browser import browsing, note_faults
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
from support.several_agents import serving_agents

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page, Route

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]

KEYS = "alice:key-a,bob:key-b"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncGenerator["Browser"]:
    async with in_own_task(browsing()) as browser:
        yield browser


async def use_key(page: "Page", key: str) -> None:
    """Use the page as the caller with this key."""
    await page.evaluate(
        "async (key) => { const chat = document.querySelector('tailrace-chat'); chat.token = key; await chat.opened; }",
        key,
    )


async def test_a_tab_shows_no_title_of_another_caller(browser: "Browser") -> None:
    async with chat(browser, Echo(), expected="401", caller_keys=KEYS) as page:
        other = await page.context.new_page()
        await other.goto(page.url)
        await use_key(page, "key-a")
        await use_key(other, "key-b")
        await begin_conversations(page, "secret of alice")
        await page.get_by_role("button", name="Rename secret of alice").click()
        await page.keyboard.type("renamed secret")
        await page.keyboard.press("Enter")
        await until_texts(titles(page), "renamed secret")
        await begin_conversations(other, "bob's question")
        await until_texts(titles(other), "bob's question")
        await until_texts(titles(page), "renamed secret")


async def test_another_caller_of_the_page_sees_nothing_of_the_former_one(browser: "Browser") -> None:
    async with chat(browser, Echo(), expected="401", caller_keys=KEYS) as page:
        await use_key(page, "key-a")
        await begin_conversations(page, "secret of alice", "another secret")
        await page.get_by_label("Message", exact=True).fill("a draft of alice")
        await titles(page).last.click()
        await page.locator(".said", has_text="secret of alice").wait_for()
        await page.get_by_label("Message", exact=True).fill("another draft of alice")
        await page.get_by_role("button", name="Inspector").click()
        await page.locator("aside details").first.wait_for()
        await use_key(page, "key-b")
        await until_texts(titles(page))
        assert "secret" not in await page.locator("tailrace-chat").inner_text()
        assert await page.get_by_label("Message", exact=True).input_value() == ""
        assert await page.locator("aside details").count() == 0
        await begin_conversations(page, "bob's question")
        await until_texts(titles(page), "bob's question")
        await use_key(page, "key-a")
        await until_texts(titles(page), "another secret", "secret of alice")


async def test_a_response_to_the_former_caller_is_not_shown(browser: "Browser") -> None:
    async with chat(browser, Echo(), expected="401", caller_keys=KEYS) as page:
        await use_key(page, "key-a")
        await begin_conversations(page, "secret of alice")
        await page.evaluate(
            """async () => {
                const chat = document.querySelector("tailrace-chat");
                const former = chat.client;
                const requests = [chat.open(chat.contextId), chat.renameConversation(chat.contextId, "secret title")];
                chat.token = "key-b";
                await Promise.all(requests);
                await chat.opened;
                await chat.client.listConversations();
            }"""
        )
        await until_texts(titles(page))
        assert "secret" not in await page.locator("tailrace-chat").inner_text()


async def test_functions_and_equal_headers_keep_the_caller(browser: "Browser") -> None:
    """Components make both again when they are drawn."""
    async with chat(browser, Echo()) as page:
        await page.evaluate("document.querySelector('tailrace-chat').token = () => 'one'")
        await begin_conversations(page, "one")
        await page.get_by_label("Message", exact=True).fill("a draft")
        methods: list[str] = []
        page.on("request", lambda request: methods.append(method_of(request)))
        await page.evaluate(
            """async () => {
                const chat = document.querySelector("tailrace-chat");
                chat.token = () => "two";
                chat.headers = {};
                await chat.opened;
                await chat.client.getTask("unknown").catch(() => {});
            }"""
        )
        assert await page.get_by_label("Message", exact=True).input_value() == "a draft"
        assert [each for each in methods if each] == ["GetTask"]


async def test_another_agent_of_the_page_has_its_own_conversations(
    browser: "Browser", tmp_path: Path
) -> None:
    faults: list[str] = []
    async with serving_agents(tmp_path, keys={}, support="", code="") as server:
        page = await browser.new_page()
        note_faults(page, faults)
        await page.goto(f"{server.url}/agents/legal/")
        await say(page, "for the legal agent")
        await until_articles(page, 1)
        await page.evaluate("document.querySelector('tailrace-chat').agent = '/agents/support/'")
        await until_texts(titles(page))
        assert await page.locator("article").count() == 0
        await begin_conversations(page, "for the support agent")
        await until_texts(titles(page), "for the support agent")
        await page.evaluate("document.querySelector('tailrace-chat').agent = '/agents/legal/'")
        await until_texts(titles(page), "for the legal agent")
        await page.close()
    assert faults == []


async def test_a_server_with_keys_asks_for_one_at_once(browser: "Browser") -> None:
    async with chat(browser, Echo(), expected="401", caller_keys=KEYS) as page:
        await use_key(page, "key-a")
        await begin_conversations(page, "a question")
        conversation = page.url
        other = await page.context.new_page()
        await other.goto(conversation.partition("#")[0])
        await other.get_by_label("Token or key").wait_for()
        await other.goto("about:blank")
        await other.goto(conversation)
        await other.get_by_role("alert").wait_for()
        field = other.get_by_label("Token or key")
        assert await field.count() == 1
        await field.fill("key-a")
        await other.keyboard.press("Enter")
        await until_articles(other, 1)
        await until_texts(titles(other), "a question")
        assert await field.count() == 0


async def test_a_new_conversation_keeps_the_prompt_for_a_key(browser: "Browser") -> None:
    async with chat(browser, Echo(), expected="401", caller_keys=KEYS) as page:
        field = page.get_by_label("Token or key")
        await field.fill("key-")
        await page.get_by_role("navigation").get_by_role("button", name="New conversation").click()
        assert await field.input_value() == "key-"
        await field.press("End")
        await page.keyboard.type("a")
        await page.keyboard.press("Enter")
        await begin_conversations(page, "a question")
        await until_texts(titles(page), "a question")
        assert await field.count() == 0


async def test_a_refused_key_is_named_in_words(browser: "Browser") -> None:
    async with chat(browser, Echo(), expected="401", caller_keys=KEYS) as page:
        field, alerts = page.get_by_label("Token or key"), page.locator("form").get_by_role("alert")
        await field.wait_for()
        assert await alerts.count() == 0
        await field.fill("wrong")
        await page.keyboard.press("Enter")
        await until_texts(alerts, "The agent has refused this token or key. Enter another one.")
        await page.keyboard.type("key-a")
        await page.keyboard.press("Enter")
        await begin_conversations(page, "a question")
        await until_texts(titles(page), "a question")
        assert await alerts.count() == 0


async def test_a_late_prompt_does_not_interrupt_typing(browser: "Browser") -> None:
    waits, give = anyio.Event(), anyio.Event()

    async def hold(route: "Route") -> None:
        if method_of(route.request) == "ListConversations":
            waits.set()
            await give.wait()
        await route.fallback()

    async with chat(browser, Echo(), expected="401", caller_keys=KEYS) as page:
        await page.route(lambda _: True, hold)
        await page.reload()
        with anyio.fail_after(30):
            await waits.wait()
        await page.keyboard.type("a ques")
        give.set()
        await page.get_by_label("Token or key").wait_for()
        await page.keyboard.type("tion")
        assert await page.get_by_label("Message", exact=True).input_value() == "a question"
        assert await page.get_by_label("Token or key").input_value() == ""


async def test_another_caller_of_an_embedded_chat_begins_a_new_conversation(browser: "Browser") -> None:
    async with chat(browser, Echo(), expected="401", caller_keys=KEYS) as page:
        await page.goto(page.url.partition("#")[0] + "embed.html")
        await use_key(page, "key-a")
        await say(page, "secret of alice")
        await until_articles(page, 1)
        open_id = "document.querySelector('tailrace-chat').contextId"
        former = await page.evaluate(open_id)
        await page.reload()
        await use_key(page, "key-a")  # the first token of the page is no other caller
        await until_articles(page, 1)
        assert await page.evaluate(open_id) == former
        bodies: list[str] = []
        page.on("request", lambda request: bodies.append(request.post_data or ""))
        await use_key(page, "key-b")
        await page.get_by_role("button", name="Say hello").wait_for()
        await say(page, "bob's question")
        await until_articles(page, 1)
        assert await page.evaluate(open_id) != former
        assert [body for body in bodies if former in body] == []


@asynccontextmanager
async def revocable(browser: "Browser") -> AsyncGenerator[tuple["Page", set[str]]]:
    """A page whose user has entered the key of alice, and the keys that are refused from now on."""
    revoked: set[str] = set()

    async def refuse(route: "Route") -> None:
        if route.request.headers.get("x-api-key") in revoked:
            error = {"code": -32000, "message": "key revoked"}
            await route.fulfill(status=401, json={"jsonrpc": "2.0", "id": 1, "error": error})
        else:
            await route.fallback()

    async with chat(
        browser, Echo(), expected="the server responded with a status of", caller_keys=KEYS
    ) as page:
        await page.route(lambda _: True, refuse)
        await enter_key(page, "key-a")
        await begin_conversations(page, "another secret", "secret of alice")
        await until_texts(titles(page), "secret of alice", "another secret")
        yield page, revoked


async def enter_key(page: "Page", key: str) -> None:
    await page.get_by_label("Token or key").fill(key)
    await page.keyboard.press("Enter")


async def test_the_key_of_another_caller_begins_a_new_conversation(browser: "Browser") -> None:
    async with revocable(browser) as (page, revoked):
        former = await page.evaluate("document.querySelector('tailrace-chat').contextId")
        await page.get_by_label("Message", exact=True).fill("a draft of alice")
        await titles(page).last.click()
        await page.locator(".said", has_text="another secret").wait_for()
        revoked.add("key-a")
        await say(page, "an unsent message")
        await enter_key(page, "wrong")
        await page.get_by_text("The agent has refused this token or key").wait_for()
        bodies: list[str] = []
        page.on("request", lambda request: bodies.append(request.post_data or ""))
        await enter_key(page, "key-b")
        await page.get_by_role("button", name="Say hello").wait_for()
        await until_texts(titles(page))
        assert "secret" not in await page.locator("tailrace-chat").inner_text()
        assert await page.get_by_label("Message", exact=True).input_value() == "an unsent message"
        assert await page.get_by_label("Token or key").count() == 0
        assert [body for body in bodies if "Message" in body] == []
        bodies.clear()
        await page.keyboard.press("Enter")
        await until_articles(page, 1)
        await until_texts(titles(page), "an unsent message")
        assert [body for body in bodies if former in body] == []


async def test_another_key_after_a_new_conversation_keeps_no_drafts(browser: "Browser") -> None:
    async with revocable(browser) as (page, revoked):
        await page.get_by_label("Message", exact=True).fill("a draft of alice")
        former = page.url
        await page.get_by_role("navigation").get_by_role("button", name="New conversation").click()
        revoked.add("key-a")
        await say(page, "a message")
        for key in ("wrong", "key-b"):
            await enter_key(page, key)
        await page.get_by_role("button", name="Say hello").wait_for()
        assert await page.get_by_label("Message", exact=True).input_value() == "a message"
        await page.goto(former)
        await page.get_by_text("There is no such conversation").wait_for()
        assert await page.get_by_label("Message", exact=True).input_value() == ""


async def test_another_key_sends_all_messages_that_were_refused(browser: "Browser") -> None:
    async with revocable(browser) as (page, revoked):
        await page.get_by_role("navigation").get_by_role("button", name="New conversation").click()
        revoked.add("key-a")
        for text in ("first", "second"):
            await say(page, text)
            await page.locator("article", has_text=text).get_by_text("not sent").wait_for()
        revoked.clear()
        await enter_key(page, "key-a")
        await page.get_by_text("You wrote: first").wait_for()
        await page.get_by_text("You wrote: second").wait_for()
        await until_articles(page, 2)
        await until_texts(page.locator(".said p"), "first", "second")
        await until_texts(titles(page), "first", "secret of alice", "another secret")


async def test_another_caller_has_all_messages_that_were_refused_in_the_box(browser: "Browser") -> None:
    async with revocable(browser) as (page, revoked):
        revoked.add("key-a")
        for text in ("first", "second"):
            await say(page, text)
            await page.locator("article", has_text=text).get_by_text("not sent").wait_for()
        await page.get_by_label("Message", exact=True).fill("third")
        await enter_key(page, "key-b")
        await page.get_by_role("button", name="Say hello").wait_for()
        assert await page.get_by_label("Message", exact=True).input_value() == "first\n\nsecond\n\nthird"


async def test_another_key_of_the_same_caller_repeats_each_action(browser: "Browser") -> None:
    """Keys are renewed. No action leaves an alarm behind."""
    async with revocable(browser) as (page, revoked):
        alarms = page.locator(".log > :not(form)").get_by_role("alert")
        revoked.add("key-a")
        for _ in range(2):
            await page.get_by_role("button", name="Regenerate").click()
            await page.get_by_label("Token or key").wait_for()
        assert await alarms.count() == 0
        revoked.clear()
        await enter_key(page, "key-a")
        await page.get_by_text("2/2").wait_for()
        await until_articles(page, 1)

        revoked.add("key-a")
        await page.locator(".said").hover()
        await page.get_by_role("button", name="Edit").click()
        await say(page, "an edited secret")
        await page.get_by_label("Token or key").wait_for()
        assert await alarms.count() == 0
        revoked.clear()
        await enter_key(page, "key-a")
        await page.get_by_text("3/3").wait_for()
        await page.get_by_text("You wrote: an edited secret").wait_for()
        assert await page.get_by_label("Message", exact=True).input_value() == ""

        revoked.add("key-a")
        await titles(page).last.focus()
        await page.keyboard.press("F2")
        await page.keyboard.type("a new title")
        await page.keyboard.press("Enter")
        await page.get_by_label("Token or key").wait_for()
        revoked.clear()
        async with page.expect_response(lambda response: method_of(response.request) == "RenameConversation"):
            await enter_key(page, "key-a")
        await until_texts(titles(page), "an edited secret", "a new title")

        revoked.add("key-a")
        await titles(page).last.focus()
        await page.keyboard.press("Delete")
        await page.keyboard.press("Enter")
        await page.get_by_label("Token or key").wait_for()
        revoked.clear()
        await enter_key(page, "key-a")
        await until_texts(titles(page), "an edited secret")
        assert await page.get_by_role("alert").count() == 0


async def test_a_busy_agent_does_not_close_the_conversation_after_a_new_key(browser: "Browser") -> None:
    """Only a response of the agent shows whether the key is of the same caller."""
    async with revocable(browser) as (page, revoked):
        conversation = page.url
        revoked.add("key-a")
        await say(page, "an unsent message")
        await page.get_by_label("Token or key").wait_for()
        await page.get_by_label("Message", exact=True).fill("a draft")

        async def refuse(route: "Route") -> None:
            if method_of(route.request) == "ListTasks":
                error = {"code": -32000, "message": "the server is busy"}
                await route.fulfill(status=503, json={"jsonrpc": "2.0", "id": 1, "error": error})
            else:
                await route.fallback()

        everything = re.compile("")
        await page.route(everything, refuse)
        revoked.clear()
        await enter_key(page, "key-a")
        problem = page.get_by_role("alert").filter(has_text="the server is busy")
        await problem.wait_for()
        assert page.url == conversation
        assert await page.locator("article").count() == 2
        assert await page.get_by_label("Message", exact=True).input_value() == "a draft"
        await problem.get_by_role("button", name="Try again").click()
        await problem.wait_for()
        await page.unroute(everything, refuse)
        await problem.get_by_role("button", name="Try again").click()
        await until_articles(page, 2)
        await page.get_by_text("You wrote: an unsent message").wait_for()
        assert await page.get_by_role("alert").count() == 0
        assert page.url == conversation
