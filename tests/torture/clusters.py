"""Several nodes under torture: real ``tailrace serve`` processes that share a real Valkey and a real PostgreSQL."""

import itertools
import random
import signal
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import anyio

from support.postgres import PostgresServer, running_postgres
from support.processes import Served, served
from support.proxy import CuttingProxy
from support.valkey import ValkeyServer, running_valkey
from tailrace.server.settings import Bounds
from torture.outcome import Outcome
from torture.server_process import as_environment, server, until
from torture.stream_client import FINAL, Refused, Seen, call, client, message, resume, stored, stream
from torture.upstream import Order, Upstream, upstream

TTL = 2.0
"""The time to live of a node without a heartbeat, in seconds."""

PATIENCE = 60.0
"""Seconds within which every started operation ends."""

_COUNT = itertools.count(1)
_BUSY = -32011  # "try again": another server takes the task over, or this one shuts down
_UNKNOWN = -32001


class Cluster:
    """Nodes and their shared services.

    Attributes:
        folder: The folder for logs.
        http: The HTTP session.
        provider: The provider.
        valkey: The broker; can be killed and restarted.
        postgres: The database.
        to_valkey: The proxies between each node and Valkey, or None.
        to_postgres: The proxies between each node and PostgreSQL, or None.
    """

    def __init__(
        self,
        folder: Path,
        http: aiohttp.ClientSession,
        provider: Upstream,
        valkey: ValkeyServer,
        postgres: PostgresServer,
        model: tuple[str, str],
        store: str,
        settings: Mapping[str, object],
    ) -> None:
        self.folder = folder
        self.http = http
        self.provider = provider
        self.valkey = valkey
        self.postgres = postgres
        self.to_valkey: list[CuttingProxy] = []
        self.to_postgres: list[CuttingProxy] = []
        self._model, self._base_url = model
        self._store = store
        self._settings = {"bounds": Bounds(node_ttl=TTL), "coalesce": "none", **settings}
        self._nodes: list[Served | None] = []
        self._closing = AsyncExitStack()

    @property
    def size(self) -> int:
        """The number of nodes, stopped ones included."""
        return len(self._nodes)

    @property
    def urls(self) -> list[str]:
        """The base URLs of running nodes."""
        return [node.url for node in self._nodes if node is not None]

    def url(self, index: int) -> str:
        """The base URL of a node."""
        return self.node(index).url

    def node(self, index: int) -> Served:
        """The process of a running node."""
        node = self._nodes[index]
        assert node is not None
        return node

    async def start(self, index: int, **settings: object) -> None:
        """Start a node, with its own settings if given."""
        events, store = self.valkey.url(), self._store
        if self.to_valkey:
            events = f"redis://{_address(self.to_valkey[index])}/0"
            store = _through(store, self.to_postgres[index])
        environment = as_environment({**self._settings, **settings})
        process = self._closing.enter_context(
            served(
                self.folder / f"log.{next(_COUNT)}.node{index}",
                *("--model", self._model, "--base-url", self._base_url),
                *("--store", store, "--events", events),
                **environment,
            )
        )
        await process.ready()
        self._nodes[index] = process

    def kill(self, index: int) -> None:
        """Kill a node, as a crash would."""
        node, self._nodes[index] = self.node(index), None
        node.kill()

    async def stop(self, index: int) -> int:
        """Stop a node gracefully; return its exit status."""
        node, self._nodes[index] = self.node(index), None
        node.process.terminate()
        return await anyio.to_thread.run_sync(node.process.wait)

    def pause(self, index: int) -> None:
        """Suspend a node."""
        self.node(index).process.send_signal(signal.SIGSTOP)

    def go_on(self, index: int) -> None:
        """Resume a suspended node."""
        self.node(index).process.send_signal(signal.SIGCONT)

    @asynccontextmanager
    async def running(self, count: int) -> AsyncGenerator[None]:
        """Run nodes while the block runs."""
        self._nodes = [None] * count
        async with self._closing:
            async with anyio.create_task_group() as group:
                for index in range(count):
                    group.start_soon(self.start, index)
            try:
                yield
            finally:
                await self._stop_all()

    async def _stop_all(self) -> None:
        """Stop all nodes gracefully; they write to the store through the proxies, which run in this loop."""
        processes = [node.process for node in self._nodes if node is not None]
        for process in processes:
            process.terminate()

        async def are_over() -> bool:
            return all(process.poll() is not None for process in processes)

        with anyio.CancelScope(shield=True):
            await until(are_over, 15)


@asynccontextmanager
async def cluster(
    folder: Path,
    *,
    nodes: int = 3,
    proxies: bool = False,
    prefills: bool = False,
    holds: bool = False,
    **settings: object,
) -> AsyncGenerator[Cluster]:
    """Run nodes on a new Valkey and a new PostgreSQL while the block runs.

    Args:
        folder: The folder for logs.
        nodes: The number of nodes.
        prefills: Whether the provider continues a text.
        holds: Whether another server of tailrace is between the nodes and the provider, which holds responses for them.
        proxies: Whether proxies that can cut connections are between the nodes and their services.
        settings: The settings of the nodes.
    """
    await anyio.Path(folder).mkdir(parents=True, exist_ok=True)
    with running_valkey() as valkey, running_postgres() as postgres, upstream() as provider:
        store = await postgres.empty_database("nodes")
        async with client() as http, AsyncExitStack() as stack:
            model, base_url = "openai:t", provider.prefill_url if prefills else provider.base_url
            if holds:
                holder = folder / "holder"
                await anyio.Path(holder).mkdir()
                process = await stack.enter_async_context(server(holder, base_url, {}))
                model, base_url = "openai-responses:t", f"{process.url}/v1"
                settings["upstream_background"] = True
            made = Cluster(folder, http, provider, valkey, postgres, (model, base_url), store, settings)
            for _ in range(nodes if proxies else 0):
                made.to_valkey.append(await stack.enter_async_context(CuttingProxy(valkey.url())))
                made.to_postgres.append(await stack.enter_async_context(CuttingProxy(_host(postgres))))
            async with made.running(nodes):
                yield made


