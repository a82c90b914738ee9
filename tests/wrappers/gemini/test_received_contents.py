"""Contents of Gemini's API from other programs and from complete responses."""

from typing import Any, cast

import pytest
from google.genai import types

from support.gemini_contents import (
    CALL_PART,
    HI,
    RESULT,
    RESULT_PART,
    Fields,
    converter,
    received,
    say,
    sent,
    signed,
)
from support.messages import model, user
from tailrace.wrappers import (
    ContentPartData,
    ContentPartReasoning,
    ContentPartToolCall,
    ContentPartToolResult,
)

# --- requests of other programs ---------------------------------------------------------------------------------


def test_a_content_without_a_role_is_the_users() -> None:
    assert received({"parts": [{"text": "hi"}]}) == (user(say(text="hi")),)


def test_results_of_the_older_role_answer_their_calls_by_name() -> None:
    _, answer = received(
        {"role": "model", "parts": [{"functionCall": {"name": n, "args": {}}} for n in "fgf"]},
        {
            "role": "function",
            "parts": [
                {"functionResponse": {"name": name, "response": {"output": number}}}
                for number, name in enumerate(["f", "f", "g", "h"])
            ],
        },
    )
    assert [(result.id, result.output) for result in answer.tool_results] == [
        ("call_0", 0),
        ("call_2", 1),
        ("call_1", 2),
        ("", 3),
    ]


def test_calls_of_the_same_id_stay_apart() -> None:
    parts = [{"functionCall": {"id": "x", "name": "f", "args": {"n": n}}} for n in (1, 2)]
    (message,) = received({"role": "model", "parts": parts})
    assert [call.arguments for call in message.tool_calls] == [{"n": 1}, {"n": 2}]


def test_files_in_an_answer_of_a_tool_are_kept_and_sent_back() -> None:
    part = {
        "functionResponse": {
            "id": "c1",
            "name": "get_weather",
            "response": {"sky": "clear"},
            "parts": [{"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}}],
        }
    }
    contents = [HI, {"role": "model", "parts": [CALL_PART]}, {"role": "user", "parts": [part]}]
    conversation = received(*contents)
    assert conversation[2].tool_results[0].output == {"sky": "clear"}
    assert sent(*conversation) == contents


@pytest.mark.parametrize(
    "part",
    [
        {"inlineData": {"mimeType": "image/png", "data": "*"}},
        {"fileData": {"mimeType": "image/png"}},
        {"new": 1},
    ],
)
def test_parts_that_are_no_file_are_kept_and_sent_back_as_they_are(part: Fields) -> None:
    contents = [{"role": "user", "parts": [part]}]
    (message,) = received(*contents)
    assert message.content == (ContentPartData(data=part, metadata={"gemini": {"part": True}}),)
    assert sent(message) == contents


def test_a_role_that_gemini_does_not_define_is_refused() -> None:
    with pytest.raises(ValueError, match="content 1: the role 'critic'"):
        received(HI, {"role": "critic", "parts": []})


# --- complete responses, streams, results -----------------------------------------------------------------------


RESPONSE: Fields = {
    "candidates": [
        {
            "content": {
                "role": "model",
                "parts": [
                    {"text": "hm", "thought": True},
                    {"text": "Let me "},
                    {"text": "see."},
                    {"functionCall": {"name": "f", "args": {"a": 1}}, "thoughtSignature": "c2ln"},
                    {"functionCall": {"name": "f", "args": {"a": 2}}},
                ],
            },
            "finishReason": "STOP",
            "safetyRatings": [{"category": "HARM_CATEGORY_HARASSMENT", "probability": "LOW"}],
        },
        {"index": 1, "content": {"parts": [{"text": "other"}]}, "finishReason": "STOP"},
    ],
    "modelVersion": "gemini-x",
    "responseId": "r1",
}
ANSWER = (
    ContentPartReasoning(text="hm"),
    say(text="Let me see."),
    ContentPartToolCall(
        id="call_0", name="f", arguments={"a": 1}, synthetic_id=True, metadata=signed("c2ln")
    ),
    ContentPartToolCall(id="call_1", name="f", arguments={"a": 2}, synthetic_id=True),
)


def test_a_whole_response_is_the_message_of_its_first_candidate() -> None:
    expected_message = model(
        *ANSWER,
        finish_reason="tool_calls",
        extra={"safetyRatings": [{"category": "HARM_CATEGORY_HARASSMENT", "probability": "LOW"}]},
    )
    assert converter.to_message(RESPONSE) == expected_message
    assert converter.to_message(types.GenerateContentResponse.model_validate(RESPONSE)) == expected_message


def test_a_single_content_is_taken_too() -> None:
    content = RESPONSE["candidates"][0]["content"]
    assert converter.to_message(content) == model(*ANSWER)
    assert converter.to_message(types.Content.model_validate(content)) == model(*ANSWER)


def test_the_results_of_a_round_are_one_content() -> None:
    assert converter.tool_result_messages([RESULT]) == [{"role": "user", "parts": [RESULT_PART]}]
    nameless = ContentPartToolResult(id="", name="", output=1)
    assert converter.tool_result_messages([nameless]) == [
        {"role": "user", "parts": [{"functionResponse": {"name": "unknown", "response": {"output": 1}}}]}
    ]


def test_a_wrapper_over_a_part_of_either_form() -> None:
    part = {"functionCall": {"name": "f", "args": {"a": 1}}, "thoughtSignature": "+/+/"}
    ours = converter.create_chunk_wrapper(part)
    theirs = converter.create_chunk_wrapper(types.Part.model_validate(part))
    assert ours == theirs
    (call,) = ours.get_tool_calls()
    assert (call.index, call.name, call.arguments) == (None, "f", '{"a": 1}')
    assert call.extra == cast("Any", signed("+/+/"))
