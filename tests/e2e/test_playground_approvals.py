"""Calls that wait for an approval, on the page of the chat."""

import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import pytest_asyncio

from e2e.browser import add_axe, browsing, check_accessibility, note_faults, take_picture
from support.approval_server import ApprovalServer, serving_approvals
from support.fixture_contexts import in_own_task
from support.rounds import Call, answer, sent
from support.rpc import Rpc

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Locator, Page

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]


MAIL = {"to": "ann@example.com", "subject": "Invoice 17"}
CALLS: list[Call] = [("c1", "send_mail", MAIL)]
TWO_CALLS: list[Call] = [*CALLS, ("c2", "send_mail", {"to": "bob@example.com"})]
LABEL = "Approval of send_mail"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncGenerator["Browser"]:
    async with in_own_task(browsing()) as browser:
        yield browser


class Chat(NamedTuple):
    """A page whose conversation has calls that wait, and its server."""

    page: "Page"
    context: "BrowserContext"
    server: ApprovalServer

    @property
    def card(self) -> "Locator":
        return self.page.get_by_role("group", name=LABEL)

    @property
    def call(self) -> "Locator":
        return self.page.locator("details.tool_call")

    @property
    def arguments(self) -> "Locator":
        return self.call.get_by_label("Arguments", exact=True)

    def button(self, name: str) -> "Locator":
        return self.card.get_by_role("button", name=name, exact=True)

    async def until_state(self, state: str) -> None:
        await self.page.locator(f'article:last-of-type[data-state="{state}"]').wait_for()

    async def until_text(self, text: str) -> None:
        """Wait until the call has this text."""
        await self.call.get_by_text(text, exact=True).wait_for()

    async def results(self) -> list[str]:
        """Return the results of tools in the second request to the model."""
        request = await self.server.upstream.received(1)
        return [each["content"] for each in sent(request) if each["role"] == "tool"]


@asynccontextmanager
async def waiting(
    browser: "Browser", calls: list[Call] = CALLS, *, clock: datetime | None = None, **options: Any
) -> AsyncGenerator[Chat]:
    """Open a page, and send a message whose response calls the tool; any error in the page fails the test.

    Args:
        browser: The browser.
        calls: The calls.
        clock: The time of the page; by default, that of the machine.
        options: Of the server; of the page those of ``page``.
    """
    faults: list[str] = []
    page_options: dict[str, Any] = {"viewport": {"width": 1000, "height": 700}, "locale": "en-US"}
    page_options |= options.pop("page", {})
    async with serving_approvals(answer(calls=calls), answer("Done."), **options) as server:
        context = await browser.new_context(**page_options)
        context.on("page", lambda page: note_faults(page, faults))
        page = await context.new_page()
        if clock is not None:
            await page.clock.install(time=clock)
        await page.goto(server.url)
        await page.get_by_label("Message", exact=True).fill("Send the invoice.")
        await page.keyboard.press("Enter")
        chat = Chat(page, context, server)
        await chat.until_state("input required")
        yield chat
        await context.close()
    assert faults == []


async def test_a_call_is_approved(browser: "Browser") -> None:
    async with waiting(browser) as chat:
        assert await chat.page.get_by_role("status").inner_text() == "Approval required: send_mail"
        assert "send_mail" in await chat.call.locator("summary").inner_text()
        arguments = await chat.arguments.inner_text()
        assert arguments == json.dumps(dict(sorted(MAIL.items())), indent=2)  # canonical: sorted
        assert re.search(r"Can be approved until \w+ \d+, 20\d\d, \d+:\d\d", await chat.card.inner_text())
        assert await chat.page.locator(".block.message").count() == 0  # the request is not also text
        assert chat.server.ran == []
        await chat.button("Approve").click()
        await chat.until_state("completed")
        await chat.until_text("Approved")
        assert await chat.call.get_by_label("Result").inner_text() == "sent to ann@example.com"
        assert await chat.card.count() == 0
        assert chat.server.ran == ["ann@example.com"]


