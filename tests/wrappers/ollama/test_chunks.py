"""The Ollama decoder: lines of chat and of generate, whatever is missing, odd, repeated or cut."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.strategies import json_objects, json_values
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
    """One line of ``/api/chat``; further fields are the message's."""
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
    accumulator = Accumulator()
    for chunk in decode(body, size):
        accumulator.add(chunk)
    accumulator.close()
    return accumulator


def second(*lines: Mapping[str, Any]) -> OllamaWrapper:
    """The delta of a line behind the first one, which tells the facts about the response."""
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
def test_a_line_that_says_nothing_is_no_delta(line: dict[str, Any]) -> None:
    assert decode(ndjson(chat("a"), line))[1:] == []
    assert wrap_chunk(line) is None


def test_the_facts_about_a_response_are_told_once_and_when_they_change() -> None:
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
def test_the_time_is_told_in_seconds_too(created_at: object, created: int | None) -> None:
    (wrapper,) = decode(ndjson({**chat("a"), "created_at": created_at}))
    assert wrapper.details is not None
    assert wrapper.details.metadata is not None
    assert wrapper.details.metadata["created_at"] == created_at
    assert wrapper.details.metadata.get("created") == created


def test_unknown_fields_are_kept() -> None:
    wrapper = second({**chat("a", audio="x"), "remote_model": "n"})
    assert wrapper.details == ChunkDetails(metadata={"remote_model": "n"}, extra={"audio": "x"})
    assert not wrapper.plain


def test_another_role_is_told() -> None:
    assert second(chat("a", role="model")).details == ChunkDetails(role="model")


def test_images_are_files_of_the_type_that_their_bytes_tell() -> None:
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
    assert len(decoder._known) == 1024  # pyright: ignore[reportPrivateUsage]


# --- the end ----------------------------------------------------------------------------------------------------


def test_the_last_line_tells_the_reason_the_counts_and_the_durations() -> None:
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


@pytest.mark.parametrize("body", [ndjson(chat("a")), ndjson(chat("a"), chat("b"))])
def test_a_body_without_a_last_line_is_truncated(body: bytes) -> None:
    accumulator = accumulate(body)
    assert accumulator.error is not None
    assert accumulator.error.fault is UpstreamFault.TRUNCATED
    assert accumulator.message().text.startswith("a")


def test_a_line_that_is_cut_keeps_what_came_before() -> None:
    accumulator = accumulate(ndjson(chat("a"), last())[:-20])
    assert accumulator.error is not None
    assert accumulator.error.fault is UpstreamFault.TRUNCATED
    assert accumulator.message().text == "a"


def test_the_last_line_may_lack_its_line_end() -> None:
    accumulator = accumulate(ndjson(chat("a"), last())[:-1])
    assert (accumulator.error, accumulator.finished) == (None, True)


def test_the_decoder_is_done_with_the_last_line() -> None:
    decoder = OllamaDecoder()
    decoder.feed(ndjson(chat("a")))
    assert not decoder.done
    decoder.feed(ndjson(last()))
    assert decoder.done