def _host(postgres: PostgresServer) -> str:
    return f"postgresql://127.0.0.1:{postgres.port}"


def _address(proxy: CuttingProxy) -> str:
    return proxy.url.removeprefix("http://")


def _through(store: str, proxy: CuttingProxy) -> str:
    before, _, rest = store.partition("@")
    return f"{before}@{_address(proxy)}/{rest.partition('/')[2]}"


class Followed:
    """A task and all its readers.

    Attributes:
        order: The ordered response.
        caller: The reader that started the task.
        readers: All readers.
        refusals: How often a reader received the error to try again.
    """

    def __init__(self, order: Order, readers: int) -> None:
        self.order = order
        self.readers = [Seen() for _ in range(1 + readers)]
        self.caller = self.readers[0]
        self.refusals = 0

    @property
    def task_id(self) -> str:
        """Empty if the caller has received no event."""
        return self.caller.task_id


async def begin(nodes: Cluster, followed: Followed, url: str) -> None:
    """Send the message, and read until the first event has arrived or the stream breaks."""
    try:
        await stream(
            nodes.http, url, "SendStreamingMessage", message(followed.order), followed.caller, upto=1
        )
    except Refused as refused:
        if refused.args[0]["code"] != _BUSY:
            raise
        followed.refusals += 1


async def read_on(
    nodes: Cluster,
    followed: Followed,
    seen: Seen,
    rng: random.Random,
    outcome: Outcome,
    *,
    stays_at: str = "",
) -> None:
    """Read a task to its end, as clients do that switch to another server when their stream breaks.

    Args:
        nodes: The servers to choose from.
        followed: The task.
        seen: The reader.
        rng: Chooses the server.
        outcome: Records a missing end.
        stays_at: The only server to use.
    """
    with anyio.move_on_after(PATIENCE) as scope:
        while not seen.over:
            seen.error = None
            try:
                url = stays_at or rng.choice(nodes.urls)
                await resume(nodes.http, url, seen, task_id=followed.task_id)
            except Refused as refused:
                code = refused.args[0]["code"]
                if not outcome.check(
                    code != _UNKNOWN, f"{followed.order.key}: {followed.task_id} is unknown"
                ):
                    return
                followed.refusals += 1
            except IndexError:
                pass  # no node is running
            if not seen.over:
                await anyio.sleep(0.02)
    if scope.cancelled_caught:
        outcome.unfinished += 1
        outcome.check(
            False, f"{followed.order.key}: no end of {followed.task_id} after {seen.last} {seen.state}"
        )


async def check(nodes: Cluster, everyone: Sequence[Followed], outcome: Outcome) -> None:
    """Compare the events that readers received of completed tasks with the stored tasks of each node."""
    limiter = anyio.CapacityLimiter(20)

    async def check_one(followed: Followed) -> None:
        key, order = followed.order.key, followed.order
        async with limiter:
            for url in nodes.urls:
                again = Seen()
                await resume(nodes.http, url, again, task_id=followed.task_id)
                outcome.check(again.ends == 1, f"{key}: {again.ends} ends at {url}")
                state, text, _ = await stored(nodes.http, url, followed.task_id)
                outcome.check(
                    text == again.text, f"{key}: GetTask at {url} has a text that differs from the events"
                )
                outcome.check(state == again.state, f"{key}: GetTask at {url}: {state}, not {again.state}")
                for each in followed.readers:
                    same = again.marks == each.marks and again.state == each.state
                    outcome.check(
                        same, f"{key}: events that differ from those at {url}, {_where(each, again)}"
                    )
            for each in followed.readers:
                outcome.lost += each.lost
                outcome.repeated += each.repeated
                outcome.check(not each.overviews, f"{key}: received a snapshot instead of events")
                outcome.check(each.ends == 1, f"{key}: a reader received {each.ends} ends")
        seen = followed.caller
        outcome.unfinished += seen.state not in FINAL
        if seen.state == "TASK_STATE_COMPLETED":
            outcome.check(seen.text == order.text(), f"{key}: completed with an incomplete text")
        outcome.check(order.text().startswith(seen.text), f"{key}: the text differs from the provider's")

    async with anyio.create_task_group() as group:
        for each in everyone:
            if each.task_id:
                group.start_soon(check_one, each)


def _where(one: Seen, other: Seen) -> str:
    numbers = [at for at in {*one.marks, *other.marks} if one.marks.get(at) != other.marks.get(at)]
    return f"first {min(numbers, default=0)} of {len(numbers)}, last {one.last} and {other.last}, {one.state} {other.state}"


async def check_none_is_open(nodes: Cluster, outcome: Outcome) -> None:
    """Check all tasks, including tasks that no client has received."""
    left: list[str] = []

    async def none_is_open() -> bool:
        left.clear()
        for state in ("SUBMITTED", "WORKING", "INPUT_REQUIRED"):
            try:
                page = await call(
                    nodes.http, nodes.urls[0], "ListTasks", {"status": f"TASK_STATE_{state}", "pageSize": 100}
                )
            except (Refused, aiohttp.ClientError):
                return False
            left.extend(each["id"] for each in page["tasks"])
        return not left

    if not await until(none_is_open, PATIENCE):
        outcome.unfinished += len(left)
        outcome.check(False, f"open without end: {left[:5]}")
