"""A response as one ``chat.completion`` object."""

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from support.deltas import Delta, call, count, end, refuse, say, think
from support.scenarios import Scenario, completion, load_scenarios
from tailrace.streaming.accumulator import Accumulator
from tailrace.streaming.conversion.chat_completion import error_object, to_chat_completion
from tailrace.wrappers import (
    ChunkDetails,
    ChunkWrapper,
    ContentPart,
    ContentPartData,
    ContentPartFile,
    ContentPartToolCall,
    ContentPartToolResult,
    FinishMessage,
    FinishReason,
    UpstreamError,
    UpstreamFault,
    Usage,
)
from tailrace.wrappers.openai import wrap_chunk
from tailrace.wrappers.openai.converter import arguments_text


def complete(*deltas: ChunkWrapper[Any], error: UpstreamError | None = None) -> dict[str, Any]:
    accumulator = Accumulator()
    for delta in deltas:
        accumulator.add(delta)
    accumulator.close(error)
    return to_chat_completion(accumulator)


def carrying(*, metadata: dict[str, Any] | None = None, extra: dict[str, Any] | None = None) -> Delta:
    return Delta(None, details=ChunkDetails(metadata=metadata, extra=extra))


def message_of(*deltas: Delta) -> dict[str, Any]:
    return complete(*deltas)["choices"][0]["message"]


def test_an_answer_of_text() -> None:
    metadata = {"id": "x", "created": 7, "model": "m", "service_tier": "default"}
    assert complete(carrying(metadata=metadata), say("Hi"), *count(Usage(1, 2, 3, {"cost": 4})), end()) == {
        "id": "x",
        "object": "chat.completion",
        "created": 7,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hi", "refusal": None},
                "finish_reason": "stop",
                "logprobs": None,
            }
        ],
        "usage": {"cost": 4, "prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
        "service_tier": "default",
    }


def test_an_answer_of_nothing_still_has_a_choice_and_an_error() -> None:
    found = complete()
    assert (found["id"], found["created"], found["model"]) == ("", 0, "")
    assert found["choices"][0]["message"] == {"role": "assistant", "content": None, "refusal": None}
    assert found["choices"][0]["finish_reason"] is None
    assert found["error"] == {
        "type": "stream_truncated",
        "message": "the stream ended without a response",
        "code": None,
    }
    assert "usage" not in found


def test_choices_are_sorted_by_index_and_each_has_its_own_reason() -> None:
    found = complete(say("b", 1), say("a", 0), end(FinishReason.LENGTH, 1), end(choice=0))
    assert [
        (each["index"], each["message"]["content"], each["finish_reason"]) for each in found["choices"]
    ] == [
        (0, "a", "stop"),
        (1, "b", "length"),
    ]


def test_reasoning_and_refusal_are_members_of_the_message() -> None:
    assert message_of(think("hm"), refuse("no"), end()) == {
        "role": "assistant",
        "content": None,
        "reasoning_content": "hm",
        "refusal": "no",
    }


def test_tool_calls_are_written_in_full() -> None:
    own = {"extra_content": {"google": {"thought_signature": "s"}}, "function": {"strict": True}}
    extra = {"openai": own, "gemini": {"thoughtSignature": "s"}}
    message = message_of(
        call('{"a": "é"}', index=0, id="i", name="f", extra=extra),
        call("print(1)", index=1, id="j", name="run", type="custom"),
        call('{"a": ', index=2, name="g"),
        end(FinishReason.LENGTH),
    )
    function, custom, cut = message["tool_calls"]
    assert function == {
        "id": "i",
        "type": "function",
        "function": {"strict": True, "name": "f", "arguments": '{"a": "é"}'},
        "extra_content": {"google": {"thought_signature": "s"}},
    }
    assert custom == {"id": "j", "type": "custom", "custom": {"name": "run", "input": "print(1)"}}
    assert cut["function"] == {"name": "g", "arguments": '{"a": '}
    assert cut["id"] == "call_2"
    assert cut["arguments_error"].startswith("not valid JSON")


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (ContentPartToolCall(id="i", name="f"), "{}"),
        (ContentPartToolCall(id="i", name="f", arguments={"a": "é"}), '{"a": "é"}'),
        (ContentPartToolCall(id="i", name="f", arguments_text="null"), "null"),
        (ContentPartToolCall(id="i", name="f", arguments_text="", kind="custom"), ""),
    ],
)
def test_arguments_are_the_models_own_text_where_it_was_kept(part: ContentPartToolCall, text: str) -> None:
    assert arguments_text(part) == text


def test_fields_that_the_format_knows_are_in_their_place_and_others_beside_them() -> None:
    extra = {
        "annotations": [{"type": "url_citation"}],
        "audio": {"id": "a"},
        "images": [1],
        "reasoning_details": [{"text": "t"}],
        "logprobs": {"content": [{"token": "a"}]},
        "odd": 1,
        "role": "never",
    }
    (choice,) = complete(carrying(extra=extra), say("a"), end())["choices"]
    assert choice["logprobs"] == {"content": [{"token": "a"}]}
    assert choice["message"] == {
        "role": "assistant",
        "content": "a",
        "refusal": None,
        "annotations": [{"type": "url_citation"}],
        "audio": {"id": "a"},
        "images": [1],
        "reasoning_details": [{"text": "t"}],
        "odd": 1,
    }


def holding(*parts: ContentPart) -> Delta:
    return Delta(None, details=ChunkDetails(parts=parts))


