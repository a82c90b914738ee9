"""Reads the tasks and conversations of callers."""

from tailrace.server.runtime.active_task import ActiveTask, Subscription
from tailrace.server.runtime.messages import in_turns
from tailrace.server.runtime.task_history import MAX_HISTORY, with_agent_messages
from tailrace.server.runtime.task_registry import TaskRegistry
from tailrace.server.store.completion_store import CompletionStore
from tailrace.server.store.conversation_list import ConversationList
from tailrace.server.store.store import ListPosition, SendKey, Store, TaskFilter, TaskPage
from tailrace.streaming.a2a.errors import InvalidParamsError, TaskNotFoundError, UnsupportedOperationError
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.json_value_counts import cost_of, cost_of_task
from tailrace.streaming.a2a.models import Message, StreamResponse, Task
from tailrace.streaming.a2a.stream_extension import extension_metadata
from tailrace.wrappers.concurrency.worker_thread import run_bounded


class TaskAccess:
    """Reads the tasks of callers.

    The argument ``owner`` is the caller. For tasks of other callers, the methods raise `TaskNotFoundError`. Methods that read the
    store raise `StoreError` if it is not available.

    Args:
        max_lag: The number of events by which a subscriber may lag before it receives a snapshot.
    """

    def __init__(self, store: Store, tasks: TaskRegistry, max_lag: int) -> None:
        self._store = store
        self._tasks = tasks
        self._max_lag = max_lag

    @property
    def completions(self) -> CompletionStore:
        """The stored chat completions."""
        return self._store.completions

    @property
    def conversations(self) -> ConversationList:
        """The lists of conversations."""
        return self._store.conversations

    async def get_task(self, task_id: str, owner: str = "", history_length: int | None = None) -> Task:
        """Return the persisted state of a task. The history includes the agent's messages.

        Args:
            task_id: The id of the task.
            owner: The caller.
            history_length: The number of newest messages in the history; None for `MAX_HISTORY`.

        Raises:
            TaskNotFoundError: The caller has no such task.
            StoreError: The store cannot be read.
        """
        return await self.read(await self._tasks.find(task_id, owner), history_length)

    async def snapshot(self, task_id: str, owner: str = "") -> Task:
        """Return a task like `get_task`, but with a history of only the caller's messages and the status messages."""
        return await self._tasks.persisted_snapshot(await self._tasks.find(task_id, owner))

    async def read(self, active: ActiveTask, history_length: int | None = None) -> Task:
        """Return a task like `get_task`."""
        if history_length == 0:
            return await self._tasks.persisted_snapshot(active, 0)
        task = await self._tasks.persisted_snapshot(active)
        recorded = await self._store.load_task_messages(task.id, active.owner, MAX_HISTORY)
        cost = cost_of_task(task) + cost_of(recorded)
        return await run_bounded(cost, with_agent_messages, task, recorded, history_length)

    async def list_tasks(
        self, task_filter: TaskFilter, owner: str = "", *, after: ListPosition | None = None, limit: int
    ) -> TaskPage:
        """Return the persisted state of the caller's tasks, ordered by the time of their status, newest first.

        Args:
            task_filter: The filter.
            owner: The caller.
            after: The position after which the page begins; None for the first page.
            limit: Maximum number of tasks. The page has fewer tasks if they are large.
        """
        page = await self._store.list_tasks(owner, task_filter, after=after, limit=limit)
        tasks = [await self._tasks.current(task, owner) for _, task in page.tasks]
        return TaskPage(tasks, page.total, page.tasks[-1][0] if page.has_more else None)

    async def subscribe(
        self, task_id: str, owner: str = "", after: int | None = None, *, repeat_finished: bool = False
    ) -> Subscription:
        """Subscribe to a task.

        Args:
            task_id: The id of the task.
            owner: The caller.
            after: The number of the last event that the subscriber has received. The subscription returns each later event once,
                even if the task has ended. If None, the subscription begins with a snapshot of the task.
            repeat_finished: True to return a snapshot of an ended task instead of raising an error.

        Raises:
            TaskNotFoundError: The caller has no such task.
            UnsupportedOperationError: The task has ended, ``after`` is None, and ``repeat_finished`` is False (A2A 1.0,
                section 3.1.6).
            InvalidParamsError: The task has no event with the number ``after``.
        """
        active = await self._tasks.find(task_id, owner)
        if after is not None:
            if not 0 <= after <= active.record.number:
                raise InvalidParamsError(
                    f"the task has no event {after}; its last event is {active.record.number}"
                )
            return self.subscription(active, after)
        if active.record.state.terminal and not repeat_finished:
            raise UnsupportedOperationError(f"the task has ended ({active.record.state})")
        number, state = active.record.number, active.record.state
        first = Event(number, await encode_task(await self.read(active)), state)
        return self.subscription(active, number, first)

    def subscription(self, active: ActiveTask, after: int, first: Event | None = None) -> Subscription:
        """Return a subscription to the events of a task after number ``after``. It begins with ``first``, if given."""
        return Subscription(active, after, first, tasks=self._tasks, max_lag=self._max_lag)

    async def conversation(self, context_id: str, owner: str, limit: int) -> list[Message]:
        """Return the newest messages of a conversation, oldest first; none if the owner has no such conversation."""
        messages = await self._store.load_conversation(context_id, owner, limit)
        return await run_bounded(cost_of(messages), in_turns, messages)

    async def progress_of(self, task_id: str, owner: str = "") -> tuple[str, int, bool]:
        """Return the id of a task, the number of its last persisted event, and whether this event ended the task.

        Raises:
            TaskNotFoundError: The caller has no such task.
        """
        active = await self._tasks.find(task_id, owner)
        number = active.log.number
        return active.record.id, number, active.record.state.terminal and active.record.number == number

    async def context_of(self, task_id: str, owner: str = "") -> str:
        """Return the id of the conversation of a task.

        Raises:
            TaskNotFoundError: The caller has no such task.
        """
        return (await self._tasks.find(task_id, owner)).record.context_id

    async def dialect_of(self, task_id: str, owner: str) -> str:
        """Return the protocol version in which a task was created, if callers of that version choose task ids.

        The version is empty for all other tasks, and if the caller has no such task.
        """
        try:
            active = await self._tasks.find(task_id, owner)
        except TaskNotFoundError:
            return ""
        return str(extension_metadata(active.record.snapshot(0).metadata).get("dialect", ""))

    async def sent_as(self, send_key: str, fingerprint: str, owner: str = "") -> Subscription | None:
        """Subscribe to the task of an earlier message with the same idempotency key.

        Args:
            send_key: The idempotency key of the message.
            fingerprint: The fingerprint of the request. It must equal that of the first request with the key.
            owner: The caller.

        Returns:
            A subscription that begins with the task and has `Subscription.repeated_key`; None if no message with this key was
            accepted.

        Raises:
            InvalidParamsError: The key was used for another message.
            StoreError: The store cannot be read.
        """
        known = await self.load_send_key(send_key, fingerprint, owner)
        if known is None:
            return None
        subscription = await self.subscribe(known.task_id, owner, repeat_finished=True)
        subscription.repeated_key = known
        return subscription

    async def load_send_key(self, send_key: str, fingerprint: str, owner: str = "") -> SendKey | None:
        """Return the record of an earlier message with the same idempotency key, or None. See `sent_as` for the arguments.

        Raises:
            InvalidParamsError: The key was used for another message.
            StoreError: The store cannot be read.
        """
        known = await self._store.load_send_key(owner, send_key)
        if known is not None and known.fingerprint != fingerprint:
            raise InvalidParamsError("the idempotency key was used for another message; choose a new one")
        return known


async def encode_task(task: Task) -> bytes:
    """Encode a task as the body of an event."""
    return await run_bounded(cost_of_task(task), StreamResponse(task=task).to_json)
