"""The decoder of Bedrock's bodies: binary and decoded frames, complete, truncated, damaged and rejected."""

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from support.event_frames import chunk, converse, error, event, exception, frame, text_header
from tailrace.streaming.accumulator import Accumulator
from tailrace.wrappers import ContentPartText, ContentPartToolCall, FinishReason, UpstreamError, UpstreamFault
from tailrace.wrappers.bedrock import BedrockDecoder, wrap_chunk

EVENTS: list[Mapping[str, Any]] = [
    {"messageStart": {"role": "assistant", "p": "ab"}},
    {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": "Hé"}, "p": "abcdefg"}},
    {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": "llo"}, "p": "a"}},
    {"contentBlockStop": {"contentBlockIndex": 0, "p": "abc"}},
    {"contentBlockStart": {"contentBlockIndex": 1, "start": {"toolUse": {"toolUseId": "t", "name": "f"}}}},
    {"contentBlockDelta": {"contentBlockIndex": 1, "delta": {"toolUse": {"input": '{"a": 1}'}}}},
    {"contentBlockStop": {"contentBlockIndex": 1}},
    {"messageStop": {"stopReason": "tool_use"}},
    {
        "metadata": {
            "usage": {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3},
            "metrics": {"latencyMs": 1},
        }
    },
]
MODEL_CHUNKS: list[Mapping[str, Any]] = [
    {"generation": "Hé", "prompt_token_count": 1, "generation_token_count": 1, "stop_reason": None},
    {"generation": "llo", "prompt_token_count": None, "generation_token_count": 2, "stop_reason": "length",
     "amazon-bedrock-invocationMetrics": {"inputTokenCount": 1, "outputTokenCount": 2}},
]  # fmt: skip


def lines(*objects: object) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in objects)


def enveloped(event: Mapping[str, Any]) -> dict[str, Any]:
    ((name, payload),) = event.items()
    return {"event": name, "payload": payload}


def in_base64(payload: object) -> str:
    return base64.b64encode(json.dumps(payload).encode()).decode()


# The same streams in each form in which the service or boto3 returns them.
CONVERSE = {
    "frames": converse(*EVENTS),
    "enveloped": lines(*map(enveloped, EVENTS)),
    "as boto3 returns them": lines(*EVENTS),
    "an array": json.dumps(EVENTS).encode(),
    "server-sent events": b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in EVENTS),
}
INVOKE = {
    "frames": b"".join(map(chunk, MODEL_CHUNKS)),
    "decoded": lines(*({"event": "chunk", "payload": each, "chunk_bytes": True} for each in MODEL_CHUNKS)),
    "enveloped": lines(*({"event": "chunk", "payload": {"bytes": in_base64(each)}} for each in MODEL_CHUNKS)),
    "as boto3 returns them": lines(*({"chunk": {"bytes": in_base64(each)}} for each in MODEL_CHUNKS)),
    "bare": lines(*MODEL_CHUNKS),
}


def decode(reads: Iterable[bytes], **arguments: Any) -> Accumulator:
    decoder = BedrockDecoder(provider="bedrock", **arguments)
    answer = Accumulator()
    for wrapper in [each for data in reads for each in decoder.feed(data)] + decoder.close():
        answer.add(wrapper)
    answer.close()
    return answer


def assert_is_the_converse_answer(answer: Accumulator) -> None:
    assert answer.message().content == (
        ContentPartText(text="Héllo"),
        ContentPartToolCall(id="t", name="f", arguments={"a": 1}),
    )
    assert answer.first is not None
    assert answer.first.finish_reason is FinishReason.TOOL_CALLS
    assert answer.usage is not None
    assert answer.usage.total_tokens == 3
    assert answer.error is None


@pytest.mark.parametrize("form", CONVERSE)
def test_a_converse_stream_is_the_same_in_every_form(form: str) -> None:
    decoder = BedrockDecoder()
    decoder.feed(CONVERSE[form])
    assert decoder.done
    assert_is_the_converse_answer(decode([CONVERSE[form]]))


