"""Misbehaving upstreams: the task fails with an explanation, and keeps the text received so far.

Responses are not continued here, except where a test is about it.
"""

import socket
from typing import Any

import anyio
import pytest

from support.live_server import serving
from support.rpc import Rpc, message, streamed_text, text_of
from support.upstream import (
    Cut,
    Hang,
    Head,
    Raw,
    Reset,
    ScriptedUpstream,
    Step,
    Wait,
    json_answer,
    openai_chunk,
    openai_stream,
    sse,
)
from tailrace.server import Settings, create_app
from tailrace.server.runtime.agent_handler import AgentHandler
from tailrace.streaming import Agent
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.wrappers.providers import find_provider

HELLO = openai_stream(["Hel", "lo"], finish=None)


def settings(base_url: str, **changes: Any) -> Settings:
    values = {"model": "openai:scripted", "base_url": base_url, "api_key": "none", "store": "sqlite://"}
    return Settings.model_validate({**values, **changes})


async def ask(
    base_url: str, when_hello: anyio.Event | None = None, **changes: Any
) -> tuple[dict[str, Any], str]:
    """Send one message to a real server; return the final task and the streamed text.

    ``when_hello`` is set after the client has received "Hello", so that later upstream actions cannot overtake it.
    """

    def seen(events: list[tuple[int, dict[str, Any]]]) -> None:
        if when_hello is not None and streamed_text(events) == "Hello":
            when_hello.set()

    app = create_app(settings(base_url, bounds={"upstream_retries": 0, "continue_attempts": 0, **changes}))
    async with serving(app) as url, Rpc(url) as rpc:
        events = await rpc.stream("SendStreamingMessage", message(), seen=seen)
        assert [number for number, _ in events] == list(range(1, len(events) + 1))
        task = await rpc.result("GetTask", {"id": events[0][1]["task"]["id"]})
        assert events[-1][1]["statusUpdate"]["status"] == task["status"]
        # The server is still healthy: another message gets its task.
        again = await rpc.result("SendMessage", {**message(), "configuration": {"returnImmediately": True}})
        assert again["task"]["id"] != task["id"]
    return task, streamed_text(events)


def reason(task: dict[str, Any]) -> str:
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    [part] = task["status"]["message"]["parts"]
    return part["text"]


def error_type(task: dict[str, Any]) -> str:
    return task["metadata"]["urn:tailrace:ext:stream:v1"]["error"]["type"]


async def test_a_provider_that_cannot_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    task, text = await ask(f"http://127.0.0.1:{port}/v1")
    assert "cannot be reached" in reason(task)
    assert error_type(task) == "connection_failed"
    assert text == ""


@pytest.mark.parametrize(
    ("status", "detail"), [(400, "Incorrect tool"), (404, "no such model"), (429, "slow down"), (500, "oops")]
)
async def test_a_provider_that_refuses(status: int, detail: str) -> None:
    answer = json_answer({"error": {"message": detail, "code": "why"}}, status, {"retry-after": "7"})
    async with ScriptedUpstream(answer) as upstream:
        task, _ = await ask(upstream.base_url)
    assert detail in reason(task)
    assert f"HTTP {status}" in reason(task)
    facts = task["metadata"]["urn:tailrace:ext:stream:v1"]["error"]
    assert facts == {"type": "http_status", "status": status, "code": "why", "retryAfter": 7.0}


async def test_a_proxy_that_answers_with_a_page() -> None:
    page = [Head(200, {"content-type": "text/html"}), b"<html><body>Bad gateway</body></html>"]
    async with ScriptedUpstream(page) as upstream:
        task, text = await ask(upstream.base_url)
    assert "<html>" in reason(task)
    assert error_type(task) == "invalid_stream"
    assert text == ""


async def test_an_error_object_instead_of_a_stream() -> None:
    async with ScriptedUpstream(json_answer({"error": {"message": "no capacity"}})) as upstream:
        task, _ = await ask(upstream.base_url)
    assert "no capacity" in reason(task)


