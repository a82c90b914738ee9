"""The engine: it runs the tasks of a server, and starts, finds, cancels and deletes them for all protocols.

A turn runs in the task group of the engine, not in the asyncio task of a request, so a client can disconnect at any time. Each
event is applied to the record of its task (`TaskRecord`), persisted by the `GroupWriter`, and then published to the `TaskLog` from
which subscribers read.
"""

import logging
import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from functools import partial
from weakref import WeakValueDictionary

import anyio

from tailrace.server.runtime.active_task import (
    PLAIN_CALL,
    ActiveTask,
    CallContext,
    Subscription,
)
from tailrace.server.runtime.client_task_ids import id_of_named
from tailrace.server.runtime.external_ids import ExternalIds
from tailrace.server.runtime.handlers import Handler
from tailrace.server.runtime.health import Health
from tailrace.server.runtime.limits import Quota
from tailrace.server.runtime.message_intake import MessageIntake
from tailrace.server.runtime.observer import NO_OBSERVER, Observer
from tailrace.server.runtime.recovery import InterruptedTasks
from tailrace.server.runtime.served_agents import ServedAgents
from tailrace.server.runtime.task_access import TaskAccess
from tailrace.server.runtime.task_registry import RemoteTasks, TaskRegistry
from tailrace.server.runtime.turns import TurnRunner, failed_because
from tailrace.server.runtime.upstream_gate import UpstreamGate
from tailrace.server.runtime.usage_ledger import DirectCall, UsageLedger
from tailrace.server.runtime.waiting_turns import AcceptedMessages, WaitingTurns, root_of
from tailrace.server.runtime.webhooks.delivery import PushNotifier
from tailrace.server.store.secret_keys import SecretKeys
from tailrace.server.store.store import Store, TaskWrite
from tailrace.server.store.writer import GroupWriter
from tailrace.streaming.a2a.errors import (
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
)
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Message, Task
from tailrace.streaming.a2a.requests import SendMessageRequest, TaskPushNotificationConfig
from tailrace.streaming.task.event_log import TaskLog
from tailrace.streaming.task.task_record import TaskRecord
from tailrace.streaming.task.updates import StatusUpdate
from tailrace.wrappers import StoreError
from tailrace.wrappers.model import Model

logger = logging.getLogger("tailrace.server")

DELETED_AT_ONCE = 100
"""Tasks of a conversation that are listed at once to delete them."""

HEALTH_TIMEOUT = 2.0
"""Seconds after which a health check of the store fails."""


