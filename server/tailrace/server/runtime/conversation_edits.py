"""Changes of conversations without a turn."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

from tailrace.server.runtime.active_task import ActiveTask
from tailrace.server.runtime.client_task_ids import id_of_named
from tailrace.server.runtime.served_agents import ServedAgents
from tailrace.server.runtime.task_registry import TaskRegistry
from tailrace.server.runtime.turns import TurnRunner
from tailrace.server.runtime.waiting_turns import root_of
from tailrace.server.store.conversation_rows import title_of
from tailrace.server.store.records import StoredConversation
from tailrace.server.store.store import Store, TaskWrite
from tailrace.server.store.writer import GroupWriter
from tailrace.streaming.a2a.errors import TaskNotFoundError
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.models import Message, Task
from tailrace.streaming.a2a.requests import MAX_TITLE
from tailrace.streaming.task.event_log import TaskLog
from tailrace.streaming.task.task_record import TaskRecord


class ConversationEdits:
    """Changes conversations without a turn.

    Args:
        agents: The agents, whose input filters check the content.
        assignment_lock: Returns the lock for adding messages (see `Engine.assignment_lock`). Its arguments are the owner and the
            key of the conversation.
    """

    def __init__(
        self,
        store: Store,
        agents: ServedAgents,
        tasks: TaskRegistry,
        turns: TurnRunner,
        writer: GroupWriter,
        assignment_lock: Callable[[str, str], AbstractAsyncContextManager[object]],
    ) -> None:
        self._store = store
        self._agents = agents
        self._tasks = tasks
        self._turns = turns
        self._writer = writer
        self._assignment_lock = assignment_lock

    async def rename(self, context_id: str, title: str, owner: str, agent: str = "") -> StoredConversation:
        """Set the title of a conversation.

        Args:
            context_id: Id of the conversation.
            title: The title. If it has no words, the conversation gets its default title.
            owner: The caller.
            agent: The name of the agent; see `CallContext`.

        Raises:
            BlockedMessageError: An input filter blocks the title.
            InternalError: An input filter failed.
            UnknownAgentError: There is no such agent.
            TaskNotFoundError: The caller has no task in such a conversation.
            StoreError: The title cannot be stored.
        """
        await self._agents.check(agent, (), {"title": title})
        renamed = await self._store.conversations.rename(context_id, owner, title_of([title], MAX_TITLE))
        if renamed is None:
            raise TaskNotFoundError("the conversation has no tasks", metadata={"contextId": context_id})
        return renamed

    async def put_unlisted_task(
        self, task: Task, owner: str, name: str, *, may_create: bool = True, agent: str = ""
    ) -> bool:
        """Store an ended task without turns, which lists of tasks do not contain.

        The task replaces the caller's unlisted task with the same name. Of concurrent calls, the last one takes effect.

        Args:
            task: The task.
            owner: The caller.
            name: The name, used instead of the id of ``task``.
            may_create: See `Store.put_unlisted_task`.
            agent: The name of the agent; see `CallContext`.

        Returns:
            Whether the task was stored; see `Store.put_unlisted_task`.

        Raises:
            BlockedMessageError: An input filter blocks the metadata of the task.
            InternalError: An input filter failed.
            UnknownAgentError: There is no such agent.
            StoreError: The task cannot be stored.
        """
        await self._agents.check(agent, (), task.metadata)
        task = task.model_copy(update={"id": id_of_named(self._store.keys, name, owner)})
        return await self._store.put_unlisted_task(task, owner, may_create=may_create)

    async def add_messages(
        self, task: Task, messages: Sequence[Message], owner: str, agent: str = ""
    ) -> None:
        """Add messages to a conversation, as a new ended task without turns. Lists of tasks do not contain this task.

        Args:
            task: The task.
            messages: The messages in chronological order.
            owner: The caller.
            agent: The name of the agent; see `CallContext`.

        Raises:
            BlockedMessageError: An input filter blocks a message or the metadata of the task.
            ContentTypeNotSupportedError: The agent does not accept the media type of a message.
            InternalError: An input filter failed, or the server is stopping.
            UnknownAgentError: There is no such agent.
            StoreError: The messages cannot be stored.
        """
        await self._agents.check(agent, messages, task.metadata)
        ids = {"context_id": task.context_id, "task_id": task.id}
        active = ActiveTask(TaskRecord(task), owner, TaskLog())
        event, snapshot = active.record.begin()
        write = TaskWrite(
            task.id,
            owner,
            task.context_id,
            (event,),
            snapshot,
            [message.model_copy(update=ids) for message in messages],
            task.status.timestamp,
            is_listed=False,
        )

        def publish(events: Sequence[Event]) -> None:
            active.log.publish(events)
            self._turns.end_log(active)

        async with self._assignment_lock(owner, root_of(task.context_id)):
            self._tasks.add(active)
            self._writer.add_write(write, publish, partial(self._turns.fail, active))
            await self._tasks.wait_until_persisted(active, event.number)

    async def replace_message(
        self, context_id: str, current: Message, message: Message | None, owner: str
    ) -> bool:
        """Replace or delete a message of a conversation, but not in the history of its task.

        Args:
            context_id: Id of the conversation.
            current: The message to replace.
            message: The new message; None to delete the message.
            owner: The caller.

        Returns:
            False if another request has changed the message.

        Raises:
            StoreError: The store is not available.
        """
        is_replaced = await self._store.replace_message(context_id, owner, current, message)
        await self._store.purge()
        return is_replaced
