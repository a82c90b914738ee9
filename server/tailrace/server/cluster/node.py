"""A node of a cluster: its registration, and its heartbeat.

A node has a row in the table ``nodes``, and regularly updates the time in this row (the heartbeat). Other nodes remove the row if
the heartbeat is older than the time to live. A node without a row is dead, and cannot write: every write transaction checks the
row (`Node.check`).
"""

import asyncio
import time
from uuid import uuid4

import anyio
from sqlalchemy import Connection, delete, func, insert, select, text, update
from sqlalchemy.engine import URL

from tailrace.server.store.database import Work
from tailrace.server.store.postgresql import PostgresqlDatabase, T
from tailrace.server.store.records import NotOwnedError
from tailrace.server.store.schema import nodes
from tailrace.wrappers import StoreError

HEARTBEATS_PER_TTL = 5
"""Number of heartbeats within the time to live of a node."""

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
        id: The id of the node, new after each `join`; empty before `join` and after `unregister`.
        ttl: Seconds without a heartbeat after which a node is dead.
        renamed: An `anyio.Event` that is set, and replaced, when the node gets another id.
    """

    def __init__(self, ttl: float) -> None:
        self.renamed = anyio.Event()
        self.id = ""
        self.ttl = ttl
        self._beat = 0.0

    @property
    def may_write(self) -> bool:
        """True if no other node can have removed this node, because its last heartbeat is recent enough by its own clock."""
        return bool(self.id) and time.monotonic() - self._beat < self.ttl

    async def join(self, database: "NodeDatabase") -> None:
        """Add a row with a new id for this node.

        Raises:
            StoreError: The row cannot be written.
        """
        name, now = uuid4().hex, time.monotonic()
        await database.write_in_parallel(
            lambda connection: connection.execute(insert(nodes).values(id=name, beat=func.now()))
        )
        self.id, self._beat = name, now
        renamed, self.renamed = self.renamed, anyio.Event()
        renamed.set()

    async def beat(self, database: "NodeDatabase") -> bool:
        """Write a heartbeat. Return False if another node has removed this node.

        Raises:
            StoreError: The database is not available.
        """
        now = time.monotonic()
        change = update(nodes).where(nodes.c.id == self.id).values(beat=func.now())
        if not await database.write_in_parallel(lambda connection: connection.execute(change).rowcount):
            return False
        self._beat = now
        return True

    async def remove_dead_nodes(self, database: "NodeDatabase") -> list[str]:
        """Remove the nodes whose heartbeat is too old by the clock of the database, and return their ids.

        Raises:
            StoreError: The database is not available.
        """
        oldest = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, self.ttl)
        # A running transaction of a node locks its row. A later call removes the row.
        dead = select(nodes.c.id).where(nodes.c.beat < oldest).with_for_update(skip_locked=True)
        gone = delete(nodes).where(nodes.c.id.in_(dead.scalar_subquery())).returning(nodes.c.id)
        return list(await database.write_in_parallel(lambda connection: connection.scalars(gone).all()))

    async def unregister(self, database: "NodeDatabase") -> None:
        """Remove the row of this node.

        Raises:
            StoreError: The database is not available. Other nodes will remove the row later.
        """
        name, self.id = self.id, ""
        await database.write_in_parallel(
            lambda connection: connection.execute(delete(nodes).where(nodes.c.id == name))
        )

    def check(self, connection: Connection) -> None:
        """Check that this node is alive, and lock its row until the transaction ends.

        Raises:
            NotOwnedError: Another node has removed this node.
            StoreError: The last heartbeat is too old (see `may_write`).
        """
        if not self.may_write:
            raise StoreError(
                f"this node could not write a heartbeat within {self.ttl:g} s, and writes nothing"
            )
        row = select(nodes.c.id).where(nodes.c.id == self.id).with_for_update(read=True, key_share=True)
        if connection.scalar(row) is None:
            raise NotOwnedError("other nodes declared this node dead")


class NodeDatabase(PostgresqlDatabase):
    """A PostgreSQL database that nodes share. Only living nodes can write.

    Args:
        url: The URL of the database.
        node: This node. It joins after the database is opened.

    Raises:
        ConfigurationError: The driver is not installed.
    """

    def __init__(self, url: URL, node: Node) -> None:
        super().__init__(url)
        self._node = node
        self._seconds = node.ttl  # a node that waits longer than this is dead

    async def write_in_parallel(self, work: Work[T]) -> T:
        """Run a short write transaction in parallel with other transactions, and without a check of the node.

        Cancellation rolls the transaction back.

        Raises:
            StoreError: The transaction was rolled back.
        """
        if self._engine is None:
            raise StoreError("the store is closed")
        with self.translating("write to the store", *self._driver_errors):
            async with asyncio.timeout(self._seconds), self._engine.begin() as connection:
                return await connection.run_sync(work)

    def _session(self) -> dict[str, str]:
        # If a node hangs during a transaction, the database ends the transaction. Other nodes can then remove the node's row.
        idle = str(max(1, round(self._node.ttl * 500)))
        return {**super()._session(), "idle_in_transaction_session_timeout": idle}

    def _migrate_schema(self, connection: Connection) -> None:
        connection.execute(_ONE_AT_A_TIME)  # nodes may be started at the same time
        super()._migrate_schema(connection)

    def _check_write_permission(self, connection: Connection) -> None:
        if "tailrace" not in connection.info:
            if not connection.scalar(_TAKE_SHARED_LOCK):
                raise StoreError(
                    "the store is in use by a server without TAILRACE_EVENTS, which has it for itself: stop that "
                    "one, or give it the same broker"
                )
            connection.info["tailrace"] = "shares the lock"
        if self._node.id:
            self._node.check(connection)
