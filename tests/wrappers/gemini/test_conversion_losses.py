"""Content that the conversion for Gemini changes, and the content that survives a round trip."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import strategies
from support.gemini_contents import CALL, RESULT, Fields, converter, received, say, sent, signatures, signed
from support.messages import model, tool, user
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
from tailrace.wrappers.gemini.converter import DUMMY_SIGNATURE

# --- losses -----------------------------------------------------------------------------------------------------


def back(*messages: Message) -> tuple[Message, ...]:
    return received(*sent(*messages))


# Each documented loss of a single message: the message before and after the round trip.
LOSSES: dict[str, tuple[Message, tuple[Message, ...]]] = {
    "an empty text is omitted": (user(say(text=""), say(text="a")), (user(say(text="a")),)),
    "an empty message is omitted": (user(), ()),
    "data becomes its JSON": (
        user(ContentPartData(data={"a": [1, "é"]})),
        (user(say(text='{"a":[1,"é"]}')),),
    ),
    "a file loses its name": (
        user(ContentPartFile(data=b"", media_type="image/png", filename="a.png")),
        (user(ContentPartFile(data=b"", media_type="image/png")),),
    ),
    "a file without a type gets that of its name": (
        user(ContentPartFile(data=b"", filename="a.png")),
        (user(ContentPartFile(data=b"", media_type="image/png")),),
    ),
    "a file without a type or a name is binary": (
        user(ContentPartFile(data=b"")),
        (user(ContentPartFile(data=b"", media_type="application/octet-stream")),),
    ),
    "a link loses a type that is a wildcard": (
        user(ContentPartFile(url="https://example.com/a", media_type="image/*")),
        (user(ContentPartFile(url="https://example.com/a")),),
    ),
    "a link that Gemini cannot fetch is named in text": (
        user(ContentPartFile(url="file:///a", media_type="image/png")),
        (user(say(text="[file:///a](file:///a)")),),
    ),
    "a data URL becomes a file by value": (
        user(ContentPartFile(url="data:text/plain;base64,YQ=="), ContentPartFile(url="data:,a%20b", media_type="text/plain")),
        (user(ContentPartFile(data=b"a", media_type="text/plain"), ContentPartFile(data=b"a b", media_type="text/plain")),),
    ),
    "a user's thoughts are omitted": (user(ContentPartReasoning(text="hm"), say(text="a")), (user(say(text="a")),)),
    "metadata is not sent": (
        user(say(text="a", metadata={"k": 1, "gemini": 7}), id="x"),
        (user(say(text="a")),),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_each_loss_of_a_users_message_is_the_documented_one(name: str) -> None:
    message, expected_messages = LOSSES[name]
    assert back(message) == expected_messages


MODEL_LOSSES: dict[str, tuple[Message, Message]] = {
    "thoughts without a signature are omitted": (
        model(ContentPartReasoning(text="hm", signature="s"), say(text="a")),
        model(say(text="a")),
    ),
    "an image thought is omitted": (
        model(ContentPartFile(data=b"", media_type="image/png", metadata={"gemini": {"thought": True}}), say(text="a")),
        model(say(text="a")),
    ),
    "a call without a name is unknown": (
        model(ContentPartToolCall(id="c", name="", metadata=signed("c2ln"))),
        model(ContentPartToolCall(id="c", name="unknown", metadata=signed("c2ln"))),
    ),
    "arguments that did not parse become an input": (
        model(ContentPartToolCall(id="c", name="f", arguments_text="{", arguments_error="cut")),
        model(ContentPartToolCall(id="c", name="f", arguments={"input": "{"})),
    ),
    "every kind of call is a function": (
        model(ContentPartToolCall(id="c", name="f", kind="custom", arguments_text="ls")),
        model(ContentPartToolCall(id="c", name="f", arguments={"input": "ls"})),
    ),
    "a generated id is replaced": (
        model(ContentPartToolCall(id="mine", name="f", synthetic_id=True)),
        model(ContentPartToolCall(id="call_0", name="f", synthetic_id=True)),
    ),
    "server tools of another provider are omitted": (
        model(ContentPartToolCall(id="c", name="web", kind="server"), ContentPartToolResult(id="c", name="web"), say(text="a")),
        model(say(text="a")),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODEL_LOSSES)
def test_each_loss_of_a_models_message_is_the_documented_one(name: str) -> None:
    message, expected_message = MODEL_LOSSES[name]
    assert back(user(say(text="hi")), message)[1:] == (expected_message,)


def test_context_comes_back_as_the_users_first_words() -> None:
    history = History(context="Background.", conversation=(user(say(text="hi")),))
    assert converter.to_history(converter.from_history(history)).conversation == (
        user(say(text="Background."), say(text="hi")),
    )


def test_the_result_of_a_function_in_a_models_message_becomes_one_of_the_users() -> None:
    assert back(user(say(text="hi")), model(CALL, RESULT)) == (
        user(say(text="hi")),
        model(CALL),
        tool(RESULT),
    )


def test_a_history_is_never_changed() -> None:
    history = History(
        conversation=(
            user(say(text="hi")),
            model(
                ContentPartData(data={"functionCall": {"name": "f"}}, metadata={"gemini": {"part": True}}),
                CALL,
            ),
        )
    )
    before = history.model_dump()
    contents = converter.from_history(history)
    assert contents[1]["parts"][0]["thoughtSignature"] == DUMMY_SIGNATURE
    assert history.model_dump() == before


# --- the round trip of generated histories ----------------------------------------------------------------------


own_parts: st.SearchStrategy[ContentPart] = (
    st.builds(ContentPartText, text=strategies.texts, metadata=signatures)
    | st.builds(ContentPartReasoning, text=strategies.texts, metadata=signatures)
    | st.builds(
        ContentPartFile,
        url=st.just("https://example.com/a"),
        media_type=st.sampled_from(["", "image/*", "image/png"]),
        metadata=signatures,
    )
    | st.builds(
        ContentPartToolCall,
        id=st.sampled_from(["", "a", "b"]),
        name=st.sampled_from(["", "f", "g"]),
        arguments=strategies.json_objects,
        synthetic_id=st.booleans(),
        metadata=signatures,
    )
    | st.builds(
        ContentPartToolResult,
        id=st.sampled_from(["", "a", "b"]),
        name=st.sampled_from(["", "f", "g"]),
        output=strategies.json_values,
        is_error=st.booleans(),
    )
)
# Without Gemini's own fields, which a separate strategy generates.
foreign_parts = strategies.parts.filter(lambda part: "gemini" not in part.metadata)
histories = st.builds(
    History,
    system_message=st.none() | strategies.texts,
    context=st.none() | strategies.texts,
    conversation=st.lists(
        st.builds(
            Message,
            role=st.sampled_from([Role.USER, Role.MODEL, Role.TOOL]),
            content=st.lists(own_parts | foreign_parts, max_size=5).map(tuple),
        ),
        max_size=5,
    ).map(tuple),
)


def is_refused(history: History) -> bool:
    return any(message.tool_calls and message.role is not Role.MODEL for message in history.conversation)


@settings(deadline=None)
@given(histories)
def test_any_history_makes_a_request_that_gemini_takes(history: History) -> None:
    if is_refused(history):
        return
    contents = converter.from_history(history)
    assert [content["role"] for content in contents] == [
        ("user", "model")[n % 2] for n in range(len(contents))
    ]
    for content, following in zip(contents, [*contents[1:], None], strict=False):
        parts = content["parts"]
        assert parts
        for part in parts:
            assert (
                len(part.keys() & {"text", "inlineData", "fileData", "functionCall", "functionResponse"}) == 1
            )
            assert part.get("text") != "" or "thoughtSignature" in part
        calls = [part["functionCall"] for part in parts if "functionCall" in part]
        if calls:
            first = next(part for part in parts if "functionCall" in part)
            assert first["thoughtSignature"]
            assert content["role"] == "model"
            behind: list[Fields] = [] if following is None else following["parts"]
            responses: list[Fields] = [part["functionResponse"] for part in behind[: len(calls)]]
            assert not responses or [(call["name"], call.get("id")) for call in calls] == [
                (response["name"], response.get("id")) for response in responses
            ]


@settings(deadline=None)
@given(histories)
def test_what_came_back_goes_out_the_same(history: History) -> None:
    if is_refused(history):
        return
    contents = converter.from_history(history)
    assert converter.from_history(converter.to_history(contents)) == contents
