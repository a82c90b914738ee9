r"""Lone surrogates (``"\ud800"`` is valid JSON) are refused or replaced, and never cause a server error."""

import base64
import json
from collections.abc import AsyncIterator

import pytest
from yarl import URL

from support.live_server import serving
from support.rpc import Rpc
from tailrace.server import Item, Settings, Turn, create_app
from tailrace.wrappers import TailraceError

LONE = "\ud800"
METHODS = (
    "SendMessage",
    "SendStreamingMessage",
    "GetTask",
    "CancelTask",
    "SubscribeToTask",
    "ListTasks",
    "message/send",
    LONE,
)
PATHS = (
    "/message:send",
    "/message:stream",
    "/v1/message:send",
    "/v1/chat/completions",
    "/v1/responses",
    "/ai-sdk",
    "/ag-ui",
)
MESSAGE = {
    "messageId": "m",
    "role": "ROLE_USER",
    "contextId": "c",
    "taskId": "",
    "parts": [{"text": "hi"}],
    "metadata": {"k": "v"},
}
OBJECTS = [
    *({"message": {**MESSAGE, name: LONE}} for name in ("messageId", "role", "contextId", "taskId")),
    {"message": {**MESSAGE, "parts": [{"text": LONE}], "metadata": {LONE: LONE}}},
    *({name: LONE} for name in ("id", "contextId", "pageToken", "status", "tenant", LONE)),
    {"model": LONE, "messages": [{"role": LONE, "content": LONE}], "user": LONE, "input": LONE},
    {"model": "m", "messages": [{"role": "user", "content": LONE}], "metadata": {LONE: LONE}},
    {
        "id": LONE,
        "threadId": LONE,
        "messages": [{"id": LONE, "role": "user", "parts": [{"type": "text", "text": LONE}]}],
    },
]
ADDRESSES = (
    "/tasks/%ED%A0%80",
    "/tasks/%ff",
    "/tasks/%00",
    "/tasks?contextId=%ED%A0%80",
    "/tasks?pageToken=%ff",
    "/%ED%A0%80/tasks",
)


async def fail(turn: Turn) -> AsyncIterator[Item]:
    raise TailraceError(f"it failed: {LONE}")
    yield  # pyright: ignore[reportUnreachable]


async def test_in_a_page_token_it_is_no_error_of_ours() -> None:
    async with serving(create_app(Settings(store="sqlite://"), handler=fail)) as url, Rpc(url) as rpc:
        for _ in range(2):
            await rpc.call("SendMessage", {"message": {**MESSAGE, "contextId": ""}})
        first = await rpc.result("ListTasks", {"pageSize": 1})
        when, _, fingerprint = json.loads(base64.urlsafe_b64decode(first["nextPageToken"] + "=="))
        forged = base64.urlsafe_b64encode(json.dumps([when, LONE, fingerprint]).encode()).decode()
        answer = await rpc.call("ListTasks", {"pageSize": 1, "pageToken": forged})
        assert answer.get("error", {}).get("code") != -32603
        async with rpc.http.get(f"{url}/tasks", params={"pageSize": "1", "pageToken": forged}) as page:
            assert page.status < 500


async def test_it_is_no_error_of_ours_on_any_binding(caplog: pytest.LogCaptureFixture) -> None:
    calls = [
        ("/", {"jsonrpc": "2.0", "id": LONE, "method": method, "params": each})
        for method in METHODS
        for each in OBJECTS
    ]
    calls += [(path, each) for path in PATHS for each in OBJECTS]
    async with serving(create_app(Settings(store="sqlite://"), handler=fail)) as url, Rpc(url) as rpc:
        for path, body in calls:
            data = json.dumps(body).encode()
            async with rpc.http.post(
                url + path, data=data, headers={"content-type": "application/json"}
            ) as page:
                text = await page.text()
                assert page.status < 500 or "it failed" in text, (path, body, text)
                assert "-32603" not in text, (path, body)
        for address in ADDRESSES:
            async with rpc.http.get(URL(url + address, encoded=True)) as page:
                assert page.status < 500, address
    assert "Traceback" not in caplog.text