async def test_a_call_is_rejected_with_a_reason_from_the_keyboard(browser: "Browser") -> None:
    async with waiting(browser) as chat:
        page = chat.page
        await chat.call.locator("summary").focus()
        order: list[str] = []
        element = "document.activeElement.shadowRoot.activeElement"
        for _ in range(5):
            await page.keyboard.press("Tab")
            order.append(
                await page.evaluate(
                    f"{element}.labels?.[0]?.textContent || {element}.ariaLabel || {element}.textContent"
                )
            )
        assert order == ["Arguments", "Reason of a rejection", "Approve", "Reject", "Edit arguments"]
        await chat.card.get_by_label("Reason of a rejection").fill("too expensive")
        await page.keyboard.press("Enter")
        await chat.until_state("completed")
        await chat.until_text("Rejected: too expensive")
        assert await chat.results() == [
            '{"error": "the user rejected the call: too expensive; the tool did not run"}'
        ]
        # The focus stays at the call, whose form is gone.
        assert await page.evaluate(f"{element}.matches('details.tool_call summary')")
        assert chat.server.ran == []


async def test_a_call_is_rejected_without_a_reason(browser: "Browser") -> None:
    async with waiting(browser) as chat:
        await chat.button("Reject").click()
        await chat.until_state("completed")
        await chat.until_text("Rejected")
        assert chat.server.ran == []


async def test_a_call_runs_with_edited_arguments_which_are_shown_after_a_reload(browser: "Browser") -> None:
    async with waiting(browser) as chat:
        editor = chat.card.get_by_label("Arguments, as JSON")
        await chat.button("Edit arguments").click()
        assert json.loads(await editor.input_value()) == MAIL
        await chat.button("Discard the edit").click()
        assert not await editor.is_visible()
        await chat.button("Edit arguments").click()
        for wrong in ("{", '["bob@example.com"]', "null"):
            await editor.fill(wrong)
            await chat.button("Approve with these arguments").click()
            await chat.card.get_by_role("alert").wait_for()
            assert await editor.get_attribute("aria-invalid") == "true"
        await editor.fill('{"to": "bob@example.com"}')
        await chat.button("Approve with these arguments").click()
        for reload in (False, True):
            if reload:
                await chat.page.reload()
            await chat.until_state("completed")
            await chat.until_text("Approved with edited arguments")
            assert json.loads(await chat.arguments.inner_text()) == {"to": "bob@example.com"}
            assert await chat.call.get_by_label("Result").inner_text() == "sent to bob@example.com"
        assert chat.server.ran == ["bob@example.com"]


async def test_a_call_waits_after_a_reload_and_so_does_its_decision(browser: "Browser") -> None:
    async with waiting(browser) as chat:
        await chat.page.reload()
        await chat.card.get_by_label("Reason of a rejection").fill("not today")
        await chat.button("Reject").click()
        await chat.until_text("Rejected: not today")
        await chat.until_state("completed")
        await chat.page.reload()
        await chat.until_text("Rejected: not today")
        assert await chat.card.count() == 0
        assert chat.server.ran == []


async def test_a_call_is_decided_in_another_tab(browser: "Browser") -> None:
    async with waiting(browser) as chat:
        other = chat._replace(page=await chat.context.new_page())
        await other.page.goto(chat.page.url)
        await chat.card.get_by_label("Reason of a rejection").fill("while I write")
        await other.button("Approve").click()
        for tab in (other, chat):
            await tab.until_text("Approved")
            await tab.until_state("completed")
            assert await tab.card.count() == 0
        assert chat.server.ran == ["ann@example.com"]


async def test_calls_are_decided_one_by_one(browser: "Browser") -> None:
    async with waiting(browser, TWO_CALLS) as chat:
        first, second = chat.card.first, chat.card.last
        await second.get_by_label("Reason of a rejection").fill("no")
        await first.get_by_role("button", name="Approve").click()
        await chat.until_text("Approved")
        assert await chat.card.get_by_label("Reason of a rejection").input_value() == "no"
        await chat.button("Reject").click()
        await chat.until_state("completed")
        assert chat.server.ran == ["ann@example.com"]
        assert await chat.page.locator("[part=approval]").all_inner_texts() == ["Approved", "Rejected: no"]


async def test_a_message_continues_without_the_call(browser: "Browser") -> None:
    async with waiting(browser) as chat:
        await chat.page.get_by_label("Message", exact=True).fill("Leave it.")
        await chat.page.keyboard.press("Enter")
        for reload in (False, True):
            if reload:
                await chat.page.reload()
            await chat.until_state("completed")
            await chat.until_text("Not decided: the call did not run.")
        assert chat.server.ran == []


async def test_a_canceled_task_has_no_card(browser: "Browser") -> None:
    async with waiting(browser) as chat:
        async with Rpc(chat.server.url) as rpc:
            [task] = (await rpc.result("ListTasks", {}))["tasks"]
            await rpc.result("CancelTask", {"id": task["id"]})
        for reload in (False, True):
            if reload:
                await chat.page.reload()
            await chat.until_state("canceled")
            await chat.until_text("Not decided: the call did not run.")


