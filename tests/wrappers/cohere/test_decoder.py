"""The Cohere decoder: each event of a stream, with missing, unusual, repeated and truncated data."""

import json
from typing import Any

import pytest

from support import messages
from support.package_objects import package_object
from tailrace.streaming.accumulator import Accumulator
from tailrace.wrappers import (
    ChunkDetails,
    ContentPartData,
    ContentPartReasoning,
    ContentPartText,
    FinishMessage,
    FinishReason,
    Message,
    MessageAssembly,
    ToolCallDelta,
    UpstreamFault,
    Usage,
)
from tailrace.wrappers.chunks import BlockDelta
from tailrace.wrappers.cohere import CohereDecoder, CohereWrapper, wrap_chunk

USAGE = {
    "billed_units": {"input_tokens": 5, "output_tokens": 2},
    "tokens": {"input_tokens": 50.0, "output_tokens": 7},
    "cached_tokens": 16,
}
CITATION = {
    "start": 0,
    "end": 5,
    "text": "Sunny",
    "type": "TEXT_CONTENT",
    "sources": [{"type": "tool", "id": "weather:0", "tool_output": {"sky": "Sunny"}}],
}
THINKING = {"cohere": {"type": "thinking"}}
PLAN = {"cohere": {"type": "tool_plan"}}


def event(kind: str, index: int | None = None, **message: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"type": kind}
    if index is not None:
        fields["index"] = index
    return {**fields, "delta": {"message": message}} if message else fields


def start(**message: Any) -> dict[str, Any]:
    message = {
        "role": "assistant",
        "content": [],
        "tool_plan": "",
        "tool_calls": [],
        "citations": [],
        **message,
    }
    return {"id": "r1", "type": "message-start", "delta": {"message": message}}


def text(piece: str, index: int = 0, kind: str = "content-delta") -> dict[str, Any]:
    begins = {"type": "text"} if kind == "content-start" else {}
    return event(kind, index, content={**begins, "text": piece})


def thinking(piece: str, index: int = 0, kind: str = "content-delta") -> dict[str, Any]:
    begins = {"type": "thinking"} if kind == "content-start" else {}
    return event(kind, index, content={**begins, "thinking": piece})


def plan(piece: str) -> dict[str, Any]:
    return event("tool-plan-delta", tool_plan=piece)


def call(name: str, call_id: str, index: int | None = 0, arguments: str = "") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return event(
        "tool-call-start", index, tool_calls={"id": call_id, "type": "function", "function": function}
    )


def arguments(piece: str, index: int | None = 0) -> dict[str, Any]:
    return event("tool-call-delta", index, tool_calls={"function": {"arguments": piece}})


def end(reason: str | None = "COMPLETE", **delta: Any) -> dict[str, Any]:
    return {"type": "message-end", "delta": {"finish_reason": reason, "usage": USAGE, **delta}}


def sse(*events: Any, names: bool = True) -> bytes:
    body = b""
    for each in events:
        name = f"event: {each['type']}\n" if names and isinstance(each, dict) and "type" in each else ""
        body += f"{name}data: {json.dumps(each)}\n\n".encode()
    return body


def decode(body: bytes, size: int = 0) -> list[CohereWrapper]:
    decoder = CohereDecoder(provider="cohere")
    step = size or max(len(body), 1)
    reads = [body[begin : begin + step] for begin in range(0, len(body), step)]
    return [chunk for data in reads for chunk in decoder.feed(data)] + decoder.close()


def accumulate(body: bytes, size: int = 0) -> Accumulator:
    return messages.accumulate(decode(body, size))


def message_of(*events: Any) -> Message:
    return accumulate(sse(*events)).message()


def only(each: Any) -> CohereWrapper:
    (wrapper,) = decode(sse(each))
    return wrapper


# --- single events ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("each", "shown", "reasoning"), [(text("Hi"), "Hi", ""), (thinking("Hm"), "", "Hm"), (text(""), "", "")]
)
def test_a_delta_of_text_or_thinking_is_plain(each: dict[str, Any], shown: str, reasoning: str) -> None:
    wrapper = only(each)
    assert (wrapper.get_text(), wrapper.get_reasoning(), wrapper.get_tool_calls()) == (shown, reasoning, [])
    assert (wrapper.get_finish_message(), wrapper.get_usage()) == (None, None)
    assert (wrapper.choice, wrapper.details, wrapper.plain) == (0, None, True)
    assert wrapper.raw == each


