"""Adds the agent's messages to the history of a task when a client reads the task.

The record of a task contains only the caller's messages and earlier status messages. The agent's messages, tool calls and tool
results are stored once, in the conversation, so that they do not enlarge events and snapshots.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import cast

from tailrace.streaming.a2a.models import Message, Part, Task
from tailrace.streaming.a2a.stream_extension import is_response_text
from tailrace.streaming.conversion.message_conversion import is_callers

MAX_HISTORY = 1000
"""Maximum number of messages of a history in a response, newest first."""

Turn = list[Message]
"""A message of the caller, and the messages before the next message of the caller."""


def with_agent_messages(task: Task, recorded: Sequence[Message], length: int | None = None) -> Task:
    """Return a task with a history that includes the agent's messages in order.

    Reasoning is omitted, because a client without the stream extension would display it as the response.

    Args:
        task: The task with the complete history of its record.
        recorded: The newest `MAX_HISTORY` messages of the task in the conversation, oldest first.
        length: Maximum number of messages, of which the newest are returned; None for `MAX_HISTORY`.
    """
    turns = _turns(message for message in recorded if message.task_id == task.id)
    if len(recorded) < MAX_HISTORY:  # otherwise, the turn of the first message is unknown
        turns = _merged(_turns(task.history), turns)
    history = [shown for message in chain(*turns) if (shown := _without_reasoning(message)).parts]
    length = MAX_HISTORY if length is None else min(length, MAX_HISTORY)
    return task.model_copy(update={"history": tuple(history[-length:] if length else ())})


def _turns(messages: Iterable[Message]) -> list[Turn]:
    turns: list[Turn] = []
    for message in messages:
        if not turns or is_callers(message):
            turns.append([])
        turns[-1].append(message)
    return turns


def _merged(turns: Sequence[Turn], recorded: Sequence[Turn]) -> list[Turn]:
    """Add the messages of the conversation to the turns of a task. The last turns may have no messages there yet."""
    merged: list[Turn] = []
    for number, (question, *statuses) in enumerate(turns):
        answers = recorded[number][1:] if number < len(recorded) else []
        known = _contents(answers)
        statuses = [status for status in statuses if not all(item in known for item in _contents([status]))]
        # The last status message of an ended turn is a question to the caller. Earlier ones report progress.
        at = len(statuses) if number == len(turns) - 1 else max(len(statuses) - 1, 0)
        merged.append([question, *statuses[:at], *answers, *statuses[at:]])
    return merged


def _contents(messages: Iterable[Message]) -> list[object]:
    """Return the parts of messages. Each tool call is a separate item."""
    contents: list[object] = []
    for part in chain.from_iterable(message.parts for message in messages):
        data: object = part.data
        calls = cast("dict[str, object]", data).get("tool_calls") if isinstance(data, dict) else None
        contents += cast("list[object]", calls) if isinstance(calls, list) else [part]
    return contents


def _without_reasoning(message: Message) -> Message:
    parts: tuple[Part, ...] = tuple(part for part in message.parts if is_response_text(part.metadata))
    return message if len(parts) == len(message.parts) else message.model_copy(update={"parts": parts})
