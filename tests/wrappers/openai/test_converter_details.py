"""Details of the conversion of messages that OpenAI's API defines."""

from typing import Any, cast

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionMessage, ChatCompletionMessageParam
from openai.types.chat.chat_completion_chunk import ChoiceDelta

from support.messages import model, text_entries, tool, user
from support.openai_messages import (
    PNG_PARAM,
    WEATHER_CALL,
    WEATHER_CALL_PARAM,
    WEATHER_RESULT,
    converter,
    received,
    say,
    sent,
)
from tailrace.wrappers import (
    ContentPart,
    ContentPartFile,
    ContentPartReasoning,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    Message,
    Role,
)
from tailrace.wrappers.openai import ChoiceDeltaWrapper, wrap_chunk


def param(**fields: Any) -> ChatCompletionMessageParam:
    """A request's message as programs write it."""
    return cast("ChatCompletionMessageParam", fields)


WEATHER_RESULT_PARAM = {"role": "tool", "tool_call_id": "call_1", "content": "Sunny, 72°F"}


def test_context_comes_back_as_a_user_message() -> None:
    history = History(context="Background.", conversation=(user(say(text="hi")),))
    expected = History(conversation=(user(say(text="Background.")), user(say(text="hi"))))
    assert converter.to_history(converter.from_history(history)) == expected


def test_of_a_calls_metadata_only_openais_own_is_sent() -> None:
    own = {"extra_content": {"google": {"thought_signature": "s"}}}
    call = WEATHER_CALL.model_copy(
        update={"metadata": {"openai": own, "anthropic": {"type": "tool_use"}, "k": 1}}
    )
    (message,) = sent(model(call))
    assert message["tool_calls"] == [{**WEATHER_CALL_PARAM, **own}]


def test_fields_of_openais_own_never_replace_ours() -> None:
    own = {"role": "system", "content": "x", "type": "image_url", "text": "y", "name": "ada"}
    message = Message(
        role=Role.USER, content=(say(text="hi", metadata={"openai": own}),), metadata={"openai": own}
    )
    assert sent(message) == [
        {
            "role": "user",
            "type": "image_url",
            "text": "y",
            "name": "ada",
            "content": [{**own, **text_entries("hi")[0]}],
        }
    ]


# --- requests of other programs ---------------------------------------------------------------------------------


def test_system_and_developer_messages_are_joined() -> None:
    history = converter.to_history(
        [
            param(role="system", content="You are a helper."),
            param(role="developer", content=text_entries("Be brief.", "Be kind.")),
            param(role="user", content="hi"),
            param(role="system", content="Be quick."),
        ]
    )
    assert history.system_message == "You are a helper.\n\nBe brief.\n\nBe kind.\n\nBe quick."
    assert history.conversation == (user(say(text="hi")),)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("hi", (say(text="hi"),)),
        ("", ()),
        (None, ()),
        ([], ()),
        (["a", "b"], (say(text="a"), say(text="b"))),
        (text_entries("a", ""), (say(text="a"), say(text=""))),
        (text_entries("a")[0], (say(text="a"),)),
    ],
)
def test_user_content_is_taken_in_every_form(content: object, expected: tuple[ContentPart, ...]) -> None:
    assert received({"role": "user", "content": content}) == (user(*expected),)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("hi", (say(text="hi"),)),
        (None, ()),
        ("", ()),
        (["a", "b"], (say(text="a"), say(text="b"))),
        (text_entries("a", "b"), (say(text="a"), say(text="b"))),
        (text_entries("a", ""), (say(text="a"),)),
    ],
)
def test_assistant_content_is_taken_in_every_form(content: object, expected: tuple[ContentPart, ...]) -> None:
    assert received({"role": "assistant", "content": content}) == (model(*expected),)


def test_a_refusal_may_stand_among_the_content() -> None:
    message = {
        "role": "assistant",
        "content": [*text_entries("No: "), {"type": "refusal", "refusal": "I won't."}],
    }
    assert received(message) == (model(say(text="No: "), refusal="I won't."),)


def test_reasoning_that_others_keep_in_the_message_is_reasoning() -> None:
    message = {"role": "assistant", "content": "4", "reasoning_content": "2+2"}
    reasoning = ContentPartReasoning(text="2+2", metadata={"openai": {"field": "reasoning_content"}})
    assert received(message) == (model(reasoning, say(text="4")),)


