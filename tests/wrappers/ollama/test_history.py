"""The Ollama converter: every row of its table both ways, the round trip, and each documented loss."""

import itertools
import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import strategies
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
from tailrace.wrappers.loose_json import as_mapping
from tailrace.wrappers.ollama import OllamaConverter, OllamaDecoder
from tailrace.wrappers.tool_calls import parse_arguments
from tailrace.wrappers.tool_ids import with_matched_ids

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


def user(*content: ContentPart, **metadata: Any) -> Message:
    return Message(role=Role.USER, content=content, metadata=metadata)


def model(*content: ContentPart, **metadata: Any) -> Message:
    return Message(role=Role.MODEL, content=content, metadata=metadata)


def tool(*content: ContentPart) -> Message:
    return Message(role=Role.TOOL, content=content)


def sent(*messages: Message) -> list[dict[str, Any]]:
    return converter.from_history(History(conversation=messages))


def received(*messages: Any) -> tuple[Message, ...]:
    return converter.to_history(messages).conversation


def back(*messages: Message) -> tuple[Message, ...]:
    return received(*json.loads(json.dumps(sent(*messages))))


# A message of the common format, and what the server is sent; the same way back.
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


def test_a_complete_history_goes_out_in_order() -> None:
    history = History(
        system_message="You are a helper.",
        context="The user is in Zürich.",
        conversation=(user(say(text="Weather?")), model(CALL), tool(RESULT), model(say(text="Sunny."))),
    )
    assert converter.from_history(history) == [
        {"role": "system", "content": "You are a helper."},
        {"role": "user", "content": "The user is in Zürich."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL_SENT]},
        RESULT_SENT,
        {"role": "assistant", "content": "Sunny."},
    ]


def test_an_empty_history_is_no_messages() -> None:
    assert converter.from_history(History()) == []
    assert converter.to_history([]) == History()


# --- the round trip ---------------------------------------------------------------------------------------------


def expected(history: History) -> History:
    """The history with exactly the losses that the module documents."""
    conversation = [user(*_texts([history.context]))] if history.context is not None else []
    functions: dict[str, str] = {}
    servers: set[str] = set()
    for message in with_matched_ids(history).conversation:
        results: list[ContentPart] = []
        for part in message.content:
            if isinstance(part, ContentPartToolCall) and part.kind == "server":
                servers.add(part.id)
            elif isinstance(part, ContentPartToolCall):
                functions[part.id] = part.name
        for part in message.content:
            if not isinstance(part, ContentPartToolResult):
                continue
            if part.id in functions or not (message.role is Role.MODEL or part.id in servers):
                results.append(_result(part, functions))
        images = [
            ContentPartFile(data=part.data, media_type=_type_of(part.data or b""))
            for part in message.content
            if isinstance(part, ContentPartFile) and _is_image(part)
        ]
        refusal = message.metadata.get("refusal")
        refused = [say(text=refusal)] if message.role is Role.MODEL and isinstance(refusal, str) else []
        metadata = _own(message.metadata)
        content = [*_texts([_text_of([*message.content, *refused])]), *images]
        if message.role is Role.MODEL:
            reasoning = [think(text=message.reasoning)] if message.reasoning else []
            calls = [_call(call) for call in message.tool_calls if call.kind != "server"]
            conversation.append(model(*reasoning, *content, *calls, **metadata))
        if results and conversation and conversation[-1].role is Role.TOOL:
            conversation[-1] = tool(*conversation[-1].content, *results)
        elif results:
            conversation.append(tool(*results))
        if message.role is not Role.MODEL and (
            content or (message.role is Role.USER and not message.tool_results)
        ):
            conversation.append(user(*content, **metadata))
    return History(system_message=history.system_message, conversation=tuple(conversation))


