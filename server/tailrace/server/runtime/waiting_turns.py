"""Turns that have not begun. They wait for earlier turns of their conversation, or for the turn after which their branch begins.

A stored conversation contains only the messages of turns that have begun. The message of a turn that has not begun is only in its
task. To find the position of a new message, the server therefore reads both. It holds the `Operations.assignment_lock` until the
new message is accepted.

The second of two messages after the same running turn begins a branch. The branch also contains the response of the running turn,
which does not exist yet. The task of the second message therefore stores a reference to the running turn (`TurnReference`). The
turn of the second message begins when the running turn has ended, even after a restart of the server.
"""

from collections.abc import Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import NamedTuple
from uuid import uuid4

import msgspec

from tailrace.server.runtime.active_task import TurnReference
from tailrace.server.runtime.event_stream import EventStream
from tailrace.server.runtime.messages import copied_message
from tailrace.server.runtime.task_access import TaskAccess
from tailrace.server.runtime.task_registry import TaskRegistry
from tailrace.server.store.store import Store
from tailrace.streaming.a2a.errors import TaskNotFoundError
from tailrace.streaming.a2a.models import Message, Task
from tailrace.streaming.a2a.stream_extension import extension_metadata
from tailrace.streaming.conversion.message_conversion import is_callers

MAX_COPIED = 10_000
"""Maximum number of messages that are copied to a branch, newest first."""


MAX_ROOT = 200
"""Maximum number of characters of a conversation's id in the id of a branch."""


class AcceptedMessages(NamedTuple):
    """The messages of a conversation.

    Attributes:
        begun: The newest messages of turns that have begun, in chronological order.
        waiting: The caller's messages of turns that have not begun, in the order of their acceptance.
    """

    begun: list[Message]
    waiting: list[Message]


class WaitingTurns:
    """Finds the turns of a caller that have not begun."""

    def __init__(self, access: TaskAccess, store: Store, tasks: TaskRegistry) -> None:
        self._access = access
        self._store = store
        self._tasks = tasks

    async def accepted(self, context_id: str, owner: str, limit: int) -> AcceptedMessages:
        """Return the messages of a conversation.

        Raises:
            StoreError: The store cannot be read.
        """
        # The tasks are read before the conversation. If a turn begins between the two reads, its message is found in both.
        unended = await self._unended(context_id, owner)
        tasks = [await self._tasks.current(task, owner) for task in unended]
        begun = await self._access.conversation(context_id, owner, limit)
        known = {(message.task_id, message.message_id) for message in begun}
        waiting = [
            message
            for task in tasks
            for message in task.history
            if is_callers(message) and (message.task_id, message.message_id) not in known
        ]
        return AcceptedMessages(begun, waiting)

    async def dependents(self, context_id: str, owner: str, task: Task | None = None) -> list[str]:
        """Return the ids of the tasks whose first turns wait, directly or indirectly, for a task, oldest first.

        Args:
            context_id: Id of the conversation of the task.
            owner: The owner.
            task: The task, which has not ended; None for all tasks of the conversation.

        Raises:
            StoreError: The store cannot be read.
        """
        found: list[str] = []
        gone = {task.id} if task is not None else set[str]()
        # A turn that has begun blocks all waiting turns of its conversation.
        contexts = {context_id} if task is None or await self._has_begun(task, owner) else set[str]()
        for each in await self._unended(context_id, owner, f"{root_of(context_id)}~"):
            if each.id in gone:
                contexts.add(context_id)
            elif not await self._has_begun(each, owner):
                turn = reference_of(each.history[0])
                follows = turn is not None and (
                    turn.task_id in gone or (task is None and turn.context_id == context_id)
                )
                if follows or each.context_id in contexts:
                    found.append(each.id)
                    gone.add(each.id)
                    contexts.add(each.context_id)
        return found

    async def _has_begun(self, task: Task, owner: str) -> bool:
        newest = await self._store.load_task_messages(
            task.id, owner, 1
        )  # possibly a copied message of a branch, which has no task id
        return any(message.task_id for message in newest)

    async def _unended(self, context_id: str, owner: str, prefix: str = "") -> list[Task]:
        """Return unended tasks (see `Store.load_unended`) in the order of their acceptance."""
        found = await self._store.load_unended(context_id, owner, prefix)
        if len(found) <= 1:
            return found
        # Times have a resolution of one millisecond. For equal times, the order in memory decides.
        order = self._tasks.ids_in_memory({task.id for task in found}, owner)
        positions = {task_id: at for at, task_id in enumerate(order)}
        return sorted(found, key=lambda task: (_time_of(task), positions.get(task.id, 0)))

    async def earlier_messages(self, turn: TurnReference, context_id: str, owner: str) -> tuple[Message, ...]:
        """Wait until a turn has ended, and return copies of the messages of its conversation up to the end of the turn.

        Args:
            turn: The turn.
            context_id: The id of the branch.
            owner: The owner of the conversation and the branch.

        Raises:
            TaskNotFoundError: The task of the turn, or its message, was deleted.
            StoreError: The store cannot be read.
        """
        subscription = await self._access.subscribe(turn.task_id, owner, repeat_finished=True)
        stream = EventStream(subscription, until_interrupted=True)
        async with aclosing(stream.batches()) as batches:
            async for _ in batches:
                pass
        messages = await self._access.conversation(turn.context_id, owner, MAX_COPIED)
        return tuple(copies_of(_up_to(messages, turn), context_id))


def root_of(context_id: str) -> str:
    """Return the common beginning of the ids of a conversation and its branches (``KEY``, ``KEY~2``, ``KEY~…``)."""
    return context_id[:MAX_ROOT].partition("~")[0]


def branch_id(context_id: str) -> str:
    """Return a new id for a branch of a conversation."""
    return f"{context_id[:MAX_ROOT]}~{uuid4().hex}"


def reference_of(message: Message) -> TurnReference | None:
    """Return the turn after which a message begins a branch; None if it begins no branch."""
    fact = extension_metadata(message.metadata).get("follows")
    return msgspec.convert(fact, TurnReference) if fact is not None else None


def copies_of(messages: Sequence[Message], context_id: str) -> list[Message]:
    """Return copies of messages for a branch. They belong to no task."""
    own = {"task_id": ""}
    return [
        copied_message(each, context_id).model_copy(update={**own, "message_id": str(uuid4())})
        for each in messages
    ]


def _time_of(task: Task) -> datetime:
    return task.status.timestamp or datetime.min.replace(tzinfo=UTC)


def _up_to(messages: Sequence[Message], turn: TurnReference) -> Sequence[Message]:
    ids = [(each.task_id, each.message_id) for each in messages]
    if (turn.task_id, turn.message_id) not in ids:
        raise TaskNotFoundError(
            "the response that this one continues was deleted", metadata={"taskId": turn.task_id}
        )
    start = ids.index((turn.task_id, turn.message_id))
    end = next((at for at in range(start + 1, len(ids)) if is_callers(messages[at])), len(ids))
    return messages[:end]
