"""A hostile remote agent or tool server obtains no foreign credentials and causes no failure of the server."""

import gc
import gzip
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest
from pydantic import SecretStr

from support.live_server import serving
from support.loop_lag import LoopLag
from support.rpc import Rpc, message
from support.upstream import Hang, Head, ScriptedUpstream, Step, json_answer, openai_stream, sse
from tailrace.server import Bounds, Settings, create_app
from tailrace.server.remote import client as remote_client
from tailrace.server.remote.agent_card import read_card
from tailrace.server.remote.agent_origins import AgentOrigins
from tailrace.server.remote.client import AgentClient
from tailrace.server.sdk import RemoteAgent, agent_tools
from tailrace.streaming.a2a.models import Message, Part, Role, TaskStatusUpdateEvent
from tailrace.streaming.tools.mcp import McpToolset
from tailrace.wrappers import ConfigurationError, UpstreamError, UpstreamFault

TOKEN = "topsecret-token"
MESSAGE = Message(message_id="m", role=Role.USER, parts=(Part(text="a secret prompt"),))


def root(upstream: ScriptedUpstream) -> str:
    return upstream.base_url.removesuffix("/v1")


def card_of(*urls: str, binding: str = "JSONRPC", **more: Any) -> dict[str, Any]:
    return {
        "name": "Scripted",
        "description": "Does what a test asks for.",
        "version": "1",
        "supportedInterfaces": [
            {"url": url, "protocolBinding": binding, "protocolVersion": "1.0"} for url in urls
        ],
        "capabilities": {"streaming": True},
        "skills": [],
        **more,
    }


@asynccontextmanager
async def another_origin() -> AsyncGenerator[ScriptedUpstream]:
    """Run another origin that must receive no request."""
    async with ScriptedUpstream(json_answer({})) as other:
        yield other
        assert other.requests == []


async def error_of(url: str, **options: Any) -> UpstreamError:
    async with RemoteAgent(url, token=TOKEN, retry_delays=(), **options) as agent:
        with pytest.raises(UpstreamError) as raised:
            async for _ in agent.stream(MESSAGE):
                pass
    return raised.value


# --- redirection by cards ---------------------------------------------------------------------------------------------


async def test_a_card_sends_neither_token_nor_message_to_another_origin() -> None:
    async with another_origin() as other:
        async with ScriptedUpstream(json_answer(card_of(f"{root(other)}/rpc"))) as agent:
            error = await error_of(root(agent))
            assert f"names {root(other)}/rpc" in error.diagnosis
            assert "TAILRACE_AGENT_ORIGINS" in error.message
            async with AgentClient(root(agent), token=TOKEN) as client:
                with pytest.raises(UpstreamError, match="--allow-origin"):
                    await client.agent()


async def test_a_server_before_an_agent_does_not_start_with_such_a_card() -> None:
    async with another_origin() as other:
        async with ScriptedUpstream(json_answer(card_of(f"{root(other)}/rpc"))) as agent:
            settings = Settings(agent=root(agent), agent_token=SecretStr(TOKEN), store="sqlite://")
            with pytest.raises(UpstreamError, match="calls go to"):
                await anyio.to_thread.run_sync(create_app, settings)


async def test_an_agent_tool_is_not_called_at_another_origin() -> None:
    async with another_origin() as other:
        async with ScriptedUpstream(json_answer(card_of(f"{root(other)}/rpc"))) as agent:
            with pytest.raises(UpstreamError, match="calls go to"):
                await agent_tools(root(agent), token=TOKEN).connected().__aenter__()


async def test_an_origin_that_the_operator_allows_is_called() -> None:
    async with ScriptedUpstream(json_answer({}, 404)) as other:
        async with ScriptedUpstream(json_answer(card_of(f"{root(other)}/rpc"))) as agent:
            assert (await error_of(root(agent), allowed_origins=[root(other)])).status == 404
            settings = Settings(agent=root(agent), agent_origins=(root(other),), store="sqlite://")
            await anyio.to_thread.run_sync(create_app, settings)
        assert other.requests[0].headers["authorization"] == f"Bearer {TOKEN}"


