"""The operations of A2A (SendMessage, GetTask, …), which all protocols and A2A versions share.

Other code authenticates the caller and parses the request. `Operations` checks the request against the agent's capabilities and
the limits, calls the engine, waits for the response, and shortens the history.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import cast

import anyio

from tailrace.server.runtime.active_task import CallContext, Subscription
from tailrace.server.runtime.agent_capabilities import Capabilities
from tailrace.server.runtime.approvals import Approvers
from tailrace.server.runtime.auth_error import AuthError
from tailrace.server.runtime.caller import Caller
from tailrace.server.runtime.conversation_operations import list_conversations, rename_conversation
from tailrace.server.runtime.engine import Engine
from tailrace.server.runtime.event_stream import EventStream, newest_messages
from tailrace.server.runtime.identifier_bounds import check_id
from tailrace.server.runtime.limits import Limits, Permit
from tailrace.server.runtime.observer import NO_OBSERVER, Observer
from tailrace.server.runtime.page_tokens import page_token, read_page_token
from tailrace.server.runtime.stream_registry import OpenStreams
from tailrace.server.runtime.usage_ledger import DirectCall
from tailrace.server.runtime.waiting_turns import AcceptedMessages
from tailrace.server.runtime.webhooks.delivery import PushNotifier
from tailrace.server.store.completion_store import CompletionStore
from tailrace.server.store.store import SendKey, TaskFilter
from tailrace.streaming.a2a.errors import (
    ExtendedAgentCardNotConfiguredError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.models import A2AModel, AgentCard, Message, StreamResponse, Task
from tailrace.streaming.a2a.requests import (
    CancelTaskRequest,
    Conversation,
    DeleteConversationRequest,
    DeleteTaskPushNotificationConfigRequest,
    DeleteTaskRequest,
    GetConversationRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListConversationsRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    ListTasksResponse,
    RenameConversationRequest,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
    TaskWithArtifacts,
)
from tailrace.streaming.a2a.stream_extension import extension_metadata
from tailrace.streaming.a2a.v0_3 import DEFAULT_CONFIG_ID
from tailrace.streaming.a2a.version_codec import Operation
from tailrace.wrappers.concurrency.worker_thread import json_text_cost, run_bounded
from tailrace.wrappers.model import Model

MAX_CONVERSATION = 1000
"""Maximum number of messages of a conversation in one response."""

ExtendedCard = Callable[[Caller], AgentCard | None]
"""A function that returns the extended card of an authenticated caller; None if the caller has none."""


class Operations:
    """Executes the operations of A2A for a caller.

    Args:
        push: Delivers push notifications; None if the server does not support them.
        capabilities: The agent's capabilities and requirements; None for the defaults of `Capabilities`.
        extended_card: Returns the extended card of a caller; None if the agent has no extended card.
        challenge: The value of ``WWW-Authenticate`` for an unauthenticated request of the extended card; empty if the server has
            no authentication.
        limits: The limits on streams, tasks and messages; None for no limits.
        approvers: Returns whether a caller may approve tool calls of its tasks.
        observer: Notified when a stream begins.
        streams: The open SSE streams of the server; None for a new registry.
    """

    def __init__(
        self,
        engine: Engine,
        push: PushNotifier | None = None,
        *,
        capabilities: Capabilities | None = None,
        extended_card: ExtendedCard | None = None,
        challenge: str = "",
        limits: Limits | None = None,
        approvers: Approvers = lambda _: True,
        observer: Observer = NO_OBSERVER,
        streams: OpenStreams | None = None,
    ) -> None:
        self._observer = observer
        self._approvers = approvers
        self.limits = limits or Limits()
        self.capabilities = capabilities or Capabilities()
        self.streams = streams or OpenStreams()
        self._engine = engine
        self._push = push
        self._extended_card = extended_card
        self._challenge = challenge

    @property
    def stopping(self) -> anyio.Event:
        """Set when the server begins to stop. Each stream then ends as soon as no turn of its task is running."""
        return self._engine.stop_requested

    @property
    def completions(self) -> CompletionStore:
        """The stored chat completions."""
        return self._engine.completions

    @property
    def has_extended_card(self) -> bool:
        """Return whether the agent has an extended card."""
        return self._extended_card is not None

    async def dialect_of(self, task_id: str, caller: Caller) -> str:
        """Return the protocol version in which a task was created (see `Engine.dialect_of`)."""
        return await self._engine.dialect_of(task_id, caller.owner)

    def capabilities_for(self, caller: Caller) -> Capabilities:
        """Return the capabilities of the agent that receives the messages of a caller. By default, there is only one agent."""
        return self.capabilities

    async def execute(self, operation: Operation, request: A2AModel, caller: Caller) -> A2AModel | None:
        """Execute an operation that does not stream.

        Returns:
            The result in A2A 1.0; None for a deletion.

        Raises:
            A2AError: The operation failed.
            AuthError: The operation requires an authenticated caller.
            StoreError: The store is not available.
        """
        self.capabilities_for(caller).check_extensions(caller.extensions)
        if operation is Operation.SEND_MESSAGE:
            return await self._send(cast("SendMessageRequest", request), caller)
        if operation is Operation.GET_TASK:
            get = cast("GetTaskRequest", request)
            return await self._engine.get_task(get.id, caller.owner, get.history_length)
        if operation is Operation.LIST_TASKS:
            return await self._list(cast("ListTasksRequest", request), caller)
        if operation is Operation.CANCEL_TASK:
            return await self._engine.cancel_task(cast("CancelTaskRequest", request).id, caller.owner)
        if operation is Operation.GET_EXTENDED_CARD:
            return self._get_extended_card(caller)
        if operation is Operation.GET_CONVERSATION:
            wanted = cast("GetConversationRequest", request)
            return await self._get_conversation(wanted, caller)
        if operation is Operation.DELETE_TASK:
            return await self.delete_task(cast("DeleteTaskRequest", request).id, caller)
        if operation is Operation.DELETE_CONVERSATION:
            return await self.delete_conversation(
                cast("DeleteConversationRequest", request).context_id, caller
            )
        if operation is Operation.LIST_CONVERSATIONS:
            return await list_conversations(self._engine, cast("ListConversationsRequest", request), caller)
        if operation is Operation.RENAME_CONVERSATION:
            return await rename_conversation(self._engine, cast("RenameConversationRequest", request), caller)
        return await self._execute_push(operation, request, caller)

    async def answer(self, operation: Operation, request: A2AModel, caller: Caller) -> A2AModel | None:
        """Deprecated name of `execute`; to be removed in 0.3."""
        return await self.execute(operation, request, caller)

    async def stream(
        self,
        operation: Operation,
        request: A2AModel,
        caller: Caller,
        *,
        after: int | None = None,
        repeat_finished: bool = False,
        preceding: Sequence[Message] = (),
    ) -> EventStream:
        """Execute an operation that streams.

        Args:
            operation: SendStreamingMessage or SubscribeToTask.
            request: The request of the operation.
            caller: The caller.
            after: For SubscribeToTask, the number of the last event that the client has received; None to begin with the task.
            repeat_finished: For SubscribeToTask, True to return the snapshot of an ended task instead of raising an error.
            preceding: For SendStreamingMessage, earlier messages of a new conversation (see `Engine.start`).

        Raises:
            A2AError: The operation failed before the first event.
            StoreError: The store is not available.
        """
        self.capabilities_for(caller).check_extensions(caller.extensions)
        # The permit is acquired before any other step, so that a rejected request has no effect.
        permit = self.limits.streams.acquire(caller.owner)
        try:
            if operation is Operation.SUBSCRIBE_TO_TASK:
                subscribe = cast("SubscribeToTaskRequest", request)
                reader = await self._engine.subscribe(
                    subscribe.id, caller.owner, after, repeat_finished=repeat_finished
                )
                self._observer.streaming("subscription" if after is None else "resume")
                return EventStream(reader, permit=permit)
            send = cast("SendMessageRequest", request)
            return await self._stream_result(send, caller, permit, preceding)
        except BaseException:
            permit.release()
            raise

    async def read_events(self, task_id: str, caller: Caller) -> EventStream:
        """Return all events of a task for a response without streaming, which needs no permit.

        Raises:
            TaskNotFoundError: The caller has no such task.
            StoreError: The store is not available.
        """
        reader = await self._engine.subscribe(task_id, caller.owner, 0)
        return EventStream(reader, permit=Permit.none())

    async def snapshot(self, task_id: str, caller: Caller) -> Task:
        """Return a task (see `Engine.snapshot`)."""
        return await self._engine.snapshot(task_id, caller.owner)

    def direct_call(self, caller: Caller, model: Model) -> AbstractAsyncContextManager[DirectCall]:
        """Record a model call that belongs to no task (see `UsageLedger.direct_call`)."""
        return self._engine.direct_call(caller.owner, model, caller.receiver)

    async def delete_task(self, task_id: str, caller: Caller) -> None:
        """Delete a task (see `Engine.delete_task`)."""
        await self._engine.delete_task(task_id, caller.owner)

    async def put_unlisted_task(
        self, task: Task, caller: Caller, name: str, *, may_create: bool = True
    ) -> bool:
        """Persist a task without turns (see `ConversationEdits.put_unlisted_task`)."""
        agent = caller.receiver
        return await self._engine.edits.put_unlisted_task(
            task, caller.owner, name, may_create=may_create, agent=agent
        )

    async def add_messages(self, task: Task, messages: Sequence[Message], caller: Caller) -> None:
        """Add messages to a conversation (see `ConversationEdits.add_messages`).

        Raises:
            A2AError: A message or one of its files is not accepted.
            StoreError: The store is not available.
        """
        for message in messages:
            self.limits.check_message(message)
        await self._engine.edits.add_messages(task, messages, caller.owner, caller.receiver)

    async def replace_message(
        self, context_id: str, current: Message, message: Message | None, caller: Caller
    ) -> bool:
        """Replace or delete a message of a conversation (see `ConversationEdits.replace_message`)."""
        return await self._engine.edits.replace_message(context_id, current, message, caller.owner)

    async def delete_conversation(self, context_id: str, caller: Caller) -> None:
        """Delete a conversation (see `Engine.delete_conversation`)."""
        await self._engine.delete_conversation(context_id, caller.owner)

    async def has_ended_at(self, task_id: str, caller: Caller, number: int) -> bool:
        """Return whether a task has ended without an event after this number.

        Raises:
            TaskNotFoundError: The caller has no such task.
        """
        _, last, has_ended = await self._engine.progress_of(task_id, caller.owner)
        return has_ended and number >= last

    async def sent_before(self, caller: Caller) -> SendKey | None:
        """Return the task and the turn of an earlier message with the caller's ``send_key``; None if there is none.

        Raises:
            InvalidParamsError: The key was used for another message, or is too long.
            StoreError: The store cannot be read.
        """
        key = _checked_key(caller.send_key)
        return await self._engine.load_send_key(key, caller.fingerprint, caller.owner) if key else None

    async def _stream_result(
        self, send: SendMessageRequest, caller: Caller, permit: Permit, preceding: Sequence[Message]
    ) -> EventStream:
        self._check_message(send, caller)
        for message in preceding:
            self.limits.check_files(message)
        started = await self._start(send, caller, preceding)
        self._observer.streaming("message")
        return EventStream(
            started,
            history_length=send.configuration.history_length,
            until_interrupted=True,
            permit=permit,
        )

    def _check_message(self, send: SendMessageRequest, caller: Caller) -> None:
        self.capabilities_for(caller).check_output_modes(send.configuration.accepted_output_modes)
        self.limits.check_message(send.message)

    def _get_extended_card(self, caller: Caller) -> AgentCard:
        """Return the extended card for this caller (A2A 1.0, section 3.1.11)."""
        if self._extended_card is None:
            raise UnsupportedOperationError("the agent has no extended card")
        if self._challenge and not caller.user:
            raise AuthError("the extended card requires authentication", challenge=self._challenge)
        card = self._extended_card(caller)
        if card is None:
            raise ExtendedAgentCardNotConfiguredError
        return card

    async def _get_conversation(self, wanted: GetConversationRequest, caller: Caller) -> Conversation:
        length = MAX_CONVERSATION if wanted.history_length is None else wanted.history_length
        messages = await self.conversation(wanted.context_id, caller, min(length, MAX_CONVERSATION))
        if wanted.omit_files:
            messages = list(map(_without_files, messages))
        elif wanted.omit_task_files:
            messages = [_without_files(message) if message.task_id else message for message in messages]
        return Conversation(context_id=wanted.context_id, messages=tuple(messages))

    async def conversation(
        self, context_id: str, caller: Caller, limit: int = MAX_CONVERSATION
    ) -> list[Message]:
        """Return the newest messages of a conversation, oldest first; an empty list for an unknown conversation."""
        return await self._engine.conversation(context_id, caller.owner, limit)

    async def accepted_messages(self, context_id: str, caller: Caller, limit: int) -> AcceptedMessages:
        """Return the messages of a conversation (see `Engine.accepted_messages`)."""
        return await self._engine.accepted_messages(context_id, caller.owner, limit)

    def assignment_lock(self, context_id: str, caller: Caller) -> AbstractAsyncContextManager[object]:
        """Return a lock (see `Engine.assignment_lock`).

        Hold the lock until `EventStream.wait_for_start` returns. The message is then accepted.
        """
        return self._engine.assignment_lock(context_id, caller.owner, caller.receiver)

    async def _start(
        self, send: SendMessageRequest, caller: Caller, preceding: Sequence[Message] = ()
    ) -> Subscription | Message:
        branch = extension_metadata(send.message.metadata).get("branch")
        if branch is not None:
            preceding = await self._before_branch(branch, send.message, caller)
        key = _checked_key(caller.send_key or extension_metadata(send.metadata).get("idempotencyKey", ""))
        call = CallContext(
            version_of_chosen_ids=caller.version_of_chosen_ids,
            protocol_version=caller.protocol_version,
            extensions=caller.extensions,
            send_key=key,
            fingerprint=caller.fingerprint,
            cost=caller.cost,
            record=caller.record,
            completion=caller.completion,
            operator_form=caller.operator_form,
            may_approve=self._approvers(caller),
            agent=caller.receiver,
            follows=caller.follows,
        )
        context_id = "" if caller.has_assignment_lock else await self._context_of(send.message, caller)
        if not context_id:
            return await self._engine.start(send, caller.owner, call, preceding=preceding)
        # While another request holds the lock, it chooses the position of its message in the conversation. If this message were
        # accepted meanwhile, the other message would follow the wrong response.
        async with self.assignment_lock(context_id, caller):
            started = await self._engine.start(send, caller.owner, call, preceding=preceding)
            if isinstance(started, Subscription):
                await started.wait_for_start()
            return started

    async def _context_of(self, message: Message, caller: Caller) -> str:
        if message.context_id or not message.task_id:
            return message.context_id
        try:
            return await self._engine.context_of(message.task_id, caller.owner)
        except TaskNotFoundError:  # the engine handles this case
            return ""

    async def _before_branch(self, branch: object, message: Message, caller: Caller) -> list[Message]:
        """Return the first messages of a branch: all messages before the message that ``branch`` names."""
        match branch:
            case {"contextId": str(context_id), "messageId": str(message_id)}:
                pass
            case _:
                raise InvalidParamsError(
                    "the field branch of a message must be an object with contextId and messageId, both text"
                )
        if message.context_id or message.task_id:
            raise InvalidParamsError(
                "a message with the field branch begins a conversation: leave out its contextId and taskId"
            )
        messages = await self.conversation(context_id, caller)
        ids = [each.message_id for each in messages]
        if message_id not in ids:
            raise InvalidParamsError(
                f"the field branch: the conversation {context_id!r} has no message {message_id!r} among its "
                f"{MAX_CONVERSATION} newest"
            )
        return [each.model_copy(update={"task_id": ""}) for each in messages[: ids.index(message_id)]]

    async def _send(self, send: SendMessageRequest, caller: Caller) -> Task | Message:
        self._check_message(send, caller)
        started = await self._start(send, caller)
        if isinstance(started, Message):
            return started
        last: Event | None = None
        async with aclosing(started.batches(until_interrupted=True)) as batches:
            async for events in batches:
                if send.configuration.return_immediately:
                    break
                last = events[-1]
        task = await self._engine.get_task(started.task_id, caller.owner, send.configuration.history_length)
        return task if last is None else await run_bounded(json_text_cost(last.body), _executed, task, last)

    async def _execute_push(self, operation: Operation, request: A2AModel, caller: Caller) -> A2AModel | None:
        """Execute an operation on webhooks. The caller must own the task."""
        push, owner = self._push, caller.owner
        if push is None:
            raise PushNotificationNotSupportedError
        if operation is Operation.CREATE_PUSH_CONFIG:
            config = cast("TaskPushNotificationConfig", request)
            if not config.task_id:
                raise InvalidParamsError("taskId: required")
            return await self._engine.set_webhook(config, owner, caller.protocol_version)
        if operation is Operation.GET_PUSH_CONFIG:
            get = cast("GetTaskPushNotificationConfigRequest", request)
            task_id, *_ = await self._engine.progress_of(get.task_id, owner)
            get = get.model_copy(update={"task_id": task_id})
            only = await self._only_config(push, get, caller)
            return only or await push.get(task_id, get.id, owner)
        if operation is Operation.LIST_PUSH_CONFIGS:
            wanted = cast("ListTaskPushNotificationConfigsRequest", request)
            task_id, *_ = await self._engine.progress_of(wanted.task_id, owner)
            return await push.list_configs(
                task_id, owner, limit=wanted.page_size, page_token=wanted.page_token
            )
        gone = cast("DeleteTaskPushNotificationConfigRequest", request)
        await self._engine.delete_webhook(gone.task_id, gone.id, owner)
        return None

    async def _only_config(
        self, push: PushNotifier, request: GetTaskPushNotificationConfigRequest, caller: Caller
    ) -> TaskPushNotificationConfig | None:
        """Return the only webhook of a task if a client of an older version sends no webhook id; otherwise None."""
        if caller.protocol_version == "1.0" or request.id != DEFAULT_CONFIG_ID:
            return None
        configs = (await push.list_configs(request.task_id, caller.owner, limit=2)).configs
        return configs[0] if len(configs) == 1 else None

    async def _list(self, request: ListTasksRequest, caller: Caller) -> ListTasksResponse:
        wanted = TaskFilter(request.context_id, request.status, request.status_timestamp_after)
        after = read_page_token(request.page_token, wanted) if request.page_token else None
        page = await self._engine.list_tasks(wanted, caller.owner, after=after, limit=request.page_size)
        return ListTasksResponse(
            tasks=tuple(_listed(task, request) for task in page.tasks),
            next_page_token=page_token(page.last, wanted) if page.last is not None else "",
            page_size=len(page.tasks),
            total_size=page.total,
        )


def _checked_key(key: object) -> str:
    if not isinstance(key, str):
        raise InvalidParamsError("the idempotency key must be text")
    check_id("the idempotency key", key)
    return key


def _executed(task: Task, last: Event) -> Task:
    """Return the task with the status of an event, unless the task has ended or waits for its caller."""
    update = StreamResponse.from_json(last.body).status_update
    if update is None or task.status.state.terminal or task.status.state.interrupted:
        return task
    return task.model_copy(update={"status": update.status})


def _without_files(message: Message) -> Message:
    """Return a message with the names and types of its files, without their content."""
    parts = tuple(part.model_copy(update={"raw": b""}) if part.raw else part for part in message.parts)
    return message.model_copy(update={"parts": parts})


def _listed(task: Task, request: ListTasksRequest) -> Task:
    changes: dict[str, object] = {}
    if not request.include_artifacts:
        changes["artifacts"] = ()
    if request.history_length is not None:
        changes["history"] = newest_messages(task, request.history_length)
    listed = task.model_copy(update=changes)
    return TaskWithArtifacts.model_construct(**dict(listed)) if request.include_artifacts else listed
