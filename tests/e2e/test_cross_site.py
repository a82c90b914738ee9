"""Pages of other sites in a real browser: they cannot start an agent or read its responses."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from fastapi import FastAPI, Response

from e2e.browser import browsing
from support.live_server import serving
from support.rpc import Rpc, message
from support.ui_streams import RUN
from tailrace.server import Settings, Turn, create_app
from tailrace.streaming import Update

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Page

pytestmark = pytest.mark.timeout(240)

# Requests that would each create a task if they were accepted.
TARGETS: dict[str, Any] = {
    "/": {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": message()},
    "/message:send": message(),
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/responses": {"input": "hi"},
    "/ai-sdk": {
        "id": "c",
        "messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "hi"}]}],
    },
    "/ag-ui": {**RUN, "messages": [{"id": "m", "role": "user", "content": "hi"}]},
}

# Every way to send a body without a preflight request; each ends when its request has.
POST = """async ([url, body, type]) => {
  const headers = type ? {"Content-Type": type} : {};
  for (const credentials of ["omit", "include"])
    await fetch(url, {method: "POST", mode: "no-cors", credentials, headers, body}).catch(() => null);
  navigator.sendBeacon(url, new Blob([body], type ? {type} : {}));
}"""

# The name and the value of a form field of type text/plain are sent with an equals sign between them.
FORM = """([url, body, type, frame]) => new Promise(resolve => {
  const form = Object.assign(document.createElement("form"), {method: "POST", action: url, enctype: type, target: frame});
  const [name, value] = [body.slice(0, -1) + ', "x": "', '"}'];
  form.append(Object.assign(document.createElement("input"), {name, value}));
  const iframe = Object.assign(document.createElement("iframe"), {name: frame, onload: () => resolve()});
  document.body.append(form, iframe);
  iframe.onload = () => resolve();
  form.submit();
})"""


class _Agent:
    """An agent that counts its turns and its server's responses."""

    def __init__(self) -> None:
        self.turns = 0
        self.statuses: list[tuple[str, str, int]] = []

    async def handle(self, turn: Turn) -> "AsyncIterator[Update]":
        self.turns += 1
        return
        yield

    @asynccontextmanager
    async def serving(self, **settings: Any) -> AsyncGenerator[str]:
        app = create_app(Settings(store="sqlite://", **settings), handler=self.handle)

        async def observed(scope: Any, receive: Any, send: Any) -> None:
            async def noting(event: Any) -> None:
                if event["type"] == "http.response.start":
                    self.statuses.append((scope["method"], scope["path"], event["status"]))
                await send(event)

            await app(scope, receive, noting)

        async with serving(observed) as url:
            yield url


@asynccontextmanager
async def other_site() -> AsyncGenerator[str]:
    """A site with one empty page."""
    app = FastAPI()

    @app.get("/")
    def page() -> Response:
        return Response("<!doctype html><title>evil</title><body>", media_type="text/html")

    async with serving(app) as url:
        yield url


@asynccontextmanager
async def page_at(url: str, *options: str) -> AsyncGenerator["Page"]:
    async with browsing(*options) as browser:
        page = await browser.new_page()
        await page.goto(url)
        yield page


async def tasks_at(url: str) -> list[Any]:
    async with Rpc(url) as rpc:
        return (await rpc.result("ListTasks", {})).get("tasks", [])


@pytest.mark.parametrize("given", [{}, {"allow_anonymous": True}], ids=["local", "open"])
async def test_a_page_of_another_site_makes_no_agent_work(given: dict[str, Any]) -> None:
    agent = _Agent()
    async with agent.serving(**given) as url, other_site() as evil, page_at(evil) as page:
        # The browser considers 127.0.0.1 and localhost two sites.
        for base in (url, url.replace("127.0.0.1", "localhost")):
            for path, body in TARGETS.items():
                text = json.dumps(body)
                for media_type in ("text/plain", "application/x-www-form-urlencoded", ""):
                    await page.evaluate(POST, [base + path, text, media_type])
                for media_type in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
                    await page.evaluate(FORM, [base + path, text, media_type, f"{path}{media_type}{base}"])
        posts = [each for each in agent.statuses if each[0] == "POST"]
        assert {path for _, path, _ in posts} == TARGETS.keys()
        assert {status for _, _, status in posts} == {403}
        assert agent.turns == 0
        assert await tasks_at(url) == []
        # The requests can succeed in general: the agent's own page may send them.
        await page.goto(url)
        await page.evaluate(
            """([url, body]) => fetch(url, {method: "POST", headers: {"Content-Type": "application/json"}, body})""",
            [url, json.dumps(TARGETS["/"])],
        )
        assert agent.turns == 1


async def test_a_host_name_that_is_rebound_to_this_machine_reads_nothing() -> None:
    agent = _Agent()
    async with agent.serving() as url, Rpc(url) as rpc:
        await rpc.result("SendMessage", message("a secret"))
        port = url.rpartition(":")[2]
        rebound = f"http://rebind.example:{port}/"
        async with page_at(rebound, "--host-resolver-rules=MAP rebind.example 127.0.0.1") as page:
            for path in ("/tasks", "/.well-known/agent-card.json", "/v1/tasks", "/metrics", "/"):
                status, text = await page.evaluate(
                    "async path => { const r = await fetch(path); return [r.status, await r.text()]; }", path
                )
                assert status == 403
                assert "a secret" not in text
                assert "127.0.0.1" not in text
            status = await page.evaluate(
                """async body => (await fetch("/", {
                     method: "POST", headers: {"Content-Type": "application/json"}, body})).status""",
                json.dumps(TARGETS["/"]),
            )
            assert status == 403
        assert agent.turns == 1
