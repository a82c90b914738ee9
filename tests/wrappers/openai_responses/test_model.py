"""The model behind the Responses API: what it asks, over a real connection, and what becomes of the answer."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from support.upstream import Head, Received, ScriptedUpstream, Step, json_answer, sse
from tailrace.streaming.accumulator import Accumulator
from tailrace.wrappers import (
    ConfigurationError,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    Message,
    Role,
    UpstreamError,
    UpstreamFault,
)
from tailrace.wrappers.openai_responses import ResponsesConverter
from tailrace.wrappers.openai_responses.model import ResponsesModel

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


async def ask(upstream: ScriptedUpstream, history: History = HI, **arguments: Any) -> Accumulator:
    """Ask the model once; fold the whole answer."""
    arguments = {"base_url": upstream.base_url, "api_key": "secret", "max_retries": 0, **arguments}
    model = ResponsesModel("scripted", **arguments)
    accumulator = Accumulator(think_tags=False)
    try:
        async with model.stream(history) as batches:
            async for chunks in batches:
                for chunk in chunks:
                    accumulator.add(chunk)
    finally:
        await model.aclose()
    accumulator.close()
    return accumulator


async def test_the_request_is_as_the_api_wants_it() -> None:
    async with ScriptedUpstream(ANSWER) as upstream:
        await ask(upstream)
        request = await upstream.received()
    assert (request.method, request.path) == ("POST", "/v1/responses")
    assert request.headers["authorization"] == "Bearer secret"
    assert request.json == {
        "model": "scripted",
        "input": [
            {"type": "message", "role": "system", "content": "Be brief."},
            {"type": "message", "role": "user", "content": "Hi"},
        ],
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }


async def test_parameters_are_added_and_may_replace_ours() -> None:
    parameters: Fields = {
        "store": True,
        "include": [],
        "max_output_tokens": 16,
        "reasoning": {"effort": "low"},
    }
    async with ScriptedUpstream(ANSWER) as upstream:
        await ask(upstream, parameters=parameters)
        request = await upstream.received()
    assert {name: request.json[name] for name in parameters} == parameters


async def test_the_answer_is_streamed_with_its_usage_and_sealed_reasoning() -> None:
    async with ScriptedUpstream(ANSWER) as upstream:
        answer = await ask(upstream)
    assert answer.message().content == (
        ContentPartReasoning(
            text="", metadata={"openai-responses": {"id": "rs_1", "encrypted_content": "seal"}}
        ),
        ContentPartText(text="Hello"),
    )
    assert answer.usage is not None
    assert answer.usage.total_tokens == 3
    assert answer.error is None


async def test_what_a_model_said_is_sent_back_to_it() -> None:
    async with ScriptedUpstream(
        [sse(item_done(0, SEALED), item_done(1, CALL)), ANSWER[-1]], ANSWER
    ) as upstream:
        first = await ask(upstream)
        result = ContentPartToolResult(id="call_1", name="now", output="noon")
        history = HI.with_message(first.message(), Message(role=Role.TOOL, content=(result,)))
        await ask(upstream, history)
        request = await upstream.received(1)
    assert request.json["input"][2:] == [
        SEALED,
        {"type": "function_call", "call_id": "call_1", "name": "now", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "noon"},
    ]


async def test_messages_that_hold_more_than_text_are_sent_as_they_are() -> None:
    link = {"type": "url_citation", "url": "https://example.com"}
    own = {"openai-responses": {"annotations": [link], "phase": "final_answer"}}
    said = Message(
        role=Role.MODEL, content=(ContentPartText(text="Hi", metadata=own),), metadata={"refusal": "no"}
    )
    async with ScriptedUpstream(ANSWER) as upstream:
        await ask(upstream, History(conversation=(said,)))
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
    """As OpenAI's models do that do not reason."""
    if "include" not in request.json:
        return [*ANSWER]
    error = {
        "message": "Encrypted content is not supported with this model.",
        "param": "include",
        "code": None,
    }
    return json_answer({"error": {"type": "invalid_request_error", **error}}, 400)


