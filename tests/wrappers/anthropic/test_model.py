"""The model of the Messages API, against a scripted upstream."""

import gzip
import json
import subprocess
import sys
from typing import Any

import anyio
import pytest

from support.options import NOW, ask
from support.upstream import (
    Cut,
    Hang,
    Head,
    ScriptedUpstream,
    Shut,
    Step,
    Wait,
    json_answer,
    sse,
)
from tailrace.wrappers import (
    ConfigurationError,
    ContentPartText,
    History,
    Message,
    RequestOptions,
    Role,
    ToolChoice,
    UpstreamError,
    UpstreamFault,
)
from tailrace.wrappers.anthropic.model import AnthropicModel
from tailrace.wrappers.anthropic.request import request_members
from tailrace.wrappers.request_options import NO_OPTIONS

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


pytestmark = pytest.mark.usefixtures("bare_environment")


def model_at(upstream: ScriptedUpstream, **arguments: Any) -> AnthropicModel:
    settings: dict[str, Any] = {"base_url": upstream.base_url, "api_key": "key", **arguments}
    return AnthropicModel("claude", **settings)


async def test_parameters_are_members_of_the_request_and_headers() -> None:
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    members = {"max_tokens": 5, "temperature": 0.5, "tools": tools, "from_the_future": {"a": 1}}
    async with ScriptedUpstream(ANSWER) as upstream:
        parameters = {**members, "extra_headers": {"anthropic-beta": "b"}}
        await ask(model_at(upstream, parameters=parameters), NO_OPTIONS)
        (request,) = upstream.requests
    assert request.headers["anthropic-beta"] == "b"
    del request.json["messages"]
    assert {name: request.json[name] for name in members} == members
    assert "system" not in request.json
    assert "extra_headers" not in request.json


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
async def test_the_address_may_have_the_version_or_not(suffix: str) -> None:
    async with ScriptedUpstream(ANSWER) as upstream:
        root = upstream.base_url.removesuffix("/v1")
        await ask(model_at(upstream, base_url=root + suffix), NO_OPTIONS)
        assert [request.path for request in upstream.requests] == ["/v1/messages"]


async def test_what_had_arrived_before_the_connection_broke_is_handed_on() -> None:
    go_on = anyio.Event()
    texts: list[str] = []

    async def read(model: AnthropicModel, upstream: ScriptedUpstream) -> None:
        async with model.stream(HI) as batches:
            async for batch in batches:
                texts.append("".join(chunk.get_text() for chunk in batch))
                go_on.set()
                await upstream.requests[0].client_left.wait()  # the client detects the end of the response

    async with ScriptedUpstream([sse(*BEGIN), Wait(go_on), sse(END[0]), Shut()]) as upstream:
        model = model_at(upstream)
        with pytest.raises(UpstreamError) as caught:
            await read(model, upstream)
        await model.aclose()
    assert texts == ["Hel", "lo"]
    assert caught.value.fault is UpstreamFault.TRUNCATED


async def test_a_request_may_have_a_patience_of_its_own() -> None:
    async with ScriptedUpstream([sse(*BEGIN), Hang()]) as upstream:
        with pytest.raises(UpstreamError) as caught:
            await ask(model_at(upstream, parameters={"timeout": 0.1}), NO_OPTIONS)
    assert caught.value.fault is UpstreamFault.TIMEOUT


@pytest.mark.parametrize("status", [200, 400])
async def test_a_body_may_be_compressed(status: int) -> None:
    body = sse(*BEGIN, *END) if status == 200 else json.dumps(OVERLOADED).encode()
    kind = "text/event-stream" if status == 200 else "application/json"
    head = Head(status, {"content-type": kind, "content-encoding": "gzip"})
    async with ScriptedUpstream([head, gzip.compress(body)]) as upstream:
        if status == 200:
            assert (await ask(model_at(upstream), NO_OPTIONS)).message().text == "Hello"
        else:
            with pytest.raises(UpstreamError, match="Overloaded"):
                await ask(model_at(upstream), NO_OPTIONS)
        assert upstream.requests[0].headers["accept-encoding"] == "gzip, deflate"