BROKEN: dict[str, tuple[list[Step], str, str]] = {
    "garbage in an event": ([sse(b"{nonsense")], "invalid_stream", "nonsense"),
    "an error event": ([sse({"error": {"message": "GPU fell off"}})], "provider_error", "GPU fell off"),
    "an end without a finish reason": ([], "stream_truncated", "before the response was complete"),
    "an end inside an event": ([b'data: {"choices":[{"del'], "stream_truncated", "broke off"),
    "a body cut off": ([Cut()], "stream_truncated", "broke"),
    "a connection reset": ([Reset()], "stream_truncated", "broke"),
    "bytes that are not HTTP": ([Raw(b"\xff\xfe what?\r\n"), Hang()], "stream_truncated", "not HTTP"),
}


@pytest.mark.parametrize("case", BROKEN)
async def test_a_stream_that_breaks_keeps_what_arrived(case: str) -> None:
    ending, fault, words = BROKEN[case]
    shown = anyio.Event()
    async with ScriptedUpstream([*HELLO, Wait(shown), *ending], openai_stream(["ok"])) as upstream:
        task, text = await ask(upstream.base_url, shown, read_timeout=10.0)
    assert error_type(task) == fault
    assert words in reason(task)
    assert text == "Hello"
    assert text_of(task) == "Hello"


@pytest.mark.parametrize(
    ("failing", "fault"),
    [
        (json_answer({"error": {"message": "no capacity"}}, 503), "http_status"),
        ([Reset()], "connection_failed"),
        (openai_stream([], finish=None), "stream_truncated"),
        ([sse({"error": {"message": "GPU fell off"}})], "provider_error"),
    ],
    ids=["refused", "reset", "empty", "error"],
)
async def test_a_further_attempt_without_content_leaves_what_arrived(failing: list[Step], fault: str) -> None:
    """The text stays, the error is that of the attempt that sent the text, and the last one is listed."""
    shown = anyio.Event()
    script = [*HELLO, Wait(shown), sse({"error": {"message": "overloaded", "code": "overloaded"}})]
    async with ScriptedUpstream(script, failing) as upstream:
        task, text = await ask(upstream.base_url, shown, continue_attempts=1)
    assert text == text_of(task) == "Hello"
    assert "overloaded" in reason(task)
    assert error_type(task) == "provider_error"
    attempts = task["metadata"]["urn:tailrace:ext:stream:v1"]["attempts"]
    assert [each["error"]["type"] for each in attempts] == ["provider_error", fault]
    assert [part["text"] for part in task["history"][-1]["parts"]] == ["Hello"]


@pytest.mark.parametrize(("script", "kept"), [([Hang()], ""), ([*HELLO, Hang()], "Hello")])
async def test_a_provider_that_falls_silent(script: list[Step], kept: str) -> None:
    async with ScriptedUpstream(script) as upstream:
        task, text = await ask(upstream.base_url, read_timeout=1.0)
        assert (await upstream.received()).client_left.is_set()
    assert "sent nothing for 1 second" in reason(task)
    assert error_type(task) == "timeout"
    assert text == text_of(task) == kept


async def test_a_filtered_answer_is_not_a_completed_one() -> None:
    async with ScriptedUpstream(openai_stream(["Well, "], finish="content_filter")) as upstream:
        task, _ = await ask(upstream.base_url)
    assert "content_filter" in reason(task)
    assert text_of(task) == "Well, "


async def test_a_response_truncated_at_its_length_limit_is_marked() -> None:
    async with ScriptedUpstream(openai_stream(["Once upon"], finish="length")) as upstream:
        task, _ = await ask(upstream.base_url)
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert task["metadata"]["urn:tailrace:ext:stream:v1"]["finishReason"] == "length"