class Engine(TaskAccess):
    """Runs tasks.

    `TaskAccess` has the operations that read tasks, `MessageIntake` accepts messages.

    Args:
        store: Opened and closed by `running`.
        agents: The agents, or the handler of the only agent; started by `running`.
        max_history_messages: The maximum number of messages of a conversation that a turn receives.
        max_lag: The number of events that a subscriber of a running task may lag before it gets a snapshot.
        restart_interrupted: True to restart tasks that a crash interrupted; False to fail them. For a restarted task, the
            handler receives the message and its options, but not the other fields of the request.
        push: Delivers notifications to webhooks. `running` starts and stops it. None disables push notifications.
        working: Limits the number of running tasks; None for no limit.
        gate: Limits the concurrent calls to the provider. Messages are rejected while too many calls wait. None for no limit.
        max_turn_seconds: The maximum duration of a turn in seconds; 0 for no limit.
        max_context_wait: The maximum time in seconds that a task waits for earlier tasks of its conversation; 0 for no limit.
        parallel_tasks: True to run tasks of one conversation in parallel, unless the caller requests sequential execution.
        max_event_bytes: The maximum size of an update from a handler in bytes; 0 for no limit.
        stop_grace: Seconds that running turns have to end after the engine begins to stop.
        keys: The keys of the installation, from which identifiers for other systems are derived. If None, the engine creates
            a random secret, and the identifiers change with each process.
        ledger: Records the attempts of model calls; None for a ledger without prices.
        observer: Receives notifications of turns and transactions.

    Attributes:
        stop_requested: An event that any component may set to stop the engine. The engine stops while connections are still
            open, so that clients receive the last status of their tasks.
        writer: Persists the events of all tasks.
    """

    def __init__(
        self,
        store: Store,
        agents: Handler | ServedAgents,
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
        ledger: UsageLedger | None = None,
        observer: Observer = NO_OBSERVER,
    ) -> None:
        ledger = self._ledger = ledger or UsageLedger()
        super().__init__(store, TaskRegistry(store, self._end_lost, self._remote_tasks()), max_lag)
        self.stop_requested = anyio.Event()
        self._stop_grace = stop_grace
        self._agents = agents = ServedAgents.from_handler(agents)
        self._push = push
        self.writer = GroupWriter(store, commit_failed=observer.commit_failed)
        self._waiting_turns = WaitingTurns(self, store, self._tasks)
        self._placing: WeakValueDictionary[tuple[str, str], anyio.Lock] = WeakValueDictionary()
        self._turns = TurnRunner(
            agents,
            store,
            self.writer,
            self._tasks.drop,
            push and push.notify,
            self._conversation,
            self._is_written_here,
            load_branch=self._waiting_turns.earlier_messages,
            external_ids=ExternalIds(keys),
            max_history=max_history_messages,
            max_seconds=max_turn_seconds or math.inf,
            max_wait=max_context_wait or math.inf,
            parallel=parallel_tasks,
            max_event_bytes=max_event_bytes,
            ledger=ledger,
            observer=observer,
        )
        self._interrupted = InterruptedTasks(
            store, agents, self._tasks, self._turns, ledger, restart=restart_interrupted
        )
        self._intake = MessageIntake(
            self,
            store,
            self._tasks,
            self._turns,
            agents,
            push=push,
            working=working,
            gate=gate,
            ledger=ledger,
            observer=observer,
        )

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["Engine"]:
        """Open the store, recover interrupted tasks, and accept requests until the block ends.

        When the block ends, running turns have `stop_grace` seconds to end; after an exception or a cancellation they have no
        time. Tasks that are still running then fail and keep the text so far. All events are persisted.

        Raises:
            StoreError: The store cannot be opened.
        """
        await self._store.open()
        self._turns.stopping = False
        self.stop_requested = anyio.Event()
        try:
            # The outermost context, so that webhooks receive the last event too.
            push = self._push.running(self.get_task, self.snapshot) if self._push else nullcontext()
            async with (
                self._membership(),
                push,
                self._agents.running(),
                anyio.create_task_group() as writing,
            ):
                writing.start_soon(self.writer.run)
                grace = anyio.CancelScope()
                writing.start_soon(self._stop_on_request, grace)
                ending_failed = anyio.CancelScope()
                writing.start_soon(self._end_failed, ending_failed)
                async with anyio.create_task_group() as self._turns.group:
                    await self._interrupted.recover_all()
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
            self._turns.group = None
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

        A message to a running task waits until the current turn ends. The task then continues with the next turn. If the task
        fails or is canceled, the waiting messages are not processed.

        Args:
            request: The message, and the configuration of its response.
            owner: The caller.
            call: The context of the request.
            preceding: Earlier messages of a conversation that is new for this server. They are used for a new task only.

        Returns:
            A subscription to the task, whose first event is the task. If the handler responds with a message instead of a
            task, this message. It is not stored, so a repeated request creates another message.

        Raises:
            TaskNotFoundError: The message names a task that the caller does not have.
            UnsupportedOperationError: The task of the message has ended.
            PushNotificationNotSupportedError: The request has a webhook, but push notifications are disabled.
            BlockedMessageError: An input filter blocks the message.
            InvalidParamsError: The task of the message belongs to another conversation, the webhook of the request cannot
                be called, or ``call.send_key`` was used for another message.
            RateLimitError: The caller has too many running tasks, or too many messages wait for the task.
            OverloadedError: The server has too many running tasks, is stopping, or was not started.
            StoreError: The store cannot persist events at present.
        """
        checked = (request.message, *preceding)
        await self._agents.input_filter(call.agent).check(checked, request.metadata, call.record)
        return await self._intake.start(request, owner, call, preceding)

    def placing(self, context_id: str, owner: str, agent: str = "") -> AbstractAsyncContextManager[object]:
        """Return the lock under which a message is placed among those of a conversation and its branches, and accepted.

        There is none for a handler that may respond directly: it accepts a message with its first update only.

        Args:
            context_id: The conversation, or one of its branches.
            owner: The caller.
            agent: As of `CallContext`.
        """
        if self._agents.find(agent).handler.replies_directly:
            return nullcontext()
        return self._placing_lock(owner, root_of(context_id))

    async def accepted_messages(self, context_id: str, owner: str, limit: int) -> AcceptedMessages:
        """Return the messages of a conversation as `WaitingTurns.accepted`."""
        return await self._waiting_turns.accepted(context_id, owner, limit)

    async def cancel_task(self, task_id: str, owner: str = "") -> Task:
        """Cancel a task, close the connection to the provider, and return the task in the state CANCELED.

        Raises:
            TaskNotFoundError: The caller has no such task.
            TaskNotCancelableError: The task has ended already.
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
        return await self.read(active)

    async def delete_task(self, task_id: str, owner: str) -> None:
        """Delete a task with its events, webhooks and messages. If the task has not ended, cancel it first.

        Before, cancel the tasks that wait for it (`WaitingTurns.dependents`), the newest first: their turns would begin with
        the content of the task.

        Cancelling this call before it returns may leave a canceled task, or content in the log of the database; as after a
        crash, the store deletes the remaining events of a deleted task (`StoreWrites.delete_task`).

        Raises:
            TaskNotFoundError: The caller has no such task.
            StoreError: The store does not work at present.
        """
        context_id = (await self._tasks.find(task_id, owner)).record.context_id
        async with self._placing_lock(owner, root_of(context_id)):
            task = await self.snapshot(task_id, owner)
            if not (task.status.state.terminal or task.status.state.interrupted):
                await self._cancel_dependents(context_id, owner, task)
            await self._delete_task(task_id, owner)
        await self._store.purge()

    async def delete_conversation(self, context_id: str, owner: str) -> None:
        """Delete every task of a conversation as `delete_task`; do nothing if the caller has no such conversation.

        Raises:
            StoreError: The store does not work at present; some of the tasks may be deleted.
        """
        is_changed = False
        async with self._placing_lock(owner, root_of(context_id)):
            await self._cancel_dependents(context_id, owner)
            while found := await self._store.list_conversation_tasks(context_id, owner, DELETED_AT_ONCE):
                is_changed = True
                for task_id in found:
                    with suppress(TaskNotFoundError):  # deleted meanwhile
                        await self._delete_task(task_id, owner)
        if is_changed:
            await self._store.purge()

    async def put_record(
        self, task: Task, owner: str, name: str, *, may_create: bool = True, agent: str = ""
    ) -> bool:
        """Persist a task that has ended and ran no turn, in place of the caller's record with the same name.

        Lists do not have the task. Of concurrent calls, the last one persists.

        Args:
            task: The task.
            owner: The caller.
            name: The owner's name for the task, in place of its id.
            may_create: As for `Store.put_record`.
            agent: As of `CallContext`.

        Returns:
            Whether the record is persisted; see `Store.put_record`.

        Raises:
            BlockedMessageError: An input filter blocks the metadata of the task.
            StoreError: It cannot be persisted.
        """
        await self._agents.input_filter(agent).check((), task.metadata)
        task = task.model_copy(update={"id": id_of_named(self._store.keys, name, owner)})
        return await self._store.put_record(task, owner, may_create=may_create)

    async def add_messages(
        self, task: Task, messages: Sequence[Message], owner: str, agent: str = ""
    ) -> None:
        """Add messages to a conversation, with a task that has ended and ran no turn. Lists do not have the task.

        Args:
            task: The task.
            messages: The messages, oldest first.
            owner: The caller.
            agent: As of `CallContext`.

        Raises:
            BlockedMessageError: An input filter blocks a message.
            StoreError: They cannot be persisted.
        """
        await self._agents.input_filter(agent).check(messages, task.metadata)
        ids = {"context_id": task.context_id, "task_id": task.id}
        active = ActiveTask(TaskRecord(task), owner, TaskLog())
        event = active.record.submitted()
        write = TaskWrite(
            task.id,
            owner,
            task.context_id,
            (event,),
            active.record.snapshot(),
            [message.model_copy(update=ids) for message in messages],
            task.status.timestamp,
            is_listed=False,
        )

        def publish(events: Sequence[Event]) -> None:
            active.log.publish(events)
            self._turns.end_log(active)

        self._tasks.add(active)
        self.writer.put(write, publish, partial(self._turns.fail, active))
        await self._tasks.until_kept(active, event.number)

    async def replace_message(
        self, context_id: str, current: Message, message: Message | None, owner: str
    ) -> bool:
        """Replace a message of a conversation, or delete it when None; tasks that have it are not changed.

        Returns:
            Whether the message was replaced; False if it has changed meanwhile.

        Raises:
            StoreError: The store does not work at present.
        """
        is_replaced = await self._store.replace_message(context_id, owner, current, message)
        await self._store.purge()
        return is_replaced

    async def _cancel_dependents(self, context_id: str, owner: str, task: Task | None = None) -> None:
        for task_id in reversed(await self._waiting_turns.dependents(context_id, owner, task)):
            with suppress(TaskNotFoundError, TaskNotCancelableError):  # deleted or ended meanwhile
                await self.cancel_task(task_id, owner)

    async def _delete_task(self, task_id: str, owner: str) -> None:
        if self._push is not None:
            await self._push.delete_of_operator(task_id, owner)
        try:
            task = await self.cancel_task(task_id, owner)
        except TaskNotCancelableError:
            task = await self.snapshot(task_id, owner)
        try:
            existed = await self._store.delete_task(task.id, owner)
        finally:  # it may be deleted although its events are not
            with anyio.CancelScope(shield=True):
                await self._forget(task.id, owner)
        if not existed:
            raise TaskNotFoundError(metadata={"taskId": task_id})

    async def set_webhook(
        self, config: TaskPushNotificationConfig, owner: str, dialect: str
    ) -> TaskPushNotificationConfig:
        """Set a webhook of a task, which receives the events from now on; see `PushNotifier.create`.

        Raises:
            TaskNotFoundError: The caller has no such task.
            PushNotificationNotSupportedError: Notifications are disabled.
            InvalidParamsError: The URL cannot be called, or the task has too many webhooks.
            StoreError: The webhook cannot be persisted.
        """
        if self._push is None:
            raise PushNotificationNotSupportedError
        task_id, after, is_over = await self.progress_of(config.task_id, owner)
        config = config.model_copy(update={"task_id": task_id})
        return await self._push.create(config, owner, dialect=dialect, after=after, is_over=is_over)

    async def delete_webhook(self, task_id: str, config_id: str, owner: str) -> None:
        """Delete a webhook of a task; see `PushNotifier.delete`.

        Raises:
            TaskNotFoundError: The caller has no such task.
            PushNotificationNotSupportedError: Notifications are disabled.
            StoreError: The webhook cannot be deleted.
        """
        if self._push is None:
            raise PushNotificationNotSupportedError
        task_id, *_ = await self.progress_of(task_id, owner)
        await self._push.delete(task_id, config_id)

    # --- overridden by the engine of a cluster ------------------------------------------------------------------

    async def _forget(self, task_id: str, owner: str) -> None:
        """Drop a deleted task and its webhooks from memory; its streams end."""
        self._tasks.remove(task_id, owner)
        if self._push is not None:
            self._push.drop(task_id)

    def _remote_tasks(self) -> RemoteTasks | None:
        """Return an object that accesses the tasks of other processes; None for a single process."""
        return None

    def _conversation(self, active: ActiveTask) -> AbstractAsyncContextManager[object]:
        """Return the lock of a conversation. A turn holds this lock, so that no other turn of the conversation runs."""
        return self._turns.conversation(active)

    def _placing_lock(self, owner: str, key: str) -> AbstractAsyncContextManager[object]:
        return self._placing.setdefault((owner, key), anyio.Lock())

    async def _is_written_here(self, active: ActiveTask) -> bool:
        """Return whether no other process has taken over a task of this one."""
        return True

    def _membership(self) -> AbstractAsyncContextManager[object]:
        """Return a context that is entered after the store is opened, and left after all events are persisted."""
        return nullcontext()

    # --- health -------------------------------------------------------------------------------------------------

    @property
    def events_waiting(self) -> int:
        """Return the number of events that wait for a commit."""
        return self.writer.waiting

    async def health(self) -> Health:
        """Check whether the server can accept and persist messages. Takes at most `HEALTH_TIMEOUT` seconds; never raises."""
        problems: dict[str, str] = {}
        if self._turns.group is None:
            problems["engine"] = "not running"
        elif self._turns.stopping or self.stop_requested.is_set():
            problems["engine"] = "stopping"
        problem = "it does not respond"
        with anyio.move_on_after(HEALTH_TIMEOUT):
            try:
                await self._store.check()
                problem = "the last transaction failed" if self.writer.last_error is not None else ""
            except StoreError as error:
                logger.warning("the store is not ready: %s", error)
                problem = "it reports an error"
        if problem:
            problems["store"] = problem
        return Health(problems, ("engine", "store"))

    def direct_call(
        self, owner: str, model: Model, agent: str = ""
    ) -> AbstractAsyncContextManager[DirectCall]:
        """Record a call to a model that belongs to no task, as `UsageLedger.direct_call`."""
        return self._ledger.direct_call(
            owner, model, lambda record: self._turns.keep_usage(owner, (record,)), agent
        )

    # --- start and stop -----------------------------------------------------------------------------------------

    async def _stop_on_request(self, grace: anyio.CancelScope) -> None:
        await self.stop_requested.wait()
        self.stop(let_finish=True)
        with grace:  # cancelled as soon as all turns have ended
            await anyio.sleep(self._stop_grace)
        self.writer.stop_retries()
        self.stop()

    def stop(self, *, let_finish: bool = False) -> None:
        """Reject new messages and fail all running turns, which keep their text. All streams then end.

        Args:
            let_finish: True to let running turns finish.
        """
        self._turns.stopping = True
        for active in self._tasks.all():
            if not active.running:
                self._turns.end_log(active)
            elif not let_finish:
                active.ending = active.ending or failed_because(
                    "the server was stopped before the response was complete"
                )
                active.scope.cancel()

    async def _end_failed(self, scope: anyio.CancelScope) -> None:
        with scope:
            await self._tasks.end_failed()

    def _end_lost(self, active: ActiveTask) -> None:
        self._turns.end(active, failed_because("the task store failed; later events of the task are lost"))
