"""The message box of the chat: its focus, files, drafts and limits."""

from base64 import b64encode
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

import anyio
import pytest
import pytest_asyncio

from e2e.browser import browsing, take_picture
from e2e.playground_echo import (
    Echo,
    Growing,
    begin_conversations,
    chat,
    focused,
    method_of,
    say,
    titles,
    until_articles,
    until_texts,
)
from e2e.playground_pages import png
from support.fixture_contexts import in_own_task

if TYPE_CHECKING:
    from playwright.async_api import Browser, Locator, Page, Route

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncGenerator["Browser"]:
    async with in_own_task(browsing()) as browser:
        yield browser


def message_box(page: "Page") -> "Locator":
    return page.get_by_label("Message", exact=True)


async def attach(page: "Page", name: str, size: int) -> None:
    file = {"name": name, "mimeType": "text/plain", "buffer": b"x" * size}
    await page.locator("input[type=file]").set_input_files([file])  # pyright: ignore[reportArgumentType]
    await page.locator(".composer .badge", has_text=name).wait_for()


async def test_the_message_box_has_the_focus_if_a_keyboard_is_there(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await page.locator(".suggestions").wait_for()
        assert await focused(page) == "Message"
        await page.get_by_role("button", name="Say hello").click()
        await until_articles(page, 1)
        assert await focused(page) == "Message"
        await page.get_by_role("button", name="New conversation").click()
        assert await focused(page) == "Message"
        touch = await browser.new_context(has_touch=True, is_mobile=True)
        phone = await touch.new_page()
        await phone.goto(page.url)
        await phone.locator(".suggestions").wait_for()
        assert await focused(phone) == ""
        await touch.close()
        await page.goto(page.url.partition("#")[0] + "embed.html")
        await page.locator(".suggestions").wait_for()
        assert await focused(page) == ""


async def test_files_are_pasted_and_dropped(browser: "Browser") -> None:
    echo = Echo()
    async with chat(browser, echo) as page:
        await page.evaluate(
            """() => {
                const root = document.querySelector("tailrace-chat").shadowRoot;
                const transfer = (name) => {
                    const data = new DataTransfer();
                    data.items.add(new File(["text"], name, { type: "text/plain" }));
                    return data;
                };
                const options = { bubbles: true, cancelable: true };
                const box = root.querySelector(".composer textarea");
                box.dispatchEvent(new ClipboardEvent("paste", { ...options, clipboardData: transfer("pasted.txt") }));
                const log = root.querySelector(".log");
                log.dispatchEvent(new DragEvent("drop", { ...options, dataTransfer: transfer("dropped.txt") }));
            }"""
        )
        for name in ("pasted.txt", "dropped.txt"):
            await page.locator(".composer .badge", has_text=name).wait_for()
        await page.evaluate(
            """() => {
                const dataTransfer = new DataTransfer();
                dataTransfer.items.add(new File(["text"], "dragged.txt"));
                document.querySelector("tailrace-chat").shadowRoot.querySelector(".log")
                    .dispatchEvent(new DragEvent("dragover", { bubbles: true, cancelable: true, dataTransfer }));
            }"""
        )
        await take_picture(page, "dragging")
        await say(page, "two files")
        await until_articles(page, 1)
        assert sorted(echo.files) == ["dropped.txt", "pasted.txt"]
        assert await page.locator(".composer .badge").count() == 0


async def copy(page: "Page", **content: str) -> None:
    """Put content of these types into the clipboard: ``plain``, ``html``, or ``png`` as base64."""
    await page.evaluate(
        """async (content) => {
            const types = { plain: "text/plain", html: "text/html", png: "image/png" };
            const blob = async (name, data) =>
                name === "png"
                    ? new Blob([Uint8Array.from(atob(data), (each) => each.charCodeAt(0))], { type: types[name] })
                    : new Blob([data], { type: types[name] });
            const entries = Object.entries(content).map(async ([name, data]) => [types[name], await blob(name, data)]);
            await navigator.clipboard.write([new ClipboardItem(Object.fromEntries(await Promise.all(entries)))]);
        }""",
        content,
    )


async def test_pasted_text_has_no_picture_of_it(browser: "Browser") -> None:
    """Office programs add a picture to the cells or the text that are copied; browsers add HTML to a picture."""
    picture = b64encode(png(4, 4)).decode()
    async with chat(browser, Echo()) as page:
        await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        cells = "<meta charset=utf-8><style>td { color: red }</style><table><tr><td>one<td>two</table>"
        for html in ({"html": cells}, {}):
            await copy(page, plain="one\ttwo", png=picture, **html)
            await message_box(page).fill("")
            await page.keyboard.press("Control+v")
            assert await message_box(page).input_value() == "one\ttwo"
            assert await page.locator(".composer .badge").count() == 0
        await message_box(page).fill("")
        image = "<img src=https://example.com/a.png alt='A picture'>"
        for count, others in enumerate(
            (
                {},
                {"html": image},
                {"html": image, "plain": "A picture"},
                {"plain": "https://example.com/a.png"},
            ),
            1,
        ):
            await copy(page, png=picture, **others)
            await page.keyboard.press("Control+v")
            await page.locator(".composer .badge").nth(count - 1).wait_for()
        assert await message_box(page).input_value() == ""


async def test_a_text_is_dropped_into_the_message_box(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await begin_conversations(page, "rivers")
        text = page.get_by_text("You wrote: rivers")
        await text.click(click_count=3)
        await text.hover()
        await page.mouse.down()
        await message_box(page).hover()
        assert await page.locator(".chat.over").count() == 0
        await message_box(page).hover()
        await page.mouse.up()
        with anyio.fail_after(30):
            while "You wrote: rivers" not in await message_box(page).input_value():
                await page.evaluate("new Promise(requestAnimationFrame)")


async def test_the_focus_moves_from_stop_to_the_message_box(browser: "Browser") -> None:
    growing = Growing()
    async with chat(browser, growing) as page:
        stop = page.get_by_role("button", name="Stop")
        await say(page, "grow")
        await until_articles(page, 1, "working")
        await stop.focus()
        await page.keyboard.press("Enter")
        await until_articles(page, 1, "canceled")
        assert await focused(page) == "Message"
        await say(page, "grow")
        await until_articles(page, 2, "working")
        await stop.focus()
        growing.end.set()
        await until_articles(page, 2)
        assert await focused(page) == "Message"


async def test_a_message_waits_for_files_that_are_being_read(browser: "Browser") -> None:
    echo = Echo()
    async with chat(browser, echo) as page:
        await page.evaluate(
            """() => {
                const read = FileReader.prototype.readAsDataURL;
                const given = new Promise((resolve) => (window.give = resolve));
                FileReader.prototype.readAsDataURL = function (file) { given.then(() => read.call(this, file)); };
            }"""
        )
        await page.locator("input[type=file]").set_input_files(
            [{"name": "slow.txt", "mimeType": "text/plain", "buffer": b"text"}]
        )
        await page.locator(".composer .badge", has_text="slow.txt").wait_for()
        await say(page, "with a file")
        await page.keyboard.press("Enter")
        await page.evaluate("give()")
        await until_articles(page, 1)
        assert echo.files == ["slow.txt"]
        assert echo.prompts == ["with a file"]
        assert await page.locator(".composer .badge").count() == 0


async def test_many_files_leave_room_for_send_on_a_phone(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await page.set_viewport_size({"width": 360, "height": 640})
        names = [f"Screenshot_2026-01-{day:02}_at_10.30.00.png" for day in range(1, 15)]
        await page.locator("input[type=file]").set_input_files(
            [{"name": name, "mimeType": "image/png", "buffer": b"x"} for name in names]
        )
        await page.locator(".composer .badge").nth(13).wait_for()
        send = await page.get_by_role("button", name="Send").bounding_box()
        assert send is not None
        assert send["y"] + send["height"] <= 640


async def test_a_file_that_cannot_be_read_is_not_sent(browser: "Browser") -> None:
    echo = Echo()
    async with chat(browser, echo) as page:
        await page.evaluate(
            """() => {
                FileReader.prototype.readAsDataURL = function () { setTimeout(() => this.onerror()); };
            }"""
        )
        await page.locator("input[type=file]").set_input_files(
            [{"name": "gone.txt", "mimeType": "text/plain", "buffer": b"text"}]
        )
        await page.get_by_role("alert").filter(has_text="cannot read gone.txt").wait_for()
        assert await page.locator(".composer .badge").count() == 0


async def test_a_draft_belongs_to_its_conversation(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await begin_conversations(page, "one", "two")
        await message_box(page).fill("to two")
        await attach(page, "two.txt", 10)
        await page.get_by_role("button", name="one", exact=True).click()
        await page.locator(".said", has_text="one").wait_for()
        assert await message_box(page).input_value() == ""
        assert await page.locator(".composer .badge").count() == 0
        await message_box(page).fill("to one")
        await page.get_by_role("button", name="New conversation").click()
        assert await message_box(page).input_value() == ""
        await message_box(page).fill("to nobody")
        await page.get_by_role("button", name="two", exact=True).click()
        await page.locator(".said", has_text="two").wait_for()
        assert await message_box(page).input_value() == "to two"
        await page.locator(".composer .badge", has_text="two.txt").wait_for()
        await message_box(page).press("Enter")
        await until_articles(page, 2)
        await page.get_by_role("button", name="New conversation").click()
        assert await message_box(page).input_value() == "to nobody"
        await message_box(page).press("Enter")
        await until_articles(page, 1)
        await page.get_by_role("button", name="New conversation").click()
        assert await message_box(page).input_value() == ""


async def test_the_draft_of_an_edited_message_ends_with_its_branch(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await begin_conversations(page, "one")
        await page.keyboard.press("ArrowUp")
        await page.keyboard.type(", changed")
        await page.keyboard.press("Enter")
        await page.get_by_text("You wrote: one, changed").wait_for()
        await page.get_by_role("button", name="Previous version").click()
        await page.get_by_text("1/2").wait_for()
        assert await message_box(page).input_value() == ""
        assert await page.get_by_role("button", name="Discard the edit").count() == 0


async def until_box(page: "Page", text: str, *badges: str) -> None:
    """Wait until the message box contains this text, and these labels and files."""
    await until_texts(page.locator(".composer .badge"), *badges)
    assert await message_box(page).input_value() == text


async def edit(page: "Page", text: str) -> None:
    await page.locator(".said", has_text=text).hover()
    await page.get_by_role("button", name="Edit", exact=True).first.click()


async def test_a_draft_returns_when_an_edit_is_discarded_or_sent(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await begin_conversations(page, "one")
        await message_box(page).fill("a long draft")
        await attach(page, "draft.txt", 10)
        await edit(page, "one")
        await until_box(page, "one", "Edited message")
        await page.get_by_role("button", name="Discard the edit").click()
        await until_box(page, "a long draft", "draft.txt")
        await edit(page, "one")
        await message_box(page).fill("one, changed")
        await edit(page, "one")
        await page.get_by_role("button", name="Discard the edit").click()
        await until_box(page, "one, changed", "Edited message")
        await message_box(page).press("Enter")
        await page.get_by_text("You wrote: one, changed").wait_for()
        await page.get_by_text("2/2").wait_for()
        await until_box(page, "a long draft", "draft.txt")


async def test_a_draft_is_no_part_of_an_edit_that_the_agent_refuses(browser: "Browser") -> None:
    async def refuse(route: "Route") -> None:
        if method_of(route.request) == "SendMessage":
            error = {"code": -32602, "message": "not this one"}
            await route.fulfill(status=400, json={"jsonrpc": "2.0", "id": 1, "error": error})
        else:
            await route.fallback()

    async with chat(browser, Echo(), expected="400") as page:
        await begin_conversations(page, "one")
        await message_box(page).fill("a draft")
        await page.route(lambda _: True, refuse)
        await edit(page, "one")
        await message_box(page).press("End")
        await page.keyboard.type(", changed")
        await page.keyboard.press("Enter")
        await page.get_by_role("alert").filter(has_text="not this one").wait_for()
        await until_box(page, "one, changed", "Edited message")
        await page.get_by_role("button", name="Discard the edit").click()
        await until_box(page, "a draft")


async def test_the_up_arrow_edits_nothing_beside_a_file(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await begin_conversations(page, "one")
        await attach(page, "draft.txt", 10)
        await message_box(page).press("ArrowUp")
        await until_box(page, "", "draft.txt")
        await page.get_by_role("button", name="Remove draft.txt").click()
        await message_box(page).press("ArrowUp")
        await until_box(page, "one", "Edited message")


async def test_a_new_conversation_ends_a_search(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await begin_conversations(page, "one", "two")
        search = page.get_by_role("searchbox", name="Search conversations")
        await search.fill("one")
        await until_texts(titles(page), "one")
        await page.get_by_role("button", name="New conversation").click()
        await until_texts(titles(page), "two", "one")
        await search.fill("one")
        await until_texts(titles(page), "one")
        await say(page, "three")
        await until_texts(titles(page), "three", "two", "one")
        assert await search.input_value() == ""


async def test_a_message_beyond_the_limit_is_not_uploaded(browser: "Browser") -> None:
    echo = Echo()
    async with chat(browser, echo, max_request_bytes=1_000_000) as page:
        methods: list[str] = []
        page.on("request", lambda request: methods.append(method_of(request)))
        await attach(page, "large.txt", 900_000)
        await say(page, "look")
        note = page.get_by_role("alert")
        await note.wait_for()
        assert (
            await note.inner_text()
            == "The files have 0.9 MB, and the agent accepts 0.7 MB. Remove files, or send links to them."
        )
        assert "SendStreamingMessage" not in methods
        await take_picture(page, "too-large")
        await page.get_by_role("button", name="Remove large.txt").click()
        assert await note.count() == 0
        await say(page, "x" * 1_500_000)
        await note.filter(
            has_text="The message has 1.5 MB, and the agent accepts 1.0 MB. Shorten it."
        ).wait_for()
        await say(page, "short")
        await until_articles(page, 1)
        assert await note.count() == 0
        assert echo.prompts == ["short"]


async def test_a_message_that_the_server_finds_too_large_is_not_tried_again(browser: "Browser") -> None:
    async with chat(browser, Echo(), max_request_bytes=100_000, expected="413") as page:
        await page.evaluate("document.querySelector('tailrace-chat').client.card = {}")
        await say(page, "x" * 100_000)
        note = page.locator("article").get_by_role("alert")
        await note.wait_for()
        assert (
            await note.inner_text()
            == "The message is larger than the agent accepts. Remove files, or shorten it."
        )
