"""Conversations at the root of a server for several agents, in which requests name different agents as their models."""

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from support.rounds import answer
from support.several_agents import SeveralAgents, serving_agents
from support.upstream import Wait
from tailrace.wrappers.conversion.result_repair import NO_RESULT

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
USER = {"role": "user", "content": "Where is it?"}
PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
CHAT_TOOLS = [{"type": "function", "function": {"name": "look", "parameters": PARAMETERS}}]
TOOLS = [{"type": "function", "name": "look", "parameters": PARAMETERS}]
RESULT = {"role": "tool", "tool_call_id": "c7", "content": "In the shed."}
OUTPUT = {"type": "function_call_output", "call_id": "c7", "output": "In the shed."}
LOOK = answer(calls=[("c7", "look", {})])
BUY = answer(calls=[("c1", "buy", {"amount": 500})])
APPROVALS = "tools = 'support.approval_tools:buy'\napprovals = 'support.approval_tools:is_expensive'"


async def post(server: SeveralAgents, path: str, body: dict[str, Any], **headers: str) -> tuple[int, Any]:
    status, text = await server.post(path, body, **headers)
    return status, json.loads(text)


def sent_to(server: SeveralAgents, name: str) -> str:
    """The last request to the provider of an agent."""
    return json.dumps(server.upstreams[name].requests[-1].json)


