"""The Messages decoder gives the same result for each framing of a body and for the anthropic package's objects."""

import json
from typing import Any

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from anthropic.types.beta import BetaFallbackBlock, BetaRawContentBlockStartEvent
from pydantic import BaseModel, TypeAdapter

from support.messages import accumulate
from tailrace.wrappers import (
    ContentPartData,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    UpstreamError,
    UpstreamFault,
    Usage,
)
from tailrace.wrappers.anthropic import AnthropicDecoder, AnthropicEventWrapper, wrap_chunk

EVENTS: list[dict[str, Any]] = [
    {
        "type": "message_start",
        "message": {
            "id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": [],
            "stop_reason": None, "stop_sequence": None,
            "usage": {"input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": 1},
        },
    },
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm…"}},
    {"type": "ping"},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "EqQB"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Let me "}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "see 🌊."}},
    {"type": "content_block_stop", "index": 1},
    {"type": "content_block_start", "index": 2, "content_block": {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {}}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": ""}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": "{\"city\": \"Oak"}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": "land\"}"}},
    {"type": "content_block_stop", "index": 2},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None}, "usage": {"output_tokens": 42}},
    {"type": "message_stop"},
]  # fmt: skip
PARTS = (
    ContentPartReasoning(text="hm…", signature="EqQB", metadata={"anthropic": {"type": "thinking"}}),
    ContentPartText(text="Let me see 🌊."),
    ContentPartToolCall(id="toolu_1", name="get_weather", arguments={"city": "Oakland"}),
)
WHOLE: dict[str, Any] = {
    **EVENTS[0]["message"],
    "content": [
        {"type": "thinking", "thinking": "hm…", "signature": "EqQB"},
        {"type": "text", "text": "Let me see 🌊."},
        {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Oakland"}},
    ],
    "stop_reason": "tool_use",
    "usage": {"input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": 42},
}


def sse(*events: dict[str, Any]) -> bytes:
    """Frame events as Anthropic does, padding included."""
    return b"".join(
        f"event: {event.get('type')}\ndata: {json.dumps(event, ensure_ascii=False)}    \n\n".encode()
        for event in events
    )


def data_only(*events: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


def decode(*reads: bytes, **options: Any) -> list[AnthropicEventWrapper]:
    decoder = AnthropicDecoder(**options)
    return [wrapper for data in reads for wrapper in decoder.feed(data)] + decoder.close()


def error_of(*reads: bytes) -> UpstreamError:
    errors = [
        each.details.error for each in decode(*reads) if each.details is not None and each.details.error
    ]
    assert len(errors) == 1
    return errors[0]


# --- bodies -----------------------------------------------------------------------------------------------------

BODIES = {
    "named events": sse(*EVENTS),
    "events without a name": data_only(*EVENTS),
    "a response without streaming": json.dumps(WHOLE).encode(),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_a_streamed_body_and_a_complete_body_have_the_same_content(body: bytes) -> None:
    for reads in ([body], [body[index : index + 1] for index in range(len(body))]):
        accumulator = accumulate(decode(*reads))
        assert accumulator.error is None
        assert accumulator.message().content == PARTS
        assert accumulator.message().metadata == {"finish_reason": "tool_calls"}
        usage = {"input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": 42}
        assert accumulator.usage == Usage(15, 42, 57, usage)
        assert accumulator.metadata == {"id": "msg_1", "model": "claude"}


def test_the_events_stand_behind_their_deltas() -> None:
    expected = [
        event for event in EVENTS if event["type"] not in ("ping", "content_block_stop", "message_stop")
    ]
    expected = [
        event for event in expected if event.get("delta") != {"type": "input_json_delta", "partial_json": ""}
    ]
    assert [wrapper.raw for wrapper in decode(sse(*EVENTS))] == expected


def test_done_is_the_end_of_a_message_and_what_follows_is_read() -> None:
    decoder = AnthropicDecoder()
    decoder.feed(sse(*EVENTS[:-1]))
    assert not decoder.done
    decoder.feed(sse(EVENTS[-1]))
    assert decoder.done
    wrappers = decoder.feed(sse({**EVENTS[0], "message": {"id": "msg_2"}}, *EVENTS[6:9]))
    assert accumulate(wrappers).message().text == "Let me see 🌊."


def test_a_stream_that_breaks_off_keeps_what_it_held() -> None:
    begun = {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "compaction", "content": "So far."},
    }
    cut = b'event: content_block_delta\ndata: {"type":"content_block_de'
    accumulator = accumulate(decode(sse(EVENTS[0], begun) + cut))
    assert [type(part) for part in accumulator.message().content] == [ContentPartData]
    assert accumulator.error is not None
    assert accumulator.error.fault is UpstreamFault.TRUNCATED
    accumulator = accumulate(decode(sse(*EVENTS[:12])))
    assert not accumulator.finished
    assert accumulator.error is not None
    assert accumulator.error.fault is UpstreamFault.TRUNCATED


OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}


@pytest.mark.parametrize(
    "body",
    [
        sse(*EVENTS[:9], OVERLOADED),
        data_only(*EVENTS[:9], OVERLOADED),
        data_only(*EVENTS[:9], {"error": OVERLOADED["error"]}),
        data_only(*EVENTS[:9])
        + b'event: error\ndata: {"type":"overloaded_error","message":"Overloaded"}\n\n',
    ],
)
def test_an_error_is_reported_beside_what_came_before(body: bytes) -> None:
    error = error_of(body)
    assert (error.fault, error.code, error.message) == (
        UpstreamFault.PROVIDER,
        "overloaded_error",
        "Overloaded",
    )
    assert accumulate(decode(body)).message().text == "Let me see 🌊."


# --- the anthropic package's objects ----------------------------------------------------------------------------

package_event: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def packaged(event: dict[str, Any]) -> BaseModel:
    return package_event.validate_python(event)


def test_the_packages_events_give_the_same_as_the_bytes() -> None:
    events = [event for event in EVENTS if event["type"] != "ping"]
    for chunks in (events, [packaged(event) for event in events]):
        accumulator = accumulate(wrapper for chunk in chunks for wrapper in wrap_chunk(chunk))
        assert accumulator.error is None
        assert accumulator.message().content == PARTS
        assert accumulator.metadata == {"id": "msg_1", "model": "claude"}


def test_a_single_event_has_all_its_content() -> None:
    block = {"type": "tool_use", "id": "a", "name": "f", "input": {"n": 1}}
    start = packaged({"type": "content_block_start", "index": 3, "content_block": block})
    assert accumulate(wrap_chunk(start)).message().content == (
        ContentPartToolCall(id="a", name="f", arguments={"n": 1}),
    )


def test_a_message_of_the_package_is_read_whole() -> None:
    for response in (WHOLE, Message.model_validate(WHOLE)):
        accumulator = accumulate(wrap_chunk(response))
        assert accumulator.message().content == PARTS
        assert accumulator.finished


def test_fields_that_have_another_name_in_the_package_have_their_own() -> None:
    block = {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}, "trigger": {"type": "refusal"}}
    event = BetaRawContentBlockStartEvent.construct(
        type="content_block_start", index=0, content_block=BetaFallbackBlock.model_validate(block)
    )
    (part,) = accumulate(wrap_chunk(event)).message().content
    assert part.metadata == {"anthropic": block}


def test_an_object_that_was_built_without_validation_is_no_reason_to_warn() -> None:
    built = Message.model_construct(type="message", content=[{"type": "text", "text": "a"}], model=1)
    assert accumulate(wrap_chunk(built)).message().text == "a"


def test_data_that_is_no_event_has_no_content() -> None:
    nothing: Any = "text"
    assert wrap_chunk(nothing) == []
