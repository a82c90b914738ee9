"""A message of the chat goes to the conversation in which it was entered, once, and none is lost."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING

import anyio
import pytest
import pytest_asyncio

from e2e.browser import browsing
from e2e.playground_echo import (
    Echo,
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
from tailrace.server import Turn
from tailrace.streaming import StatusUpdate, TaskState, Update

if TYPE_CHECKING:
    from playwright.async_api import Browser, Locator, Page, Route

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncGenerator["Browser"]:
    async with in_own_task(browsing()) as browser:
        yield browser


def message_box(page: "Page") -> "Locator":
    return page.get_by_label("Message", exact=True)


async def click_title(page: "Page", title: str) -> None:
    await page.get_by_role("navigation").get_by_role("button", name=title, exact=True).click()


async def open_conversation(page: "Page", title: str, *messages: str) -> None:
    """Open a conversation, and wait until it has these messages."""
    await click_title(page, title)
    await until_texts(page.locator(".said p"), *messages)


async def until_prompts(page: "Page", echo: Echo, *prompts: str) -> None:
    """Wait until the agent has received these messages."""
    with anyio.fail_after(30):
        while echo.prompts != list(prompts):
            await page.evaluate("new Promise(requestAnimationFrame)")


async def test_a_message_goes_to_the_conversation_in_which_it_was_entered(browser: "Browser") -> None:
    echo = Echo()
    async with chat(browser, echo) as page:
        await begin_conversations(page, "one", "two")
        loads = await hold(page, "ListTasks")
        await click_title(page, "one")
        await loads.begun()
        await say(page, "for one")
        await click_title(page, "two")
        await message_box(page).fill("a draft of two")
        loads.release()
        await until_prompts(page, echo, "one", "two", "for one")
        await until_texts(page.locator(".said p"), "two")
        assert await message_box(page).input_value() == "a draft of two"
        await open_conversation(page, "one", "one", "for one")
        assert await message_box(page).input_value() == ""
        await open_conversation(page, "two", "two")
        assert await message_box(page).input_value() == "a draft of two"


async def test_a_message_with_files_goes_to_the_conversation_in_which_it_was_entered(
    browser: "Browser",
) -> None:
    echo = Echo()
    async with chat(browser, echo) as page:
        await begin_conversations(page, "one", "two")
        await page.evaluate(
            """() => {
                const read = FileReader.prototype.readAsDataURL;
                const given = new Promise((resolve) => (window.give = resolve));
                FileReader.prototype.readAsDataURL = function (file) { given.then(() => read.call(this, file)); };
            }"""
        )
        await open_conversation(page, "one", "one")
        await message_box(page).fill("a draft of one")
        await open_conversation(page, "two", "two")
        file = {"name": "two.txt", "mimeType": "text/plain", "buffer": b"text"}
        await page.locator("input[type=file]").set_input_files([file])  # pyright: ignore[reportArgumentType]
        await page.locator(".composer .badge", has_text="two.txt").wait_for()
        await say(page, "for two")
        await open_conversation(page, "one", "one")
        await page.evaluate("give()")
        await until_prompts(page, echo, "one", "two", "for two")
        assert echo.files == ["two.txt"]
        await until_texts(page.locator(".said p"), "one")
        assert await message_box(page).input_value() == "a draft of one"
        await open_conversation(page, "two", "two", "for two")
        assert await page.locator(".composer .badge").count() == 0


async def test_a_conversation_that_does_not_load_blocks_no_other_one(browser: "Browser") -> None:
    echo = Echo()
    async with chat(browser, echo) as page:
        await begin_conversations(page, "one")
        loads = await hold(page, "ListTasks")
        await page.get_by_role("button", name="New conversation").click()
        await click_title(page, "one")
        await loads.begun()
        await say(page, "for one")
        await page.locator(".said", has_text="for one").wait_for()
        await page.get_by_role("button", name="New conversation").click()
        await say(page, "two")
        await page.get_by_text("You wrote: two").wait_for()
        loads.release()
        await until_prompts(page, echo, "one", "two", "for one")
        await until_texts(page.locator(".said p"), "two")
        await open_conversation(page, "one", "one", "for one")


async def test_what_is_typed_after_a_message_stays_in_the_box(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await begin_conversations(page, "one", "two")
        loads = await hold(page, "ListTasks")
        await click_title(page, "one")
        await loads.begun()
        await say(page, "first")
        await message_box(page).fill("a second thought")
        loads.release()
        await page.get_by_text("You wrote: first").wait_for()
        assert await message_box(page).input_value() == "a second thought"


async def test_what_is_typed_after_an_edited_message_stays_in_the_box(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await begin_conversations(page, "one")
        edits = await hold(page, "SendMessage")
        await page.keyboard.press("ArrowUp")
        await say(page, "edited")
        await edits.begun()
        await message_box(page).fill("a second thought")
        edits.release()
        await page.get_by_text("You wrote: edited").wait_for()
        await page.get_by_text("2/2").wait_for()
        assert await message_box(page).input_value() == "a second thought"
        assert await page.get_by_role("button", name="Discard the edit").count() == 0


async def test_an_edited_message_that_is_refused_is_a_draft_of_its_conversation(browser: "Browser") -> None:
    async def refuse(route: "Route") -> None:
        if method_of(route.request) == "SendMessage":
            await sent.wait()
            await route.fulfill(json={"jsonrpc": "2.0", "id": 1, "error": {"code": -32600, "message": "no"}})
        else:
            await route.fallback()

    async with chat(browser, Echo()) as page:
        await begin_conversations(page, "one", "two")
        sent = anyio.Event()
        await page.route(lambda _: True, refuse)
        await page.keyboard.press("ArrowUp")
        await say(page, "edited")
        await message_box(page).fill("typed later")
        sent.set()
        await page.get_by_role("alert").filter(has_text="no").wait_for()
        await page.get_by_role("button", name="Discard the edit").wait_for()
        assert await message_box(page).input_value() == "edited\n\ntyped later"
        sent = anyio.Event()
        async with page.expect_request(lambda request: method_of(request) == "SendMessage"):
            await message_box(page).press("Enter")
        await open_conversation(page, "one", "one")
        await page.evaluate(
            """() => {
                const chat = document.querySelector("tailrace-chat");
                window.refused = new Promise((resolve) => chat.addEventListener("chaterror", resolve));
            }"""
        )
        sent.set()
        await page.evaluate("window.refused.then(() => {})")
        assert await message_box(page).input_value() == ""
        await open_conversation(page, "two", "two")
        assert await message_box(page).input_value() == "edited\n\ntyped later"
        await page.get_by_role("button", name="Discard the edit").wait_for()


async def test_a_message_under_way_arrives_after_its_conversation_is_left(
    browser: "Browser",
) -> None:
    echo = Echo()
    async with chat(browser, echo) as page:
        await begin_conversations(page, "one", "two")
        sends = await hold(page, "SendStreamingMessage")
        await say(page, "for two")
        await sends.begun()
        await open_conversation(page, "one", "one")
        await open_conversation(page, "two", "two", "for two")
        await open_conversation(page, "one", "one")
        sends.release()
        await until_prompts(page, echo, "one", "two", "for two")
        await open_conversation(page, "two", "two", "for two")
        await until_articles(page, 2)


async def test_a_message_that_is_under_way_is_shown_again_with_its_response(browser: "Browser") -> None:
    echo = Echo()
    async with chat(browser, echo) as page:
        await begin_conversations(page, "one", "two")
        sends = await hold(page, "SendStreamingMessage")
        await say(page, "for two")
        await sends.begun()
        await open_conversation(page, "one", "one")
        await open_conversation(page, "two", "two", "for two")
        sends.release()
        await page.get_by_text("You wrote: for two").wait_for()
        await until_articles(page, 2)
        assert echo.prompts == ["one", "two", "for two"]


@pytest.mark.parametrize("leave", ["newConversation()", "open('another')"])
async def test_the_first_message_of_a_conversation_arrives_after_it_is_left(
    browser: "Browser", leave: str
) -> None:
    echo = Echo()
    async with chat(browser, echo) as page:
        sends = await hold(page, "SendStreamingMessage")
        sent = await page.evaluate(
            f"""async () => {{
                const chat = document.querySelector("tailrace-chat");
                const sent = await chat.send("one");
                chat.{leave};
                return sent;
            }}"""
        )
        assert sent is True
        await page.locator(".welcome").wait_for()
        assert await page.locator("article").count() == 0
        sends.release()
        await until_texts(titles(page), "one")
        assert echo.prompts == ["one"]
        assert await page.locator("article").count() == 0
        await open_conversation(page, "one", "one")


async def test_a_message_without_a_connection_waits_in_its_conversation(browser: "Browser") -> None:
    echo = Echo()
    async with chat(browser, echo, expected="ERR_FAILED") as page:
        await begin_conversations(page, "one", "two")
        offline = True

        async def lose(route: "Route") -> None:
            if offline and method_of(route.request) == "SendStreamingMessage":
                await route.abort()
            else:
                await route.fallback()

        await page.route(lambda _: True, lose)
        await say(page, "written in the train")
        await page.get_by_text("Trying again").wait_for()
        await open_conversation(page, "one", "one")
        await open_conversation(page, "two", "two", "written in the train")
        await page.get_by_text("Trying again").wait_for()
        await open_conversation(page, "one", "one")
        offline = False
        await until_prompts(page, echo, "one", "two", "written in the train")
        await open_conversation(page, "two", "two", "written in the train")
        await until_articles(page, 2)


async def test_a_message_that_is_stopped_before_it_is_accepted_can_be_sent_again(browser: "Browser") -> None:
    echo = Echo()
    async with chat(browser, echo) as page:
        await begin_conversations(page, "one", "two")
        sends = await hold(page, "SendStreamingMessage")
        await say(page, "stop me")
        await sends.begun()
        await page.get_by_role("button", name="Stop").click()
        again = page.get_by_role("button", name="Try again")
        await again.wait_for()
        assert await page.locator(".waiting:visible").count() == 0
        assert await page.locator("article").last.locator("footer .badge").inner_text() == "not sent"
        sends.release()
        await open_conversation(page, "one", "one")
        await open_conversation(page, "two", "two", "stop me")
        assert echo.prompts == ["one", "two"]
        await again.click()
        await until_articles(page, 2)
        assert echo.prompts == ["one", "two", "stop me"]


async def test_a_stopped_message_that_has_arrived_is_processed_once(browser: "Browser") -> None:
    echo = Echo()
    async with chat(browser, echo) as page:
        arrived = anyio.Event()

        async def arrive(route: "Route") -> None:
            if method_of(route.request) == "SendStreamingMessage" and not arrived.is_set():
                await route.fetch()
                arrived.set()  # and there is no response
            else:
                await route.fallback()

        await page.route(lambda _: True, arrive)
        await say(page, "stop me")
        with anyio.fail_after(30):
            await arrived.wait()
        await page.get_by_role("button", name="Stop").click()
        await page.get_by_role("button", name="Try again").click()
        await until_articles(page, 1)
        assert echo.prompts == ["stop me"]
        assert await page.get_by_text("You wrote: stop me").count() == 1


class Slow(Echo):
    """It repeats "slow" when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.give = anyio.Event()

    async def __call__(self, turn: Turn) -> AsyncIterator[Update]:
        if turn.message.parts[0].text == "slow":
            yield StatusUpdate(TaskState.WORKING)
            await self.give.wait()
        async for update in super().__call__(turn):
            yield update


