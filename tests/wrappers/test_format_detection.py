"""Detection of a body's format from its content."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.scenarios import in_reads
from tailrace.wrappers.format_detection import DetectingDecoder, detect_format
from tailrace.wrappers.openai import ChatCompletionsDecoder

TEXT = (Path(__file__).parents[1] / "fixtures/openai/text.sse").read_bytes()

OBJECTS: list[tuple[str | None, dict[str, Any]]] = [
    ("openai", {"choices": []}),
    ("openai", {"object": "chat.completion.chunk"}),
    ("openai", {"object": "text_completion", "choices": [{"text": "a"}]}),
    ("openai-responses", {"type": "response.created", "response": {}}),
    ("openai-responses", {"object": "response", "output": []}),
    ("anthropic", {"type": "message_start", "message": {}}),
    ("anthropic", {"type": "content_block_delta", "index": 0}),
    ("anthropic", {"type": "completion", "completion": "a", "stop_reason": None}),
    ("gemini", {"candidates": []}),
    ("gemini", {"promptFeedback": {"blockReason": "SAFETY"}}),
    ("gemini", {"event_type": "interaction.start"}),
    ("ollama", {"message": {"content": "a"}, "done": False}),
    ("ollama", {"response": "a", "done": False}),
    ("cohere", {"type": "content-delta", "index": 0}),
    ("cohere", {"type": "message-start"}),
    ("bedrock", {"event": "messageStart", "payload": {"role": "assistant"}}),
    ("bedrock", {"contentBlockDelta": {"delta": {"text": "a"}, "contentBlockIndex": 0}}),
    (None, {"type": "ping"}),
    (None, {"type": "error", "error": {"message": "overloaded"}}),
    (None, {"error": "no"}),
    (None, {}),
]


@pytest.mark.parametrize(("name", "fields"), OBJECTS, ids=lambda value: str(value)[:40])
def test_the_format_of_an_object_is_detected(name: str | None, fields: dict[str, Any]) -> None:
    assert detect_format(fields) == name


@pytest.mark.parametrize("frame", ["sse", "lines", "array"])
@pytest.mark.parametrize(("name", "fields"), [each for each in OBJECTS if each[0]], ids=str)
def test_the_format_of_a_body_is_detected_however_it_is_framed_and_cut(
    name: str, fields: dict[str, Any], frame: str
) -> None:
    payload = json.dumps(fields).encode()
    bodies = {
        "sse": b": hello\n\ndata: {}\n\ndata: " + payload + b"\n\n",
        "lines": b"{}\n" + payload + b"\n",
        "array": b"[{},\r\n" + payload + b"]",
    }
    for size in (1, 7, 10_000):
        decoder = DetectingDecoder()
        for data in in_reads(bodies[frame], size):
            decoder.feed(data)
        decoder.close()
        assert decoder.format == name


@pytest.mark.parametrize("size", [1, 100, 1_000_000])
def test_nothing_is_lost_while_the_format_is_not_known(size: int) -> None:
    known, unknown = ChatCompletionsDecoder(), DetectingDecoder()
    pings = b'data: {"type":"ping"}\n\n' * 20
    wanted = known.feed(pings + TEXT) + known.close()
    found = [chunk for data in in_reads(pings + TEXT, size) for chunk in unknown.feed(data)] + unknown.close()
    assert [chunk.get_text() for chunk in found] == [chunk.get_text() for chunk in wanted]
    assert (unknown.format, unknown.done) == ("openai", True)


def test_a_body_of_unknown_format_is_read_as_chat_completions() -> None:
    decoder = DetectingDecoder()
    assert decoder.feed(b'data: {"error": {"message": "overloaded"}}\n\n') == []
    (chunk,) = decoder.close()
    assert chunk.details is not None
    assert str(chunk.details.error) == "overloaded"
    assert decoder.format is None


def test_what_is_held_is_bounded() -> None:
    decoder = DetectingDecoder()
    for _ in range(30):
        decoder.feed(b"<p>" + b"x" * 50_000)
    (chunk,) = decoder.close()
    assert chunk.details is not None
    assert "not an event stream" in str(chunk.details.error)


def test_binary_frames_are_detected_by_their_checksum() -> None:
    decoder = DetectingDecoder()
    decoder.feed(b"\x00\xff\xfe" * 50)
    (chunk,) = decoder.close()
    assert chunk.details is not None
    assert "not an event stream" in str(chunk.details.error)
