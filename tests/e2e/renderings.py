"""The rendering of a response in a chat, compared with that of a text which arrives at once."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.async_api import Page

RENDERINGS = """
    const { Markdown } = await import("/tailrace-chat.js");
    const atOnce = (text, ended) => {
        const root = document.createElement("div");
        const markdown = new Markdown(root);
        markdown.add(text);
        if (ended) markdown.end();
        return root.innerHTML;
    };
    const rendering = (chat) => chat.shadowRoot.querySelector(".block.text .md")?.innerHTML;
    const until = async (condition) => {
        const end = performance.now() + 60_000;
        while (!condition() && performance.now() < end) await new Promise(requestAnimationFrame);
    };
    // Modules for code and math are loaded by the first text that needs them.
    const expected = async (chat, text, ended) => {
        let found = atOnce(text, ended);
        await until(() => rendering(chat) === found || rendering(chat) === (found = atOnce(text, ended)));
        return found;
    };
"""
"""Functions for scripts in a page of the playground."""

_COMPARE = f"""async ([text, ended]) => {{ {RENDERINGS}
    const chat = document.querySelector("tailrace-chat");
    const found = await expected(chat, text, ended);
    return [rendering(chat), found];
}}"""


async def check_rendering(page: "Page", text: str, *, ended: bool = True) -> None:
    """Wait until the response on a page looks as its text does if it arrives at once.

    Args:
        page: A page of the playground, with one response.
        text: The text of the response.
        ended: False for a response that may grow.
    """
    shown, expected = await page.evaluate(_COMPARE, [text, ended])
    assert shown == expected


async def check_copy(page: "Page", text: str) -> None:
    """Check that the button *Copy* of the response copies its text. The page needs the permission to read the clipboard."""
    chat = page.locator("tailrace-chat[page]")
    await chat.locator("footer").get_by_role("button", name="Copy", exact=True).click()
    await chat.get_by_role("button", name="Copied").wait_for()
    assert await page.evaluate("navigator.clipboard.readText()") == text
