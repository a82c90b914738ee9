"""Engine of a cluster node. It also handles tasks that run on other nodes.

Each task is written by one node until the task or the node ends. PostgreSQL records this node. Other nodes forward every write
operation on the task (message, cancellation, webhook) to it. All nodes can read a task: they follow its events in the broker and
in PostgreSQL.

A *claim* is a name that only one node can hold at a time, for example the name of a conversation (`TaskOwnership.claim`).
"""

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import msgspec

from tailrace.server.cluster.broker import Broker
from tailrace.server.cluster.claims import Claims
from tailrace.server.cluster.message_authentication import Authentication
from tailrace.server.cluster.node import HEARTBEATS_PER_TTL, Node
from tailrace.server.cluster.node_commands import (
    Cancel,
    Command,
    Commands,
    DeleteWebhook,
    GetSnapshot,
    NoReply,
    RemoveFromMemory,
    Send,
    Sent,
    SetWebhook,
    WrongNodeError,
)
from tailrace.server.cluster.ownership import TaskLocation, conversation_claim
from tailrace.server.cluster.store import ClusterStore
from tailrace.server.cluster.take_over import TakeOver
from tailrace.server.cluster.task_follower import TaskFollower
from tailrace.server.runtime.active_task import DEFAULT_CALL, ActiveTask, CallContext, Subscription
from tailrace.server.runtime.client_task_ids import possible_ids
from tailrace.server.runtime.engine import HEALTH_TIMEOUT, Engine
from tailrace.server.runtime.handlers import Handler
from tailrace.server.runtime.health import Health
from tailrace.server.runtime.limits import OverloadedError
from tailrace.server.runtime.served_agents import ServedAgents
from tailrace.server.runtime.task_registry import TasksOfOtherProcesses
from tailrace.server.store.store import NotOwnedError, StoredTask
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.models import Message, Task
from tailrace.streaming.a2a.requests import SendMessageRequest, TaskPushNotificationConfig
from tailrace.streaming.a2a.stream_extension import extension_metadata
from tailrace.wrappers import StoreError

logger = logging.getLogger("tailrace.server")

MAX_BEAT_INTERVAL = 2.0
"""Maximum interval between two heartbeats of a node in seconds."""

MAX_MOVES = 5
"""Maximum number of attempts to find the node that writes a task, if the task moves between nodes."""


