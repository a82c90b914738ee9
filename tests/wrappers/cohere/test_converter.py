"""The Cohere converter: each row of its table in both directions, the round trip, and each documented loss."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import strategies
from support.messages import model, text_entries, tool, user
from support.package_objects import package_object
from support.strategies import only_the_model_calls
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
from tailrace.wrappers.cohere import CohereConverter
from tailrace.wrappers.conversion.result_repair import NO_RESULT

converter = CohereConverter()

say = ContentPartText
PNG = ContentPartFile(data=b"\x89PNG", media_type="image/png")
PNG_SENT = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}}
CALL = ContentPartToolCall(id="c1", name="weather", arguments={"city": "Zürich"})
CALL_SENT = {
    "id": "c1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Zürich"}'},
}
RESULT = ContentPartToolResult(id="c1", name="weather", output={"sky": "sunny"})
RESULT_SENT = {
    "role": "tool",
    "tool_call_id": "c1",
    "content": [{"type": "document", "document": {"data": {"sky": "sunny"}}}],
}
CITATION = {
    "start": 0,
    "end": 5,
    "text": "Sunny",
    "type": "TEXT_CONTENT",
    "sources": [{"type": "tool", "id": "c1:0"}],
}
THOUGHT = {**CITATION, "type": "THINKING_CONTENT"}


def think(text: str, **own: Any) -> ContentPartReasoning:
    return ContentPartReasoning(text=text, metadata={"cohere": {"type": "thinking", **own}})


def plan(text: str, **own: Any) -> ContentPartReasoning:
    return ContentPartReasoning(text=text, metadata={"cohere": {"type": "tool_plan", **own}})


def document(data: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "document", "document": {"data": data, **fields}}


def sent(*messages: Message) -> list[dict[str, Any]]:
    return converter.from_history(History(conversation=messages))


def received(*messages: Any) -> tuple[Message, ...]:
    return converter.to_history(messages).conversation


def back(*messages: Message) -> tuple[Message, ...]:
    return received(*json.loads(json.dumps(sent(*messages))))


def result(output: Any, **fields: Any) -> ContentPartToolResult:
    return ContentPartToolResult(id="c1", name="weather", output=output, **fields)


# A message in the common format and the message of the request, converted both ways.
ROWS: dict[str, tuple[list[Message], list[dict[str, Any]]]] = {
    "user text": ([user(say(text="a"), say(text="b"))], [{"role": "user", "content": text_entries("a", "b")}]),
    "user with an image": ([user(say(text="what?"), PNG)], [{"role": "user", "content": [*text_entries("what?"), PNG_SENT]}]),
    "an image by URL, with detail": (
        [
            user(
                ContentPartFile(
                    url="https://example.com/a.JPG?x=1#y",
                    media_type="image/jpeg",
                    metadata={"cohere": {"image_url": {"detail": "low"}}},
                ),
                ContentPartFile(url="https://example.com/a", media_type="image/*"),
            )
        ],
        [
            {
                "role": "user",
                "content": [
                    {
                        "type": "image_url",
                        "image_url": {"url": "https://example.com/a.JPG?x=1#y", "detail": "low"},
                    },
                    {"type": "image_url", "image_url": {"url": "https://example.com/a"}},
                ],
            }
        ],
    ),
    "fields of Cohere's own": (
        [
            user(say(text="hi", metadata={"cohere": {"x": 1}}), cohere={"name": "ada"}),
            model(say(text="ho", metadata={"cohere": {"y": 2}}), cohere={"name": "bot"}),
        ],
        [
            {"role": "user", "name": "ada", "content": [{"type": "text", "text": "hi", "x": 1}]},
            {"role": "assistant", "name": "bot", "content": [{"type": "text", "text": "ho", "y": 2}]},
        ],
    ),
    "model text": ([model(say(text="a"), say(text="b"))], [{"role": "assistant", "content": text_entries("a", "b")}]),
    "thinking, text and citations": (
        [
            model(
                think("hm", citations=[THOUGHT]),
                say(text="Sunny", metadata={"cohere": {"citations": [CITATION, CITATION]}}),
            )
        ],
        [
            {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": "hm"}, *text_entries("Sunny")],
                "citations": [THOUGHT, CITATION, CITATION],
            }
        ],
    ),
    "citations of several texts": (
        [
            model(
                say(text="Sunny", metadata={"cohere": {"citations": [{**CITATION, "content_index": 0}]}}),
                say(text="Rain", metadata={"cohere": {"citations": [{**CITATION, "content_index": 1}]}}),
            )
        ],
        [
            {
                "role": "assistant",
                "content": text_entries("Sunny", "Rain"),
                "citations": [{**CITATION, "content_index": 0}, {**CITATION, "content_index": 1}],
            }
        ],
    ),
    "a block of Cohere's own": (
        [
            model(
                ContentPartData(
                    data={"type": "audio", "audio": "AAAA"}, metadata={"cohere": {"type": "audio"}}
                )
            )
        ],
        [{"role": "assistant", "content": [{"type": "audio", "audio": "AAAA"}]}],
    ),
    "a round of tools": (
        [
            model(
                plan("I will look.", citations=[{**CITATION, "type": "PLAN"}]),
                CALL,
                ContentPartToolCall(
                    id="c2", name="now", metadata={"cohere": {"x": 1, "function": {"strict": True}}}
                ),
            ),
            tool(RESULT, ContentPartToolResult(id="c2", name="now", output="noon")),
        ],
        [
            {
                "role": "assistant",
                "tool_plan": "I will look.",
                "tool_calls": [
                    CALL_SENT,
                    {
                        "id": "c2",
                        "type": "function",
                        "x": 1,
                        "function": {"strict": True, "name": "now", "arguments": "{}"},
                    },
                ],
                "citations": [{**CITATION, "type": "PLAN"}],
            },
            RESULT_SENT,
            {"role": "tool", "tool_call_id": "c2", "content": "noon"},
        ],
    ),
    "several documents": (
        [model(CALL), tool(result([{"a": 1}, {"b": 2}]))],
        [
            {"role": "assistant", "tool_calls": [CALL_SENT]},
            {"role": "tool", "tool_call_id": "c1", "content": [document({"a": 1}), document({"b": 2})]},
        ],
    ),
    "named documents and their citations": (
        [
            model(CALL),
            tool(
                result({"a": 1}, metadata={"cohere": {"content": [document({"a": 1}, id="d1")], "x": 1}}),
            ),
        ],
        [
            {"role": "assistant", "tool_calls": [CALL_SENT]},
            {"role": "tool", "tool_call_id": "c1", "x": 1, "content": [document({"a": 1}, id="d1")]},
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_each_row_of_the_table_holds_both_ways(name: str) -> None:
    messages, params = ROWS[name]
    assert sent(*messages) == params
    assert received(*params) == tuple(messages)


# --- the round trip ---------------------------------------------------------------------------------------------


own_metadata = st.sampled_from([{}, {"cohere": {"x": 1}}, {"openai": {"x": 1}}])
own_parts = (
    st.builds(think, strategies.texts)
    | st.builds(plan, strategies.texts)
    | st.builds(ContentPartText, text=strategies.texts, metadata=own_metadata)
    | st.builds(
        ContentPartFile,
        data=st.binary(max_size=4),
        media_type=st.sampled_from(["image/png", "IMAGE/PNG; q=1", "image/svg+xml", "audio/wav"]),
        filename=strategies.texts,
        metadata=own_metadata,
    )
    | st.builds(
        ContentPartFile,
        url=st.sampled_from(["https://example.com/a.png", "https://example.com/a"]),
        media_type=st.sampled_from(["", "image/png", "audio/wav"]),
        metadata=own_metadata,
    )
    | st.builds(
        ContentPartData,
        data=st.sampled_from([{"type": "audio", "audio": "A"}, {"type": "x"}, [1]]),
        metadata=st.sampled_from([{}, {"cohere": {"type": "audio"}}]),
    )
    | st.builds(
        ContentPartToolCall, id=strategies.ids, name=strategies.names, kind=st.sampled_from(["server", "function"])
    )
    | st.builds(
        ContentPartToolResult,
        id=strategies.ids | st.just(""),
        name=strategies.names | st.sampled_from(["", "unknown"]),
        output=st.sampled_from(["", "x", {}, {"a": 1}, [{"a": 1}], [{"a": 1}, {"b": 2}], [{}, {"a": 1}], [], None]),
        is_error=st.booleans(),
        metadata=own_metadata,
    )
    | strategies.parsed_tool_calls
)  # fmt: skip
histories = st.builds(
    History,
    system_message=st.none() | strategies.texts,
    context=st.none() | strategies.texts,
    conversation=st.lists(
        strategies.messages(Role.USER, Role.MODEL, Role.TOOL)
        | st.builds(
            Message,
            role=st.sampled_from([Role.USER, Role.MODEL, Role.TOOL]),
            content=st.lists(strategies.parts | own_parts, max_size=6).map(tuple),
            metadata=st.sampled_from([{}, {"cohere": {"x": [1]}}, {"refusal": "no"}, {"refusal": 1}]),
        ),
        max_size=4,
    ).map(tuple),
)


@settings(deadline=None)
@given(histories.map(only_the_model_calls))
def test_what_came_back_goes_out_the_same(history: History) -> None:
    messages = converter.from_history(history)
    assert converter.from_history(converter.to_history(messages)) == messages


@settings(deadline=None)
@given(histories.map(only_the_model_calls))
def test_what_goes_out_is_what_the_api_takes(history: History) -> None:
    known: set[str] = set()
    answered: set[str] = set()
    for message in converter.from_history(history):
        assert message.get("content") or message.get("tool_calls")
        for call in message.get("tool_calls", ()):
            assert call["id"]
            assert call["id"] not in known
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
            known.add(call["id"])
        if message["role"] == "tool":
            assert message["tool_call_id"] in known
            assert message["tool_call_id"] not in answered
            answered.add(message["tool_call_id"])


# Each documented loss: the message before and after the round trip.
LOSSES: dict[str, tuple[list[Message], list[Message]]] = {
    "empty texts and messages are omitted": (
        [user(say(text=""), say(text="a")), user(), model(say(text=""), plan("I will")), model(say(text="b"))],
        [user(say(text="a")), model(say(text="b"))],
    ),
    "missing and duplicate ids are replaced": (
        [
            model(ContentPartToolCall(id="", name="f"), ContentPartToolCall(id="t0", name="g")),
            tool(
                ContentPartToolResult(id="", name="f", output="1"),
                ContentPartToolResult(id="t0", name="g", output="2"),
            ),
            model(ContentPartToolCall(id="t0", name="g")),
            tool(ContentPartToolResult(id="t0", name="g", output="3")),
        ],
        [
            model(ContentPartToolCall(id="call00000", name="f"), ContentPartToolCall(id="t0", name="g")),
            tool(
                ContentPartToolResult(id="call00000", name="f", output="1"),
                ContentPartToolResult(id="t0", name="g", output="2"),
            ),
            model(ContentPartToolCall(id="call00002", name="g")),
            tool(ContentPartToolResult(id="call00002", name="g", output="3")),
        ],
    ),
    "a call without a result gets one with a notice": (
        [model(CALL), user(say(text="Never mind."))],
        [model(CALL), tool(result({"error": NO_RESULT})), user(say(text="Never mind."))],
    ),
    "a result without a call becomes text": (
        [tool(result("sunny"))],
        [user(say(text="The tool weather answered: sunny"))],
    ),
    "reasoning of other providers is omitted": (
        [
            model(
                ContentPartReasoning(text="a", signature="s", metadata={"anthropic": {"type": "thinking"}}),
                ContentPartReasoning(text="b"),
                think("c").model_copy(update={"signature": "s"}),
                say(text="d"),
            )
        ],
        [model(think("c"), say(text="d"))],
    ),
    "a plan goes first, and calls last": (
        [model(say(text="a"), CALL, plan("I "), think("b"), plan("will"))],
        [model(plan("I will"), say(text="a"), think("b"), CALL)],
    ),
    "without a call there is no plan": ([model(plan("I will"), say(text="a"))], [model(say(text="a"))]),
    "data is sent as JSON": (
        [user(ContentPartData(data={"k": "é"})), model(ContentPartData(data=[1], metadata={"cohere": {"type": "x"}}))],
        [user(say(text='{"k": "é"}')), model(say(text="[1]"))],
    ),
    "an image loses its name and a type that its URL does not contain": (
        [
            user(
                PNG.model_copy(update={"filename": "a.png", "media_type": "Image/PNG; q=1"}),
                ContentPartFile(url="https://example.com/a.png"),
                ContentPartFile(url="https://example.com/a", media_type="image/tiff"),
            )
        ],
        [
            user(
                PNG,
                ContentPartFile(url="https://example.com/a.png", media_type="image/png"),
                ContentPartFile(url="https://example.com/a", media_type="image/*"),
            )
        ],
    ),
    "any other file is named in a text, and any of a model's": (
        [
            user(
                ContentPartFile(data=b"abc", media_type="application/pdf", filename="a.pdf"),
                ContentPartFile(data=b"", media_type="image/svg+xml"),
                ContentPartFile(url="https://example.com/a.pdf", filename="report"),
            ),
            model(PNG),
        ],
        [
            user(
                say(text="[file a.pdf, application/pdf, 3 bytes]"),
                say(text="[file, image/svg+xml, 0 bytes]"),
                say(text="[report](https://example.com/a.pdf)"),
            ),
            model(say(text="[file, image/png, 4 bytes]")),
        ],
    ),
    "a refusal is sent as text": ([model(refusal="I won't.")], [model(say(text="I won't."))]),
    "arguments that are not an object become an input": (
        [
            model(
                ContentPartToolCall(id="a", name="f", arguments_text='{"a": ', arguments_error="cut"),
                ContentPartToolCall(id="b", name="f", kind="custom", arguments_text='{"a": 1}', synthetic_id=True),
                ContentPartToolCall(id="c", name="f", kind="other", arguments_text='{"a": 1}'),
            )
        ],
        [
            model(
                ContentPartToolCall(id="a", name="f", arguments={"input": '{"a": '}),
                ContentPartToolCall(id="b", name="f", arguments={"input": '{"a": 1}'}),
                ContentPartToolCall(id="c", name="f", arguments={"a": 1}),
            )
        ],
    ),
    "an empty output, or a list of one item, is its JSON": (
        [
            model(*(ContentPartToolCall(id=each, name="f") for each in "abcd")),
            tool(
                ContentPartToolResult(id="a", name="f", output=""),
                ContentPartToolResult(id="b", name="f", output={}),
                ContentPartToolResult(id="c", name="f", output=[{"a": 1}]),
                ContentPartToolResult(id="d", name="f", output=[1, "é"]),
            ),
        ],
        [
            model(*(ContentPartToolCall(id=each, name="f") for each in "abcd")),
            tool(
                ContentPartToolResult(id="a", name="f", output='""'),
                ContentPartToolResult(id="b", name="f", output="{}"),
                ContentPartToolResult(id="c", name="f", output='[{"a": 1}]'),
                ContentPartToolResult(id="d", name="f", output='[1, "é"]'),
            ),
        ],
    ),
    "a failed result is an error": (
        [model(CALL), tool(result("no", is_error=True))],
        [model(CALL), tool(result({"error": "no"}))],
    ),
    "results inside a model's message follow it": ([model(CALL, RESULT)], [model(CALL), tool(RESULT)]),
    "tools run by a provider are omitted": (
        [
            model(
                ContentPartToolCall(id="s1", name="web_search", kind="server"),
                ContentPartToolResult(id="s1", name="web_search", output=[{"url": "x"}]),
                say(text="found"),
            )
        ],
        [model(say(text="found"))],
    ),
    "metadata is not sent": (
        [model(say(text="a", metadata={"k": 1}), finish_reason="stop", gemini={"x": 1})],
        [model(say(text="a"))],
    ),
    "citations without a part belong to the last one": (
        [
            model(
                say(text="a", metadata={"cohere": {"citations": [CITATION, {**CITATION, "content_index": 7}]}}),
                say(text="b"),
            )
        ],
        [
            model(
                say(text="a"),
                say(text="b", metadata={"cohere": {"citations": [CITATION, {**CITATION, "content_index": 7}]}}),
            )
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_each_documented_loss_is_as_documented(name: str) -> None:
    before, after = LOSSES[name]
    assert back(*before) == tuple(after)


def test_instructions_and_context_that_are_empty_are_left_out() -> None:
    assert converter.from_history(History(system_message="", context="")) == []


# --- requests of other programs ---------------------------------------------------------------------------------


def test_content_is_taken_in_every_form() -> None:
    history = converter.to_history(
        [
            {"role": "system", "content": text_entries("a", "b")},
            {"role": "SYSTEM", "content": "c"},
            {"role": "user", "content": "hi"},
            {"role": "user", "content": None},
            {
                "role": "user",
                "content": ["x", {"type": "image_url", "image_url": "https://example.com/a.gif"}],
            },
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png,%41"}}]},
            {"role": "assistant", "content": "ho"},
            {"role": "assistant", "content": ["ho"], "citations": [THOUGHT, CITATION]},
            {"role": "assistant", "content": None},
        ]
    )
    assert history == History(
        system_message="a\n\nb\n\nc",
        conversation=(
            user(say(text="hi")),
            user(),
            user(say(text="x"), ContentPartFile(url="https://example.com/a.gif", media_type="image/gif")),
            user(ContentPartFile(data=b"A", media_type="image/png")),
            model(say(text="ho")),
            model(say(text="ho", metadata={"cohere": {"citations": [CITATION]}})),
            model(),
        ),
    )


@pytest.mark.parametrize(
    ("content", "output"),
    [
        ("sunny", "sunny"),
        (text_entries("sun", "rain"), "sun\n\nrain"),
        (text_entries(), ""),
        (None, ""),
        ([document('{"sky": "sunny"}')], '{"sky": "sunny"}'),
        ([document({"a": 1}, id="d1"), *text_entries("b")], [{"a": 1}, "b"]),
    ],
)
def test_results_are_taken_in_every_form_and_sent_back_as_they_were(content: Any, output: Any) -> None:
    request = [
        {"role": "assistant", "tool_calls": [CALL_SENT]},
        {"role": "tool", "tool_call_id": "c1", "content": content},
    ]
    conversation = received(*request)
    assert conversation[1].tool_results[0].output == output
    assert conversation[1].tool_results[0].name == "weather"
    assert sent(*conversation)[1]["content"] == (content or '""')


def test_a_call_without_an_id_gets_one() -> None:
    (message,) = received(
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    )
    assert message.content == (ContentPartToolCall(id="call_0", name="f", synthetic_id=True),)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"role": "critic", "content": "x"}, "the role 'critic'"),
    ({"content": "x"}, "the role None"),
    ({"role": "user", "content": [{"type": "video_url"}]}, "of type 'video_url'"),
    ({"role": "user", "content": 1}, "content of type int"),
    ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "ContentPartFile"),
    ({"role": "user", "content": [{"type": "image_url", "image_url": "data:;base64,*"}]}, "base64"),
    ({"role": "system", "content": [PNG_SENT]}, "where only text is allowed"),
    ({"role": "tool", "tool_call_id": "c", "content": [PNG_SENT]}, "where only text is allowed"),
    ({"role": "assistant", "content": [{"text": "x"}]}, "without a type"),
]


@pytest.mark.parametrize(("message", "complaint"), REFUSED)
def test_what_the_api_does_not_define_is_refused(message: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match="message 1: ") as caught:
        received({"role": "user", "content": "hi"}, message)
    assert complaint in str(caught.value)


# --- complete responses, streams, results -----------------------------------------------------------------------

RESPONSE: dict[str, Any] = {
    "id": "r1",
    "finish_reason": "TOOL_CALL",
    "message": {"role": "assistant", "tool_plan": "I will look.", "tool_calls": [CALL_SENT]},
    "usage": {"tokens": {"input_tokens": 1, "output_tokens": 1}},
}
ANSWER = model(plan("I will look."), CALL, finish_reason="tool_calls")


def test_a_whole_response_is_a_message() -> None:
    assert converter.to_message(RESPONSE) == ANSWER
    assert converter.to_message(package_object(RESPONSE)) == ANSWER


def test_a_single_message_is_taken_too() -> None:
    without = model(*ANSWER.content)
    assert converter.to_message(RESPONSE["message"]) == without
    assert received(package_object(RESPONSE["message"])) == (without,)


def test_a_wrapper_is_made_over_one_event() -> None:
    event = {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": "Hi"}}}}
    wrapper = converter.create_chunk_wrapper(event)
    assert (wrapper.raw, wrapper.get_text()) == (event, "Hi")
    assert converter.create_chunk_wrapper({"type": "content-end"}).raw == {"type": "content-end"}
