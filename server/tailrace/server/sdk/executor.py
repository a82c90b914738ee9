"""A handler of ours, or a model, as the agent of a server that uses the official SDK.

::

    executor = AgentExecutor(AgentHandler(Agent("openai:gpt-5-mini")))
    handler = DefaultRequestHandler(agent_executor=executor, task_store=…, agent_card=…)

Here the SDK's server runs the tasks: it keeps them, streams them, and says who may see them. The handler's updates
reach it as the SDK wants them: the task first, then artifacts and statuses in order, the last one terminal or waiting
for the caller, with every artifact completed before.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
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
from tailrace.server.runtime.caller_content import check_file_urls
from tailrace.server.runtime.external_ids import ExternalIds
from tailrace.server.runtime.handlers import FunctionHandler, Handler, HandlerFunction, Item, Turn, closing
from tailrace.server.runtime.messages import (
    check_message,
    check_request,
    messages_from_artifacts,
    whole_rounds,
)
from tailrace.server.runtime.operations import Caller
from tailrace.server.runtime.turns import failed_because
from tailrace.server.sdk.conversations import Conversations, RecentConversations
from tailrace.server.sdk.request_handler import caller_of
from tailrace.server.settings import FILE_SCHEMES
from tailrace.server.store.secret_keys import SecretKeys
from tailrace.streaming.a2a.errors import InvalidAgentResponseError, InvalidParamsError
from tailrace.streaming.a2a.extension import without_extension_facts
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Message, Role, Task
from tailrace.streaming.a2a.requests import SendMessageRequest
from tailrace.streaming.conversion.conversation import to_common_message
from tailrace.streaming.task.task import TaskRecord, agent_message
from tailrace.streaming.task.updates import MessageAdded, StatusUpdate, Update
from tailrace.wrappers import History, TailraceError

logger = logging.getLogger("tailrace.server")

_HANDLER_FAILED = "the agent failed; its log says why"


class AgentExecutor(SdkAgentExecutor):
    """Answers the SDK's requests by a handler.

    Args:
        handler: Does the work; held running by `running`.
        conversations: Keeps what was said, so that a conversation goes on over several tasks; in memory when None.
            A `tailrace.server.sdk.TaskStore` keeps it with the tasks.
        max_history_messages: How many messages of a conversation a turn is given at most.
        caller: Who asks, of the SDK's context: whose conversation it is.
        keys: Of the installation, for the identifiers that the handler gives to other systems. With None they change
            with every process.
        file_schemes: Schemes of file URLs that callers may use, as the setting of that name.
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
        """Run one turn; the task is over or waits for its caller when this returns.

        Cancelling this ends the handler, and the task is left as it is; `cancel` is what ends it as canceled.

        Raises:
            InvalidParamsError: The SDK's own: the message cannot be handed to an agent.
        """
        try:
            message, task = _message_and_task(context)
            check_file_urls(message, self._file_schemes)
            message = self._handler.received(message)
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
            run.over.set()
        await self._conversations.remember(record.context_id, owner, record.id, [turn.message, *messages])

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Stop the work on a task and end it CANCELED; returns when the SDK has its last event."""
        run = self._running.get(context.task_id or "")
        if run is not None:
            run.cancel()
            await run.over.wait()
        elif context.current_task is not None:
            task = from_sdk(context.current_task, Task)
            if not task.status.state.terminal:
                await _Publisher(TaskRecord(task), event_queue).apply(StatusUpdate(TaskState.CANCELED))

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Self]:
        """Hold what the handler needs (connections, tools) as long as the server runs: for its lifespan."""
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
            # For a task from before the start of this process only its own history is known.
            questions = (task.status.message,) if task.status.message is not None else ()
            messages = [item for item in (*task.history, *questions) if item.message_id != message.message_id]
        configuration = context.configuration
        number = sum(item.role is Role.USER for item in record.history)
        return Turn(
            task_id=record.id,
            context_id=record.context_id,
            message=message,
            history=History(conversation=whole_rounds(map(to_common_message, (*messages, message)))),
            facts=check_request(SendMessageRequest(message=message, metadata=context.metadata)),
            number=number,
            accepted_output_modes=tuple(configuration.accepted_output_modes) if configuration else (),
            metadata=context.metadata,
            extensions=tuple(sorted(context.requested_extensions)),
            external_context_id=self._external_ids.context_id(owner, record.context_id),
            external_message_id=self._external_ids.message_id(owner, record.id, number),
        )


class _Publisher:
    """Carries out updates on a task's record, and hands each one to the SDK as it happens."""

    def __init__(self, record: TaskRecord, queue: EventQueue) -> None:
        self.record = record
        self._queue = queue

    async def submit(self) -> None:
        """Make the task known, without a number: numbers are those of our own log, which this server has not."""
        self.record.submitted()
        task = self.record.snapshot()
        task = task.model_copy(update={"metadata": without_extension_facts(task.metadata, "number")})
        await self._queue.enqueue_event(to_sdk(task, a2a_pb2.Task))

    async def apply(self, update: Update) -> None:
        """Carry out one update.

        Raises:
            IllegalTransition: As `TaskRecord.apply`.
            InvalidAgentResponseError: As `TaskRecord.apply`.
        """
        await self._queue.enqueue_event(to_sdk_event(self.record.apply(update), numbered=False))

    async def publish_message(self, message: Message) -> None:
        """Answer without a task."""
        await self._queue.enqueue_event(to_sdk(message, a2a_pb2.Message))


