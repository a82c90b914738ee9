"""Several tasks of a conversation that wait at the same time, on the page of the chat."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
import pytest_asyncio

from e2e.browser import add_axe, browsing, check_accessibility, note_faults
from support.approval_server import serving_approvals
from support.fixture_contexts import in_own_task
from support.live_server import serving
from support.rounds import answer
from support.rpc import Rpc
from tailrace.server import Settings, Turn, create_app
from tailrace.streaming import TaskState, Update
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role
from tailrace.streaming.task.updates import ArtifactUpdate, StatusUpdate

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Locator, Page

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]

CALL = answer(calls=[("c1", "send_mail", {"to": "ann@example.com"})])
"""The same call in each task: only the id of the task tells their decisions apart."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncGenerator["Browser"]:
    async with in_own_task(browsing()) as browser:
        yield browser


@asynccontextmanager
async def window(browser: "Browser") -> AsyncGenerator["BrowserContext"]:
    """A fresh browser context; any error in its pages fails the test."""
    faults: list[str] = []
    context = await browser.new_context(viewport={"width": 1000, "height": 900})
    context.on("page", lambda page: note_faults(page, faults))
    yield context
    await context.close()
    assert faults == []


async def open_waiting(context: "BrowserContext", url: str, *texts: str) -> "Page":
    """Open a conversation with a task for each of these messages, all of which wait."""
    context_id = uuid4().hex
    async with Rpc(url) as rpc:
        for text in texts:
            message = {"messageId": uuid4().hex, "role": "ROLE_USER", "parts": [{"text": text}]}
            sent = await rpc.result("SendMessage", {"message": {**message, "contextId": context_id}})
            assert sent["task"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    return await open_page(context, f"{url}/#{context_id}", len(texts))


async def open_page(context: "BrowserContext", url: str, tasks: int) -> "Page":
    page = await context.new_page()
    await page.goto(url)
    await task(page, tasks).wait_for()
    return page


def task(page: "Page", number: int) -> "Locator":
    """Return a task of the page, from 1."""
    return page.locator(f"article:nth-of-type({number})")


async def until_states(page: "Page", *states: str) -> None:
    """Wait until the tasks of the page have these states."""
    for number, state in enumerate(states, 1):
        await page.locator(f'article:nth-of-type({number})[data-state="{state}"]').wait_for()
    assert await page.locator("article").count() == len(states)


WAITS = "input required"


@pytest.mark.parametrize("first", [1, 2])
async def test_calls_of_two_tasks_are_approved_in_either_order(browser: "Browser", first: int) -> None:
    second = 3 - first
    async with (
        serving_approvals(CALL, CALL, answer("One."), answer("Two.")) as server,
        window(browser) as context,
    ):
        page = await open_waiting(context, server.url, "Send it.", "Send it again.")
        await until_states(page, WAITS, WAITS)
        assert await page.get_by_role("group", name="Approval of send_mail").count() == 2
        await task(page, first).get_by_role("button", name="Approve", exact=True).click()
        await page.locator(f"article:nth-of-type({first})[data-state=completed]").wait_for()
        assert await task(page, first).locator("[part=approval]").inner_text() == "Approved"
        assert await task(page, first).locator(".block.text").inner_text() == "One."
        assert server.ran == ["ann@example.com"]
        await page.reload()
        await page.locator(f'article:nth-of-type({second})[data-state="{WAITS}"]').wait_for()
        await task(page, second).get_by_label("Reason of a rejection").fill("once is enough")
        await task(page, second).get_by_role("button", name="Reject").click()
        for reload in (False, True):
            if reload:
                await page.reload()
            await until_states(page, "completed", "completed")
            assert await task(page, second).locator(".block.text").inner_text() == "Two."
            outcomes = await page.locator("[part=approval]").all_inner_texts()
            assert outcomes[first - 1] == "Approved"
            assert outcomes[second - 1] == "Rejected: once is enough"
        assert server.ran == ["ann@example.com"]


async def test_a_decision_about_the_older_task_is_shown_in_all_tabs(browser: "Browser") -> None:
    async with serving_approvals(CALL, CALL, answer("One.")) as server, window(browser) as context:
        page = await open_waiting(context, server.url, "Send it.", "Send it again.")
        other = await open_page(context, page.url, 2)
        async with Rpc(server.url) as rpc:  # as another device does, of which the tabs hear nothing
            found = (await rpc.result("ListTasks", {}))["tasks"]
            [older] = [each for each in found if each["history"][0]["parts"][0]["text"] == "Send it."]
            [request] = older["status"]["message"]["parts"][-1]["data"]["approval_requests"]
            decision = {"approval_responses": [{"digest": request["digest"], "decision": "approve"}]}
            message = {
                "messageId": "d",
                "role": "ROLE_USER",
                "parts": [{"data": decision}],
                "taskId": older["id"],
            }
            await rpc.result("SendMessage", {"message": message})
        for tab in (page, other):
            await until_states(tab, "completed", WAITS)
            assert await task(tab, 1).locator("[part=approval]").inner_text() == "Approved"
            assert await task(tab, 2).get_by_role("button", name="Approve", exact=True).is_visible()


@pytest.mark.parametrize("width", [390, 1000])
async def test_nothing_keeps_people_from_choosing_a_task(browser: "Browser", width: int) -> None:
    async with serving_approvals(CALL, CALL) as server:
        # axe-core is injected into the page, which the page's policy would forbid.
        context = await browser.new_context(viewport={"width": width, "height": 900}, bypass_csp=True)
        page = await open_waiting(context, server.url, "Send it.", "Send it again.")
        await task(page, 1).get_by_role("button", name="Reply", exact=True).click()
        # The message box has grown, and the log stays at its end.
        log = 'document.querySelector("tailrace-chat").shadowRoot.querySelector(".log")'
        await page.wait_for_function(f"({log}.scrollHeight - {log}.scrollTop - {log}.clientHeight) < 2")
        await add_axe(page)
        await check_accessibility(page)
        await context.close()


async def ask_for_a_name(turn: Turn) -> AsyncIterator[Update]:
    """Ask a question, and answer with the message that replies to it."""
    text = "".join(part.text or "" for part in turn.message.parts)
    if turn.message.parts and text.startswith("My name is"):
        yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text=f"You wrote: {text}"),)))
        return
    question = Message(message_id=uuid4().hex, role=Role.AGENT, parts=(Part(text="What is your name?"),))
    yield StatusUpdate(TaskState.INPUT_REQUIRED, question)