def _text_of(parts: Iterable[ContentPart]) -> str:
    paragraphs: list[str] = []
    for is_text, group in itertools.groupby(parts, lambda part: isinstance(part, ContentPartText)):
        if is_text:
            paragraphs.append("".join(getattr(part, "text", "") for part in group))
            continue
        for part in group:
            if isinstance(part, ContentPartData):
                paragraphs.append(json.dumps(part.data, ensure_ascii=False, separators=(",", ":")))
            elif isinstance(part, ContentPartFile) and part.url is not None:
                paragraphs.append(f"[{part.filename or part.url}]({part.url})")
            elif isinstance(part, ContentPartFile) and not _is_image(part):
                name = f"file {part.filename}".rstrip()
                size = f"{len(part.data or b'')} bytes"
                paragraphs.append(f"[{', '.join(filter(None, [name, part.media_type, size]))}]")
    return "\n\n".join(filter(None, paragraphs))


def _is_image(part: ContentPartFile) -> bool:
    return part.data is not None and part.media_type in ("image/png", "image/jpeg", "IMAGE/WEBP; q=1")


def _type_of(data: bytes) -> str:
    return "image/png" if data.startswith(PNG_BYTES) else "image/*"


def _texts(texts: Iterable[str | None]) -> list[ContentPart]:
    return [say(text=text) for text in texts if text]


def _call(call: ContentPartToolCall) -> ContentPartToolCall:
    arguments = call.arguments
    if call.arguments_text is not None:
        parsed = parse_arguments(call.arguments_text)
        known = call.kind != "custom" and "arguments" in parsed
        arguments = parsed["arguments"] if known else {"input": call.arguments_text}
    return ContentPartToolCall(id=call.id, name=call.name, arguments=arguments, metadata=_own(call.metadata))


def _own(metadata: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in metadata.items() if name == "ollama"}


def _result(result: ContentPartToolResult, names: dict[str, str]) -> ContentPartToolResult:
    failed = result.is_error and "error" not in (as_mapping(result.output) or {})
    value = {"error": result.output} if failed else result.output
    output = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    name = "" if result.name == "unknown" else result.name
    return ContentPartToolResult(
        id=result.id,
        name=name or names.get(result.id) or "unknown",
        output=output,
        metadata=_own(result.metadata),
    )


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


def only_the_model_calls(history: History) -> History:
    """The history without calls in other messages, which cannot be sent."""
    conversation = [
        message
        if message.role is Role.MODEL
        else message.model_copy(
            update={"content": tuple(part for part in message.content if part.type != "tool_call")}
        )
        for message in history.conversation
    ]
    return history.model_copy(update={"conversation": tuple(conversation)})


@settings(deadline=None)
@given(histories.map(only_the_model_calls))
def test_a_history_comes_back_with_the_documented_losses_and_no_other(history: History) -> None:
    messages = converter.from_history(history)
    assert converter.to_history(messages) == expected(history)
    assert converter.to_history(json.loads(json.dumps(messages))) == expected(history)


@settings(deadline=None)
@given(histories.map(only_the_model_calls))
def test_what_came_back_goes_out_the_same(history: History) -> None:
    messages = converter.from_history(history)
    assert converter.from_history(converter.to_history(messages)) == messages


@pytest.mark.parametrize("role", [Role.USER, Role.TOOL])
def test_a_call_that_is_not_the_models_is_refused(role: Role) -> None:
    with pytest.raises(ValueError, match=f"the tool call 'c1' stands in a message of role {role}"):
        sent(Message(role=role, content=(CALL,)))