class ClusterEngine(Engine):
    """Engine of one of several nodes that share a store.

    Args:
        store: The store that all nodes share.
        agents: The same as for `Engine`.
        node: This node.
        broker: The broker that all nodes share.
        authentication: Signs and verifies messages between nodes.
        options: The same as for `Engine`.
    """

    def __init__(
        self,
        store: ClusterStore,
        agents: Handler | ServedAgents,
        *,
        node: Node,
        broker: Broker,
        authentication: Authentication,
        **options: Any,
    ) -> None:
        self._shared = store
        self._node = node
        self._broker = broker
        self._following = TaskFollower(store, store.streams, self._reload)
        self._commands = Commands(broker, authentication, self._execute_command)
        self._claims = Claims(store.ownership)
        super().__init__(store, agents, **options)
        self._take_over = TakeOver(
            store, node, broker, self._claims, self._tasks, self._interrupted, self._preparation, self._push
        )

    # --- operations ---------------------------------------------------------------------------------------------

    async def start(
        self,
        request: SendMessageRequest,
        owner: str = "",
        call: CallContext = DEFAULT_CALL,
        *,
        preceding: Sequence[Message] = (),
    ) -> Subscription | Message:
        """Start a turn as `Engine.start` does, on the node that writes the task.

        Raises:
            OverloadedError: See `Engine.start`; or that node does not reply, or the task moves repeatedly.
        """
        task_id = request.message.task_id
        if task_id:
            body = request.to_json()
            reply = await self._forward(task_id, owner, lambda each: Send(each, owner, body, call))
            if reply is not None:
                sent = msgspec.msgpack.decode(reply, type=Sent)
                active = await self._tasks.find(sent.task_id, owner)
                first = Event(sent.after, sent.first) if sent.first is not None else None
                subscription = self.subscription(active, sent.after, first)
                subscription.repeated_key = sent.repeated_key
                return subscription
        names = [f"key:{call.send_key}"] if call.send_key else []
        if call.version_of_chosen_ids and task_id:
            names.append(f"task:{task_id}")
        async with AsyncExitStack() as claimed:
            for name in names:
                await claimed.enter_async_context(self._claims.holding(owner, name))
            started = await super().start(request, owner, call, preceding=preceding)
            if names and isinstance(started, Subscription):
                await started.wait_for_start()
            return started

    async def cancel_task(self, task_id: str, owner: str = "") -> Task:
        """Cancel a task as `Engine.cancel_task` does, on the node that writes the task.

        Raises:
            OverloadedError: That node does not reply, or the task moves repeatedly.
        """
        reply = await self._forward(task_id, owner, lambda each: Cancel(each, owner))
        if reply is None:
            return await super().cancel_task(task_id, owner)
        return Task.model_validate_json(reply)

    async def set_webhook(
        self, config: TaskPushNotificationConfig, owner: str, dialect: str
    ) -> TaskPushNotificationConfig:
        """Set a webhook as `Engine.set_webhook` does, on the node that writes the task.

        Raises:
            OverloadedError: That node does not reply, or the task moves repeatedly.
        """
        body = config.to_json()
        reply = await self._forward(
            config.task_id, owner, lambda each: SetWebhook(each, owner, body, dialect)
        )
        if reply is None:
            return await super().set_webhook(config, owner, dialect)
        return TaskPushNotificationConfig.model_validate_json(reply)

    async def delete_webhook(self, task_id: str, config_id: str, owner: str) -> None:
        """Delete a webhook as `Engine.delete_webhook` does, on the node that writes the task.

        Raises:
            OverloadedError: That node does not reply, or the task moves repeatedly.
        """
        reply = await self._forward(task_id, owner, lambda each: DeleteWebhook(each, owner, config_id))
        if reply is None:
            await super().delete_webhook(task_id, config_id, owner)

    async def health(self) -> Health:
        """Return the health as `Engine.health` does. Also check the broker, and whether this node may write."""
        known = await super().health()
        problems = dict(known.problems)
        is_connected = False
        with anyio.move_on_after(HEALTH_TIMEOUT):
            is_connected = self._broker.is_usable and await self._broker.is_available()
        if not is_connected:
            problems["broker"] = "it rejects writes" if self._broker.rejects_writes else "it does not respond"
        if not self._node.may_write:
            problems.setdefault("store", "this node may not write now")
        return Health(problems, (*known.parts, "broker"), known.warnings)

    # --- the node that writes a task ----------------------------------------------------------------------------

    async def _locate(self, task_id: str, owner: str) -> TaskLocation | None:
        """Return the location of a task that another node writes.

        Return None if this node can execute the operation: it writes the task, or the task has ended or does not exist. If the
        task waits for input on a dead node, this node claims the task first.

        Raises:
            OverloadedError: The node of the task is dead, and no other node has taken over the task yet.
        """
        for each in possible_ids(self._shared.keys, task_id, owner):
            active = self._tasks.in_memory(each, owner)
            if active is not None and not active.is_remote:
                return None
            location = await self._shared.ownership.locate(each, owner)
            if location is None:
                continue
            if location.state.terminal:
                return None
            if location.node != self._node.id and location.is_alive:
                return location
            if self._take_over.is_pending(each) or (location.node != self._node.id and location.has_turn):
                raise NoReply(
                    "the server that ran the task is gone, and another one is taking over the task; try again later"
                )
            if location.node != self._node.id:
                webhooks = await self._shared.ownership.claim_task(each)
                if webhooks is None:
                    raise _moving_error()
                if self._push is not None:
                    self._push.schedule([(webhook, True) for webhook in webhooks])
            self._tasks.end_following(each, owner)
            return None
        return None

    async def _forward(self, task_id: str, owner: str, command_of: Callable[[str], Command]) -> bytes | None:
        """Execute a command on the node that writes a task.

        Args:
            task_id: The id that the caller uses for the task.
            owner: The caller.
            command_of: Returns the command for a task id.

        Returns:
            The reply of that node; None if this node can execute the operation.

        Raises:
            OverloadedError: That node does not reply, or the task moves repeatedly.
        """
        for _ in range(MAX_MOVES):
            location = await self._locate(task_id, owner)
            if location is None:
                return None
            try:
                return await self._request_from_node(location, command_of(location.task_id))
            except WrongNodeError:
                continue
        raise _moving_error()

    async def _request_from_node(self, location: TaskLocation, command: Command) -> bytes:
        return await self._commands.send_request(location.node or "", command)

    async def _execute_command(self, command: Command) -> bytes:
        """Execute a command of another node.

        Raises:
            WrongNodeError: This node does not run the task.
        """
        if isinstance(command, RemoveFromMemory):
            await self._forget_here(command.task_id, command.owner)
            return b""
        if await self._locate(command.task_id, command.owner) is not None:
            raise WrongNodeError
        match command:
            case Cancel():
                return (await super().cancel_task(command.task_id, command.owner)).to_json()
            case GetSnapshot():
                return (await super().get_task(command.task_id, command.owner)).to_json()
            case SetWebhook():
                config = TaskPushNotificationConfig.model_validate_json(command.config)
                made = await super().set_webhook(config, command.owner, command.dialect)
                return made.to_json()
            case DeleteWebhook():
                await super().delete_webhook(command.task_id, command.config_id, command.owner)
                return b""
            case Send():
                request = SendMessageRequest.model_validate_json(command.request)
                started = await self.start(request, command.owner, command.call)
                if isinstance(started, Message):  # the handler replied without a task
                    raise WrongNodeError
                first = started.first.body if started.first is not None else None
                sent = Sent(started.task_id, started.after, first, started.repeated_key)
                return msgspec.msgpack.encode(sent)

    # --- tasks of other nodes (`TasksOfOtherProcesses`) ---------------------------------------------------------------------

    def _remote_tasks(self) -> TasksOfOtherProcesses | None:
        return self

    def is_remote(self, stored: StoredTask) -> bool:
        """See `TasksOfOtherProcesses.is_remote`."""
        return stored.node != self._node.id or self._take_over.is_pending(stored.task.id)

    def follow(self, active: ActiveTask) -> None:
        """See `TasksOfOtherProcesses.follow`."""
        self._following.follow(active)

    async def refresh(self, active: ActiveTask) -> None:
        """See `TasksOfOtherProcesses.refresh`."""
        await self._following.refresh(active)

    async def fetch_snapshot(self, stored: StoredTask, owner: str, first: int) -> StoredTask:
        """See `TasksOfOtherProcesses.fetch_snapshot`.

        If no other node writes the task, the snapshot comes from the store, and may lack the content of some deleted events.
        """
        location = await self._shared.ownership.locate(stored.task.id, owner)
        if location is not None and location.is_alive and location.node != self._node.id:
            task = Task.model_validate_json(
                await self._request_from_node(location, GetSnapshot(location.task_id, owner))
            )
            return StoredTask(task, extension_metadata(task.metadata)["number"], stored.node)
        again = await self._shared.load_task(stored.task.id, owner)
        if again is not None and again.number > stored.number:
            return again
        return StoredTask(stored.task, first - 1, stored.node)

    def _reload(self, active: ActiveTask) -> None:
        self._tasks.end_following(active.record.id, active.owner)

    async def _forget(self, task_id: str, owner: str) -> None:
        """Remove a deleted task from the memory of all nodes.

        A node that does not reply detects the deletion later.
        """
        await self._forget_here(task_id, owner)

        async def forget_at(node: str) -> None:
            try:
                await self._commands.send_request(node, RemoveFromMemory(task_id, owner))
            except (NoReply, StoreError) as error:
                logger.warning("a node has a deleted task in memory for a while longer: %s", error)

        async with anyio.create_task_group() as group:
            for node in await self._shared.ownership.node_ids() - {self._node.id}:
                group.start_soon(forget_at, node)

    async def _forget_here(self, task_id: str, owner: str) -> None:
        await super()._forget(task_id, owner)
        self._broker.drop_buffers()

    # --- conversations and other claims -------------------------------------------------------------------------

    def _conversation(self, active: ActiveTask) -> AbstractAsyncContextManager[object]:
        return self._holding_conversation(active)

    @asynccontextmanager
    async def _holding_conversation(self, active: ActiveTask) -> AsyncGenerator[None]:
        owner, name = active.owner, conversation_claim(active.record.context_id)
        async with self._conversation_locks.of(active):
            try:
                # The claim of a new conversation is written together with the first event.
                if not active.holds_conversation_lock:
                    await self._claims.acquire(owner, name, active.record.id)
                    active.holds_conversation_lock = True
                yield
            finally:
                state = active.record.state
                has_ended = active.record.number and (state.terminal or state.interrupted)
                # The write of the last event of the turn has released the claim.
                is_released = has_ended and active.holds_conversation_lock
                active.holds_conversation_lock = False
                # The node that takes over a suspended turn (`ActiveTask.suspended`) also takes over its claim.
                if active.error is not None or not (is_released or active.suspended):
                    await self._claims.release(owner, name)

    def _assignment_lock(self, owner: str, key: str) -> AbstractAsyncContextManager[object]:
        return self._claims.holding(owner, f"placing:{key}")

    async def _is_written_here(self, active: ActiveTask) -> bool:
        # If this machine was paused, other nodes may have declared this node dead.
        try:
            location = await self._shared.ownership.locate(active.record.id, active.owner)
        except StoreError:
            return False
        return location is None or (location.node == self._node.id and location.is_alive)

    # --- this node among the others -----------------------------------------------------------------------------

    def _membership(self) -> AbstractAsyncContextManager[object]:
        return self._joined()

    @asynccontextmanager
    async def _joined(self) -> AsyncGenerator[None]:
        await self._node.join(self._shared.database)
        self._take_over.forget_nodes()
        try:
            async with anyio.create_task_group() as group:
                for each in (
                    self._broker.log_durability_risks,
                    self._broker.watch,
                    self._following.run,
                    self._listen,
                    self._beat,
                    self._run_takeovers,
                ):
                    group.start_soon(each)
                try:
                    yield
                finally:
                    group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                try:
                    await self._node.unregister(self._shared.database)
                except StoreError as error:
                    logger.warning(
                        "the end of this node was not announced; other nodes will detect it: %s", error
                    )
                self._shared.forget_own_tasks()
                self._take_over.forget_tasks()
                await self._broker.close()

    @property
    def _interval(self) -> float:
        return min(MAX_BEAT_INTERVAL, self._node.ttl / HEARTBEATS_PER_TTL)

    async def _listen(self) -> None:
        while True:
            name = self._node.id
            async with anyio.create_task_group() as group:
                group.start_soon(self._commands.run, name)
                await self._node.renamed.wait()
                group.cancel_scope.cancel()

    async def _beat(self) -> None:
        """Write heartbeats until cancelled. If other nodes have declared this node dead, restart it."""
        while True:
            await anyio.sleep(self._interval)
            try:
                # Leave time for a second attempt.
                with anyio.fail_after(max(self._interval, self._node.ttl / 2)):
                    is_alive = await self._node.beat(self._shared.database)
                if not is_alive:
                    await self._restart()
            except (StoreError, TimeoutError) as error:
                logger.warning("the heartbeat of this node failed: %s", str(error) or "no reply")
            except Exception:  # without heartbeats, other nodes declare this node dead
                logger.exception("the heartbeat of this node failed")

    async def _restart(self) -> None:
        """Fail the tasks of this node, because other nodes have taken them over. Then join under a new id."""
        logger.error(
            "other nodes declared this node dead and took over its tasks: it continues under a new name"
        )
        own_tasks = [
            active
            for active in self._tasks.all_in_memory()
            if not active.is_remote and not active.record.state.terminal
        ]
        unpersisted = [active.record.id for active in own_tasks if not active.log.number]
        for active in own_tasks:
            self._turns.fail(active, NotOwnedError("other nodes declared this node dead"))
        if self._push is not None:
            self._push.release_all()
        self._take_over.forget_tasks()
        self._claims.forget_failed_releases()
        self._shared.forget_own_tasks(unpersisted)
        await self._node.join(self._shared.database)

    async def _run_takeovers(self) -> None:
        while True:
            try:
                await self._node.remove_dead_nodes(self._shared.database)
                if self._turns.group is not None and not self._turns.stopping:
                    await self._take_over.run()
                await self._claims.retry_failed_releases()
            except StoreError as error:
                logger.warning("the tasks of dead nodes cannot be taken over at present: %s", error)
            except Exception:
                logger.exception("the tasks of dead nodes cannot be taken over")
            await anyio.sleep(self._interval)


def _moving_error() -> OverloadedError:
    return OverloadedError("the task is moving to another server; try again")