async def test_of_several_addresses_one_that_is_allowed_is_called() -> None:
    async with another_origin() as other:
        async with ScriptedUpstream(
            json_answer(card_of(f"{root(other)}/rpc", "/own")), json_answer({}, 404)
        ) as agent:
            assert (await error_of(root(agent))).status == 404
            assert agent.requests[1].path == "/own"


@pytest.mark.parametrize(
    ("configured", "named"),
    [
        ("https://agent.example", "https://agent.example:443/rpc"),
        ("https://agent.example/x/card.json", "https://AGENT.example./rpc"),
        ("http://agent.example", "http://agent.example:80/rpc"),
        ("http://127.0.0.1:9999", "http://localhost:9999/"),
        ("http://localhost:9999", "http://0.0.0.0:9999/"),
        ("http://[::1]:9999", "http://127.0.0.1:9999/"),
    ],
)
def test_one_origin_has_several_spellings(configured: str, named: str) -> None:
    assert AgentOrigins(configured).allows(named)


@pytest.mark.parametrize(
    "named",
    [
        "http://agent.example/rpc",
        "https://agent.example:8443/rpc",
        "https://agent.example.evil.example/rpc",
        "https://agent.example@evil.example/rpc",
        "https://evil.example\\@agent.example/rpc",
        "https://sub.agent.example/rpc",
        "//evil.example/rpc",
        "http://127.0.0.1/",
        "http://169.254.169.254/latest/meta-data",
        "file:///etc/passwd",
        "gopher://agent.example/",
        "unix:///var/run/docker.sock",
        "http://[",
        "https://agent.example:99999/",
    ],
)
def test_any_other_address_is_another_origin(named: str) -> None:
    url = "https://agent.example/.well-known/agent-card.json"
    with pytest.raises(UpstreamError) as raised:
        read_card(json.dumps(card_of(named)).encode(), url)
    assert raised.value.fault is UpstreamFault.INVALID


@pytest.mark.parametrize(
    ("configured", "target", "allowed"),
    [
        ("https://agent.example", "https://agent.example:50051", True),
        ("https://agent.example", "agent.example:443", True),
        ("https://agent.example", "agent.example:50051", False),  # without TLS
        ("http://agent.example:8000", "agent.example:50051", True),
        ("http://127.0.0.1:8000", "localhost:50051", True),
        ("http://agent.example", "https://agent.example", True),
        ("https://agent.example", "127.0.0.1:50051", False),
        ("http://agent.example", "unix:/var/run/docker.sock", False),
        ("http://agent.example", "unix:///var/run/docker.sock", False),
        ("http://agent.example", "dns:///agent.example:1", False),
        ("http://agent.example", "", False),
    ],
)
def test_grpc_is_called_at_the_configured_host(configured: str, target: str, *, allowed: bool) -> None:
    assert AgentOrigins(configured).allows_grpc(target) is allowed


@pytest.mark.parametrize("origin", ["*", "agent.example", "https://a/path", "https://u:p@a", "ftp://a", ""])
def test_an_allowed_origin_that_is_none_is_an_error(origin: str) -> None:
    with pytest.raises(ConfigurationError, match="is not an origin"):
        AgentOrigins("https://agent.example", [origin])


# --- responses --------------------------------------------------------------------------------------------------------


def failing(text: str) -> list[Step]:
    status = {
        "state": "TASK_STATE_FAILED",
        "message": {"messageId": "s", "role": "ROLE_AGENT", "parts": [{"text": text}]},
    }
    result = {"statusUpdate": {"taskId": "t", "contextId": "c", "status": status}}
    return [Head(), sse({"jsonrpc": "2.0", "id": 1, "result": result})]


ERROR_TEXT = f"your token {TOKEN} was refused by http://u:pa55@10.0.0.5/x"


