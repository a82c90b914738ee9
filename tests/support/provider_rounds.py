"""Scripted responses in every provider's format: a tool call with given argument text."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from support import event_frames, rounds
from support.upstream import Head, ScriptedUpstream, Step, sse
from tailrace.wrappers.model import Model
from tailrace.wrappers.providers import FORMATS

CALL_ID = "call00001"
"""An id that every provider accepts."""

Answer = list[Step]

_PLACE = "ARGUMENTS"


def _halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


def _chat(call_id: str, name: str, arguments: str) -> Answer:
    return list(rounds.answer(calls=[(call_id, name, arguments)]))


def _responses(call_id: str, name: str, arguments: str) -> Answer:
    item = {"type": "function_call", "id": "fc_1", "call_id": call_id, "name": name}
    deltas = [
        {
            "type": "response.function_call_arguments.delta",
            "output_index": 0,
            "item_id": "fc_1",
            "delta": piece,
        }
        for piece in _halves(arguments)
    ]
    done = {"type": "response.output_item.done", "output_index": 0, "item": {**item, "arguments": arguments}}
    added = {"type": "response.output_item.added", "output_index": 0, "item": {**item, "arguments": ""}}
    end = {"type": "response.completed", "response": {"id": "resp_1", "status": "completed"}}
    return [sse(added, *deltas, done, end)]


def _anthropic(call_id: str, name: str, arguments: str) -> Answer:
    events: list[dict[str, Any]] = [
        {
            "type": "message_start",
            "message": {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": []},
        },
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "tool_use", "id": call_id, "name": name, "input": {}},
        },
        *(
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "input_json_delta", "partial_json": piece},
            }
            for piece in _halves(arguments)
        ),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    return [
        b"".join(b"event: %b\ndata: %b\n\n" % (e["type"].encode(), json.dumps(e).encode()) for e in events)
    ]


def _gemini(call_id: str, name: str, arguments: str) -> Answer:
    call = {"functionCall": {"id": call_id, "name": name, "args": _PLACE}}
    candidate = {"content": {"role": "model", "parts": [call]}, "finishReason": "STOP"}
    return [sse(_with_object({"candidates": [candidate]}, arguments))]


def _ollama(call_id: str, name: str, arguments: str) -> Answer:
    call = {"id": call_id, "function": {"name": name, "arguments": _PLACE}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    lines = [
        {"model": "m", "message": message, "done": False},
        {"model": "m", "done": True, "done_reason": "stop"},
    ]
    body = "".join(f"{_with_object(line, arguments)}\n" for line in lines)
    return [Head(headers={"content-type": "application/x-ndjson"}), body.encode()]


def _with_object(value: object, arguments: str) -> str:
    """JSON with an object inserted as text."""
    return json.dumps(value).replace(f'"{_PLACE}"', arguments)


def _cohere(call_id: str, name: str, arguments: str) -> Answer:
    function = {"name": name, "arguments": ""}
    call = {"id": call_id, "type": "function", "function": function}
    events: list[dict[str, Any]] = [
        {"type": "message-start", "id": "m", "delta": {"message": {"role": "assistant"}}},
        {"type": "tool-call-start", "index": 0, "delta": {"message": {"tool_calls": call}}},
        *(
            {
                "type": "tool-call-delta",
                "index": 0,
                "delta": {"message": {"tool_calls": {"function": {"arguments": piece}}}},
            }
            for piece in _halves(arguments)
        ),
        {"type": "tool-call-end", "index": 0},
        {"type": "message-end", "delta": {"finish_reason": "TOOL_CALL"}},
    ]
    return [sse(*events)]


def _bedrock(call_id: str, name: str, arguments: str) -> Answer:
    start = {"contentBlockIndex": 0, "start": {"toolUse": {"toolUseId": call_id, "name": name}}}
    deltas: list[Mapping[str, Any]] = [
        {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"toolUse": {"input": piece}}}}
        for piece in _halves(arguments)
    ]
    body = event_frames.converse(
        {"messageStart": {"role": "assistant"}},
        {"contentBlockStart": start},
        *deltas,
        {"contentBlockStop": {"contentBlockIndex": 0}},
        {"messageStop": {"stopReason": "tool_use"}},
    )
    return [Head(headers={"content-type": "application/vnd.amazon.eventstream"}), body]


CALLS: Mapping[str, Callable[[str, str, str], Answer]] = {
    "openai": _chat,
    "openai-responses": _responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
    "ollama": _ollama,
    "cohere": _cohere,
    "mistral": _chat,
    "bedrock": _bedrock,
}
"""By format: the script of a response with a tool call."""


@pytest.fixture(autouse=True)
def provider_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment variables that authorise Bedrock; other providers get a key."""
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "token")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")


def provider_model(name: str, upstream: ScriptedUpstream) -> Model:
    """The model of a format for a scripted upstream, without retries."""
    return FORMATS[name].create_model(
        "m", base_url=upstream.base_url, api_key="none", max_retries=0, read_timeout=20.0
    )
