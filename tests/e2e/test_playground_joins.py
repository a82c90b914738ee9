"""Joining an answer in the middle: a page that is loaded after any event shows what a page shows that saw them all."""

import re
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import anyio
import pytest

from e2e.browser import browsing, note_faults
from e2e.playground_answers import ANSWERS
from support.live_server import serving
from support.rpc import Rpc, text_of
from tailrace.server import Settings, Turn, create_app
from tailrace.streaming import TaskState, Update
from tailrace.streaming.a2a.models import Artifact, Part
from tailrace.streaming.task.updates import ArtifactUpdate, StatusUpdate, TextDelta

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = pytest.mark.timeout(240)

ANSWER = """## A river in *code*

The **Nile** is 6,650 km long; see `flow()` below 🌍.

```python
def flow(river, speed=1.5):
    for drop in river:
        yield drop * speed  # each drop

```

| river | length |
|---|--:|
| Nile | 6,650 km |

1. first
   - a spring
2. then the sea

نهر النيل
"""

# Cuts inside of words, lines, marks and code.
DELTAS = re.findall(r"(?s).{1,7}", ANSWER)

DRAWN = """() => [...document.querySelector("tailrace-chat").shadowRoot.querySelectorAll(".block.text .md")]
    .map((block) => block.innerHTML).join("\\n")"""


class GatedAnswer:
    """A handler that sends one more delta for each permit."""

    def __init__(self) -> None:
        self._send, self._receive = anyio.create_memory_object_stream[str](1)

    async def release(self, delta: str) -> None:
        await self._send.send(delta)

    def end(self) -> None:
        self._send.close()

    async def __call__(self, turn: Turn) -> AsyncIterator[Update]:
        yield StatusUpdate(TaskState.WORKING)
        yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text="# Join\n\n"),)), last=False)
        async with self._receive:
            async for delta in self._receive:
                yield TextDelta("text", delta)
        yield TextDelta("text", "", last=True)


async def until_same(first: "Page", second: "Page") -> str:
    """Wait until two pages draw the same, and return it; otherwise fail with the difference.

    Both are read again while waiting: a page that has just loaded a module draws once more.
    """
    one, other = "", "-"
    with anyio.move_on_after(30):
        while one != other:
            await second.evaluate("new Promise(requestAnimationFrame)")
            one, other = await first.evaluate(DRAWN), await second.evaluate(DRAWN)
    assert one == other
    return one


async def until_event(page: "Page", number: int) -> None:
    await page.locator(f'article[data-event="{number}"]').wait_for()


async def test_a_page_joins_after_every_event_and_shows_the_same_answer() -> None:
    handler = GatedAnswer()
    settings = Settings(store="sqlite://", coalesce="none")
    faults: list[str] = []
    async with serving(create_app(settings, handler=handler)) as url, browsing() as browser:
        # Windows of their own: a page in the background is drawn seldom.
        first, second = [await (await browser.new_context()).new_page() for _ in range(2)]
        note_faults(first, faults)
        note_faults(second, faults)
        await first.goto(url)
        await first.get_by_label("Message", exact=True).fill("Tell me")
        await first.keyboard.press("Enter")
        await first.locator(".block.text h3", has_text="Join").wait_for()
        await second.goto(first.url)
        number = int(await first.locator("article").get_attribute("data-event") or "")
        for delta in DELTAS:
            await handler.release(delta)
            number += 1
            await until_event(first, number)
            # One page that joined after the event before, and the same page joining now.
            await until_same(first, second)
            await second.reload()
            await until_same(first, second)
        handler.end()
        await first.locator("article[data-state=completed]").wait_for()
        await until_same(first, second)
        await second.reload()
        await until_same(first, second)
        code = await second.locator("article pre code").inner_text()
        assert code == ANSWER.partition("```python\n")[2].partition("```")[0]
    assert faults == []


# Draws a text as a page would that has all of it, and opens the conversation again until its page shows the same.
JOIN = """async ({ context, text, ended }) => {
    const { Markdown } = await import("/tailrace-chat.js");
    const expected = () => {
        const root = document.createElement("div");
        const markdown = new Markdown(root);
        if (text) markdown.add(text);
        if (ended) markdown.end();
        return root.innerHTML;
    };
    const chat = document.querySelector("tailrace-chat");
    const drawn = () => chat.shadowRoot.querySelector(".block.text .md")?.innerHTML ?? "";
    await chat.open(context);
    const until = performance.now() + 10_000;
    // Modules for code and math are loaded by the first text that needs them.
    while (drawn() !== expected() && performance.now() < until) await new Promise(requestAnimationFrame);
    return [drawn(), expected()];
}"""


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_joined_after_every_event_is_that_of_the_log(name: str) -> None:
    handler = GatedAnswer()
    settings = Settings(store="sqlite://", coalesce="none")
    text = "# Join\n\n"
    faults: list[str] = []
    async with serving(create_app(settings, handler=handler)) as url, browsing() as browser, Rpc(url) as rpc:
        contexts = [await browser.new_context() for _ in range(2)]
        for each in contexts:
            await each.grant_permissions(["clipboard-read", "clipboard-write"])
        first, second = [await each.new_page() for each in contexts]
        for page in (first, second):
            note_faults(page, faults)
            await page.goto(url)
        await first.get_by_label("Message", exact=True).fill("Tell me")
        await first.keyboard.press("Enter")
        await first.locator(".block.text h3", has_text="Join").wait_for()
        [task] = (await rpc.result("ListTasks", {}))["tasks"]

        async def joined(*, ended: bool = False) -> None:
            given = {"context": task["contextId"], "text": text, "ended": ended}
            drawn, expected = await second.evaluate(JOIN, given)
            assert drawn == expected

        number = int(await first.locator("article").get_attribute("data-event") or "")
        await joined()
        for delta in re.findall(r"(?s).{1,9}", ANSWERS[name]):
            await handler.release(delta)
            text, number = text + delta, number + 1
            await first.locator(f'article[data-event="{number}"]').wait_for()
            await joined()
        handler.end()
        await first.locator("article[data-state=completed]").wait_for()
        await joined(ended=True)
        stored = text_of(await rpc.result("GetTask", {"id": task["id"]}))
        assert stored == text
        await second.goto(first.url)
        await second.reload()
        for page in (first, second):  # the page that saw all, and one that was loaded afterwards
            await page.locator("article[data-state=completed]").wait_for()
            await page.locator("article footer").get_by_role("button", name="Copy", exact=True).click()
            await page.get_by_role("button", name="Copied").wait_for()
            assert await page.evaluate("navigator.clipboard.readText()") == text
    assert faults == []
