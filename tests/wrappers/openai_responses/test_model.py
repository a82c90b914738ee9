"""The Responses client: members of its requests that other providers do not have."""

from collections.abc import Mapping
from typing import Any

import pytest

from support.options import ask
from support.upstream import Received, ScriptedUpstream, Step, json_answer, sse
from tailrace.streaming.accumulator import Accumulator
from tailrace.wrappers import (
    ContentPartText,
    ContentPartToolResult,
    History,
    Message,
    Role,
    UpstreamError,
)
from tailrace.wrappers.openai_responses.model import ResponsesModel
from tailrace.wrappers.request_options import NO_OPTIONS

Fields = dict[str, Any]

HI = History(
    system_message="Be brief.",
    conversation=(Message(role=Role.USER, content=(ContentPartText(text="Hi"),)),),
)
SEALED: Fields = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "seal"}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "now", "arguments": "{}"}


def text_delta(text: str) -> Fields:
    return {"type": "response.output_text.delta", "output_index": 1, "content_index": 0, "delta": text}


def item_done(index: int, item: Mapping[str, Any]) -> Fields:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


ANSWER = [
    sse({"type": "response.created", "response": {"id": "resp_1", "model": "scripted"}}),
    sse(item_done(0, SEALED)),
    sse(text_delta("Hel")),
    sse(text_delta("lo")),
    sse(
        {
            "type": "response.completed",
            "response": {
                "id": "resp_1",
                "status": "completed",
                "usage": {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
            },
        }
    ),
]


async def ask_model(upstream: ScriptedUpstream, history: History = HI, **arguments: Any) -> Accumulator:
    model = ResponsesModel(
        "scripted", base_url=upstream.base_url, api_key="secret", max_retries=0, **arguments
    )
    return await ask(model, NO_OPTIONS, history)


async def test_parameters_are_added_and_may_replace_ours() -> None:
    parameters: Fields = {
        "store": True,
        "include": [],
        "max_output_tokens": 16,
        "reasoning": {"effort": "low"},
    }
    async with ScriptedUpstream(ANSWER) as upstream:
        await ask_model(upstream, parameters=parameters)
        request = await upstream.received()
    assert {name: request.json[name] for name in parameters} == parameters


async def test_output_of_a_model_is_sent_back_to_it() -> None:
    async with ScriptedUpstream(
        [sse(item_done(0, SEALED), item_done(1, CALL)), ANSWER[-1]], ANSWER
    ) as upstream:
        first = await ask_model(upstream)
        result = ContentPartToolResult(id="call_1", name="now", output="noon")
        history = HI.with_message(first.message(), Message(role=Role.TOOL, content=(result,)))
        await ask_model(upstream, history)
        request = await upstream.received(1)
    assert request.json["input"][2:] == [
        SEALED,
        {"type": "function_call", "call_id": "call_1", "name": "now", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "noon"},
    ]


async def test_messages_that_hold_more_than_text_are_sent_as_they_are() -> None:
    link = {"type": "url_citation", "url": "https://example.com"}
    own = {"openai-responses": {"annotations": [link], "phase": "final_answer"}}
    reply = Message(
        role=Role.MODEL, content=(ContentPartText(text="Hi", metadata=own),), metadata={"refusal": "no"}
    )
    async with ScriptedUpstream(ANSWER) as upstream:
        await ask_model(upstream, History(conversation=(reply,)))
        request = await upstream.received()
    assert request.json["input"] == [
        {
            "type": "message",
            "role": "assistant",
            "phase": "final_answer",
            "content": [{"type": "output_text", "text": "Hi", "annotations": [link]}],
        },
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    ]


def refuses_sealed_reasoning(request: Received) -> list[Step]:
    """Reject encrypted reasoning, as OpenAI's models without reasoning do."""
    if "include" not in request.json:
        return [*ANSWER]
    error = {
        "message": "Encrypted content is not supported with this model.",
        "param": "include",
        "code": None,
    }
    return json_answer({"error": {"type": "invalid_request_error", **error}}, 400)


async def test_sealed_reasoning_is_not_requested_again_after_a_refusal() -> None:
    async with ScriptedUpstream(refuses_sealed_reasoning) as upstream:
        model = ResponsesModel("scripted", base_url=upstream.base_url, api_key="secret")
        for _ in range(2):
            answer = await ask(model, NO_OPTIONS, HI)
            assert answer.message().text == "Hello"
        await model.aclose()
    assert ["include" in request.json for request in upstream.requests] == [True, False, False]


async def test_parameters_of_the_caller_are_not_dropped_after_a_refusal() -> None:
    parameters = {"include": ["reasoning.encrypted_content"]}
    async with ScriptedUpstream(refuses_sealed_reasoning) as upstream:
        with pytest.raises(UpstreamError, match="Encrypted content is not supported"):
            await ask_model(upstream, parameters=parameters)
    assert len(upstream.requests) == 1


async def test_a_bad_request_for_another_reason_is_reported() -> None:
    error = {"message": "no such model", "param": "model", "code": "model_not_found"}
    async with ScriptedUpstream(json_answer({"error": error}, 400)) as upstream:
        with pytest.raises(UpstreamError, match="no such model"):
            await ask_model(upstream)
    assert len(upstream.requests) == 1
