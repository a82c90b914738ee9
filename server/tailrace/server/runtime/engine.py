"""The engine: runs tasks and answers for them, for every protocol.

A turn runs in a task of the engine's task group, never in a request's: clients may disconnect at any time. Every event is
applied to the task's record, persisted by the `GroupWriter`, and then published to the `TaskLog` that subscribers read.
"""

import logging
import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from uuid import uuid4
from weakref import WeakValueDictionary

import anyio
from anyio.abc import TaskGroup

from tailrace.server.runtime.active_task import (
    PLAIN_CALL,
    ActiveTask,
    CallContext,
    DirectReply,
    PendingMessage,
    Subscription,
)
from tailrace.server.runtime.external_ids import ExternalIds
from tailrace.server.runtime.handlers import Handler
from tailrace.server.runtime.health import Health
from tailrace.server.runtime.limits import OverloadedError, Permit, Quota, RateLimitError
from tailrace.server.runtime.messages import (
    answered_ids,
    check_message,
    check_request,
    copied_message,
    fingerprint_of,
    in_turns,
    pending_calls,
    with_tools_named,
    with_tools_named_in,
)
from tailrace.server.runtime.observer import NO_OBSERVER, Observer
from tailrace.server.runtime.recovery import InterruptedTasks
from tailrace.server.runtime.registry import RemoteTasks, TaskRegistry
from tailrace.server.runtime.task_history import MAX_HISTORY, with_agent_messages
from tailrace.server.runtime.task_names import id_of_named
from tailrace.server.runtime.turns import TurnRunner, failed_because
from tailrace.server.runtime.upstream_gate import UpstreamGate
from tailrace.server.runtime.webhooks.delivery import PushNotifier
from tailrace.server.runtime.writer import GroupWriter
from tailrace.server.store.secret_keys import SecretKeys
from tailrace.server.store.store import PushConfig, SendKey, Store, TaskFilter, TaskPage, TaskPosition
from tailrace.streaming.a2a.costs import cost_of, cost_of_task
from tailrace.streaming.a2a.errors import (
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.extension import (
    extension_facts,
    without_extension_facts,
)
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Message, Role, StreamResponse, Task
from tailrace.streaming.a2a.requests import SendMessageRequest, TaskPushNotificationConfig
from tailrace.streaming.agent.request_facts import keep_request_facts
from tailrace.streaming.task.log import TaskLog
from tailrace.streaming.task.task import TaskRecord
from tailrace.streaming.task.updates import StatusUpdate
from tailrace.wrappers import StoreError
from tailrace.wrappers.concurrency.worker_thread import run_bounded

logger = logging.getLogger("tailrace.server")

MAX_WAITING = 16
"""Messages to one task that wait for their turn."""

# Metadata of a message that only the server sets: the validated options of the request, and the sender.
_OWN_FACTS = ("request", "by")

HEALTH_TIMEOUT = 2.0
"""Seconds that the store has to reply to a health check."""


class Engine:
    """Runs tasks.

    ``owner`` identifies the caller whose tasks are visible; one check precedes every lookup. Unknown tasks and those of
    other callers raise the same `TaskNotFoundError`.

    Args:
        store: Opened and closed by `running`.
        handler: Runs the turns; started by `running`.
        max_history_messages: The maximum number of messages of a conversation that a turn receives.
        max_lag: The number of events that a subscriber of a running task may lag before it gets a snapshot.
        restart_interrupted: Start tasks again that a crash interrupted, instead of failing them. The handler receives the
            message and its options, but not the rest of the request.
        push: Delivers notifications to webhooks; started and stopped by `running`. None to disable them.
        working: Bounds the number of running tasks; None for no bound.
        gate: Bounds the calls to the provider: messages are refused while too many wait; None for no bound.
        max_turn_seconds: The maximum duration of a turn; 0 for no bound.
        max_context_wait: The maximum duration that a task waits for earlier tasks of its conversation; 0 for no bound.
        parallel_tasks: Run tasks of one conversation in parallel, unless their caller requests the order.
        max_event_bytes: The maximum size of an update from a handler; 0 for no bound.
        stop_grace: Seconds that turns have to end after the engine begins to stop.
        keys: The keys of the installation, for identifiers in other systems. With None they are derived from a secret of
            this engine, and change with every process.
        observer: Notified of turns and transactions.

    Attributes:
        stop_requested: Set by the first component that learns that the process is to end: the engine then stops, while
            connections are still open to report it.
        writer: Persists the events of all tasks.
    """

    def __init__(
        self,
        store: Store,
        handler: Handler,
        *,
        max_history_messages: int = 1000,
        max_lag: int = 10_000,
        restart_interrupted: bool = False,
        push: PushNotifier | None = None,
        working: Quota | None = None,
        gate: UpstreamGate | None = None,
        max_turn_seconds: float = 0,
        max_context_wait: float = 0,
        parallel_tasks: bool = False,
        max_event_bytes: int = 0,
        stop_grace: float = 0,
        keys: SecretKeys | None = None,
        observer: Observer = NO_OBSERVER,
    ) -> None:
        self._observer = observer
        self.stop_requested = anyio.Event()
        self._working = working
        self._gate = gate
        self._stop_grace = stop_grace
        self._store = store
        self._handler = handler
        self._push = push
        self._max_history = max_history_messages
        self._max_lag = max_lag
        self._naming: WeakValueDictionary[tuple[str, str, str], anyio.Lock] = WeakValueDictionary()
        self._tasks = TaskRegistry(store, self._end_lost, self._remote_tasks())
        self.writer = GroupWriter(store, observer=observer)
        self._turns = TurnRunner(
            handler,
            store,
            self.writer,
            self._tasks.drop,
            push and push.notify,
            self._conversation,
            external_ids=ExternalIds(keys),
            max_history=max_history_messages,
            max_seconds=max_turn_seconds or math.inf,
            max_wait=max_context_wait or math.inf,
            parallel=parallel_tasks,
            max_event_bytes=max_event_bytes,
            observer=observer,
        )
        self._interrupted = InterruptedTasks(
            store,
            self._tasks,
            self._turns,
            lambda active: self._run_soon(active, Permit.none()),
            restart=restart_interrupted,
        )
        self._group: TaskGroup | None = None

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["Engine"]:
        """Open the store, recover interrupted tasks, and accept requests until the block ends.

        At the end of the block, running tasks fail with their text when the grace time is over, or at once after an
        exception or a cancellation; all events are persisted.

        Raises:
            StoreError: The store cannot be opened.
        """
        await self._store.open()
        self._turns.stopping = False
        self.stop_requested = anyio.Event()
        try:
            # The outermost: webhooks receive the very last event, too.
            push = self._push.running(self.get_task) if self._push else nullcontext()
            async with (
                self._membership(),
                push,
                self._handler.running(),
                anyio.create_task_group() as writing,
            ):
                writing.start_soon(self.writer.run)
                grace = anyio.CancelScope()
                writing.start_soon(self._stop_on_request, grace)
                ending_failed = anyio.CancelScope()
                writing.start_soon(self._end_failed, ending_failed)
                async with anyio.create_task_group() as self._group:
                    await self._interrupted.take_up_all()
                    try:
                        yield self
                    except BaseException:
                        self.stop()
                        raise
                    self.stop_requested.set()
                grace.cancel()
                ending_failed.cancel()
                self.writer.close()
        finally:
            self._group = None
            with anyio.CancelScope(shield=True):
                await self._store.close()

    async def start(
        self,
        request: SendMessageRequest,
        owner: str = "",
        call: CallContext = PLAIN_CALL,
        *,
        preceding: Sequence[Message] = (),
    ) -> Subscription | Message:
        """Accept a caller's message: create a task, continue one, or respond directly.

        A message to a task that is running waits for its turn; the task then continues instead of ending. When the task
        fails or is canceled, its waiting messages end with it.

        Args:
            request: The message, and the configuration of its response.
            owner: The caller.
            call: The context of the request.
            preceding: Earlier messages, of either side, of a new conversation whose beginning the caller knows; used for
                a new task only.

        Returns:
            A subscription to the task from this message on (its first event is the task), or the handler's direct
            message (which is no task, and is created again when the message is sent again).

        Raises:
            TaskNotFoundError: The caller has no task of the id in the message.
            UnsupportedOperationError: That task has ended.
            PushNotificationNotSupportedError: The request has a webhook, and notifications are disabled.
            InvalidParamsError: The message names a task and a conversation that it does not belong to, or the
                request has a webhook that cannot be called, or ``call.send_key`` was used for another message.
            RateLimitError: The caller has too many running tasks, or too many messages wait for this one.
            OverloadedError: All callers together have too many, or the server is stopping or was not started.
            StoreError: Nothing can be persisted at present.
        """
        task_id = request.message.task_id if call.named_in else ""
        if not call.send_key:
            async with self._naming_task(owner, task_id):
                return await self._start(request, owner, call, None, preceding)
        async with self._naming.setdefault(("key", owner, call.send_key), anyio.Lock()):
            fingerprint = call.fingerprint or await run_bounded(call.cost, fingerprint_of, request)
            known = await self.sent_as(call.send_key, fingerprint, owner)
            if known is not None:
                return known
            async with self._naming_task(owner, task_id):
                started = await self._start(request, owner, call, (call.send_key, fingerprint), preceding)
            if isinstance(started, Subscription):
                await started.begun()
            return started

    async def sent_as(self, send_key: str, fingerprint: str, owner: str = "") -> Subscription | None:
        """Subscribe to the task of a message that was sent before.

        Args:
            send_key: The idempotency key of the message.
            fingerprint: The fingerprint of its request.
            owner: The caller.

        Returns:
            A subscription, whose first event is the task; None if no message with this key was accepted.

        Raises:
            InvalidParamsError: The key was used for another message.
            StoreError: The store cannot be read at present.
        """
        known = await self._store.load_send_key(owner, send_key)
        if known is None:
            return None
        if known.fingerprint != fingerprint:
            raise InvalidParamsError("the idempotency key was used for another message; choose a new one")
        return await self.subscribe(known.task_id, owner, repeat_finished=True)

    def _naming_task(self, owner: str, task_id: str) -> AbstractAsyncContextManager[object]:
        """Hold a lock for a new task's id: of two messages that name it at once, one creates it, the other continues it."""
        return self._naming.setdefault(("task", owner, task_id), anyio.Lock()) if task_id else nullcontext()

    async def _start(
        self,
        request: SendMessageRequest,
        owner: str,
        call: CallContext,
        named: tuple[str, str] | None,
        preceding: Sequence[Message],
    ) -> Subscription | Message:
        message = request.message
        if request.configuration.task_push_notification_config is not None and self._push is None:
            raise PushNotificationNotSupportedError
        message = await run_bounded(call.cost, self._checked, request)
        if message.task_id and not (call.named_in and await self._tasks.is_free(message.task_id, owner)):
            active = await self._tasks.find(message.task_id, owner)
            webhooks = await self._webhooks(active, request, call.spoken)
            return await self._follow_up(active, request, message, webhooks, call, named)
        message = await run_bounded(call.cost, with_tools_named_in, message, preceding)
        context_id = message.context_id or str(uuid4())
        task_id = id_of_named(self._store.keys, message.task_id, owner)
        record = TaskRecord.create(message, task_id=task_id, context_id=context_id, dialect=call.named_in)
        before = await run_bounded(call.cost, self._preceding, preceding, context_id)
        active = ActiveTask(record, owner, TaskLog())
        active.webhooks = await self._webhooks(active, request, call.spoken)
        if message.context_id:
            await self._check_conversation(active)
        submitted = None
        if not self._handler.replies_directly:
            submitted = await run_bounded(call.cost, record.submitted)
        permit = self._admit(active)
        self._tasks.add(active)
        active.new_messages.extend(before)
        origin = self._observer.origin()
        active.waiting.append(
            PendingMessage(
                record.history[0],
                request,
                call.extensions,
                number=1,
                preceding=before,
                origin=origin,
                cost=call.cost,
            )
        )
        active.send_key = named and SendKey(*named, record.id)
        active.holds_conversation = not (active.waiting[0].in_conversation or self._turns.in_parallel(active))
        if submitted is not None:
            self._turns.begin(active, submitted)
            self._run_soon(active, permit)
            return self._reader(active, 0)
        reply = DirectReply()
        self._run_soon(active, permit, reply)
        await reply.ready.wait()
        if reply.message is not None:
            ids = {"context_id": context_id, "task_id": record.id if call.named_in else ""}
            return reply.message.model_copy(update=ids)
        return self._reader(active, 0)

    def _checked(self, request: SendMessageRequest) -> Message:
        """Return the message of a request, with its validated options."""
        check_message(request.message)
        facts = check_request(request)
        self._handler.check(facts)
        message = self._handler.received(request.message)
        given = extension_facts(message.metadata)
        if any(name in given for name in _OWN_FACTS):
            message = message.model_copy(
                update={"metadata": without_extension_facts(message.metadata, *_OWN_FACTS)}
            )
        return keep_request_facts(message, facts)

    def _preceding(self, messages: Sequence[Message], context_id: str) -> tuple[Message, ...]:
        """Return earlier messages, as a caller sent them, as messages of a conversation."""
        received = self._handler.received
        return tuple(
            copied_message(received(message) if message.role is Role.USER else message, context_id)
            for message in messages
        )

    async def get_task(self, task_id: str, owner: str = "", history_length: int | None = None) -> Task:
        """Return a task, with persisted content only; its history includes the agent's messages.

        Args:
            task_id: The task.
            owner: The caller.
            history_length: The maximum number of messages, newest first; None for `MAX_HISTORY`.

        Raises:
            TaskNotFoundError: The caller has no such task.
            StoreError: The store cannot be read.
        """
        return await self._read(await self._tasks.find(task_id, owner), history_length)

    async def snapshot(self, task_id: str, owner: str = "") -> Task:
        """Return a task as `get_task`, with its own history only: the messages of its callers and of its statuses."""
        return await self._tasks.kept_snapshot(await self._tasks.find(task_id, owner))

    async def _read(self, active: ActiveTask, history_length: int | None = None) -> Task:
        """Return a task as `get_task`."""
        if history_length == 0:
            return await self._tasks.kept_snapshot(active, 0)
        task = await self._tasks.kept_snapshot(active)
        recorded = await self._store.load_task_messages(task.id, active.owner, MAX_HISTORY)
        cost = cost_of_task(task) + cost_of(recorded)
        return await run_bounded(cost, with_agent_messages, task, recorded, history_length)

    async def list_tasks(
        self, wanted: TaskFilter, owner: str = "", *, after: TaskPosition | None = None, limit: int
    ) -> TaskPage:
        """Return the caller's tasks, newest status first, with persisted content only.

        Args:
            wanted: The filter.
            owner: The caller.
            after: The position after which to continue.
            limit: The maximum number of tasks; fewer are returned if they are large.
        """
        page = await self._store.list_tasks(owner, wanted, after=after, limit=limit)
        tasks = [await self._tasks.current(task, owner) for _, task in page.tasks]
        return TaskPage(tasks, page.total, page.tasks[-1][0] if page.has_more else None)

    async def cancel_task(self, task_id: str, owner: str = "") -> Task:
        """Cancel a task: it ends CANCELED, and the connection to the provider is closed.

        Raises:
            TaskNotFoundError: The caller has no such task.
            TaskNotCancelableError: It has ended, or ended before it could be canceled.
        """
        active = await self._tasks.find(task_id, owner)
        if active.record.state.terminal:
            raise TaskNotCancelableError(metadata={"taskId": task_id})
        canceled = StatusUpdate(TaskState.CANCELED)
        if active.running:
            active.ending = canceled
            active.scope.cancel()
            await self._tasks.until_over(active)
        else:
            self._turns.end(active, canceled)
        await self._tasks.until_kept(active, active.record.number)
        if active.record.state is not TaskState.CANCELED:
            raise TaskNotCancelableError(metadata={"taskId": task_id})
        return await self._read(active)

    async def delete_task(self, task_id: str, owner: str) -> None:
        """Delete a task with its events, webhooks and messages; one that has not ended is canceled first.

        Raises:
            TaskNotFoundError: The caller has no such task.
            StoreError: The store does not work at present.
        """
        try:
            task = await self.cancel_task(task_id, owner)
        except TaskNotCancelableError:
            task = await self.snapshot(task_id, owner)
        self._tasks.remove(task.id, owner)
        if not await self._store.delete_task(task.id, owner):
            raise TaskNotFoundError(metadata={"taskId": task_id})

    async def subscribe(
        self, task_id: str, owner: str = "", after: int | None = None, *, repeat_finished: bool = False
    ) -> Subscription:
        """Subscribe to a task.

        Args:
            task_id: The task.
            owner: The caller.
            after: A number: every event after it, exactly once, also after the task's end. None: a snapshot of the
                task first, then the following events.
            repeat_finished: Return the snapshot of a task that has ended, too.

        Raises:
            TaskNotFoundError: The caller has no such task.
            UnsupportedOperationError: It has ended, no number was given (A2A 1.0, 3.1.6), and it is not to be repeated.
            InvalidParamsError: The task has no event of that number.
        """
        active = await self._tasks.find(task_id, owner)
        if after is not None:
            if not 0 <= after <= active.record.number:
                raise InvalidParamsError(
                    f"the task has no event {after}; its last event is {active.record.number}"
                )
            return self._reader(active, after)
        if active.record.state.terminal and not repeat_finished:
            raise UnsupportedOperationError(f"the task has ended ({active.record.state})")
        number, state = active.record.number, active.record.state
        first = Event(number, await _encoded(await self._read(active)), state)
        return self._reader(active, number, first)

    def _reader(self, active: ActiveTask, after: int, first: Event | None = None) -> Subscription:
        return Subscription(active, after, first, tasks=self._tasks, max_lag=self._max_lag)

    async def conversation(self, context_id: str, owner: str, limit: int) -> list[Message]:
        """Return the newest messages of a conversation, oldest first; none of another owner's conversation."""
        messages = await self._store.load_conversation(context_id, owner, limit)
        return await run_bounded(cost_of(messages), in_turns, messages)

    async def progress_of(self, task_id: str, owner: str = "") -> tuple[str, int, bool]:
        """Return the task's own id, the number of its last persisted event, and whether the task ended with it.

        Raises:
            TaskNotFoundError: The caller has no such task.
        """
        active = await self._tasks.find(task_id, owner)
        number = active.log.number
        return active.record.id, number, active.record.state.terminal and active.record.number == number

    async def dialect_of(self, task_id: str, owner: str) -> str:
        """Return the protocol version in which a task was created, if callers of that version name their tasks.

        Returns:
            The version; empty for other tasks, and without such a task.
        """
        try:
            active = await self._tasks.find(task_id, owner)
        except TaskNotFoundError:
            return ""
        return str(extension_facts(active.record.snapshot(0).metadata).get("dialect", ""))

    async def set_webhook(
        self, config: TaskPushNotificationConfig, owner: str, dialect: str
    ) -> TaskPushNotificationConfig:
        """Set a webhook of a task, as `PushNotifier.create`; it receives the events from now on.

        Raises:
            TaskNotFoundError: The caller has no such task.
            PushNotificationNotSupportedError: Notifications are disabled.
            InvalidParamsError: It cannot be called, or the task has too many.
            StoreError: It cannot be persisted.
        """
        if self._push is None:
            raise PushNotificationNotSupportedError
        task_id, after, is_over = await self.progress_of(config.task_id, owner)
        config = config.model_copy(update={"task_id": task_id})
        return await self._push.create(config, owner, dialect=dialect, after=after, is_over=is_over)

    async def delete_webhook(self, task_id: str, config_id: str, owner: str) -> None:
        """Delete a webhook of a task, as `PushNotifier.delete`.

        Raises:
            TaskNotFoundError: The caller has no such task.
            PushNotificationNotSupportedError: Notifications are disabled.
            StoreError: It cannot be deleted.
        """
        if self._push is None:
            raise PushNotificationNotSupportedError
        task_id, *_ = await self.progress_of(task_id, owner)
        await self._push.delete(task_id, config_id)

    # --- overridden where several servers share a store ---------------------------------------------------------

    def _remote_tasks(self) -> RemoteTasks | None:
        """Return the access to tasks of other processes."""
        return None

    def _conversation(self, active: ActiveTask) -> AbstractAsyncContextManager[object]:
        """Return the lock that a turn holds, so that no other turn of its conversation runs."""
        return self._turns.conversation(active)

    def _membership(self) -> AbstractAsyncContextManager[object]:
        """Return a context that is entered after the store is opened, and left when all events are persisted."""
        return nullcontext()

    # --- running turns ------------------------------------------------------------------------------------------

    async def _webhooks(
        self, active: ActiveTask, request: SendMessageRequest, spoken: str
    ) -> list[PushConfig]:
        """Return the webhook of a request, if it has one; it receives the task's events from now on."""
        config = request.configuration.task_push_notification_config
        if config is None or self._push is None:
            return []
        config = config.model_copy(update={"task_id": active.record.id})
        return [await self._push.accept(config, active.owner, dialect=spoken, after=active.record.number)]

    async def _follow_up(
        self,
        active: ActiveTask,
        request: SendMessageRequest,
        message: Message,
        webhooks: list[PushConfig],
        call: CallContext,
        named: tuple[str, str] | None,
    ) -> Subscription:
        """Accept another message of a task: its turn begins at once, or after the turns before it."""
        record = active.record
        addressed = record.addressed(message)
        answered = await run_bounded(call.cost, answered_ids, message)
        await self._check_conversation(active)
        while True:
            self._check_follow_up(active, message)
            task = record.snapshot()
            cost = call.cost + (cost_of_task(task) if answered else 0)
            named_message, encoded = await run_bounded(cost, _follow_up_of, task, addressed, answered)
            if record.status is task.status and len(record.history) == len(task.history):
                break  # nothing changed meanwhile
        permit = self._admit(active)
        message = record.receive(named_message)
        number = sum(each.role is Role.USER for each in record.history)
        active.waiting.append(
            PendingMessage(
                message, request, call.extensions, number, origin=self._observer.origin(), cost=call.cost
            )
        )
        active.webhooks = webhooks
        active.send_key = named and SendKey(*named, record.id)
        # During a turn an artifact may be open, which a snapshot cannot express.
        self._turns.keep(active, (record.receipt(message, encoded),), snapshot=not active.running)
        number, snapshot = record.number, record.snapshot()
        if not active.running:
            self._run_soon(active, permit)
        first = Event(number, await _encoded(snapshot))
        await self._tasks.until_kept(active, number)
        return self._reader(active, number, first)

    async def _check_conversation(self, active: ActiveTask) -> None:
        """Check that the conversation can be read: if not, the message is refused, and nothing changes."""
        await self._store.load_conversation(active.record.context_id, active.owner, 1)

    def _check_follow_up(self, active: ActiveTask, message: Message) -> None:
        if message.context_id and message.context_id != active.record.context_id:
            raise InvalidParamsError(
                "the message names a task and a context that the task does not belong to",
                metadata={"taskId": active.record.id},
            )
        if active.record.state.terminal:
            raise UnsupportedOperationError(
                f"the task has ended ({active.record.state}); send a message without taskId to continue in its context"
            )
        if len(active.waiting) >= MAX_WAITING:
            raise RateLimitError(
                f"{MAX_WAITING} messages to the task are waiting already; send this one after the next response",
                limit="waiting_messages",
                allowed=MAX_WAITING,
            )

    def _admit(self, active: ActiveTask) -> Permit:
        """Admit a message: return the permit of a running task, if its task has none yet."""
        if self._group is None and not self._turns.stopping:
            raise OverloadedError(
                "the server was not started: run the lifespan of the application that it is mounted in"
            )
        if self._turns.stopping:
            raise OverloadedError("the server is stopping; send this to another one, or try again later")
        if self._gate is not None:
            self._gate.check(active.owner)
        return Permit.none() if active.running or self._working is None else self._working.take(active.owner)

    def _run_soon(self, active: ActiveTask, permit: Permit, reply: DirectReply | None = None) -> None:
        assert self._group is not None  # noqa: S101 — the message was admitted
        # Before any await: a cancellation or stop in between finds the scope in which the turn will run.
        active.begin_turn()
        self._group.start_soon(self._turns.run, active, permit, reply, name=f"turns of {active.record.id}")

    # --- health -------------------------------------------------------------------------------------------------

    @property
    def events_waiting(self) -> int:
        """The number of events that wait for a commit."""
        return self.writer.waiting

    async def health(self) -> Health:
        """Return whether messages can be accepted and persisted; never raises, takes at most `HEALTH_TIMEOUT` seconds."""
        problems: dict[str, str] = {}
        if self._group is None:
            problems["engine"] = "not running"
        elif self._turns.stopping or self.stop_requested.is_set():
            problems["engine"] = "stopping"
        trouble = "it does not answer"
        with anyio.move_on_after(HEALTH_TIMEOUT):
            try:
                await self._store.check()
                trouble = "the last transaction was not kept" if self.writer.trouble is not None else ""
            except StoreError as error:
                logger.warning("the store is not ready: %s", error)
                trouble = "it does not work"
        if trouble:
            problems["store"] = trouble
        return Health(problems, ("engine", "store"))

    # --- start and stop -----------------------------------------------------------------------------------------

    async def _stop_on_request(self, grace: anyio.CancelScope) -> None:
        await self.stop_requested.wait()
        self.stop(let_finish=True)
        with grace:  # left as soon as all turns have ended
            await anyio.sleep(self._stop_grace)
        self.writer.hurry()
        self.stop()

    def stop(self, *, let_finish: bool = False) -> None:
        """Accept no more messages, and fail all turns with their text: every stream then ends by itself.

        Args:
            let_finish: Let running turns finish.
        """
        self._turns.stopping = True
        for active in self._tasks.all():
            if not active.running:
                self._turns.end_log(active)
            elif not let_finish:
                active.ending = active.ending or failed_because(
                    "the server was stopped before the answer was complete"
                )
                active.scope.cancel()

    async def _end_failed(self, scope: anyio.CancelScope) -> None:
        with scope:
            await self._tasks.end_failed()

    def _end_lost(self, active: ActiveTask) -> None:
        self._turns.end(active, failed_because("the task store did not work; what followed is lost"))


def _follow_up_of(task: Task, message: Message, answered: Sequence[str]) -> tuple[Message, bytes]:
    """Return a further message of a task with the names of the tools in its results, and its JSON."""
    if answered:
        message = with_tools_named(message, answered, pending_calls(task))
    return message, message.to_json()


async def _encoded(task: Task) -> bytes:
    """Encode a task as the body of an event."""
    return await run_bounded(cost_of_task(task), StreamResponse(task=task).to_json)
