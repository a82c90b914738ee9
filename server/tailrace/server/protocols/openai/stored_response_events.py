"""The events of a stored response or completion, read from the task's events or created from a snapshot of the task.

A stream depends only on the events of the task. Therefore, the original stream, a resumed stream and a stream of another node
have the same bytes. Some time after the end of a task, its events are deleted (``docs/storage.md``). Later streams are created
from a snapshot.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from tailrace.server.protocols.conversation_lookup import read_response_id
from tailrace.server.protocols.openai.stored_request import Kind, StoredRequest, read_stored_request
from tailrace.server.protocols.openai_error import OpenAIError
from tailrace.server.protocols.turn_events import (
    TurnEvents,
    snapshot_of_running_turn,
    snapshot_of_turn,
)
from tailrace.server.runtime.caller import Caller
from tailrace.server.runtime.operations import Operations
from tailrace.server.store.store import EventsDropped
from tailrace.streaming.a2a.errors import TaskNotFoundError
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.json_value_counts import cost_of_task
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Message, Task
from tailrace.streaming.a2a.stream_extension import extension_metadata
from tailrace.streaming.conversion.message_conversion import is_callers
from tailrace.wrappers.concurrency.worker_thread import json_cost, run_bounded

_PREFIXES: dict[Kind, str] = {"response": "resp_", "chat.completion": "chatcmpl-"}
_NOUNS: dict[Kind, str] = {"response": "Response", "chat.completion": "Chat completion"}


class StoredTurn(NamedTuple):
    """A response or completion, which is one turn of a task.

    Attributes:
        task: The current task with its history.
        message: The caller's message that began the turn.
    """

    id: str
    task: Task
    turn: int
    message: Message
    request: StoredRequest
    turn_has_ended: bool

    @property
    def has_started(self) -> bool:
        """True if the turn has ended, or the state of its task is not SUBMITTED.

        A message that continues a task changes the state to WORKING immediately. The property is then True even if the turn still
        waits for other turns of the conversation.
        """
        return self.turn_has_ended or self.task.status.state is not TaskState.SUBMITTED

    async def batches(self) -> AsyncGenerator[Sequence[Event]]:
        """Yield one batch with the event of `snapshot`."""
        yield [self.snapshot()]

    def snapshot(self) -> Event:
        """Return an event with the task at the end of the turn, or with the current task if the turn is running."""
        return (snapshot_of_turn if self.turn_has_ended else snapshot_of_running_turn)(self.task, self.turn)


def not_found(object_id: str, kind: Kind) -> OpenAIError:
    """Return the error for a response or completion that does not exist or belongs to another caller."""
    return OpenAIError(404, f"{_NOUNS[kind]} with id '{object_id}' not found.", param="id")


def turn_id(task_id: str, turn: int, kind: Kind) -> str:
    """Return the id of the response or completion of a turn."""
    return f"{_PREFIXES[kind]}{task_id}{'_' if kind == 'response' else '-'}{turn}"


def read_turn_id(object_id: str, kind: Kind) -> tuple[str, int]:
    """Return the task id and the turn in the id of a response or completion.

    The task id is empty if the id does not have the form of `turn_id`.
    """
    prefix = _PREFIXES[kind]
    if not object_id.startswith(prefix):
        return "", 0
    task_id, _, turn = object_id.removeprefix(prefix).rpartition("_" if kind == "response" else "-")
    return read_response_id(f"resp_{task_id}_{turn}")


async def find_turn(operations: Operations, object_id: str, caller: Caller, kind: Kind) -> StoredTurn:
    """Return a response or stored completion.

    A response is returned even if its request had ``store: false``. Clients cannot retrieve such a response, so routes for stored
    responses must check `StoredRequest.is_stored`.

    Raises:
        OpenAIError: The caller has no such response or stored completion.
        StoreError: The task cannot be read.
    """
    task_id, turn = read_turn_id(object_id, kind)
    if not task_id:
        raise not_found(object_id, kind)
    try:
        task = await operations.snapshot(task_id, caller)
    except TaskNotFoundError:
        raise not_found(object_id, kind) from None
    messages = [message for message in task.history if is_callers(message)]
    message = messages[turn - 1] if 0 < turn <= len(messages) else None
    request = None
    if message is not None:
        cost = json_cost(message.metadata)
        request = await run_bounded(cost, read_stored_request, message.metadata)
    if message is None or request is None or request.kind != kind or task.id != task_id:
        raise not_found(object_id, kind)
    state = task.status.state
    turn_has_ended = state.terminal or state.interrupted
    if not turn_has_ended and turn < len(messages):
        turn_has_ended = await _has_ended(operations, task, turn, caller)
    return StoredTurn(object_id, task, turn, message, request, turn_has_ended)


async def _has_ended(operations: Operations, task: Task, turn: int, caller: Caller) -> bool:
    """Return whether an earlier turn of a running task has ended.

    The history does not show this, because a message to a running task waits and does not end the turn.
    """
    number = extension_metadata(task.metadata)["number"]
    events = TurnEvents(await operations.read_events(task.id, caller), turn)
    try:
        async with aclosing(events.batches()) as batches:
            async for batch in batches:
                for event in batch:
                    if event.number > number:
                        return False
                    if event.state is not None and (event.state.terminal or event.state.interrupted):
                        return True
                if batch[-1].number == number:
                    return False
    except EventsDropped:
        pass
    return True


async def read_turn(operations: Operations, stored: StoredTurn, caller: Caller) -> TurnEvents:
    """Return the events of a turn that has ended.

    If they are no longer stored, `TurnEvents.batches` raises `EventsDropped`.

    Raises:
        TaskNotFoundError: The task was deleted after `find_turn`.
        StoreError: The store is not available.
    """
    return TurnEvents(await operations.read_events(stored.task.id, caller), stored.turn)


def turn_cost(stored: StoredTurn) -> int:
    """Return the maximum cost of encoding a turn from a snapshot of its task."""
    return cost_of_task(stored.task)
