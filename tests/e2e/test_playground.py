"""The playground as packaged, in a real browser, against a real server.

Screenshots are stored in ``build/playground/``.
"""

import base64
import json
import re
import struct
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import pytest
import pytest_asyncio
from fastapi import FastAPI, Response

from e2e.browser import add_axe, browsing, check_accessibility, note_faults, take_picture
from e2e.clients.agent import ScriptedModel
from e2e.playground_echo import until_texts
from support.fixture_contexts import in_own_task
from support.live_server import serving
from support.proxy import CuttingProxy
from support.rpc import Rpc
from support.upstream import ScriptedUpstream
from tailrace.server import Settings, Turn, create_app
from tailrace.streaming import TaskState, Update
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role
from tailrace.streaming.task.updates import ArtifactUpdate, StatusUpdate

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Locator, Page, Route

# A browser runs many processes: on a busy machine, loading takes longer than a minute.
pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]

ROOT = Path(__file__).parents[2]
MODULE = ROOT / "server/tailrace/server/http/playground/tailrace-chat.js"

WORDS = [f"w{number} " for number in range(300)]

MARKDOWN = """# Rivers

A **river** is a *natural* stream of `water`; see [this](https://example.com/a_(b)) or https://example.com/c_d.
<img src=x onerror=alert(1)> [bad](javascript:alert(1)) ![seen](https://example.com/pixel.png)

1. First
   - a spring
   - a `glacier`
2. Then

> said by
> another

```python
def flow(river):
    return "**not bold** <b>"
```

| river | length |
|---|---|
| Nile | 6,650 km |

- [x] done

~~gone~~ 2 * 3 * 4 = 24 and snake_case_name
"""


class Agent(NamedTuple):
    """The server of the tested pages.

    Attributes:
        url: Its URL.
        model: The scripted model.
        upstream: All requests to the model.
    """

    url: str
    model: ScriptedModel
    upstream: ScriptedUpstream


@asynccontextmanager
async def serving_agent(store: str) -> AsyncGenerator[Agent]:
    model = ScriptedModel()
    async with ScriptedUpstream(model.answer) as upstream:
        # One event per delta, so that each word has a number.
        settings = Settings(
            model="openai:scripted",
            base_url=upstream.base_url,
            api_key="none",  # pyright: ignore[reportArgumentType]
            store=store,
            coalesce="none",
        )
        async with serving(create_app(settings)) as url:
            yield Agent(url, model, upstream)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Agent]:
    store = f"sqlite:///{tmp_path_factory.mktemp('agent')}/tasks.db"
    async with in_own_task(serving_agent(store)) as agent:
        yield agent


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncGenerator["Browser"]:
    async with in_own_task(browsing()) as browser:
        yield browser


@asynccontextmanager
async def window(browser: "Browser", **options: Any) -> AsyncGenerator["BrowserContext"]:
    """A fresh browser context; any error in its pages fails the test."""
    options.setdefault("viewport", {"width": 1280, "height": 800})
    context = await browser.new_context(**options)
    faults: list[str] = []
    context.on("page", lambda page: note_faults(page, faults))
    try:
        yield context
    finally:
        await context.close()
    assert faults == []


@pytest_asyncio.fixture(loop_scope="module")
async def context(browser: "Browser") -> AsyncGenerator["BrowserContext"]:
    async with in_own_task(window(browser)) as context:
        yield context


@pytest_asyncio.fixture(loop_scope="module")
async def page(context: "BrowserContext", agent: Agent) -> "Page":
    return await open_page(context, agent.url)


async def open_page(context: "BrowserContext", url: str) -> "Page":
    page = await context.new_page()
    await page.goto(url)
    return page


async def say(page: "Page", text: str) -> None:
    await page.get_by_label("Message", exact=True).fill(text)
    await page.keyboard.press("Enter")


def answers(page: "Page") -> "Locator":
    return page.locator("article").last.locator(".block.text")


