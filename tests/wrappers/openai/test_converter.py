"""The OpenAI converter: each row of its tables in both directions, the round trip, and each documented loss."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionMessage, ChatCompletionMessageParam
from openai.types.chat.chat_completion_chunk import ChoiceDelta
from pydantic import TypeAdapter

from support import strategies
from support.arguments import as_sent
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
    Role,
)
from tailrace.wrappers.openai import ChoiceDeltaWrapper, wrap_chunk
from tailrace.wrappers.openai.converter import OpenAIConverter

converter = OpenAIConverter()

package_messages: TypeAdapter[Any] = TypeAdapter(list[ChatCompletionMessageParam])


def param(**fields: Any) -> ChatCompletionMessageParam:
    """A request's message as programs write it."""
    return cast("ChatCompletionMessageParam", fields)


def sent(*messages: Message) -> list[dict[str, Any]]:
    """The messages of the request for a conversation."""
    return cast("list[dict[str, Any]]", converter.from_history(History(conversation=messages)))


def received(*messages: Mapping[str, Any]) -> tuple[Message, ...]:
    return converter.to_history(cast("Sequence[ChatCompletionMessageParam]", messages)).conversation


say = ContentPartText
WEATHER_CALL = ContentPartToolCall(id="call_1", name="get_weather", arguments={"location": "Oakland"})
WEATHER_CALL_PARAM = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"location": "Oakland"}'},
}
WEATHER_RESULT = ContentPartToolResult(id="call_1", name="get_weather", output="Sunny, 72°F")
WEATHER_RESULT_PARAM = {"role": "tool", "tool_call_id": "call_1", "content": "Sunny, 72°F"}
SEARCH_CALL = ContentPartToolCall(id="srv_1", name="web_search", arguments={"query": "x"}, kind="server")
SEARCH_RESULT = ContentPartToolResult(id="srv_1", name="web_search", output=[{"url": "https://example.com"}])
PNG = ContentPartFile(data=b"\x89PNG", media_type="image/png")
PNG_PARAM = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}}
WAV = ContentPartFile(data=b"RIFF", media_type="audio/wav")
PDF = ContentPartFile(data=b"%PDF", media_type="application/pdf", filename="a.pdf")
PDF_PARAM = {
    "type": "file",
    "file": {"file_data": "data:application/pdf;base64,JVBERg==", "filename": "a.pdf"},
}

