"""Joining an answer in the middle: a page that is loaded after any event shows what a page shows that saw them all."""

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

import anyio
import pytest
import pytest_asyncio

from e2e.browser import browsing, note_faults
from e2e.playground_answers import ANSWERS
from e2e.renderings import RENDERINGS, check_copy, check_rendering
from support.fixture_contexts import in_own_task
from support.live_server import serving
from support.rpc import Rpc, text_of
from tailrace.server import Settings, Turn, create_app
from tailrace.streaming import TaskState, Update
from tailrace.streaming.a2a.models import Artifact, Part
from tailrace.streaming.task.updates import ArtifactUpdate, StatusUpdate, TextDelta

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]

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

EVENTS_OF_A_RELOAD = 15
"""Events of a long answer between two reloads of a page."""

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


class GatedAnswers:
    """A handler whose answers are chosen by the user's message."""

    def __init__(self) -> None:
        self._answers: dict[str, GatedAnswer] = {}

    def add(self, prompt: str) -> GatedAnswer:
        """Add the answer to a message."""
        self._answers[prompt] = answer = GatedAnswer()
        return answer

    async def __call__(self, turn: Turn) -> AsyncIterator[Update]:
        prompt = "".join(part.text or "" for part in turn.message.parts)
        async for update in self._answers[prompt](turn):
            yield update


class Chat(NamedTuple):
    """A server and a browser.

    Attributes:
        url: The URL of the server.
        answers: Its handler.
        browser: The browser.
    """

    url: str
    answers: GatedAnswers
    browser: "Browser"


@asynccontextmanager
async def chatting() -> AsyncGenerator[Chat]:
    answers = GatedAnswers()
    settings = Settings(store="sqlite://", coalesce="none")
    async with serving(create_app(settings, handler=answers)) as url, browsing() as browser:
        yield Chat(url, answers, browser)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chat() -> AsyncGenerator[Chat]:
    async with in_own_task(chatting()) as chat:
        yield chat


@asynccontextmanager
async def windows(browser: "Browser", number: int) -> AsyncGenerator[list["Page"]]:
    """Windows of their own, because a page in the background is drawn seldom; any error in them fails the test."""
    faults: list[str] = []
    # Small ones: without a graphics card, drawing takes most of the time.
    contexts = [await browser.new_context(viewport={"width": 400, "height": 300}) for _ in range(number)]
    pages: list[Page] = []
    for context in contexts:
        await context.grant_permissions(["clipboard-read", "clipboard-write"])
        pages.append(await context.new_page())
        note_faults(pages[-1], faults)
    try:
        yield pages
    finally:
        for context in contexts:
            await context.close()
    assert faults == []


async def say(page: "Page", prompt: str) -> None:
    """Send a message, and wait until its answer begins."""
    await page.get_by_label("Message", exact=True).fill(prompt)
    await page.keyboard.press("Enter")
    await page.locator(".block.text h3", has_text="Join").wait_for()


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


async def test_a_page_joins_after_every_event_and_shows_the_same_answer(chat: Chat) -> None:
    answer = chat.answers.add("river")
    async with windows(chat.browser, 2) as (first, second):
        await first.goto(chat.url)
        await say(first, "river")
        await second.goto(first.url)
        number = int(await first.locator("article").get_attribute("data-event") or "")
        for delta in DELTAS:
            await answer.release(delta)
            number += 1
            await until_event(first, number)
            # One page that joined after the event before, and the same page joining now.
            await until_same(first, second)
            await second.reload()
            await until_same(first, second)
        answer.end()
        await first.locator("article[data-state=completed]").wait_for()
        await until_same(first, second)
        await second.reload()
        await until_same(first, second)
        code = await second.locator("article pre code").inner_text()
        assert code == ANSWER.partition("```python\n")[2].partition("```")[0]


# Holds the subscriptions of the page until `subscriptions.go()`, and notes after which events they begin.
HOLD = """
    const send = window.fetch;
    const subscriptions = (window.subscriptions = { after: [], hold: false });
    const held = new Promise((go) => (subscriptions.go = go));
    window.fetch = async (address, init) => {
        if (subscriptions.hold && init?.body?.includes("SubscribeToTask")) {
            subscriptions.after.push(Number(init.headers["Last-Event-ID"]));
            await held;
        }
        return send(address, init);
    };
"""

