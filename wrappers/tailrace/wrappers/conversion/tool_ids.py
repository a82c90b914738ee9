"""Matching of tool results with tool calls, and repair of conversations with unmatched calls or results.

Providers reject a conversation with a call without a result, a result without a call, or an invalid id. Such conversations are
common: a turn was interrupted, a client sent only some results, or another provider created the ids. Model clients therefore
repair the conversation before each request.

In this module, a *round* consists of adjacent messages of the model, and the other messages up to the model's next message. A
call matches only results in the same round. If several results match, the order of preference is: the same id and tool name; the
same id; no id and the same tool name; no id.

Calls of server tools (kind ``"server"``) are an exception. They match only results in messages of the model, also in a later
round if the id is the same. A result without an id in a message of the model matches only such a call.
"""

import json
import re
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from operator import is_

import msgspec

from tailrace.wrappers.messages import (
    ContentPart,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    Message,
    Role,
)

NO_RESULT = "There is no result: the conversation went on before this tool had answered."
"""Output of the error result that is added to a call without a result."""

_NO_NAMES = ("", "unknown")  # placeholders for a missing tool name

# Index of a message in the conversation, and index of a part in the message.
_Position = tuple[int, int]

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
    matches = _match_results(history.conversation)
    matched_calls = set(matches.values())
    return UnmatchedTools(
        calls=tuple(
            ToolPart(*at, call.id, call.name)
            for at, call in _calls(history.conversation)
            if at not in matched_calls and call.kind != "server"
        ),
        results=tuple(
            ToolPart(*at, result.id, result.name)
            for at, result in _results(history.conversation)
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


def with_missing_results(history: History) -> History:
    """Add an error result (`NO_RESULT`) to the last message for each call of the last round without a result.

    The same object is returned if the last message is not a TOOL message, or if no result is missing.
    """
    conversation = history.conversation
    if not conversation or conversation[-1].role is not Role.TOOL:
        return history
    [*_, (calling, _)] = _rounds(conversation)
    missing = tuple(map(_missing_result, calls_without_result(history, since=calling.start)))
    last = conversation[-1].model_copy(update={"content": (*conversation[-1].content, *missing)})
    return history.model_copy(update={"conversation": (*conversation[:-1], last)}) if missing else history


def _missing_result(call: ContentPartToolCall) -> ContentPartToolResult:
    return ContentPartToolResult(id=call.id, name=call.name, output=NO_RESULT, is_error=True)


def with_matched_ids(
    history: History, *, pattern: re.Pattern[str] | None = None, create_id: Callable[[int], str] | None = None
) -> History:
    """Give each call a unique and valid id, and give its result the same id.

    A missing, invalid or repeated id is replaced with a new id. Appended messages do not change the new ids of earlier calls,
    unless they contain one of these ids. A result without a tool name gets the name in its call. A result without a call does not
    change (see `with_repaired_results`).

    Args:
        history: The conversation.
        pattern: Regular expression that a complete id must match; None if all ids are valid.
        create_id: Function that returns a different id for each number. The ids must match the pattern. None for ``call00000``,
            ``call00001``, …, which most providers accept.

    Returns:
        The repaired history; the same object if nothing changes.

    Raises:
        ValueError: ``create_id`` returned an id that does not match the pattern, or only ids that are in use.
    """
    conversation = history.conversation
    ids = _new_ids(conversation, pattern, create_id or _default_id)
    replaced: dict[_Position, ContentPart] = {}
    for at, call in _calls(conversation):
        if at in ids:
            replaced[at] = call.model_copy(update={"id": ids[at], "synthetic_id": True})
    matches = _match_results(conversation)
    calls = dict(_calls(conversation))
    for at, result in _results(conversation):
        if at not in matches:
            continue
        call = calls[matches[at]]
        changes = {"id": ids.get(matches[at], call.id)}
        if result.name in _NO_NAMES and call.name:
            changes["name"] = call.name
        if any(getattr(result, field) != value for field, value in changes.items()):
            replaced[at] = result.model_copy(update=changes)
    return _with_parts(history, replaced)


def with_repaired_results(history: History, *, add_missing: bool = True) -> History:
    """Add missing results, and place all results where providers require them.

    - A call of a client tool without a result gets an error result with the text `NO_RESULT`, unless the call is at the end of
      the conversation.
    - All results of a round are placed in one TOOL message after the message of the model. If the next message already has all
      results, it does not change, whatever its role.
    - Adjacent messages of the model are merged if other messages or results follow. The first of them is the first message that
      calls a client tool.
    - A result of a client tool in a message of the model is moved to a TOOL message. If all calls before the result have results,
      the content after it becomes another message of the model, which follows the TOOL message.
    - A result without a call becomes text, so that the model still receives the output. If it is in a TOOL message, the text is
      in a USER message after the TOOL message.

    Args:
        history: The conversation.
        add_missing: True to add the missing results, which providers require. False for the items of a stored conversation.

    Returns:
        The repaired history; the same object if no repair is necessary.
    """
    repaired = _ResultRepair(history.conversation, add_missing=add_missing).messages()
    if len(repaired) == len(history.conversation) and all(map(is_, repaired, history.conversation)):
        return history
    return history.model_copy(update={"conversation": tuple(repaired)})


# --- matching of results and calls ------------------------------------------------------------------------------


def _rounds(conversation: Sequence[Message]) -> Iterator[tuple[range, range]]:
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


def _calls(
    conversation: Sequence[Message], positions: Iterable[int] | None = None
) -> Iterator[tuple[_Position, ContentPartToolCall]]:
    for position in range(len(conversation)) if positions is None else positions:
        for index, part in enumerate(conversation[position].content):
            if isinstance(part, ContentPartToolCall):
                yield (position, index), part


def _results(
    conversation: Sequence[Message], positions: Iterable[int] | None = None
) -> Iterator[tuple[_Position, ContentPartToolResult]]:
    for position in range(len(conversation)) if positions is None else positions:
        for index, part in enumerate(conversation[position].content):
            if isinstance(part, ContentPartToolResult):
                yield (position, index), part


def _match_results(conversation: Sequence[Message]) -> dict[_Position, _Position]:
    """Match results with calls. Return the positions of the calls, by the positions of the matched results."""
    matches: dict[_Position, _Position] = {}
    pending: dict[_Position, _Keys] = {}  # server tool calls of earlier rounds that have no result
    for model_positions, following in _rounds(conversation):
        server_calls, client_calls = dict(pending), dict[_Position, _Keys]()
        for at, call in _calls(conversation, model_positions):
            (server_calls if call.kind == "server" else client_calls)[at] = _call_keys(call)
        if not (server_calls or client_calls):
            continue
        model_results = {
            at: _result_keys(result, in_model_message=True)
            for at, result in _results(conversation, model_positions)
        }
        matches |= _match_once(model_results, server_calls, client_calls)
        later_results = {
            at: _result_keys(result, in_model_message=False)
            for at, result in _results(conversation, following)
        }
        matches |= _match_once(later_results, client_calls)
        pending = {at: (*keys[:2], None, None) for at, keys in server_calls.items()}
    return matches


def _match_once(
    results: dict[_Position, _Keys], *calls: dict[_Position, _Keys]
) -> dict[_Position, _Position]:
    """Match results with calls. Remove the matched results and calls from the arguments.

    Args:
        results: The keys of the results, by position.
        *calls: The keys of the calls, by position, in groups. The first group is preferred.
    """
    matches: dict[_Position, _Position] = {}
    for step in range(4 if results else 0):
        for each in calls:
            waiting: defaultdict[Hashable, deque[_Position]] = defaultdict(deque)
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


# --- ids --------------------------------------------------------------------------------------------------------


def _default_id(number: int) -> str:
    return f"call{number:05d}"  # some providers require exactly nine letters and digits


def _new_ids(
    conversation: Sequence[Message], pattern: re.Pattern[str] | None, make: Callable[[int], str]
) -> dict[_Position, str]:
    """Return new ids for the calls with a missing, duplicate or invalid id."""
    calls = list(_calls(conversation))
    used = {call.id for _, call in calls} | {result.id for _, result in _results(conversation)}
    last = len(calls) + len(used)  # an unused id is found within this many numbers
    valid: set[str] = set()
    new: dict[_Position, str] = {}
    number = -1
    for position, (at, call) in enumerate(calls):
        if call.id and call.id not in valid and (pattern is None or pattern.fullmatch(call.id)):
            valid.add(call.id)
            continue
        number = max(position, number + 1)
        while (candidate := make(number)) in used and number < last:
            number += 1
        if not candidate or candidate in used:
            raise ValueError(
                f"cannot create a new tool call id: the function returned {candidate!r} repeatedly"
            )
        if pattern is not None and not pattern.fullmatch(candidate):
            raise ValueError(f"the created tool call id {candidate!r} does not match {pattern.pattern!r}")
        used.add(candidate)
        new[at] = candidate
    return new


def _with_parts(history: History, parts: Mapping[_Position, ContentPart]) -> History:
    """Replace parts in a history. Return the same object if no part is replaced."""
    if not parts:
        return history
    conversation = list(history.conversation)
    for position in {at[0] for at in parts}:
        content = enumerate(conversation[position].content)
        new = tuple(parts.get((position, index), part) for index, part in content)
        conversation[position] = conversation[position].model_copy(update={"content": new})
    return history.model_copy(update={"conversation": tuple(conversation)})


# --- repair -----------------------------------------------------------------------------------------------------


class _ResultRepair:
    """Repairs the tool results of a conversation, one round after the other."""

    def __init__(self, conversation: Sequence[Message], *, add_missing: bool) -> None:
        self._conversation = conversation
        self._add_missing = add_missing
        self._calls = dict(_calls(conversation))
        self._matches = _match_results(conversation)
        self._matched_calls = set(self._matches.values())

    def messages(self) -> list[Message]:
        """Return the repaired conversation. Unchanged messages are the same objects."""
        messages: list[Message] = []
        for model_positions, following in _rounds(self._conversation):
            model_messages = _ModelMessages()
            for position in model_positions:
                complete, model_messages = self._repair_model_message(position, model_messages)
                messages += complete
            messages += model_messages.messages(merge=bool(following or model_messages.results))
            messages += self._repair_following(model_messages, following)
        return messages

    def _repair_model_message(
        self, position: int, model_messages: "_ModelMessages"
    ) -> tuple[list[Message], "_ModelMessages"]:
        """Add a message of the model to ``model_messages``.

        Returns:
            The messages that need no further repair: messages of the model whose client calls all have results, and a TOOL
            message with these results. Also a `_ModelMessages` with the content after them.
        """
        complete: list[Message] = []
        message = self._conversation[position]
        model_messages.start(message)
        for index, part in enumerate(message.content):
            at = (position, index)
            if isinstance(part, ContentPartToolResult):
                call_at = self._matches.get(at)
                if call_at is None:
                    model_messages.add(_result_text(part))
                elif self._calls[call_at].kind == "server":
                    model_messages.add(part)
                else:
                    model_messages.results.append(part)
                    del model_messages.open_calls[call_at]
                continue
            if model_messages.results and not model_messages.open_calls:
                complete += model_messages.messages(merge=True)
                complete.append(Message(role=Role.TOOL, content=tuple(model_messages.results)))
                remaining = Message(role=Role.MODEL) if model_messages.has_content else message
                model_messages = _ModelMessages()
                model_messages.start(remaining)
            if isinstance(part, ContentPartToolCall) and part.kind != "server":
                model_messages.open_calls[at] = part
            model_messages.add(part)
        return complete, model_messages

    def _repair_following(self, model_messages: "_ModelMessages", following: range) -> list[Message]:
        """Return the messages after the model's messages in a round. The first of these messages has all results of the round."""
        continues = self._add_missing and bool(following or model_messages.results)
        missing = [
            _missing_result(call)
            for at, call in model_messages.open_calls.items()
            if continues and at not in self._matched_calls
        ]
        matched = [at for at, _ in _results(self._conversation, following) if at in self._matches]
        is_complete = not (model_messages.results or missing) and all(
            at[0] == following.start for at in matched
        )
        moved: list[ContentPart] = []
        messages: list[Message] = []
        for position in following:
            is_in_place = position == following.start and (
                is_complete or self._conversation[position].role is Role.TOOL
            )
            messages += self._repair_message(position, None if is_in_place else moved)
        if model_messages.results or moved or missing:
            tool_message = (
                messages.pop(0) if messages and messages[0].role is Role.TOOL else Message(role=Role.TOOL)
            )
            content = (*model_messages.results, *tool_message.content, *moved, *missing)
            messages.insert(0, _with_content(tool_message, content))
        return messages

    def _repair_message(self, position: int, moved: list[ContentPart] | None) -> list[Message]:
        """Convert results without a call to text, in one message.

        Args:
            position: Index of the message.
            moved: List to which the other results are moved; None to leave them in the message.
        """
        message = self._conversation[position]
        content: list[ContentPart] = []
        texts: list[ContentPart] = []
        for index, part in enumerate(message.content):
            if not isinstance(part, ContentPartToolResult):
                content.append(part)
            elif (position, index) in self._matches:
                (content if moved is None else moved).append(part)
            else:
                (texts if message.role is Role.TOOL else content).append(_result_text(part))
        messages = [_with_content(message, content)] if content or not message.content else []
        return [*messages, Message(role=Role.USER, content=tuple(texts))] if texts else messages


class _ModelMessages:
    """The messages of the model in one round, and the results of client tools in these messages.

    Attributes:
        open_calls: Calls of client tools without a result in these messages.
    """

    def __init__(self) -> None:
        self.open_calls: dict[_Position, ContentPartToolCall] = {}
        self.results: list[ContentPart] = []
        self._messages: list[tuple[Message, list[ContentPart]]] = []

    def start(self, message: Message) -> None:
        """Begin the next message, or the rest of a message that was divided at tool results."""
        self._messages.append((message, []))

    @property
    def has_content(self) -> bool:
        return bool(self._messages[-1][1])

    def add(self, part: ContentPart) -> None:
        self._messages[-1][1].append(part)

    def messages(self, *, merge: bool) -> list[Message]:
        """Return the messages without the results of client tools.

        Args:
            merge: True to merge the messages from the first one that calls a client tool, because other messages or results
                follow.
        """
        messages = [
            _with_content(message, content)
            for message, content in self._messages
            if content or not message.content
        ]
        for count, message in enumerate(messages[:-1] if merge else ()):
            if any(call.kind != "server" for call in message.tool_calls):
                return [*messages[:count], _join_messages(messages[count:])]
        return messages


def _result_text(result: ContentPartToolResult) -> ContentPartText:
    output = result.output
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    tool = "A tool" if result.name in _NO_NAMES else f"The tool {result.name}"
    return ContentPartText(text=f"{tool} {'failed' if result.is_error else 'answered'}: {text}")


def _join_messages(messages: Sequence[Message]) -> Message:
    """Merge several messages of the model. The last value of a metadata key is used."""
    return Message(
        role=Role.MODEL,
        content=tuple(part for message in messages for part in message.content),
        metadata={key: value for message in messages for key, value in message.metadata.items()},
    )


def _with_content(message: Message, content: Sequence[ContentPart]) -> Message:
    """Replace the content of a message. Return the same object if the content is the same."""
    if len(content) == len(message.content) and all(map(is_, content, message.content)):
        return message
    return message.model_copy(update={"content": tuple(content)})
