"""Every event and object of the API is accepted strictly by the types of the openai package, and its members are documented."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

import aiohttp
import anyio
import pytest
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionDeleted,
    ChatCompletionMessage,
    ChatCompletionStoreMessage,
    completion_create_params,
)
from openai.types.chat.chat_completion import Choice
from openai.types.conversations import Conversation, ConversationDeletedResource, ConversationItem
from openai.types.responses import Response, ResponseItem, response_create_params

from support.openai_api import MODEL, WEATHER, facade_over
from support.response_streams import EVENTS, Frames, raw_client
from support.rounds import answer
from support.strict_types import OWN_MEMBERS, check_strictly
from support.upstream import ScriptedUpstream, Step, Wait, json_answer, openai_chunk, openai_stream, sse
from tailrace.server import Bounds
from tailrace.server.runtime.agent_handler import AgentHandler
from tailrace.streaming import Agent
from tailrace.wrappers.openai_responses.model import ResponsesModel

PAGE = (Path(__file__).parents[4] / "docs/openai.md").read_text(encoding="utf-8")
TOOL: Any = {"type": "function", **WEATHER["function"]}
CALL = ("c1", "get_weather", {"city": "Paris"})
PATCH: Any = {"type": "custom", "name": "apply_patch"}


def listed(heading: str) -> set[str]:
    """The members in the first column of a table of the page."""
    _, _, rest = PAGE.partition(f"\n| {heading} | behavior |\n|---|---|\n")
    table, _, _ = rest.partition("\n\n")
    assert table, heading
    return {name for line in table.splitlines() for name in re.findall(r"`([^`]+)`", line.split("|")[1])}


def fields_of(*types: Any) -> set[str]:
    return {name for each in types for name in get_type_hints(each)}


RESPONSE_REQUEST = fields_of(*get_args(response_create_params.ResponseCreateParams))
CHAT_REQUEST = fields_of(*get_args(completion_create_params.CompletionCreateParams))
RESPONSE = set(Response.model_fields) | OWN_MEMBERS["Response"]
COMPLETION = (
    (set(ChatCompletion.model_fields) - {"choices"} | OWN_MEMBERS["ChatCompletion"])
    | {f"choices[].{name}" for name in Choice.model_fields if name != "message"}
    | {
        f"choices[].message.{name}"
        for name in (*ChatCompletionMessage.model_fields, *OWN_MEMBERS["ChatCompletionMessage"])
    }
)


STORED_MESSAGE = set(ChatCompletionStoreMessage.model_fields) | OWN_MEMBERS["ChatCompletionStoreMessage"]


@pytest.mark.parametrize(
    ("heading", "members"),
    [
        ("request to `/v1/responses`", RESPONSE_REQUEST),
        ("member of a response", RESPONSE),
        ("request to `/v1/chat/completions`", CHAT_REQUEST),
        ("member of a chat completion", COMPLETION),
        ("member of a message of a stored chat completion", STORED_MESSAGE),
    ],
)
def test_the_page_lists_each_member_of_the_openai_package(heading: str, members: set[str]) -> None:
    found = {name if "[" in name else name.partition(".")[0] for name in listed(heading)}
    assert found == members


async def test_each_event_and_each_state_of_a_response_is_accepted() -> None:
    refusal = [sse(openai_chunk({"refusal": "I will not."}, finish="stop"), "[DONE]")]
    broken = openai_stream(["Hel", "lo"], finish=None)
    cut = answer("Hal", finish="length", calls=[CALL])
    complete = answer("Let me look.", reasoning="Where?", calls=[CALL])
    scripts = (complete, refusal, cut, broken, answer("Hal", finish="content_filter"))
    body = {"model": MODEL, "input": "Weather?", "tools": [TOOL], "background": True}
    streams: list[Frames] = []
    async with ScriptedUpstream(*scripts) as upstream:
        async with facade_over(upstream, bounds=Bounds(continue_attempts=0)) as facade:
            async with raw_client(facade.url) as raw:
                for _ in scripts:
                    streams.append(await raw.stream("/responses", body))
                    path = f"/responses/{streams[-1].response['id']}"
                    assert await raw.json("GET", path) == streams[-1].response
    item = {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin"}
    done = {"type": "response.completed", "response": {"id": "resp_1", "status": "completed"}}
    added, ended = (
        {"type": f"response.output_item.{end}", "output_index": 0, "item": item} for end in ("added", "done")
    )
    async with ScriptedUpstream([sse(added, ended, done)]) as upstream:
        model = ResponsesModel("scripted", base_url=upstream.base_url, api_key="none", max_retries=0)
        async with facade_over(handler=AgentHandler(Agent(model, merge_reads=False))) as facade:
            async with raw_client(facade.url) as raw:
                streams.append(await raw.stream("/responses", {**body, "model": "", "tools": [PATCH]}))
    produced = {event["type"] for stream in streams for event in stream.events}
    assert {stream.response["status"] for stream in streams} == {"completed", "incomplete", "failed"}
    _, _, line = PAGE.partition("\nEvents of a stream:")
    patterns = [name.strip("`.") for name in re.findall(r"`[^`]+`", line.partition("\n\n")[0])]
    names = {pattern.removeprefix("response.") for pattern in patterns if pattern != "cancelled"}
    matched = {
        kind
        for kind in EVENTS
        for name in names
        if re.fullmatch(rf"(response\.)?{re.escape(name).replace(re.escape('*'), '[a-z]+')}", kind)
    }
    assert produced == matched - {"response.output_text.annotation.added"}


async def test_each_state_of_a_running_response_is_accepted() -> None:
    go_on = anyio.Event()
    steps = answer("one ", "two")
    script: list[Step] = [*steps[:2], Wait(go_on), *steps[2:]]
    body = {"model": MODEL, "input": "Count.", "background": True}
    async with ScriptedUpstream(script, script) as upstream, facade_over(upstream) as facade:
        async with raw_client(facade.url) as raw:
            created = await raw.json("POST", "/responses", body)
            path = f"/responses/{created['id']}"
            async with raw.open_stream(path) as frames:
                async for frame in frames:
                    if b"output_text.delta" in frame:
                        break
            running = await raw.json("GET", path)
            cancelled = await raw.json("POST", f"{path}/cancel")
            go_on.set()
    assert created["status"] in ("queued", "in_progress")
    assert (running["status"], cancelled["status"]) == ("in_progress", "cancelled")


class _Objects:
    """Requests to the API whose responses are checked with a type."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = f"{url}/v1"

    async def text(self, method: str, path: str, body: object = None) -> str:
        async with self._http.request(method, self._url + path, json=body) as response:
            text = await response.text()
            assert response.status == 200, text
            return text

    async def one(self, kind: Any, method: str, path: str, body: object = None) -> Any:
        return check_strictly(kind, await self.text(method, path, body))

    async def page(self, kind: Any, path: str) -> list[Any]:
        listed: Mapping[str, Any] = json.loads(await self.text("GET", path))
        return [check_strictly(kind, json.dumps(each)) for each in listed["data"]]