async def test_a_message_returns_to_the_box_if_a_response_is_still_running(browser: "Browser") -> None:
    echo = Slow()
    async with chat(browser, echo) as page:
        await begin_conversations(page, "one")
        await say(page, "slow")
        await until_articles(page, 2, "working")
        await page.get_by_role("button", name="New conversation").click()
        loads = await hold(page, "ListTasks")
        await click_title(page, "one")
        await loads.begun()
        await say(page, "too early")
        await message_box(page).fill("typed later")
        loads.release()
        await until_articles(page, 2, "working")
        await until_texts(page.locator(".said p"), "one", "slow")
        assert await message_box(page).input_value() == "too early\n\ntyped later"
        echo.give.set()
        await until_articles(page, 2)
        assert echo.prompts == ["one", "slow"]


async def test_a_message_under_way_is_shown_after_texts_are_replaced(browser: "Browser") -> None:
    echo = Echo()
    async with chat(browser, echo) as page:
        await begin_conversations(page, "one")
        sends = await hold(page, "SendStreamingMessage")
        await say(page, "two")
        await sends.begun()
        await page.evaluate("document.querySelector('tailrace-chat').strings = { send: 'Senden' }")
        await until_texts(page.locator(".said p"), "one")
        sends.release()
        await until_texts(page.locator(".said p"), "one", "two")
        await until_articles(page, 2)
        assert echo.prompts == ["one", "two"]


