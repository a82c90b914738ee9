"""``tailrace doctor``: checks whether a server can run here, and prints advice.

The checks do not create or migrate a store.
"""

import json
import os
import platform
import shutil
import socket
import sqlite3
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, aclosing, closing
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import anyio
from rich.console import Console
from rich.text import Text

from tailrace.server.agent_factory import create_model
from tailrace.server.cli.env_file_option import announce_env_file
from tailrace.server.cli.serve import is_open_to_others, read_settings
from tailrace.server.cli.transcript import for_terminal
from tailrace.server.remote.client import AgentClient
from tailrace.server.settings import Settings
from tailrace.server.store.database import parse_url
from tailrace.streaming.accumulator import Accumulator
from tailrace.wrappers import ContentPartText, History, Message, Role, TailraceError, UpstreamError
from tailrace.wrappers.providers import find_provider
from tailrace.wrappers.request_options import RequestOptions

EXIT_OK, EXIT_PROBLEM = 0, 1

Verdict = Literal["ok", "warning", "problem"]
_SIGNS = {"ok": ("ok  ", "green"), "warning": ("warn", "yellow"), "problem": ("FAIL", "red bold")}

_RESPONSE_SECONDS = 60.0  # limit for the response of the model
_CONNECT_SECONDS = 5.0
_LITTLE_SPACE = 200 * 1024 * 1024  # bytes on the store's disk
_QUESTION = "Count from one to ten in words."