async def test_a_model_that_refuses_to_seal_its_reasoning_is_not_asked_again() -> None:
    async with ScriptedUpstream(refuses_sealed_reasoning) as upstream:
        model = ResponsesModel("scripted", base_url=upstream.base_url, api_key="secret")
        for _ in range(2):
            async with model.stream(HI) as batches:
                assert [
                    chunk.get_text() async for chunks in batches for chunk in chunks if chunk.get_text()
                ] == [
                    "Hel",
                    "lo",
                ]
        await model.aclose()
    assert ["include" in request.json for request in upstream.requests] == [True, False, False]


async def test_what_the_caller_asks_for_is_not_asked_otherwise() -> None:
    parameters = {"include": ["reasoning.encrypted_content"]}
    async with ScriptedUpstream(refuses_sealed_reasoning) as upstream:
        with pytest.raises(UpstreamError, match="Encrypted content is not supported"):
            await ask(upstream, parameters=parameters)
    assert len(upstream.requests) == 1


async def test_a_refusal_is_reported() -> None:
    error = {
        "message": "Incorrect API key",
        "type": "invalid_request_error",
        "code": "invalid_api_key",
        "param": None,
    }
    async with ScriptedUpstream(json_answer({"error": error}, 401)) as upstream:
        with pytest.raises(UpstreamError) as caught:
            await ask(upstream)
    assert (caught.value.fault, caught.value.status) == (UpstreamFault.STATUS, 401)
    assert (caught.value.message, caught.value.code) == ("Incorrect API key", "invalid_api_key")
    assert caught.value.provider == "openai-responses"


async def test_a_bad_request_for_another_reason_is_reported() -> None:
    error = {"message": "no such model", "param": "model", "code": "model_not_found"}
    async with ScriptedUpstream(json_answer({"error": error}, 400)) as upstream:
        with pytest.raises(UpstreamError, match="no such model"):
            await ask(upstream)
    assert len(upstream.requests) == 1


async def test_a_refusal_for_the_moment_is_tried_again() -> None:
    busy = json_answer({"error": {"message": "slow down"}}, 429, {"retry-after-ms": "1"})
    async with ScriptedUpstream(busy, ANSWER) as upstream:
        answer = await ask(upstream, max_retries=1)
    assert answer.message().text == "Hello"
    assert len(upstream.requests) == 2


async def test_an_error_in_the_stream_is_reported_with_what_came_before() -> None:
    error = {"type": "error", "code": "server_error", "message": "oops", "param": None, "sequence_number": 3}
    failed = {
        "type": "response.failed",
        "response": {"status": "failed", "error": {"code": "x", "message": "y"}},
    }
    async with ScriptedUpstream([sse(text_delta("Hel"), error, failed)]) as upstream:
        answer = await ask(upstream)
    assert answer.message().text == "Hel"
    assert answer.error is not None
    assert (answer.error.message, answer.error.code) == ("oops", "server_error")
    assert answer.error.provider == "openai-responses"


async def test_a_stream_that_ends_too_soon_is_reported() -> None:
    async with ScriptedUpstream([Head(), *ANSWER[:-1]]) as upstream:
        answer = await ask(upstream)
    assert answer.error is not None
    assert answer.error.fault is UpstreamFault.TRUNCATED


async def test_without_a_key_there_is_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY"):
        ResponsesModel("scripted")


async def test_the_converter_is_that_of_the_api() -> None:
    model = ResponsesModel("scripted", api_key="secret")
    assert isinstance(model.converter, ResponsesConverter)
    assert model.converter.to_message({"object": "response", "output": [CALL]}).tool_calls == (
        ContentPartToolCall(id="call_1", name="now", metadata={"openai-responses": {"id": "fc_1"}}),
    )
    assert json.loads(json.dumps(model.converter.from_history(HI)))[0]["role"] == "system"
    await model.aclose()
