"""The Ollama model against a real server that plays scripts: what is asked, what comes, what goes wrong."""

import json
from typing import Any

import pytest

from support.upstream import Head, ScriptedUpstream, Step, json_answer
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
from tailrace.wrappers.ollama.model import OllamaModel, server_address

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
    monkeypatch.delenv("OLLAMA_HOST", raising=False)
    monkeypatch.delenv("OLLAMA_API_KEY", raising=False)


def line(content: str, **fields: Any) -> bytes:
    message = {"role": "assistant", "content": content}
    return json.dumps({"model": "m", "message": message, "done": False, **fields}).encode() + b"\n"


def answer(*steps: Step) -> list[Step]:
    return [Head(headers={"content-type": "application/x-ndjson"}), *steps]


END = line("", done=True, done_reason="stop", prompt_eval_count=3, eval_count=2)


async def ask(model: OllamaModel) -> Accumulator:
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
    async with ScriptedUpstream(answer(line("Hel"), line("lo"), END)) as upstream:
        parameters = {"options": {"temperature": 0}, "think": True}
        accumulator = await ask(OllamaModel("qwen3:4b", base_url=upstream.base_url, parameters=parameters))
        request = await upstream.received()
    assert (request.method, request.path) == ("POST", "/v1/api/chat")
    assert request.headers["content-type"] == "application/json"
    assert "authorization" not in request.headers
    assert request.json == {
        "model": "qwen3:4b",
        "stream": True,
        "options": {"temperature": 0},
        "think": True,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "c1", "function": {"name": "weather", "arguments": {"city": "Bern"}}}],
            },
            {"role": "tool", "content": "Sunny", "tool_name": "weather", "tool_call_id": "c1"},
        ],
    }
    assert accumulator.message().text == "Hello"
    assert accumulator.error is None
    assert accumulator.usage is not None
    assert (accumulator.usage.input_tokens, accumulator.usage.output_tokens) == (3, 2)


@pytest.mark.parametrize("from_environment", [True, False])
async def test_a_key_is_sent_where_there_is_one(
    from_environment: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_API_KEY", "secret" if from_environment else "other")
    async with ScriptedUpstream(answer(END)) as upstream:
        monkeypatch.setenv("OLLAMA_HOST", upstream.base_url.removeprefix("http://"))
        await ask(OllamaModel("m", api_key=None if from_environment else "secret"))
        request = await upstream.received()
    assert request.headers["authorization"] == "Bearer secret"
    assert request.path == "/v1/api/chat"


async def test_an_error_status_is_told_in_the_servers_words() -> None:
    async with ScriptedUpstream(json_answer({"error": "model 'm' not found"}, 404)) as upstream:
        with pytest.raises(UpstreamError, match="model 'm' not found") as caught:
            await ask(OllamaModel("m", base_url=upstream.base_url))
        assert len(upstream.requests) == 1
    assert (caught.value.fault, caught.value.status) == (UpstreamFault.STATUS, 404)
    assert caught.value.provider == "ollama"


async def test_a_server_that_is_busy_is_asked_again() -> None:
    busy = json_answer({"error": "server busy"}, 503, {"retry-after": "0.01"})
    async with ScriptedUpstream(busy, answer(line("Hello"), END)) as upstream:
        accumulator = await ask(OllamaModel("m", base_url=upstream.base_url))
        assert len(upstream.requests) == 2
    assert accumulator.message().text == "Hello"


async def test_an_error_in_the_stream_is_told_and_what_came_before_is_kept() -> None:
    async with ScriptedUpstream(answer(line("Hel"), b'{"error":"out of memory"}\n')) as upstream:
        accumulator = await ask(OllamaModel("m", base_url=upstream.base_url))
    assert accumulator.message().text == "Hel"
    assert accumulator.error is not None
    assert (accumulator.error.fault, accumulator.error.message) == (UpstreamFault.PROVIDER, "out of memory")


async def test_an_answer_that_ends_too_early_is_truncated() -> None:
    async with ScriptedUpstream(answer(line("Hel"))) as upstream:
        accumulator = await ask(OllamaModel("m", base_url=upstream.base_url))
    assert accumulator.error is not None
    assert accumulator.error.fault is UpstreamFault.TRUNCATED


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("", "http://127.0.0.1:11434"),
        (" ", "http://127.0.0.1:11434"),
        ("example.com", "http://example.com:11434"),
        ("example.com:8080", "http://example.com:8080"),
        (":8080", "http://127.0.0.1:8080"),
        ('"example.com"', "http://example.com:11434"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("0.0.0.0:8080", "http://127.0.0.1:8080"),
        ("[::]:8080", "http://127.0.0.1:8080"),
        ("[::1]", "http://[::1]:11434"),
        ("example.com/ollama/", "http://example.com:11434/ollama"),
        ("http://example.com", "http://example.com"),
        ("https://example.com/", "https://example.com"),
        ("https://example.com:8443/ollama", "https://example.com:8443/ollama"),
        ("ollama.com", "https://ollama.com"),
    ],
)
def test_an_address_may_lack_its_scheme_its_host_and_its_port(host: str, address: str) -> None:
    assert server_address(host) == address


@pytest.mark.parametrize("host", ["example.com:port", "ftp://example.com", "http://[::1", "a:99999"])
def test_what_is_no_address_is_refused(host: str) -> None:
    with pytest.raises(ConfigurationError, match="OLLAMA_HOST"):
        OllamaModel("m", base_url=host)


def test_the_model_bears_its_names() -> None:
    model = OllamaModel("qwen3:4b")
    assert (model.provider, model.name) == ("ollama", "qwen3:4b")
    assert model.converter.from_history(History()) == []