# Sends deltas one after another. After each, a new chat joins, which then waits with its subscription.
JOIN = """async ({ deltas, text, context }) => {
    const chat = document.querySelector("tailrace-chat");
    const joins = (window.joins ??= []);
    const holder = document.querySelector("#joins") ?? document.body.appendChild(Object.assign(document.createElement("div"), { id: "joins", hidden: true }));
    subscriptions.hold = true;
    for (const delta of deltas) {
        const arrived = new Promise((resolve) => chat.addEventListener("textdelta", resolve, { once: true }));
        await release(delta);
        await arrived;
        text += delta;
        const joined = document.createElement("tailrace-chat");
        joined.context = context;
        holder.append(joined);
        await joined.opened;
        joins.push([joined, text]);
    }
}"""

COMPARE_JOINS = f"""async () => {{ {RENDERINGS}
    for (const [chat, text] of joins) {{
        const found = await expected(chat, text, false);
        if (rendering(chat) !== found) return [text.slice(-200), rendering(chat), found];
    }}
    return [];
}}"""

# The chats follow the answer to its end, and copy it. The clipboard is read by the test of each page below.
COMPARE_FINISHED = f"""async (text) => {{ {RENDERINGS}
    const found = atOnce(text, true);
    const copies = [];
    navigator.clipboard.writeText = async (copy) => void copies.push(copy);
    subscriptions.go();
    for (const [chat, joined] of joins) {{
        await until(() => chat.shadowRoot.querySelector("article[data-state=completed]") && rendering(chat) === found);
        if (rendering(chat) !== found) return [joined.slice(-200), rendering(chat), found];
        chat.shadowRoot.querySelector("footer [aria-label=Copy]").click();
        if (copies.pop() !== text) return [joined.slice(-200), "copied", ...copies];
    }}
    delete navigator.clipboard.writeText;
    return [];
}}"""


@pytest.mark.parametrize("name", ANSWERS)
async def test_a_long_answer_joined_after_every_event_is_that_of_the_log(chat: Chat, name: str) -> None:
    assert len(ANSWERS[name]) >= 2000
    answer = chat.answers.add(name)
    deltas = re.findall(r"(?s).{1,12}", ANSWERS[name])
    text = "# Join\n\n"
    async with windows(chat.browser, 3) as (sender, other, reloaded), Rpc(chat.url) as rpc:
        await other.add_init_script(HOLD)
        await other.expose_function("release", answer.release)  # pyright: ignore[reportUnknownMemberType]
        await sender.goto(chat.url)
        await say(sender, name)
        number = int(await sender.locator("article").get_attribute("data-event") or "")
        context = sender.url.partition("#")[2]
        for page in (other, reloaded):
            await page.goto(sender.url)
            await page.locator(".block.text h3", has_text="Join").wait_for()

        for at in range(0, len(deltas), EVENTS_OF_A_RELOAD):
            some = deltas[at : at + EVENTS_OF_A_RELOAD]
            await other.evaluate(JOIN, {"deltas": some, "text": text, "context": context})
            text += "".join(some)
            await reloaded.reload()
            await until_same(sender, reloaded)
        assert text == "# Join\n\n" + ANSWERS[name]
        assert await other.evaluate(COMPARE_JOINS) == []
        answer.end()
        await sender.locator("article[data-state=completed]").wait_for()
        assert await other.evaluate(COMPARE_FINISHED, text) == []
        assert await other.evaluate("subscriptions.after") == [number + 1 + at for at in range(len(deltas))]
        [task] = (await rpc.result("ListTasks", {"contextId": context, "includeArtifacts": True}))["tasks"]
        assert text_of(task) == text

        await reloaded.reload()
        for page in (sender, other, reloaded):
            await page.locator("tailrace-chat[page] article[data-state=completed]").wait_for()
            await check_rendering(page, text)
            await check_copy(page, text)
