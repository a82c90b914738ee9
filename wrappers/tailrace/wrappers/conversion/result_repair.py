"""Repair of conversations in which tool results are missing or misplaced; see `tailrace.wrappers.conversion.tool_matching`.

Providers reject a conversation with a call without a result, a result without a call, or an invalid id. Such conversations are
common: a turn was interrupted, a client sent only some results, or another provider created the ids. Model clients therefore
repair the conversation before each request.
"""

import json
from collections.abc import Sequence
from operator import is_

from tailrace.wrappers.conversion.tool_matching import (
    UNNAMED,
    Position,
    calls_of,
    calls_without_result,
    has_tool_parts,
    match_results,
    results_of,
    rounds_of,
)
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


def with_missing_results(history: History) -> History:
    """Add an error result (`NO_RESULT`) to the last message for each call of the last round without a result.

    The same object is returned if the last message is not a TOOL message, or if no result is missing.
    """
    conversation = history.conversation
    if not conversation or conversation[-1].role is not Role.TOOL:
        return history
    [*_, (calling, _)] = rounds_of(conversation)
    missing = tuple(map(_missing_result, calls_without_result(history, since=calling.start)))
    last = conversation[-1].model_copy(update={"content": (*conversation[-1].content, *missing)})
    return history.model_copy(update={"conversation": (*conversation[:-1], last)}) if missing else history


def _missing_result(call: ContentPartToolCall) -> ContentPartToolResult:
    return ContentPartToolResult(id=call.id, name=call.name, output=NO_RESULT, is_error=True)


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
    if not has_tool_parts(history.conversation):
        return history
    repaired = _ResultRepair(history.conversation, add_missing=add_missing).messages()
    if len(repaired) == len(history.conversation) and all(map(is_, repaired, history.conversation)):
        return history
    return history.model_copy(update={"conversation": tuple(repaired)})


class _ResultRepair:
    """Repairs the tool results of a conversation, one round after the other."""

    def __init__(self, conversation: Sequence[Message], *, add_missing: bool) -> None:
        self._conversation = conversation
        self._add_missing = add_missing
        self._calls = dict(calls_of(conversation))
        self._matches = match_results(conversation)
        self._matched_calls = set(self._matches.values())

    def messages(self) -> list[Message]:
        """Return the repaired conversation. Unchanged messages are the same objects."""
        messages: list[Message] = []
        for model_positions, following in rounds_of(self._conversation):
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
        matched = [at for at, _ in results_of(self._conversation, following) if at in self._matches]
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
        self.open_calls: dict[Position, ContentPartToolCall] = {}
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
    tool = "A tool" if result.name in UNNAMED else f"The tool {result.name}"
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