@pytest.mark.parametrize("headers", [{}, {"X-Conversation-Id": "k"}])
async def test_a_result_of_a_callers_tool_can_be_sent_to_another_agent(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    async with serving_agents(tmp_path, {"support": [LOOK, answer("Thanks.")]}) as server:
        body = {"model": "support", "tools": CHAT_TOOLS, "messages": [USER]}
        _, completion = await post(server, CHAT, body, **headers)
        messages = [USER, completion["choices"][0]["message"], RESULT]
        body = {"model": "legal", "tools": CHAT_TOOLS, "messages": messages}
        status, completion = await post(server, CHAT, body, **headers)
        assert status == 200, completion
        assert completion["choices"][0]["message"]["content"] == "Hello"
        sent = sent_to(server, "legal")
        assert "Where is it?" in sent
        assert "In the shed." in sent
        # The call of the first agent still waits for the result.
        status, completion = await post(server, CHAT, {**body, "model": "support"}, **headers)
        assert (status, completion["choices"][0]["message"]["content"]) == (200, "Thanks.")


async def test_a_result_of_a_callers_tool_can_be_sent_to_another_agent_after_a_response(
    tmp_path: Path,
) -> None:
    async with serving_agents(tmp_path, {"support": [LOOK, answer("Thanks.")]}) as server:
        _, first = await post(
            server, RESPONSES, {"model": "support", "input": "Where is it?", "tools": TOOLS}
        )
        body = {"previous_response_id": first["id"], "input": [OUTPUT], "tools": TOOLS}
        status, response = await post(server, RESPONSES, {"model": "legal", **body})
        assert status == 200, response
        sent = sent_to(server, "legal")
        assert "Where is it?" in sent
        assert "In the shed." in sent
        status, response = await post(server, RESPONSES, {"model": "support", **body})
        assert (status, response["output"][0]["content"][0]["text"]) == (200, "Thanks.")


async def test_a_result_in_a_request_without_the_conversation_belongs_to_the_agent_of_the_call(
    tmp_path: Path,
) -> None:
    async with serving_agents(tmp_path, {"support": [LOOK]}) as server:
        _, conversation = await post(server, "/v1/conversations", {})
        body = {"conversation": conversation["id"], "tools": TOOLS}
        await post(server, RESPONSES, {"model": "support", "input": "Where is it?", **body})
        status, error = await post(server, RESPONSES, {"model": "legal", "input": [OUTPUT], **body})
        assert status == 400
        assert "the task belongs to the agent 'support', not to 'legal'" in error["error"]["message"]


async def test_a_result_after_a_message_to_another_agent_is_sent_to_the_agent_of_the_call(
    tmp_path: Path,
) -> None:
    async with serving_agents(tmp_path, {"support": [LOOK, answer("Thanks.")]}) as server:
        _, conversation = await post(server, "/v1/conversations", {})
        body = {"conversation": conversation["id"], "tools": TOOLS}
        await post(server, RESPONSES, {"model": "support", "input": "Where is it?", **body})
        assert (await post(server, RESPONSES, {"model": "legal", "input": "May I?", **body}))[0] == 200
        status, response = await post(server, RESPONSES, {"model": "support", "input": [OUTPUT], **body})
        assert status == 200, response
        assert response["output"][0]["content"][0]["text"] == "Thanks."
        assert "In the shed." in sent_to(server, "support")


BOTH = answer(calls=[("c7", "look", {}), ("c1", "buy", {"amount": 500}), ("c9", "look", {})])


@pytest.mark.parametrize("legal", ["", "tools = 'support.approval_tools:buy'", APPROVALS])
async def test_other_calls_that_wait_get_no_result_if_a_result_is_sent_to_another_agent(
    tmp_path: Path, legal: str
) -> None:
    scripts: dict[str, Sequence[Any]] = {"support": [BOTH, answer("Bought.")]}
    async with serving_agents(tmp_path, scripts, support=APPROVALS, legal=legal) as server:
        _, first = await post(server, RESPONSES, {"model": "support", "input": "Buy it", "tools": TOOLS})
        body = {"previous_response_id": first["id"], "tools": TOOLS}
        status, response = await post(server, RESPONSES, {"model": "legal", "input": [OUTPUT], **body})
        assert status == 200, response
        assert [item["type"] for item in response["output"]] == ["message"]
        sent = sent_to(server, "legal")
        assert (sent.count("In the shed."), sent.count(NO_RESULT)) == (1, 2)
        # The calls still wait at their own agent.
        following = {"previous_response_id": response["id"], "input": approval_of(first)}
        assert (await post(server, RESPONSES, {"model": "legal", **following}))[0] == 400
        items = [*approval_of(first), OUTPUT, {**OUTPUT, "call_id": "c9"}]
        status, response = await post(server, RESPONSES, {"model": "support", "input": items, **body})
        assert status == 200, response
        assert sent_to(server, "support").count("bought for 500") == 1


async def buying(server: SeveralAgents, **members: Any) -> dict[str, Any]:
    """A response of the agent `support` whose call waits for an approval."""
    _, response = await post(server, RESPONSES, {"model": "support", "input": "Buy it", **members})
    assert response["output"][-1]["type"] == "mcp_approval_request"
    return response


def approval_of(response: dict[str, Any]) -> list[dict[str, Any]]:
    [request_id] = [item["id"] for item in response["output"] if item["type"] == "mcp_approval_request"]
    return [{"type": "mcp_approval_response", "approval_request_id": request_id, "approve": True}]


@pytest.mark.parametrize("kind", ["conversation", "previous_response_id"])
async def test_a_conversation_continues_with_another_agent_while_a_call_waits(
    tmp_path: Path, kind: str
) -> None:
    scripts: dict[str, Sequence[Any]] = {"support": [BUY, answer("Bought.")]}
    async with serving_agents(tmp_path, scripts, support=APPROVALS, legal=APPROVALS) as server:
        place: dict[str, Any] = {}
        if kind == "conversation":
            _, conversation = await post(server, "/v1/conversations", {})
            place = {kind: conversation["id"]}
        first = await buying(server, **place)
        decision = approval_of(first)
        place = place or {kind: first["id"]}
        status, response = await post(server, RESPONSES, {"model": "legal", "input": "May I?", **place})
        assert status == 200, response
        assert "Buy it" in sent_to(server, "legal")
        # Only the agent of the call receives the decision, also after the message to the other agent.
        status, error = await post(server, RESPONSES, {"model": "legal", "input": decision, **place})
        assert status == 400
        assert "the task belongs to the agent 'support'" in error["error"]["message"]
        status, response = await post(server, RESPONSES, {"model": "support", "input": decision, **place})
        assert status == 200, response
        assert "bought for 500" in sent_to(server, "support")
        status, error = await post(server, RESPONSES, {"model": "support", "input": decision, **place})
        assert status == 400


@pytest.mark.parametrize("kind", ["conversation", "previous_response_id"])
async def test_a_conversation_continues_after_the_agent_of_a_waiting_call_was_removed(
    tmp_path: Path, kind: str
) -> None:
    async with serving_agents(tmp_path, {"support": [BUY]}, support=APPROVALS) as server:
        place: dict[str, Any] = {}
        if kind == "conversation":
            _, conversation = await post(server, "/v1/conversations", {})
            place = {kind: conversation["id"]}
        first = await buying(server, **place)
        place = place or {kind: first["id"]}
        server.write("legal")
        await server.reload()
        body = {"input": approval_of(first), **place}
        assert (await post(server, RESPONSES, {"model": "legal", **body}))[0] == 400
        assert (await post(server, RESPONSES, {"model": "support", **body}))[0] == 404
        status, response = await post(server, RESPONSES, {"model": "legal", "input": "Go on", **place})
        assert status == 200, response
        assert "Buy it" in sent_to(server, "legal")


# --- what an agent does not accept ----------------------------------------------------------------------------------

TEXT_ONLY = "card = { input_modes = ['text/plain'] }"
PNG = f"data:image/png;base64,{base64.b64encode(b'PNG').decode()}"
IMAGE = {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": PNG}]}
CHAT_IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PNG}}]}
WORD = {"type": "message", "role": "user", "content": "The falcon"}
REPLY = {"role": "assistant", "content": "Hello"}
BLOCKED, TYPE_REFUSED = "a filter of the server blocks the message", "is image/png; accepted: text/plain"


