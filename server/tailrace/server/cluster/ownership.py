"""The ownership of tasks: which node writes a task, delivers to its webhooks, and holds a claim."""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, exists, or_, select, update
from sqlalchemy.dialects.postgresql import insert

from tailrace.server.cluster.node import Node, NodeDatabase
from tailrace.server.store.push_config_rows import PushConfigRows, open_push_configs
from tailrace.server.store.schema import claims, nodes, push_configs, tasks
from tailrace.server.store.store import PushConfig
from tailrace.server.store.task_rows import has_running_turn
from tailrace.streaming.a2a.lifecycle import TaskState

TAKE_OVER_BATCH = 50
"""Maximum number of tasks of dead nodes that one call takes over."""

_WAITING = [state.value for state in TaskState if state.interrupted]


class TaskLocation:
    """The location of a task: the node that writes it.

    Attributes:
        task_id: The id of the task.
        node: The id of the node; None if no node is recorded.
        is_alive: True if the node is alive.
        state: The state of the task in PostgreSQL.
        has_turn: True if a turn is running, or was running when the node ended.
    """

    def __init__(
        self, task_id: str, node: str | None, is_alive: bool, state: TaskState, *, has_turn: bool
    ) -> None:
        self.task_id = task_id
        self.node = node
        self.is_alive = is_alive
        self.state = state
        self.has_turn = has_turn


