"""The model behind the Messages API, against an upstream that does exactly what a test says."""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from support.upstream import (
    Cut,
    Hang,
    Head,
    Received,
    Reset,
    ScriptedUpstream,
    Shut,
    Step,
    Wait,
    json_answer,
    sse,
)
from tailrace.streaming.accumulator import Accumulator
from tailrace.wrappers import (
    ChunkWrapper,
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
from tailrace.wrappers.anthropic import AnthropicConverter
from tailrace.wrappers.anthropic.model import AnthropicModel
from tailrace.wrappers.model import ArrivingBatches

USAGE = {"input_tokens": 3, "output_tokens": 1}
BEGIN: list[object] = [
    {"type": "message_start", "message": {"id": "msg_1", "model": "claude", "content": [], "usage": USAGE}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}},
]
END: list[object] = [
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "lo"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
    {"type": "message_stop"},
]
ANSWER = [sse(*BEGIN, *END)]
OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
HI = History(conversation=(Message(role=Role.USER, content=(ContentPartText(text="hi"),)),))


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """The environment of whoever runs the tests has no say."""
    for variable in [each for each in os.environ if each.startswith("ANTHROPIC_")]:
        monkeypatch.delenv(variable)
    # The package looks for a profile there.
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def model_at(upstream: ScriptedUpstream, **arguments: Any) -> AnthropicModel:
    settings: dict[str, Any] = {"base_url": upstream.base_url, "api_key": "key", **arguments}
    return AnthropicModel("claude", **settings)


def key_of(request: Received) -> str:
    """The key that came with a request; some versions of the package send it as a bearer token."""
    bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
    return request.headers.get("x-api-key", bearer)


async def ask(model: AnthropicModel, history: History = HI) -> Accumulator:
    """The answer, folded; the model is closed behind it."""
    accumulator = Accumulator()
    try:
        async with model.stream(history) as batches:
            async for batch in batches:
                for chunk in batch:
                    accumulator.add(chunk)
    finally:
        await model.aclose()
    accumulator.close()
    return accumulator


async def test_the_request_is_as_the_api_wants_it() -> None:
    async with ScriptedUpstream(ANSWER) as upstream:
        history = History(system_message="Be brief.", context="Background.", conversation=HI.conversation)
        await ask(model_at(upstream), history)
        (request,) = upstream.requests
    assert (request.method, request.path) == ("POST", "/v1/messages")
    assert key_of(request) == "key"
    assert request.headers["anthropic-version"]  # which one, is the package's business
    assert request.json == {
        "model": "claude",
        "max_tokens": 8192,
        "stream": True,
        "system": "Be brief.",
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "Background."}, {"type": "text", "text": "hi"}],
            }
        ],
    }


async def test_the_converter_is_that_of_the_api() -> None:
    model = AnthropicModel("claude", api_key="key")
    assert isinstance(model.converter, AnthropicConverter)
    assert (model.provider, model.name) == ("anthropic", "claude")
    await model.aclose()


async def test_parameters_are_members_of_the_request_and_headers() -> None:
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    members = {"max_tokens": 5, "temperature": 0.5, "tools": tools, "from_the_future": {"a": 1}}
    async with ScriptedUpstream(ANSWER) as upstream:
        parameters = {**members, "extra_headers": {"anthropic-beta": "b"}}
        await ask(model_at(upstream, parameters=parameters))
        (request,) = upstream.requests
    assert request.headers["anthropic-beta"] == "b"
    del request.json["messages"]
    assert {name: request.json[name] for name in members} == members
    assert "system" not in request.json
    assert "extra_headers" not in request.json


async def test_a_round_of_tools_is_sent_and_its_answer_streams() -> None:
    call = ContentPartToolCall(id="toolu_1", name="f", arguments={"n": 1})
    result = ContentPartToolResult(id="toolu_1", name="f", output="2")
    turns = (Message(role=Role.MODEL, content=(call,)), Message(role=Role.TOOL, content=(result,)))
    async with ScriptedUpstream(ANSWER) as upstream:
        accumulator = await ask(model_at(upstream), HI.with_message(*turns))
        (request,) = upstream.requests
    assert request.json["messages"][1:] == [
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"n": 1}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "2"}]},
    ]
    assert accumulator.message().text == "Hello"
    assert accumulator.error is None
    assert accumulator.usage is not None
    assert (accumulator.usage.input_tokens, accumulator.usage.output_tokens) == (3, 2)


