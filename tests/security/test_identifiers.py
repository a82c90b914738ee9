"""Identifiers sent to other systems are unique to one caller, so that no other system can mix two callers up."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from support.callers import CALLER_KEYS, headers_of, recalling_agent, serving_callers
from support.live_server import serving
from support.mcp_server import McpServer
from support.request_recorder import Recorder, WireRequest
from support.rounds import answer, model_at
from support.rpc import Rpc, message
from support.sdk import send, streamed
from support.sdk_server import sdk_server
from support.tracing import Spans, attributes
from support.upstream import Head, ScriptedUpstream
from tailrace.server import AgentHandler, Settings, Turn, create_app
from tailrace.server.runtime.handlers import Item
from tailrace.server.sdk import AgentExecutor, RemoteAgent, RemoteAgentHandler, agent_tools
from tailrace.server.store.secret_keys import SecretKeys
from tailrace.streaming import Agent, StatusUpdate, TaskState
from tailrace.streaming.a2a.models import Message, Part, Role
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.task.updates import MessageAdded
from tailrace.streaming.tools.mcp import McpToolset
from tailrace.wrappers import ContentPartText, History, UpstreamError
from tailrace.wrappers import Message as CommonMessage
from tailrace.wrappers import Role as SpeakerRole
from tailrace.wrappers.providers import create_model

SHARED = "shared-by-both"
SECRET = "the installation's own secret"

Say = Callable[[aiohttp.ClientSession, str, str, str], Awaitable[str]]
"""Sends a text as a caller in the conversation `SHARED`; returns the response's body: ``(http, url, caller, text)``."""


async def _post(http: aiohttp.ClientSession, url: str, body: object, headers: dict[str, str]) -> str:
    async with http.post(url, json=body, headers=headers) as response:
        text = await response.text()
        assert response.status == 200, text
        return text