@pytest.mark.parametrize(
    ("line", "message", "status", "code"),
    [
        ({"error": "XML syntax error"}, "XML syntax error", None, None),
        ({"error": "busy", "status": 503}, "busy", 503, None),
        ({"error": {"message": "no", "code": "x"}}, "no", None, "x"),
    ],
)
def test_an_error_in_the_stream_is_told_and_what_came_before_is_kept(
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


# --- framing, whole responses -----------------------------------------------------------------------------------

BODY = ndjson(
    chat("", thinking="Hm, é"),
    chat("", thinking="…"),
    chat("Let me "),
    chat("see.\u2028\u0085"),
    chat("", tool_calls=[call("f", {"a": "\u2028"}, id="c1")]),
    chat("", tool_calls=[call("f", {"a": 2}, id="c2")]),
    last(),
)


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_a_body_means_the_same_wherever_it_is_cut(size: int) -> None:
    body = BODY.replace(b"\\u2028", "\u2028".encode()).replace(b"\\u00e9", "é".encode())
    whole, cut = accumulate(body), accumulate(body, size)
    assert cut.message() == whole.message()
    assert (cut.usage, cut.metadata, cut.error) == (whole.usage, whole.metadata, None)
    assert [part.type for part in whole.message().content] == ["reasoning", "text", "tool_call", "tool_call"]


@pytest.mark.parametrize(
    "body",
    [
        b"".join(b"data: " + each + b"\n\n" for each in BODY.splitlines()),
        b"[" + b",".join(BODY.splitlines()) + b"]",
        BODY.replace(b"\n", b"\r\n"),
    ],
    ids=["events", "an array", "CRLF"],
)
def test_lines_may_be_framed_otherwise(body: bytes) -> None:
    accumulator = accumulate(body)
    assert accumulator.message() == accumulate(BODY).message()
    assert (accumulator.metadata, accumulator.error) == (accumulate(BODY).metadata, None)


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
    class ChatResponse:
        def model_dump(self, *, mode: str, exclude_unset: bool, warnings: bool) -> dict[str, Any]:
            assert (mode, exclude_unset, warnings) == ("json", True, False)
            return chat("Hi", tool_calls=[call("f", {"n": 1}), call("f", {"n": 2})])

    wrapper = wrap_chunk(ChatResponse())
    assert wrapper is not None
    assert wrapper.get_text() == "Hi"
    assembly = MessageAssembly()
    assembly.add(wrapper)
    assert [each.arguments for each in assembly.message().tool_calls] == [{"n": 1}, {"n": 2}]


FIELDS = st.sampled_from(
    ["message", "response", "done", "done_reason", "error", "thinking", "tool_calls", "images", "model", "created_at",
     "eval_count", "prompt_eval_count", "logprobs", "context", "status"]
)  # fmt: skip
MESSAGES = st.dictionaries(
    st.sampled_from(["role", "content", "thinking", "tool_calls", "images", "function"]),
    json_values
    | st.lists(st.fixed_dictionaries({"id": json_values, "function": json_values | json_objects})),
)


@settings(deadline=None)
@given(
    st.lists(st.dictionaries(FIELDS, json_values | MESSAGES) | json_values, max_size=5), st.integers(1, 50)
)
def test_no_json_whatever_makes_the_decoder_raise(lines: list[Any], size: int) -> None:
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    accumulator = accumulate(body, size)
    accumulator.message()


def named(model: str | None, content: str) -> dict[str, Any]:
    return {**chat(content), "model": model}


PIECES = st.text(max_size=3)
LINES: st.SearchStrategy[dict[str, Any]] = (
    st.builds(chat, PIECES)
    | st.builds(chat, PIECES, thinking=PIECES)
    | st.builds(generate, PIECES)
    | st.builds(named, st.sampled_from(["m", "n", None]), PIECES)
    | st.sampled_from(
        [
            chat("", tool_calls=[call("f", {"a": 1}, id="a")]),
            chat("x", odd=1),
            {**chat("x"), "odd": 1},
            {"model": "m", "message": {"role": "assistant", "content": "x"}, "done": False, "odd": 1},
            last("x"),
        ]
    )
)  # fmt: skip


@settings(deadline=None)
@given(st.lists(LINES, max_size=8))
def test_lines_mean_the_same_read_at_speed_and_field_by_field(lines: list[dict[str, Any]]) -> None:
    slowly = OllamaDecoder()
    fast, slow = decode(ndjson(*lines)), [wrapper for line in lines for wrapper in slowly.wrap(line)]
    assert [
        (each.raw, each.text, each.reasoning, each.calls, each.finish, each.usage, each.details)
        for each in fast
    ] == [
        (each.raw, each.text, each.reasoning, each.calls, each.finish, each.usage, each.details)
        for each in slow
    ]


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_whatever_make_the_decoder_raise(body: bytes) -> None:
    accumulate(ndjson(chat("a")) + body)
    accumulate(body)
