"""The OpenAI converter: each row of its tables in both directions, the round trip, and each documented loss."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessageParam
from pydantic import TypeAdapter

from support import strategies
from support.arguments import as_sent
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

package_messages: TypeAdapter[Any] = TypeAdapter(list[ChatCompletionMessageParam])

SEARCH_CALL = ContentPartToolCall(id="srv_1", name="web_search", arguments={"query": "x"}, kind="server")
SEARCH_RESULT = ContentPartToolResult(id="srv_1", name="web_search", output=[{"url": "https://example.com"}])
PNG = ContentPartFile(data=b"\x89PNG", media_type="image/png")

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