def test_the_index_may_be_missing() -> None:
    wrapper = only(event("content-delta", content={"text": "Hi"}))
    assert (wrapper.get_text(), wrapper.plain, wrapper.details) == ("Hi", True, None)


@pytest.mark.parametrize(
    "each",
    [
        {"type": "content-delta", "index": 0, "delta": None},
        {"type": "content-delta", "index": 0, "delta": {"message": {"content": None}}},
        {"type": "content-end", "index": 0},
        {"type": "tool-call-end", "index": 0},
        {"type": "citation-end", "index": 0},
        {"type": "unheard-of"},
        {},
    ],
)
def test_an_event_without_content_is_no_delta(each: dict[str, Any]) -> None:
    assert decode(sse(each)) == []


@pytest.mark.parametrize("content", [{"text": None}, {"text": 3}, {"thinking": []}, {"type": "text"}, {}])
def test_a_misshapen_delta_gives_empty_values(content: dict[str, Any]) -> None:
    wrapper = only(event("content-delta", 0, content=content))
    assert (wrapper.get_text(), wrapper.get_reasoning(), wrapper.get_tool_calls()) == ("", "", [])


def test_the_start_has_the_id_and_other_known_facts() -> None:
    wrapper = only({**start(model="m"), "generation": 1})
    assert wrapper.details == ChunkDetails(metadata={"id": "r1", "generation": 1, "model": "m"})


def test_a_message_may_have_begun_with_its_start() -> None:
    message = message_of(
        start(content=[{"type": "thinking", "thinking": "Hm"}, {"type": "text", "text": "Hi"}]), end()
    )
    assert message.content == (
        ContentPartReasoning(text="Hm", metadata=THINKING),
        ContentPartText(text="Hi"),
    )


def test_log_probabilities_are_kept_as_a_list() -> None:
    item = {"text": "Hi", "token_ids": [1], "logprobs": [-0.1]}
    accumulator = accumulate(sse({**text("Hi"), "logprobs": item}, {**text("!"), "logprobs": item}, end()))
    assert accumulator.choices[0].extra == {"logprobs": [item, item]}
    assert accumulator.message().text == "Hi!"


def test_log_probabilities_in_the_place_of_the_index_are_seen() -> None:
    wrapper = only({"type": "content-delta", "delta": text("Hi")["delta"], "logprobs": {"text": "Hi"}})
    assert wrapper.details == ChunkDetails(extra={"logprobs": [{"text": "Hi"}]})


def test_a_debug_event_is_a_fact_about_the_response() -> None:
    assert only({"type": "debug", "prompt": "<BOS>"}).details == ChunkDetails(metadata={"prompt": "<BOS>"})


# --- blocks -----------------------------------------------------------------------------------------------------


def test_blocks_are_parts_of_their_own_even_of_the_same_index() -> None:
    message = message_of(
        start(),
        thinking("", kind="content-start"),
        thinking("Hm"),
        thinking("…"),
        event("content-end", 0),
        text("", kind="content-start"),
        text("One"),
        event("content-end", 0),
        text("Tw", kind="content-start"),
        text("o"),
        end(),
    )
    assert message.content == (
        ContentPartReasoning(text="Hm…", metadata=THINKING),
        ContentPartText(text="One"),
        ContentPartText(text="Two"),
    )


def test_a_block_without_text_is_none() -> None:
    assert decode(sse(thinking("", kind="content-start"), event("content-end", 0))) == []
    message = message_of(
        thinking("", kind="content-start"), text("", kind="content-start"), text("Hi"), end()
    )
    assert message.content == (ContentPartText(text="Hi"),)


def test_a_block_of_an_unknown_type_is_data() -> None:
    block = {"type": "audio", "audio": "AAAA"}
    message = message_of(text("a"), event("content-start", 1, content=block), text("b"), end())
    assert message.content == (
        ContentPartText(text="a"),
        ContentPartData(data=block, metadata={"cohere": {"type": "audio"}}),
        ContentPartText(text="b"),
    )


