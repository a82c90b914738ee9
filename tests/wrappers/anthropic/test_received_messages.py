"""Round trips of messages of the Messages API, and requests of other programs."""

from typing import Any, cast

import pytest
from anthropic.types import ContentBlock, RawMessageStreamEvent
from anthropic.types import Message as PackageMessage
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from support import strategies
from support.anthropic_messages import (
    FOUND,
    FOUND_PARAM,
    HI,
    HI_PARAM,
    PNG_PARAM,
    REDACTED,
    SEARCH,
    SUNNY,
    SUNNY_PARAM,
    THOUGHT,
    THOUGHT_PARAM,
    WEATHER,
    WEATHER_PARAM,
    Call,
    Result,
    answers,
    asks,
    calls,
    converter,
    files,
    ids,
    own,
    received,
    results,
    say,
    sent,
)
from support.messages import model, text_entries, tool, user
from tailrace.wrappers import ContentPart, ContentPartData, ContentPartReasoning, History, Message, Role
from tailrace.wrappers.anthropic import AnthropicEventWrapper

package_block: TypeAdapter[Any] = TypeAdapter(ContentBlock)
package_event: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)

# --- the round trip ---------------------------------------------------------------------------------------------


def cited(value: str) -> ContentPart:
    return own(say(text=value), citations=[{"cited_text": "a"}])


def thought(value: str, seal: str | None) -> ContentPart:
    return own(ContentPartReasoning(text=value, signature=seal), type="thinking")


def search(call_id: str) -> ContentPart:
    return SEARCH.model_copy(update={"id": call_id})


def found(call_id: str) -> ContentPart:
    return own(FOUND.model_copy(update={"id": call_id}), **{**FOUND_PARAM, "tool_use_id": call_id})


blocks_of_its_own: st.SearchStrategy[ContentPart] = (
    st.builds(cited, strategies.texts)
    | st.builds(thought, strategies.texts, st.none() | st.sampled_from(["s", "t"]))
    | st.builds(search, ids)
    | st.builds(found, ids)
    | st.just(REDACTED)
)

foreign_calls = st.builds(Call, id=ids, name=strategies.names, kind=st.just("server"))

file_parts = st.sampled_from(files)


def is_foreign(part: ContentPart) -> bool:
    """Return whether nothing in a message belongs to Anthropic."""
    return "anthropic" not in part.metadata


common_parts: st.SearchStrategy[ContentPart] = (
    strategies.text_parts | strategies.reasoning_parts | strategies.data_parts | file_parts | results
).filter(is_foreign)
model_parts = common_parts | blocks_of_its_own | calls.filter(is_foreign) | foreign_calls
arbitrary_messages = st.builds(
    Message,
    role=st.sampled_from([Role.USER, Role.TOOL]),
    content=st.lists(common_parts, max_size=4).map(tuple),
    metadata=strategies.metadata,
) | st.builds(
    Message,
    role=st.just(Role.MODEL),
    content=st.lists(model_parts, max_size=6).map(tuple),
    metadata=strategies.metadata | st.just({"refusal": "No."}),
)
arbitrary_histories = st.builds(
    History,
    system_message=st.none() | strategies.texts,
    context=st.none() | strategies.texts,
    conversation=st.lists(arbitrary_messages, max_size=6).map(tuple),
)


@given(arbitrary_histories)
@settings(deadline=None)
def test_what_came_back_goes_out_the_same(history: History) -> None:
    messages = converter.from_history(history)
    assert converter.from_history(converter.to_history(messages)) == messages


@given(arbitrary_histories)
@settings(deadline=None)
def test_what_is_sent_keeps_the_rules_of_the_api(history: History) -> None:
    messages = cast("list[dict[str, Any]]", converter.from_history(history))
    assert [message["role"] for message in messages] == ["user", "assistant"] * (len(messages) // 2) + [
        "user"
    ] * (len(messages) % 2)
    for message in messages:
        content = message["content"]
        assert content
        assert all(block["text"].strip() for block in content if block["type"] == "text")
        if message["role"] == "assistant":
            assert content[-1]["type"] not in ("thinking", "redacted_thinking")
        else:
            kinds = [block["type"] == "tool_result" for block in content]
            assert kinds == sorted(kinds, reverse=True)


# --- requests of other programs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected_parts"),
    [
        ("hi", (say(text="hi"),)),
        ("", ()),
        (None, ()),
        ([], ()),
        (["a", {"type": "text", "text": "b"}], (say(text="a"), say(text="b"))),
        (tuple(text_entries("a")), (say(text="a"),)),
    ],
)
def test_content_is_taken_in_every_form(content: object, expected_parts: tuple[ContentPart, ...]) -> None:
    for role, message in (("user", user(*expected_parts)), ("assistant", model(*expected_parts))):
        assert received({"role": role, "content": content}) == (message,)