# Each loss that the module documents: what goes in, and what comes back.
LOSSES: dict[str, tuple[list[Message], list[Message]]] = {
    "texts that stand together are joined as they are": (
        [user(say(text="a"), say(text="b"))],
        [user(say(text="ab"))],
    ),
    "others with a blank line between": (
        [user(say(text="a"), ContentPartData(data={"k": "é"}), say(text="b"), PNG, say(text="c"))],
        [user(say(text='a\n\n{"k":"é"}\n\nb\n\nc'), PNG)],
    ),
    "a refusal goes out as text": ([model(refusal="I won't.")], [model(say(text="I won't."))]),
    "an image's address is named in the text": (
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
    "reasoning is one part without its seal, and goes first": (
        [model(say(text="a"), think(text="h", signature="s", metadata={"anthropic": {"x": 1}}), think(text="m"))],
        [model(think(text="hm"), say(text="a"))],
    ),
    "text goes before calls": (
        [model(say(text="a"), CALL, say(text="b"))],
        [model(say(text="a\n\nb"), CALL)],
    ),
    "arguments that are no object are an input": (
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
    "ids that are missing are made": (
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
    "a failure is an error": (
        [tool(ContentPartToolResult(id="x", name="f", output="no", is_error=True))],
        [tool(ContentPartToolResult(id="x", name="f", output='{"error": "no"}'))],
    ),
    "a name that says nothing comes from the call": (
        [model(CALL), tool(RESULT.model_copy(update={"name": "unknown"}))],
        [model(CALL), tool(RESULT)],
    ),
    "what stands beside results follows them": (
        [model(CALL), user(say(text="also"), RESULT)],
        [model(CALL), tool(RESULT), user(say(text="also"))],
    ),
    "results inside a model's message follow it": ([model(CALL, RESULT)], [model(CALL), tool(RESULT)]),
    "tools that a provider ran are left out": (
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
    "metadata stays here": (
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


# --- requests of others -----------------------------------------------------------------------------------------


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


# --- whole responses, streams, results --------------------------------------------------------------------------

RESPONSE: dict[str, Any] = {
    "model": "m",
    "created_at": "2026-08-04T19:59:21Z",
    "message": {"role": "assistant", "content": "Let me see.", "thinking": "Hm", "tool_calls": [CALL_SENT]},
    "done": True,
    "done_reason": "stop",
    "eval_count": 1,
}
ANSWER = model(think(text="Hm"), say(text="Let me see."), CALL, finish_reason="tool_calls")


class PackageObject:
    """As the ollama package's objects are."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields

    def model_dump(self, *, mode: str, exclude_unset: bool, warnings: bool) -> dict[str, Any]:
        assert (mode, exclude_unset, warnings) == ("json", True, False)
        return self.fields


def test_a_whole_response_is_a_message() -> None:
    assert converter.to_message(RESPONSE) == ANSWER
    assert converter.to_message(PackageObject(RESPONSE)) == ANSWER
    assert converter.to_message({"response": "Hi", "done": False}) == model(say(text="Hi"))
    assert converter.to_message({}) == model()


def test_a_single_message_is_taken_too() -> None:
    without = model(*ANSWER.content)
    assert converter.to_message(RESPONSE["message"]) == without
    assert received(PackageObject(RESPONSE["message"])) == (without,)


def test_a_stream_is_a_message() -> None:
    decoder = OllamaDecoder()
    lines = [
        {"model": "m", "message": {"role": "assistant", "content": "", "thinking": "Hm"}, "done": False},
        {"model": "m", "message": {"role": "assistant", "content": "Let me see."}, "done": False},
        {
            "model": "m",
            "message": {"role": "assistant", "content": "", "tool_calls": [CALL_SENT]},
            "done": False,
        },
        {"model": "m", "message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop"},
    ]
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    assert converter.to_message(decoder.feed(body)) == ANSWER
    assert converter.to_message([]) == model()


def test_an_answer_can_be_sent_back_with_the_results_of_its_tools() -> None:
    history = History(conversation=(user(say(text="hi")), converter.to_message(RESPONSE)))
    request = [*converter.from_history(history), *converter.tool_result_messages([RESULT])]
    assert request[1:] == [
        {"role": "assistant", "content": "Let me see.", "thinking": "Hm", "tool_calls": [CALL_SENT]},
        RESULT_SENT,
    ]
    assert converter.tool_result_messages([]) == []


def test_a_wrapper_is_made_over_one_line() -> None:
    wrapper = converter.create_chunk_wrapper(RESPONSE)
    assert (wrapper.raw, wrapper.get_text(), wrapper.get_reasoning()) == (RESPONSE, "Let me see.", "Hm")
    assert converter.create_chunk_wrapper({"status": "loading"}).get_text() == ""