def test_results_find_the_names_of_their_calls() -> None:
    conversation = received(
        {"role": "assistant", "content": None, "tool_calls": [WEATHER_CALL_PARAM]},
        {"role": "tool", "tool_call_id": "call_1", "content": text_entries("Sunny", "72°F")},
        {"role": "tool", "tool_call_id": "other", "content": None},
        {"role": "tool", "tool_call_id": "named", "content": "x", "name": "f"},
        {"role": "user", "content": "thanks"},
        {"role": "tool", "tool_call_id": "call_1", "content": "late"},
    )
    assert conversation == (
        model(WEATHER_CALL),
        tool(
            ContentPartToolResult(id="call_1", name="get_weather", output="Sunny\n\n72°F"),
            ContentPartToolResult(id="other", name="unknown", output=""),
            ContentPartToolResult(id="named", name="f", output="x"),
        ),
        user(say(text="thanks")),
        tool(ContentPartToolResult(id="call_1", name="get_weather", output="late")),
    )


def test_the_legacy_function_role_answers_the_call_of_its_name() -> None:
    conversation = received(
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a": 1}'}},
        {"role": "function", "name": "f", "content": "1"},
    )
    legacy = {"openai": {"legacy": "function_call"}}
    call = ContentPartToolCall(id="call_0", name="f", arguments={"a": 1}, synthetic_id=True, metadata=legacy)
    assert conversation == (model(call), tool(ContentPartToolResult(id="call_0", name="f", output="1")))
    assert sent(*conversation) == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_0", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "call_0", "content": "1"},
    ]  # fmt: skip


def test_results_without_ids_answer_the_calls_in_order() -> None:
    calls = [{"type": "function", "function": {"name": name, "arguments": ""}} for name in "ab"]
    first, second = received(
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "1"},
        {"role": "tool", "tool_call_id": None, "content": "2"},
        {"role": "tool", "content": "3"},
    )
    assert [call.id for call in first.tool_calls] == ["call_0", "call_1"]
    assert [(result.id, result.name) for result in second.tool_results] == [
        ("call_0", "a"),
        ("call_1", "b"),
        ("", "unknown"),
    ]


def test_calls_of_the_same_id_stay_apart() -> None:
    calls = [
        {"id": "0", "type": "function", "function": {"name": "f", "arguments": f'{{"n": {n}}}'}}
        for n in (1, 2)
    ]
    (message,) = received({"role": "assistant", "content": None, "tool_calls": calls})
    assert [call.arguments for call in message.tool_calls] == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize(
    ("arguments", "parsed", "kept"),
    [
        ("", {}, None),
        (None, {}, None),
        ("{}", {}, None),
        ({"a": 1}, {"a": 1}, None),
        ('{"a": 1', {}, '{"a": 1'),
        ("[1]", {}, "[1]"),
    ],
)
def test_arguments_that_do_not_parse_are_kept_as_text(
    arguments: object, parsed: dict[str, Any], kept: str | None
) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    (message,) = received({"role": "assistant", "content": None, "tool_calls": [call]})
    (part,) = message.tool_calls
    assert (part.arguments, part.arguments_text) == (parsed, kept)
    assert (part.arguments_error is not None) == (kept == '{"a": 1')


def test_arguments_that_nest_too_deep_are_kept_as_text() -> None:
    arguments = '{"a": ' * 50 + "1" + "}" * 50
    (message,) = received(
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
            ],
        }
    )
    assert message.tool_calls[0].arguments_text == arguments
    assert received(*sent(message)) == (message,)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ({"file_data": "JVBERg=="}, ContentPartFile(data=b"%PDF")),
        ({"file_data": "data:text/plain,a%20b", "filename": "a"}, ContentPartFile(data=b"a b", media_type="text/plain", filename="a")),
        ({"file_data": "data:;base64,"}, ContentPartFile(data=b"")),
        ({"file_id": "f1", "filename": "a"}, ContentPartFile(url="openai-file:f1", filename="a")),
    ],
)  # fmt: skip
def test_files_are_taken_in_every_form(file: dict[str, str], expected: ContentPartFile) -> None:
    assert received({"role": "user", "content": [{"type": "file", "file": file}]}) == (user(expected),)


def test_an_image_may_be_given_without_an_object_around_its_address() -> None:
    message = {"role": "user", "content": [{"type": "image_url", "image_url": "https://example.com/a.gif"}]}
    expected = ContentPartFile(url="https://example.com/a.gif", media_type="image/gif")
    assert received(message) == (user(expected),)


