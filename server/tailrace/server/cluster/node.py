"""A node of a cluster: its registration and its heartbeat.

A node has a row in the table ``nodes`` and updates the time in it (its heartbeat). A node without a row is dead: another node
removes the row when the heartbeat is too old, and the node itself when it stops. Every write transaction of a node checks its
row (`Node.check`), so that a dead node cannot write. A node that could not write a heartbeat within its time to live, by its
own clock, stops writing before that.
"""

import asyncio
import time
from uuid import uuid4

import anyio
from sqlalchemy import Connection, delete, func, insert, select, text, update
from sqlalchemy.engine import URL

from tailrace.server.store.database import Work
from tailrace.server.store.postgresql import PostgresqlDatabase, T
from tailrace.server.store.records import NotOurs
from tailrace.server.store.schema import nodes
from tailrace.wrappers import StoreError

BEATS = 5
"""Heartbeats in a node's time to live: some may fail."""

_TAKE_SHARED_LOCK = text(
    "SELECT pg_try_advisory_lock_shared(hashtextextended('tailrace:' || current_schema(), 0))"
)
_ONE_AT_A_TIME = text(
    "SELECT pg_advisory_xact_lock(hashtextextended('tailrace-tables:' || current_schema(), 0))"
)


class Node:
    """This server as one of several nodes.

    Args:
        ttl: Seconds without a heartbeat after which a node is dead.

    Attributes:
        id: The name of the node; a new one after each `join`. Empty before the first.
        ttl: As given.
        renamed: Set when the node has another name; a new event each time.
    """

    def __init__(self, ttl: float) -> None:
        self.renamed = anyio.Event()
        self.id = ""
        self.ttl = ttl
        self._beat = 0.0

    @property
    def may_write(self) -> bool:
        """Return whether no other node can have removed this one yet, by this node's clock."""
        return bool(self.id) and time.monotonic() - self._beat < self.ttl

    async def join(self, database: "NodeDatabase") -> None:
        """Add a row with a new name.

        Raises:
            StoreError: The row cannot be written.
        """
        name, now = uuid4().hex, time.monotonic()
        await database.beside(
            lambda connection: connection.execute(insert(nodes).values(id=name, beat=func.now()))
        )
        self.id, self._beat = name, now
        renamed, self.renamed = self.renamed, anyio.Event()
        renamed.set()

    async def beat(self, database: "NodeDatabase") -> bool:
        """Write a heartbeat; return False if other nodes have removed this one.

        Raises:
            StoreError: The database does not work.
        """
        now = time.monotonic()
        change = update(nodes).where(nodes.c.id == self.id).values(beat=func.now())
        if not await database.beside(lambda connection: connection.execute(change).rowcount):
            return False
        self._beat = now
        return True

    async def remove_dead_nodes(self, database: "NodeDatabase") -> list[str]:
        """Remove the nodes whose heartbeat is too old, by the database's clock; return their ids.

        Raises:
            StoreError: The database does not work.
        """
        oldest = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, self.ttl)
        # Nodes that are in a transaction at this moment are found at the next call.
        dead = select(nodes.c.id).where(nodes.c.beat < oldest).with_for_update(skip_locked=True)
        gone = delete(nodes).where(nodes.c.id.in_(dead.scalar_subquery())).returning(nodes.c.id)
        return list(await database.beside(lambda connection: connection.scalars(gone).all()))

    async def leave(self, database: "NodeDatabase") -> None:
        """Remove this node's row: other nodes may take over its tasks at once.

        Raises:
            StoreError: The database does not work; other nodes detect the end by the age of the heartbeat.
        """
        name, self.id = self.id, ""
        await database.beside(lambda connection: connection.execute(delete(nodes).where(nodes.c.id == name)))

    def check(self, connection: Connection) -> None:
        """Check that this node is alive, and lock its row until the transaction ends.

        Raises:
            NotOurs: Other nodes have removed it.
            StoreError: They may have.
        """
        if not self.may_write:
            raise StoreError(
                f"this node could not write a heartbeat within {self.ttl:g} s, and writes nothing"
            )
        place = select(nodes.c.id).where(nodes.c.id == self.id).with_for_update(read=True, key_share=True)
        if connection.scalar(place) is None:
            raise NotOurs("other nodes declared this node dead")


class NodeDatabase(PostgresqlDatabase):
    """A PostgreSQL database that nodes share: only living nodes write.

    Args:
        url: Its address.
        node: The writing node; without a name while the database is opened.

    Raises:
        ConfigurationError: The driver is not installed.
    """

    def __init__(self, url: URL, node: Node) -> None:
        super().__init__(url)
        self._node = node
        self._seconds = node.ttl  # a node that waits for longer is dead

    async def beside(self, work: Work[T]) -> T:
        """Run a short write transaction beside the others, without a check of the node.

        Cancellation rolls it back.

        Raises:
            StoreError: It was rolled back.
        """
        if self._engine is None:
            raise StoreError("the store is closed")
        with self.translating("write to the store", *self._driver_errors):
            async with asyncio.timeout(self._seconds), self._engine.begin() as connection:
                return await connection.run_sync(work)

    def _session(self) -> dict[str, str]:
        # A node that hangs in the middle of a transaction must not hold its row against those that remove it.
        idle = str(max(1, round(self._node.ttl * 500)))
        return {**super()._session(), "idle_in_transaction_session_timeout": idle}

    def _migrate_schema(self, connection: Connection) -> None:
        connection.execute(_ONE_AT_A_TIME)  # nodes are started together
        super()._migrate_schema(connection)

    def _check_place(self, connection: Connection) -> None:
        if "tailrace" not in connection.info:
            if not connection.scalar(_TAKE_SHARED_LOCK):
                raise StoreError(
                    "the store is in use by a server without TAILRACE_EVENTS, which has it for itself: stop that "
                    "one, or give it the same broker"
                )
            connection.info["tailrace"] = "shares the lock"
        if self._node.id:
            self._node.check(connection)