@pytest.mark.parametrize("ending", [Cut(), Hang()], ids=["broken off", "silent"])
@pytest.mark.parametrize(
    ("body", "message"), [(json.dumps(OVERLOADED).encode(), "Overloaded"), (b'{"type":', '{"type":')]
)
async def test_a_rejection_with_an_incomplete_body_has_the_received_text(
    body: bytes, message: str, ending: Step
) -> None:
    head = Head(400, {"content-type": "application/json"})
    async with ScriptedUpstream([head, body, ending]) as upstream:
        with pytest.raises(UpstreamError) as caught:
            await ask(model_at(upstream, max_retries=0, read_timeout=1), NO_OPTIONS)
    error = caught.value
    assert (error.fault, error.status) == (UpstreamFault.STATUS, 400)
    assert message in error.message


async def test_an_answer_that_is_not_streamed_is_understood() -> None:
    whole = {
        "type": "message",
        "id": "m",
        "content": [{"type": "text", "text": "Hi"}],
        "stop_reason": "end_turn",
    }
    async with ScriptedUpstream(json_answer(whole)) as upstream:
        accumulator = await ask(model_at(upstream), NO_OPTIONS)
    assert (accumulator.message().text, accumulator.error) == ("Hi", None)


async def test_a_server_that_repeats_the_beginning_of_its_blocks_may_be_read_so() -> None:
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Hel"}}
    async with ScriptedUpstream([sse(BEGIN[0], block, *BEGIN[2:], *END)]) as upstream:
        accumulator = await ask(model_at(upstream, start_repeated=True), NO_OPTIONS)
    assert accumulator.message().text == "Hello"


def test_a_profile_that_cannot_be_read_is_no_key_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_PROFILE", "nowhere")
    with pytest.raises(ConfigurationError, match="'claude-x': set ANTHROPIC_API_KEY"):
        AnthropicModel("claude-x")


def test_without_the_package_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anthropic", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'tailrace\[anthropic\]'"):
        AnthropicModel("claude", api_key="key")


def test_only_requests_need_the_package() -> None:
    program = "import sys, tailrace.wrappers.anthropic.model; sys.exit('anthropic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    ("mode", "several", "sent"),
    [
        ("none", False, {"type": "none"}),
        ("required", True, {"type": "any", "disable_parallel_tool_use": False}),
        ("tool", False, {"type": "tool", "name": "now", "disable_parallel_tool_use": True}),
    ],
)
def test_calling_several_tools_at_once_is_part_of_the_choice(
    mode: Any, several: bool, sent: dict[str, Any]
) -> None:
    choice = ToolChoice(mode=mode, name="now" if mode == "tool" else "")
    options = RequestOptions(tool_choice=choice, parallel_tool_calls=several)
    assert request_members(options) == {"tool_choice": sent}


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({}, {"type": "auto", "disable_parallel_tool_use": True}),
        ({"tool_choice": {"type": "any"}}, {"type": "any", "disable_parallel_tool_use": True}),
        ({"tool_choice": {"type": "none"}}, {"type": "none"}),
    ],
)
async def test_the_operators_tool_choice_stays_when_parallel_calls_are_disabled(
    given: dict[str, Any], sent: dict[str, Any]
) -> None:
    async with ScriptedUpstream(ANSWER) as upstream:
        parameters = {**given, "max_tokens": 9}
        options = RequestOptions(tools=(NOW,), parallel_tool_calls=False, max_output_tokens=7)
        await ask(model_at(upstream, parameters=parameters), options)
        request = (await upstream.received()).json
    assert request["tool_choice"] == sent
    assert request["max_tokens"] == 7
