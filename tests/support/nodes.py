"""Several nodes in one process, on a real Valkey and a real PostgreSQL."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Protocol, cast

from support.postgres import PostgresServer
from support.valkey import ValkeyServer
from tailrace.server.app import create_notifier
from tailrace.server.cluster.assembly import Cluster
from tailrace.server.cluster.broker import Broker
from tailrace.server.cluster.engine import ClusterEngine
from tailrace.server.cluster.node import Node
from tailrace.server.cluster.store import ClusterStore
from tailrace.server.cluster.streams import TaskStreams
from tailrace.server.engine import Engine
from tailrace.server.handlers import FunctionHandler, Handler, HandlerFunction
from tailrace.server.live import Subscription
from tailrace.server.settings import Settings
from tailrace.server.store import Retention, Store
from tailrace.streaming.a2a.models import Message
from tailrace.streaming.a2a.requests import SendMessageRequest


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
        settings = Settings(
            events=events or self.events,
            store=store or self.store,
            node_ttl=self.ttl,
            push_allow_private=True,
        )
        if not isinstance(handler, Handler):
            handler = FunctionHandler(handler)
        cluster = Cluster(settings, Retention())
        return cluster.engine(handler, push=create_notifier(settings, cluster.store), **options)

    @asynccontextmanager
    async def store_of_one(self) -> AsyncGenerator[tuple[ClusterStore, Node]]:
        """What a node has of the store, while the block runs; without the engine that would use it now and then."""
        node, broker = Node(ttl=60), Broker(self.events)
        store = ClusterStore(self.store, node, TaskStreams(broker))
        await store.open()
        try:
            await node.join(store.database)
            yield store, node
        finally:
            await store.close()
            await broker.close()

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


class Apart:
    """Two nodes as one engine: tasks are begun on one, and everything else is asked of the other."""

    def __init__(self, begins: Engine, serves: Engine) -> None:
        self._begins = begins
        self._serves = serves

    def __getattr__(self, name: str) -> Any:
        return getattr(self._serves, name)

    async def start(
        self, request: SendMessageRequest, owner: str = "", **options: Any
    ) -> Subscription | Message:
        """As `Engine.start`; a task that it begins is followed at the other node."""
        if request.message.task_id:
            return await self._serves.start(request, owner, **options)
        started = await self._begins.start(request, owner, **options)
        if isinstance(started, Message):
            return started
        await started.begun()
        return await self._serves.subscribe(started.task_id, owner, after=started.after)


class RunEngine(Protocol):
    """Runs an engine of some kind with a handler."""

    def __call__(
        self, handler: HandlerFunction | Handler, **options: Any
    ) -> AbstractAsyncContextManager[Engine]:
        """Running while the block does; ``options`` as for `Engine`."""
        ...


@asynccontextmanager
async def running_apart(
    postgres: PostgresServer, valkey: ValkeyServer, handler: HandlerFunction | Handler, **options: Any
) -> AsyncGenerator[Engine]:
    """Two new nodes, as `Apart`."""
    nodes = await Nodes.empty(postgres, valkey, ttl=10.0)
    async with nodes.running(handler, **options) as (begins, serves):
        yield cast("Engine", Apart(begins, serves))


@asynccontextmanager
async def running_alone(handler: HandlerFunction | Handler, **options: Any) -> AsyncGenerator[Engine]:
    """A server by itself."""
    if not isinstance(handler, Handler):
        handler = FunctionHandler(handler)
    async with Engine(Store("sqlite://"), handler, **options).running() as engine:
        yield engine