def test_the_packages_own_answers_may_stand_among_the_messages() -> None:
    answer = ChatCompletionMessage.model_validate(
        {"role": "assistant", "content": "Sunny.", "tool_calls": [WEATHER_CALL_PARAM]}
    )
    history = converter.to_history([param(role="user", content="hi"), answer])
    assert history.conversation == (user(say(text="hi")), model(say(text="Sunny."), WEATHER_CALL))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"role": "critic", "content": "x"}, "the role 'critic'"),
    ({"content": "x"}, "the role None"),
    ({"role": "user", "content": [{"type": "video_url"}]}, "of type 'video_url'"),
    ({"role": "user", "content": [{"text": "x"}]}, "of type None"),
    ({"role": "user", "content": [1]}, "of type None"),
    ({"role": "user", "content": 1}, "content of type int"),
    ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "ContentPartFile"),
    ({"role": "user", "content": [{"type": "file", "file": {"file_data": "data:;base64,A"}}]}, "base64"),
    ({"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "*"}}]}, "base64"),
    ({"role": "system", "content": [PNG_PARAM]}, "where only text is allowed"),
    ({"role": "tool", "tool_call_id": "c", "content": [PNG_PARAM]}, "where only text is allowed"),
]


@pytest.mark.parametrize(("message", "complaint"), REFUSED)
def test_what_chat_completions_does_not_define_is_refused(message: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match="message 1: ") as caught:
        received({"role": "user", "content": "hi"}, message)
    assert complaint in str(caught.value)


# --- complete responses, streams, results -----------------------------------------------------------------------


COMPLETION = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "logprobs": None,
            "message": {
                "role": "assistant",
                "content": "Let me see.",
                "refusal": None,
                "tool_calls": [WEATHER_CALL_PARAM],
            },
        },
        {"index": 1, "finish_reason": "stop", "message": {"role": "assistant", "content": "other"}},
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}
EXPECTED = model(say(text="Let me see."), WEATHER_CALL, finish_reason="tool_calls")


def test_a_whole_response_is_the_message_of_its_first_choice() -> None:
    assert converter.to_message(COMPLETION) == EXPECTED
    assert converter.to_message(ChatCompletion.model_validate(COMPLETION)) == EXPECTED


def test_all_choices_are_one_message_with_the_calls_of_each() -> None:
    whole = converter.to_message(COMPLETION, choice=None)
    assert whole == model(
        say(text="Let me see."), WEATHER_CALL, say(text="other"), finish_reason="tool_calls"
    )
    two_calls = [
        {
            "index": index,
            "message": {"role": "assistant", "tool_calls": [{**WEATHER_CALL_PARAM, "id": f"c{index}"}]},
        }
        for index in (0, 1)
    ]
    calls = converter.to_message({"choices": two_calls}, choice=None).tool_calls
    assert [call.id for call in calls] == ["c0", "c1"]


def test_a_choice_without_its_index_is_known_by_its_place() -> None:
    choices = [{"message": {"content": text}} for text in "ab"]
    assert [converter.to_message({"choices": choices}, choice=index).text for index in (0, 1)] == ["a", "b"]
    assert converter.to_message({"choices": [{"index": 3, "message": {"content": "a"}}]}).text == "a"


def test_another_choice_of_a_stream_or_all_as_one_may_be_selected() -> None:
    wrappers = [
        wrapper
        for index, text in enumerate("abc")
        for wrapper in wrap_chunk({"choices": [{"index": index, "delta": {"content": text}}]})
    ]
    assert [converter.to_message(wrappers, choice=index).text for index in (0, 2, None)] == ["a", "c", "abc"]


def test_a_single_message_is_taken_too() -> None:
    choices = cast("list[dict[str, Any]]", COMPLETION["choices"])
    message = choices[0]["message"]
    expected = model(say(text="Let me see."), WEATHER_CALL)
    assert converter.to_message(message) == expected
    assert converter.to_message(ChatCompletionMessage.model_validate(message)) == expected


def test_a_response_that_was_built_without_validation_is_no_reason_to_warn() -> None:
    built = ChatCompletionMessage.model_construct(role="model", content=[{"type": "text", "text": "a"}])
    assert converter.to_message(built) == model(say(text="a"))


def test_each_result_is_a_message() -> None:
    second = ContentPartToolResult(
        id="call_2", name="now", output={"t": 1}, metadata={"openai": {"name": "now"}}
    )
    assert converter.tool_result_messages([WEATHER_RESULT, second]) == [
        WEATHER_RESULT_PARAM,
        {"role": "tool", "tool_call_id": "call_2", "content": '{"t": 1}', "name": "now"},
    ]


def test_a_wrapper_is_made_over_the_packages_delta() -> None:
    delta = ChoiceDelta(content="hi")
    wrapper = converter.create_chunk_wrapper(delta)
    assert isinstance(wrapper, ChoiceDeltaWrapper)
    assert wrapper.raw is delta
    assert wrapper.get_text() == "hi"