@pytest.mark.parametrize(
    "answer",
    [
        json_answer({"jsonrpc": "2.0", "id": 1, "error": {"code": -32603, "message": ERROR_TEXT}}),
        [
            Head(),
            sse(
                {
                    "jsonrpc": "2.0",
                    "id": 1,
                    "error": {"code": -32001, "message": ERROR_TEXT, "data": [{"a": ERROR_TEXT}]},
                }
            ),
        ],
        json_answer({"error": ERROR_TEXT}, 500),
        json_answer({"error": ERROR_TEXT}, 401),
        [Head(), sse(ERROR_TEXT)],
    ],
    ids=["an error", "an error in a stream", "500", "401", "no JSON"],
)
async def test_an_agents_error_repeats_neither_our_token_nor_internal_addresses(answer: list[Step]) -> None:
    async with ScriptedUpstream(json_answer(card_of("/rpc")), answer) as agent:
        error = await error_of(root(agent))
    shown = f"{error} {error!r} {error.details!r}"
    assert not [each for each in (TOKEN, "pa55", "10.0.0.5", "127.0.0.1") if each in shown]
    assert TOKEN not in error.diagnosis


async def test_an_agents_reason_for_a_failure_repeats_neither() -> None:
    async with ScriptedUpstream(json_answer(card_of("/rpc")), failing(ERROR_TEXT)) as agent:
        async with RemoteAgent(root(agent), token=TOKEN) as remote:
            [event] = [event async for event in remote.stream(MESSAGE)]
        assert isinstance(event, TaskStatusUpdateEvent)
        assert event.status.message is not None
        assert event.status.message.parts[0].text == "your token [redacted] was refused by [internal address]"


async def test_callers_of_a_server_before_an_agent_read_neither() -> None:
    async with ScriptedUpstream(
        json_answer(card_of("/rpc")), json_answer({"error": ERROR_TEXT}, 401)
    ) as agent:
        settings = Settings(agent=root(agent), agent_token=SecretStr(TOKEN), store="sqlite://")
        app = await anyio.to_thread.run_sync(create_app, settings)
        async with serving(app) as url, Rpc(url) as rpc:
            task = (await rpc.result("SendMessage", message()))["task"]
    reason = task["status"]["message"]["parts"][0]["text"]
    assert "TAILRACE_AGENT_TOKEN" in reason
    assert not [each for each in (TOKEN, "pa55", "10.0.0.5", "127.0.0.1") if each in json.dumps(task)]


# --- cost -------------------------------------------------------------------------------------------------------------


BOMB = gzip.compress(b" " * 200_000_000)
PACKED = {"content-type": "application/json", "content-encoding": "gzip"}


async def test_a_compressed_card_or_answer_is_not_unpacked() -> None:
    async with ScriptedUpstream([Head(200, PACKED), BOMB]) as agent:
        assert (await error_of(root(agent))).fault is UpstreamFault.INVALID
    events = {"content-type": "text/event-stream", "content-encoding": "gzip"}
    for head in (PACKED, events):
        async with ScriptedUpstream(json_answer(card_of("/rpc")), [Head(200, head), BOMB]) as agent:
            assert "compressed" in (await error_of(root(agent))).message
            assert agent.requests[1].headers["accept-encoding"] == "identity"


async def test_a_compressed_answer_of_a_tools_server_is_not_unpacked() -> None:
    async with ScriptedUpstream([Head(200, PACKED), BOMB]) as server:
        with pytest.raises(UpstreamError, match="compressed"):
            await McpToolset.http(f"{root(server)}/mcp").connected().__aenter__()


async def test_a_card_without_an_end_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_client, "CARD_TIMEOUT", 0.2)
    async with ScriptedUpstream([Head(200, {"content-type": "application/json"}), b"{", Hang()]) as agent:
        assert (await error_of(root(agent))).fault is UpstreamFault.TIMEOUT
    monkeypatch.undo()
    async with ScriptedUpstream([Head(200, {"content-type": "application/json"}), b"[" * 2_000_000]) as agent:
        assert (await error_of(root(agent))).fault is UpstreamFault.TOO_LARGE