async def test_the_user_chooses_the_task_that_a_message_replies_to(browser: "Browser") -> None:
    app = create_app(Settings(store="sqlite://"), handler=ask_for_a_name)
    async with serving(app) as url, window(browser) as context:
        page = await open_waiting(context, url, "Register me.", "Register my brother.")
        box = page.get_by_label("Message", exact=True)
        reply = page.get_by_role("button", name="Reply", exact=True)
        assert await reply.count() == 1  # the latest task gets the message anyway
        await task(page, 1).get_by_role("button", name="Reply", exact=True).click()
        assert "Reply to “Register me.”" in await page.locator(".composer").inner_text()
        await page.get_by_role("button", name="Discard the reply").click()
        assert "Reply to" not in await page.locator(".composer").inner_text()
        await reply.click()
        await box.fill("My name is Ann.")
        await page.keyboard.press("Enter")
        await until_states(page, "completed", WAITS)
        assert await task(page, 1).locator(".block.text").inner_text() == "You wrote: My name is Ann."
        assert "Reply to" not in await page.locator(".composer").inner_text()
        await page.reload()
        await until_states(page, "completed", WAITS)
        await box.fill("My name is Bob.")
        await page.keyboard.press("Enter")
        await until_states(page, "completed", "completed")
        assert await task(page, 2).locator(".block.text").inner_text() == "You wrote: My name is Bob."


async def test_a_message_after_a_later_response_begins_a_task(browser: "Browser") -> None:
    app = create_app(Settings(store="sqlite://"), handler=ask_for_a_name)
    async with serving(app) as url, window(browser) as context:
        page = await open_waiting(context, url, "Register me.", "Register my brother.")
        box = page.get_by_label("Message", exact=True)
        for state, text in [("completed", "My name is Bob.\n" * 60), (WAITS, "Register my sister.")]:
            await box.fill(text)
            await page.keyboard.press("Enter")
            await page.locator(f'article:last-of-type[data-state="{state}"]').wait_for()
        await until_states(page, WAITS, "completed", WAITS)
        # A reply is shown although it is not at the end of the log, which does not follow other tasks then.
        await page.locator(".log").evaluate("log => { log.scrollTop = log.scrollHeight; }")
        await task(page, 1).get_by_role("button", name="Reply", exact=True).click()
        await box.fill("My name is Ann.")
        await page.keyboard.press("Enter")
        await until_states(page, "completed", "completed", WAITS)
        log = await page.locator(".log").bounding_box()
        reply = await task(page, 1).locator(".said").last.bounding_box()
        assert log is not None
        assert reply is not None
        assert log["y"] < reply["y"] < reply["y"] + reply["height"] < log["y"] + log["height"]


async def test_a_page_has_few_connections_to_tasks_that_wait(browser: "Browser") -> None:
    app = create_app(Settings(store="sqlite://"), handler=ask_for_a_name)
    async with serving(app) as url, window(browser) as context:
        texts = [f"Register number {number}." for number in range(1, 9)]
        page = await open_waiting(context, url, *texts)
        # A browser opens six connections to a server: with one for each task, no message could be sent.
        for number in (8, 1):
            if number == 1:
                await task(page, 1).get_by_role("button", name="Reply", exact=True).click()
            await page.get_by_label("Message", exact=True).fill("My name is Ann.")
            await page.keyboard.press("Enter")
            await page.locator(f"article:nth-of-type({number})[data-state=completed]").wait_for()