def test_a_block_that_nests_too_deep_is_no_reason_to_fail() -> None:
    deep: list[Any] = []
    for _ in range(60):
        deep = [deep]
    message = message_of(event("content-start", 0, content={"type": "odd", "deep": deep}), end())
    assert message.content[0].type == "data"


def test_a_plan_is_reasoning_of_its_own() -> None:
    events = [
        start(),
        thinking("", kind="content-start"),
        thinking("Hm"),
        plan("I will"),
        plan(" look."),
        call("f", "c1"),
        plan("And"),
        plan(" again."),
        call("f", "c2", 1),
        end("TOOL_CALL"),
    ]
    content = message_of(*events).content
    assert [(part.type, getattr(part, "text", "")) for part in content] == [
        ("reasoning", "Hm"),
        ("reasoning", "I will look."),
        ("tool_call", ""),
        ("reasoning", "And again."),
        ("tool_call", ""),
    ]
    assert [part.metadata for part in content if part.type == "reasoning"] == [THINKING, PLAN, PLAN]


def test_the_pieces_of_a_plan_are_plain_but_for_the_first() -> None:
    first, second = decode(sse(plan("I will"), plan(" look.")))
    assert first.details == ChunkDetails(block=BlockDelta("reasoning", starts_block=True, metadata=PLAN))
    assert (second.details, second.plain, second.get_reasoning()) == (None, True, " look.")


def test_a_plan_that_begins_with_nothing_is_a_plan_all_the_same() -> None:
    message = message_of(plan(""), plan("I"), plan(" will"), call("f", "a"), end())
    assert message.content[0] == ContentPartReasoning(text="I will", metadata=PLAN)


@pytest.mark.parametrize(
    ("kind", "position"), [("TEXT_CONTENT", 1), (None, 1), ("THINKING_CONTENT", 0), ("PLAN", 0)]
)
def test_a_citation_annotates_its_block_and_the_message(kind: str | None, position: int) -> None:
    citation = {**CITATION, "type": kind}
    message = message_of(
        thinking("", kind="content-start"),
        thinking("Hm"),
        text("", 1, kind="content-start"),
        text("Sunny.", 1),
        event("citation-start", 0, citations=citation),
        event("citation-end", 0),
        event("citation-start", 1, citations=citation),
        end(),
    )
    assert message.content[position].metadata["cohere"]["citations"] == [citation, citation]
    assert "citations" not in message.content[1 - position].metadata.get("cohere", {})
    assert message.metadata["extra"] == {"annotations": [citation, citation]}


# --- tool calls -------------------------------------------------------------------------------------------------


def test_the_fragments_of_a_call_are_joined() -> None:
    wrappers = decode(sse(call("f", "c1", 3), arguments('{"a', 3), arguments('": 1}', 3), end("TOOL_CALL")))
    assert [wrapper.get_tool_calls() for wrapper in wrappers[:3]] == [
        [ToolCallDelta(0, "c1", "f", "", "function")],
        [ToolCallDelta(0, "", "", '{"a')],
        [ToolCallDelta(0, "", "", '": 1}')],
    ]


CALLS: dict[str, list[dict[str, Any]]] = {
    "one after the other": [
        call("f", "a", 0),
        arguments('{"n": 1}', 0),
        event("tool-call-end", 0),
        call("f", "b", 1),
        arguments('{"n": 2}', 1),
    ],
    "interleaved": [
        call("f", "a", 0),
        call("f", "b", 1),
        arguments('{"n":', 0),
        arguments('{"n":', 1),
        arguments("2}", 1),
        arguments("1}", 0),
    ],
    "the same id": [
        call("f", "tool_name0", 0),
        arguments('{"n": 1}', 0),
        call("f", "tool_name0", 1),
        arguments('{"n": 2}', 1),
    ],
    "the same id and index": [
        call("f", "tool_name0", 0),
        arguments('{"n": 1}', 0),
        call("f", "tool_name0", 0),
        arguments('{"n": 2}', 0),
    ],
    "no index": [
        call("f", "a", None),
        arguments('{"n": 1}', None),
        call("f", "a", None),
        arguments('{"n": 2}', None),
    ],
    "arguments at the start": [
        call("f", "a", 0, '{"n": '),
        arguments("1}", 0),
        call("f", "b", 1, '{"n": 2}'),
    ],
    "arguments after the end": [
        call("f", "a", 0),
        event("tool-call-end", 0),
        arguments('{"n": 1}', 0),
        call("f", "b", 1, '{"n": 2}'),
    ],
    "a list of calls": [
        event(
            "tool-call-start",
            0,
            tool_calls=[
                {"id": n, "function": {"name": "f", "arguments": {"n": i}}} for i, n in ((1, "a"), (2, "b"))
            ],
        )
    ],
}