@pytest.mark.parametrize(
    "headers",
    [
        {"x-big": "a" * 50_000},
        {f"x-{number}": "a" * 1000 for number in range(20_000)},
        {"content-encoding": "gzip, gzip, gzip"},
        {"retry-after": "9" * 5000},
        {"content-length": "9" * 5000},
        {"location": "\\\\evil\\x"},
    ],
    ids=["a large header", "many headers", "packed thrice", "a long pause", "a length", "a location"],
)
@pytest.mark.parametrize("status", [200, 302, 429, 500])
async def test_headers_of_any_kind_end_in_an_error(headers: dict[str, str], status: int) -> None:
    """From a provider and from an agent; the second request of each is not affected."""
    answer: list[Step] = [Head(status, {"content-type": "text/event-stream", **headers}), b"data: x\n\n"]
    async with ScriptedUpstream(answer) as upstream:
        settings = Settings(
            model="openai:m",
            base_url=upstream.base_url,
            api_key=SecretStr(TOKEN),
            store="sqlite://",
            bounds=Bounds(upstream_retries=0),
        )
        async with serving(create_app(settings)) as url, Rpc(url) as rpc:
            task = (await rpc.result("SendMessage", message()))["task"]
            assert task["status"]["state"] == "TASK_STATE_FAILED"
        assert isinstance(await error_of(root(upstream)), UpstreamError)


async def test_one_event_without_an_end_is_cut_off() -> None:
    block = b"a" * 1_000_000
    stream: list[Step] = [Head(), b'data: {"choices":[{"delta":{"content":"', *[block] * 40, Hang()]
    async with ScriptedUpstream(stream, openai_stream(["fine"])) as upstream:
        settings = Settings(
            model="openai:m", base_url=upstream.base_url, api_key=SecretStr(TOKEN), store="sqlite://"
        )
        async with serving(create_app(settings)) as url, Rpc(url) as rpc:
            task = (await rpc.result("SendMessage", message()))["task"]
            assert task["metadata"]["urn:tailrace:ext:stream:v1"]["error"]["type"] == "event_too_large"
            again = (await rpc.result("SendMessage", message()))["task"]
            assert again["status"]["state"] == "TASK_STATE_COMPLETED"


# --- events that no agent should send ---------------------------------------------------------------------------------

IDS = {"taskId": "t", "contextId": "c"}
STATUS: dict[str, Any] = {"state": "TASK_STATE_WORKING"}
WORKING = {"task": {"id": "t", "contextId": "c", "status": STATUS}}
CALLS = {
    "parts": [{"data": {"tool_calls": [{"call_id": 1, "arguments": "x"}]}}],
    "messageId": "m",
    "role": "ROLE_AGENT",
}


def event(result: object, id_: str = "") -> bytes:
    answer = {"jsonrpc": "2.0", "id": 1, "result": result}
    return (f"id: {id_}\n".encode() if id_ else b"") + sse(answer)


@asynccontextmanager
async def server_before(*answers: Sequence[Step]) -> AsyncGenerator[Rpc]:
    """A server before an agent with these answers, after its card."""
    extension = {"streaming": True, "extensions": [{"uri": "urn:tailrace:ext:stream:v1"}]}
    async with ScriptedUpstream(json_answer(card_of("/rpc", capabilities=extension)), *answers) as agent:
        settings = Settings(agent=root(agent), agent_token=SecretStr(TOKEN), store="sqlite://")
        app = await anyio.to_thread.run_sync(create_app, settings)
        async with serving(app) as url, Rpc(url) as rpc:
            yield rpc


@pytest.mark.parametrize("pause", ["9" * 400, "\u00b2", "Mon, 01 Jan 2020 00:00:00 +999999999999999", "nan"])
async def test_a_pause_that_is_no_number_leaves_the_agents_error(
    pause: str, caplog: pytest.LogCaptureFixture
) -> None:
    refusal = [Head(400, {"content-type": "text/plain", "retry-after": pause}), b"no"]
    async with server_before(refusal) as rpc:
        task = (await rpc.result("SendMessage", message()))["task"]
    assert "HTTP 400" in task["status"]["message"]["parts"][0]["text"]
    assert "Traceback" not in caplog.text


