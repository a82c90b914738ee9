"""Interrupted conversations, and those of another provider, give a request that each provider's converter accepts."""

import pytest

from tailrace.wrappers import (
    ContentPartFile,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    Message,
    Role,
)
from tailrace.wrappers.conversion.result_repair import with_repaired_results
from tailrace.wrappers.conversion.tool_ids import with_matched_ids
from tailrace.wrappers.conversion.tool_matching import unmatched_tools
from tailrace.wrappers.providers import FORMATS


def message_of(role: Role, *parts: object) -> Message:
    return Message.model_validate({"role": role, "content": parts})


# A conversation with several providers: unusual ids, signatures of other providers, tools run by a provider,
# and a round without results.
JOURNEY = History(
    system_message="Be brief.",
    conversation=(
        message_of(
            Role.USER,
            ContentPartText(text="What is this?"),
            ContentPartFile(data=b"x", media_type="image/png"),
        ),
        message_of(
            Role.MODEL,
            ContentPartReasoning(text="hm", signature="sealed", metadata={"anthropic": {"type": "thinking"}}),
            ContentPartToolCall(id="srv_1", name="web_search", arguments={"q": "x"}, kind="server"),
            ContentPartToolResult(id="srv_1", name="web_search", output={"hits": 1}),
            ContentPartText(text="Let me look."),
            ContentPartToolCall(id="functions.look:0", name="look", arguments={"at": "it"}),
            ContentPartToolCall(id="", name="look", arguments={"at": "that"}),
        ),
        message_of(
            Role.TOOL,
            ContentPartToolResult(id="functions.look:0", name="look", output="a cat"),
            ContentPartToolResult(id="", name="look", output={"animal": "dog"}, is_error=False),
        ),
        message_of(Role.MODEL, ContentPartToolCall(id="call_9", name="look", arguments={})),
        message_of(Role.USER, ContentPartText(text="Never mind. Which was first?")),
    ),
)


@pytest.mark.parametrize("name", FORMATS)
def test_a_conversation_moves_to_any_provider_and_back(name: str) -> None:
    converter = FORMATS[name].create_converter()
    repaired = with_repaired_results(with_matched_ids(JOURNEY, pattern=converter.id_pattern))
    assert unmatched_tools(repaired).calls == ()
    messages = converter.from_history(repaired)
    assert "sealed" not in str(messages) or name == "anthropic"
    assert "web_search" not in str(messages)
    back = converter.to_history(messages)
    calls = [call for message in back.conversation for call in message.tool_calls]
    results = [result for message in back.conversation for result in message.tool_results]
    assert [call.name for call in calls] == ["look", "look", "look"]
    assert [result.id for result in results] == [call.id for call in calls]
    assert len({call.id for call in calls}) == 3
    if converter.id_pattern is not None:
        assert all(converter.id_pattern.fullmatch(call.id) for call in calls)
    assert "a cat" in str(results[0].output)
    assert back.conversation[-1].text.endswith("Which was first?")


@pytest.mark.parametrize("first", FORMATS)
@pytest.mark.parametrize("second", FORMATS)
def test_a_conversation_is_carried_through_two_providers(first: str, second: str) -> None:
    one, other = FORMATS[first].create_converter(), FORMATS[second].create_converter()
    plain = History(
        conversation=(
            message_of(Role.USER, ContentPartText(text="Weather?")),
            message_of(
                Role.MODEL, ContentPartToolCall(id="abcdefghi", name="weather", arguments={"city": "Paris"})
            ),
            message_of(Role.TOOL, ContentPartToolResult(id="abcdefghi", name="weather", output="sunny")),
            message_of(Role.MODEL, ContentPartText(text="It is sunny.")),
            message_of(Role.USER, ContentPartText(text="Thanks.")),
        )
    )
    through = other.to_history(other.from_history(one.to_history(one.from_history(plain))))
    assert [(message.role, message.text) for message in through.conversation] == [
        (message.role, message.text) for message in plain.conversation
    ]
    (call,) = through.conversation[1].tool_calls
    (result,) = through.conversation[2].tool_results
    assert (call.name, call.arguments, result.id, result.name) == (
        "weather",
        {"city": "Paris"},
        call.id,
        "weather",
    )
    assert "sunny" in str(result.output)