# Rows of the tables: a message in the common format and the message of the request, converted both ways.
ROWS: dict[str, tuple[Message, list[dict[str, Any]]]] = {
    "user text": (user(say(text="hi")), [{"role": "user", "content": text_entries("hi")}]),
    "user text in several parts": (
        user(say(text="a"), say(text="b")),
        [{"role": "user", "content": text_entries("a", "b")}],
    ),
    "user without content": (user(), [{"role": "user", "content": ""}]),
    "user with fields of OpenAI's own": (
        user(
            say(text="hi", metadata={"openai": {"prompt_cache_breakpoint": {"mode": "explicit"}}}),
            openai={"name": "ada"},
        ),
        [
            {
                "role": "user",
                "name": "ada",
                "content": [{**text_entries("hi")[0], "prompt_cache_breakpoint": {"mode": "explicit"}}],
            }
        ],
    ),
    "image by value": (user(say(text="what?"), PNG), [{"role": "user", "content": [*text_entries("what?"), PNG_PARAM]}]),
    "image by URL, with detail": (
        user(
            ContentPartFile(
                url="https://example.com/a.JPG?x=1#y",
                media_type="image/jpeg",
                metadata={"openai": {"image_url": {"detail": "low"}}},
            )
        ),
        [
            {
                "role": "user",
                "content": [
                    {
                        "type": "image_url",
                        "image_url": {"url": "https://example.com/a.JPG?x=1#y", "detail": "low"},
                    }
                ],
            }
        ],
    ),
    "image by URL, of unknown type": (
        user(ContentPartFile(url="https://example.com/a", media_type="image/*")),
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.com/a"}}]}],
    ),
    "audio": (
        user(WAV, ContentPartFile(data=b"ID3", media_type="audio/mpeg")),
        [
            {
                "role": "user",
                "content": [
                    {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
                    {"type": "input_audio", "input_audio": {"data": "SUQz", "format": "mp3"}},
                ],
            }
        ],
    ),
    "another file": (user(PDF), [{"role": "user", "content": [PDF_PARAM]}]),
    "a file uploaded before": (
        user(ContentPartFile(url="openai-file:file-abc")),
        [{"role": "user", "content": [{"type": "file", "file": {"file_id": "file-abc"}}]}],
    ),
    "model text": (model(say(text="hello")), [{"role": "assistant", "content": text_entries("hello")}]),
    "model with a tool call alone": (
        model(WEATHER_CALL),
        [{"role": "assistant", "content": None, "tool_calls": [WEATHER_CALL_PARAM]}],
    ),
    "model with text and tool calls": (
        model(say(text="let me see"), WEATHER_CALL, ContentPartToolCall(id="call_2", name="now")),
        [
            {
                "role": "assistant",
                "content": text_entries("let me see"),
                "tool_calls": [
                    WEATHER_CALL_PARAM,
                    {"id": "call_2", "type": "function", "function": {"name": "now", "arguments": "{}"}},
                ],
            }
        ],
    ),
    "a custom tool": (
        model(ContentPartToolCall(id="c", name="sh", kind="custom", arguments_text="ls -l")),
        [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "sh", "input": "ls -l"}}],
            }
        ],
    ),
    "a thought signature": (
        model(
            ContentPartToolCall(
                id="c",
                name="f",
                metadata={
                    "openai": {
                        "extra_content": {"google": {"thought_signature": "s"}},
                        "function": {"strict": True},
                    }
                },
            )
        ),
        [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "c",
                        "type": "function",
                        "extra_content": {"google": {"thought_signature": "s"}},
                        "function": {"strict": True, "name": "f", "arguments": "{}"},
                    }
                ],
            }
        ],
    ),
    "a refusal": (
        model(refusal="I can't help with that."),
        [{"role": "assistant", "content": None, "refusal": "I can't help with that."}],
    ),
    "a model with a name": (
        model(say(text="hi"), openai={"name": "bot"}),
        [{"role": "assistant", "name": "bot", "content": text_entries("hi")}],
    ),
    "a tool result": (tool(ContentPartToolResult(id="x", name="unknown", output="42")), [
        {"role": "tool", "tool_call_id": "x", "content": "42"}
    ]),
    "several tool results of one round": (
        tool(
            ContentPartToolResult(id="x", name="unknown", output="42"),
            ContentPartToolResult(id="y", name="unknown", output=""),
        ),
        [
            {"role": "tool", "tool_call_id": "x", "content": "42"},
            {"role": "tool", "tool_call_id": "y", "content": ""},
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_each_row_of_the_table_holds_both_ways(name: str) -> None:
    message, params = ROWS[name]
    assert sent(message) == params
    assert received(*params) == (message,)


@pytest.mark.parametrize("name", ROWS)
def test_what_is_sent_is_valid_by_the_packages_own_types(name: str) -> None:
    _, params = ROWS[name]
    for validated in package_messages.validate_python(params):
        for field in ("content", "tool_calls"):
            if isinstance(validated.get(field), Iterable):
                list(validated[field])  # the package validates entries lazily


def test_messages_without_content_are_left_out_but_for_the_users() -> None:
    assert sent(user(), model(), tool()) == [{"role": "user", "content": ""}]


def test_an_empty_system_message_is_not_none() -> None:
    history = History(system_message="")
    assert converter.from_history(history) == [{"role": "system", "content": text_entries("")}]
    assert converter.to_history(converter.from_history(history)) == history


def with_results(calls: list[ContentPartToolCall], outputs: list[str]) -> list[Message]:
    """A model message with calls of different ids, and the message with their results."""
    unique = [call.model_copy(update={"id": f"{call.id}-{n}"}) for n, call in enumerate(calls)]
    results = [
        ContentPartToolResult(id=call.id, name=call.name, output=output)
        for call, output in zip(unique, outputs, strict=False)
    ]
    return [model(*unique), *([tool(*results)] if results else [])]


lossless_files = st.builds(
    ContentPartFile, data=st.binary(max_size=6), media_type=st.sampled_from(["image/png", "audio/wav", "audio/mpeg"])
) | st.builds(
    ContentPartFile,
    data=st.binary(max_size=6),
    media_type=st.sampled_from(["application/pdf", "text/plain;charset=utf-8", "video/mp4"]),
    filename=strategies.names,
) | st.sampled_from(
    [
        ContentPartFile(url="https://example.com/a.webp", media_type="image/webp"),
        ContentPartFile(url="https://example.com/a", media_type="image/*"),
        ContentPartFile(url="openai-file:file-1"),
    ]
)  # fmt: skip
lossless_user = st.lists(st.builds(ContentPartText, text=strategies.texts) | lossless_files, max_size=4).map(
    lambda content: [user(*content)]
)
lossless_model = st.builds(ContentPartText, text=strategies.names).map(lambda part: [model(part)])
lossless_round = st.builds(
    with_results,
    st.lists(strategies.parsed_tool_calls.map(as_sent), min_size=1, max_size=3),
    st.lists(strategies.texts, max_size=3),
)


def history_of(system: str | None, turns: list[list[Message]]) -> History:
    return History(system_message=system, conversation=tuple(message for turn in turns for message in turn))


lossless_histories = st.builds(
    history_of,
    system=st.none() | strategies.texts,
    turns=st.lists(lossless_user | lossless_model | lossless_round, max_size=4),
)


@given(lossless_histories)
def test_a_history_comes_back_as_it_went_out(history: History) -> None:
    messages = converter.from_history(history)
    assert converter.to_history(messages) == history
    assert converter.to_history(json.loads(json.dumps(messages))) == history


def back(*messages: Message) -> tuple[Message, ...]:
    return converter.to_history(converter.from_history(History(conversation=messages))).conversation


# Each documented loss: the message before and after the round trip.
LOSSES: dict[str, tuple[Message, tuple[Message, ...]]] = {
    "reasoning without a server is omitted": (
        model(ContentPartReasoning(text="hm", signature="s"), say(text="hi")),
        (model(say(text="hi")),),
    ),
    "arguments that do not parse become an object": (
        model(ContentPartToolCall(id="c", name="f", arguments_text='{"a": ', arguments_error="cut")),
        (model(ContentPartToolCall(id="c", name="f", arguments={"input": '{"a": '})),),
    ),
    "arguments that are not an object become one": (
        model(ContentPartToolCall(id="c", name="f", arguments_text="null")),
        (model(ContentPartToolCall(id="c", name="f", arguments={"input": "null"})),),
    ),
    "data becomes its JSON": (
        user(ContentPartData(data={"a": [1, "é"]})),
        (user(say(text='{"a":[1,"é"]}')),),
    ),
    "a model's data becomes its JSON": (model(ContentPartData(data=[1])), (model(say(text="[1]")),)),
    "a link that is not an image is named in text": (
        user(ContentPartFile(url="https://example.com/a.pdf", filename="report")),
        (user(say(text="[report](https://example.com/a.pdf)")),),
    ),
    "a link without a name names itself": (
        user(ContentPartFile(url="https://example.com/a", media_type="audio/wav")),
        (user(say(text="[https://example.com/a](https://example.com/a)")),),
    ),
    "a model's file is named in text": (
        model(ContentPartFile(data=b"abc", media_type="image/png", filename="cat.png")),
        (model(say(text="[file cat.png, image/png, 3 bytes]")),),
    ),
    "a model's file without a name is named in text": (
        model(ContentPartFile(data=b"abc")),
        (model(say(text="[file, 3 bytes]")),),
    ),
    "a model's link is named in text": (
        model(ContentPartFile(url="https://example.com/a.png")),
        (model(say(text="[https://example.com/a.png](https://example.com/a.png)")),),
    ),
    "an image loses its name": (
        user(ContentPartFile(data=b"", media_type="image/png", filename="a.png")),
        (user(ContentPartFile(data=b"", media_type="image/png")),),
    ),
    "an image by URL gets the type of the URL's extension": (
        user(ContentPartFile(url="https://example.com/a.png")),
        (user(ContentPartFile(url="https://example.com/a.png", media_type="image/png")),),
    ),
    "an image type that the URL does not contain is lost": (
        user(ContentPartFile(url="https://example.com/a", media_type="image/tiff")),
        (user(ContentPartFile(url="https://example.com/a", media_type="image/*")),),
    ),
    "audio types have one name each": (
        user(ContentPartFile(data=b"", media_type="audio/x-wav"), ContentPartFile(data=b"", media_type="audio/mp3")),
        (user(ContentPartFile(data=b"", media_type="audio/wav"), ContentPartFile(data=b"", media_type="audio/mpeg")),),
    ),
    "a file without a type or a name gets one": (
        user(ContentPartFile(data=b"x"), ContentPartFile(data=b"y", media_type="application/pdf")),
        (
            user(
                ContentPartFile(data=b"x", media_type="application/octet-stream", filename="file"),
                ContentPartFile(data=b"y", media_type="application/pdf", filename="file.pdf"),
            ),
        ),
    ),
    "text goes before tool calls": (
        model(say(text="a"), WEATHER_CALL, say(text="b")),
        (model(say(text="a"), say(text="b"), WEATHER_CALL),),
    ),
    "blocks of one text are one part": (
        model(
            say(text="It is "),
            say(text="21 C", metadata={"anthropic": {"citations": [{"url": "https://example.com"}]}}),
            say(text=" there."),
            say(text="Bring a coat."),
        ),
        (model(say(text="It is 21 C there."), say(text="Bring a coat.")),),
    ),
    "an output that is not text becomes its JSON": (
        tool(ContentPartToolResult(id="c", name="f", output={"t": [72, "°F"]})),
        (tool(ContentPartToolResult(id="c", name="unknown", output='{"t": [72, "°F"]}')),),
    ),
    "no output becomes null": (
        tool(ContentPartToolResult(id="c", name="f")),
        (tool(ContentPartToolResult(id="c", name="unknown", output="null")),),
    ),
    "a failure becomes an object with an error": (
        tool(ContentPartToolResult(id="c", name="f", output="no such city", is_error=True)),
        (tool(ContentPartToolResult(id="c", name="unknown", output='{"error": "no such city"}')),),
    ),
    "a failure with an error does not repeat it": (
        tool(ContentPartToolResult(id="c", name="f", output={"error": "x", "code": 1}, is_error=True)),
        (tool(ContentPartToolResult(id="c", name="unknown", output='{"error": "x", "code": 1}')),),
    ),
    "parts beside results become a message after them": (
        Message(role=Role.USER, content=(say(text="also"), WEATHER_RESULT, say(text="this"))),
        (
            tool(ContentPartToolResult(id="call_1", name="unknown", output="Sunny, 72°F")),
            user(say(text="also"), say(text="this")),
        ),
    ),
    "the provider's results follow the model's message": (
        model(say(text="a"), WEATHER_CALL, WEATHER_RESULT),
        (model(say(text="a"), WEATHER_CALL), tool(WEATHER_RESULT)),
    ),
    "tools run by a provider are omitted": (
        model(SEARCH_CALL, SEARCH_RESULT, say(text="found"), WEATHER_CALL, WEATHER_RESULT),
        (model(say(text="found"), WEATHER_CALL), tool(WEATHER_RESULT)),
    ),
    "a message with only a provider's tools is omitted": (model(SEARCH_CALL, SEARCH_RESULT), ()),
    "a message without content is omitted": (model(finish_reason="stop"), ()),
    "reasoning without a response is omitted": (model(ContentPartReasoning(text="hm")), ()),
    "other providers' fields of a part are not sent": (
        model(
            ContentPartReasoning(text="hm", signature="s", metadata={"anthropic": {"type": "thinking"}}),
            say(text="a", metadata={"gemini": {"thoughtSignature": "s"}}),
            WEATHER_CALL.model_copy(update={"metadata": {"gemini": {"thoughtSignature": "s"}, "k": 1}}),
            anthropic={"id": "msg_1"},
        ),
        (model(say(text="a"), WEATHER_CALL),),
    ),
    "a call in the legacy form goes back as a tool call": (
        model(WEATHER_CALL.model_copy(update={"metadata": {"openai": {"legacy": "function_call"}}})),
        (model(WEATHER_CALL),),
    ),
    "a tool message without results is omitted": (tool(ContentPartReasoning(text="x")), ()),
    "metadata is not sent": (
        model(say(text="a", metadata={"k": 1}), finish_reason="stop", extra={"annotations": []}),
        (model(say(text="a")),),
    ),
    "a generated id is sent like any other": (
        model(ContentPartToolCall(id="call_0", name="f", synthetic_id=True)),
        (model(ContentPartToolCall(id="call_0", name="f")),),
    ),
    "a custom tool's parsed arguments become text": (
        model(ContentPartToolCall(id="c", name="f", kind="custom", arguments={"a": 1})),
        (model(ContentPartToolCall(id="c", name="f", kind="custom", arguments_text='{"a": 1}')),),
    ),
    "a custom tool without input gets an empty one": (
        model(ContentPartToolCall(id="c", name="f", kind="custom")),
        (model(ContentPartToolCall(id="c", name="f", kind="custom", arguments_text="")),),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_each_loss_is_the_documented_one(name: str) -> None:
    message, expected = LOSSES[name]
    assert back(message) == expected


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
