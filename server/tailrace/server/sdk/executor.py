"""An agent executor of the official SDK that runs a handler or a model.

::

    executor = AgentExecutor(AgentHandler(Agent("openai:gpt-5-mini")))
    handler = DefaultRequestHandler(agent_executor=executor, task_store=…, agent_card=…)

The server of the SDK stores and streams the tasks, and restricts access to them.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Self

import anyio
import anyio.lowlevel
from a2a.server.agent_execution import AgentExecutor as SdkAgentExecutor
from a2a.server.agent_execution import RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events import EventQueue
from a2a.types import a2a_pb2

from tailrace.server.protocols.a2a.sdk_errors import as_sdk_error
from tailrace.server.protocols.a2a.sdk_events import to_sdk_event
from tailrace.server.protocols.a2a.sdk_types import from_sdk, to_sdk
from tailrace.server.runtime.active_task import ends_turn
from tailrace.server.runtime.caller import Caller
from tailrace.server.runtime.caller_message_checks import check_file_urls
from tailrace.server.runtime.external_ids import ExternalIds
from tailrace.server.runtime.handlers import (
    ClosingUpdates,
    FunctionHandler,
    Handler,
    HandlerFunction,
    Item,
    Turn,
)
from tailrace.server.runtime.messages import (
    check_message,
    check_request,
    complete_rounds,
    messages_from_artifacts,
)
from tailrace.server.runtime.turn_ending import failed_because
from tailrace.server.sdk.conversation_store import Conversations, RecentConversations
from tailrace.server.sdk.request_handler import caller_of
from tailrace.server.settings import FILE_SCHEMES
from tailrace.server.store.secret_keys import SecretKeys
from tailrace.streaming.a2a.errors import InvalidAgentResponseError, InvalidParamsError
from tailrace.streaming.a2a.json_value_counts import cost_of
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Message, Role, Task
from tailrace.streaming.a2a.requests import SendMessageRequest
from tailrace.streaming.a2a.stream_extension import without_extension_metadata
from tailrace.streaming.conversion.message_conversion import to_common_message
from tailrace.streaming.task.task_record import TaskRecord, agent_message
from tailrace.streaming.task.updates import MessageAdded, StatusUpdate, Update
from tailrace.wrappers import History, TailraceError
from tailrace.wrappers.concurrency.worker_thread import json_cost, run_bounded

logger = logging.getLogger("tailrace.server")

_HANDLER_FAILED = "the agent failed; see the log of the server"


class AgentExecutor(SdkAgentExecutor):
    """Runs the requests of the SDK with a handler.

    Args:
        handler: The handler, or a handler function (`FunctionHandler`). `running` starts and stops the handler.
        conversations: Stores the messages of conversations, so that a conversation can have several tasks. For example,
            `tailrace.server.sdk.TaskStore`. None to store them in memory.
        max_history_messages: Maximum number of messages in the history of a turn.
        caller: Returns the caller, who owns the conversation, from the context of the SDK.
        keys: Keys from which the ids for other systems are derived; None for ids that change with every process.
        file_schemes: The allowed schemes of file URLs (see the setting ``file_schemes``).
    """

    def __init__(
        self,
        handler: Handler | HandlerFunction,
        *,
        conversations: Conversations | None = None,
        max_history_messages: int = 1000,
        caller: Callable[[ServerCallContext], Caller] = caller_of,
        keys: SecretKeys | None = None,
        file_schemes: Sequence[str] = FILE_SCHEMES,
    ) -> None:
        self._handler = handler if isinstance(handler, Handler) else FunctionHandler(handler)
        self._conversations = conversations or RecentConversations()
        self._max_history = max_history_messages
        self._caller = caller
        self._external_ids = ExternalIds(keys)
        self._file_schemes = file_schemes
        self._running: dict[str, _Run] = {}

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Run one turn, until the task ends or waits for input.

        A cancellation of this coroutine stops the handler, but does not change the task.

        Raises:
            InvalidParamsError: The message is not valid. The error class is that of the SDK.
        """
        try:
            message, task = _message_and_task(context)
            check_file_urls(message, self._file_schemes)
            message = self._handler.message_to_store(message)
            run = _Run(self._handler, message, task, context, event_queue)
            owner = self._caller(context.call_context).owner
            turn = await self._turn(run, message, task, context, owner)
        except Exception as error:
            raise as_sdk_error(error) from error
        record = run.record
        self._running[record.id] = run
        try:
            messages = await run.run(turn)
        finally:
            del self._running[record.id]
            run.ended.set()
        await self._conversations.remember(record.context_id, owner, record.id, [turn.message, *messages])

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Cancel a task, and wait until the SDK has received its last event."""
        run = self._running.get(context.task_id or "")
        if run is not None:
            run.cancel()
            await run.ended.wait()
        elif context.current_task is not None:
            task = from_sdk(context.current_task, Task)
            if not task.status.state.terminal:
                await _Publisher(TaskRecord(task), event_queue).apply(StatusUpdate(TaskState.CANCELED))

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Self]:
        """Keep the connections and tools of the handler open during the block, for the lifespan of the server."""
        async with self._handler.running():
            yield self

    async def _turn(
        self, run: "_Run", message: Message, task: Task | None, context: RequestContext, owner: str
    ) -> Turn:
        record = run.record
        messages: Sequence[Message] = await self._conversations.load_conversation(
            record.context_id, owner, self._max_history - 1
        )
        if not messages and task is not None:
            # Another process created the task.
            questions = (task.status.message,) if task.status.message is not None else ()
            messages = [item for item in (*task.history, *questions) if item.message_id != message.message_id]
        conversation = (*messages, message)
        configuration = context.configuration
        number = sum(item.role is Role.USER for item in record.history)
        history_cost, options_cost = cost_of(conversation), json_cost(context.metadata)
        return Turn(
            task_id=record.id,
            context_id=record.context_id,
            message=message,
            history=await run_bounded(history_cost, _history_of, conversation),
            caller_options=await run_bounded(
                options_cost,
                check_request,
                SendMessageRequest(message=message, metadata=context.metadata),
            ),
            number=number,
            accepted_output_modes=tuple(configuration.accepted_output_modes) if configuration else (),
            metadata=context.metadata,
            extensions=tuple(sorted(context.requested_extensions)),
            external_context_id=self._external_ids.context_id(owner, record.context_id),
            external_message_id=self._external_ids.message_id(owner, record.id, number),
            cost=history_cost + options_cost,
        )


def _history_of(messages: Iterable[Message]) -> History:
    return History(conversation=complete_rounds(map(to_common_message, messages)))


class _Publisher:
    """Applies updates to the record of a task, and sends the events to the SDK."""

    def __init__(self, record: TaskRecord, queue: EventQueue) -> None:
        self.record = record
        self._queue = queue

    async def submit(self) -> None:
        """Send the task, without an event number."""
        _, task = self.record.begin()
        task = task.model_copy(update={"metadata": without_extension_metadata(task.metadata, "number")})
        await self._queue.enqueue_event(to_sdk(task, a2a_pb2.Task))

    async def apply(self, update: Update) -> None:
        """Apply an update.

        Raises:
            IllegalTransition: See `TaskRecord.apply`.
            InvalidAgentResponseError: See `TaskRecord.apply`.
        """
        await self._queue.enqueue_event(to_sdk_event(self.record.apply(update), numbered=False))

    async def publish_message(self, message: Message) -> None:
        """Send a direct message, without a task."""
        await self._queue.enqueue_event(to_sdk(message, a2a_pb2.Message))


class _Run:
    """A running turn.

    Attributes:
        record: The record of the task.
        ended: An `anyio.Event` that is set when the SDK has received the last update of the turn.
    """

    def __init__(
        self,
        handler: Handler,
        message: Message,
        task: Task | None,
        context: RequestContext,
        queue: EventQueue,
    ) -> None:
        self._handler = handler
        self._continued = task is not None
        if task is None:
            self.record = TaskRecord.create(
                message, task_id=context.task_id or "", context_id=context.context_id or ""
            )
        else:
            self.record = TaskRecord(task)
            self.record.receive(message)
        self._publisher = _Publisher(self.record, queue)
        self._has_begun = False
        self._scope = anyio.CancelScope()
        self._ending: StatusUpdate | None = None
        self._messages: list[Message] = []
        self.ended = anyio.Event()

    def cancel(self) -> None:
        """Stop the turn, and end the task as canceled."""
        self._ending = StatusUpdate(TaskState.CANCELED)
        self._scope.cancel()

    async def run(self, turn: Turn) -> Sequence[Message]:
        """Run the handler until the end of its turn.

        Returns:
            The messages of the agent.
        """
        ending: StatusUpdate | Message = StatusUpdate(TaskState.COMPLETED)
        try:
            with self._scope:
                if self._continued or not self._handler.replies_directly:
                    await self._begin()
                async with ClosingUpdates(self._handler.run(turn)) as updates:
                    ending = await self._drive(updates) or ending
        except TailraceError as error:
            ending = StatusUpdate(TaskState.FAILED, agent_message(str(error)))
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is None or current.cancelling():
                raise  # the server cancels this turn
            logger.exception(
                "the handler of task %s raised CancelledError without a cancellation", self.record.id
            )
            ending = failed_because(_HANDLER_FAILED)
        except Exception:
            logger.exception("the handler of task %s failed", self.record.id)
            ending = failed_because(_HANDLER_FAILED)
        if isinstance(ending, Message):
            await self._publisher.publish_message(ending)
            return (ending,)
        if not self._has_begun:
            await self._begin()
        return await self._end(self._ending or ending)

    async def _begin(self) -> None:
        self._has_begun = True
        if self._continued:
            await self._publisher.apply(StatusUpdate(TaskState.WORKING))
        else:
            await self._publisher.submit()

    async def _drive(self, updates: AsyncIterator[Item]) -> StatusUpdate | Message | None:
        """Publish the updates of a turn, and return its last status or direct message, if any."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        async for item in updates:
            if self._scope.cancel_called:
                return None  # the handler suppressed the cancellation; ignore its updates
            if isinstance(item, Message):
                if self._has_begun:
                    raise InvalidAgentResponseError(
                        "a handler may yield a direct message only as its first item"
                    )
                ids = {"context_id": self.record.context_id, "task_id": ""}
                return item.model_copy(update=ids)
            if not self._has_begun:
                await self._begin()
            if isinstance(item, MessageAdded):
                self._add_message(item.message)
                continue
            if isinstance(item, StatusUpdate) and ends_turn(item.state):
                return item
            if not self._changes_nothing(item):
                await self._publisher.apply(item)
        return None

    def _add_message(self, message: Message) -> None:
        """Add a message to the conversation. It replaces the content of the artifacts so far."""
        ids = {"context_id": self.record.context_id, "task_id": self.record.id}
        self._messages.append(message.model_copy(update=ids))
        self.record.pop_changed_artifacts()

    def _changes_nothing(self, item: Update) -> bool:
        return (
            isinstance(item, StatusUpdate)
            and item.state is self.record.state
            and item.message is None
            and not item.metadata
        )

    async def _end(self, ending: StatusUpdate) -> Sequence[Message]:
        """End the turn with the last update of the handler. If it is invalid, fail the task."""
        for update in self.record.closing_updates():
            await self._publisher.apply(update)
        message = messages_from_artifacts(self.record.pop_changed_artifacts(), self.record)
        try:
            await self._publisher.apply(ending)
        except Exception:
            logger.exception("the last update of task %s is invalid", self.record.id)
            if not self.record.state.terminal:
                await self._publisher.apply(failed_because(_HANDLER_FAILED))
        return self._messages if message is None else (*self._messages, message)


def _message_and_task(context: RequestContext) -> tuple[Message, Task | None]:
    """Return the message of a request, and the task that it continues.

    Raises:
        InvalidParamsError: The message is not valid.
    """
    if context.message is None:
        raise InvalidParamsError("a message is required")
    message = from_sdk(context.message, Message)
    check_message(message)
    task = from_sdk(context.current_task, Task) if context.current_task is not None else None
    return message, task