async def test_what_has_arrived_is_handed_on_before_the_rest_has() -> None:
    go_on = anyio.Event()
    async with ScriptedUpstream([sse(*BEGIN), Wait(go_on), sse(*END)]) as upstream:
        model = model_at(upstream)
        texts: list[str] = []
        async with model.stream(HI) as batches:
            async for batch in batches:
                texts.append("".join(chunk.get_text() for chunk in batch))
                go_on.set()
        await model.aclose()
    assert texts == ["Hel", "lo"]


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
async def test_the_address_may_have_the_version_or_not(suffix: str) -> None:
    async with ScriptedUpstream(ANSWER) as upstream:
        root = upstream.base_url.removesuffix("/v1")
        await ask(model_at(upstream, base_url=root + suffix))
        assert [request.path for request in upstream.requests] == ["/v1/messages"]


async def test_a_refusal_says_why() -> None:
    said = {"type": "error", "error": {"type": "invalid_request_error", "message": "max_tokens: too large"}}
    async with ScriptedUpstream(json_answer(said, 400)) as upstream:
        with pytest.raises(UpstreamError) as caught:
            await ask(model_at(upstream))
    error = caught.value
    assert (error.fault, error.status, error.code) == (UpstreamFault.STATUS, 400, "invalid_request_error")
    assert (error.message, error.provider) == ("max_tokens: too large", "anthropic")


async def test_a_request_that_was_refused_for_the_moment_is_sent_again() -> None:
    refusal = json_answer(OVERLOADED, 529, {"retry-after-ms": "1"})
    async with ScriptedUpstream(refusal, ANSWER) as upstream:
        accumulator = await ask(model_at(upstream))
        assert len(upstream.requests) == 2
    assert accumulator.message().text == "Hello"


async def test_retries_have_an_end() -> None:
    refusal = json_answer(OVERLOADED, 429, {"retry-after-ms": "1", "retry-after": "7"})
    async with ScriptedUpstream(refusal) as upstream:
        with pytest.raises(UpstreamError) as caught:
            await ask(model_at(upstream, max_retries=1))
        assert len(upstream.requests) == 2
    assert (caught.value.status, caught.value.retry_after, caught.value.tries) == (429, 0.001, 2)


async def test_an_error_in_the_stream_is_reported_beside_the_answer() -> None:
    async with ScriptedUpstream([sse(*BEGIN, OVERLOADED)]) as upstream:
        accumulator = await ask(model_at(upstream))
    assert accumulator.message().text == "Hel"
    assert accumulator.error is not None
    assert (accumulator.error.fault, accumulator.error.code) == (UpstreamFault.PROVIDER, "overloaded_error")
    assert accumulator.error.provider == "anthropic"


async def test_a_connection_that_breaks_is_an_error() -> None:
    async with ScriptedUpstream([sse(*BEGIN), Reset()]) as upstream:
        with pytest.raises(UpstreamError) as caught:
            await ask(model_at(upstream))
    assert caught.value.fault is UpstreamFault.TRUNCATED


async def test_what_had_arrived_before_the_connection_broke_is_handed_on() -> None:
    go_on = anyio.Event()
    texts: list[str] = []

    async def read(model: AnthropicModel, upstream: ScriptedUpstream) -> None:
        async with model.stream(HI) as batches:
            async for batch in batches:
                texts.append("".join(chunk.get_text() for chunk in batch))
                go_on.set()
                await upstream.requests[0].client_left.wait()  # the client knows that nothing follows

    async with ScriptedUpstream([sse(*BEGIN), Wait(go_on), sse(END[0]), Shut()]) as upstream:
        model = model_at(upstream)
        with pytest.raises(UpstreamError) as caught:
            await read(model, upstream)
        await model.aclose()
    assert texts == ["Hel", "lo"]
    assert caught.value.fault is UpstreamFault.TRUNCATED


async def test_chunks_are_taken_where_they_arrive() -> None:
    """As those of the other models are, see `tests/wrappers/test_http_model_at_once.py`."""
    go_on = anyio.Event()
    taken: list[str] = []

    def take(chunks: Sequence[ChunkWrapper[Any]]) -> bool:
        taken.append("".join(chunk.get_text() for chunk in chunks))
        return True

    async with ScriptedUpstream([Head(), Wait(go_on), *ANSWER]) as upstream:
        model = model_at(upstream)
        async with model.stream(HI) as batches:
            assert isinstance(batches, ArrivingBatches)
            batches.take_at_once(take)
            go_on.set()
            assert [batch async for batch in batches] == []
        await model.aclose()
    assert "".join(taken) == "Hello"