@pytest.mark.parametrize("form", INVOKE)
def test_a_model_stream_is_the_same_in_every_form(form: str) -> None:
    decoder = BedrockDecoder()
    decoder.feed(INVOKE[form])
    assert decoder.done
    answer = decode([INVOKE[form]])
    assert answer.message().content == (ContentPartText(text="Héllo"),)
    assert answer.first is not None
    assert answer.first.finish_reason is FinishReason.LENGTH
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (1, 2)
    assert answer.error is None


def test_a_response_that_was_not_streamed_is_understood() -> None:
    body = {
        "output": {"message": {"role": "assistant", "content": [{"text": "Hi"}]}},
        "stopReason": "end_turn",
        "usage": {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3},
    }
    answer = decode([json.dumps(body).encode()])
    assert answer.message().content == (ContentPartText(text="Hi"),)
    assert answer.finished


def test_a_stream_without_an_end_is_not_finished() -> None:
    answer = decode([converse(*EVENTS[:3])])
    assert answer.message().text == "Héllo"
    assert not answer.finished
    assert answer.error is not None
    assert answer.error.fault is UpstreamFault.TRUNCATED


def test_a_frame_that_breaks_off_is_an_error_and_what_came_before_is_kept() -> None:
    answer = decode([converse(*EVENTS)[:-3]])
    assert answer.message().text == "Héllo"
    assert answer.error is not None
    assert (answer.error.fault, answer.error.provider) == (UpstreamFault.TRUNCATED, "bedrock")
    assert "in the middle of a frame" in answer.error.message


def test_damage_is_one_error_and_nothing_behind_it_is_read() -> None:
    good, bad = converse(*EVENTS[:2]), bytearray(converse(EVENTS[2]))
    bad[-1] ^= 1
    decoder = BedrockDecoder(provider="bedrock")
    wrappers = [*decoder.feed(good + bytes(bad)), *decoder.feed(converse(*EVENTS[3:])), *decoder.close()]
    errors = [each.details.error for each in wrappers if each.details is not None and each.details.error]
    assert [each.get_text() for each in wrappers if each.get_text()] == ["Hé"]
    assert [(each.fault, each.message) for each in errors] == [
        (UpstreamFault.INVALID, "the stream is damaged: the checksum of a frame is wrong")
    ]


def test_a_frame_that_is_too_large_is_refused() -> None:
    decoder = BedrockDecoder(max_event_bytes=200)
    with pytest.raises(UpstreamError) as caught:
        decoder.feed(event("contentBlockDelta", {"delta": {"text": "x" * 300}}))
    assert caught.value.fault is UpstreamFault.TOO_LARGE


def test_a_frame_that_is_too_large_is_refused_too_when_it_ends_the_only_read() -> None:
    decoder = BedrockDecoder(max_event_bytes=200)
    delta = {"delta": {"text": "x"}}
    large = event("contentBlockDelta", {"delta": {"text": "x" * 300}})
    assert len(decoder.feed(event("contentBlockDelta", delta) + large)) == 1
    with pytest.raises(UpstreamError) as caught:
        decoder.close()
    assert caught.value.fault is UpstreamFault.TOO_LARGE


EXCEPTIONS = {
    "frame": exception("throttlingException", {"message": "slow down"}),
    "enveloped": lines({"event": "throttlingException", "payload": {"message": "slow down"}}),
    "as boto3 returns it": lines({"throttlingException": {"message": "slow down"}}),
}


@pytest.mark.parametrize("form", EXCEPTIONS)
def test_an_exception_is_an_error_and_what_came_before_is_kept(form: str) -> None:
    before = converse(*EVENTS[:3]) if form == "frame" else lines(*map(enveloped, EVENTS[:3]))
    decoder = BedrockDecoder()
    decoder.feed(before + EXCEPTIONS[form])
    assert decoder.done
    answer = decode([before, EXCEPTIONS[form]])
    assert answer.message().text == "Héllo"
    assert not answer.finished
    assert answer.error is not None
    assert (answer.error.fault, answer.error.code, answer.error.message) == (
        UpstreamFault.PROVIDER,
        "throttlingException",
        "slow down",
    )


