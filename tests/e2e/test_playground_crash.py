"""The page across a crash of its server: a response that the restarted server continues is shown once and complete."""

import re
from pathlib import Path

import pytest

from e2e.browser import browsing
from e2e.playground_answers import ANSWERS
from e2e.renderings import check_copy, check_rendering
from support.continuing import ContinuingServer
from support.processes import served
from support.restarts import arguments_of
from support.upstream import ScriptedUpstream

pytestmark = pytest.mark.timeout(240)

PIECES = re.findall(r"(?s).{1,9}", ANSWERS["mixed"])
SENT = ANSWERS["mixed"].index("assert old") // 9 + 1
"""The number of deltas that the model sends before the crash, which is in the middle of a block of code."""


@pytest.mark.parametrize("route", ["prefill", "replace"])
async def test_an_answer_is_shown_once_and_whole_after_a_kill(route: str, tmp_path: Path) -> None:
    """Both on the page that was open, and on one that is loaded later."""
    model = ContinuingServer("llamacpp" if route == "prefill" else "other", PIECES, ending="silence")
    events = model.first_body.split(b"\n\n")
    model.cut = len(b"\n\n".join(events[: 1 + SENT])) + 2  # the first event has no text
    faults: list[str] = []
    async with ScriptedUpstream(model.respond, lists_models=True) as upstream, browsing() as browser:
        arguments = arguments_of(tmp_path, upstream, "openai")
        context = await browser.new_context()
        await context.grant_permissions(["clipboard-read", "clipboard-write"])
        page = await context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))  # requests may fail, scripts may not
        with served(tmp_path / "first.log", *arguments) as server:
            await server.ready()
            await page.goto(server.url)
            await page.get_by_label("Message", exact=True).fill("What now?")
            await page.keyboard.press("Enter")
            await check_rendering(page, "".join(PIECES[:SENT]), ended=False)
            server.kill()
            await page.locator("article").get_by_role("alert").wait_for()
        port = server.url.rpartition(":")[2]
        with served(tmp_path / "second.log", *arguments, "--port", port) as server:
            await server.ready()
            text = "".join(PIECES) if route == "prefill" else ContinuingServer.SECOND + "".join(PIECES)
            for _ in range(2):
                await page.locator("article[data-state=completed]").wait_for()
                assert await page.locator("article").count() == 1
                assert await page.locator(".block.text").count() == 1
                assert await page.locator("article").get_by_role("alert").count() == 0
                await check_rendering(page, text)
                await check_copy(page, text)
                await page.reload()
    assert (model.prefills, model.generations) == ((1, 1) if route == "prefill" else (0, 2))
    assert faults == []
