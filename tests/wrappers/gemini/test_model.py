"""The Gemini model against a real server: what it asks, what it streams, what goes wrong."""

import json
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from support.upstream import Cut, Hang, Head, ScriptedUpstream, Step, Tell, json_answer
from tailrace.wrappers import (
    ConfigurationError,
    ContentPartText,
    ContentPartToolCall,
    History,
    Message,
    ProtocolError,
    Role,
    UpstreamError,
    UpstreamFault,
)
from tailrace.wrappers.gemini.model import GeminiModel

HISTORY = History(
    system_message="Be brief.",
    conversation=(Message(role=Role.USER, content=(ContentPartText(text="hi"),)),),
)
BUSY = {"error": {"code": 429, "message": "Resource exhausted.", "status": "RESOURCE_EXHAUSTED"}}


def chunk(text: str, finish: str | None = None) -> bytes:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": [{"text": text}]}}
    if finish:
        candidate["finishReason"] = finish
    return b"data: " + json.dumps({"candidates": [candidate]}).encode() + b"\r\n\r\n"


ANSWER: Sequence[Step] = [chunk("Hel"), chunk("lo", finish="STOP")]


def model(upstream: ScriptedUpstream, api_key: str | None = "key", **arguments: Any) -> GeminiModel:
    return GeminiModel("gemini-x", base_url=upstream.base_url, api_key=api_key, **arguments)


async def ask(asked: GeminiModel, history: History = HISTORY) -> Message:
    try:
        async with asked.stream(history) as batches:
            chunks = [each async for batch in batches for each in batch]
    finally:
        await asked.aclose()
    for each in chunks:
        if each.details is not None and each.details.error is not None:
            raise each.details.error
    return asked.converter.to_message(chunks)


async def test_an_answer_is_streamed() -> None:
    async with ScriptedUpstream(ANSWER) as upstream:
        answer = await ask(model(upstream))
        request = await upstream.received()
    assert answer.text == "Hello"
    assert answer.metadata["finish_reason"] == "stop"
    assert (request.method, request.path) == ("POST", "/v1/models/gemini-x:streamGenerateContent?alt=sse")
    assert request.headers["x-goog-api-key"] == "key"
    assert request.headers["content-type"] == "application/json"
    assert request.json == {
        "contents": [{"role": "user", "parts": [{"text": "hi"}]}],
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
    }


async def test_parameters_are_members_of_the_request() -> None:
    config = {"temperature": 0, "thinkingConfig": {"includeThoughts": True}}
    async with ScriptedUpstream(ANSWER) as upstream:
        await ask(
            model(upstream, parameters={"generationConfig": config}),
            History(conversation=HISTORY.conversation),
        )
        request = await upstream.received()
    assert request.json == {
        "contents": [{"role": "user", "parts": [{"text": "hi"}]}],
        "generationConfig": config,
    }


async def test_a_resource_may_be_named_in_full() -> None:
    async with ScriptedUpstream(ANSWER) as upstream:
        await ask(GeminiModel("tunedModels/my model", base_url=upstream.base_url + "/", api_key="key"))
        request = await upstream.received()
    assert request.path == "/v1/tunedModels/my%20model:streamGenerateContent?alt=sse"


async def test_a_token_takes_the_place_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "never sent")
    async with ScriptedUpstream(ANSWER) as upstream:
        vertex = GeminiModel(
            "gemini-x",
            base_url=upstream.base_url + "/projects/p/locations/l/publishers/google",
            headers={"Authorization": "Bearer token"},
        )
        await ask(vertex)
        request = await upstream.received()
    assert request.path.startswith("/v1/projects/p/locations/l/publishers/google/models/gemini-x:")
    assert request.headers["authorization"] == "Bearer token"
    assert "x-goog-api-key" not in request.headers


