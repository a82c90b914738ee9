"""Properties of the responses of every route."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from support.agents import Scripted
from support.live_server import serving
from support.threaded_client import post
from tailrace.server import Settings, create_app


@pytest.fixture
async def url() -> AsyncGenerator[str]:
    async with serving(create_app(Settings(store="sqlite://"), handler=Scripted())) as url:
        yield url


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/tasks", 200),
        ("GET", "/tasks/unknown", 404),
        ("GET", "/.well-known/agent-card.json", 200),
        ("GET", "/v1/models", 200),
        ("POST", "/", 200),
        ("POST", "/v1/chat/completions", 400),
        ("POST", "/message:stream", 400),
        ("GET", "/healthz", 200),
    ],
)
async def test_a_response_is_taken_for_no_other_media_type(
    url: str, method: str, path: str, status: int
) -> None:
    found = await post(url + path, b"{}" if method == "POST" else b"", method=method)
    assert found.status == status
    assert found.headers["x-content-type-options"] == "nosniff"


async def test_the_body_of_a_get_request_is_read_before_the_response() -> None:
    app = create_app(Settings(store="sqlite://"), handler=Scripted())
    happened: list[str] = []
    body = [{"type": "http.request", "body": b"x" * 1000, "more_body": at < 9} for at in range(10)]

    async def receive() -> Any:
        happened.append("body")
        return body.pop(0)

    async def send(message: Any) -> None:
        happened.append(message["type"])

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/v1/models",
        "raw_path": b"/v1/models",
        "query_string": b"",
        "scheme": "http",
        "http_version": "1.1",
        "root_path": "",
        "headers": [(b"host", b"localhost"), (b"content-length", b"10000")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    await app(scope, receive, send)
    assert happened[:11] == [*["body"] * 10, "http.response.start"]