async def until_state(page: "Page", state: str) -> None:
    await page.locator(f'article:last-of-type[data-state="{state}"]').wait_for()


async def until_text(page: "Page", holds: Callable[[str], bool]) -> str:
    """Wait until the text of the answer satisfies a predicate."""
    with anyio.fail_after(30):
        while True:
            found = " ".join(await answers(page).all_inner_texts()).strip()
            if holds(found):
                return found
            await page.evaluate("new Promise(requestAnimationFrame)")


async def numbers(page: "Page") -> list[int]:
    """Return the event numbers in the inspector, in order."""
    if await page.get_by_role("complementary", name="Inspector").count() == 0:
        await page.get_by_role("button", name="Inspector").click()
    return [int(number) for number in await page.locator("aside summary b").all_inner_texts()]


async def tasks_in(agent: Agent, page: "Page") -> list[dict[str, Any]]:
    async with Rpc(agent.url) as rpc:
        found = await rpc.result("ListTasks", {"contextId": page.url.partition("#")[2]})
    return found["tasks"]


async def test_a_turn_streams_as_markdown_and_ends_with_its_figures(browser: "Browser", agent: Agent) -> None:
    pieces = re.findall(r"\S+\s*|\s+", MARKDOWN)
    pause = agent.model.pause(pieces, len(pieces) // 2)
    async with window(browser) as context:
        page = await open_page(context, agent.url)
        await say(page, pause.prompt)
        await until_state(page, "working")
        await until_text(page, lambda text: "glacier" in text)
        assert await page.get_by_role("log").get_attribute("aria-busy") == "true"
        await take_picture(page, "turn-streaming")
        # The page shows tokens/s only for an answer whose text took longer than a tenth of a second.
        await page.evaluate("new Promise((elapsed) => setTimeout(elapsed, 250))")
        pause.go_on.set()
        await until_state(page, "completed")
        answer = answers(page)
        assert await answer.locator("h3").all_inner_texts() == ["Rivers"]
        assert await answer.locator("ol > li").count() == 2
        assert await answer.locator("ol > li > ul > li").all_inner_texts() == ["a spring", "a glacier"]
        assert await answer.locator("strong").all_inner_texts() == ["river"]
        assert await answer.locator("em").all_inner_texts() == ["natural"]
        assert await answer.locator("del").all_inner_texts() == ["gone"]
        assert await answer.locator("blockquote").all_inner_texts() == ["said by\nanother"]
        assert await answer.locator("pre").inner_text() == 'def flow(river):\n    return "**not bold** <b>"\n'
        assert await answer.locator("tr").all_inner_texts() == ["river\tlength", "Nile\t6,650 km"]
        text = await answer.inner_text()
        assert "<img src=x onerror=alert(1)> [bad](javascript:alert(1))" in text
        assert "2 * 3 * 4 = 24 and snake_case_name" in text
        links = [await link.get_attribute("href") for link in await answer.locator("a").all()]
        assert links == [
            "https://example.com/a_(b)",
            "https://example.com/c_d",
            "https://example.com/pixel.png",
        ]
        assert await answer.locator("img, script").count() == 0
        actions = await page.locator("article footer").get_by_role("button").all()
        assert [await action.get_attribute("aria-label") for action in actions] == ["Copy", "Regenerate"]
        await page.get_by_role("button", name="Inspector").click()
        figures = await page.locator("aside dl").inner_text()
        for figure in (r"7 in, 8 out", r"[\d.]+ tokens/s", r"after [\d.]+ s", r"Last event\s+\d+"):
            assert re.search(figure, figures)
        assert await page.get_by_role("log").get_attribute("aria-busy") == "false"
        assert await page.get_by_role("status").inner_text() == "The task is completed"
        await take_picture(page, "turn")


async def test_reasoning_folds_away_when_the_answer_begins(page: "Page") -> None:
    await say(page, "think")
    await until_state(page, "completed")
    reasoning = page.locator("details.reasoning")
    assert await reasoning.get_attribute("open") is None
    await reasoning.locator("summary").click()
    assert "Let me see: 1" in await reasoning.inner_text()
    await take_picture(page, "reasoning")


async def test_stop_cancels_the_task_and_keeps_what_had_come(page: "Page", agent: Agent) -> None:
    pause = agent.model.pause(WORDS, 100)
    await say(page, pause.prompt)
    await until_text(page, lambda text: text.endswith("w99"))
    await page.get_by_role("button", name="Stop").click()
    await until_state(page, "canceled")
    assert pause.request is not None
    with anyio.fail_after(10):
        await pause.request.client_left.wait()
    assert (await answers(page).inner_text()).split() == "".join(WORDS[:100]).split()
    assert await page.get_by_role("button", name="Send").is_visible()
    await take_picture(page, "stopped")


async def test_escape_stops_too(page: "Page", agent: Agent) -> None:
    pause = agent.model.pause()
    await say(page, pause.prompt)
    await until_text(page, lambda text: "one" in text)
    await page.keyboard.press("Escape")
    await until_state(page, "canceled")
    await page.get_by_role("button", name="Regenerate").click()
    await page.get_by_text("2/2").wait_for()
    await until_text(page, lambda text: "one" in text)
    assert agent.upstream.requests[-1].json["messages"] == agent.upstream.requests[-2].json["messages"]
    await page.get_by_role("button", name="Previous version").click()
    await until_state(page, "canceled")


async def test_a_connection_that_is_cut_is_gone_on_with_and_no_word_is_lost_or_doubled(
    page: "Page", agent: Agent
) -> None:
    cursors: list[str] = []

    def note(request: Any) -> None:
        if "SubscribeToTask" in (request.post_data or ""):
            cursors.append(request.headers["last-event-id"])

    page.on("request", note)
    pause = agent.model.pause(WORDS, 100)
    await say(page, pause.prompt)
    await until_text(page, lambda text: text.endswith("w99"))
    await page.get_by_role("button", name="Cut the connection").click()
    cut = page.locator(".badge", has_text="cut after event")
    await cut.wait_for()
    number = (await cut.inner_text()).split()[-1]
    await take_picture(page, "cut")
    pause.go_on.set()  # the rest is sent while no client is connected
    await until_state(page, "completed")
    assert (await answers(page).inner_text()).split() == "".join(WORDS).split()
    assert cursors == [number]
    shown = await numbers(page)
    assert shown == list(range(1, len(WORDS) + 5))  # the task, working, each word, the last chunk, completed
    await take_picture(page, "resumed")


async def test_connections_that_are_lost_are_gone_on_with_by_themselves(
    browser: "Browser", agent: Agent
) -> None:
    async with CuttingProxy(agent.url) as proxy:
        context = await browser.new_context()
        page = await open_page(context, proxy.url)
        pause = agent.model.pause(WORDS, 1)
        await say(page, pause.prompt)
        await until_text(page, lambda text: text == "w0")
        proxy.cut_after(20_000, 1000, 20_000)
        pause.go_on.set()
        await until_state(page, "completed")
        assert proxy.cuts == 3
        assert (await answers(page).inner_text()).split() == "".join(WORDS).split()
        assert await page.get_by_role("alert").count() == 0
        await context.close()


async def test_a_message_that_may_not_have_arrived_is_sent_again_and_taken_once(
    browser: "Browser", agent: Agent
) -> None:
    context = await browser.new_context()
    page = await open_page(context, agent.url)
    sent: list[str] = []

    async def lose(route: "Route") -> None:
        request = route.request
        if "SendStreamingMessage" not in (request.post_data or ""):
            await route.continue_()
            return
        sent.append(request.headers["idempotency-key"])
        if len(sent) == 1:
            await route.fetch()  # the request arrives, and its response is lost
            await route.abort()
        else:
            await route.continue_()

    await page.route(f"{agent.url}/", lose)
    before = len(agent.upstream.requests)
    await say(page, "once")
    await until_state(page, "completed")
    assert len(sent) == 2
    assert len(set(sent)) == 1
    assert len(agent.upstream.requests) == before + 1
    assert len(await tasks_in(agent, page)) == 1
    await context.close()


async def test_a_call_of_a_tool_is_answered_by_the_user_and_the_same_task_goes_on(
    page: "Page", agent: Agent
) -> None:
    await say(page, "weather")
    await until_state(page, "input required")
    call = page.locator("details.tool_call")
    assert "get_weather" in await call.locator("summary").inner_text()
    assert json.loads(await call.get_by_label("Arguments").inner_text()) == {"city": "Zürich"}
    assert await page.get_by_role("status").inner_text() == "The agent waits for you"
    await take_picture(page, "tool-call")
    await page.get_by_label("Result of get_weather").fill("5 °C and fog")
    await page.get_by_role("button", name="Send results").click()
    await until_state(page, "completed")
    assert await answers(page).last.inner_text() == "The tool says: 5 °C and fog."
    assert await call.get_attribute("open") is None  # a call with its result closes
    await call.locator("summary").click()
    assert await call.get_by_label("Result").inner_text() == "5 °C and fog"
    assert await page.get_by_role("button", name="Send results").count() == 0
    assert [message["role"] for message in agent.upstream.requests[-1].json["messages"]] == [
        "user",
        "assistant",
        "tool",
    ]
    assert len(await tasks_in(agent, page)) == 1
    await take_picture(page, "tool-answered")


async def test_a_reload_shows_the_conversation_and_follows_what_is_at_work(
    page: "Page", agent: Agent
) -> None:
    await say(page, "hello")
    await until_state(page, "completed")
    await say(page, "weather")
    await page.get_by_label("Result of get_weather").fill("rain")
    await page.get_by_role("button", name="Send results").click()
    await until_state(page, "completed")
    pause = agent.model.pause(WORDS, 50)
    await say(page, pause.prompt)
    await until_text(page, lambda text: text.endswith("w49"))
    selector = "article .said, article .block"
    before = await page.locator(selector).all_inner_texts()
    await page.reload()
    await until_text(page, lambda text: text.endswith("w49"))
    assert await page.locator(selector).all_inner_texts() == before
    states = await page.locator("article").evaluate_all("all => all.map((each) => each.dataset.state)")
    assert states == ["completed", "completed", "working"]
    pause.go_on.set()
    await until_state(page, "completed")
    assert (await answers(page).inner_text()).split() == "".join(WORDS).split()
    await page.get_by_label("Message", exact=True).fill("and then?")
    await page.get_by_role("button", name="Send").click()
    await until_state(page, "completed")
    assert len(await tasks_in(agent, page)) == 4
    await take_picture(page, "reloaded")


async def test_two_tabs_show_one_task_and_either_may_answer_for_it(
    page: "Page", context: "BrowserContext", agent: Agent
) -> None:
    pause = agent.model.pause(WORDS, 80)
    await say(page, pause.prompt)
    await until_text(page, lambda text: text.endswith("w79"))
    other = await open_page(context, page.url)
    await until_text(other, lambda text: text.endswith("w79"))
    pause.go_on.set()
    for tab in (page, other):
        await until_state(tab, "completed")
        assert (await answers(tab).inner_text()).split() == "".join(WORDS).split()
    # Each tab follows what the other one starts, and a question answered in one is closed in the other.
    await say(other, "weather")
    for tab in (page, other):
        await until_state(tab, "input required")
    await page.get_by_label("Result of get_weather").fill("hail")
    await page.get_by_role("button", name="Send results").click()
    for tab in (other, page):
        await until_state(tab, "completed")
        assert await answers(tab).last.inner_text() == "The tool says: hail."
        assert await tab.get_by_role("button", name="Send results").count() == 0
    assert len(await tasks_in(agent, page)) == 2


async def test_there_are_several_conversations(page: "Page") -> None:
    conversations = page.get_by_role("navigation", name="Conversations")
    await say(page, "the first of several")
    await until_state(page, "completed")
    first = page.url
    await page.get_by_role("button", name="New conversation").click()
    assert await page.locator("article").count() == 0
    await say(page, "the second of several")
    await until_state(page, "completed")
    assert page.url != first
    both = ["the second of several", "the first of several"]
    assert (await conversations.locator("li").all_inner_texts())[:2] == both
    await conversations.get_by_role("button", name="the first of several", exact=True).click()
    await page.locator(".said", has_text="the first of several").wait_for()
    assert page.url == first
    assert await page.locator("article").count() == 1


async def test_another_browser_lists_and_finds_the_same_conversations(
    page: "Page", browser: "Browser", agent: Agent
) -> None:
    for prompt in ("about the Nile", "about the Danube"):
        await page.get_by_role("button", name="New conversation").click()
        await say(page, prompt)
        await until_state(page, "completed")
    async with window(browser) as context:
        other = await open_page(context, agent.url)
        conversations = other.get_by_role("navigation", name="Conversations")
        await conversations.locator("li", has_text="about the Nile").wait_for()
        await other.keyboard.press("Control+k")
        await other.keyboard.type("NILE")
        await until_texts(conversations.locator("li"), "about the Nile")
        await conversations.get_by_role("button", name="about the Nile", exact=True).click()
        await other.locator(".said", has_text="about the Nile").wait_for()
        await other.keyboard.press("Control+Shift+o")
        await other.locator(".welcome").wait_for()
        await conversations.get_by_role("searchbox").fill("nothing like this")
        await until_texts(conversations.locator("li"), "Nothing found")


@pytest.mark.parametrize("reads", ["agent-card", "GetConversation"])
async def test_a_message_sent_while_the_conversation_loads_is_shown_after_it(
    page: "Page", context: "BrowserContext", agent: Agent, reads: str
) -> None:
    await say(page, "hello")
    await until_state(page, "completed")
    loading, give = anyio.Event(), anyio.Event()

    async def hold(route: "Route") -> None:
        if reads in route.request.url or reads in (route.request.post_data or ""):
            loading.set()
            await give.wait()
        await route.continue_()

    other = await context.new_page()
    await other.route(re.compile(r"agent-card\.json$|/$"), hold)
    await other.goto(page.url)
    with anyio.fail_after(30):
        await loading.wait()
    await say(other, "early")
    give.set()
    await other.locator(".said", has_text="early").wait_for()
    await until_state(other, "completed")
    prompts = await other.locator("article .said").all_inner_texts()
    assert [each.split()[-1] for each in prompts] == ["hello", "early"]
    assert other.url == page.url
    assert len(await tasks_in(agent, page)) == 2


async def test_the_url_names_the_displayed_conversation(page: "Page", agent: Agent) -> None:
    await say(page, "hello")
    await until_state(page, "completed")
    first = page.url
    await page.get_by_role("button", name="New conversation").click()
    await say(page, "another")
    await until_state(page, "completed")
    await page.goto(first)  # in the same tab: nothing is reloaded
    await page.locator(".said", has_text="hello").wait_for()
    assert await page.locator("article").count() == 1
    await page.go_back()
    await page.locator(".said", has_text="another").wait_for()
    assert await page.locator("article").count() == 1
    # A truncated address names no conversation, and the page works.
    await page.goto("about:blank")
    await page.goto(f"{agent.url}/#%E0%A4%A")
    await say(page, "hello")
    await until_state(page, "completed")


async def test_back_and_forward_navigate_through_visited_conversations(page: "Page", agent: Agent) -> None:
    conversations = page.get_by_role("navigation", name="Conversations")

    async def until_prompts(*prompts: str) -> None:
        """Wait until a conversation with these user messages is visible."""
        with anyio.fail_after(30):
            while await page.locator("article .said p").all_inner_texts() != list(prompts):
                await page.evaluate("new Promise(requestAnimationFrame)")

    new = page.get_by_role("button", name="New conversation")
    began = await page.evaluate("history.length")
    await say(page, "back and forth")
    await until_state(page, "completed")
    assert await page.evaluate("history.length") == began  # a conversation that gets its name is the same one
    first = page.url
    await new.click()
    pause = agent.model.pause()
    await say(page, pause.prompt)
    await until_text(page, lambda text: "one" in text)
    second = page.url
    await new.click()
    await new.click()  # has no effect
    await conversations.get_by_role("button", name="back and forth", exact=True).click()
    await until_prompts("back and forth")

    await page.go_back()
    await page.locator(".welcome").wait_for()
    assert not page.url.partition("#")[2]
    await page.go_back()
    await until_prompts(pause.prompt)
    assert page.url == second
    current = conversations.locator("[aria-current=true]")
    assert await current.all_inner_texts() == [pause.prompt]
    pause.go_on.set()
    await until_state(page, "completed")  # the page follows the working task
    await page.go_back()
    await until_prompts("back and forth")
    assert page.url == first

    await page.go_forward()
    await until_prompts(pause.prompt)
    assert page.url == second
    await say(page, "back and forth")  # the message belongs to the visible conversation
    await until_state(page, "completed")
    assert len(await tasks_in(agent, page)) == 2
    await page.go_forward()
    await page.locator(".welcome").wait_for()
    await page.go_forward()
    await until_prompts("back and forth")
    assert page.url == first


async def test_a_request_contains_its_options(page: "Page", agent: Agent) -> None:
    await page.get_by_role("button", name="Inspector").click()
    facts = page.get_by_label("Sent with each request, as JSON")
    await facts.fill("{not JSON")
    await say(page, "hello")
    assert await facts.get_attribute("aria-invalid") == "true"
    assert await page.get_by_label("Message", exact=True).input_value() == "hello"
    tool: dict[str, Any] = {"name": "look", "parameters": {"type": "object", "properties": {}}}
    await facts.fill(json.dumps({"temperature": 0.5, "tools": [tool]}))
    await say(page, "hello")
    await until_state(page, "completed")
    request = agent.upstream.requests[-1].json
    assert request["temperature"] == 0.5
    assert [each["function"]["name"] for each in request["tools"]] == ["look"]


async def test_a_failure_shows_its_reason(page: "Page") -> None:
    await say(page, "fail")
    await until_state(page, "failed")
    assert "the model is not there" in await page.locator("article").inner_text()
    await take_picture(page, "failed")


async def test_it_is_used_from_the_keyboard_alone(page: "Page", agent: Agent) -> None:
    async def focused() -> str:
        element = "document.activeElement.shadowRoot.activeElement"
        return await page.evaluate(f"{element}.ariaLabel ?? {element}.textContent")

    conversations = page.get_by_role("navigation", name="Conversations")
    await conversations.get_by_role("button", name="Keyboard shortcuts").wait_for()
    suggestions = await page.locator(".suggestions button").all_inner_texts()
    order = [await focused()]
    while order[0] != "Conversations":
        await page.keyboard.press("Shift+Tab")
        order.insert(0, await focused())
    titles = await conversations.locator("li .context").all_inner_texts()
    listed = [name for title in titles[:1] for name in (title, f"Rename {title}", f"Delete {title}")]
    assert order == [
        "Conversations",
        "Inspector",
        "New conversation",
        "Search conversations",
        *listed,
        "Keyboard shortcuts",
        "Conversation",
        *suggestions,
        "Attach files",
        "Message",
    ]
    await page.keyboard.press("Control+Shift+O")
    await page.keyboard.type("line one")
    await page.keyboard.press("Shift+Enter")
    await page.keyboard.type("line two")
    await page.keyboard.press("Enter")
    await until_state(page, "completed")
    assert agent.upstream.requests[-1].json["messages"][-1]["content"] == "line one\nline two"
    assert await focused() == "Message"


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes((40, 150, 190)) * width for _ in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


async def draw(turn: Turn) -> AsyncIterator[Update]:
    """Return the files it receives, and others."""
    files = [part.filename for part in turn.message.parts if part.kind == "raw"]
    parts = (
        Part(raw=png(160, 90), media_type="image/png", filename="river.png"),
        Part(raw=b"<script>alert(1)</script>", media_type="text/html", filename="page.html"),
        Part(url="https://example.com/far.png", media_type="image/png", filename="far.png"),
        Part(data={"files": list(files)}),
    )
    for number, part in enumerate(parts):
        yield ArtifactUpdate(Artifact(artifact_id=f"file-{number}", parts=(part,)))


async def test_files_are_sent_and_received_and_a_key_is_required(browser: "Browser") -> None:
    settings = Settings(store="sqlite://", caller_keys="alice:open-sesame")  # pyright: ignore[reportArgumentType]
    async with serving(create_app(settings, handler=draw)) as url:
        context = await browser.new_context(viewport={"width": 1280, "height": 800})
        page = await open_page(context, url)
        await page.locator("input[type=file]").set_input_files(
            [{"name": "mine.png", "mimeType": "image/png", "buffer": png(40, 40)}]
        )
        await say(page, "draw")
        await page.get_by_label("Token or key").wait_for()
        assert await page.get_by_role("alert").all_inner_texts() == [
            "The agent requires a valid token or key."
        ]
        assert await page.locator(".waiting:visible").count() == 0
        await take_picture(page, "token")
        await page.get_by_label("Token or key").fill("open-sesame")
        await page.keyboard.press("Enter")
        await until_state(page, "completed")
        sizes = await page.locator("article img").evaluate_all(
            "all => all.map((image) => image.naturalWidth)"
        )
        assert sizes == [40, 160]  # the user's, and the agent's; the remote one is a link
        download = page.get_by_role("link", name="page.html")
        assert await download.get_attribute("href") == (
            "data:application/octet-stream;base64," + base64.b64encode(b"<script>alert(1)</script>").decode()
        )
        assert (
            await page.get_by_role("link", name="far.png").get_attribute("href")
            == "https://example.com/far.png"
        )
        assert json.loads(await page.locator("article pre").inner_text()) == {"files": ["mine.png"]}
        await take_picture(page, "files")
        await page.reload()
        await until_state(page, "completed")
        assert await page.locator("article img").count() == 2
        await context.close()


async def answer_in_two_texts(turn: Turn) -> AsyncIterator[Update]:
    parts = Part(text="Revenue grew."), Part(text="Costs fell.")
    yield ArtifactUpdate(Artifact(artifact_id="text", parts=parts))
    question = Message(message_id="q", role=Role.AGENT, parts=parts)
    yield StatusUpdate(TaskState.INPUT_REQUIRED, question)


async def test_two_texts_of_an_answer_are_two_paragraphs(browser: "Browser") -> None:
    app = create_app(Settings(store="sqlite://"), handler=answer_in_two_texts)
    async with serving(app) as url, window(browser) as context:
        page = await open_page(context, url)
        await say(page, "How was it?")
        await until_state(page, "input required")
        for block in ("text", "message"):
            paragraphs = page.locator(f"article .block.{block} p")
            assert await paragraphs.all_inner_texts() == ["Revenue grew.", "Costs fell."]


async def test_two_lines_put_it_into_a_page_of_another_site(browser: "Browser") -> None:
    settings = Settings(store="sqlite://", allowed_origins=("*",))
    site = FastAPI()
    lines = ""

    @site.get("/")
    async def page_of_another() -> Response:  # pyright: ignore[reportUnusedFunction]
        return Response(f"<!doctype html><title>Mine</title><h1>Mine</h1>{lines}", media_type="text/html")

    @site.get("/favicon.ico")
    async def no_icon() -> Response:  # pyright: ignore[reportUnusedFunction]
        return Response(status_code=204)

    async with (
        serving(create_app(settings, handler=draw)) as url,
        serving(site) as site_url,
        window(browser) as context,
    ):
        lines = (
            f'<script type="module" src="{url}/tailrace-chat.js"></script>\n<tailrace-chat></tailrace-chat>'
        )
        page = await open_page(context, site_url)
        await say(page, "draw")
        await until_state(page, "completed")
        await page.reload()
        await until_state(page, "completed")  # its tab remembers the conversation
        page = await open_page(context, f"{url}/embed.html")
        await say(page, "draw")
        await until_state(page, "completed")
        await take_picture(page, "embedded")
        await context.close()


async def test_in_a_frame_that_may_keep_nothing_it_works_all_the_same(browser: "Browser") -> None:
    site = FastAPI()
    lines = ""

    @site.get("/")
    async def page_of_another() -> Response:  # pyright: ignore[reportUnusedFunction]
        frame = f'<iframe sandbox="allow-scripts" width="600" height="600" srcdoc=\'{lines}\'></iframe>'
        return Response(f"<!doctype html><title>Mine</title>{frame}", media_type="text/html")

    settings = Settings(store="sqlite://", allowed_origins=("*",))
    async with serving(create_app(settings, handler=draw)) as url, serving(site) as site_url:
        lines = f'<script type="module" src="{url}/tailrace-chat.js"></script><tailrace-chat></tailrace-chat>'
        context = await browser.new_context()
        page = await open_page(context, site_url)
        frame = page.frame_locator("iframe")
        await frame.get_by_label("Message", exact=True).fill("draw")
        await page.keyboard.press("Enter")
        await frame.locator("article[data-state=completed]").wait_for()
        await context.close()


async def test_a_site_that_is_not_allowed_shows_the_setting(browser: "Browser") -> None:
    site = FastAPI()
    lines = ""

    @site.get("/")
    async def page_of_another() -> Response:  # pyright: ignore[reportUnusedFunction]
        return Response(f"<!doctype html><title>Mine</title>{lines}", media_type="text/html")

    @site.get("/tailrace-chat.js")
    async def own_copy() -> Response:  # pyright: ignore[reportUnusedFunction]
        return Response(MODULE.read_bytes(), media_type="text/javascript")

    async with (
        serving(create_app(Settings(store="sqlite://"), handler=draw)) as url,
        serving(site) as site_url,
    ):
        lines = f'<script type="module" src="tailrace-chat.js"></script><tailrace-chat agent="{url}"></tailrace-chat>'
        context = await browser.new_context()
        page = await open_page(context, site_url)
        await say(page, "draw")
        note = page.get_by_role("alert").filter(has_text="TAILRACE_ALLOWED_ORIGINS")
        await note.wait_for()
        assert site_url in await note.inner_text()
        await context.close()


@pytest.mark.parametrize("look", ["light", "dark", "phone", "phone-dark"])
async def test_nothing_keeps_people_from_using_it(browser: "Browser", agent: Agent, look: str) -> None:
    size = {"width": 390, "height": 800} if look.startswith("phone") else {"width": 1280, "height": 800}
    scheme = "dark" if look.endswith("dark") else "light"
    # axe-core is injected into the page, which the page's policy would forbid.
    async with window(browser, viewport=size, color_scheme=scheme, bypass_csp=True) as context:
        page = await open_page(context, agent.url)
        pieces = re.findall(r"\S+\s*|\s+", MARKDOWN)
        pause = agent.model.pause(pieces, len(pieces))
        pause.go_on.set()
        await say(page, "think")
        await until_state(page, "completed")
        await say(page, pause.prompt)
        await until_state(page, "completed")
        await say(page, "weather")
        await until_state(page, "input required")
        await add_axe(page)
        await take_picture(page, look)
        panels = ["Inspector", "Conversations"] if look.startswith("phone") else ["Inspector"]
        for panel in ["", *panels]:
            if panel:
                await page.get_by_role("button", name=panel, exact=True).click()
                await take_picture(page, f"{look}-{panel.lower()}")
            await check_accessibility(page)
            if panel:
                await page.get_by_role("button", name=panel, exact=True).click()
