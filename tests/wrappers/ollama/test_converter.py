"""The Ollama converter: each row of its table in both directions, the round trip, and each documented loss."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import strategies
from support.messages import model, tool, user
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
from tailrace.wrappers.ollama import OllamaConverter

converter = OllamaConverter()

say = ContentPartText
think = ContentPartReasoning
PNG_BYTES = b"\x89PNG\r\n\x1a\n"
PNG = ContentPartFile(data=PNG_BYTES, media_type="image/png")
PNG_SENT = "iVBORw0KGgo="
CALL = ContentPartToolCall(id="c1", name="weather", arguments={"city": "Zürich", "days": [1, 2]})
CALL_SENT = {"id": "c1", "function": {"name": "weather", "arguments": {"city": "Zürich", "days": [1, 2]}}}
RESULT = ContentPartToolResult(id="c1", name="weather", output="Sunny")
RESULT_SENT = {"role": "tool", "content": "Sunny", "tool_name": "weather", "tool_call_id": "c1"}


def sent(*messages: Message) -> list[dict[str, Any]]:
    return converter.from_history(History(conversation=messages))


def received(*messages: Any) -> tuple[Message, ...]:
    return converter.to_history(messages).conversation


def back(*messages: Message) -> tuple[Message, ...]:
    return received(*json.loads(json.dumps(sent(*messages))))


# A message in the common format and the message of the request, converted both ways.
ROWS: dict[str, tuple[list[Message], list[dict[str, Any]]]] = {
    "user text": ([user(say(text="hi"))], [{"role": "user", "content": "hi"}]),
    "user without content": ([user()], [{"role": "user", "content": ""}]),
    "user with an image": (
        [user(say(text="what?"), PNG)],
        [{"role": "user", "content": "what?", "images": [PNG_SENT]}],
    ),
    "an image alone": ([user(PNG)], [{"role": "user", "content": "", "images": [PNG_SENT]}]),
    "fields of the server's own": (
        [user(say(text="hi"), ollama={"name": "ada"}), model(say(text="ho"), ollama={"name": "bot"})],
        [
            {"role": "user", "content": "hi", "name": "ada"},
            {"role": "assistant", "content": "ho", "name": "bot"},
        ],
    ),
    "model text": ([model(say(text="hello"))], [{"role": "assistant", "content": "hello"}]),
    "model without content": ([model()], [{"role": "assistant", "content": ""}]),
    "model with reasoning": (
        [model(think(text="hm"), say(text="hello"))],
        [{"role": "assistant", "content": "hello", "thinking": "hm"}],
    ),
    "model with an image": (
        [model(say(text="here"), PNG)],
        [{"role": "assistant", "content": "here", "images": [PNG_SENT]}],
    ),
    "a round of tools": (
        [
            model(
                think(text="hm"),
                say(text="let me see"),
                CALL,
                ContentPartToolCall(id="c2", name="now", metadata={"ollama": {"function": {"index": 1}, "x": 1}}),
            ),
            tool(
                RESULT,
                ContentPartToolResult(id="c2", name="now", output="", metadata={"ollama": {"images": [PNG_SENT]}}),
            ),
        ],
        [
            {
                "role": "assistant",
                "content": "let me see",
                "thinking": "hm",
                "tool_calls": [
                    CALL_SENT,
                    {"id": "c2", "x": 1, "function": {"index": 1, "name": "now", "arguments": {}}},
                ],
            },
            RESULT_SENT,
            {
                "role": "tool",
                "content": "",
                "tool_name": "now",
                "tool_call_id": "c2",
                "images": [PNG_SENT],
            },
        ],
    ),
    "a result of an unknown tool": (
        [tool(ContentPartToolResult(id="x", name="unknown", output="42"))],
        [{"role": "tool", "content": "42", "tool_call_id": "x"}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_each_row_of_the_table_holds_both_ways(name: str) -> None:
    messages, params = ROWS[name]
    assert sent(*messages) == params
    assert received(*params) == tuple(messages)


# --- the round trip ---------------------------------------------------------------------------------------------


images = st.builds(
    ContentPartFile,
    data=st.sampled_from([b"", PNG_BYTES, PNG_BYTES + b"x", b"xy"]),
    media_type=st.sampled_from(["image/png", "image/jpeg", "IMAGE/WEBP; q=1", "image/svg+xml", "audio/wav"]),
    filename=strategies.texts,
)
server_calls = st.builds(
    ContentPartToolCall,
    id=strategies.ids,
    name=strategies.names,
    kind=st.sampled_from(["server", "function"]),
)
own_results = st.builds(
    ContentPartToolResult,
    id=strategies.ids | st.just(""),
    name=strategies.names | st.sampled_from(["", "unknown"]),
    output=strategies.texts,
    metadata=st.sampled_from([{}, {"ollama": {"x": 1}}]),
)
histories = st.builds(
    History,
    system_message=st.none() | strategies.texts,
    context=st.none() | strategies.texts,
    conversation=st.lists(
        strategies.messages(Role.USER, Role.MODEL, Role.TOOL)
        | st.builds(
            Message,
            role=st.sampled_from([Role.USER, Role.MODEL, Role.TOOL]),
            content=st.lists(strategies.parts | images | server_calls | own_results | strategies.parsed_tool_calls).map(tuple),
            metadata=st.sampled_from([{}, {"ollama": {"x": [1]}}, {"refusal": "no"}, {"refusal": 1}]),
        ),
        max_size=4,
    ).map(tuple),
)  # fmt: skip


@settings(deadline=None)
@given(histories.map(only_the_model_calls))
def test_what_came_back_goes_out_the_same(history: History) -> None:
    messages = converter.from_history(history)
    assert converter.from_history(converter.to_history(messages)) == messages


# Each documented loss: the message before and after the round trip.
LOSSES: dict[str, tuple[list[Message], list[Message]]] = {
    "texts are joined with a blank line": (
        [user(say(text="a"), say(text="b")), model(say(text="c"), say(text="d"))],
        [user(say(text="a\n\nb")), model(say(text="c\n\nd"))],
    ),
    "blocks of one text are one text": (
        [
            model(
                say(text="It is "),
                say(text="21 C", metadata={"anthropic": {"citations": [{"url": "https://example.com"}]}}),
                say(text=" there."),
            )
        ],
        [model(say(text="It is 21 C there."))],
    ),
    "so is text beside data and files": (
        [user(say(text="a"), ContentPartData(data={"k": "é"}), say(text="b"), PNG, say(text="c"))],
        [user(say(text='a\n\n{"k":"é"}\n\nb\n\nc'), PNG)],
    ),
    "a refusal is sent as text": ([model(refusal="I won't.")], [model(say(text="I won't."))]),
    "an image's URL is named in the text": (
        [user(ContentPartFile(url="https://example.com/a.png", media_type="image/png"))],
        [user(say(text="[https://example.com/a.png](https://example.com/a.png)"))],
    ),
    "any other file is named in the text": (
        [
            user(
                ContentPartFile(data=b"abc", media_type="application/pdf", filename="a.pdf"),
                ContentPartFile(data=b"", media_type="image/svg+xml"),
            )
        ],
        [user(say(text="[file a.pdf, application/pdf, 3 bytes]\n\n[file, image/svg+xml, 0 bytes]"))],
    ),
    "reasoning is one part without its signature, and comes first": (
        [model(say(text="a"), think(text="h", signature="s", metadata={"anthropic": {"x": 1}}), think(text="m"))],
        [model(think(text="hm"), say(text="a"))],
    ),
    "text goes before calls": (
        [model(say(text="a"), CALL, say(text="b"))],
        [model(say(text="a\n\nb"), CALL)],
    ),
    "arguments that are not an object become an input": (
        [
            model(
                ContentPartToolCall(id="a", name="f", arguments_text='{"a": ', arguments_error="cut"),
                ContentPartToolCall(id="b", name="f", arguments_text="[1]"),
                ContentPartToolCall(id="c", name="f", kind="custom", arguments_text='{"a": 1}'),
                ContentPartToolCall(id="d", name="f", arguments_text='{"a": 1}'),
            )
        ],
        [
            model(
                ContentPartToolCall(id="a", name="f", arguments={"input": '{"a": '}),
                ContentPartToolCall(id="b", name="f", arguments={"input": "[1]"}),
                ContentPartToolCall(id="c", name="f", arguments={"input": '{"a": 1}'}),
                ContentPartToolCall(id="d", name="f", arguments={"a": 1}),
            )
        ],
    ),
    "missing ids are generated": (
        [
            model(ContentPartToolCall(id="", name="f")),
            tool(ContentPartToolResult(id="", name="f", output="x")),
        ],
        [
            model(ContentPartToolCall(id="call00000", name="f")),
            tool(ContentPartToolResult(id="call00000", name="f", output="x")),
        ],
    ),
    "an output that is not text is its JSON": (
        [tool(ContentPartToolResult(id="x", name="f", output={"t": [1, "°"]}))],
        [tool(ContentPartToolResult(id="x", name="f", output='{"t": [1, "°"]}'))],
    ),
    "a failed result is an error": (
        [tool(ContentPartToolResult(id="x", name="f", output="no", is_error=True))],
        [tool(ContentPartToolResult(id="x", name="f", output='{"error": "no"}'))],
    ),
    "an uninformative name is replaced by the call's": (
        [model(CALL), tool(RESULT.model_copy(update={"name": "unknown"}))],
        [model(CALL), tool(RESULT)],
    ),
    "parts beside results follow them": (
        [model(CALL), user(say(text="also"), RESULT)],
        [model(CALL), tool(RESULT), user(say(text="also"))],
    ),
    "results inside a model's message follow it": ([model(CALL, RESULT)], [model(CALL), tool(RESULT)]),
    "tools run by a provider are omitted": (
        [
            model(
                ContentPartToolCall(id="s1", name="web_search", kind="server"),
                ContentPartToolResult(id="s1", name="web_search", output=[{"url": "x"}]),
                ContentPartToolResult(id="s0", name="web_search", output="late"),
                say(text="found"),
            ),
            user(ContentPartToolResult(id="s1", name="web_search", output="again"), say(text="more")),
        ],
        [model(say(text="found")), user(say(text="more"))],
    ),
    "metadata is not sent": (
        [model(say(text="a", metadata={"k": 1}), finish_reason="stop", gemini={"x": 1})],
        [model(say(text="a"))],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_each_documented_loss_is_as_documented(name: str) -> None:
    before, after = LOSSES[name]
    assert back(*before) == tuple(after)


def test_a_context_comes_back_as_a_message() -> None:
    history = History(system_message="", context="Zürich")
    assert converter.to_history(converter.from_history(history)) == History(
        system_message="", conversation=(user(say(text="Zürich")),)
    )


# --- requests of other programs ---------------------------------------------------------------------------------


def test_system_messages_are_joined_and_roles_are_taken_in_any_case() -> None:
    history = converter.to_history(
        [
            {"role": "system", "content": "a"},
            {"role": "USER", "content": "hi"},
            {"role": "system", "content": "b"},
        ]
    )
    assert history == History(system_message="a\n\nb", conversation=(user(say(text="hi")),))


def test_results_without_ids_answer_the_calls_in_order() -> None:
    calls: list[Any] = [{"function": {"name": name, "arguments": {}}} for name in "abb"]
    first, second = received(
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "1", "tool_name": "b"},
        {"role": "tool", "content": "2"},
        {"role": "tool", "content": "3"},
        {"role": "tool", "content": "4"},
    )
    assert [call.id for call in first.tool_calls] == ["call_0", "call_1", "call_2"]
    assert [(result.id, result.name, result.output) for result in second.tool_results] == [
        ("call_1", "b", "1"),
        ("call_0", "a", "2"),
        ("call_2", "b", "3"),
        ("", "unknown", "4"),
    ]


def test_calls_of_the_same_id_and_arguments_stay_apart() -> None:
    call: Any = {"id": "0", "function": {"name": "f", "arguments": {}}}
    (message,) = received({"role": "assistant", "content": None, "tool_calls": [call, call]})
    assert [each.id for each in message.tool_calls] == ["0", "0"]


def test_arguments_that_nest_too_deep_are_kept_as_text_and_sent() -> None:
    deep: dict[str, Any] = {}
    for _ in range(40):
        deep = {"a": deep}
    call = {"id": "c", "function": {"name": "f", "arguments": deep}}
    (message,) = received({"role": "assistant", "content": "", "tool_calls": [call]})
    assert json.loads(message.tool_calls[0].arguments_text or "") == deep
    (again,) = sent(message)
    assert again["tool_calls"][0]["function"]["arguments"] == {"input": message.tool_calls[0].arguments_text}


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ({"role": "critic", "content": "x"}, "the role 'critic'"),
        ({"content": "x"}, "the role None"),
        ({"role": "user", "content": [{"type": "text"}]}, "content of type list"),
        ({"role": "user", "content": "x", "images": ["*"]}, "base64"),
    ],
)
def test_what_the_api_does_not_define_is_refused(message: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match="message 1: ") as caught:
        received({"role": "user", "content": "hi"}, message)
    assert complaint in str(caught.value)


# --- complete responses, streams, results -----------------------------------------------------------------------

RESPONSE: dict[str, Any] = {
    "model": "m",
    "created_at": "2026-08-04T19:59:21Z",
    "message": {"role": "assistant", "content": "Let me see.", "thinking": "Hm", "tool_calls": [CALL_SENT]},
    "done": True,
    "done_reason": "stop",
    "eval_count": 1,
}
ANSWER = model(think(text="Hm"), say(text="Let me see."), CALL, finish_reason="tool_calls")


def test_a_whole_response_is_a_message() -> None:
    assert converter.to_message(RESPONSE) == ANSWER
    assert converter.to_message(package_object(RESPONSE)) == ANSWER
    assert converter.to_message({"response": "Hi", "done": False}) == model(say(text="Hi"))


def test_a_single_message_is_taken_too() -> None:
    without = model(*ANSWER.content)
    assert converter.to_message(RESPONSE["message"]) == without
    assert received(package_object(RESPONSE["message"])) == (without,)


def test_a_wrapper_is_made_over_one_line() -> None:
    wrapper = converter.create_chunk_wrapper(RESPONSE)
    assert (wrapper.raw, wrapper.get_text(), wrapper.get_reasoning()) == (RESPONSE, "Let me see.", "Hm")
    assert converter.create_chunk_wrapper({"status": "loading"}).get_text() == ""
