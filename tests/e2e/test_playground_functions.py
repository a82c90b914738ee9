"""Functions of the chat: suggestions, sending again, editing, attachments, failures, jumping to the latest message."""

import json
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

import anyio
import pytest
import pytest_asyncio

from e2e.browser import browsing, take_picture
from e2e.playground_echo import (
    Echo,
    begin_conversations,
    chat,
    say,
    titles,
    until_articles,
    until_texts,
)
from support.fixture_contexts import in_own_task

if TYPE_CHECKING:
    from playwright.async_api import Browser, Route

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncGenerator["Browser"]:
    async with in_own_task(browsing()) as browser:
        yield browser


async def test_an_example_of_the_card_begins_a_conversation(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await page.get_by_role("button", name="Say goodbye").wait_for()
        await take_picture(page, "empty")
        await page.get_by_role("button", name="Say hello").click()
        await until_articles(page, 1)
        assert await page.locator("article .block.text").inner_text() == "You wrote: Say hello"
        assert await page.locator(".welcome").count() == 0


async def test_a_model_is_named_and_has_suggestions_before_its_first_response(browser: "Browser") -> None:
    settings = {"model": "openai:gpt-5-mini", "base_url": "http://127.0.0.1:9/v1", "api_key": "none"}
    async with chat(browser, None, **settings) as page:
        await page.locator("header", has_text="gpt-5-mini").wait_for()
        assert await page.locator(".suggestions button").count() == 4


async def test_an_edited_message_has_versions(browser: "Browser") -> None:
    echo = Echo()
    async with chat(browser, echo) as page:
        for number, text in enumerate(("one", "more")):
            await say(page, text)
            await until_articles(page, number + 1)
        await page.locator(".said").last.hover()
        await page.get_by_role("button", name="Edit").last.click()
        box = page.get_by_label("Message", exact=True)
        assert await box.input_value() == "more"
        await box.press_sequentially(" and two")
        first = page.url
        await page.keyboard.press("Enter")
        # A branch: the first message and its response, then the changed one.
        await page.get_by_text("You wrote: more and two").wait_for()
        await until_articles(page, 2)
        assert page.url != first
        assert await page.locator(".said p").all_inner_texts() == ["one", "more and two"]
        assert await page.locator(".versions").last.inner_text() == "2/2"
        assert await page.locator(".waiting:visible").count() == 0
        await until_texts(titles(page), "one")  # the title of the conversation
        await take_picture(page, "versions")
        await page.keyboard.press("ArrowUp")
        assert await box.input_value() == "more and two"
        await page.get_by_role("button", name="Discard the edit").click()
        assert await box.input_value() == ""
        assert echo.prompts == ["one", "more", "more and two"]
        await page.get_by_role("button", name="Previous version").click()
        await page.get_by_text("1/2").wait_for()
        assert page.url == first
        assert await page.locator(".said p").all_inner_texts() == ["one", "more"]
        await page.reload()
        await page.get_by_role("button", name="Next version").click()
        await page.get_by_text("2/2").wait_for()


async def test_a_regenerated_response_is_a_version_in_the_same_entry_of_the_list(browser: "Browser") -> None:
    echo = Echo()
    async with chat(browser, echo) as page:
        await begin_conversations(page, "another", "one")
        other = await page.context.new_page()
        await other.goto(page.url)
        await until_articles(other, 1)
        await page.get_by_label("Message", exact=True).fill("a draft")
        for number in (2, 3):
            await page.get_by_role("button", name="Regenerate").click()
            await page.get_by_text(f"{number}/{number}").wait_for()
            await until_articles(page, 1)
            assert await page.locator(".said p").all_inner_texts() == ["one"]
        assert echo.prompts == ["another", "one", "one", "one"]
        assert await page.get_by_label("Message", exact=True).input_value() == "a draft"
        await until_texts(titles(page), "one", "another")
        await page.get_by_role("button", name="Previous version").click()
        await page.get_by_text("2/3").wait_for()
        await other.get_by_text("1/3").wait_for()
        await titles(page).first.focus()
        await page.keyboard.press("F2")
        await page.keyboard.type("rivers")
        await page.keyboard.press("Enter")
        for tab in (page, other):
            await until_texts(titles(tab), "rivers", "another")
        await other.get_by_role("button", name="Regenerate").click()
        await other.get_by_text("4/4").wait_for()
        for tab in (page, other):
            await until_texts(titles(tab), "rivers", "another")
        await page.reload()
        await until_texts(titles(page), "rivers", "another")
        await titles(page).first.focus()
        await page.keyboard.press("Delete")
        await page.get_by_text("Delete “rivers” with all versions?").wait_for()
        await page.keyboard.press("Enter")
        for tab in (page, other):
            await until_texts(titles(tab), "another")
            await tab.locator("div.welcome").wait_for()
        await page.reload()
        await until_texts(titles(page), "another")


async def test_a_message_of_files_has_versions(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await page.evaluate(
            """() => document.querySelector("tailrace-chat").send("", [{ raw: "eHh4", filename: "a.bin", mediaType: "text/plain" }])"""
        )
        await until_articles(page, 1)
        await page.get_by_role("button", name="Regenerate").click()
        await page.get_by_text("2/2").wait_for()


async def test_a_failed_response_is_explained_and_tried_again(browser: "Browser") -> None:
    echo = Echo()
    async with chat(browser, echo) as page:
        await say(page, "flaky")
        await until_articles(page, 1, "failed")
        card = page.locator(".problem")
        assert "the model is busy" in await card.inner_text()
        await take_picture(page, "failed-card")
        await card.get_by_role("button", name="Try again").click()
        await page.get_by_text("2/2").wait_for()
        await until_articles(page, 1)
        assert await page.locator("article .block.text").inner_text() == "You wrote: flaky"
        assert await page.locator(".said p").all_inner_texts() == ["flaky"]
        await page.get_by_role("button", name="Previous version").click()
        await page.get_by_text("1/2").wait_for()
        assert "the model is busy" in await page.locator(".problem").inner_text()


async def test_a_refused_key_is_explained_once(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await say(page, "refused")
        await until_articles(page, 1, "failed")
        card = await page.locator(".problem").inner_text()
        assert "refused the key of the server" in card
        assert "sk-123" not in card
        assert await page.get_by_role("button", name="Try again").count() == 0


async def test_a_button_leads_to_the_latest_message(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await say(page, "long")
        await until_articles(page, 1)
        button = page.get_by_role("button", name="Jump to the latest message")
        assert not await button.is_visible()
        await page.locator(".log").evaluate("log => { log.scrollTop = 0; }")
        await button.wait_for()
        await button.click()
        await button.wait_for(state="hidden")
        left = await page.locator(".log").evaluate(
            "log => log.scrollHeight - log.scrollTop - log.clientHeight"
        )
        assert left < 60


async def test_the_log_stays_at_its_end_when_it_grows_before_the_event_of_a_scroll(
    browser: "Browser",
) -> None:
    """Browsers report a scroll in the next frame. Until then, the content may grow, for example by the form of a tool."""
    async with chat(browser, Echo()) as page:
        await say(page, "long")
        await until_articles(page, 1)
        left = await page.locator(".log").evaluate(
            """async (log) => {
                const frames = async (number) => { while (number--) await new Promise(requestAnimationFrame); };
                log.scrollTop = log.scrollHeight - log.clientHeight - 40;
                await frames(3);
                await new Promise((next) => setTimeout(next));  // before a frame, not within one
                log.scrollTop = log.scrollHeight;
                const more = document.createElement("div");
                more.style.height = "400px";
                log.querySelector("article").append(more);
                await frames(5);
                return log.scrollHeight - log.scrollTop - log.clientHeight;
            }"""
        )
        assert left < 60


async def test_its_methods_attributes_and_events(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        states = await page.evaluate(
            """async () => {
                const chat = document.querySelector("tailrace-chat");
                const states = [];
                const over = new Promise((resolve) => chat.addEventListener("taskstate", ({ detail }) => {
                    states.push(detail.state);
                    if (detail.state === "completed") resolve();
                }));
                states.push(await chat.send("by method"), await chat.send(""));
                await over;
                return states;
            }"""
        )
        assert states[-1] == "completed"
        assert states.count(True) == states.count(False) == 1
        await page.evaluate("document.querySelector('tailrace-chat').newConversation()")
        await page.locator(".welcome").wait_for()
        await page.evaluate(
            """() => {
                const other = document.createElement("tailrace-chat");
                other.setAttribute("heading", "Support");
                other.setAttribute("greeting", "How can I help?");
                other.setAttribute("suggestions", "First\\nSecond");
                other.setAttribute("placeholder", "Ask");
                other.setAttribute("agent", location.href.split("#")[0]);
                document.querySelector("tailrace-chat").replaceWith(other);
            }"""
        )
        await page.get_by_role("button", name="Second").wait_for()
        assert await page.locator("tailrace-chat h2").inner_text() == "Support"
        assert "How can I help?" in await page.locator(".welcome").inner_text()
        assert await page.get_by_label("Message", exact=True).get_attribute("placeholder") == "Ask"


async def test_a_conversation_that_the_page_begins_before_the_card_is_loaded_stays(
    browser: "Browser",
) -> None:
    async with chat(browser, Echo()) as page:
        await say(page, "one")
        await until_articles(page, 1)
        loading, give = anyio.Event(), anyio.Event()

        async def hold(route: "Route") -> None:
            loading.set()
            await give.wait()
            await route.fallback()

        other = await page.context.new_page()
        await other.route("**/agent-card.json", hold)
        await other.goto(page.url)
        with anyio.fail_after(30):
            await loading.wait()
        await other.evaluate(
            """async () => {
                const chat = document.querySelector("tailrace-chat");
                await chat.newConversation();
                await chat.send("two");
            }"""
        )
        give.set()
        await until_articles(other, 1)
        await other.locator("tailrace-chat h2", has_text="tailrace").wait_for()
        await other.evaluate("document.querySelector('tailrace-chat').opened")
        assert await other.locator(".said p").all_inner_texts() == ["two"]


async def test_slots_properties_and_events_of_the_element(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        events = await page.evaluate(
            """async () => {
                const chat = document.querySelector("tailrace-chat");
                const events = [];
                for (const name of ["conversationchange", "messagesend", "textdelta", "taskstate"])
                    chat.addEventListener(name, ({ detail }) => events.push([name, detail]));
                const over = new Promise((resolve) => chat.addEventListener("taskstate", ({ detail }) => detail.state === "completed" && resolve()));
                const banner = document.createElement("b");
                banner.slot = "header-end";
                banner.textContent = "Beta";
                chat.append(banner);
                chat.heading = "Support";
                chat.hide = "inspector";
                let calls = 0;
                chat.token = async () => `token-${(calls += 1)}`;
                chat.headers = { "X-Page": "1" };
                await chat.send("hello");
                await over;
                events.push(["calls", calls > 0]);
                return events;
            }"""
        )
        assert await page.locator("b", has_text="Beta").is_visible()
        assert await page.locator("tailrace-chat h2").inner_text() == "Support"
        assert await page.get_by_role("button", name="Inspector").count() == 0
        named = dict(events)
        assert named["messagesend"]["parts"] == [{"text": "hello"}]
        assert named["textdelta"]["text"] == "You wrote: hello"
        assert named["textdelta"]["append"] is False
        assert named["conversationchange"]["contextId"] == named["taskstate"]["contextId"]
        assert named["taskstate"]["state"] == "completed"
        assert named["calls"]


async def test_avatars_are_texts_or_images(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await say(page, "hello")
        await until_articles(page, 1)
        shown = """(avatars) => {
            const chat = document.querySelector("tailrace-chat");
            chat.avatars = avatars;
            const style = (found) => getComputedStyle(chat.shadowRoot.querySelector(found), "::before");
            return [".user + .block", ".user"].map((found) => [style(found).content, style(found).backgroundImage]);
        }"""
        image = "data:image/gif;base64,R0lGODlhAQABAAAAACw="
        agent, user = await page.evaluate(shown, f"🤖 {image}")
        assert agent == ['"🤖"', "none"]
        assert user == ['""', f'url("{image}")']
        await page.evaluate(shown, "✦ AB")
        await take_picture(page, "avatars")
        assert await page.evaluate(shown, None) == [["none", "none"]] * 2


async def test_texts_are_replaced(browser: "Browser") -> None:
    """Also those of a chat that is on the page already, with its conversation, its draft and its other texts."""
    async with chat(browser, Echo()) as page:
        await say(page, "flaky")
        await until_articles(page, 1, "failed")
        await page.get_by_label("Message", exact=True).fill("a draft")
        await page.evaluate(
            """() => (document.querySelector("tailrace-chat").strings = {
                send: "Senden", message: "Nachricht", failed: "Die Antwort ist fehlgeschlagen", regenerate: "Neu erzeugen",
                copied: "Kopiert", searchConversations: "Suchen", deleteQuestion: "„{title}“ löschen?", chat: "Gespräch",
            })"""
        )
        await until_articles(page, 1, "failed")
        assert "Die Antwort ist fehlgeschlagen" in await page.locator("article").inner_text()
        field = page.get_by_label("Nachricht", exact=True)
        assert await field.input_value() == "a draft"
        assert await field.get_attribute("placeholder") == "Nachricht"
        await field.fill("hello")
        await page.get_by_role("button", name="Senden").click()
        await until_articles(page, 2)
        assert await page.get_by_role("button", name="Neu erzeugen").count() == 1
        assert await page.get_by_role("searchbox", name="Suchen").count() == 1
        item = page.locator("nav li").first
        await item.hover()
        await item.get_by_role("button", name="Delete flaky").click()
        assert "„flaky“ löschen?" in await item.inner_text()
        assert await page.locator("tailrace-chat").count() == 1


async def test_a_message_that_cannot_be_sent_is_an_event(browser: "Browser") -> None:
    async def refuse(route: "Route") -> None:
        if json.loads(route.request.post_data or "{}").get("method") == "SendStreamingMessage":
            await route.fulfill(json={"jsonrpc": "2.0", "id": 1, "error": {"code": -32600, "message": "no"}})
        else:
            await route.fallback()

    async with chat(browser, Echo()) as page:
        await page.route(lambda _: True, refuse)
        error = await page.evaluate(
            """async () => {
                const chat = document.querySelector("tailrace-chat");
                const failed = new Promise((resolve) => chat.addEventListener("chaterror", resolve));
                await chat.send("hello");
                return (await failed).detail.error.message;
            }"""
        )
        assert error == "no"


async def test_a_conversation_of_200_messages_draws_what_is_visible(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        found = await page.evaluate(
            """async () => {
                const chat = document.querySelector("tailrace-chat");
                const article = () => chat.shadowRoot.querySelector("article");
                let done;
                chat.addEventListener("taskstate", ({ detail }) => detail.state === "completed" && done());
                for (let number = 0; number < 100; number += 1) {
                    const over = new Promise((resolve) => (done = resolve));
                    await chat.send(`# ${number}\n\n| a | b |\n|---|---|\n| 1 | **2** |\n\n- one\n- two\n\nSome \\`code\\` and a [link](https://example.com).`);
                    await over;
                }
                const context = chat.contextId;
                await chat.newConversation();
                await chat.open(context);
                await new Promise(requestAnimationFrame);
                await new Promise((drawn) => setTimeout(drawn));
                const articles = [...chat.shadowRoot.querySelectorAll("article")];
                const drawn = articles.filter((each) => each.firstElementChild.checkVisibility({ contentVisibilityAuto: true }));
                const log = chat.shadowRoot.querySelector(".log");
                return { articles: articles.length, drawn: drawn.length, end: log.scrollHeight - log.scrollTop - log.clientHeight };
            }"""
        )
        assert found["articles"] == 100
        assert found["drawn"] < 20  # the rest has neither style nor layout
        assert found["end"] < 60
