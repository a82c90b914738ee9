"""The Ollama decoder: lines of chat and of generate, with missing, unusual, repeated and truncated data."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from support import messages
from support.package_objects import package_object
from tailrace.streaming.accumulator import Accumulator
from tailrace.wrappers import (
    ChunkDetails,
    ContentPartFile,
    FinishMessage,
    FinishReason,
    MessageAssembly,
    Role,
    ToolCallDelta,
    UpstreamFault,
    Usage,
)
from tailrace.wrappers.ollama import OllamaDecoder, OllamaWrapper, wrap_chunk

HEAD = {"model": "m", "created_at": "2026-08-04T19:59:21.358882Z"}
FACTS = {**HEAD, "created": 1785873561}
END = {
    "done": True,
    "done_reason": "stop",
    "total_duration": 9127309042,
    "load_duration": 59622792,
    "prompt_eval_count": 7,
    "prompt_eval_duration": 808018167,
    "eval_count": 3,
    "eval_duration": 7603807420,
}
PNG = b"\x89PNG\r\n\x1a\n rest"


def chat(content: str = "", *, done: bool = False, **fields: Any) -> dict[str, Any]:
    """A line of ``/api/chat``; further fields are members of the message."""
    return {**HEAD, "message": {"role": "assistant", "content": content, **fields}, "done": done}


def last(content: str = "", **fields: Any) -> dict[str, Any]:
    return {**chat(content), **END, **fields}


def generate(response: str, **fields: Any) -> dict[str, Any]:
    return {**HEAD, "response": response, "done": False, **fields}


def ndjson(*lines: object) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def decode(body: bytes, size: int = 0) -> list[OllamaWrapper]:
    decoder = OllamaDecoder(provider="ollama")
    step = size or max(len(body), 1)
    reads = [body[start : start + step] for start in range(0, len(body), step)]
    return [chunk for data in reads for chunk in decoder.feed(data)] + decoder.close()


def accumulate(body: bytes, size: int = 0) -> Accumulator:
    return messages.accumulate(decode(body, size))


def second(*lines: Mapping[str, Any]) -> OllamaWrapper:
    """The delta of a line after the first one, which holds the facts about the response."""
    return decode(ndjson(chat("first"), *lines))[1]


# --- one line ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "text", "reasoning"),
    [
        (chat("Hi"), "Hi", ""),
        (chat("", thinking="Hm"), "", "Hm"),
        (chat("Hi", thinking="Hm"), "Hi", "Hm"),
        (chat(""), "", ""),
        (generate("Hi"), "Hi", ""),
    ],
)
def test_a_line_of_text_or_reasoning_is_plain(line: dict[str, Any], text: str, reasoning: str) -> None:
    wrapper = second(line)
    assert (wrapper.get_text(), wrapper.get_reasoning(), wrapper.get_tool_calls()) == (text, reasoning, [])
    assert (wrapper.get_finish_message(), wrapper.get_usage()) == (None, None)
    assert (wrapper.choice, wrapper.details, wrapper.plain) == (0, None, True)
    assert wrapper.raw == line


def test_thinking_of_generate_stands_on_the_line() -> None:
    wrapper = second(generate("", thinking="Hm"))
    assert (wrapper.get_reasoning(), wrapper.details) == ("Hm", None)


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"content": None},
        {"role": "assistant", "content": None, "thinking": None, "tool_calls": None},
        {"role": "assistant", "content": 3, "thinking": [], "tool_calls": "x", "images": "y"},
    ],
)
def test_an_empty_or_misshapen_message_gives_empty_values(message: dict[str, Any]) -> None:
    wrapper = second({**HEAD, "message": message, "done": False})
    assert (wrapper.get_text(), wrapper.get_reasoning(), wrapper.get_tool_calls()) == ("", "", [])
    assert (wrapper.get_finish_message(), wrapper.get_usage(), wrapper.details) == (None, None, None)


@pytest.mark.parametrize("line", [{}, {"status": "pulling manifest"}, {"model": "m"}, {"error": ""}])
def test_a_line_without_content_is_no_delta(line: dict[str, Any]) -> None:
    assert decode(ndjson(chat("a"), line))[1:] == []
    assert wrap_chunk(line) is None


def test_the_facts_about_a_response_are_reported_once_and_when_they_change() -> None:
    first, same, other = decode(
        ndjson(chat("a"), {**chat("b"), "created_at": "2027-01-01T00:00:00Z"}, {**chat("c"), "model": "n"})
    )
    assert first.details == ChunkDetails(metadata=FACTS)
    assert same.details is None
    assert other.details == ChunkDetails(metadata={"model": "n"})


@pytest.mark.parametrize(
    ("created_at", "created"),
    [
        ("1970-01-01T00:01:00Z", 60),
        ("1970-01-01T01:01:00.123456789+01:00", 60),
        ("1970-01-01T00:01:00", 60),
        ("now", None),
        (12, None),
    ],
)
def test_the_time_is_also_reported_in_seconds(created_at: object, created: int | None) -> None:
    (wrapper,) = decode(ndjson({**chat("a"), "created_at": created_at}))
    assert wrapper.details is not None
    assert wrapper.details.metadata is not None
    assert wrapper.details.metadata["created_at"] == created_at
    assert wrapper.details.metadata.get("created") == created


def test_unknown_fields_are_kept() -> None:
    wrapper = second({**chat("a", audio="x"), "remote_model": "n"})
    assert wrapper.details == ChunkDetails(metadata={"remote_model": "n"}, extra={"audio": "x"})
    assert not wrapper.plain


def test_another_role_is_reported() -> None:
    assert second(chat("a", role="model")).details == ChunkDetails(role="model")


def test_the_media_type_of_an_image_is_detected_from_its_bytes() -> None:
    line = chat(
        "Here:",
        images=["iVBORw0KGgogcmVzdA==", "R0lGODlh", "/9j/", "Qk0=", "UklGRgAAAABXRUJQ", "AAAA", "*", 3],
    )
    wrapper = second(line)
    assert wrapper.details is not None
    assert wrapper.details.parts[0] == ContentPartFile(data=PNG, media_type="image/png")
    assert [getattr(part, "media_type", "") for part in wrapper.details.parts[1:]] == [
        "image/gif",
        "image/jpeg",
        "image/bmp",
        "image/webp",
        "image/*",
    ]  # fmt: skip


def test_log_probabilities_have_the_shape_of_chat_completions() -> None:
    entry = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
    accumulator = accumulate(
        ndjson({**chat("a"), "logprobs": [entry]}, {**chat("a"), "logprobs": [entry]}, last())
    )
    assert accumulator.choices[0].extra == {"logprobs": {"content": [entry, entry]}}


# --- tool calls -------------------------------------------------------------------------------------------------


def call(name: str, arguments: object, **fields: Any) -> dict[str, Any]:
    return {**fields, "function": {"name": name, "arguments": arguments}}


def test_a_call_comes_whole_with_its_arguments_as_text() -> None:
    sent = {"id": "c1", "function": {"index": 0, "name": "f", "arguments": {"city": "Zürich"}}}
    wrapper = second(chat("", tool_calls=[sent]))
    assert wrapper.get_tool_calls() == [
        ToolCallDelta(0, "c1", "f", '{"city": "Zürich"}', "function", {"ollama": {"function": {"index": 0}}})
    ]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(None, ""), ({}, "{}"), ('{"a": 1}', '{"a": 1}'), ([1], "[1]"), ({"a": None}, '{"a": null}')],
)
def test_arguments_of_any_kind_are_text(arguments: object, text: str) -> None:
    (delta,) = second(chat("", tool_calls=[call("f", arguments)])).get_tool_calls()
    assert delta.arguments == text


def test_unknown_fields_of_a_call_are_kept_to_be_sent_back() -> None:
    sent = {"id": "c1", "signature": "s", "function": {"name": "f", "strict": True}}
    (delta,) = second(chat("", tool_calls=[sent])).get_tool_calls()
    assert delta.extra == {"ollama": {"signature": "s", "function": {"strict": True}}}


@pytest.mark.parametrize(
    "lines",
    [
        [[call("f", {"n": 1})], [call("f", {"n": 2})]],
        [[call("f", {"n": 1}), call("f", {"n": 2})]],
        [[call("f", {"n": 1}, id="a")], [call("f", {"n": 2}, id="b")]],
        [[call("f", {"n": 1}, id="a")], [call("f", {"n": 2}, id="a")]],
        [[call("f", {"n": 1}, index=0)], [call("f", {"n": 2}, index=0)]],
    ],
    ids=["no ids", "one line", "ids", "the same id", "the same index"],
)
def test_every_entry_is_a_call_of_its_own(lines: list[list[dict[str, Any]]]) -> None:
    body = ndjson(*(chat("", tool_calls=calls) for calls in lines), last())
    assert [each.arguments for each in accumulate(body).message().tool_calls] == [{"n": 1}, {"n": 2}]


def test_calls_of_the_same_arguments_are_two_unless_they_share_the_id() -> None:
    without, one, two = call("f", {}), call("f", {}, id="a"), call("f", {}, id="b")
    body = ndjson(
        chat("", tool_calls=[without, without, one]), last(tool_calls=None), chat("", tool_calls=[one, two])
    )
    ids = [each.id for each in accumulate(body).message().tool_calls]
    assert ids == ["call_0", "call_1", "a", "b"]


def test_what_is_remembered_of_calls_is_bounded() -> None:
    decoder = OllamaDecoder()
    decoder.feed(ndjson(*(chat("", tool_calls=[call("f", {}, id=str(n))]) for n in range(3000))))
    assert len(decoder._reported_calls) == 1024  # pyright: ignore[reportPrivateUsage]


# --- the end ----------------------------------------------------------------------------------------------------


def test_the_last_line_has_the_reason_the_counts_and_the_durations() -> None:
    wrapper = second(last(context=[1, 2]))
    assert wrapper.get_finish_message() == FinishMessage(FinishReason.STOP, "stop")
    assert wrapper.get_usage() == Usage(7, 3, 10, {"prompt_eval_count": 7, "eval_count": 3})
    assert wrapper.details is not None
    assert wrapper.details.metadata == {
        "total_duration": 9127309042,
        "load_duration": 59622792,
        "prompt_eval_duration": 808018167,
        "eval_duration": 7603807420,
        "context": [1, 2],
    }


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("stop", FinishReason.STOP),
        ("length", FinishReason.LENGTH),
        ("tool_calls", FinishReason.TOOL_CALLS),
        ("load", FinishReason.UNSPECIFIED),
        ("unload", FinishReason.UNSPECIFIED),
        ("else", FinishReason.UNSPECIFIED),
        ("", FinishReason.STOP),
        (None, FinishReason.STOP),
    ],
)
def test_the_reason_is_a_common_word_beside_the_servers_own(raw: str | None, reason: FinishReason) -> None:
    assert second(last(done_reason=raw)).get_finish_message() == FinishMessage(reason, raw or "")


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({}, None),
        ({"eval_count": 3}, Usage(0, 3, 3, {"eval_count": 3})),
        ({"prompt_eval_count": 7, "eval_count": "x"}, Usage(7, 0, 7, {"prompt_eval_count": 7, "eval_count": "x"})),
    ],
)  # fmt: skip
def test_counts_may_be_missing(counts: dict[str, Any], expected: Usage | None) -> None:
    assert second({**chat("", done=True), **counts}).get_usage() == expected


def test_text_on_the_last_line_counts() -> None:
    assert accumulate(ndjson(chat("a"), last("b"))).message().text == "ab"


def test_stop_with_calls_counts_as_tool_calls() -> None:
    accumulator = accumulate(ndjson(chat("", tool_calls=[call("f", {})]), last()))
    assert accumulator.choices[0].finish_reason is FinishReason.TOOL_CALLS
    assert accumulator.error is None


@pytest.mark.parametrize(
    ("line", "message", "status", "code"),
    [
        ({"error": "XML syntax error"}, "XML syntax error", None, None),
        ({"error": "busy", "status": 503}, "busy", 503, None),
        ({"error": {"message": "no", "code": "x"}}, "no", None, "x"),
    ],
)
def test_an_error_in_the_stream_is_reported_and_earlier_content_is_kept(
    line: dict[str, Any], message: str, status: int | None, code: str | None
) -> None:
    accumulator = accumulate(ndjson(chat("a"), line))
    error = accumulator.error
    assert error is not None
    assert (error.fault, error.message, error.status, error.code) == (
        UpstreamFault.PROVIDER,
        message,
        status,
        code,
    )
    assert error.provider == "ollama"
    assert accumulator.message().text == "a"
    assert decode(ndjson(chat("a"), line))[1].raw == line


def test_an_error_beside_text_takes_nothing_from_it() -> None:
    wrapper = second({**chat("a"), "error": "no"})
    assert wrapper.get_text() == "a"
    assert wrapper.details is not None
    assert wrapper.details.error is not None


# --- framing, complete responses --------------------------------------------------------------------------------


def test_a_whole_response_is_understood() -> None:
    response = {
        **last(),
        "message": {
            "role": "assistant",
            "content": "Hi",
            "thinking": "Hm",
            "tool_calls": [call("f", {}, id="a")],
        },
    }
    accumulator = accumulate(json.dumps(response).encode())
    assert [part.type for part in accumulator.message().content] == ["reasoning", "text", "tool_call"]
    assert (accumulator.error, accumulator.usage) == (
        None,
        Usage(7, 3, 10, {"prompt_eval_count": 7, "eval_count": 3}),
    )


def test_generate_is_read_by_the_same_decoder() -> None:
    accumulator = accumulate(
        ndjson(
            generate("", thinking="Hm"),
            generate("A"),
            generate(" joke"),
            {**generate(""), **END, "context": [5]},
        )
    )
    assert (accumulator.message().reasoning, accumulator.message().text) == ("Hm", "A joke")
    assert accumulator.metadata["context"] == [5]
    assert accumulator.message().role is Role.MODEL
    assert accumulator.error is None


def test_the_packages_objects_are_taken_too() -> None:
    wrapper = wrap_chunk(package_object(chat("Hi", tool_calls=[call("f", {"n": 1}), call("f", {"n": 2})])))
    assert wrapper is not None
    assert wrapper.get_text() == "Hi"
    assembly = MessageAssembly()
    assembly.add(wrapper)
    assert [each.arguments for each in assembly.message().tool_calls] == [{"n": 1}, {"n": 2}]
