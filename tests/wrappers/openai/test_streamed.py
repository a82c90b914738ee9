"""The fast tier for chunks: each struct decodes to the same result as the chunk's JSON and loses nothing."""

import json
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from support.chat import fold
from support.upstream import sse
from tailrace.wrappers import ChunkDetails
from tailrace.wrappers.openai import ChatCompletionsDecoder, ChoiceDeltaWrapper, wrap_chunk
from tailrace.wrappers.openai.decoder import (
    DocumentedChunk,
    PlainChoice,
    PlainChunk,
    VendorChunk,
    decode_documented_chunk,
    decode_plain_chunk,
    decode_vendor_chunk,
)
from tailrace.wrappers.openai.delta_shapes import ChoiceDelta

HEAD = {"id": "x", "object": "chat.completion.chunk", "created": 7, "model": "m"}
FILTERS = {
    "hate": {"filtered": False, "severity": "safe"},
    "jailbreak": {"filtered": False, "detected": False},
}


def chunk(delta: object = None, /, **fields: Any) -> dict[str, Any]:
    """A chunk with one choice; ``choice`` holds members of the choice."""
    beside: dict[str, Any] = fields.pop("choice", {})
    choice: dict[str, Any] = {"index": 0, "delta": delta or {}, "finish_reason": None, **beside}
    return {**HEAD, "choices": [choice], **fields}


def one_by_one(chunks: Iterable[object]) -> list[ChoiceDeltaWrapper]:
    """The wrappers of chunks that arrive in one read each."""
    decoder = ChatCompletionsDecoder()
    return [wrapper for each in chunks for wrapper in decoder.feed(sse(each))] + decoder.close()


