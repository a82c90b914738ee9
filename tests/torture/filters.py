"""Filters: forbidden texts of a provider are searched for in all that servers write or send.

The provider's responses have forbidden texts in text, reasoning, arguments of tool calls and errors, in random deltas and at random
bytes. Some responses are cut and continued, and servers are killed during responses.
"""

import json
import logging
import os
import random
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import aiohttp
import anyio
import grpc
import grpc.aio
from a2a.types import SendMessageRequest, a2a_pb2_grpc
from google.protobuf.json_format import MessageToDict, ParseDict
from pydantic import SecretStr

from support.forbidden_texts import KINDS, UNFILTERED, Answer, Kind, Provider, Search
from support.grpc_agents import grpc_address
from support.live_server import serving
from support.postgres import PostgresServer, running_postgres
from support.rpc import message
from support.tracing import Spans
from support.ui_streams import RUN
from support.upstream import ScriptedUpstream
from support.valkey import ValkeyServer, running_valkey
from support.webhook_receiver import Receiver, receiving
from tailrace.server import Settings, create_app
from tailrace.server.settings import OpenAIWebhookSettings
from torture.outcome import Outcome
from torture.server_process import until

ENDINGS = ("complete", "cut", "error", "refused")
CLIENTS = 6
SECRET = "whsec_" + "MDEy" * 8
PLACES = {"wire", "webhook", "database", "broker", "files", "log", "traces", "metrics"}
"""Where the texts are searched for."""


class Wires:
    """Clients of two nodes, or of one server as both.

    Args:
        urls: The base URLs of the nodes: one that receives messages, and one with which streams are read again.
        http: The HTTP session.
        stub: The stub of the gRPC service.
        search: Searches responses.
        hook: The URL of the webhook.
    """

    def __init__(
        self, urls: tuple[str, str], http: aiohttp.ClientSession, stub: Any, search: Search, hook: str
    ) -> None:
        self._url, self._other = urls
        self._http = http
        self._stub = stub
        self._search = search
        self._hook = hook

    async def _read(
        self, method: str, url: str, body: object = None, headers: dict[str, str] | None = None
    ) -> bytes:
        async with self._http.request(method, url, json=body, headers=headers) as response:
            data = b""
            async for read in response.content.iter_any():
                data += read
                if data.endswith(b"\n\n") and b"TASK_STATE_INPUT_REQUIRED" in data:
                    break  # the stream waits for the result of a tool call
        self._search.look("wire", json.dumps(dict(response.headers)))
        self._search.look_at_response("wire", response.headers.get("content-type", ""), data)
        return data

    def _params(self, prompt: str) -> dict[str, Any]:
        return {**message(prompt), "configuration": {"taskPushNotificationConfig": {"url": self._hook}}}

    async def read_again(self, task_id: str) -> None:
        """Read a task and its stream at the other node."""
        await self._read("GET", f"{self._other}/tasks/{task_id}")
        await self._read("GET", f"{self._other}/tasks/{task_id}:subscribe", headers={"Last-Event-ID": "1"})

    async def begin(self, prompt: str, begun: list[str]) -> None:
        """Read a stream of A2A while the server runs; add the id of its task when it has begun."""
        async with self._http.post(f"{self._url}/message:stream", json=message(prompt)) as response:
            data = b""
            async for read in response.content.iter_any():
                if not data:
                    begun.append(_first(read)["task"]["id"])
                data += read
                self._search.look_at_response("wire", "text/event-stream", data)

    async def jsonrpc(self, prompt: str, key: str) -> None:
        """A2A over JSON-RPC."""
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": self._params(prompt)}
        data = await self._read("POST", f"{self._url}/", body, {"A2A-Version": "1.0"})
        await self.read_again(_first(data)["result"]["task"]["id"])

    async def http_json(self, prompt: str, key: str) -> None:
        """A2A over HTTP and JSON."""
        data = await self._read("POST", f"{self._url}/message:stream", self._params(prompt))
        await self.read_again(_first(data)["task"]["id"])

    async def grpc(self, prompt: str, key: str) -> None:
        """A2A over gRPC."""
        request = ParseDict(self._params(prompt), SendMessageRequest())
        events: list[Any] = []
        call = self._stub.SendStreamingMessage(request, metadata=(("a2a-version", "1.0"),))
        async for event in call:
            self._search.look("wire", event.SerializeToString())
            events.append(MessageToDict(event))
        self._search.look("wire", repr(await call.trailing_metadata()))
        self._search.look_at_json("wire", events)
        await self.read_again(events[0]["task"]["id"])

    async def responses(self, prompt: str, key: str) -> None:
        """The Responses API, in the background."""
        body = {"model": "m", "input": prompt, "stream": True, "background": True}
        data = await self._read("POST", f"{self._url}/v1/responses", body)
        url = f"{self._other}/v1/responses/{_first(data)['response']['id']}"
        await self._read("GET", url)
        await self._read("GET", f"{url}?stream=true&starting_after=0")

    async def chat(self, prompt: str, key: str) -> None:
        """The Chat Completions API."""
        body = {"model": "m", "messages": [{"role": "user", "content": prompt}], "stream": True}
        await self._read("POST", f"{self._url}/v1/chat/completions", body)

    async def ai_sdk(self, prompt: str, key: str) -> None:
        """The AI SDK's UI message stream."""
        given = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": prompt}]}
        body = {"id": key, "messages": [given], "trigger": "submit-message"}
        await self._read("POST", f"{self._url}/ai-sdk", body)
        await self._read("GET", f"{self._other}/ai-sdk/{key}/stream")

    async def ag_ui(self, prompt: str, key: str) -> None:
        """AG-UI."""
        given = [{"id": "u1", "role": "user", "content": prompt}]
        body = {**RUN, "threadId": key, "runId": key, "messages": given}
        await self._read("POST", f"{self._url}/ag-ui", body, {"accept": "text/event-stream"})

    async def metrics(self) -> None:
        """Search the metrics of both nodes."""
        for url in {self._url, self._other}:
            async with self._http.get(f"{url}/metrics") as response:
                assert response.status == 200
                self._search.look("metrics", await response.read())


