"""Takes over the tasks of dead nodes."""

from collections.abc import Iterator

from tailrace.server.cluster.broker import Broker
from tailrace.server.cluster.claims import Claims
from tailrace.server.cluster.node import Node
from tailrace.server.cluster.ownership import conversation_claim
from tailrace.server.cluster.store import ClusterStore
from tailrace.server.runtime.active_task import ActiveTask
from tailrace.server.runtime.recovery import InterruptedTasks
from tailrace.server.runtime.task_registry import TaskRegistry
from tailrace.server.runtime.turn_preparation import TurnPreparation
from tailrace.server.runtime.webhooks.delivery import PushNotifier
from tailrace.wrappers import StoreError


class TakeOver:
    """Claims the tasks and webhooks of dead nodes for this node, and recovers the tasks.

    Args:
        store: The store that all nodes share.
        node: This node.
        broker: The broker that all nodes share.
        claims: The claims of this node.
        tasks: The tasks in memory.
        interrupted: Recovers tasks.
        preparation: Prepares the turns.
        push: Delivers notifications to webhooks; None if they are disabled.
    """

    def __init__(
        self,
        store: ClusterStore,
        node: Node,
        broker: Broker,
        claims: Claims,
        tasks: TaskRegistry,
        interrupted: InterruptedTasks,
        preparation: TurnPreparation,
        push: PushNotifier | None,
    ) -> None:
        self._store = store
        self._node = node
        self._broker = broker
        self._claims = claims
        self._tasks = tasks
        self._interrupted = interrupted
        self._preparation = preparation
        self._push = push
        self._known_nodes: set[str] | None = None
        # The callers, by task id, of tasks that this node has claimed but not recovered yet.
        self._pending: dict[str, str] = {}

    def is_pending(self, task_id: str) -> bool:
        """Return True if this node has claimed a task but not recovered it yet."""
        return task_id in self._pending

    def forget_tasks(self) -> None:
        """Forget the claimed tasks, because they no longer belong to this node."""
        self._pending.clear()

    def forget_nodes(self) -> None:
        """Forget the known nodes, so that the next `run` checks the webhooks of all dead nodes."""
        self._known_nodes = None

    async def run(self) -> None:
        """Take over all tasks of dead nodes, and the webhooks of nodes that have died since the last call.

        Raises:
            StoreError: The store is not available at present.
        """
        while self._broker.is_usable:  # some events of dead nodes are only in the broker
            taken, webhooks = await self._store.ownership.take_over()
            self._pending.update(taken)
            if self._push is not None:
                self._push.schedule(webhooks)
            if not self._pending:
                break
            await self._recover()
        present = await self._store.ownership.node_ids()
        if self._known_nodes is None or self._known_nodes - present:
            found = await self._store.ownership.take_over_webhooks()
            if self._push is not None:
                self._push.schedule(found)
        self._known_nodes = present

    async def _recover(self) -> None:
        # Since a failed recovery, another node may have taken over a task.
        owned = await self._store.ownership.owned(self._pending)
        self._pending = {each: owner for each, owner in self._pending.items() if each in owned}
        unrecovered = dict(self._pending)
        for task_id, owner in unrecovered.items():
            await self._store.streams.fence(self._node.id, task_id)
            self._store.record_fence(task_id)
            self._tasks.end_following(task_id, owner)
        try:
            interrupted = await self._interrupted.read(self._pop_pending())
            unrecovered = {active.record.id: active.owner for active in interrupted}
            for active in interrupted:
                await self._claim_conversation(active)
                await self._interrupted.recover(active)
                del unrecovered[active.record.id]
        except StoreError:
            self._pending |= unrecovered
            raise

    def _pop_pending(self) -> Iterator[tuple[str, str]]:
        """Remove the claimed tasks one by one, and yield their ids and callers.

        A removed task no longer counts as a task of another node.
        """
        for task_id, owner in list(self._pending.items()):
            self._pending.pop(task_id, None)
            yield task_id, owner

    async def _claim_conversation(self, active: ActiveTask) -> None:
        """Claim the conversation of a turn that had this claim when its node died."""
        if active.waiting and not self._preparation.in_parallel(active):
            name = conversation_claim(active.record.context_id)
            active.holds_conversation_lock = await self._store.ownership.claim(
                active.owner, name, active.record.id
            )
