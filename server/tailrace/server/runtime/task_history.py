"""The history of a task in responses: its own messages, and the agent's from the conversation.

A task's own history has the caller's messages and those of statuses that were replaced. The agent's calls, results and
messages are persisted once, in the conversation, and added when a task is read: no event and no snapshot grows by them.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import cast

from tailrace.streaming.a2a.extension import is_answer
from tailrace.streaming.a2a.models import Message, Part, Task
from tailrace.streaming.conversion.conversation import is_callers

MAX_HISTORY = 1000
"""Maximum number of messages of a task's history in a response; the newest are returned."""

Turn = list[Message]
"""A message of the caller, and the messages that follow until the next one."""


def with_agent_messages(task: Task, recorded: Sequence[Message], length: int | None = None) -> Task:
    """Return the task with a history that includes the agent's messages, in order.

    Reasoning is left out: it is in the artifacts, and a client that does not know the extension would show it as the
    response.

    Args:
        task: The task with all of its own history.
        recorded: The task's messages in the conversation, oldest first; the newest `MAX_HISTORY` of them.
        length: The maximum number of messages, the newest; None for `MAX_HISTORY`.
    """
    turns = _turns(message for message in recorded if message.task_id == task.id)
    if len(recorded) < MAX_HISTORY:  # else the turn of the first message is not known
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
    """Add recorded messages to the turns of a task; the last turns may have none yet."""
    merged: list[Turn] = []
    for number, (question, *statuses) in enumerate(turns):
        answers = recorded[number][1:] if number < len(recorded) else []
        known = _contents(answers)
        statuses = [status for status in statuses if not all(item in known for item in _contents([status]))]
        # The last status of a turn asked for the next message; those before it are progress.
        at = len(statuses) if number == len(turns) - 1 else max(len(statuses) - 1, 0)
        merged.append([question, *statuses[:at], *answers, *statuses[at:]])
    return merged


def _contents(messages: Iterable[Message]) -> list[object]:
    """Return the parts of messages; a part with tool calls gives one item for each call."""
    contents: list[object] = []
    for part in chain.from_iterable(message.parts for message in messages):
        data: object = part.data
        calls = cast("dict[str, object]", data).get("tool_calls") if isinstance(data, dict) else None
        contents += cast("list[object]", calls) if isinstance(calls, list) else [part]
    return contents


def _without_reasoning(message: Message) -> Message:
    parts: tuple[Part, ...] = tuple(part for part in message.parts if is_answer(part.metadata))
    return message if len(parts) == len(message.parts) else message.model_copy(update={"parts": parts})
