"""The playground as packaged, in a real browser, against a real server.

Screenshots are stored in ``build/playground/``.
"""

import json
import re
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import pytest_asyncio

from e2e.browser import browsing, take_picture
from e2e.playground_echo import until_texts
from e2e.playground_pages import MARKDOWN, Agent, open_page, say, serving_agent, until_state, window
from support.fixture_contexts import in_own_task
from support.proxy import CuttingProxy
from support.rpc import Rpc

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Locator, Page, Route

# A browser runs many processes: on a busy machine, loading takes longer than a minute.
pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]

WORDS = [f"w{number} " for number in range(300)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Agent]:
    store = f"sqlite:///{tmp_path_factory.mktemp('agent')}/tasks.db"
    async with in_own_task(serving_agent(store)) as agent:
        yield agent


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncGenerator["Browser"]:
    async with in_own_task(browsing()) as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="module")
async def context(browser: "Browser") -> AsyncGenerator["BrowserContext"]:
    async with in_own_task(window(browser)) as context:
        yield context


@pytest_asyncio.fixture(loop_scope="module")
async def page(context: "BrowserContext", agent: Agent) -> "Page":
    return await open_page(context, agent.url)


def answers(page: "Page") -> "Locator":
    return page.locator("article").last.locator(".block.text")


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
