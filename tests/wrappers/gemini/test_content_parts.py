"""Single parts: the meaning of each kind, and its further members."""

from typing import Any

import pytest

from tailrace.wrappers import (
    ContentPart,
    ContentPartData,
    ContentPartFile,
    ContentPartToolResult,
    FinishMessage,
    FinishReason,
    ToolCallDelta,
    Usage,
)
from tailrace.wrappers.chunks import BlockDelta
from tailrace.wrappers.gemini import GeminiPartWrapper
from tailrace.wrappers.gemini.content_parts import CallCounter, PartReader, read_finish, read_usage

Fields = dict[str, Any]


def read(*parts: Fields) -> list[GeminiPartWrapper]:
    reader = PartReader(0, CallCounter())
    return [reader.read(part) for part in parts]


def block(wrapper: GeminiPartWrapper) -> BlockDelta | None:
    return wrapper.details.block if wrapper.details is not None else None


def whole(part: Fields) -> ContentPart:
    (wrapper,) = read(part)
    assert wrapper.details is not None
    (found,) = wrapper.details.parts
    assert not wrapper.plain
    return found


def sealed(signature: str) -> Fields:
    return {"gemini": {"thoughtSignature": signature}}


# --- text and thoughts ------------------------------------------------------------------------------------------


def test_a_text_is_plain() -> None:
    part = {"text": "Hi"}
    (wrapper,) = read(part)
    assert (wrapper.get_text(), wrapper.get_reasoning(), wrapper.get_tool_calls()) == ("Hi", "", [])
    assert (wrapper.get_finish_message(), wrapper.get_usage()) == (None, None)
    assert (wrapper.plain, wrapper.details, wrapper.raw) == (True, None, part)


def test_a_thought_is_plain() -> None:
    (wrapper,) = read({"text": "hm", "thought": True})
    assert (wrapper.get_text(), wrapper.get_reasoning(), wrapper.plain) == ("", "hm", True)


@pytest.mark.parametrize(
    "part", [{}, {"text": ""}, {"text": None}, {"thought": True}, {"thoughtSignature": ""}]
)
def test_an_empty_part_gives_empty_values(part: Fields) -> None:
    (wrapper,) = read(part)
    assert (wrapper.get_text(), wrapper.get_reasoning(), wrapper.get_tool_calls()) == ("", "", [])
    assert (wrapper.details, wrapper.plain) == (None, True)


@pytest.mark.parametrize("thought", [False, None, "yes"])
def test_a_text_is_reasoning_only_if_the_part_is_marked(thought: object) -> None:
    (wrapper,) = read({"text": "a", "thought": thought})
    assert (wrapper.get_text(), wrapper.get_reasoning()) == ("a", "")


def test_a_signed_part_is_a_block_of_its_own_and_so_is_what_follows() -> None:
    wrappers = read(
        {"text": "a"},
        {"text": "b", "thoughtSignature": "s"},
        {"text": "c"},
        {"text": "d"},
        {"text": "hm", "thought": True, "thoughtSignature": "t"},
        {"text": "hm", "thought": True},
        {"thoughtSignature": "u"},
        {"functionCall": {"name": "f"}},
        {"text": "e"},
    )
    assert [block(wrapper) for wrapper in wrappers] == [
        None,
        BlockDelta("text", starts_block=True, metadata=sealed("s")),
        BlockDelta("text", starts_block=True),
        None,
        BlockDelta("reasoning", starts_block=True, metadata=sealed("t")),
        BlockDelta("reasoning", starts_block=True),
        BlockDelta("text", starts_block=True, metadata=sealed("u")),
        None,
        None,
    ]


def test_further_fields_of_a_text_stand_with_it() -> None:
    (wrapper,) = read({"text": "a", "partMetadata": {"k": 1}})
    assert block(wrapper) == BlockDelta(
        "text", starts_block=True, metadata={"gemini": {"partMetadata": {"k": 1}}}
    )


# --- calls of functions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"args": {"city": "東京"}}, '{"city": "東京"}'),
        ({"args": {}}, "{}"),
        ({"args": None}, "{}"),
        ({}, "{}"),
        ({"args": '{"a": 1}'}, '{"a": 1}'),
        ({"args": [1]}, "[1]"),
    ],
)
def test_a_call_comes_whole(arguments: Fields, text: str) -> None:
    (wrapper,) = read({"functionCall": {"id": "c", "name": "f", **arguments}})
    assert wrapper.get_tool_calls() == [ToolCallDelta(0, "c", "f", text, "function")]
    assert not wrapper.plain


def test_every_call_is_one_of_its_own_whatever_its_id() -> None:
    calls = [
        call
        for wrapper in read(*({"functionCall": {"id": "x", "name": "f"}} for _ in range(3)))
        for call in wrapper.calls
    ]
    assert [call.index for call in calls] == [0, 1, 2]


def test_what_stands_beside_a_call_and_in_it_is_kept() -> None:
    (wrapper,) = read({"thoughtSignature": "s", "functionCall": {"name": "f", "new": 1}})
    assert wrapper.calls[0].extra == {"gemini": {"thoughtSignature": "s", "functionCall": {"new": 1}}}