def test_images_that_the_model_made_are_written_as_they_came() -> None:
    entry = {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64,iVBORw==", "detail": "low"},
        "index": 0,
    }
    link = {"type": "image_url", "image_url": {"url": "https://example.com/a.webp"}}
    chunk = {"choices": [{"delta": {"content": "See", "images": [entry, 7, link]}}]}
    found = complete(say("a"), *wrap_chunk(chunk), end())
    message = found["choices"][0]["message"]
    assert message["images"] == [entry, link, 7]
    assert (message["content"], found["choices"][0]["finish_reason"]) == ("aSee", "stop")
    assert "parts" not in message


@pytest.mark.parametrize("unread", [[1], 1, "a"])
def test_what_another_format_calls_images_stands_behind_them(unread: object) -> None:
    image = ContentPartFile(data=b"a", media_type="image/gif")
    images = message_of(holding(image), carrying(extra={"images": unread}), end())["images"]
    assert images == [
        {"type": "image_url", "image_url": {"url": "data:image/gif;base64,YQ=="}},
        *(unread if isinstance(unread, list) else [unread]),
    ]


def test_parts_that_the_format_has_no_place_for_are_kept_as_they_are() -> None:
    parts = (
        ContentPartFile(data=b"a", media_type="audio/wav"),
        ContentPartData(data={"a": [1]}),
        ContentPartToolResult(id="s", name="search", output="found"),
    )
    search = call("{}", index=0, id="s", name="search", type="server")
    found = complete(say("a"), search, holding(*parts), end())
    message = found["choices"][0]["message"]
    assert [ContentPartToolCall.model_validate(message["parts"][0]), *message["parts"][1:]] == [
        ContentPartToolCall(id="s", name="search", kind="server"),
        *(part.model_dump(mode="json") for part in parts),
    ]
    assert "tool_calls" not in message
    assert found["choices"][0]["finish_reason"] == "stop"
    json.dumps(found, allow_nan=False)


def test_only_calls_for_the_client_to_run_are_tool_calls() -> None:
    calls = (call("{}", index=0, id="s", name="search", type="server"), call("{}", index=1, id="f", name="f"))
    found = complete(*calls, end())
    (choice,) = found["choices"]
    assert [each["id"] for each in choice["message"]["tool_calls"]] == ["f"]
    assert [each["id"] for each in choice["message"]["parts"]] == ["s"]
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        (FinishMessage(FinishReason.STOP, "eos"), "stop"),
        (FinishMessage(FinishReason.CONTENT_FILTER, "sensitive"), "content_filter"),
        (FinishMessage(FinishReason.UNSPECIFIED, "malformed"), "malformed"),
        (FinishMessage(FinishReason.UNSPECIFIED, "odd\ud83d"), "odd\ufffd"),
    ],
)
def test_a_reason_is_the_formats_word_or_where_it_has_none_the_providers(
    finish: FinishMessage, reason: str
) -> None:
    assert complete(say("a"), Delta(None, finish=finish))["choices"][0]["finish_reason"] == reason


def test_stop_with_tool_calls_is_tool_calls() -> None:
    assert (
        complete(call("{}", index=0, id="a", name="f"), end())["choices"][0]["finish_reason"] == "tool_calls"
    )


def test_an_error_takes_the_reason_away_and_keeps_the_text() -> None:
    error = UpstreamError("died", fault=UpstreamFault.PROVIDER, status=502, code="c", details={"more": [1]})
    found = complete(say("a"), end(), error=error)
    assert found["choices"][0]["message"]["content"] == "a"
    assert found["choices"][0]["finish_reason"] is None
    assert found["error"] == {
        "type": "provider_error",
        "message": "died (HTTP 502, c)",
        "code": "c",
        "details": {"more": [1]},
    }


def test_logprobs_of_another_shape_are_kept_beside_the_message() -> None:
    (choice,) = complete(carrying(extra={"logprobs": -0.1}), say("a"), end())["choices"]
    assert (choice["logprobs"], choice["message"]["logprobs"]) == (None, -0.1)


def test_details_that_are_no_object_are_not_repeated() -> None:
    assert "details" not in error_object(UpstreamError("x", fault=UpstreamFault.PROVIDER, details="x"))


@pytest.mark.parametrize(
    "metadata",
    [
        {"created": float("nan"), "id": 5, "model": None},
        {"created": "yesterday", "id": "\ud83d", "model": ["m"]},
        {"created": True, "timings": {"prompt_ms": float("inf")}, "error": None},
        {"choices": "no", "object": "no", "usage": 1},
    ],
)
def test_odd_facts_still_make_a_json_object(metadata: dict[str, Any]) -> None:
    found = complete(
        carrying(metadata=metadata), say("a"), *count(Usage(1, 1, 2, {"cost": float("nan")})), end()
    )
    json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    assert isinstance(found["created"], int)
    assert isinstance(found["id"], str)
    assert isinstance(found["model"], str)
    assert found["choices"][0]["message"]["content"] == "a"
    assert found["object"] == "chat.completion"
    assert found["usage"]["total_tokens"] == 2


@pytest.mark.parametrize("scenario", [each for each in load_scenarios() if "finish" in each.expect], ids=str)
def test_the_official_package_reads_it(scenario: Scenario) -> None:
    found = completion([scenario.body])
    read = ChatCompletion.model_validate(found)
    assert read.choices[0].message.content == found["choices"][0]["message"]["content"]


def test_of_several_choices_one_that_was_finished_is_whole() -> None:
    accumulator = Accumulator()
    for delta in (say("a", 0), say("b", 1), end(choice=0)):
        accumulator.add(delta)
    accumulator.close()
    found = to_chat_completion(accumulator)
    assert [choice["finish_reason"] for choice in found["choices"]] == ["stop", None]
    assert found["error"]["type"] == "stream_truncated"
