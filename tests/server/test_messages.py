"""What may be said in a task, and what of a long conversation is handed on."""

import pytest

from tailrace.server.messages import check_message, whole_rounds
from tailrace.streaming.a2a.errors import InvalidParamsError
from tailrace.streaming.a2a.models import Message, Part
from tailrace.streaming.a2a.models import Role as A2ARole
from tailrace.wrappers import ContentPartText, ContentPartToolCall, ContentPartToolResult, Role
from tailrace.wrappers import Message as CommonMessage

ASK = CommonMessage(role=Role.USER, content=(ContentPartText(text="weather?"),))
CALL = CommonMessage(role=Role.MODEL, content=(ContentPartToolCall(id="1", name="weather"),))
RESULT = CommonMessage(role=Role.TOOL, content=(ContentPartToolResult(id="1", name="weather", output="sun"),))
ANSWER = CommonMessage(role=Role.MODEL, content=(ContentPartText(text="sunny"),))


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
    assert whole_rounds(kept) == handed_on


def test_only_a_users_message_of_a_bounded_context_is_taken() -> None:
    parts = (Part(text="hi"),)
    check_message(Message(message_id="m", role=A2ARole.USER, parts=parts, context_id="c" * 256))
    with pytest.raises(InvalidParamsError, match="role"):
        check_message(Message(message_id="m", role=A2ARole.AGENT, parts=parts))
    with pytest.raises(InvalidParamsError, match="contextId"):
        check_message(Message(message_id="m", role=A2ARole.USER, parts=parts, context_id="c" * 257))