@pytest.mark.parametrize("events", CALLS.values(), ids=CALLS.keys())
def test_two_calls_stay_two(events: list[dict[str, Any]]) -> None:
    calls = message_of(*events, end("TOOL_CALL")).tool_calls
    assert [(each.name, each.arguments) for each in calls] == [("f", {"n": 1}), ("f", {"n": 2})]


def test_a_call_without_arguments_has_none() -> None:
    (only_call,) = message_of(call("f", "a"), event("tool-call-end", 0), end("TOOL_CALL")).tool_calls
    assert (only_call.arguments, only_call.arguments_error) == ({}, None)


def test_arguments_whose_start_was_lost_are_kept() -> None:
    (only_call,) = message_of(arguments('{"n": 1}', 4), end("TOOL_CALL")).tool_calls
    assert (only_call.name, only_call.arguments) == ("", {"n": 1})


def test_unknown_fields_of_a_call_are_kept_to_be_sent_back() -> None:
    fields = {"id": "a", "type": "function", "seal": "s", "function": {"name": "f", "strict": True}}
    (delta,) = only(event("tool-call-start", 0, tool_calls=fields)).get_tool_calls()
    assert delta.extra == {"cohere": {"seal": "s", "function": {"strict": True}}}


def test_what_is_remembered_of_calls_is_bounded() -> None:
    decoder = CohereDecoder()
    decoder.feed(sse(*(call("f", str(n), n) for n in range(3000))))
    assert len(decoder._open_calls) <= 1024  # pyright: ignore[reportPrivateUsage]


# --- the end ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("COMPLETE", FinishReason.STOP),
        ("STOP_SEQUENCE", FinishReason.STOP),
        ("MAX_TOKENS", FinishReason.LENGTH),
        ("ERROR_LIMIT", FinishReason.LENGTH),
        ("TOOL_CALL", FinishReason.TOOL_CALLS),
        ("ERROR_TOXIC", FinishReason.CONTENT_FILTER),
        ("USER_CANCEL", FinishReason.UNSPECIFIED),
    ],
)
def test_the_reason_is_a_common_word_beside_the_providers_own(raw: str, reason: FinishReason) -> None:
    wrapper = only(end(raw))
    assert wrapper.get_finish_message() == FinishMessage(reason, raw)
    assert wrapper.details is None


@pytest.mark.parametrize("raw", ["ERROR", "TIMEOUT", "NETWORK_ERROR", "ERROR_UNHEARD_OF"])
def test_a_failure_in_the_place_of_a_reason_is_an_error(raw: str) -> None:
    accumulator = accumulate(sse(text("Hi"), end(raw)))
    assert accumulator.error is not None
    assert (accumulator.error.fault, accumulator.error.code) == (UpstreamFault.PROVIDER, raw)
    assert accumulator.choices[0].finish == FinishMessage(FinishReason.UNSPECIFIED, raw)
    assert accumulator.message().text == "Hi"


def test_the_end_may_have_an_error() -> None:
    accumulator = accumulate(sse(text("Hi"), end("ERROR", error="out of memory")))
    assert accumulator.error is not None
    assert (accumulator.error.message, accumulator.error.provider) == ("out of memory", "cohere")


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (USAGE, Usage(50, 7, 57, USAGE)),
        ({"billed_units": USAGE["billed_units"]}, Usage(5, 2, 7, {"billed_units": USAGE["billed_units"]})),
        ({"tokens": {"input_tokens": 1}}, Usage(1, 0, 1, {"tokens": {"input_tokens": 1}})),
        ({"tokens": {"input_tokens": 1.5}}, None),
        ({"tokens": None}, None),
        ({}, None),
        (None, None),
    ],
)
def test_the_tokens_of_the_prompt_count_before_those_that_are_billed(
    usage: dict[str, Any] | None, expected: Usage | None
) -> None:
    assert only(end(usage=usage)).get_usage() == expected


