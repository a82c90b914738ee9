"""The common behaviour of all providers' converters."""

import itertools
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import strategies
from support.messages import model, text_part, tool, user
from support.provider_cases import HISTORY
from support.provider_rounds import CALLS
from tailrace.wrappers import (
    ContentPart,
    ContentPartData,
    ContentPartFile,
    ContentPartReasoning,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    HistoryConverter,
    Message,
    Role,
)
from tailrace.wrappers.providers import FORMATS

Converter = HistoryConverter[Any, Any]


@pytest.fixture(params=list(FORMATS))
def converter(request: pytest.FixtureRequest) -> Converter:
    return FORMATS[request.param].create_converter()


def test_an_empty_history_is_no_messages(converter: Converter) -> None:
    assert converter.from_history(History()) == []
    assert converter.to_history([]) == History()


@pytest.mark.parametrize("role", [Role.USER, Role.TOOL])
def test_a_tool_call_outside_a_models_message_is_refused(converter: Converter, role: Role) -> None:
    wrong = Message(role=role, content=(ContentPartToolCall(id="call00001", name="f"),))
    with pytest.raises(
        ValueError, match=f"message 1: the tool call 'call00001' is in a message of role {role}"
    ):
        converter.from_history(History(conversation=(user(text_part("hi")), wrong)))


def test_a_role_that_no_api_knows_is_refused_with_its_position(converter: Converter) -> None:
    messages = converter.from_history(HISTORY)
    content: object = "" if isinstance(messages[0].get("content"), str) else list[Any]()
    wrong: dict[str, Any] = {
        **messages[0],
        "type": "message",
        "role": "critic",
        "content": content,
        "parts": [],
    }
    with pytest.raises(ValueError, match=rf"^\w+ {len(messages)}: the role 'critic' is not defined by "):
        converter.to_history([*messages, wrong])


def test_requests_are_json_and_come_back(converter: Converter) -> None:
    history = History(conversation=HISTORY.conversation)
    messages = json.loads(json.dumps(converter.from_history(history)))
    back = converter.to_history(messages)
    assert [message.role for message in back.conversation] == [Role.USER, Role.MODEL, Role.TOOL]
    (call,) = back.conversation[1].tool_calls
    (result,) = back.conversation[2].tool_results
    assert (call.id, call.name, call.arguments) == ("call00001", "weather", {"city": "Bern"})
    assert (result.id, result.name) == (call.id, call.name)
    assert "Sunny" in str(result.output)


def test_results_of_one_round_are_one_message(converter: Converter) -> None:
    calls = [ContentPartToolCall(id=f"call0000{n}", name="f", arguments={"n": n}) for n in (1, 2)]
    results = [ContentPartToolResult(id=call.id, name="f", output=f"r {call.id}") for call in calls]
    question = user(text_part("hi"))
    apart = History(conversation=(question, model(*calls), tool(results[0]), tool(results[1])))
    back = converter.to_history(converter.from_history(apart))
    assert [message.role for message in back.conversation] == [Role.USER, Role.MODEL, Role.TOOL]
    assert [result.id for result in back.conversation[2].tool_results] == [call.id for call in calls]
    sent = [*converter.from_history(History(conversation=(question, model(*calls))))]
    sent += converter.tool_result_messages(results)
    assert [result.id for result in converter.to_history(sent).conversation[-1].tool_results] == [
        call.id for call in calls
    ]


@pytest.mark.parametrize("name", FORMATS)
def test_a_streamed_call_is_sent_back_with_its_result(name: str) -> None:
    converter, decoder = FORMATS[name].create_converter(), FORMATS[name].create_decoder()
    steps = CALLS[name]("call00001", "weather", '{"city": "Bern"}')
    reads = [step for step in steps if isinstance(step, bytes)]
    answer = converter.to_message([chunk for read in reads for chunk in decoder.feed(read)] + decoder.close())
    (call,) = answer.tool_calls
    assert (call.id, call.name, call.arguments) == ("call00001", "weather", {"city": "Bern"})
    assert answer.metadata["finish_reason"] == "tool_calls"
    result = ContentPartToolResult(id=call.id, name=call.name, output="Sunny")
    conversation = (user(text_part("hi")), answer)
    sent = [
        *converter.from_history(History(conversation=conversation)),
        *converter.tool_result_messages([result]),
    ]
    assert sent == converter.from_history(History(conversation=(*conversation, tool(result))))
    assert converter.tool_result_messages([]) == []


