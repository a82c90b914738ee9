"""The Mistral converter: each row of its tables in both directions, and each documented loss."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest
from openai.types.chat import ChatCompletion

from support.messages import model, text_entries, tool, user
from tailrace.wrappers import (
    ContentPart,
    ContentPartData,
    ContentPartFile,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    Message,
)
from tailrace.wrappers.assembly.tool_calls import parse_arguments
from tailrace.wrappers.mistral import MistralConverter, wrap_chunk

converter = MistralConverter()
say = ContentPartText
THINKING = {"mistral": {"type": "thinking"}}


def sent(*messages: Message) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", converter.from_history(History(conversation=messages)))


def read(messages: Sequence[Mapping[str, Any]]) -> History:
    return converter.to_history(cast("Any", messages))


def received(*messages: Mapping[str, Any]) -> tuple[Message, ...]:
    return read(messages).conversation


CALL = ContentPartToolCall(id="aB3dE6gH9", name="get_weather", arguments={"city": "Oakland"})
CALL_PARAM = {
    "id": "aB3dE6gH9",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Oakland"}'},
}
RESULT = ContentPartToolResult(id="aB3dE6gH9", name="get_weather", output="Sunny")
RESULT_PARAM = {"role": "tool", "tool_call_id": "aB3dE6gH9", "name": "get_weather", "content": "Sunny"}
THOUGHT = ContentPartReasoning(text="hm", metadata=THINKING)
THOUGHT_PARAM = {"type": "thinking", "thinking": text_entries("hm")}
REFERENCE = {"type": "reference", "reference_ids": [1, 2]}
HELLO = user(say(text="Hello"))
HELLO_PARAM = {"role": "user", "content": text_entries("Hello")}

# A conversation and the members of its request, converted both ways.
ROWS: dict[str, tuple[list[Message], list[dict[str, Any]]]] = {
    "text": (
        [HELLO, model(say(text="Hi"))],
        [HELLO_PARAM, {"role": "assistant", "content": text_entries("Hi")}],
    ),
    "a user message without text": ([user()], [{"role": "user", "content": ""}]),
    "files": (
        [
            user(
                say(text="?"),
                ContentPartFile(data=b"P", media_type="image/png"),
                ContentPartFile(url="https://e.com/a.pdf", media_type="application/pdf"),
                ContentPartFile(url="mistral-file:f"),
            )
        ],
        [
            {
                "role": "user",
                "content": [
                    *text_entries("?"),
                    {"type": "image_url", "image_url": "data:image/png;base64,UA=="},
                    {"type": "document_url", "document_url": "https://e.com/a.pdf"},
                    {"type": "file", "file_id": "f"},
                ],
            }
        ],
    ),
    "a part without a common form": (
        [user(ContentPartData(data={"type": "x", "a": 1}, metadata={"mistral": {"type": "x"}}))],
        [{"role": "user", "content": [{"type": "x", "a": 1}]}],
    ),
    "a round of tools": (
        [HELLO, model(say(text="Let me see."), CALL), tool(RESULT), model(say(text="Sunny."))],
        [
            HELLO_PARAM,
            {"role": "assistant", "content": text_entries("Let me see."), "tool_calls": [CALL_PARAM]},
            RESULT_PARAM,
            {"role": "assistant", "content": text_entries("Sunny.")},
        ],
    ),
    "a call alone": (
        [HELLO, model(CALL)],
        [HELLO_PARAM, {"role": "assistant", "content": "", "tool_calls": [CALL_PARAM]}],
    ),
    "a result of an unknown tool": (
        [tool(ContentPartToolResult(id="x", name="unknown", output="42"))],
        [{"role": "tool", "tool_call_id": "x", "content": "42"}],
    ),
    "thinking": (
        [HELLO, model(THOUGHT, say(text="Hi"))],
        [HELLO_PARAM, {"role": "assistant", "content": [THOUGHT_PARAM, *text_entries("Hi")]}],
    ),
    "thinking before a call": (
        [HELLO, model(THOUGHT, CALL)],
        [HELLO_PARAM, {"role": "assistant", "content": [THOUGHT_PARAM], "tool_calls": [CALL_PARAM]}],
    ),
    "text with references": (
        [
            HELLO,
            model(say(text="It rains", metadata={"mistral": {"references": [REFERENCE]}}), say(text=" today.")),
        ],
        [HELLO_PARAM, {"role": "assistant", "content": [*text_entries("It rains"), REFERENCE, *text_entries(" today.")]}],
    ),
    "the beginning of a response": (
        [HELLO, model(say(text="Once"), mistral={"prefix": True})],
        [HELLO_PARAM, {"role": "assistant", "prefix": True, "content": text_entries("Once")}],
    ),
    "the name of a message with another further field": (
        [HELLO, model(say(text="Once"), mistral={"prefix": True, "name": "ada"})],
        [HELLO_PARAM, {"role": "assistant", "prefix": True, "name": "ada", "content": text_entries("Once")}],
    ),
    "further fields": (
        [user(say(text="a", metadata={"mistral": {"x": 1}}), mistral={"y": 2}),
         model(CALL.model_copy(update={"metadata": {"mistral": {"z": 3}}})),
         tool(RESULT.model_copy(update={"metadata": {"mistral": {"w": 4}}}))],
        [
            {"role": "user", "y": 2, "content": [{"type": "text", "text": "a", "x": 1}]},
            {"role": "assistant", "content": "", "tool_calls": [{"z": 3, **CALL_PARAM}]},
            {"w": 4, **RESULT_PARAM},
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_each_row_of_the_table_holds_both_ways(name: str) -> None:
    messages, params = ROWS[name]
    assert sent(*messages) == params
    assert received(*params) == tuple(messages)


# Each documented loss: the message before and after the round trip.
LOSSES: dict[str, tuple[list[Message], list[Message]]] = {
    "other reasoning": (
        [HELLO, model(ContentPartReasoning(text="a", signature="s", metadata={"anthropic": {}}), say(text="Hi"))],
        [HELLO, model(say(text="Hi"))],
    ),
    "data becomes its JSON": (
        [user(ContentPartData(data={"a": "é"})), model(ContentPartData(data=[1]))],
        [user(say(text='{"a":"é"}')), model(say(text="[1]"))],
    ),
    "files of other types are named": (
        [user(ContentPartFile(data=b"abc", media_type="video/mp4", filename="a.mp4"), ContentPartFile(url="https://e.com/a"))],
        [user(say(text="[file a.mp4, video/mp4, 3 bytes]"), say(text="[https://e.com/a](https://e.com/a)"))],
    ),
    "files of the model are named": (
        [HELLO, model(ContentPartFile(data=b"P", media_type="image/png"))],
        [HELLO, model(say(text="[file, image/png, 1 bytes]"))],
    ),
    "names and types of files": (
        [
            user(
                ContentPartFile(data=b"P", media_type="image/png", filename="a.png"),
                ContentPartFile(data=b"P", media_type="audio/mpeg", filename="a.mp3"),
                ContentPartFile(url="https://e.com/a.pdf"),
            )
        ],
        [
            user(
                ContentPartFile(data=b"P", media_type="image/png"),
                ContentPartFile(data=b"P", media_type="audio/*"),
                ContentPartFile(url="https://e.com/a.pdf", media_type="application/pdf"),
            )
        ],
    ),
    "an empty response": ([HELLO, model(say(text="")), model(), HELLO], [HELLO, HELLO]),
    "text goes before calls": (
        [HELLO, model(say(text="a"), CALL, say(text="b"))],
        [HELLO, model(say(text="a"), say(text="b"), CALL)],
    ),
    "names of tools are replaced": (
        [HELLO, model(CALL.model_copy(update={"name": "my.tool"})), tool(RESULT.model_copy(update={"name": "my.tool"}))],
        [HELLO, model(CALL.model_copy(update={"name": "my_tool_bca2c361"})), tool(RESULT.model_copy(update={"name": "my_tool_bca2c361"}))],
    ),
    "arguments that do not parse": (
        [HELLO, model(ContentPartToolCall(id="c", name="f", **parse_arguments('{"a')))],
        [HELLO, model(ContentPartToolCall(id="c", name="f", arguments={"input": '{"a'}))],
    ),
    "a custom tool": (
        [HELLO, model(ContentPartToolCall(id="c", name="sh", kind="custom", arguments_text="ls"))],
        [HELLO, model(ContentPartToolCall(id="c", name="sh", arguments={"input": "ls"}))],
    ),
    "a generated id": (
        [HELLO, model(CALL.model_copy(update={"synthetic_id": True}))],
        [HELLO, model(CALL)],
    ),
    "tools run by a provider": (
        [
            HELLO,
            model(ContentPartToolCall(id="w", name="search", kind="server"),
                  ContentPartToolResult(id="w", name="search", output=[1]), say(text="Hi")),
        ],
        [HELLO, model(say(text="Hi"))],
    ),
    "results in a model's message follow it": ([HELLO, model(CALL, RESULT)], [HELLO, model(CALL), tool(RESULT)]),
    "outputs become text": (
        [
            HELLO,
            model(CALL),
            tool(
                RESULT.model_copy(update={"output": {"sky": "é"}}),
                RESULT.model_copy(update={"output": "no", "is_error": True}),
            ),
        ],
        [
            HELLO,
            model(CALL),
            tool(
                RESULT.model_copy(update={"output": '{"sky": "é"}'}),
                RESULT.model_copy(update={"output": '{"error": "no"}'}),
            ),
        ],
    ),
    "a user message after results": (
        [HELLO, model(CALL), user(say(text="wait"), RESULT)],
        [HELLO, model(CALL), tool(RESULT), model(say(text=converter.bridge)), user(say(text="wait"))],
    ),
    "a refusal": ([HELLO, model(refusal="I won't.")], [HELLO, model(say(text="I won't."))]),
    "other metadata": (
        [user(say(text="a", metadata={"openai": {"x": 1}}), k=1), model(say(text="b"), finish_reason="stop")],
        [user(say(text="a")), model(say(text="b"))],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_each_loss_is_the_documented_one(name: str) -> None:
    messages, expected = LOSSES[name]
    assert received(*sent(*messages)) == tuple(expected)


def test_system_and_context_come_first() -> None:
    history = History(system_message="Be brief.", context="Background.", conversation=(HELLO,))
    messages = converter.from_history(history)
    assert messages == [
        {"role": "system", "content": text_entries("Be brief.")},
        {"role": "user", "content": text_entries("Background.")},
        HELLO_PARAM,
    ]
    assert converter.to_history(messages) == History(
        system_message="Be brief.", conversation=(user(say(text="Background.")), HELLO)
    )


def test_each_result_is_a_message() -> None:
    assert converter.tool_result_messages([RESULT, RESULT]) == [RESULT_PARAM, RESULT_PARAM]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"role": "critic", "content": "x"}, "the role 'critic'"),
    ({"role": "user", "content": 1}, "content of type int"),
    ({"role": "user", "content": [1]}, "a content part is neither"),
    ({"role": "user", "content": [{"text": "a"}]}, "a content part is neither"),
    ({"role": "tool", "tool_call_id": "c", "content": [REFERENCE]}, "where only text is allowed"),
]


@pytest.mark.parametrize(("message", "complaint"), REFUSED)
def test_what_mistral_does_not_define_is_refused(message: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match="message 1: ") as caught:
        received(HELLO_PARAM, message)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("hi", (say(text="hi"),)),
        ("", ()),
        (None, ()),
        (["a", *text_entries("b")], (say(text="a"), say(text="b"))),
    ],
)
def test_a_users_content_is_taken_in_every_form(content: object, expected: tuple[ContentPart, ...]) -> None:
    assert received({"role": "user", "content": content}) == (user(*expected),)


RESPONSE: dict[str, Any] = {
    "id": "x",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": [THOUGHT_PARAM, *text_entries("Hi")],
                "tool_calls": [CALL_PARAM] * 2,
            },
        }
    ],
}


def test_a_response_a_message_and_a_stream_are_messages() -> None:
    expected = model(THOUGHT, say(text="Hi"), CALL, CALL, finish_reason="tool_calls")
    assert converter.to_message(RESPONSE) == expected
    assert converter.to_message(RESPONSE["choices"][0]["message"]).content == expected.content
    plain = {
        **RESPONSE,
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "a"}}],
    }
    assert converter.to_message(ChatCompletion.model_validate(plain)).text == "a"
    assert (
        converter.to_message(wrap_chunk({"choices": [{"delta": {"content": text_entries("a")}}]})).text == "a"
    )


def test_ids_of_mistrals_form_are_recognized() -> None:
    pattern = converter.id_pattern
    assert pattern is not None
    assert pattern.fullmatch("aB3dE6gH9")
    assert not pattern.fullmatch("call_1234")
    assert not pattern.fullmatch("aB3dE6gH9x")