def test_an_end_without_a_reason_is_no_finish() -> None:
    accumulator = accumulate(sse(text("Hi"), end(None)))
    assert accumulator.error is not None
    assert accumulator.error.fault is UpstreamFault.TRUNCATED


ERRORS: dict[str, bytes] = {
    "an event of type error": b'event: error\ndata: {"message": "oops"}\n\n',
    "a type": sse({"type": "error", "message": "oops"}),
    "an object": sse({"error": {"message": "oops"}}),
    "a text": sse({"error": "oops"}),
    "a message": sse({"id": "x", "message": "oops"}),
    "beside an event": sse({**text(""), "error": "oops"}),
    "beside a plan": sse({**plan(""), "error": "oops"}),
    "beside the start of a block": sse({**text("", kind="content-start"), "error": "oops"}),
}


@pytest.mark.parametrize("body", ERRORS.values(), ids=ERRORS.keys())
def test_an_error_in_the_stream_is_reported_and_earlier_content_is_kept(body: bytes) -> None:
    accumulator = accumulate(sse(text("Hi"), plan("I will")) + body)
    assert accumulator.error is not None
    assert (accumulator.error.message, accumulator.error.fault) == ("oops", UpstreamFault.PROVIDER)
    assert accumulator.message().text == "Hi"


# --- framing, complete responses --------------------------------------------------------------------------------

EVENTS = [
    start(),
    thinking("", kind="content-start"),
    thinking("Hm, é"),
    event("content-end", 0),
    text("", 1, kind="content-start"),
    text("Sun\u2028", 1),
    text("ny.", 1),
    event("citation-start", 0, citations=CITATION),
    event("content-end", 1),
    plan("I will"),
    plan(" look."),
    call("f", "a"),
    arguments('{"n":'),
    arguments(" 1}"),
    event("tool-call-end", 0),
    end("TOOL_CALL"),
]


def test_a_whole_response_is_understood() -> None:
    item = {"text": "Sunny.", "token_ids": [1], "logprobs": [-0.1]}
    response = {
        "id": "r1",
        "finish_reason": "TOOL_CALL",
        "message": {
            "role": "assistant",
            "tool_plan": "I will look.",
            "content": [
                {"type": "thinking", "thinking": "Hm"},
                {"type": "text", "text": ""},
                {"type": "text", "text": "Sunny."},
            ],
            "citations": [CITATION],
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"n": 1}'}},
                {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"n": 2}'}},
            ],
        },
        "usage": USAGE,
        "logprobs": [item],
    }
    accumulator = accumulate(json.dumps(response).encode())
    message = accumulator.message()
    assert message.content[:3] == (
        ContentPartReasoning(text="I will look.", metadata=PLAN),
        ContentPartReasoning(text="Hm", metadata=THINKING),
        ContentPartText(text="Sunny.", metadata={"cohere": {"citations": [CITATION]}}),
    )
    assert [each.arguments for each in message.tool_calls] == [{"n": 1}, {"n": 2}]
    assert message.metadata["extra"] == {"annotations": [CITATION], "logprobs": [item]}
    assert (accumulator.error, accumulator.usage) == (None, Usage(50, 7, 57, USAGE))
    assert accumulator.metadata == {"id": "r1"}


def test_a_whole_response_may_have_text_alone() -> None:
    accumulator = accumulate(
        b'{"message": {"role": "assistant", "content": "Hi"}, "finish_reason": "COMPLETE"}'
    )
    assert accumulator.message().text == "Hi"
    assert accumulator.finished


def test_the_packages_events_have_the_same_content_one_by_one() -> None:
    assembly = MessageAssembly()
    for each in EVENTS:
        for wrapper in wrap_chunk(package_object(each)):
            assembly.add(wrapper)
    whole = message_of(*EVENTS)
    assert assembly.message().content == whole.content
    assert assembly.message().metadata == whole.metadata


def test_wrapping_leaves_the_event_as_it_is() -> None:
    each = {**text("Hi"), "error": "oops"}
    assert wrap_chunk(each)[0].raw == {**text("Hi"), "error": "oops"}
    assert each == {**text("Hi"), "error": "oops"}