class TaskOwnership:
    """The ownership of tasks, webhooks and claims: which node may write them.

    Args:
        database: The PostgreSQL database.
        node: This node.
        webhook_rows: Reads rows of webhooks.
    """

    def __init__(self, database: NodeDatabase, node: Node, webhook_rows: PushConfigRows) -> None:
        self._database = database
        self._node = node
        self._webhook_rows = webhook_rows

    async def locate(self, task_id: str, owner: str) -> TaskLocation | None:
        """Return the location of a task; None if the caller ``owner`` has no such task."""
        is_alive = exists().where(nodes.c.id == tasks.c.node).label("is_alive")
        query = select(tasks.c.node, tasks.c.state, is_alive, has_running_turn().label("has_turn"))
        rows = await self._read(query.where(tasks.c.id == task_id, tasks.c.owner == owner))
        if not rows:
            return None
        [row] = rows
        return TaskLocation(
            task_id, row.node, bool(row.is_alive), TaskState(row.state), has_turn=row.has_turn
        )

    async def claim_task(self, task_id: str) -> list[PushConfig] | None:
        """Claim, for this node, a task that waits for input and belongs to no living node.

        Returns:
            The webhooks of the task; None if another node claimed the task first.
        """
        node = self._node.id
        is_claimable = or_(
            tasks.c.node.is_(None), tasks.c.node == node, ~exists().where(nodes.c.id == tasks.c.node)
        )
        where = (tasks.c.id == task_id, tasks.c.state.in_(_WAITING), ~has_running_turn(), is_claimable)

        def work(connection: Connection) -> list[PushConfig] | None:
            if not connection.execute(update(tasks).where(*where).values(node=node)).rowcount:
                return None
            of_task = update(push_configs).where(push_configs.c.task_id == task_id)
            rows = connection.execute(of_task.values(node=node).returning(push_configs)).all()
            return self._webhook_rows.read_all(rows)

        return await self._database.write(work)

    async def take_over(self) -> tuple[list[tuple[str, str]], list[tuple[PushConfig, bool]]]:
        """Claim up to `TAKE_OVER_BATCH` tasks whose turns ran on dead nodes, and the webhooks of these tasks.

        Returns:
            The ids and callers of the tasks, and the webhooks in the format of `load_open_push_configs`.
        """
        node = self._node.id
        orphaned = or_(tasks.c.node.is_(None), ~exists().where(nodes.c.id == tasks.c.node))
        batch = select(tasks.c.id).where(has_running_turn(), orphaned).limit(TAKE_OVER_BATCH)
        if not await self._read(batch):
            return [], []
        unlocked = batch.with_for_update(skip_locked=True).scalar_subquery()
        change = update(tasks).where(tasks.c.id.in_(unlocked)).values(node=node)
        taken_over = change.returning(tasks.c.id, tasks.c.owner)

        def work(connection: Connection) -> tuple[list[tuple[str, str]], list[tuple[PushConfig, bool]]]:
            rows = [(row.id, row.owner) for row in connection.execute(taken_over)]
            connection.execute(delete(claims).where(claims.c.node.not_in(select(nodes.c.id)), ~_is_claimed()))
            # Only the node that runs a task is notified of its events, so it also claims the webhooks.
            of_tasks = push_configs.c.task_id.in_([task_id for task_id, _ in rows])
            return rows, self._assign_webhooks(connection, open_push_configs().where(of_tasks), node)

        return await self._database.write(work)

    async def owned(self, task_ids: Collection[str]) -> set[str]:
        """Return the ids of the given tasks that belong to this node."""
        query = select(tasks.c.id).where(tasks.c.id.in_(list(task_ids)), tasks.c.node == self._node.id)
        return {row.id for row in await self._read(query)}

    async def node_ids(self) -> set[str]:
        """Return the ids of the living nodes."""
        return {row.id for row in await self._read(select(nodes.c.id))}

    async def claim(self, owner: str, name: str, task_id: str | None = None) -> bool:
        """Claim a name for this node. Return False if another living node or another task has the claim.

        Args:
            owner: The caller. Different callers can have claims with the same name.
            name: The claimed name.
            task_id: The task that needs the claim of a conversation; otherwise None. The task keeps the claim until its turn
                ends, even if its node dies.
        """
        node = self._node.id
        taken = insert(claims).values(owner=owner, name=name, node=node, task_id=task_id)
        # SQLAlchemy would not correlate EXISTS with the existing row.
        is_claimable = or_(claims.c.node == node, claims.c.node.not_in(select(nodes.c.id)))
        if task_id is not None:
            is_claimable &= (claims.c.task_id == task_id) | ~_is_claimed()
        change = {"node": node, "task_id": task_id}
        taken = taken.on_conflict_do_update(index_elements=["owner", "name"], set_=change, where=is_claimable)
        mine = taken.returning(claims.c.node)
        return await self._database.write(lambda connection: connection.scalar(mine)) == node

    async def release(self, owner: str, name: str) -> None:
        """Release a claim. A claim of another node is not changed."""
        node = self._node.id
        await self._database.write(lambda connection: release_claim(connection, owner, name, node))

    async def take_over_webhooks(self) -> list[tuple[PushConfig, bool]]:
        """Claim the open webhooks of dead nodes, and return them in the format of `load_open_push_configs`.

        `take_over` claims those of tasks with a running turn.
        """
        node = self._node.id
        orphaned = or_(push_configs.c.node.is_(None), ~exists().where(nodes.c.id == push_configs.c.node))
        query = open_push_configs().where(orphaned, ~has_running_turn())
        if not await self._read(query.limit(1)):
            return []
        query = query.with_for_update(of=push_configs, skip_locked=True)
        return await self._database.write(lambda connection: self._assign_webhooks(connection, query, node))

    def _assign_webhooks(
        self, connection: Connection, query: Any, node: str
    ) -> list[tuple[PushConfig, bool]]:
        rows = connection.execute(query).all()
        for row in rows:
            where = (push_configs.c.task_id == row.task_id, push_configs.c.id == row.id)
            connection.execute(update(push_configs).where(*where).values(node=node))
        return self._webhook_rows.read_open(rows)

    async def _read(self, query: Any) -> Sequence[Any]:
        return await self._database.read(lambda connection: connection.execute(query).all())


def conversation_claim(context_id: str) -> str:
    """Return the name of the claim of a conversation."""
    return f"conversation:{context_id}"


def owned_ids(connection: Connection, task_ids: set[str], node: str) -> set[str]:
    """Return the ids of the given tasks that belong to this node."""
    if not task_ids:
        return set()
    return set(connection.scalars(select(tasks.c.id).where(tasks.c.id.in_(task_ids), tasks.c.node == node)))


def release_claim(connection: Connection, owner: str, name: str, node: str) -> None:
    """Delete a claim of a node."""
    where = (claims.c.owner == owner, claims.c.name == name, claims.c.node == node)
    connection.execute(delete(claims).where(*where))


def _is_claimed() -> ColumnElement[bool]:
    """Return the condition that the task of a claim has a running or interrupted turn."""
    return exists().where(tasks.c.id == claims.c.task_id, has_running_turn()).correlate(claims)
