"""Several nodes in one process, with a real Valkey and a real PostgreSQL."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Protocol, cast

from support.postgres import PostgresServer
from support.valkey import ValkeyServer
from tailrace.server.cluster.broker import Broker
from tailrace.server.cluster.engine import ClusterEngine
from tailrace.server.cluster.event_streams import TaskStreams
from tailrace.server.cluster.message_authentication import Authentication
from tailrace.server.cluster.node import Node
from tailrace.server.cluster.node_factory import Cluster
from tailrace.server.cluster.store import ClusterStore
from tailrace.server.push_notification_factory import create_notifier
from tailrace.server.runtime.active_task import Subscription
from tailrace.server.runtime.engine import Engine
from tailrace.server.runtime.handlers import FunctionHandler, Handler, HandlerFunction
from tailrace.server.runtime.served_agents import ServedAgents
from tailrace.server.settings import Bounds, Settings
from tailrace.server.store.secret_keys import SecretKeys
from tailrace.server.store.store import Retention, Store
from tailrace.streaming.a2a.models import Message
from tailrace.streaming.a2a.requests import SendMessageRequest


class Nodes:
    """Creates nodes that share an initially empty broker and database.

    Attributes:
        valkey: The broker.
        store: The address of the database.
        events: The address of the broker.
        ttl: The time to live of a node, in seconds.
    """

    def __init__(self, valkey: ValkeyServer, store: str, *, ttl: float = 6.0) -> None:
        self.valkey = valkey
        self.store = store
        self.events = valkey.url()
        self.ttl = ttl

    @classmethod
    async def empty(cls, postgres: PostgresServer, valkey: ValkeyServer, **options: Any) -> "Nodes":
        """Create nodes on an empty database and an empty broker."""
        valkey.command("FLUSHALL")
        return cls(valkey, await postgres.empty_database("nodes"), **options)

    def node(
        self,
        handler: HandlerFunction | Handler | ServedAgents,
        *,
        events: str = "",
        store: str = "",
        **options: Any,
    ) -> ClusterEngine:
        """A node that is not started yet; addresses override those of the shared services."""
        settings = Settings(
            events=events or self.events,
            store=store or self.store,
            bounds=Bounds(node_ttl=self.ttl),
            push_notifications="private",
        )
        if not isinstance(handler, Handler | ServedAgents):
            handler = FunctionHandler(handler)
        keys = SecretKeys()
        cluster = Cluster(settings, Retention(), keys)
        cluster.store.use_keys(keys)
        return cluster.engine(handler, push=create_notifier(settings, cluster.store), **options)

    @asynccontextmanager
    async def store_of_one(self) -> AsyncGenerator[tuple[ClusterStore, Node]]:
        """Yield a node's store, without an engine."""
        node, broker = Node(ttl=60), Broker(self.events)
        keys = SecretKeys()
        store = ClusterStore(self.store, node, TaskStreams(broker, Authentication(keys)))
        store.use_keys(keys)
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
        """Run nodes until the block ends."""
        async with AsyncExitStack() as stack:
            engines = [self.node(handler, **options) for _ in range(count)]
            for engine in engines:
                await stack.enter_async_context(engine.running())
            yield engines


class Apart:
    """Two nodes as one engine: one starts the tasks, the other receives all other requests."""

    def __init__(self, begins: Engine, serves: Engine) -> None:
        self._begins = begins
        self._serves = serves

    def __getattr__(self, name: str) -> Any:
        return getattr(self._serves, name)

    async def start(
        self, request: SendMessageRequest, owner: str = "", **options: Any
    ) -> Subscription | Message:
        """Start a task as `Engine.start` does and follow it at the other node."""
        if request.message.task_id:
            return await self._serves.start(request, owner, **options)
        started = await self._begins.start(request, owner, **options)
        if isinstance(started, Message):
            return started
        await started.wait_for_start()
        return await self._serves.subscribe(started.task_id, owner, after=started.after)


class RunEngine(Protocol):
    """Runs an engine with a handler."""

    def __call__(
        self, handler: HandlerFunction | Handler, **options: Any
    ) -> AbstractAsyncContextManager[Engine]:
        """Run an engine until the block ends; ``options`` are those of `Engine`."""
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
    """A single server."""
    if not isinstance(handler, Handler):
        handler = FunctionHandler(handler)
    async with Engine(Store("sqlite://"), handler, **options).running() as engine:
        yield engine