def test_system_messages_in_the_conversation_join_the_instructions() -> None:
    messages: list[Any] = [
        HI_PARAM,
        {"role": "system", "content": "Be kind."},
        {"role": "system", "content": text_entries("Be quick.")},
    ]
    history = converter.to_history(messages, system="Be brief.")
    assert history == History(system_message="Be brief.\n\nBe kind.\n\nBe quick.", conversation=(HI,))


def test_results_find_the_names_of_their_calls() -> None:
    assert received(
        answers(WEATHER_PARAM),
        asks({**SUNNY_PARAM, "content": text_entries("Sunny", "72°F")}),
        asks({"type": "tool_result", "tool_use_id": "other"}, *text_entries("thanks")),
        asks(SUNNY_PARAM),
    ) == (
        model(WEATHER),
        tool(
            SUNNY.model_copy(update={"output": "Sunny\n\n72°F"}),
            Result(id="other", name="unknown", output=""),
        ),
        user(say(text="thanks")),
        tool(SUNNY),
    )


def test_the_packages_own_objects_may_stand_among_the_messages() -> None:
    param = {**PACKAGE_MESSAGE, "content": [THOUGHT_PARAM, *text_entries("Look."), WEATHER_PARAM]}
    answer = PackageMessage.model_validate(param)
    history = converter.to_history([cast("Any", HI_PARAM), answer, cast("Any", asks(SUNNY_PARAM))])
    whole = model(THOUGHT, say(text="Look."), WEATHER)
    assert [message.content for message in history.conversation] == [HI.content, whole.content, (SUNNY,)]
    # Most programs put the results into a message of their own.
    assert received({"role": "assistant", "content": answer.content}) == (whole,)
    assert received(asks(package_block.validate_python(text_entries("a")[0]))) == (user(say(text="a")),)


def test_blocks_that_the_user_may_send_and_that_are_no_file_are_data() -> None:
    document = {"type": "document", "source": {"type": "content", "content": text_entries("a")}, "title": "A"}
    upload = {"type": "container_upload", "file_id": "f"}
    message = user(
        own(ContentPartData(data=document), **document), own(ContentPartData(data=upload), **upload)
    )
    assert received(asks(document, upload)) == (message,)
    assert sent(message) == [asks(document, upload)]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"role": "critic", "content": "x"}, "the role 'critic'"),
    ({"content": "x"}, "the role None"),
    ({"role": "user", "content": 1}, "content of type int"),
    ({"role": "assistant", "content": {"type": "text"}}, "content of type dict"),
    ({"role": "user", "content": [{"text": "x"}]}, "a content block of type None"),
    ({"role": "assistant", "content": [1]}, "a content block of type None"),
    ({"role": "system", "content": [PNG_PARAM]}, "where only text is allowed"),
    ({"role": "user", "content": [{**PNG_PARAM, "source": {"type": "base64", "data": "*"}}]}, "base64"),
    ({"role": "user", "content": [{**PNG_PARAM, "source": {"type": "url"}}]}, "ContentPartFile"),
    ({"role": "user", "content": [{**SUNNY_PARAM, "content": [{}]}]}, "a content block of type None"),
]


@pytest.mark.parametrize(("message", "complaint"), REFUSED)
def test_what_the_messages_api_does_not_define_is_refused(message: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match="message 1: ") as caught:
        received(HI_PARAM, message)
    assert complaint in str(caught.value)


# --- complete responses, streams, results -----------------------------------------------------------------------


PACKAGE_MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "content": [THOUGHT_PARAM, *text_entries("Let me see."), WEATHER_PARAM],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 2},
}
ANSWER = model(THOUGHT, say(text="Let me see."), WEATHER, finish_reason="tool_calls")


def test_a_whole_response_is_a_message() -> None:
    assert converter.to_message(PACKAGE_MESSAGE) == ANSWER
    assert converter.to_message(PackageMessage.model_validate(PACKAGE_MESSAGE)) == ANSWER
    assert converter.to_message({"role": "assistant", "content": "Hi"}) == model(say(text="Hi"))


def test_a_wrapper_is_made_over_the_packages_event() -> None:
    event = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}}
    wrapper = converter.create_chunk_wrapper(package_event.validate_python(event))
    assert (wrapper.raw, wrapper.get_text()) == (event, "a")
    assert converter.create_chunk_wrapper({"type": "ping"}) == AnthropicEventWrapper({"type": "ping"})
