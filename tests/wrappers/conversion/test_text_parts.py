"""Text parts of a conversation survive the round trip where the API preserves them."""

import json
from typing import Any

import pytest

from tailrace.wrappers import ContentPartText, History, Message, Role
from tailrace.wrappers.providers import FORMATS

QUESTION = Message(
    role=Role.USER,
    content=(
        ContentPartText(text="Summarize the Q4 report"),
        ContentPartText(text="Focus on revenue metrics"),
    ),
)
ANSWER = Message(role=Role.MODEL, content=(ContentPartText(text="Up."), ContentPartText(text="By 15 %.")))
HISTORY = History(conversation=(QUESTION, ANSWER, QUESTION))


def texts(history: History) -> list[list[str]]:
    return [
        [part.text for part in message.content if isinstance(part, ContentPartText)]
        for message in history.conversation
    ]


@pytest.mark.parametrize("name", FORMATS)
def test_text_parts_come_back_where_they_are_kept(name: str) -> None:
    converter = FORMATS[name].create_converter()
    messages: list[Any] = json.loads(json.dumps(converter.from_history(HISTORY)))
    parts = texts(HISTORY)
    expected = [["\n\n".join(each)] for each in parts] if name == "ollama" else parts
    assert texts(converter.to_history(messages)) == expected