async def test_an_expired_call_can_only_be_rejected(browser: "Browser") -> None:
    async with waiting(browser, clock=datetime.now(UTC)) as chat:
        await chat.page.clock.fast_forward("01:00:01")
        await chat.card.get_by_text("The time to approve the call ended").wait_for()
        assert await chat.button("Approve").is_disabled()
        assert await chat.button("Edit arguments").is_disabled()
        await chat.button("Reject").click()
        await chat.page.clock.fast_forward("00:01")
        await chat.until_text("Rejected")
        assert chat.server.ran == []


async def test_the_server_refuses_an_approval_that_comes_too_late(browser: "Browser") -> None:
    # The clock of the page is behind: it does not know that the time has ended.
    async with waiting(browser, lifetime=0, clock=datetime.now(UTC) - timedelta(hours=1)) as chat:
        await chat.button("Approve").click()
        alert = chat.card.get_by_role("alert")
        await alert.wait_for()
        assert "the time to approve the call of send_mail ended" in await alert.inner_text()
        assert chat.server.ran == []


async def test_a_caller_who_may_not_approve_gets_the_reason(browser: "Browser") -> None:
    async with waiting(browser, approvers="role:approver") as chat:
        for name in ("Approve", "Reject"):
            await chat.button(name).click()
            alert = chat.card.get_by_role("alert")
            await alert.wait_for()
            assert "the caller may not approve tool calls (TAILRACE_APPROVERS)" in await alert.inner_text()
        assert chat.server.ran == []


async def test_characters_that_disguise_arguments_are_escaped(browser: "Browser") -> None:
    disguised = "invoice\u202egpj.exe \u200b\U000e0041"
    async with waiting(browser, [("c1", "send_mail", {"to": disguised})]) as chat:
        shown = r'{\n  "to": "invoice\u202egpj.exe \u200b\udb40\udc41"\n}'.replace(r"\n", "\n")
        assert await chat.arguments.inner_text() == shown
        await chat.button("Edit arguments").click()
        assert await chat.card.get_by_label("Arguments, as JSON").input_value() == shown
        await chat.button("Approve with these arguments").click()
        await chat.until_text("Approved")  # nothing was edited
        await chat.until_state("completed")
        assert chat.server.ran == [disguised]


async def test_the_client_of_the_component_decides(browser: "Browser") -> None:
    async with waiting(browser) as chat:
        requests = await chat.page.evaluate(
            """async () => {
                const { AgentClient, approvalRequests } = await import("/tailrace-client.js");
                const client = new AgentClient(location.href.split("#")[0]);
                const [{ id }] = (await client.listTasks()).tasks;
                const requests = approvalRequests(await client.getTask(id));
                await client.decide(id, [{ digest: requests[0].digest, decision: "approve" }]);
                const { state } = (await client.getTask(id)).status;
                return [requests, state];
            }"""
        )
        [[request], _] = requests
        assert (request["name"], request["arguments"]) == ("send_mail", MAIL)
        await chat.until_text("Approved")
        await chat.until_state("completed")
        assert chat.server.ran == ["ann@example.com"]


@pytest.mark.parametrize("look", ["approval", "approval-dark", "approval-phone"])
async def test_nothing_keeps_people_from_deciding(browser: "Browser", look: str) -> None:
    page_options = {
        "viewport": {"width": 390, "height": 800}
        if look.endswith("phone")
        else {"width": 1000, "height": 800},
        "color_scheme": "dark" if look.endswith("dark") else "light",
        "bypass_csp": True,  # axe-core is injected into the page
        "timezone_id": "UTC",
    }
    async with waiting(browser, TWO_CALLS, page=page_options) as chat:
        page = chat.page
        await chat.card.first.get_by_label("Reason of a rejection").fill("wrong address")
        await chat.card.first.get_by_role("button", name="Reject").click()
        await chat.until_text("Rejected: wrong address")
        if look == "approval-dark":
            await chat.button("Edit arguments").click()
        await add_axe(page)
        await page.evaluate("document.activeElement.shadowRoot.activeElement.blur()")
        await page.locator(".log").evaluate("log => { log.scrollTop = log.scrollHeight; }")
        await page.get_by_role("button", name="Jump to the latest message").wait_for(state="hidden")
        await take_picture(page, look)
        await check_accessibility(page)
