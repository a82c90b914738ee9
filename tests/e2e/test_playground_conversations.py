"""The list of conversations of the chat: its keys, names, deletion, and the pages of other tabs."""

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
    focused,
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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncGenerator["Browser"]:
    async with in_own_task(browsing()) as browser:
        yield browser


async def test_a_conversation_is_renamed_for_all_tabs_and_browsers(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await begin_conversations(page, "about rivers")
        tab = await page.context.new_page()
        other = await (await browser.new_context()).new_page()
        for each in (tab, other):
            await each.goto(page.url.partition("#")[0])
            await until_texts(titles(each), "about rivers")
        conversations = page.get_by_role("navigation", name="Conversations")
        await conversations.get_by_role("button", name="Rename about rivers").click()
        await page.keyboard.type("Nile & Po")
        await page.keyboard.press("Enter")
        for each in (page, tab):
            await until_texts(titles(each), "Nile & Po")
        await begin_conversations(other, "another")  # the other browser knows the title with the next list
        await other.reload()
        await until_texts(titles(other), "another", "Nile & Po")
        await page.keyboard.press("F2")
        await page.keyboard.press("Delete")
        await page.keyboard.press("Enter")
        await until_texts(titles(page), "about rivers")
        await other.context.close()


async def test_a_title_that_the_server_refuses_can_be_changed(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await begin_conversations(page, "one")

        async def refuse(route: "Route") -> None:
            if method_of(route.request) == "RenameConversation":
                error = {"code": -32602, "message": "not this one"}
                await route.fulfill(json={"jsonrpc": "2.0", "id": 1, "error": error})
            else:
                await route.fallback()

        await page.route(lambda _: True, refuse)
        await titles(page).focus()
        await page.keyboard.press("F2")
        await page.keyboard.type("x" * 201)
        field = page.get_by_role("textbox", name="Title")
        assert await field.input_value() == "x" * 200
        await page.keyboard.press("Enter")
        await until_texts(page.get_by_role("navigation").get_by_role("alert"), "not this one")
        assert await focused(page) == "Title"
        assert await field.input_value() == "x" * 200
        await page.keyboard.press("Escape")
        await until_texts(titles(page), "one")
        assert await focused(page) == "one"


async def test_the_list_is_one_stop_of_the_tab_key(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        box = page.get_by_label("Message", exact=True)
        await page.reload()
        await page.locator("div.welcome").wait_for()
        assert await box.evaluate("(node) => node.getRootNode().activeElement === node")
        await begin_conversations(page, "one", "two", "three")
        await page.reload()
        await until_articles(page, 1)
        await until_texts(titles(page), "three", "two", "one")
        await page.get_by_role("searchbox").focus()
        stops: list[str] = []
        for _ in range(3):
            await page.keyboard.press("Tab")
            stops.append(await focused(page))
        assert stops == ["three", "Rename three", "Delete three"]
        await titles(page).first.focus()
        for key, title in (
            ("ArrowDown", "two"),
            ("End", "one"),
            ("ArrowUp", "two"),
            ("Home", "three"),
            ("ArrowUp", "three"),
        ):
            await page.keyboard.press(key)
            assert await focused(page) == title
        await page.keyboard.press("ArrowDown")
        await page.keyboard.press("F2")
        await page.keyboard.press("ArrowDown")
        assert await focused(page) == "Title"
        await page.keyboard.press("Escape")
        await page.keyboard.press("Shift+Tab")
        assert await focused(page) == "Search conversations"
        await page.keyboard.press("Tab")
        assert await focused(page) == "two"


async def test_an_unknown_conversation_is_named_in_words(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await page.goto(f"{page.url}#unknown")
        await page.get_by_text("There is no such conversation").wait_for()
        await page.get_by_role("log").get_by_role("button", name="New conversation").click()
        await page.get_by_role("button", name="Say hello").wait_for()
        assert page.url.endswith("#")


async def test_an_embedded_chat_welcomes_to_a_new_conversation_with_an_id_of_the_page(
    browser: "Browser",
) -> None:
    async with chat(browser, Echo()) as page:
        await page.goto(page.url.partition("#")[0] + "embed.html")
        await page.evaluate("document.querySelector('tailrace-chat').context = 'my-own-id'")
        await page.get_by_role("button", name="Say hello").wait_for()
        await say(page, "hello")
        await until_articles(page, 1)
        assert await page.evaluate("document.querySelector('tailrace-chat').contextId") == "my-own-id"


async def test_a_conversation_is_deleted_after_a_confirmation(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await say(page, "about rivers")
        await until_articles(page, 1)
        context = page.url.partition("#")[2]
        conversations = page.get_by_role("navigation", name="Conversations")
        await conversations.get_by_role("button", name="Delete about rivers").click()
        await page.get_by_role("button", name="Keep").click()
        await conversations.get_by_role("button", name="about rivers", exact=True).focus()
        await page.keyboard.press("Delete")
        await page.keyboard.press("Enter")  # the focus is on the confirmation
        await page.locator(".welcome").wait_for()
        assert await conversations.locator("li").count() == 0
        await page.reload()
        await page.locator(".welcome").wait_for()
        await until_texts(titles(page))
        read = "async (id) => (await document.querySelector('tailrace-chat').client.listTasks({ contextId: id })).tasks"
        assert await page.evaluate(read, context) == []


async def test_the_draft_of_a_conversation_that_another_tab_deletes_moves_to_a_new_one(
    browser: "Browser",
) -> None:
    async with chat(browser, Echo()) as page:
        box = page.get_by_label("Message", exact=True)
        await begin_conversations(page, "one", "two")
        await page.get_by_role("navigation").get_by_role("button", name="New conversation").click()
        await box.fill("for nobody")
        await titles(page).first.click()
        await page.locator(".said", has_text="two").wait_for()
        await box.fill("a long text")
        file = {"name": "two.txt", "mimeType": "text/plain", "buffer": b"text"}
        await page.locator("input[type=file]").set_input_files([file])  # pyright: ignore[reportArgumentType]
        other = await page.context.new_page()
        await other.goto(page.url)
        await other.get_by_role("button", name="Delete two").click()
        await other.get_by_role("navigation").get_by_role("button", name="Delete", exact=True).click()
        await until_texts(page.get_by_role("alert"), "The conversation was deleted in another tab.")
        assert await page.locator("article").count() == 0
        assert await box.input_value() == "a long text\n\nfor nobody"
        await page.locator(".composer .badge", has_text="two.txt").wait_for()
        await box.press("Enter")
        await until_articles(page, 1)
        assert await page.get_by_role("alert").count() == 0


async def until_focused(page: "Page", name: str) -> None:
    with anyio.fail_after(30):
        while await focused(page) != name:
            await page.evaluate("new Promise(requestAnimationFrame)")


async def test_the_focus_stays_in_the_list_of_conversations(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await begin_conversations(page, "one", "two", "three")
        await until_texts(titles(page), "three", "two", "one")
        await page.get_by_role("button", name="two", exact=True).focus()
        await page.keyboard.press("Enter")
        await page.locator(".said", has_text="two").wait_for()
        assert await focused(page) == "two"
        await page.keyboard.press("F2")
        assert await focused(page) == "Title"
        await page.keyboard.type("second")
        await page.keyboard.press("Enter")
        await until_texts(titles(page), "three", "second", "one")
        assert await focused(page) == "second"
        await page.keyboard.press("F2")
        await page.keyboard.type("other")
        await page.keyboard.press("Escape")
        assert await focused(page) == "second"
        await page.keyboard.press("Delete")
        await page.keyboard.press("Tab")
        assert await focused(page) == "Keep"
        await page.keyboard.press("Enter")
        assert await focused(page) == "second"
        for remaining, then in (
            (["three", "one"], "one"),  # the open one: the page begins a new conversation
            (["three"], "three"),
            ([], "Search conversations"),
        ):
            await page.keyboard.press("Delete")
            assert await focused(page) == "Delete"
            await page.keyboard.press("Enter")
            await until_texts(titles(page), *remaining)
            await until_focused(page, then)


async def test_on_a_phone_the_focus_moves_to_the_conversation(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await begin_conversations(page, "one", "two")
        await page.set_viewport_size({"width": 390, "height": 700})
        await page.get_by_role("button", name="one", exact=True).focus()
        await page.keyboard.press("Enter")
        await page.locator(".said", has_text="one").wait_for()
        assert await page.get_by_role("navigation").count() == 0
        assert await focused(page) == "Conversation"


async def test_enter_in_a_title_does_not_open_a_conversation(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await begin_conversations(page, "one")
        methods: list[str] = []
        page.on("request", lambda request: methods.append(method_of(request)))
        await titles(page).focus()
        await page.keyboard.press("F2")
        await page.keyboard.type("first")
        await page.keyboard.press("Enter")
        await until_texts(titles(page), "first")
        await say(page, "more")  # requests of the key before are in the list by now
        await until_articles(page, 2)
        assert not {"GetConversation", "ListTasks"} & set(methods)


async def test_escape_closes_the_question_only(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await begin_conversations(page, "one")
        await titles(page).focus()
        await page.keyboard.press("Delete")
        await page.get_by_text("Delete “one”?").wait_for()
        await take_picture(page, "deletion")
        await page.keyboard.press("Escape")
        assert await page.get_by_role("navigation", name="Conversations").is_visible()
        await until_texts(titles(page), "one")
        assert await focused(page) == "one"
        await page.keyboard.press("Escape")
        assert await page.get_by_role("navigation", name="Conversations").count() == 0


async def test_another_conversation_of_the_list_closes_the_question(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await begin_conversations(page, "one", "two", "three")
        question = page.get_by_text("Delete “three”?")
        await titles(page).first.focus()
        await page.keyboard.press("Delete")
        await question.wait_for()
        await page.keyboard.press("ArrowDown")
        assert await focused(page) == "two"
        await until_texts(titles(page), "three", "two", "one")
        assert await question.count() == 0
        await titles(page).first.hover()
        await page.get_by_role("button", name="Delete three").click()
        await question.wait_for()
        await page.get_by_label("Message", exact=True).focus()
        assert await question.count() == 1
        await titles(page).nth(1).hover()
        await page.get_by_role("button", name="Delete two").click()
        await page.get_by_text("Delete “two”?").wait_for()
        assert await question.count() == 0
        await page.keyboard.press("Escape")
        await until_texts(titles(page), "three", "two", "one")


async def test_a_title_has_the_width_of_the_list(browser: "Browser") -> None:
    title = "Rivers of the Alps"
    async with chat(browser, Echo()) as page:
        await begin_conversations(page, "one", title)
        names = titles(page)
        rename = page.get_by_role("button", name=f"Rename {title}")
        is_cut = "node => node.firstChild.scrollWidth > node.firstChild.clientWidth"
        opacity = "node => getComputedStyle(node.parentElement).opacity"
        await page.get_by_label("Message", exact=True).hover()
        assert await rename.evaluate(opacity) == "0"
        assert not await names.first.evaluate(is_cut)
        await names.first.focus()
        assert await rename.evaluate(opacity) == "1"
        assert await names.first.evaluate(is_cut)  # the buttons cover no text
        await page.keyboard.press("Tab")
        assert await focused(page) == f"Rename {title}"
        await page.keyboard.press("Enter")
        await page.keyboard.press("Escape")
        await page.get_by_label("Message", exact=True).focus()
        await names.last.hover()
        await page.get_by_role("button", name="Delete one").click()
        await page.get_by_text("Delete “one”?").wait_for()


async def test_on_a_touch_screen_the_buttons_of_the_list_are_visible(browser: "Browser") -> None:
    title = "A question with a title that is longer than a line"
    async with chat(browser, Echo()) as page:
        await begin_conversations(page, "one", title)
        context = await browser.new_context(
            viewport={"width": 1000, "height": 700}, has_touch=True, is_mobile=True
        )
        tablet = await context.new_page()
        await tablet.goto(page.url.partition("#")[0])
        await until_texts(titles(tablet), title, "one")
        heights = await titles(tablet).evaluate_all("all => all.map((each) => each.clientHeight)")
        assert heights[0] > heights[1] + 10  # two lines
        await tablet.get_by_role("button", name="Delete one").tap()
        await tablet.get_by_text("Delete “one”?").wait_for()
        assert await titles(tablet).count() == 1
        await context.close()


async def test_the_id_of_a_deleted_conversation_is_used_again(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await begin_conversations(page, "first")
        name = page.url.partition("#")[2]
        await titles(page).focus()
        await page.keyboard.press("Delete")
        await page.keyboard.press("Enter")
        await until_texts(titles(page))
        other = await page.context.new_page()
        await other.goto(f"{page.url.partition('#')[0]}#{name}")
        await other.get_by_text("There is no such conversation").wait_for()
        await say(other, "second")
        await until_articles(other, 1)
        await until_texts(titles(page), "second")
        await begin_conversations(page, "third")
        await page.get_by_role("searchbox").fill("second")
        await until_texts(titles(page), "second")


async def test_another_tab_interrupts_neither_a_new_title_nor_a_question(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await begin_conversations(page, "one", "two")
        other = await page.context.new_page()
        await other.goto(page.url.partition("#")[0])
        await page.get_by_role("button", name="one", exact=True).focus()
        await page.keyboard.press("F2")
        await page.keyboard.type("half ty")
        await begin_conversations(other, "three")
        await page.get_by_role("button", name="three", exact=True).wait_for()
        await page.keyboard.type("ped")
        await page.keyboard.press("Enter")
        await until_texts(titles(page), "three", "two", "half typed")
        await page.keyboard.press("Delete")
        await say(other, "more")
        await begin_conversations(other, "four")
        await page.get_by_role("button", name="four", exact=True).wait_for()
        assert await focused(page) == "Delete"
        await page.keyboard.press("Enter")
        await until_texts(titles(page), "four", "three", "two")


async def test_two_tabs_that_send_at_once_show_the_order_of_the_server(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await begin_conversations(page, "one")
        other = await page.context.new_page()
        await other.goto(page.url)
        await until_articles(other, 1)
        sent, give = anyio.Event(), anyio.Event()

        async def hold(route: "Route") -> None:
            if method_of(route.request) == "SendStreamingMessage":
                sent.set()
                await give.wait()
            await route.fallback()

        await page.route(lambda _: True, hold)
        await say(page, "held")
        with anyio.fail_after(30):
            await sent.wait()
        await say(other, "fast")
        messages = [tab.locator(".said p") for tab in (page, other)]
        await until_texts(messages[0], "one", "fast", "held")
        give.set()
        for shown in messages:
            await until_texts(shown, "one", "fast", "held")
        for tab in (page, other):
            await until_articles(tab, 3)
        await page.reload()
        await until_texts(messages[0], "one", "fast", "held")


async def test_a_title_begins_at_the_side_of_its_script(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        texts = ("שלום " * 20, "Hello " * 20)
        await begin_conversations(page, *texts)
        for page_direction in ("ltr", "rtl"):
            await page.evaluate("(direction) => { document.dir = direction; }", page_direction)
            found = (
                await titles(page)
                .locator("span")
                .evaluate_all(
                    "all => all.map((node) => [getComputedStyle(node).direction, getComputedStyle(node).textOverflow, node.scrollWidth > node.clientWidth])"
                )
            )
            assert found == [["ltr", "ellipsis", True], ["rtl", "ellipsis", True]]


async def test_the_buttons_of_the_list_are_large_enough_to_touch(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await begin_conversations(page, "one")
        phone = await browser.new_context(
            viewport={"width": 390, "height": 700}, has_touch=True, is_mobile=True
        )
        for each, size in ((page, 32), (await phone.new_page(), 44)):
            await each.goto(page.url.partition("#")[0])
            if size == 44:
                await each.get_by_role("button", name="Conversations", exact=True).click()
            await until_texts(titles(each), "one")
            await titles(each).hover()
            boxes = [
                await each.get_by_role("button", name=name).bounding_box()
                for name in ("Rename one", "Delete one")
            ]
            for box in boxes:
                assert box is not None
                assert min(box["width"], box["height"]) >= size
            assert boxes[0] is not None
            assert boxes[1] is not None
            assert boxes[1]["x"] - boxes[0]["x"] - boxes[0]["width"] > 2
        await each.get_by_role("button", name="Delete one").click()
        await each.get_by_text("Delete “one”?").wait_for()
        await take_picture(each, "deletion-phone")
        question = each.locator("nav li")
        gap = await question.evaluate(
            "(node) => [getComputedStyle(node).columnGap, getComputedStyle(node).paddingLeft]"
        )
        assert "0px" not in gap
        assert "normal" not in gap
        await phone.close()