async def test_each_object_is_accepted() -> None:
    vectors = json_answer(
        {
            "object": "list",
            "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
            "model": "e",
            "usage": {"prompt_tokens": 1, "total_tokens": 1},
        }
    )
    refusal = [sse(openai_chunk({"refusal": "I will not."}, finish="stop"), "[DONE]")]
    complete = answer("Let me look.", reasoning="Where?", calls=[CALL])
    text = answer("Hello", reasoning="hmm")
    scripts = (complete, complete, refusal, text, text, complete, vectors)
    chat: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [WEATHER],
    }
    aliases = "e=openai:e"
    async with ScriptedUpstream(*scripts) as upstream:
        async with facade_over(upstream, model_aliases=aliases) as facade, aiohttp.ClientSession() as http:
            api = _Objects(http, facade.url)
            completion = await api.one(ChatCompletion, "POST", "/chat/completions", {**chat, "store": True})
            streamed = await api.text("POST", "/chat/completions", {**chat, "stream": True})
            chunks = [
                line.removeprefix("data: ") for line in streamed.splitlines() if line.startswith("data: {")
            ]
            assert chunks
            for chunk in chunks:
                check_strictly(ChatCompletionChunk, chunk)
            await api.one(ChatCompletion, "POST", "/chat/completions", chat)
            path = f"/chat/completions/{completion.id}"
            await api.one(ChatCompletion, "GET", path)
            await api.one(ChatCompletion, "POST", path, {"metadata": {"a": "b"}})
            [kept] = await api.page(ChatCompletion, "/chat/completions?metadata[a]=b")
            assert kept.id == completion.id
            listed = json.loads(await api.text("GET", f"{path}/messages"))["data"]
            # The type permits only the role of the model, unlike the examples of OpenAI's specification.
            assert [message["role"] for message in listed] == ["user"]
            check_strictly(ChatCompletionStoreMessage, json.dumps({**listed[0], "role": "assistant"}))
            await api.one(ChatCompletionDeleted, "DELETE", path)
            await api.one(Completion, "POST", "/completions", {"model": MODEL, "prompt": "Hi"})

            made = await api.one(Conversation, "POST", "/conversations", {"metadata": {"a": "b"}})
            items = {"items": [{"type": "message", "role": "user", "content": "Hi"}]}
            one = f"/conversations/{made.id}"
            await api.text("POST", f"{one}/items", items)
            body = {"model": MODEL, "input": "Hi", "conversation": made.id, "tools": [TOOL]}
            await api.one(Response, "POST", "/responses", body)
            response = await api.one(Response, "POST", "/responses", body)
            assert await api.page(ResponseItem, f"/responses/{response.id}/input_items")
            added = await api.page(ConversationItem, f"{one}/items")
            assert {item.type for item in added} >= {"message", "function_call"}
            await api.one(ConversationItem, "GET", f"{one}/items/{added[0].id}")
            await api.one(Conversation, "DELETE", f"{one}/items/{added[0].id}")
            await api.one(ConversationDeletedResource, "DELETE", one)

            await api.one(CreateEmbeddingResponse, "POST", "/embeddings", {"model": "e", "input": "Hi"})
            [model, *_] = await api.page(Model, "/models")
            await api.one(Model, "GET", f"/models/{model.id}")
