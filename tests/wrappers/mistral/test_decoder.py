"""Mistral's decoder: content that is an ordered list of parts, and calls in each form."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from support.scenarios import cut_at
from tailrace.streaming.accumulator import Accumulator
from tailrace.wrappers import (
    ContentPart,
    ContentPartData,
    ContentPartFile,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    FinishReason,
)
from tailrace.wrappers.mistral import MistralDecoder, wrap_chunk

THINKING = {"mistral": {"type": "thinking"}}


def chunk(
    content: object = None, *, index: int = 0, finish: str | None = None, **delta: Any
) -> dict[str, Any]:
    fields = {**({} if content is None else {"content": content}), **delta}
    return {
        "id": "x",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{"index": index, "delta": fields, "finish_reason": finish}],
        "p": "abcd",
    }


def thinking(*texts: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"type": "thinking", "thinking": [{"type": "text", "text": text} for text in texts], **fields}]


def text(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}]


def reference(*ids: int) -> list[dict[str, Any]]:
    return [{"type": "reference", "reference_ids": list(ids)}]


def body(*chunks: object) -> bytes:
    return b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in chunks) + b"data: [DONE]\n\n"


def decode(*reads: bytes) -> Accumulator:
    decoder = MistralDecoder(provider="mistral")
    answer = Accumulator()
    for wrapper in [each for data in reads for each in decoder.feed(data)] + decoder.close():
        answer.add(wrapper)
    answer.close()
    return answer


def parts(*chunks: object) -> tuple[ContentPart, ...]:
    return decode(body(*chunks)).message().content


def test_an_answer_of_text_is_as_in_chat_completions() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    answer = decode(
        body(chunk("", role="assistant"), chunk("Hel"), {**chunk("lo", finish="stop"), "usage": usage})
    )
    assert answer.message().content == (ContentPartText(text="Hello"),)
    assert answer.first is not None
    assert answer.first.finish_reason is FinishReason.STOP
    assert answer.usage is not None
    assert answer.usage.total_tokens == 3
    assert answer.metadata == {"id": "x", "model": "m", "created": 1}
    assert answer.error is None


def test_more_text_is_plain() -> None:
    decoder = MistralDecoder()
    decoder.feed(body(chunk("a"))[: -len(b"data: [DONE]\n\n")])
    (wrapper,) = decoder.feed(b"data: " + json.dumps(chunk("b")).encode() + b"\n\n")
    assert (wrapper.get_text(), wrapper.plain, wrapper.details) == ("b", True, None)


def test_more_thinking_is_plain_with_the_part_as_it_was() -> None:
    decoder = MistralDecoder()
    part = thinking("b", "c", closed=True)
    events = [b"data: " + json.dumps(chunk(content)).encode() + b"\n\n" for content in (thinking("a"), part)]
    decoder.feed(events[0])
    (wrapper,) = decoder.feed(events[1])
    assert (wrapper.get_reasoning(), wrapper.get_text(), wrapper.plain) == ("bc", "", True)
    assert wrapper.delta.model_extra == {"content": part}


def test_facts_that_change_while_the_model_thinks_are_reported() -> None:
    answer = decode(
        body(chunk(thinking("a")), {**chunk(thinking("b")), "model": "other"}, chunk(thinking("c")))
    )
    assert answer.message().reasoning == "abc"
    assert answer.metadata["model"] == "m"
    changed = decode(body(chunk(thinking("a")), {**chunk(thinking("b")), "model": "other"}))
    assert changed.metadata["model"] == "other"


ANSWER = (ContentPartReasoning(text="2+2", metadata=THINKING), ContentPartText(text="4"))
THOUGHTS: dict[str, list[dict[str, Any]]] = {
    "in chunks of their own": [chunk(thinking("2+")), chunk(thinking("2", closed=True)), chunk("4")],
    "with text as a part": [chunk(thinking("2+2"), role="assistant"), chunk(text("4"))],
    "with text in the same chunk": [chunk(thinking("2+")), chunk([*thinking("2"), *text("4")])],
    "all in one chunk": [chunk([*thinking("2+", "2"), *text("4")], finish="stop")],
    "as text, not nested": [chunk([{"type": "thinking", "thinking": "2+2"}]), chunk("4")],
    "under the name that other providers use": [chunk("4", reasoning_content="2+2")],
    "between empty text": [chunk(""), chunk(thinking("2+2")), chunk(""), chunk("4")],
    "beside a fresh field": [chunk(thinking("2+2", signature=None)), chunk("4", index_hint=1)],
}  # fmt: skip


@pytest.mark.parametrize("form", THOUGHTS)
def test_thinking_is_reasoning_that_is_marked_as_mistrals(form: str) -> None:
    assert parts(*THOUGHTS[form]) == ANSWER


def test_thinking_between_text_stays_between() -> None:
    assert parts(chunk(thinking("a")), chunk("b"), chunk(thinking("c")), chunk("d")) == (
        ContentPartReasoning(text="a", metadata=THINKING),
        ContentPartText(text="b"),
        ContentPartReasoning(text="c", metadata=THINKING),
        ContentPartText(text="d"),
    )


def test_thinking_before_a_call() -> None:
    call = {
        "id": "g6fVbXS8K",
        "type": "function",
        "index": 0,
        "function": {"name": "f", "arguments": '{"a": 1}'},
    }
    assert parts(chunk(thinking("hm")), chunk(tool_calls=[call], finish="tool_calls")) == (
        ContentPartReasoning(text="hm", metadata=THINKING),
        ContentPartToolCall(id="g6fVbXS8K", name="f", arguments={"a": 1}),
    )


CITED = {"mistral": {"references": reference(1, 2)}}
CITATIONS: dict[str, list[dict[str, Any]]] = {
    "in chunks of their own": [chunk("It rains"), chunk(reference(1, 2)), chunk(" today.")],
    "in one chunk": [chunk([*text("It rains"), *reference(1, 2), *text(" today.")])],
    "with text outside a part": [chunk([*text("It "), *text("rains"), *reference(1, 2)]), chunk(" today.")],
}


@pytest.mark.parametrize("form", CITATIONS)
def test_references_belong_to_the_text_before_them(form: str) -> None:
    answer = decode(body(*CITATIONS[form], chunk("", finish="stop")))
    assert answer.message().content == (
        ContentPartText(text="It rains", metadata=CITED),
        ContentPartText(text=" today."),
    )
    assert answer.first is not None
    assert answer.first.extra == {"annotations": reference(1, 2)}
    assert answer.first.finish_reason is FinishReason.STOP


def test_references_one_after_the_other_belong_to_the_same_text() -> None:
    assert parts(chunk("a"), chunk(reference(1)), chunk(reference(2)), chunk("b")) == (
        ContentPartText(text="a", metadata={"mistral": {"references": [*reference(1), *reference(2)]}}),
        ContentPartText(text="b"),
    )


def test_a_reference_before_any_text_stands_alone() -> None:
    assert parts(chunk(thinking("a")), chunk(reference(1)), chunk("b")) == (
        ContentPartReasoning(text="a", metadata=THINKING),
        ContentPartText(text="", metadata={"mistral": {"references": reference(1)}}),
        ContentPartText(text="b"),
    )


def test_references_inside_thinking_are_annotations() -> None:
    inner = [{"type": "text", "text": "a"}, *reference(3)]
    answer = decode(body(chunk([{"type": "thinking", "thinking": inner}])))
    assert answer.message().content == (ContentPartReasoning(text="a", metadata=THINKING),)
    assert answer.first is not None
    assert answer.first.extra == {"annotations": reference(3)}


def test_other_parts_are_parts() -> None:
    image = {"type": "image_url", "image_url": "data:image/png;base64,UA=="}
    odd = {"type": "tool_file", "file_id": "f"}
    assert parts(chunk([*text("a"), image, *reference(1), odd])) == (
        ContentPartText(text="a"),
        ContentPartFile(data=b"P", media_type="image/png"),
        ContentPartText(text="", metadata={"mistral": {"references": reference(1)}}),
        ContentPartData(data=odd, metadata={"mistral": {"type": "tool_file"}}),
    )


CALL = {"function": {"name": "f", "arguments": '{"a": 1}'}}


def test_whole_calls_without_an_index_are_calls_of_their_own() -> None:
    calls = [{"id": "aaaaaaaa1", **CALL}, {"id": "aaaaaaaa2", **CALL}]
    assert parts(chunk(tool_calls=calls, finish="tool_calls")) == (
        ContentPartToolCall(id="aaaaaaaa1", name="f", arguments={"a": 1}),
        ContentPartToolCall(id="aaaaaaaa2", name="f", arguments={"a": 1}),
    )


def test_a_call_may_come_in_fragments() -> None:
    assert parts(
        chunk(
            "",
            tool_calls=[
                {"id": "c", "type": "function", "index": 0, "function": {"name": "f", "arguments": ""}}
            ],
        ),
        chunk(
            "",
            tool_calls=[{"type": "function", "index": 0, "function": {"name": "", "arguments": '{"a": 1}'}}],
        ),
    ) == (ContentPartToolCall(id="c", name="f", arguments={"a": 1}),)


def test_an_id_that_is_the_word_null_is_none() -> None:
    (part,) = parts(chunk(tool_calls=[{"id": "null", "index": 0, **CALL}]))
    assert part == ContentPartToolCall(id="call_0", name="f", arguments={"a": 1}, synthetic_id=True)


def test_further_fields_of_a_call_stand_under_mistrals_name() -> None:
    (part,) = parts(chunk(tool_calls=[{"id": "c", "index": 0, "hint": 1, **CALL}], finish="tool_calls"))
    assert part == ContentPartToolCall(
        id="c", name="f", arguments={"a": 1}, metadata={"mistral": {"hint": 1}}
    )


def test_several_answers_stay_apart() -> None:
    answer = decode(
        body(
            chunk(thinking("a"), index=0), chunk(thinking("b"), index=1), chunk("c", index=1), chunk("d", index=0)
        )
    )  # fmt: skip
    assert answer.message(0).content == (
        ContentPartReasoning(text="a", metadata=THINKING),
        ContentPartText(text="d"),
    )
    assert answer.message(1).content == (
        ContentPartReasoning(text="b", metadata=THINKING),
        ContentPartText(text="c"),
    )


def test_several_answers_may_think_in_one_chunk() -> None:
    both = {
        **chunk(),
        "choices": [chunk(thinking("a"))["choices"][0], chunk(thinking("b"), index=1)["choices"][0]],
    }
    answer = decode(body(both, both, chunk([*thinking("c"), *thinking("d")])))
    assert answer.message(0).reasoning == "aacd"
    assert answer.message(1).reasoning == "bb"


def test_the_length_limit_of_the_model_is_one() -> None:
    answer = decode(body(chunk("a", finish="model_length")))
    assert answer.first is not None
    assert answer.first.finish_reason is FinishReason.LENGTH


def test_an_error_in_the_stream_keeps_what_came_before() -> None:
    failure = {"object": "error", "message": "Service unavailable", "type": "internal", "code": "3505"}
    answer = decode(body(chunk("Hel"), failure))
    assert answer.message().text == "Hel"
    assert answer.error is not None
    assert (answer.error.message, answer.error.code) == ("Service unavailable", "3505")


RESPONSE: dict[str, Any] = {
    "id": "x",
    "object": "chat.completion",
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": [*thinking("hm"), *text("It rains"), *reference(1), *text(".")],
                "tool_calls": [{"id": "c", **CALL}],
            },
        }
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
}


def test_a_response_that_was_not_streamed_has_the_same_content() -> None:
    answer = decode(json.dumps(RESPONSE).encode())
    assert answer.message().content == (
        ContentPartReasoning(text="hm", metadata=THINKING),
        ContentPartText(text="It rains", metadata={"mistral": {"references": reference(1)}}),
        ContentPartText(text="."),
        ContentPartToolCall(id="c", name="f", arguments={"a": 1}),
    )
    assert answer.finished
    assert answer.usage is not None


def test_a_message_behind_its_deltas_adds_nothing() -> None:
    whole = {**RESPONSE, "choices": [{**RESPONSE["choices"][0], "message": {"content": "It rains."}}]}
    assert parts(chunk("It "), chunk("rains."), whole) == (ContentPartText(text="It rains."),)


def test_the_packages_objects_are_wrapped() -> None:
    class CompletionEvent(BaseModel):
        data: dict[str, Any]

    (wrapper,) = wrap_chunk(CompletionEvent(data=chunk("a")))
    assert wrapper.get_text() == "a"
    (wrapper,) = wrap_chunk(chunk(thinking("a")))[:1]
    assert wrapper.get_reasoning() == "a"


pieces = st.sampled_from([thinking("a"), thinking("é", "b"), text("c"), reference(1), [{"type": "x"}], ["d"]])
contents = st.lists(pieces, max_size=4).map(lambda lists: [part for each in lists for part in each])


def as_one(content: list[Any]) -> dict[str, Any]:
    return chunk(content)


@settings(deadline=None)
@given(st.lists(contents, min_size=1, max_size=4), st.sets(st.integers(0, 1500)))
def test_it_does_not_matter_how_the_parts_are_spread_over_chunks_and_reads(
    contents: list[list[Any]], cuts: set[int]
) -> None:
    together = body(chunk([part for content in contents for part in content]))
    apart = body(*(chunk([part]) for content in contents for part in content))
    expected = decode(body(*map(as_one, contents))).message()
    assert decode(together).message() == expected
    assert decode(*cut_at(apart, cuts)).message() == expected


def test_the_facts_of_a_plain_chunk_between_thoughts_are_not_mistaken_for_those_of_the_next() -> None:
    thought = chunk([{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}])
    plain = {**chunk(reasoning_content="so"), "model": "other"}
    decoder = MistralDecoder()
    answer = Accumulator()
    for each in (thought, plain, thought):
        for wrapper in decoder.feed(b"data: " + json.dumps(each).encode() + b"\n\n"):
            answer.add(wrapper)
    assert answer.metadata["model"] == "m"