async def test_a_refused_request_is_sent_again_while_nothing_was_received() -> None:
    answers = (json_answer({"error": "busy"}, 503, {"retry-after": "0.01"}), openai_stream(["ok"]))
    async with ScriptedUpstream(*answers) as upstream:
        async with serving(create_app(settings(upstream.base_url))) as url, Rpc(url) as rpc:
            result = await rpc.result("SendMessage", message())
    assert result["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert text_of(result["task"]) == "ok"
    assert len(upstream.requests) == 2


async def test_the_request_to_the_provider_holds_instructions_and_conversation() -> None:
    async with ScriptedUpstream(openai_stream(["ok"])) as upstream:
        app = create_app(settings(upstream.base_url, api_key="secret", instructions="Be brief."))
        async with serving(app) as url, Rpc(url) as rpc:
            await rpc.result("SendMessage", message("hi"))
        received = await upstream.received()
    assert received.headers["authorization"] == "Bearer secret"
    assert received.json["stream"] is True
    assert received.json["stream_options"] == {"include_usage": True}
    assert [each["role"] for each in received.json["messages"]] == ["system", "user"]
    assert [each["content"] for each in received.json["messages"]] == ["Be brief.", "hi"]


async def test_tool_calls_wait_for_the_caller_and_the_results_go_on_with_the_task() -> None:
    call = {"index": 0, "id": "call_1", "function": {"name": "weather", "arguments": '{"city":"Paris"}'}}
    asks = [sse(openai_chunk({"tool_calls": [call]})), sse(openai_chunk({}, finish="tool_calls"), "[DONE]")]
    async with ScriptedUpstream(asks, openai_stream(["Sunny."])) as upstream:
        async with serving(create_app(settings(upstream.base_url))) as url, Rpc(url) as rpc:
            first = await rpc.stream("SendStreamingMessage", message("Weather?"))
            status = first[-1][1]["statusUpdate"]["status"]
            assert status["state"] == "TASK_STATE_INPUT_REQUIRED"
            expected = {"call_id": "call_1", "name": "weather", "arguments": {"city": "Paris"}}
            written = {EXTENSION_URI: {"argumentsText": ['{"city":"Paris"}']}}
            assert status["message"]["parts"] == [{"data": {"tool_calls": [expected]}, "metadata": written}]
            results = [{"call_id": "call_1", "name": "weather", "output": "sun"}]
            answer = message(taskId=first[0][1]["task"]["id"])
            answer["message"]["parts"] = [{"data": {"tool_results": results}}]
            with anyio.fail_after(10):
                second = await rpc.stream("SendStreamingMessage", answer)
        received = await upstream.received(1)
    assert second[0][0] > first[-1][0]
    assert second[0][1]["task"]["id"] == first[0][1]["task"]["id"]
    assert second[-1][1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert streamed_text(second) == "Sunny."
    assert [each["role"] for each in received.json["messages"]] == ["user", "assistant", "tool"]
    assert received.json["messages"][2]["tool_call_id"] == "call_1"


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_what_the_model_thought_before_a_call_goes_back_with_the_callers_results(field: str) -> None:
    call = {"index": 0, "id": "call_1", "function": {"name": "weather_get_b8affdae", "arguments": "{}"}}
    sealed = {"type": "reasoning.encrypted", "data": "QUJD", "index": 0, "format": "openai-responses-v1"}
    asks = [
        sse(openai_chunk({field: "The caller "})),
        sse(openai_chunk({field: "knows."})),
        sse(openai_chunk({"reasoning_details": [sealed]})),
        sse(openai_chunk({"tool_calls": [call]})),
        sse(openai_chunk({}, finish="tool_calls"), "[DONE]"),
    ]
    tools = [{"type": "function", "function": {"name": "weather.get"}}]
    async with ScriptedUpstream(asks, openai_stream(["Sunny."])) as upstream:
        model = find_provider("vllm").create_model(
            "m", base_url=upstream.base_url, parameters={"tools": tools}
        )
        app = create_app(Settings(store="sqlite://"), handler=AgentHandler(Agent(model)))
        async with serving(app) as url, Rpc(url) as rpc:
            first = await rpc.stream("SendStreamingMessage", message("Weather?"))
            (part,) = first[-1][1]["statusUpdate"]["status"]["message"]["parts"]
            assert [each["name"] for each in part["data"]["tool_calls"]] == ["weather.get"]
            answer = message(taskId=first[0][1]["task"]["id"])
            results = [{"call_id": "call_1", "name": "weather.get", "output": "sun"}]
            answer["message"]["parts"] = [{"data": {"tool_results": results}}]
            with anyio.fail_after(10):
                await rpc.stream("SendStreamingMessage", answer)
        request, received = await upstream.received(0), await upstream.received(1)
    assert request.json["tools"] == [{"type": "function", "function": {"name": "weather_get_b8affdae"}}]
    reply = received.json["messages"][1]
    assert reply[field] == "The caller knows."
    assert reply["reasoning_details"] == [sealed]
    assert reply["tool_calls"][0]["function"]["name"] == "weather_get_b8affdae"