def by_json(chunks: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The result of chunks decoded as plain JSON."""
    return fold(wrapper for each in chunks for wrapper in wrap_chunk(each))


def message_of(chunks: Iterable[dict[str, Any]]) -> dict[str, Any]:
    found = fold(one_by_one(chunks))
    assert found == by_json(chunks)
    return found["choices"][0]["message"]


# --- the shapes -------------------------------------------------------------------------------------------------


def decodes(decode: Any, fields: object) -> bool:
    try:
        decode(json.dumps(fields).encode())
    except msgspec.DecodeError:
        return False
    return True


def shape_of(fields: object) -> str:
    """The narrowest struct of a chunk."""
    shapes = {
        "plain": decode_plain_chunk,
        "documented": decode_documented_chunk,
        "vendor": decode_vendor_chunk,
    }
    return next((name for name, decode in shapes.items() if decodes(decode, fields)), "other")


SHAPES: dict[str, tuple[dict[str, Any], str]] = {
    "text": (
        chunk({"content": "a"}, obfuscation="xy", service_tier="default", system_fingerprint="f"),
        "plain",
    ),
    "reasoning": (chunk({"reasoning_content": "a", "role": "assistant"}), "plain"),
    "nulls": (
        chunk(
            {"role": None, "content": "a", "refusal": None, "tool_calls": None, "reasoning_details": None},
            choice={"logprobs": None, "native_finish_reason": None, "stop_reason": None, "token_ids": None},
            usage=None,
        ),
        "plain",
    ),
    "a role": (chunk({"role": ""}), "documented"),
    "a finish reason": (
        chunk(choice={"finish_reason": "stop", "native_finish_reason": "STOP"}),
        "documented",
    ),
    "a tool call": (chunk({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}), "documented"),
    "a refusal": (chunk({"refusal": "no"}), "documented"),
    "details": (chunk({"reasoning": "a", "reasoning_details": [{"index": 0, "text": "a"}]}), "documented"),
    "logprobs": (chunk({"content": "a"}, choice={"logprobs": {"content": []}}), "documented"),
    "usage": (chunk(usage={"prompt_tokens": 1}), "documented"),
    "usage of a choice": (chunk(choice={"usage": {"prompt_tokens": 1}}), "documented"),
    "filters": (chunk({"content": "a"}, choice={"content_filter_results": FILTERS}), "vendor"),
    "a channel": (chunk({"content": "a", "channel": "final"}), "vendor"),
    "a token": (chunk({"content": "a", "token_id": 5}, choice={"text": "a", "seed": None}), "vendor"),
    "a list of parts": (chunk({"content": [{"type": "text", "text": "a"}]}), "vendor"),
    "a function call": (chunk({"function_call": {"name": "f"}}), "vendor"),
    "the message up to this chunk": (chunk({"content": "a"}, choice={"message": {"content": "a"}}), "vendor"),
    "citations": (chunk({"content": "a"}, citations=["https://example.com"]), "vendor"),
    "text alone": ({**HEAD, "choices": [{"index": 0, "text": "a", "logprobs": None}]}, "vendor"),
    "a null in the place of a delta": ({**HEAD, "choices": [{"index": 0, "delta": None}]}, "vendor"),
    "a new field": (chunk(new_field=1), "other"),
    "a new field of a choice": (chunk(choice={"new_field": 1}), "other"),
    "a new field of a delta": (chunk({"new_field": 1}), "other"),
    "a new field of a call": (chunk({"tool_calls": [{"new_field": 1}]}), "other"),
    "a new field of a function": (chunk({"tool_calls": [{"function": {"new_field": 1}}]}), "other"),
    "another spelling": (chunk(choice={"finishReason": "stop"}), "other"),
    "null choices": ({**HEAD, "choices": None}, "other"),
    "an error": (chunk(error={"message": "no"}), "other"),
}


@pytest.mark.parametrize(("fields", "shape"), SHAPES.values(), ids=SHAPES.keys())
def test_a_chunk_has_the_narrowest_shape_that_loses_nothing(fields: dict[str, Any], shape: str) -> None:
    assert shape_of(fields) == shape


@pytest.mark.parametrize("fields", [fields for fields, _ in SHAPES.values()], ids=SHAPES.keys())
def test_a_chunk_equals_its_json_at_every_position(fields: dict[str, Any]) -> None:
    text = chunk({"content": "t"})
    for chunks in ([fields], [text, fields, text], [fields, text, fields, fields], [text] * 9 + [fields] * 9):
        assert fold(one_by_one(chunks)) == by_json(chunks)


# Some of the interface's own fields are in the structs, but no provider sends them: received values are ignored.
@pytest.mark.parametrize("name", ["details", "(details)", "plain", "(plain)", "choice", "raw"])
@pytest.mark.parametrize("value", [None, True, {"error": {"message": "no"}}])
def test_no_provider_can_set_the_fields_of_a_wrapper(name: str, value: object) -> None:
    fields = chunk({"content": "a"}, choice={name: value})
    decoder = ChatCompletionsDecoder()
    (wrapper,) = decoder.feed(sse(fields))
    assert wrapper.choice == 0
    assert isinstance(wrapper.details, ChunkDetails)
    assert isinstance(wrapper.plain, bool)
    assert fold([wrapper])["choices"][0]["message"]["content"] == "a"


def test_a_plain_chunk_is_its_own_wrappers() -> None:
    first, second = one_by_one([chunk({"content": "a"}), chunk({"content": "b"})])
    assert isinstance(first, ChoiceDeltaWrapper)
    assert isinstance(second, PlainChoice)
    assert (second.plain, second.details, second.get_text()) == (True, None, "b")
    assert isinstance(second.raw, ChoiceDelta)
    assert issubclass(VendorChunk, DocumentedChunk)
    assert issubclass(DocumentedChunk, PlainChunk)


def test_chunks_without_a_choice_have_facts_and_usage() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    wrappers = one_by_one([chunk({"content": "a"}), {**HEAD, "model": "n", "choices": [], "usage": usage}])
    assert wrappers[-1].usage == usage
    assert wrappers[-1].details == ChunkDetails(metadata={"id": "x", "model": "n", "created": 7})


# --- members that servers repeat in each chunk ------------------------------------------------------------------


def test_repeated_fields_are_reported_once_and_kept() -> None:
    chunks = [chunk({"content": "a", "channel": "final"}, choice={"content_filter_results": FILTERS})] * 4
    wrappers = one_by_one(chunks)
    assert [wrapper.plain for wrapper in wrappers] == [False, True, True, True]
    assert wrappers[2].raw.model_extra == {"channel": "final"}
    message = message_of(chunks)
    assert (message["content"], message["channel"]) == ("aaaa", "final")
    assert message["content_filter_results"] == FILTERS


def test_fields_that_change_are_reported_again() -> None:
    channels = ["analysis", "analysis", "final", "analysis"]
    chunks = [chunk({"content": "a", "channel": channel}) for channel in channels]
    reported = [wrapper.details.extra if wrapper.details else None for wrapper in one_by_one(chunks)]
    assert reported == [{"channel": "analysis"}, None, {"channel": "final"}, {"channel": "analysis"}]
    assert message_of(chunks)["channel"] == "analysis"


def test_filters_without_findings_are_no_change() -> None:
    filters = [FILTERS, {}, FILTERS, {}]
    chunks = [chunk({"content": "a"}, choice={"content_filter_results": each}) for each in filters]
    assert [wrapper.plain for wrapper in one_by_one(chunks)] == [False, True, True, True]
    assert message_of(chunks)["content_filter_results"] == FILTERS
    assert message_of(chunks[1:])["content_filter_results"] == FILTERS
    assert message_of(chunks[1:2])["content_filter_results"] == {}


def test_each_choice_has_its_own() -> None:
    chunks = [
        {**HEAD, "choices": [{"index": index, "delta": {"content": "a", "channel": "final"}}]}
        for index in (0, 1, 0, 1)
    ]
    found = fold(one_by_one(chunks))
    assert found == by_json(chunks)
    assert [choice["message"]["channel"] for choice in found["choices"]] == ["final", "final"]


def test_what_is_remembered_of_choices_without_end_is_bounded() -> None:
    chunks = [
        {**HEAD, "choices": [{"index": index, "delta": {"content": "a", "channel": "final"}}]}
        for index in [*range(200), *range(200)]
    ]
    assert fold(one_by_one(chunks)) == by_json(chunks)
    decoder = ChatCompletionsDecoder()
    for each in chunks:
        decoder.feed(sse(each))
    assert len(decoder._vendors._choice_fields) < 100  # pyright: ignore[reportPrivateUsage] — the bound is the point


def test_lists_are_a_change_each_time() -> None:
    filters = {"custom": {"details": [{"id": "x"}]}}
    chunks = [chunk({"content": "a"}, choice={"content_filter_results": filters})] * 3
    assert message_of(chunks)["content_filter_results"] == {"custom": {"details": [{"id": "x"}] * 3}}


def test_sources_that_come_with_every_chunk_are_reported_once_and_kept() -> None:
    sources = {
        "citations": ["https://a", "https://b"],
        "search_results": [{"title": "A", "url": "https://a"}],
    }
    chunks = [
        chunk({"content": "a"}, choice={"message": {"role": "assistant", "content": "a" * n}}, **sources)
        for n in (1, 2, 3)
    ]
    chunks.append(chunk({"content": "b"}, **{**sources, "citations": ["https://c"]}))
    reported = [wrapper.details.metadata if wrapper.details else None for wrapper in one_by_one(chunks)]
    assert reported == [
        {"id": "x", "model": "m", "created": 7, **sources},
        None,
        None,
        {"citations": ["https://c"]},
    ]
    found = fold(one_by_one(chunks))
    assert found == by_json(chunks)
    assert (found["citations"], found["search_results"]) == (["https://c"], sources["search_results"])
    assert found["choices"][0]["message"]["content"] == "aaab"


def test_a_field_that_no_reader_takes_is_read_the_other_way() -> None:
    decoder = ChatCompletionsDecoder()
    deep = b"[" * 40_000 + b"]" * 40_000
    payload = json.dumps(chunk({"content": "a"})).encode()[:-1]
    assert decoder.feed(b"data: " + payload + b',"citations":' + deep + b"}\n\n")[0].details is not None
    (wrapper,) = decoder.feed(b"data: " + payload + b',"citations":["\\ud83d"]}\n\n')
    assert wrapper.details is not None
    assert wrapper.details.metadata is not None
    assert wrapper.details.metadata["citations"] == ["\ud83d"]


def test_a_message_beside_an_empty_delta_is_a_snapshot() -> None:
    done = chunk(
        {"content": "", "role": "assistant"},
        choice={"message": {"content": "Hello"}, "finish_reason": "stop"},
    )
    assert message_of([done])["content"] == "Hello"
    assert message_of([chunk({"content": "Hel"}), chunk({"content": "lo"}), done])["content"] == "Hello"
