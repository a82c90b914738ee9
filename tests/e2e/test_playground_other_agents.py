"""The chat with agents that lack the extension, or whose requests have a URL of their own."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from e2e.browser import browsing
from e2e.playground_echo import (
    Echo,
    begin_conversations,
    call_of,
    chat,
    method_of,
    say,
    titles,
    until_articles,
    until_texts,
)
from support.fixture_contexts import in_own_task
from tailrace.server import Turn
from tailrace.streaming import Update
from tailrace.streaming.a2a.models import Artifact, Part
from tailrace.streaming.task.updates import ArtifactUpdate, TextDelta

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page, Route

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]

WORDS = ("Some **bold", "** words", ".\n\n", "And `co", "de`.")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncGenerator["Browser"]:
    async with in_own_task(browsing()) as browser:
        yield browser


class Chunks(Echo):
    """Streams an answer in several chunks."""

    async def __call__(self, turn: Turn) -> AsyncIterator[Update]:
        yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text=WORDS[0]),)), last=False)
        for word in WORDS[1:]:
            yield TextDelta("text", word)
        yield TextDelta("text", "", last=True)


async def without_extension(page: "Page", **card: Any) -> None:
    """Make the agent of a page one without the extension; its tasks have a part for each chunk.

    Args:
        page: The page.
        card: Fields of its card.
    """

    async def answer(route: "Route") -> None:
        method = method_of(route.request)
        if route.request.url.endswith("/agent-card.json"):
            response = await route.fetch()
            await route.fulfill(json={**await response.json(), "capabilities": {"streaming": True}, **card})
        elif method.endswith(("Conversation", "Conversations")):
            error = {"code": -32601, "message": f"Method not found: '{method}'"}
            await route.fulfill(json={"jsonrpc": "2.0", "id": 1, "error": error})
        elif method == "ListTasks":
            body = await (await route.fetch()).json()
            for task in body["result"]["tasks"]:
                for artifact in task.get("artifacts", ()):
                    if artifact["parts"] == [{"text": "".join(WORDS)}]:
                        artifact["parts"] = [{"text": word} for word in WORDS]
            await route.fulfill(json=body)
        else:
            await route.fallback()

    await page.route(lambda _: True, answer)
    await page.reload()


async def test_chunks_that_are_parts_of_a_task_are_the_text_that_was_streamed(browser: "Browser") -> None:
    async with chat(browser, Chunks()) as page:
        await without_extension(page)
        await say(page, "write")
        await until_articles(page, 1)
        text = page.locator("article .block.text .md")
        assert await text.locator("code").inner_text() == "code"
        streamed = await text.inner_html()
        await page.reload()
        await until_articles(page, 1)
        assert await text.inner_html() == streamed


async def test_the_open_conversation_is_in_the_list_after_a_reload(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await without_extension(page)
        await begin_conversations(page, "the Nile", "the Danube")
        await say(page, "and the Po")
        await until_articles(page, 2)
        await page.reload()
        await until_articles(page, 2)
        await until_texts(titles(page), "the Danube")
        await begin_conversations(page, "the Rhine")
        await until_texts(titles(page), "the Rhine", "the Danube")


async def test_regenerate_sends_the_message_again_as_its_title_states(browser: "Browser") -> None:
    echo = Echo()
    async with chat(browser, echo) as page:
        await without_extension(page)
        await say(page, "hello")
        await until_articles(page, 1)
        button = page.get_by_role("button", name="Regenerate").first
        assert await button.get_attribute("title") == "Send the message again"
        await button.click()
        await until_articles(page, 2)
        assert echo.prompts == ["hello", "hello"]


async def test_an_agent_that_cannot_delete_is_named_in_words(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        await without_extension(page)
        await begin_conversations(page, "the Nile")
        await titles(page).focus()
        await page.keyboard.press("Delete")
        await page.keyboard.press("Enter")
        alert = page.get_by_role("navigation").get_by_role("alert")
        await until_texts(alert, "This agent cannot delete conversations.")
        await page.keyboard.press("Escape")
        await until_texts(titles(page), "the Nile")


def interface(url: str) -> dict[str, Any]:
    return {
        "supportedInterfaces": [
            {"url": "http://127.0.0.1:9/grpc", "protocolBinding": "GRPC", "protocolVersion": "1.0"},
            {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
        ]
    }


async def test_requests_go_to_the_url_of_the_card_if_the_base_url_has_no_agent(browser: "Browser") -> None:
    urls: list[str] = []
    async with chat(browser, Echo(), expected="404") as page:

        async def forward(route: "Route") -> None:
            call = call_of(route.request)
            if not call:
                return await route.fallback()
            headers = {**route.request.headers, "content-type": "application/json"}
            await route.fulfill(response=await route.fetch(url=page.url, headers=headers))

        await page.route("**/rpc", forward)
        base = page.url
        await without_extension(page, **interface(f"{base}rpc"))
        await page.route(
            "**/", lambda route: route.fulfill(status=404) if call_of(route.request) else route.fallback()
        )
        await page.reload()
        await say(page, "hello")
        await until_articles(page, 1)
        await page.get_by_text("You wrote: hello").wait_for()
        page.on("request", lambda request: urls.append(request.url) if method_of(request) else None)
        await say(page, "again")
        await page.get_by_text("You wrote: again").wait_for()
    assert set(urls) == {f"{base}rpc"}


async def test_a_wrong_url_in_the_card_matters_only_if_the_base_url_has_no_agent(browser: "Browser") -> None:
    async with chat(browser, Echo()) as page:
        urls: set[str] = set()
        page.on("request", lambda request: urls.add(request.url) if method_of(request) else None)
        base = page.url
        await without_extension(page, **interface(f"{base}other-application"))
        await say(page, "hello")
        await page.get_by_text("You wrote: hello").wait_for()
        assert urls == {base}


async def test_no_token_goes_to_another_origin_that_a_card_names(browser: "Browser") -> None:
    async with chat(browser, Echo(), expected="404") as page:
        urls: set[str] = set()
        page.on("request", lambda request: urls.add(request.url) if method_of(request) else None)
        await page.route(
            "**/", lambda route: route.fulfill(status=404) if call_of(route.request) else route.fallback()
        )
        await page.evaluate("document.querySelector('tailrace-chat').token = 'secret'")
        base = page.url
        await without_extension(page, **interface("http://other.example/rpc"))
        await say(page, "hello")
        alert = page.get_by_role("log").get_by_role("alert")
        await alert.wait_for()
        assert "http://other.example/rpc" in await alert.inner_text()
        assert urls == {base}


@pytest.mark.parametrize("has_url", [True, False])
async def test_a_page_in_place_of_an_agent_is_no_response(browser: "Browser", has_url: bool) -> None:
    """Some servers send one page for all URLs. The message is sent once, to the URL of the card or nowhere."""
    urls: list[str] = []
    async with chat(browser, Echo(), expected="404") as page:

        async def forward(route: "Route") -> None:
            headers = {**route.request.headers, "content-type": "application/json"}
            await route.fulfill(response=await route.fetch(url=page.url.partition("#")[0], headers=headers))

        async def send_page(route: "Route") -> None:
            if call_of(route.request):
                await route.fulfill(content_type="text/html", body="<h1>Application</h1>")
            else:
                await route.fallback()

        await page.route("**/rpc", forward)
        await without_extension(page, **interface(f"{page.url}rpc" if has_url else page.url))
        await page.route("**/", send_page)
        await page.reload()
        await page.get_by_role("button", name="Say hello").wait_for()
        page.on(
            "request",
            lambda request: urls.append(request.url) if method_of(request).startswith("Send") else None,
        )
        await say(page, "hello")
        if has_url:
            await page.get_by_text("You wrote: hello").wait_for()
        else:
            alert = page.get_by_role("log").get_by_role("alert")
            await alert.wait_for()
            assert "is not the URL of an agent" in await alert.inner_text()
            assert len(urls) == 1
