"""Matching of tool results with tool calls.

In this module, a *round* consists of adjacent messages of the model, and the other messages up to the model's next message. A
call matches only results in the same round. If several results match, the order of preference is: the same id and tool name; the
same id; no id and the same tool name; no id.

Calls of server tools (kind ``"server"``) are an exception. They match only results in messages of the model, also in a later
round if the id is the same. A result without an id in a message of the model matches only such a call.
"""

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence

import msgspec

from tailrace.wrappers.messages import ContentPartToolCall, ContentPartToolResult, History, Message, Role

UNNAMED = ("", "unknown")
"""Placeholders for a missing tool name."""

Position = tuple[int, int]
"""Index of a message in the conversation, and index of a part in the message."""

_TOOL_PARTS = (ContentPartToolCall, ContentPartToolResult)

# Keys of a call or a result, in order of preference. A call matches a result with an equal key at the same position. None
# matches no key.
_Keys = tuple[Hashable, Hashable, Hashable, Hashable]


class ToolPart(msgspec.Struct, frozen=True):
    """Position of a tool call or a tool result in a conversation.

    Attributes:
        message: Index of the message in ``History.conversation``.
        part: Index of the part in the content of the message.
    """

    message: int
    part: int
    id: str
    name: str


class UnmatchedTools(msgspec.Struct, frozen=True):
    """The tool calls without a result, and the tool results without a call, in the order of the conversation.

    Attributes:
        calls: Calls of client tools without a result, including those at the end of the conversation.
        results: Results without a call.
    """

    calls: tuple[ToolPart, ...] = ()
    results: tuple[ToolPart, ...] = ()


def unmatched_tools(history: History) -> UnmatchedTools:
    """Return the calls without results and the results without calls."""
    matches = match_results(history.conversation)
    matched_calls = set(matches.values())
    return UnmatchedTools(
        calls=tuple(
            ToolPart(*at, call.id, call.name)
            for at, call in calls_of(history.conversation)
            if at not in matched_calls and call.kind != "server"
        ),
        results=tuple(
            ToolPart(*at, result.id, result.name)
            for at, result in results_of(history.conversation)
            if at not in matches
        ),
    )


def calls_without_result(history: History, since: int = 0) -> list[ContentPartToolCall]:
    """Return the calls without a result, in order; see `UnmatchedTools.calls`.

    Args:
        history: The conversation.
        since: Index of the first message to search.
    """
    return [
        part
        for each in unmatched_tools(history).calls
        if each.message >= since
        and isinstance(part := history.conversation[each.message].content[each.part], ContentPartToolCall)
    ]


def has_tool_parts(conversation: Sequence[Message]) -> bool:
    """Return True if a message has a tool call or a tool result."""
    for message in conversation:
        for part in message.content:
            if isinstance(part, _TOOL_PARTS):
                return True
    return False


def rounds_of(conversation: Sequence[Message]) -> Iterator[tuple[range, range]]:
    """Yield two index ranges for each round: the messages of the model, and the messages after them.

    In the first round, the first range may be empty.
    """
    start = 0
    while start < len(conversation):
        model_end = start
        while model_end < len(conversation) and conversation[model_end].role is Role.MODEL:
            model_end += 1
        end = model_end
        while end < len(conversation) and conversation[end].role is not Role.MODEL:
            end += 1
        yield range(start, model_end), range(model_end, end)
        start = end


def calls_of(
    conversation: Sequence[Message], positions: Iterable[int] | None = None
) -> Iterator[tuple[Position, ContentPartToolCall]]:
    """Yield the calls of the messages at some positions; of all messages by default."""
    for position in range(len(conversation)) if positions is None else positions:
        for index, part in enumerate(conversation[position].content):
            if isinstance(part, ContentPartToolCall):
                yield (position, index), part


def results_of(
    conversation: Sequence[Message], positions: Iterable[int] | None = None
) -> Iterator[tuple[Position, ContentPartToolResult]]:
    """Yield the results of the messages at some positions; of all messages by default."""
    for position in range(len(conversation)) if positions is None else positions:
        for index, part in enumerate(conversation[position].content):
            if isinstance(part, ContentPartToolResult):
                yield (position, index), part


def match_results(conversation: Sequence[Message]) -> dict[Position, Position]:
    """Match results with calls. Return the positions of the calls, by the positions of the matched results."""
    matches: dict[Position, Position] = {}
    pending: dict[Position, _Keys] = {}  # server tool calls of earlier rounds that have no result
    for model_positions, following in rounds_of(conversation):
        server_calls, client_calls = dict(pending), dict[Position, _Keys]()
        for at, call in calls_of(conversation, model_positions):
            (server_calls if call.kind == "server" else client_calls)[at] = _call_keys(call)
        if not (server_calls or client_calls):
            continue
        model_results = {
            at: _result_keys(result, in_model_message=True)
            for at, result in results_of(conversation, model_positions)
        }
        matches |= _match_once(model_results, server_calls, client_calls)
        later_results = {
            at: _result_keys(result, in_model_message=False)
            for at, result in results_of(conversation, following)
        }
        matches |= _match_once(later_results, client_calls)
        pending = {at: (*keys[:2], None, None) for at, keys in server_calls.items()}
    return matches


def _match_once(results: dict[Position, _Keys], *calls: dict[Position, _Keys]) -> dict[Position, Position]:
    """Match results with calls. Remove the matched results and calls from the arguments.

    Args:
        results: The keys of the results, by position.
        *calls: The keys of the calls, by position, in groups. The first group is preferred.
    """
    matches: dict[Position, Position] = {}
    for step in range(4 if results else 0):
        for each in calls:
            waiting: defaultdict[Hashable, deque[Position]] = defaultdict(deque)
            for at, keys in each.items():
                waiting[keys[step]].append(at)
            for at, keys in list(results.items()):
                queue = waiting.get(keys[step]) if keys[step] is not None else None
                if queue and queue[0] < at:
                    matches[at] = queue.popleft()
                    del results[at], each[matches[at]]
    return matches


def _call_keys(call: ContentPartToolCall) -> _Keys:
    is_server_tool = call.kind == "server"
    return (call.id, call.name), call.id, (is_server_tool, call.name), is_server_tool


def _result_keys(result: ContentPartToolResult, *, in_model_message: bool) -> _Keys:
    if result.id:
        return (result.id, result.name), result.id, None, None
    return None, None, (in_model_message, result.name), in_model_message
