"""Policies that shorten a long conversation before each request to a model.

The stored conversation does not change. A policy must not separate a tool call from its result, because providers reject one
without the other. `keep_all` is the default of `Agent`.
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
"""Function that takes the complete history and returns the history to send."""

CountTokens = Callable[[Message], int]
"""Function that returns the number of tokens of a message. An estimate is sufficient."""

_CHARACTERS = 4  # characters per token of English text and code; other scripts have fewer
_MESSAGE_TOKENS = 4  # tokens of a message in addition to its content
_FILE_TOKENS = 1000  # tokens per file: most providers count about as many for an image


def keep_all(history: History) -> History:
    """Return the complete history."""
    return history


class TokenBudget:
    """Policy that omits the oldest messages, so that the history does not exceed a number of tokens.

    Complete turns are omitted first, the oldest turn first. A turn begins with a message of the user. If only the newest turn is
    left, its oldest rounds are omitted. Even if they exceed the budget, the policy keeps the system message, `History.context`,
    and the first message and the last round of the newest turn.

    Args:
        max_tokens: Maximum number of tokens of the history. Leave room for the response in the model's context window.
        count: Function that returns the number of tokens of a message; None for an estimate.
    """

    def __init__(self, max_tokens: int, count: CountTokens | None = None) -> None:
        self._max_tokens = max_tokens
        self._count = count or estimate_tokens

    def __call__(self, history: History) -> History:
        """Return the history to send; the same object if the complete history fits."""
        fixed = "".join(filter(None, (history.system_message, history.context)))
        max_tokens = self._max_tokens - len(fixed) // _CHARACTERS
        messages = history.conversation
        costs = [self._count(message) for message in messages]
        # remaining_tokens[i]: the number of tokens of messages[i:]
        remaining_tokens = list(accumulate(reversed(costs), initial=0))[::-1]
        if remaining_tokens[0] <= max_tokens:
            return history
        cuts = _possible_cuts(messages)
        user_messages = [at for at, message in enumerate(messages) if _is_user_message(message)]
        turns = [at for at in user_messages if at in cuts] or [0]
        for at in turns:
            if remaining_tokens[at] <= max_tokens:
                return _with_conversation(history, messages[at:])
        newest = turns[-1]
        end = next((at for at in user_messages if at > newest), len(messages))
        # A round begins with the first message of the model after a message with another role.
        rounds = [
            at
            for at in range(newest + 1, end)
            if at in cuts and messages[at].role is Role.MODEL and messages[at - 1].role is not Role.MODEL
        ]
        for at in rounds:
            if at == rounds[-1] or costs[newest] + remaining_tokens[at] <= max_tokens:
                return _with_conversation(history, (messages[newest], *messages[at:]))
        return _with_conversation(history, messages[newest:])


def estimate_tokens(message: Message) -> int:
    """Estimate the tokens of a message: 4, plus one per four characters, plus 1,000 per file."""
    return _MESSAGE_TOKENS + sum(map(_part_tokens, message.content))


def _is_user_message(message: Message) -> bool:
    only_results = message.content and all(
        isinstance(part, ContentPartToolResult) for part in message.content
    )
    return message.role is Role.USER and not only_results


def _possible_cuts(messages: Sequence[Message]) -> set[int]:
    """Return the positions at which a conversation can be cut without separating a call from its result."""
    calls: dict[str, int] = {}
    changes = [0] * (len(messages) + 1)  # by position: +1 after a call, -1 after its result
    for at, message in enumerate(messages):
        calls |= {call.id: at for call in message.tool_calls}
        for result in message.tool_results:
            changes[calls.pop(result.id, at) + 1] += 1
            changes[at + 1] -= 1
    return {at for at, open_pairs in enumerate(accumulate(changes[:-1])) if not open_pairs}


def _part_tokens(part: ContentPart) -> int:
    if isinstance(part, ContentPartFile):
        return _FILE_TOKENS
    if isinstance(part, ContentPartText | ContentPartReasoning):
        return len(part.text) // _CHARACTERS
    if isinstance(part, ContentPartData):
        return _length(part.data) // _CHARACTERS
    if isinstance(part, ContentPartToolCall):
        return (len(part.name) + len(part.arguments_text or "") + _length(part.arguments)) // _CHARACTERS
    return _length(part.output) // _CHARACTERS


def _length(value: object) -> int:
    return len(value) if isinstance(value, str) else len(json.dumps(value, ensure_ascii=False))


def _with_conversation(history: History, conversation: Sequence[Message]) -> History:
    return history.model_copy(update={"conversation": tuple(conversation)})
