"""Lossless conversion between OpenAI's format and A2A's, in both directions."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from support.openai_api import Facade, facade_over, user
from support.rounds import answer, sent
from support.rpc import Rpc
from support.scenarios import Scenario, completion, load_scenarios, payloads
from support.upstream import ScriptedUpstream, sse
from tailrace.streaming.a2a.models import Message
from tailrace.streaming.conversion.message_conversion import to_a2a_message, to_common_message
from tailrace.wrappers import History
from tailrace.wrappers.openai.converter import OpenAIConverter

FIXTURES = sorted(Path(__file__).parents[3].glob("fixtures/openai/*.sse"))
PICTURE = "data:image/png;base64,iVBORw=="


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "name": "bob", "content": [text("What is"), text(" this?")]},
    {"role": "assistant", "content": [text("What?")]},
    {
        "role": "user",
        "content": [
            text("These:"),
            {"type": "image_url", "image_url": {"url": PICTURE, "detail": "low"}},
            {"type": "image_url", "image_url": {"url": "https://x.example/a.png"}},
            {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
            {
                "type": "file",
                "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="},
            },
            {"type": "file", "file": {"file_id": "file-1"}},
        ],
    },
    {
        "role": "assistant",
        "name": "tess",
        "content": [text("Let me look.")],
        "tool_calls": [
            call("c1", "look", '{"at": "a.png", "n": [1, null, 2.5]}'),
            call("c2", "listen", "{}"),
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "a bird"},
    {"role": "tool", "tool_call_id": "c2", "content": '{"song": "chirp 🎵"}'},
    {"role": "assistant", "content": None, "tool_calls": [call("c3", "look", '{"at": "closer"}')]},
    {"role": "tool", "tool_call_id": "c3", "content": ""},
    {"role": "assistant", "content": None, "refusal": "I will not say."},
    {"role": "user", "content": [text("Why?")]},
]


def test_all_kinds_of_messages_come_back_from_a2a_as_they_were() -> None:
    converter = OpenAIConverter()
    history = converter.to_history(CONVERSATION)  # type: ignore[arg-type]
    carried: list[bytes] = [
        to_a2a_message(message, message_id="m").to_json() for message in history.conversation
    ]
    back = [to_common_message(Message.model_validate_json(each)) for each in carried]
    assert converter.from_history(History(conversation=tuple(back))) == CONVERSATION


async def test_all_kinds_of_messages_reach_the_provider_as_they_were() -> None:
    async with ScriptedUpstream(answer("So.")) as upstream, facade_over(upstream) as facade:
        _, _, task_id = await facade.chat_named({"role": "system", "content": "Look."}, *CONVERSATION)
        async with Rpc(facade.url) as rpc:
            task = await rpc.result("GetTask", {"id": task_id})
    assert [part["text"] for part in task["history"][0]["parts"]] == ["Why?"]
    expected = [{"role": "system", "content": "Look."}, *map(_one_text, CONVERSATION)]
    assert list(map(_one_text, sent(upstream.requests[0]))) == expected


def _one_text(message: dict[str, Any]) -> dict[str, Any]:
    content: Any = message.get("content")
    if isinstance(content, list) and {part["type"] for part in cast("list[Any]", content)} == {"text"}:
        return {**message, "content": "".join(part["text"] for part in cast("list[Any]", content))}
    return message


# --- from A2A to OpenAI -----------------------------------------------------------------------------------------


def summary(chunks: Sequence[ChatCompletionChunk]) -> dict[str, Any]:
    """Return the contents of the chunks of an answer, one by one."""
    found: dict[str, Any] = {name: [] for name in ("content", "reasoning", "refusal", "begun", "arguments")}
    for chunk in chunks:
        for choice in chunk.choices:
            delta = choice.delta
            found["content"] += [delta.content] if delta.content else []
            found["refusal"] += [delta.refusal] if delta.refusal else []
            thought = (delta.model_extra or {}).get("reasoning_content")
            found["reasoning"] += [thought] if thought else []
            for each in delta.tool_calls or ():
                assert each.function
                if each.id:
                    found["begun"].append((each.index, each.id, each.function.name))
                if each.function.arguments:
                    found["arguments"].append((each.index, each.function.arguments))
            found["finish"] = choice.finish_reason or found.get("finish")
        if chunk.usage is not None:
            found["usage"] = chunk.usage.model_dump(exclude_none=True)
    return found


async def streamed(client: openai.AsyncOpenAI, tools: Sequence[str]) -> list[ChatCompletionChunk]:
    stream, _ = await Facade("", client).stream(
        user("?"),
        stream_options={"include_usage": True},
        tools=[{"type": "function", "function": {"name": name}} for name in tools] or openai.omit,
    )
    return [chunk async for chunk in stream]


def frames(path: Path) -> list[bytes]:
    """Return the events of a recorded body, each of which is one write."""
    return [*(sse(payload) for payload in payloads(path.read_bytes())), sse("[DONE]")]


@pytest.mark.parametrize(
    "path", [path for path in FIXTURES if path.stem != "two_choices"], ids=lambda path: path.stem
)
async def test_a_recorded_answer_is_the_same_chunk_for_chunk(path: Path) -> None:
    async with ScriptedUpstream(frames(path)) as upstream, facade_over(upstream) as facade:
        direct = openai.AsyncOpenAI(base_url=upstream.base_url, api_key="none", max_retries=0)
        async with direct:
            expected = summary(await streamed(direct, ()))
        found = summary(await streamed(facade.client, ["get_weather"]))
    assert found == expected


# Arguments sent twice mean one call; this is detected after the first were sent.
REPLACED = "C08"

GENERATED = {
    "reasoning": answer("Par", "is", ".", reasoning="Let me think."),
    "calls": answer("So: ", calls=[("c1", "look", {"a": 1}), ("c2", "look", {"b": "ü"}), ("c3", "find", {})]),
    "cut": answer("Par", finish="length"),
    "filtered": answer("Par", finish="content_filter"),
    "no usage": answer("Par", usage=None),
    "details": answer("Par", usage={"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}),
    "empty": answer(),
    "separators": answer("a\u2028b", "\x85c", "🌊\n"),
}


@pytest.mark.parametrize("name", GENERATED)
async def test_a_made_answer_is_the_same_chunk_for_chunk(name: str) -> None:
    async with ScriptedUpstream(GENERATED[name]) as upstream, facade_over(upstream) as facade:
        async with openai.AsyncOpenAI(base_url=upstream.base_url, api_key="none", max_retries=0) as direct:
            expected = summary(await streamed(direct, ()))
        found = summary(await streamed(facade.client, ["look", "find"]))
    assert found == expected


def scenarios() -> list[Scenario]:
    return [each for each in load_scenarios() if "texts" not in each.expect]


@pytest.mark.parametrize("scenario", scenarios(), ids=str)
async def test_every_shape_of_a_stream_is_the_answer_that_it_means(scenario: Scenario) -> None:
    expected = completion([scenario.body])
    [choice, *_] = expected["choices"]
    calls = [each.get("function") or each["custom"] for each in choice["message"].get("tool_calls", ())]
    names = sorted({each["name"] for each in calls if each["name"]})
    async with ScriptedUpstream([scenario.body]) as upstream, facade_over(upstream) as facade:
        if "error" in expected or scenario.name.startswith(REPLACED):
            with pytest.raises(openai.APIError):
                await streamed(facade.client, names)
            return
        found = summary(await streamed(facade.client, names))
    content = "".join(found["content"])
    if "images" in choice["message"]:
        assert all(image["image_url"]["url"] in content for image in choice["message"]["images"])
        content = content.rpartition(")\n")[2]
    assert content == (choice["message"]["content"] or "")
    assert "".join(found["reasoning"]) == choice["message"].get("reasoning_content", "")
    assert found["finish"] == choice["finish_reason"]
    assert len(found["begun"]) == len(calls)
    for index, each in enumerate(calls):
        written = "".join(piece for at, piece in found["arguments"] if at == index)
        assert found["begun"][index][2] == each["name"]
        assert _parsed(written) == _parsed(each.get("arguments", each.get("input")))
    usage = expected.get("usage")
    if usage:
        names = ("prompt_tokens", "completion_tokens", "total_tokens")
        assert {name: found["usage"][name] for name in names} == {name: usage[name] for name in names}


def _parsed(arguments: str) -> object:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments
