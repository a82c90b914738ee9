"""Identifiers that callers choose have a bound: events repeat them, and indexes of the store contain them."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import pytest

from support.agents import Scripted
from support.live_server import serving
from support.rpc import Rpc, message
from support.ui_streams import RUN
from tailrace.server import Settings, create_app
from tailrace.server.protocols.a2a.jsonrpc import MAX_ID_BYTES
from tailrace.server.protocols.openai.models import MAX_NAME_LENGTH
from tailrace.server.runtime.identifier_bounds import MAX_ID_LENGTH, MAX_TASK_ID_LENGTH

LONGEST = "x" * MAX_ID_LENGTH
TOO_LONG = LONGEST + "x"
HELLO = [{"role": "user", "content": "Hello?"}]


@pytest.fixture
async def url() -> AsyncGenerator[str]:
    settings = Settings.model_validate(
        {"store": "sqlite://", "endpoints": "openai,ai-sdk,ag-ui", "model_aliases": "*="}
    )
    async with serving(create_app(settings, handler=Scripted())) as url:
        yield url


async def post(url: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, str]:
    async with aiohttp.ClientSession() as http, http.post(url, json=body, headers=headers) as response:
        return response.status, await response.text()


async def answer_to(url: str, request_id: str, method: str) -> dict[str, Any]:
    """Return the first response to a message, which is the first event of a stream."""
    status, text = await post(
        url, {"jsonrpc": "2.0", "id": request_id, "method": method, "params": message()}
    )
    assert status == 200
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith(("data: ", "{"))]
    return json.loads(lines[0])


@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage", "message/stream", "no/method"])
async def test_the_id_of_a_request_is_bounded(url: str, method: str) -> None:
    for request_id in ("i" * (MAX_ID_BYTES + 1), "é" * MAX_ID_BYTES, '"' * MAX_ID_BYTES, "i" * 100_000):
        answer = await answer_to(url, request_id, method)
        assert answer["id"] is None
        assert answer["error"]["code"] == -32600
        assert f'"id" has more than {MAX_ID_BYTES} characters' in str(answer["error"])
        assert len(json.dumps(answer)) < 1000
    for request_id in ("i" * MAX_ID_BYTES, '"' * (MAX_ID_BYTES // 2)):
        assert (await answer_to(url, request_id, method))["id"] == request_id


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": HELLO}),
        ("/v1/chat/completions", {"messages": HELLO, "stream": True}),
        ("/v1/responses", {"input": "Hello?"}),
        ("/v1/completions", {"prompt": "Hello?"}),
    ],
)
async def test_the_name_of_a_model_is_bounded(url: str, path: str, fields: dict[str, Any]) -> None:
    for name in ("m" * (MAX_NAME_LENGTH + 1), "m" * 100_000, "\0m"):
        status, text = await post(url + path, {"model": name, **fields})
        assert status == 400
        assert json.loads(text)["error"]["param"] == "model"
        assert len(text) < 1000
    status, text = await post(url + path, {"model": "m" * MAX_NAME_LENGTH, **fields})
    assert status == 200
    assert "m" * MAX_NAME_LENGTH in text


async def test_a_listed_name_of_a_model_may_be_longer() -> None:
    name = "m" * (MAX_NAME_LENGTH + 1)
    settings = Settings(store="sqlite://", model_aliases=(f"{name}=", "*="))
    async with serving(create_app(settings, handler=Scripted())) as url:
        status, text = await post(url + "/v1/chat/completions", {"model": name, "messages": HELLO})
    assert status == 200
    assert json.loads(text)["model"] == name


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("SendMessage", {**message(), "tenant": TOO_LONG}),
        ("SendMessage", message(messageId=TOO_LONG)),
        ("SendMessage", message(contextId=TOO_LONG)),
        ("SendMessage", message(taskId=TOO_LONG)),
        ("GetTask", {"id": "x", "tenant": TOO_LONG}),
        ("ListTasks", {"tenant": TOO_LONG}),
        ("SubscribeToTask", {"id": "x", "tenant": TOO_LONG}),
        (
            "tasks/send",
            {"id": TOO_LONG, "message": {"role": "user", "parts": [{"type": "text", "text": "a"}]}},
        ),
    ],
)
async def test_identifiers_of_a2a_are_bounded(url: str, method: str, params: dict[str, Any]) -> None:
    async with Rpc(url) as rpc:
        error = await rpc.error(method, params)
    assert error["code"] == -32602
    assert f"longer than {MAX_ID_LENGTH} characters" in json.dumps(error)


@pytest.mark.parametrize("method", ["GetTask", "SubscribeToTask", "CancelTask", "tasks/get"])
async def test_an_id_that_no_task_can_have_is_unknown(url: str, method: str) -> None:
    """Hashes of an id of several megabytes would block the event loop; `make fuzz` measures it."""
    async with Rpc(url) as rpc:
        for length in (MAX_TASK_ID_LENGTH, MAX_TASK_ID_LENGTH + 1, 900_000):
            error = await rpc.error(method, {"id": "x" * length})
            assert error["code"] == -32001
            assert len(json.dumps(error)) < 10_000


async def test_the_longest_identifiers_are_accepted(url: str) -> None:
    params = {**message(messageId=LONGEST, contextId=LONGEST), "tenant": LONGEST}
    async with Rpc(url) as rpc:
        task = (await rpc.result("SendMessage", params))["task"]
        assert (await rpc.result("GetTask", {"id": task["id"], "tenant": LONGEST}))["contextId"] == LONGEST


async def test_a_tenant_over_http_json_is_bounded(url: str) -> None:
    status, text = await post(f"{url}/{TOO_LONG}/message:send", message(), {"A2A-Version": "1.0"})
    assert status == 400
    assert f"tenant is longer than {MAX_ID_LENGTH} characters" in text


async def test_an_idempotency_key_is_bounded(url: str) -> None:
    async with Rpc(url) as rpc:
        error = await rpc.error("SendMessage", message(), {"Idempotency-Key": TOO_LONG})
    assert error["code"] == -32602


@pytest.mark.parametrize("member", ["threadId", "runId"])
async def test_identifiers_of_ag_ui_are_bounded(url: str, member: str) -> None:
    body: dict[str, Any] = {**RUN, "messages": [{"id": "m", "role": "user", "content": "Hello?"}]}
    status, _ = await post(f"{url}/ag-ui", body)
    assert status == 200
    status, text = await post(f"{url}/ag-ui", {**body, member: TOO_LONG})
    assert status == 400
    assert len(text) < 1000


@pytest.mark.parametrize("member", ["id", "messageId"])
async def test_identifiers_of_the_ai_sdk_are_bounded(url: str, member: str) -> None:
    def body(chat: str, message_id: str) -> dict[str, Any]:
        question = {"id": message_id, "role": "user", "parts": [{"type": "text", "text": "Hello?"}]}
        return {"id": chat, "messages": [question], "trigger": "submit-message"}

    status, _ = await post(f"{url}/ai-sdk", body("c", "m"))
    assert status == 200
    too_long = body(TOO_LONG, "m") if member == "id" else body("c", TOO_LONG)
    status, text = await post(f"{url}/ai-sdk", too_long)
    assert status == 400
    assert len(text) < 1000
