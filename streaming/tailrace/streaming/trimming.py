"""What of a long conversation is sent to a model: a policy, asked before every request.

A policy takes the whole history and gives the one to be sent; what is kept of the conversation is not its business. It
must not part a tool call from its result: providers refuse either without the other. `keep_all` is the default.
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
"""Gives the history to be sent for a whole one."""

CountTokens = Callable[[Message], int]
"""Says how many tokens a message is; an estimate will do."""

_CHARACTERS = 4  # of a token, of English text and of code; other scripts have fewer
_OF_MESSAGE = 4  # tokens of a message beside its content
_OF_FILE = 1000  # tokens of an image, as most providers count it


def keep_all(history: History) -> History:
    """The whole history, however long it is."""
    return history


class TokenBudget:
    """Leaves out the oldest of a conversation so that it fits a number of tokens.

    What is left out first are whole turns (a message of the user, and all that followed until the next), the oldest first;
    then, of the newest turn, whole rounds (calls with their results), the oldest first. The message that the newest turn
    began with is always sent, and so are its last round, the system message and the context, even where they alone are
    more than the budget.

    Args:
        max_tokens: Of the history; what the answer needs of the model's window is not counted in.
        count: Says how many tokens a message is; estimated by its characters when None.
    """

    def __init__(self, max_tokens: int, count: CountTokens | None = None) -> None:
        self._max_tokens = max_tokens
        self._count = count or estimate_tokens

    def __call__(self, history: History) -> History:
        """The history to be sent; the same object when all of it fits."""
        fixed = "".join(filter(None, (history.system_message, history.context)))
        room = self._max_tokens - len(fixed) // _CHARACTERS
        messages = history.conversation
        costs = [self._count(message) for message in messages]
        # What it costs to send everything from a position on.
        rest = list(accumulate(reversed(costs), initial=0))[::-1]
        if rest[0] <= room:
            return history
        whole = _uncut(messages)
        asked = [at for at, message in enumerate(messages) if _is_asked(message)]
        turns = [at for at in asked if at in whole] or [0]
        for at in turns:
            if rest[at] <= room:
                return _with(history, messages[at:])
        newest = turns[-1]
        end = next((at for at in asked if at > newest), len(messages))
        # A round begins with the first words of the model behind those of somebody else.
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
    """Roughly how many tokens a message is: a quarter of its characters, and a thousand for a file."""
    return _OF_MESSAGE + sum(map(_of_part, message.content))


def _is_asked(message: Message) -> bool:
    """Whether the user says something, and does not just hand in the results of tools."""
    only_results = message.content and all(
        isinstance(part, ContentPartToolResult) for part in message.content
    )
    return message.role is Role.USER and not only_results


def _uncut(messages: Sequence[Message]) -> set[int]:
    """The positions at which a conversation can be cut in two without parting a call from its result."""
    calls: dict[str, int] = {}
    parting: set[int] = set()
    for at, message in enumerate(messages):
        calls |= {call.id: at for call in message.tool_calls}
        for result in message.tool_results:
            parting.update(range(calls.pop(result.id, at) + 1, at + 1))
    return set(range(len(messages))) - parting


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
