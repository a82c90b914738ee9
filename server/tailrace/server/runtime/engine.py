"""The engine runs the tasks of a server. All protocols use it to start, find, cancel and delete tasks.

A turn runs in the task group of the engine, not in the asyncio task of a request. It therefore continues if the client
disconnects. Each event is applied to the `TaskRecord`, stored by the `GroupWriter`, and then published to the `TaskLog`.
"""

import logging
import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from weakref import WeakValueDictionary

import anyio

from tailrace.server.runtime.active_task import DEFAULT_CALL, ActiveTask, CallContext, Subscription
from tailrace.server.runtime.conversation_edits import ConversationEdits
from tailrace.server.runtime.conversation_lock import ConversationLocks
from tailrace.server.runtime.external_ids import ExternalIds
from tailrace.server.runtime.handlers import Handler
from tailrace.server.runtime.health import Health
from tailrace.server.runtime.limits import Quota
from tailrace.server.runtime.message_intake import MessageIntake
from tailrace.server.runtime.observer import NO_OBSERVER, Observer
from tailrace.server.runtime.recovery import InterruptedTasks
from tailrace.server.runtime.served_agents import ServedAgents
from tailrace.server.runtime.task_access import TaskAccess
from tailrace.server.runtime.task_registry import TaskRegistry, TasksOfOtherProcesses
from tailrace.server.runtime.turn_ending import failed_because
from tailrace.server.runtime.turn_preparation import TurnPreparation
from tailrace.server.runtime.turns import TurnRunner
from tailrace.server.runtime.upstream_gate import UpstreamGate
from tailrace.server.runtime.usage_ledger import DirectCall, UsageLedger
from tailrace.server.runtime.waiting_turns import AcceptedMessages, WaitingTurns, root_of
from tailrace.server.runtime.webhooks.delivery import PushNotifier
from tailrace.server.store.secret_keys import SecretKeys
from tailrace.server.store.store import Store
from tailrace.server.store.writer import GroupWriter
from tailrace.streaming.a2a.errors import (
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
)
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Message, Task
from tailrace.streaming.a2a.requests import SendMessageRequest, TaskPushNotificationConfig
from tailrace.streaming.task.updates import StatusUpdate
from tailrace.wrappers import StoreError
from tailrace.wrappers.model import Model

logger = logging.getLogger("tailrace.server")

DELETION_BATCH = 100
"""Number of tasks that `Engine.delete_conversation` lists at a time."""

HEALTH_TIMEOUT = 2.0
"""Timeout in seconds for a health check of the store."""