# A module of each extra, and the use of the extra.
_EXTRAS = {
    "sdk": ("a2a", "--agent, the official SDK"),
    "grpc": ("grpc", "gRPC"),
    "mcp": ("mcp", "tools of MCP servers"),
    "postgres": ("asyncpg", "a store on PostgreSQL"),
    "otel": ("opentelemetry.exporter", "sending spans"),
}


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        name: The part that was checked.
        verdict: The result.
        details: The result in one line.
        advice: How to fix a problem; empty if there is no advice.
    """

    name: str
    verdict: Verdict
    details: str
    advice: str = ""


def doctor(env_file: Path | None, *, ask_model: bool = True, as_json: bool = False, **options: Any) -> int:
    """Print the findings, and return the exit status.

    Args:
        env_file: As for `read_settings`.
        ask_model: True to send a short prompt to the model.
        as_json: True to print the findings as JSON lines.
        options: As for `read_settings`.

    Raises:
        ConfigurationError: The settings are invalid.
    """
    announce_env_file(env_file)
    settings = read_settings(env_file, **options)
    console = Console(highlight=False, soft_wrap=True)

    async def examine() -> int:
        status = EXIT_OK
        async with aclosing(findings(settings, ask=ask_model)) as found:
            async for finding in found:
                if as_json:
                    print(json.dumps(asdict(finding)), flush=True)  # noqa: T201
                else:
                    _show(console, finding)
                if finding.verdict == "problem":
                    status = EXIT_PROBLEM
        return status

    return anyio.run(examine)


def _show(console: Console, finding: Finding) -> None:
    sign, style = _SIGNS[finding.verdict]
    line = (
        Text(sign, style)
        .append(f" {finding.name}: ", "bold")
        .append(for_terminal(finding.details), "default")
    )
    console.print(line)
    if finding.advice:
        console.print(Text(f"     → {for_terminal(finding.advice)}", "default"))


async def findings(settings: Settings, *, ask: bool = True) -> AsyncGenerator[Finding]:
    """Run all checks in sequence, and yield their findings.

    Args:
        settings: The settings of the server.
        ask: True to send a short prompt to the model.
    """
    for check in (_versions, _access, _store_file, _ports):
        for finding in check(settings):
            yield finding
    for finding in await _database(settings):
        yield finding
    for finding in await _broker(settings):
        yield finding
    if settings.agent:
        yield await _remote_agent(settings)
        return
    known = _model_named(settings)
    yield known
    if known.verdict != "problem" and ask:
        yield await _upstream(settings)


# --- environment -----------------------------------------------------------------------------------------------


def _versions(_settings: Settings) -> Generator[Finding]:
    details = f"tailrace {version('tailrace')}, Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    yield Finding("versions", "ok", details)
    there = [name for name, (module, _) in _EXTRAS.items() if _is_installed(module)]
    missing = [f"{name} ({use})" for name, (_, use) in _EXTRAS.items() if name not in there]
    if missing:
        yield Finding(
            "extras", "ok", f"installed: {', '.join(there) or 'none'}; not installed: {', '.join(missing)}"
        )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _access(settings: Settings) -> Generator[Finding]:
    if is_open_to_others(settings):
        yield Finding(
            "access",
            "problem",
            f"other machines can reach {settings.host}, and authentication is not configured",
            "set TAILRACE_CALLER_KEYS or TAILRACE_CALLER_JWT, or --allow-anonymous to serve every client",
        )
    elif settings.caller_keys or settings.caller_jwt.jwks_url:
        yield Finding("access", "ok", "callers have to authenticate")
        if settings.caller_jwt.jwks_url:
            from tailrace.server.auth.bearer import unchecked_claims  # imports the cryptography library

            warning = unchecked_claims(settings.caller_jwt.issuer, settings.caller_jwt.audience)
            if warning:
                details, _, advice = warning.rpartition(": ")
                yield Finding("tokens", "warning", details, advice)
    elif settings.allow_anonymous:
        yield Finding(
            "access",
            "warning",
            "every client can use the agent without authentication",
            "unset TAILRACE_ALLOW_ANONYMOUS",
        )
    else:
        yield Finding("access", "ok", f"{settings.host} accepts connections of this machine only")


def _ports(settings: Settings) -> Generator[Finding]:
    wanted = {"port": ("TAILRACE_PORT", settings.port)}
    if settings.grpc_port is not None:
        wanted["gRPC port"] = ("TAILRACE_GRPC_PORT", settings.grpc_port)
        if not _is_installed("grpc"):
            yield Finding("gRPC", "problem", "its packages are missing", "pip install 'tailrace[grpc]'")
    for name, (variable, port) in wanted.items():
        try:
            family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
            with socket.create_server((settings.host, port), family=family) as listener:
                yield Finding(name, "ok", f"{settings.host}:{listener.getsockname()[1]} is free")
        except OSError as error:
            advice = f"stop the program that listens there (perhaps a running server), or set {variable}"
            yield Finding(
                name, "problem", f"{settings.host}:{port} cannot be used: {error.strerror or error}", advice
            )


# --- the store --------------------------------------------------------------------------------------------------


def _store_file(settings: Settings) -> Generator[Finding]:
    url = parse_url(settings.store)
    if url.get_backend_name() != "sqlite":
        return
    if not url.database or url.database == ":memory:":
        yield Finding(
            "store", "warning", "in memory: a restart loses all tasks", "set TAILRACE_STORE=sqlite:///FILE"
        )
        return
    path = Path(url.database).absolute()
    folder = next(each for each in path.parents if each.exists())
    if not os.access(path if path.exists() else folder, os.W_OK):
        yield Finding(
            "store",
            "problem",
            f"{path} cannot be written",
            "give this user write access, or set TAILRACE_STORE",
        )
        return
    free = shutil.disk_usage(folder).free
    if free < _LITTLE_SPACE:
        yield Finding(
            "disk",
            "warning",
            f"{free // 2**20} MiB are free in {folder}",
            "tasks fail when the disk is full: free some space",
        )
    if not path.exists():
        yield Finding("store", "ok", f"{path} will be created at the first start")
        return
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=2)) as database:
            [tasks] = database.execute("SELECT count(*) FROM tasks").fetchone()
        yield Finding("store", "ok", f"{path}: {tasks:,} tasks, {path.stat().st_size // 2**10:,} KiB")
    except sqlite3.Error as error:
        if "locked" in str(error):
            advice = "a running server uses it; configure another store for a second server"
            yield Finding("store", "warning", f"{path} is in use", advice)
        else:
            advice = "restore it from a backup, or choose another file with TAILRACE_STORE"
            yield Finding("store", "problem", f"{path} cannot be read: {error}", advice)


async def _database(settings: Settings) -> list[Finding]:
    url = parse_url(settings.store)
    if url.get_backend_name() != "postgresql":
        return []
    if not _is_installed("asyncpg"):
        return [
            Finding("store", "problem", "PostgreSQL's driver is missing", "pip install 'tailrace[postgres]'")
        ]
    asyncpg: Any = import_module("asyncpg")  # an extra without types

    failures: tuple[type[Exception], ...] = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError)
    where = f"{url.host or 'localhost'}:{url.port or 5432}/{url.database or ''}"
    try:
        connection = await asyncpg.connect(
            url.set(drivername="postgresql").render_as_string(hide_password=False), timeout=_CONNECT_SECONDS
        )
        try:
            found = str(await connection.fetchval("SHOW server_version"))
        finally:
            await connection.close()
    except failures as error:
        advice = "check that it runs, and host, port, name and password in TAILRACE_STORE"
        return [
            Finding(
                "store",
                "problem",
                f"PostgreSQL at {where} cannot be used: {error or type(error).__name__}",
                advice,
            )
        ]
    return [Finding("store", "ok", f"PostgreSQL {found} at {where}")]


async def _broker(settings: Settings) -> list[Finding]:
    """Check the connection to the broker, and whether its settings prevent data loss."""
    if not settings.events:
        return []
    parts = urlsplit(settings.events)
    where = f"{parts.hostname or 'localhost'}:{parts.port or 6379}"
    if not _is_installed("redis"):
        return [Finding("broker", "problem", "its client is missing", "pip install 'tailrace[redis]'")]
    from tailrace.server.cluster.broker import Broker  # an extra
    from tailrace.server.cluster.broker_connection import ReplyError

    try:
        async with AsyncExitStack() as stack:
            broker = Broker(settings.events)
            stack.push_async_callback(broker.close)
            durability_risks = await broker.durability_risks()
    except ReplyError as error:
        details = f"{where} responds, but its durability settings cannot be read: {error.reply}"
        return [Finding("broker", "warning", details, "docs/scaling.md lists the required settings")]
    except TailraceError as error:
        advice = "check that it runs, and host, port and password in TAILRACE_EVENTS"
        return [Finding("broker", "problem", f"{where} cannot be used: {error}", advice)]
    if not durability_risks:
        return [Finding("broker", "ok", f"{where} responds, and its settings prevent data loss")]
    return [
        Finding("broker", "warning", f"{where}: {details}", advice) for details, advice in durability_risks
    ]


# --- model and agent ------------------------------------------------------------------------------------------------


def _model_named(settings: Settings) -> Finding:
    if not settings.model:
        return Finding(
            "model",
            "problem",
            "no model is set",
            "set --model PROVIDER:MODEL; `tailrace providers` lists the providers",
        )
    try:
        provider = find_provider(settings.model.partition(":")[0])
        create_model(settings)
    except TailraceError as error:
        return Finding("model", "problem", str(error), "`tailrace providers` shows names and keys")
    key = next((name for name in provider.key_variables if os.environ.get(name)), "")
    source = "TAILRACE_API_KEY" if settings.api_key else key
    details = f"{settings.model}, {f'with the key in {source}' if source else 'without a key'}"
    return Finding("model", "ok", details)


async def _upstream(settings: Settings) -> Finding:
    question = Message(role=Role.USER, content=(ContentPartText(text=_QUESTION),))
    began, first, reads, folded = time.monotonic(), 0.0, 0, Accumulator()
    try:
        async with AsyncExitStack() as stack:
            model = create_model(settings)
            stack.push_async_callback(model.aclose)
            with anyio.fail_after(_RESPONSE_SECONDS):
                batches = await stack.enter_async_context(
                    model.stream(History(conversation=(question,)), RequestOptions())
                )
                async for batch in batches:
                    first, reads = first or time.monotonic(), reads + 1
                    for chunk in batch:
                        folded.add(chunk)
        folded.close()
        if folded.error is not None:
            raise folded.error
    except TimeoutError:
        return Finding(
            "upstream",
            "problem",
            f"no complete response within {_RESPONSE_SECONDS:g} s",
            "try a smaller model, or later",
        )
    except TailraceError as error:
        details = (
            error.diagnosis if isinstance(error, UpstreamError) else ""
        )  # operators may see its addresses
        return Finding("upstream", "problem", details or str(error), _advice_for(error))
    seconds = time.monotonic() - began
    details = f"responds: first chunk after {first - began:.2f} s, complete after {seconds:.2f} s"
    if reads == 1 and seconds > 1:
        return Finding(
            "upstream",
            "warning",
            f"{details}, but as one chunk, without streaming",
            "a proxy buffers the stream: disable its buffering (nginx: proxy_buffering off)",
        )
    return Finding("upstream", "ok", details)


def _advice_for(error: TailraceError) -> str:
    if not isinstance(error, UpstreamError):
        return "correct the named setting"
    by_status: dict[int, str] = {
        401: "the key is wrong or has expired: set another",
        403: "the key may not use this model: choose another, or another key",
        404: "the model does not exist, or the base URL is wrong (most end in /v1)",
        429: "too many requests, or no credit is left: check the provider's account",
    }
    if error.status in by_status:
        return by_status[error.status]
    if error.status is not None and error.status >= 500:
        return "the provider reports an internal error: try again later, or check its status page"
    return "check the base URL (TAILRACE_BASE_URL), the network and a proxy (HTTPS_PROXY)"


async def _remote_agent(settings: Settings) -> Finding:
    address = settings.agent or ""
    try:
        async with AgentClient(
            address, connect_timeout=_CONNECT_SECONDS, allowed_origins=settings.agent_origins
        ) as client:
            with anyio.fail_after(_CONNECT_SECONDS * 2):
                agent = await client.agent()
    except (TailraceError, TimeoutError) as error:
        return Finding(
            "agent", "problem", str(error) or "it does not respond", "check its address, and that it runs"
        )
    return Finding("agent", "ok", f"{address} has an agent card; its endpoint is {agent.endpoint}")
