"""``tailrace serve``: a model as an A2A agent."""

import gc
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Awaitable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, cast

import typer
import uvicorn
from opentelemetry import trace
from pydantic import ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tailrace.server.app import create_app
from tailrace.server.cli import INTERRUPTED
from tailrace.server.cli.completion import complete_model
from tailrace.server.cli.env_file import EnvFile, announce_env_file
from tailrace.server.cli.workers import run_workers
from tailrace.server.http.connection_limits import ConnectionLimits, default_max_connections
from tailrace.server.http.deferred_response import with_deferral
from tailrace.server.http.request_guard import is_loopback
from tailrace.server.http.shutdown import SIGNALS
from tailrace.server.observability.logs import log_config
from tailrace.server.settings import Settings
from tailrace.wrappers import ConfigurationError, TailraceError
from tailrace.wrappers.concurrency.worker_thread import limit_unused_memory, release_memory

STARTUP_FAILURE = 3
"""The exit status of a server that could not start; uvicorn has logged the reason."""

CLOSE_TIMEOUT = 5
"""Seconds for a client to receive the rest of a response on a connection that is being closed."""

STOP_TIMEOUT = 8
"""Seconds for connections to end after all tasks have, when the server stops."""


def serve(
    model: Annotated[
        str | None,
        typer.Option(
            help="PROVIDER:MODEL, for example openai:gpt-5-mini. [TAILRACE_MODEL]",
            autocompletion=complete_model,
        ),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(help="URL of a remote A2A agent to front instead of a model. [TAILRACE_AGENT]"),
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(help="Root of a compatible API. [TAILRACE_BASE_URL]")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. [TAILRACE_HOST]")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on. [TAILRACE_PORT]")] = None,
    grpc_port: Annotated[
        int | None, typer.Option(help="Port to listen on for gRPC; none without. [TAILRACE_GRPC_PORT]")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(help="sqlite:///FILE, sqlite:// for memory, or postgresql://…. [TAILRACE_STORE]"),
    ] = None,
    events: Annotated[
        str | None,
        typer.Option(help="redis://HOST:PORT/0 of a Valkey that several servers share. [TAILRACE_EVENTS]"),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="Processes to serve with; more than one need --events. [TAILRACE_WORKERS]"),
    ] = None,
    allow_anonymous: Annotated[
        bool | None,
        typer.Option(
            "--allow-anonymous",
            help="Let everybody in at an address that others can reach. [TAILRACE_ALLOW_ANONYMOUS]",
        ),
    ] = None,
    instructions: Annotated[
        str | None, typer.Option(help="System message of every conversation. [TAILRACE_INSTRUCTIONS]")
    ] = None,
    tools: Annotated[
        list[str] | None,
        typer.Option(
            help="What the model may call: MODULE:NAME, mcp:URL or 'mcp:COMMAND ARGUMENTS'; may be given several times. "
            "[TAILRACE_TOOLS]"
        ),
    ] = None,
    env_file: EnvFile = None,
) -> None:
    """Serve a model as an A2A agent until interrupted.

    Every option is also a TAILRACE_… setting, in the environment or the file of --env-file.
    """
    announce_env_file(env_file)
    settings = read_settings(
        env_file,
        model=model,
        agent=agent,
        base_url=base_url,
        host=host,
        port=port,
        grpc_port=grpc_port,
        store=store,
        events=events,
        workers=workers,
        allow_anonymous=allow_anonymous,
        instructions=instructions,
        tools=tools,
    )
    _refuse_open_access(settings)
    _export_spans()
    app = create_app(settings)  # with several processes, too: invalid settings are reported once
    if settings.workers == 1:
        run_app(app, settings)
        return
    run_workers(partial(_work, settings), _listen(settings), settings.workers)


def _listen(settings: Settings) -> socket.socket:
    """Listen on behalf of several processes: connections wait until one of them accepts them."""
    config = uvicorn.Config(_work, log_level="info")  # logs in uvicorn's format
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=config.backlog)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {settings.host} port {settings.port}: {error.strerror or error}"
        ) from None
    host = f"[{settings.host}]" if family is socket.AF_INET6 else settings.host
    url = f"http://{host}:{listener.getsockname()[1]}"
    logging.getLogger("uvicorn.error").info("Uvicorn running on %s (Press CTRL+C to quit)", url)
    return listener


def _work(settings: Settings, listener: socket.socket) -> None:
    """Serve in one of several processes."""
    run_app(create_app(settings), settings, listener)


def _refuse_open_access(settings: Settings) -> None:
    """Refuse to listen on other than loopback addresses without authentication: every client could read all tasks."""
    if is_open_to_others(settings):
        raise ConfigurationError(
            f"{settings.host} can be reached by other machines: set TAILRACE_CALLER_KEYS or TAILRACE_CALLER_JWKS_URL to "
            "authenticate callers, or --allow-anonymous to serve everyone"
        )


def is_open_to_others(settings: Settings) -> bool:
    """Return whether other machines can reach the server without authentication, and that is not allowed."""
    if settings.caller_keys or settings.caller_jwks_url or settings.allow_anonymous:
        return False
    return not is_loopback(settings.host)


def _export_spans() -> None:
    """Export spans as OpenTelemetry's variables configure, unless the process has an exporter already."""
    endpoint = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or os.environ.get(
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
    )
    if not endpoint or not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    if find_spec("opentelemetry.exporter.otlp.proto.http") is None:
        raise ConfigurationError(
            "OTEL_EXPORTER_OTLP_ENDPOINT: sending spans needs more packages: pip install 'tailrace[otel]'"
        )
    os.environ.setdefault("OTEL_SERVICE_NAME", "tailrace")
    os.environ.setdefault("FASTAPI_OTEL_AUTO_CONFIGURE", "true")  # used by FastAPI at startup