async def test_an_id_of_an_event_that_no_header_can_have_is_not_sent_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done = {"statusUpdate": {**IDS, "status": {"state": "TASK_STATE_COMPLETED"}}}
    lost: list[Step] = [
        Head(),
        event(WORKING, "\x0b\x01"),
        event({"statusUpdate": {**IDS, "status": STATUS}}, "\u00e9"),
    ]
    async with server_before(lost, [Head(), event(done)], json_answer({})) as rpc:
        task = (await rpc.result("SendMessage", message()))["task"]
    assert "the agent failed; its log" not in json.dumps(task)
    assert "Traceback" not in caplog.text


async def test_invalid_tool_calls_of_a_question_are_data() -> None:
    asking = {"statusUpdate": {**IDS, "status": {"state": "TASK_STATE_INPUT_REQUIRED", "message": CALLS}}}
    async with server_before([Head(), event(WORKING), event(asking)]) as rpc:
        task = (await rpc.result("SendMessage", message()))["task"]
        assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        assert "tool_calls" in task["status"]["message"]["parts"][0]["data"]
        async with rpc.http.post(f"{rpc.url}/v1/responses", json={"input": "hi"}) as response:
            assert response.status == 200, await response.text()


async def test_a_copy_of_too_many_artifacts_is_refused_before_one_is_stored() -> None:
    artifacts = [{"artifactId": str(at), "parts": [{"text": "a"}]} for at in range(1001)]
    copy = {"task": {"id": "t", "contextId": "c", "status": STATUS, "artifacts": artifacts}}
    async with server_before([Head(), event(copy)]) as rpc:
        task = (await rpc.result("SendMessage", message()))["task"]
    assert "more than 1000 artifacts" in task["status"]["message"]["parts"][0]["text"]
    assert not task.get("artifacts")


# --- the card as a whole ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "Host",
        "content-length",
        "Transfer-Encoding",
        "connection",
        "a2a-version",
        "x-forwarded-for",
        "grpc-timeout",
        "key-bin",
        "x\r\nhost: other",
        "a b",
        "é",
        "",
    ],
)
async def test_a_card_does_not_choose_a_header_that_frames_or_routes_requests(name: str) -> None:
    """The token became the value of any header, and a name with a line break was an error of the server."""
    scheme = {"apiKeySecurityScheme": {"location": "header", "name": name}}
    async with ScriptedUpstream(json_answer(card_of("/rpc", securitySchemes={"key": scheme}))) as agent:
        error = await error_of(root(agent))
        assert len(agent.requests) == 1
    assert error.fault is UpstreamFault.INVALID
    assert "the agent card requires the API key in the header" in str(error)
    assert "\r" not in str(error)


@pytest.mark.parametrize("name", ["a;b", "a=b", "x\ny", ""])
async def test_a_card_does_not_choose_more_than_the_name_of_a_cookie(name: str) -> None:
    scheme = {"apiKeySecurityScheme": {"location": "cookie", "name": name}}
    async with ScriptedUpstream(json_answer(card_of("/rpc", securitySchemes={"key": scheme}))) as agent:
        error = await error_of(root(agent))
    assert "the agent card requires the API key in the cookie" in str(error)


@pytest.mark.parametrize(
    "members",
    [
        {"supportedInterfaces": [{"url": "x"}] * 70_000},
        {"skills": [{"a": 1}] * 100_000},
        {"url": "x", "additionalInterfaces": [{"url": "x"}] * 70_000},
    ],
    ids=["interfaces", "skills", "interfaces of 0.3"],
)
async def test_a_large_card_does_not_block_the_event_loop(members: dict[str, Any]) -> None:
    """A card of one megabyte blocked the event loop for two seconds."""
    card = {**card_of("/rpc"), **members}
    if "additionalInterfaces" in members:
        del card["supportedInterfaces"]
    async with ScriptedUpstream(json_answer(card)) as agent, AgentClient(root(agent)) as client:
        # The card's objects start a collection of garbage, which would also visit the objects of all earlier tests.
        gc.freeze()
        try:
            async with LoopLag() as lag:
                with suppress(UpstreamError):
                    await client.card()
        finally:
            gc.unfreeze()
    assert lag.worst_cpu < 0.1