class Engine(TaskAccess):
    """Runs the tasks of a server.

    `TaskAccess` contains the operations that read tasks. `MessageIntake` accepts messages.

    Args:
        agents: The agents, or the handler of the only agent. `running` starts and stops them.
        max_history_messages: Maximum number of messages of a conversation that a turn receives.
        max_lag: Maximum number of events by which a subscriber may lag. A subscriber that lags further receives a snapshot.
        restart_interrupted: True to restart tasks that a crash or a stop interrupted; False to fail them. The handler of a
            restarted task receives the message and its options, but not the other fields of the request.
        push: Delivers notifications to webhooks; None to disable push notifications. `running` starts and stops it.
        running_tasks: Limits the number of running tasks; None for no limit.
        gate: Limits the number of concurrent calls to the provider; None for no limit. While too many calls wait, messages are
            rejected.
        max_turn_seconds: Maximum duration of a turn in seconds; 0 for no limit.
        max_context_wait: Maximum time in seconds that a task waits for earlier tasks of its conversation; 0 for no limit.
        parallel_tasks: True to run the tasks of a conversation in parallel, unless the caller requests otherwise.
        max_event_bytes: Maximum size of an update from a handler in bytes; 0 for no limit.
        stop_grace: Time in seconds that running turns have to end when the engine stops.
        keys: The keys of the installation, from which ids for other systems are derived. If None, each process derives different
            ids from a random secret.
        ledger: Records model calls; None for a ledger without prices.
        observer: Receives notifications of turns and transactions.
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
        running_tasks: Quota | None = None,
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
        self._max_history = max_history_messages
        self._may_suspend = restart_interrupted and store.is_durable
        self._agents = agents = ServedAgents.from_handler(agents)
        self._push = push
        self.writer = GroupWriter(store, commit_failed=observer.commit_failed)
        self._waiting_turns = WaitingTurns(self, store, self._tasks)
        self._conversation_locks = ConversationLocks()
        self._preparation = TurnPreparation(
            agents,
            store,
            self._waiting_turns.earlier_messages,
            ExternalIds(keys),
            max_history=max_history_messages,
            max_wait=max_context_wait or math.inf,
            parallel=parallel_tasks,
            max_event_bytes=max_event_bytes,
        )
        self._assignment_locks: WeakValueDictionary[tuple[str, str], anyio.Lock] = WeakValueDictionary()
        self._turns = TurnRunner(
            agents,
            self._preparation,
            self.writer,
            self._tasks.drop_failed,
            self._conversation,
            push and push.notify,
            self._is_written_here,
            max_seconds=max_turn_seconds or math.inf,
            max_event_bytes=max_event_bytes,
            ledger=ledger,
            observer=observer,
        )
        self.edits = ConversationEdits(
            store, agents, self._tasks, self._turns, self.writer, self._assignment_lock
        )
        self._interrupted = InterruptedTasks(
            store, agents, self._tasks, self._turns, ledger, rerun=restart_interrupted
        )
        self._intake = MessageIntake(
            self,
            store,
            self._tasks,
            self._preparation,
            self._turns,
            agents,
            push=push,
            task_quota=running_tasks,
            gate=gate,
            ledger=ledger,
            observer=observer,
        )

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["Engine"]:
        """Open the store, recover interrupted tasks and accept requests until the block ends.

        When the block ends, running turns have ``stop_grace`` seconds to end. Then they are stopped (see `stop`). If the block
        ends with an exception or a cancellation, turns are stopped immediately. Events of stopped turns are stored.

        Raises:
            StoreError: The store cannot be opened or read.
            TailraceError: A resource of an agent is not available.
        """
        await self._store.open()
        self._turns.stopping = False
        self.stop_requested = anyio.Event()
        try:
            # Webhooks stop last, so that they receive the last events.
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
        call: CallContext = DEFAULT_CALL,
        *,
        preceding: Sequence[Message] = (),
    ) -> Subscription | Message:
        """Accept a caller's message: start a task, continue a task, or respond directly.

        A message to a running task waits for the end of the current turn. If the task fails, or is rejected or cancelled, the
        waiting messages are not processed.

        Args:
            request: The message and the configuration of the response.
            owner: The caller.
            call: The context of the request.
            preceding: Earlier messages of a conversation that is new to this server. They are only used for a new task.

        Returns:
            A subscription to the task; its first event is the task. If the handler responds directly, the message of the handler.
            The server does not store this message, so a repeated request creates another message.

        Raises:
            TaskNotFoundError: The task of the message does not exist or belongs to another caller.
            UnsupportedOperationError: The task of the message has already ended, or the server does not have the agent.
            PushNotificationNotSupportedError: The request has a webhook, but push notifications are disabled.
            BlockedMessageError: An input filter blocks the message, or an earlier message of the conversation that another agent
                received.
            ContentTypeNotSupportedError: The agent does not accept the media type of one of these messages.
            InvalidParamsError: A part of the request is invalid, the task of the message belongs to another conversation or
                agent, or ``call.send_key`` was used for another message.
            RateLimitError: A limit or a budget of the caller is reached, or too many messages to the task wait.
            OverloadedError: A limit of the server is reached, the server is stopping or was not started, the resources of the
                agent have failed, or the budgets cannot be read.
            InternalError: An input filter failed, or the server stopped before the message was persisted.
            StoreError: The store is not available at present.
        """
        self._agents.check_available(call.agent)
        checked = (request.message, *preceding)
        await self._agents.check(call.agent, checked, request.metadata, call.record)
        context_id = request.message.context_id
        if call.agent and context_id and self._agents.restricts_content(call.agent):
            accepted = await self.accepted_messages(context_id, owner, self._max_history)
            await self._agents.check_conversation(call.agent, (*accepted.begun, *accepted.waiting))
        return await self._intake.start(request, owner, call, preceding)

    def assignment_lock(
        self, context_id: str, owner: str, agent: str = ""
    ) -> AbstractAsyncContextManager[object]:
        """Return the lock to hold while a message is assigned to a conversation or branch and accepted.

        For a handler that may respond directly, the context manager does nothing. Otherwise, the lock would be held until the
        first update of the handler.

        Args:
            context_id: Id of the conversation or of one of its branches.
            owner: The caller.
            agent: The name of the agent; see `CallContext`.
        """
        if self._agents.find(agent).handler.replies_directly:
            return nullcontext()
        return self._assignment_lock(owner, root_of(context_id))

    async def accepted_messages(self, context_id: str, owner: str, limit: int) -> AcceptedMessages:
        """Return the messages of a conversation; see `WaitingTurns.accepted`."""
        return await self._waiting_turns.accepted(context_id, owner, limit)

    async def cancel_task(self, task_id: str, owner: str = "") -> Task:
        """Cancel a task, close its connection to the provider, and return the task in the state CANCELED.

        Raises:
            TaskNotFoundError: The task does not exist or belongs to another caller.
            TaskNotCancelableError: The task has already ended.
            StoreError: The status cannot be stored.
            InternalError: The server stopped before the status was persisted.
        """
        active = await self._tasks.find(task_id, owner)
        if active.record.state.terminal:
            raise TaskNotCancelableError(metadata={"taskId": task_id})
        canceled = StatusUpdate(TaskState.CANCELED)
        if active.running:
            active.ending = canceled
            active.scope.cancel()
            await self._tasks.wait_until_ended(active)
        else:
            self._turns.end(active, canceled)
        await self._tasks.wait_until_persisted(active, active.record.number)
        if active.record.state is not TaskState.CANCELED:
            raise TaskNotCancelableError(metadata={"taskId": task_id})
        return await self.read(active)

    async def delete_task(self, task_id: str, owner: str) -> None:
        """Delete a task with its events, webhooks and messages. If the task has not ended, cancel it before the deletion.

        Tasks whose turns wait for this task (`WaitingTurns.dependents`) are cancelled before this task, newest first. Otherwise,
        the history of their turns would contain the deleted content.

        If this method fails or is cancelled, the task may be cancelled but not deleted, or the write-ahead log of the database
        may still contain deleted content. The store later deletes the remaining events of a deleted task
        (`StoreWrites.delete_task`).

        Raises:
            TaskNotFoundError: The task does not exist or belongs to another caller.
            StoreError: The store is not available at present.
        """
        context_id = await self.context_of(task_id, owner)
        async with self._assignment_lock(owner, root_of(context_id)):
            task = await self.snapshot(task_id, owner)
            if not (task.status.state.terminal or task.status.state.interrupted):
                await self._cancel_dependents(context_id, owner, task)
            await self._delete_task(task_id, owner)
        await self._store.purge()

    async def delete_conversation(self, context_id: str, owner: str) -> None:
        """Delete all tasks of a conversation as `delete_task` does. If the caller does not have the conversation, do nothing.

        Raises:
            StoreError: The store is not available at present. Some of the tasks may have been deleted.
        """
        is_changed = False
        async with self._assignment_lock(owner, root_of(context_id)):
            await self._cancel_dependents(context_id, owner)
            while task_ids := await self._store.list_conversation_tasks(context_id, owner, DELETION_BATCH):
                is_changed = True
                for task_id in task_ids:
                    with suppress(TaskNotFoundError):  # deleted in the meantime
                        await self._delete_task(task_id, owner)
        if is_changed:
            await self._store.purge()

    async def _cancel_dependents(self, context_id: str, owner: str, task: Task | None = None) -> None:
        for task_id in reversed(await self._waiting_turns.dependents(context_id, owner, task)):
            with suppress(TaskNotFoundError, TaskNotCancelableError):  # deleted or ended in the meantime
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
        finally:  # after an error, the task may be deleted although its events are not
            with anyio.CancelScope(shield=True):
                await self._forget(task.id, owner)
        if not existed:
            raise TaskNotFoundError(metadata={"taskId": task_id})

    async def set_webhook(
        self, config: TaskPushNotificationConfig, owner: str, dialect: str
    ) -> TaskPushNotificationConfig:
        """Set a webhook of a task for future events; see `PushNotifier.create`.

        Raises:
            TaskNotFoundError: The task does not exist or belongs to another caller.
            PushNotificationNotSupportedError: Push notifications are disabled.
            InvalidParamsError: A field is invalid, the URL is not permitted, or the task has too many webhooks.
            StoreError: The webhook cannot be stored.
        """
        if self._push is None:
            raise PushNotificationNotSupportedError
        task_id, after, has_ended = await self.progress_of(config.task_id, owner)
        config = config.model_copy(update={"task_id": task_id})
        return await self._push.create(config, owner, dialect=dialect, after=after, has_ended=has_ended)

    async def delete_webhook(self, task_id: str, config_id: str, owner: str) -> None:
        """Delete a webhook of a task; see `PushNotifier.delete`.

        Raises:
            TaskNotFoundError: The task does not exist or belongs to another caller.
            PushNotificationNotSupportedError: Push notifications are disabled.
            StoreError: The webhook cannot be deleted.
        """
        if self._push is None:
            raise PushNotificationNotSupportedError
        task_id, *_ = await self.progress_of(task_id, owner)
        await self._push.delete(task_id, config_id)

    # --- overridden by `ClusterEngine` ------------------------------------------------------------------

    async def _forget(self, task_id: str, owner: str) -> None:
        """Remove a deleted task and its webhooks from memory, and end its streams."""
        self._tasks.remove_deleted(task_id, owner)
        if self._push is not None:
            self._push.drop(task_id)

    def _remote_tasks(self) -> TasksOfOtherProcesses | None:
        """Return access to the tasks of other processes; None if there is only one process."""
        return None

    def _conversation(self, active: ActiveTask) -> AbstractAsyncContextManager[object]:
        """Return the lock of a task's conversation (see `TurnRunner`)."""
        return self._conversation_locks.of(active)

    def _assignment_lock(self, owner: str, key: str) -> AbstractAsyncContextManager[object]:
        return self._assignment_locks.setdefault((owner, key), anyio.Lock())

    async def _is_written_here(self, active: ActiveTask) -> bool:
        """Return False if another process has taken over a task."""
        return True

    def _membership(self) -> AbstractAsyncContextManager[object]:
        """Return a context manager in which the node belongs to a cluster. It exits when all events are stored."""
        return nullcontext()

    # --- health -------------------------------------------------------------------------------------------------

    @property
    def events_waiting(self) -> int:
        """The number of events that are not committed yet."""
        return self.writer.waiting

    async def health(self) -> Health:
        """Check whether the server can accept and store messages.

        The check takes at most `HEALTH_TIMEOUT` seconds and raises no error.
        """
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
        failed = len(self._agents.failed)
        warnings = {"agents": f"the resources of {failed} failed"} if failed else {}
        return Health(problems, ("engine", "store", *warnings), warnings)

    def direct_call(
        self, owner: str, model: Model, agent: str = ""
    ) -> AbstractAsyncContextManager[DirectCall]:
        """Record a model call that belongs to no task; see `UsageLedger.direct_call`."""
        return self._ledger.direct_call(
            owner, model, lambda record: self._turns.persist_usage(owner, (record,)), agent
        )

    # --- start and stop -----------------------------------------------------------------------------------------

    async def _stop_on_request(self, grace: anyio.CancelScope) -> None:
        await self.stop_requested.wait()
        self._agents.release_deadline = anyio.current_time() + self._stop_grace
        self.stop(let_finish=True)
        with grace:  # cancelled when all turns have ended
            await anyio.sleep(self._stop_grace)
        self.writer.stop_retries()
        self.stop()

    def stop(self, *, let_finish: bool = False) -> None:
        """Reject new messages, and end all running turns. Their published text remains.

        A turn is suspended if another process can continue it. This requires ``restart_interrupted`` and a durable store.
        Otherwise, the turn fails.

        Args:
            let_finish: True to let running turns finish.
        """
        self._turns.stopping = True
        for active in self._tasks.all_in_memory():
            if not active.running:
                self._turns.end_log(active)
            elif not let_finish:
                active.suspended = self._may_suspend and bool(active.record.number) and active.ending is None
                if not active.suspended:
                    active.ending = active.ending or failed_because(
                        "the server was stopped before the response was complete"
                    )
                active.scope.cancel()

    async def _end_failed(self, scope: anyio.CancelScope) -> None:
        with scope:
            await self._tasks.end_failed()

    def _end_lost(self, active: ActiveTask) -> None:
        self._turns.end(active, failed_because("the task store failed; later events of the task are lost"))