def read_settings(env_file: Path | None = None, **given: Any) -> Settings:
    """Read the settings from the environment; given options override it.

    Args:
        env_file: A file of settings, which the environment overrides; None for none.
        given: The options.

    Raises:
        ConfigurationError: A value is not valid; the message names the setting.
    """
    values: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    values["_env_file"] = env_file  # unknown to type checkers
    try:
        return Settings(**values)
    except ValidationError as error:
        problems = "; ".join(
            f"TAILRACE_{'.'.join(map(str, item['loc'])).upper()}: {item['msg']}" for item in error.errors()
        )
        raise ConfigurationError(problems) from None


def run_app(app: Any, settings: Settings, listener: socket.socket | None = None) -> None:
    """Serve an application until SIGINT or SIGTERM, which end the process properly with exit status 0.

    Nothing more is accepted then, tasks have ``settings.shutdown_grace`` to end, and everything is persisted. A second
    signal ends the process at once, like a crash: published events are persisted all the same.

    Args:
        app: The application.
        settings: The address to listen on.
        listener: A listening socket in place of the address.

    Raises:
        TailraceError: A resource of the application (store, tools) cannot be used.
    """
    most = settings.bounds.max_connections
    most = default_max_connections() if most is None else most
    limits = ConnectionLimits(most, settings.bounds.header_timeout)
    start = _Start(app, limits)
    config = uvicorn.Config(
        start,
        interface="asgi3",
        http=limits.protocol(),
        host=settings.host,
        port=settings.port,
        log_config=log_config(settings.log_format),
        log_level="warning",  # before the application has started
        access_log=False,
        ws="none",
        timeout_graceful_shutdown=math.ceil(settings.shutdown_grace) + STOP_TIMEOUT,
    )
    server = _Server(config, limits)

    def end(number: int, _frame: FrameType | None) -> None:
        # uvicorn listens while it serves. It repeats the signal after its shutdown: then only the process is left to
        # end. Before, nothing is open yet.
        if server.should_exit:
            sys.exit(0)
        os._exit(INTERRUPTED if number == signal.SIGINT else 0)

    before = {number: signal.signal(number, end) for number in SIGNALS}
    try:
        server.run(None if listener is None else [listener])
    except SystemExit:
        if start.failure is not None:
            raise start.failure from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if not server.started:
        sys.exit(STARTUP_FAILURE)


class _Start:
    """Logs the start of an application in place of uvicorn, and counts its requests.

    `run_app` reports a failed start in one line; uvicorn would print a traceback, between log lines of its own.

    Args:
        app: The application.
        limits: The connections of its requests.

    Attributes:
        failure: Our error that prevented the start, if there is one; uvicorn prints all others.
    """

    def __init__(self, app: ASGIApp, limits: ConnectionLimits) -> None:
        self.failure: TailraceError | None = None
        self._limits = limits
        self._app = app
        self._log = logging.getLogger("uvicorn.error")

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Call the application."""
        if scope["type"] == "lifespan":
            return self._live(scope, receive, send)
        refuse = self._limits.begin_request(scope)
        if refuse is not None:
            return refuse(scope, receive, send)
        # A copy: uvicorn's scope stays as it was, even for a deferred response.
        scope = {**scope, "extensions": {**scope.get("extensions", {})}}
        return with_deferral(self._app, scope, receive, send)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        failed: Message | None = None

        async def reply(message: Message) -> None:
            nonlocal failed
            if message["type"] == "lifespan.startup.failed":
                failed = message  # sent before the error is raised
                return
            if message["type"] == "lifespan.startup.complete":
                self._log.setLevel(logging.INFO)
                _settle()
            await send(message)

        try:
            await self._app(scope, receive, reply)
        except Exception as error:
            if failed is None:
                raise
            self.failure = _ours(error)
            if self.failure is None:
                await send(failed)
                raise
            self._log.setLevel(logging.CRITICAL)
            await send({**failed, "message": ""})


def _settle() -> None:
    """Freeze objects created at startup (`gc.freeze`), trim the heap, and collect garbage less often.

    The collector would traverse these objects in each full collection, which stops all streams for tens of milliseconds;
    glibc returns the memory of imports to the system only on request. Tokens leave no reference cycles, so fewer
    collections are enough.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    limit_unused_memory()
    release_memory()


def _ours(error: Exception) -> TailraceError | None:
    """Return the first error of ours inside exception groups; None if there is none."""
    while isinstance(error, ExceptionGroup):
        inside = cast("tuple[Exception, ...]", error.exceptions)
        if len(inside) != 1:
            return None
        error = inside[0]
    return error if isinstance(error, TailraceError) else None


class _Server(uvicorn.Server):
    """Ends at once after a second signal, and closes connections of clients that neither send nor receive.

    uvicorn closes a connection after everything was sent; with such a client that never happens, and the socket and
    its buffers would be held without bound.
    """

    def __init__(self, config: uvicorn.Config, limits: ConnectionLimits) -> None:
        super().__init__(config)
        self._limits = limits
        self._closing: dict[Any, int] = {}

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle SIGINT and SIGTERM; the operating system handles the next one, whatever hangs here."""
        super().handle_exit(sig, frame)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)

    async def on_tick(self, counter: int) -> bool:
        """Run ten times a second."""
        self._limits.close_expired()
        transports = [connection.transport for connection in list(self.server_state.connections)]
        closing = {transport for transport in transports if transport.is_closing()}
        self._closing = {transport: 1 + self._closing.get(transport, 0) for transport in closing}
        for transport, ticks in self._closing.items():
            if ticks > 10 * CLOSE_TIMEOUT:
                transport.abort()
        return await super().on_tick(counter)
