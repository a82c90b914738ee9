"""Input items of a response: all messages of the conversation up to the message that requested the response."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, cast

from tailrace.server.protocols.encoder import Fields
from tailrace.server.protocols.openai.approval_items import decision_items
from tailrace.server.protocols.openai.stored_response_events import StoredTurn
from tailrace.streaming.a2a.models import Message, Role
from tailrace.streaming.agent.caller_options import without_caller_options
from tailrace.streaming.conversion.approval_parts import without_decisions
from tailrace.streaming.conversion.message_conversion import to_common_message
from tailrace.wrappers import ContentPartToolCall, History
from tailrace.wrappers.openai_responses.input_items import input_items

_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}

_OUTPUTS = ("function_call_output", "custom_tool_call_output")


def list_input_items(stored: StoredTurn, messages: Sequence[Message]) -> list[Fields]:
    """Return the input items of a stored response in chronological order."""
    received = received_messages(stored, messages)
    items = items_of(received, f"{stored.task.id}_{stored.turn}")
    decisions: dict[str, list[Fields]] = {}
    for call_id, pair in chain.from_iterable(decisions_of(received)):
        decisions.setdefault(call_id, []).extend(pair)
    listed: list[Fields] = []
    for item in items:
        if item["type"] in _OUTPUTS:
            listed += decisions.pop(item["call_id"], ())
        listed.append(item)
    return [*listed, *chain.from_iterable(decisions.values())]


def decisions_of(messages: Iterable[Message]) -> Iterator[list[tuple[str, list[Fields]]]]:
    """Yield, for each message, a list with the items of each decision (see `decision_items`)."""
    calls: dict[str, ContentPartToolCall] = {}
    for message in messages:
        yield list(decision_items(message, calls))
        if message.role is Role.AGENT:
            calls.update((call.id, call) for call in to_common_message(message).tool_calls)


def received_messages(stored: StoredTurn, messages: Sequence[Message]) -> list[Message]:
    """Return the messages of a conversation up to the message that requested a response."""
    ids = [message.message_id for message in messages]
    # The conversation does not contain a message that waits for its turn.
    end = ids.index(stored.message.message_id) if stored.message.message_id in ids else len(ids)
    return [*messages[:end], stored.message]


def shown_messages(messages: Iterable[Message]) -> Iterator[Message]:
    """Yield the messages without options of requests and without decisions. Messages that contain only decisions are omitted."""
    for message in messages:
        rest = without_decisions(message)
        if rest is not None:
            yield without_caller_options(rest)


def items_of(messages: Sequence[Message], suffix: str) -> list[Fields]:
    """Convert messages to items of the Responses API. Missing results of calls are not added.

    Args:
        messages: The messages.
        suffix: A part of the ids of the items, which makes them unique.
    """
    common = map(to_common_message, shown_messages(messages))
    items = input_items(History(conversation=tuple(common)), add_missing_results=False)
    return [_with_id(item, at, suffix) for at, item in enumerate(items)]


def _with_id(item: Fields, at: int, suffix: str) -> Fields:
    kind = item.setdefault("type", "message")
    if kind == "message":
        item["content"] = list(map(_part, _parts(item)))
    return {"id": f"{_PREFIXES.get(kind, 'item')}_{suffix}_in_{at}", **item, "status": "completed"}


def _parts(item: Fields) -> Sequence[Any]:
    content: object = item["content"]
    if not isinstance(content, str):
        return cast("Sequence[Any]", content)
    kind = "output_text" if item["role"] == "assistant" else "input_text"
    return [{"type": kind, "text": content}]


def _part(part: Fields) -> Fields:
    if part.get("type") == "output_text":
        return {"annotations": [], "logprobs": [], **part}
    if part.get("type") == "input_image":
        return {"detail": "auto", **part}
    return part
