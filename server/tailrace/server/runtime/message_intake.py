"""Accepts callers' messages. A message begins a task, continues a task, or gets a direct response."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from uuid import uuid4
from weakref import WeakValueDictionary

import anyio
import msgspec

from tailrace.server.runtime.active_task import (
    ActiveTask,
    CallContext,
    DirectReply,
    PendingMessage,
    Subscription,
)
from tailrace.server.runtime.approvals import decided_message
from tailrace.server.runtime.client_task_ids import id_of_named
from tailrace.server.runtime.handlers import Handler
from tailrace.server.runtime.limits import OverloadedError, Permit, Quota, RateLimitError
from tailrace.server.runtime.messages import (
    check_message,
    check_request,
    copied_message,
    cost_of_checks,
    fingerprint_of,
    pending_calls,
    with_tools_named,
    with_tools_named_in,
)
from tailrace.server.runtime.observer import Observer
from tailrace.server.runtime.served_agents import ServedAgents, agent_name_of
from tailrace.server.runtime.task_access import TaskAccess, encode_task
from tailrace.server.runtime.task_registry import TaskRegistry
from tailrace.server.runtime.turn_preparation import TurnPreparation
from tailrace.server.runtime.turns import TurnRunner
from tailrace.server.runtime.upstream_gate import UpstreamGate
from tailrace.server.runtime.usage_ledger import UsageLedger
from tailrace.server.runtime.webhooks.delivery import PushNotifier
from tailrace.server.store.store import PushConfig, SendKey, Store, StoredCompletion
from tailrace.streaming.a2a.errors import (
    InvalidParamsError,
    PushNotificationNotSupportedError,
    UnsupportedOperationError,
)
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.json_value_counts import cost_of_task
from tailrace.streaming.a2a.models import Message, Role, Task
from tailrace.streaming.a2a.requests import SendMessageRequest
from tailrace.streaming.a2a.stream_extension import (
    extension_metadata,
    with_extension_metadata,
    without_extension_metadata,
)
from tailrace.streaming.agent.caller_options import REQUEST_METADATA_KEYS, store_caller_options
from tailrace.streaming.task.event_log import TaskLog
from tailrace.streaming.task.task_record import TaskRecord
from tailrace.wrappers.concurrency.worker_thread import json_cost, run_bounded

MAX_WAITING = 16
"""Maximum number of messages to one task that wait for their turns."""

# Only the server sets this metadata of a message.
_SERVER_METADATA_KEYS = (*REQUEST_METADATA_KEYS, "by", "approvals")


class MessageIntake:
    """Accepts messages (see `Engine.start`).

    Args:
        agents: The agents of the server, which check messages.
        push: Delivers notifications to webhooks; None if they are disabled.
        task_quota: Limits the number of running tasks; None for no limit.
        gate: Limits the calls to the provider; None for no limit.
        ledger: Checks the budgets of callers.
        observer: Returns the trace of the current request.
    """

    def __init__(
        self,
        access: TaskAccess,
        store: Store,
        tasks: TaskRegistry,
        preparation: TurnPreparation,
        turns: TurnRunner,
        agents: ServedAgents,
        *,
        push: PushNotifier | None,
        task_quota: Quota | None,
        gate: UpstreamGate | None,
        ledger: UsageLedger,
        observer: Observer,
    ) -> None:
        self._access = access
        self._store = store
        self._tasks = tasks
        self._preparation = preparation
        self._turns = turns
        self._agents = agents
        self._push = push
        self._task_quota = task_quota
        self._gate = gate
        self._ledger = ledger
        self._observer = observer
        self._creation_locks: WeakValueDictionary[tuple[str, str, str], anyio.Lock] = WeakValueDictionary()

    async def start(
        self,
        request: SendMessageRequest,
        owner: str,
        context: CallContext,
        preceding: Sequence[Message],
    ) -> Subscription | Message:
        """Accept a message (see `Engine.start`)."""
        if not context.cost:  # the message does not come from a protocol of the server
            context = msgspec.structs.replace(context, cost=json_cost(request) + json_cost(preceding))
        task_id = request.message.task_id if context.version_of_chosen_ids else ""
        if not context.send_key:
            async with self._new_task_lock(owner, task_id):
                return await self._begin(request, owner, context, None, preceding)
        async with self._creation_locks.setdefault(("key", owner, context.send_key), anyio.Lock()):
            fingerprint = context.fingerprint or await run_bounded(context.cost, fingerprint_of, request)
            known = await self._access.sent_as(context.send_key, fingerprint, owner)
            if known is not None:
                return known
            async with self._new_task_lock(owner, task_id):
                started = await self._begin(
                    request, owner, context, (context.send_key, fingerprint), preceding
                )
            if isinstance(started, Subscription):
                await started.wait_for_start()
            return started

    def _new_task_lock(self, owner: str, task_id: str) -> AbstractAsyncContextManager[object]:
        """Return a lock for the id of a new task, so that two concurrent messages do not both create the task."""
        return (
            self._creation_locks.setdefault(("task", owner, task_id), anyio.Lock())
            if task_id
            else nullcontext()
        )

    async def _begin(
        self,
        request: SendMessageRequest,
        owner: str,
        context: CallContext,
        key_and_fingerprint: tuple[str, str] | None,
        preceding: Sequence[Message],
    ) -> Subscription | Message:
        message = request.message
        await self._ledger.check(owner)
        if request.configuration.task_push_notification_config is not None and self._push is None:
            raise PushNotificationNotSupportedError
        cost = cost_of_checks(request, context.cost)
        message, answered = await run_bounded(cost, self._checked, request, context)
        if message.task_id and not (
            context.version_of_chosen_ids and await self._tasks.is_free(message.task_id, owner)
        ):
            active = await self._tasks.find(message.task_id, owner)
            webhooks = await self._webhooks(active, request, context)
            return await self._follow_up(
                active, request, message, answered, webhooks, context, key_and_fingerprint
            )
        message = decided_message(message, None, may_approve=context.may_approve)
        message = await run_bounded(context.cost, with_tools_named_in, message, answered, preceding)
        context_id = message.context_id or str(uuid4())
        task_id = id_of_named(self._store.keys, message.task_id, owner)
        record = TaskRecord.create(
            message, task_id=task_id, context_id=context_id, dialect=context.version_of_chosen_ids
        )
        handler = self._agents.find(context.agent).handler
        before = await run_bounded(context.cost, _preceding, handler, preceding, context_id)
        active = ActiveTask(record, owner, TaskLog())
        active.webhooks = await self._webhooks(active, request, context)
        if message.context_id:
            await self._check_conversation(active)
        submitted = None
        if not handler.replies_directly:
            submitted = await run_bounded(context.cost, record.begin)
        permit = self._admit(active)
        active.running = True  # its cancel scope is new
        self._tasks.add(active)
        active.new_messages.extend(before)
        origin = self._observer.origin()
        active.waiting.append(
            PendingMessage(
                record.history[0],
                request,
                context.extensions,
                number=1,
                preceding=before,
                origin=origin,
                cost=context.cost,
            )
        )
        active.send_key = key_and_fingerprint and SendKey(*key_and_fingerprint, record.id, 1)
        active.completion = _completion_of(context, record.id, 1)
        in_parallel = self._preparation.in_parallel(active)
        active.holds_conversation_lock = not (active.waiting[0].in_conversation or in_parallel)
        if submitted is not None:
            self._turns.begin(active, submitted)
            self._turns.run_soon(active, permit)
            return self._access.subscription(active, 0)
        reply = DirectReply()
        self._turns.run_soon(active, permit, reply)
        await reply.ready.wait()
        if reply.message is not None:
            ids = {"context_id": context_id, "task_id": record.id if context.version_of_chosen_ids else ""}
            return reply.message.model_copy(update=ids)
        return self._access.subscription(active, 0)

    def _checked(self, request: SendMessageRequest, context: CallContext) -> tuple[Message, Sequence[str]]:
        """Validate the message of a request.

        Returns:
            The message with the options and data of the request in its metadata, and the call ids of its tool results.
        """
        answered = check_message(request.message)
        options = check_request(request)
        handler = self._agents.find(context.agent).handler
        handler.check(options)
        message = handler.message_to_store(request.message)
        metadata = message.metadata
        if not extension_metadata(metadata).keys().isdisjoint(_SERVER_METADATA_KEYS):
            metadata = without_extension_metadata(metadata, *_SERVER_METADATA_KEYS)
        if context.record:
            metadata = with_extension_metadata(metadata, apiRequest=context.record)
        if context.agent:
            metadata = with_extension_metadata(metadata, agent=context.agent)
        if context.follows is not None:
            metadata = with_extension_metadata(metadata, follows=msgspec.to_builtins(context.follows))
        if metadata is not message.metadata:
            message = message.model_copy(update={"metadata": metadata})
        return store_caller_options(message, options), answered

    async def _webhooks(
        self, active: ActiveTask, request: SendMessageRequest, context: CallContext
    ) -> list[PushConfig]:
        if self._push is None:
            return []
        task_id, owner, after = active.record.id, active.owner, active.record.number
        configs: list[PushConfig] = []
        config = request.configuration.task_push_notification_config
        if config is not None:
            config = config.model_copy(update={"task_id": task_id})
            configs.append(
                await self._push.accept(config, owner, dialect=context.protocol_version, after=after)
            )
        if context.operator_form:
            message_id = request.message.message_id
            configs += self._push.of_operator(context.operator_form, task_id, message_id, owner, after)
        return configs

    async def _follow_up(
        self,
        active: ActiveTask,
        request: SendMessageRequest,
        message: Message,
        answered: Sequence[str],
        webhooks: list[PushConfig],
        context: CallContext,
        key_and_fingerprint: tuple[str, str] | None,
    ) -> Subscription:
        """Accept a further message of a task. Its turn begins after earlier turns."""
        record = active.record
        addressed = record.addressed(message)
        await self._check_conversation(active)
        while True:
            self._check_follow_up(active, message, context)
            task = record.snapshot()
            cost = context.cost + (cost_of_task(task) if answered else 0)
            named_message, encoded = await run_bounded(
                cost, _follow_up_of, task, addressed, answered, context.may_approve
            )
            if record.status is task.status and len(record.history) == len(task.history):
                break
        permit = self._admit(active)
        message = record.receive(named_message)
        number = sum(each.role is Role.USER for each in record.history)
        active.waiting.append(
            PendingMessage(
                message,
                request,
                context.extensions,
                number,
                origin=self._observer.origin(),
                cost=context.cost,
            )
        )
        active.webhooks = webhooks
        active.send_key = key_and_fingerprint and SendKey(*key_and_fingerprint, record.id, number)
        active.completion = _completion_of(context, record.id, number)
        # A snapshot cannot represent an open artifact, so none is stored during a turn.
        receipt = record.receipt(message, encoded)
        number, snapshot = record.number, record.snapshot()
        self._turns.persist(
            active, (receipt,), snapshot=None if active.running else snapshot, received=message
        )
        if not active.running:
            self._turns.run_soon(active, permit)
        first = Event(number, await encode_task(snapshot))
        await self._tasks.wait_until_persisted(active, number)
        return self._access.subscription(active, number, first)

    async def _check_conversation(self, active: ActiveTask) -> None:
        """Read the conversation, so that a store error rejects the message before anything changes."""
        await self._store.load_conversation(active.record.context_id, active.owner, 1)

    def _check_follow_up(self, active: ActiveTask, message: Message, context: CallContext) -> None:
        agent = agent_name_of(active.record.history[0])
        if context.agent != agent:  # waiting calls belong to the agent of the task
            raise InvalidParamsError(
                f"the task belongs to the agent {agent!r}, not to {context.agent!r}: send the message to the agent of the task",
                metadata={"taskId": active.record.id},
            )
        if message.context_id and message.context_id != active.record.context_id:
            raise InvalidParamsError(
                "the task named by taskId does not belong to the context named by contextId",
                metadata={"taskId": active.record.id},
            )
        if active.record.state.terminal:
            raise UnsupportedOperationError(
                f"the task has ended ({active.record.state}); send a message without taskId to continue in its context"
            )
        if len(active.waiting) >= MAX_WAITING:
            raise RateLimitError(
                f"{MAX_WAITING} messages to the task are waiting; send this message after the next response",
                limit="waiting_messages",
                allowed=MAX_WAITING,
            )

    def _admit(self, active: ActiveTask) -> Permit:
        """Check that the server can accept a message, and return a permit. The permit counts only if the task is not running.

        Raises:
            OverloadedError: The server cannot accept messages now.
            RateLimitError: The caller has too many running tasks or waiting calls to the provider.
        """
        if self._turns.group is None and not self._turns.stopping:
            raise OverloadedError(
                "the server was not started: run the lifespan of the application that it is mounted in"
            )
        if self._turns.stopping:
            raise OverloadedError("the server is stopping; send this to another one, or try again later")
        if self._gate is not None:
            self._gate.check(active.owner)
        return (
            Permit.none()
            if active.running or self._task_quota is None
            else self._task_quota.acquire(active.owner)
        )


def _preceding(handler: Handler, messages: Sequence[Message], context_id: str) -> tuple[Message, ...]:
    return tuple(
        copied_message(
            handler.message_to_store(message) if message.role is Role.USER else message, context_id
        )
        for message in messages
    )


def _completion_of(context: CallContext, task_id: str, turn: int) -> StoredCompletion | None:
    new = context.completion
    return new and StoredCompletion(task_id, turn, new.model, new.metadata)


def _follow_up_of(
    task: Task, message: Message, answered: Sequence[str], may_approve: bool
) -> tuple[Message, bytes]:
    """Return a further message with recorded decisions and tool names, and its JSON."""
    message = decided_message(message, task, may_approve=may_approve)
    if answered:
        message = with_tools_named(message, answered, pending_calls(task))
    return message, message.to_json()
