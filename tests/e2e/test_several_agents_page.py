"""The page with the agents of a server, in a real browser, and the chat of one of them."""

from pathlib import Path

from e2e.browser import add_axe, browsing, check_accessibility, note_faults
from support.several_agents import serving_agents


async def test_the_page_leads_to_the_chat_of_an_agent(tmp_path: Path) -> None:
    async with serving_agents(tmp_path, keys={}, support="", code="") as server, browsing() as browser:
        page = await browser.new_page()
        faults: list[str] = []
        note_faults(page, faults)
        await page.goto(server.url)
        assert await page.get_by_role("link").all_inner_texts() == ["support", "code", "legal"]
        await page.get_by_role("link", name="legal").click()
        await page.wait_for_url(f"{server.url}/agents/legal/")
        await page.get_by_label("Message", exact=True).fill("Hi")
        await page.keyboard.press("Enter")
        await page.locator('article:last-of-type[data-state="completed"]').wait_for()
        assert await page.locator("article").last.locator(".block.text").inner_text() == "Hello"
        await page.reload()
        await page.locator("article").last.get_by_text("Hello").wait_for()
        assert faults == []
        assert len(server.upstreams["legal"].requests) == 1


async def test_the_page_is_accessible(tmp_path: Path) -> None:
    async with serving_agents(tmp_path) as server, browsing() as browser:
        # The policy of the page permits no script.
        context = await browser.new_context(bypass_csp=True)
        page = await context.new_page()
        await page.goto(server.url)
        await add_axe(page)
        await check_accessibility(page)