def test_a_text_that_was_cleared_is_no_reason_to_miss_a_call_or_a_file() -> None:
    (wrapper,) = read({"text": "", "functionCall": {"name": "f"}, "inlineData": None})
    assert wrapper.calls[0].name == "f"
    assert isinstance(whole({"text": "", "inlineData": {"data": "eA=="}}), ContentPartFile)


def streamed(*calls: Fields) -> list[ToolCallDelta]:
    return [call for wrapper in read(*({"functionCall": each} for each in calls)) for call in wrapper.calls]


def city(text: str, *, goes_on: bool = True) -> Fields:
    return {
        "partialArgs": [{"jsonPath": "$.city", "stringValue": text, "willContinue": True}],
        "willContinue": goes_on,
    }


@pytest.mark.parametrize("ending", [{}, {"willContinue": False}, city("", goes_on=False)])
def test_arguments_that_are_streamed_come_when_the_call_is_complete(ending: Fields) -> None:
    begin = {"name": "f", "id": "c", "willContinue": True}
    assert streamed(begin, city("New "), city("York"), ending) == [
        ToolCallDelta(0, "c", "f", "", "function"),
        ToolCallDelta(0, arguments='{"city": "New York"}'),
    ]


def test_a_call_may_come_with_all_its_partial_arguments() -> None:
    partials = [{"jsonPath": "$.n", "numberValue": 1.0}, {"jsonPath": "$.b", "boolValue": True}]
    assert streamed({"name": "f", "partialArgs": partials, "args": {"a": 0}}) == [
        ToolCallDelta(0, "", "f", "", "function"),
        ToolCallDelta(0, arguments='{"a": 0, "n": 1, "b": true}'),
    ]


def test_the_next_call_ends_an_unfinished_one() -> None:
    assert streamed({"name": "f", "willContinue": True}, city("Rome"), {"name": "g", "args": {}}) == [
        ToolCallDelta(0, "", "f", "", "function"),
        ToolCallDelta(0, arguments='{"city": "Rome"}'),
        ToolCallDelta(1, "", "g", "{}", "function"),
    ]


def test_a_call_that_repeats_its_id_and_name_goes_on() -> None:
    named = {"id": "c", "name": "f"}
    assert streamed({**named, "willContinue": True}, {**named, **city("Rome")}, {**named}) == [
        ToolCallDelta(0, "c", "f", "", "function"),
        ToolCallDelta(0, arguments='{"city": "Rome"}'),
    ]


def test_a_signature_that_comes_late_belongs_to_the_open_call() -> None:
    wrappers = read(
        {"functionCall": {"name": "f", "willContinue": True}},
        {"functionCall": {}, "thoughtSignature": "s"},
    )
    assert [call for wrapper in wrappers for call in wrapper.calls] == [
        ToolCallDelta(0, "", "f", "", "function"),
        ToolCallDelta(0, extra=sealed("s")),
        ToolCallDelta(0, arguments="{}"),
    ]


def test_the_end_of_no_call_has_no_content() -> None:
    assert streamed({}, {"willContinue": False}) == []


def test_a_call_that_is_still_open_is_given_out_at_the_end() -> None:
    reader = PartReader(0, CallCounter())
    reader.read({"functionCall": {"name": "f", "willContinue": True}})
    reader.read({"functionCall": city("Ro")})
    assert reader.end_call(complete=False) == (ToolCallDelta(0, arguments='{"city": "Ro"'),)
    assert reader.end_call(complete=False) == ()


# --- tools run by Google ----------------------------------------------------------------------------------------


def test_code_that_google_ran_and_its_output() -> None:
    call, result, late = read(
        {"executableCode": {"language": "PYTHON", "code": "1+1"}, "thoughtSignature": "s"},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2\n"}},
        {"codeExecutionResult": {"id": "e7", "outcome": "OUTCOME_FAILED"}},
    )
    assert call.get_tool_calls() == [
        ToolCallDelta(
            0,
            "code_execution_0",
            "code_execution",
            '{"language": "PYTHON", "code": "1+1"}',
            "server",
            {"gemini": {"thoughtSignature": "s", "executableCode": {}}},
        )
    ]
    assert result.details is not None
    assert result.details.parts == (
        ContentPartToolResult(
            id="code_execution_0",
            name="code_execution",
            output="2\n",
            metadata={"gemini": {"codeExecutionResult": {"outcome": "OUTCOME_OK"}}},
        ),
    )
    assert late.details is not None
    assert late.details.parts == (
        ContentPartToolResult(
            id="e7",
            name="code_execution",
            output="",
            is_error=True,
            metadata={"gemini": {"codeExecutionResult": {"id": "e7", "outcome": "OUTCOME_FAILED"}}},
        ),
    )


