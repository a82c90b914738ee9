"""Messages that a task accepts, and the part of a long conversation that is forwarded."""

from typing import Any

import pytest

from tailrace.server.runtime.messages import check_message, complete_rounds
from tailrace.streaming.a2a.errors import InvalidParamsError
from tailrace.streaming.a2a.json_value_counts import cost_of, cost_of_result, cost_of_task
from tailrace.streaming.a2a.models import Message, Part, Task
from tailrace.streaming.a2a.models import Role as A2ARole
from tailrace.wrappers import (
    ContentPart,
    ContentPartData,
    ContentPartFile,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    Role,
)
from tailrace.wrappers import Message as CommonMessage
from tailrace.wrappers.concurrency.worker_thread import MAX_INLINE_COST, history_cost

ASK = CommonMessage(role=Role.USER, content=(ContentPartText(text="weather?"),))
CALL = CommonMessage(role=Role.MODEL, content=(ContentPartToolCall(id="1", name="weather"),))
RESULT = CommonMessage(role=Role.TOOL, content=(ContentPartToolResult(id="1", name="weather", output="sun"),))
ANSWER = CommonMessage(role=Role.MODEL, content=(ContentPartText(text="sunny"),))


def a2a(**members: Any) -> Message:
    return Message.model_validate(
        {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}], **members}
    )


@pytest.mark.parametrize(
    ("kept", "handed_on"),
    [
        ((ASK, CALL, RESULT, ANSWER, ASK), (ASK, CALL, RESULT, ANSWER, ASK)),
        ((CALL, RESULT, ANSWER, ASK), (ASK,)),
        ((RESULT, ANSWER, ASK, ANSWER, ASK), (ASK, ANSWER, ASK)),
        ((ANSWER, ASK), (ASK,)),
        ((CALL, RESULT), (RESULT,)),
        ((ASK,), (ASK,)),
    ],
)
def test_a_conversation_begins_with_a_users_words(
    kept: tuple[CommonMessage, ...], handed_on: tuple[CommonMessage, ...]
) -> None:
    assert complete_rounds(kept) == handed_on


def test_only_a_users_message_of_a_bounded_context_is_taken() -> None:
    parts = (Part(text="hi"),)
    check_message(Message(message_id="m", role=A2ARole.USER, parts=parts, context_id="c" * 256))
    with pytest.raises(InvalidParamsError, match="role"):
        check_message(Message(message_id="m", role=A2ARole.AGENT, parts=parts))
    with pytest.raises(InvalidParamsError, match="contextId"):
        check_message(Message(message_id="m", role=A2ARole.USER, parts=parts, context_id="c" * 257))


MANY: list[int] = [0] * 1000
LONG = "x" * 1_000_000


@pytest.mark.parametrize(
    "message",
    [
        a2a(parts=[{"text": LONG}]),
        a2a(parts=[{"raw": "AAAA" * 250_000}]),
        a2a(parts=[{"url": f"data:,{LONG}"}]),
        a2a(parts=[{"data": MANY}]),
        a2a(parts=[{"data": {"rows": [LONG]}}]),
        a2a(parts=[{"data": {LONG: 1}}]),
        a2a(parts=[{"text": "x", "metadata": {"a": MANY}}]),
        a2a(parts=[{"text": "x", "metadata": {"a": LONG}}]),
        a2a(parts=[{"text": "x", "filename": LONG}]),
        a2a(parts=[{"text": "x"}] * 1000),
        a2a(metadata={"a": {"b": MANY}}),
        a2a(metadata={"a": {"b": LONG}}),
        a2a(extensions=["x"] * 1000),
        a2a(referenceTaskIds=["x"] * 1000),
        a2a(messageId=LONG),
    ],
    ids=lambda message: "",
)
def test_whatever_is_large_in_a_message_is_processed_in_a_thread(message: Message) -> None:
    status = {"state": "TASK_STATE_INPUT_REQUIRED"}
    task = Task.model_validate({"id": "t", "contextId": "c", "status": status, "history": [message]})
    made = {"artifactId": "a", "parts": [{"text": "x"}]}
    asking = Task.model_validate({"id": "t", "contextId": "c", "status": {**status, "message": message}})
    assert cost_of([message]) > MAX_INLINE_COST
    assert cost_of_task(task) > MAX_INLINE_COST
    assert cost_of_result(asking) > MAX_INLINE_COST
    for name in ("artifactId", "name", "description"):
        artifacts = [{**made, name: LONG}]
        task = Task.model_validate({"id": "t", "contextId": "c", "status": status, "artifacts": artifacts})
        assert cost_of_task(task) > MAX_INLINE_COST


@pytest.mark.parametrize(
    "part",
    [
        ContentPartText(text=LONG),
        ContentPartText(text="", metadata={"a": MANY}),
        ContentPartFile(url=f"https://example.com/{LONG}"),
        ContentPartFile(data=LONG.encode()),
        ContentPartFile(data=b"x", media_type=LONG),
        ContentPartFile(data=b"x", filename=LONG),
        ContentPartReasoning(text="", signature=LONG),
        ContentPartData(data=MANY),
        ContentPartToolCall(id="1", name=LONG),
        ContentPartToolCall(id="1", name="f", arguments={"rows": MANY}),
        ContentPartToolCall(id="1", name="f", arguments_text=LONG),
        ContentPartToolCall(id="1", name="f", kind=LONG),
        ContentPartToolResult(id="1", name="f", output=MANY),
    ],
    ids=lambda part: type(part).__name__,
)
def test_whatever_is_large_in_a_conversation_is_converted_in_a_thread(part: ContentPart) -> None:
    message = CommonMessage(role=Role.MODEL, content=(part,))
    assert history_cost(History(conversation=(message,))) > MAX_INLINE_COST


def test_a_short_conversation_is_processed_at_once() -> None:
    assert history_cost(History(conversation=(ASK, CALL, RESULT, ANSWER) * 5)) <= 250
    assert cost_of([a2a(parts=[{"text": "hello"}, {"data": {"a": [1, 2, {"b": None}]}}])] * 5) <= 250
