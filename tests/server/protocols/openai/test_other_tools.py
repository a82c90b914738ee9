"""Tools that are not functions: passed on to a model of the Responses API, otherwise left out with a warning.

The request is one of Codex CLI 0.169 with two kinds of tools that it declares for different models; its long texts are shortened.
"""

import json
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from support.openai_api import Facade, facade_over
from support.rounds import answer
from support.rpc import Rpc
from support.upstream import ScriptedUpstream, sse
from tailrace.server.runtime.agent_handler import AgentHandler
from tailrace.streaming import Agent
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.wrappers.openai_responses.model import ResponsesModel

FIXTURE = Path(__file__).with_name("codex_request.json")

PATCH = "*** Begin Patch\n*** Add File: hello.txt\n+hello\n*** End Patch\n"
PATCH_CALL = {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": PATCH}
CLOSE_CALL = {
    "type": "function_call",
    "call_id": "c2",
    "name": "close_agent",
    "namespace": "multi_agent_v1",
    "arguments": '{"target": "a1"}',
}
EXEC = ("c1", "exec_command", {"cmd": "echo hello > hello.txt"})


def codex_request() -> dict[str, Any]:
    return json.loads(FIXTURE.read_text(encoding="utf-8"))


def response_of(*items: dict[str, Any]) -> list[bytes]:
    """A streamed response of the Responses API."""
    events: list[dict[str, Any]] = []
    for index, item in enumerate(items):
        events.append({"type": "response.output_item.added", "output_index": index, "item": item})
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    end = {"type": "response.completed", "response": {"id": "resp_1", "status": "completed"}}
    return [sse(*events, end)]


def message_of(text: str) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}


def responses_handler(upstream: ScriptedUpstream) -> AgentHandler:
    model = ResponsesModel("scripted", base_url=upstream.base_url, api_key="none", max_retries=0)
    return AgentHandler(Agent(model, merge_reads=False))


