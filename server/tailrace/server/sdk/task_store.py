"""A task store of the official SDK that uses the database of tailrace.

::

    tasks = TaskStore("sqlite:///agent.db")
    handler = DefaultRequestHandler(agent_executor=…, task_store=tasks, agent_card=…)

    async with tasks.running():
        ...  # serve

The SDK saves the complete task with each event. A tailrace server can use the same file after this process has closed it.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Self

import anyio
from a2a.server.context import ServerCallContext
from a2a.server.tasks import TaskStore as SdkTaskStore
from a2a.types import a2a_pb2

from tailrace.server.protocols.a2a.sdk_errors import as_sdk_error, to_sdk_error
from tailrace.server.protocols.a2a.sdk_types import from_sdk, to_sdk
from tailrace.server.runtime.caller import Caller
from tailrace.server.runtime.page_tokens import page_token, read_page_token
from tailrace.server.sdk.request_handler import caller_of
from tailrace.server.store.store import Store, TaskFilter, TaskWrite
from tailrace.server.store.writer import GroupWriter
from tailrace.streaming.a2a.errors import (
    InvalidAgentResponseError,
    InvalidParamsError,
    TaskNotFoundError,
)
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Message, Task, TaskStatus
from tailrace.streaming.a2a.requests import ListTasksRequest
from tailrace.streaming.conversion.message_conversion import is_callers
from tailrace.streaming.task.task_record import TaskRecord, agent_message
from tailrace.wrappers import StoreError


class TaskStore(SdkTaskStore):
    """Stores the tasks of the SDK, and the conversations of `tailrace.server.sdk.AgentExecutor`.

    Each method accesses only the tasks of the caller. The methods raise errors of the SDK: InternalError if the database fails,
    and InvalidAgentResponseError for a task that violates the protocol.

    Args:
        store: The store or its URL. `running` opens and closes the store.
        caller: Returns the owner of the tasks from the context of the SDK.
    """

    def __init__(
        self, store: Store | str, *, caller: Callable[[ServerCallContext], Caller] = caller_of
    ) -> None:
        self._store = Store(store) if isinstance(store, str) else store
        self._writer = GroupWriter(self._store)
        self._caller = caller

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Self]:
        """Open the database during the block, and fail the tasks that a crash interrupted.

        Raises:
            StoreError: The database cannot be opened, or is in use by another process.
        """
        await self._store.open()
        try:
            async with anyio.create_task_group() as writing:
                writing.start_soon(self._writer.run)
                await self._end_interrupted_tasks()
                try:
                    yield self
                finally:
                    self._writer.close()
        finally:
            with anyio.CancelScope(shield=True):
                await self._store.close()

    async def save(self, task: a2a_pb2.Task, context: ServerCallContext | None = None) -> None:
        """Store a task, and replace its earlier state. The task is durable when this method returns."""
        try:
            model = from_sdk(task, Task)
        except InvalidParamsError as error:
            raise to_sdk_error(InvalidAgentResponseError(f"task {task.id}: {error.detail}")) from None
        received = next(filter(is_callers, model.history), None)
        await self._keep(
            TaskWrite(model.id, self._owner(context), model.context_id, (), model, received=received)
        )

    async def create(self, task: a2a_pb2.Task, context: ServerCallContext | None = None) -> a2a_pb2.Task:
        """Store a new task.

        Raises:
            InvalidParamsError: A task with this id exists. The error class is that of the SDK.
        """
        if await self._store.task_id_exists(task.id):
            raise to_sdk_error(InvalidParamsError("a task with this id already exists"))
        await self.save(task, context)
        return task

    async def update(self, task: a2a_pb2.Task, context: ServerCallContext | None = None) -> a2a_pb2.Task:
        """Store a task that already exists.

        Raises:
            TaskNotFoundError: The caller has no such task. The error class is that of the SDK.
        """
        if await self.get(task.id, context) is None:
            raise to_sdk_error(TaskNotFoundError(metadata={"taskId": task.id}))
        await self.save(task, context)
        return task

    async def get(self, task_id: str, context: ServerCallContext | None = None) -> a2a_pb2.Task | None:
        """Return a task; None if the caller has no task with this id."""
        try:
            stored = await self._store.load_task(task_id, self._owner(context))
            return to_sdk(stored.task, a2a_pb2.Task) if stored is not None else None
        except Exception as error:
            raise as_sdk_error(error) from error

    async def list(
        self, params: a2a_pb2.ListTasksRequest | None = None, context: ServerCallContext | None = None
    ) -> a2a_pb2.ListTasksResponse:
        """Return a page of the matching tasks of the caller. The newest status is first.

        Raises:
            InvalidParamsError: A filter or the page token is not valid. The error class is that of the SDK.
        """
        try:
            request = from_sdk(params, ListTasksRequest) if params is not None else ListTasksRequest()
            task_filter = TaskFilter(request.context_id, request.status, request.status_timestamp_after)
            after = read_page_token(request.page_token, task_filter) if request.page_token else None
            page = await self._store.list_tasks(
                self._owner(context), task_filter, after=after, limit=request.page_size
            )
            return a2a_pb2.ListTasksResponse(
                tasks=[to_sdk(task, a2a_pb2.Task) for _, task in page.tasks],
                next_page_token=page_token(page.tasks[-1][0], task_filter) if page.has_more else "",
                page_size=len(page.tasks),
                total_size=page.total,
            )
        except Exception as error:
            raise as_sdk_error(error) from error

    async def delete(  # pyright: ignore[reportIncompatibleMethodOverride] — the SDK returns None, older versions a bool
        self, task_id: str, context: ServerCallContext | None = None
    ) -> bool:
        """Delete a task with its events and messages. Return False if the caller has no task with this id."""
        try:
            return await self._store.delete_task(task_id, self._owner(context))
        except StoreError as error:
            raise as_sdk_error(error) from error

    # --- conversations ------------------------------------------------------------------------------------------

    async def load_conversation(self, context_id: str, owner: str, limit: int) -> Sequence[Message]:
        """Return the newest messages of a conversation, oldest first."""
        return await self._store.load_conversation(context_id, owner, limit)

    async def remember(self, context_id: str, owner: str, task_id: str, messages: Sequence[Message]) -> None:
        """Add messages to a conversation. The messages are durable when this method returns."""
        await self._keep(TaskWrite(task_id, owner, context_id, (), messages=messages))

    # --- storage ------------------------------------------------------------------------------------------------

    async def _keep(self, write: TaskWrite) -> None:
        done = anyio.Event()
        failure: StoreError | None = None

        def fail(error: StoreError) -> None:
            nonlocal failure
            failure = error
            done.set()

        self._writer.add_write(write, lambda _events: done.set(), fail)
        await done.wait()
        if failure is not None:
            raise as_sdk_error(failure) from failure

    async def _end_interrupted_tasks(self) -> None:
        """Fail the tasks that were running when the process ended."""
        for task_id, owner in await self._store.load_unfinished():
            stored = await self._store.load_task(task_id, owner)
            if stored is None:
                continue
            record = TaskRecord(stored.task, stored.number)
            while events := await self._store.load_events(task_id, record.number):
                for event in events:
                    record.replay(event)
            message = agent_message("the server stopped unexpectedly before the response was complete")
            status = TaskStatus(state=TaskState.FAILED, message=message, timestamp=datetime.now(UTC))
            task = record.snapshot().model_copy(update={"status": status})
            await self._keep(TaskWrite(task_id, owner, record.context_id, (), task))

    def _owner(self, context: ServerCallContext | None) -> str:
        return self._caller(context or ServerCallContext()).owner