def restricted(folder: Path, kind: str) -> str:
    """Members of an agent that refuses an image or a word."""
    (folder / "words.txt").write_text("falcon\n")
    return TEXT_ONLY if kind == "image" else f"input_filters = '{folder}/words.txt'"


@pytest.mark.parametrize(
    ("kind", "item", "problem"), [("image", IMAGE, TYPE_REFUSED), ("word", WORD, BLOCKED)]
)
@pytest.mark.parametrize("options", [{}, {"stream": True}, {"background": True}])
async def test_earlier_messages_for_another_agent_are_refused_as_in_a_message(
    tmp_path: Path, kind: str, item: dict[str, Any], problem: str, options: dict[str, Any]
) -> None:
    async with serving_agents(tmp_path, legal=restricted(tmp_path, kind)) as server:
        status, direct = await post(server, RESPONSES, {"model": "legal", "input": [item], **options})
        assert (status, problem in direct["error"]["message"]) == (400, True), direct
        _, conversation = await post(server, "/v1/conversations", {})
        for place in ({}, {"conversation": conversation["id"]}):
            _, first = await post(server, RESPONSES, {"model": "support", "input": [item], **place})
            body = {"input": "And?", **(place or {"previous_response_id": first["id"]})}
            status, error = await post(server, RESPONSES, {"model": "legal", **body, **options})
            assert (status, error) == (400, direct)
            # The conversation continues with agents that accept it.
            assert (await post(server, RESPONSES, {"model": "code", **body}))[0] == 200
        assert not server.upstreams["legal"].requests


@pytest.mark.parametrize("root", ["", "/agents/legal"])
async def test_the_media_types_of_an_agent_apply_to_all_messages_of_a_request(
    tmp_path: Path, root: str
) -> None:
    async with serving_agents(tmp_path, legal=TEXT_ONLY) as server:
        for path, member, image in ((CHAT, "messages", CHAT_IMAGE), (RESPONSES, "input", IMAGE)):
            body = {"model": "legal", member: [image, REPLY, {"role": "user", "content": "And?"}]}
            status, error = await post(server, root + path, body)
            assert (status, TYPE_REFUSED in error["error"]["message"]) == (400, True), error
        assert not server.upstreams["legal"].requests
        # Items of a conversation are checked when an agent receives them.
        status, answered = await post(server, f"{root}/v1/conversations", {"items": [IMAGE]})
        if not root:
            body = {"model": "legal", "input": "And?", "conversation": answered["id"]}
            status, answered = await post(server, RESPONSES, body)
        assert (status, TYPE_REFUSED in answered["error"]["message"]) == (400, True), answered


async def test_an_agent_for_text_accepts_results_of_tools(tmp_path: Path) -> None:
    async with serving_agents(tmp_path, {"support": [LOOK, answer("Thanks.")]}, support=TEXT_ONLY) as server:
        body: dict[str, Any] = {"model": "support", "tools": CHAT_TOOLS, "messages": [USER]}
        _, completion = await post(server, CHAT, body)
        called = [USER, completion["choices"][0]["message"], RESULT]
        status, completion = await post(server, CHAT, {**body, "messages": called})
        assert (status, completion["choices"][0]["message"]["content"]) == (200, "Thanks.")
        messages = [*called, REPLY, {"role": "user", "content": "And?"}]
        assert (await post(server, CHAT, {**body, "messages": messages}))[0] == 200


async def test_a_response_of_another_agent_that_was_running_is_checked_before_the_turn(
    tmp_path: Path,
) -> None:
    go_on = anyio.Event()
    response = [*answer("The fal", finish=None), Wait(go_on), *answer("con")]
    async with serving_agents(
        tmp_path, {"support": [response]}, legal=restricted(tmp_path, "word")
    ) as server:
        _, conversation = await post(server, "/v1/conversations", {})
        body = {"conversation": conversation["id"], "background": True}
        await post(server, RESPONSES, {"model": "support", "input": "Who?", **body})
        await server.upstreams["support"].received()
        _, second = await post(server, RESPONSES, {"model": "legal", "input": "And?", **body})
        go_on.set()
        _, text = await server.get(f"{RESPONSES}/{second['id']}?stream=true")
        assert BLOCKED in text
        assert not server.upstreams["legal"].requests
