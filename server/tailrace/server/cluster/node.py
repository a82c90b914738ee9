"""A node: one server among several, for as long as it shows that it is alive.

A node has a row in the table ``nodes`` and renews its time there (its *beat*). One whose row is gone is dead: it is
removed by another node when its beat is too old, and by itself when it leaves. Every transaction that a node writes
looks at its row in the same transaction (`Node.check`), so a dead node cannot write, whatever it believes. One that
could not beat for its time to live, by its own clock, stops before that.
"""

import asyncio
import time
from uuid import uuid4

import anyio
from sqlalchemy import Connection, delete, func, insert, select, text, update
from sqlalchemy.engine import URL

from tailrace.server.stores.database import Work
from tailrace.server.stores.postgresql import PostgresqlDatabase, T
from tailrace.server.stores.records import NotOurs
from tailrace.server.stores.schema import nodes
from tailrace.wrappers import StoreError

BEATS = 5
"""Beats in a node's time to live: some may fail."""

_TAKE_SHARED_LOCK = text(
    "SELECT pg_try_advisory_lock_shared(hashtextextended('tailrace:' || current_schema(), 0))"
)
_ONE_AT_A_TIME = text(
    "SELECT pg_advisory_xact_lock(hashtextextended('tailrace-tables:' || current_schema(), 0))"
)


class Node:
    """This server's place among the nodes.

    Args:
        ttl: Seconds without a beat after which a node is dead.

    Attributes:
        id: Names the node; a new one each time that it joins. Empty while it has no place.
        ttl: As given.
        renamed: Set when it has another name; a new one each time.
    """

    def __init__(self, ttl: float) -> None:
        self.renamed = anyio.Event()
        self.id = ""
        self.ttl = ttl
        self._beat = 0.0

    @property
    def may_write(self) -> bool:
        """Whether no other node can have removed this one yet, by this one's clock."""
        return bool(self.id) and time.monotonic() - self._beat < self.ttl

    async def join(self, database: "NodeDatabase") -> None:
        """Take a place under a new name.

        Raises:
            StoreError: It cannot be kept.
        """
        name, now = uuid4().hex, time.monotonic()
        await database.beside(
            lambda connection: connection.execute(insert(nodes).values(id=name, beat=func.now()))
        )
        self.id, self._beat = name, now
        renamed, self.renamed = self.renamed, anyio.Event()
        renamed.set()

    async def beat(self, database: "NodeDatabase") -> bool:
        """Show that this node is alive; False when it is dead to the others.

        Raises:
            StoreError: The database does not work.
        """
        now = time.monotonic()
        change = update(nodes).where(nodes.c.id == self.id).values(beat=func.now())
        if not await database.beside(lambda connection: connection.execute(change).rowcount):
            return False
        self._beat = now
        return True

    async def bury(self, database: "NodeDatabase") -> list[str]:
        """Remove the nodes whose last beat is too old, by the database's clock; gives their ids.

        Raises:
            StoreError: The database does not work.
        """
        oldest = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, self.ttl)
        # Those that are in a transaction at this moment are found at the next look.
        dead = select(nodes.c.id).where(nodes.c.beat < oldest).with_for_update(skip_locked=True)
        gone = delete(nodes).where(nodes.c.id.in_(dead.scalar_subquery())).returning(nodes.c.id)
        return list(await database.beside(lambda connection: connection.scalars(gone).all()))

    async def leave(self, database: "NodeDatabase") -> None:
        """Give the place up: whatever this node still has may be taken by others at once.

        Raises:
            StoreError: The database does not work; the others find out by the time.
        """
        name, self.id = self.id, ""
        await database.beside(lambda connection: connection.execute(delete(nodes).where(nodes.c.id == name)))

    def check(self, connection: Connection) -> None:
        """See that this node is alive, and keep it so until the transaction ends.

        Raises:
            NotOurs: It is dead to the others.
            StoreError: It may be.
        """
        if not self.may_write:
            raise StoreError(f"this node could not renew its place within {self.ttl:g} s, and writes nothing")
        place = select(nodes.c.id).where(nodes.c.id == self.id).with_for_update(read=True, key_share=True)
        if connection.scalar(place) is None:
            raise NotOurs("this node was given up by the others")


class NodeDatabase(PostgresqlDatabase):
    """A PostgreSQL database that nodes share: whatever is written is written by a node that is alive.

    Args:
        url: Its address.
        node: Who writes; without a place yet while the database is opened.

    Raises:
        ConfigurationError: The driver is not installed.
    """

    def __init__(self, url: URL, node: Node) -> None:
        super().__init__(url)
        self._node = node
        self._seconds = node.ttl  # whoever waits for longer is dead to the others

    async def beside(self, work: Work[T]) -> T:
        """Run a short transaction that writes beside the others, and asks nobody whether it may.

        Cancelling breaks it off.

        Raises:
            StoreError: Nothing of it was kept.
        """
        if self._engine is None:
            raise StoreError("the store is closed")
        with self.translating("write to the store", *self._driver_errors):
            async with asyncio.timeout(self._seconds), self._engine.begin() as connection:
                return await connection.run_sync(work)

    def _session(self) -> dict[str, str]:
        # A node that hangs in the middle of a transaction is not to hold its row against those who remove it.
        idle = str(max(1, round(self._node.ttl * 500)))
        return {**super()._session(), "idle_in_transaction_session_timeout": idle}

    def _bring_up_to_date(self, connection: Connection) -> None:
        connection.execute(_ONE_AT_A_TIME)  # nodes are started together
        super()._bring_up_to_date(connection)

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