class _Run:
    """One turn under way.

    Attributes:
        record: The task.
        over: Set when the turn has come to its end, and the SDK has its last event.
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
        self.over = anyio.Event()

    def cancel(self) -> None:
        """End the turn, and the task as canceled."""
        self._ending = StatusUpdate(TaskState.CANCELED)
        self._scope.cancel()

    async def run(self, turn: Turn) -> Sequence[Message]:
        """Drive the handler to the end of its turn.

        Returns:
            What the agent said.
        """
        ending: StatusUpdate | Message = StatusUpdate(TaskState.COMPLETED)
        try:
            with self._scope:
                if self._continued or not self._handler.replies_directly:
                    await self._begin()
                async with closing(self._handler.run(turn)) as updates:
                    ending = await self._drive(updates) or ending
        except TailraceError as error:
            ending = StatusUpdate(TaskState.FAILED, agent_message(str(error)))
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is None or current.cancelling():
                raise  # the server ends this turn
            logger.exception("the handler of task %s let a cancellation out", self.record.id)
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
        """Publish every update until the one that ends the turn, or the direct answer; None when neither came."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        async for item in updates:
            if self._scope.cancel_called:
                return None  # a handler that does not let itself be cancelled is not listened to any more
            if isinstance(item, Message):
                if self._has_begun:
                    raise InvalidAgentResponseError(
                        "a direct message is possible only as the first thing a handler yields"
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
        """Record a message in the conversation; it covers the artifacts so far."""
        ids = {"context_id": self.record.context_id, "task_id": self.record.id}
        self._messages.append(message.model_copy(update=ids))
        self.record.take_changed()

    def _changes_nothing(self, item: Update) -> bool:
        return (
            isinstance(item, StatusUpdate)
            and item.state is self.record.state
            and item.message is None
            and not item.metadata
        )

    async def _end(self, ending: StatusUpdate) -> Sequence[Message]:
        """End the turn with an update of the handler, which may be invalid."""
        for update in self.record.closing_updates():
            await self._publisher.apply(update)
        message = messages_from_artifacts(self.record.take_changed(), self.record)
        try:
            await self._publisher.apply(ending)
        except Exception:
            logger.exception("the last update of task %s cannot be carried out", self.record.id)
            if not self.record.state.terminal:
                await self._publisher.apply(failed_because(_HANDLER_FAILED))
        return self._messages if message is None else (*self._messages, message)


def _message_and_task(context: RequestContext) -> tuple[Message, Task | None]:
    """The message of a request, and the task that it goes on with.

    Raises:
        InvalidParamsError: It is no message that an agent can be handed.
    """
    if context.message is None:
        raise InvalidParamsError("a message is required")
    message = from_sdk(context.message, Message)
    check_message(message)
    task = from_sdk(context.current_task, Task) if context.current_task is not None else None
    return message, task