@pytest.mark.parametrize("steps", [[Hang()], [sse(*BEGIN), Hang()]], ids=["no answer", "half an answer"])
async def test_a_provider_that_falls_silent_is_an_error(steps: list[Step]) -> None:
    async with ScriptedUpstream(steps) as upstream:
        with pytest.raises(UpstreamError, match=r"sent nothing for 0\.1 seconds") as caught:
            await ask(model_at(upstream, read_timeout=0.1, max_retries=0))
    assert caught.value.fault is UpstreamFault.TIMEOUT


async def test_a_request_may_have_a_patience_of_its_own() -> None:
    async with ScriptedUpstream([sse(*BEGIN), Hang()]) as upstream:
        with pytest.raises(UpstreamError) as caught:
            await ask(model_at(upstream, parameters={"timeout": 0.1}))
    assert caught.value.fault is UpstreamFault.TIMEOUT


@pytest.mark.parametrize("status", [200, 400])
async def test_a_body_may_be_compressed(status: int) -> None:
    said = sse(*BEGIN, *END) if status == 200 else json.dumps(OVERLOADED).encode()
    kind = "text/event-stream" if status == 200 else "application/json"
    head = Head(status, {"content-type": kind, "content-encoding": "gzip"})
    async with ScriptedUpstream([head, gzip.compress(said)]) as upstream:
        if status == 200:
            assert (await ask(model_at(upstream))).message().text == "Hello"
        else:
            with pytest.raises(UpstreamError, match="Overloaded"):
                await ask(model_at(upstream))
        assert upstream.requests[0].headers["accept-encoding"] == "gzip, deflate"


async def test_a_request_follows_where_it_is_sent() -> None:
    away = Head(307, {"location": "/elsewhere", "content-length": "0"}, chunked=False)
    async with ScriptedUpstream([away], ANSWER) as upstream:
        assert (await ask(model_at(upstream))).message().text == "Hello"
        assert [request.path for request in upstream.requests] == ["/v1/messages", "/elsewhere"]
        assert upstream.requests[0].body == upstream.requests[1].body


@pytest.mark.parametrize("ending", [Cut(), Hang()], ids=["broken off", "silent"])
@pytest.mark.parametrize(
    ("body", "message"), [(json.dumps(OVERLOADED).encode(), "Overloaded"), (b'{"type":', '{"type":')]
)
async def test_a_refusal_whose_body_breaks_off_is_what_it_says_so_far(
    body: bytes, message: str, ending: Step
) -> None:
    head = Head(400, {"content-type": "application/json"})
    async with ScriptedUpstream([head, body, ending]) as upstream:
        with pytest.raises(UpstreamError) as caught:
            await ask(model_at(upstream, max_retries=0, read_timeout=0.3))
    error = caught.value
    assert (error.fault, error.status) == (UpstreamFault.STATUS, 400)
    assert message in error.message


async def test_a_provider_that_is_not_there_is_an_error() -> None:
    async with ScriptedUpstream(ANSWER) as upstream:
        model = model_at(upstream, max_retries=0)
    with pytest.raises(UpstreamError) as caught:
        await ask(model)
    assert caught.value.fault is UpstreamFault.CONNECTION


async def test_an_answer_that_is_not_streamed_is_understood() -> None:
    whole = {
        "type": "message",
        "id": "m",
        "content": [{"type": "text", "text": "Hi"}],
        "stop_reason": "end_turn",
    }
    async with ScriptedUpstream(json_answer(whole)) as upstream:
        accumulator = await ask(model_at(upstream))
    assert (accumulator.message().text, accumulator.error) == ("Hi", None)


async def test_a_server_that_repeats_the_beginning_of_its_blocks_may_be_read_so() -> None:
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Hel"}}
    async with ScriptedUpstream([sse(BEGIN[0], block, *BEGIN[2:], *END)]) as upstream:
        accumulator = await ask(model_at(upstream, start_repeated=True))
    assert accumulator.message().text == "Hello"


async def test_the_key_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "from the environment")
    async with ScriptedUpstream([Head(), *ANSWER]) as upstream:
        await ask(model_at(upstream, api_key=None))
        assert key_of(upstream.requests[0]) == "from the environment"


def test_without_a_key_the_error_names_the_variable() -> None:
    with pytest.raises(ConfigurationError, match="'claude-x': set ANTHROPIC_API_KEY"):
        AnthropicModel("claude-x")


def test_a_profile_that_cannot_be_read_is_no_key_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_PROFILE", "nowhere")
    with pytest.raises(ConfigurationError, match="'claude-x': set ANTHROPIC_API_KEY"):
        AnthropicModel("claude-x")


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anthropic", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'tailrace\[anthropic\]'"):
        AnthropicModel("claude", api_key="key")


def test_nothing_but_asking_needs_the_package() -> None:
    program = "import sys, tailrace.wrappers.anthropic.model; sys.exit('anthropic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
