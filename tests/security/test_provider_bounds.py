"""What a hostile provider returns is bounded: values of an event, tool calls, parts and choices, and bytes of a response."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import SecretStr

from support.event_frames import chunk as chunk_frame
from support.event_frames import event as event_frame
from support.live_server import serving
from support.rpc import Rpc, message
from support.upstream import ScriptedUpstream, Step, openai_chunk, openai_stream, sse
from tailrace.server import Settings, create_app
from tailrace.streaming import Accumulator
from tailrace.wrappers import UpstreamError, UpstreamFault
from tailrace.wrappers.decoding import decoder
from tailrace.wrappers.providers import find_provider


async def answer_of(steps: list[Step]) -> dict[str, Any]:
    """The task that a response of the provider becomes."""
    async with ScriptedUpstream(lambda _: steps) as upstream:
        settings = Settings(
            model="openai:m", base_url=upstream.base_url, api_key=SecretStr("none"), store="sqlite://"
        )
        async with serving(create_app(settings)) as url, Rpc(url) as rpc:
            sent = {**message("go"), "configuration": {"historyLength": 0}}
            return (await rpc.result("SendMessage", sent))["task"]


def error_of(task: dict[str, Any]) -> str:
    """The description of the error of a task that failed because a bound was exceeded."""
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    assert task["metadata"]["urn:tailrace:ext:stream:v1"]["error"]["type"] == "event_too_large"
    return task["status"]["message"]["parts"][0]["text"]


def text_of(task: dict[str, Any]) -> str:
    return "".join(part.get("text", "") for each in task["artifacts"] for part in each["parts"])


def calls(count: int) -> dict[str, Any]:
    return {
        "tool_calls": [
            {"index": at, "id": f"c{at}", "function": {"name": "f", "arguments": "{}"}} for at in range(count)
        ]
    }


def choices(count: int) -> dict[str, Any]:
    return {"choices": [{"index": at, "delta": {"content": "x"}} for at in range(count)]}


EXCESSES: dict[str, tuple[Any, str]] = {
    "values": (openai_chunk({"content": "never", "more": [0] * 60_000}), "50000 JSON values"),
    "values of a list": ([[]] * 60_000, "50000 JSON values"),
    "tool calls": (openai_chunk(calls(1_001)), "1000 tool calls"),
    "choices": (choices(1_001), "1000 choices"),
}


@pytest.mark.parametrize("excess", EXCESSES)
async def test_an_event_beyond_a_bound_fails_the_task_with_the_text_before_it(excess: str) -> None:
    event, bound = EXCESSES[excess]
    task = await answer_of([sse(openai_chunk({"content": "before"})), sse(event), *openai_stream(["after"])])
    assert bound in error_of(task)
    assert "before" in text_of(task)
    assert "after" not in text_of(task)


async def test_the_bytes_of_a_response_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "MAX_RESPONSE_BYTES", 1_000_000)
    task = await answer_of([sse(openai_chunk({"content": "x" * 10_000}))] * 200)
    assert "1000000 bytes" in error_of(task)
    assert len(text_of(task)) < 1_000_000


async def test_a_large_response_within_the_bounds_is_delivered() -> None:
    large = openai_chunk({"content": "x" * 100_000, "more": [0] * 40_000})
    task = await answer_of([sse(large), *openai_stream(["end"])])
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert text_of(task) == "x" * 100_000 + "end"


MANY_VALUES = [0] * 60_000
FRAMINGS: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "events": lambda value: b"data: " + json.dumps(value).encode() + b"\n\n",
    "lines": lambda value: json.dumps(value).encode() + b"\n",
}


@pytest.mark.parametrize("cut", [1_000, 1_000_000])
@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("provider", ["openai", "anthropic", "gemini", "ollama", "cohere", "bedrock"])
def test_values_are_counted_in_every_format_however_the_body_is_cut(
    provider: str, framing: str, cut: int
) -> None:
    reader = find_provider(provider).wire_format.create_decoder()
    body = FRAMINGS[framing]({"x": MANY_VALUES}) + FRAMINGS[framing]({"y": 1})
    accumulator = Accumulator()
    for at in range(0, len(body), cut):
        accumulator.add_all(reader.feed(body[at : at + cut]))
    assert reader.done
    accumulator.add_all(reader.close())
    assert accumulator.error is not None
    assert accumulator.error.fault is UpstreamFault.TOO_LARGE
    assert "50000 JSON values" in str(accumulator.error)


def test_the_parts_of_a_message_are_bounded() -> None:
    reader, accumulator = find_provider("gemini").wire_format.create_decoder(), Accumulator()
    parts = [{"text": "x"}, {"text": "y", "thought": True}] * 5_001
    event = {"candidates": [{"content": {"parts": parts}}]}
    accumulator.add_all(reader.feed(FRAMINGS["events"](event)))
    assert accumulator.error is not None
    assert accumulator.error.fault is UpstreamFault.TOO_LARGE
    assert "10000 parts" in str(accumulator.error)
    assert len(accumulator.message().content) == 10_000


@pytest.mark.parametrize(
    "body", [event_frame("messageStart", {"x": MANY_VALUES}), chunk_frame({"x": MANY_VALUES})]
)
def test_values_are_counted_in_binary_frames(body: bytes) -> None:
    reader, accumulator = find_provider("bedrock").wire_format.create_decoder(), Accumulator()
    accumulator.add_all(reader.feed(body))
    assert reader.done
    assert "50000 JSON values" in str(accumulator.error)


def test_the_bytes_of_a_response_in_binary_frames_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "MAX_RESPONSE_BYTES", 10_000)
    reader = find_provider("bedrock").wire_format.create_decoder()
    body = chunk_frame({"x": "y" * 1_000}) * 20
    with pytest.raises(UpstreamError, match="10000 bytes") as caught:
        reader.feed(body)
    assert caught.value.fault is UpstreamFault.TOO_LARGE
