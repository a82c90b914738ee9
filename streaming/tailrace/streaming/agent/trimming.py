"""Policies that shorten a long conversation before each request to a model.

A policy receives the complete history and returns the one to send; the stored conversation does not change. It must not separate
a tool call from its result: providers refuse either without the other. `keep_all` is the default.
"""

import json
from collections.abc import Callable, Sequence
from itertools import accumulate

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

HistoryPolicy = Callable[[History], History]
"""Returns the history to send for a complete one."""

CountTokens = Callable[[Message], int]
"""Returns the number of tokens of a message; an estimate is enough."""

_CHARACTERS = 4  # of a token, of English text and of code; other scripts have fewer
_OF_MESSAGE = 4  # tokens of a message beside its content
_OF_FILE = 1000  # tokens of an image, as most providers count it


def keep_all(history: History) -> History:
    """Return the complete history."""
    return history


class TokenBudget:
    """Leaves out the oldest messages of a conversation, so that it fits a number of tokens.

    Complete turns (a message of the user, and all messages until the next one) are left out first, the oldest first; then,
    of the newest turn, complete rounds (calls with their results), the oldest first. The first message of the newest turn is
    always sent, and so are its last round, the system message and the context, even if they exceed the budget.

    Args:
        max_tokens: The budget of the history; the response needs further tokens of the model's context window.
        count: Returns the tokens of a message; an estimate by its characters when None.
    """

    def __init__(self, max_tokens: int, count: CountTokens | None = None) -> None:
        self._max_tokens = max_tokens
        self._count = count or estimate_tokens

    def __call__(self, history: History) -> History:
        """Return the history to send; the same object if all of it fits."""
        fixed = "".join(filter(None, (history.system_message, history.context)))
        room = self._max_tokens - len(fixed) // _CHARACTERS
        messages = history.conversation
        costs = [self._count(message) for message in messages]
        # The tokens of all messages from a position on.
        rest = list(accumulate(reversed(costs), initial=0))[::-1]
        if rest[0] <= room:
            return history
        whole = _uncut(messages)
        questions = [at for at, message in enumerate(messages) if _is_question(message)]
        turns = [at for at in questions if at in whole] or [0]
        for at in turns:
            if rest[at] <= room:
                return _with(history, messages[at:])
        newest = turns[-1]
        end = next((at for at in questions if at > newest), len(messages))
        # A round begins with the first message of the model after one of another role.
        rounds = [
            at
            for at in range(newest + 1, end)
            if at in whole and messages[at].role is Role.MODEL and messages[at - 1].role is not Role.MODEL
        ]
        for at in rounds:
            if at == rounds[-1] or costs[newest] + rest[at] <= room:
                return _with(history, (messages[newest], *messages[at:]))
        return _with(history, messages[newest:])


def estimate_tokens(message: Message) -> int:
    """Estimate the tokens of a message: a quarter of its characters, and a thousand for a file."""
    return _OF_MESSAGE + sum(map(_of_part, message.content))


def _is_question(message: Message) -> bool:
    """Return whether a message is from the user, and has more than results of tools."""
    only_results = message.content and all(
        isinstance(part, ContentPartToolResult) for part in message.content
    )
    return message.role is Role.USER and not only_results


def _uncut(messages: Sequence[Message]) -> set[int]:
    """Return the positions at which a conversation can be cut without separating a call from its result."""
    calls: dict[str, int] = {}
    changes = [0] * (
        len(messages) + 1
    )  # by position, the number of pairs of call and result that begin there, less those that end
    for at, message in enumerate(messages):
        calls |= {call.id: at for call in message.tool_calls}
        for result in message.tool_results:
            changes[calls.pop(result.id, at) + 1] += 1
            changes[at + 1] -= 1
    return {at for at, parted in enumerate(accumulate(changes[:-1])) if not parted}


def _of_part(part: ContentPart) -> int:
    if isinstance(part, ContentPartFile):
        return _OF_FILE
    if isinstance(part, ContentPartText | ContentPartReasoning):
        return len(part.text) // _CHARACTERS
    if isinstance(part, ContentPartData):
        return _length(part.data) // _CHARACTERS
    if isinstance(part, ContentPartToolCall):
        return (len(part.name) + len(part.arguments_text or "") + _length(part.arguments)) // _CHARACTERS
    return _length(part.output) // _CHARACTERS


def _length(value: object) -> int:
    return len(value) if isinstance(value, str) else len(json.dumps(value, ensure_ascii=False))


def _with(history: History, conversation: Sequence[Message]) -> History:
    return history.model_copy(update={"conversation": tuple(conversation)})