WIRES: tuple[Callable[[Wires, str, str], Coroutine[Any, Any, None]], ...] = (
    Wires.jsonrpc,
    Wires.http_json,
    Wires.grpc,
    Wires.responses,
    Wires.chat,
    Wires.ai_sdk,
    Wires.ag_ui,
)


def _first(data: bytes) -> Any:
    """The first event of a stream."""
    line = next(line for line in data.decode().splitlines() if line.startswith("data:"))
    return json.loads(line.removeprefix("data:"))


class _Log(logging.Handler):
    """Searches all records of the process."""

    def __init__(self, search: Search) -> None:
        super().__init__(logging.DEBUG)
        self._search = search
        self.setFormatter(logging.Formatter("%(name)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self._search.look("log", self.format(record))


@asynccontextmanager
async def _logged(search: Search) -> AsyncGenerator[None]:
    """Search the log at the level DEBUG while the block runs."""
    root, handler = logging.getLogger(), _Log(search)
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


@asynccontextmanager
async def _monitored(valkey: ValkeyServer, search: Search) -> AsyncGenerator[None]:
    """Search all commands that the broker receives while the block runs."""
    stream = await anyio.connect_tcp("127.0.0.1", valkey.port)
    commands = bytearray()

    async def read() -> None:
        try:
            while True:
                commands.extend(await stream.receive(2**20))
        except (anyio.ClosedResourceError, anyio.EndOfStream):
            pass

    async with anyio.create_task_group() as group:
        await stream.send(b"MONITOR\r\n")
        group.start_soon(read)
        try:
            yield
        finally:
            await stream.aclose()
    text = bytes(commands).decode("ascii")
    search.look("broker", text)
    search.look("broker", text.encode().decode("unicode_escape").encode("latin-1"))


async def _search_database(postgres: PostgresServer, search: Search) -> None:
    """Search all values of all tables, because large values are compressed in the files."""
    async with postgres.connected("filters") as connection:
        tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        for (table,) in tables:
            for row in await connection.fetch(f'SELECT * FROM "{table}"'):
                for value in row.values():
                    search.look("database", value if isinstance(value, bytes) else str(value))


def _search_files(folder: Path, search: Search) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            search.look("files", path.read_bytes())


async def fuzz(
    kind: Kind,
    folder: Path,
    rng: random.Random,
    cases: int,
    services: tuple[PostgresServer, ValkeyServer] | None,
    *,
    trace_content: bool = False,
) -> Search:
    """Send messages on all wires, and search for the forbidden texts of the responses.

    Args:
        kind: The filter.
        folder: The folder for the database of one server.
        rng: Chooses texts and deltas.
        cases: The number of messages.
        services: The database and the broker of two nodes; None for one server with SQLite.
        trace_content: Whether spans contain messages; only without filters.
    """
    search, provider, spans = Search(kind), Provider(), Spans()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(_logged(search))
        receiver = await stack.enter_async_context(receiving())
        upstream = await stack.enter_async_context(ScriptedUpstream(provider.respond, lists_models=True))
        if services is None:
            shared: dict[str, Any] = {"store": f"sqlite:///{folder / 'tasks.db'}"}
        else:
            services[1].command("FLUSHALL")
            await stack.enter_async_context(_monitored(services[1], search))
            shared = {"store": await services[0].empty_database("filters"), "events": services[1].url()}
        given = Settings(
            model="openai:m",
            base_url=upstream.base_url,
            api_key=SecretStr("none"),
            push_notifications="private",
            openai_webhook=OpenAIWebhookSettings(url=receiver.url, secret=SecretStr(SECRET)),
            grpc_port=0,
            trace_content=trace_content,
            **shared,
        )
        filters = kind.create(upstream.base_url)
        urls = [
            await stack.enter_async_context(
                serving(create_app(given, filters=filters, tracer_provider=spans.provider))
            )
            for _ in range(1 if services is None else 2)
        ]
        # Without keep-alive, because the server may close an idle connection when the client reuses it.
        connector = aiohttp.TCPConnector(force_close=True)
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(await grpc_address(urls[0])))
        stub = cast("Any", a2a_pb2_grpc).A2AServiceStub(channel)
        wires = Wires((urls[0], urls[-1]), http, stub, search, receiver.url)
        await _send_all(wires, provider, kind, rng, cases)
        await _until_delivered(receiver)
        await wires.metrics()
        if services is None:
            await anyio.to_thread.run_sync(_search_files, folder, search)
    for each in receiver.deliveries:
        search.look("webhook", json.dumps(each.headers).encode() + each.raw)
        search.look_at_json("webhook", [each.body])
    for span in spans.all():
        search.look("traces", span.to_json())
        search.look_at_json("traces", [json.loads(span.to_json())])
    if services is not None:
        await _search_database(services[0], search)
    for place in [folder] if services is None else [each.folder for each in services]:
        await anyio.to_thread.run_sync(_search_files, place, search)
    return search


async def _send_all(wires: Wires, provider: Provider, kind: Kind, rng: random.Random, cases: int) -> None:
    numbers = iter(range(cases))

    async def send() -> None:
        for number in numbers:
            chance = random.Random(rng.random())
            [ending] = chance.choices(ENDINGS, (7, 2, 1, 1))
            answer = Answer(f"{kind.name}-{number}", kind, chance, ending)
            await WIRES[number % len(WIRES)](wires, provider.add(answer), answer.key)

    async with anyio.create_task_group() as group:
        for _ in range(CLIENTS):
            group.start_soon(send)


async def _until_delivered(receiver: Receiver) -> None:
    """Wait until no notification has arrived for some time; the servers send the rest when they stop."""
    with anyio.move_on_after(10):
        count = -1
        while count != len(receiver.deliveries):
            count = len(receiver.deliveries)
            await anyio.sleep(0.3)


def _start(log: Path, port: int, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a server process on a port."""
    factory = ["--factory", "torture.filtered_server:create", "--port", str(port)]
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "uvicorn", *factory],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **environment},
        )


@asynccontextmanager
async def _process(
    kind: Kind, log: Path, **environment: str
) -> AsyncGenerator[tuple[str, subprocess.Popen[bytes]]]:
    """Run a server process on a free port; it may be killed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    process = _start(log, port, {"FILTER": kind.name, **environment})
    try:
        async with aiohttp.ClientSession() as http:

            async def responds() -> bool:
                if process.poll() is not None:
                    raise RuntimeError(f"the server ended: {await anyio.Path(log).read_text()}")
                try:
                    async with http.get(f"http://127.0.0.1:{port}/healthz"):
                        return True
                except aiohttp.ClientError:
                    return False

            if not await until(responds, 180):  # a busy machine starts servers slowly
                raise RuntimeError(f"the server does not respond: {await anyio.Path(log).read_text()}")
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.terminate()
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(process.wait)


async def kill(kind: Kind, folder: Path, rng: random.Random, kills: int, streams: int = 6) -> Search:
    """Kill a server during responses, and search for forbidden texts in all that it and its successor write and send.

    Args:
        kind: The filter.
        folder: The folder for the database and the logs.
        rng: Chooses texts and moments.
        kills: The number of kills.
        streams: The number of responses at each kill.
    """
    search, provider, begun = Search(kind), Provider(), list[str]()
    async with (
        ScriptedUpstream(provider.respond, lists_models=True) as upstream,
        aiohttp.ClientSession() as http,
    ):
        environment = {
            "TAILRACE_MODEL": "openai:m",
            "TAILRACE_API_KEY": "none",
            "TAILRACE_BASE_URL": upstream.base_url,
            "TAILRACE_STORE": f"sqlite:///{folder / 'tasks.db'}",
        }

        async def stream(wires: Wires, key: str) -> None:
            answer = Answer(key, kind, random.Random(rng.random()), "hang")
            with suppress(aiohttp.ClientError):
                await wires.begin(provider.add(answer), begun)

        async def all_requested() -> bool:
            requested = [each for each in provider.answers.values() if each.requests]
            return len(begun) == streams and len(requested) == len(provider.answers)

        for number in range(kills + 1):
            async with _process(kind, folder / f"log.{number}", **environment) as (url, process):
                wires = Wires((url, url), http, None, search, "")
                for task_id in begun:
                    await wires.read_again(task_id)
                begun.clear()
                if number == kills:
                    break
                async with anyio.create_task_group() as group:
                    for each in range(streams):
                        group.start_soon(stream, wires, f"{kind.name}-{number}-{each}")
                    await until(all_requested, 60)
                    await anyio.sleep(rng.random() / 2)
                    process.kill()
    await anyio.to_thread.run_sync(_search_files, folder, search)
    return search


async def run(
    folder: Path,
    rng: random.Random,
    *,
    cases: int = 10_000,
    kills: int = 50,
    kinds: Sequence[str] = tuple(KINDS),
) -> Outcome:
    """Run the scenario.

    Args:
        folder: The folder for databases.
        rng: Chooses texts, deltas, endings and moments.
        cases: The number of messages. Two nodes, which are slower, receive a tenth of them, and one server the rest.
        kills: The number of kills of one server.
        kinds: The filters.
    """
    outcome = Outcome("filters")
    sizes: Counter[str] = Counter()

    def place_of(name: str) -> Path:
        place = folder / name
        place.mkdir()
        return place

    def check(name: str, search: Search, rounds: int) -> None:
        outcome.rounds += rounds
        sizes.update(search.sizes)
        for where, found in search.found.items():
            outcome.check(False, f"{name}: {sorted(found)} in the {where}")

    with running_valkey() as valkey, running_postgres() as postgres:
        services = (postgres, valkey)
        for name in kinds:
            on_nodes = cases // len(kinds) // 10
            alone = cases // len(kinds) - on_nodes
            check(name, await fuzz(KINDS[name], place_of(f"{name}-server"), rng, alone, None), alone)
            check(name, await fuzz(KINDS[name], place_of(f"{name}-nodes"), rng, on_nodes, services), on_nodes)
            here = kills // len(kinds)
            if here:
                check(name, await kill(KINDS[name], place_of(f"{name}-kills"), rng, here), here)
        place = place_of("unfiltered")
        control = await fuzz(UNFILTERED, place, rng, 4 * len(WIRES), services, trace_content=True)
    missed = {"wire", "webhook", "database", "broker", "files", "traces"} - set(control.found)
    outcome.check(not missed, f"the search does not find unfiltered texts in {missed}")
    outcome.check(not PLACES - set(sizes), f"not searched: {PLACES - set(sizes)}")
    outcome.figures.append(", ".join(f"{size / 1e6:.1f} MB {where}" for where, size in sorted(sizes.items())))
    return outcome