async def test_a_message_of_the_page_leaves_an_edited_message_alone(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await say(page, "one")
        await until_articles(page, 1)
        await page.keyboard.press("ArrowUp")
        await message_box(page).fill("one, changed")
        conversation = page.url
        assert await page.evaluate("document.querySelector('tailrace-chat').send('from the page')")
        await until_articles(page, 2)
        assert page.url == conversation
        await until_texts(page.locator(".said p"), "one", "from the page")
        assert await message_box(page).input_value() == "one, changed"
        await page.get_by_role("button", name="Discard the edit").wait_for()


async def test_the_page_sends_in_the_conversation_that_it_has_chosen_last(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await page.goto(page.url.partition("#")[0] + "embed.html")
        sent = await page.evaluate(
            """async () => {
                const chat = document.querySelector("tailrace-chat");
                await customElements.whenDefined("tailrace-chat");
                chat.context = "order-1";
                const first = chat.send("for order 1");
                chat.context = "order-2";
                const second = chat.send("for order 2");
                return await Promise.all([first, second]);
            }"""
        )
        assert sent == [True, True]
        await until_articles(page, 1)
        await until_texts(page.locator(".said p"), "for order 2")
        await page.evaluate("document.querySelector('tailrace-chat').open('order-1')")
        await until_texts(page.locator(".said p"), "for order 1")


async def test_a_message_of_a_former_caller_is_not_sent(browser: "Browser") -> None:
    echo = Echo()
    async with chat(browser, echo, expected="401", caller_keys="alice:key-a,bob:key-b") as page:
        token = "async (key) => { const chat = document.querySelector('tailrace-chat'); chat.token = key; await chat.opened; }"
        await page.evaluate(token, "key-a")
        await begin_conversations(page, "secret of alice", "another secret")
        loads = await hold(page, "ListTasks")
        await click_title(page, "secret of alice")
        await loads.begun()
        await say(page, "a message of alice")
        await page.evaluate(token, "key-b")
        loads.release()
        await page.get_by_role("button", name="Say hello").wait_for()
        await page.evaluate("document.querySelector('tailrace-chat').client.listTasks()")
        await begin_conversations(page, "bob's question")
        await until_texts(titles(page), "bob's question")
        assert echo.prompts == ["secret of alice", "another secret", "bob's question"]
        assert await message_box(page).input_value() == ""


async def test_of_two_messages_at_once_the_first_is_sent(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        sent = await page.evaluate(
            """() => {
                const chat = document.querySelector("tailrace-chat");
                return Promise.all([chat.send("one"), chat.send("two")]);
            }"""
        )
        assert sent == [True, False]
        await until_texts(page.locator(".said p"), "one")