async def events_of(facade: Facade, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Send a request as Codex does; return the events of the stream."""
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{facade.url}/v1/responses", json=body) as response,
    ):
        text = await response.text()
        assert response.status == 200, text
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


def items_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event["item"] for event in events if event["type"] == "response.output_item.done"]


async def test_codex_runs_a_function_of_any_model() -> None:
    async with (
        ScriptedUpstream(answer("I write it.", calls=[EXEC]), answer("Done.")) as upstream,
        facade_over(upstream) as facade,
    ):
        request = codex_request()
        events = await events_of(facade, request)
        items = items_of(events)
        result = {"type": "function_call_output", "call_id": "c1", "output": "Exit code: 0"}
        again = {**request, "input": [*request["input"], *items, result]}
        last = (await events_of(facade, again))[-1]["response"]
    first, second = (each.json for each in upstream.requests)
    assert [tool["function"]["name"] for tool in first["tools"]] == ["exec_command"]
    assert [item["type"] for item in items] == ["message", "function_call"]
    assert json.loads(items[-1]["arguments"]) == EXEC[2]
    warning = "This server's model does not support tools of these types, which were left out: "
    assert events[0]["response"]["warnings"] == [warning + "namespace, custom, web_search"]
    assert events[-1]["response"]["warnings"] == events[0]["response"]["warnings"]
    assert [message["role"] for message in second["messages"]][-2:] == ["assistant", "tool"]
    assert last["status"] == "completed"
    assert last["output"][0]["content"][0]["text"] == "Done."


async def test_codex_runs_custom_and_namespaced_tools_of_a_responses_model() -> None:
    scripts = response_of(PATCH_CALL, CLOSE_CALL), response_of(message_of("Done."))
    async with (
        ScriptedUpstream(*scripts) as upstream,
        facade_over(handler=responses_handler(upstream)) as facade,
    ):
        request = codex_request()
        events = await events_of(facade, request)
        patch, close = items_of(events)
        results = [
            {"type": "custom_tool_call_output", "call_id": "c1", "output": "Success."},
            {"type": "function_call_output", "call_id": "c2", "output": "closed"},
        ]
        again = {**request, "input": [*request["input"], patch, close, *results]}
        last = (await events_of(facade, again))[-1]["response"]
    first, second = (each.json for each in upstream.requests)
    assert first["tools"] == request["tools"]
    assert "warnings" not in events[-1]["response"]
    assert patch.items() >= PATCH_CALL.items()
    assert close.items() >= CLOSE_CALL.items()
    kinds = [event["type"] for event in events if "custom_tool_call_input" in event["type"]]
    assert kinds == ["response.custom_tool_call_input.delta", "response.custom_tool_call_input.done"]
    sent = {item["type"]: item for item in second["input"][-4:]}
    assert sent["custom_tool_call"].items() >= PATCH_CALL.items()
    assert sent["function_call"].items() >= CLOSE_CALL.items()
    assert sent["custom_tool_call_output"]["output"] == "Success."
    assert sent["function_call_output"]["output"] == "closed"
    assert last["output"][0]["content"][0]["text"] == "Done."


async def test_openais_client_reads_a_custom_call() -> None:
    tool: Any = {"type": "custom", "name": "apply_patch"}
    async with (
        ScriptedUpstream(response_of(PATCH_CALL)) as upstream,
        facade_over(handler=responses_handler(upstream)) as facade,
    ):
        response = await facade.client.responses.create(model="tailrace", input="Patch!", tools=[tool])
    [call] = response.output
    assert call.type == "custom_tool_call"
    assert (call.call_id, call.name, call.input) == ("c1", "apply_patch", PATCH)


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "file_search", "vector_store_ids": ["vs_1"]},
        {"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["file-1"]}},
        {"type": "mcp", "server_label": "x", "server_url": "https://example.com"},
        {"type": "x" * 5000},
        {"type": None},
        {"type": {}},
    ],
)
async def test_tools_that_use_the_servers_account_are_left_out(tool: Any) -> None:
    async with (
        ScriptedUpstream(response_of(message_of("Hi."))) as upstream,
        facade_over(handler=responses_handler(upstream)) as facade,
    ):
        body: Any = {"model": "tailrace", "input": "Hello?", "tools": [tool]}
        response = await facade.client.post("/responses", body=body, cast_to=dict[str, Any])
    assert "tools" not in upstream.requests[0].json
    [warning] = response["warnings"]
    assert len(warning) < 200


async def test_a2a_callers_are_refused_tools_that_use_the_servers_account() -> None:
    async with (
        ScriptedUpstream(response_of(message_of("Hi."))) as upstream,
        facade_over(handler=responses_handler(upstream)) as facade,
        Rpc(facade.url) as rpc,
    ):
        metadata = {EXTENSION_URI: {"nativeTools": [{"type": "file_search"}]}}
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "Hello?"}]}
        answered = await rpc.call("SendMessage", {"message": message, "metadata": metadata})
    assert answered["error"]["code"] == -32602
    assert "nativeTools.0.type: 'file_search' is not one of" in answered["error"]["message"]
    assert not upstream.requests


async def test_the_name_of_a_custom_tool_is_not_that_of_one_of_the_agents() -> None:
    def apply_patch() -> str:
        return "patched"

    async with ScriptedUpstream(response_of(message_of("Hi."))) as upstream:
        model = ResponsesModel("scripted", base_url=upstream.base_url, api_key="none", max_retries=0)
        handler = AgentHandler(Agent(model, tools=[apply_patch]))
        async with facade_over(handler=handler) as facade:
            tool: Any = {"type": "custom", "name": "apply_patch"}
            with pytest.raises(
                openai.BadRequestError, match="the agent already has a tool named 'apply_patch'"
            ):
                await facade.client.responses.create(model="tailrace", input="Hello?", tools=[tool])


async def test_chat_completions_leave_other_tools_out() -> None:
    tools: Any = [{"type": "custom", "custom": {"name": "apply_patch"}}, {"type": "web_search"}]
    async with ScriptedUpstream(answer("Hi.")) as upstream, facade_over(upstream) as facade:
        completion = await facade.chat({"role": "user", "content": "Hello?"}, tools=tools)
        chunks = await facade.chunks({"role": "user", "content": "Hello?"}, tools=tools)
    warning = (
        "This server's model does not support tools of these types, which were left out: custom, web_search"
    )
    assert (completion.model_extra or {})["warnings"] == [warning]
    assert (chunks[0].model_extra or {})["warnings"] == [warning]
    assert "tools" not in upstream.requests[0].json