@pytest.mark.parametrize("variable", ["GEMINI_API_KEY", "GOOGLE_API_KEY"])
async def test_the_key_comes_from_the_environment(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    monkeypatch.setenv("GOOGLE_API_KEY", "second")
    monkeypatch.setenv(variable, "from the environment")
    async with ScriptedUpstream(ANSWER) as upstream:
        await ask(model(upstream, api_key=None))
        request = await upstream.received()
    assert request.headers["x-goog-api-key"] == "from the environment"


def test_without_a_key_the_variables_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    with pytest.raises(ConfigurationError, match="'gemini-x': set GEMINI_API_KEY or GOOGLE_API_KEY"):
        GeminiModel("gemini-x")


async def test_the_api_of_google_is_the_default() -> None:
    asked = GeminiModel("gemini-x", api_key="key")
    url, _, _ = asked._request(HISTORY, {})  # pyright: ignore[reportPrivateUsage]  # the real server is not asked
    assert url == (
        "https://generativelanguage.googleapis.com/v1beta/models/gemini-x:streamGenerateContent?alt=sse"
    )


async def test_a_refusal_for_the_moment_is_asked_again() -> None:
    async with ScriptedUpstream(json_answer(BUSY, 429, {"retry-after": "0.01"}), ANSWER) as upstream:
        answer = await ask(model(upstream))
        assert len(upstream.requests) == 2
    assert answer.text == "Hello"


async def test_a_refusal_is_reported() -> None:
    body = {"error": {"code": 400, "message": "API key not valid.", "status": "INVALID_ARGUMENT"}}
    async with ScriptedUpstream(json_answer(body, 400)) as upstream:
        with pytest.raises(UpstreamError, match="API key not valid") as caught:
            await ask(model(upstream))
        assert len(upstream.requests) == 1
    assert (caught.value.fault, caught.value.status, caught.value.provider) == (
        UpstreamFault.STATUS,
        400,
        "gemini",
    )


@pytest.mark.parametrize("listed", [False, True])
async def test_a_refusal_says_in_its_body_when_to_ask_again(listed: bool) -> None:
    delay = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "3.5s"}
    error = {**BUSY["error"], "details": [{"@type": "type.googleapis.com/google.rpc.Help"}, delay]}
    body = {"error": error}
    async with ScriptedUpstream(json_answer([body] if listed else body, 429)) as upstream:
        with pytest.raises(UpstreamError) as caught:
            await ask(model(upstream, max_retries=0))
    assert (caught.value.retry_after, caught.value.code) == (3.5, "RESOURCE_EXHAUSTED")


async def test_a_refusal_that_is_no_json_is_reported() -> None:
    script: list[Step] = [Head(400, {"content-type": "text/plain"}), b"no"]
    async with ScriptedUpstream(script) as upstream:
        with pytest.raises(UpstreamError) as caught:
            await ask(model(upstream))
    assert (caught.value.status, caught.value.details) == (400, "no")


async def test_an_error_in_the_stream_is_reported() -> None:
    async with ScriptedUpstream(
        [chunk("Hel"), b"data: " + json.dumps(BUSY).encode() + b"\r\n\r\n"]
    ) as upstream:
        with pytest.raises(UpstreamError, match="Resource exhausted") as caught:
            await ask(model(upstream))
    assert (caught.value.fault, caught.value.code) == (UpstreamFault.PROVIDER, "RESOURCE_EXHAUSTED")


async def test_a_connection_that_breaks_is_reported() -> None:
    async with ScriptedUpstream([chunk("Hel"), Cut()]) as upstream:
        with pytest.raises(UpstreamError) as caught:
            await ask(model(upstream))
    assert caught.value.fault is UpstreamFault.TRUNCATED


async def test_whoever_stops_reading_stops_the_provider() -> None:
    begun = anyio.Event()
    async with ScriptedUpstream([chunk("Hel"), Tell(begun), Hang()]) as upstream:
        asked = model(upstream)
        async with asked.stream(HISTORY) as batches:
            async for _ in batches:
                break
        request = await upstream.received()
        await request.client_left.wait()
        await asked.aclose()


async def test_a_call_without_its_role_is_refused_before_anything_is_sent() -> None:
    wrong = Message(role=Role.USER, content=(ContentPartToolCall(id="c", name="f"),))
    async with ScriptedUpstream(ANSWER) as upstream:
        with pytest.raises(ProtocolError, match="tool call 'c'"):
            await ask(model(upstream), History(conversation=(wrong,)))
        assert upstream.requests == []