def test_a_tool_of_google_and_its_response() -> None:
    call, result = read(
        {"toolCall": {"id": "t1", "toolType": "GOOGLE_SEARCH_WEB", "args": {"queries": ["q"]}}},
        {"toolResponse": {"id": "t1", "toolType": "GOOGLE_SEARCH_WEB", "response": {"hits": 1}}},
    )
    assert call.get_tool_calls() == [
        ToolCallDelta(
            0,
            "t1",
            "GOOGLE_SEARCH_WEB",
            '{"queries": ["q"]}',
            "server",
            {"gemini": {"toolCall": {"id": "t1"}}},
        )
    ]
    assert result.details is not None
    assert result.details.parts == (
        ContentPartToolResult(
            id="t1",
            name="GOOGLE_SEARCH_WEB",
            output={"hits": 1},
            metadata={"gemini": {"toolResponse": {"id": "t1"}}},
        ),
    )


# --- complete parts ---------------------------------------------------------------------------------------------


def test_a_file_by_value() -> None:
    part = {
        "inlineData": {"mimeType": "image/png", "data": "iVBORw==", "displayName": "a.png"},
        "thought": True,
        "thoughtSignature": "s",
    }
    assert whole(part) == ContentPartFile(
        data=b"\x89PNG",
        media_type="image/png",
        filename="a.png",
        metadata={
            "gemini": {"thought": True, "thoughtSignature": "s", "inlineData": {"displayName": "a.png"}}
        },
    )


def test_a_file_by_address() -> None:
    part = {"fileData": {"mimeType": "video/mp4", "fileUri": "gs://b/a"}}
    assert whole(part) == ContentPartFile(url="gs://b/a", media_type="video/mp4")


@pytest.mark.parametrize(
    "part",
    [
        {"inlineData": {"mimeType": "image/png", "data": "*"}},
        {"inlineData": {"data": 7}},
        {"fileData": {"mimeType": "image/png"}},
        {"hologram": {"size": 3}},
    ],
)
def test_anything_else_is_kept_as_data(part: Fields) -> None:
    assert whole(part) == ContentPartData(data=part, metadata={"gemini": {"part": True}})


def test_a_functions_answer_in_the_stream_is_a_result() -> None:
    part = {"functionResponse": {"id": "c", "name": "f", "response": {"output": 1}}, "thoughtSignature": "s"}
    assert whole(part) == ContentPartToolResult(id="c", name="f", output=1, metadata=sealed("s"))


# --- finish reasons ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("STOP", FinishReason.STOP),
        ("MAX_TOKENS", FinishReason.LENGTH),
        ("SAFETY", FinishReason.CONTENT_FILTER),
        ("BLOCKLIST", FinishReason.CONTENT_FILTER),
        ("PROHIBITED_CONTENT", FinishReason.CONTENT_FILTER),
        ("SPII", FinishReason.CONTENT_FILTER),
        ("IMAGE_SAFETY", FinishReason.CONTENT_FILTER),
        ("MODEL_ARMOR", FinishReason.CONTENT_FILTER),
        ("RECITATION", FinishReason.RECITATION),
        ("IMAGE_RECITATION", FinishReason.RECITATION),
        ("MALFORMED_FUNCTION_CALL", FinishReason.UNSPECIFIED),
        ("OTHER", FinishReason.UNSPECIFIED),
        ("LANGUAGE", FinishReason.UNSPECIFIED),
        ("FAKE_ENUM", FinishReason.UNSPECIFIED),
        (1, FinishReason.STOP),
        (2, FinishReason.LENGTH),
        (3, FinishReason.CONTENT_FILTER),
        (4, FinishReason.RECITATION),
        (9, FinishReason.UNSPECIFIED),
    ],
)
def test_every_word_for_an_end(raw: object, reason: FinishReason) -> None:
    assert read_finish({"finishReason": raw}) == FinishMessage(reason, str(raw))


@pytest.mark.parametrize("raw", [None, "", 0, "FINISH_REASON_UNSPECIFIED"])
def test_values_of_a_running_response_are_no_finish_reason(raw: object) -> None:
    assert read_finish({"finishReason": raw}) is None
    assert read_finish({}) is None


def test_the_finish_message_is_kept() -> None:
    candidate = {"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": "Malformed function call: f("}
    finish = read_finish(candidate)
    assert finish is not None
    assert finish.message == "Malformed function call: f("


# --- token counts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "counts"),
    [
        ({"promptTokenCount": 5, "candidatesTokenCount": 2, "totalTokenCount": 7}, (5, 2, 7)),
        ({"promptTokenCount": 5, "thoughtsTokenCount": 3, "candidatesTokenCount": 2}, (5, 5, 10)),
        ({"promptTokenCount": 5, "toolUsePromptTokenCount": 4, "totalTokenCount": 9}, (9, 0, 9)),
        ({"promptTokenCount": 5, "cachedContentTokenCount": 4}, (5, 0, 5)),
        ({"candidatesTokenCount": 0}, (0, 0, 0)),
    ],
)
def test_token_counts(fields: Fields, counts: tuple[int, int, int]) -> None:
    assert read_usage(fields) == Usage(*counts, fields)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"trafficType": "ON_DEMAND"},
        {"promptTokenCount": "5"},
        {"promptTokenCount": None},
        {"totalTokenCount": 1.5},
    ],
)
def test_what_counts_no_tokens_is_no_usage(fields: Fields) -> None:
    assert read_usage(fields) is None
