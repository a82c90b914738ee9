"""The Cohere model against a real server that plays scripts: what is asked, what comes, what goes wrong."""

import json
from typing import Any

import pytest

from support.upstream import ScriptedUpstream, json_answer
from tailrace.streaming.accumulator import Accumulator
from tailrace.wrappers import (
    ConfigurationError,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    Message,
    Role,
    UpstreamError,
    UpstreamFault,
)
from tailrace.wrappers.cohere.model import CohereModel

HISTORY = History(
    system_message="Be brief.",
    conversation=(
        Message(role=Role.USER, content=(ContentPartText(text="Weather?"),)),
        Message(role=Role.MODEL, content=(ContentPartToolCall(id="c1", name="weather", arguments={"city": "Bern"}),)),
        Message(role=Role.TOOL, content=(ContentPartToolResult(id="c1", name="weather", output="Sunny"),)),
    ),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CO_API_KEY", raising=False)
    monkeypatch.delenv("COHERE_API_KEY", raising=False)


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def text(piece: str) -> bytes:
    return event("content-delta", index=0, delta={"message": {"content": {"text": piece}}})


USAGE = {"tokens": {"input_tokens": 3, "output_tokens": 2}}
END = event("message-end", delta={"finish_reason": "COMPLETE", "usage": USAGE})


async def ask(model: CohereModel) -> Accumulator:
    accumulator = Accumulator()
    try:
        async with model.stream(HISTORY) as batches:
            async for batch in batches:
                for chunk in batch:
                    accumulator.add(chunk)
    finally:
        await model.aclose()
    accumulator.close()
    return accumulator


async def test_the_request_is_as_the_api_wants_it_and_the_answer_streams() -> None:
    async with ScriptedUpstream(
        [event("message-start", id="r1"), text("Hel"), text("lo"), END, b"data: [DONE]\n\n"]
    ) as upstream:
        model = CohereModel(
            "command-a", base_url=upstream.base_url + "/", api_key="secret", parameters={"seed": 1}
        )
        accumulator = await ask(model)
        request = await upstream.received()
    assert (request.method, request.path) == ("POST", "/v1/chat")
    assert request.headers["authorization"] == "Bearer secret"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["accept"] == "text/event-stream"
    assert request.json == {
        "model": "command-a",
        "stream": True,
        "seed": 1,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
            {
                "role": "assistant",
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "weather", "arguments": '{"city": "Bern"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "Sunny"},
        ],
    }
    assert accumulator.message().text == "Hello"
    assert (accumulator.error, accumulator.metadata) == (None, {"id": "r1"})
    assert accumulator.usage is not None
    assert (accumulator.usage.input_tokens, accumulator.usage.output_tokens) == (3, 2)


@pytest.mark.parametrize(
    "variables",
    [
        {"CO_API_KEY": "secret"},
        {"COHERE_API_KEY": "secret"},
        {"CO_API_KEY": "secret", "COHERE_API_KEY": "other"},
        {"CO_API_KEY": "", "COHERE_API_KEY": "secret"},
    ],
)
async def test_the_key_comes_from_the_environment(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    async with ScriptedUpstream([END]) as upstream:
        await ask(CohereModel("m", base_url=upstream.base_url))
        request = await upstream.received()
    assert request.headers["authorization"] == "Bearer secret"


def test_without_a_key_there_is_no_model() -> None:
    with pytest.raises(ConfigurationError, match="set CO_API_KEY or COHERE_API_KEY"):
        CohereModel("m")


def test_the_address_is_coheres_own_where_no_other_is_given() -> None:
    model = CohereModel("command-a", api_key="secret")
    url, _, _ = model._request(HISTORY, {})  # pyright: ignore[reportPrivateUsage]
    assert url == "https://api.cohere.com/v2/chat"
    assert (model.provider, model.name) == ("cohere", "command-a")
    assert model.converter.from_history(History()) == []


async def test_an_error_status_is_told_in_the_providers_words() -> None:
    refusal = json_answer({"id": "x", "message": "invalid api token"}, 401)
    async with ScriptedUpstream(refusal) as upstream:
        with pytest.raises(UpstreamError, match="invalid api token") as caught:
            await ask(CohereModel("m", base_url=upstream.base_url, api_key="wrong"))
        assert len(upstream.requests) == 1
    assert (caught.value.fault, caught.value.status) == (UpstreamFault.STATUS, 401)
    assert caught.value.provider == "cohere"


async def test_a_provider_that_is_busy_is_asked_again() -> None:
    busy = json_answer({"message": "slow down"}, 429, {"retry-after": "0.01"})
    async with ScriptedUpstream(busy, [text("Hello"), END]) as upstream:
        accumulator = await ask(CohereModel("m", base_url=upstream.base_url, api_key="secret"))
        assert len(upstream.requests) == 2
    assert accumulator.message().text == "Hello"


async def test_an_error_in_the_stream_is_told_and_what_came_before_is_kept() -> None:
    failed = event("message-end", delta={"finish_reason": "ERROR", "error": "out of memory"})
    async with ScriptedUpstream([text("Hel"), failed]) as upstream:
        accumulator = await ask(CohereModel("m", base_url=upstream.base_url, api_key="secret"))
    assert accumulator.message().text == "Hel"
    assert accumulator.error is not None
    assert (accumulator.error.fault, accumulator.error.message) == (UpstreamFault.PROVIDER, "out of memory")


async def test_an_answer_that_ends_too_early_is_truncated() -> None:
    async with ScriptedUpstream([text("Hel")]) as upstream:
        accumulator = await ask(CohereModel("m", base_url=upstream.base_url, api_key="secret"))
    assert accumulator.error is not None
    assert accumulator.error.fault is UpstreamFault.TRUNCATED