async def by_a2a_1_0(http: aiohttp.ClientSession, url: str, caller: str, text: str) -> str:
    params = message(text, contextId=SHARED, messageId=SHARED, referenceTaskIds=[SHARED])
    params["metadata"] = {EXTENSION_URI: {"idempotencyKey": SHARED}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
    return await _post(http, url, body, {**headers_of(caller), "idempotency-key": f"{SHARED}-{text}"})


async def by_a2a_0_1(http: aiohttp.ClientSession, url: str, caller: str, text: str) -> str:
    user_message = {"role": "user", "parts": [{"type": "text", "text": text}]}
    # The caller chooses the task's id, too.
    params = {"id": f"{SHARED}-{text}", "sessionId": SHARED, "message": user_message}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/send", "params": params}
    return await _post(http, url, body, headers_of(caller))


async def by_chat_header(http: aiohttp.ClientSession, url: str, caller: str, text: str) -> str:
    body = {"model": "", "messages": [{"role": "user", "content": text}], "user": SHARED}
    headers = {**headers_of(caller), "X-Conversation-Id": SHARED}
    return await _post(http, f"{url}/v1/chat/completions", body, headers)


async def by_conversation(http: aiohttp.ClientSession, url: str, caller: str, text: str) -> str:
    body = {"model": "", "input": text, "metadata": {"conversation_id": SHARED}}
    return await _post(http, f"{url}/v1/responses", body, headers_of(caller))


async def by_ai_sdk(http: aiohttp.ClientSession, url: str, caller: str, text: str) -> str:
    user_message = {"id": "u", "role": "user", "parts": [{"type": "text", "text": text}]}
    return await _post(http, f"{url}/ai-sdk", {"id": SHARED, "message": user_message}, headers_of(caller))


async def by_ag_ui(http: aiohttp.ClientSession, url: str, caller: str, text: str) -> str:
    user_message = {"id": "u", "role": "user", "content": text}
    body = {"threadId": SHARED, "runId": "r", "messages": [user_message]}
    return await _post(http, f"{url}/ag-ui", body, headers_of(caller))


EVERY_WAY = [by_a2a_1_0, by_a2a_0_1, by_chat_header, by_conversation, by_ai_sdk, by_ag_ui]


def nowhere(text: str, requests: list[WireRequest]) -> bool:
    return all(text.encode() not in request.bytes for request in requests)


# --- a remote agent -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("say", EVERY_WAY)
async def test_callers_who_use_the_same_id_have_a_remote_conversation_each(say: Say) -> None:
    async with recalling_agent() as (agent, recorder, _):
        async with serving_callers(agent=agent) as url, aiohttp.ClientSession() as http:
            assert "marigold" in await say(http, url, "alice", "marigold")
            assert "marigold" not in await say(http, url, "bob", "thistle")
            await say(http, url, "alice", "again")
    contexts = [each["contextId"] for each in recorder.sent()]
    assert len({contexts[0], contexts[1]}) == 2
    assert len({each["messageId"] for each in recorder.sent()}) == 3
    # No identifier at the remote agent contains a caller's choice.
    assert nowhere(SHARED, recorder.requests)


async def test_a_callers_conversation_stays_one_and_has_no_id_that_the_remote_could_relate_to_the_caller() -> (
    None
):
    async with recalling_agent() as (agent, recorder, _):
        async with serving_callers(agent=agent, secret_key=SECRET) as url, aiohttp.ClientSession() as http:
            await by_a2a_1_0(http, url, "alice", "marigold")
            assert "marigold" in await by_a2a_1_0(http, url, "alice", "thistle")
    first, second = recorder.sent()
    assert first["contextId"] == second["contextId"]
    assert first["contextId"] == SecretKeys(SECRET).external_id("alice", "context", SHARED)


async def test_tenants_of_one_caller_have_a_remote_conversation_each() -> None:
    async with recalling_agent() as (agent, recorder, _):
        async with serving_callers(agent=agent) as url, aiohttp.ClientSession() as http:
            for tenant in ("", "/north", "/south"):
                params = message("marigold", contextId=SHARED)
                await _post(http, f"{url}{tenant}/message:send", params, headers_of("alice"))
    assert len({each["contextId"] for each in recorder.sent()}) == 3


async def test_a_user_of_an_sdk_server_has_a_remote_conversation_of_its_own() -> None:
    async with recalling_agent() as (agent, recorder, _):
        executor = AgentExecutor(RemoteAgentHandler(RemoteAgent(agent)), keys=SecretKeys(SECRET))
        async with executor.running(), sdk_server(executor) as server:
            for user in ("alice", "bob"):
                async with server.client_of(user) as client:
                    events = client.send_message(send(f"{user} here", context_id=SHARED, task_id=""))
                    assert streamed([event async for event in events]) == f"{user} here"
    contexts = [each["contextId"] for each in recorder.sent()]
    assert contexts == [SecretKeys(SECRET).external_id(user, "context", SHARED) for user in ("alice", "bob")]
    assert nowhere(SHARED, recorder.requests)


async def test_a_remote_conversation_that_had_the_callers_own_id_is_not_continued(tmp_path: Path) -> None:
    """Previous releases stored such conversations, which callers may share."""
    database = f"sqlite:///{tmp_path}/front.db"
    async with recalling_agent() as (agent, recorder, _):
        async with Rpc(agent) as direct:
            await direct.result("SendMessage", message("marigold of somebody else", contextId=SHARED))

        async def stored(turn: Turn) -> AsyncIterator[Item]:
            place = {"agent": agent, "contextId": SHARED}
            agent_message = Message(message_id="m", role=Role.AGENT, parts=(Part(text="I remember."),))
            yield MessageAdded(
                agent_message.model_copy(update={"metadata": {EXTENSION_URI: {"remote": place}}})
            )
            yield StatusUpdate(TaskState.COMPLETED)

        before = Settings.model_validate({"store": database, "caller_keys": CALLER_KEYS})
        for context_id in (SHARED, f"{SHARED}~branch"):
            async with serving(create_app(before, handler=stored)) as url, Rpc(url) as rpc:
                await rpc.call("SendMessage", message("thistle", contextId=context_id), headers_of("bob"))
            async with serving_callers(agent=agent, store=database) as url, Rpc(url) as rpc:
                given = await rpc.call(
                    "SendMessage", message("and?", contextId=context_id), headers_of("bob")
                )
            assert "marigold" not in json.dumps(given)
            # The local conversation continues, and the remote agent receives its history.
            assert "User: thistle" in json.dumps(given)
            assert "Agent: I remember." in json.dumps(given)
    assert all(each["contextId"] != SHARED for each in recorder.sent())


async def test_a_remote_conversation_that_has_an_id_of_the_remote_goes_on(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/front.db"
    async with recalling_agent() as (agent, recorder, _):

        async def stored(turn: Turn) -> AsyncIterator[Item]:
            place = {"agent": agent, "contextId": "the-remotes-own"}
            agent_message = Message(message_id="m", role=Role.AGENT, parts=(Part(text="I remember."),))
            yield MessageAdded(
                agent_message.model_copy(update={"metadata": {EXTENSION_URI: {"remote": place}}})
            )
            yield StatusUpdate(TaskState.COMPLETED)

        before = Settings.model_validate({"store": database, "caller_keys": CALLER_KEYS})
        async with serving(create_app(before, handler=stored)) as url, Rpc(url) as rpc:
            await rpc.call("SendMessage", message("thistle", contextId=SHARED), headers_of("bob"))
        async with serving_callers(agent=agent, store=database) as url, Rpc(url) as rpc:
            for caller in ("bob", "alice"):
                await rpc.call("SendMessage", message("and?", contextId=SHARED), headers_of(caller))
    of_bob, of_alice = recorder.sent()
    assert of_bob["contextId"] == "the-remotes-own"
    assert of_alice["contextId"] not in ("the-remotes-own", SHARED)


async def test_a_branch_of_a_conversation_is_a_remote_conversation_of_its_own() -> None:
    async with recalling_agent() as (agent, recorder, _):
        async with serving_callers(agent=agent) as url, aiohttp.ClientSession() as http:

            async def respond(text: str, previous: str | None = None) -> str:
                body = {"model": "", "input": text, "previous_response_id": previous}
                return json.loads(await _post(http, f"{url}/v1/responses", body, headers_of("alice")))["id"]

            first = await respond("marigold")
            await respond("thistle", first)
            await respond("clover", first)
    one, two, branch = recorder.sent()
    assert one["contextId"] == two["contextId"] != branch["contextId"]
    branch_text = json.dumps(branch)
    assert ("marigold" in branch_text, "thistle" in branch_text) == (True, False)


# --- a remote agent as a tool ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("say", EVERY_WAY)
async def test_an_agent_tool_keeps_callers_apart(say: Say) -> None:
    rounds = [
        each
        for text in ("marigold", "thistle", "clover")
        for each in (answer(calls=[("c", "tailrace", {"message": text})]), answer("Done."))
    ]
    async with recalling_agent() as (agent, recorder, recalling), ScriptedUpstream(*rounds) as upstream:
        handler = AgentHandler(Agent(model_at(upstream), tools=[agent_tools(agent)]))
        settings = Settings.model_validate({"store": "sqlite://", "caller_keys": CALLER_KEYS})
        async with serving(create_app(settings, handler=handler)) as url, aiohttp.ClientSession() as http:
            await say(http, url, "alice", "one")
            await say(http, url, "bob", "two")
            await say(http, url, "alice", "three")
    of_alice, of_bob, again = recorder.sent()
    # Alice's second message may begin a branch, which is a separate conversation.
    assert of_bob["contextId"] not in (of_alice["contextId"], again["contextId"])
    assert [each.text for each in recalling.turns[1].history.conversation] == ["thistle"]
    assert nowhere(SHARED, recorder.requests)
    assert all(SHARED not in str(request.json) for request in upstream.requests)


# --- other systems --------------------------------------------------------------------------------------------------


async def test_an_mcp_server_is_given_no_id_of_the_caller() -> None:
    mcp = McpServer()
    recorder = Recorder(mcp.app)
    rounds = (answer(calls=[("c", "echo", {"text": "hello"})]), answer("Done."))
    async with serving(recorder) as tools, ScriptedUpstream(*rounds) as upstream:
        handler = AgentHandler(Agent(model_at(upstream), tools=[McpToolset.http(f"{tools}/mcp")]))
        settings = Settings.model_validate({"store": "sqlite://", "caller_keys": CALLER_KEYS})
        async with serving(create_app(settings, handler=handler)) as url, aiohttp.ClientSession() as http:
            await by_a2a_1_0(http, url, "alice", "one")
    assert any(b"tools/call" in request.bytes for request in recorder.requests)
    assert nowhere(SHARED, recorder.requests)
    assert nowhere("alice", recorder.requests)


@pytest.mark.parametrize("provider", ["openai", "openai-responses"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_a_provider_is_given_no_key_or_id_of_the_caller(provider: str, path: str) -> None:
    named = {
        "user": "user-of-caller",
        "safety_identifier": "safety-of-caller",
        "prompt_cache_key": "cache-of-caller",
        "prompt_cache_retention": "24h",
        "store": True,
        "service_tier": "flex",
        "metadata": {"conversation_id": "conversation-of-caller", "note": "note-of-caller"},
    }
    fields = {"messages": [{"role": "user", "content": "hello"}]} if "chat" in path else {"input": "hello"}
    async with ScriptedUpstream(answer("Hi.")) as upstream:
        model = {"model": f"{provider}:m", "base_url": upstream.base_url, "api_key": "none"}
        async with (
            serving_callers(**model, bounds={"upstream_retries": 0, "continue_attempts": 0}) as url,
            aiohttp.ClientSession() as http,
        ):
            headers = {**headers_of("alice"), "X-Conversation-Id": "header-of-caller"}
            async with http.post(
                url + path, json={"model": "", **fields, **named}, headers=headers
            ) as response:
                await response.read()
        [request] = upstream.requests
    body = request.json
    assert "of-caller" not in json.dumps(body)
    assert "of-caller" not in str(request.headers)
    assert body.get("store") in (None, False)
    assert not {"user", "safety_identifier", "prompt_cache_key", "metadata", "service_tier"} & body.keys()


async def test_a_tracing_backend_does_not_join_conversations_of_two_callers() -> None:
    spans = Spans()
    async with ScriptedUpstream(answer("Hi."), answer("Hi.")) as upstream:
        settings = {
            "model": "openai:m",
            "base_url": upstream.base_url,
            "api_key": "none",
            "store": "sqlite://",
        }
        given = Settings.model_validate({**settings, "caller_keys": CALLER_KEYS})
        app = create_app(given, tracer_provider=spans.provider)
        async with serving(app) as url, aiohttp.ClientSession() as http:
            for caller in ("alice", "bob"):
                await by_a2a_1_0(http, url, caller, "hello")
    turns = [attributes(span) for span in spans.all() if span.name.startswith("invoke_agent")]
    assert [turn["tailrace.context.id"] for turn in turns] == [SHARED, SHARED]
    assert len({turn["gen_ai.conversation.id"] for turn in turns} - {SHARED}) == 2


# --- providers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "provider",
    ["openai", "openai-responses", "anthropic", "gemini", "ollama", "cohere", "mistral", "bedrock"],
)
@pytest.mark.parametrize("status", [200, 400])
async def test_a_cookie_of_a_provider_is_not_sent_with_the_next_request(
    provider: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a session cookie, a gateway would add the next caller to the same session."""
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    history = History(
        conversation=(CommonMessage(role=SpeakerRole.USER, content=(ContentPartText(text="Hi"),)),)
    )
    cookie = {"content-type": "application/json", "set-cookie": "session=of-the-first-caller; Path=/"}
    async with ScriptedUpstream([Head(status, cookie), b'{"error": {"message": "no"}}']) as upstream:
        # A host name, because some clients store no cookies for IP addresses.
        url = upstream.base_url.replace("127.0.0.1", "localhost")
        model = create_model(f"{provider}:m", base_url=url, api_key="a-key-of-a-test", max_retries=0)
        try:
            for _ in range(2):
                with suppress(UpstreamError):
                    async with model.stream(history) as batches:
                        async for _ in batches:
                            pass
        finally:
            await model.aclose()
    assert [request.headers.get("cookie") for request in upstream.requests] == [None, None]