def test_an_exception_that_is_not_json_has_its_text() -> None:
    answer = decode([exception("internalServerException", b"oh \xff no")])
    assert answer.error is not None
    assert (answer.error.code, answer.error.message) == ("internalServerException", "oh � no")


def test_an_error_frame_has_all_its_fields_in_the_headers() -> None:
    answer = decode([converse(*EVENTS[:2]), error("InternalError", "An internal error occurred")])
    assert answer.message().text == "Hé"
    assert answer.error is not None
    assert (answer.error.code, answer.error.message) == ("InternalError", "An internal error occurred")


@pytest.mark.parametrize(
    "body",
    [
        event("contentBlockDelta", b"{oops"),
        chunk(b"{oops"),
    ],
)
def test_a_payload_that_is_not_json_is_an_error(body: bytes) -> None:
    answer = decode([converse(*EVENTS[:2]), body])
    assert answer.error is not None
    assert answer.error.fault is UpstreamFault.INVALID
    assert "{oops" in answer.error.message


@pytest.mark.parametrize(
    "body",
    [
        frame({":message-type": text_header("event"), ":event-type": text_header("initial-response")}),
        frame({}),
        frame({":event-type": (4, b"\0\0\0\1")}, b"{}"),
        event("somethingNew", {"a": 1}),
        event("contentBlockDelta", [1]),
        event("chunk", []),
        event("chunk", {"bytes": in_base64([1])}),
        chunk({"unknown": 1}),
    ],
)
def test_an_empty_frame_has_no_content(body: bytes) -> None:
    decoder = BedrockDecoder()
    assert [*decoder.feed(body), *decoder.close()] == []


def test_a_chunk_may_hold_its_json_as_it_is() -> None:
    answer = decode([event("chunk", MODEL_CHUNKS[0])])
    assert answer.message().text == "Hé"


def test_json_that_only_python_reads_is_read() -> None:
    answer = decode([event("contentBlockDelta", b'{"delta": {"text": "a\\ud83d"}, "n": NaN}')])
    assert answer.message().text == "a�"


@pytest.mark.parametrize("body", [b"", b"\n", b": ping\n\n"])
def test_a_body_without_events_is_empty(body: bytes) -> None:
    decoder = BedrockDecoder()
    assert [*decoder.feed(body), *decoder.close()] == []


def test_a_body_that_is_something_else_is_an_error() -> None:
    answer = decode([b"<html>", b"no</html>"])
    assert answer.error is not None
    assert answer.error.fault is UpstreamFault.INVALID


def test_an_error_in_place_of_the_stream_is_one() -> None:
    answer = decode([b'{"message": "The security token is invalid"}'])
    assert answer.error is not None
    assert answer.error.message == "The security token is invalid"
    named = decode([b'event: error\ndata: {"message": "no"}\n\n'])
    assert named.error is not None
    assert named.error.message == "no"


def test_one_of_boto3s_events_is_wrapped() -> None:
    (wrapper,) = wrap_chunk({"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": "Hi"}}})
    assert wrapper.get_text() == "Hi"
    (wrapper,) = wrap_chunk({"chunk": {"bytes": b'{"outputs": [{"text": "Hi"}]}'}})
    assert wrapper.get_text() == "Hi"
    assert wrap_chunk({"contentBlockStop": {"contentBlockIndex": 0}}) == []


def test_a_frame_that_is_nested_too_deeply_is_an_error_and_no_exception() -> None:
    payload = b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    (wrapper,) = BedrockDecoder().feed(event("chunk", payload))
    assert wrapper.details is not None
    assert isinstance(wrapper.details.error, UpstreamError)