CHAT_WITHOUT_ANSWER: list[Any] = [{"choices": []}, {"choices": None}, {"choices": [None]}, {"choices": [{}]}]
WITHOUT_ANSWER: dict[str, list[Any]] = {
    "openai": CHAT_WITHOUT_ANSWER,
    "mistral": CHAT_WITHOUT_ANSWER,
    "gemini": [{"candidates": []}, {"candidates": None}, {"promptFeedback": {}}],
    "anthropic": [
        *({"content": None}, {"content": []}, {"content": [None, 1, "a"]}),
        *({"content": 1}, {"content": ""}, {"content": {}}),
    ],
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_response_without_an_answer_is_an_empty_message(name: str) -> None:
    converter = FORMATS[name].create_converter()
    responses: list[Any] = [{}, [], iter(()), *WITHOUT_ANSWER.get(name, ())]
    for response in responses:
        assert converter.to_message(response) == model()


CHAT_CHOICES = {
    "choices": [
        {"index": index, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        for index, text in enumerate("ab")
    ]
}
CHOICES = {
    "openai": CHAT_CHOICES,
    "mistral": CHAT_CHOICES,
    "gemini": {
        "candidates": [
            {"index": index, "content": {"role": "model", "parts": [{"text": text}]}, "finishReason": "STOP"}
            for index, text in enumerate("ab")
        ]
    },
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_message_is_made_of_the_first_choice_or_of_another_or_of_all(name: str) -> None:
    converter: Any = FORMATS[name].create_converter()
    assert converter.to_message(CHOICES[name]).text == "a"
    texts: list[str] = [converter.to_message(CHOICES[name], choice=choice).text for choice in (0, 1, 2, None)]
    assert texts == ["a", "b", "", "ab"]


# --- any conversation -------------------------------------------------------------------------------------------


@st.composite
def conversations(draw: st.DrawFn) -> History:
    """A conversation in which each text, argument and output contains a unique word."""
    numbers = itertools.count()
    messages: list[Message] = []

    def word() -> str:
        return f"w{next(numbers)}w"

    def spoken() -> ContentPart:
        kind = draw(st.sampled_from(["text", "data", "link", "reasoning", "nothing"]))
        if kind == "data":
            return ContentPartData(data={"k": [word()]})
        if kind == "link":
            return ContentPartFile(url=f"https://example.com/{word()}", filename="link")
        if kind == "reasoning":  # of no provider: it is not sent
            return ContentPartReasoning(text="hm", signature="s")
        return text_part(word() if kind == "text" else "")

    def result(call: ContentPartToolCall) -> ContentPartToolResult:
        value = word()
        output: Any = draw(st.sampled_from([value, {"k": value}, [value, 1]]))
        return ContentPartToolResult(id=call.id, name=call.name, output=output, is_error=draw(st.booleans()))

    for _ in range(draw(st.integers(0, 4))):
        messages.append(user(*(spoken() for _ in range(draw(st.integers(0, 3))))))
        content = [spoken() for _ in range(draw(st.integers(0, 3)))]
        calls: list[ContentPartToolCall] = []
        for _ in range(draw(st.integers(0, 3))):
            name = draw(st.sampled_from(["f", "g"]))
            calls.append(
                ContentPartToolCall(id=f"call{next(numbers):05}", name=name, arguments={"a": word()})
            )
            content.insert(draw(st.integers(0, len(content))), calls[-1])
        answered = calls[: draw(st.integers(0, 3))]
        inside = draw(st.booleans())
        results = [result(call) for call in answered]
        messages.append(model(*content, *(results if inside else ())))
        if results and not inside:
            messages.append(tool(*results, *(spoken() for _ in range(draw(st.integers(0, 1))))))
    system, context = (draw(st.none() | st.builds(word)) for _ in range(2))
    return History(system_message=system, context=context, conversation=tuple(messages))


def words(*parts: ContentPart) -> list[str]:
    """The words in parts."""
    return re.findall(
        r"w\d+w", json.dumps([part.model_dump(mode="json", exclude={"metadata"}) for part in parts])
    )


def words_by(history: History, *roles: Role) -> list[str]:
    """The words in messages of these roles, in order."""
    context = [history.context] if history.context and Role.USER in roles else []
    kinds = ("text", "data", "file")
    parts = [part for message in history.conversation if message.role in roles for part in message.content]
    return [*context, *words(*(part for part in parts if part.type in kinds))]


def rounds(history: History) -> list[tuple[str, list[str], list[str], bool | None]]:
    """Each call: its name, the words of its arguments and of its result, and whether it failed."""
    answers = {part.id: part for message in history.conversation for part in message.tool_results}
    found: list[tuple[str, list[str], list[str], bool | None]] = []
    for call in [call for message in history.conversation for call in message.tool_calls]:
        answer = answers.get(call.id)
        answered = words(answer) if answer is not None else []
        failed = (answer.is_error or "error" in str(answer.output)) if answer and answered else None
        found.append((call.name, words(call), answered, failed))
    return found


@pytest.mark.parametrize("name", FORMATS)
@settings(deadline=None)
@given(history=conversations())
def test_a_conversation_is_sent_and_comes_back_with_every_word_once_and_in_order(
    name: str, history: History
) -> None:
    converter = FORMATS[name].create_converter()
    messages = converter.from_history(history)
    sent = re.findall(r"w\d+w", json.dumps(messages))
    assert len(sent) == len(set(sent))
    back = converter.to_history(json.loads(json.dumps(messages)))
    assert converter.to_history(messages) == back
    assert words_by(back, Role.MODEL) == words_by(history, Role.MODEL)
    assert words_by(back, Role.USER, Role.TOOL) == words_by(history, Role.USER, Role.TOOL)
    assert rounds(back) == rounds(history)
    assert all(message.role is not Role.TOOL or message.tool_results for message in back.conversation)


@pytest.mark.parametrize("name", FORMATS)
@settings(deadline=None)
@given(history=strategies.histories)
def test_a_history_that_came_back_is_sent_unchanged(name: str, history: History) -> None:
    converter = FORMATS[name].create_converter()
    try:
        messages = converter.from_history(history)
    except ValueError:
        assert any(message.tool_calls and message.role is not Role.MODEL for message in history.conversation)
        return
    once = converter.from_history(converter.to_history(messages))
    assert converter.from_history(converter.to_history(once)) == once
