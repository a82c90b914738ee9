"""Several nodes in one process, on a real Valkey and a real PostgreSQL."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from support.postgres import PostgresServer
from support.valkey import ValkeyServer
from tailrace.server.cluster.assembly import Cluster
from tailrace.server.cluster.engine import ClusterEngine
from tailrace.server.handlers import FunctionHandler, Handler, HandlerFunction
from tailrace.server.settings import Settings
from tailrace.server.store import Retention


class Nodes:
    """Makes nodes that share a broker and a database, both empty at first.

    Attributes:
        valkey: The broker.
        store: The address of the database.
        events: The address of the broker.
        ttl: Seconds that the nodes have to live.
    """

    def __init__(self, valkey: ValkeyServer, store: str, *, ttl: float = 2.0) -> None:
        self.valkey = valkey
        self.store = store
        self.events = valkey.url()
        self.ttl = ttl

    @classmethod
    async def empty(cls, postgres: PostgresServer, valkey: ValkeyServer, **options: Any) -> "Nodes":
        """On an empty database and an empty broker."""
        valkey.command("FLUSHALL")
        return cls(valkey, await postgres.empty_database("nodes"), **options)

    def node(
        self, handler: HandlerFunction | Handler, *, events: str = "", store: str = "", **options: Any
    ) -> ClusterEngine:
        """A node that is not running yet, with addresses of its own where they are given."""
        settings = Settings(events=events or self.events, store=store or self.store, node_ttl=self.ttl)
        if not isinstance(handler, Handler):
            handler = FunctionHandler(handler)
        return Cluster(settings, Retention()).engine(handler, **options)

    @asynccontextmanager
    async def running(
        self, handler: HandlerFunction | Handler, count: int = 2, **options: Any
    ) -> AsyncGenerator[list[ClusterEngine]]:
        """Some nodes, running while the block does."""
        async with AsyncExitStack() as stack:
            engines = [self.node(handler, **options) for _ in range(count)]
            for engine in engines:
                await stack.enter_async_context(engine.running())
            yield engines
